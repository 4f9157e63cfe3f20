// Attention by parts of 256 keys that are joined in order, sinks last, as in `attention.rs`.
//
// A workgroup has one item: up to sixteen query vectors that share a head of keys. They are the rows of the
// tensor cores' products, and no row depends on another. Keys and values are halves. The numbers of queries
// and the weights are floats: each becomes the sum of two halves. For each part
// 1. a warp takes a chunk of 32 keys, and multiplies it with all vectors;
// 2. a warp takes a vector: its scores, their largest, its weights and their sum;
// 3. a warp takes sixteen dimensions of the output at a time, over all keys.

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

// Threads of a workgroup, and what a warp takes.
template <u32 WIDTH>
struct Shape {
    static const u32 THREADS = WIDTH > 256u ? 320u : 256u;
    // Workgroups that a multiprocessor should have room for.
    static const u32 GROUPS = WIDTH > 256u ? 1u : 2u;
    static const u32 WARPS = THREADS / WARP;
    // Vectors of a warp, and sixteens of dimensions.
    static const u32 PER_WARP = (VECTORS + WARPS - 1u) / WARPS;
    static const u32 UNITS = (WIDTH / 16u + WARPS - 1u) / WARPS;
    // Wide heads leave no room for queries in shared memory.
    static const bool STAGED = WIDTH <= 256u;
    // Words from one query to the next: pairs of halves, and four more for other banks.
    static const u32 QUERY = STAGED ? WIDTH / 2u + 4u : 4u;
};

// Words from the numbers of one vector to those of the next: 256, and four more for other banks.
#define SCORES_WORDS (PART + 4u)

template <u32 WIDTH>
struct AttendShared {
    // The two halves of the queries, in pairs.
    u32 high[Shape<WIDTH>::STAGED ? VECTORS : 1u][Shape<WIDTH>::QUERY];
    u32 low[Shape<WIDTH>::STAGED ? VECTORS : 1u][Shape<WIDTH>::QUERY];
    // A power of two for each query, by which it is divided before it becomes halves.
    float powers[VECTORS];
    // The scores of a vector as floats. Then its weights: pairs of high halves, and behind them of low ones.
    __align__(16) u32 scores[VECTORS][SCORES_WORDS];
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

// The outputs of a lane: for each unit, four dimensions of vectors l / 4 and l / 4 + 8.
template <u32 UNITS>
struct Outputs {
    float y[UNITS][2][4];
    DEVICE void clear(Outputs& out) {
#pragma unroll
        for (u32 x = 0; x < UNITS * 8u; x++) out.y[x / 8u][x / 4u % 2u][x % 4u] = 0.0f;
    }
};

// The halves of a number: of it, and of what is left.
DEVICE u32 high_half(float x) { return float_to_half(x); }
DEVICE u32 low_half(float x, u32 high) { return float_to_half(sub(x, half_to_float(high))); }

// The power of two at or below a positive number; 1 if it is too small or no number.
DEVICE float power_of(float most) {
    u32 bits = float_to_bits(most) & 0x7f800000u;
    return bits == 0 || bits >= 0x7e800000u ? 1.0f : bits_to_float(bits);
}

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
    u32 vectors, pairs, end, warp, lane;

    __device__ __forceinline__ Attention(const AttendArgs& args, const float* q, const u32* keys,
                                         const u32* values, const u32* table, const Item& item,
                                         AttendShared<WIDTH>& shared)
        : args(args), q(q), keys(keys), values(values), table(table), item(item), shared(shared) {
        vectors = item.rows * item.heads;
        pairs = args.d / 2u;
        end = item.position + item.rows;
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

    // Finds the queries' powers, and puts their halves into shared memory if they fit.
    __device__ __forceinline__ void stage_queries() {
        for (u32 v = warp; v < VECTORS; v += S::WARPS) {
            const float* query = q + start(v < vectors ? v : 0u);
            float most = 0.0f;
            for (u32 c = lane; c < args.d; c += WARP) most = larger(fabsf(query[c]), most);
            for (u32 apart = 16; apart > 0; apart /= 2) {
                most = larger(most, __shfl_xor_sync(ALL_LANES, most, apart));
            }
            float power = power_of(most);
            if (lane == 0) shared.powers[v] = power;
            if (!S::STAGED) continue;
            for (u32 c = lane; c < S::QUERY; c += WARP) {
                bool is_there = v < vectors && c < pairs;
                split(is_there ? query + 2u * c : query, power, shared.high[v][c], shared.low[v][c]);
                if (!is_there) shared.high[v][c] = shared.low[v][c] = 0u;
            }
        }
        __syncthreads();
    }

    // The halves of a pair of numbers, divided by a power of two.
    __device__ __forceinline__ void split(const float* pair, float power, u32& high, u32& low) const {
        float x = divide(pair[0], power), y = divide(pair[1], power);
        u32 a = high_half(x), b = high_half(y);
        high = a | b << 16;
        low = low_half(x, a) | low_half(y, b) << 16;
    }

    // The words of pair `c` of a vector's query; zeros if it does not have them.
    __device__ __forceinline__ void query(u32 v, u32 c, u32& high, u32& low) const {
        high = low = 0u;
        if (S::STAGED) {
            if (c < S::QUERY) {
                high = shared.high[v][c];
                low = shared.low[v][c];
            }
        } else if (v < vectors && c < pairs) {
            split(q + start(v) + 2u * c, shared.powers[v], high, low);
        }
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

    // Asks for the lines of a chunk's values, which are needed later.
    __device__ __forceinline__ void expect_values(u32 chunk) const {
        const u32* words = values + words_of(chunk);
        for (u32 c = lane * 32u; c < CHUNK * pairs; c += WARP * 32u) expect(words + c);
    }

    // Step 1: the scores of a chunk. Column `n` of product `j` is key `4 n + j`.
    __device__ __forceinline__ void score(u32 chunk) {
        u32 g = lane / 4u, i = lane % 4u;
        const u32* words = keys + words_of(chunk) + 4u * g;
        float high[4][4], low[4][4];
#pragma unroll
        for (u32 x = 0; x < 16u; x++) high[x / 4u][x % 4u] = low[x / 4u][x % 4u] = 0.0f;
        // Of the next four steps, so that many loads are under way.
        for (u32 first = 0; first < pairs; first += 32u) {
            uint4 b[8];
#pragma unroll
            for (u32 k = 0; k < 8u; k++) {
                u32 c = first + 4u * k + i;
                uint4 none = {0u, 0u, 0u, 0u};
                b[k] = c < pairs ? *(const uint4*)(words + c * CHUNK) : none;
            }
#pragma unroll
            for (u32 k = 0; k < 8u; k += 2u) {
                u32 c = first + 4u * k + i, h[4], l[4];
                query(g, c, h[0], l[0]);
                query(g + 8u, c, h[1], l[1]);
                query(g, c + 4u, h[2], l[2]);
                query(g + 8u, c + 4u, h[3], l[3]);
                u32 one[4] = {b[k].x, b[k].y, b[k].z, b[k].w};
                u32 two[4] = {b[k + 1u].x, b[k + 1u].y, b[k + 1u].z, b[k + 1u].w};
#pragma unroll
                for (u32 j = 0; j < 4u; j++) {
                    u32 pair[2] = {one[j], two[j]};
                    mma_halves(high[j], h, pair);
                    mma_halves(low[j], l, pair);
                }
            }
        }
#pragma unroll
        for (u32 e = 0; e < 4u; e++) {
            u32 v = g + e / 2u * 8u;
            float s[4];
#pragma unroll
            for (u32 j = 0; j < 4u; j++) {
                s[j] = mul(mul(add(high[j][e], low[j][e]), shared.powers[v]), args.scale);
                if (args.cap != 0.0f) s[j] = soft_cap(s[j], args.cap);
            }
            float4 four = {s[0], s[1], s[2], s[3]};
            *(float4*)&shared.scores[v][warp * CHUNK + 4u * (2u * i + e % 2u)] = four;
        }
    }

    // Step 2: the weights of the warp's vectors for `n` chunks from `first` on.
    __device__ __forceinline__ void weigh(u32 first, u32 n, Online (&online)[S::PER_WARP]) {
#pragma unroll
        for (u32 i = 0; i < S::PER_WARP; i++) {
            u32 v = warp + i * S::WARPS;
            if (v >= vectors) continue;
            u32 position = item.position + v / item.heads, seen = 0;
            float s[PART_CHUNKS], top = -infinity(), sum = 0.0f;
#pragma unroll
            for (u32 k = 0; k < PART_CHUNKS; k++) {
                u32 key = (first + k) * CHUNK;
                bool taken = k < n && is_seen(key, CHUNK);
                if (taken && sees(position, key + lane, args.window, args.first_keys)) seen |= 1u << k;
                s[k] = bits_to_float(shared.scores[v][k * CHUNK + lane]);
                if ((seen >> k & 1u) != 0) top = larger(s[k], top);
            }
            for (u32 apart = 16; apart > 0; apart /= 2) {
                top = larger(top, __shfl_xor_sync(ALL_LANES, top, apart));
            }
            top = __shfl_sync(ALL_LANES, top, 0);
#pragma unroll
            for (u32 k = 0; k < PART_CHUNKS; k++) {
                float weight = (seen >> k & 1u) != 0 ? exponential(sub(s[k], top)) : 0.0f;
                sum = add(sum, weight);
                // Lanes of even keys get the pairs of high halves, the others those of low ones.
                u32 high = high_half(weight), low = low_half(weight, high);
                u32 own = lane % 2u == 0 ? high : low;
                u32 other = __shfl_xor_sync(ALL_LANES, lane % 2u == 0 ? low : high, 1);
                u32 word = lane % 2u == 0 ? own | other << 16 : other | own << 16;
                shared.scores[v][lane % 2u * (PART / 2u) + (k * CHUNK + lane) / 2u] = word;
            }
            for (u32 apart = 16; apart > 0; apart /= 2) {
                sum = add(sum, __shfl_xor_sync(ALL_LANES, sum, apart));
            }
            online[i] = {top, sum};
        }
    }

    // The words of sixteen weights of the lane's two vectors.
    __device__ __forceinline__ void weights(const u32* row, u32 k, u32 (&a)[4]) const {
        u32 c = 8u * k + lane % 4u;
        a[0] = row[c];
        a[1] = row[8u * SCORES_WORDS + c];
        a[2] = row[c + 4u];
        a[3] = row[8u * SCORES_WORDS + c + 4u];
    }

    // Reads the values of a chunk: the lane's keys, and one pair of dimensions of a unit.
    __device__ __forceinline__ void load_values(u32 chunk, u32 unit, u32 (&to)[8]) const {
        u32 c = 8u * unit + lane / 4u;
        const u32* words = values + words_of(chunk) + c;
#pragma unroll
        for (u32 x = 0; x < 8u; x++) {
            u32 key = x / 2u * 8u + lane % 4u * 2u + x % 2u;
            // Nobody has written what lies behind the last key.
            to[x] = c < pairs && chunk * CHUNK + key < end ? words[key * pairs] : 0u;
        }
    }

    // Adds the products of sixteen keys of a unit: a product for the first dimensions of pairs, and one for
    // the second.
    __device__ __forceinline__ void add_keys(const u32 (&a)[4], const u32* w, float (&c)[2][4]) const {
        u32 even[2] = {__byte_perm(w[0], w[1], 0x5410u), __byte_perm(w[2], w[3], 0x5410u)};
        u32 odd[2] = {__byte_perm(w[0], w[1], 0x7632u), __byte_perm(w[2], w[3], 0x7632u)};
        mma_halves(c[0], a, even);
        mma_halves(c[1], a, odd);
    }

    // Step 3: the outputs of the warp's units, over `n` chunks from `first` on.
    __device__ __forceinline__ void add_values(u32 first, u32 n, Outputs<S::UNITS>& out) {
        const u32* high_rows = shared.scores[lane / 4u];
        const u32* low_rows = high_rows + PART / 2u;
#pragma unroll
        for (u32 x = 0; x < S::UNITS; x++) {
            u32 unit = warp + x * S::WARPS;
            if (8u * unit >= pairs) continue;
            float high[2][4], low[2][4];
#pragma unroll
            for (u32 e = 0; e < 8u; e++) high[e / 4u][e % 4u] = low[e / 4u][e % 4u] = 0.0f;
#pragma unroll 2
            for (u32 k = 0; k < n; k++) {
                if (!is_seen((first + k) * CHUNK, CHUNK)) continue;
                u32 words[8], a[4];
                load_values(first + k, unit, words);
#pragma unroll
                for (u32 half = 0; half < 2u; half++) {
                    weights(high_rows, 2u * k + half, a);
                    add_keys(a, words + 4u * half, high);
                    weights(low_rows, 2u * k + half, a);
                    add_keys(a, words + 4u * half, low);
                }
            }
#pragma unroll
            for (u32 e = 0; e < 8u; e++) {
                // Element (e % 4) of a product: vector l / 4 + 8 (e / 2 % 2), pair 2 (l % 4) + e % 2.
                u32 odd = e / 4u, c = e % 4u;
                out.y[x][c / 2u][c % 2u * 2u + odd] = add(high[odd][c], low[odd][c]);
            }
        }
    }

    // The first of the lane's four dimensions of a unit.
    __device__ __forceinline__ u32 dimension(u32 x) const {
        return 16u * (warp + x * S::WARPS) + 4u * (lane % 4u);
    }

    // Takes the `n` chunks of a part, of which the first is `first`.
    __device__ __forceinline__ void take(u32 first, u32 n, Online (&online)[S::PER_WARP],
                                         Outputs<S::UNITS>& out) {
        if (warp < n && is_seen((first + warp) * CHUNK, CHUNK)) {
            expect_values(first + warp);
            score(first + warp);
        }
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
    __device__ __forceinline__ void join_outputs(Outputs<S::UNITS>& total, const Outputs<S::UNITS>& part) {
#pragma unroll
        for (u32 h = 0; h < 2u; h++) {
            u32 v = lane / 4u + 8u * h;
            if (v >= vectors || shared.joins[v] == 0) continue;
            float before = shared.before[v], here = shared.here[v];
#pragma unroll
            for (u32 x = 0; x < S::UNITS * 4u; x++) {
                float& y = total.y[x / 4u][h][x % 4u];
                y = fused(part.y[x / 4u][h][x % 4u], here, mul(y, before));
            }
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
    Outputs<S::UNITS> part_out, total_out;
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
#pragma unroll
    for (u32 x = 0; x < S::UNITS * 4u; x++) {
        u32 v = self.lane / 4u + 8u * (x / 2u % 2u), at = self.dimension(x / 4u) + 2u * (x % 2u);
        if (v >= self.vectors || at >= args.d) continue;
        const float* y = total_out.y[x / 4u][x / 2u % 2u] + 2u * (x % 2u);
        float c = shared.before[v], sum = shared.here[v];
        bool sunk = args.has_sinks != 0;
        float2 two = {finished(y[0], c, sum, sunk), finished(y[1], c, sum, sunk)};
        *(float2*)(out + self.start(v) + at) = two;
    }
}

#define ATTEND(name, width)                                                                                  \
    extern "C" __global__ void __launch_bounds__(Shape<width>::THREADS, Shape<width>::GROUPS)                \
        name(const float* q, const u32* keys, const u32* values, const u32* table, const u32* items,         \
             const float* sinks, float* out, float* lse, u32 n_items, u32 kv_heads, u32 group, u32 d,        \
             float scale, float cap, u32 window, u32 first_keys, u32 has_sinks, u32 lse_width) {             \
        follow();                                                                                            \
        if (blockIdx.x >= n_items || blockIdx.y >= kv_heads) return;                                         \
        AttendArgs args = {n_items, kv_heads, group, d, scale, cap, window, first_keys, has_sinks,           \
                           lse_width};                                                                       \
        attend<width>(args, q, keys, values, table, items, sinks, out, lse);                                 \
    }
