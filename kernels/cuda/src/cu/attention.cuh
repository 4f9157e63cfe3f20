// Attention in the order of `attention.rs`: chunks of 32 keys, parts of 256, joined in order, sinks last.
//
// A workgroup has one item: up to sixteen query vectors that share a head of keys. For each part
// 1. a thread takes a key, a warp a chunk, and multiplies it with all vectors;
// 2. a warp takes a vector: its scores chunk by chunk, their largest, its weights and their sum;
// 3. a thread takes two dimensions of the output of some vectors, over the keys in order.
// So keys and values are read once for several vectors, and loads are whole lines.

#define VECTORS 16u
#define CHUNK 32u
#define PART 256u
#define PART_CHUNKS (PART / CHUNK)

// The numbers of a launch, in the order of the table of kernels.
struct AttendArgs {
    u32 items, kv_heads, group, d;
    float scale, cap;
    u32 window, first_keys, has_sinks, lse_width;
};

struct Item {
    u32 row, rows, position, table, head, heads;
};

DEVICE Item read_item(const u32* items, u32 i) {
    const u32* at = items + 8u * (u64)i;
    return {at[0], at[1], at[2], at[3], at[4], at[5]};
}

// Returns whether the query at `position` sees key `p`.
DEVICE bool sees(u32 position, u32 p, u32 window, u32 first_keys) {
    return p <= position && (p < first_keys || position - p < window);
}

// Threads of a workgroup, and how its threads share the outputs: dimension pairs, and sets of vectors.
template <u32 WIDTH>
struct Shape {
    static const u32 THREADS = WIDTH > 256u ? 320u : 256u;
    // Workgroups that a multiprocessor should have room for.
    static const u32 GROUPS = WIDTH > 256u ? 1u : 2u;
    static const u32 WARPS = THREADS / WARP;
    static const u32 PAIRS = WIDTH / 2u;
    static const u32 SETS = THREADS / PAIRS;
    // Vectors of a thread, and of a warp.
    static const u32 EACH = VECTORS / SETS;
    static const u32 PER_WARP = (VECTORS + WARPS - 1u) / WARPS;
    // Wide heads leave no room for queries in shared memory.
    static const bool STAGED = WIDTH <= 256u;
    // Where the score and the weight of a vector lie among those of a key: those of a set lie together.
    DEVICE u32 place(u32 v) { return v % SETS * EACH + v / SETS; }
};

template <u32 WIDTH>
struct AttendShared {
    float q[Shape<WIDTH>::STAGED ? VECTORS : 1u][Shape<WIDTH>::STAGED ? WIDTH : 4u];
    // The scores of a key, and then its weights, in the order of `place`.
    __align__(16) float scores[PART][VECTORS + 4u];
    // By vector and chunk: the keys that it sees, and the factor of its outputs so far.
    u32 masks[VECTORS][PART_CHUNKS];
    float factors[VECTORS][PART_CHUNKS];
    // By vector: the factors of its outputs so far and of a part.
    float before[VECTORS];
    float here[VECTORS];
    u32 joins[VECTORS];
};

// The softmax of the vectors of a warp; all lanes have the same numbers.
struct Online {
    float top;
    float sum;
};

// The outputs of a thread.
template <u32 EACH>
struct Outputs {
    float low[EACH];
    float high[EACH];
    DEVICE void clear(Outputs& out) {
#pragma unroll
        for (u32 x = 0; x < EACH; x++) out.low[x] = out.high[x] = 0.0f;
    }
};

template <u32 WIDTH>
struct Attention {
    typedef Shape<WIDTH> S;
    const AttendArgs& args;
    const float* q;
    const u32* keys;
    const u32* values;
    const u32* table;
    Item item;
    AttendShared<WIDTH>& shared;
    u32 vectors, pairs, warp, lane;

    __device__ __forceinline__ Attention(const AttendArgs& args, const float* q, const u32* keys,
                                         const u32* values, const u32* table, const Item& item,
                                         AttendShared<WIDTH>& shared)
        : args(args), q(q), keys(keys), values(values), table(table), item(item), shared(shared) {
        vectors = item.rows * item.heads;
        pairs = args.d / 2u;
        warp = threadIdx.x / WARP;
        lane = threadIdx.x % WARP;
    }

    // Where vector `v` begins in the queries and outputs.
    __device__ __forceinline__ u64 start(u32 v) const {
        u64 row = item.row + v / item.heads;
        return (row * args.kv_heads * args.group + query_head(v)) * args.d;
    }
    __device__ __forceinline__ u32 query_head(u32 v) const {
        return blockIdx.y * args.group + item.head + v % item.heads;
    }

    __device__ __forceinline__ void stage_queries() {
        if (!S::STAGED) return;
        for (u32 v = 0; v < vectors; v++) {
            for (u32 c = threadIdx.x; c < args.d; c += S::THREADS) shared.q[v][c] = q[start(v) + c];
        }
        __syncthreads();
    }

    // Whether any vector of the item may see one of `n` keys from `first` on, which is not above the last
    // row's position.
    __device__ __forceinline__ bool is_seen(u32 first, u32 n) const {
        u32 oldest = item.position >= args.window ? item.position - args.window + 1u : 0u;
        return first < args.first_keys || first + n > oldest;
    }

    // Where the words of a chunk's keys and values begin.
    __device__ __forceinline__ u64 words_of(u32 chunk) const {
        return ((u64)table[item.table + chunk] * args.kv_heads + blockIdx.y) * CHUNK * pairs;
    }

    // The product of 32 dimensions of a vector and a key, of which `n` pairs exist.
    template <bool ALL>
    __device__ __forceinline__ float product(const float* query, const u32 (&key)[16], u32 n) const {
        float p = 0.0f;
#pragma unroll
        for (u32 c = 0; c < 16u; c += 2u) {
            float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
            if (S::STAGED) {
                four = *(const float4*)(query + 2u * c);
            } else {
                float2 low = *(const float2*)(query + 2u * (ALL || c < n ? c : 0u));
                float2 high = *(const float2*)(query + 2u * (ALL || c + 1u < n ? c + 1u : 0u));
                four = {low.x, low.y, high.x, high.y};
            }
            if (ALL || c < n) {
                p = fused(four.x, half_to_float(key[c] & 0xffffu), p);
                p = fused(four.y, half_to_float(key[c] >> 16), p);
            }
            if (ALL || c + 1u < n) {
                p = fused(four.z, half_to_float(key[c + 1u] & 0xffffu), p);
                p = fused(four.w, half_to_float(key[c + 1u] >> 16), p);
            }
        }
        return p;
    }

    // Step 1: the scores of the thread's key, in the chunk of its warp.
    __device__ __forceinline__ void score(u32 chunk) {
        const u32* words = keys + words_of(chunk) + lane;
        u32 blocks = (pairs + 15u) / 16u, next[16];
        float dots[VECTORS];
#pragma unroll
        for (u32 v = 0; v < VECTORS; v++) dots[v] = 0.0f;
#pragma unroll
        for (u32 c = 0; c < 16u; c++) next[c] = c < pairs ? words[c * CHUNK] : 0u;
        for (u32 b = 0; b < blocks; b++) {
            u32 n = pairs - 16u * b, key[16];
#pragma unroll
            for (u32 c = 0; c < 16u; c++) {
                key[c] = next[c];
                next[c] = 16u + c < n ? words[(16u * (b + 1u) + c) * CHUNK] : 0u;
            }
#pragma unroll
            for (u32 v = 0; v < VECTORS; v++) {
                if (v >= vectors) continue;
                const float* query = S::STAGED ? shared.q[v] + 32u * b : q + start(v) + 32u * b;
                dots[v] = add(dots[v], n < 16u ? product<false>(query, key, n) : product<true>(query, key, n));
            }
        }
#pragma unroll
        for (u32 v = 0; v < VECTORS; v++) {
            if (v >= vectors) continue;
            float score = mul(dots[v], args.scale);
            if (args.cap != 0.0f) score = soft_cap(score, args.cap);
            shared.scores[warp * CHUNK + lane][S::place(v)] = score;
        }
    }

    // Step 2: the weights of the warp's vectors for `n` chunks from `first` on.
    __device__ __forceinline__ void weigh(u32 first, u32 n, Online (&online)[S::PER_WARP]) {
#pragma unroll
        for (u32 i = 0; i < S::PER_WARP; i++) {
            u32 v = warp + i * S::WARPS;
            if (v >= vectors) continue;
            // By chunk: whether the lane's key is seen, and whether any is.
            u32 position = item.position + v / item.heads, mine = 0, any = 0;
            float s[PART_CHUNKS], most[PART_CHUNKS];
#pragma unroll
            for (u32 k = 0; k < PART_CHUNKS; k++) {
                u32 key = (first + k) * CHUNK;
                bool taken = k < n && is_seen(key, CHUNK);
                bool seen = taken && sees(position, key + lane, args.window, args.first_keys);
                u32 mask = __ballot_sync(ALL_LANES, seen);
                if (lane == 0) shared.masks[v][k] = mask;
                mine |= seen ? 1u << k : 0u;
                any |= mask != 0 ? 1u << k : 0u;
                s[k] = seen ? shared.scores[k * CHUNK + lane][S::place(v)] : -infinity();
                most[k] = s[k];
                for (u32 apart = 16; apart > 0; apart /= 2) {
                    most[k] = larger(most[k], __shfl_xor_sync(ALL_LANES, most[k], apart));
                }
                most[k] = __shfl_sync(ALL_LANES, most[k], 0);
            }
            float top = online[i].top, sum = online[i].sum;
#pragma unroll
            for (u32 k = 0; k < PART_CHUNKS; k++) {
                bool taken = (any >> k & 1u) != 0;
                float before = top;
                if (taken) top = larger(top, most[k]);
                float factor = taken ? exponential(sub(before, top)) : 1.0f;
                float weight = (mine >> k & 1u) != 0 ? exponential(sub(s[k], top)) : 0.0f;
                shared.scores[k * CHUNK + lane][S::place(v)] = weight;
                if (lane == 0) shared.factors[v][k] = factor;
                for (u32 apart = 16; apart > 0; apart /= 2) {
                    weight = add(weight, __shfl_xor_sync(ALL_LANES, weight, apart));
                }
                if (taken) sum = fused(sum, factor, weight);
            }
            online[i] = {top, sum};
        }
    }

    // Step 3: the outputs of the thread, over `n` chunks from `first` on.
    __device__ __forceinline__ void add_values(u32 first, u32 n, Outputs<S::EACH>& out) {
        u32 pair = threadIdx.x % S::PAIRS, set = threadIdx.x / S::PAIRS;
        if (pair >= pairs || set >= S::SETS) return;
        for (u32 k = 0; k < n; k++) {
            if (!is_seen((first + k) * CHUNK, CHUNK)) continue;
            const u32* words = values + words_of(first + k) + pair;
            u32 masks[S::EACH], all = ALL_LANES, word[CHUNK];
#pragma unroll
            for (u32 i = 0; i < CHUNK; i++) word[i] = words[i * pairs];
#pragma unroll
            for (u32 x = 0; x < S::EACH; x++) {
                u32 v = x * S::SETS + set;
                masks[x] = v < vectors ? shared.masks[v][k] : 0u;
                if (v < vectors) all &= masks[x];
                if (masks[x] != 0) {
                    out.low[x] = mul(out.low[x], shared.factors[v][k]);
                    out.high[x] = mul(out.high[x], shared.factors[v][k]);
                }
            }
            u32 at = k * CHUNK;
            if (all == ALL_LANES) {
                // Vectors that the item does not have get numbers that nobody reads.
#pragma unroll
                for (u32 i = 0; i < CHUNK; i++) add_value<true>(word[i], at + i, i, set, masks, out);
            } else {
#pragma unroll
                for (u32 i = 0; i < CHUNK; i++) add_value<false>(word[i], at + i, i, set, masks, out);
            }
        }
    }

    template <bool ALL>
    __device__ __forceinline__ void add_value(u32 word, u32 key, u32 i, u32 set, const u32 (&masks)[S::EACH],
                                              Outputs<S::EACH>& out) {
        float low = half_to_float(word & 0xffffu), high = half_to_float(word >> 16);
        const float* weights = &shared.scores[key][set * S::EACH];
#pragma unroll
        for (u32 x = 0; x < S::EACH; x++) {
            if (ALL || (masks[x] >> i & 1u) != 0) {
                out.low[x] = fused(weights[x], low, out.low[x]);
                out.high[x] = fused(weights[x], high, out.high[x]);
            }
        }
    }

    // Takes the `n` chunks of a part, of which the first is `first`.
    __device__ __forceinline__ void take(u32 first, u32 n, Online (&online)[S::PER_WARP],
                                         Outputs<S::EACH>& out) {
        if (warp < n && is_seen((first + warp) * CHUNK, CHUNK)) score(first + warp);
        __syncthreads();
        weigh(first, n, online);
        __syncthreads();
        add_values(first, n, out);
    }

    // Joins a part's softmax to that of all parts before; leaves the factors in shared memory.
    __device__ __forceinline__ void join(Online (&total)[S::PER_WARP], const Online (&part)[S::PER_WARP]) {
#pragma unroll
        for (u32 i = 0; i < S::PER_WARP; i++) {
            u32 v = warp + i * S::WARPS;
            if (v >= vectors) continue;
            bool joins = part[i].sum != 0.0f;
            float top = larger(total[i].top, part[i].top);
            float before = exponential(sub(total[i].top, top)), here = exponential(sub(part[i].top, top));
            if (joins) total[i] = {top, fused(part[i].sum, here, mul(total[i].sum, before))};
            if (lane == 0) {
                shared.joins[v] = joins ? 1u : 0u;
                shared.before[v] = before;
                shared.here[v] = here;
            }
        }
    }

    // Joins the outputs of a part with the factors that `join` left.
    __device__ __forceinline__ void join_outputs(Outputs<S::EACH>& total, const Outputs<S::EACH>& part) {
        u32 set = threadIdx.x / S::PAIRS;
#pragma unroll
        for (u32 x = 0; x < S::EACH; x++) {
            u32 v = x * S::SETS + set;
            if (set >= S::SETS || v >= vectors || shared.joins[v] == 0) continue;
            float before = shared.before[v], here = shared.here[v];
            total.low[x] = fused(part.low[x], here, mul(total.low[x], before));
            total.high[x] = fused(part.high[x], here, mul(total.high[x], before));
        }
    }
};

template <u32 N>
DEVICE void clear(Online (&online)[N]) {
#pragma unroll
    for (u32 i = 0; i < N; i++) online[i] = {-infinity(), 0.0f};
}

// Adds a head's sink. Returns the factor of the outputs.
DEVICE float add_sink(Online& online, float sink) {
    float top = larger(online.top, sink);
    float c = exponential(sub(online.top, top));
    online = {top, fused(online.sum, c, exponential(sub(sink, top)))};
    return c;
}

DEVICE float log_sum(const Online& online) {
    return online.sum == 0.0f ? -infinity() : add(online.top, logf(online.sum));
}

// An output from its sum over keys: `c` is the factor of the sink, 1 if there is none.
DEVICE float finished(float acc, float c, float sum, bool has_sink) {
    float value = has_sink ? mul(acc, c) : acc;
    return sum == 0.0f ? value : divide(value, sum);
}

template <u32 WIDTH>
DEVICE void attend(const AttendArgs& args, const float* q, const u32* keys, const u32* values,
                   const u32* table, const u32* items, const float* sinks, float* out, float* lse) {
    typedef Shape<WIDTH> S;
    __shared__ __align__(16) AttendShared<WIDTH> shared;
    Attention<WIDTH> self(args, q, keys, values, table, read_item(items, blockIdx.x), shared);
    self.stage_queries();
    Online part[S::PER_WARP], total[S::PER_WARP];
    Outputs<S::EACH> part_out, total_out;
    clear(total);
    total_out.clear(total_out);
    u32 chunks = (self.item.position + self.item.rows + CHUNK - 1u) / CHUNK;
    for (u32 first = 0; first < chunks; first += PART_CHUNKS) {
        if (!self.is_seen(first * CHUNK, PART)) continue;
        clear(part);
        part_out.clear(part_out);
        self.take(first, chunks - first < PART_CHUNKS ? chunks - first : PART_CHUNKS, part, part_out);
        __syncthreads();
        self.join(total, part);
        __syncthreads();
        self.join_outputs(total_out, part_out);
    }
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < S::PER_WARP; i++) {
        u32 v = self.warp + i * S::WARPS;
        if (v >= self.vectors || self.lane != 0) continue;
        u32 head = self.query_head(v);
        shared.before[v] = args.has_sinks != 0 ? add_sink(total[i], sinks[head]) : 1.0f;
        shared.here[v] = total[i].sum;
        lse[(u64)(self.item.row + v / self.item.heads) * args.lse_width + head] = log_sum(total[i]);
    }
    __syncthreads();
    u32 pair = threadIdx.x % S::PAIRS, set = threadIdx.x / S::PAIRS;
    if (pair >= self.pairs || set >= S::SETS) return;
#pragma unroll
    for (u32 x = 0; x < S::EACH; x++) {
        u32 v = x * S::SETS + set;
        if (v >= self.vectors) continue;
        float c = shared.before[v], sum = shared.here[v];
        float2 two = {finished(total_out.low[x], c, sum, args.has_sinks != 0),
                      finished(total_out.high[x], c, sum, args.has_sinks != 0)};
        *(float2*)(out + self.start(v) + 2u * pair) = two;
    }
}

#define ATTEND(name, width)                                                                                  \
    extern "C" __global__ void __launch_bounds__(Shape<width>::THREADS, Shape<width>::GROUPS)                \
        name(const float* q, const u32* keys, const u32* values, const u32* table, const u32* items,         \
             const float* sinks, float* out, float* lse, u32 n_items, u32 kv_heads, u32 group, u32 d,        \
             float scale, float cap, u32 window, u32 first_keys, u32 has_sinks, u32 lse_width) {             \
        if (blockIdx.x >= n_items || blockIdx.y >= kv_heads) return;                                         \
        AttendArgs args = {n_items, kv_heads, group, d, scale, cap, window, first_keys, has_sinks,           \
                           lse_width};                                                                       \
        attend<width>(args, q, keys, values, table, items, sinks, out, lse);                                 \
    }
