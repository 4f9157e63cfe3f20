//! Decoding: the device's own part of the answer, after the accepted part.
//!
//! With equal tokenizers the device continues from the cloud's ids. With different ones it encodes the
//! accepted text and goes back to the last stable boundary, where a word begins. From there it writes tokens
//! that agree with the rest of the text, so that its model never sees a word split in an unusual place. Only
//! the text after the accepted part is shown.

use super::command::{EngineEnd, EngineReport, Keep, PromptId};
use super::verify::Verification;
use super::{Decoded, Job, LocalEngine, PassOutcome, SequenceError, Stage};
use baton_engine::detokenize::Detokenizer;
use baton_engine::pace_emulation::PassContent;
use baton_engine::sampling::check_logits;
use baton_engine::tokenizer::{TokenId, Tokenizer};
use baton_engine::{StepControl, StepSeq, Wanted};
use std::ops::Range;
use std::sync::Arc;

/// Most bytes to search back for the start of a word.
const BOUNDARY_BYTES_MAX: usize = 48;

/// Text mode: turns the device's tokens into the text after the accepted part.
struct OwnText {
    detokenizer: Detokenizer,
    /// Bytes of the answer's text decoded so far. A SentencePiece model's first token may have a space that
    /// is not part of it.
    written: usize,
    /// Bytes of accepted text, which must not be shown again.
    skip: usize,
    /// Accepted text with which the next tokens must still agree.
    residual: Vec<u8>,
}

impl OwnText {
    fn push(&mut self, id: TokenId, bytes: &[u8]) -> String {
        if self.residual.starts_with(bytes) {
            self.residual.drain(..bytes.len());
        } else {
            self.residual.clear();
        }
        let text = self.detokenizer.push(id);
        self.visible(&text)
    }

    fn visible(&mut self, text: &str) -> String {
        let hidden = self.skip.saturating_sub(self.written).min(text.len());
        self.written += text.len();
        text[text.ceil_char_boundary(hidden)..].to_owned()
    }

    /// Adds one of the accepted tokens; it ends at byte `end` of the accepted text.
    fn accept(&mut self, id: TokenId, end: usize) {
        // Its text was already shown.
        self.detokenizer.push(id);
        self.written = end.saturating_sub(self.detokenizer.held_bytes());
    }
}

/// An answer being written.
pub(super) struct Decoder {
    /// The answer's ids so far; the last one is not yet in the KV cache.
    pub(super) ids: Vec<TokenId>,
    /// Answer index of the next reported token.
    pub(super) index: usize,
    text: Option<OwnText>,
}

impl Decoder {
    /// Returns the accepted text with which the next tokens must agree.
    fn residual(&self) -> &[u8] {
        self.text.as_ref().map_or(&[], |own| &own.residual)
    }

    /// Returns whether the next token must agree with text that was already shown.
    pub(super) fn is_healing(&self) -> bool {
        !self.residual().is_empty()
    }
}

/// Returns the index of the token that begins the last word of the text.
pub(super) fn stable_boundary(text: &str, spans: &[Range<usize>]) -> usize {
    let bytes = text.as_bytes();
    let last = spans.len().saturating_sub(1);
    (0..spans.len())
        .rev()
        .take_while(|&i| text.len() - spans[i].start <= BOUNDARY_BYTES_MAX)
        .find(|&i| {
            let start = spans[i].start;
            let token_starts_word = bytes.get(start).is_some_and(u8::is_ascii_whitespace);
            text.is_char_boundary(start) && (start == 0 || token_starts_word)
        })
        .unwrap_or(last)
}

impl LocalEngine {
    pub(super) fn decode(
        &mut self,
        prompt: PromptId,
        keep: Keep,
        index: usize,
        reports: &mut Vec<EngineReport>,
    ) -> Result<(), String> {
        let Some(mut job) = self.job.take().filter(|job| job.prompt == prompt) else {
            return Err("decode without a prompt".into());
        };
        let Stage::Decide(verification) = std::mem::replace(&mut job.stage, Stage::Idle) else {
            return Err("decode before the verification pass".into());
        };
        let tokenizer = self.engine.model().tokenizer().clone();
        let kept = match (&verification.text, keep) {
            (None, Keep::Tokens(n)) => n.min(verification.ids.len()),
            (Some((_, spans)), Keep::Bytes(b)) => {
                spans.iter().position(|s| s.start == b).unwrap_or(verification.ids.len())
            }
            _ => verification.ids.len(),
        };
        let heal = verification.text.is_some() && kept == verification.ids.len() && keep == Keep::All;
        let (decoder, first) = if heal {
            self.heal(&job, verification, index, &tokenizer)
        } else {
            let first = verification.choices[kept];
            let text = verification.text.as_ref().map(|(text, spans)| {
                let skip = spans.get(kept).map_or(text.len(), |s| s.start);
                own_text(&tokenizer, &verification.ids[..kept], &spans[..kept], skip, Vec::new())
            });
            let mut ids = verification.ids;
            ids.truncate(kept);
            (Decoder { ids, index, text }, first)
        };
        let in_cache = job.ids.len() + decoder.ids.len();
        self.engine.truncate(self.seq, in_cache).map_err(|err| super::chain(&err))?;
        job.stage = Stage::Decode(decoder);
        self.write(&mut job, first, &tokenizer, reports);
        self.job = Some(job);
        Ok(())
    }

    /// Goes back to the last stable boundary, then forward while the device agrees with the accepted tokens.
    fn heal(
        &self,
        job: &Job,
        verification: Verification,
        index: usize,
        tokenizer: &Arc<Tokenizer>,
    ) -> (Decoder, TokenId) {
        let (text, spans) = verification.text.as_ref().expect("callers have text");
        let vocab_len = self.engine.model().config().vocab_len;
        let mut rows = verification.logits.chunks_exact(vocab_len);
        let mut at = stable_boundary(text, spans);
        let residual = text.as_bytes()[spans[at].start..].to_vec();
        let mut own = own_text(tokenizer, &verification.ids[..at], &spans[..at], text.len(), residual);
        loop {
            let row = rows.next().expect("a row for every token from the boundary on, and one more");
            let ids = &verification.ids[..at];
            let token = sample_agreeing(job, tokenizer, row, ids, &own.residual);
            if own.residual.is_empty() || token != verification.ids[at] {
                let ids = ids.to_vec();
                return (Decoder { ids, index, text: Some(own) }, token);
            }
            own.accept(token, spans[at].end);
            own.residual = text.as_bytes()[spans[at].end..].to_vec();
            at += 1;
        }
    }

    /// Takes a sampled token; reports it, or the end of the answer.
    fn write(
        &mut self,
        job: &mut Job,
        token: TokenId,
        tokenizer: &Tokenizer,
        reports: &mut Vec<EngineReport>,
    ) {
        let Stage::Decode(decoder) = &mut job.stage else { return };
        let prompt = job.prompt;
        if tokenizer.is_end(token) {
            let text = decoder.text.as_mut().map(|own| {
                let rest = own.detokenizer.finish();
                own.visible(&rest)
            });
            reports.push(EngineReport::Ended {
                prompt,
                why: EngineEnd::EndToken,
                text: text.unwrap_or_default(),
            });
            job.stage = Stage::Idle;
            return;
        }
        decoder.ids.push(token);
        let (text, again) = match &mut decoder.text {
            Some(own) => {
                let inside = !own.residual.is_empty();
                let text = own.push(token, tokenizer.token_bytes(token));
                let again = inside && text.is_empty();
                (Some(text), again)
            }
            None => (None, false),
        };
        if !again {
            reports.push(EngineReport::Token { prompt, index: decoder.index, id: token, text });
            decoder.index += 1;
        }
        let why = if decoder.index >= job.spec.tokens_max {
            EngineEnd::TokensMax
        } else if job.ids.len() + decoder.ids.len() >= self.capacity {
            EngineEnd::ContextFull
        } else {
            return;
        };
        reports.push(EngineReport::Ended { prompt, why, text: String::new() });
        job.stage = Stage::Idle;
    }

    /// Runs the last token and the tokens proposed after it through the model. Writes the tokens that the
    /// model chooses: as many as agree with the proposals, and one more.
    pub(super) fn decode_pass(
        &mut self,
        job: &mut Job,
        control: &mut dyn StepControl,
        outcome: &mut PassOutcome,
    ) -> Result<(), SequenceError> {
        let tokenizer = self.engine.model().tokenizer().clone();
        let proposed = self.proposed(job, control)?;
        let Stage::Decode(decoder) = &job.stage else { return Ok(()) };
        let held = self.held();
        let ids = [&decoder.ids[decoder.ids.len() - 1..], &proposed].concat();
        let wanted = if proposed.is_empty() { Wanted::Last } else { Wanted::All };
        let step = StepSeq { seq: self.seq, ids: &ids, logits: wanted, capture: None };
        let mut output = self.engine.step(&[step], control)?;
        outcome.content = PassContent { prompts_begun: 0, prefill_tokens: proposed.len(), decode_rows: 1 };
        let logits = output.pop().map(|o| o.logits).unwrap_or_default();
        let (mut written, mut accepted) = (0, 0);
        for logits in logits.chunks_exact(self.engine.model().config().vocab_len) {
            let Stage::Decode(decoder) = &job.stage else { break };
            check_logits(logits)?;
            let token = sample_agreeing(job, &tokenizer, logits, &decoder.ids, decoder.residual());
            self.write(job, token, &tokenizer, &mut outcome.reports);
            written += 1;
            if proposed.get(accepted) != Some(&token) {
                break;
            }
            accepted += 1;
        }
        if accepted < proposed.len() {
            self.engine.truncate(self.seq, held + 1 + accepted)?;
        }
        if let Some(speculator) = &mut self.speculator {
            speculator.observe(proposed.len(), accepted, written);
        }
        outcome.decoded = Some(Decoded { proposed: proposed.len(), written });
        Ok(())
    }
}

/// Makes the text state after `ids`, the first tokens of the accepted text; `spans` are their bytes in it.
fn own_text(
    tokenizer: &Arc<Tokenizer>,
    ids: &[TokenId],
    spans: &[Range<usize>],
    skip: usize,
    residual: Vec<u8>,
) -> OwnText {
    let mut own = OwnText { detokenizer: Detokenizer::new(tokenizer.clone()), written: 0, skip, residual };
    for (&id, span) in ids.iter().zip(spans) {
        own.accept(id, span.end);
    }
    own
}

/// Samples the next token. If `residual` is not empty, only tokens that agree with it can be chosen, unless
/// there are none.
fn sample_agreeing(
    job: &Job,
    tokenizer: &Tokenizer,
    logits: &[f32],
    ids: &[TokenId],
    residual: &[u8],
) -> TokenId {
    let index = ids.len() as u64;
    if residual.is_empty() {
        return job.sampler.sample(logits, index, ids);
    }
    let mut masked = logits.to_vec();
    let mut any = false;
    for (id, logit) in masked.iter_mut().enumerate() {
        let id = id as TokenId;
        let known = (id as usize) < tokenizer.vocab_len() && !tokenizer.is_control(id);
        let bytes = if known { tokenizer.token_bytes(id) } else { &[] };
        if !bytes.is_empty() && (residual.starts_with(bytes) || bytes.starts_with(residual)) {
            any = true;
        } else {
            *logit = f32::NEG_INFINITY;
        }
    }
    job.sampler.sample(if any { &masked } else { logits }, index, ids)
}
