// Formats in blocks of 32 weights (`blocks/short.rs`): a scale, for some a minimum, and 32 signed bytes.

// 32 weights as signed bytes: two groups of sixteen.
struct Unit {
    u32 a[4];
    u32 b[4];
};

// Four bytes of a table of sixteen, one for each of the low nibbles of `at`.
DEVICE u32 looked_up(const u32 (&table)[4], u32 at) {
    // `__byte_perm` selects by three bits of each nibble; the fourth selects the half of the table.
    u32 packed = (at & 0xfu) | (at >> 4 & 0xf0u) | (at >> 8 & 0xf00u) | (at >> 12 & 0xf000u);
    u32 low = __byte_perm(table[0], table[1], packed & 0x7777u);
    u32 high = __byte_perm(table[2], table[3], packed & 0x7777u);
    return __byte_perm(low, high, 0x3210u | (packed & 0x8888u) >> 1);
}

// The low nibbles of sixteen bytes, then the high ones.
DEVICE void nibbles(const u32 (&bytes)[4], Unit& unit) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        unit.a[k] = bytes[k] & 0x0f0f0f0fu;
        unit.b[k] = bytes[k] >> 4 & 0x0f0f0f0fu;
    }
}

// Bit `k` of four bits as bit `place` of byte `k`.
template <u32 PLACE>
DEVICE u32 spread(u32 bits) {
    return ((bits & 0xfu) * 0x00204081u & 0x01010101u) << PLACE;
}

// Adds fifth bits, in the order of the weights.
DEVICE void fifth_bits(u32 bits, Unit& unit) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        unit.a[k] |= spread<4>(bits >> (4 * k));
        unit.b[k] |= spread<4>(bits >> (16 + 4 * k));
    }
}

template <u32 RAISE>
DEVICE void lower(Unit& unit) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        unit.a[k] = lowered<RAISE>(unit.a[k]);
        unit.b[k] = lowered<RAISE>(unit.b[k]);
    }
}

struct ShortNibbles {
    u32 units;
    u32 bits;
    u32 q[4];
};

struct Q4_0 {
    static const u32 BYTES = 18;
    static const bool MINIMUM = false;
    typedef ShortNibbles Raw;
    DEVICE void load(const u32* w, u64 at, Raw& raw) { raw.units = load_half_and_words<4>(w, at, raw.q); }
    DEVICE void weights(const Raw& raw, Unit& unit) {
        nibbles(raw.q, unit);
        lower<8>(unit);
    }
    DEVICE float scale(const Raw& raw) { return half_to_float(raw.units); }
    DEVICE float minimum(const Raw&) { return 0.0f; }
};

struct Q4_1 {
    static const u32 BYTES = 20;
    static const bool MINIMUM = true;
    typedef ShortNibbles Raw;
    DEVICE void load(const u32* w, u64 at, Raw& raw) {
        raw.units = w[at >> 2];
        load_aligned<4>(w, at + 4, raw.q);
    }
    DEVICE void weights(const Raw& raw, Unit& unit) { nibbles(raw.q, unit); }
    DEVICE float scale(const Raw& raw) { return half_to_float(raw.units & 0xffffu); }
    DEVICE float minimum(const Raw& raw) { return half_to_float(raw.units >> 16); }
};

struct Q5_0 {
    static const u32 BYTES = 22;
    static const bool MINIMUM = false;
    struct Raw {
        u32 units;
        u32 q[5];
    };
    DEVICE void load(const u32* w, u64 at, Raw& raw) { raw.units = load_half_and_words<5>(w, at, raw.q); }
    DEVICE void weights(const Raw& raw, Unit& unit) {
        u32 q[4] = {raw.q[1], raw.q[2], raw.q[3], raw.q[4]};
        nibbles(q, unit);
        fifth_bits(raw.q[0], unit);
        lower<16>(unit);
    }
    DEVICE float scale(const Raw& raw) { return half_to_float(raw.units); }
    DEVICE float minimum(const Raw&) { return 0.0f; }
};

struct Q5_1 {
    static const u32 BYTES = 24;
    static const bool MINIMUM = true;
    typedef ShortNibbles Raw;
    DEVICE void load(const u32* w, u64 at, Raw& raw) {
        raw.units = w[at >> 2];
        raw.bits = w[(at >> 2) + 1];
        load_aligned<4>(w, at + 8, raw.q);
    }
    DEVICE void weights(const Raw& raw, Unit& unit) {
        nibbles(raw.q, unit);
        fifth_bits(raw.bits, unit);
    }
    DEVICE float scale(const Raw& raw) { return half_to_float(raw.units & 0xffffu); }
    DEVICE float minimum(const Raw& raw) { return half_to_float(raw.units >> 16); }
};

struct Q8_0 {
    static const u32 BYTES = 34;
    static const bool MINIMUM = false;
    struct Raw {
        u32 units;
        u32 q[8];
    };
    DEVICE void load(const u32* w, u64 at, Raw& raw) { raw.units = load_half_and_words<8>(w, at, raw.q); }
    DEVICE void weights(const Raw& raw, Unit& unit) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            unit.a[k] = raw.q[k];
            unit.b[k] = raw.q[4 + k];
        }
    }
    DEVICE float scale(const Raw& raw) { return half_to_float(raw.units); }
    DEVICE float minimum(const Raw&) { return 0.0f; }
};

// The values of the nibbles stand before this text, as words of four.
DEVICE void iq4_values(const u32 (&bytes)[4], Unit& unit) {
    const u32 table[4] = IQ4_VALUES;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        unit.a[k] = looked_up(table, bytes[k]);
        unit.b[k] = looked_up(table, bytes[k] >> 4);
    }
}

struct Iq4Nl {
    static const u32 BYTES = 18;
    static const bool MINIMUM = false;
    typedef ShortNibbles Raw;
    DEVICE void load(const u32* w, u64 at, Raw& raw) { raw.units = load_half_and_words<4>(w, at, raw.q); }
    DEVICE void weights(const Raw& raw, Unit& unit) { iq4_values(raw.q, unit); }
    DEVICE float scale(const Raw& raw) { return half_to_float(raw.units); }
    DEVICE float minimum(const Raw&) { return 0.0f; }
};

struct Mxfp4 {
    static const u32 BYTES = 17;
    static const bool MINIMUM = false;
    typedef ShortNibbles Raw;
    DEVICE void load(const u32* w, u64 at, Raw& raw) {
        raw.units = load_byte(w, at);
        load_words<4>(w, at + 1, raw.q);
    }
    DEVICE void weights(const Raw& raw, Unit& unit) {
        const u32 table[4] = MXFP4_VALUES;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            unit.a[k] = looked_up(table, raw.q[k]);
            unit.b[k] = looked_up(table, raw.q[k] >> 4);
        }
    }
    // 2^(e - 128); the powers below 2^-126 are subnormal.
    DEVICE float scale(const Raw& raw) {
        u32 e = raw.units;
        return bits_to_float(e < 2u ? 0x00200000u << e : (e - 1u) << 23);
    }
    DEVICE float minimum(const Raw&) { return 0.0f; }
};
