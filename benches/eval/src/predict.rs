//! How well a model predicts answers from a prompt, without writing one.
//!
//! For models that are too small to answer most questions, the score of answers is at its floor in every arm.
//! Two measures still tell prompts apart: the probability of the right answer, and the share of the cloud's
//! own answer that the model would have written too. The second needs no right answer. Both come from
//! passes over known tokens (teacher forcing).

use std::num::NonZeroUsize;
use std::sync::Arc;

use baton_engine::{Engine, EngineError, Model, SeqId, StepControl, StepSeq, TokenId, Tokenizer, Wanted};
use baton_protocol::Segment;

use crate::cloud::{RunError, assembled, engine_options, log_prob};
use crate::writer::prefill;

/// A model that predicts.
#[derive(Debug)]
pub struct Predictor {
    engine: Engine,
}

/// What is to be predicted.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// Right answers; the most probable one counts.
    pub right: &'a [String],
    /// The cloud's answer, in tokens of the same tokenizer; `None` if there is none.
    pub cloud: Option<&'a [TokenId]>,
}

/// How well it was predicted.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Predicted {
    /// Mean natural logarithm of the probability of the right answer's tokens.
    pub right_ln_p: Option<f64>,
    /// Share of the tokens of the cloud's answer that the model finds most probable too.
    pub acceptance: Option<f64>,
}

impl Predictor {
    /// Makes an engine with this model.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn new(model: Arc<Model>, threads: NonZeroUsize) -> Result<Self, EngineError> {
        let options = engine_options(&model, threads);
        Ok(Self { engine: Engine::new(model, options)? })
    }

    /// Reads a prompt and predicts; also returns the number of the prompt's tokens.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn predict(
        &mut self,
        segments: &[Segment],
        known: Known<'_>,
        control: &mut dyn StepControl,
    ) -> Result<(Predicted, usize), RunError> {
        let model = self.engine.model().clone();
        let ids = assembled(&model, segments)?.ids;
        let limit = model.config().context_len.saturating_sub(1);
        if ids.len() > limit {
            return Err(RunError::TooLong { tokens: ids.len(), limit });
        }
        let seq = self.engine.create();
        let held = self.engine.reuse_prefix(seq, &ids[..ids.len() - 1]);
        let start = ids.len() - 1 - held;
        let done = prefill(&mut self.engine, seq, &ids[held..], start, None, control)
            .map_err(RunError::from)
            .and_then(|(logits, _)| {
                let prompt = ReadPrompt { seq, last: ids[ids.len() - 1], logits: &logits };
                predict(&mut self.engine, prompt, known, control)
            });
        self.engine.release(seq);
        Ok((done?, ids.len()))
    }
}

/// A prompt that an engine has read.
#[derive(Debug, Clone, Copy)]
pub struct ReadPrompt<'a> {
    /// The sequence that holds it.
    pub seq: SeqId,
    /// Its last token.
    pub last: TokenId,
    /// Logits of its last token, `[v]`.
    pub logits: &'a [f32],
}

/// Predicts after a prompt. The sequence is as before afterwards.
///
/// # Errors
/// [`RunError`].
pub fn predict(
    engine: &mut Engine,
    prompt: ReadPrompt<'_>,
    known: Known<'_>,
    control: &mut dyn StepControl,
) -> Result<Predicted, RunError> {
    let tokenizer = engine.model().tokenizer().clone();
    let mut best: Option<f64> = None;
    for answer in known.right {
        let ids = answer_ids(&tokenizer, prompt.last, answer);
        let rows = rows_after(engine, prompt, &ids, control)?;
        let sum: f64 = rows.iter().zip(&ids).map(|(row, &id)| f64::from(log_prob(row, id))).sum();
        if !ids.is_empty() {
            let mean = sum / ids.len() as f64;
            best = Some(best.map_or(mean, |best| best.max(mean)));
        }
    }
    let cloud = known.cloud.filter(|cloud| !cloud.is_empty());
    let acceptance = match cloud {
        None => None,
        Some(cloud) => {
            let rows = rows_after(engine, prompt, cloud, control)?;
            let same = rows.iter().zip(cloud).filter(|(row, id)| most_probable(row) == **id).count();
            Some(same as f64 / cloud.len() as f64)
        }
    };
    Ok(Predicted { right_ln_p: best, acceptance })
}

/// Returns the tokens of an answer. If the prompt ends in the middle of a line, as prompts of base models do,
/// a space comes before the answer.
fn answer_ids(tokenizer: &Arc<Tokenizer>, last: TokenId, answer: &str) -> Vec<TokenId> {
    let in_line = !tokenizer.is_control(last)
        && tokenizer.token_bytes(last).last().is_some_and(|byte| !byte.is_ascii_whitespace());
    let text = if in_line { format!(" {answer}") } else { answer.to_owned() };
    tokenizer.encode_answer(&text).0
}

/// Returns the logits before each of these tokens, as if they followed the prompt.
fn rows_after(
    engine: &mut Engine,
    prompt: ReadPrompt<'_>,
    ids: &[TokenId],
    control: &mut dyn StepControl,
) -> Result<Vec<Vec<f32>>, RunError> {
    let mut rows = vec![prompt.logits.to_vec()];
    let given = &ids[..ids.len().saturating_sub(1)];
    if !given.is_empty() {
        let (held, vocab_len) = (engine.len(prompt.seq)?, engine.model().config().vocab_len);
        let step = StepSeq { seq: prompt.seq, ids: given, logits: Wanted::All, capture: None };
        let output = engine.step(&[step], control)?;
        rows.extend(output[0].logits.chunks_exact(vocab_len).map(<[f32]>::to_vec));
        engine.truncate(prompt.seq, held)?;
    }
    Ok(rows)
}

/// Returns the most probable token, as greedy sampling takes it.
fn most_probable(logits: &[f32]) -> TokenId {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as TokenId
}
