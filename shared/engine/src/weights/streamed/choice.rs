//! Chooses the rows of a walk's matrices that stay in memory.
//!
//! Pure. The first rows of every matrix are resident and the others are streamed. So each matrix has rows to
//! compute while the rest is read, and the reader is never blocked for long. The budget is used up to one
//! unit of rows, so a token reads at most one unit more than necessary. The projection to logits, by far the
//! largest matrix, stays whole if it fits the budget. Streamed, it would be one long read at the end of a
//! token, while no other device of a ring computes.
//!
//! Always holds: resident bytes are at most the budget, except for matrices whose rows do not fit a buffer
//! and cannot be streamed. Rows that every token needs come before those of experts, of which a token needs a
//! few.

use std::ops::Range;

/// A matrix of the walk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Walked {
    pub(super) rows: usize,
    pub(super) row_bytes: usize,
    /// Whether only tokens routed to an expert need it.
    pub(super) sometimes: bool,
    /// Whether it is the projection to logits.
    pub(super) output: bool,
}

impl Walked {
    fn bytes(&self) -> u64 {
        self.rows as u64 * self.row_bytes as u64
    }
}

/// How matrices are cut into reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// The most bytes of one read.
    pub(super) read_bytes_max: usize,
    /// Rows are cut at multiples of this number, if that many fit one read.
    pub(super) unit_rows: usize,
    /// With fewer bytes than these, neither a separate read nor leaving them out of one is worthwhile.
    pub(super) worth_bytes: u64,
}

impl Cut {
    fn unit(&self, matrix: &Walked) -> usize {
        let fit = self.read_bytes_max.checked_div(matrix.row_bytes).unwrap_or(matrix.rows);
        self.unit_rows.min(fit).max(1)
    }

    fn can_be_streamed(&self, matrix: &Walked) -> bool {
        (1..=self.read_bytes_max).contains(&matrix.row_bytes)
    }

    /// Returns the reads for `rows`: as few as possible, and of about the same size.
    pub(super) fn pieces(&self, rows: Range<usize>, row_bytes: usize) -> Vec<Range<usize>> {
        let matrix = Walked { rows: rows.len(), row_bytes, sometimes: false, output: false };
        let unit = self.unit(&matrix);
        let most = (self.read_bytes_max / row_bytes.max(1)).max(1) / unit * unit;
        let each = rows.len().div_ceil(rows.len().div_ceil(most).max(1)).next_multiple_of(unit).max(1);
        rows.clone().step_by(each).map(|first| first..rows.end.min(first + each)).collect()
    }
}

/// Returns for each matrix how many of its first rows stay in memory.
pub(super) fn choose(walk: &[Walked], budget: u64, cut: &Cut) -> Vec<usize> {
    let mut chosen = Chosen { walk, cut, rows: vec![0; walk.len()], left: budget };
    for (at, matrix) in walk.iter().enumerate() {
        if !cut.can_be_streamed(matrix) {
            chosen.rows[at] = matrix.rows;
            chosen.left = chosen.left.saturating_sub(matrix.bytes());
        }
    }
    for sometimes in [false, true] {
        let of_kind = |matrix: &Walked| matrix.sometimes == sometimes && cut.can_be_streamed(matrix);
        let kind: Vec<usize> = (0..walk.len()).filter(|at| of_kind(&walk[*at])).collect();
        let (small, large): (Vec<usize>, Vec<usize>) =
            kind.iter().partition(|at| walk[**at].bytes() < 2 * cut.worth_bytes);
        let (output, large): (Vec<usize>, Vec<usize>) = large.into_iter().partition(|at| walk[*at].output);
        small.into_iter().chain(output.iter().copied()).for_each(|at| chosen.all_of(at));
        let left = output.into_iter().filter(|at| chosen.rows[*at] == 0);
        let spread: Vec<usize> = large.into_iter().chain(left).collect();
        chosen.spread(&spread);
        chosen.fill(&kind);
    }
    chosen.rows
}

/// A choice being made.
struct Chosen<'a> {
    walk: &'a [Walked],
    cut: &'a Cut,
    rows: Vec<usize>,
    /// What is left of the budget.
    left: u64,
}

impl Chosen<'_> {
    fn take(&mut self, at: usize, rows: usize) {
        self.rows[at] += rows;
        self.left -= rows as u64 * self.walk[at].row_bytes as u64;
    }

    /// Takes all rows, if they fit.
    fn all_of(&mut self, at: usize) {
        if self.walk[at].bytes() <= self.left {
            self.take(at, self.walk[at].rows);
        }
    }

    /// Takes the same share of each matrix, as nearly as whole units and worthwhile reads allow.
    fn spread(&mut self, kind: &[usize]) {
        let total: u128 = kind.iter().map(|at| u128::from(self.walk[*at].bytes())).sum();
        let budget = u128::from(self.left).min(total);
        let (mut passed, mut taken) = (0_u128, 0_u128);
        for &at in kind {
            let matrix = self.walk[at];
            passed += u128::from(matrix.bytes());
            // Never more than is left, because everything taken so far is subtracted.
            let due = (passed * budget / total.max(1)).saturating_sub(taken);
            let unit = self.cut.unit(&matrix);
            let mut rows = (due / matrix.row_bytes as u128).min(matrix.rows as u128) as usize / unit * unit;
            let bytes = |rows: usize| rows as u64 * matrix.row_bytes as u64;
            if due >= u128::from(matrix.bytes()) {
                rows = matrix.rows;
            } else if bytes(rows) < self.cut.worth_bytes {
                rows = 0;
            } else if bytes(matrix.rows - rows) < self.cut.worth_bytes && matrix.bytes() <= self.left {
                rows = matrix.rows;
            }
            self.take(at, rows);
            taken += u128::from(bytes(rows));
        }
    }

    /// Uses up the rest of the budget, unit by unit.
    fn fill(&mut self, kind: &[usize]) {
        for &at in kind {
            let matrix = self.walk[at];
            let unit = self.cut.unit(&matrix);
            let (missing, fit) = (matrix.rows - self.rows[at], self.left / matrix.row_bytes as u64);
            let rows = if fit >= missing as u64 { missing } else { fit as usize / unit * unit };
            self.take(at, rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CUT: Cut = Cut { read_bytes_max: 4 << 20, unit_rows: 32, worth_bytes: 1 << 20 };

    fn resident(walk: &[Walked], rows: &[usize]) -> u64 {
        walk.iter().zip(rows).map(|(matrix, rows)| *rows as u64 * matrix.row_bytes as u64).sum()
    }

    /// Returns `count` layers of an 8B model in Q4_K.
    fn layers(count: usize) -> Vec<Walked> {
        let matrix = |rows, row_bytes| Walked { rows, row_bytes, sometimes: false, output: false };
        let q4 = 4096 / 256 * 144;
        let layer =
            [(4096, q4), (1024, q4), (1024, q4), (4096, q4), (14336, q4), (14336, q4), (4096, 56 * 144)];
        (0..count).flat_map(|_| layer.map(|(rows, bytes)| matrix(rows, bytes))).collect()
    }

    #[test]
    fn the_budget_is_used_and_spread_over_the_walk() {
        let walk = layers(32);
        let total: u64 = walk.iter().map(Walked::bytes).sum();
        for percent in [0, 1, 10, 26, 50, 90, 99, 100] {
            let budget = total * percent / 100;
            let rows = choose(&walk, budget, &CUT);
            let have = resident(&walk, &rows);
            assert!(have <= budget && budget - have < 32 * 56 * 144, "{percent} %: {have} of {budget}");
            // No run of three layers keeps a share much different from the whole.
            for (matrices, rows) in walk.chunks(21).zip(rows.chunks(21)).skip(1).take(9) {
                let own: u64 = matrices.iter().map(Walked::bytes).sum();
                let share = resident(matrices, rows) as f64 / own as f64;
                assert!((share - percent as f64 / 100.0).abs() < 0.05, "{percent} %: a stretch has {share}");
            }
        }
    }

    #[test]
    fn small_matrices_stay_before_large_ones_are_cut() {
        let mut walk = layers(1);
        walk.push(Walked { rows: 8, row_bytes: 4096 * 4, sometimes: false, output: false });
        let rows = choose(&walk, 20 << 20, &CUT);
        assert_eq!(rows[7], 8, "the router stays");
        assert!(rows[4] > 0 && rows[4] < 14336 && rows[5] > 0 && rows[6] > 0, "{rows:?}");
    }

    #[test]
    fn the_projection_to_logits_stays_where_the_budget_holds_it() {
        let mut walk = layers(4);
        walk.push(Walked { rows: 128_256, row_bytes: 16 * 210, sometimes: false, output: true });
        let output = walk[28].bytes();
        let rows = choose(&walk, output + (100 << 20), &CUT);
        assert_eq!(rows[28], 128_256);
        assert!(rows[4] > 0 && rows[4] < 14336 && rows[25] > 0 && rows[25] < 14336, "{rows:?}");
        let rows = choose(&walk, output - 1, &CUT);
        assert!(rows[28] > 0 && rows[28] < 128_256 && rows[4] > 0, "{rows:?}");
    }

    #[test]
    fn what_every_token_needs_comes_before_experts() {
        let mut walk = layers(1);
        let expert = Walked { rows: 8 * 14336, row_bytes: 2304, sometimes: true, output: false };
        walk.extend([expert; 3]);
        let dense: u64 = walk[..7].iter().map(Walked::bytes).sum();
        let rows = choose(&walk, dense + (30 << 20), &CUT);
        assert!(walk[..7].iter().zip(&rows).all(|(matrix, rows)| matrix.rows == *rows), "{rows:?}");
        assert!(rows[7..].iter().all(|rows| (4_000..5_000).contains(rows)), "{rows:?}");
        let rows = choose(&walk, dense - (30 << 20), &CUT);
        assert_eq!(rows[7..], [0, 0, 0]);
    }

    #[test]
    fn rows_that_no_buffer_holds_stay() {
        let walk = [
            Walked { rows: 2, row_bytes: 5 << 20, sometimes: false, output: false },
            Walked { rows: 100, row_bytes: 100_000, sometimes: false, output: false },
        ];
        assert_eq!(choose(&walk, 0, &CUT), [2, 0]);
        assert_eq!(choose(&walk, 11 << 20, &CUT)[0], 2);
    }

    #[test]
    fn pieces_are_few_and_alike() {
        assert_eq!(CUT.pieces(0..14336, 2304).len(), 8);
        assert!(CUT.pieces(100..100, 2304).is_empty());
        assert_eq!(CUT.pieces(7..9, 3 << 20), [7..8, 8..9]);
        let pieces = CUT.pieces(1000..14336, 2304);
        assert!(pieces.iter().all(|piece| (1400..=1820).contains(&piece.len())), "{pieces:?}");
    }

    fn matrices() -> impl Strategy<Value = Vec<Walked>> {
        let matrix = (1..6_usize, 1..40_usize, any::<bool>());
        let walked = |(rows, row_bytes, sometimes)| Walked {
            rows,
            row_bytes,
            sometimes,
            output: !sometimes && rows % 5 == 0,
        };
        prop::collection::vec(matrix.prop_map(walked), 1..5)
    }

    /// Returns the most bytes that any choice of rows could keep, of always-needed rows or of all.
    fn brute(walk: &[Walked], budget: u64) -> u64 {
        let mut sums = vec![0_u64];
        for matrix in walk {
            let with = |sum: &u64| {
                let sum = *sum;
                (0..=matrix.rows as u64).map(move |rows| sum + rows * matrix.row_bytes as u64)
            };
            sums = sums.iter().flat_map(with).filter(|sum| *sum <= budget).collect();
            sums.sort_unstable();
            sums.dedup();
        }
        sums.last().copied().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn no_choice_of_rows_reads_less_by_a_unit(
            walk in matrices(), budget in 0..600_u64, unit_rows in 1..3_usize, worth_bytes in 0..60_u64
        ) {
            let cut = Cut { read_bytes_max: 64, unit_rows, worth_bytes };
            let rows = choose(&walk, budget, &cut);
            let have = resident(&walk, &rows);
            prop_assert!(rows.iter().zip(&walk).all(|(rows, matrix)| *rows <= matrix.rows));
            prop_assert!(have <= budget, "{have} of {budget}: {rows:?}");
            let unit = walk.iter().zip(&rows).filter(|(matrix, rows)| **rows < matrix.rows)
                .map(|(matrix, _)| (cut.unit(matrix) * matrix.row_bytes) as u64).min().unwrap_or(0);
            let best = brute(&walk, budget);
            prop_assert!(have + unit >= best, "{have} kept, {best} possible, unit {unit}: {rows:?}");
            // The same for what every token needs: experts take only what that leaves.
            let always: Vec<Walked> = walk.iter().filter(|matrix| !matrix.sometimes).copied().collect();
            let of_always = rows.iter().zip(&walk).filter(|(_, matrix)| !matrix.sometimes);
            let kept: u64 = of_always.map(|(rows, matrix)| (*rows * matrix.row_bytes) as u64).sum();
            let unit = always.iter().map(|matrix| (cut.unit(matrix) * matrix.row_bytes) as u64).max().unwrap_or(0);
            prop_assert!(kept + unit >= brute(&always, budget));
        }

        #[test]
        fn pieces_cover_the_rows_once(first in 0..50_usize, len in 0..200_usize, row_bytes in 1..64_usize) {
            let cut = Cut { read_bytes_max: 640, unit_rows: 4, worth_bytes: 0 };
            let pieces = cut.pieces(first..first + len, row_bytes);
            let mut at = first;
            for piece in pieces {
                prop_assert_eq!(piece.start, at);
                prop_assert!(!piece.is_empty() && piece.len() * row_bytes <= 640);
                at = piece.end;
            }
            prop_assert_eq!(at, first + len);
        }
    }
}
