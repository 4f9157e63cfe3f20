//! The rows of a pass that have an adapter, and the changes the adapter makes to their projections.
//!
//! Rows of different adapters, and rows without one, can be in the same pass. Invariant: the change of a row
//! depends only on that row and its adapter, summed in the fixed order of the backend's products. Rows
//! without an adapter do not change.

use crate::adapter::{Adapter, Projection};
use crate::backend::Backend;
use crate::weights::WeightError;

/// The rows of one adapter, in order.
pub(crate) struct AdaptedRows<'a> {
    adapter: &'a Adapter,
    rows: Vec<usize>,
}

/// All rows of a pass that have an adapter; each row at most once.
#[derive(Default)]
pub(crate) struct Adapted<'a>(Vec<AdaptedRows<'a>>);

impl<'a> Adapted<'a> {
    /// Adds the rows of one more adapter, in order and not empty.
    pub(crate) fn push(&mut self, adapter: &'a Adapter, rows: Vec<usize>) {
        self.0.push(AdaptedRows { adapter, rows });
    }

    /// Whether no row has an adapter.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps only these rows of the pass, given in ascending order, and renumbers them.
    pub(super) fn keep(&mut self, kept: &[usize]) {
        for part in &mut self.0 {
            let own = |(_, row): &(usize, &usize)| part.rows.binary_search(row).is_ok();
            part.rows = kept.iter().enumerate().filter(own).map(|(at, _)| at).collect();
        }
        self.0.retain(|part| !part.rows.is_empty());
    }

    /// Adds the adapters' changes to the output of each projection, which holds `W x` for the pass's rows of
    /// `x`. `n_rows` is the number of rows of `x`.
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
