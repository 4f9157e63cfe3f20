//! Products of one activation row in an order that is not fixed, to measure what the fixed order costs.
//!
//! Two sums of blocks, or four of columns, take their turns, so that an addition need not wait for the one
//! before. No program uses this: the bits differ from those of [`super`]. Formats: F16, Q8_0 and Q4_K.

use std::ops::Range;

use super::panel::Panel;
use super::strip::Strip;
use super::{Packed, RowsInto, float_columns, matmuls_at, tile};
use crate::activations::Activations;
use crate::dispatch::Dispatch;
use crate::format::{Format, Matrix};
use crate::pool::Pool;
use crate::simd::Simd;

/// Sums of block products.
pub(super) const SUMS: usize = 2;

/// [`super::matmul_at`] for one activation row, in the order of this module.
///
/// # Panics
/// As [`super::matmul_at`]; if there are more activation rows, the format is another one, or the CPU lacks
/// the level.
pub fn matmul_free_at(level: Dispatch, pool: &Pool, w: &Matrix<'_>, x: &Activations<'_>, out: &mut [f32]) {
    assert_eq!(x.rows(), 1, "activation rows");
    assert!(
        matches!(w.format(), Format::F16 | Format::Q8_0 | Format::Q4K),
        "{:?} has no such order",
        w.format()
    );
    assert!(level.is_available() && level != Dispatch::Scalar, "{level:?} has no such order here");
    matmuls_at(level, pool, vec![RowsInto { x, w: *w, first: 0, rows: w.rows(), out }], true);
}

pub(super) struct F16Rows;

impl Packed for F16Rows {
    const COLS: usize = super::F16Rows::COLS;

    #[inline(always)]
    fn pack<S: Simd>(s: S, panel: &mut Panel, rows: &Strip<'_>, cols: Range<usize>) {
        super::F16Rows::pack(s, panel, rows, cols);
    }

    #[inline(always)]
    fn tile<S: Simd, const P: usize, const T: usize>(
        s: S,
        panels: [&Panel; P],
        x: &Activations<'_>,
        t: usize,
        cols: Range<usize>,
        side: usize,
        sums: &mut tile::Sums<T>,
    ) {
        let [x]: [&[f32]; 1] = float_columns(x, t, cols);
        let mut y = tile::load::<S, P, T>(s, side, sums);
        let (lines, fours) = (panels.map(|panel| panel.weights.as_slice()), x.as_chunks::<4>().0);
        let mut parts = [[[s.splat(0.0); P]; 2]; 2];
        for (i, four) in fours.iter().enumerate() {
            for p in 0..P {
                let line = |c: usize| s.load_line(&lines[p][4 * i + c]);
                parts[0][0][p] = s.fma(line(0), s.splat(four[0]), parts[0][0][p]);
                parts[0][1][p] = s.fma(line(1), s.splat(four[1]), parts[0][1][p]);
                parts[1][0][p] = s.fma(line(2), s.splat(four[2]), parts[1][0][p]);
                parts[1][1][p] = s.fma(line(3), s.splat(four[3]), parts[1][1][p]);
            }
        }
        for p in 0..P {
            let low = s.add(parts[0][0][p], parts[0][1][p]);
            let high = s.add(parts[1][0][p], parts[1][1][p]);
            y[p][0] = s.add(y[p][0], s.add(low, high));
        }
        tile::store(s, y, side, sums);
    }
}
