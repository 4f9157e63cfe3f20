//! Cutting a unit that is too long.
//!
//! Weight: a CJK character counts 1, any other run without white space 1 for every 24 characters begun. A cut
//! leaves at least 16 before it, so every character is looked at a bounded number of times.

use super::tables::{
    CUT_WEIGHT_MIN, UNIT_WEIGHT_MAX, WORD_CHARS, clause_rank, is_cjk, is_closer, is_lower, is_space,
};

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

/// A place to cut: before a character that starts a clause or a word.
struct Place {
    at: usize,
    /// Weight before it.
    weight: usize,
    rank: u8,
}

/// At least the weight of the text, quickly: a run ends at white space or at a character beyond ASCII, and such a
/// character may weigh 1 and start a run after it.
fn weight_bound(text: &str) -> usize {
    let spaces = text.bytes().filter(|&b| b <= b' ').count();
    let beyond_ascii = text.bytes().filter(|&b| b >= 0xc0).count();
    1 + spaces + 2 * beyond_ascii + text.len() / WORD_CHARS
}

/// Where to cut the text first; `None` where it is short enough as it stands. Looks no further than it must.
///
/// The best clause end wins, of equal ones the last, then the last word; a short rest is avoided where possible.
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
        // Closers go with what they close; after white space the same characters open something.
        if is_closer(c) && mark.is_some() && !spaced {
            weight += usize::from(is_cjk(c));
            continue;
        }
        let heavier = is_cjk(c) || run_chars % WORD_CHARS == 0;
        let rank = mark.map_or(0, |mark| clause_rank(mark, spaced, is_lower(c)));
        // What stands in brackets is mostly one thing.
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
