//! The rows of a pass that have an adapter, and the changes the adapter makes to their projections.
//!
//! Rows of different adapters, and rows without one, can be in the same pass. Invariant: the change of a row
//! depends only on that row and its adapter, summed in the fixed order of the backend's products. Rows
//! without an adapter do not change.

use crate::adapter::{Adapter, Change, Projection};
use crate::backend::Backend;
use crate::weights::WeightError;

/// The rows of one adapter, in order.
pub(crate) struct AdaptedRows<'a> {
    adapter: &'a Adapter,
    rows: Vec<usize>,
}

/// The change of one projection for the rows of one adapter.
struct RowsChange<'a, R> {
    /// The rows of the pass.
    rows: &'a [usize],
    /// The index of the projection's output.
    output: usize,
    /// The inputs of the rows.
    x: &'a R,
    change: Change<'a>,
    /// `A x`.
    low: R,
}

/// The most numbers of outputs that are computed together before they are added: more would leave the
/// processor's caches. Decoding stays below it.
const TOGETHER_MAX: usize = 1 << 19;

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
        let gathered: Vec<Option<B::Rows>> = self
            .0
            .iter()
            .map(|part| (part.rows.len() < n_rows).then(|| backend.gather(x, &part.rows)))
            .collect();
        let mut changes: Vec<RowsChange<'_, B::Rows>> = Vec::new();
        for (part, gathered) in self.0.iter().zip(&gathered) {
            for (output, (projection, _)) in into.iter().enumerate() {
                let Some(change) = part.adapter.change(layer, *projection) else { continue };
                let low = backend.rows(part.rows.len(), change.a.rows());
                changes.push(RowsChange {
                    rows: &part.rows,
                    output,
                    x: gathered.as_ref().unwrap_or(x),
                    change,
                    low,
                });
            }
        }
        // Few calls for all adapters: their products are small, and each call waits for all threads.
        let mut products: Vec<_> = changes.iter_mut().map(|of| (of.x, of.change.a, &mut of.low)).collect();
        backend.project_each(&mut products)?;
        let mut left = &changes[..];
        while !left.is_empty() {
            let mut numbers = 0;
            let together = left.iter().take_while(|of| {
                numbers += of.rows.len() * of.change.b.rows();
                numbers <= TOGETHER_MAX
            });
            let (now, later) = left.split_at(together.count().max(1));
            let mut high: Vec<B::Rows> =
                now.iter().map(|of| backend.rows(of.rows.len(), of.change.b.rows())).collect();
            let mut products: Vec<_> =
                now.iter().zip(&mut high).map(|(of, high)| (&of.low, of.change.b, high)).collect();
            backend.project_each(&mut products)?;
            for (of, high) in now.iter().zip(&high) {
                let factors = vec![of.change.factor; of.rows.len()];
                backend.add_scaled(into[of.output].1, of.rows, &factors, high);
            }
            left = later;
        }
        Ok(())
    }
}
