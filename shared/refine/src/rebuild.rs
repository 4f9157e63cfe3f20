//! Rebuilds the refined text: the kept sentences in their order, with separators in place of removed ones.

use baton_protocol::{Segment, SentenceMap, Unit, is_cjk};
use std::ops::Range;

/// A piece of a rebuilt text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Bytes of the text as it was.
    Kept(Range<usize>),
    /// White space in place of removed units.
    Separator(&'static str),
}

impl Piece {
    fn text<'a>(&self, source: &'a str) -> &'a str {
        match self {
            Self::Kept(range) => &source[range.clone()],
            Self::Separator(text) => text,
        }
    }
}

/// Returns the segments with only the kept units in the refinable ones.
///
/// Adjacent kept units keep the bytes between them. If units between two kept ones are removed, the separator
/// is:
///
/// - a blank line if they are in different paragraphs;
/// - else a line end if the later one starts a line that must stay a line;
/// - else nothing between two CJK characters;
/// - else one space.
///
/// A title line keeps its own line end. White space at the end of a segment stays. If all units are kept, the
/// segments do not change.
///
/// # Panics
/// If `kept` does not have one flag per unit of `map`, or `map` was not made from `segments`.
pub fn rebuild(segments: &[Segment], map: &SentenceMap, kept: &[bool]) -> Vec<Segment> {
    let mut rebuilt = segments.to_vec();
    for (segment, pieces) in rebuilt.iter_mut().zip(pieces(segments, map, kept)) {
        if let Some(pieces) = pieces {
            segment.text = pieces.iter().map(|piece| piece.text(&segment.text)).collect();
        }
    }
    rebuilt
}

/// Returns what the text of each segment is made of after [`rebuild`], in order; `None` for a segment that
/// does not change because it is not refinable.
///
/// # Panics
/// As [`rebuild`].
pub fn pieces(segments: &[Segment], map: &SentenceMap, kept: &[bool]) -> Vec<Option<Vec<Piece>>> {
    assert_eq!(kept.len(), map.len(), "one flag a unit");
    let mut rebuilt: Vec<Option<Pieces<'_>>> =
        segments.iter().map(|segment| segment.refine.then(|| Pieces::of(&segment.text))).collect();
    let mut last: Option<usize> = None;
    for index in (0..map.len()).filter(|&index| kept[index]) {
        let unit = map.unit(index);
        let before = last.filter(|&last| map.unit(last).segment == unit.segment);
        if let Some(text) = &mut rebuilt[unit.segment] {
            if let Some(before) = before.filter(|&before| before + 1 != index) {
                text.join(map.unit(before), unit);
            }
            text.keep(unit.bytes.clone());
        }
        last = Some(index);
    }
    rebuilt.into_iter().map(|text| text.map(Pieces::ended)).collect()
}

/// Returns the byte of the source text that stands at byte `at` of the text that the pieces make; `None` for
/// a separator, or beyond the end.
pub fn source_byte(pieces: &[Piece], at: usize) -> Option<usize> {
    let mut before = 0;
    for piece in pieces {
        let len = match piece {
            Piece::Kept(range) => range.len(),
            Piece::Separator(text) => text.len(),
        };
        if at < before + len {
            return match piece {
                Piece::Kept(range) => Some(range.start + at - before),
                Piece::Separator(_) => None,
            };
        }
        before += len;
    }
    None
}

/// A text that is rebuilt.
struct Pieces<'a> {
    source: &'a str,
    pieces: Vec<Piece>,
}

impl<'a> Pieces<'a> {
    fn of(source: &'a str) -> Self {
        Self { source, pieces: Vec::new() }
    }

    /// Appends bytes of the source.
    fn keep(&mut self, range: Range<usize>) {
        match self.pieces.last_mut() {
            Some(Piece::Kept(last)) if last.end == range.start => last.end = range.end,
            _ if range.is_empty() => {}
            _ => self.pieces.push(Piece::Kept(range)),
        }
    }

    /// Appends the separator before `unit`; the text ends with `before`.
    fn join(&mut self, before: &Unit, unit: &Unit) {
        if before.title && self.source[..before.bytes.end].ends_with(['\n', '\r']) {
            return;
        }
        self.trim_end();
        let next = &self.source[unit.bytes.clone()];
        let last = self.pieces.last().and_then(|piece| piece.text(self.source).chars().next_back());
        let glued = last.is_some_and(is_cjk) && next.chars().next().is_some_and(is_cjk);
        let separator = match () {
            () if before.paragraph != unit.paragraph => "\n\n",
            () if unit.starts_line => "\n",
            () if glued => "",
            () => " ",
        };
        if !separator.is_empty() {
            self.pieces.push(Piece::Separator(separator));
        }
    }

    /// Removes white space from the end.
    fn trim_end(&mut self) {
        while let Some(piece) = self.pieces.last_mut() {
            let left = piece.text(self.source).trim_end().len();
            match piece {
                Piece::Kept(range) if left > 0 => {
                    range.end = range.start + left;
                    return;
                }
                Piece::Kept(_) | Piece::Separator(_) => {}
            }
            self.pieces.pop();
        }
    }

    /// Returns the pieces with the white space at the end of the source.
    fn ended(mut self) -> Vec<Piece> {
        if !self.pieces.is_empty() {
            self.trim_end();
            self.keep(self.source.trim_end().len()..self.source.len());
        }
        self.pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_protocol::{Role, sentences};
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, kept: &[usize], want: &str) {
        let segments = [
            Segment::fixed(Role::System, "System. Text."),
            Segment::refinable(Role::User, text),
            Segment::fixed(Role::User, "Question? Yes."),
        ];
        let map = SentenceMap::new(&segments);
        let flags: Vec<bool> = (0..map.len()).map(|i| kept.contains(&i)).collect();
        let rebuilt = rebuild(&segments, &map, &flags);
        assert_eq!(rebuilt[1].text, want);
        assert_eq!((&rebuilt[0], &rebuilt[2]), (&segments[0], &segments[2]));
        assert_eq!(rebuilt.len(), 3);
    }

    #[test]
    fn gaps_are_joined_as_their_kind_asks() {
        check("One. Two. Three.", &[0, 1], "One. Two.");
        check("One.  Two. Three.", &[0, 2], "One. Three.");
        check("One.  Two. Three.", &[0, 1, 2], "One.  Two. Three.");
        check("One. Two.\n\nThree. Four.\n", &[0, 2], "One.\n\nThree.\n");
        check("One. Two.\n\nThree. Four.\n", &[1, 2], "Two.\n\nThree.\n");
        check("一。二。三。", &[0, 2], "一。三。");
        check("一。二。 Three.", &[0, 2], "一。 Three.");
        check("- a\n- b\n- c\n", &[0, 2], "- a\n- c\n");
        check("| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |", &[0, 1, 3], "| a | b |\n|---|---|\n| 3 | 4 |");
    }

    #[test]
    fn a_title_keeps_its_own_line_end() {
        check("# R\n\n## A\nOne. Two.\n\n## B\nThree. Four.", &[3, 4, 6], "Two.\n\n## B\nFour.");
        check("# R\n\n## A\nOne. Two.\n\n## B\nThree. Four.", &[0, 1, 3], "# R\n\n## A\nTwo.");
        check("# R\n\n## A\nOne. Two.\n\n## B\nThree. Four.", &[0, 4, 5], "# R\n\n## B\nThree.");
    }

    #[test]
    fn nothing_kept_is_an_empty_text() {
        check("One. Two.\n", &[], "");
    }

    proptest! {
        #[test]
        fn keeping_all_changes_nothing(text in "([a-z字A-Z0-9.,!?。；“” \n#-]|\n\n|\r\n){0,80}") {
            let segments = [Segment::refinable(Role::User, text.clone()), Segment::refinable(Role::Tool, "T. U.")];
            let map = SentenceMap::new(&segments);
            prop_assert_eq!(rebuild(&segments, &map, &vec![true; map.len()]), segments.to_vec());
        }

        #[test]
        fn kept_sentences_stand_in_order_and_nothing_else(
            text in "([A-Z][a-z]{1,6}[.!?] |字字[。；]|\n\n|## Ab\n|- ab\n){0,30}",
            picks in prop::collection::vec(any::<bool>(), 200),
        ) {
            let segments = [Segment::refinable(Role::User, text.clone())];
            let map = SentenceMap::new(&segments);
            let kept = &picks[..map.len()];
            let rebuilt = rebuild(&segments, &map, kept).remove(0).text;
            let squeeze = |text: &str| text.split_whitespace().collect::<String>();
            let want: String = sentences(&text)
                .into_iter()
                .zip(kept)
                .filter(|(_, kept)| **kept)
                .map(|(range, _)| squeeze(&text[range]))
                .collect();
            prop_assert_eq!(squeeze(&rebuilt), want);
        }

        #[test]
        fn more_kept_is_more_text(
            text in "([A-Z][a-z]{1,6}[.!?] |字字[。；]|\n\n|## Ab\n|- ab\n){1,30}",
            picks in prop::collection::vec(0u8..3, 200),
        ) {
            let segments = [Segment::refinable(Role::User, text)];
            let map = SentenceMap::new(&segments);
            let level = |least: u8| -> String {
                let kept: Vec<bool> = picks[..map.len()].iter().map(|&p| p >= least).collect();
                rebuild(&segments, &map, &kept).remove(0).text.split_whitespace().collect()
            };
            let (few, many) = (level(2), level(1));
            let mut rest = many.chars();
            prop_assert!(few.chars().all(|c| rest.any(|m| m == c)), "a subsequence of what more keeping gives");
        }
    }
}
