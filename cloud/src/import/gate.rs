//! What an imported model must reach: how near it is to the model without quantization, and how well its
//! heads find the sentences that answer a question.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::Arc;

use baton_corpus::document;
use baton_engine::tokenizer::TokenId;
use baton_engine::{Engine, EngineOptions, Model, SeqId, StepControl, StepSeq, Wanted};
use serde::{Deserialize, Serialize};

use super::{JobControl, JobError, Step};

/// Documents that both models read.
const DOCUMENTS: u64 = 8;
/// Words of each.
const WORDS: usize = 300;
/// The most tokens of each.
const TOKENS_MAX: usize = 512;
/// Fewer say nothing.
const TOKENS_MIN: usize = 32;
/// Tokens in one pass; each has logits over the whole vocabulary.
const PASS_TOKENS: usize = 32;
/// The first seed of the documents.
const SEED: u64 = 3_090_000;

/// The least and the most that a model must reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gate {
    /// The least share of positions at which quantized and unquantized weights choose the same next token.
    pub agreement_min: f64,
    /// The most that the perplexity may be, as a multiple of that of the unquantized weights.
    pub perplexity_ratio_max: f64,
    /// The least share of the sentences that answer a question which a mask keeps at r = .25.
    pub recall_min: f64,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate { agreement_min: 0.85, perplexity_ratio_max: 1.15, recall_min: 0.75 }
    }
}

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Share of positions at which quantized and unquantized weights choose the same next token.
    pub agreement: f64,
    /// Perplexity of the quantized weights on generated documents.
    pub perplexity: f64,
    /// Perplexity of the unquantized weights (F16) on the same.
    pub reference_perplexity: f64,
    /// Positions that these figures are about.
    pub positions: usize,
    /// Recall of answering sentences at r = .25; `None` if no heads were found.
    pub recall: Option<f64>,
}

/// A figure that does not reach the gate.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum Miss {
    /// The weights choose other tokens too often.
    #[error("next-token agreement {found:.3}, must be at least {least:.3} (--agreement-min)")]
    Agreement {
        /// The figure.
        found: f64,
        /// The bound.
        least: f64,
    },
    /// The text surprises the quantized weights too much.
    #[error("perplexity ratio {found:.3}, must be at most {most:.3} (--perplexity-ratio-max)")]
    Perplexity {
        /// The figure.
        found: f64,
        /// The bound.
        most: f64,
    },
    /// Masks lose too many of the sentences that matter.
    #[error("recall {found:.3}, must be at least {least:.3} (--recall-min)")]
    Recall {
        /// The figure.
        found: f64,
        /// The bound.
        least: f64,
    },
}

impl Gate {
    /// Returns what is missed. A figure that is not a number is missed.
    pub fn misses(&self, figures: &Figures) -> Vec<Miss> {
        let mut misses = Vec::new();
        let (found, least) = (figures.agreement, self.agreement_min);
        if is_below(found, least) {
            misses.push(Miss::Agreement { found, least });
        }
        let (found, most) = (figures.perplexity / figures.reference_perplexity, self.perplexity_ratio_max);
        if is_below(most, found) {
            misses.push(Miss::Perplexity { found, most });
        }
        let least = self.recall_min;
        if let Some(found) = figures.recall.filter(|found| is_below(*found, least)) {
            misses.push(Miss::Recall { found, least });
        }
        misses
    }
}

/// Returns whether a number is less than a bound, or one of them is not a number.
fn is_below(number: f64, bound: f64) -> bool {
    number < bound || number.is_nan() || bound.is_nan()
}

/// Lets both models read the same documents.
pub(super) fn compare(
    model: &Arc<Model>,
    reference: &Arc<Model>,
    threads: Option<NonZeroUsize>,
    control: &mut dyn JobControl,
) -> Result<Figures, JobError> {
    let tokens_max = model.config().context_len.min(TOKENS_MAX);
    if tokens_max < TOKENS_MIN {
        return Err(JobError::Context { context_len: model.config().context_len, min: TOKENS_MIN });
    }
    let mut readers = [Reader::new(model, threads)?, Reader::new(reference, threads)?];
    let (mut equal, mut positions) = (0, 0);
    let mut surprises = [0.0; 2];
    for at in 0..DOCUMENTS {
        control.progress(Step::Compare, at, DOCUMENTS);
        let mut ids = model.tokenizer().encode(&document(SEED + at, WORDS).text);
        ids.truncate(tokens_max);
        let read = [readers[0].read(&ids, control)?, readers[1].read(&ids, control)?];
        equal += read[0].best.iter().zip(&read[1].best).filter(|(one, other)| one == other).count();
        positions += ids.len().saturating_sub(1);
        surprises[0] += read[0].surprise;
        surprises[1] += read[1].surprise;
    }
    control.progress(Step::Compare, DOCUMENTS, DOCUMENTS);
    let perplexity = |surprise: f64| (surprise / positions.max(1) as f64).exp();
    Ok(Figures {
        agreement: equal as f64 / positions.max(1) as f64,
        perplexity: perplexity(surprises[0]),
        reference_perplexity: perplexity(surprises[1]),
        positions,
        recall: None,
    })
}

/// An engine that reads documents.
struct Reader {
    engine: Engine,
    vocab_len: usize,
}

/// What a model makes of a document, at every position but the last.
struct ReadText {
    /// The most probable next token.
    best: Vec<TokenId>,
    /// Sum of minus the logarithm of the probability of the token that comes.
    surprise: f64,
}

impl Reader {
    fn new(model: &Arc<Model>, threads: Option<NonZeroUsize>) -> Result<Reader, JobError> {
        let options = EngineOptions { threads, kv_tokens: 2 * TOKENS_MAX, ..EngineOptions::default() };
        let engine = Engine::new(model.clone(), options).map_err(Box::new)?;
        Ok(Reader { engine, vocab_len: model.config().vocab_len })
    }

    fn read(&mut self, ids: &[TokenId], control: &dyn JobControl) -> Result<ReadText, JobError> {
        let seq = self.engine.create();
        let read = self.read_on(seq, ids, control);
        self.engine.release(seq);
        read
    }

    fn read_on(
        &mut self,
        seq: SeqId,
        ids: &[TokenId],
        control: &dyn JobControl,
    ) -> Result<ReadText, JobError> {
        let mut text = ReadText { best: Vec::with_capacity(ids.len()), surprise: 0.0 };
        for (at, part) in ids.chunks(PASS_TOKENS).enumerate() {
            let batch = [StepSeq { seq, ids: part, logits: Wanted::All, capture: None }];
            let outputs = match self.engine.step(&batch, &mut Stop(control)) {
                Err(_) if control.stopped() => return Err(JobError::Stopped),
                outputs => outputs.map_err(Box::new)?,
            };
            let next = &ids[at * PASS_TOKENS + 1..];
            for (row, next) in outputs[0].logits.chunks(self.vocab_len).zip(next) {
                text.best.push(best(row));
                text.surprise += surprise(row, *next);
            }
        }
        Ok(text)
    }
}

/// Cancels a pass if the job should stop.
struct Stop<'a>(&'a dyn JobControl);

impl StepControl for Stop<'_> {
    fn after_layer(&mut self, _done: usize, _total: usize) -> ControlFlow<()> {
        if self.0.stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Returns the most probable token; of equal ones the lowest.
fn best(row: &[f32]) -> TokenId {
    let better = |best: usize, at: usize| if row[at] > row[best] { at } else { best };
    (0..row.len()).reduce(better).unwrap_or(0) as TokenId
}

/// Returns minus the logarithm of the probability that these logits give to a token.
fn surprise(row: &[f32], id: TokenId) -> f64 {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|logit| f64::from(logit - most).exp()).sum();
    sum.ln() - f64::from(row[id as usize] - most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_names_every_figure_that_misses_it() {
        let gate = Gate::default();
        let good = Figures {
            agreement: 0.9,
            perplexity: 10.5,
            reference_perplexity: 10.0,
            positions: 9,
            recall: None,
        };
        assert_eq!(gate.misses(&good), []);
        assert_eq!(gate.misses(&Figures { recall: Some(0.75), ..good }), []);
        let bad = Figures { agreement: 0.5, perplexity: 20.0, recall: Some(0.5), ..good };
        let words: Vec<String> = gate.misses(&bad).iter().map(ToString::to_string).collect();
        assert_eq!(words.len(), 3, "{words:?}");
        assert!(words[0].contains("0.500, must be at least 0.850"), "{words:?}");
        assert!(words[1].contains("2.000, must be at most 1.150"), "{words:?}");
        assert!(words[2].contains("--recall-min"), "{words:?}");
        let nan = Figures { agreement: f64::NAN, perplexity: f64::NAN, recall: Some(f64::NAN), ..good };
        assert_eq!(gate.misses(&nan).len(), 3);
    }

    #[test]
    fn surprise_is_minus_the_log_probability() {
        let row = [1.0, 1.0, 1.0 + 2f32.ln()];
        assert!((surprise(&row, 2) - 2f64.ln()).abs() < 1e-6);
        assert_eq!((best(&row), best(&[3.0, 3.0])), (2, 0));
    }
}
