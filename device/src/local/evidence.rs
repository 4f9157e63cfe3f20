//! What an answer of this device attends to: which tokens of its prompt belong to which sentence.
//!
//! The prompt may have been refined by the cloud's mask, and then shortened to fit this device. Sentences are
//! always those of the prompt before both.

use std::sync::Arc;

use baton_engine::HeadId;
use baton_engine::prompt::Prompt;
use baton_engine::tokenizer::TokenId;
use baton_generate::evidence::{Evidence, KeyGroups};
use baton_protocol::{Segment, SentenceMap};
use baton_refine::{ContentTokens, Sources, pieces};

use super::command::AnswerSpec;

/// Heads whose attention counts for citations.
pub type CitingHeads = Arc<[HeadId]>;

/// What an answer attended to.
#[derive(Debug, Clone, PartialEq)]
pub struct Attended {
    /// The attention of each token.
    pub evidence: Evidence,
    /// The answer's tokens.
    pub ids: Vec<TokenId>,
}

/// Sentences that were kept of a text.
pub(super) type Kept<'a> = (&'a [Segment], &'a [bool]);

/// Returns the record of an answer behind `prompt`, whose texts are `segments`; `None` if it cites nothing.
/// `changes` are how the texts came about, the last change first.
pub(super) fn evidence(
    spec: &AnswerSpec,
    (segments, prompt): (&[Segment], &Prompt),
    changes: &[Kept<'_>],
) -> Option<Evidence> {
    let heads = spec.cites.as_ref().filter(|_| spec.own.is_none())?;
    let sources = Sources::of(&spec.segments);
    let parts = prompt.segments.iter().map(|part| (part.tokens.start, part.spans.as_slice()));
    let tokens = ContentTokens::of_all(parts);
    let changes: Vec<_> =
        changes.iter().map(|(before, kept)| pieces(before, &SentenceMap::new(before), kept)).collect();
    let changes: Vec<_> = changes.iter().map(Vec::as_slice).collect();
    Some(Evidence::new(KeyGroups {
        heads: heads.to_vec(),
        of_key: sources.of_positions(segments, &tokens, &changes, prompt.ids.len()),
        count: sources.all().len(),
    }))
}
