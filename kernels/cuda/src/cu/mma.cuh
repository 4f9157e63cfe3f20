// The tensor cores' products of signed bytes: sixteen rows, eight tokens, 32 or 16 columns.
//
// Lane `l` has words of rows l / 4 and l / 4 + 8 at columns 4 (l % 4), and those sixteen columns on; words of
// token l / 4 at the same columns; and the elements that `matmul.cuh` names. Without tensor cores, BATON_MMA
// is not defined. The tests' emulated GPU brings its own instructions.

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
