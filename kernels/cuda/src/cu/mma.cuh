// The tensor cores' products of signed bytes: sixteen rows, eight tokens, 32 or 16 columns.
//
// Lane `l` has words of rows l / 4 and l / 4 + 8 at columns 4 (l % 4), and those sixteen columns on; words of
// token l / 4 at the same columns; and the elements that `matmul.cuh` names. Without tensor cores, BATON_MMA
// is not defined. The tests' emulated GPU brings its own instructions.
//
// And the products of halves: sixteen rows, eight columns, sixteen numbers each, added to floats. `a` has the
// pairs at 2 (l % 4) of rows l / 4 and l / 4 + 8, then the pairs eight numbers on; `b` those pairs of column
// l / 4; `c` the elements as above.

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define BATON_MMA

#ifndef BATON_EMULATION
DEVICE void mma_32(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DEVICE void mma_16(i32 (&c)[4], const u32 (&a)[4], u32 b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}
#endif
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
#define BATON_MMA

#ifndef BATON_EMULATION
// Eight rows, eight tokens, sixteen columns.
DEVICE void mma_8(i32& c0, i32& c1, u32 a, u32 b) {
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+r"(c0), "+r"(c1)
                 : "r"(a), "r"(b));
}
#endif

DEVICE void mma_16(i32 (&c)[4], const u32 (&a)[4], u32 b) {
    mma_8(c[0], c[1], a[0], b);
    mma_8(c[2], c[3], a[1], b);
}

DEVICE void mma_32(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    mma_16(c, a, b[0]);
    mma_8(c[0], c[1], a[2], b[1]);
    mma_8(c[2], c[3], a[3], b[1]);
}
#endif

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 750
// Without tensor cores: every lane fetches what its four elements need.
DEVICE void mma_halves(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (u32 i = 0; i < 8u; i++) {
        u32 row = lane / 4u * 4u + i % 4u, low = __shfl_sync(ALL_LANES, a[i / 4u * 2u], row);
        u32 high = __shfl_sync(ALL_LANES, a[i / 4u * 2u + 1u], row);
#pragma unroll
        for (u32 e = 0; e < 2u; e++) {
            u32 two = __shfl_sync(ALL_LANES, b[i / 4u], (lane % 4u * 2u + e) * 4u + i % 4u);
            float x = half_to_float(two & 0xffffu), y = half_to_float(two >> 16);
            c[e] = fused(half_to_float(low >> 16), y, fused(half_to_float(low & 0xffffu), x, c[e]));
            float below = fused(half_to_float(high & 0xffffu), x, c[e + 2u]);
            c[e + 2u] = fused(half_to_float(high >> 16), y, below);
        }
    }
}
#elif !defined(BATON_EMULATION) && __CUDA_ARCH__ >= 800
DEVICE void mma_halves(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#elif !defined(BATON_EMULATION)
DEVICE void mma_halves(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#pragma unroll
    for (u32 i = 0; i < 2u; i++) {
        asm volatile(
            "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[2u * i]), "r"(a[2u * i + 1u]), "r"(b[i]));
    }
}
#endif
