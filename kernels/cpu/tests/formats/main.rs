//! Stored formats from outside: dequantization is checked against a second derivation of the layouts and
//! against recorded vectors. Quantizers must stay within their steps, and bad lengths are refused.

mod layouts;
mod recorded;

use baton_kernels_cpu::{Format, KernelError, Matrix, dequantize_row, quantize_row};
use proptest::prelude::*;

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn any_format() -> impl Strategy<Value = Format> {
    proptest::sample::select(Format::ALL.to_vec())
}

/// Returns the largest error of a quantized value, in units of the row's largest magnitude. It is half a step
/// of the coarsest group, or the whole step by which one end of the range falls short. The rounding of scales
/// and minima is added.
fn error_max(format: Format) -> f32 {
    match format {
        Format::F32 => 0.0,
        Format::F16 => 1.0 / 2_048.0,
        Format::Bf16 => 1.0 / 256.0,
        Format::Q4_0 => 1.0 / 8.0 + 0.001,
        Format::Q4_1 => 1.0 / 15.0 + 0.003,
        Format::Q5_0 => 1.0 / 16.0 + 0.001,
        Format::Q5_1 => 1.0 / 31.0 + 0.003,
        Format::Q8_0 => 0.6 / 127.0,
        Format::Q2K => 2.0 * (0.5 / 3.0 + 1.0 / 15.0),
        Format::Q3K => 1.0 / 4.0 + 1.0 / 32.0,
        Format::Q4K => 2.0 * (0.5 / 15.0 + 1.0 / 63.0),
        Format::Q5K => 2.0 * (0.5 / 31.0 + 1.0 / 63.0),
        Format::Q6K => 0.5 / 31.0 + 1.0 / 127.0,
        Format::Iq4Nl => 0.2,
        Format::Iq4Xs => 14.0 / 127.0 + 1.0 / 32.0,
        Format::Tq1_0 | Format::Tq2_0 => 0.501,
        Format::Mxfp4 => 0.251,
        // Small values beside large ones may take the wrong sign; instead, the energy of the error is
        // bounded.
        Format::Iq1S | Format::Iq1M | Format::Iq2Xxs | Format::Iq2Xs | Format::Iq2S => 2.5,
        Format::Iq3Xxs | Format::Iq3S => 2.5,
        _ => unreachable!("a format without a bound"),
    }
}

/// `|x - back| / |x|`.
fn relative_error(x: &[f32], back: &[f32]) -> f64 {
    let error: f64 = x.iter().zip(back).map(|(x, back)| f64::from(x - back).powi(2)).sum();
    let signal: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
    if error == 0.0 { 0.0 } else { (error / signal).sqrt() }
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
        for (i, (have, want)) in have.iter().zip(layouts::row(format, row)).enumerate() {
            prop_assert!(same(*have, want), "{format:?} weight {i}: {have} is not {want}");
        }
    }

    #[test]
    fn quantizers_stay_within_their_steps(
        format in any_format(),
        size in 1e-2f32..1e3,
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
        let bound = largest * error_max(format) + 1e-6;
        for (x, back) in x.iter().zip(&back) {
            prop_assert!((x - back).abs() <= bound, "{format:?}: {x} came back as {back}, bound {bound}");
        }
        let relative = relative_error(&x, &back);
        prop_assert!(relative <= 1.01, "{format:?}: relative error {relative}");
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
    for format in Format::ALL.into_iter().filter(|format| format.block_len() > 1) {
        let refused = quantize_row(format, &x, &mut Vec::new()).unwrap_err();
        assert_eq!(refused, KernelError::NotFinite { format, index: 77 });
    }
    let mut row = Vec::new();
    quantize_row(Format::F16, &x, &mut row).unwrap();
    assert_eq!(row[154..156], [0x00, 0x7c]);
}

#[test]
fn quantizers_keep_most_of_the_signal() {
    // Nearly normal noise: sums of four uniform numbers.
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let x: Vec<f32> = (0..16_384).map(|_| next() + next() + next() + next()).collect();
    for format in Format::ALL {
        let mut row = Vec::new();
        quantize_row(format, &x, &mut row).unwrap();
        let mut back = vec![0.0; x.len()];
        dequantize_row(format, &row, &mut back).unwrap();
        let relative = relative_error(&x, &back);
        let bound = match format {
            Format::F32 => 0.0,
            Format::F16 => 0.000_25,
            Format::Bf16 => 0.001_8,
            Format::Q8_0 => 0.005_3,
            Format::Q6K => 0.019_5,
            Format::Q5_0 => 0.042,
            Format::Q5_1 | Format::Q5K => 0.038,
            Format::Q4_0 => 0.084,
            Format::Q4_1 | Format::Q4K => 0.077,
            Format::Iq4Nl | Format::Iq4Xs => 0.08,
            Format::Q3K => 0.156,
            Format::Q2K => 0.33,
            Format::Iq1M => 0.46,
            Format::Iq1S => 0.51,
            Format::Iq2Xxs => 0.4,
            Format::Iq2Xs => 0.34,
            Format::Iq2S => 0.29,
            Format::Iq3Xxs => 0.225,
            Format::Iq3S => 0.156,
            Format::Tq1_0 | Format::Tq2_0 => 0.79,
            Format::Mxfp4 => 0.115,
            _ => unreachable!("a format without a bound"),
        };
        assert!(relative <= bound, "{format:?}: relative error {relative} above {bound}");
    }
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
fn exponents_of_mxfp4_are_those_of_ggml() {
    // Scales of the doubled values: two subnormal ones, then powers of two up to the last code.
    for (e, want) in [(0, 2f32.powi(-128)), (1, 2f32.powi(-127)), (128, 1.0), (255, 2f32.powi(127))] {
        let mut block = [0; 17];
        (block[0], block[1]) = (e, 0xf1);
        let mut back = [f32::NAN; 32];
        dequantize_row(Format::Mxfp4, &block, &mut back).unwrap();
        // The values 1 and -12; the last one exceeds the floats.
        assert_eq!((back[0], back[16], back[1]), (want, -12.0 * want, 0.0), "exponent {e}");
    }
    for (largest, e) in [(1.0, 125), (6.0, 127), (0.0, 0), (1e-45, 0), (f32::MAX, 252)] {
        let mut x = [0.0f32; 32];
        x[3] = -largest;
        let mut row = Vec::new();
        quantize_row(Format::Mxfp4, &x, &mut row).unwrap();
        assert_eq!(row[0], e, "the exponent of {largest}");
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
