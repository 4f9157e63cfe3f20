//! Rebuilds the refined text: the kept sentences in their order, with separators in place of removed ones.

use baton_protocol::{Segment, SentenceMap, Unit, is_cjk};

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
    assert_eq!(kept.len(), map.len(), "one flag a unit");
    let mut rebuilt = segments.to_vec();
    for segment in rebuilt.iter_mut().filter(|segment| segment.refine) {
        segment.text.clear();
    }
    let mut last: Option<usize> = None;
    for index in (0..map.len()).filter(|&index| kept[index]) {
        let unit = map.unit(index);
        let before = last.filter(|&last| map.unit(last).segment == unit.segment);
        let source = &segments[unit.segment].text;
        let text = &mut rebuilt[unit.segment].text;
        if let Some(before) = before.filter(|&before| before + 1 != index) {
            join(text, map.unit(before), unit, &source[unit.bytes.clone()]);
        }
        text.push_str(&source[unit.bytes.clone()]);
        last = Some(index);
    }
    for (segment, source) in rebuilt.iter_mut().zip(segments).filter(|(segment, _)| segment.refine) {
        let end = &source.text[source.text.trim_end().len()..];
        if !segment.text.is_empty() {
            segment.text.truncate(segment.text.trim_end().len());
            segment.text.push_str(end);
        }
    }
    rebuilt
}

/// Appends to `text`, which ends with `before`, the separator before `unit`, whose text is `next`.
fn join(text: &mut String, before: &Unit, unit: &Unit, next: &str) {
    if before.title && text.ends_with(['\n', '\r']) {
        return;
    }
    text.truncate(text.trim_end().len());
    let glued = text.chars().next_back().is_some_and(is_cjk) && next.chars().next().is_some_and(is_cjk);
    text.push_str(match () {
        () if before.paragraph != unit.paragraph => "\n\n",
        () if unit.starts_line => "\n",
        () if glued => "",
        () => " ",
    });
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
