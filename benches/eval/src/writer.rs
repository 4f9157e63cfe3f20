//! Greedy decoding with the engine: prefill in chunks, then decoding with tokens proposed from earlier text.
//!
//! Proposed tokens only save time: the answer is exactly what the model alone would write.

use std::sync::Arc;

use baton_engine::detokenize::Detokenizer;
use baton_engine::{
    AttentionScores, Capture, Engine, Sampler, SamplingParams, SeqId, StepControl, StepError, StepSeq,
    TokenId, Tokenizer, Wanted,
};
use baton_generate::answer::{Answer, AnswerEnd, AnswerOptions, TextMode};
use baton_generate::scheduler::{JobId, PrefillEnd, StepRow};
use baton_generate::speculation::{K_MAX, Lookups, Proposer, Want};

use crate::cloud::RunError;

/// Tokens per prefill pass.
pub const CHUNK_TOKENS: usize = 512;
/// The fewest tokens proposed at once. Twice as many more are, as were right the last time.
const PROPOSED_MIN: usize = 2;

/// The answer that a model wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// Its tokens, without the end token.
    pub ids: Vec<TokenId>,
    /// Whether the model ended the answer before the limit.
    pub ended: bool,
}

/// A prompt whose last logits are known.
#[derive(Debug, Clone, Copy)]
pub struct Begun<'a> {
    /// The sequence, which contains the prompt.
    pub seq: SeqId,
    /// The prompt.
    pub prompt: &'a [TokenId],
    /// Logits of the last token, `[v]`.
    pub logits: &'a [f32],
}

/// Makes a sampler that takes the most likely token.
pub fn greedy() -> Sampler {
    Sampler::new(SamplingParams::default()).expect("the default parameters are in range")
}

/// Appends `ids` to the sequence in chunks. Logits and scores are those of the last pass, which contains all
/// of `ids[window_start..]`.
///
/// # Errors
/// [`StepError`]; the sequence then has the length before the failed chunk.
pub fn prefill(
    engine: &mut Engine,
    seq: SeqId,
    ids: &[TokenId],
    window_start: usize,
    capture: Option<&Capture>,
    control: &mut dyn StepControl,
) -> Result<(Vec<f32>, Option<AttentionScores>), StepError> {
    let (head, tail) = ids.split_at(window_start);
    for chunk in head.chunks(CHUNK_TOKENS) {
        engine.step(&[StepSeq { seq, ids: chunk, logits: Wanted::None, capture: None }], control)?;
    }
    let mut output = engine.step(&[StepSeq { seq, ids: tail, logits: Wanted::Last, capture }], control)?;
    let output = output.pop().expect("one sequence gives one output");
    Ok((output.logits, output.scores))
}

/// Writes up to `max_tokens` tokens, at least 1, after a prompt.
///
/// # Errors
/// [`RunError`].
pub fn write(
    engine: &mut Engine,
    begun: Begun<'_>,
    max_tokens: usize,
    control: &mut dyn StepControl,
) -> Result<Written, RunError> {
    let id = JobId(0);
    let mut answer = Answer::new(AnswerOptions {
        tokenizer: Arc::clone(engine.model().tokenizer()),
        vocab_len: engine.model().config().vocab_len,
        sampler: greedy(),
        prompt: begun.prompt.to_vec(),
        continued: Vec::new(),
        max_tokens,
        room_tokens: usize::MAX,
        text: TextMode::Ids,
        constraint: None,
        logprobs: None,
        window: None,
        evidence: None,
    });
    let first = StepRow::Prefill { id, tokens: 0..begun.prompt.len(), end: PrefillEnd::Sampled };
    let (mut lookups, mut out) = (Lookups::default(), Vec::new());
    let mut outcome = answer.took(&first, &[], begun.logits, &mut out);
    while outcome.end.is_none() {
        let room = max_tokens.saturating_sub(answer.tokens().len() + 1);
        let k = (2 * outcome.accepted + PROPOSED_MIN).min(K_MAX).min(room);
        let want = answer.writing().map(|writing| Want { id, writing, k });
        let proposed = lookups.propose(want.as_slice(), control)?.pop().unwrap_or_default();
        let row = StepRow::Decode { id, proposed: proposed.len() };
        let rows = answer.rows(&row, &proposed);
        let held = engine.len(begun.seq)?;
        let step = StepSeq { seq: begun.seq, ids: &rows.ids, logits: rows.logits, capture: None };
        let output = engine.step(&[step], control)?;
        outcome = answer.took_output(&row, &proposed, &output[0], &mut out);
        engine.truncate(begun.seq, held + 1 + outcome.accepted)?;
    }
    match answer.fault() {
        Some(fault) => Err(RunError::Answer(fault.clone())),
        None => Ok(Written { ids: answer.tokens().to_vec(), ended: outcome.end == Some(AnswerEnd::Stop) }),
    }
}

/// Returns the text of an answer's tokens, without an incomplete character at the end.
pub fn text_of(tokenizer: &Arc<Tokenizer>, ids: &[TokenId]) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer.clone());
    ids.iter().map(|&id| detokenizer.push(id)).collect()
}
