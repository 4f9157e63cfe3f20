// Rounding of activations to signed bytes, with a scale for each block of 32 or 256 (`activations.rs`).

// The scale of a block whose largest magnitude has the bits `top`, and what its values are multiplied by.
struct Rounding {
    float step;
    float inverse;
    bool is_zero;
};

DEVICE Rounding rounding_of(u32 top) {
    float largest = bits_to_float(top);
    if (!is_finite(largest)) return {bits_to_float(0x7fc00000u), 0.0f, true};
    if (largest < 1e-30f) return {0.0f, 0.0f, true};
    float step = divide(largest, 127.0f);
    return {step, divide(1.0f, step), false};
}

// Four values as signed bytes.
DEVICE u32 rounded(const float4& v, const Rounding& by) {
    const float round = 12582912.0f;
    u32 word = (float_to_bits(add(mul(v.x, by.inverse), round)) & 0xffu)
        | (float_to_bits(add(mul(v.y, by.inverse), round)) & 0xffu) << 8
        | (float_to_bits(add(mul(v.z, by.inverse), round)) & 0xffu) << 16
        | (float_to_bits(add(mul(v.w, by.inverse), round)) & 0xffu) << 24;
    return by.is_zero ? 0u : word;
}

// The bits of the largest magnitude of four values.
DEVICE u32 top_of(const float4& v) {
    u32 a = float_to_bits(v.x) & 0x7fffffffu, b = float_to_bits(v.y) & 0x7fffffffu;
    u32 c = float_to_bits(v.z) & 0x7fffffffu, d = float_to_bits(v.w) & 0x7fffffffu;
    return max(max(a, b), max(c, d));
}

// Writes four rounded values, and by lanes whose number is a multiple of four the sums of sixteen. `word_at`
// is the number of the word among all; all lanes of the warp call this.
DEVICE void put_rounded(u32 word, u32* q, i32* sums, u64 word_at, bool is_there) {
    i32 sum = dot4(word, 0x01010101u, 0);
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    if (!is_there) return;
    q[word_at] = word;
    if (word_at % 4u == 0) sums[word_at / 4u] = sum;
}

// Rounds one block. A thread takes four values; `lane` is its number in the block of values, of `BLOCK / 4`.
template <u32 BLOCK>
DEVICE void quantize_block(const float* x, u32* q, float* scale, i32* sums, u32 block) {
    const u32 threads = BLOCK / 4u;
    u32 lane = threadIdx.x % threads;
    float4 v = ((const float4*)x)[(u64)block * threads + lane];
    u32 top = top_of(v);
    for (u32 apart = threads < WARP ? threads / 2u : 16u; apart > 0; apart /= 2)
        top = max(top, __shfl_xor_sync(ALL_LANES, top, apart));
    if (threads > WARP) {
        __shared__ u32 tops[2];
        if (threadIdx.x % WARP == 0) tops[threadIdx.x / WARP] = top;
        __syncthreads();
        top = max(tops[0], tops[1]);
    }
    Rounding by = rounding_of(top);
    put_rounded(rounded(v, by), q, sums, (u64)block * threads + lane, threadIdx.x < threads);
    if (threadIdx.x < threads && lane == 0) scale[block] = by.step;
}

// Rounds a row of `width` floats in shared memory, which all threads of the workgroup have written. `place`
// is the number of its first value among all. A warp has 128 values at a time: a lane has four in a row.
template <u32 BLOCK>
DEVICE void quantize_row(const float* staged, u32 width, u32* q, float* scale, i32* sums, u64 place) {
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    const u32 PARTS = BLOCK > 128u ? BLOCK / 128u : 1u;
    for (u32 first = warp * 128u * PARTS; first < width; first += warps * 128u * PARTS) {
        float4 v[PARTS];
        u32 top = 0;
#pragma unroll
        for (u32 k = 0; k < PARTS; k++) {
            u32 at = first + 128u * k + 4u * lane;
            float4 none = {0.0f, 0.0f, 0.0f, 0.0f};
            v[k] = at < width ? *(const float4*)(staged + at) : none;
            top = max(top, top_of(v[k]));
        }
        for (u32 apart = BLOCK < 128u ? BLOCK / 8u : 16u; apart > 0; apart /= 2)
            top = max(top, __shfl_xor_sync(ALL_LANES, top, apart));
        Rounding by = rounding_of(top);
#pragma unroll
        for (u32 k = 0; k < PARTS; k++) {
            u32 at = first + 128u * k + 4u * lane;
            put_rounded(rounded(v[k], by), q, sums, (place + at) / 4u, at < width);
            if (at < width && at % BLOCK == 0) scale[(place + at) / BLOCK] = by.step;
        }
    }
}

#define QUANTIZE(name, length)                                                                               \
    extern "C" __global__ void __launch_bounds__(length == 32 ? 32 : 64)                                     \
        name(const float* x, u32* q, float* scale, i32* sums, u32 n) {                                       \
        follow();                                                                                            \
        u32 block = flat_group();                                                                            \
        if (block < n) quantize_block<length>(x, q, scale, sums, block);                                     \
    }
