//! The votes of the P/D-Device paper, for comparison: SnapKV's choice of tokens, and the sentences that
//! follow from it.
//!
//! Every head of every layer max-pools its window scores over 7 positions and votes for its top `r |C|`
//! content tokens. `paper`: a sentence's value is its votes divided by its length. `tokens`: the tokens with
//! the most votes. No title lines are added and no gaps are closed.

use std::cmp::Reverse;

use baton_refine::{Content, Scores};

/// Positions on either side that max-pooling covers: a kernel of 7.
const POOL_REACH: usize = 3;

/// Counts the votes of all heads for each content token. `votes_a_head`: votes of each head, which is the
/// budget in tokens.
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

/// Returns one value per unit: the votes for its tokens divided by its number of tokens.
pub(crate) fn sentence_values(content: &Content, votes: &[u32]) -> Vec<f64> {
    let value = |tokens: &std::ops::Range<usize>| {
        let sum: u32 = votes[tokens.clone()].iter().sum();
        f64::from(sum) / tokens.len().max(1) as f64
    };
    content.units.iter().map(value).collect()
}

/// Chooses the `budget` content tokens with the most votes; among equal ones, the earlier.
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
