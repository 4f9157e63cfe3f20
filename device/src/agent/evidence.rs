//! What an answer stands on: from the attention of its tokens back to the bytes of the texts as they were
//! given.
//!
//! Always: ranges are of the question's own texts and of the answer as it was shown, also if the prompt was
//! redacted, refined or shortened. Never: tells a text of either.

use std::ops::Range;

use baton_engine::HeadId;
use baton_generate::text::AnswerText;
use baton_protocol::Segment;
use baton_refine::{Attended as RefineAttended, AttentionShape, Sources, cited, citing};
use serde::Serialize;
use serde_json::{Value, json};

use super::commands::Ended;
use super::{Agent, AnswerReport, Question};
use crate::local::{Attended, CitingHeads};
use crate::privacy::Origin;
use crate::relay::TextRules;

/// A sentence of an answer, and the sentences that it stands on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AnswerCitation {
    /// Its bytes of the answer, the end not included.
    pub answer: [usize; 2],
    /// At most two sentences of the question's texts, the best first.
    pub sources: Vec<CitedSource>,
}

/// A sentence that an answer stands on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CitedSource {
    /// Index of its segment in the question.
    pub segment: usize,
    /// Its bytes of that segment's text, the end not included.
    pub bytes: [usize; 2],
    /// Its share of the values of all sentences. A value is made of attention for a sentence's length, of the
    /// question's words, and of a share of the value of the sentence before.
    pub score: f64,
}

impl AnswerCitation {
    /// Returns its JSON for a client that sent messages: `places` are the message and the byte at which each
    /// segment begins.
    pub fn of_messages(&self, places: &[(usize, usize)]) -> Value {
        let source = |source: &CitedSource| {
            let (message, first) = places.get(source.segment)?;
            let bytes = source.bytes.map(|byte| first + byte);
            Some(json!({ "message": message, "bytes": bytes, "score": source.score }))
        };
        json!({ "answer": self.answer, "sources": self.sources.iter().filter_map(source).collect::<Vec<_>>() })
    }
}

/// What leads from an answer's attention to citations.
pub(super) struct Citing {
    /// The prompt before it was refined.
    segments: Vec<Segment>,
    sources: Sources,
    /// Where the texts of the segments come from, if they were redacted.
    origins: Option<Vec<Origin>>,
    rules: TextRules,
}

impl Agent {
    /// Returns the heads to cite by, if a question asks for citations and there is a device model.
    pub(super) fn citing_heads(&self, question: &Question) -> Option<CitingHeads> {
        let device = self.device.as_ref().filter(|_| question.cites && !question.is_verified())?;
        let config = device.model.config();
        let shape = AttentionShape { n_layers: config.n_layers, n_heads: config.n_heads };
        let heads = citing(shape, |layer| config.sees_all(layer)).into_iter();
        Some(heads.map(|(layer, head)| HeadId { layer, head }).collect())
    }
}

impl Ended {
    /// Tells in the report what the device's own answer leaves.
    pub(super) fn told_in(self, report: &mut AnswerReport, citing: Option<Citing>) {
        report.speculation = self.speculation.map(Into::into);
        report.citations = citing.map(|citing| {
            let attended = self.attended.as_ref();
            attended.map(|attended| citing.citations(attended, &report.answer)).unwrap_or_default()
        });
    }
}

impl Citing {
    /// Makes it for a prompt of these segments, which come from the question's own as `origins` say.
    pub(super) fn new(segments: &[Segment], origins: Option<Vec<Origin>>, rules: TextRules) -> Citing {
        Citing { segments: segments.to_vec(), sources: Sources::of(segments), origins, rules }
    }

    /// Returns what each sentence of the answer, as it was shown, stands on.
    fn citations(self, attended: &Attended, answer: &str) -> Vec<AnswerCitation> {
        let starts = self.starts(attended);
        let attended = RefineAttended {
            of_positions: &attended.evidence.groups().of_key,
            rows: attended.evidence.rows(),
            starts: &starts,
            segments: &self.segments,
            sources: &self.sources,
        };
        let range = |range: Range<usize>| [range.start, range.end];
        let of = |source: usize, score: f64| {
            let source = &self.sources.all()[source];
            let given = self.given(source.segment, &source.bytes)?;
            Some(CitedSource { segment: source.segment, bytes: range(given), score })
        };
        let all = cited(answer, &attended).into_iter().map(|cited| AnswerCitation {
            answer: range(cited.answer),
            sources: cited.sources.into_iter().filter_map(|found| of(found.source, found.score)).collect(),
        });
        all.filter(|citation| !citation.sources.is_empty()).collect()
    }

    /// Returns the bytes of the text as it was given.
    fn given(&self, segment: usize, bytes: &Range<usize>) -> Option<Range<usize>> {
        match &self.origins {
            None => Some(bytes.clone()),
            Some(origins) => origins.get(segment)?.given(bytes),
        }
    }

    /// Returns where each token begins in the text that is shown.
    fn starts(&self, attended: &Attended) -> Vec<usize> {
        let TextRules { tokenizer, restorer, stop } = self.rules.clone();
        let mut text = AnswerText::new(tokenizer, restorer, stop);
        let mut shown = 0;
        let start = |id: &u32| {
            let start = shown;
            shown += text.push(*id).shown.len();
            start
        };
        attended.ids.iter().map(start).collect()
    }
}
