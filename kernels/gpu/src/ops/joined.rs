//! Launches of kernels that join others ([`Kernel::joined`]): the same bits as those, one after the other.

use baton_kernels_cpu::RopeStyle;

use super::{KvBuffers, TILED_TOKENS_MIN, each, flat, rounded_rows};
use crate::device::{Buffer, Device, Launch};
use crate::kernel::{JoinedAs, Kernel, TOKENS_EACH, ZipOp};
use crate::matrix::{DeviceMatrix, Quantized};

/// Whether products of these matrices with the same `t` activation rows can be joined: the device joins, they
/// have one format of blocks, and each lies in one buffer.
pub fn can_join(device: &dyn Device, matrices: &[&DeviceMatrix], t: usize) -> bool {
    let Some(first) = matrices.first() else { return false };
    let is_like = |w: &&DeviceMatrix| w.format == first.format && w.cols == first.cols && w.chunks.len() == 1;
    device.joins()
        && (1..TILED_TOKENS_MIN).contains(&t)
        && first.format.block_len() > 1
        && matrices.iter().all(is_like)
}

/// Launches a product.
fn launch(
    device: &dyn Device,
    how: JoinedAs,
    matrices: &[&DeviceMatrix],
    (x, t): (&Quantized, usize),
    outputs: &[&Buffer],
) {
    let (format, cols) = (matrices[0].format, matrices[0].cols);
    let tokens = if t == 1 { TOKENS_EACH[0] } else { TOKENS_EACH[1] };
    let tile = device.tiles().matvec_rows as usize;
    let apart = || matrices.iter().map(|w| w.rows.div_ceil(tile)).sum();
    let (groups, rows) = match how {
        JoinedAs::Apart => (apart(), matrices.iter().map(|w| w.rows as u32).collect()),
        JoinedAs::Added => (apart(), vec![matrices[0].rows as u32]),
        JoinedAs::Gated(_) => ((2 * matrices[0].rows).div_ceil(tile), vec![matrices[0].rows as u32]),
    };
    let [x_groups, y_groups, _] = flat(groups);
    let params: Vec<u32> = rows.into_iter().chain([cols as u32, t as u32]).collect();
    let mut buffers: Vec<&Buffer> = matrices.iter().map(|w| &w.chunks[0].buffer).collect();
    buffers.extend([&x.q, &x.scale, &x.sums]);
    buffers.extend(outputs);
    device.launch(&Launch {
        kernel: Kernel::MatVecJoined { format, tokens, how },
        groups: [x_groups, y_groups, (t as u32).div_ceil(tokens)],
        params: &params,
        buffers: &buffers,
    });
}

/// Sets each output to `x w^T`, `[t, rows]`, of two or three matrices.
///
/// # Panics
/// If the matrices do not [join](can_join), or there are other numbers of them.
pub fn matmul_apart(device: &dyn Device, into: &[(&DeviceMatrix, &Buffer)], x: &Quantized, t: usize) {
    let (matrices, outputs): (Vec<_>, Vec<_>) = into.iter().copied().unzip();
    assert!(can_join(device, &matrices, t) && (2..=3).contains(&into.len()), "products that do not join");
    launch(device, JoinedAs::Apart, &matrices, (x, t), &outputs);
}

/// Adds `x w^T` to `out`, `[t, rows]`: the product is rounded before the sum.
///
/// # Panics
/// If the matrix does not [join](can_join).
pub fn matmul_added(device: &dyn Device, w: &DeviceMatrix, x: &Quantized, t: usize, out: &Buffer) {
    assert!(can_join(device, &[w], t), "a product that does not join");
    launch(device, JoinedAs::Added, &[w], (x, t), &[out]);
}

/// Sets `out = op(x gate^T, x up^T)`, `[t, rows]`.
///
/// # Panics
/// If the matrices do not [join](can_join), their rows differ, or `op` is not among [`ZipOp::GATES`].
pub fn matmul_gated(
    device: &dyn Device,
    op: ZipOp,
    (gate, up): (&DeviceMatrix, &DeviceMatrix),
    (x, t): (&Quantized, usize),
    out: &Buffer,
) {
    let matrices = [gate, up];
    let fits = can_join(device, &matrices, t) && gate.rows == up.rows && ZipOp::GATES.contains(&op);
    assert!(fits, "a gate that does not join");
    launch(device, JoinedAs::Gated(op), &matrices, (x, t), &[out]);
}

/// Sets `out` to the RMS norms of `n` vectors, and returns them rounded in blocks of `block`, of which a
/// vector has whole ones.
pub fn norm_rounded(
    device: &dyn Device,
    x: &Buffer,
    (weight, width): (&Buffer, usize),
    eps: f32,
    n: usize,
    (out, block): (&Buffer, usize),
) -> Quantized {
    let rounded = rounded_rows(device, n * width, block);
    if n > 0 {
        let kernel = Kernel::NormRounded { block: block as u32 };
        let params = &[n as u32, width as u32, eps.to_bits()];
        let buffers = &[x, weight, out, &rounded.q, &rounded.scale, &rounded.sums];
        device.launch(&Launch { kernel, groups: flat(n), params, buffers });
    }
    rounded
}

/// Rotates the query heads of `t` rows, and writes the rotated keys and the values of the same rows into
/// slots. `places` has row and slot of each.
pub fn rope_append(
    device: &dyn Device,
    style: RopeStyle,
    kv: &KvBuffers,
    (q, k, v): (&Buffer, &Buffer, &Buffer),
    (cos, sin, half): (&Buffer, &Buffer, usize),
    (places, t, q_heads): (&Buffer, usize, usize),
) {
    let (heads, d) = (kv.heads, kv.d);
    let n = t * q_heads * half + t * heads * d / 2;
    let params = [t, q_heads, heads, d, half].map(|n| n as u32);
    let buffers = &[q, k, v, cos, sin, places, &kv.keys, &kv.values];
    each(device, Kernel::RopeAppend(style), n, &params, buffers);
}
