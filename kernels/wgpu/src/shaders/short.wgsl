// Formats of blocks of 32. `part_at` gives the weights of the block at a byte offset as signed bytes,
// `unit_at` its scale and the number that is added to each weight.

//@ q4_0
fn part_at(at: u32) -> Part {
    let words = words_at(at + 2u);
    let low = lowered(words & NIBBLES, 0x78787878u);
    return Part(low, lowered((words >> vec4<u32>(4u)) & NIBBLES, 0x78787878u));
}

fn unit_at(at: u32) -> vec2<f32> {
    return vec2<f32>(float_at(at), 0.0);
}

//@ q4_1
fn part_at(at: u32) -> Part {
    let words = words_at(at + 4u);
    return Part(words & NIBBLES, (words >> vec4<u32>(4u)) & NIBBLES);
}

fn unit_at(at: u32) -> vec2<f32> {
    return unpack2x16float(word_at(at));
}

//@ five_bits
fn five_bits(at: u32) -> Part {
    let fifths = word_at(at);
    let words = words_at(at + 4u);
    let low = (words & NIBBLES) | (spread_16(fifths) << vec4<u32>(4u));
    let high = ((words >> vec4<u32>(4u)) & NIBBLES) | (spread_16(fifths >> 16u) << vec4<u32>(4u));
    return Part(low, high);
}

//@ q5_0
fn part_at(at: u32) -> Part {
    let raised = five_bits(at + 2u);
    return Part(lowered(raised.low, 0x70707070u), lowered(raised.high, 0x70707070u));
}

fn unit_at(at: u32) -> vec2<f32> {
    return vec2<f32>(float_at(at), 0.0);
}

//@ q5_1
fn part_at(at: u32) -> Part {
    return five_bits(at + 4u);
}

fn unit_at(at: u32) -> vec2<f32> {
    return unpack2x16float(word_at(at));
}

//@ q8_0
fn part_at(at: u32) -> Part {
    return Part(words_at(at + 2u), words_at(at + 18u));
}

fn unit_at(at: u32) -> vec2<f32> {
    return vec2<f32>(float_at(at), 0.0);
}

//@ iq4_nl
fn part_at(at: u32) -> Part {
    return looked_up_part(words_at(at + 2u));
}

fn unit_at(at: u32) -> vec2<f32> {
    return vec2<f32>(float_at(at), 0.0);
}

//@ mxfp4
fn part_at(at: u32) -> Part {
    return looked_up_part(words_at(at + 1u));
}

fn unit_at(at: u32) -> vec2<f32> {
    let e = byte_at(at);
    return vec2<f32>(bitcast<f32>(select((e - 1u) << 23u, 0x00200000u << e, e < 2u)), 0.0);
}
