//! The paper's ranking, for comparison: as SnapKV, but whole sentences.
//!
//! Every head of every layer max-pools its window scores over 7 positions and votes for its top `r |C|` content
//! tokens; a sentence's value is its votes over its length. No title lines, no closing of gaps.

use crate::content::Content;
use crate::refine::Scores;

/// Positions on either side that max-pooling reaches: a kernel of 7.
const POOL_REACH: usize = 3;

/// One value a unit: votes of all heads for its tokens, over its length. `votes_a_head`: the budget in tokens.
pub(crate) fn values(content: &Content, scores: &Scores<'_>, votes_a_head: usize) -> Vec<f64> {
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
    let value = |tokens: &std::ops::Range<usize>| {
        let sum: u32 = votes[tokens.clone()].iter().sum();
        f64::from(sum) / tokens.len().max(1) as f64
    };
    content.units.iter().map(value).collect()
}

fn pooled(row: &[f32], position: usize) -> f32 {
    let reach = position.saturating_sub(POOL_REACH)..(position + POOL_REACH + 1).min(row.len());
    row[reach].iter().copied().fold(0.0, f32::max)
}
