// Formats in super-blocks of 256 weights (`blocks/long.rs`): eight units of 32 weights, each of two groups of
// sixteen. `first` and `second` give the groups of a unit.
//
// `Raw` holds what a unit needs of its block. `scales` and `minima` return integers for the two groups;
// `units` the bits of `d` (low half) and `dmin` (high half). The groups of a unit are chosen so that no two
// units read the same bytes, if the format allows that.

struct Groups {
    i32 a;
    i32 b;
};

// Of formats without minima.
struct NoMinima {
    static const bool MINIMA = false;
    template <class Raw>
    DEVICE Groups minima(const Raw&, u32) {
        return {0, 0};
    }
};

// The unit `u` of the formats whose units are 32 weights in a row.
struct InOrder {
    DEVICE u32 first(u32 u) { return 2u * u; }
    DEVICE u32 second(u32 u) { return 2u * u + 1u; }
};

// The units of Q2_K and Q3_K: bit pairs of sixteen bytes, two of four.
struct PairOrder {
    DEVICE u32 first(u32 u) { return 8u * (u >> 2) + 4u * (u & 1u) + (u >> 1 & 1u); }
    DEVICE u32 second(u32 u) { return first(u) + 2u; }
    // Where the sixteen bytes begin.
    DEVICE u32 bytes(u32 u) { return 32u * (u >> 2) + 16u * (u >> 1 & 1u); }
    DEVICE void pairs(const u32 (&q)[4], u32 u, Unit& unit) {
        u32 shift = 4u * (u & 1u);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            unit.a[k] = q[k] >> shift & 0x03030303u;
            unit.b[k] = q[k] >> (shift + 2u) & 0x03030303u;
        }
    }
};

struct Q2K : PairOrder {
    static const u32 BYTES = 84;
    static const bool MINIMA = true;
    static const u32 GROUP = 16;
    DEVICE float unit() { return 1.0f; }
    struct Raw {
        u32 units;
        u32 scales;
        u32 q[4];
    };
    DEVICE void load(const u32* w, u64 at, u32 u, Raw& raw) {
        const u32* block = w + (at >> 2);
        raw.units = block[20];
        raw.scales = block[2u * (u >> 2) + (u & 1u)] >> (8u * (u >> 1 & 1u));
        load_aligned<4>(w, at + 16u + bytes(u), raw.q);
    }
    DEVICE void weights(const Raw& raw, u32 u, Unit& unit) { pairs(raw.q, u, unit); }
    DEVICE Groups scales(const Raw& raw, u32) {
        return {(i32)(raw.scales & 15u), (i32)(raw.scales >> 16 & 15u)};
    }
    DEVICE Groups minima(const Raw& raw, u32) {
        return {(i32)(raw.scales >> 4 & 15u), (i32)(raw.scales >> 20 & 15u)};
    }
};

struct Q3K : PairOrder, NoMinima {
    static const u32 BYTES = 110;
    static const u32 GROUP = 16;
    DEVICE float unit() { return 1.0f; }
    struct Raw {
        u32 units;
        u32 low;
        u32 high;
        u32 bits[4];
        u32 q[4];
    };
    DEVICE void load(const u32* w, u64 at, u32 u, Raw& raw) {
        u32 three[1];
        load_words<4>(w, at + 16u * (u >> 1 & 1u), raw.bits);
        load_words<4>(w, at + 32u + bytes(u), raw.q);
        load_words<1>(w, at + 96u + 4u * (u & 1u), three);
        raw.low = three[0] >> (8u * (u >> 1 & 1u) + 4u * (u >> 2));
        load_words<1>(w, at + 104u, three);
        raw.high = three[0] >> (8u * (u >> 1 & 1u) + 2u * (2u * (u >> 2) + (u & 1u)));
        raw.units = load_half(w, at + 108u);
    }
    DEVICE void weights(const Raw& raw, u32 u, Unit& unit) {
        pairs(raw.q, u, unit);
        u32 shift = 4u * (u >> 2) + 2u * (u & 1u);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            unit.a[k] |= (raw.bits[k] >> shift & 0x01010101u) << 2;
            unit.b[k] |= (raw.bits[k] >> (shift + 1u) & 0x01010101u) << 2;
        }
        lower<4>(unit);
    }
    DEVICE Groups scales(const Raw& raw, u32) {
        return {(i32)((raw.low & 15u) | (raw.high & 3u) << 4) - 32,
                (i32)((raw.low >> 16 & 15u) | (raw.high >> 16 & 3u) << 4) - 32};
    }
};

// The units of Q4_K and Q5_K: low and high nibbles of sixteen bytes. Six-bit scales and minima of 32 weights.
struct NibbleOrder {
    DEVICE u32 first(u32 u) { return 4u * (u >> 1) + (u & 1u); }
    DEVICE u32 second(u32 u) { return first(u) + 2u; }
    struct Six {
        u32 units;
        u32 low;
        u32 mid;
        u32 high;
    };
    // Reads the first sixteen bytes of a block, which begins at a multiple of sixteen.
    DEVICE void load_six(const u32* w, u64 at, Six& six) {
        u32 four[4];
        load_four(w, at, four);
        six = {four[0], four[1], four[2], four[3]};
    }
    // Two neighbours: that of an even group `g` in the low byte, the next one above it. Those of groups from
    // 4 on have four bits in `high` and two in the word of the others.
    DEVICE Groups both(u32 word, u32 high, u32 u) {
        u32 at = u & 2u ? 16u : 0u;
        u32 small = word >> at & 0x3f3fu;
        u32 large = (high >> at & 0x0f0fu) | (word >> (at + 2u) & 0x3030u);
        u32 pair = u < 4u ? small : large;
        return {(i32)(pair & 0xffu), (i32)(pair >> 8)};
    }
    DEVICE Groups scales(const Six& six, u32 u) { return both(six.low, six.high, u); }
    DEVICE Groups minima(const Six& six, u32 u) { return both(six.mid, six.high >> 4, u); }
};

struct Q4K : NibbleOrder {
    static const u32 BYTES = 144;
    static const bool MINIMA = true;
    static const u32 GROUP = 32;
    DEVICE float unit() { return 1.0f; }
    struct Raw : Six {
        u32 q[4];
    };
    DEVICE void load(const u32* w, u64 at, u32 u, Raw& raw) {
        load_six(w, at, raw);
        load_four(w, at + 16u + 16u * u, raw.q);
    }
    DEVICE void weights(const Raw& raw, u32, Unit& unit) { nibbles(raw.q, unit); }
};

struct Q5K : NibbleOrder {
    static const u32 BYTES = 176;
    static const bool MINIMA = true;
    static const u32 GROUP = 32;
    DEVICE float unit() { return 1.0f; }
    struct Raw : Six {
        u32 bits[4];
        u32 q[4];
    };
    DEVICE void load(const u32* w, u64 at, u32 u, Raw& raw) {
        load_six(w, at, raw);
        load_four(w, at + 16u + 16u * (u & 1u), raw.bits);
        load_four(w, at + 48u + 16u * u, raw.q);
    }
    DEVICE void weights(const Raw& raw, u32 u, Unit& unit) {
        nibbles(raw.q, unit);
        u32 shift = u & ~1u;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            unit.a[k] |= (raw.bits[k] >> shift & 0x01010101u) << 4;
            unit.b[k] |= (raw.bits[k] >> (shift + 1u) & 0x01010101u) << 4;
        }
    }
};

// Unit `u` has the bytes 32 c + 16 h of the low nibbles of half `n`, with n = u / 4, c = u / 2 % 2 and
// h = u % 2.
struct Q6K : NoMinima {
    static const u32 BYTES = 210;
    static const u32 GROUP = 16;
    DEVICE float unit() { return 1.0f; }
    DEVICE u32 first(u32 u) { return 8u * (u >> 2) + (u & 3u); }
    DEVICE u32 second(u32 u) { return first(u) + 4u; }
    struct Raw {
        u32 units;
        u32 scales;
        u32 bits[4];
        u32 q[4];
    };
    DEVICE void load(const u32* w, u64 at, u32 u, Raw& raw) {
        load_words<4>(w, at + 16u * u, raw.q);
        load_words<4>(w, at + 128u + 32u * (u >> 2) + 16u * (u & 1u), raw.bits);
        raw.scales = load_byte(w, at + 192u + first(u)) | load_byte(w, at + 192u + second(u)) << 8;
        raw.units = load_half(w, at + 208u);
    }
    DEVICE void weights(const Raw& raw, u32 u, Unit& unit) {
        nibbles(raw.q, unit);
        u32 shift = u & 2u;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            unit.a[k] |= (raw.bits[k] >> shift & 0x03030303u) << 4;
            unit.b[k] |= (raw.bits[k] >> (shift + 4u) & 0x03030303u) << 4;
        }
        lower<32>(unit);
    }
    DEVICE Groups scales(const Raw& raw, u32) {
        return {(i32)(i8)(raw.scales & 0xffu), (i32)(i8)(raw.scales >> 8)};
    }
};

struct Iq4Xs : InOrder, NoMinima {
    static const u32 BYTES = 136;
    static const u32 GROUP = 32;
    DEVICE float unit() { return 1.0f; }
    struct Raw {
        u32 units;
        u32 low;
        u32 q[4];
    };
    DEVICE void load(const u32* w, u64 at, u32 u, Raw& raw) {
        raw.units = w[at >> 2];
        raw.low = w[(at >> 2) + 1u];
        load_aligned<4>(w, at + 8u + 16u * u, raw.q);
    }
    DEVICE void weights(const Raw& raw, u32, Unit& unit) { iq4_values(raw.q, unit); }
    DEVICE Groups scales(const Raw& raw, u32 u) {
        u32 high = raw.units >> (16u + 2u * u) & 3u;
        i32 scale = (i32)((raw.low >> (4u * u) & 15u) | high << 4) - 32;
        return {scale, scale};
    }
};

// The four digits of a place of four bytes of five: fractions of 256 with digits to the base 3.
DEVICE u32 digits(u32 bytes, u32 power) {
    u32 even = (bytes & 0x00ff00ffu) * power & 0x00ff00ffu;
    u32 odd = (bytes >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu;
    return (even * 3u >> 8 & 0x00ff00ffu) | (odd * 3u & 0xff00ff00u);
}

DEVICE u32 power_of_three(u32 n) {
    const u32 powers = 0x1b090301u;
    return n == 4u ? 81u : powers >> (8u * n) & 0xffu;
}

// The first 160 weights lie in 32 bytes, the next 80 in sixteen, the last sixteen in four.
struct Tq1_0 : InOrder, NoMinima {
    static const u32 BYTES = 54;
    static const u32 GROUP = 32;
    DEVICE float unit() { return 1.0f; }
    struct Raw {
        u32 units;
        u32 a[4];
        u32 b[4];
    };
    DEVICE void load(const u32* w, u64 at, u32 u, Raw& raw) {
        load_words<4>(w, at + (u < 5u ? 0u : 32u), raw.a);
        if (u < 7u) {
            load_words<4>(w, at + (u < 5u ? 16u : 32u), raw.b);
        } else {
            u32 last[1];
            load_words<1>(w, at + 48u, last);
            raw.b[0] = raw.b[1] = raw.b[2] = raw.b[3] = last[0];
        }
        raw.units = load_half(w, at + 52u);
    }
    DEVICE void weights(const Raw& raw, u32 u, Unit& unit) {
        u32 place_a = u < 5u ? u : 2u * u - 10u;
        u32 power_a = power_of_three(place_a);
        u32 power_b = power_of_three(u < 5u ? u : place_a + 1u);
#pragma unroll
        for (u32 k = 0; k < 4u; k++) {
            unit.a[k] = digits(raw.a[k], power_a);
            unit.b[k] = digits(raw.b[k], u < 7u ? power_b : power_of_three(k));
        }
        lower<1>(unit);
    }
    DEVICE Groups scales(const Raw&, u32) { return {1, 1}; }
};

struct Tq2_0 : PairOrder, NoMinima {
    static const u32 BYTES = 66;
    static const u32 GROUP = 32;
    DEVICE float unit() { return 1.0f; }
    struct Raw {
        u32 units;
        u32 q[4];
    };
    DEVICE void load(const u32* w, u64 at, u32 u, Raw& raw) {
        load_words<4>(w, at + bytes(u), raw.q);
        raw.units = load_half(w, at + 64u);
    }
    DEVICE void weights(const Raw& raw, u32 u, Unit& unit) {
        pairs(raw.q, u, unit);
        lower<1>(unit);
    }
    DEVICE Groups scales(const Raw&, u32) { return {1, 1}; }
};
