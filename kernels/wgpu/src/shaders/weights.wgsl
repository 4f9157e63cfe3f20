//@ aligned
// Weights at byte offsets that are multiples of four.
fn word_at(at: u32) -> u32 {
    return w[at >> 2u];
}

fn words_at(at: u32) -> vec4<u32> {
    let i = at >> 2u;
    return vec4<u32>(w[i], w[i + 1u], w[i + 2u], w[i + 3u]);
}

//@ unaligned
// Weights at any byte offset. A word beyond the last one may be read, but never counts.
fn word_at(at: u32) -> u32 {
    let i = at >> 2u;
    let shift = (at & 3u) << 3u;
    return (w[i] >> shift) | ((w[i + 1u] << 1u) << (31u - shift));
}

fn words_at(at: u32) -> vec4<u32> {
    let i = at >> 2u;
    let shift = vec4<u32>((at & 3u) << 3u);
    let four = vec4<u32>(w[i], w[i + 1u], w[i + 2u], w[i + 3u]);
    let next = vec4<u32>(four.yzw, w[i + 4u]);
    return (four >> shift) | ((next << vec4<u32>(1u)) << (vec4<u32>(31u) - shift));
}

//@ blocks
struct Part {
    low: vec4<u32>,
    high: vec4<u32>,
}

const NIBBLES = vec4<u32>(0x0f0f0f0fu);

fn byte_at(at: u32) -> u32 {
    return (w[at >> 2u] >> ((at & 3u) << 3u)) & 0xffu;
}

// The sixteen bits at an even offset.
fn half_at(at: u32) -> u32 {
    return (w[at >> 2u] >> ((at & 2u) << 3u)) & 0xffffu;
}

fn float_at(at: u32) -> f32 {
    return unpack2x16float(half_at(at)).x;
}

// Subtracts `128 - add` from each byte, where `add` is in each byte of `above`.
fn lowered(raised: vec4<u32>, above: u32) -> vec4<u32> {
    return (raised + vec4<u32>(above)) ^ vec4<u32>(0x80808080u);
}

// Four bits as the lowest bits of four bytes.
fn spread(bits: u32) -> u32 {
    return ((bits & 15u) * 0x00204081u) & 0x01010101u;
}

fn spread_16(bits: u32) -> vec4<u32> {
    return vec4<u32>(spread(bits), spread(bits >> 4u), spread(bits >> 8u), spread(bits >> 12u));
}

fn dot_16(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

//@ table
// The values of the two nibbles of a byte are in a word of the table, that of the low nibble in the lowest
// byte.
fn looked_up(word: u32) -> vec2<u32> {
    let a = table[word & 255u];
    let b = table[(word >> 8u) & 255u];
    let c = table[(word >> 16u) & 255u];
    let d = table[word >> 24u];
    let low = (a & 255u) | ((b & 255u) << 8u) | ((c & 255u) << 16u) | (d << 24u);
    let high = (a >> 8u) | (b & 0xff00u) | ((c & 0xff00u) << 8u) | ((d & 0xff00u) << 16u);
    return vec2<u32>(low, high);
}

fn looked_up_part(words: vec4<u32>) -> Part {
    let x = looked_up(words.x);
    let y = looked_up(words.y);
    let z = looked_up(words.z);
    let w_of = looked_up(words.w);
    return Part(vec4<u32>(x.x, y.x, z.x, w_of.x), vec4<u32>(x.y, y.y, z.y, w_of.y));
}

//@ signs
// The signs of eight weights from the seven that are stored: an even number is negative.
fn even_signs(seven: u32) -> u32 {
    let stored = seven & 127u;
    return stored | ((countOneBits(stored) & 1u) << 7u);
}

// Four magnitudes of at least 1, negative if their bit is set.
fn with_signs(magnitudes: u32, bits: u32) -> u32 {
    let negative = spread(bits);
    return (magnitudes ^ (negative * 255u)) + negative;
}

// Eight magnitudes with signs.
fn octet(magnitudes: vec2<u32>, bits: u32) -> vec2<u32> {
    return vec2<u32>(with_signs(magnitudes.x, bits), with_signs(magnitudes.y, bits >> 4u));
}

fn four_octets(a: vec2<u32>, b: vec2<u32>, c: vec2<u32>, d: vec2<u32>) -> Part {
    return Part(vec4<u32>(a, b), vec4<u32>(c, d));
}

//@ pair
fn pair_of(code: u32) -> vec2<u32> {
    return vec2<u32>(table[2u * code], table[2u * code + 1u]);
}

//@ f32
fn weight_at(i: u32) -> f32 {
    return bitcast<f32>(w[i]);
}

//@ f16
fn weight_at(i: u32) -> f32 {
    return unpack2x16float((w[i >> 1u] >> ((i & 1u) << 4u)) & 0xffffu).x;
}

//@ bf16
fn weight_at(i: u32) -> f32 {
    return bitcast<f32>(((w[i >> 1u] >> ((i & 1u) << 4u)) & 0xffffu) << 16u);
}
