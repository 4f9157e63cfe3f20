//! The paper's votes, for comparison: SnapKV's choice of tokens, and whole sentences by it.
//!
//! Every head of every layer max-pools its window scores over 7 positions and votes for its top `r |C|` content
//! tokens. `paper`: a sentence's value is its votes over its length. `tokens`: the tokens with most votes. No title
//! lines, no closing of gaps.

use std::cmp::Reverse;

use crate::content::Content;
use crate::refine::Scores;

/// Positions on either side that max-pooling reaches: a kernel of 7.
const POOL_REACH: usize = 3;

/// Votes of all heads for each content token. `votes_a_head`: the budget in tokens.
pub(crate) fn votes(content: &Content, scores: &Scores<'_>, votes_a_head: usize) -> Vec<u32> {
    let mut votes = vec![0u32; content.tokens.len()];
    let count = votes_a_head.min(content.tokens.len());
    let mut ranked: Vec<(f32, usize)> = Vec::with_capacity(content.tokens.len());
    for row in scores.mean.chunks_exact(scores.keys).take(scores.heads.len()) {
        ranked.clear();
        ranked.extend(content.tokens.iter().enumerate().map(|(i, token)| (pooled(row, token.position), i)));
        if count > 0 && count < ranked.len() {
            ranked.select_nth_unstable_by(count - 1, |a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        }
        for &(_, token) in &ranked[..count] {
            votes[token] += 1;
        }
    }
    votes
}

/// One value a unit: the votes for its tokens over its length.
pub(crate) fn sentence_values(content: &Content, votes: &[u32]) -> Vec<f64> {
    let value = |tokens: &std::ops::Range<usize>| {
        let sum: u32 = votes[tokens.clone()].iter().sum();
        f64::from(sum) / tokens.len().max(1) as f64
    };
    content.units.iter().map(value).collect()
}

/// The `budget` content tokens with most votes; ties: the earlier.
pub(crate) fn chosen_tokens(votes: &[u32], budget: usize) -> Vec<bool> {
    let mut order: Vec<usize> = (0..votes.len()).collect();
    order.sort_by_key(|&token| Reverse(votes[token]));
    let mut chosen = vec![false; votes.len()];
    for &token in order.iter().take(budget) {
        chosen[token] = true;
    }
    chosen
}

fn pooled(row: &[f32], position: usize) -> f32 {
    let reach = position.saturating_sub(POOL_REACH)..(position + POOL_REACH + 1).min(row.len());
    row[reach].iter().copied().fold(0.0, f32::max)
}

#[cfg(test)]
mod tests;
