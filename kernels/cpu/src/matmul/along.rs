//! Products along stored rows: sixteen rows at a time straight from their blocks, for one to three activation rows.
//!
//! For so few tokens packing a panel would cost more than the products. Each block's dot product with the activations
//! is a sum across lanes, but a sum of integers, so its order does not matter; the lanes of sixteen rows are then
//! brought together so that what follows, in floats, is lane by lane the definition of [`super`].

#![allow(
    clippy::needless_range_loop,
    reason = "one index names the same row or token in several arrays of registers"
)]

use super::panel::{ROWS, Rows};
use super::quants::{block, chunks, interleaved, pair, part};
use super::tile::{sum_words, taken_off};
use crate::activations::QuantizedRows;
use crate::blocks::{K_LEN, Long, SHORT_LEN, Short};
use crate::format::Format;
use crate::simd::Simd;

/// The most activation rows of one call.
pub(super) const TOKENS_MAX: usize = 3;

/// Elements of sixteen rows of short blocks and activation rows `first..first + T`.
#[inline(always)]
pub(super) fn short<S: Simd, B: Short, const T: usize>(
    s: S,
    rows: Rows<'_>,
    x: &QuantizedRows,
    first: usize,
) -> [S::F; T] {
    let bytes = B::FORMAT.block_bytes();
    let blocks = rows[0].len() / bytes;
    let ahead = ROWS * rows[0].len();
    let mut y = [s.splat(0.0); T];
    for b in (0..blocks).step_by(2) {
        // An odd last block is taken twice; nothing is made of the second.
        let two = [b, (b + 1).min(blocks - 1)];
        let mut q = [s.splat_int(0); T];
        for t in 0..T {
            let row = (first + t) * blocks;
            let of = |b: usize| &x.q.as_chunks::<SHORT_LEN>().0[row + b];
            q[t] = s.joined(of(two[0]), of(two[1]));
        }
        let mut dots = [[s.splat_int(0); ROWS]; T];
        let (mut scale, mut minimum) = ([[0; ROWS]; 2], [[0; ROWS]; 2]);
        for i in 0..ROWS {
            let own = [block(rows[i], B::FORMAT, two[0]), block(rows[i], B::FORMAT, two[1])];
            s.prefetch(own[0].as_ptr().wrapping_add(ahead));
            let w = pair::<S, B>(s, own[0], own[1]);
            for t in 0..T {
                dots[t][i] = if B::RAISE == 128 {
                    s.dot_signed(s.splat_int(0), w, q[t])
                } else {
                    s.dot_small(s.splat_int(0), w, q[t])
                };
            }
            for j in 0..2 {
                scale[j][i] = B::scale(own[j]);
                minimum[j][i] = B::minimum(own[j]);
            }
        }
        for t in 0..T {
            let sums = s.reduce_halves(dots[t]);
            for j in 0..2.min(blocks - b) {
                let at = (first + t) * blocks + two[j];
                let total = x.sums[at];
                let off = s.splat_int(-taken_off::<S>(B::RAISE) * i32::from(total));
                let dx = s.splat(x.scale[at]);
                let dot = s.to_float(s.add_int(sums[j], off));
                y[t] = s.fma(dot, s.mul(s.widen(&scale[j]), dx), y[t]);
                if B::MINIMUM {
                    y[t] = s.fma(s.splat(f32::from(total)), s.mul(s.widen(&minimum[j]), dx), y[t]);
                }
            }
        }
    }
    y
}

/// Scales, minima and units of sixteen super-blocks, by row.
struct Heads {
    /// Four scales of groups of 16 (where the format is interleaved: of 32) as bytes.
    scales: [[u32; ROWS]; 4],
    /// Four minima of groups of [`Long::GROUP`] as bytes.
    minima: [[u32; ROWS]; 4],
    d: [u16; ROWS],
    dmin: [u16; ROWS],
}

impl Heads {
    #[inline(always)]
    fn of<B: Long>(own: Rows<'_>) -> Self {
        match B::FORMAT {
            Format::Q4K => Self::six_bits(own),
            _ => Self::any::<B>(own),
        }
    }

    #[inline(always)]
    fn any<B: Long>(own: Rows<'_>) -> Self {
        let mut heads =
            Self { scales: [[0; ROWS]; 4], minima: [[0; ROWS]; 4], d: [0; ROWS], dmin: [0; ROWS] };
        let four = |bytes: &[i8; 16], at: [usize; 4]| u32::from_le_bytes(at.map(|g| bytes[g] as u8));
        for i in 0..ROWS {
            let (scales, minima) = (B::scales(own[i]), B::minima(own[i]));
            [heads.d[i], heads.dmin[i]] = B::units(own[i]);
            for c in 0..4 {
                heads.scales[c][i] = four(&scales, [4 * c, 4 * c + 1, 4 * c + 2, 4 * c + 3]);
                if B::MINIMA && B::GROUP == 16 {
                    heads.minima[c][i] = four(&minima, [4 * c, 4 * c + 1, 4 * c + 2, 4 * c + 3]);
                } else if B::MINIMA && c < 2 {
                    heads.minima[c][i] = four(&minima, [8 * c, 8 * c + 2, 8 * c + 4, 8 * c + 6]);
                }
            }
        }
        heads
    }

    /// Formats that begin with `d`, `dmin` and twelve bytes of six-bit scales and minima; four of a kind at once, as
    /// [`crate::blocks`] takes them apart one by one.
    #[inline(always)]
    fn six_bits(own: Rows<'_>) -> Self {
        let mut units = [[0u32; ROWS]; 4];
        for i in 0..ROWS {
            let head: &[u8; 16] = part(own[i], 0);
            for (k, bytes) in head.as_chunks().0.iter().enumerate() {
                units[k][i] = u32::from_le_bytes(*bytes);
            }
        }
        let mut heads =
            Self { scales: [[0; ROWS]; 4], minima: [[0; ROWS]; 4], d: [0; ROWS], dmin: [0; ROWS] };
        for i in 0..ROWS {
            let (low, mid, high) = (units[1][i], units[2][i], units[3][i]);
            heads.d[i] = units[0][i] as u16;
            heads.dmin[i] = (units[0][i] >> 16) as u16;
            heads.scales[0][i] = low & 0x3f3f_3f3f;
            heads.minima[0][i] = mid & 0x3f3f_3f3f;
            heads.scales[1][i] = high & 0x0f0f_0f0f | low >> 2 & 0x3030_3030;
            heads.minima[1][i] = high >> 4 & 0x0f0f_0f0f | mid >> 2 & 0x3030_3030;
        }
        heads
    }

    /// The scales of row `i` as [`Simd::dot_scaled`] takes them, for each of [`chunks`].
    #[inline(always)]
    fn spread<S: Simd, B: Long>(&self, s: S, i: usize) -> [S::I; 4] {
        if interleaved::<B>() {
            let (low, high) = (self.scales[0][i], self.scales[1][i]);
            [
                s.spread::<0, 0, 2, 2>(low),
                s.spread::<1, 1, 3, 3>(low),
                s.spread::<0, 0, 2, 2>(high),
                s.spread::<1, 1, 3, 3>(high),
            ]
        } else {
            [
                s.spread::<0, 1, 2, 3>(self.scales[0][i]),
                s.spread::<0, 1, 2, 3>(self.scales[1][i]),
                s.spread::<0, 1, 2, 3>(self.scales[2][i]),
                s.spread::<0, 1, 2, 3>(self.scales[3][i]),
            ]
        }
    }

    /// `Σ factor Σ q` over the groups of `group` activations, lane by lane, factors four to a unit.
    #[inline(always)]
    fn weigh<S: Simd>(s: S, group: usize, factors: &[[u32; ROWS]], sums: &[i16; 16]) -> S::I {
        let mut total = s.splat_int(0);
        for (c, factors) in factors.iter().enumerate() {
            let mut bytes = [0; 64];
            for (to, from) in bytes.as_chunks_mut().0.iter_mut().zip(factors) {
                *to = from.to_le_bytes();
            }
            let four = s.units(&bytes);
            let even = s.splat_int(sum_words(group, sums, 4 * c, 4 * c + 2));
            let odd = s.splat_int(sum_words(group, sums, 4 * c + 1, 4 * c + 3));
            total = s.dot_words(total, s.even_bytes(four), even);
            total = s.dot_words(total, s.odd_bytes(four), odd);
        }
        total
    }
}

/// Elements of sixteen rows of super-blocks and activation rows `first..first + T`.
#[inline(always)]
pub(super) fn long<S: Simd, B: Long, const T: usize>(
    s: S,
    rows: Rows<'_>,
    x: &QuantizedRows,
    first: usize,
) -> [S::F; T] {
    let bytes = B::FORMAT.block_bytes();
    let blocks = rows[0].len() / bytes;
    let ahead = ROWS * rows[0].len();
    let mut y = [s.splat(0.0); T];
    for b in 0..blocks {
        let mut own = rows;
        for i in 0..ROWS {
            own[i] = block(rows[i], B::FORMAT, b);
        }
        let heads = Heads::of::<B>(own);
        let mut q = [[s.splat_int(0); 4]; T];
        for t in 0..T {
            q[t] = activations::<S, B>(s, &x.q.as_chunks().0[(first + t) * blocks + b]);
        }
        let mut dots = [[s.splat_int(0); ROWS]; T];
        for i in 0..ROWS {
            for line in 0..bytes.div_ceil(64) {
                s.prefetch(own[i].as_ptr().wrapping_add(ahead + 64 * line));
            }
            let (w, scale) = (chunks::<S, B>(s, own[i]), heads.spread::<S, B>(s, i));
            for t in 0..T {
                dots[t][i] = dot::<S, B>(s, w, q[t], scale);
            }
        }
        for t in 0..T {
            let at = (first + t) * blocks + b;
            let (dx, sums) = (s.splat(x.scale[at]), &x.sums.as_chunks().0[at]);
            let mut total = s.reduce(dots[t]);
            let off = taken_off::<S>(B::RAISE);
            if off != 0 {
                // Interleaved formats, whose scales are of 32 weights here, are not raised.
                let raised = Heads::weigh(s, 16, &heads.scales, sums);
                total = s.add_int(total, s.mul_int(raised, s.splat_int(-off)));
            }
            let d = s.mul(s.mul(s.widen(&heads.d), s.splat(B::UNIT)), dx);
            y[t] = s.fma(s.to_float(total), d, y[t]);
            if B::MINIMA {
                let minima = Heads::weigh(s, B::GROUP, &heads.minima[..K_LEN / B::GROUP / 4], sums);
                let dmin = s.sub(s.splat(-0.0), s.widen(&heads.dmin));
                y[t] = s.fma(s.to_float(minima), s.mul(dmin, dx), y[t]);
            }
        }
    }
    y
}

/// A super-block's activations in the order of [`chunks`].
#[inline(always)]
fn activations<S: Simd, B: Long>(s: S, q: &[u8; K_LEN]) -> [S::I; 4] {
    if interleaved::<B>() {
        let groups = q.as_chunks::<32>().0;
        [
            s.joined(&groups[0], &groups[2]),
            s.joined(&groups[1], &groups[3]),
            s.joined(&groups[4], &groups[6]),
            s.joined(&groups[5], &groups[7]),
        ]
    } else {
        let parts = q.as_chunks::<64>().0;
        [s.units(&parts[0]), s.units(&parts[1]), s.units(&parts[2]), s.units(&parts[3])]
    }
}

/// The scaled dot product of a super-block, spread over the lanes.
#[inline(always)]
fn dot<S: Simd, B: Long>(s: S, w: [S::I; 4], q: [S::I; 4], scale: [S::I; 4]) -> S::I {
    let mut total = s.splat_int(0);
    for c in 0..4 {
        total = if B::RAISE == 128 {
            let four = s.dot_signed(s.splat_int(0), w[c], q[c]);
            s.add_int(total, s.mul_int(four, s.low_word(scale[c])))
        } else {
            s.dot_scaled(total, w[c], q[c], scale[c])
        };
    }
    total
}
