//! Chooses the sentences that a ranking keeps, from a prompt and the evidence about it.

use baton_protocol::{Segment, SentenceMap};
use baton_random::{mix, unit};
use baton_refine::{
    Calibration, Content, ContentTokens, Mode, RefineError, RefineInput, Refined, Scores, refine,
};

use crate::perplexity::{self, LogProbs};
use crate::ranking::{Baseline, Ranking, THOUSAND};
use crate::{paper, streaming, token_choice};

/// The input of [`choose`].
#[derive(Debug, Clone)]
pub struct Input<'a> {
    /// The prompt.
    pub segments: &'a [Segment],
    /// The units of the prompt.
    pub map: &'a SentenceMap,
    /// The tokens of the refinable segments, in prompt order.
    pub content: &'a [ContentTokens<'a>],
    /// Tokens of the whole prompt.
    pub prompt_tokens: usize,
    /// The evidence that [`crate::needs`] asked for.
    pub evidence: Evidence<'a>,
    /// Calibrated heads of the model, if there are any.
    pub calibration: Option<&'a Calibration>,
    /// The question about the content. No baseline reads it.
    pub question: &'a str,
    /// Share of the content's tokens to keep (r), over 0 and at most 1.
    pub ratio: f32,
    /// How sentences are ranked.
    pub ranking: Ranking,
}

/// The evidence of a ranking besides the text.
#[derive(Debug, Clone)]
pub enum Evidence<'a> {
    /// Nothing.
    Nothing,
    /// Attention of the cloud's model: exactly the rows that [`crate::needs`] asked for.
    Attention(Scores<'a>),
    /// Log-probabilities of the content's tokens.
    LogProbs(LogProbs<'a>),
}

/// The choice of a ranking.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    /// The sentences that are kept.
    pub refined: Refined,
    /// The chosen tokens, one flag per content token, if the ranking chooses tokens; `None` otherwise. A mask
    /// cannot name tokens; [`crate::rebuild_tokens`] gives their text for evaluation.
    pub tokens: Option<Vec<bool>>,
}

/// Why [`choose`] failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ChoiceError {
    /// The refiner, or one of its checks, failed.
    #[error(transparent)]
    Refine(#[from] RefineError),
    /// The baseline needs attention scores, which are missing.
    #[error("baseline `{baseline}` needs attention scores")]
    NoScores {
        /// The baseline.
        baseline: Baseline,
    },
    /// The baseline needs log-probabilities, which are missing.
    #[error("baseline `{baseline}` needs the log-probability of every content token")]
    NoLogProbs {
        /// The baseline.
        baseline: Baseline,
    },
    /// The number of log-probabilities is not the number of tokens.
    #[error("{len} log-probabilities for {tokens} tokens")]
    LogProbs {
        /// Number of values.
        len: usize,
        /// Number of tokens.
        tokens: usize,
    },
    /// A NaN or infinite log-probability.
    #[error("log-probability {index} is not finite")]
    NotFinite {
        /// Index of the value.
        index: usize,
    },
}

/// Ranks the sentences and keeps the best ones that fit into the budget of [`Content::budget`].
///
/// # Errors
/// [`ChoiceError`] if the parts of `input` do not match each other, or the evidence is missing or not finite.
pub fn choose(input: &Input<'_>) -> Result<Chosen, ChoiceError> {
    match input.ranking {
        Ranking::Mode(mode) => by_mode(input, mode, None),
        Ranking::AtLeast(mode, least) => by_mode(input, mode, Some(f32::from(least) / THOUSAND)),
        Ranking::Baseline(baseline) => by_baseline(input, baseline),
    }
}

fn by_mode(input: &Input<'_>, mode: Mode, least_value: Option<f32>) -> Result<Chosen, ChoiceError> {
    let scores = match &input.evidence {
        Evidence::Attention(scores) => Some(scores.clone()),
        Evidence::Nothing | Evidence::LogProbs(_) => None,
    };
    let refined = refine(RefineInput {
        segments: input.segments,
        map: input.map,
        content: input.content,
        prompt_tokens: input.prompt_tokens,
        scores,
        calibration: input.calibration,
        question: input.question,
        ratio: input.ratio,
        least_value,
        mode,
    })?;
    Ok(Chosen { refined, tokens: None })
}

fn by_baseline(input: &Input<'_>, baseline: Baseline) -> Result<Chosen, ChoiceError> {
    let content = Content::new(input.segments, input.map, input.content, input.prompt_tokens)?;
    let budget = content.budget(input.ratio)?;
    let (kept, tokens) = match budget < content.tokens.len() {
        true => units(input, &content, baseline, budget)?,
        false => (vec![true; input.map.len()], None),
    };
    Ok(Chosen { refined: content.refined(kept, input.prompt_tokens), tokens })
}

/// One flag per unit, and one flag per token if the baseline chooses tokens.
type Kept = (Vec<bool>, Option<Vec<bool>>);

fn units(
    input: &Input<'_>,
    content: &Content,
    baseline: Baseline,
    budget: usize,
) -> Result<Kept, ChoiceError> {
    let by_values = |values: &[f64]| (content.keep_best(input.map, values, budget), None);
    let by_tokens = |tokens: Vec<bool>| {
        let shares = token_choice::shares(content, &tokens);
        (content.keep_best(input.map, &shares, budget), Some(tokens))
    };
    let scores = || checked_scores(input, content, baseline);
    Ok(match baseline {
        Baseline::Paper => {
            let votes = paper::votes(content, scores()?, budget);
            by_values(&paper::sentence_values(content, &votes))
        }
        Baseline::Tokens => {
            let votes = paper::votes(content, scores()?, budget);
            by_tokens(paper::chosen_tokens(&votes, budget))
        }
        Baseline::GemFilter => by_tokens(token_choice::filtered(content, scores()?, budget)),
        Baseline::Chunk => by_tokens(token_choice::chunks(content, scores()?, budget)),
        Baseline::Streaming => (streaming::kept(content, budget), None),
        Baseline::Perplexity => {
            let Evidence::LogProbs(log_probs) = &input.evidence else {
                return Err(ChoiceError::NoLogProbs { baseline });
            };
            by_values(&perplexity::values(input.segments, input.map, log_probs)?)
        }
        Baseline::Random { seed } => {
            let values: Vec<f64> = (0..input.map.len()).map(|at| unit(mix(seed, at as u64))).collect();
            by_values(&values)
        }
    })
}

fn checked_scores<'a>(
    input: &'a Input<'_>,
    content: &Content,
    baseline: Baseline,
) -> Result<&'a Scores<'a>, ChoiceError> {
    let Evidence::Attention(scores) = &input.evidence else {
        return Err(ChoiceError::NoScores { baseline });
    };
    scores.check(content)?;
    Ok(scores)
}
