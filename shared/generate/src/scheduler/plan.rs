//! Contents of one engine pass.
//!
//! Pure arithmetic over token counts. Always: the scoring window of a prompt is in one pass, the last one.

use std::ops::Range;

use super::JobId;

/// If a prompt needs more passes than this, it does not take whole passes while others wait behind it.
const LONG_PASSES: usize = 4;

/// One engine pass: rows of distinct sequences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// Decoding sequences first, then given parts of answers, then prompt chunks, each in order of arrival.
    pub rows: Vec<StepRow>,
}

impl StepPlan {
    /// Returns the number of prompt tokens in this pass, given parts of answers included.
    pub fn prefill_tokens(&self) -> usize {
        self.rows.iter().map(|row| row.prefill_tokens()).sum()
    }

    /// Returns the number of sequences that continue their answer in this pass.
    pub fn decode_rows(&self) -> usize {
        self.rows.iter().filter(|row| matches!(row, StepRow::Decode { .. })).count()
    }

    /// Returns the most proposed tokens in this pass.
    pub fn proposed_tokens(&self) -> usize {
        let proposed = |row: &StepRow| if let StepRow::Decode { proposed, .. } = row { *proposed } else { 0 };
        self.rows.iter().map(proposed).sum()
    }
}

/// One sequence's part of a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepRow {
    /// Tokens of the prompt; after a preemption, of the prompt and the answer so far.
    Prefill {
        /// The sequence.
        id: JobId,
        /// Which tokens.
        tokens: Range<usize>,
        /// What they reach.
        end: PrefillEnd,
    },
    /// The last token before a given part of the answer, and that part; it may begin with prompt tokens.
    /// Logits of all of them are wanted.
    Verify {
        /// The sequence.
        id: JobId,
        /// Which tokens; those of the given part follow the others.
        tokens: Range<usize>,
        /// Whether these are the last ones.
        last: bool,
    },
    /// The last token written, to get the next one.
    Decode {
        /// The sequence.
        id: JobId,
        /// The most proposed tokens behind it.
        proposed: usize,
    },
}

/// What a chunk of a prompt reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefillEnd {
    /// The target is not reached.
    More,
    /// What is to be held is reached: no logits are wanted, but the window's scores if there is a window.
    Held,
    /// The next answer token is sampled; if it is the first, the window's scores are captured.
    Sampled,
}

impl StepRow {
    /// Returns the sequence of this row.
    pub fn id(&self) -> JobId {
        match self {
            StepRow::Prefill { id, .. } | StepRow::Verify { id, .. } | StepRow::Decode { id, .. } => *id,
        }
    }

    /// Returns whether answer tokens are sampled from this row.
    pub fn samples(&self) -> bool {
        matches!(self, StepRow::Prefill { end: PrefillEnd::Sampled, .. } | StepRow::Decode { .. })
    }

    fn prefill_tokens(&self) -> usize {
        match self {
            StepRow::Prefill { tokens, .. } | StepRow::Verify { tokens, .. } => tokens.len(),
            StepRow::Decode { .. } => 0,
        }
    }
}

/// The room in a pass for one more chunk, in tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChunkRoom {
    /// What is left of the pass's budget.
    pub(super) budget: usize,
    /// The pass's whole budget.
    pub(super) whole: usize,
    /// How much the sequence can grow in the KV cache.
    pub(super) kv: usize,
    /// The most tokens of this sequence in one pass, unless its tail is longer.
    pub(super) cap: usize,
    /// Whether other prompts wait behind this one.
    pub(super) others: bool,
}

/// Returns the number of tokens of the next chunk. `left` prompt tokens remain, and the last `tail` of them
/// must stay together. Returns 0 if nothing of this prompt fits now.
///
/// A tail that is longer than the budget runs in a pass without other chunks, so that it always runs. A
/// prompt of many passes leaves a quarter of each pass to those behind it, so that short ones need not wait
/// for all of it.
pub(super) fn chunk_len(left: usize, tail: usize, room: ChunkRoom) -> usize {
    let ChunkRoom { budget, whole, kv, cap, others } = room;
    let share = if others && left > LONG_PASSES * whole { (whole - whole / 4).max(1) } else { whole };
    let limit = budget.min(kv).min(share).min(cap);
    if left <= limit {
        left
    } else if left > tail {
        limit.min(left - tail)
    } else if left <= kv && (left <= budget || budget == whole) {
        left
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::{ChunkRoom, chunk_len};

    const ROOM: ChunkRoom = ChunkRoom { budget: 64, whole: 64, kv: 10_000, cap: usize::MAX, others: false };

    #[track_caller]
    fn check(left: usize, tail: usize, room: ChunkRoom, want: usize) {
        assert_eq!(chunk_len(left, tail, room), want, "left {left} tail {tail} {room:?}");
    }

    #[test]
    fn the_tail_stays_whole() {
        check(10, 4, ROOM, 10);
        check(64, 40, ROOM, 64);
        check(65, 40, ROOM, 25);
        check(100, 40, ROOM, 60);
        check(1000, 40, ROOM, 64);
        check(40, 40, ROOM, 40);
        check(80, 80, ROOM, 80);
        check(81, 80, ROOM, 1);
        let some = ChunkRoom { budget: 20, ..ROOM };
        check(40, 40, some, 0);
        check(41, 40, some, 1);
        check(5, 1, ChunkRoom { budget: 0, ..ROOM }, 0);
    }

    #[test]
    fn a_chunk_fits_the_cache() {
        let full = ChunkRoom { kv: 30, ..ROOM };
        check(100, 1, full, 30);
        check(31, 31, full, 0);
        check(30, 30, full, 30);
        check(31, 30, full, 1);
        check(5, 1, ChunkRoom { kv: 0, ..ROOM }, 0);
    }

    #[test]
    fn a_long_prompt_leaves_a_quarter_to_those_behind_it() {
        let shared = ChunkRoom { others: true, ..ROOM };
        check(257, 1, shared, 48);
        check(256, 1, shared, 64);
        check(257, 1, ROOM, 64);
        check(5000, 1, ChunkRoom { budget: 1, whole: 1, ..shared }, 1);
    }
}
