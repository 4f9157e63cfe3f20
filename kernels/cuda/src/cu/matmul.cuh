// Products of a quantized matrix with many activation rows, in tiles of 64 weight rows and 64 tokens.
//
// A step takes 256 columns. Weights become signed bytes in shared memory once for all tokens of the tile, and
// are multiplied by the tensor cores. Those give exact integers for each block or group of sixteen, so the
// results have the bits of the matrix-vector products: `z` and `y = fma(z, dx, y)` run in registers, in
// order. A warp has sixteen rows and 32 tokens. What the next step needs is loaded before the products of
// this one.

#define TILE 64u
// Bytes from one row of a tile to the next: 256, and sixteen more for other banks.
#define PITCH 272u
#define TILE_WORDS (PITCH / 4u)
// Adding this makes a small integer the bits of a float, 1.5 * 2^23 above it.
#define FLOAT_BIAS 0x4b400000

// The products of sixteen rows and eight tokens over 32 or 16 columns. A lane has rows `g` and `g + 8` and
// tokens `2 i` and `2 i + 1`, with g = lane / 4 and i = lane % 4: elements (g, 2 i), (g, 2 i + 1),
// (g + 8, 2 i), (g + 8, 2 i + 1).
#if defined(BATON_MMA)
struct Rows {
    u32 a[4];
};

// Reads the words of a lane from a tile; `rows` is the first of sixteen rows, at the first column.
template <int COLUMNS>
DEVICE void load_rows(const u32* rows, u32 lane, Rows& to) {
    const u32* from = rows + lane / 4u * TILE_WORDS + lane % 4u;
    to.a[0] = from[0];
    to.a[1] = from[8u * TILE_WORDS];
    if (COLUMNS == 32) {
        to.a[2] = from[4];
        to.a[3] = from[8u * TILE_WORDS + 4u];
    }
}

// Adds the products with the eight tokens at `tokens` to `c`.
template <int COLUMNS>
DEVICE void multiply(i32 (&c)[4], const Rows& rows, const u32* tokens, u32 lane) {
    const u32* from = tokens + lane / 4u * TILE_WORDS + lane % 4u;
    if (COLUMNS == 32) {
        u32 b[2] = {from[0], from[4]};
        mma_32(c, rows.a, b);
    } else {
        mma_16(c, rows.a, from[0]);
    }
}
#else
struct Rows {
    const u32* from;
};

template <int COLUMNS>
DEVICE void load_rows(const u32* rows, u32 lane, Rows& to) {
    to.from = rows + lane / 4u * TILE_WORDS;
}

template <int COLUMNS>
DEVICE void multiply(i32 (&c)[4], const Rows& rows, const u32* tokens, u32 lane) {
    const u32* from = tokens + 2u * (lane % 4u) * TILE_WORDS;
#pragma unroll
    for (u32 k = 0; k < COLUMNS / 4u; k++) {
        u32 low = rows.from[k], high = rows.from[8u * TILE_WORDS + k];
        u32 one = from[k], two = from[TILE_WORDS + k];
        c[0] = dot4(low, one, c[0]);
        c[1] = dot4(low, two, c[1]);
        c[2] = dot4(high, one, c[2]);
        c[3] = dot4(high, two, c[3]);
    }
}
#endif

// What a thread reads of the activations of a step.
struct StepTokens {
    uint4 q[4];
};

// Reads the bytes of 64 tokens. `groups` is sixteens of columns in a row, `first` the first of the step.
DEVICE void load_tokens(const u32* __restrict__ q, u32 token, u32 t, u32 first, u32 groups, StepTokens& to) {
#pragma unroll
    for (u32 i = 0; i < 4u; i++) {
        u32 place = threadIdx.x + i * 256u, group = first + place % 16u;
        if (group < groups) to.q[i] = ((const uint4*)q)[(u64)below(token + place / 16u, t) * groups + group];
    }
}

DEVICE void store_tokens(u32* tile, const StepTokens& from) {
#pragma unroll
    for (u32 i = 0; i < 4u; i++) {
        u32 place = threadIdx.x + i * 256u;
        *(uint4*)(tile + place / 16u * TILE_WORDS + place % 16u * 4u) = from.q[i];
    }
}

// Writes the weights of a unit of a row; `a` and `b` are its groups in the step.
DEVICE void store_unit(u32* tile, u32 row, u32 a, u32 b, const Unit& unit) {
    uint4 low = {unit.a[0], unit.a[1], unit.a[2], unit.a[3]};
    uint4 high = {unit.b[0], unit.b[1], unit.b[2], unit.b[3]};
    *(uint4*)(tile + row * TILE_WORDS + a * 4u) = low;
    *(uint4*)(tile + row * TILE_WORDS + b * 4u) = high;
}

// Where a warp's sixteen rows and 32 tokens begin, and a lane's elements in them.
struct WarpPlace {
    u32 lane;
    u32 row;
    u32 token;
};

DEVICE WarpPlace warp_place() {
    u32 warp = threadIdx.x / WARP;
    return {threadIdx.x % WARP, warp % 4u * 16u, warp / 4u * 32u};
}

DEVICE void write_tile(const float (&y)[4][4], float* out, u32 rows, u32 t, u32 row_first, u32 stride) {
    WarpPlace at = warp_place();
#pragma unroll
    for (u32 i = 0; i < 16u; i++) {
        u32 row = blockIdx.y * TILE + at.row + at.lane / 4u + i % 4u / 2u * 8u;
        u32 token = blockIdx.x * TILE + at.token + i / 4u * 8u + at.lane % 4u * 2u + i % 2u;
        if (row < rows && token < t) out[(u64)token * stride + row_first + row] = y[i / 4u][i % 4u];
    }
}

template <class F>
DEVICE void matmul_short(const u32* __restrict__ w, const u32* __restrict__ q,
                         const float* __restrict__ scale, const i32* __restrict__ sums,
                         float* __restrict__ out, u32 rows, u32 cols, u32 t, u32 row_first, u32 stride) {
    __shared__ __align__(16) u32 w_tile[TILE * TILE_WORDS];
    __shared__ __align__(16) u32 q_tile[TILE * TILE_WORDS];
    __shared__ float d_tile[8][TILE], m_tile[F::MINIMUM ? 8 : 1][TILE];
    __shared__ __align__(8) float dx_tile[8][TILE], sum_tile[F::MINIMUM ? 8 : 1][TILE];
    u32 row = blockIdx.y * TILE, token = blockIdx.x * TILE, blocks = cols / 32u;
    WarpPlace at = warp_place();
    u32 u = threadIdx.x % 8u;
    typename F::Raw raw[2];
    StepTokens bytes;
    float y[4][4];
#pragma unroll
    for (u32 i = 0; i < 16u; i++) y[i / 4u][i % 4u] = 0.0f;
    for (u32 i = 0; i < 2u; i++) {
        u32 r = below(row + threadIdx.x / 8u + 32u * i, rows);
        if (u < blocks) F::load(w, ((u64)r * blocks + u) * F::BYTES, raw[i]);
    }
    load_tokens(q, token, t, 0, cols / 16u, bytes);
    for (u32 first = 0; first < blocks; first += 8u) {
#pragma unroll
        for (u32 i = 0; i < 2u; i++) {
            u32 place = threadIdx.x / 8u + 32u * i;
            u64 block = (u64)below(token + place, t) * blocks + first + u;
            if (first + u < blocks) {
                Unit unit;
                F::weights(raw[i], unit);
                store_unit(w_tile, place, 2u * u, 2u * u + 1u, unit);
                d_tile[u][place] = F::scale(raw[i]);
                if (F::MINIMUM) m_tile[u][place] = F::minimum(raw[i]);
                dx_tile[u][place] = scale[block];
                if (F::MINIMUM) sum_tile[u][place] = (float)(sums[2u * block] + sums[2u * block + 1u]);
            }
        }
        store_tokens(q_tile, bytes);
        __syncthreads();
        for (u32 i = 0; i < 2u; i++) {
            u32 r = below(row + threadIdx.x / 8u + 32u * i, rows);
            u32 b = first + 8u + u;
            if (b < blocks) F::load(w, ((u64)r * blocks + b) * F::BYTES, raw[i]);
        }
        load_tokens(q, token, t, first * 2u + 16u, cols / 16u, bytes);
        u32 n = blocks - first < 8u ? blocks - first : 8u;
        for (u32 b = 0; b < n; b++) {
            Rows rows16;
            load_rows<32>(w_tile + at.row * TILE_WORDS + b * 8u, at.lane, rows16);
            u32 g = at.row + at.lane / 4u;
            float d[2] = {d_tile[b][g], d_tile[b][g + 8u]};
#pragma unroll
            for (u32 part = 0; part < 4u; part++) {
                u32 k = at.token + part * 8u;
                if (token + k >= t) continue;
                i32 c[4] = {FLOAT_BIAS, FLOAT_BIAS, FLOAT_BIAS, FLOAT_BIAS};
                multiply<32>(c, rows16, q_tile + k * TILE_WORDS + b * 8u, at.lane);
                k += at.lane % 4u * 2u;
#pragma unroll
                for (u32 e = 0; e < 4u; e++) {
                    float z = mul(sub(bits_to_float((u32)c[e]), 12582912.0f), d[e / 2u]);
                    if (F::MINIMUM) z = fused(sum_tile[b][k + e % 2u], m_tile[b][g + e / 2u * 8u], z);
                    y[part][e] = fused(z, dx_tile[b][k + e % 2u], y[part][e]);
                }
            }
        }
        __syncthreads();
    }
    write_tile(y, out, rows, t, row_first, stride);
}

// The integer scales and minima of a step, and the factors of its rows and tokens.
template <class F>
struct LongTile {
    i8 scales[16][TILE];
    i8 minima[F::MINIMA ? 16 : 1][TILE];
    __align__(4) i16 sums[F::MINIMA ? 16 : 1][TILE];
    float d[TILE];
    float dmin[TILE];
    float dx[TILE];
};

// The sums of `scale * dot` of a lane's elements over a super-block.
template <class F>
DEVICE void long_dots(const LongTile<F>& tile, const u32* w_tile, const u32* q_tile, u32 tokens,
                      i32 (&dots)[4][4]) {
    WarpPlace at = warp_place();
    const u32 columns = F::GROUP;
    u32 g = at.row + at.lane / 4u;
    for (u32 first = 0; first < 256u; first += columns) {
        Rows rows16;
        load_rows<columns>(w_tile + at.row * TILE_WORDS + first / 4u, at.lane, rows16);
        i32 low = tile.scales[first / 16u][g], high = tile.scales[first / 16u][g + 8u];
#pragma unroll
        for (u32 part = 0; part < 4u; part++) {
            u32 k = at.token + part * 8u;
            if (k >= tokens) continue;
            i32 c[4] = {0, 0, 0, 0};
            multiply<columns>(c, rows16, q_tile + k * TILE_WORDS + first / 4u, at.lane);
            dots[part][0] += low * c[0];
            dots[part][1] += low * c[1];
            dots[part][2] += high * c[2];
            dots[part][3] += high * c[3];
        }
    }
}

// Adds a super-block to the lane's elements.
template <class F>
DEVICE void add_long(const LongTile<F>& tile, const i32 (&dots)[4][4], float (&y)[4][4]) {
    WarpPlace at = warp_place();
    u32 g = at.row + at.lane / 4u;
#pragma unroll
    for (u32 part = 0; part < 4u; part++) {
        u32 k = at.token + part * 8u + at.lane % 4u * 2u;
        i32 offsets[4] = {0, 0, 0, 0};
        if (F::MINIMA) {
#pragma unroll
            for (u32 group = 0; group < 16u; group++) {
                i32 low = tile.minima[group][g], high = tile.minima[group][g + 8u];
                u32 two = *(const u32*)&tile.sums[group][k];
                i32 one = (i32)(i16)(two & 0xffffu), other = (i32)two >> 16;
                offsets[0] += low * one;
                offsets[1] += low * other;
                offsets[2] += high * one;
                offsets[3] += high * other;
            }
        }
#pragma unroll
        for (u32 e = 0; e < 4u; e++) {
            u32 r = g + e / 2u * 8u;
            float z = mul((float)dots[part][e], tile.d[r]);
            if (F::MINIMA) z = fused((float)offsets[e], -tile.dmin[r], z);
            y[part][e] = fused(z, tile.dx[k + e % 2u], y[part][e]);
        }
    }
}

template <class F>
DEVICE void matmul_long(const u32* __restrict__ w, const u32* __restrict__ q, const float* __restrict__ scale,
                        const i32* __restrict__ sums, float* __restrict__ out, u32 rows, u32 cols, u32 t,
                        u32 row_first, u32 stride) {
    __shared__ __align__(16) u32 w_tile[TILE * TILE_WORDS];
    __shared__ __align__(16) u32 q_tile[TILE * TILE_WORDS];
    __shared__ __align__(16) LongTile<F> tile;
    u32 row = blockIdx.y * TILE, token = blockIdx.x * TILE, blocks = cols / 256u;
    u32 tokens = t - token;
    u32 u = threadIdx.x % 8u;
    typename F::Raw raw[2];
    StepTokens bytes;
    float y[4][4];
#pragma unroll
    for (u32 i = 0; i < 16u; i++) y[i / 4u][i % 4u] = 0.0f;
    for (u32 i = 0; i < 2u; i++) {
        u32 r = below(row + threadIdx.x / 8u + 32u * i, rows);
        F::load(w, (u64)r * blocks * F::BYTES, u, raw[i]);
    }
    load_tokens(q, token, t, 0, cols / 16u, bytes);
    for (u32 b = 0; b < blocks; b++) {
#pragma unroll
        for (u32 i = 0; i < 2u; i++) {
            u32 place = threadIdx.x / 8u + 32u * i;
            u32 first = F::first(u), second = F::second(u);
            Unit unit;
            F::weights(raw[i], u, unit);
            store_unit(w_tile, place, first, second, unit);
            Groups s = F::scales(raw[i], u);
            tile.scales[first][place] = (i8)s.a;
            tile.scales[second][place] = (i8)s.b;
            if (F::MINIMA) {
                Groups m = F::minima(raw[i], u);
                tile.minima[first][place] = (i8)m.a;
                tile.minima[second][place] = (i8)m.b;
            }
            if (u == 0) {
                tile.d[place] = mul(half_to_float(raw[i].units & 0xffffu), F::unit());
                tile.dmin[place] = half_to_float(raw[i].units >> 16);
                tile.dx[place] = scale[(u64)below(token + place, t) * blocks + b];
            }
        }
        if (F::MINIMA) {
            for (u32 i = threadIdx.x; i < TILE * 16u; i += 256u) {
                u32 k = below(token + i / 16u, t);
                tile.sums[i % 16u][i / 16u] = (i16)sums[((u64)k * blocks + b) * 16u + i % 16u];
            }
        }
        store_tokens(q_tile, bytes);
        __syncthreads();
        if (b + 1u < blocks) {
            for (u32 i = 0; i < 2u; i++) {
                u32 r = below(row + threadIdx.x / 8u + 32u * i, rows);
                F::load(w, ((u64)r * blocks + b + 1u) * F::BYTES, u, raw[i]);
            }
        }
        load_tokens(q, token, t, b * 16u + 16u, cols / 16u, bytes);
        i32 dots[4][4];
#pragma unroll
        for (u32 i = 0; i < 16u; i++) dots[i / 4u][i % 4u] = 0;
        long_dots<F>(tile, w_tile, q_tile, tokens, dots);
        add_long<F>(tile, dots, y);
        __syncthreads();
    }
    write_tile(y, out, rows, t, row_first, stride);
}

#define MATMUL(name, kind, format)                                                                           \
    extern "C" __global__ void __launch_bounds__(256, 2)                                                     \
        name(const u32* w, const u32* q, const float* scale, const i32* sums, float* out, u32 rows, u32 cols,\
             u32 t, u32 row_first, u32 stride) {                                                             \
        matmul_##kind<format>(w, q, scale, sums, out, rows, cols, t, row_first, stride);                     \
    }
