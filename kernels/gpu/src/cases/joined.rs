//! Cases of the kernels that join others: their results are those of the others, one after the other.

use baton_kernels_cpu::{Format, Matrix, RopeStyle};

use super::blocks::weights;
use super::cache;
use super::numbers::{on_both, vectors};
use super::probe::Probe;
use super::products::place_rounded;
use super::words::rounded;
use crate::device::Buffer;
use crate::kernel::{JoinedAs, Kernel, ZipOp};
use crate::matrix::{DeviceMatrix, Quantized};
use crate::ops::{self, Input};

/// Runs all cases of a kernel of this module, also with flat grids in three rows.
///
/// # Panics
/// If it is another kernel, or a result is not the expected one.
pub(super) fn check(probe: &mut Probe<'_>) {
    on_both(probe, |probe| match probe.kernel {
        Kernel::MatVecJoined { format, tokens, how } => check_products(probe, format, tokens as usize, how),
        Kernel::NormRounded { block } => check_norms(probe, block as usize),
        Kernel::RopeAppend(style) => check_rope(probe, style),
        kernel => unreachable!("{} joins nothing", kernel.name()),
    });
}

fn check_products(probe: &mut Probe<'_>, format: Format, tokens: usize, how: JoinedAs) {
    let (tile, block) = (probe.device.tiles().matvec_rows as usize, format.block_len());
    let counts = if tokens == 1 { vec![1] } else { vec![2, tokens, tokens + 1] };
    let shapes = [[tile + 1, 1, 2 * tile], [1, tile, tile - 1], [3 * tile + 2, tile + 3, 0]];
    for (i, rows) in shapes.into_iter().enumerate() {
        let (t, cols) = (counts[i % counts.len()], [1, 4, 19][i] * block);
        probe.shape(format!("{rows:?} rows of {cols}, {t} tokens"));
        let x = probe.numbers(t * cols, 2.0);
        let x = place_rounded(probe, &rounded(&x, block));
        match how {
            JoinedAs::Apart => apart(probe, format, &rows[..if rows[2] == 0 { 2 } else { 3 }], cols, (&x, t)),
            JoinedAs::Added => added(probe, format, (rows[0], cols), (&x, t)),
            JoinedAs::Gated(op) => gated(probe, format, (rows[0], cols), (&x, t), op),
        }
    }
}

/// Makes a matrix on the device.
fn matrix(probe: &mut Probe<'_>, format: Format, rows: usize, cols: usize) -> DeviceMatrix {
    let data = weights(&mut probe.random, format, (rows, cols), false);
    DeviceMatrix::new(probe.device, &Matrix::new(format, rows, cols, &data).expect("rows of whole blocks"))
}

/// Multiplies by the kernels that are not joined, which have cases of their own.
fn product(probe: &Probe<'_>, w: &DeviceMatrix, (x, t): (&Quantized, usize)) -> (Buffer, Vec<f32>) {
    let out = probe.blank(t * w.rows());
    ops::matmul(probe.device, w, Input::Quantized(x), t, &out);
    let numbers = probe.read(&out, t * w.rows());
    (out, numbers)
}

fn apart(probe: &mut Probe<'_>, format: Format, rows: &[usize], cols: usize, x: (&Quantized, usize)) {
    let matrices: Vec<DeviceMatrix> = rows.iter().map(|rows| matrix(probe, format, *rows, cols)).collect();
    let outputs: Vec<Buffer> = rows.iter().map(|rows| probe.blank(x.1 * rows)).collect();
    let into: Vec<(&DeviceMatrix, &Buffer)> = matrices.iter().zip(&outputs).collect();
    ops::matmul_apart(probe.device, &into, x.0, x.1);
    for (w, out) in into {
        probe.holds("out", out, &product(probe, w, x).1);
    }
}

fn added(probe: &mut Probe<'_>, format: Format, (rows, cols): (usize, usize), x: (&Quantized, usize)) {
    let w = matrix(probe, format, rows, cols);
    let before = probe.numbers(x.1 * rows, 5.0);
    let out = probe.place(&before);
    ops::matmul_added(probe.device, &w, x.0, x.1, &out);
    let want: Vec<f32> = product(probe, &w, x).1.iter().zip(&before).map(|(y, x)| x + y).collect();
    probe.holds("out", &out, &want);
}

fn gated(
    probe: &mut Probe<'_>,
    format: Format,
    (rows, cols): (usize, usize),
    x: (&Quantized, usize),
    op: ZipOp,
) {
    let [gate, up] = [(); 2].map(|()| matrix(probe, format, rows, cols));
    let out = probe.blank(x.1 * rows);
    ops::matmul_gated(probe.device, op, (&gate, &up), x, &out);
    let ((want, n), other) = ((product(probe, &gate, x).0, x.1 * rows), product(probe, &up, x).0);
    ops::zip(probe.device, op, &want, &other, n);
    let want = probe.read(&want, n);
    probe.holds("out", &out, &want);
}

fn check_norms(probe: &mut Probe<'_>, block: usize) {
    for (i, blocks) in [1, 2, 3, 7, 16, 33].into_iter().enumerate() {
        let (n, width, eps) = ([1, 4, 3][i % 3], blocks * block, [1e-5, 1e-6][i % 2]);
        probe.shape(format!("{n} vectors of {width}"));
        let x = vectors(probe, n, width);
        let weight = probe.numbers(width, 1.5);
        let (x, weight, out) = (probe.place(&x), probe.place(&weight), probe.blank(n * width));
        let got = ops::norm_rounded(probe.device, &x, (&weight, width), eps, n, (&out, block));
        let apart = probe.blank(n * width);
        ops::rms_norm(probe.device, &x, (&weight, width), eps, n, &apart);
        let want = ops::quantize(probe.device, &apart, n, width, block);
        probe.holds("out", &out, &probe.read(&apart, n * width));
        let words = [n * width / 4, n * blocks, n * width / 16];
        let pairs = [(&got.q, &want.q), (&got.scale, &want.scale), (&got.sums, &want.sums)];
        for ((what, words), (got, want)) in ["q", "scale", "sums"].into_iter().zip(words).zip(pairs) {
            probe.equal(what, &plain(probe, got, words), &plain(probe, want, words));
        }
    }
}

/// Reads a buffer that has no guards.
fn plain(probe: &Probe<'_>, buffer: &Buffer, words: usize) -> Vec<f32> {
    let mut bytes = vec![0; 4 * words];
    assert_eq!(probe.device.read(buffer, 0, &mut bytes), Ok(()), "{}", probe.kernel.name());
    super::words::floats(&bytes, 0..words)
}

fn check_rope(probe: &mut Probe<'_>, style: RopeStyle) {
    for (t, q_heads, heads, d, half) in
        [(1, 1, 1, 2, 1), (1, 4, 2, 8, 4), (3, 6, 2, 80, 20), (37, 2, 1, 64, 32), (2, 8, 2, 128, 64)]
    {
        probe.shape(format!("{t} rows of {q_heads} and {heads} heads of {d}, {half} pairs"));
        let (q, k) = (probe.numbers(t * q_heads * d, 3.0), probe.numbers(t * heads * d, 3.0));
        let v = probe.numbers(t * heads * d, 3.0);
        let (cos, sin) = (probe.numbers(t * half, 1.0), probe.numbers(t * half, 1.0));
        let slots = probe.random.permutation(t + 40);
        let places: Vec<u32> = (0..t).flat_map(|row| [row as u32, slots[row] as u32]).collect();
        let places = ops::table(probe.device, &places);
        let blocks = (t + 40).div_ceil(cache::BLOCK);
        let (got, want) =
            (cache::buffers(probe, blocks, (heads, d)), cache::buffers(probe, blocks, (heads, d)));
        let (cos, sin, v) = (probe.place(&cos), probe.place(&sin), probe.place(&v));
        let (turned, keys) = (probe.place(&q), probe.place(&k));
        ops::rope(probe.device, style, &turned, (&cos, &sin), (t, q_heads, d, half));
        ops::rope(probe.device, style, &keys, (&cos, &sin), (t, heads, d, half));
        ops::append(probe.device, &want, (&keys, &v), (&places, t));
        let (q, k_now) = (probe.place(&q), probe.place(&k));
        let tables = (&cos, &sin, half);
        ops::rope_append(probe.device, style, &got, (&q, &k_now, &v), tables, (&places, t, q_heads));
        probe.holds("q", &q, &probe.read(&turned, t * q_heads * d));
        probe.holds("k", &k_now, &k);
        let words = blocks * heads * cache::BLOCK * d / 2;
        probe.holds("keys", &got.keys, &probe.read(&want.keys, words));
        probe.holds("values", &got.values, &probe.read(&want.values, words));
    }
}
