//! The output of a product while several threads write disjoint parts of it.
//!
//! Rows of an output tile are short runs, `rows` apart. No safe split of a slice can hand these out.

use std::marker::PhantomData;

/// A borrowed output `[t, rows]` that is written through a shared reference, from row `first` on.
pub(super) struct Output<'a> {
    start: *mut f32,
    len: usize,
    rows: usize,
    first: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: all access is by `write`. Its callers are the tasks of one product, which `Tasks` cuts into
// rectangles that do not overlap, so two threads never write the same element. Nobody reads before the
// product has ended.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    /// Borrows `out` (`[t, rows]`) while the product runs; row 0 of the product is row `first` of `out`.
    pub(super) fn new(out: &'a mut [f32], rows: usize, first: usize) -> Self {
        Self { start: out.as_mut_ptr(), len: out.len(), rows, first, borrow: PhantomData }
    }

    /// Writes `values` to rows `row..` of token `t`. A task calls it only for elements of its own rectangle.
    #[inline(always)]
    pub(super) fn write(&self, t: usize, row: usize, values: &[f32]) {
        let row = self.first + row;
        let at = t * self.rows + row;
        assert!(
            row + values.len() <= self.rows && at + values.len() <= self.len,
            "write outside of the output"
        );
        // SAFETY: `at` is below the length that the slice was borrowed with, checked on the line above.
        let to = unsafe { self.start.add(at) };
        // SAFETY: `to..to + values.len()` lies inside the borrowed slice (checked above). `values` does not
        // overlap it, since the slice is borrowed mutably. No other thread touches these elements (see
        // `Sync`).
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len()) }
    }

    /// Returns the address of row `row` of token `t`, to be prefetched before [`Self::write`].
    #[inline(always)]
    pub(super) fn address(&self, t: usize, row: usize) -> *const u8 {
        self.start.wrapping_add(t * self.rows + self.first + row).cast()
    }
}
