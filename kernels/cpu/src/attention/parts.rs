//! The state of query rows over a part of the keys, and how the states of parts are joined.
//!
//! The definition is that of [`super`]. Because parts begin at fixed positions and are joined in order, parts
//! may be computed on different threads, and the result has the same bits.

use super::store::HALF;
use super::{Queries, RowLayout};
use crate::exp::exp;
use crate::rows::larger;
use crate::simd::{Kernel, Simd};

/// The state of every query row over the keys of one part (or of all parts so far).
#[derive(Debug, Default)]
pub struct PartState {
    /// The largest score of each row.
    pub(super) top: Vec<f32>,
    /// The sum of the weights of each row.
    pub(super) sum: Vec<f32>,
    /// `[rows, width]`: weighted sums of the values.
    pub(super) acc: Vec<f32>,
}

/// Dimensions of a row's sums: those of a head, padded to whole registers.
pub(super) fn width(layout: RowLayout) -> usize {
    layout.d.next_multiple_of(HALF)
}

impl PartState {
    /// Makes the state of rows that have seen no key.
    #[inline(always)]
    pub(super) fn reset(&mut self, layout: RowLayout) {
        let n_rows = layout.tokens * layout.heads;
        for (state, start, len) in [
            (&mut self.top, f32::NEG_INFINITY, n_rows),
            (&mut self.sum, 0.0, n_rows),
            (&mut self.acc, 0.0, n_rows * width(layout)),
        ] {
            state.clear();
            state.resize(len, start);
        }
    }

    /// Checks that the state is of rows of this layout.
    pub(super) fn check(&self, layout: RowLayout) {
        let n_rows = layout.tokens * layout.heads;
        assert_eq!(
            (self.top.len(), self.sum.len(), self.acc.len()),
            (n_rows, n_rows, n_rows * width(layout)),
            "the state of a part is of other query rows"
        );
    }

    /// Adds the state of the next part.
    #[inline(always)]
    pub(super) fn join(&mut self, part: &Self) {
        let Some(width) = self.acc.len().checked_div(self.top.len()) else { return };
        let sums = self.acc.chunks_exact_mut(width).zip(part.acc.chunks_exact(width));
        for (r, (acc, part_acc)) in sums.enumerate() {
            // A row that sees no key of the part. One that sees any has a weight of 1 for the largest score.
            if part.sum[r] == 0.0 {
                continue;
            }
            let top = larger(self.top[r], part.top[r]);
            let (before, here) = (exp(self.top[r] - top), exp(part.top[r] - top));
            self.sum[r] = part.sum[r].mul_add(here, self.sum[r] * before);
            self.top[r] = top;
            for (acc, part) in acc.iter_mut().zip(part_acc) {
                *acc = part.mul_add(here, *acc * before);
            }
        }
    }

    /// Adds the sinks of the heads, writes the outputs and the log-sum-exps.
    #[inline(always)]
    pub(super) fn finish(&mut self, queries: &Queries<'_>, out: &mut [f32], lse: &mut [f32]) {
        let layout = queries.rows;
        let width = width(layout);
        for (r, lse) in lse.iter_mut().enumerate() {
            let acc = &mut self.acc[r * width..(r + 1) * width];
            if let Some(sink) = queries.sinks.get(r % layout.heads) {
                let top = larger(self.top[r], *sink);
                let c = exp(self.top[r] - top);
                self.sum[r] = self.sum[r].mul_add(c, exp(sink - top));
                self.top[r] = top;
                for acc in &mut *acc {
                    *acc *= c;
                }
            }
            let out = &mut out[layout.at(r / layout.heads, r % layout.heads)];
            let (sum, acc) = (self.sum[r], &acc[..layout.d]);
            if sum == 0.0 {
                out.copy_from_slice(acc);
                *lse = f32::NEG_INFINITY;
                continue;
            }
            for (out, acc) in out.iter_mut().zip(acc) {
                *out = acc / sum;
            }
            *lse = self.top[r] + sum.ln();
        }
    }
}

/// Joins parts to a total and gives the outputs: the end of [`super::attend_rows`] and all of
/// [`super::join_parts`], as a kernel.
pub(super) struct Finish<'a> {
    pub queries: &'a Queries<'a>,
    pub parts: &'a [PartState],
    pub total: &'a mut PartState,
    pub out: &'a mut [f32],
    pub lse: &'a mut [f32],
}

impl Finish<'_> {
    #[inline(always)]
    pub(super) fn all(self) {
        let Finish { queries, parts, total, out, lse } = self;
        for part in parts {
            total.join(part);
        }
        total.finish(queries, out, lse);
    }
}

impl Kernel for Finish<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.all();
    }
}
