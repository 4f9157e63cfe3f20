// Rounding of activations to signed bytes, with a scale for each block of 32 or 256 (`activations.rs`).

// Rounds one block. A thread takes four values; `lane` is its number in the block of values, of `BLOCK / 4`.
template <u32 BLOCK>
DEVICE void quantize_block(const float* x, u32* q, float* scale, i32* sums, u32 block) {
    const u32 threads = BLOCK / 4u;
    u32 lane = threadIdx.x % threads;
    float4 v = ((const float4*)x)[(u64)block * threads + lane];
    u32 a = float_to_bits(v.x) & 0x7fffffffu, b = float_to_bits(v.y) & 0x7fffffffu;
    u32 c = float_to_bits(v.z) & 0x7fffffffu, d = float_to_bits(v.w) & 0x7fffffffu;
    u32 top = max(max(a, b), max(c, d));
    for (u32 apart = threads < WARP ? threads / 2u : 16u; apart > 0; apart /= 2)
        top = max(top, __shfl_xor_sync(ALL_LANES, top, apart));
    if (threads > WARP) {
        __shared__ u32 tops[2];
        if (threadIdx.x % WARP == 0) tops[threadIdx.x / WARP] = top;
        __syncthreads();
        top = max(tops[0], tops[1]);
    }
    float largest = bits_to_float(top);
    float step = divide(largest, 127.0f);
    u32 word = 0;
    if (!is_finite(largest)) {
        step = bits_to_float(0x7fc00000u);
    } else if (largest < 1e-30f) {
        step = 0.0f;
    } else {
        float inverse = divide(1.0f, step);
        const float round = 12582912.0f;
        word = (float_to_bits(add(mul(v.x, inverse), round)) & 0xffu)
            | (float_to_bits(add(mul(v.y, inverse), round)) & 0xffu) << 8
            | (float_to_bits(add(mul(v.z, inverse), round)) & 0xffu) << 16
            | (float_to_bits(add(mul(v.w, inverse), round)) & 0xffu) << 24;
    }
    i32 sum = dot4(word, 0x01010101u, 0);
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    if (threadIdx.x < threads) {
        q[(u64)block * threads + lane] = word;
        if (lane % 4u == 0) sums[(u64)block * (BLOCK / 16u) + lane / 4u] = sum;
        if (lane == 0) scale[block] = step;
    }
}

#define QUANTIZE(name, length)                                                                               \
    extern "C" __global__ void __launch_bounds__(length == 32 ? 32 : 64)                                     \
        name(const float* x, u32* q, float* scale, i32* sums, u32 n) {                                       \
        follow();                                                                                            \
        u32 block = flat_group();                                                                            \
        if (block < n) quantize_block<length>(x, q, scale, sums, block);                                     \
    }
