//! Greedy decoding with the engine: prefill in chunks, then decoding with tokens proposed from earlier text.
//!
//! Proposed tokens only save time: the answer is exactly what the model alone would write.

use std::sync::Arc;

use baton_engine::detokenize::Detokenizer;
use baton_engine::speculation::{Lookup, Policy, Proposer, Speculator, Writing};
use baton_engine::{
    AttentionScores, Capture, Engine, Sampler, SamplingParams, SeqId, StepControl, StepError, StepSeq,
    TokenId, Tokenizer, Wanted,
};

/// Tokens per prefill pass.
pub const CHUNK_TOKENS: usize = 512;

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

/// Writes up to `max_tokens` tokens after a prompt.
///
/// # Errors
/// [`StepError`].
pub fn write(
    engine: &mut Engine,
    begun: Begun<'_>,
    max_tokens: usize,
    control: &mut dyn StepControl,
) -> Result<Written, StepError> {
    let tokenizer = engine.model().tokenizer().clone();
    let vocab_len = engine.model().config().vocab_len;
    let sampler = greedy();
    let mut speculator = Speculator::new(Proposer::Lookup(Lookup::default()), Policy::Always);
    let mut written = Written::default();
    let mut next = sampler.sample(begun.logits, 0, &[]);
    loop {
        if tokenizer.is_end(next) {
            written.ended = true;
            return Ok(written);
        }
        if written.ids.len() >= max_tokens {
            return Ok(written);
        }
        written.ids.push(next);
        if written.ids.len() == max_tokens {
            return Ok(written);
        }
        let room = max_tokens - written.ids.len();
        let writing = Writing { prompt: begun.prompt, answer: &written.ids, sampler: &sampler };
        let proposed = speculator.propose(writing, room, control)?;
        let held = engine.len(begun.seq)?;
        let ids: Vec<TokenId> = std::iter::once(next).chain(proposed.iter().copied()).collect();
        let step = StepSeq { seq: begun.seq, ids: &ids, logits: Wanted::All, capture: None };
        let output = engine.step(&[step], control)?;
        let mut accepted = 0;
        for row in output[0].logits.chunks_exact(vocab_len) {
            next = sampler.sample(row, written.ids.len() as u64, &written.ids);
            if tokenizer.is_end(next) || proposed.get(accepted) != Some(&next) {
                break;
            }
            written.ids.push(next);
            accepted += 1;
        }
        engine.truncate(begun.seq, held + 1 + accepted)?;
        speculator.observe(proposed.len(), accepted, accepted + 1);
    }
}

/// Returns the text of an answer's tokens, without an incomplete character at the end.
pub fn text_of(tokenizer: &Arc<Tokenizer>, ids: &[TokenId]) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer.clone());
    ids.iter().map(|&id| detokenizer.push(id)).collect()
}
