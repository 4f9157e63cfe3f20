//! Cases of matrix products, and of the rounding of their activations.

use baton_kernels_cpu::matmul::matmul_at;
use baton_kernels_cpu::{Activations, Dispatch, Format, Matrix, Pool};

use super::altered::Altered;
use super::blocks::weights;
use super::probe::Probe;
use super::words::{Rounded, floats, rounded, word};
use crate::device::{Buffer, Launch};
use crate::kernel::{Kernel, TOKENS_EACH};
use crate::matrix::{DeviceMatrix, Quantized};
use crate::ops::{self, Input, TILED_TOKENS_MIN};

/// The most multiplications of one case.
const WORK_MAX: usize = 600_000;

/// The variant of a product that is tried.
#[derive(Clone, Copy)]
enum Variant {
    /// One workgroup for so many tokens.
    Vector(u32),
    /// Tiles.
    Tiled,
}

impl Variant {
    /// Token counts for which [`ops::matmul`] chooses it, and one for which it does not.
    fn tokens(self, tile: u32) -> Vec<usize> {
        match self {
            Self::Vector(1) => vec![1, 3],
            Self::Vector(_) => vec![2, 3, 4, 5, 7, 15, 17, 1],
            Self::Tiled => {
                let edges = Probe::edges(tile).into_iter().filter(|t| *t <= 67);
                let mut all: Vec<usize> = edges.chain([16, 17, 33, 65, 1]).collect();
                all.sort_unstable();
                all.dedup();
                all
            }
        }
    }

    /// Whether [`ops::matmul`] chooses it for `t` tokens.
    fn is_chosen(self, t: usize) -> bool {
        match self {
            Self::Vector(1) => t == 1,
            Self::Vector(_) => (2..TILED_TOKENS_MIN).contains(&t),
            Self::Tiled => t >= TILED_TOKENS_MIN,
        }
    }
}

/// A matrix and activation rows, and their product by definition.
struct Case {
    format: Format,
    rows: usize,
    cols: usize,
    t: usize,
    data: Vec<u8>,
    x: Vec<f32>,
    want: Vec<f32>,
}

impl Case {
    fn new(
        probe: &mut Probe<'_>,
        format: Format,
        (rows, cols, t): (usize, usize, usize),
        wild: bool,
    ) -> Self {
        probe.shape(format!(
            "{rows} rows of {cols}, {t} tokens{}",
            if wild { ", arbitrary blocks" } else { "" }
        ));
        let data = weights(&mut probe.random, format, (rows, cols), wild);
        let mut x = probe.numbers(t * cols, 2.0);
        if t > 2 {
            // A fault in one row, and a row of zeros.
            x[cols + cols / 2] = f32::NAN;
            x[2 * cols..3 * cols].fill(0.0);
        }
        let mut case = Self { format, rows, cols, t, data, x, want: vec![0.0; t * rows] };
        let activations = Activations::new(&case.x, cols);
        let w = Matrix::new(format, rows, cols, &case.data).expect("rows of whole blocks");
        matmul_at(Dispatch::Scalar, &Pool::single(), &w, &activations, &mut case.want);
        assert!(
            t < 3 || case.want[rows..2 * rows].iter().all(|y| y.is_nan()),
            "a fault shows in each output"
        );
        case
    }

    /// Multiplies on the device, by the variant.
    fn run(&self, probe: &Probe<'_>, variant: Variant) -> Vec<f32> {
        let w = Matrix::new(self.format, self.rows, self.cols, &self.data).expect("as above");
        let w = DeviceMatrix::new(probe.device, &w);
        let out = probe.blank(self.t * self.rows);
        if self.format.block_len() == 1 {
            let x = probe.place(&self.x);
            multiply(probe, variant, &w, Input::Floats(&x), self.t, &out);
        } else {
            let x = place_rounded(probe, &rounded(&self.x, self.format.block_len()));
            multiply(probe, variant, &w, Input::Quantized(&x), self.t, &out);
        }
        probe.read(&out, self.want.len())
    }
}

/// Copies rounded activations to the device, as [`Kernel::Quantize`] lays them out.
pub(super) fn place_rounded(probe: &Probe<'_>, x: &Rounded) -> Quantized {
    let words = |four: &[i8]| u32::from_le_bytes([0, 1, 2, 3].map(|i| four[i] as u8));
    let q: Vec<u32> = x.q.chunks_exact(4).map(words).collect();
    let sums: Vec<u32> = x.sums.iter().map(|sum| *sum as u32).collect();
    Quantized { q: probe.place_words(&q), scale: probe.place(&x.scale), sums: probe.place_words(&sums) }
}

/// Launches the variant: by [`ops::matmul`] if that chooses it, else directly.
fn multiply(probe: &Probe<'_>, variant: Variant, w: &DeviceMatrix, x: Input<'_>, t: usize, out: &Buffer) {
    if variant.is_chosen(t) {
        return ops::matmul(probe.device, w, x, t, out);
    }
    let tiles = probe.device.tiles();
    for chunk in &w.chunks {
        let (rows, t) = (chunk.rows as u32, t as u32);
        let params = &[rows, w.cols as u32, t, chunk.first as u32, w.rows as u32];
        let groups = match variant {
            Variant::Vector(tokens) => [rows.div_ceil(tiles.matvec_rows), 1, t.div_ceil(tokens)],
            Variant::Tiled => [t.div_ceil(tiles.matmul_tokens), rows.div_ceil(tiles.matmul_rows), 1],
        };
        let kernel = probe.kernel;
        match x {
            Input::Quantized(Quantized { q, scale, sums }) => {
                let buffers = &[&chunk.buffer, q, scale, sums, out];
                probe.device.launch(&Launch { kernel, groups, params, buffers });
            }
            Input::Floats(x) => {
                let buffers = &[&chunk.buffer, x, out];
                probe.device.launch(&Launch { kernel, groups, params, buffers });
            }
        }
    }
}

/// Columns that have every tail of a format, the longest last.
fn widths(format: Format) -> Vec<usize> {
    match format.block_len() {
        1 => vec![1, 31, 32, 33, 63, 64, 100, 257, 4096 + 33],
        32 => vec![32, 64, 96, 7 * 32, 4096 + 32],
        _ => [1, 2, 3, 11].map(|blocks| blocks * 256).to_vec(),
    }
}

/// All cases of a product.
pub(super) fn check(probe: &mut Probe<'_>) {
    let tiles = probe.device.tiles();
    let (format, variant) = match probe.kernel {
        Kernel::MatVec { format, tokens } | Kernel::MatVecFloat { format, tokens } => {
            (format, Variant::Vector(tokens))
        }
        Kernel::MatMul { format } | Kernel::MatMulFloat { format } => (format, Variant::Tiled),
        kernel => unreachable!("{} is not a product", kernel.name()),
    };
    let tile = if matches!(variant, Variant::Tiled) { tiles.matmul_rows } else { tiles.matvec_rows };
    let (mut rows, mut cols) = (Probe::edges(tile), widths(format));
    let mut tokens = variant.tokens(tiles.matmul_tokens);
    for wild in [false, true] {
        probe.random.shuffle(&mut rows);
        probe.random.shuffle(&mut cols);
        probe.random.shuffle(&mut tokens);
        for i in 0..rows.len().max(cols.len()).max(tokens.len()) {
            let (mut rows, cols, t) = (rows[i % rows.len()], cols[i % cols.len()], tokens[i % tokens.len()]);
            while rows > 1 && rows * cols * t > WORK_MAX {
                rows = rows.div_ceil(2);
            }
            let case = Case::new(probe, format, (rows, cols, t), wild);
            probe.equal("out", &case.run(probe, variant), &case.want);
        }
    }
    check_chunks(probe, format, variant, tile as usize);
    check_alone(probe, format, variant);
}

/// A matrix in several buffers, and a flat grid in two dimensions.
fn check_chunks(probe: &mut Probe<'_>, format: Format, variant: Variant, tile: usize) {
    let cols = 3 * format.block_len();
    let t = match variant {
        Variant::Vector(tokens) => tokens as usize,
        Variant::Tiled => TILED_TOKENS_MIN,
    };
    let case = Case::new(probe, format, (2 * tile + 3, cols, t), true);
    let row_bytes = format.row_bytes(cols).expect("whole blocks");
    for rows in [tile / 2 + 1, tile + 1] {
        let device = Altered::new(probe.device, (rows * row_bytes + 3) as u64);
        let mut part = probe.on(&device);
        part.shape(format!("{} rows of {cols}, {t} tokens, in buffers of {rows} rows", case.rows));
        part.equal("out", &case.run(&part, variant), &case.want);
    }
}

/// A row among others and the same row alone.
fn check_alone(probe: &mut Probe<'_>, format: Format, variant: Variant) {
    let (rows, cols, t) = (5, 2 * format.block_len().max(17), 6);
    let mut all = Case::new(probe, format, (rows, cols, t), false);
    let together = all.run(probe, variant);
    let x = std::mem::take(&mut all.x);
    for (i, x) in x.chunks(cols).enumerate() {
        let one = Case { t: 1, x: x.to_vec(), want: vec![0.0; rows], data: all.data.clone(), ..all };
        for other in [Variant::Vector(TOKENS_EACH[0]), variant] {
            // Another variant is another kernel.
            let is_float = format.block_len() == 1;
            let kernel = match other {
                Variant::Vector(tokens) if is_float => Kernel::MatVecFloat { format, tokens },
                Variant::Vector(tokens) => Kernel::MatVec { format, tokens },
                Variant::Tiled => probe.kernel,
            };
            let mut alone = Probe::new(probe.device, kernel);
            alone.shape(format!("token {i} of {t} alone, {rows} rows of {cols}"));
            alone.equal("out", &one.run(&alone, other), &together[i * rows..(i + 1) * rows]);
        }
    }
}

/// All cases of the rounding of activations. Bytes and scales are those of the definition. On a device whose
/// division is not exact, scales may differ by 3e-7 of them, and one byte in a thousand by 1.
pub(super) fn check_rounding(probe: &mut Probe<'_>, block: usize) {
    let (mut differing, mut total) = (0, 0);
    for n in [1, 2, 3, 7, 33, 200] {
        for flat in [true, false] {
            let mut x = Vec::new();
            for i in 0..n {
                let size = [1.0, 1e-4, 3e4, 7.5][i % 4];
                x.extend(probe.numbers(block, size));
            }
            special_blocks(&mut x, block);
            let altered = Altered::new(probe.device, u64::MAX);
            let mut part = probe.on(if flat { probe.device } else { &altered });
            part.shape(format!("{n} blocks"));
            differing += rounding(&part, &x, block);
            total += x.len();
        }
    }
    let allowed = total / 1000;
    assert!(differing <= allowed, "quantize_{block}: {differing} of {total} bytes differ; at most {allowed}");
}

/// Puts ties, zeros, specks and faults in the blocks after the second.
fn special_blocks(x: &mut [f32], block: usize) {
    for (i, x) in x.chunks_exact_mut(block).skip(2).enumerate() {
        match i {
            0 => x.fill(0.0),
            1 => {
                x[0] = -127.0;
                x[1..9].copy_from_slice(&[0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -0.0, 126.5]);
            }
            2 => x[block - 1] = f32::NAN,
            3 => x[block / 2] = f32::NEG_INFINITY,
            4 => x.fill(9e-31),
            _ => {}
        }
    }
}

/// Rounds on the device; returns the number of bytes that are not those of the definition.
fn rounding(probe: &Probe<'_>, x: &[f32], block: usize) -> usize {
    let (n, want) = (x.len() / block, rounded(x, block));
    let got = ops::quantize(probe.device, &probe.place(x), x.len() / block, block, block);
    let read = |buffer: &Buffer, words: usize| {
        let mut bytes = vec![0; 4 * words];
        let result = probe.device.read(buffer, 0, &mut bytes);
        assert_eq!(result, Ok(()), "{}", probe.kernel.name());
        bytes
    };
    let (q, scale, sums) = (read(&got.q, x.len() / 4), read(&got.scale, n), read(&got.sums, x.len() / 16));
    let scale = floats(&scale, 0..n);
    for (i, (got, want)) in scale.iter().zip(&want.scale).enumerate() {
        if (got - want).abs() > 3e-7 * want || got.is_nan() != want.is_nan() {
            probe.fail("scale", i, *got, *want, "");
        }
    }
    let mut differing = 0;
    for (i, (got, want)) in q.iter().zip(&want.q).enumerate() {
        let (got, want) = (*got as i8, *want);
        if i32::from(got).abs_diff(want.into()) > 1 {
            probe.fail("q", i, got.into(), want.into(), "");
        }
        differing += usize::from(got != want);
    }
    for (i, sixteen) in q.chunks_exact(16).enumerate() {
        let want: i32 = sixteen.iter().map(|q| i32::from(*q as i8)).sum();
        let got = word(&sums, i) as i32;
        if got != want {
            probe.fail("sums", i, got as f32, want as f32, "");
        }
    }
    differing
}
