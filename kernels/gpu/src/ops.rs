//! The launches of every kernel: numbers, buffers and grids.
//!
//! Nothing here waits, and nothing fails: a fault stays with the device ([`Device::fault`]). Rows of
//! activations are buffers of f32, `[t, width]`.

use baton_kernels_cpu::RopeStyle;

use crate::device::{Buffer, Device, Launch};
use crate::kernel::{AttendWidth, Kernel, MapOp, TOKENS_EACH, ZipOp};
use crate::matrix::{DeviceMatrix, Quantized};

mod attention;
mod experts;
mod joined;
mod packed;

pub use attention::{
    AttentionArgs, AttentionItem, AttentionItems, KvBuffers, ScoreArgs, append, attend, attend_parts,
    attend_states_bytes, copy_block, item_words, keep, score,
};
pub use experts::{Chosen, add_chosen, add_chosen_bias, matmul_chosen, route};
pub use joined::{can_join, matmul_added, matmul_apart, matmul_gated, norm_rounded, rope_append};
pub use packed::{pack_kv, round_kv, unpack_kv};

/// The most workgroups of one dimension.
pub const GROUPS_MAX: u32 = 65_535;

/// Products with at least as many activation rows as this are computed in tiles.
pub const TILED_TOKENS_MIN: usize = 16;

/// Returns `n` workgroups in two dimensions.
fn flat(n: usize) -> [u32; 3] {
    let n = u32::try_from(n).unwrap_or(u32::MAX);
    let rows = n.div_ceil(GROUPS_MAX).max(1);
    [n.div_ceil(rows), rows, 1]
}

/// Returns as many bytes of words.
fn words(n: usize) -> u64 {
    4 * n as u64
}

/// Runs a kernel that takes `n` numbers one by one.
fn each(device: &dyn Device, kernel: Kernel, n: usize, params: &[u32], buffers: &[&Buffer]) {
    let mut all = vec![n as u32];
    all.extend(params);
    let groups = flat(n.div_ceil(device.tiles().numbers as usize));
    if n > 0 {
        device.launch(&Launch { kernel, groups, params: &all, buffers });
    }
}

/// Uploads a table of numbers; an empty one becomes a single zero, since buffers are never empty.
pub fn table(device: &dyn Device, numbers: &[u32]) -> Buffer {
    let numbers = if numbers.is_empty() { &[0] } else { numbers };
    let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    device.upload(&bytes)
}

/// Uploads a table of floats, as [`table`].
pub fn floats(device: &dyn Device, numbers: &[f32]) -> Buffer {
    let bits: Vec<u32> = numbers.iter().map(|n| n.to_bits()).collect();
    table(device, &bits)
}

/// Returns memory for as many rounded numbers.
fn rounded_rows(device: &dyn Device, numbers: usize, block: usize) -> Quantized {
    Quantized {
        q: device.alloc(numbers as u64),
        scale: device.alloc(words(numbers / block)),
        sums: device.alloc(words(numbers / 16)),
    }
}

/// Rounds `t` activation rows `[t, cols]` to bytes, with a scale for each `block` (32 or 256) of them. `cols`
/// is whole blocks.
pub fn quantize(device: &dyn Device, x: &Buffer, t: usize, cols: usize, block: usize) -> Quantized {
    let n = t * cols / block;
    let rounded = rounded_rows(device, t * cols, block);
    if n > 0 {
        let kernel = Kernel::Quantize { block: block as u32 };
        let buffers = &[x, &rounded.q, &rounded.scale, &rounded.sums];
        device.launch(&Launch { kernel, groups: flat(n), params: &[n as u32], buffers });
    }
    rounded
}

/// The activations of a product.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// For formats of blocks, rounded in blocks of [`baton_kernels_cpu::Format::block_len`].
    Quantized(&'a Quantized),
    /// For formats of floats.
    Floats(&'a Buffer),
}

/// Sets `out = x w^T`, `[t, rows]`, for `t` activation rows.
///
/// # Panics
/// If the input is not of the kind that the format needs.
pub fn matmul(device: &dyn Device, w: &DeviceMatrix, x: Input<'_>, t: usize, out: &Buffer) {
    let format = w.format;
    let is_float = format.block_len() == 1;
    let tiles = device.tiles();
    let chunks = if t > 0 { w.chunks.as_slice() } else { &[] };
    let tokens = if t == 1 { TOKENS_EACH[0] } else { TOKENS_EACH[1] };
    for chunk in chunks {
        let rows = chunk.rows as u32;
        let params = [rows, w.cols as u32, t as u32, chunk.first as u32, w.rows as u32];
        let (kernel, groups) = if t >= TILED_TOKENS_MIN {
            let kernel = if is_float { Kernel::MatMulFloat { format } } else { Kernel::MatMul { format } };
            (kernel, [(t as u32).div_ceil(tiles.matmul_tokens), rows.div_ceil(tiles.matmul_rows), 1])
        } else {
            let kernel = if is_float {
                Kernel::MatVecFloat { format, tokens }
            } else {
                Kernel::MatVec { format, tokens }
            };
            let [x, y, _] = flat(chunk.rows.div_ceil(tiles.matvec_rows as usize));
            (kernel, [x, y, (t as u32).div_ceil(tokens)])
        };
        match x {
            Input::Quantized(Quantized { q, scale, sums }) => {
                assert!(!is_float, "{} is multiplied with floats", format.name());
                let buffers = &[&chunk.buffer, q, scale, sums, out];
                device.launch(&Launch { kernel, groups, params: &params, buffers });
            }
            Input::Floats(x) => {
                assert!(is_float, "{} is multiplied with bytes", format.name());
                let buffers = &[&chunk.buffer, x, out];
                device.launch(&Launch { kernel, groups, params: &params, buffers });
            }
        }
    }
}

/// Sets `out` to the RMS norms of `n` vectors.
pub fn rms_norm(device: &dyn Device, x: &Buffer, weight: (&Buffer, usize), eps: f32, n: usize, out: &Buffer) {
    let (weight, width) = weight;
    let params = &[n as u32, width as u32, eps.to_bits()];
    let buffers = &[x, weight, out];
    if n > 0 {
        device.launch(&Launch { kernel: Kernel::RmsNorm, groups: flat(n), params, buffers });
    }
}

/// Replaces `n` vectors by their RMS norms.
pub fn rms_norm_in_place(device: &dyn Device, x: &Buffer, weight: (&Buffer, usize), eps: f32, n: usize) {
    let (weight, width) = weight;
    let params = &[n as u32, width as u32, eps.to_bits()];
    let kernel = Kernel::RmsNormInPlace;
    if n > 0 {
        device.launch(&Launch { kernel, groups: flat(n), params, buffers: &[x, weight] });
    }
}

/// Finds the most probable token of each row of logits `[n, width]`. `out` gets three words a row, as
/// [`Kernel::Best`] says.
pub fn best(device: &dyn Device, x: &Buffer, (n, width): (usize, usize), out: &Buffer) {
    let (params, buffers) = (&[n as u32, width as u32], &[x, out]);
    if n > 0 {
        device.launch(&Launch { kernel: Kernel::Best, groups: flat(n), params, buffers });
    }
}

/// Changes each of `n` numbers.
pub fn map(device: &dyn Device, op: MapOp, x: &Buffer, n: usize, a: f32) {
    each(device, Kernel::Map(op), n, &[a.to_bits()], &[x]);
}

/// Changes each of `n` numbers by another.
pub fn zip(device: &dyn Device, op: ZipOp, x: &Buffer, y: &Buffer, n: usize) {
    each(device, Kernel::Zip(op), n, &[], &[x, y]);
}

/// Adds a bias to each row of `[t, width]`.
pub fn add_bias(device: &dyn Device, x: &Buffer, bias: &Buffer, (t, width): (usize, usize)) {
    each(device, Kernel::AddBias, t * width, &[width as u32], &[x, bias]);
}

/// Multiplies each row of `[t, width]` by its own factor.
pub fn scale_rows(device: &dyn Device, x: &Buffer, factors: &Buffer, (t, width): (usize, usize)) {
    each(device, Kernel::ScaleRows, t * width, &[width as u32], &[x, factors]);
}

/// One side of [`copy`]: the length of a group, and the place in it of what is copied.
#[derive(Debug, Clone, Copy)]
pub struct Groups {
    /// Numbers from one group to the next.
    pub each: usize,
    /// The first number of the group that takes part.
    pub at: usize,
}

/// Copies `len` numbers of each of `count` groups.
pub fn copy(
    device: &dyn Device,
    (x, from): (&Buffer, Groups),
    (out, to): (&Buffer, Groups),
    count: usize,
    len: usize,
) {
    let params = [len, from.each, from.at, to.each, to.at].map(|n| n as u32);
    each(device, Kernel::Copy, count * len, &params, &[x, out]);
}

/// Copies chosen rows, `n` of them.
pub fn gather(device: &dyn Device, x: &Buffer, rows: &Buffer, (n, width): (usize, usize), out: &Buffer) {
    each(device, Kernel::Gather, n * width, &[width as u32], &[x, rows, out]);
}

/// Adds `factors[i]` times row `i` of `y`, `[n, width]`, to row `rows[i]` of `x`. Rows differ.
pub fn add_scaled(
    device: &dyn Device,
    x: &Buffer,
    y: &Buffer,
    (rows, factors): (&Buffer, &Buffer),
    (n, width): (usize, usize),
) {
    each(device, Kernel::AddScaled, n * width, &[width as u32], &[x, y, rows, factors]);
}

/// Rotates the heads of `t` rows `[t, heads d]`; `cos` and `sin` are `[t, half]`.
pub fn rope(
    device: &dyn Device,
    style: RopeStyle,
    x: &Buffer,
    (cos, sin): (&Buffer, &Buffer),
    (t, heads, d, half): (usize, usize, usize, usize),
) {
    let params = [heads, d, half].map(|n| n as u32);
    each(device, Kernel::Rope(style), t * heads * half, &params, &[x, cos, sin]);
}

/// Whether a set has attention kernels for heads of `d` dimensions.
pub fn takes_heads_of(d: usize) -> bool {
    d.is_multiple_of(2) && AttendWidth::of(d).is_some()
}
