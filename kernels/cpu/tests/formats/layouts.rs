//! A second derivation of ggml's layouts from the description of the structs: one weight at a time, by index
//! arithmetic alone. It shares no code with the crate. The ternary codebook is recorded from another
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

/// Returns member `i` of a code's vector as ggml has it: -1, 0 or 1.
fn member(code: usize, i: usize) -> f32 {
    let digits = &crate::recorded::grid()[4 * code..4 * code + 4];
    let packed = u32::from_str_radix(digits, 16).expect("the record is hexadecimal").swap_bytes() >> 16;
    ((packed >> (2 * i)) & 3) as f32 - 1.0
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
