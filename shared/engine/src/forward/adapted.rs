//! Which rows of a pass have an adapter, and what it adds to their projections.
//!
//! Rows of different adapters, and rows without one, ride in the same pass. Invariant: what is added to a row depends
//! on that row and its adapter alone, summed in the fixed order of the backend's products; rows without an adapter are
//! not touched.

use crate::adapter::{Adapter, Projection};
use crate::backend::Backend;
use crate::weights::WeightError;

/// Rows of one adapter, in order, and how many rows the pass has.
pub(crate) struct AdaptedRows<'a> {
    adapter: &'a Adapter,
    rows: Vec<usize>,
}

/// All rows of a pass that have an adapter; each row at most once.
#[derive(Default)]
pub(crate) struct Adapted<'a>(Vec<AdaptedRows<'a>>);

impl<'a> Adapted<'a> {
    /// The rows of one more adapter, in order and not empty.
    pub(crate) fn push(&mut self, adapter: &'a Adapter, rows: Vec<usize>) {
        self.0.push(AdaptedRows { adapter, rows });
    }

    /// Leaves only these rows of the pass, numbered anew in this order, which is ascending.
    pub(super) fn keep(&mut self, kept: &[usize]) {
        for part in &mut self.0 {
            let own = |(_, row): &(usize, &usize)| part.rows.binary_search(row).is_ok();
            part.rows = kept.iter().enumerate().filter(own).map(|(at, _)| at).collect();
        }
        self.0.retain(|part| !part.rows.is_empty());
    }

    /// For each projection: its output, which holds `W x` for the pass's rows of `x`, gains the adapters' changes.
    /// `n_rows` are the rows of `x`.
    pub(super) fn add<B: Backend>(
        &self,
        backend: &B,
        layer: usize,
        (x, n_rows): (&B::Rows, usize),
        into: &mut [(Projection, &mut B::Rows)],
    ) -> Result<(), WeightError> {
        for part in &self.0 {
            let mut changes = Vec::with_capacity(into.len());
            for (projection, out) in into.iter_mut() {
                if let Some(change) = part.adapter.change(layer, *projection) {
                    changes.push((change, out));
                }
            }
            if changes.is_empty() {
                continue;
            }
            let t = part.rows.len();
            let own = (t < n_rows).then(|| backend.gather(x, &part.rows));
            let mut low: Vec<B::Rows> =
                changes.iter().map(|(change, _)| backend.rows(t, change.a.rows())).collect();
            let mut products: Vec<_> =
                changes.iter().zip(&mut low).map(|((change, _), low)| (change.a, low)).collect();
            backend.project(own.as_ref().unwrap_or(x), &mut products)?;
            for ((change, out), low) in changes.iter_mut().zip(&low) {
                let mut high = backend.rows(t, change.b.rows());
                backend.project(low, &mut [(change.b, &mut high)])?;
                backend.add_scaled(out, &part.rows, &vec![change.factor; t], &high);
            }
        }
        Ok(())
    }
}
