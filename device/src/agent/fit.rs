//! Shortens a prompt that the cloud would refuse as too long, before the cloud is asked.
//!
//! The scene says how many tokens the cloud takes. This device counts with its own tokenizer: exactly if the
//! cloud has the same one, otherwise with a margin. The whole text is redacted first, because a sentence that
//! is left out may show what is private in the others. Cloud and device work on the same shortened prompt.

use super::Question;
use crate::local::shortened;
use crate::privacy::RedactedRequest;
use crate::relay::{Note, Source};
use baton_engine::Model;
use baton_engine::prompt::Prompt;

/// At least one in this many of the cloud's tokens is kept free for an answer.
const ANSWER_SHARE: usize = 4;
/// Share of the cloud's limit that a prompt may fill if the cloud has another tokenizer.
const OTHER_TOKENIZER_SHARE: f64 = 0.8;

/// Shortens the prompt `whole` to the cloud's limit if the question allows it; returns the new prompt and a
/// note if it did. A prompt that cannot be shortened stays as it is: the cloud refuses it, and the device
/// answers alone.
pub(super) fn fit(
    model: &Model,
    question: &Question,
    request: &mut RedactedRequest,
    whole: &Prompt,
) -> Option<(Prompt, Note)> {
    let Question { scene, tokens_max, .. } = question;
    let limit = scene.prompt_tokens_max.filter(|_| question.shorten)? as usize;
    let same = scene.tokenizer_sha256.as_deref() == Some(model.tokenizer().digest_hex());
    let counted = if same { limit } else { (limit as f64 * OTHER_TOKENIZER_SHARE) as usize };
    let segments = request.segments();
    let offered = request.as_request().tools.as_ref().map_or(&[][..], |tools| &tools.tools);
    let tokens = whole.ids.len();
    if tokens <= counted {
        return None;
    }
    let room = (*tokens_max).min(limit / ANSWER_SHARE);
    let shorter = shortened(model, (segments, offered), whole, counted.saturating_sub(room)).ok()??;
    let kept = shorter.prompt.ids.len();
    request.keep(&shorter.kept);
    Some((shorter.prompt, Note::PromptShortened { taker: Source::Cloud, tokens, limit, kept }))
}
