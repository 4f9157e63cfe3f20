// Attention by parts of 256 keys, for few items with many keys: the same bits as `attention.cuh`.

// Where the state of vector `v` begins: its top, its sum, its output.
DEVICE u64 state_start(const AttendArgs& args, u32 item, u32 parts, u32 part, u32 v) {
    return ((((u64)item * args.kv_heads + blockIdx.y) * parts + part) * VECTORS + v) * (2u + args.d);
}

template <u32 WIDTH>
DEVICE void attend_part(const AttendArgs& args, const float* q, const u32* keys, const u32* values,
                        const u32* table, const u32* items, float* states, u32 parts) {
    typedef Shape<WIDTH> S;
    __shared__ __align__(16) AttendShared<WIDTH> shared;
    Attention<WIDTH> self(args, q, keys, values, table, read_item(items, blockIdx.x), shared);
    u32 chunks = (self.item.position + self.item.rows + CHUNK - 1u) / CHUNK;
    u32 first = blockIdx.z * PART_CHUNKS;
    Online part[S::PER_WARP];
    Outputs<S::UNITS> out;
    clear(part);
    out.clear(out);
    if (first < chunks) {
        self.stage_queries();
        self.take(first, chunks - first < PART_CHUNKS ? chunks - first : PART_CHUNKS, part, out);
    }
#pragma unroll
    for (u32 i = 0; i < S::PER_WARP; i++) {
        u32 v = self.warp + i * S::WARPS;
        if (v >= self.vectors || self.lane != 0) continue;
        float* state = states + state_start(args, blockIdx.x, parts, blockIdx.z, v);
        state[0] = part[i].top;
        state[1] = part[i].sum;
    }
#pragma unroll
    for (u32 x = 0; x < S::UNITS * 4u; x++) {
        u32 v = self.lane / 4u + 8u * (x / 2u % 2u), at = self.dimension(x / 4u) + 2u * (x % 2u);
        if (v >= self.vectors || at >= args.d) continue;
        const float* y = out.y[x / 4u][x / 2u % 2u] + 2u * (x % 2u);
        float2 two = {y[0], y[1]};
        *(float2*)(states + state_start(args, blockIdx.x, parts, blockIdx.z, v) + 2u + at) = two;
    }
}

#define ATTEND_PART(name, width)                                                                             \
    extern "C" __global__ void __launch_bounds__(Shape<width>::THREADS, Shape<width>::GROUPS)                \
        name(const float* q, const u32* keys, const u32* values, const u32* table, const u32* items,         \
             float* states, u32 n_items, u32 kv_heads, u32 group, u32 d, float scale, float cap, u32 window, \
             u32 first_keys, u32 has_sinks, u32 lse_width, u32 parts) {                                      \
        follow();                                                                                            \
        if (blockIdx.x >= n_items || blockIdx.y >= kv_heads || blockIdx.z >= parts) return;                  \
        AttendArgs args = {n_items, kv_heads, group, d, scale, cap, window, first_keys, has_sinks,           \
                           lse_width};                                                                       \
        attend_part<width>(args, q, keys, values, table, items, states, parts);                              \
    }

// Threads of a workgroup that joins the parts of one vector, and parts whose softmax it joins at a time.
#define JOIN_THREADS 256u
#define JOIN_PARTS 32u

struct JoinShared {
    // Factors of the outputs so far and of a part, and which parts are joined.
    float before[JOIN_PARTS];
    float here[JOIN_PARTS];
    u32 joins;
    float factor;
    float sum;
};

// Joins the softmax of up to 32 parts, a lane for each, and leaves the factors of the outputs. The tops and
// sums are taken in order; only the exponentials run side by side.
DEVICE void join_softmax(JoinShared& shared, u32 lane, u32 n, float top, float sum, Online& total) {
    bool joins = lane < n && sum != 0.0f;
    u32 mask = __ballot_sync(ALL_LANES, joins);
    float running = total.top, top_before = 0.0f, top_after = 0.0f;
    for (u32 p = 0; p < n; p++) {
        float other = __shfl_sync(ALL_LANES, top, p);
        if (lane == p) top_before = running;
        if ((mask >> p & 1u) != 0) running = larger(running, other);
        if (lane == p) top_after = running;
    }
    float before = exponential(sub(top_before, top_after)), here = exponential(sub(top, top_after));
    float all = total.sum;
    for (u32 p = 0; p < n; p++) {
        float b = __shfl_sync(ALL_LANES, before, p), h = __shfl_sync(ALL_LANES, here, p);
        float s = __shfl_sync(ALL_LANES, sum, p);
        if ((mask >> p & 1u) != 0) all = fused(s, h, mul(all, b));
    }
    total = {running, all};
    shared.before[lane] = before;
    shared.here[lane] = here;
    if (lane == 0) shared.joins = mask;
}

// A workgroup has one vector: its number is that of the workgroup in z.
template <u32 WIDTH>
DEVICE void attend_join(const AttendArgs& args, const float* states, const u32* items, const float* sinks,
                        float* out, float* lse, u32 parts) {
    const u32 EACH = (WIDTH + JOIN_THREADS - 1u) / JOIN_THREADS;
    // Parts whose outputs are loaded together: the loads do not wait for each other.
    const u32 AHEAD = EACH == 1u ? 16u : 8u;
    __shared__ JoinShared shared;
    Item item = read_item(items, blockIdx.x);
    u32 v = blockIdx.z, d = args.d, lane = threadIdx.x % WARP;
    if (v >= item.rows * item.heads) return;
    const float* own = states + state_start(args, blockIdx.x, parts, 0u, v);
    u64 apart = (u64)VECTORS * (2u + d);
    Online total[1];
    clear(total);
    float acc[EACH];
#pragma unroll
    for (u32 x = 0; x < EACH; x++) acc[x] = 0.0f;
    for (u32 first = 0; first < parts; first += JOIN_PARTS) {
        u32 n = parts - first < JOIN_PARTS ? parts - first : JOIN_PARTS;
        for (u32 p = 0; p < n; p += AHEAD) {
            float loaded[AHEAD][EACH];
#pragma unroll
            for (u32 i = 0; i < AHEAD * EACH; i++) {
                u32 one = p + i / EACH, c = threadIdx.x + i % EACH * JOIN_THREADS;
                loaded[i / EACH][i % EACH] = one < n && c < d ? own[(first + one) * apart + 2u + c] : 0.0f;
            }
            if (p == 0) {
                __syncthreads();
                if (threadIdx.x < WARP) {
                    const float* state = own + (first + (lane < n ? lane : 0u)) * apart;
                    join_softmax(shared, lane, n, state[0], state[1], total[0]);
                }
                __syncthreads();
            }
#pragma unroll
            for (u32 i = 0; i < AHEAD * EACH; i++) {
                u32 one = p + i / EACH, x = i % EACH;
                if (one >= n || (shared.joins >> one & 1u) == 0) continue;
                acc[x] = fused(loaded[i / EACH][x], shared.here[one], mul(acc[x], shared.before[one]));
            }
        }
    }
    u64 row = item.row + v / item.heads;
    u32 head = blockIdx.y * args.group + item.head + v % item.heads;
    if (threadIdx.x == 0) {
        shared.factor = args.has_sinks != 0 ? add_sink(total[0], sinks[head]) : 1.0f;
        shared.sum = total[0].sum;
        lse[row * args.lse_width + head] = log_sum(total[0]);
    }
    __syncthreads();
#pragma unroll
    for (u32 x = 0; x < EACH; x++) {
        u32 c = threadIdx.x + x * JOIN_THREADS;
        if (c >= d) continue;
        out[(row * args.kv_heads * args.group + head) * d + c] =
            finished(acc[x], shared.factor, shared.sum, args.has_sinks != 0);
    }
}

#define ATTEND_JOIN(name, width)                                                                             \
    extern "C" __global__ void __launch_bounds__(JOIN_THREADS)                                               \
        name(const float* states, const u32* items, const float* sinks, float* out, float* lse, u32 n_items, \
             u32 kv_heads, u32 group, u32 d, float scale, float cap, u32 window, u32 first_keys,             \
             u32 has_sinks, u32 lse_width, u32 parts) {                                                      \
        follow();                                                                                            \
        if (blockIdx.x >= n_items || blockIdx.y >= kv_heads) return;                                         \
        AttendArgs args = {n_items, kv_heads, group, d, scale, cap, window, first_keys, has_sinks,           \
                           lse_width};                                                                       \
        attend_join<width>(args, states, items, sinks, out, lse, parts);                                     \
    }

// The weights of one key, added up over rows in order. A lane has a key, so keys are read as whole lines.
#define SCORE(name)                                                                                          \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        name(const float* q, const u32* keys, const u32* table, const float* lse, float* out, u32 n, u32 row,\
             u32 rows, u32 position, u32 q_width, u32 head, u32 lse_width, u32 kv_heads, u32 kv_head, u32 d, \
             float scale, float cap, u32 window, u32 first_keys) {                                           \
        follow();                                                                                            \
        u32 key = flat_number();                                                                             \
        if (key >= n) return;                                                                                \
        u64 block = (u64)table[key / CHUNK] * kv_heads + kv_head;                                            \
        const u32* words = keys + block * (d / 2u) * CHUNK + key % CHUNK;                                    \
        float total = 0.0f;                                                                                  \
        for (u32 i = 0; i < rows; i++) {                                                                     \
            if (!sees(position + i, key, window, first_keys)) continue;                                      \
            const float* query = q + (u64)(row + i) * q_width + (u64)head * d;                               \
            float s = mul(key_product(query, words, d), scale);                                              \
            if (cap != 0.0f) s = soft_cap(s, cap);                                                           \
            total = add(total, exponential(sub(s, lse[(u64)(row + i) * lse_width + head])));                 \
        }                                                                                                    \
        out[key] = total;                                                                                    \
    }

// The product of a query and a key, 32 dimensions at a time.
DEVICE float key_product(const float* query, const u32* words, u32 d) {
    float dot = 0.0f;
    for (u32 first = 0; first < d / 2u; first += 16u) {
        u32 last = first + 16u < d / 2u ? first + 16u : d / 2u;
        float p = 0.0f;
        for (u32 c = first; c < last; c++) {
            u32 word = words[c * CHUNK];
            p = fused(query[2u * c], half_to_float(word & 0xffffu), p);
            p = fused(query[2u * c + 1u], half_to_float(word >> 16), p);
        }
        dot = add(dot, p);
    }
    return dot;
}
