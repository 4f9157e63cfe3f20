//! Cuts a unit that is too long into pieces.
//!
//! Weight is the measure of length: a CJK character has weight 1, and any other run without white space has 1
//! for each 24 characters begun. A cut leaves at least weight 16 before it, so each character is read a
//! bounded number of times.

use super::tables::{
    CUT_WEIGHT_MIN, UNIT_WEIGHT_MAX, WORD_CHARS, clause_rank, is_cjk, is_closer, is_lower, is_space,
};

/// Returns the ends of the pieces of `unit`, none heavier than 64; the last one is `unit.len()`.
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

/// A possible cut: before a character that starts a clause or a word.
struct Place {
    at: usize,
    /// Weight before it.
    weight: usize,
    rank: u8,
}

/// Returns an upper bound of the weight of the text, computed quickly. A run ends at white space or at a
/// character beyond ASCII; such a character may have weight 1 and start a new run after it.
fn weight_bound(text: &str) -> usize {
    let spaces = text.bytes().filter(|&b| b <= b' ').count();
    let beyond_ascii = text.bytes().filter(|&b| b >= 0xc0).count();
    1 + spaces + 2 * beyond_ascii + text.len() / WORD_CHARS
}

/// Returns where to cut the text first, or `None` if it is short enough. Reads no further than needed.
///
/// The highest-ranked clause end wins; among equal ones the last; without any, the last word. A short rest is
/// avoided if possible.
fn first_cut(text: &str) -> Option<usize> {
    if text.len() < UNIT_WEIGHT_MAX * WORD_CHARS && weight_bound(text) <= UNIT_WEIGHT_MAX {
        return None;
    }
    let mut places: Vec<Place> = Vec::new();
    let mut weight = 0;
    let mut run_chars = 0;
    let mut mark: Option<char> = None;
    let mut spaced = false;
    let mut brackets = 0usize;
    for (at, c) in text.char_indices() {
        if weight > UNIT_WEIGHT_MAX + CUT_WEIGHT_MIN {
            break;
        }
        if is_space(c) {
            spaced = true;
            run_chars = 0;
            continue;
        }
        match c {
            '(' | '（' => brackets += 1,
            ')' | '）' => brackets = brackets.saturating_sub(1),
            _ => {}
        }
        // A closing mark stays with what it closes; after white space the same character opens something.
        if is_closer(c) && mark.is_some() && !spaced {
            weight += usize::from(is_cjk(c));
            continue;
        }
        let heavier = is_cjk(c) || run_chars % WORD_CHARS == 0;
        let rank = mark.map_or(0, |mark| clause_rank(mark, spaced, is_lower(c)));
        // Text in brackets usually belongs together.
        let rank = if brackets > 0 { rank.min(u8::from(spaced)) } else { rank };
        if weight >= CUT_WEIGHT_MIN && (heavier || rank > 0) {
            places.push(Place { at, weight, rank });
        }
        run_chars = if is_cjk(c) { 0 } else { run_chars + 1 };
        weight += usize::from(heavier);
        (mark, spaced) = (Some(c), false);
    }
    if weight <= UNIT_WEIGHT_MAX {
        return None;
    }
    let most = UNIT_WEIGHT_MAX.min(weight - CUT_WEIGHT_MIN);
    places
        .iter()
        .filter(|place| place.weight <= most)
        .max_by_key(|place| (place.rank, place.at))
        .map(|place| place.at)
}
