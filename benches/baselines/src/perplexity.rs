//! Ranks sentences by a language model's surprise: text that the model can predict carries the least
//! information.
//!
//! Does not use the question. Source: self-information, Li 2023 (Selective Context). The coarse step of Jiang
//! 2023 (LLMLingua) ranks demonstrations by the same value.

use baton_protocol::{Segment, SentenceMap};
use baton_refine::{Content, ContentTokens};

use crate::choose::ChoiceError;

/// The log-probability of each content token under a language model.
#[derive(Debug, Clone)]
pub struct LogProbs<'a> {
    /// The content in the tokens of that model, whose tokenizer may differ from the one that the budget
    /// counts with. Only the order of the positions matters.
    pub tokens: &'a [ContentTokens<'a>],
    /// `ln p` of each of these tokens given all text before it, in the same order; at most 0.
    pub ln_p: &'a [f32],
}

/// Returns one value per unit: the mean of `-ln p` over its tokens, or 0 if it has no token of that model.
pub(crate) fn values(
    segments: &[Segment],
    map: &SentenceMap,
    log_probs: &LogProbs<'_>,
) -> Result<Vec<f64>, ChoiceError> {
    let LogProbs { tokens, ln_p } = log_probs;
    let content = Content::new(segments, map, tokens, usize::MAX)?;
    if content.tokens.len() != ln_p.len() {
        return Err(ChoiceError::LogProbs { len: ln_p.len(), tokens: content.tokens.len() });
    }
    if let Some(index) = ln_p.iter().position(|value| !value.is_finite()) {
        return Err(ChoiceError::NotFinite { index });
    }
    let mean = |tokens: &std::ops::Range<usize>| {
        let sum: f64 = ln_p[tokens.clone()].iter().map(|&value| -f64::from(value)).sum();
        sum / tokens.len().max(1) as f64
    };
    Ok(content.units.iter().map(mean).collect())
}
