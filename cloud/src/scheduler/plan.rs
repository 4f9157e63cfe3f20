//! What one engine pass holds.
//!
//! Pure arithmetic over token counts. Always: the scoring window of a prompt is in one pass, the last one.

use std::ops::Range;

use super::JobId;

/// One engine pass: rows of distinct sequences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// Decoding sequences first, then prompt chunks in order of admission.
    pub rows: Vec<StepRow>,
}

impl StepPlan {
    /// Prompt tokens in this pass.
    pub fn prefill_tokens(&self) -> usize {
        self.rows.iter().map(|row| row.prefill_tokens()).sum()
    }

    /// Sequences that decode one token in this pass.
    pub fn decode_rows(&self) -> usize {
        self.rows.iter().filter(|row| matches!(row, StepRow::Decode { .. })).count()
    }
}

/// One sequence's part of a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepRow {
    /// Tokens of the prompt.
    Prefill {
        /// The sequence.
        id: JobId,
        /// Which tokens of its prompt.
        tokens: Range<usize>,
        /// Whether the prompt ends here: then the first answer token is sampled and the window's scores are captured.
        last: bool,
    },
    /// The token written last, to get the next one.
    Decode {
        /// The sequence.
        id: JobId,
    },
}

impl StepRow {
    /// The sequence of this row.
    pub fn id(&self) -> JobId {
        match self {
            StepRow::Prefill { id, .. } | StepRow::Decode { id } => *id,
        }
    }

    /// Whether a token is sampled from this row.
    pub fn samples(&self) -> bool {
        !matches!(self, StepRow::Prefill { last: false, .. })
    }

    fn prefill_tokens(&self) -> usize {
        match self {
            StepRow::Prefill { tokens, .. } => tokens.len(),
            StepRow::Decode { .. } => 0,
        }
    }
}

/// Tokens of the next chunk: `left` prompt tokens remain, of which the last `tail` must stay together; `budget` of
/// `chunk` tokens is still free in this pass. 0: nothing of this prompt fits now.
///
/// A tail longer than a whole chunk runs in a pass of its own, so that it always runs.
pub(super) fn chunk_len(left: usize, tail: usize, budget: usize, chunk: usize) -> usize {
    if left <= budget {
        left
    } else if left > tail {
        budget.min(left - tail)
    } else if budget == chunk {
        left
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::chunk_len;

    #[track_caller]
    fn check(left: usize, tail: usize, budget: usize, want: usize) {
        assert_eq!(chunk_len(left, tail, budget, 64), want, "left {left} tail {tail} budget {budget}");
    }

    #[test]
    fn the_tail_stays_whole() {
        check(10, 4, 64, 10);
        check(64, 40, 64, 64);
        check(65, 40, 64, 25);
        check(100, 40, 64, 60);
        check(1000, 40, 64, 64);
        check(40, 40, 64, 40);
        check(40, 40, 20, 0);
        check(41, 40, 20, 1);
        check(80, 80, 64, 80);
        check(81, 80, 64, 1);
        check(5, 1, 0, 0);
    }
}
