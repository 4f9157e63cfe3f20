// Products of matrices of floats: `s = fma(w, x, s)` over 32 columns, then `y += s`, in order.

// The weights are words of `BYTES` bytes a number.
struct F32 {
    static const u32 BYTES = 4;
    DEVICE float number(const u32* w, u64 i) { return bits_to_float(w[i]); }
    // Numbers `4 i` and on of the sixteen bytes, for BYTES = 4, or `8 i` and on.
    DEVICE float of_four(const uint4& v, u32 i) {
        return bits_to_float(i == 0 ? v.x : i == 1u ? v.y : i == 2u ? v.z : v.w);
    }
};

DEVICE u32 half_of_four(const uint4& v, u32 i) {
    u32 word = i / 2u == 0 ? v.x : i / 2u == 1u ? v.y : i / 2u == 2u ? v.z : v.w;
    return word >> (16u * (i % 2u)) & 0xffffu;
}

struct F16 {
    static const u32 BYTES = 2;
    DEVICE float number(const u32* w, u64 i) { return half_to_float(load_half(w, 2u * i)); }
    DEVICE float of_four(const uint4& v, u32 i) { return half_to_float(half_of_four(v, i)); }
};

struct Bf16 {
    static const u32 BYTES = 2;
    DEVICE float number(const u32* w, u64 i) { return bits_to_float(load_half(w, 2u * i) << 16); }
    DEVICE float of_four(const uint4& v, u32 i) { return bits_to_float(half_of_four(v, i) << 16); }
};

// A lane takes a block of 32 columns. Activations of 32 blocks lie in shared memory for all warps.
template <class F, u32 TOKENS>
DEVICE void matvec_float(const u32* __restrict__ w, const float* __restrict__ x, float* __restrict__ out,
                         u32 rows, u32 cols, u32 t, u32 row_first, u32 stride, u32 first_token) {
    __shared__ __align__(16) float x_lists[TOKENS][WARP][LIST];
    __shared__ __align__(16) float s_lists[MATVEC_WARPS][MATVEC_ROWS * TOKENS][LIST];
    const u32 each = 16u / F::BYTES;
    MatVecPlace at = matvec_place(first_token);
    u32 blocks = (cols + 31u) / 32u, lane = at.lane;
    bool has_rows = at.row < rows, is_aligned = cols % each == 0;
    float y = 0.0f;
    u32 my_row = lane / TOKENS, my_token = lane % TOKENS;
    for (u32 first = 0; first < blocks; first += WARP) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < TOKENS * 1024u; i += MATVEC_WARPS * WARP) {
            u32 k = i / 1024u, place = i % 1024u, col = first * 32u + place;
            u64 row = below(at.token + k, t);
            if (col < cols) x_lists[k][place / 32u][place % 32u] = x[row * cols + col];
        }
        __syncthreads();
        if (!has_rows) continue;
        u32 b = first + lane;
        float s[MATVEC_ROWS * TOKENS];
#pragma unroll
        for (u32 i = 0; i < MATVEC_ROWS * TOKENS; i++) s[i] = 0.0f;
        if (is_aligned && b * 32u + 32u <= cols) {
#pragma unroll
            for (u32 c = 0; c < 32u; c += each) {
                uint4 v[MATVEC_ROWS];
#pragma unroll
                for (u32 r = 0; r < MATVEC_ROWS; r++) {
                    u64 number = (u64)below(at.row + r, rows) * cols + b * 32u + c;
                    v[r] = *(const uint4*)((const u8*)w + number * F::BYTES);
                }
#pragma unroll
                for (u32 e = 0; e < each; e++) {
#pragma unroll
                    for (u32 k = 0; k < TOKENS; k++) {
#pragma unroll
                        for (u32 r = 0; r < MATVEC_ROWS; r++) {
                            float& sum = s[r * TOKENS + k];
                            sum = fused(F::of_four(v[r], e), x_lists[k][lane][c + e], sum);
                        }
                    }
                }
            }
        } else if (b < blocks) {
            u32 n = cols - b * 32u < 32u ? cols - b * 32u : 32u;
            for (u32 c = 0; c < n; c++) {
#pragma unroll
                for (u32 r = 0; r < MATVEC_ROWS; r++) {
                    float weight = F::number(w, (u64)below(at.row + r, rows) * cols + b * 32u + c);
#pragma unroll
                    for (u32 k = 0; k < TOKENS; k++) {
                        float& sum = s[r * TOKENS + k];
                        sum = fused(weight, x_lists[k][lane][c], sum);
                    }
                }
            }
        }
#pragma unroll
        for (u32 i = 0; i < MATVEC_ROWS * TOKENS; i++) s_lists[at.warp][i][lane] = s[i];
        __syncwarp();
        u32 n = blocks - first < WARP ? blocks - first : WARP;
        if (lane < MATVEC_ROWS * TOKENS) {
            const float* list = s_lists[at.warp][lane];
            for (u32 i = 0; i < n; i++) y = add(y, list[i]);
        }
        __syncwarp();
    }
    if (lane < MATVEC_ROWS * TOKENS && at.row + my_row < rows && at.token + my_token < t)
        out[(u64)(at.token + my_token) * stride + row_first + at.row + my_row] = y;
}

#define MATVEC_FLOAT(name, format, tokens)                                                                   \
    extern "C" __global__ void __launch_bounds__(128, 4)                                                     \
        name(const u32* w, const float* x, float* out, u32 rows, u32 cols, u32 t, u32 row_first,             \
             u32 stride) {                                                                                   \
        follow();                                                                                            \
        matvec_float<format, tokens>(w, x, out, rows, cols, t, row_first, stride, blockIdx.z * tokens);      \
    }

#define MATVEC_FLOAT_CHOSEN(name, format)                                                                    \
    extern "C" __global__ void __launch_bounds__(128, 4)                                                     \
        name(const u32* w, const u32* routes, const float* x, float* out, u32 rows, u32 cols, u32 pairs,     \
             u32 used, u32 each, u32 at, u32 first, u32 held, u32 stride) {                                  \
        follow();                                                                                            \
        ChosenPair pair = chosen_pair(routes, pairs, used, each, at, first);                                 \
        if (pair.matrix >= held) return;                                                                     \
        matvec_float<format, 1u>(w + (u64)pair.matrix * stride, x, out, rows, cols, pairs, pair.slot * rows, \
                                 used * rows, pair.token);                                                   \
    }

// Tiles of 64 weight rows and 64 tokens; a thread has four of each.
#define FLOAT_PITCH 68u

template <class F>
DEVICE void matmul_float(const u32* __restrict__ w, const float* __restrict__ x, float* __restrict__ out,
                         u32 rows, u32 cols, u32 t, u32 row_first, u32 stride) {
    // `[column][row]` and `[column][token]`.
    __shared__ __align__(16) float w_tile[32][FLOAT_PITCH];
    __shared__ __align__(16) float x_tile[32][FLOAT_PITCH];
    u32 row = blockIdx.y * 64u, token = blockIdx.x * 64u;
    u32 row_at = threadIdx.x / 16u * 4u, token_at = threadIdx.x % 16u * 4u;
    float y[4][4];
#pragma unroll
    for (u32 i = 0; i < 16u; i++) y[i / 4u][i % 4u] = 0.0f;
    for (u32 first = 0; first < cols; first += 32u) {
        u32 n = cols - first < 32u ? cols - first : 32u;
        __syncthreads();
#pragma unroll
        for (u32 i = threadIdx.x; i < 2048u; i += 256u) {
            u32 c = i % 32u, place = i / 32u;
            if (c < n) {
                w_tile[c][place] = F::number(w, (u64)below(row + place, rows) * cols + first + c);
                x_tile[c][place] = x[(u64)below(token + place, t) * cols + first + c];
            }
        }
        __syncthreads();
        float s[4][4];
#pragma unroll
        for (u32 i = 0; i < 16u; i++) s[i / 4u][i % 4u] = 0.0f;
#pragma unroll 8
        for (u32 c = 0; c < n; c++) {
            float4 a = *(const float4*)&w_tile[c][row_at];
            float4 b = *(const float4*)&x_tile[c][token_at];
            float weights[4] = {a.x, a.y, a.z, a.w};
            float values[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (u32 i = 0; i < 16u; i++) {
                s[i / 4u][i % 4u] = fused(weights[i / 4u], values[i % 4u], s[i / 4u][i % 4u]);
            }
        }
#pragma unroll
        for (u32 i = 0; i < 16u; i++) y[i / 4u][i % 4u] = add(y[i / 4u][i % 4u], s[i / 4u][i % 4u]);
    }
#pragma unroll
    for (u32 i = 0; i < 16u; i++) {
        u32 r = row + row_at + i / 4u, k = token + token_at + i % 4u;
        if (r < rows && k < t) out[(u64)k * stride + row_first + r] = y[i / 4u][i % 4u];
    }
}

#define MATMUL_FLOAT(name, format)                                                                           \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        name(const u32* w, const float* x, float* out, u32 rows, u32 cols, u32 t, u32 row_first,             \
             u32 stride) {                                                                                   \
        follow();                                                                                            \
        matmul_float<format>(w, x, out, rows, cols, t, row_first, stride);                                   \
    }
