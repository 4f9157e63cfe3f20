//! The steps of a rectangle. Each is compiled as a function of its own for a level ([`Simd::enter`]).

use std::marker::PhantomData;
use std::ops::Range;

use super::panel::{Panel, ROWS};
use super::strip::Strip;
use super::{Along, Packed, Product, tile};
use crate::simd::{Kernel, Simd};

/// Packing of one panel.
pub(super) struct PackTask<'a, K> {
    pub(super) panel: &'a mut Panel,
    pub(super) rows: Strip<'a>,
    pub(super) cols: Range<usize>,
    pub(super) kind: PhantomData<K>,
}

impl<K: Packed> Kernel for PackTask<'_, K> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        K::pack(s, self.panel, &self.rows, self.cols);
    }
}

/// One tile: `P` panels from `side` on, and activation rows `token..token + T`.
pub(super) struct TileTask<'a, K, const P: usize, const T: usize> {
    pub(super) product: &'a Product<'a>,
    pub(super) panels: &'a [Panel; 2],
    pub(super) side: usize,
    pub(super) token: usize,
    pub(super) cols: Range<usize>,
    pub(super) sums: &'a mut tile::Sums<T>,
    /// The row of the first panel's first element, if these columns complete the elements.
    pub(super) done: Option<usize>,
    pub(super) kind: PhantomData<K>,
}

impl<K: Packed, const P: usize, const T: usize> Kernel for TileTask<'_, K, P, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { product, side, token, sums, .. } = self;
        let mut panels = [&self.panels[side]; P];
        for (p, panel) in panels.iter_mut().enumerate() {
            *panel = &self.panels[side + p];
        }
        if let Some(first) = self.done {
            // Without this prefetch the stores wait for page table entries and cache lines, and stall what
            // follows.
            for t in 0..T {
                for p in side..side + P {
                    s.prefetch(product.out.address(token + t, first + p * ROWS));
                }
            }
        }
        K::tile::<S, P, T>(s, panels, product.x, token, self.cols, side, sums);
        if let Some(first) = self.done {
            for (t, sums) in sums.iter().enumerate() {
                for (p, sums) in sums.iter().enumerate().skip(side).take(P) {
                    product.write(s, token + t, first + p * ROWS, s.load(&sums.0));
                }
            }
        }
    }
}

/// Sixteen rows from `first` on as they are stored, and activation rows `token..token + T`.
pub(super) struct StripTask<'a, K, const T: usize> {
    pub(super) product: &'a Product<'a>,
    pub(super) first: usize,
    pub(super) token: usize,
    pub(super) kind: PhantomData<K>,
}

impl<K: Along, const T: usize> Kernel for StripTask<'_, K, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { product, first, token, .. } = self;
        let y = K::elements::<S, T>(s, &Strip::new(product.w, first), product.x, token);
        for (t, y) in (token..).zip(y) {
            product.write(s, t, first, y);
        }
    }
}

impl Product<'_> {
    /// Writes the elements of up to sixteen rows from `first` on; rows past the matrix's last are skipped.
    #[inline(always)]
    pub(super) fn write<S: Simd>(&self, s: S, t: usize, first: usize, y: S::F) {
        let mut lanes = [0.0; ROWS];
        s.store(y, &mut lanes);
        let n = self.w.rows() - first;
        if n >= ROWS {
            // With a length known at compile time this is one store.
            self.out.write(t, first, &lanes);
        } else {
            self.out.write(t, first, &lanes[..n]);
        }
    }
}
