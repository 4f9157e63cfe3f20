//! Random weights: rows that were quantized, and valid blocks of arbitrary bytes.

use baton_kernels_cpu::{Format, quantize_row};
use baton_random::SplitMix64;

/// Returns `rows` rows of `cols` weights, `[rows, cols]` in the format.
///
/// # Panics
/// If the format has no such rows.
pub(super) fn weights(
    random: &mut SplitMix64,
    format: Format,
    (rows, cols): (usize, usize),
    wild: bool,
) -> Vec<u8> {
    if wild && format.block_len() > 1 {
        return wild_blocks(random, format, rows * cols / format.block_len());
    }
    let mut data = Vec::new();
    for row in 0..rows {
        // The third row has numbers that are small for binary16, and its scales are.
        let size = if row == 2 { 1e-5 } else { 1.0 };
        let values: Vec<f32> = (0..cols).map(|_| ((random.unit() * 2.0 - 1.0) * size) as f32).collect();
        quantize_row(format, &values, &mut data).expect("finite numbers in whole blocks");
    }
    data
}

/// Returns blocks of arbitrary bytes whose scales are finite and of usual size, some of them zero or small.
fn wild_blocks(random: &mut SplitMix64, format: Format, n: usize) -> Vec<u8> {
    let mut data: Vec<u8> = (0..n * format.block_bytes()).map(|_| random.below(256) as u8).collect();
    for block in data.chunks_exact_mut(format.block_bytes()) {
        if format == Format::Mxfp4 {
            block[0] = 120 + block[0] % 12;
        }
        for at in halves(format) {
            // Exponents of 2^-10 to 2^-1; one in nine numbers is subnormal.
            let exponent = match random.below(9) {
                0 => 0,
                i => 5 + i as u8,
            };
            block[at + 1] = block[at + 1] & 0x83 | exponent << 2;
        }
        if format == Format::Iq1M {
            // The scale lies in four nibbles, the exponent in the highest and the one below.
            block[55] = block[55] & 0x0f | 0x20;
        }
    }
    data
}

/// Returns the places of the binary16 numbers in a block.
fn halves(format: Format) -> Vec<usize> {
    match format {
        Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::Iq4Nl | Format::Iq4Xs => vec![0],
        Format::Iq1S | Format::Iq2Xxs | Format::Iq2Xs | Format::Iq2S | Format::Iq3Xxs | Format::Iq3S => {
            vec![0]
        }
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => vec![0, 2],
        Format::Q2K => vec![80, 82],
        Format::Q3K => vec![108],
        Format::Q6K => vec![208],
        Format::Tq1_0 => vec![52],
        Format::Tq2_0 => vec![64],
        _ => Vec::new(),
    }
}
