//! Activation rows in the forms that the weight formats are multiplied with.
//!
//! Float weights are multiplied with floats. Weights in short blocks are multiplied with signed bytes that
//! have one scale per 32 values. Weights in super-blocks are multiplied with signed bytes that have one scale
//! per 256 values. Each byte form is made once, on first use, and shared by all matrices that read the same
//! activations.
//!
//! The form of a row depends only on that row: `x * (1 / scale)` is rounded to nearest, ties to even, with
//! `scale = max|x| / 127` kept as `f32`. A block that holds a NaN or an infinity gets the scale NaN. So the
//! fault shows in every output of its row instead of being rounded away.

#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has a tile unit"))]
mod tiles;

use std::sync::OnceLock;

use crate::blocks::{K_LEN, SHORT_LEN};
use crate::dispatch::versions::versions;
use crate::exp::ROUND;
use crate::pool::Pool;

pub(crate) use tiles::{LONG_TILE, SHORT_TILE, TileRows};

/// Activation rows `[t, cols]`, borrowed as floats.
#[derive(Debug)]
pub struct Activations<'a> {
    x: &'a [f32],
    cols: usize,
    rows: usize,
    short: OnceLock<QuantizedRows>,
    long: OnceLock<QuantizedRows>,
    short_tiles: OnceLock<TileRows>,
    long_tiles: OnceLock<TileRows>,
}

/// Rows of signed bytes with their scales, and the sums of bytes that the dot products need.
#[derive(Debug)]
pub(crate) struct QuantizedRows {
    /// `[t, cols]`: the bits of signed bytes in -127..=127.
    pub q: Vec<u8>,
    /// `[t, cols / block]`.
    pub scale: Vec<f32>,
    /// `[t, cols / group]`: -128 times the sums of groups of 32 values in the short form, 16 in the long one.
    pub bias: Vec<i32>,
    /// `[t, cols / 256]`, long form only; empty in the short form.
    pub words: Vec<SumWords>,
}

/// Sums of the groups of a super-block as pairs of words, low word first: groups 0 and 2, 1 and 3, 4 and 6,
/// ...
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SumWords {
    /// Sums of 16 values each.
    pub of_16: [i32; 8],
    /// Sums of 32 values each.
    pub of_32: [i32; 4],
}

impl SumWords {
    fn new(bias: &[i32; 16]) -> Self {
        let sum = |g: usize| bias[g] >> 7;
        let pair = |low: i32, high: i32| -low & 0xffff | -high << 16;
        let two = |g: usize| sum(2 * g) + sum(2 * g + 1);
        let first = |pair: usize| pair / 2 * 4 + pair % 2;
        Self {
            of_16: std::array::from_fn(|p| pair(sum(first(p)), sum(first(p) + 2))),
            of_32: std::array::from_fn(|p| pair(two(first(p)), two(first(p) + 2))),
        }
    }
}

/// Rows with fewer values in total are quantized on the calling thread.
const PARALLEL_MIN: usize = 1 << 16;

/// Rows that a thread quantizes at a time.
const ROWS_EACH: usize = 8;

impl<'a> Activations<'a> {
    /// Borrows `x` as rows of `cols` values. Cost: nothing until a byte form is needed, then `O(t cols)`.
    ///
    /// # Panics
    /// If `cols` is 0, or `x` does not hold whole rows.
    pub fn new(x: &'a [f32], cols: usize) -> Self {
        assert!(cols > 0, "activation rows of 0 columns");
        assert!(x.len().is_multiple_of(cols), "{} activations are not rows of {cols}", x.len());
        Self {
            x,
            cols,
            rows: x.len() / cols,
            short: OnceLock::new(),
            long: OnceLock::new(),
            short_tiles: OnceLock::new(),
            long_tiles: OnceLock::new(),
        }
    }

    /// Returns the number of rows (tokens).
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns of each row.
    pub const fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the floats, `[t, cols]`.
    pub const fn as_slice(&self) -> &'a [f32] {
        self.x
    }

    /// Returns the form for weights in short blocks; `cols` is a multiple of 32.
    pub(crate) fn short(&self) -> &QuantizedRows {
        self.made_short(None)
    }

    /// Returns the form for weights in super-blocks; `cols` is a multiple of 256.
    pub(crate) fn long(&self) -> &QuantizedRows {
        self.made_long(None)
    }

    /// Returns the short form in the order of tiles.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has a tile unit"))]
    pub(crate) fn short_tiles(&self) -> &TileRows {
        made_once(&self.short_tiles, || TileRows::short(None, self.short(), self.cols))
    }

    /// Returns the long form in the order of tiles.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has a tile unit"))]
    pub(crate) fn long_tiles(&self) -> &TileRows {
        made_once(&self.long_tiles, || TileRows::long(None, self.long(), self.cols))
    }

    /// Makes the form for weights in blocks of `block_len`, on all threads of the pool; also in the order of
    /// tiles if `tiles` is set.
    pub(crate) fn prepare(&self, pool: &Pool, block_len: usize, tiles: bool) {
        match block_len {
            SHORT_LEN => {
                let rows = self.made_short(Some(pool));
                if tiles {
                    made_once(&self.short_tiles, || TileRows::short(Some(pool), rows, self.cols));
                }
            }
            K_LEN => {
                let rows = self.made_long(Some(pool));
                if tiles {
                    made_once(&self.long_tiles, || TileRows::long(Some(pool), rows, self.cols));
                }
            }
            _ => {}
        }
    }

    fn made_short(&self, pool: Option<&Pool>) -> &QuantizedRows {
        assert!(self.cols.is_multiple_of(SHORT_LEN), "{} columns are not blocks of 32", self.cols);
        made_once(&self.short, || {
            quantize_rows(pool, self.x, self.cols, SHORT_LEN, SHORT_LEN, quantize_row_32)
        })
    }

    fn made_long(&self, pool: Option<&Pool>) -> &QuantizedRows {
        assert!(self.cols.is_multiple_of(K_LEN), "{} columns are not blocks of 256", self.cols);
        made_once(&self.long, || {
            let mut rows = quantize_rows(pool, self.x, self.cols, K_LEN, 16, quantize_row_256);
            rows.words = rows.bias.as_chunks().0.iter().map(SumWords::new).collect();
            rows
        })
    }
}

/// Returns the value of `cell`; calls `make` if it has none yet.
///
/// Two threads may both call `make`. Their results are equal bit for bit and one is dropped, but no thread
/// ever waits for a cell.
fn made_once<T>(cell: &OnceLock<T>, make: impl FnOnce() -> T) -> &T {
    match cell.get() {
        Some(rows) => rows,
        None => {
            let rows = make();
            cell.get_or_init(|| rows)
        }
    }
}

/// Quantizes one row into `(q, scale, bias)`.
type QuantizeRow = fn(&[f32], &mut [u8], &mut [f32], &mut [i32]);

fn quantize_rows(
    pool: Option<&Pool>,
    x: &[f32],
    cols: usize,
    block: usize,
    group: usize,
    row: QuantizeRow,
) -> QuantizedRows {
    let mut q = vec![0u8; x.len()];
    let mut scale = vec![0.0; x.len() / block];
    let mut bias = vec![0; x.len() / group];
    if let Some(pool) = pool.filter(|_| x.len() >= PARALLEL_MIN) {
        let each = ROWS_EACH * cols;
        let parts = x
            .chunks(each)
            .zip(q.chunks_mut(each))
            .zip(scale.chunks_mut(each / block))
            .zip(bias.chunks_mut(each / group));
        pool.for_each(parts, |(((x, q), scale), bias)| row(x, q, scale, bias));
    } else {
        row(x, &mut q, &mut scale, &mut bias);
    }
    QuantizedRows { q, scale, bias, words: Vec::new() }
}

versions! {
    /// Writes the bytes, scales and biases of the short form.
    fn quantize_row_32 / quantize_row_32_at(x: &[f32], q: &mut [u8], scale: &mut [f32], bias: &mut [i32]) {
        quantize_blocks::<SHORT_LEN, 32>(x, q, scale, bias);
    }
}

versions! {
    /// Writes the bytes, scales and biases of the long form.
    fn quantize_row_256 / quantize_row_256_at(x: &[f32], q: &mut [u8], scale: &mut [f32], bias: &mut [i32]) {
        quantize_blocks::<K_LEN, 16>(x, q, scale, bias);
    }
}

#[inline(always)]
fn quantize_blocks<const BLOCK: usize, const GROUP: usize>(
    x: &[f32],
    q: &mut [u8],
    scale: &mut [f32],
    bias: &mut [i32],
) {
    for ((x, q), scale) in x.as_chunks::<BLOCK>().0.iter().zip(q.as_chunks_mut::<BLOCK>().0).zip(scale) {
        *scale = quantize_block(x, q);
    }
    for (bias, group) in bias.iter_mut().zip(q.as_chunks::<GROUP>().0) {
        *bias = -128 * sum_bytes(group);
    }
}

/// Returns the sum of signed bytes. Each byte is raised by 128 to be unsigned; the sums run in 16-bit words,
/// which cannot overflow for up to 64 bytes.
#[inline(always)]
pub(crate) fn sum_bytes<const N: usize>(bytes: &[u8; N]) -> i32 {
    const EVEN: u64 = 0x00ff_00ff_00ff_00ff;
    let mut words = 0u64;
    for eight in bytes.as_chunks().0 {
        let raised = u64::from_le_bytes(*eight) ^ 0x8080_8080_8080_8080;
        words += (raised & EVEN) + (raised >> 8 & EVEN);
    }
    // The top word of the product is the sum of all four.
    let total = words.wrapping_mul(0x0001_0001_0001_0001) >> 48;
    total as i32 - 128 * N as i32
}

/// Quantizes one block to signed bytes and returns its scale.
#[inline(always)]
pub(crate) fn quantize_block<const BLOCK: usize>(x: &[f32; BLOCK], q: &mut [u8; BLOCK]) -> f32 {
    // The bits of absolute floats order like the floats, with NaN above infinity, so the maximum finds every
    // NaN.
    let top = x.iter().map(|v| v.to_bits() & 0x7fff_ffff).max().unwrap_or(0);
    let largest = f32::from_bits(top);
    // Such small scales have no finite inverse.
    if largest < 1e-30 {
        *q = [0; BLOCK];
        return 0.0;
    }
    if !largest.is_finite() {
        *q = [0; BLOCK];
        return f32::NAN;
    }
    let scale = largest / 127.0;
    let inverse = 1.0 / scale;
    for (q, &v) in q.iter_mut().zip(x) {
        // Rounding can lift `|v| * inverse` above 127, but never by half a step. The integer is in the low
        // bits, and the low byte of `ROUND` is 0.
        *q = (v * inverse + ROUND).to_bits() as u8;
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_fault_makes_the_scale_nan() {
        for fault in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 64];
            x[40] = fault;
            let activations = Activations::new(&x, 64);
            let rows = activations.short();
            assert_eq!(rows.scale[0], 1.0 / 127.0);
            assert!(rows.scale[1].is_nan());
        }
    }

    #[test]
    fn zeros_and_specks_give_zero() {
        let x = [1e-38f32; 256];
        let activations = Activations::new(&x, 256);
        assert_eq!(activations.long().scale, [0.0]);
        assert!(activations.long().q.iter().all(|&q| q == 0));
    }

    proptest! {
        #[test]
        fn within_half_a_step(x in proptest::collection::vec(-1e3f32..1e3, 512)) {
            let activations = Activations::new(&x, 256);
            for (rows, block) in [(activations.short(), 32), (activations.long(), 256)] {
                for (i, &v) in x.iter().enumerate() {
                    let scale = rows.scale[i / block];
                    prop_assert!((v - scale * f32::from(rows.q[i] as i8)).abs() <= scale * 0.5001);
                }
            }
            for (rows, group) in [(activations.short(), 32), (activations.long(), 16)] {
                for (bias, q) in rows.bias.iter().zip(rows.q.chunks(group)) {
                    prop_assert_eq!(*bias, -128 * q.iter().map(|&q| i32::from(q as i8)).sum::<i32>());
                }
            }
            for (words, q) in activations.long().words.iter().zip(activations.long().q.chunks(256)) {
                let sum = |len: usize, g: usize| q[g * len..][..len].iter().map(|&q| i32::from(q as i8)).sum::<i32>();
                for (len, words) in [(16, &words.of_16[..]), (32, &words.of_32[..])] {
                    for (p, word) in words.iter().enumerate() {
                        let first = p / 2 * 4 + p % 2;
                        prop_assert_eq!(i32::from(*word as i16), sum(len, first));
                        prop_assert_eq!(word >> 16, sum(len, first + 2));
                    }
                }
            }
        }
    }
}
