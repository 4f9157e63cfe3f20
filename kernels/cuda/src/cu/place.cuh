// Which rows and tokens a warp of a product with few activation rows takes: MATVEC_ROWS weight rows, and up
// to as many activation rows as the variant says. Which matrix a pair takes.

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

DEVICE MatVecPlace matvec_place(u32 first_token) {
    u32 warp = threadIdx.x / WARP, row = (flat_group() * MATVEC_WARPS + warp) * MATVEC_ROWS;
    return {threadIdx.x % WARP, warp, row, first_token};
}

// A pair: a token, and which of its chosen experts; and the number of its matrix among those of a buffer,
// which may not have it.
struct ChosenPair {
    u32 token;
    u32 slot;
    u32 matrix;
};

DEVICE ChosenPair chosen_pair(const u32* routes, u32 pairs, u32 used, u32 each, u32 at, u32 first) {
    u32 pair = blockIdx.z;
    u32 matrix = pair < pairs ? routes[2u * (u64)pair] * each + at - first : 0xffffffffu;
    return {pair / used, pair % used, matrix};
}

DEVICE u32 below(u32 i, u32 n) { return i < n ? i : n - 1u; }
