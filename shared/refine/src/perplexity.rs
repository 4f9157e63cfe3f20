//! Pruning by a language model's surprise: what it could have guessed says least.
//!
//! Knows no question. Source: the self-information of Li 2023 (Selective Context), which is also what the coarse step of
//! Jiang 2023 (LLMLingua) ranks demonstrations by.

use baton_protocol::{Segment, SentenceMap};

use crate::content::{Content, ContentTokens};
use crate::refine::RefineError;

/// How well a language model could guess each content token.
#[derive(Debug, Clone)]
pub struct LogProbs<'a> {
    /// The content in the tokens of that model, which may be others than those that the budget counts; of the
    /// positions only their order matters.
    pub tokens: &'a [ContentTokens<'a>],
    /// Of each of these tokens, in their order, `ln p` given all that stands before it: at most 0.
    pub ln_p: &'a [f32],
}

/// One value a unit: the mean of `-ln p` over its tokens, 0 where that model has none there.
pub(crate) fn values(
    segments: &[Segment],
    map: &SentenceMap,
    log_probs: &LogProbs<'_>,
) -> Result<Vec<f64>, RefineError> {
    let LogProbs { tokens, ln_p } = log_probs;
    let content = Content::new(segments, map, tokens, usize::MAX)?;
    if content.tokens.len() != ln_p.len() {
        return Err(RefineError::LogProbs { len: ln_p.len(), tokens: content.tokens.len() });
    }
    if let Some(index) = ln_p.iter().position(|value| !value.is_finite()) {
        return Err(RefineError::NotFinite { index });
    }
    let mean = |tokens: &std::ops::Range<usize>| {
        let sum: f64 = ln_p[tokens.clone()].iter().map(|&value| -f64::from(value)).sum();
        sum / tokens.len().max(1) as f64
    };
    Ok(content.units.iter().map(mean).collect())
}
