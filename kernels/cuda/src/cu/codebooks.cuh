// Formats whose groups of weights are indices into a codebook (`blocks/iq1.rs`, `iq2.rs`, `iq3.rs`).
//
// The codebooks are tables of words that stand before this text, the first member of a vector in the lowest
// bits: two words a vector of eight, one a vector of four.

// Changes the sign of magnitudes from 1 to 127 if their bits are set.
DEVICE u32 with_signs(u32 magnitudes, u32 bits) {
    u32 ones = spread<0>(bits);
    return (magnitudes ^ ones * 0xffu) + ones;
}

// The signs of eight weights from seven: the eighth makes the number of negative weights even.
DEVICE u32 even_signs(u32 seven) {
    seven &= 127u;
    return seven | (__popc(seven) & 1u) << 7;
}

// Sets octet `k` of a unit to magnitudes with signs.
DEVICE void set_octet(Unit& unit, int k, u32 low, u32 high, u32 signs) {
    u32* to = k < 2 ? &unit.a[2 * k] : &unit.b[2 * (k - 2)];
    to[0] = with_signs(low, signs);
    to[1] = with_signs(high, signs >> 4);
}

DEVICE Groups odd_scales(u32 a, u32 b) { return {(i32)(2u * (a & 15u) + 1u), (i32)(2u * (b & 15u) + 1u)}; }

#ifdef WITH_TERNARY_GRID
// 8 v + 1, or 8 v - 1, of the members v of a code.
DEVICE void ternary_octet(Unit& unit, int k, u32 code, bool negative) {
    u32* to = k < 2 ? &unit.a[2 * k] : &unit.b[2 * (k - 2)];
    u32 above = negative ? 0x07070707u : 0x09090909u;
    to[0] = lowered<16>((TERNARY_GRID[2u * code] << 3) + above);
    to[1] = lowered<16>((TERNARY_GRID[2u * code + 1u] << 3) + above);
}

struct Iq1S : InOrder, NoMinima {
    static const u32 BYTES = 50;
    static const u32 GROUP = 32;
    DEVICE float unit() { return 0.125f; }
    struct Raw {
        u32 units;
        u32 codes[1];
        u32 high;
    };
    DEVICE void load(const u32* w, u64 at, u32 u, Raw& raw) {
        raw.units = load_half(w, at);
        load_words<1>(w, at + 2u + 4u * u, raw.codes);
        raw.high = load_half(w, at + 34u + 2u * u);
    }
    DEVICE void weights(const Raw& raw, u32, Unit& unit) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 code = (raw.codes[0] >> (8 * k) & 0xffu) | (raw.high >> (3 * k) & 7u) << 8;
            ternary_octet(unit, k, code, (raw.high & 0x8000u) != 0);
        }
    }
    DEVICE Groups scales(const Raw& raw, u32) {
        u32 s = raw.high >> 12 & 7u;
        return odd_scales(s, s);
    }
};

struct Iq1M : InOrder, NoMinima {
    static const u32 BYTES = 56;
    static const u32 GROUP = 16;
    DEVICE float unit() { return 0.125f; }
    struct Raw {
        u32 units;
        u32 codes;
        u32 high;
        u32 scales;
    };
    DEVICE void load(const u32* w, u64 at, u32 u, Raw& raw) {
        const u32* block = w + (at >> 2);
        u32 low = block[12], high = block[13];
        raw.units = (low >> 12 & 15u) | low >> 28 << 4 | (high >> 12 & 15u) << 8 | high >> 28 << 12;
        raw.scales = (u < 4u ? low : high) >> (16u * (u >> 1 & 1u) + 6u * (u & 1u));
        raw.codes = block[u];
        raw.high = block[8u + (u >> 1)] >> (16u * (u & 1u));
    }
    DEVICE void weights(const Raw& raw, u32, Unit& unit) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 nibble = raw.high >> (4 * k);
            u32 code = (raw.codes >> (8 * k) & 0xffu) | (nibble & 7u) << 8;
            ternary_octet(unit, k, code, (nibble & 8u) != 0);
        }
    }
    DEVICE Groups scales(const Raw& raw, u32) { return odd_scales(raw.scales & 7u, raw.scales >> 3 & 7u); }
};
#endif

#ifdef WITH_IQ2_XXS_GRID
struct Iq2Xxs : InOrder, NoMinima {
    static const u32 BYTES = 66;
    static const u32 GROUP = 32;
    DEVICE float unit() { return 0.125f; }
    struct Raw {
        u32 units;
        u32 words[2];
    };
    DEVICE void load(const u32* w, u64 at, u32 u, Raw& raw) {
        raw.units = load_half(w, at);
        load_words<2>(w, at + 2u + 8u * u, raw.words);
    }
    DEVICE void weights(const Raw& raw, u32, Unit& unit) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 code = raw.words[0] >> (8 * k) & 0xffu;
            u32 signs = even_signs(raw.words[1] >> (7 * k));
            set_octet(unit, k, IQ2_XXS_GRID[2u * code], IQ2_XXS_GRID[2u * code + 1u], signs);
        }
    }
    DEVICE Groups scales(const Raw& raw, u32) { return odd_scales(raw.words[1] >> 28, raw.words[1] >> 28); }
};
#endif

#ifdef WITH_IQ2_XS_GRID
struct Iq2Xs : InOrder, NoMinima {
    static const u32 BYTES = 74;
    static const u32 GROUP = 16;
    DEVICE float unit() { return 0.125f; }
    struct Raw {
        u32 units;
        u32 scales;
        u32 words[2];
    };
    DEVICE void load(const u32* w, u64 at, u32 u, Raw& raw) {
        raw.units = load_half(w, at);
        load_words<2>(w, at + 2u + 8u * u, raw.words);
        raw.scales = load_byte(w, at + 66u + u);
    }
    DEVICE void weights(const Raw& raw, u32, Unit& unit) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 packed = raw.words[k / 2] >> (16 * (k % 2)) & 0xffffu;
            u32 code = packed & 511u;
            u32 signs = even_signs(packed >> 9);
            set_octet(unit, k, IQ2_XS_GRID[2u * code], IQ2_XS_GRID[2u * code + 1u], signs);
        }
    }
    DEVICE Groups scales(const Raw& raw, u32) { return odd_scales(raw.scales, raw.scales >> 4); }
};
#endif

#ifdef WITH_IQ2_S_GRID
struct Iq2S : InOrder, NoMinima {
    static const u32 BYTES = 82;
    static const u32 GROUP = 16;
    DEVICE float unit() { return 0.125f; }
    struct Raw {
        u32 units;
        u32 scales;
        u32 high;
        u32 codes[1];
        u32 signs[1];
    };
    DEVICE void load(const u32* w, u64 at, u32 u, Raw& raw) {
        raw.units = load_half(w, at);
        load_words<1>(w, at + 2u + 4u * u, raw.codes);
        load_words<1>(w, at + 34u + 4u * u, raw.signs);
        raw.high = load_byte(w, at + 66u + u);
        raw.scales = load_byte(w, at + 74u + u);
    }
    DEVICE void weights(const Raw& raw, u32, Unit& unit) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 code = (raw.codes[0] >> (8 * k) & 0xffu) | (raw.high >> (2 * k) & 3u) << 8;
            u32 signs = raw.signs[0] >> (8 * k);
            set_octet(unit, k, IQ2_S_GRID[2u * code], IQ2_S_GRID[2u * code + 1u], signs);
        }
    }
    DEVICE Groups scales(const Raw& raw, u32) { return odd_scales(raw.scales, raw.scales >> 4); }
};
#endif

#ifdef WITH_IQ3_XXS_GRID
struct Iq3Xxs : InOrder, NoMinima {
    static const u32 BYTES = 98;
    static const u32 GROUP = 32;
    DEVICE float unit() { return 0.5f; }
    struct Raw {
        u32 units;
        u32 codes[2];
        u32 signs[1];
    };
    DEVICE void load(const u32* w, u64 at, u32 u, Raw& raw) {
        raw.units = load_half(w, at);
        load_words<2>(w, at + 2u + 8u * u, raw.codes);
        load_words<1>(w, at + 66u + 4u * u, raw.signs);
    }
    DEVICE void weights(const Raw& raw, u32, Unit& unit) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 two = raw.codes[k / 2] >> (16 * (k % 2));
            u32 signs = even_signs(raw.signs[0] >> (7 * k));
            set_octet(unit, k, IQ3_XXS_GRID[two & 0xffu], IQ3_XXS_GRID[two >> 8 & 0xffu], signs);
        }
    }
    DEVICE Groups scales(const Raw& raw, u32) { return odd_scales(raw.signs[0] >> 28, raw.signs[0] >> 28); }
};
#endif

#ifdef WITH_IQ3_S_GRID
struct Iq3S : InOrder, NoMinima {
    static const u32 BYTES = 110;
    static const u32 GROUP = 32;
    DEVICE float unit() { return 1.0f; }
    struct Raw {
        u32 units;
        u32 scales;
        u32 ninths;
        u32 codes[2];
        u32 signs[1];
    };
    DEVICE void load(const u32* w, u64 at, u32 u, Raw& raw) {
        raw.units = load_half(w, at);
        load_words<2>(w, at + 2u + 8u * u, raw.codes);
        load_words<1>(w, at + 74u + 4u * u, raw.signs);
        raw.ninths = load_byte(w, at + 66u + u);
        raw.scales = load_byte(w, at + 106u + u / 2u) >> (4u * (u & 1u));
    }
    DEVICE void weights(const Raw& raw, u32, Unit& unit) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 two = raw.codes[k / 2] >> (16 * (k % 2));
            u32 ninths = raw.ninths >> (2 * k);
            u32 low = IQ3_S_GRID[(two & 0xffu) | (ninths & 1u) << 8];
            u32 high = IQ3_S_GRID[(two >> 8 & 0xffu) | (ninths >> 1 & 1u) << 8];
            set_octet(unit, k, low, high, raw.signs[0] >> (8 * k));
        }
    }
    DEVICE Groups scales(const Raw& raw, u32) { return odd_scales(raw.scales, raw.scales); }
};
#endif
