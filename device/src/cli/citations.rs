//! Shows what an answer stands on: each of its sentences, and the sentences of the document behind it.

use anyhow::Context;
use baton_protocol::Segment;
use baton_terminal::outln;

use crate::agent::{AnswerReport, CitedSource};

/// Characters of a sentence that are shown.
const CHARS_MAX: usize = 160;

/// Prints the citations of an answer, if it was asked for some. `segments` are those of the question.
pub(super) fn print(report: &AnswerReport, segments: &[Segment]) -> anyhow::Result<()> {
    let Some(citations) = &report.citations else { return Ok(()) };
    for line in lines(&report.answer, citations, segments) {
        outln!("{line}").context("write the citations")?;
    }
    Ok(())
}

fn lines(answer: &str, citations: &[crate::agent::AnswerCitation], segments: &[Segment]) -> Vec<String> {
    if citations.is_empty() {
        return vec![
            String::new(),
            "No sentence of the document is cited: this device did not see the answer.".into(),
        ];
    }
    let mut lines = vec![String::new()];
    for citation in citations {
        lines.push(format!("> {}", quoted(answer, citation.answer)));
        let sources = citation.sources.iter();
        lines.extend(sources.map(|source @ CitedSource { segment, bytes, score }| {
            let text = segments.get(*segment).map_or("", |segment| segment.text.as_str());
            let [start, end] = source.bytes;
            debug_assert_eq!([start, end], *bytes);
            format!("    {score:.2}  {start}-{end}: {}", quoted(text, *bytes))
        }));
    }
    lines
}

/// Returns bytes of a text on one line, cut if they are long.
fn quoted(text: &str, [start, end]: [usize; 2]) -> String {
    let words = text.get(start..end).unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    match words.char_indices().nth(CHARS_MAX) {
        Some((cut, _)) => format!("{}…", &words[..cut]),
        None => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::AnswerCitation;
    use baton_protocol::Role;

    #[test]
    fn each_sentence_is_followed_by_what_it_stands_on() {
        let segments =
            [Segment::fixed(Role::System, "S."), Segment::refinable(Role::User, "One\nline. Two.")];
        let source = |bytes, score| CitedSource { segment: 1, bytes, score };
        let sources = vec![source([0, 9], 0.754), source([10, 14], 0.2)];
        let citations = [AnswerCitation { answer: [0, 4], sources }];
        let want = ["", "> Yes.", "    0.75  0-9: One line.", "    0.20  10-14: Two."];
        assert_eq!(lines("Yes. No.", &citations, &segments), want);
        assert!(lines("Yes.", &[], &segments)[1].starts_with("No sentence"));
        assert_eq!(quoted(&"a ".repeat(200), [0, 400]).chars().count(), CHARS_MAX + 1);
    }
}
