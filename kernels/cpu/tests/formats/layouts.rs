//! A second derivation of ggml's layouts from the description of the structs: one weight at a time, by index
//! arithmetic alone. It shares no code with the crate. The codebooks are recorded from another
//! implementation.

use baton_kernels_cpu::Format;
use half::{bf16, f16};

/// Returns weight `i` of a block.
pub(crate) fn weight(format: Format, block: &[u8], i: usize) -> f32 {
    match format {
        Format::F32 => f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
        Format::F16 => half(block, 0),
        Format::Bf16 => bf16::from_le_bytes([block[0], block[1]]).to_f32(),
        Format::Q2K | Format::Q3K | Format::Q4K | Format::Q5K | Format::Q6K => k_weight(format, block, i),
        Format::Iq1S | Format::Iq1M => ternary_weight(format, block, i),
        Format::Iq2Xxs | Format::Iq2Xs | Format::Iq2S | Format::Iq3Xxs | Format::Iq3S => {
            lattice_weight(format, block, i)
        }
        Format::Tq1_0 | Format::Tq2_0 => one_scale_weight(format, block, i),
        Format::Mxfp4 => small_float(block, i),
        _ => short_weight(format, block, i),
    }
}

/// Returns all weights of a row.
pub(crate) fn row(format: Format, bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks(format.block_bytes())
        .flat_map(|block| (0..format.block_len()).map(|i| weight(format, block, i)))
        .collect()
}

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn word(block: &[u8], at: usize) -> usize {
    usize::from(block[at]) + 256 * usize::from(block[at + 1])
}

fn bit(block: &[u8], at: usize, n: usize) -> u8 {
    block[at + n / 8] / (1 << (n % 8)) % 2
}

/// Returns `count` bits from bit `first` of a block on, lowest first.
fn bits(block: &[u8], first: usize, count: usize) -> usize {
    (0..count).map(|n| usize::from(bit(block, 0, first + n)) << n).sum()
}

fn nibble(byte: u8, high: bool) -> u8 {
    if high { byte / 16 } else { byte % 16 }
}

const NON_LINEAR: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

fn short_weight(format: Format, block: &[u8], i: usize) -> f32 {
    let low = |at: usize| nibble(block[at + i % 16], i >= 16);
    match format {
        // struct { half d; uint8 qs[16] }
        Format::Q4_0 => half(block, 0) * (f32::from(low(2)) - 8.0),
        // struct { half d, m; uint8 qs[16] }
        Format::Q4_1 => half(block, 0) * f32::from(low(4)) + half(block, 2),
        // struct { half d; uint32 qh; uint8 qs[16] }
        Format::Q5_0 => half(block, 0) * (f32::from(low(6) + 16 * bit(block, 2, i)) - 16.0),
        // struct { half d, m; uint32 qh; uint8 qs[16] }
        Format::Q5_1 => half(block, 0) * f32::from(low(8) + 16 * bit(block, 4, i)) + half(block, 2),
        // struct { half d; int8 qs[32] }
        Format::Q8_0 => half(block, 0) * f32::from(block[2 + i] as i8),
        // struct { half d; uint8 qs[16] }
        Format::Iq4Nl => half(block, 0) * NON_LINEAR[usize::from(low(2))],
        Format::Iq4Xs => {
            // struct { half d; uint16 scales_h; uint8 scales_l[4]; uint8 qs[128] }
            let group = i / 32;
            let scale = nibble(block[4 + group / 2], group % 2 == 1)
                + 16 * bit(block, 2, 2 * group)
                + 32 * bit(block, 2, 2 * group + 1);
            let q = nibble(block[8 + 16 * group + i % 16], i % 32 >= 16);
            half(block, 0) * (f32::from(scale) - 32.0) * NON_LINEAR[usize::from(q)]
        }
        _ => unreachable!("a format without a second derivation"),
    }
}

/// Returns scale and minimum `group` of the twelve bytes of Q4_K and Q5_K.
fn six_bits(packed: &[u8], group: usize) -> (f32, f32) {
    let (scale, min) = if group < 4 {
        (packed[group] & 0b11_1111, packed[group + 4] & 0b11_1111)
    } else {
        let low = packed[group + 4];
        (low % 16 + packed[group - 4] / 64 * 16, low / 16 + packed[group] / 64 * 16)
    };
    (f32::from(scale), f32::from(min))
}

fn k_weight(format: Format, block: &[u8], i: usize) -> f32 {
    let pair = |at: usize| block[at + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    match format {
        Format::Q2K => {
            // struct { uint8 scales[16]; uint8 qs[64]; half d, dmin }
            let packed = block[i / 16];
            half(block, 80) * f32::from(packed % 16) * f32::from(pair(16))
                - half(block, 82) * f32::from(packed / 16)
        }
        Format::Q3K => {
            // struct { uint8 hmask[32]; uint8 qs[64]; uint8 scales[12]; half d }
            let group = i / 16;
            let low = nibble(block[96 + group % 8], group >= 8);
            let high = block[104 + group % 4] >> (group / 4 * 2) & 3;
            let scale = f32::from(low) + 16.0 * f32::from(high) - 32.0;
            let q = f32::from(pair(32)) - if bit(block, i % 32, i / 32) == 1 { 0.0 } else { 4.0 };
            half(block, 108) * scale * q
        }
        Format::Q4K | Format::Q5K => {
            // struct { half d, dmin; uint8 scales[12]; [uint8 qh[32];] uint8 qs[128] }
            let (scale, min) = six_bits(&block[4..16], i / 32);
            let five = format == Format::Q5K;
            let lows = if five { 48 } else { 16 };
            let low = nibble(block[lows + i / 64 * 32 + i % 32], i % 64 >= 32);
            let high = if five { bit(block, 16 + i % 32, i / 32) } else { 0 };
            half(block, 0) * scale * f32::from(low + 16 * high) - half(block, 2) * min
        }
        Format::Q6K => {
            // struct { uint8 ql[128], qh[64]; int8 scales[16]; half d }
            let (part, within) = (i / 128, i % 128);
            let low = block[part * 64 + within % 64] >> if within < 64 { 0 } else { 4 };
            let high = block[128 + part * 32 + within % 32] >> (within / 32 * 2);
            let q = i32::from(low & 15) + 16 * i32::from(high & 3) - 32;
            half(block, 208) * f32::from(block[192 + i / 16] as i8) * q as f32
        }
        _ => unreachable!("a format without a second derivation"),
    }
}

/// Returns the members of a code's vector, packed in two bytes.
fn packed(format: Format, code: usize) -> usize {
    let digits = &crate::recorded::grid(format)[4 * code..4 * code + 4];
    let bytes = u32::from_str_radix(digits, 16).expect("the record is hexadecimal").swap_bytes() >> 16;
    bytes as usize
}

/// Returns member `i` of a code's vector as ggml has it: -1, 0 or 1.
fn member(code: usize, i: usize) -> f32 {
    ((packed(Format::Iq1S, code) >> (2 * i)) & 3) as f32 - 1.0
}

/// Returns magnitude `i` of a code's vector as ggml has it.
fn magnitude(format: Format, code: usize, i: usize) -> f32 {
    let packed = packed(format, code);
    match format {
        Format::Iq3Xxs => [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0][packed >> (4 * i) & 7],
        Format::Iq3S => (2 * (packed >> (4 * i) & 7) + 1) as f32,
        _ => [8.0, 25.0, 43.0][packed >> (2 * i) & 3],
    }
}

/// Returns whether weight `i` of eight is negative: by its bit of seven, or so that an even number is.
fn even_sign(seven: usize, i: usize) -> bool {
    if i < 7 { seven >> i & 1 == 1 } else { seven.count_ones() % 2 == 1 }
}

fn lattice_weight(format: Format, block: &[u8], i: usize) -> f32 {
    let (group, octet, four) = (i / 32, i / 8, i / 4);
    let (code, negative, s) = match format {
        // struct { half d; struct { uint8 codes[4]; uint32 signs } [8] }
        Format::Iq2Xxs => {
            let word = 8 * (6 + 8 * group);
            let seven = bits(block, word + 7 * (octet % 4), 7);
            (
                usize::from(block[2 + 8 * group + octet % 4]),
                even_sign(seven, i % 8),
                bits(block, word + 28, 4),
            )
        }
        // struct { half d; uint16 qs[32]; uint8 scales[8] }
        Format::Iq2Xs => {
            let seven = bits(block, 16 + 16 * octet + 9, 7);
            (bits(block, 16 + 16 * octet, 9), even_sign(seven, i % 8), bits(block, 8 * 66 + 4 * (i / 16), 4))
        }
        // struct { half d; uint8 qs[32], signs[32], qh[8], scales[8] }
        Format::Iq2S => {
            let code = usize::from(block[2 + octet]) + 256 * bits(block, 8 * 66 + 2 * octet, 2);
            (code, bit(block, 34, i) == 1, bits(block, 8 * 74 + 4 * (i / 16), 4))
        }
        // struct { half d; uint8 qs[64]; uint32 signs[8] }
        Format::Iq3Xxs => {
            let word = 8 * (66 + 4 * group);
            let seven = bits(block, word + 7 * (octet % 4), 7);
            (usize::from(block[2 + four]), even_sign(seven, i % 8), bits(block, word + 28, 4))
        }
        // struct { half d; uint8 qs[64], qh[8], signs[32], scales[4] }
        Format::Iq3S => {
            let code = usize::from(block[2 + four]) + 256 * usize::from(bit(block, 66, four));
            (code, bit(block, 74, i) == 1, bits(block, 8 * 106 + 4 * group, 4))
        }
        _ => unreachable!("a format without a second derivation"),
    };
    let (factor, place) = match format {
        Format::Iq3Xxs => ((s as f32 + 0.5) * 0.5, i % 4),
        Format::Iq3S => ((1 + 2 * s) as f32, i % 4),
        _ => ((s as f32 + 0.5) * 0.25, i % 8),
    };
    let sign = if negative { -1.0 } else { 1.0 };
    half(block, 0) * factor * magnitude(format, code, place) * sign
}

fn one_scale_weight(format: Format, block: &[u8], i: usize) -> f32 {
    if format == Format::Tq2_0 {
        // struct { uint8 qs[64]; half d }
        return half(block, 64) * (f32::from(block[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) - 1.0);
    }
    // struct { uint8 qs[48], qh[4]; half d }
    let (byte, place) = match i {
        0..160 => (i % 32, i / 32),
        160..240 => (32 + i % 16, (i - 160) / 16),
        _ => (48 + i % 4, (i - 240) / 4),
    };
    // A byte is a fraction of 256; its digits to the base 3 follow the point.
    let digit = usize::from(block[byte]) * 3usize.pow(place as u32 + 1) / 256 % 3;
    half(block, 52) * (digit as f32 - 1.0)
}

/// `struct { uint8 e; uint8 qs[16] }`: E8M0 and E2M1 by their fields.
fn small_float(block: &[u8], i: usize) -> f32 {
    let code = nibble(block[1 + i % 16], i >= 16);
    let mantissa = f64::from(code & 1) / 2.0;
    let magnitude = match code >> 1 & 3 {
        0 => mantissa,
        exponent => (1.0 + mantissa) * 2f64.powi(i32::from(exponent) - 1),
    };
    // Zero has one sign only.
    let sign = if code & 8 != 0 && magnitude > 0.0 { -1.0 } else { 1.0 };
    (sign * magnitude * 2f64.powi(i32::from(block[0]) - 127)) as f32
}

fn ternary_weight(format: Format, block: &[u8], i: usize) -> f32 {
    let octet = i / 8;
    let (d, high, s, negative) = if format == Format::Iq1S {
        // struct { half d; uint8 qs[32]; uint16 qh[8] }
        let qh = word(block, 34 + i / 32 * 2);
        (half(block, 0), qh >> (octet % 4 * 3) & 7, qh >> 12 & 7, qh >> 15 == 1)
    } else {
        // struct { uint8 qs[32], qh[16]; uint16 scales[4] }
        let nibble = usize::from(nibble(block[32 + octet / 2], octet % 2 == 1));
        let d = (0..4).map(|n| (word(block, 48 + 2 * n) >> 12) << (4 * n)).sum::<usize>();
        let s = word(block, 48 + i / 64 * 2) >> (i / 16 % 4 * 3) & 7;
        (f16::from_bits(d as u16).to_f32(), nibble & 7, s, nibble & 8 == 8)
    };
    let low = usize::from(block[if format == Format::Iq1S { 2 } else { 0 } + octet]);
    let delta = if negative { -0.125 } else { 0.125 };
    d * (2 * s + 1) as f32 * (member(low + 256 * high, i % 8) + delta)
}
