//! Keeps the start and the end of the content, as a sliding window with attention sinks does.
//!
//! Source: Xiao 2024 (StreamingLLM), which keeps a prompt's first 4 tokens and its last ones. Here the first
//! tokens of the content take that role, because the prompt mostly begins with fixed text, which is always
//! kept.

use baton_refine::Content;

/// Number of tokens at the start that are kept.
const SINK_TOKENS: usize = 4;

/// Keeps the units of the first 4 content tokens, then whole units from the end until the next one does not
/// fit. At least one unit is kept.
pub(crate) fn kept(content: &Content, budget: usize) -> Vec<bool> {
    let mut kept = vec![false; content.units.len()];
    let mut left = budget;
    let mut take = |unit: usize| {
        let fits = kept[unit] || content.cost(unit) <= left;
        if fits && !kept[unit] {
            left -= content.cost(unit);
            kept[unit] = true;
        }
        fits
    };
    for token in content.tokens.iter().take(SINK_TOKENS) {
        take(token.unit);
    }
    let with_tokens = |&unit: &usize| content.cost(unit) > 0;
    for unit in (0..content.units.len()).rev().filter(with_tokens) {
        if !take(unit) {
            break;
        }
    }
    if !kept.contains(&true) {
        let fallback = (0..content.units.len()).rev().filter(with_tokens);
        if let Some(unit) = fallback.min_by_key(|&unit| content.cost(unit)) {
            kept[unit] = true;
        }
    }
    kept
}
