//! Text with the origin of each of its bytes: the template's own, or the conversation's.
//!
//! Every operation of a template keeps the origins. So control tokens are looked for in the template's own
//! text only. The tokens of a segment are found after the template has cut or changed it.

use std::ops::Range;

/// The bytes of one of the conversation's texts that a run stands for. A run of another length than `len` was
/// changed by the template (its case, or an escape) and stands for them as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source {
    /// Index of the text.
    pub(crate) index: usize,
    /// First byte in that text.
    pub(crate) start: usize,
    /// Number of bytes in that text.
    pub(crate) len: usize,
}

/// The origin of a run of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Written by the template itself.
    Template,
    /// From the conversation; with a source if it is of a text whose tokens are wanted.
    Input(Option<Source>),
}

/// Bytes of one origin, up to `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    end: usize,
    origin: Origin,
}

/// A text and its runs. Without runs, all of it is the template's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Text {
    text: String,
    runs: Vec<Run>,
    /// Whether `safe` or `escape` made it: what is added to it is escaped, as in Jinja2.
    is_markup: bool,
}

impl Text {
    /// Returns a text of the template.
    pub(crate) fn plain(text: impl Into<String>) -> Text {
        Text { text: text.into(), ..Text::default() }
    }

    /// Returns a text of the conversation whose tokens are not asked for.
    pub(crate) fn input(text: &str) -> Text {
        let mut made = Text::default();
        made.push(text, Origin::Input(None));
        made
    }

    /// The text without its origins.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether what is added to the text is escaped.
    pub(super) fn is_markup(&self) -> bool {
        self.is_markup
    }

    /// Returns the text as markup.
    pub(super) fn into_markup(self) -> Text {
        Text { is_markup: true, ..self }
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    /// Returns the runs in their order: their bytes and their origin.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (Range<usize>, Origin)> {
        let rest = match self.runs.is_empty() && !self.text.is_empty() {
            true => Some((0..self.text.len(), Origin::Template)),
            false => None,
        };
        let mut start = 0;
        let counted = self.runs.iter().map(move |run| {
            let range = start..run.end;
            start = run.end;
            (range, run.origin)
        });
        rest.into_iter().chain(counted)
    }

    /// Appends bytes of one origin.
    pub(crate) fn push(&mut self, text: &str, origin: Origin) {
        if text.is_empty() {
            return;
        }
        let start = self.text.len();
        self.text.push_str(text);
        if self.runs.is_empty() {
            if origin == Origin::Template {
                return;
            }
            if start > 0 {
                self.runs.push(Run { end: start, origin: Origin::Template });
            }
        }
        let end = self.text.len();
        let last_start = self.runs.len().checked_sub(2).map_or(0, |at| self.runs[at].end);
        if let Some(last) = self.runs.last_mut()
            && let Some(origin) = joined(last.origin, start - last_start, origin, end - start)
        {
            *last = Run { end, origin };
            return;
        }
        self.runs.push(Run { end, origin });
    }

    /// Appends text of the template.
    pub(crate) fn push_str(&mut self, text: &str) {
        self.push(text, Origin::Template);
    }

    /// Appends another text.
    pub(crate) fn append(&mut self, other: &Text) {
        self.append_slice(other, 0..other.len());
    }

    /// Appends some bytes of another text.
    pub(crate) fn append_slice(&mut self, other: &Text, range: Range<usize>) {
        if other.runs.is_empty() {
            return self.push_str(&other.text[range]);
        }
        let mut at = other.runs.partition_point(|run| run.end <= range.start);
        let mut start = at.checked_sub(1).map_or(0, |before| other.runs[before].end);
        while let Some(run) = other.runs.get(at).filter(|_| start < range.end) {
            let cut = start.max(range.start)..run.end.min(range.end);
            self.push(&other.text[cut.clone()], within(run.origin, start..run.end, &cut));
            start = run.end;
            at += 1;
        }
    }

    /// Returns some bytes of the text.
    pub(crate) fn slice(&self, range: Range<usize>) -> Text {
        let mut made = Text { is_markup: self.is_markup, ..Text::default() };
        made.append_slice(self, range);
        made
    }

    /// Returns the text with each run changed by `change`.
    pub(crate) fn map(&self, mut change: impl FnMut(&str) -> String) -> Text {
        let mut made = Text { is_markup: self.is_markup, ..Text::default() };
        for (range, origin) in self.runs() {
            made.push(&change(&self.text[range]), origin);
        }
        made
    }

    /// Calls `each` for every character, with its origin.
    pub(crate) fn each_char(&self, mut each: impl FnMut(char, &str, Origin)) {
        for (range, origin) in self.runs() {
            for (at, c) in self.text[range.clone()].char_indices() {
                let from = range.start + at;
                let cut = from..from + c.len_utf8();
                each(c, &self.text[cut.clone()], within(origin, range.clone(), &cut));
            }
        }
    }
}

/// Returns the origin of a part of a run.
fn within(origin: Origin, run: Range<usize>, cut: &Range<usize>) -> Origin {
    match origin {
        Origin::Input(Some(source)) if source.len == run.len() => {
            let start = source.start + cut.start - run.start;
            Origin::Input(Some(Source { start, len: cut.len(), ..source }))
        }
        other => other,
    }
}

/// Returns the origin of two runs as one, if they can be one.
fn joined(last: Origin, last_len: usize, next: Origin, next_len: usize) -> Option<Origin> {
    match (last, next) {
        (Origin::Input(Some(a)), Origin::Input(Some(b))) => {
            let is_whole = a.len == last_len && b.len == next_len;
            (is_whole && a.index == b.index && a.start + a.len == b.start)
                .then_some(Origin::Input(Some(Source { len: a.len + b.len, ..a })))
        }
        (last, next) => (last == next).then_some(last),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(index: usize, text: &str) -> Text {
        let mut made = Text::default();
        made.push(text, Origin::Input(Some(Source { index, start: 0, len: text.len() })));
        made
    }

    #[test]
    fn runs_follow_cuts_and_joins() {
        let mut text = Text::plain("a:");
        text.append(&segment(0, "hello there"));
        text.push_str("!");
        let cut = text.slice(1..8);
        assert_eq!(cut.as_str(), ":hello ");
        let source = Source { index: 0, start: 0, len: 6 };
        let runs: Vec<_> = cut.runs().collect();
        assert_eq!(runs, [(0..1, Origin::Template), (1..7, Origin::Input(Some(source)))]);
        let mut whole = cut.clone();
        whole.append_slice(&text, 8..text.len());
        assert_eq!(whole, text.slice(1..text.len()));
        assert_eq!(Text::plain("x").runs().count() + Text::default().runs().count(), 1);
    }

    #[test]
    fn changed_runs_stand_for_their_source_as_a_whole() {
        let text = segment(1, "straße").map(str::to_uppercase);
        assert_eq!(text.as_str(), "STRASSE");
        let cut = Origin::Input(Some(Source { index: 1, start: 2, len: 2 }));
        assert_eq!(text.slice(2..4).runs().collect::<Vec<_>>(), [(0..2, cut)]);
        let longer = segment(1, "ŉa").map(str::to_uppercase);
        let whole = Origin::Input(Some(Source { index: 1, start: 0, len: 3 }));
        assert_eq!(longer.slice(3..4).runs().collect::<Vec<_>>(), [(0..1, whole)]);
    }
}
