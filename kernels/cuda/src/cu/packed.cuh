// Keys and values as small integers with a scale for each group of 32 dimensions, as in kernels/cpu.

// The words of a group: pairs of binary16, and integers raised by half of their range.
#define PAIRS 16u
#define GROUP 32u

DEVICE u32 half_at(const u32 (&halves)[PAIRS], u32 c) { return halves[c / 2u] >> (16u * (c % 2u)) & 0xffffu; }

template <u32 BITS>
struct Quants {
    static const u32 EACH = 32u / BITS, MASK = (1u << BITS) - 1u, RAISE = 1u << (BITS - 1u);
    u32 words[BITS];
    // Binary16.
    u32 scale;

    // Rounds a group. The largest magnitude becomes 127, or the first of the largest ones becomes -8.
    __device__ __forceinline__ void round(const u32 (&halves)[PAIRS]) {
        u32 extreme = 0u;
#pragma unroll
        for (u32 c = 0; c < GROUP; c++) {
            u32 half = half_at(halves, c);
            if ((half & 0x7fffu) > (extreme & 0x7fffu)) extreme = half;
        }
        u32 size = extreme & 0x7fffu;
        if (size >= 0x7c00u) scale = 0x7e00u;
        else if (BITS == 8u) scale = float_to_half(divide(half_to_float(size), 127.0f));
        else scale = float_to_half(mul(half_to_float(size), 0.125f)) | (~extreme & 0x8000u);
        bool has_steps = (scale & 0x7fffu) != 0u && (scale & 0x7c00u) != 0x7c00u;
        float inverse = has_steps ? divide(1.0f, half_to_float(scale)) : 0.0f;
        const float highest = (float)(RAISE - 1u), lowest = BITS == 8u ? -highest : -highest - 1.0f;
#pragma unroll
        for (u32 word = 0; word < BITS; word++) {
            words[word] = 0u;
#pragma unroll
            for (u32 i = 0; i < EACH; i++) {
                float steps = mul(half_to_float(half_at(halves, word * EACH + i)), inverse);
                steps = steps < lowest ? lowest : (steps > highest ? highest : steps);
                u32 near = has_steps ? float_to_bits(add(steps, 12582912.0f)) : 0u;
                words[word] |= ((near + RAISE) & MASK) << (BITS * i);
            }
        }
    }

    // Number `c` of the group as binary16. A zero has no sign; a fault among the scale's numbers shows.
    __device__ __forceinline__ u32 number(u32 c) const {
        u32 raw = words[c / EACH] >> (BITS * (c % EACH)) & MASK;
        if ((scale & 0x7c00u) == 0x7c00u) return 0x7e00u;
        if (raw == RAISE) return 0u;
        return float_to_half(mul(half_to_float(scale), (float)(i32)(raw - RAISE)));
    }

    // Writes all numbers, in words that are `apart`.
    __device__ __forceinline__ void open(u32* to, u32 apart) const {
#pragma unroll
        for (u32 pair = 0; pair < PAIRS; pair++)
            to[pair * apart] = number(2u * pair) | number(2u * pair + 1u) << 16;
    }

    // Rounds a group where it is.
    __device__ __forceinline__ void round_at(u32* at, u32 apart) {
        u32 halves[PAIRS];
#pragma unroll
        for (u32 pair = 0; pair < PAIRS; pair++) halves[pair] = at[pair * apart];
        round(halves);
        open(at, apart);
    }

    __device__ __forceinline__ void put(u32* to) const {
#pragma unroll
        for (u32 word = 0; word < BITS; word++) to[word * 32u] = words[word];
    }

    __device__ __forceinline__ void take(const u32* from) {
#pragma unroll
        for (u32 word = 0; word < BITS; word++) words[word] = from[word * 32u];
    }
};

// The first packed word of a group; the next ones are 32 apart.
template <u32 BITS>
DEVICE u64 packed_word(u32 slot, u32 head, u32 part, u32 heads, u32 parts) {
    u64 run = ((u64)(slot / 32u) * heads + head) * parts + part;
    return run * (2u * BITS + 1u) * 32u + slot % 32u;
}

// Rounds group `i` of slots, and packs it if there is a buffer for that.
template <u32 BITS>
DEVICE void pack_group(const u32* places, u32* keys, u32* values, u32* packed, u32 i, u32 heads, u32 d) {
    u32 parts = d / GROUP, part = i % parts, head = i / parts % heads;
    u32 slot = places[2u * (i / parts / heads) + 1u];
    Quants<BITS> key, value;
    key.round_at(keys + key_word(slot, head, PAIRS * part, heads, d / 2u), 32u);
    value.round_at(values + value_word(slot, head, PAIRS * part, heads, d / 2u), 1u);
    if (!packed) return;
    packed += packed_word<BITS>(slot, head, part, heads, parts);
    key.put(packed);
    value.put(packed + 32u * BITS);
    packed[64u * BITS] = key.scale | value.scale << 16;
}

#define ROUND_KV(name, bits)                                                                                 \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        name(const u32* places, u32* keys, u32* values, u32 n, u32 heads, u32 d) {                           \
        follow();                                                                                            \
        u32 i = flat_number();                                                                               \
        if (i < n) pack_group<bits>(places, keys, values, 0, i, heads, d);                                   \
    }

#define PACK_KV(name, bits)                                                                                  \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        name(const u32* places, u32* keys, u32* values, u32* packed, u32 n, u32 heads, u32 d) {              \
        follow();                                                                                            \
        u32 i = flat_number();                                                                               \
        if (i < n) pack_group<bits>(places, keys, values, packed, i, heads, d);                              \
    }

// Opens groups of blocks: neighbouring threads have neighbouring tokens.
#define UNPACK_KV(name, bits)                                                                                \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        name(const u32* packed, const u32* blocks, u32* keys, u32* values, u32 n, u32 heads, u32 d) {        \
        follow();                                                                                            \
        u32 i = flat_number();                                                                               \
        if (i >= n) return;                                                                                  \
        u32 run = i / 32u, parts = d / GROUP, part = run % parts, head = run / parts % heads;                \
        u32 slot = blocks[run / parts / heads] * 32u + i % 32u;                                              \
        packed += packed_word<bits>(slot, head, part, heads, parts);                                         \
        u32 scales = packed[64u * bits];                                                                     \
        Quants<bits> key, value;                                                                             \
        key.take(packed);                                                                                    \
        value.take(packed + 32u * bits);                                                                     \
        key.scale = scales & 0xffffu;                                                                        \
        value.scale = scales >> 16;                                                                          \
        key.open(keys + key_word(slot, head, PAIRS * part, heads, d / 2u), 32u);                             \
        value.open(values + value_word(slot, head, PAIRS * part, heads, d / 2u), 1u);                        \
    }
