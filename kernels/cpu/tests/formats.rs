//! Stored formats from outside: dequantization against a second derivation of the layouts, quantizers within their
//! steps, and bad lengths refused.

use baton_kernels_cpu::{Format, KernelError, Matrix, dequantize_row, quantize_row};
use half::f16;
use proptest::prelude::*;

/// Weight `i` of a block, one at a time and by index arithmetic alone, from the description of ggml's layouts:
/// shares no code with the crate.
fn weight(format: Format, block: &[u8], i: usize) -> f32 {
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    match format {
        Format::F32 => f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
        Format::F16 => half(0),
        Format::Q8_0 => half(0) * f32::from(block[2 + i] as i8),
        Format::Q4K => {
            // struct { half d, dmin; uint8 scales[12]; uint8 qs[128] }
            let group = i / 32;
            let packed = &block[4..16];
            let (scale, min) = if group < 4 {
                (packed[group] & 0b11_1111, packed[group + 4] & 0b11_1111)
            } else {
                let low = packed[group + 4];
                (low % 16 + packed[group - 4] / 64 * 16, low / 16 + packed[group] / 64 * 16)
            };
            let byte = block[16 + i / 64 * 32 + i % 32];
            let q = if i % 64 < 32 { byte % 16 } else { byte / 16 };
            half(0) * f32::from(scale) * f32::from(q) - half(2) * f32::from(min)
        }
        Format::Q6K => {
            // struct { uint8 ql[128], qh[64]; int8 scales[16]; half d }
            let (part, within) = (i / 128, i % 128);
            let low = block[part * 64 + within % 64] >> if within < 64 { 0 } else { 4 };
            let high = block[128 + part * 32 + within % 32] >> (within / 32 * 2);
            let q = i32::from(low & 15) + 16 * i32::from(high & 3) - 32;
            half(208) * f32::from(block[192 + i / 16] as i8) * q as f32
        }
        _ => unreachable!("a format without a second derivation"),
    }
}

fn reference(format: Format, row: &[u8]) -> Vec<f32> {
    row.chunks(format.block_bytes())
        .flat_map(|block| (0..format.block_len()).map(|i| weight(format, block, i)))
        .collect()
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn any_format() -> impl Strategy<Value = Format> {
    proptest::sample::select(Format::ALL.to_vec())
}

proptest! {
    #[test]
    fn dequantization_is_exact_on_any_bytes(
        format in any_format(),
        blocks in 1usize..4,
        noise in proptest::collection::vec(any::<u8>(), 3 * 210),
    ) {
        let row = &noise[..blocks * format.block_bytes()];
        let mut have = vec![0.0; blocks * format.block_len()];
        dequantize_row(format, row, &mut have).unwrap();
        for (i, (have, want)) in have.iter().zip(reference(format, row)).enumerate() {
            prop_assert!(same(*have, want), "{format:?} weight {i}: {have} is not {want}");
        }
    }

    #[test]
    fn quantizers_stay_within_their_steps(
        format in any_format(),
        size in 1e-3f32..1e3,
        shift in -1.0f32..1.0,
        unit in proptest::collection::vec(-1.0f32..1.0, 512),
    ) {
        let x: Vec<f32> = unit.iter().map(|v| (v + shift) * size).collect();
        let mut row = Vec::new();
        quantize_row(format, &x, &mut row).unwrap();
        prop_assert_eq!(row.len(), format.row_bytes(512).unwrap());
        let mut back = vec![0.0; 512];
        dequantize_row(format, &row, &mut back).unwrap();
        let largest = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        // Half a step of the coarsest group, widened by the rounding of scales to 6 or 8 bits and to halves.
        let bound = largest * match format {
            Format::F32 => 0.0,
            Format::F16 => 1.0 / 2_048.0,
            Format::Q8_0 => 0.6 / 127.0,
            Format::Q4K => 2.0 * (0.5 / 15.0 + 1.0 / 63.0),
            Format::Q6K => 0.5 / 31.0 + 1.0 / 127.0,
            _ => unreachable!("a format without a bound"),
        } + 1e-6;
        for (x, back) in x.iter().zip(&back) {
            prop_assert!((x - back).abs() <= bound, "{format:?}: {x} came back as {back}, bound {bound}");
        }
    }

    #[test]
    fn bad_lengths_are_refused(format in any_format(), cols in 0usize..600, extra in 1usize..9) {
        let mut dst = vec![0.0; cols];
        let x = vec![1.0; cols];
        match format.row_bytes(cols) {
            None => {
                let want = KernelError::PartialBlock { format, cols, block_len: format.block_len() };
                prop_assert_eq!(dequantize_row(format, &[], &mut dst).unwrap_err(), want.clone());
                prop_assert_eq!(quantize_row(format, &x, &mut Vec::new()).unwrap_err(), want.clone());
                prop_assert_eq!(Matrix::new(format, 1, cols, &[]).unwrap_err(), want);
            }
            Some(bytes) => {
                let have = bytes + extra;
                let data = vec![0; have];
                let refused = dequantize_row(format, &data, &mut dst).unwrap_err();
                prop_assert_eq!(refused, KernelError::Length { what: "row data", have, want: bytes });
                let refused = Matrix::new(format, 1, cols, &data).unwrap_err();
                prop_assert_eq!(refused, KernelError::Length { what: "matrix data", have, want: bytes });
                prop_assert!(Matrix::new(format, 1, cols, &data[..bytes]).is_ok());
            }
        }
    }
}

#[test]
fn faults_are_not_quantized() {
    let mut x = vec![0.5; 256];
    x[77] = f32::INFINITY;
    for format in [Format::Q8_0, Format::Q4K, Format::Q6K] {
        let refused = quantize_row(format, &x, &mut Vec::new()).unwrap_err();
        assert_eq!(refused, KernelError::NotFinite { format, index: 77 });
    }
    let mut row = Vec::new();
    quantize_row(Format::F16, &x, &mut row).unwrap();
    assert_eq!(row[154..156], [0x00, 0x7c]);
}

#[test]
fn constant_and_zero_rows_come_back() {
    for format in Format::ALL {
        for value in [0.0f32, 1.0, -1.0] {
            let mut row = Vec::new();
            quantize_row(format, &[value; 256], &mut row).unwrap();
            let mut back = [f32::NAN; 256];
            dequantize_row(format, &row, &mut back).unwrap();
            assert!(back.iter().all(|v| (v - value).abs() <= 0.02), "{format:?} of {value}: {}", back[0]);
        }
    }
}

#[test]
fn q8_0_bytes_are_those_of_the_reference() {
    // Scale 1 (1.0 x 127 / 127), so the bytes are the values rounded half away from zero.
    let mut x = [0.0f32; 32];
    x[..6].copy_from_slice(&[127.0, -127.0, 0.5, -0.5, 2.4, -2.6]);
    let mut row = Vec::new();
    quantize_row(Format::Q8_0, &x, &mut row).unwrap();
    assert_eq!(row[..8], [0x00, 0x3c, 127, 0x81, 1, 0xff, 2, 0xfd]);
    assert!(row[8..].iter().all(|&b| b == 0));
}
