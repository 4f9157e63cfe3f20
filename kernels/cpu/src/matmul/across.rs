//! Products with sixteen rows of Q4_K or Q6_K whose blocks are transposed in registers, for three to
//! eight activation rows.
//!
//! For so few tokens, packing a panel costs more than the products, because each line of the panel is written
//! and read once or twice only. [`super::along`] needs sums across lanes for each token. Here a super-block
//! of sixteen rows is transposed as it is read. Then lane `i` belongs to row `i`, as in a panel, and nothing
//! is written to memory.

#![allow(
    clippy::needless_range_loop,
    reason = "one index names the same row or token in several arrays of registers"
)]

use std::ops::RangeInclusive;

use super::along::add_block;
use super::heads::Heads;
use super::panel::{Blocks, ROWS};
use super::quants::part;
use super::strip::Strip;
use super::tile::four;
use crate::activations::QuantizedRows;
use crate::blocks::{K_LEN, Long};
use crate::format::Format;
use crate::simd::Simd;

/// For how many activation rows it is faster than the other ways.
pub(super) const TOKENS: RangeInclusive<usize> = 3..=8;

/// Returns whether rows of this format can be read so.
pub(super) const fn is_made_for(format: Format) -> bool {
    matches!(format, Format::Q4K | Format::Q6K)
}

/// Computes the elements of sixteen rows of super-blocks and activation rows `first..first + T`.
///
/// # Panics
/// If the format is none of those that [`is_made_for`] names.
#[inline(always)]
pub(super) fn long<S: Simd, B: Long, const T: usize>(
    s: S,
    rows: &Strip<'_>,
    x: &QuantizedRows,
    first: usize,
) -> [S::F; T] {
    let bytes = B::FORMAT.block_bytes();
    let blocks = rows.blocks;
    let mut y = [s.splat(0.0); T];
    for b in 0..blocks {
        let mut own: Blocks<'_> = [&[]; ROWS];
        for i in 0..ROWS {
            own[i] = rows.block(i, b, bytes);
        }
        let heads = Heads::of::<B>(s, own);
        let mut q = [&[0; K_LEN]; T];
        for t in 0..T {
            q[t] = &x.q.as_chunks().0[(first + t) * blocks + b];
        }
        let totals = match B::FORMAT {
            Format::Q4K => q4k(s, own, &heads, q, |i| rows.prefetch_ahead(s, i, b, bytes)),
            Format::Q6K => q6k(s, own, &heads, q, |i| rows.prefetch_ahead(s, i, b, bytes)),
            format => unreachable!("{format:?} is not read across"),
        };
        for t in 0..T {
            y[t] = add_block::<S, B>(s, &heads, totals[t], x, (first + t) * blocks + b, y[t]);
        }
    }
    y
}

/// Reads 64 bytes at `at` of each row, as columns of four bytes.
#[inline(always)]
fn columns<S: Simd>(s: S, own: Blocks<'_>, at: usize) -> [S::I; ROWS] {
    let mut units = [s.splat_int(0); ROWS];
    for i in 0..ROWS {
        units[i] = s.units(part(own[i], at));
    }
    s.transpose(units)
}

/// Returns four scales, each widened in its lane.
#[inline(always)]
fn widened<S: Simd>(s: S, scales: S::I) -> [S::I; 4] {
    [s.byte::<0>(scales), s.byte::<1>(scales), s.byte::<2>(scales), s.byte::<3>(scales)]
}

/// Adds the scaled dot products of one group.
#[inline(always)]
fn add_scaled<S: Simd, const T: usize>(s: S, totals: &mut [S::I; T], dots: [S::I; T], scale: S::I) {
    for t in 0..T {
        totals[t] = s.add_int(totals[t], s.mul_int(dots[t], scale));
    }
}

/// Returns `Σ scale Σ w q` of Q4_K: each byte has a weight of one group and one of the next group. In
/// between, each row is prefetched once.
#[inline(always)]
fn q4k<S: Simd, const T: usize>(
    s: S,
    own: Blocks<'_>,
    heads: &Heads<S>,
    q: [&[u8; K_LEN]; T],
    prefetch: impl Fn(usize),
) -> [S::I; T] {
    let mut totals = [s.splat_int(0); T];
    for half in 0..2 {
        let columns = columns(s, own, 16 + 64 * half);
        let scales = widened(s, heads.scales[half]);
        for two in 0..2 {
            let (mut low, mut high) = ([s.splat_int(0); T], [s.splat_int(0); T]);
            for k in 0..8_usize {
                if k.is_multiple_of(2) {
                    prefetch(8 * half + 4 * two + k / 2);
                }
                let both = columns[8 * two + k];
                let at = 128 * half + 64 * two + 4 * k;
                let (a, b) = (s.low_nibbles(both), s.high_nibbles(both));
                for t in 0..T {
                    low[t] = s.dot_small(low[t], a, four(s, q[t], at));
                    high[t] = s.dot_small(high[t], b, four(s, q[t], at + 32));
                }
            }
            add_scaled(s, &mut totals, low, scales[2 * two]);
            add_scaled(s, &mut totals, high, scales[2 * two + 1]);
        }
    }
    totals
}

/// As [`q4k`] for Q6_K: the low four bits of two weights share a byte, and so do the high two bits of four.
#[inline(always)]
fn q6k<S: Simd, const T: usize>(
    s: S,
    own: Blocks<'_>,
    heads: &Heads<S>,
    q: [&[u8; K_LEN]; T],
    prefetch: impl Fn(usize),
) -> [S::I; T] {
    let mut totals = [s.splat_int(0); T];
    let high = columns(s, own, 128);
    for half in 0..2 {
        let low = columns(s, own, 64 * half);
        let scales = [widened(s, heads.scales[2 * half]), widened(s, heads.scales[2 * half + 1])];
        for four_steps in 0..2 {
            let mut dots = [[s.splat_int(0); T]; 4];
            for k in 4 * four_steps..4 * four_steps + 4 {
                prefetch(8 * half + k);
                let (a, b, h) = (low[k], low[8 + k], high[8 * half + k]);
                let weights = [
                    s.or(s.low_nibbles(a), s.two_bits::<0>(h)),
                    s.or(s.low_nibbles(b), s.two_bits::<2>(h)),
                    s.or(s.high_nibbles(a), s.two_bits::<4>(h)),
                    s.or(s.high_nibbles(b), s.two_bits::<6>(h)),
                ];
                for part in 0..4 {
                    for t in 0..T {
                        let x = four(s, q[t], 128 * half + 32 * part + 4 * k);
                        dots[part][t] = s.dot_small(dots[part][t], weights[part], x);
                    }
                }
            }
            for part in 0..4 {
                // A group has sixteen weights: two groups a part.
                let group = 2 * part + four_steps;
                add_scaled(s, &mut totals, dots[part], scales[group / 4][group % 4]);
            }
        }
    }
    totals
}
