//! Going on behind a part that another model wrote.
//!
//! Pure. With equal tokenizers the answer goes on from the other side's ids. With different ones it encodes
//! the accepted text and goes back to the last stable boundary, where a word begins. From there it writes
//! tokens that agree with the rest of the text, so that the model never sees a word split in an unusual
//! place. Only the text behind the accepted part is shown.

use std::ops::Range;
use std::sync::Arc;

use baton_engine::Sampler;
use baton_engine::detokenize::Detokenizer;
use baton_engine::tokenizer::{TokenId, Tokenizer};

use super::verify::{Keep, Verification, agrees};

/// Most bytes to search back for the start of a word.
const BOUNDARY_BYTES_MAX: usize = 48;

/// Turns the own tokens into the text behind the accepted part.
#[derive(Debug)]
pub(super) struct OwnText {
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
    /// Makes the state after `ids`, the first tokens of the accepted text; `spans` are their bytes in it.
    fn after(
        tokenizer: &Arc<Tokenizer>,
        ids: &[TokenId],
        spans: &[Range<usize>],
        skip: usize,
        residual: Vec<u8>,
    ) -> OwnText {
        let detokenizer = Detokenizer::new(tokenizer.clone());
        let mut own = OwnText { detokenizer, written: 0, skip, residual };
        for (&id, span) in ids.iter().zip(spans) {
            own.accept(id, span.end);
        }
        own
    }

    /// Returns the accepted text with which the next tokens must agree.
    pub(super) fn residual(&self) -> &[u8] {
        &self.residual
    }

    /// Takes a token; returns the text that it lets show.
    pub(super) fn push(&mut self, id: TokenId, bytes: &[u8]) -> String {
        if self.residual.starts_with(bytes) {
            self.residual.drain(..bytes.len());
        } else {
            self.residual.clear();
        }
        let text = self.detokenizer.push(id);
        self.visible(&text)
    }

    /// Ends the text; returns what was held back.
    pub(super) fn finish(&mut self) -> String {
        let rest = self.detokenizer.finish();
        self.visible(&rest)
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

/// Where an answer goes on.
#[derive(Debug)]
pub(super) struct Start {
    /// Accepted tokens that stay.
    pub(super) kept: usize,
    /// The first own token.
    pub(super) first: TokenId,
    /// The text behind the accepted part, if that was a text.
    pub(super) own_text: Option<OwnText>,
}

/// The model of one answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Model<'a> {
    pub(super) tokenizer: &'a Arc<Tokenizer>,
    pub(super) sampler: &'a Sampler,
    pub(super) vocab_len: usize,
}

/// Returns where the answer goes on. The verification must be complete; `before` are the answer's tokens
/// before the accepted part. With a form nothing is encoded anew: it says which bytes follow, so it has no
/// need of whole words.
pub(super) fn start(
    model: Model<'_>,
    verification: &Verification,
    keep: Keep,
    before: &[TokenId],
    is_formed: bool,
) -> Start {
    let Verification { ids, text, choices, .. } = verification;
    let kept = verification.kept(keep);
    let Some((text, spans)) = text else {
        return Start { kept, first: choices[kept], own_text: None };
    };
    if keep == Keep::All && !is_formed {
        return heal(model, verification, (text, spans), before);
    }
    let skip = spans.get(kept).map_or(text.len(), |span| span.start);
    let own = OwnText::after(model.tokenizer, &ids[..kept], &spans[..kept], skip, Vec::new());
    Start { kept, first: choices[kept], own_text: Some(own) }
}

/// Goes back to the last stable boundary, then forward while the model agrees with the accepted tokens.
fn heal(
    model: Model<'_>,
    verification: &Verification,
    (text, spans): (&str, &[Range<usize>]),
    before: &[TokenId],
) -> Start {
    let ids = &verification.ids;
    let answer = [before, ids].concat();
    let mut kept = stable_boundary(text, spans);
    let residual = text.as_bytes()[spans[kept].start..].to_vec();
    let mut own = OwnText::after(model.tokenizer, &ids[..kept], &spans[..kept], text.len(), residual);
    // There is a row for every token from the boundary on, and one more, at which nothing is left to agree
    // with.
    let mut first = verification.choices[ids.len()];
    for row in verification.logits.chunks_exact(model.vocab_len) {
        first = sample_agreeing(model, row, &answer[..before.len() + kept], &own.residual);
        if own.residual.is_empty() || first != ids[kept] {
            break;
        }
        own.accept(first, spans[kept].end);
        own.residual = text.as_bytes()[spans[kept].end..].to_vec();
        kept += 1;
    }
    Start { kept, first, own_text: Some(own) }
}

/// Samples the next token behind `answer`. If `residual` is not empty, only tokens that agree with it can be
/// chosen, unless there are none.
pub(super) fn sample_agreeing(
    model: Model<'_>,
    logits: &[f32],
    answer: &[TokenId],
    residual: &[u8],
) -> TokenId {
    let Model { tokenizer, sampler, .. } = model;
    let index = answer.len() as u64;
    if residual.is_empty() {
        return sampler.sample(logits, index, answer);
    }
    let mut masked = logits.to_vec();
    let mut any = false;
    for (id, logit) in masked.iter_mut().enumerate() {
        let id = id as TokenId;
        let known = (id as usize) < tokenizer.vocab_len() && !tokenizer.is_control(id);
        let bytes = if known { tokenizer.token_bytes(id) } else { &[] };
        if agrees(bytes, residual) {
            any = true;
        } else {
            *logit = f32::NEG_INFINITY;
        }
    }
    sampler.sample(if any { &masked } else { logits }, index, answer)
}
