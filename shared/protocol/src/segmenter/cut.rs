//! Cutting a unit that is too long.
//!
//! Weight: a CJK character counts 1, any other run without white space 1 for every 24 characters begun. A cut
//! leaves at least 16 before it, so every character is looked at a bounded number of times.

use super::tables::{CUT_WEIGHT_MIN, UNIT_WEIGHT_MAX, WORD_CHARS, clause_rank, is_cjk, is_closer, is_space};

/// Ends of the pieces of `unit`, none heavier than 64; the last one is `unit.len()`.
pub(super) fn piece_ends(unit: &str) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut start = 0;
    while let Some(len) = first_cut(&unit[start..]) {
        start += len;
        ends.push(start);
    }
    ends.push(unit.len());
    ends
}

/// Where to cut the text first; `None` where it is short enough as it stands.
fn first_cut(text: &str) -> Option<usize> {
    let mut weight = 0;
    let mut run_chars = 0;
    let mut word_start = None;
    let mut clause: Option<(u8, usize)> = None;
    let mut previous = ' ';
    let mut pending = 0;
    for (pos, c) in text.char_indices() {
        let starts_piece = !is_space(c) && !is_closer(c);
        if starts_piece
            && pending > 0
            && weight >= CUT_WEIGHT_MIN
            && clause.is_none_or(|(rank, _)| pending >= rank)
        {
            clause = Some((pending, pos));
        }
        if starts_piece {
            pending = 0;
        }
        if is_space(c) {
            pending = pending.max(clause_rank(previous, true));
            run_chars = 0;
        } else if is_cjk(c) {
            weight += 1;
            run_chars = 0;
        } else {
            if run_chars == 0 && weight >= CUT_WEIGHT_MIN {
                word_start = Some(pos);
            }
            weight += usize::from(run_chars % WORD_CHARS == 0);
            run_chars += 1;
        }
        if weight > UNIT_WEIGHT_MAX {
            return Some(clause.map(|(_, at)| at).or(word_start).unwrap_or(pos));
        }
        pending = pending.max(clause_rank(c, false));
        previous = if is_closer(c) { previous } else { c };
    }
    None
}
