//! Matrix products: levels against the definition, the definition against `f64`, and invariance.

use super::*;
use crate::blocks::make_finite;
use crate::{Format, quantize_row};

/// A deterministic stream of floats in -1..1.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn row(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.next()).collect()
    }
}

fn weights(noise: &mut Noise, format: Format, rows: usize, cols: usize) -> Vec<u8> {
    let mut data = Vec::new();
    for _ in 0..rows {
        quantize_row(format, &noise.row(cols), &mut data).unwrap();
    }
    data
}

/// Valid blocks of arbitrary bytes, with extremes of every field; only the scales are made finite.
fn wild_weights(noise: &mut Noise, format: Format, rows: usize, cols: usize) -> Vec<u8> {
    let bytes = rows * format.row_bytes(cols).unwrap();
    let mut data: Vec<u8> = (0..bytes).map(|_| (noise.next() * 8_388_608.0) as i32 as u8).collect();
    if format.block_len() == 1 {
        return weights(noise, format, rows, cols);
    }
    for block in data.chunks_mut(format.block_bytes()) {
        make_finite(format, block);
    }
    data
}

fn levels() -> impl Iterator<Item = Dispatch> {
    Dispatch::ALL.into_iter().filter(|level| level.is_available())
}

fn product(level: Dispatch, w: &Matrix<'_>, x: &[f32]) -> Vec<f32> {
    product_on(&Pool::single(), level, w, x)
}

fn product_on(pool: &Pool, level: Dispatch, w: &Matrix<'_>, x: &[f32]) -> Vec<f32> {
    let x = Activations::new(x, w.cols());
    let mut out = vec![f32::NAN; x.rows() * w.rows()];
    matmul_at(level, pool, w, &x, &mut out);
    out
}

fn threads_of(threads: usize) -> Pool {
    Pool::new(std::num::NonZeroUsize::new(threads).unwrap()).unwrap()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// Columns that exercise every tail of a format.
fn widths(format: Format) -> Vec<usize> {
    match format.block_len() {
        1 => (1..=70).chain([256, 1_000]).collect(),
        32 => (1..=9).map(|b| b * 32).collect(),
        _ => vec![256, 512, 768, 2_048],
    }
}

#[test]
fn every_level_equals_the_definition_at_every_tail() {
    let mut noise = Noise(1);
    for format in Format::ALL {
        for cols in widths(format) {
            for (rows, tokens) in [
                (1, 1),
                (15, 2),
                (16, 3),
                (47, 4),
                (33, 5),
                (17, 7),
                (20, 8),
                (33, 13),
                (48, 1),
                (65, 6),
                (3, 32),
                (17, 37),
                (64, 49),
                (39, 65),
            ] {
                let data = wild_weights(&mut noise, format, rows, cols);
                let w = Matrix::new(format, rows, cols, &data).unwrap();
                let x = noise.row(tokens * cols);
                let want = bits(&product(Dispatch::Scalar, &w, &x));
                for level in levels() {
                    let have = bits(&product(level, &w, &x));
                    assert_eq!(have, want, "{level:?} {format:?} [{rows}, {cols}] x {tokens}");
                }
            }
        }
    }
}

#[test]
fn the_definition_is_near_exact_arithmetic() {
    let mut noise = Noise(2);
    for format in Format::ALL {
        let (rows, cols, tokens) = (9, 1_024, 5);
        let data = weights(&mut noise, format, rows, cols);
        let w = Matrix::new(format, rows, cols, &data).unwrap();
        let x = noise.row(tokens * cols);
        let out = product(Dispatch::Scalar, &w, &x);
        let mut floats = vec![0.0; cols];
        for row in 0..rows {
            w.dequantize_row(row, &mut floats).unwrap();
            for t in 0..tokens {
                let pairs = || floats.iter().zip(&x[t * cols..]).map(|(w, x)| (f64::from(*w), f64::from(*x)));
                let exact: f64 = pairs().map(|(w, x)| w * x).sum();
                let size: f64 = pairs().map(|(w, x)| (w * x).abs()).sum();
                // Float rows: the rounding of at most 32 + cols / 32 additions. Byte rows: each weight sees
                // half a step of 1/127 of the block's largest activation (at most 1).
                let steps = f64::from(32 + cols as u32 / 32) * f64::from(f32::EPSILON) * size;
                let weight_sum: f64 = floats.iter().map(|w| f64::from(w.abs())).sum();
                let bound = if format.block_len() == 1 { steps } else { steps + weight_sum / 254.0 };
                let error = (f64::from(out[t * rows + row]) - exact).abs();
                assert!(error <= bound, "{format:?}: error {error} above {bound}");
            }
        }
    }
}

#[test]
fn every_level_equals_the_definition_at_extremes() {
    let mut noise = Noise(7);
    for format in Format::ALL.into_iter().filter(|format| format.block_len() == 32) {
        for (scale, size) in [([0x00, 0x7c], 1.0), ([0x01, 0x80], 1e-29), ([0x01, 0x80], 1e-36)] {
            let mut data = wild_weights(&mut noise, format, 33, 96);
            for block in data.chunks_mut(format.block_bytes()).step_by(2) {
                block[..2].copy_from_slice(&scale);
            }
            let w = Matrix::new(format, 33, 96, &data).unwrap();
            let x: Vec<f32> = noise.row(40 * 96).iter().map(|v| v * size).collect();
            // Which NaN it is does not matter.
            let want = product(Dispatch::Scalar, &w, &x);
            for level in levels() {
                let have = product(level, &w, &x);
                for (have, want) in have.iter().zip(&want) {
                    assert!(
                        have.to_bits() == want.to_bits() || have.is_nan() && want.is_nan(),
                        "{level:?} {format:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn batch_and_threads_change_no_bit() {
    let mut noise = Noise(3);
    for format in Format::ALL {
        for (rows, cols, tokens) in [(200, 512, 130), (1_000, 256, 7)] {
            let data = weights(&mut noise, format, rows, cols);
            let w = Matrix::new(format, rows, cols, &data).unwrap();
            let x = noise.row(tokens * cols);
            let alone: Vec<f32> = x.chunks(cols).flat_map(|row| product(Dispatch::best(), &w, row)).collect();
            for threads in [1, 2, 3, 5] {
                let together = product_on(&threads_of(threads), Dispatch::best(), &w, &x);
                assert_eq!(bits(&together), bits(&alone), "{format:?}, {threads} threads");
            }
        }
    }
}

#[test]
fn repacking_changes_no_bit() {
    let mut noise = Noise(6);
    for format in Format::ALL {
        for (rows, tokens) in [(16, 1), (37, 2), (50, 4), (40, 7), (50, 9)] {
            let data = wild_weights(&mut noise, format, rows, 512);
            let w = Matrix::new(format, rows, 512, &data).unwrap();
            let repacked = w.repack();
            let beside = Matrix::repacked(format, rows, 512, &repacked).unwrap();
            let x = noise.row(tokens * 512);
            for level in levels() {
                let (have, want) = (product(level, &beside, &x), product(level, &w, &x));
                assert_eq!(bits(&have), bits(&want), "{level:?} {format:?} {rows} x {tokens}");
            }
            let (mut have, mut want) = (vec![0.0; 512], vec![0.0; 512]);
            beside.dequantize_row(rows - 1, &mut have).unwrap();
            w.dequantize_row(rows - 1, &mut want).unwrap();
            assert_eq!(bits(&have), bits(&want));
        }
    }
}

#[test]
fn tasks_cover_the_output_once() {
    for threads in [1, 2, 7] {
        for (rows, tokens, cols) in
            [(1, 1, 32), (31, 500, 4_096), (33, 65, 4_096), (5_000, 1, 512), (256, 512, 256)]
        {
            for group in [1, 12, 32] {
                let total = Tasks::cost(rows, cols, tokens);
                let tasks = Tasks::split(threads, (rows, cols, tokens), total, group);
                let mut seen = vec![0u8; rows * tokens];
                for i in 0..tasks.count() {
                    let (r, t) = tasks.get(i);
                    assert!(!r.is_empty() && !t.is_empty() && r.start.is_multiple_of(UNIT));
                    assert!(t.start.is_multiple_of(group));
                    for t in t {
                        for r in r.clone() {
                            seen[t * rows + r] += 1;
                        }
                    }
                }
                assert!(seen.iter().all(|&n| n == 1), "{rows} x {tokens} on {threads} threads, by {group}");
            }
        }
    }
}

#[test]
fn a_fault_in_one_token_stays_there() {
    let mut noise = Noise(4);
    for format in Format::ALL {
        let data = weights(&mut noise, format, 20, 256);
        let w = Matrix::new(format, 20, 256, &data).unwrap();
        let mut x = noise.row(4 * 256);
        x[256 + 9] = f32::NAN;
        for level in levels() {
            let out = product(level, &w, &x);
            for (i, v) in out.iter().enumerate() {
                assert_eq!(v.is_nan(), i / 20 == 1, "{level:?} {format:?} element {i}");
            }
        }
    }
}

#[test]
fn products_of_one_job_equal_products_of_their_own() {
    let mut noise = Noise(5);
    // The products in turn have activations of their own, with other numbers of rows.
    let x = [9, 2].map(|t| noise.row(t * 512));
    let x = x.each_ref().map(|x| Activations::new(x, 512));
    let shapes = [(64, Format::Q8_0), (7, Format::Q4K), (300, Format::Q6K), (33, Format::F16)];
    let data: Vec<Vec<u8>> =
        shapes.iter().map(|(rows, format)| weights(&mut noise, *format, *rows, 512)).collect();
    let matrices: Vec<Matrix<'_>> = shapes
        .iter()
        .zip(&data)
        .map(|((rows, format), data)| Matrix::new(*format, *rows, 512, data).unwrap())
        .collect();
    let of = |i: usize| &x[i % 2];
    let mut outs: Vec<Vec<f32>> =
        shapes.iter().enumerate().map(|(i, (rows, _))| vec![f32::NAN; of(i).rows() * rows]).collect();
    let products = matrices.iter().zip(&mut outs).enumerate();
    let products =
        products.map(|(i, (w, out))| RowsInto { x: of(i), w: *w, first: 0, rows: w.rows(), out }).collect();
    matmul_rows(&threads_of(3), products);
    for (i, (w, out)) in matrices.iter().zip(&outs).enumerate() {
        assert_eq!(bits(out), bits(&product(Dispatch::best(), w, of(i).as_slice())), "{:?}", w.format());
    }
}

#[test]
fn products_with_some_rows_at_a_time_equal_the_product_with_all() {
    let mut noise = Noise(6);
    for (format, cuts) in
        [(Format::Q4K, &[0, 1, 33, 100][..]), (Format::Q8_0, &[0, 48, 100]), (Format::F16, &[0, 100])]
    {
        let data = weights(&mut noise, format, 100, 512);
        let row_bytes = data.len() / 100;
        let w = Matrix::new(format, 100, 512, &data).unwrap();
        for tokens in [1, 2, 5, 9, 70] {
            let x = noise.row(tokens * 512);
            let want = product(Dispatch::current(), &w, &x);
            let mut out = vec![f32::NAN; tokens * 100];
            // The last rows come first: the order of the parts must not matter.
            for cut in cuts.windows(2).rev() {
                let bytes = &data[cut[0] * row_bytes..cut[1] * row_bytes];
                let some = Matrix::new(format, cut[1] - cut[0], 512, bytes).unwrap();
                let x = Activations::new(&x, 512);
                let into = RowsInto { x: &x, w: some, first: cut[0], rows: 100, out: &mut out };
                matmul_rows(&threads_of(2), vec![into]);
            }
            assert_eq!(bits(&out), bits(&want), "{format:?}, {tokens} tokens, cut at {cuts:?}");
        }
    }
}

#[test]
#[should_panic(expected = "rows from 5 on, 4 of them, in an output of 8")]
fn rows_outside_of_the_output_are_refused() {
    let data = [0; 4 * 34];
    let w = Matrix::new(Format::Q8_0, 4, 32, &data).unwrap();
    let (x, mut out) = ([0.0; 32], [0.0; 8]);
    let x = Activations::new(&x, 32);
    let into = RowsInto { x: &x, w, first: 5, rows: 8, out: &mut out };
    matmul_rows(&Pool::single(), vec![into]);
}
