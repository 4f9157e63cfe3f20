//! How a product is cut into pieces of work for threads.

use std::ops::Range;

use super::panel::ROWS;

/// Rows of a pair of panels: the unit in which rows are split.
pub(super) const UNIT: usize = 2 * ROWS;

/// How a product is cut into rectangles of rows and tokens. They do not overlap, and together they cover it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tasks {
    rows: usize,
    tokens: usize,
    rows_each: usize,
    tokens_each: usize,
}

impl Tasks {
    /// Below this many multiplications, handing a piece to another thread costs more than computing it.
    const PIECE_MIN: usize = 1 << 18;
    /// Packing a weight costs about as much as this many multiplications.
    const PACK_COST: usize = 3;

    /// Returns the cost of a product, in multiplications.
    pub(super) fn cost(rows: usize, cols: usize, tokens: usize) -> usize {
        rows.saturating_mul(cols).saturating_mul(tokens + Self::PACK_COST)
    }

    /// Splits a product of `rows` with `cols` columns and `tokens` activation rows, in a job whose products
    /// cost `total`. Tokens are cut only at multiples of `group`.
    pub(super) fn split(
        threads: usize,
        (rows, cols, tokens): (usize, usize, usize),
        total: usize,
        group: usize,
    ) -> Self {
        // Many pieces per thread, so that a late thread leaves little to wait for.
        let pieces = if threads == 1 { 1 } else { (total / Self::PIECE_MIN).clamp(1, 24 * threads) };
        let unit = Self::cost(UNIT, cols, tokens).max(1);
        let units = rows.div_ceil(UNIT);
        let units_each = total.div_ceil(unit).div_ceil(pieces).clamp(1, units);
        // If there are too few rows for the pieces wanted, tokens are cut too, though each cut packs the
        // weights again.
        let wanted = pieces.min(4 * threads);
        let token_pieces = (wanted / units.div_ceil(units_each)).clamp(1, tokens.div_ceil(64));
        let tokens_each = tokens.div_ceil(token_pieces).next_multiple_of(group);
        Self { rows, tokens, rows_each: units_each * UNIT, tokens_each }
    }

    pub(super) fn count(self) -> usize {
        self.rows.div_ceil(self.rows_each) * self.tokens.div_ceil(self.tokens_each)
    }

    pub(super) fn get(self, i: usize) -> (Range<usize>, Range<usize>) {
        let across = self.tokens.div_ceil(self.tokens_each);
        let (row, token) = (i / across * self.rows_each, i % across * self.tokens_each);
        (row..(row + self.rows_each).min(self.rows), token..(token + self.tokens_each).min(self.tokens))
    }
}
