//! The refinable tokens of a prompt with their positions and sentences, and the budget that a ranking fills.

use std::ops::Range;

use baton_protocol::{Segment, SentenceMap};

use crate::budget::{FillRules, fill, token_budget};
use crate::refine::{RefineError, Refined};

/// The tokens of one refinable segment.
#[derive(Debug, Clone, Copy)]
pub struct ContentTokens<'a> {
    /// Index of the segment in the prompt.
    pub segment: usize,
    /// Position of its first token in the prompt.
    pub first: usize,
    /// For each token, its byte range in the segment's text.
    pub spans: &'a [Range<usize>],
}

impl<'a> ContentTokens<'a> {
    /// Returns the tokens of all segments of a prompt. `parts` are, in order, the position of a segment's
    /// first token and the spans of its tokens.
    pub fn of_all(parts: impl IntoIterator<Item = (usize, &'a [Range<usize>])>) -> Vec<ContentTokens<'a>> {
        let parts = parts.into_iter().enumerate();
        parts.map(|(segment, (first, spans))| ContentTokens { segment, first, spans }).collect()
    }
}

/// One refinable token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// Position in the prompt.
    pub position: usize,
    /// Index of its sentence in the map.
    pub unit: usize,
    /// Whether it contains a letter or a digit.
    pub wordy: bool,
}

/// All refinable tokens of a prompt. A ranking gives a value to each unit and fills a budget of tokens by
/// these values: see [`Self::budget`], [`Self::keep_best`] and [`Self::refined`].
#[derive(Debug, Clone)]
pub struct Content {
    /// The tokens, in prompt order.
    pub tokens: Vec<Token>,
    /// For each unit of the map, its tokens as a range of `tokens`; empty if it has none.
    pub units: Vec<Range<usize>>,
    /// For each given part, its tokens as a range of `tokens`.
    pub segments: Vec<Range<usize>>,
}

impl Content {
    /// Assigns each token to the unit that holds its first byte that is not white space.
    ///
    /// `prompt_tokens`: number of tokens of the whole prompt. Every position must be smaller.
    ///
    /// # Errors
    /// [`RefineError`] if a part belongs to a segment that is not refinable, or if parts overlap or end
    /// beyond the prompt. The same if a token ends beyond its segment's text, or if the map was not made from
    /// these segments.
    pub fn new(
        segments: &[Segment],
        map: &SentenceMap,
        content: &[ContentTokens<'_>],
        prompt_tokens: usize,
    ) -> Result<Self, RefineError> {
        let mut tokens: Vec<Token> = Vec::new();
        let mut parts = Vec::new();
        for part in content {
            let segment = part.segment;
            let text = match segments.get(segment) {
                Some(Segment { text, refine: true, .. }) => text,
                _ => return Err(RefineError::Segment { segment }),
            };
            let end = part.first.saturating_add(part.spans.len());
            let follows = tokens
                .last()
                .is_none_or(|last| last.position < part.first && map.unit(last.unit).segment < segment);
            if end > prompt_tokens || !follows {
                return Err(RefineError::Positions { segment, end, prompt_tokens });
            }
            let units = segment_units(map, segment);
            if units.is_empty() && !part.spans.is_empty() {
                return Err(RefineError::Map { segment });
            }
            let mut unit = units.start;
            parts.push(tokens.len()..tokens.len() + part.spans.len());
            for (k, span) in part.spans.iter().enumerate() {
                let bytes = text.as_bytes().get(span.clone()).ok_or(RefineError::Span {
                    segment,
                    end: span.end,
                    len: text.len(),
                })?;
                let key = span.start + bytes.iter().position(|b| !b.is_ascii_whitespace()).unwrap_or(0);
                while unit + 1 < units.end && map.unit(unit).bytes.end <= key {
                    unit += 1;
                }
                tokens.push(Token { position: part.first + k, unit, wordy: is_wordy(text, span) });
            }
        }
        let mut ranges = vec![0..0; map.len()];
        for (i, token) in tokens.iter().enumerate() {
            let range = &mut ranges[token.unit];
            if range.start == range.end {
                *range = i..i;
            }
            range.end = i + 1;
        }
        Ok(Self { tokens, units: ranges, segments: parts })
    }

    /// Returns how many tokens a unit has.
    ///
    /// # Panics
    /// If the map has no such unit.
    pub fn cost(&self, unit: usize) -> usize {
        self.units[unit].len()
    }

    /// Returns how many tokens may be kept: the largest number whose share of all content tokens is at most
    /// `ratio`.
    ///
    /// # Errors
    /// [`RefineError::Ratio`] if `ratio` is not above 0 and at most 1; [`RefineError::EmptyContent`] if there
    /// is no token.
    pub fn budget(&self, ratio: f32) -> Result<usize, RefineError> {
        if !(ratio > 0.0 && ratio <= 1.0) {
            return Err(RefineError::Ratio { ratio });
        }
        match self.tokens.len() {
            0 => Err(RefineError::EmptyContent),
            tokens => Ok(token_budget(ratio, tokens)),
        }
    }

    /// Keeps the units with the largest values (ties: the earlier first), as many as fit into `budget`
    /// tokens; a unit that does not fit is skipped. No title lines are added and no gaps are closed. At least
    /// one unit is kept if any unit has a token.
    ///
    /// # Panics
    /// If `values` does not have one entry per unit of `map`, or `map` is not the one that this was made
    /// with.
    pub fn keep_best(&self, map: &SentenceMap, values: &[f64], budget: usize) -> Vec<bool> {
        fill(map, self, values, budget, &[], FillRules::default())
    }

    /// Returns the positions of the prompt tokens that a choice of units keeps: all but those of dropped
    /// units, and the prompt's last one.
    ///
    /// # Panics
    /// If `kept` does not have one flag for each unit.
    pub fn kept_positions(&self, kept: &[bool], prompt_tokens: usize) -> Vec<usize> {
        assert_eq!(kept.len(), self.units.len(), "one flag a unit");
        let mut stays = vec![true; prompt_tokens];
        for token in &self.tokens {
            stays[token.position] = kept[token.unit];
        }
        (0..prompt_tokens.saturating_sub(1)).filter(|position| stays[*position]).collect()
    }

    /// Counts the tokens that a choice of units keeps in a prompt of `prompt_tokens` tokens.
    ///
    /// # Panics
    /// If `kept` does not have one flag per unit, or `prompt_tokens` is smaller than the number of content
    /// tokens.
    pub fn refined(&self, kept: Vec<bool>, prompt_tokens: usize) -> Refined {
        assert_eq!(kept.len(), self.units.len(), "one flag a unit");
        let kept_tokens = (0..kept.len()).filter(|&unit| kept[unit]).map(|unit| self.cost(unit)).sum();
        let content_tokens = self.tokens.len();
        let share = |part: usize, whole: usize| (part as f64 / whole as f64) as f32;
        Refined {
            kept,
            kept_tokens,
            content_tokens,
            ratio: share(kept_tokens, content_tokens),
            prompt_ratio: share(prompt_tokens - content_tokens + kept_tokens, prompt_tokens),
        }
    }
}

/// Returns the units of one segment, which are adjacent in the map.
fn segment_units(map: &SentenceMap, segment: usize) -> Range<usize> {
    let units = map.units();
    units.partition_point(|u| u.segment < segment)..units.partition_point(|u| u.segment <= segment)
}

/// Returns whether the characters that overlap the span contain a letter or a digit. A token may be a part of
/// a character.
pub(crate) fn is_wordy(text: &str, span: &Range<usize>) -> bool {
    text[text.floor_char_boundary(span.start)..text.ceil_char_boundary(span.end)]
        .chars()
        .any(char::is_alphanumeric)
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_protocol::Role;

    fn check(text: &str, spans: &[Range<usize>]) -> Result<Vec<(usize, bool)>, RefineError> {
        let segments = [Segment::fixed(Role::System, "s"), Segment::refinable(Role::User, text)];
        let map = SentenceMap::new(&segments);
        let content = Content::new(&segments, &map, &[ContentTokens { segment: 1, first: 3, spans }], 100)?;
        assert!(content.tokens.iter().enumerate().all(|(i, t)| t.position == 3 + i));
        Ok(content.tokens.iter().map(|t| (t.unit, t.wordy)).collect())
    }

    #[test]
    fn a_leading_space_does_not_pull_a_token_to_the_sentence_before() {
        // "One|.| Two|.|\n|"
        let got = check("One. Two.\n", &[0..3, 3..4, 4..8, 8..9, 9..10]).unwrap();
        assert_eq!(got, [(0, true), (0, false), (1, true), (1, false), (1, false)]);
    }

    #[test]
    fn tokens_may_be_parts_of_characters() {
        let got = check("字。文。", &[0..1, 1..3, 3..6, 6..8, 8..9, 9..12]).unwrap();
        assert_eq!(got, [(0, true), (0, true), (0, false), (1, true), (1, true), (1, false)]);
    }

    #[test]
    fn empty_spans_are_fine_and_bad_ones_refused() {
        assert_eq!(check("One. Two.", &[0..0, 0..9, 9..9]).unwrap().len(), 3);
        assert!(matches!(
            check("One.", &[0..2, 2..5]),
            Err(RefineError::Span { segment: 1, end: 5, len: 4 })
        ));
        #[expect(clippy::reversed_empty_ranges, reason = "the case under test")]
        let reversed = 3..1;
        assert!(check("One.", &[reversed]).is_err());
    }

    #[test]
    fn places_that_do_not_fit_the_prompt_are_refused() {
        let segments = [
            Segment::refinable(Role::User, "One."),
            Segment::fixed(Role::User, "q"),
            Segment::refinable(Role::User, "Two."),
        ];
        let map = SentenceMap::new(&segments);
        let spans = [0..2, 2..4];
        let part = |segment, first| ContentTokens { segment, first, spans: &spans };
        let new = |parts: &[ContentTokens<'_>]| Content::new(&segments, &map, parts, 10);
        assert!(new(&[part(0, 0), part(2, 8)]).is_ok());
        assert!(matches!(new(&[part(1, 0)]), Err(RefineError::Segment { segment: 1 })));
        assert!(matches!(new(&[part(3, 0)]), Err(RefineError::Segment { segment: 3 })));
        assert!(matches!(new(&[part(0, 9)]), Err(RefineError::Positions { .. })));
        assert!(new(&[part(0, usize::MAX)]).is_err());
        assert!(new(&[part(2, 0), part(0, 4)]).is_err());
        assert!(new(&[part(0, 0), part(2, 1)]).is_err());
        assert!(new(&[part(0, 0), part(0, 4)]).is_err());
        let empty = SentenceMap::new(&[]);
        assert!(matches!(
            Content::new(&segments, &empty, &[part(0, 0)], 10),
            Err(RefineError::Map { segment: 0 })
        ));
    }
}
