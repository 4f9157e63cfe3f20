// Types, exact arithmetic and loads that every kernel uses.
//
// The text is compiled by NVRTC, by nvcc and, for the tests, by a C++ compiler with a header that stands for
// the GPU. So it includes nothing. Sums and products are rounded one by one: `mul`, `add` and `fused` are the
// IEEE operations of the scalar definition, and the compiler may not join them.

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;

#define DEVICE static __device__ __forceinline__
#define WARP 32u
#define ALL_LANES 0xffffffffu

// Threads of the kernels that take numbers one by one.
#define NUMBERS 256u

DEVICE float mul(float a, float b) { return __fmul_rn(a, b); }
DEVICE float add(float a, float b) { return __fadd_rn(a, b); }
DEVICE float sub(float a, float b) { return __fadd_rn(a, -b); }
DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE float divide(float a, float b) { return __fdiv_rn(a, b); }
DEVICE float root(float a) { return __fsqrt_rn(a); }

DEVICE float bits_to_float(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 float_to_bits(float value) { return __float_as_uint(value); }
DEVICE float infinity() { return bits_to_float(0x7f800000u); }
DEVICE bool is_finite(float value) { return (float_to_bits(value) & 0x7f800000u) != 0x7f800000u; }

// The larger of two; the second if they are equal or either is NaN.
DEVICE float larger(float a, float b) { return a > b ? a : b; }

#ifndef BATON_EMULATION
// The value of binary16 bits.
DEVICE float half_to_float(u32 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)bits));
    return value;
}

DEVICE u32 nearest_half(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

#if defined(__CUDA_ARCH__) && !defined(BATON_EMULATION)
// Asks the cache for the line at an address.
DEVICE void expect(const u32* at) { asm volatile("prefetch.global.L2 [%0];" : : "l"(at)); }
#else
DEVICE void expect(const u32*) {}
#endif

// Kernels of a stream may overlap. A kernel begins with `let_next_begin`: the next one may take its place. It
// touches nothing that kernels write before `wait_for_earlier`, which returns when all before it have ended
// and what they have written is there.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && !defined(BATON_EMULATION)
DEVICE void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;" : : : "memory"); }
DEVICE void wait_for_earlier() { asm volatile("griddepcontrol.wait;" : : : "memory"); }
#else
DEVICE void let_next_begin() {}
DEVICE void wait_for_earlier() {}
#endif

DEVICE void follow() {
    let_next_begin();
    wait_for_earlier();
}

// Copies to shared memory beside the arithmetic. A lane waits for those that it began before the last
// `end_copies`; then a barrier shows them to others.
#if defined(BATON_EMULATION)
#define BATON_COPIES
DEVICE void copy_sixteen(u32* to, const u32* from) { *(uint4*)to = *(const uint4*)from; }
DEVICE void end_copies() {}
DEVICE void wait_for_copies() {}
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define BATON_COPIES
DEVICE void copy_sixteen(u32* to, const u32* from) {
    u32 place = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(place), "l"(from) : "memory");
}
DEVICE void end_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }
DEVICE void wait_for_copies() { asm volatile("cp.async.wait_group 1;" : : : "memory"); }
#endif

// Shared memory whose size the launch says.
#if defined(BATON_EMULATION)
#define DYNAMIC_SHARED(name) static __align__(16) u32 name[1u << 16]
#else
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) u32 name[]
#endif

// The nearest binary16, ties to even; NaN becomes a quiet NaN.
DEVICE u32 float_to_half(float value) {
    u32 bits = float_to_bits(value);
    bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return is_nan ? 0x7e00u | (bits >> 16 & 0x8000u) : nearest_half(value);
}

// e^x by the polynomial of the scalar definition (`exp.rs`).
DEVICE float exponential(float x) {
    const float round = 12582912.0f;
    float shifted = fused(x, 1.44269504088896340736f, round);
    float n = sub(shifted, round);
    float r = fused(n, 2.1219444e-4f, fused(n, -0.6933594f, x));
    float p = 1.0f / 5040.0f;
    p = fused(p, r, 1.0f / 720.0f);
    p = fused(p, r, 1.0f / 120.0f);
    p = fused(p, r, 1.0f / 24.0f);
    p = fused(p, r, 1.0f / 6.0f);
    p = fused(p, r, 0.5f);
    p = fused(p, r, 1.0f);
    p = fused(p, r, 1.0f);
    float value = mul(p, bits_to_float((float_to_bits(shifted) << 23) + 0x3f800000u));
    return x < -87.0f ? 0.0f : (x > 88.0f ? infinity() : value);
}

// cap tanh(x / cap).
DEVICE float soft_cap(float x, float cap) {
    float y = divide(x, cap);
    return mul(cap, sub(1.0f, divide(2.0f, add(1.0f, exponential(add(y, y))))));
}

// The number of a workgroup among all of x and y.
DEVICE u32 flat_group() { return blockIdx.y * gridDim.x + blockIdx.x; }

// The number that this thread takes, in the kernels that take numbers one by one.
DEVICE u32 flat_number() { return flat_group() * NUMBERS + threadIdx.x; }

// Bytes of weights at any place, as words. No word behind the last of these bytes is read.
template <int N>
DEVICE void load_words(const u32* __restrict__ w, u64 at, u32 (&out)[N]) {
    const u32* from = w + (at >> 2);
    u32 shift = ((u32)at & 3u) * 8u;
    u32 low = from[0];
#pragma unroll
    for (int k = 0; k < N; k++) {
        u32 high = k + 1 < N || shift != 0 ? from[k + 1] : 0u;
        out[k] = __funnelshift_r(low, high, shift);
        low = high;
    }
}

// As `load_words`, for a place that is a multiple of four.
template <int N>
DEVICE void load_aligned(const u32* __restrict__ w, u64 at, u32 (&out)[N]) {
    const u32* from = w + (at >> 2);
#pragma unroll
    for (int k = 0; k < N; k++) out[k] = from[k];
}

// As `load_words`, for four words at a multiple of sixteen.
DEVICE void load_four(const u32* __restrict__ w, u64 at, u32 (&out)[4]) {
    uint4 four = *(const uint4*)(w + (at >> 2));
    out[0] = four.x;
    out[1] = four.y;
    out[2] = four.z;
    out[3] = four.w;
}

DEVICE u32 load_byte(const u32* __restrict__ w, u64 at) {
    return w[at >> 2] >> (((u32)at & 3u) * 8u) & 0xffu;
}

// Two bytes at an even place.
DEVICE u32 load_half(const u32* __restrict__ w, u64 at) {
    return w[at >> 2] >> (((u32)at & 2u) * 8u) & 0xffffu;
}

// Two bytes and the N words behind them; the place is even. Reads N + 1 words, which hold nothing else.
template <int N>
DEVICE u32 load_half_and_words(const u32* __restrict__ w, u64 at, u32 (&out)[N]) {
    const u32* from = w + (at >> 2);
    bool odd = (at & 2u) != 0;
    u32 low = from[0];
    u32 half = odd ? low >> 16 : low & 0xffffu;
#pragma unroll
    for (int k = 0; k < N; k++) {
        u32 high = from[k + 1];
        out[k] = odd ? high : __funnelshift_r(low, high, 16u);
        low = high;
    }
    return half;
}

// Subtracts from each of four bytes; each result is a signed byte.
template <u32 RAISE>
DEVICE u32 lowered(u32 bytes) {
    return (bytes + (0x80u - RAISE) * 0x01010101u) ^ 0x80808080u;
}

// The sum of four products of signed bytes, added to `sum`.
DEVICE i32 dot4(u32 a, u32 b, i32 sum) { return __dp4a((i32)a, (i32)b, sum); }

// The product of sixteen signed bytes.
DEVICE i32 dot16(const u32 (&a)[4], const uint4& b) {
    return dot4(a[3], b.w, dot4(a[2], b.z, dot4(a[1], b.y, dot4(a[0], b.x, 0))));
}
