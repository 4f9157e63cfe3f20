// Formats of super-blocks of 256. `part_at` gives 32 weights of the super-block at a byte offset as signed
// bytes, `scales_at` and `minima_at` the integers of their two groups of sixteen, `units_at` the factors of
// both: `d`, and `dmin` with its sign changed.

//@ bit_pairs
// Part `p` of weights that are stored as bit pairs from `at` on.
fn bit_pairs(at: u32, p: u32) -> Part {
    let start = at + 32u * (p / 4u);
    let shift = vec4<u32>(2u * (p % 4u));
    let mask = vec4<u32>(0x03030303u);
    return Part((words_at(start) >> shift) & mask, (words_at(start + 16u) >> shift) & mask);
}

//@ no_minima
fn minima_at(at: u32, p: u32) -> vec2<i32> {
    return vec2<i32>(0);
}

//@ q2_k
fn part_at(at: u32, p: u32) -> Part {
    return bit_pairs(at + 16u, p);
}

fn scales_at(at: u32, p: u32) -> vec2<i32> {
    let two = half_at(at + 2u * p);
    return vec2<i32>(vec2<u32>(two, two >> 8u) & vec2<u32>(15u));
}

fn minima_at(at: u32, p: u32) -> vec2<i32> {
    let two = half_at(at + 2u * p);
    return vec2<i32>(vec2<u32>(two >> 4u, two >> 12u) & vec2<u32>(15u));
}

fn units_at(at: u32) -> vec2<f32> {
    let units = unpack2x16float(word_at(at + 80u));
    return vec2<f32>(units.x, -units.y);
}

//@ q3_k
fn part_at(at: u32, p: u32) -> Part {
    let pairs = bit_pairs(at + 32u, p);
    let shift = vec4<u32>(p);
    let ones = vec4<u32>(0x01010101u);
    let low = pairs.low | (((words_at(at) >> shift) & ones) << vec4<u32>(2u));
    let high = pairs.high | (((words_at(at + 16u) >> shift) & ones) << vec4<u32>(2u));
    return Part(lowered(low, 0x7c7c7c7cu), lowered(high, 0x7c7c7c7cu));
}

fn scales_at(at: u32, p: u32) -> vec2<i32> {
    let i = 2u * p;
    let low = (half_at(at + 96u + i % 8u) >> (4u * (i / 8u))) & 0x0f0fu;
    let high = (half_at(at + 104u + i % 4u) >> (2u * (i / 4u))) & 0x0303u;
    let both = low | (high << 4u);
    return vec2<i32>(vec2<u32>(both & 255u, both >> 8u)) - vec2<i32>(32);
}

fn units_at(at: u32) -> vec2<f32> {
    return vec2<f32>(float_at(at + 108u), 0.0);
}

//@ six_bits
fn scales_at(at: u32, p: u32) -> vec2<i32> {
    let j = at + 4u + p % 4u;
    let low = byte_at(j);
    let early = low & 63u;
    let late = (byte_at(j + 8u) & 15u) | ((low >> 6u) << 4u);
    return vec2<i32>(i32(select(late, early, p < 4u)));
}

fn minima_at(at: u32, p: u32) -> vec2<i32> {
    let j = at + 4u + p % 4u;
    let mid = byte_at(j + 4u);
    let early = mid & 63u;
    let late = (byte_at(j + 8u) >> 4u) | ((mid >> 6u) << 4u);
    return vec2<i32>(i32(select(late, early, p < 4u)));
}

fn units_at(at: u32) -> vec2<f32> {
    let units = unpack2x16float(word_at(at));
    return vec2<f32>(units.x, -units.y);
}

//@ q4_k
fn part_at(at: u32, p: u32) -> Part {
    let start = at + 16u + 32u * (p / 2u);
    let shift = vec4<u32>(4u * (p % 2u));
    return Part((words_at(start) >> shift) & NIBBLES, (words_at(start + 16u) >> shift) & NIBBLES);
}

//@ q5_k
fn part_at(at: u32, p: u32) -> Part {
    let start = at + 48u + 32u * (p / 2u);
    let shift = vec4<u32>(4u * (p % 2u));
    let bit = vec4<u32>(p);
    let ones = vec4<u32>(0x01010101u);
    let low_fifths = ((words_at(at + 16u) >> bit) & ones) << vec4<u32>(4u);
    let high_fifths = ((words_at(at + 32u) >> bit) & ones) << vec4<u32>(4u);
    let low = (words_at(start) >> shift) & NIBBLES;
    let high = (words_at(start + 16u) >> shift) & NIBBLES;
    return Part(low | low_fifths, high | high_fifths);
}

//@ q6_k
fn part_at(at: u32, p: u32) -> Part {
    let pair = p % 4u;
    let lows = at + 64u * (p / 4u) + 32u * (pair % 2u);
    let highs = at + 128u + 32u * (p / 4u);
    let low_shift = vec4<u32>(4u * (pair / 2u));
    let high_shift = vec4<u32>(2u * pair);
    let mask = vec4<u32>(0x03030303u);
    let four = vec4<u32>(4u);
    let low = ((words_at(lows) >> low_shift) & NIBBLES) | (((words_at(highs) >> high_shift) & mask) << four);
    let high = ((words_at(lows + 16u) >> low_shift) & NIBBLES)
        | (((words_at(highs + 16u) >> high_shift) & mask) << four);
    return Part(lowered(low, 0x60606060u), lowered(high, 0x60606060u));
}

fn scales_at(at: u32, p: u32) -> vec2<i32> {
    let two = half_at(at + 192u + 2u * p);
    return vec2<i32>(vec2<u32>(two << 24u, two << 16u)) >> vec2<u32>(24u);
}

fn units_at(at: u32) -> vec2<f32> {
    return vec2<f32>(float_at(at + 208u), 0.0);
}

//@ iq4_xs
fn part_at(at: u32, p: u32) -> Part {
    return looked_up_part(words_at(at + 8u + 16u * p));
}

fn scales_at(at: u32, p: u32) -> vec2<i32> {
    let low = (byte_at(at + 4u + p / 2u) >> (4u * (p % 2u))) & 15u;
    let high = (half_at(at + 2u) >> (2u * p)) & 3u;
    return vec2<i32>(i32(low | (high << 4u)) - 32);
}

fn units_at(at: u32) -> vec2<f32> {
    return vec2<f32>(float_at(at), 0.0);
}

//@ ternary
// Eight weights of a code: eight times the members, and an eighth more or less. The table has members 0 to 3
// in the low nibbles and 4 to 7 in the high nibbles of a word, raised to 0, 1 and 2.
fn ternary(code: u32, is_negative: bool) -> vec2<u32> {
    let both = table[code];
    let members = vec2<u32>(both & 0x0f0f0f0fu, (both >> 4u) & 0x0f0f0f0fu);
    let above = vec2<u32>(select(0x79797979u, 0x77777777u, is_negative));
    return ((members << vec2<u32>(3u)) + above) ^ vec2<u32>(0x80808080u);
}

//@ iq1_s
fn part_at(at: u32, p: u32) -> Part {
    let high = half_at(at + 34u + 2u * p);
    let low = word_at(at + 2u + 4u * p);
    let is_negative = (high & 0x8000u) != 0u;
    let a = ternary((low & 255u) | ((high & 7u) << 8u), is_negative);
    let b = ternary(((low >> 8u) & 255u) | (((high >> 3u) & 7u) << 8u), is_negative);
    let c = ternary(((low >> 16u) & 255u) | (((high >> 6u) & 7u) << 8u), is_negative);
    let d = ternary((low >> 24u) | (((high >> 9u) & 7u) << 8u), is_negative);
    return Part(vec4<u32>(a, b), vec4<u32>(c, d));
}

fn scales_at(at: u32, p: u32) -> vec2<i32> {
    return vec2<i32>(i32(2u * ((half_at(at + 34u + 2u * p) >> 12u) & 7u) + 1u));
}

fn units_at(at: u32) -> vec2<f32> {
    return vec2<f32>(float_at(at) * 0.125, 0.0);
}

//@ iq1_m
fn part_at(at: u32, p: u32) -> Part {
    let high = half_at(at + 32u + 2u * p);
    let low = word_at(at + 4u * p);
    let a = ternary((low & 255u) | ((high & 7u) << 8u), (high & 8u) != 0u);
    let b = ternary(((low >> 8u) & 255u) | ((high & 0x70u) << 4u), (high & 0x80u) != 0u);
    let c = ternary(((low >> 16u) & 255u) | (high & 0x700u), (high & 0x800u) != 0u);
    let d = ternary((low >> 24u) | ((high & 0x7000u) >> 4u), (high & 0x8000u) != 0u);
    return Part(vec4<u32>(a, b), vec4<u32>(c, d));
}

fn scales_at(at: u32, p: u32) -> vec2<i32> {
    let packed = half_at(at + 48u + 2u * (p / 2u));
    let shift = 6u * (p % 2u);
    let codes = vec2<u32>(packed >> shift, packed >> (shift + 3u)) & vec2<u32>(7u);
    return vec2<i32>(vec2<u32>(2u) * codes + vec2<u32>(1u));
}

fn units_at(at: u32) -> vec2<f32> {
    let a = half_at(at + 48u) >> 12u;
    let b = (half_at(at + 50u) >> 8u) & 0x00f0u;
    let c = (half_at(at + 52u) >> 4u) & 0x0f00u;
    let d = half_at(at + 54u) & 0xf000u;
    return vec2<f32>(unpack2x16float(a | b | c | d).x * 0.125, 0.0);
}

//@ iq2_xxs
fn part_at(at: u32, p: u32) -> Part {
    let codes = word_at(at + 2u + 8u * p);
    let signs = word_at(at + 6u + 8u * p);
    return four_octets(
        octet(pair_of(codes & 255u), even_signs(signs)),
        octet(pair_of((codes >> 8u) & 255u), even_signs(signs >> 7u)),
        octet(pair_of((codes >> 16u) & 255u), even_signs(signs >> 14u)),
        octet(pair_of(codes >> 24u), even_signs(signs >> 21u)),
    );
}

fn scales_at(at: u32, p: u32) -> vec2<i32> {
    return vec2<i32>(i32(2u * (word_at(at + 6u + 8u * p) >> 28u) + 1u));
}

fn units_at(at: u32) -> vec2<f32> {
    return vec2<f32>(float_at(at) * 0.125, 0.0);
}

//@ iq2_xs
fn octet_of(packed: u32) -> vec2<u32> {
    return octet(pair_of(packed & 511u), even_signs(packed >> 9u));
}

fn part_at(at: u32, p: u32) -> Part {
    let start = at + 2u + 8u * p;
    let first = word_at(start);
    let second = word_at(start + 4u);
    return four_octets(
        octet_of(first & 0xffffu),
        octet_of(first >> 16u),
        octet_of(second & 0xffffu),
        octet_of(second >> 16u),
    );
}

fn scales_at(at: u32, p: u32) -> vec2<i32> {
    let two = byte_at(at + 66u + p);
    return vec2<i32>(vec2<u32>(2u) * vec2<u32>(two & 15u, two >> 4u) + vec2<u32>(1u));
}

fn units_at(at: u32) -> vec2<f32> {
    return vec2<f32>(float_at(at) * 0.125, 0.0);
}

//@ iq2_s
fn part_at(at: u32, p: u32) -> Part {
    let low = word_at(at + 2u + 4u * p);
    let signs = word_at(at + 34u + 4u * p);
    let high = byte_at(at + 66u + p);
    return four_octets(
        octet(pair_of((low & 255u) | ((high & 3u) << 8u)), signs),
        octet(pair_of(((low >> 8u) & 255u) | ((high & 12u) << 6u)), signs >> 8u),
        octet(pair_of(((low >> 16u) & 255u) | ((high & 48u) << 4u)), signs >> 16u),
        octet(pair_of((low >> 24u) | ((high & 192u) << 2u)), signs >> 24u),
    );
}

fn scales_at(at: u32, p: u32) -> vec2<i32> {
    let two = byte_at(at + 74u + p);
    return vec2<i32>(vec2<u32>(2u) * vec2<u32>(two & 15u, two >> 4u) + vec2<u32>(1u));
}

fn units_at(at: u32) -> vec2<f32> {
    return vec2<f32>(float_at(at) * 0.125, 0.0);
}

//@ iq3_xxs
fn magnitudes(codes: u32) -> vec2<u32> {
    return vec2<u32>(table[codes & 255u], table[(codes >> 8u) & 255u]);
}

fn part_at(at: u32, p: u32) -> Part {
    let first = word_at(at + 2u + 8u * p);
    let second = word_at(at + 6u + 8u * p);
    let signs = word_at(at + 66u + 4u * p);
    return four_octets(
        octet(magnitudes(first), even_signs(signs)),
        octet(magnitudes(first >> 16u), even_signs(signs >> 7u)),
        octet(magnitudes(second), even_signs(signs >> 14u)),
        octet(magnitudes(second >> 16u), even_signs(signs >> 21u)),
    );
}

fn scales_at(at: u32, p: u32) -> vec2<i32> {
    return vec2<i32>(i32(2u * (word_at(at + 66u + 4u * p) >> 28u) + 1u));
}

fn units_at(at: u32) -> vec2<f32> {
    return vec2<f32>(float_at(at) * 0.5, 0.0);
}

//@ iq3_s
fn magnitudes(codes: u32, ninths: u32) -> vec2<u32> {
    let low = (codes & 255u) | ((ninths & 1u) << 8u);
    let high = ((codes >> 8u) & 255u) | ((ninths & 2u) << 7u);
    return vec2<u32>(table[low], table[high]);
}

fn part_at(at: u32, p: u32) -> Part {
    let first = word_at(at + 2u + 8u * p);
    let second = word_at(at + 6u + 8u * p);
    let ninths = byte_at(at + 66u + p);
    let signs = word_at(at + 74u + 4u * p);
    return four_octets(
        octet(magnitudes(first, ninths), signs),
        octet(magnitudes(first >> 16u, ninths >> 2u), signs >> 8u),
        octet(magnitudes(second, ninths >> 4u), signs >> 16u),
        octet(magnitudes(second >> 16u, ninths >> 6u), signs >> 24u),
    );
}

fn scales_at(at: u32, p: u32) -> vec2<i32> {
    let code = (byte_at(at + 106u + p / 2u) >> (4u * (p % 2u))) & 15u;
    return vec2<i32>(i32(2u * code + 1u));
}

fn units_at(at: u32) -> vec2<f32> {
    return vec2<f32>(float_at(at), 0.0);
}

//@ tq1_0
// The digits to the base 3 that a power of three moves to the front of four bytes.
fn digits(bytes: u32, power: u32) -> u32 {
    let even = (((((bytes & 0x00ff00ffu) * power) & 0x00ff00ffu) * 3u) >> 8u) & 0x00ff00ffu;
    let odd = ((((((bytes >> 8u) & 0x00ff00ffu) * power) & 0x00ff00ffu) * 3u) >> 8u) & 0x00ff00ffu;
    return even | (odd << 8u);
}

fn digits_of(words: vec4<u32>, power: u32) -> vec4<u32> {
    return vec4<u32>(
        digits(words.x, power),
        digits(words.y, power),
        digits(words.z, power),
        digits(words.w, power),
    );
}

fn power_of(digit: u32) -> u32 {
    let odd = select(1u, 3u, (digit & 1u) != 0u);
    return odd * select(1u, 9u, (digit & 2u) != 0u) * select(1u, 81u, digit == 4u);
}

fn part_at(at: u32, p: u32) -> Part {
    var low: vec4<u32>;
    var high: vec4<u32>;
    if p < 5u {
        low = digits_of(words_at(at), power_of(p));
        high = digits_of(words_at(at + 16u), power_of(p));
    } else if p < 7u {
        let words = words_at(at + 32u);
        low = digits_of(words, power_of(2u * p - 10u));
        high = digits_of(words, power_of(2u * p - 9u));
    } else {
        low = digits_of(words_at(at + 32u), 81u);
        let last = word_at(at + 48u);
        high = vec4<u32>(digits(last, 1u), digits(last, 3u), digits(last, 9u), digits(last, 27u));
    }
    return Part(lowered(low, 0x7f7f7f7fu), lowered(high, 0x7f7f7f7fu));
}

fn scales_at(at: u32, p: u32) -> vec2<i32> {
    return vec2<i32>(1);
}

fn units_at(at: u32) -> vec2<f32> {
    return vec2<f32>(float_at(at + 52u), 0.0);
}

//@ tq2_0
fn part_at(at: u32, p: u32) -> Part {
    let pairs = bit_pairs(at, p);
    return Part(lowered(pairs.low, 0x7f7f7f7fu), lowered(pairs.high, 0x7f7f7f7fu));
}

fn scales_at(at: u32, p: u32) -> vec2<i32> {
    return vec2<i32>(1);
}

fn units_at(at: u32) -> vec2<f32> {
    return vec2<f32>(float_at(at + 64u), 0.0);
}
