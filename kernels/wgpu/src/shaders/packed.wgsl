//@ group
// A group of 32 dimensions: pairs of binary16, and integers of BITS bits, raised by RAISE.
const EACH = 32u / BITS;
const MASK = (1u << BITS) - 1u;
const WORDS = 2u * BITS + 1u;

var<private> halves: array<u32, 16>;
var<private> quants: array<u32, BITS>;

// The value of finite binary16 bits, also of subnormal ones.
fn half_value(bits: u32) -> f32 {
    let size = bits & 0x7fffu;
    let normal = bitcast<f32>((size << 13u) + (112u << 23u));
    let value = select(f32(size) * 5.9604645e-8, normal, size >= 0x400u);
    return select(value, -value, (bits & 0x8000u) != 0u);
}

fn half_at(c: u32) -> u32 {
    return (halves[c / 2u] >> (16u * (c % 2u))) & 0xffffu;
}

// A multiple of a scale as binary16. A zero has no sign; a fault among the scale's numbers shows.
fn multiple(scale: u32, c: u32) -> u32 {
    let raw = (quants[c / EACH] >> (BITS * (c % EACH))) & MASK;
    let near = to_half(half_value(scale) * (f32(raw) - f32(RAISE)));
    return select(select(near, 0u, raw == RAISE), 0x7e00u, (scale & 0x7c00u) == 0x7c00u);
}

// Sets the numbers of the group from its integers.
fn open_group(scale: u32) {
    for (var pair = 0u; pair < 16u; pair++) {
        halves[pair] = multiple(scale, 2u * pair) | (multiple(scale, 2u * pair + 1u) << 16u);
    }
}

// The first word of the keys of a group, and of the values. Words of keys are 32 apart.
fn key_at(slot: u32, head: u32, part: u32) -> u32 {
    return ((slot / 32u * params.heads + head) * (params.d / 2u) + 16u * part) * 32u + slot % 32u;
}

fn value_at(slot: u32, head: u32, part: u32) -> u32 {
    return ((slot / 32u * params.heads + head) * 32u + slot % 32u) * (params.d / 2u) + 16u * part;
}

// The first packed word of a group. The next ones are 32 apart.
fn packed_at(slot: u32, head: u32, part: u32) -> u32 {
    let run = (slot / 32u * params.heads + head) * (params.d / 32u) + part;
    return run * WORDS * 32u + slot % 32u;
}

//@ round
// The scale of the group as binary16: the largest magnitude becomes 127, or the first of the largest ones
// becomes -8, as in kernels/cpu.
fn scale_of_group() -> u32 {
    var extreme = 0u;
    for (var c = 0u; c < 32u; c++) {
        let half = half_at(c);
        extreme = select(extreme, half, (half & 0x7fffu) > (extreme & 0x7fffu));
    }
    let size = extreme & 0x7fffu;
    if size >= 0x7c00u {
        return 0x7e00u;
    }
    if BITS == 8u {
        return to_half(half_value(size) / 127.0);
    }
    return to_half(half_value(size) * 0.125) | (~extreme & 0x8000u);
}

// Sets the integers of the group and rounds its numbers. Returns its scale.
fn round_group() -> u32 {
    let scale = scale_of_group();
    let has_steps = (scale & 0x7fffu) != 0u && (scale & 0x7c00u) != 0x7c00u;
    let inverse = 1.0 / half_value(scale);
    for (var word = 0u; word < BITS; word++) {
        var bits = 0u;
        for (var i = 0u; i < EACH; i++) {
            let steps = rounded(half_value(half_at(word * EACH + i)) * inverse);
            let near = bitcast<u32>(clamp(steps, LOWEST, HIGHEST) + 12582912.0);
            bits |= ((select(0u, near, has_steps) + RAISE) & MASK) << (BITS * i);
        }
        quants[word] = bits;
    }
    open_group(scale);
    return scale;
}

fn apply(i: u32) {
    let parts = params.d / 32u;
    let part = i % parts;
    let head = i / parts % params.heads;
    let slot = places[2u * (i / (parts * params.heads)) + 1u];
    let key = key_at(slot, head, part);
    for (var pair = 0u; pair < 16u; pair++) {
        halves[pair] = keys[key + 32u * pair];
    }
    let key_scale = round_group();
    for (var pair = 0u; pair < 16u; pair++) {
        keys[key + 32u * pair] = halves[pair];
    }
    put_quants(packed_at(slot, head, part));
    let value = value_at(slot, head, part);
    for (var pair = 0u; pair < 16u; pair++) {
        halves[pair] = values[value + pair];
    }
    let scales = key_scale | (round_group() << 16u);
    for (var pair = 0u; pair < 16u; pair++) {
        values[value + pair] = halves[pair];
    }
    put_quants(packed_at(slot, head, part) + 32u * BITS);
    put_scales(packed_at(slot, head, part) + 64u * BITS, scales);
}

//@ pack
fn put_quants(at: u32) {
    for (var word = 0u; word < BITS; word++) {
        packed[at + 32u * word] = quants[word];
    }
}

fn put_scales(at: u32, scales: u32) {
    packed[at] = scales;
}

//@ pack_nothing
fn put_quants(at: u32) {}

fn put_scales(at: u32, scales: u32) {}

//@ unpack
fn take_quants(at: u32) {
    for (var word = 0u; word < BITS; word++) {
        quants[word] = packed[at + 32u * word];
    }
}

fn apply(i: u32) {
    let parts = params.d / 32u;
    let run = i / 32u;
    let part = run % parts;
    let head = run / parts % params.heads;
    let slot = blocks[run / (parts * params.heads)] * 32u + i % 32u;
    let at = packed_at(slot, head, part);
    let scales = packed[at + 64u * BITS];
    take_quants(at);
    open_group(scales & 0xffffu);
    let key = key_at(slot, head, part);
    for (var pair = 0u; pair < 16u; pair++) {
        keys[key + 32u * pair] = halves[pair];
    }
    take_quants(at + 32u * BITS);
    open_group(scales >> 16u);
    let value = value_at(slot, head, part);
    for (var pair = 0u; pair < 16u; pair++) {
        values[value + pair] = halves[pair];
    }
}
