//! Values of a chunk, and the sums they are added to.
//!
//! Values are widened to floats if many query rows use them; for few rows they are read as stored.

#![allow(
    clippy::needless_range_loop,
    reason = "one index names the same row or strip in several arrays of registers"
)]

use super::store::{HALF as LANES, KvBlock, Values};
use crate::blocks::SHORT_LEN;
use crate::simd::Simd;

/// Value rows of a chunk, in whole lanes.
pub(super) trait ValueRows<S: Simd>: Copy {
    /// Returns `J` strips of sixteen dimensions of row `i`, beginning at `strip`, which is even unless `J` is
    /// 1.
    fn strips<const J: usize>(self, s: S, i: usize, strip: usize) -> [S::F; J];
}

/// Rows of floats: row `i` starts at `i * stride`.
#[derive(Clone, Copy)]
pub(super) struct FloatRows<'a> {
    rows: &'a [f32],
    stride: usize,
}

/// Rows of bytes as stored, with one widened scale per 32 dimensions. Used for few query rows: storing the
/// floats would cost more than it saves.
#[derive(Clone, Copy)]
pub(super) struct ByteRows<'a> {
    pub rows: &'a [u8],
    pub scales: &'a [f32],
    /// Groups of 32 dimensions in a row.
    pub groups: usize,
    /// Address of the next block's rows, which are prefetched while these are read.
    pub next: *const u8,
}

impl<S: Simd> ValueRows<S> for FloatRows<'_> {
    #[inline(always)]
    fn strips<const J: usize>(self, s: S, i: usize, strip: usize) -> [S::F; J] {
        let at = i * self.stride + strip * LANES;
        let strips = self.rows[at..at + J * LANES].as_chunks::<LANES>().0;
        let mut v = [s.splat(0.0); J];
        for j in 0..J {
            v[j] = s.load(&strips[j]);
        }
        v
    }
}

impl<S: Simd> ValueRows<S> for ByteRows<'_> {
    #[inline(always)]
    fn strips<const J: usize>(self, s: S, i: usize, strip: usize) -> [S::F; J] {
        let at = i * self.groups * SHORT_LEN + strip * LANES;
        for line in (0..J * LANES).step_by(64) {
            s.prefetch_far(self.next.wrapping_add(at + line));
        }
        let strips = self.rows[at..at + J * LANES].as_chunks::<LANES>().0;
        let scales = &self.scales[at / SHORT_LEN..][..J.div_ceil(2)];
        let mut v = [s.splat(0.0); J];
        for j in 0..J {
            v[j] = s.mul(s.widen_bytes(&strips[j]), s.splat(scales[j / 2]));
        }
        v
    }
}

/// Returns the value rows of a block as floats in whole lanes.
#[inline(always)]
pub(super) fn value_rows<'a, S: Simd>(
    s: S,
    block: &KvBlock<'a>,
    next: &KvBlock<'_>,
    copy: &'a mut Vec<f32>,
) -> FloatRows<'a> {
    let width = block.d.next_multiple_of(LANES);
    let next = next.values_at();
    match block.v {
        Values::F32(rows) => return FloatRows { rows, stride: width },
        Values::F16(rows) => {
            copy.resize(block.n * width, 0.0);
            let strips = copy.as_chunks_mut::<LANES>().0.iter_mut().zip(rows.as_chunks().0);
            for (i, (to, from)) in strips.enumerate() {
                s.prefetch_far(next.wrapping_add(i * size_of_val(from)));
                s.store(s.widen(from), to);
            }
        }
        Values::Q8 { q, scale } => {
            let stride = block.d.next_multiple_of(SHORT_LEN);
            copy.resize(super::CHUNK * stride, 0.0);
            // A block has scales for 32 tokens, so whole lanes. Rows past the last key are computed but not
            // read.
            let sixteen = copy.as_chunks_mut::<{ LANES * SHORT_LEN }>().0.iter_mut();
            let sixteen = sixteen.zip(q.as_chunks::<{ LANES * SHORT_LEN }>().0);
            for ((to, from), scale) in sixteen.zip(scale.as_chunks().0) {
                let mut scales = [0.0; LANES];
                s.store(s.widen(scale), &mut scales);
                let groups =
                    to.as_chunks_mut::<SHORT_LEN>().0.iter_mut().zip(from.as_chunks::<SHORT_LEN>().0);
                for ((to, from), scale) in groups.zip(scales) {
                    let scale = s.splat(scale);
                    for (to, from) in to.as_chunks_mut().0.iter_mut().zip(from.as_chunks().0) {
                        s.store(s.mul(s.widen_bytes(from), scale), to);
                    }
                }
            }
            return FloatRows { rows: copy, stride };
        }
        Values::Q4 { .. } => unreachable!("half bytes are spread before"),
    }
    FloatRows { rows: copy, stride: width }
}

/// Widens the scales of a block's values, which are for 32 tokens and so fill whole lanes.
#[inline(always)]
pub(super) fn widened<'a, S: Simd>(s: S, scale: &[u16], copy: &'a mut Vec<f32>) -> &'a [f32] {
    copy.resize(scale.len(), 0.0);
    for (to, from) in copy.as_chunks_mut::<LANES>().0.iter_mut().zip(scale.as_chunks().0) {
        s.store(s.widen(from), to);
    }
    copy
}

/// Sets `acc[t] = acc[t] * fade[t] + Σ weights[t] v` over the visible keys in order. Works on strips of as
/// many lanes as the registers hold.
#[inline(always)]
pub(super) fn weigh_all<S: Simd, V: ValueRows<S>, const T: usize>(
    s: S,
    acc: &mut [f32],
    fade: &[f32; T],
    weights: &[[[f32; LANES]; 2]; T],
    mask: u32,
    values: V,
) {
    let strips = acc.len() / T / LANES;
    let mut strip = 0;
    while strip < strips {
        let left = strips - strip;
        if S::WIDE && T == 1 && left >= 8 {
            weigh::<S, V, T, 8>(s, acc, strip, fade, weights, mask, values);
            strip += 8;
        } else if (S::WIDE || T == 1) && left >= 4 {
            weigh::<S, V, T, 4>(s, acc, strip, fade, weights, mask, values);
            strip += 4;
        } else if left >= 2 {
            weigh::<S, V, T, 2>(s, acc, strip, fade, weights, mask, values);
            strip += 2;
        } else {
            weigh::<S, V, T, 1>(s, acc, strip, fade, weights, mask, values);
            strip += 1;
        }
    }
}

/// [`weigh_all`] for `J` strips of sixteen dimensions, beginning at `strip`.
#[inline(always)]
fn weigh<S: Simd, V: ValueRows<S>, const T: usize, const J: usize>(
    s: S,
    acc: &mut [f32],
    strip: usize,
    fade: &[f32; T],
    weights: &[[[f32; LANES]; 2]; T],
    mask: u32,
    values: V,
) {
    let width = acc.len() / T;
    let from = |t: usize| t * width + strip * LANES..t * width + (strip + J) * LANES;
    let mut sums = [[s.splat(0.0); J]; T];
    for t in 0..T {
        let strips = acc[from(t)].as_chunks::<LANES>().0;
        for j in 0..J {
            sums[t][j] = s.mul(s.load(&strips[j]), s.splat(fade[t]));
        }
    }
    let mut seen = mask;
    while seen != 0 {
        let i = seen.trailing_zeros() as usize;
        seen &= seen - 1;
        let v = values.strips::<J>(s, i, strip);
        for t in 0..T {
            let w = s.splat(weights[t].as_flattened()[i]);
            for j in 0..J {
                sums[t][j] = s.fma(w, v[j], sums[t][j]);
            }
        }
    }
    for t in 0..T {
        let strips = acc[from(t)].as_chunks_mut::<LANES>().0;
        for j in 0..J {
            s.store(sums[t][j], &mut strips[j]);
        }
    }
}
