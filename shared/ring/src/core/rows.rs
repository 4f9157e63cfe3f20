//! The rows of a step: the new tokens of all its sequences, in the order of the batch.

use std::ops::Range;

use baton_engine::Wanted;

use crate::wire::frame::Span;

/// One sequence's rows.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RowSpan {
    rows: Range<usize>,
    /// Those whose logits are wanted.
    wanted: Range<usize>,
}

/// A step's rows. They agree with [`baton_engine::engine::OpenStep`] of the same batch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rows {
    spans: Vec<RowSpan>,
}

impl Rows {
    /// Returns the rows of these spans.
    pub fn of(spans: &[Span]) -> Self {
        Self::of_counts(spans.iter().map(|span| (span.ids.len(), span.wanted)))
    }

    /// Returns the rows of sequences with so many new tokens each.
    pub fn of_counts(counts: impl IntoIterator<Item = (usize, Wanted)>) -> Self {
        let mut begin = 0usize;
        let span = |(count, wanted): (usize, Wanted)| {
            let rows = begin..begin + count;
            begin = rows.end;
            let first = match wanted {
                Wanted::None => rows.end,
                Wanted::Last | Wanted::Best => rows.end.saturating_sub(1).max(rows.start),
                Wanted::All => rows.start,
            };
            RowSpan { wanted: first..rows.end, rows }
        };
        Self { spans: counts.into_iter().map(span).collect() }
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.spans.last().map_or(0, |span| span.rows.end)
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many of these rows have logits.
    pub fn wanted(&self, rows: &Range<usize>) -> usize {
        let overlap = |own: &Range<usize>| own.end.min(rows.end).saturating_sub(own.start.max(rows.start));
        self.spans.iter().map(|span| overlap(&span.wanted)).sum()
    }
}

#[cfg(test)]
mod tests;
