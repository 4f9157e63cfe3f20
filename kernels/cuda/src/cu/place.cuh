// Which rows and tokens a warp of a product with few activation rows takes: MATVEC_ROWS weight rows, and up
// to as many activation rows as the variant says.

#define MATVEC_WARPS 4u
#define MATVEC_ROWS 2u
// Weight rows of a workgroup.
#define SLOTS (MATVEC_WARPS * MATVEC_ROWS)
// Numbers from one list of 32 in shared memory to the next: multiples of four, in other banks.
#define LIST 36u

struct MatVecPlace {
    u32 lane;
    u32 warp;
    u32 row;
    u32 token;
};

DEVICE MatVecPlace matvec_place(u32 tokens) {
    u32 warp = threadIdx.x / WARP, row = (flat_group() * MATVEC_WARPS + warp) * MATVEC_ROWS;
    return {threadIdx.x % WARP, warp, row, blockIdx.z * tokens};
}

DEVICE u32 below(u32 i, u32 n) { return i < n ? i : n - 1u; }
