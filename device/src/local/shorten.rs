//! Shortens a prompt that is too long by BM25: for this device if it answers alone, or before the cloud is
//! asked.

use super::chain;
use super::command::AnswerSpec;
use baton_constrain::tools;
use baton_engine::Model;
use baton_engine::prompt::Prompt;
use baton_protocol::{Segment, SentenceMap, Tool};
use baton_refine::{ContentTokens, Mode, RefineInput, rebuild, refine};

/// Most tries; each keeps less than the one before.
const TRIES: usize = 4;
/// Share of the previous try that the next one keeps.
const STEP: f32 = 0.85;

/// A shortened prompt.
pub(crate) struct Shorter {
    /// One flag for each unit of the sentence map: whether it is kept.
    pub(crate) kept: Vec<bool>,
    /// The shortened texts.
    pub(crate) segments: Vec<Segment>,
    /// The shortened prompt with its token ids.
    pub(crate) prompt: Prompt,
}

/// Makes the prompt's token ids with the model's own template.
pub(crate) fn assembled(model: &Model, segments: &[Segment], offered: &[Tool]) -> Result<Prompt, String> {
    let prompt = tools::prompt(model.tokenizer(), model.template(), segments, offered);
    let prompt = prompt.map_err(|err| chain(&err))?;
    if prompt.ids.is_empty() {
        return Err("the prompt has no tokens".into());
    }
    Ok(prompt)
}

/// Makes the prompt's token ids with the model's template, unless they are known, or the answer continues a
/// text.
pub(super) fn prompt_of(model: &Model, segments: &[Segment], spec: &AnswerSpec) -> Result<Prompt, String> {
    match (&spec.own, &spec.whole) {
        (Some(ids), _) => Ok(Prompt { ids: ids.to_vec(), segments: Vec::new() }),
        (None, Some(whole)) if std::ptr::eq(segments, &*spec.segments) => Ok(Prompt::clone(whole)),
        (None, _) => assembled(model, segments, spec.offered()),
    }
}

/// Leaves out the least relevant sentences until the prompt has at most `limit` tokens; returns `None` if
/// that is not possible.
pub(crate) fn shortened(
    model: &Model,
    (segments, offered): (&[Segment], &[Tool]),
    whole: &Prompt,
    limit: usize,
) -> Result<Option<Shorter>, String> {
    let tokens = whole.ids.len();
    let content: Vec<ContentTokens<'_>> = segments
        .iter()
        .enumerate()
        .filter(|(_, s)| s.refine)
        .map(|(segment, _)| {
            let part = &whole.segments[segment];
            ContentTokens { segment, first: part.tokens.start, spans: &part.spans }
        })
        .collect();
    let content_tokens: usize = content.iter().map(|c| c.spans.len()).sum();
    let fixed = tokens - content_tokens.min(tokens);
    if content_tokens == 0 || fixed >= limit {
        return Ok(None);
    }
    let map = SentenceMap::new(segments);
    let question = segments.last().map(|s| s.text.as_str()).unwrap_or_default();
    let mut ratio = (limit - fixed) as f32 / content_tokens as f32;
    for _ in 0..TRIES {
        let input = RefineInput {
            segments,
            map: &map,
            content: &content,
            prompt_tokens: tokens,
            scores: None,
            calibration: None,
            question,
            ratio,
            least_value: None,
            mode: Mode::Bm25,
        };
        let refined = refine(input).map_err(|err| chain(&err))?;
        let shorter = rebuild(segments, &map, &refined.kept);
        let prompt = assembled(model, &shorter, offered)?;
        if prompt.ids.len() <= limit {
            return Ok(Some(Shorter { kept: refined.kept, segments: shorter, prompt }));
        }
        ratio *= STEP;
    }
    Ok(None)
}
