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
// Words of sixteen bytes, one for each group of a super-block.
#define GROUP_WORDS 4u
// Adding this makes a small integer the bits of a float, 1.5 * 2^23 above it.
#define FLOAT_BIAS 0x4b400000

// The products of sixteen rows and eight tokens over 32 or 16 columns. A lane has rows `g` and `g + 8` and
// tokens `2 i` and `2 i + 1`, with g = lane / 4 and i = lane % 4: elements (g, 2 i), (g, 2 i + 1),
// (g + 8, 2 i), (g + 8, 2 i + 1).
#if defined(BATON_MMA)
struct Rows {
    u32 a[4];
};

// Reads the words of a lane from a tile; `rows` is the first of sixteen rows, at the first column. From one
// row to the next are `WORDS` words.
template <int COLUMNS, u32 WORDS = TILE_WORDS>
DEVICE void load_rows(const u32* rows, u32 lane, Rows& to) {
    const u32* from = rows + lane / 4u * WORDS + lane % 4u;
    to.a[0] = from[0];
    to.a[1] = from[8u * WORDS];
    if (COLUMNS == 32) {
        to.a[2] = from[4];
        to.a[3] = from[8u * WORDS + 4u];
    }
}

// Adds the products with the eight tokens at `tokens` to `c`.
template <int COLUMNS, u32 WORDS = TILE_WORDS>
DEVICE void multiply(i32 (&c)[4], const Rows& rows, const u32* tokens, u32 lane) {
    const u32* from = tokens + lane / 4u * WORDS + lane % 4u;
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

template <int COLUMNS, u32 WORDS = TILE_WORDS>
DEVICE void load_rows(const u32* rows, u32 lane, Rows& to) {
    to.from = rows + lane / 4u * WORDS;
}

template <int COLUMNS, u32 WORDS = TILE_WORDS>
DEVICE void multiply(i32 (&c)[4], const Rows& rows, const u32* tokens, u32 lane) {
    const u32* from = tokens + 2u * (lane % 4u) * WORDS;
#pragma unroll
    for (u32 k = 0; k < COLUMNS / 4u; k++) {
        u32 low = rows.from[k], high = rows.from[8u * WORDS + k];
        u32 one = from[k], two = from[WORDS + k];
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

// What a thread reads of the factors of two tokens for a block.
struct ShortTokens {
    float dx[2];
    int2 sums[2];
};

template <class F>
DEVICE void load_short_tokens(const float* scale, const i32* sums, u32 token, u32 t, u32 blocks, u32 b,
                              ShortTokens& to) {
#pragma unroll
    for (u32 i = 0; i < 2u; i++) {
        u64 block = (u64)below(token + threadIdx.x / 8u + 32u * i, t) * blocks + b;
        to.dx[i] = scale[block];
        if (F::MINIMUM) to.sums[i] = ((const int2*)sums)[block];
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
    ShortTokens numbers;
    if (u < blocks) load_short_tokens<F>(scale, sums, token, t, blocks, u, numbers);
    for (u32 first = 0; first < blocks; first += 8u) {
#pragma unroll
        for (u32 i = 0; i < 2u; i++) {
            u32 place = threadIdx.x / 8u + 32u * i;
            if (first + u < blocks) {
                Unit unit;
                F::weights(raw[i], unit);
                store_unit(w_tile, place, 2u * u, 2u * u + 1u, unit);
                d_tile[u][place] = F::scale(raw[i]);
                if (F::MINIMUM) m_tile[u][place] = F::minimum(raw[i]);
                dx_tile[u][place] = numbers.dx[i];
                if (F::MINIMUM) sum_tile[u][place] = (float)(numbers.sums[i].x + numbers.sums[i].y);
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
        if (first + 8u + u < blocks)
            load_short_tokens<F>(scale, sums, token, t, blocks, first + 8u + u, numbers);
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
    // By row, a byte for each group; by token, the bytes of the groups' sums: 256 times the high one, and the
    // low one, which is signed too.
    __align__(16) u32 minima[F::MINIMA ? TILE : 1][GROUP_WORDS];
    __align__(16) u32 low_sums[F::MINIMA ? TILE : 1][GROUP_WORDS];
    __align__(16) u32 high_sums[F::MINIMA ? TILE : 1][GROUP_WORDS];
    float d[TILE];
    float dmin[TILE];
    float dx[TILE];
};

// What a thread reads of the scales and sums of a super-block's activations.
struct LongTokens {
    int4 sums;
    float dx;
};

// Reads four sums of a token, and, if the thread is one of the first 64, the scale of one.
template <class F>
DEVICE void load_long_tokens(const float* scale, const i32* sums, u32 token, u32 t, u32 blocks, u32 b,
                             LongTokens& to) {
    u64 block = (u64)below(token + threadIdx.x / 4u, t) * blocks + b;
    if (F::MINIMA) to.sums = ((const int4*)sums)[block * 4u + threadIdx.x % 4u];
    if (threadIdx.x < TILE) to.dx = scale[(u64)below(token + threadIdx.x, t) * blocks + b];
}

// The low bytes of four sums; `high` gets what is left, in 256ths.
DEVICE u32 split(const int4& sums, u32& high) {
    i32 x = sums.x + 128, y = sums.y + 128, z = sums.z + 128, w = sums.w + 128;
    high = ((u32)(x >> 8) & 255u) | ((u32)(y >> 8) & 255u) << 8 | ((u32)(z >> 8) & 255u) << 16
        | (u32)(w >> 8) << 24;
    u32 low = ((u32)x & 255u) | ((u32)y & 255u) << 8 | ((u32)z & 255u) << 16 | ((u32)w & 255u) << 24;
    return low ^ 0x80808080u;
}

template <class F>
DEVICE void store_long_tokens(LongTile<F>& tile, const LongTokens& from) {
    if (F::MINIMA) {
        u32 high, low = split(from.sums, high);
        tile.low_sums[threadIdx.x / 4u][threadIdx.x % 4u] = low;
        tile.high_sums[threadIdx.x / 4u][threadIdx.x % 4u] = high;
    }
    if (threadIdx.x < TILE) tile.dx[threadIdx.x] = from.dx;
}

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
    Rows minima;
    if (F::MINIMA) load_rows<16, GROUP_WORDS>(tile.minima[at.row], at.lane, minima);
    float d[2] = {tile.d[g], tile.d[g + 8u]}, dmin[2] = {-tile.dmin[g], -tile.dmin[g + 8u]};
#pragma unroll
    for (u32 part = 0; part < 4u; part++) {
        u32 tokens = at.token + part * 8u, k = tokens + at.lane % 4u * 2u;
        i32 low[4] = {0, 0, 0, 0}, high[4] = {0, 0, 0, 0};
        if (F::MINIMA) {
            multiply<16, GROUP_WORDS>(low, minima, tile.low_sums[tokens], at.lane);
            multiply<16, GROUP_WORDS>(high, minima, tile.high_sums[tokens], at.lane);
        }
        float dx[2] = {tile.dx[k], tile.dx[k + 1u]};
#pragma unroll
        for (u32 e = 0; e < 4u; e++) {
            float z = mul((float)dots[part][e], d[e / 2u]);
            if (F::MINIMA) z = fused((float)(256 * high[e] + low[e]), dmin[e / 2u], z);
            y[part][e] = fused(z, dx[e % 2u], y[part][e]);
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
    LongTokens numbers;
    float y[4][4];
#pragma unroll
    for (u32 i = 0; i < 16u; i++) y[i / 4u][i % 4u] = 0.0f;
    for (u32 i = 0; i < 2u; i++) {
        u32 r = below(row + threadIdx.x / 8u + 32u * i, rows);
        F::load(w, (u64)r * blocks * F::BYTES, u, raw[i]);
    }
    load_tokens(q, token, t, 0, cols / 16u, bytes);
    load_long_tokens<F>(scale, sums, token, t, blocks, 0, numbers);
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
                i8* minima = (i8*)tile.minima[place];
                minima[first] = (i8)m.a;
                minima[second] = (i8)m.b;
            }
            if (u == 0) {
                tile.d[place] = mul(half_to_float(raw[i].units & 0xffffu), F::unit());
                tile.dmin[place] = half_to_float(raw[i].units >> 16);
            }
        }
        store_long_tokens(tile, numbers);
        store_tokens(q_tile, bytes);
        __syncthreads();
        if (b + 1u < blocks) {
            for (u32 i = 0; i < 2u; i++) {
                u32 r = below(row + threadIdx.x / 8u + 32u * i, rows);
                F::load(w, ((u64)r * blocks + b + 1u) * F::BYTES, u, raw[i]);
            }
            load_long_tokens<F>(scale, sums, token, t, blocks, b + 1u, numbers);
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
        follow();                                                                                            \
        matmul_##kind<format>(w, q, scale, sums, out, rows, cols, t, row_first, stride);                     \
    }
