//! The sentences of a chat that its answer stands on, passed separately from the answer's events.
//!
//! Never: changes a token. Always: the citations are complete before the answer's end is sent. Nothing of the
//! texts goes further than the request's own reply.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use baton_engine::prompt::Prompt;
use baton_engine::{HeadId, ModelConfig};
use baton_generate::answer::Answer;
use baton_generate::evidence::{Evidence, KeyGroups};
use baton_protocol::Segment;
use baton_refine::{Attended, AttentionShape, Citation, Cited, ContentTokens, Sources, cited, citing};
use serde_json::{Value, json};

/// What the engine's thread writes and the reader of the answer takes. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Citations(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    segments: Vec<Segment>,
    sources: Sources,
    answer: String,
    /// The byte of the answer at which each token begins.
    starts: Vec<usize>,
    cited: Vec<Cited>,
}

impl Citations {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while the citations are locked")
    }

    /// Begins with a prompt; returns what records its answer.
    pub(crate) fn record(&self, config: &ModelConfig, segments: Vec<Segment>, prompt: &Prompt) -> Evidence {
        let shape = AttentionShape { n_layers: config.n_layers, n_heads: config.n_heads };
        let heads = citing(shape, |layer| config.sees_all(layer)).into_iter();
        let heads = heads.map(|(layer, head)| HeadId { layer, head });
        let parts = prompt.segments.iter().map(|part| (part.tokens.start, part.spans.as_slice()));
        let tokens = ContentTokens::of_all(parts);
        let sources = Sources::of(&segments);
        let groups = KeyGroups {
            heads: heads.collect(),
            of_key: sources.of_positions(&segments, &tokens, &[], prompt.ids.len()),
            count: sources.all().len(),
        };
        *self.state() = State { segments, sources, ..State::default() };
        Evidence::new(groups)
    }

    /// Notes the text of the next token.
    pub(crate) fn wrote(&self, text: &str) {
        let mut state = self.state();
        let start = state.answer.len();
        state.starts.push(start);
        state.answer.push_str(text);
    }

    /// Finds the citations of an answer that has ended. The texts are dropped.
    pub(crate) fn ended(&self, answer: &mut Answer) {
        let Some(evidence) = answer.take_evidence() else { return };
        let mut state = self.state();
        let found = cited(
            &state.answer,
            &Attended {
                of_positions: &evidence.groups().of_key,
                rows: evidence.rows(),
                starts: &state.starts,
                segments: &state.segments,
                sources: &state.sources,
            },
        );
        state.cited = found;
        (state.segments, state.answer, state.starts) = Default::default();
    }

    /// Returns the citations of an answer that has ended: bytes of the answer, and the index and bytes of the
    /// messages that hold the sources.
    pub fn json(&self) -> Value {
        let state = self.state();
        let bytes = |range: &Range<usize>| json!([range.start, range.end]);
        let source = |Citation { source, score }: &Citation| {
            let source = &state.sources.all()[*source];
            json!({ "message": source.segment, "bytes": bytes(&source.bytes), "score": score })
        };
        let of = |cited: &Cited| {
            let sources: Vec<Value> = cited.sources.iter().map(source).collect();
            json!({ "answer": bytes(&cited.answer), "sources": sources })
        };
        state.cited.iter().map(of).collect()
    }
}
