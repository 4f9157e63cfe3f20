// A mixture of experts: the choice of experts for each token, and the sum of what they give.

#define ROUTE_THREADS 256u

// A number that orders like the float of these bits: the same for both zeros, the greatest for NaN. It is
// never 0.
DEVICE u32 rank_of(u32 bits) {
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0xffffffffu;
    if (bits == 0x80000000u) bits = 0u;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Turns `n` numbers into weights that sum to 1, by all threads of a workgroup. Sums run in sixteen lanes.
DEVICE void softmax_of(float* x, u32 n) {
    __shared__ float lanes[16];
    u32 own = threadIdx.x;
    float top = -infinity(), sum = 0.0f;
    if (own < 16u) {
        for (u32 i = own; i < n; i += 16u) top = larger(x[i], top);
        lanes[own] = top;
    }
    __syncthreads();
    top = lanes[0];
    for (u32 i = 1; i < 16u; i++) top = larger(lanes[i], top);
    for (u32 i = own; i < n; i += ROUTE_THREADS) x[i] = exponential(sub(x[i], top));
    __syncthreads();
    if (own < 16u) {
        for (u32 i = own; i < n; i += 16u) sum = add(sum, x[i]);
        lanes[own] = sum;
    }
    __syncthreads();
    float four[4];
#pragma unroll
    for (u32 i = 0; i < 4u; i++) {
        four[i] = add(add(lanes[i], lanes[i + 8u]), add(lanes[i + 4u], lanes[i + 12u]));
    }
    sum = add(add(four[0], four[2]), add(four[1], four[3]));
    for (u32 i = own; i < n; i += ROUTE_THREADS) x[i] = divide(x[i], sum);
    __syncthreads();
}

// Gives up the experts of all groups but the best: their ranks become 0.
DEVICE void keep_groups(const float* factors, const float* bias, u32* ranks, u32* group_ranks, u32 count,
                        u32 groups, u32 used) {
    u32 each = count / groups;
    for (u32 g = threadIdx.x; g < groups; g += ROUTE_THREADS) {
        u32 first = g * each, second = first + 1u;
        if (ranks[second] > ranks[first]) {
            second = first;
            first = second + 1u;
        }
        for (u32 i = g * each + 2u; i < (g + 1u) * each; i++) {
            if (ranks[i] > ranks[first]) {
                second = first;
                first = i;
            } else if (ranks[i] > ranks[second]) {
                second = i;
            }
        }
        float a = add(factors[first], bias ? bias[first] : 0.0f);
        float b = add(factors[second], bias ? bias[second] : 0.0f);
        group_ranks[g] = rank_of(float_to_bits(add(a, b)));
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < count; i += ROUTE_THREADS) {
        u32 own = i / each, better = 0;
        for (u32 g = 0; g < groups; g++) {
            bool is_better = group_ranks[g] > group_ranks[own];
            if (is_better || (group_ranks[g] == group_ranks[own] && g < own)) better++;
        }
        if (better >= used) ranks[i] = 0u;
    }
    __syncthreads();
}

// Sets `best` to the experts with the `used` greatest ranks, the best first; of equal ones the lower id.
DEVICE void choose(const u32* ranks, u32* best, u32 count, u32 used) {
    __shared__ u32 tile[ROUTE_THREADS];
    for (u32 first = 0; first < count; first += ROUTE_THREADS) {
        u32 own = first + threadIdx.x, rank = own < count ? ranks[own] : 0u, better = 0;
        for (u32 start = 0; start < count; start += ROUTE_THREADS) {
            u32 n = count - start < ROUTE_THREADS ? count - start : ROUTE_THREADS;
            __syncthreads();
            if (threadIdx.x < n) tile[threadIdx.x] = ranks[start + threadIdx.x];
            __syncthreads();
            for (u32 i = 0; i < n; i++) {
                if (tile[i] > rank || (tile[i] == rank && start + i < own)) better++;
            }
        }
        if (own < count && better < used) best[better] = own;
    }
    __syncthreads();
}

struct RouteArgs {
    u32 count, used, gating, groups, groups_used, normalized;
    float scale;
};

// `bias` and `own` may be null. `work` has four numbers for each expert: factors; ranks; ranks of groups, and
// then the chosen experts; factors of these.
DEVICE void route_row(const float* x, const float* bias, const float* own, u32* work, u32* routes,
                      const RouteArgs& args) {
    u32 count = args.count, used = args.used, thread = threadIdx.x;
    float *factors = (float*)work, *chosen = factors + 3u * count;
    u32 *ranks = work + count, *best = work + 2u * count;
    for (u32 i = thread; i < count; i += ROUTE_THREADS) {
        float number = x[i];
        if (args.gating == 1u) number = divide(1.0f, add(1.0f, exponential(-number)));
        factors[i] = number;
    }
    __syncthreads();
    if (args.gating == 0) softmax_of(factors, count);
    for (u32 i = thread; i < count; i += ROUTE_THREADS) {
        ranks[i] = rank_of(float_to_bits(add(factors[i], bias ? bias[i] : 0.0f)));
    }
    __syncthreads();
    if (args.groups != 0) keep_groups(factors, bias, ranks, best, count, args.groups, args.groups_used);
    choose(ranks, best, count, used);
    for (u32 i = thread; i < used; i += ROUTE_THREADS) chosen[i] = factors[best[i]];
    __syncthreads();
    if (args.gating == 2u) softmax_of(chosen, used);
    float divisor = 1.0f;
    if (args.normalized != 0) {
        float sum = chosen[0];
        for (u32 i = 1; i < used; i++) sum = add(sum, chosen[i]);
        divisor = larger(sum, 6.1035156e-5f);
    }
    for (u32 i = thread; i < used; i += ROUTE_THREADS) {
        u32 id = best[i], slot = 0;
        for (u32 k = 0; k < used; k++) slot += best[k] < id ? 1u : 0u;
        float factor = mul(divide(chosen[i], divisor), args.scale);
        if (own) factor = mul(factor, own[id]);
        routes[2u * slot] = id;
        routes[2u * slot + 1u] = float_to_bits(factor);
    }
}

#define ROUTE(name)                                                                                          \
    extern "C" __global__ void __launch_bounds__(ROUTE_THREADS)                                              \
        name(const float* x, const float* bias, const float* own, u32* work, u32* routes, u32 n, u32 count,  \
             u32 used, u32 gating, u32 groups, u32 groups_used, u32 normalized, float scale, u32 has_bias,   \
             u32 has_own) {                                                                                  \
        follow();                                                                                            \
        u64 row = flat_group();                                                                              \
        if (row >= n) return;                                                                                \
        RouteArgs args = {count, used, gating, groups, groups_used, normalized, scale};                      \
        const float *some_bias = has_bias != 0 ? bias : 0, *some_own = has_own != 0 ? own : 0;               \
        u32 *own_work = work + 4u * row * count, *own_routes = routes + 2u * row * used;                     \
        route_row(x + row * count, some_bias, some_own, own_work, own_routes, args);                         \
    }

#define ADD_CHOSEN_BIAS(name)                                                                                \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        name(float* x, const float* bias, const u32* routes, u32 n, u32 width) {                             \
        follow();                                                                                            \
        u32 i = flat_number();                                                                               \
        if (i < n) x[i] = add(x[i], bias[(u64)routes[2u * (i / width)] * width + i % width]);                \
    }

#define ADD_CHOSEN(name)                                                                                     \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        name(float* x, const float* y, const u32* routes, u32 n, u32 width, u32 used) {                      \
        follow();                                                                                            \
        u32 i = flat_number();                                                                               \
        if (i >= n) return;                                                                                  \
        float sum = x[i];                                                                                    \
        for (u32 s = 0; s < used; s++) {                                                                     \
            u64 pair = (u64)(i / width) * used + s;                                                          \
            sum = add(sum, mul(bits_to_float(routes[2u * pair + 1u]), y[pair * width + i % width]));         \
        }                                                                                                    \
        x[i] = sum;                                                                                          \
    }
