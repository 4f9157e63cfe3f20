//! Where each part of a text that may be sent comes from: which bytes of the text as it was given.
//!
//! Holds no value: of a replaced one only its place, its kind and its placeholder. Always: the parts of a
//! text, one after the other, are the text that is sent.

use super::EntityKind;
use baton_protocol::Role;
use baton_refine::Piece;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A part of a text that may be sent. Ranges are bytes of the text as it was given, the end not included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Span {
    /// These bytes as they are.
    Sent([usize; 2]),
    /// A placeholder in place of these bytes.
    Replaced {
        /// The bytes.
        at: [usize; 2],
        /// What they are.
        kind: EntityKind,
        /// What is sent for them.
        by: String,
    },
    /// White space that is not in the text as it was given, in place of what was left out.
    Added(String),
}

impl Span {
    /// Returns the number of bytes that it has in the text that is sent.
    pub fn sent_bytes(&self) -> usize {
        match self {
            Self::Sent([start, end]) => end.saturating_sub(*start),
            Self::Replaced { by, .. } => by.len(),
            Self::Added(text) => text.len(),
        }
    }

    /// Returns its bytes of the text as it was given; `None` if it has none there.
    pub fn range(&self) -> Option<[usize; 2]> {
        match self {
            Self::Sent(range) | Self::Replaced { at: range, .. } => Some(*range),
            Self::Added(_) => None,
        }
    }

    /// Returns its part of the text that is sent; `None` if `given` is not the text as it was given.
    pub fn text<'a>(&'a self, given: &'a str) -> Option<&'a str> {
        match self {
            Self::Sent([start, end]) => given.get(*start..*end),
            Self::Replaced { by, .. } => Some(by),
            Self::Added(text) => Some(text),
        }
    }

    /// Returns the part of it that has these bytes of what is sent for it.
    fn part(&self, range: Range<usize>) -> Self {
        match self {
            Self::Sent([start, _]) => Self::Sent([start + range.start, start + range.end]),
            Self::Replaced { at, kind, by } => {
                Self::Replaced { at: *at, kind: *kind, by: by[range].to_owned() }
            }
            Self::Added(text) => Self::Added(text[range].to_owned()),
        }
    }

    /// Returns it for a text that begins so many bytes later.
    pub(super) fn moved(self, by: usize) -> Self {
        match self {
            Self::Sent([start, end]) => Self::Sent([start + by, end + by]),
            Self::Replaced { at: [start, end], kind, by: placeholder } => {
                Self::Replaced { at: [start + by, end + by], kind, by: placeholder }
            }
            Self::Added(text) => Self::Added(text),
        }
    }
}

/// A text of a request, and where its parts come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Its place in the request, as a JSON pointer (RFC 6901).
    pub text: String,
    /// Who said it, if it is the text of a segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Bytes of the text as it was given.
    pub given_bytes: usize,
    /// The parts of the text that is sent, in order. What is in none of them was left out.
    pub parts: Vec<Span>,
}

impl Origin {
    /// Returns whether the text is sent as it was given.
    pub(super) fn is_unchanged(&self) -> bool {
        match &self.parts[..] {
            [] => self.given_bytes == 0,
            [Span::Sent(all)] => *all == [0, self.given_bytes],
            _ => false,
        }
    }

    /// Returns the bytes of the given text that these bytes of what is sent come from, from the first to the
    /// last. A placeholder stands for its whole value. `None` if there are none.
    pub fn given(&self, sent: &Range<usize>) -> Option<Range<usize>> {
        let ranges = cut(&self.parts, sent).into_iter().filter_map(|span| span.range());
        ranges
            .map(|[start, end]| start..end)
            .reduce(|all, more| all.start.min(more.start)..all.end.max(more.end))
    }

    /// Leaves out what is not among the pieces of the text that is sent.
    pub(super) fn keep(&mut self, pieces: &[Piece]) {
        let whole = std::mem::take(&mut self.parts);
        for piece in pieces {
            match piece {
                Piece::Kept(range) => self.parts.extend(cut(&whole, range)),
                Piece::Separator(text) => self.parts.push(Span::Added((*text).to_owned())),
            }
        }
    }
}

/// Returns the parts that have these bytes of the text that is sent.
fn cut(whole: &[Span], range: &Range<usize>) -> Vec<Span> {
    let mut parts = Vec::new();
    let mut from = 0;
    for span in whole {
        let (start, end) = (from, from + span.sent_bytes());
        from = end;
        let common = range.start.max(start)..range.end.min(end);
        if !common.is_empty() {
            parts.push(span.part(common.start - start..common.end - start));
        }
        if end >= range.end {
            break;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privacy::{RedactedRequest, Redactor};
    use baton_protocol::{AnswerFormat, AssistRequest, PastCall, Segment, SentenceMap, Tool, ToolUse};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn request(texts: &[&str]) -> AssistRequest {
        let segments: Vec<Segment> = texts.iter().map(|text| Segment::refinable(Role::User, *text)).collect();
        let base = json!({ "protocol": baton_protocol::PROTOCOL_VERSION, "request_id": uuid::Uuid::nil(),
            "scene": "chat", "model": "default", "segments": segments });
        serde_json::from_value(base).unwrap()
    }

    /// Checks that the parts of each text make what is sent of it, and that all changed texts are there.
    #[track_caller]
    fn check(given: &AssistRequest, sent: &RedactedRequest) {
        let (given, after) = (json!(given), json!(sent.as_request()));
        for Origin { text, given_bytes, parts, .. } in sent.origins() {
            let before = given.pointer(text).and_then(Value::as_str).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(before.len(), *given_bytes);
            let made: String = parts.iter().map(|part| part.text(before).unwrap()).collect();
            assert_eq!(after.pointer(text).and_then(Value::as_str).unwrap_or_default(), made, "{text}");
        }
    }

    #[test]
    fn every_changed_text_of_a_request_is_named() {
        let mut given = request(&["Mail ann@example.com or [EMAIL_7].", "No more."]);
        given.segments[1].refine = false;
        let call =
            PastCall { id: "c1".into(), name: "f".into(), arguments: r#"{"to":"ann@example.com"}"#.into() };
        given.segments[1].calls.push(call);
        let parameters =
            json!({ "type": "object", "properties": { "a/b": { "description": "as ann@example.com" } } });
        let tool = Tool { name: "f".into(), description: Some("Writes.".into()), parameters, strict: false };
        given.tools = Some(ToolUse { tools: vec![tool], choice: Default::default(), parallel: false });
        given.format = AnswerFormat::JsonSchema(json!({ "title": "ann@example.com" }));
        given.sampling.stop = vec!["ann@exam".into(), "by 10.0.0.7".into()];
        let mut redactor = Redactor::default();
        let sent = redactor.redact_request(&given).unwrap();
        check(&AssistRequest { sampling: Default::default(), ..given.clone() }, &{
            let mut without = sent.clone();
            without.origins_mut().retain(|origin| !origin.text.starts_with("/sampling"));
            without
        });
        let places: Vec<&str> = sent.origins().iter().map(|origin| origin.text.as_str()).collect();
        let want = [
            "/segments/0/text",
            "/segments/1/text",
            "/segments/1/calls/0/arguments",
            "/tools/functions/0/parameters/properties/a~1b/description",
            "/format/json_schema/title",
            "/sampling/stop/0",
            "/sampling/stop/1",
        ];
        assert_eq!(places, want);
        assert_eq!(sent.origins()[5].parts, [], "a stop string that would tell a value is left out");
        let Span::Replaced { at, kind, by } = &sent.origins()[6].parts[1] else { panic!("{sent:?}") };
        assert_eq!((*at, *kind, by.as_str()), ([3, 11], EntityKind::Ip, "[IP_1]"));
        // A text that goes on with an answer keeps the placeholders that the model has written.
        let more = redactor.redact_continuation(&sent, "To [EMAIL_1] and bob@example.com", Some(9)).unwrap();
        let last = more.origins().last().unwrap();
        assert_eq!((last.text.as_str(), last.parts.len()), ("/continue_from", 2));
        assert_eq!(last.parts[0], Span::Sent([0, 17]));
    }

    proptest! {
        #[test]
        fn parts_make_the_text_that_is_sent(
            text in "([A-Z][a-z]{1,5}[.!?] |ann@example.com[.,] |字字[。；]|\n\n|## Ab\n|- ab\n|10.0.0.7 ){0,20}",
            picks in prop::collection::vec(any::<bool>(), 200),
        ) {
            let given = request(&[&text, "See ann@example.com."]);
            let mut sent = Redactor::default().redact_request(&given).unwrap();
            check(&given, &sent);
            let units = SentenceMap::new(sent.segments()).len();
            sent.keep(&picks[..units]);
            check(&given, &sent);
        }
    }
}
