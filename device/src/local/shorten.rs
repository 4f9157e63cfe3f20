//! A prompt that this device cannot hold, shortened by BM25: for a device that is alone.

use super::LocalEngine;
use baton_engine::prompt::Prompt;
use baton_engine::tokenizer::TokenId;
use baton_protocol::{Segment, SentenceMap};
use baton_refine::{ContentTokens, Evidence, Mode, RefineInput, rebuild, refine};

/// Tries before giving up: each keeps less.
const TRIES: usize = 4;
/// Each further try keeps this share of the last.
const STEP: f32 = 0.85;

impl LocalEngine {
    /// Ids of the prompt with its least relevant sentences left out, at most `limit` of them; none if that cannot be.
    pub(super) fn shorten(
        &self,
        segments: &[Segment],
        assembled: &Prompt,
        limit: usize,
    ) -> Result<Option<Vec<TokenId>>, String> {
        let tokens = assembled.ids.len();
        let content: Vec<ContentTokens<'_>> = segments
            .iter()
            .enumerate()
            .filter(|(_, s)| s.refine)
            .map(|(segment, _)| {
                let part = &assembled.segments[segment];
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
                evidence: Evidence::Nothing,
                calibration: None,
                question,
                ratio,
                mode: Mode::Bm25,
            };
            let refined = refine(input).map_err(|err| super::chain(&err))?;
            let shorter = self.assemble(&rebuild(segments, &map, &refined.kept))?;
            if shorter.ids.len() <= limit {
                return Ok(Some(shorter.ids));
            }
            ratio *= STEP;
        }
        Ok(None)
    }
}
