//! One call from a prompt and its evidence to the sentences that are kept.

use std::ops::Range;

use baton_protocol::{Segment, SentenceMap};

use crate::attention;
use crate::bm25;
use crate::budget::{FillRules, fill, token_budget};
use crate::calibration::Calibration;
use crate::content::{Content, ContentTokens};
use crate::mode::Mode;
use crate::paper;
use crate::perplexity::{self, LogProbs};
use crate::streaming;
use crate::token_choice;
use crate::words;

/// What a refinement needs to know.
#[derive(Debug, Clone)]
pub struct RefineInput<'a> {
    /// The prompt.
    pub segments: &'a [Segment],
    /// Its units.
    pub map: &'a SentenceMap,
    /// Where the tokens of its refinable segments are, in prompt order.
    pub content: &'a [ContentTokens<'a>],
    /// Tokens of the whole prompt.
    pub prompt_tokens: usize,
    /// What [`crate::needs`] asked for.
    pub evidence: Evidence<'a>,
    /// Calibrated heads of the model, if there are some.
    pub calibration: Option<&'a Calibration>,
    /// What is asked about the content: its words count in the modes `attention` and `bm25`.
    pub question: &'a str,
    /// Share of the content's tokens to keep (r), over 0 and at most 1.
    pub ratio: f32,
    /// How sentences are ranked.
    pub mode: Mode,
}

/// What a ranking goes by besides the text.
#[derive(Debug, Clone)]
pub enum Evidence<'a> {
    /// Nothing.
    Nothing,
    /// Attention of the cloud's model. All rows count, so an uncalibrated mode must be given those that it asked for and no others.
    Attention(Scores<'a>),
    /// Log-probabilities of the content's tokens.
    LogProbs(LogProbs<'a>),
}

/// Captured attention: softmax weights, mean over the window's queries.
#[derive(Debug, Clone)]
pub struct Scores<'a> {
    /// (layer, query head) of each row.
    pub heads: &'a [(usize, usize)],
    /// Keys, that is prompt positions from 0, of each row; the content's must be among them.
    pub keys: usize,
    /// `[heads, keys]`.
    pub mean: &'a [f32],
    /// Prompt positions of the window's queries. Sentences that they reach into are kept.
    pub queries: Range<usize>,
}

/// Which sentences are kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Refined {
    /// One flag a unit of the map; at least one is set. What a mask says and a device rebuilds, whatever the mode.
    pub kept: Vec<bool>,
    /// One flag a content token where the mode chose tokens: its own choice, to be measured by [`crate::rebuild_tokens`].
    /// No mask can carry it. None for every other mode.
    pub tokens: Option<Vec<bool>>,
    /// Content tokens of the kept units.
    pub kept_tokens: usize,
    /// Content tokens of all units.
    pub content_tokens: usize,
    /// Their quotient (the realized r).
    pub ratio: f32,
    /// Share of the whole prompt's tokens that is kept.
    pub prompt_ratio: f32,
}

/// Why a refinement was refused. All of them are the caller's or the model's fault, none the reader's.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RefineError {
    /// There is nothing to refine.
    #[error("the prompt has no refinable tokens")]
    EmptyContent,
    /// A ratio that is no share.
    #[error("ratio is {ratio}, must be over 0 and at most 1")]
    Ratio {
        /// What was asked for.
        ratio: f32,
    },
    /// Tokens of a segment that is not refinable or does not exist.
    #[error("segment {segment} is not a refinable segment of the prompt")]
    Segment {
        /// Its index.
        segment: usize,
    },
    /// Tokens out of order or beyond the prompt.
    #[error("tokens of segment {segment} end at position {end} of {prompt_tokens}, or overlap those before")]
    Positions {
        /// Its index.
        segment: usize,
        /// Where its tokens would end.
        end: usize,
        /// Tokens of the prompt.
        prompt_tokens: usize,
    },
    /// A token's bytes outside its segment.
    #[error("a token of segment {segment} ends at byte {end}, the text has {len}")]
    Span {
        /// Its index.
        segment: usize,
        /// Where the token ends.
        end: usize,
        /// Bytes of the text.
        len: usize,
    },
    /// A sentence map of other segments.
    #[error("the sentence map has no units for segment {segment}")]
    Map {
        /// Its index.
        segment: usize,
    },
    /// The mode needs scores.
    #[error("mode `{mode}` needs attention scores")]
    NoScores {
        /// The mode.
        mode: Mode,
    },
    /// The mode needs log-probabilities.
    #[error("mode `{mode}` needs the log-probability of every content token")]
    NoLogProbs {
        /// The mode.
        mode: Mode,
    },
    /// Log-probabilities of other tokens.
    #[error("{len} log-probabilities for {tokens} tokens")]
    LogProbs {
        /// Values that are there.
        len: usize,
        /// Tokens announced.
        tokens: usize,
    },
    /// Scores of the wrong shape.
    #[error("scores have {len} values for {heads} heads of {keys} keys, the content ends at position {end}")]
    Shape {
        /// Values that are there.
        len: usize,
        /// Rows announced.
        heads: usize,
        /// Columns announced.
        keys: usize,
        /// Where the content ends.
        end: usize,
    },
    /// A NaN or infinite score or log-probability.
    #[error("score {index} is not finite")]
    NotFinite {
        /// Index of the value.
        index: usize,
    },
    /// A unit of a probe that is not there or has no tokens.
    #[error("unit {unit} of {units} has no tokens")]
    Unit {
        /// Its index.
        unit: usize,
        /// Units of the map.
        units: usize,
    },
    /// A probe with scores of other heads than the first one's.
    #[error("a probe's scores are of other heads than those before")]
    OtherHeads,
    /// A calibrated head that was not captured.
    #[error("no scores for layer {layer} head {head}, which the calibration names")]
    MissingHead {
        /// Its layer.
        layer: usize,
        /// Its number in the layer.
        head: usize,
    },
}

/// Ranks the sentences and keeps the best that fit into `floor(ratio * content tokens)`.
///
/// The realized ratio is at most `ratio`, unless every sentence is larger than the budget: then the best one is kept
/// all the same. Cost: `O(heads * tokens)` and a sort.
///
/// # Errors
/// [`RefineError`] if the parts do not fit each other; nothing is ever kept by guessing then.
pub fn refine(input: RefineInput<'_>) -> Result<Refined, RefineError> {
    let RefineInput { segments, map, ratio, mode, .. } = input;
    if !(ratio > 0.0 && ratio <= 1.0) {
        return Err(RefineError::Ratio { ratio });
    }
    let content = Content::new(segments, map, input.content, input.prompt_tokens)?;
    if content.tokens.is_empty() {
        return Err(RefineError::EmptyContent);
    }
    let budget = token_budget(ratio, content.tokens.len());
    let (kept, tokens) = match mode {
        _ if budget >= content.tokens.len() => (vec![true; map.len()], None),
        mode => choose(&input, &content, mode, budget)?,
    };
    let kept_tokens = (0..map.len()).filter(|&unit| kept[unit]).map(|unit| content.cost(unit)).sum();
    let content_tokens = content.tokens.len();
    let share = |part: usize, whole: usize| (part as f64 / whole as f64) as f32;
    Ok(Refined {
        kept,
        tokens,
        kept_tokens,
        content_tokens,
        ratio: share(kept_tokens, content_tokens),
        prompt_ratio: share(input.prompt_tokens - content_tokens + kept_tokens, input.prompt_tokens),
    })
}

/// The units that are kept, and the tokens where the mode chooses such.
type Chosen = (Vec<bool>, Option<Vec<bool>>);

fn choose(
    input: &RefineInput<'_>,
    content: &Content,
    mode: Mode,
    budget: usize,
) -> Result<Chosen, RefineError> {
    let RefineInput { segments, map, .. } = *input;
    let plain = FillRules::default();
    let full = FillRules { titles: true, gaps: true };
    let by_tokens = |tokens: Vec<bool>| {
        let kept = fill(map, content, &token_choice::shares(content, &tokens), budget, &[], plain);
        (kept, Some(tokens))
    };
    let filled = |values: &[f64], rules| (fill(map, content, values, budget, &[], rules), None);
    Ok(match mode {
        Mode::None => (vec![true; map.len()], None),
        Mode::Attention => {
            let scores = checked_scores(input, content)?;
            let values = attention::values(map, content, scores, input.calibration)?;
            let values = words::joined(segments, map, input.question, &values);
            (fill(map, content, &values, budget, &covered(content, &scores.queries), full), None)
        }
        Mode::Paper => {
            let votes = paper::votes(content, checked_scores(input, content)?, budget);
            filled(&paper::sentence_values(content, &votes), plain)
        }
        Mode::Tokens => {
            let votes = paper::votes(content, checked_scores(input, content)?, budget);
            by_tokens(paper::chosen_tokens(&votes, budget))
        }
        Mode::GemFilter => {
            by_tokens(token_choice::filtered(content, checked_scores(input, content)?, budget))
        }
        Mode::Chunk => by_tokens(token_choice::chunks(content, checked_scores(input, content)?, budget)),
        Mode::Bm25 => filled(&bm25::values(segments, map, input.question), full),
        Mode::Streaming => (streaming::kept(content, budget), None),
        Mode::Perplexity => {
            let Evidence::LogProbs(log_probs) = &input.evidence else {
                return Err(RefineError::NoLogProbs { mode });
            };
            filled(&perplexity::values(segments, map, log_probs)?, plain)
        }
        Mode::Random { seed } => {
            let values: Vec<f64> = (0..map.len()).map(|unit| random(seed, unit as u64)).collect();
            filled(&values, plain)
        }
    })
}

fn checked_scores<'a>(input: &'a RefineInput<'_>, content: &Content) -> Result<&'a Scores<'a>, RefineError> {
    let Evidence::Attention(scores) = &input.evidence else {
        return Err(RefineError::NoScores { mode: input.mode });
    };
    check_shape(scores, content)?;
    Ok(scores)
}

/// Checks that the scores are numbers, as many as announced, and reach over the content.
pub(crate) fn check_shape(scores: &Scores<'_>, content: &Content) -> Result<(), RefineError> {
    let Scores { heads, keys, mean, .. } = scores;
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

/// Units that the window's queries reach into: where the suffix is too short for a window, the content's end.
fn covered(content: &Content, queries: &Range<usize>) -> Vec<usize> {
    let inside = content.tokens.iter().filter(|token| queries.contains(&token.position));
    let mut units: Vec<usize> = inside.map(|token| token.unit).collect();
    units.dedup();
    units
}

/// A number in 0..1 that depends on nothing but seed and index (SplitMix64's finalizer).
fn random(seed: u64, index: u64) -> f64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests;
