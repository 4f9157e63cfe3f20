//! Rebuilds the text of chosen tokens.

use baton_protocol::Segment;
use baton_refine::ContentTokens;

/// Returns the segments with only the kept tokens in the refinable ones. Used to evaluate baselines that
/// choose tokens; a mask cannot name tokens.
///
/// A character stays if all its bytes belong to kept tokens. Nothing is inserted in place of removed tokens,
/// because a token contains its own space.
///
/// # Panics
/// If `kept` does not have one flag per token of `content`, or a token lies outside its segment.
pub fn rebuild_tokens(segments: &[Segment], content: &[ContentTokens<'_>], kept: &[bool]) -> Vec<Segment> {
    let tokens: usize = content.iter().map(|part| part.spans.len()).sum();
    assert_eq!(kept.len(), tokens, "one flag a token");
    let mut rebuilt = segments.to_vec();
    let mut flags = kept.iter();
    for part in content {
        let source = &segments[part.segment].text;
        let mut stays = vec![false; source.len()];
        for (span, _) in part.spans.iter().zip(flags.by_ref()).filter(|(_, kept)| **kept) {
            stays[span.clone()].fill(true);
        }
        let chars = source.char_indices();
        let whole = |&(at, c): &(usize, char)| stays[at..at + c.len_utf8()].iter().all(|&stays| stays);
        rebuilt[part.segment].text = chars.filter(whole).map(|(_, c)| c).collect();
    }
    rebuilt
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_protocol::Role;

    #[test]
    fn kept_tokens_leave_whole_characters_only() {
        let segments = [Segment::fixed(Role::System, "S."), Segment::refinable(Role::User, "One two 字文.")];
        let spans = [0..3, 3..7, 7..9, 9..11, 11..14, 14..15];
        let content = [ContentTokens { segment: 1, first: 2, spans: &spans }];
        let text = |kept: [bool; 6]| {
            let rebuilt = rebuild_tokens(&segments, &content, &kept);
            assert_eq!(rebuilt[0], segments[0]);
            rebuilt[1].text.clone()
        };
        assert_eq!(text([true; 6]), segments[1].text);
        assert_eq!(text([true, false, false, false, false, true]), "One.");
        assert_eq!(text([false, true, true, false, true, false]), " two 文");
        assert_eq!(text([false; 6]), "");
    }
}
