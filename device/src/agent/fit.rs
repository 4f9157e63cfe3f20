//! A prompt that the cloud would refuse, shortened before the cloud is asked.
//!
//! The scene says how many tokens the cloud takes. This device counts by its own tokenizer: exactly if the cloud has the
//! same one, else with a margin. Of several passes over the text, all happen before it is redacted, so that cloud and
//! device work on the same prompt.

use super::Question;
use crate::local::{assembled, shortened};
use crate::relay::{Note, Source};
use baton_engine::Model;

/// Of what the cloud takes, the share that is kept free for an answer, at least.
const ANSWER_SHARE: usize = 4;
/// Of what the cloud takes, the share that is filled if its tokenizer is another one.
const OTHER_TOKENIZER_SHARE: f64 = 0.8;
/// Placeholders may take more tokens than what they stand for.
const REDACTION_TOKENS: usize = 64;

/// Shortens the question's prompt to what the cloud takes, if the question allows it; a note if it did. What cannot be
/// counted or shortened stays: then the cloud refuses it, and the device answers alone.
pub(super) fn fit(model: &Model, question: &mut Question) -> Option<Note> {
    let Question { scene, segments, tokens_max, .. } = &*question;
    let limit = scene.prompt_tokens_max.filter(|_| question.shorten)? as usize;
    let same = scene.tokenizer_sha256.as_deref() == Some(model.tokenizer().digest_hex());
    let counted = if same { limit } else { (limit as f64 * OTHER_TOKENIZER_SHARE) as usize };
    let whole = assembled(model, segments).ok()?;
    let tokens = whole.ids.len();
    if tokens <= counted {
        return None;
    }
    let room = (*tokens_max).min(limit / ANSWER_SHARE) + REDACTION_TOKENS.min(limit / 16);
    let shorter = shortened(model, segments, &whole, counted.saturating_sub(room)).ok()??;
    let kept = shorter.prompt.ids.len();
    question.segments = shorter.segments;
    Some(Note::PromptShortened { taker: Source::Cloud, tokens, limit, kept })
}
