// Products of quantized matrices with few activation rows: of one matrix, of up to three with the same
// activations, added to what is there, or a gate and what it gates.
//
// A workgroup takes SLOTS weight rows and up to TOKENS activation rows. Weights of the next step are loaded
// before those of this step are used, and those of the first before the kernel waits for earlier ones: no
// kernel writes weights. Integer sums are exact, so any lane may compute them. The chain `y = fma(z, dx, y)`
// runs in order over the blocks, in one lane for each row and token, over numbers in shared memory.

// What becomes of a product.
#define SET 0u
#define ADDED 1u
#define SWIGLU 2u
#define GEGLU 3u
#define SWIGLU_CLAMPED 4u

struct MatVecArgs {
    const u32* w[3];
    const u32* q;
    const float* scale;
    const i32* sums;
    float* out[3];
    u32 rows[3];
    u32 cols, t, row_first, stride, mode;
    // The first activation row of the workgroup.
    u32 first_token;
    // Whether output rows are those of pairs, and the workgroup has one.
    bool by_pair;
    // Where the matrix begins among the bytes of weights.
    u64 base;
};

// The weight rows of a workgroup: of one matrix, or in turns of a gate and of what it gates.
struct Slots {
    // Of even slots, and of odd ones.
    const u32* w[2];
    u32 first, rows, matrix;
    bool gated;

    // The row of a slot; at most the last.
    __device__ __forceinline__ u32 row(u32 slot) const {
        return below(first + (gated ? slot / 2u : slot), rows);
    }
    __device__ __forceinline__ const u32* weights(u32 slot) const { return w[slot % 2u]; }
};

DEVICE Slots slots_of(const MatVecArgs& args, u32 group) {
    u32 matrix = 0;
    if (args.mode >= SWIGLU) return {{args.w[0], args.w[1]}, group * (SLOTS / 2u), args.rows[0], 0u, true};
    u32 groups = (args.rows[0] + SLOTS - 1u) / SLOTS;
    if (args.rows[1] != 0 && group >= groups) {
        group -= groups;
        matrix = 1u;
        groups = (args.rows[1] + SLOTS - 1u) / SLOTS;
        if (args.rows[2] != 0 && group >= groups) {
            group -= groups;
            matrix = 2u;
        }
    }
    const u32* w = matrix == 0 ? args.w[0] : matrix == 1u ? args.w[1] : args.w[2];
    u32 rows = matrix == 0 ? args.rows[0] : matrix == 1u ? args.rows[1] : args.rows[2];
    return {{w, w}, group * SLOTS, rows, matrix, false};
}

// Writes the result of a slot and a token: `other` is that of the next slot. Called by the lanes that have
// one.
DEVICE void put(const MatVecArgs& args, const Slots& slots, u32 slot, u32 token, float y, float other) {
    u32 row = slots.first + (slots.gated ? slot / 2u : slot);
    if (row >= slots.rows || token >= args.t || (slots.gated && slot % 2u != 0)) return;
    float* out = slots.matrix == 0 ? args.out[0] : slots.matrix == 1u ? args.out[1] : args.out[2];
    u64 at = slots.matrix == 0 ? (u64)token * args.stride + args.row_first + row
                               : (u64)token * slots.rows + row;
    if (args.by_pair) at = (u64)blockIdx.z * slots.rows + row;
    if (args.mode == ADDED) y = add(out[at], y);
    if (args.mode == SWIGLU) y = Swiglu::apply(y, other);
    if (args.mode == GEGLU) y = Geglu::apply(y, other);
    if (args.mode == SWIGLU_CLAMPED) y = SwigluClamped::apply(y, other);
    out[at] = y;
}

// `y` of a row and a token, in order over the blocks whose numbers lie in the lists.
template <u32 MOST>
DEVICE float chain(const float* z, const float* dx, u32 n, float y) {
    if (n == MOST) {
#pragma unroll
        for (u32 i = 0; i < MOST; i += 4u) {
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

// A warp has two slots, and each lane a block of 32 weights of each.
template <class F, u32 TOKENS>
DEVICE void matvec_short(const MatVecArgs& args) {
    __shared__ __align__(16) float z_lists[MATVEC_WARPS][MATVEC_ROWS * TOKENS][LIST];
    __shared__ __align__(16) float dx_lists[MATVEC_WARPS][TOKENS][LIST];
    Slots slots = slots_of(args, flat_group());
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, first_token = args.first_token;
    u32 blocks = args.cols / 32u, t = args.t, first_slot = warp * MATVEC_ROWS;
    const u32* weights[MATVEC_ROWS];
    u64 starts[MATVEC_ROWS];
    typename F::Raw next[MATVEC_ROWS];
#pragma unroll
    for (u32 r = 0; r < MATVEC_ROWS; r++) {
        weights[r] = slots.weights(first_slot + r);
        starts[r] = args.base + (u64)slots.row(first_slot + r) * blocks * F::BYTES;
        if (lane < blocks) F::load(weights[r], starts[r] + lane * F::BYTES, next[r]);
    }
    wait_for_earlier();
    float y = 0.0f;
    u32 my_row = lane / TOKENS, my_token = lane % TOKENS;
    for (u32 first = 0; first < blocks; first += WARP) {
        u32 b = first + lane;
        typename F::Raw raw[MATVEC_ROWS];
#pragma unroll
        for (u32 r = 0; r < MATVEC_ROWS; r++) {
            raw[r] = next[r];
            if (b + WARP < blocks) F::load(weights[r], starts[r] + (u64)(b + WARP) * F::BYTES, next[r]);
        }
        if (b < blocks) {
            Unit unit[MATVEC_ROWS];
#pragma unroll
            for (u32 r = 0; r < MATVEC_ROWS; r++) F::weights(raw[r], unit[r]);
#pragma unroll
            for (u32 k = 0; k < TOKENS; k++) {
                u64 block = (u64)below(first_token + k, t) * blocks + b;
                const uint4* bytes = (const uint4*)args.q + 2u * block;
                uint4 qa = bytes[0], qb = bytes[1];
                dx_lists[warp][k][lane] = args.scale[block];
                float sum = 0.0f;
                if (F::MINIMUM) sum = (float)(args.sums[2u * block] + args.sums[2u * block + 1u]);
#pragma unroll
                for (u32 r = 0; r < MATVEC_ROWS; r++) {
                    float z = mul((float)(dot16(unit[r].a, qa) + dot16(unit[r].b, qb)), F::scale(raw[r]));
                    if (F::MINIMUM) z = fused(sum, F::minimum(raw[r]), z);
                    z_lists[warp][r * TOKENS + k][lane] = z;
                }
            }
        }
        __syncwarp();
        u32 n = blocks - first < WARP ? blocks - first : WARP;
        if (lane < MATVEC_ROWS * TOKENS) y = chain<WARP>(z_lists[warp][lane], dx_lists[warp][my_token], n, y);
        __syncwarp();
    }
    float other = __shfl_sync(ALL_LANES, y, lane + TOKENS);
    if (lane < MATVEC_ROWS * TOKENS) put(args, slots, first_slot + my_row, first_token + my_token, y, other);
}

// Adds up eight numbers in shared memory.
DEVICE i32 sum_of_eight(const i32* from) {
    int4 a = ((const int4*)from)[0], b = ((const int4*)from)[1];
    return a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
}

// Super-blocks of a row that a workgroup has at a time: a thread has a unit of 32 weights.
#define LONG_BLOCKS (MATVEC_WARPS * WARP / 8u)
// Numbers from one list of them to the next: multiples of four, in other banks.
#define LONG_LIST (LONG_BLOCKS + 4u)

template <class F, u32 TOKENS>
struct LongShared {
    // Rows at a time, and how often until all slots have had their turn.
    static const u32 ROWS = TOKENS == 1u ? 4u : 2u;
    static const u32 TURNS = SLOTS / ROWS;
    // For each row and token: sums of `scale * dot` of 32 units, and of `minimum * sum`. Two turns.
    __align__(16) i32 dots[2][ROWS * TOKENS][LONG_BLOCKS * 8u];
    __align__(16) i32 offsets[F::MINIMA ? 2u : 1u][F::MINIMA ? ROWS * TOKENS : 1u][LONG_BLOCKS * 8u];
    u32 units[2][ROWS][LONG_BLOCKS];
    // What the chains take.
    __align__(16) float z[2][SLOTS * TOKENS][LONG_LIST];
    __align__(16) float dx[2][TOKENS][LONG_LIST];
};

// The workgroup takes rows by turns: turn `h` has slots `h`, `h + TURNS` and so on. Behind a barrier, some
// threads make `z` of the turn's sums while the others go on; the last warp runs the chains of a pass later.
template <class F, u32 TOKENS>
DEVICE void matvec_long(const MatVecArgs& args) {
    typedef LongShared<F, TOKENS> S;
    __shared__ S shared;
    Slots slots = slots_of(args, flat_group());
    u32 thread = threadIdx.x, lane = thread % WARP, u = thread % 8u, mine = thread / 8u;
    u32 blocks = args.cols / 256u, t = args.t, first_token = args.first_token;
    bool chains = thread / WARP == MATVEC_WARPS - 1u && lane < SLOTS * TOKENS;
    typename F::Raw next[S::ROWS];
#pragma unroll
    for (u32 j = 0; j < S::ROWS; j++) {
        u64 start = args.base + (u64)slots.row(j * S::TURNS) * blocks * F::BYTES;
        if (mine < blocks) F::load(slots.weights(j * S::TURNS), start + mine * F::BYTES, u, next[j]);
    }
    wait_for_earlier();
    float y = 0.0f;
    for (u32 first = 0, pass = 0; first < blocks; first += LONG_BLOCKS, pass ^= 1u) {
        u32 b = first + mine, n = blocks - first < LONG_BLOCKS ? blocks - first : LONG_BLOCKS;
#pragma unroll
        for (u32 h = 0; h < S::TURNS; h++) {
            typename F::Raw raw[S::ROWS];
            u32 h_next = h + 1u < S::TURNS ? h + 1u : 0u, b_next = h + 1u < S::TURNS ? b : b + LONG_BLOCKS;
#pragma unroll
            for (u32 j = 0; j < S::ROWS; j++) {
                raw[j] = next[j];
                u32 slot = j * S::TURNS + h_next;
                u64 start = args.base + (u64)slots.row(slot) * blocks * F::BYTES;
                if (b_next < blocks) F::load(slots.weights(slot), start + (u64)b_next * F::BYTES, u, next[j]);
            }
            if (b < blocks) {
                Unit unit[S::ROWS];
#pragma unroll
                for (u32 j = 0; j < S::ROWS; j++) {
                    F::weights(raw[j], u, unit[j]);
                    if (u == 0) shared.units[h % 2u][j][mine] = raw[j].units;
                }
#pragma unroll
                for (u32 k = 0; k < TOKENS; k++) {
                    u64 groups = ((u64)below(first_token + k, t) * blocks + b) * 16u;
                    u64 a = groups + F::first(u), c = groups + F::second(u);
                    uint4 qa = ((const uint4*)args.q)[a], qb = ((const uint4*)args.q)[c];
                    i32 sum_a = F::MINIMA ? args.sums[a] : 0, sum_b = F::MINIMA ? args.sums[c] : 0;
#pragma unroll
                    for (u32 j = 0; j < S::ROWS; j++) {
                        Groups s = F::scales(raw[j], u);
                        shared.dots[h % 2u][j * TOKENS + k][thread] =
                            s.a * dot16(unit[j].a, qa) + s.b * dot16(unit[j].b, qb);
                        if (F::MINIMA) {
                            Groups m = F::minima(raw[j], u);
                            shared.offsets[h % 2u][j * TOKENS + k][thread] = m.a * sum_a + m.b * sum_b;
                        }
                    }
                }
            }
            __syncthreads();
            u32 list = thread / LONG_BLOCKS, at = thread % LONG_BLOCKS;
            if (list < S::ROWS * TOKENS && at < n) {
                u32 j = list / TOKENS, k = list % TOKENS, d = shared.units[h % 2u][j][at];
                float z = mul((float)sum_of_eight(&shared.dots[h % 2u][list][8u * at]),
                              mul(half_to_float(d & 0xffffu), F::unit()));
                if (F::MINIMA) {
                    float sum = (float)sum_of_eight(&shared.offsets[h % 2u][list][8u * at]);
                    z = fused(sum, -half_to_float(d >> 16), z);
                }
                shared.z[pass][(j * S::TURNS + h) * TOKENS + k][at] = z;
            }
            if (h == 0 && thread < TOKENS * LONG_BLOCKS && at < n) {
                u64 token = below(first_token + list, t);
                shared.dx[pass][list][at] = args.scale[token * blocks + first + at];
            }
            // All of the pass before is there: a barrier lies between.
            if (h == 0 && first != 0 && chains) {
                y = chain<LONG_BLOCKS>(shared.z[pass ^ 1u][lane], shared.dx[pass ^ 1u][lane % TOKENS],
                                       LONG_BLOCKS, y);
            }
        }
    }
    __syncthreads();
    if (thread / WARP != MATVEC_WARPS - 1u) return;
    u32 last = (blocks - 1u) / LONG_BLOCKS;
    if (chains) {
        y = chain<LONG_BLOCKS>(shared.z[last % 2u][lane], shared.dx[last % 2u][lane % TOKENS],
                               blocks - last * LONG_BLOCKS, y);
    }
    float other = __shfl_sync(ALL_LANES, y, lane + TOKENS);
    if (chains) put(args, slots, lane / TOKENS, first_token + lane % TOKENS, y, other);
}

#if defined(BATON_COPIES)
// One activation row, and weights on their way through shared memory. A workgroup takes group after group of
// slots. Their super-blocks lie one behind the other; a warp copies 32 of them while it multiplies 32 others,
// and each lane has a whole super-block. The layout is that of `Copied` in `source.rs`.
#define STAGED_BLOCKS WARP
// Words from the bytes of one block of activations to those of the next, and from its sums: for other banks.
#define STAGED_BYTES 68u
#define STAGED_SUMS 20u

struct Staged {
    u32* ring;
    u32* q;
    i32* sums;
    float* dx;
    float* z;
    u32 blocks, list;
};

template <class F>
DEVICE Staged staged(u32* memory, u32 blocks) {
    u32* q = memory + MATVEC_WARPS * 2u * STAGED_BLOCKS * F::BYTES / 4u;
    u32* sums = q + blocks * STAGED_BYTES;
    u32 list = (blocks + 3u) / 4u * 4u + 4u;
    float* dx = (float*)(sums + blocks * STAGED_SUMS);
    return {memory, q, (i32*)sums, dx, dx + list, blocks, list};
}

// The super-blocks of a step of a warp: `n` of them from `first` on, of the rows that a group has of a
// matrix.
struct Step {
    const u32* from;
    u32 run, first, n;
};

// `rows` are those that a group has of each of its matrices; a run has `steps` steps.
template <class F>
DEVICE Step step_of(const MatVecArgs& args, u32 group, u32 step, u32 blocks, u32 steps, u32 rows) {
    Slots slots = slots_of(args, group);
    u32 run = step / steps, first = step % steps * STAGED_BLOCKS;
    u32 there = slots.rows - slots.first < rows ? slots.rows - slots.first : rows;
    u32 n = there * blocks > first ? there * blocks - first : 0u;
    const u32* w = run == 0 ? slots.w[0] : slots.w[1];
    u64 at = ((u64)slots.first * blocks + first) * F::BYTES;
    return {w + at / 4u, run, first, n < STAGED_BLOCKS ? n : STAGED_BLOCKS};
}

template <class F>
DEVICE void copy_step(const Step& step, u32* to, u32 lane) {
    for (u32 at = 4u * lane; at * 4u < step.n * F::BYTES; at += 4u * WARP) {
        copy_sixteen(to + at, step.from + at);
    }
}

// The product of a lane's super-block with its activations, times its scale.
template <class F>
DEVICE float block_product(const Staged& at, const u32* weights, u32 place, u32 b) {
    const uint4* q = (const uint4*)(at.q + b * STAGED_BYTES);
    const int4* four = (const int4*)(at.sums + b * STAGED_SUMS);
    i32 sums[16];
    if (F::MINIMA) {
#pragma unroll
        for (u32 k = 0; k < 4u; k++) {
            int4 v = four[k];
            sums[4u * k] = v.x;
            sums[4u * k + 1u] = v.y;
            sums[4u * k + 2u] = v.z;
            sums[4u * k + 3u] = v.w;
        }
    }
    i32 dot = 0, offset = 0;
    u32 units = 0;
#pragma unroll
    for (u32 u = 0; u < 8u; u++) {
        typename F::Raw raw;
        Unit unit;
        F::load(weights, place, u, raw);
        F::weights(raw, u, unit);
        units = raw.units;
        Groups s = F::scales(raw, u);
        dot += s.a * dot16(unit.a, q[F::first(u)]) + s.b * dot16(unit.b, q[F::second(u)]);
        if (F::MINIMA) {
            Groups m = F::minima(raw, u);
            offset += m.a * sums[F::first(u)] + m.b * sums[F::second(u)];
        }
    }
    float z = mul((float)dot, mul(half_to_float(units & 0xffffu), F::unit()));
    return F::MINIMA ? fused((float)offset, -half_to_float(units >> 16), z) : z;
}

// Copies the activations to shared memory.
DEVICE void stage_activations(const MatVecArgs& args, const Staged& to) {
    const u32 threads = MATVEC_WARPS * WARP;
    for (u32 i = threadIdx.x; i < to.blocks * 16u; i += threads) {
        *(uint4*)(to.q + i / 16u * STAGED_BYTES + i % 16u * 4u) = ((const uint4*)args.q)[i];
    }
    for (u32 i = threadIdx.x; i < to.blocks * 4u; i += threads) {
        *(int4*)(to.sums + i / 4u * STAGED_SUMS + i % 4u * 4u) = ((const int4*)args.sums)[i];
    }
    for (u32 i = threadIdx.x; i < to.blocks; i += threads) to.dx[i] = args.scale[i];
}

template <class F>
DEVICE void matvec_staged(const MatVecArgs& args, u32* memory) {
    u32 blocks = args.cols / 256u, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    Staged at = staged<F>(memory, blocks);
    bool gated = args.mode >= SWIGLU;
    u32 rows = gated ? SLOTS / 2u : SLOTS, steps = (rows * blocks + STAGED_BLOCKS - 1u) / STAGED_BLOCKS;
    u32 all = gated ? 2u * steps : steps, stride = gridDim.x * gridDim.y, groups = 0;
    for (u32 i = 0; i < (gated ? 1u : 3u); i++) groups += (args.rows[i] + rows - 1u) / rows;
    u32* ring[2];
    ring[0] = at.ring + warp * 2u * STAGED_BLOCKS * F::BYTES / 4u;
    ring[1] = ring[0] + STAGED_BLOCKS * F::BYTES / 4u;
    Step next = {args.w[0], 0u, 0u, 0u};
    if (warp < all && flat_group() < groups) next = step_of<F>(args, flat_group(), warp, blocks, steps, rows);
    copy_step<F>(next, ring[0], lane);
    end_copies();
    wait_for_earlier();
    stage_activations(args, at);
    __syncthreads();
    u32 stage = 0, turn = 0;
    for (u32 group = flat_group(); group < groups; group += stride, turn++) {
        float* z = at.z + turn % 2u * SLOTS * at.list;
        for (u32 step = warp; step < all; step += MATVEC_WARPS) {
            Step now = next;
            bool is_last = step + MATVEC_WARPS >= all;
            u32 group_next = is_last ? group + stride : group;
            u32 step_next = is_last ? warp : step + MATVEC_WARPS;
            next.n = 0;
            if (group_next < groups) next = step_of<F>(args, group_next, step_next, blocks, steps, rows);
            copy_step<F>(next, stage == 0 ? ring[1] : ring[0], lane);
            end_copies();
            wait_for_copies();
            __syncwarp();
            if (lane < now.n) {
                u32 place = now.first + lane, row = place / blocks, b = place % blocks;
                u32 slot = gated ? 2u * row + now.run : row;
                z[slot * at.list + b] =
                    block_product<F>(at, stage == 0 ? ring[0] : ring[1], lane * F::BYTES, b);
            }
            __syncwarp();
            stage ^= 1u;
        }
        __syncthreads();
        // The warps take turns. The others go on; what they write lies in the other lists.
        if (turn % MATVEC_WARPS != warp) continue;
        float y = 0.0f;
        const float* own = z + lane % SLOTS * at.list;
        u32 i = 0;
        for (; i + LONG_BLOCKS <= blocks; i += LONG_BLOCKS) {
            y = chain<LONG_BLOCKS>(own + i, at.dx + i, LONG_BLOCKS, y);
        }
        y = chain<LONG_BLOCKS>(own + i, at.dx + i, blocks - i, y);
        float other = __shfl_sync(ALL_LANES, y, lane + 1u);
        if (lane < SLOTS) put(args, slots_of(args, group), lane, 0u, y, other);
    }
}
#endif

// Which variant takes a product: `staged` is nonzero if the launch has the memory for the staged one.
template <class F, u32 TOKENS>
struct Long {
    static __device__ __forceinline__ void run(const MatVecArgs& args, u32, u32*) {
        matvec_long<F, TOKENS>(args);
    }
};
#if defined(BATON_COPIES)
template <class F>
struct Long<F, 1u> {
    static __device__ __forceinline__ void run(const MatVecArgs& args, u32 is_staged, u32* memory) {
        if (is_staged != 0) matvec_staged<F>(args, memory);
        else matvec_long<F, 1u>(args);
    }
};
#endif
template <class F, u32 TOKENS>
struct Short {
    static __device__ __forceinline__ void run(const MatVecArgs& args, u32, u32*) {
        matvec_short<F, TOKENS>(args);
    }
};

// Workgroups that a multiprocessor should have registers for.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
#define MATVEC_GROUPS 3
#else
#define MATVEC_GROUPS 4
#endif

#define MATVEC(name, kind, format, tokens)                                                                   \
    extern "C" __global__ void __launch_bounds__(128, tokens == 1u ? MATVEC_GROUPS : 2)                      \
        name(const u32* w0, const u32* w1, const u32* w2, const u32* q, const float* scale, const i32* sums, \
             float* out0, float* out1, float* out2, u32 rows0, u32 rows1, u32 rows2, u32 cols, u32 t,        \
             u32 row_first, u32 stride, u32 mode, u32 staged) {                                              \
        DYNAMIC_SHARED(memory);                                                                              \
        let_next_begin();                                                                                    \
        MatVecArgs args = {{w0, w1, w2}, q, scale, sums, {out0, out1, out2}, {rows0, rows1, rows2},          \
                           cols, t, row_first, stride, mode, blockIdx.z * tokens, false, 0u};                \
        kind<format, tokens>::run(args, staged, memory);                                                     \
    }

// Products of chosen matrices. A pair's matrix is known only when all kernels before have ended.
#define MATVEC_CHOSEN(name, kind, format)                                                                    \
    extern "C" __global__ void __launch_bounds__(128, MATVEC_GROUPS)                                         \
        name(const u32* w, const u32* routes, const u32* q, const float* scale, const i32* sums, float* out, \
             u32 rows, u32 cols, u32 pairs, u32 used, u32 each, u32 at, u32 first, u32 held, u32 stride) {   \
        follow();                                                                                            \
        ChosenPair pair = chosen_pair(routes, pairs, used, each, at, first);                                 \
        if (pair.matrix >= held) return;                                                                     \
        MatVecArgs args = {{w, 0, 0}, q, scale, sums, {out, 0, 0}, {rows, 0, 0},                             \
                           cols, pairs, 0u, 0u, SET, pair.token, true, 4u * (u64)pair.matrix * stride};      \
        kind<format, 1u>::run(args, 0u, 0);                                                                  \
    }
