// Products of a quantized matrix with few activation rows.
//
// A warp takes MATVEC_ROWS weight rows and up to TOKENS activation rows. Each lane decodes one unit of 32
// weights of each row and multiplies it with all activation rows. Integer sums are exact, so any lane may
// compute them. The chain `y = fma(z, dx, y)` over blocks then runs in order: for short blocks in one lane
// for each row and token, over numbers in shared memory; for super-blocks, of which a warp has four at a
// time, in all lanes of a group of four. Weights of the next step are loaded before the chain runs.

// `y` of a row and a token, in order over the blocks whose numbers lie in the lists.
DEVICE float chain(const float* z, const float* dx, u32 n, float y) {
    if (n == WARP) {
#pragma unroll
        for (u32 i = 0; i < WARP; i += 4u) {
            float4 a = *(const float4*)(z + i);
            float4 b = *(const float4*)(dx + i);
            y = fused(a.x, b.x, y);
            y = fused(a.y, b.y, y);
            y = fused(a.z, b.z, y);
            y = fused(a.w, b.w, y);
        }
    } else {
        for (u32 i = 0; i < n; i++) y = fused(z[i], dx[i], y);
    }
    return y;
}

template <class F, u32 TOKENS>
DEVICE void matvec_short(const u32* __restrict__ w, const u32* __restrict__ q,
                         const float* __restrict__ scale, const i32* __restrict__ sums,
                         float* __restrict__ out, u32 rows, u32 cols, u32 t, u32 row_first, u32 stride) {
    __shared__ __align__(16) float z_lists[MATVEC_WARPS][MATVEC_ROWS * TOKENS][LIST];
    __shared__ __align__(16) float dx_lists[MATVEC_WARPS][TOKENS][LIST];
    MatVecPlace at = matvec_place(TOKENS);
    if (at.row >= rows) return;
    u32 blocks = cols / 32u, lane = at.lane;
    u64 starts[MATVEC_ROWS];
    typename F::Raw next[MATVEC_ROWS];
#pragma unroll
    for (u32 r = 0; r < MATVEC_ROWS; r++) {
        starts[r] = (u64)below(at.row + r, rows) * blocks * F::BYTES;
        if (lane < blocks) F::load(w, starts[r] + lane * F::BYTES, next[r]);
    }
    float y = 0.0f;
    u32 my_row = lane / TOKENS, my_token = lane % TOKENS;
    for (u32 first = 0; first < blocks; first += WARP) {
        u32 b = first + lane;
        typename F::Raw raw[MATVEC_ROWS];
#pragma unroll
        for (u32 r = 0; r < MATVEC_ROWS; r++) {
            raw[r] = next[r];
            if (b + WARP < blocks) F::load(w, starts[r] + (u64)(b + WARP) * F::BYTES, next[r]);
        }
        if (b < blocks) {
            Unit unit[MATVEC_ROWS];
#pragma unroll
            for (u32 r = 0; r < MATVEC_ROWS; r++) F::weights(raw[r], unit[r]);
#pragma unroll
            for (u32 k = 0; k < TOKENS; k++) {
                u64 block = (u64)below(at.token + k, t) * blocks + b;
                const uint4* bytes = (const uint4*)q + 2u * block;
                uint4 qa = bytes[0], qb = bytes[1];
                dx_lists[at.warp][k][lane] = scale[block];
                float sum = 0.0f;
                if (F::MINIMUM) sum = (float)(sums[2u * block] + sums[2u * block + 1u]);
#pragma unroll
                for (u32 r = 0; r < MATVEC_ROWS; r++) {
                    float z = mul((float)(dot16(unit[r].a, qa) + dot16(unit[r].b, qb)), F::scale(raw[r]));
                    if (F::MINIMUM) z = fused(sum, F::minimum(raw[r]), z);
                    z_lists[at.warp][r * TOKENS + k][lane] = z;
                }
            }
        }
        __syncwarp();
        u32 n = blocks - first < WARP ? blocks - first : WARP;
        if (lane < MATVEC_ROWS * TOKENS) y = chain(z_lists[at.warp][lane], dx_lists[at.warp][my_token], n, y);
        __syncwarp();
    }
    if (lane < MATVEC_ROWS * TOKENS && at.row + my_row < rows && at.token + my_token < t)
        out[(u64)(at.token + my_token) * stride + row_first + at.row + my_row] = y;
}

// Adds up eight numbers in shared memory.
DEVICE i32 sum_of_eight(const i32* from) {
    int4 a = ((const int4*)from)[0], b = ((const int4*)from)[1];
    return a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
}

template <class F, u32 TOKENS>
DEVICE void matvec_long(const u32* __restrict__ w, const u32* __restrict__ q, const float* __restrict__ scale,
                        const i32* __restrict__ sums, float* __restrict__ out, u32 rows, u32 cols, u32 t,
                        u32 row_first, u32 stride) {
    // For each row and token: sums of `scale * dot` of 32 units, and of `minimum * sum`.
    __shared__ __align__(16) i32 dots[MATVEC_WARPS][MATVEC_ROWS * TOKENS][LIST];
    __shared__ __align__(16) i32 offsets[MATVEC_WARPS][F::MINIMA ? MATVEC_ROWS * TOKENS : 1u][LIST];
    __shared__ u32 units[MATVEC_WARPS][MATVEC_ROWS][4];
    MatVecPlace at = matvec_place(TOKENS);
    if (at.row >= rows) return;
    // Lanes of a super-block: its eight units. Then: its rows and tokens, four blocks each.
    u32 blocks = cols / 256u, lane = at.lane, u = lane % 8u, mine = lane / 8u;
    u32 pair = lane / 4u, my_row = pair / TOKENS, my_token = below(at.token + pair % TOKENS, t);
    bool chains = lane < MATVEC_ROWS * TOKENS * 4u;
    u64 starts[MATVEC_ROWS];
    typename F::Raw next[MATVEC_ROWS];
#pragma unroll
    for (u32 r = 0; r < MATVEC_ROWS; r++) {
        starts[r] = (u64)below(at.row + r, rows) * blocks * F::BYTES;
        if (mine < blocks) F::load(w, starts[r] + mine * F::BYTES, u, next[r]);
    }
    float y = 0.0f;
    for (u32 first = 0; first < blocks; first += 4u) {
        u32 b = first + mine;
        typename F::Raw raw[MATVEC_ROWS];
#pragma unroll
        for (u32 r = 0; r < MATVEC_ROWS; r++) {
            raw[r] = next[r];
            if (b + 4u < blocks) F::load(w, starts[r] + (u64)(b + 4u) * F::BYTES, u, next[r]);
        }
        if (b < blocks) {
            Unit unit[MATVEC_ROWS];
#pragma unroll
            for (u32 r = 0; r < MATVEC_ROWS; r++) {
                F::weights(raw[r], u, unit[r]);
                if (u == 0) units[at.warp][r][mine] = raw[r].units;
            }
#pragma unroll
            for (u32 k = 0; k < TOKENS; k++) {
                u64 groups = ((u64)below(at.token + k, t) * blocks + b) * 16u;
                u64 a = groups + F::first(u), c = groups + F::second(u);
                uint4 qa = ((const uint4*)q)[a], qb = ((const uint4*)q)[c];
                i32 sum_a = F::MINIMA ? sums[a] : 0, sum_b = F::MINIMA ? sums[c] : 0;
#pragma unroll
                for (u32 r = 0; r < MATVEC_ROWS; r++) {
                    Groups s = F::scales(raw[r], u);
                    dots[at.warp][r * TOKENS + k][lane] =
                        s.a * dot16(unit[r].a, qa) + s.b * dot16(unit[r].b, qb);
                    if (F::MINIMA) {
                        Groups m = F::minima(raw[r], u);
                        offsets[at.warp][r * TOKENS + k][lane] = m.a * sum_a + m.b * sum_b;
                    }
                }
            }
        }
        __syncwarp();
        u32 n = blocks - first < 4u ? blocks - first : 4u;
        float z = 0.0f, dx = 0.0f;
        if (chains && lane % 4u < n) {
            u32 d = units[at.warp][my_row][lane % 4u];
            z = mul((float)sum_of_eight(&dots[at.warp][pair][lane % 4u * 8u]),
                    mul(half_to_float(d & 0xffffu), F::unit()));
            if (F::MINIMA) {
                float sum = (float)sum_of_eight(&offsets[at.warp][pair][lane % 4u * 8u]);
                z = fused(sum, -half_to_float(d >> 16), z);
            }
            dx = scale[(u64)my_token * blocks + first + lane % 4u];
        }
        for (u32 s = 0; s < n; s++) {
            u32 from = (lane & ~3u) + s;
            y = fused(__shfl_sync(ALL_LANES, z, from), __shfl_sync(ALL_LANES, dx, from), y);
        }
        __syncwarp();
    }
    if (chains && lane % 4u == 0 && at.row + my_row < rows && at.token + pair % TOKENS < t)
        out[(u64)my_token * stride + row_first + at.row + my_row] = y;
}

#define MATVEC(name, kind, format, tokens)                                                                   \
    extern "C" __global__ void __launch_bounds__(128, 4)                                                     \
        name(const u32* w, const u32* q, const float* scale, const i32* sums, float* out, u32 rows, u32 cols,\
             u32 t, u32 row_first, u32 stride) {                                                             \
        follow();                                                                                            \
        matvec_##kind<format, tokens>(w, q, scale, sums, out, rows, cols, t, row_first, stride);             \
    }
