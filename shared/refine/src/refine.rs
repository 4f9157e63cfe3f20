//! Chooses the sentences that are kept, from a prompt and its attention scores.

use std::ops::Range;

use baton_protocol::{Segment, SentenceMap};

use crate::attention;
use crate::bm25;
use crate::budget::{FillRules, fill};
use crate::calibration::Calibration;
use crate::content::{Content, ContentTokens};
use crate::mode::Mode;
use crate::words;

/// The input of [`refine`].
#[derive(Debug, Clone)]
pub struct RefineInput<'a> {
    /// The prompt.
    pub segments: &'a [Segment],
    /// The units of the prompt.
    pub map: &'a SentenceMap,
    /// The tokens of the refinable segments, in prompt order.
    pub content: &'a [ContentTokens<'a>],
    /// Tokens of the whole prompt.
    pub prompt_tokens: usize,
    /// The attention that [`crate::capture_plan`] asked for. Without a calibration every row counts, so there
    /// must be no other rows.
    pub scores: Option<Scores<'a>>,
    /// Calibrated heads of the model, if there are any.
    pub calibration: Option<&'a Calibration>,
    /// The question about the content. The modes `attention` and `bm25` use its words.
    pub question: &'a str,
    /// Share of the content's tokens to keep (r), above 0 and at most 1.
    pub ratio: f32,
    /// Smallest value of a kept sentence, as a share of the best sentence's value, from 0 to 1. So a question
    /// that few sentences answer keeps fewer than `ratio` allows. `None` fills the budget.
    pub least_value: Option<f32>,
    /// How sentences are ranked.
    pub mode: Mode,
}

/// Captured attention: softmax weights, averaged over the window's queries.
#[derive(Debug, Clone)]
pub struct Scores<'a> {
    /// (layer, query head) of each row.
    pub heads: &'a [(usize, usize)],
    /// Number of keys per row: the prompt positions from 0, which must include all content tokens.
    pub keys: usize,
    /// The weights, `[heads, keys]`.
    pub mean: &'a [f32],
    /// Prompt positions of the window's queries. Sentences that contain such a position are kept first.
    pub queries: Range<usize>,
}

/// The sentences that are kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Refined {
    /// One flag per unit of the map; at least one is set. The mask is made from these flags.
    pub kept: Vec<bool>,
    /// Content tokens of the kept units.
    pub kept_tokens: usize,
    /// Content tokens of all units.
    pub content_tokens: usize,
    /// `kept_tokens` divided by `content_tokens` (the realized r).
    pub ratio: f32,
    /// Share of the whole prompt's tokens that is kept.
    pub prompt_ratio: f32,
}

/// Why a refinement failed. The cause is always the calling code or the model, never the user's text.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RefineError {
    /// The prompt has no refinable tokens.
    #[error("the prompt has no refinable tokens")]
    EmptyContent,
    /// The ratio is not a share above 0 and at most 1.
    #[error("ratio is {ratio}, must be over 0 and at most 1")]
    Ratio {
        /// The given ratio.
        ratio: f32,
    },
    /// The smallest value is not a share from 0 to 1.
    #[error("least value is {least}, must be 0 to 1")]
    LeastValue {
        /// The given share.
        least: f32,
    },
    /// Tokens belong to a segment that is not refinable or does not exist.
    #[error("segment {segment} is not a refinable segment of the prompt")]
    Segment {
        /// Its index.
        segment: usize,
    },
    /// Tokens are out of order or beyond the end of the prompt.
    #[error("tokens of segment {segment} end at position {end} of {prompt_tokens}, or overlap those before")]
    Positions {
        /// Its index.
        segment: usize,
        /// The end of its tokens.
        end: usize,
        /// Number of tokens of the prompt.
        prompt_tokens: usize,
    },
    /// A token ends beyond the text of its segment.
    #[error("a token of segment {segment} ends at byte {end}, the text has {len}")]
    Span {
        /// Its index.
        segment: usize,
        /// The end of the token.
        end: usize,
        /// Length of the text in bytes.
        len: usize,
    },
    /// The sentence map was made from other segments.
    #[error("the sentence map has no units for segment {segment}")]
    Map {
        /// Its index.
        segment: usize,
    },
    /// The mode needs attention scores, which are missing.
    #[error("mode `{mode}` needs attention scores")]
    NoScores {
        /// The mode.
        mode: Mode,
    },
    /// The scores have the wrong shape.
    #[error("scores have {len} values for {heads} heads of {keys} keys, the content ends at position {end}")]
    Shape {
        /// Number of values.
        len: usize,
        /// Number of rows.
        heads: usize,
        /// Number of columns.
        keys: usize,
        /// The end of the content.
        end: usize,
    },
    /// A score is NaN or infinite.
    #[error("score {index} is not finite")]
    NotFinite {
        /// Index of the value.
        index: usize,
    },
    /// A unit of a probe does not exist or has no tokens.
    #[error("unit {unit} of {units} has no tokens")]
    Unit {
        /// Its index.
        unit: usize,
        /// Number of units in the map.
        units: usize,
    },
    /// The scores of a probe are of other heads than those of the first probe.
    #[error("a probe's scores are of other heads than those before")]
    OtherHeads,
    /// The attention of a calibrated head was not captured.
    #[error("no scores for layer {layer} head {head}, which the calibration names")]
    MissingHead {
        /// Its layer.
        layer: usize,
        /// Its number in the layer.
        head: usize,
    },
}

/// Ranks the sentences and keeps the best ones that fit into [`Content::budget`].
///
/// The realized ratio is at most `ratio`, unless every sentence is larger than the budget; then the best one
/// is kept. Cost: `O(heads * tokens)` and a sort.
///
/// # Errors
/// [`RefineError`] if the parts of the input do not match each other.
pub fn refine(input: RefineInput<'_>) -> Result<Refined, RefineError> {
    let RefineInput { segments, map, prompt_tokens, .. } = input;
    let content = Content::new(segments, map, input.content, prompt_tokens)?;
    let budget = content.budget(input.ratio)?;
    let kept = match budget < content.tokens.len() {
        true => choose(&input, &content, budget)?,
        false => vec![true; map.len()],
    };
    Ok(content.refined(kept, prompt_tokens))
}

/// Returns which units are kept.
fn choose(input: &RefineInput<'_>, content: &Content, budget: usize) -> Result<Vec<bool>, RefineError> {
    let RefineInput { segments, map, question, mode, least_value, .. } = *input;
    let least = least_value.unwrap_or(0.0);
    if !(0.0..=1.0).contains(&least) {
        return Err(RefineError::LeastValue { least });
    }
    let rules = FillRules { titles: true, gaps: true, least_value: f64::from(least) };
    Ok(match mode {
        Mode::Attention => {
            let scores = input.scores.as_ref().ok_or(RefineError::NoScores { mode })?;
            scores.check(content)?;
            let values = attention::values(map, content, scores, input.calibration)?;
            let values = words::joined(segments, map, question, &values);
            fill(map, content, &values, budget, &covered(content, &scores.queries), rules)
        }
        Mode::Bm25 => fill(map, content, &bm25::values(segments, map, question), budget, &[], rules),
        Mode::None => vec![true; map.len()],
    })
}

impl Scores<'_> {
    /// Checks that there is a finite score for every head and key, and that the keys include the content.
    ///
    /// # Errors
    /// [`RefineError::Shape`], or [`RefineError::NotFinite`] for a NaN or infinite score.
    pub fn check(&self, content: &Content) -> Result<(), RefineError> {
        let Scores { heads, keys, mean, .. } = self;
        let end = content.tokens.last().map_or(0, |token| token.position + 1);
        let fits = heads.len().checked_mul(*keys) == Some(mean.len()) && end <= *keys && !heads.is_empty();
        if !fits {
            return Err(RefineError::Shape { len: mean.len(), heads: heads.len(), keys: *keys, end });
        }
        match mean.iter().position(|value| !value.is_finite()) {
            Some(index) => Err(RefineError::NotFinite { index }),
            None => Ok(()),
        }
    }
}

/// Returns the units that contain queries of the window. There are some only if the suffix is too short, so
/// that the window reaches into the content.
fn covered(content: &Content, queries: &Range<usize>) -> Vec<usize> {
    let inside = content.tokens.iter().filter(|token| queries.contains(&token.position));
    let mut units: Vec<usize> = inside.map(|token| token.unit).collect();
    units.dedup();
    units
}

#[cfg(test)]
mod tests;
