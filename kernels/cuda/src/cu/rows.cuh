// Norms, operations on each number, copies, rotary positions, and the cache of keys and values.

// Threads of a norm; the floats of a row that each has at a time; and floats that they have together.
#define NORM_THREADS 256u
#define NORM_EACH 16u
#define NORM_CHUNK (NORM_THREADS * NORM_EACH)

// Reads the thread's floats of a chunk of `n`.
DEVICE void load_chunk(const float* x, u32 n, float (&to)[NORM_EACH]) {
#pragma unroll
    for (u32 k = 0; k < NORM_EACH; k++) {
        u32 i = threadIdx.x + k * NORM_THREADS;
        to[k] = i < n ? x[i] : 0.0f;
    }
}

// Adds the squares of a chunk of `n` floats to the thread's sum: value `i` is in thread `i % 16`.
DEVICE float add_squares(const float* staged, u32 n, float sum) {
    u32 i = threadIdx.x;
    for (; i + 15u * 16u < n; i += 256u) {
        float x[16];
#pragma unroll
        for (u32 k = 0; k < 16u; k++) x[k] = staged[i + 16u * k];
#pragma unroll
        for (u32 k = 0; k < 16u; k++) sum = fused(x[k], x[k], sum);
    }
    for (; i < n; i += 16u) sum = fused(staged[i], staged[i], sum);
    return sum;
}

// The factor of an RMS norm, from the sums of sixteen threads: they are added eight, four, two and one apart.
// Called by the first warp.
DEVICE float inverse_rms(float sum, u32 width, float eps) {
    for (u32 apart = 8; apart > 0; apart /= 2) sum = add(sum, __shfl_xor_sync(ALL_LANES, sum, apart));
    float square = add(divide(sum, (float)width), eps);
    return is_finite(square) ? divide(1.0f, root(square)) : bits_to_float(0x7fc00000u);
}

// Where the rounded norms of a row go.
struct RoundedTo {
    u32* q;
    float* scale;
    i32* sums;
};

// `BLOCK` is that of the rounding; 0 for none. Rows are whole blocks then.
template <u32 BLOCK>
DEVICE void rms_norm_row(const float* x, const float* weight, float* out, const RoundedTo& to, u32 n,
                         u32 width, float eps) {
    __shared__ __align__(16) float staged[NORM_CHUNK];
    __shared__ float inverse;
    u32 row = flat_group();
    if (row >= n) return;
    x += (u64)row * width;
    out += (u64)row * width;
    float held[NORM_EACH], weights[NORM_EACH], sum = 0.0f;
    for (u32 first = 0; first < width; first += NORM_CHUNK) {
        u32 some = width - first < NORM_CHUNK ? width - first : NORM_CHUNK;
        load_chunk(x + first, some, held);
        if (first == 0) load_chunk(weight, some, weights);
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < NORM_EACH; k++) staged[threadIdx.x + k * NORM_THREADS] = held[k];
        __syncthreads();
        if (threadIdx.x < 16u) sum = add_squares(staged, some, sum);
    }
    if (threadIdx.x < WARP) {
        float factor = inverse_rms(sum, width, eps);
        if (threadIdx.x == 0) inverse = factor;
    }
    __syncthreads();
    float factor = inverse;
    for (u32 first = 0; first < width; first += NORM_CHUNK) {
        u32 some = width - first < NORM_CHUNK ? width - first : NORM_CHUNK;
        // A row of one chunk is still at hand.
        if (width > NORM_CHUNK) {
            load_chunk(x + first, some, held);
            load_chunk(weight + first, some, weights);
        }
#pragma unroll
        for (u32 k = 0; k < NORM_EACH; k++) {
            u32 i = threadIdx.x + k * NORM_THREADS;
            if (i >= some) continue;
            float value = mul(mul(held[k], factor), weights[k]);
            out[first + i] = value;
            if (BLOCK != 0) staged[i] = value;
        }
        if (BLOCK != 0) {
            __syncthreads();
            u64 place = (u64)row * width + first;
            quantize_row<BLOCK != 0 ? BLOCK : 32u>(staged, some, to.q, to.scale, to.sums, place);
            __syncthreads();
        }
    }
}

#define RMS_NORM(name)                                                                                       \
    extern "C" __global__ void __launch_bounds__(NORM_THREADS)                                               \
        name(const float* x, const float* weight, float* out, u32 n, u32 width, float eps) {                 \
        follow();                                                                                            \
        RoundedTo nowhere = {};                                                                              \
        rms_norm_row<0u>(x, weight, out, nowhere, n, width, eps);                                            \
    }

#define RMS_NORM_IN_PLACE(name)                                                                              \
    extern "C" __global__ void __launch_bounds__(NORM_THREADS)                                               \
        name(float* x, const float* weight, u32 n, u32 width, float eps) {                                   \
        follow();                                                                                            \
        RoundedTo nowhere = {};                                                                              \
        rms_norm_row<0u>(x, weight, x, nowhere, n, width, eps);                                              \
    }

#define NORM_ROUNDED(name, block)                                                                            \
    extern "C" __global__ void __launch_bounds__(NORM_THREADS)                                               \
        name(const float* x, const float* weight, float* out, u32* q, float* scale, i32* sums, u32 n,        \
             u32 width, float eps) {                                                                         \
        follow();                                                                                            \
        RoundedTo to = {q, scale, sums};                                                                     \
        rms_norm_row<block>(x, weight, out, to, n, width, eps);                                              \
    }

// A number that orders like the float of these bits, the same for both zeros; 0 if it is not finite.
DEVICE u32 order_of(u32 bits) {
    if ((bits & 0x7f800000u) == 0x7f800000u) return 0u;
    if (bits == 0x80000000u) bits = 0u;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

#define BEST_THREADS 256u

// The place of a row's greatest number, and of its first one that is not finite.
DEVICE void best_of_row(const u32* x, u32* out, u32 n, u32 width) {
    __shared__ u32 orders[BEST_THREADS], places[BEST_THREADS], faults[BEST_THREADS];
    u32 row = flat_group(), own = threadIdx.x;
    if (row >= n) return;
    const u32* numbers = x + (u64)row * width;
    u32 order = 0u, place = 0u, fault = 0xffffffffu;
    for (u32 i = own; i < width; i += BEST_THREADS) {
        u32 next = order_of(numbers[i]);
        if (next == 0u && fault == 0xffffffffu) fault = i;
        if (next > order) {
            order = next;
            place = i;
        }
    }
    orders[own] = order;
    places[own] = place;
    faults[own] = fault;
    __syncthreads();
    for (u32 apart = BEST_THREADS / 2u; apart > 0u; apart /= 2u) {
        if (own < apart) {
            u32 other = own + apart;
            bool first = orders[other] == orders[own] && places[other] < places[own];
            if (orders[other] > orders[own] || first) {
                orders[own] = orders[other];
                places[own] = places[other];
            }
            if (faults[other] < faults[own]) faults[own] = faults[other];
        }
        __syncthreads();
    }
    if (own != 0u) return;
    fault = faults[0];
    out[3u * (u64)row] = places[0];
    out[3u * (u64)row + 1u] = fault;
    out[3u * (u64)row + 2u] = fault == 0xffffffffu ? 0u : numbers[fault];
}

#define BEST(name)                                                                                           \
    extern "C" __global__ void __launch_bounds__(BEST_THREADS)                                               \
        name(const u32* x, u32* out, u32 n, u32 width) {                                                     \
        follow();                                                                                            \
        best_of_row(x, out, n, width);                                                                       \
    }

struct Scale {
    DEVICE float apply(float x, float a) { return mul(x, a); }
};
struct SoftCap {
    DEVICE float apply(float x, float a) { return soft_cap(x, a); }
};
struct Sigmoid {
    DEVICE float apply(float x, float) { return divide(1.0f, add(1.0f, exponential(-x))); }
};

#define MAP(name, op)                                                                                        \
    extern "C" __global__ void __launch_bounds__(256) name(float* x, u32 n, float a) {                       \
        follow();                                                                                            \
        u32 i = flat_number();                                                                               \
        if (i < n) x[i] = op::apply(x[i], a);                                                                \
    }

struct Add {
    DEVICE float apply(float x, float y) { return add(x, y); }
};
struct GateBySigmoid {
    DEVICE float apply(float x, float y) { return mul(x, Sigmoid::apply(y, 0.0f)); }
};

#define ZIP(name, op)                                                                                        \
    extern "C" __global__ void __launch_bounds__(256) name(float* x, const float* y, u32 n) {                \
        follow();                                                                                            \
        u32 i = flat_number();                                                                               \
        if (i < n) x[i] = op::apply(x[i], y[i]);                                                             \
    }

#define ADD_BIAS(name)                                                                                       \
    extern "C" __global__ void __launch_bounds__(256) name(float* x, const float* bias, u32 n, u32 width) {  \
        follow();                                                                                            \
        u32 i = flat_number();                                                                               \
        if (i < n) x[i] = add(x[i], bias[i % width]);                                                        \
    }

#define SCALE_ROWS(name)                                                                                     \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        name(float* x, const float* factors, u32 n, u32 width) {                                             \
        follow();                                                                                            \
        u32 i = flat_number();                                                                               \
        if (i < n) x[i] = mul(x[i], factors[i / width]);                                                     \
    }

#define COPY(name)                                                                                           \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        name(const u32* x, u32* out, u32 n, u32 len, u32 from, u32 from_at, u32 to, u32 to_at) {             \
        follow();                                                                                            \
        u32 i = flat_number();                                                                               \
        if (i >= n) return;                                                                                  \
        u32 g = i / len, j = i % len;                                                                        \
        out[(u64)g * to + to_at + j] = x[(u64)g * from + from_at + j];                                       \
    }

#define GATHER(name)                                                                                         \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        name(const u32* x, const u32* rows, u32* out, u32 n, u32 width) {                                    \
        follow();                                                                                            \
        u32 i = flat_number();                                                                               \
        if (i < n) out[i] = x[(u64)rows[i / width] * width + i % width];                                     \
    }

#define ADD_SCALED(name)                                                                                     \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        name(float* x, const float* y, const u32* rows, const float* factors, u32 n, u32 width) {            \
        follow();                                                                                            \
        u32 i = flat_number();                                                                               \
        if (i >= n) return;                                                                                  \
        u32 row = i / width;                                                                                 \
        u64 at = (u64)rows[row] * width + i % width;                                                         \
        x[at] = add(x[at], mul(factors[row], y[i]));                                                         \
    }

// Rotates pair `i`: members `step` apart in the head.
DEVICE void rotate(float* x, const float* cosines, const float* sines, u32 i, u32 heads, u32 d, u32 half,
                   bool adjacent) {
    u32 pair = i % half, head = i / half;
    u64 at = (u64)head * d + (adjacent ? 2u * pair : pair);
    u64 other = at + (adjacent ? 1u : half);
    u64 angle = (u64)(head / heads) * half + pair;
    float a = x[at], b = x[other], c = cosines[angle], s = sines[angle];
    x[at] = sub(mul(a, c), mul(b, s));
    x[other] = add(mul(a, s), mul(b, c));
}

#define ROPE(name, adjacent)                                                                                 \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        name(float* x, const float* cosines, const float* sines, u32 n, u32 heads, u32 d, u32 half) {        \
        follow();                                                                                            \
        u32 i = flat_number();                                                                               \
        if (i < n) rotate(x, cosines, sines, i, heads, d, half, adjacent);                                   \
    }

// The words of dimensions `2 c` and `2 c + 1` of a slot.
DEVICE u64 key_word(u32 slot, u32 head, u32 c, u32 heads, u32 pairs) {
    return (((u64)(slot / 32u) * heads + head) * pairs + c) * 32u + slot % 32u;
}
DEVICE u64 value_word(u32 slot, u32 head, u32 c, u32 heads, u32 pairs) {
    return (((u64)(slot / 32u) * heads + head) * 32u + slot % 32u) * pairs + c;
}

DEVICE u32 two_halves(float low, float high) { return float_to_half(low) | float_to_half(high) << 16; }

#define APPEND(name)                                                                                         \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        name(const float* k, const float* v, const u32* places, u32* keys, u32* values, u32 n, u32 heads,    \
             u32 d) {                                                                                        \
        follow();                                                                                            \
        u32 i = flat_number();                                                                               \
        if (i >= n) return;                                                                                  \
        u32 pairs = d / 2u, c = i % pairs, head = i / pairs % heads, token = i / pairs / heads;              \
        u32 row = places[2u * token], slot = places[2u * token + 1u];                                        \
        u64 at = ((u64)row * heads + head) * d + 2u * c;                                                     \
        keys[key_word(slot, head, c, heads, pairs)] = two_halves(k[at], k[at + 1u]);                         \
        values[value_word(slot, head, c, heads, pairs)] = two_halves(v[at], v[at + 1u]);                     \
    }

// Value `c` of a head after the rotation of its row: that of ROPE.
DEVICE float rotated(const float* head, u32 c, const float* cosines, const float* sines, u32 half,
                     bool adjacent) {
    if (c >= 2u * half) return head[c];
    u32 pair = adjacent ? c / 2u : c % half;
    bool second = adjacent ? c % 2u != 0 : c >= half;
    float a = head[adjacent ? 2u * pair : pair], b = head[adjacent ? 2u * pair + 1u : pair + half];
    float cosine = cosines[pair], sine = sines[pair];
    return second ? add(mul(a, sine), mul(b, cosine)) : sub(mul(a, cosine), mul(b, sine));
}

// Rotates queries, and writes rotated keys and values: first all pairs of queries, then the words of keys.
#define ROPE_APPEND(name, adjacent)                                                                          \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        name(float* q, const float* k, const float* v, const float* cosines, const float* sines,             \
             const u32* places, u32* keys, u32* values, u32 n, u32 t, u32 q_heads, u32 heads, u32 d,         \
             u32 half) {                                                                                     \
        follow();                                                                                            \
        u32 i = flat_number(), turned = t * q_heads * half;                                                  \
        if (i < turned) rotate(q, cosines, sines, i, q_heads, d, half, adjacent);                            \
        if (i < turned || i >= n) return;                                                                    \
        i -= turned;                                                                                         \
        u32 pairs = d / 2u, c = i % pairs, head = i / pairs % heads, token = i / pairs / heads;              \
        u32 row = places[2u * token], slot = places[2u * token + 1u];                                        \
        const float* from = k + ((u64)row * heads + head) * d;                                               \
        const float *cosine = cosines + (u64)row * half, *sine = sines + (u64)row * half;                    \
        float low = rotated(from, 2u * c, cosine, sine, half, adjacent);                                     \
        float high = rotated(from, 2u * c + 1u, cosine, sine, half, adjacent);                               \
        keys[key_word(slot, head, c, heads, pairs)] = two_halves(low, high);                                 \
        from = v + ((u64)row * heads + head) * d + 2u * c;                                                   \
        values[value_word(slot, head, c, heads, pairs)] = two_halves(from[0], from[1]);                      \
    }

#define KEEP(name)                                                                                           \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        name(u32* keys, u32* values, const u32* moves, u32 n, u32 heads, u32 d) {                            \
        follow();                                                                                            \
        u32 i = flat_number();                                                                               \
        if (i >= n) return;                                                                                  \
        u32 pairs = d / 2u, c = i % pairs;                                                                   \
        const u32* move = moves + 3u * (u64)(i / pairs);                                                     \
        u32 head = move[0], from = move[1], to = move[2];                                                    \
        keys[key_word(to, head, c, heads, pairs)] = keys[key_word(from, head, c, heads, pairs)];             \
        values[value_word(to, head, c, heads, pairs)] = values[value_word(from, head, c, heads, pairs)];     \
    }
