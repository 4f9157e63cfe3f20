//! The demo's control: the document with sentences chosen at random, as many tokens as the relay's mask kept.

use anyhow::Context as _;
use baton_baselines::{Baseline, Evidence, Input, choose};
use baton_engine::{Model, PromptSegment, prompt::assemble};
use baton_protocol::{Role, Segment, SentenceMap};
use baton_refine::{ContentTokens, rebuild};

/// Returns the sentences of `text` that a random choice keeps, up to a share `ratio` of the text's tokens.
///
/// # Errors
/// Fails if the text cannot be tokenized, or has no tokens.
pub(super) fn random_sentences(model: &Model, text: &str, ratio: f32, seed: u64) -> anyhow::Result<String> {
    let part = PromptSegment { role: Role::User.as_str(), text };
    let prompt = assemble(model.tokenizer(), model.template(), &[part]).context("tokenize the document")?;
    let place = &prompt.segments[0];
    let segments = [Segment::refinable(Role::User, text)];
    let map = SentenceMap::new(&segments);
    let chosen = choose(&Input {
        segments: &segments,
        map: &map,
        content: &[ContentTokens { segment: 0, first: place.tokens.start, spans: &place.spans }],
        prompt_tokens: prompt.ids.len(),
        evidence: Evidence::Nothing,
        calibration: None,
        question: "",
        ratio,
        ranking: Baseline::Random { seed }.into(),
    });
    let kept = chosen.context("choose sentences at random")?.refined.kept;
    let [rebuilt]: [Segment; 1] = rebuild(&segments, &map, &kept).try_into().expect("one segment gives one");
    Ok(rebuilt.text)
}
