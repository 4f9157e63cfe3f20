//! Baselines that choose tokens or chunks of tokens, and rank sentences by the chosen tokens.
//!
//! A mask names sentences, and a device with another tokenizer cannot rebuild single tokens. So a baseline
//! that chooses tokens returns both: the tokens, and the sentences with the largest share of them.

use baton_refine::{Content, Scores};

/// Tokens per chunk.
const CHUNK_TOKENS: usize = 10;
/// Positions on either side that average-pooling covers: a kernel of 5, as in GemFilter's code.
const AVERAGE_REACH: usize = 2;

/// Sums the attention on each content token over all captured heads.
fn summed(content: &Content, scores: &Scores<'_>) -> Vec<f64> {
    let mut sums = vec![0.0; content.tokens.len()];
    for row in scores.mean.chunks_exact(scores.keys).take(scores.heads.len()) {
        for (sum, token) in sums.iter_mut().zip(&content.tokens) {
            *sum += f64::from(row[token.position]);
        }
    }
    sums
}

/// Chooses the `budget` tokens with the most attention in the captured layer, after average-pooling over the
/// content.
///
/// Source: Shi 2024 (GemFilter), algorithm 1, with softmax weights instead of raw dot products.
pub(crate) fn filtered(content: &Content, scores: &Scores<'_>, budget: usize) -> Vec<bool> {
    let sums = summed(content, scores);
    let pooled: Vec<f64> = (0..sums.len())
        .map(|at| {
            let reach = at.saturating_sub(AVERAGE_REACH)..(at + AVERAGE_REACH + 1).min(sums.len());
            sums[reach.clone()].iter().sum::<f64>() / reach.len() as f64
        })
        .collect();
    let mut order: Vec<usize> = (0..sums.len()).collect();
    order.sort_by(|&a, &b| pooled[b].total_cmp(&pooled[a]));
    let mut chosen = vec![false; sums.len()];
    for &token in order.iter().take(budget) {
        chosen[token] = true;
    }
    chosen
}

/// Chooses whole chunks of ten adjacent tokens by their mean attention, as many as fit into `budget`; a chunk
/// that does not fit is skipped. A chunk never spans two segments.
///
/// Source: Liu 2025 (ChunkKV), algorithm 1, with the mean instead of the sum, so that the short last chunk of
/// a segment can compete.
pub(crate) fn chunks(content: &Content, scores: &Scores<'_>, budget: usize) -> Vec<bool> {
    let sums = summed(content, scores);
    let mut chunks = Vec::new();
    for segment in &content.segments {
        let mut start = segment.start;
        while start < segment.end {
            let end = (start + CHUNK_TOKENS).min(segment.end);
            let mean = sums[start..end].iter().sum::<f64>() / (end - start) as f64;
            chunks.push((mean, start..end));
            start = end;
        }
    }
    chunks.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut chosen = vec![false; sums.len()];
    let mut left = budget;
    for (_, tokens) in chunks {
        if tokens.len() <= left {
            left -= tokens.len();
            chosen[tokens].fill(true);
        }
    }
    chosen
}

/// Returns one value per unit: the share of its tokens that are chosen.
pub(crate) fn shares(content: &Content, chosen: &[bool]) -> Vec<f64> {
    let share = |tokens: &std::ops::Range<usize>| {
        let count = chosen[tokens.clone()].iter().filter(|&&chosen| chosen).count();
        count as f64 / tokens.len().max(1) as f64
    };
    content.units.iter().map(share).collect()
}
