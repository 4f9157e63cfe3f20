//! Evidence: the sentences of a prompt that an answer stands on.
//!
//! Pure. The caller records how much the answer's own tokens attend to each [`Sources`] sentence. This module
//! says which tokens belong to which sentence, also in a refined prompt, and ranks the sentences for each
//! sentence of the answer. Always: a sentence is named by its bytes of the prompt as it was before it was
//! refined. Templates, system texts and what the question itself says are never cited.

use std::ops::Range;

use baton_protocol::{Role, Segment, SentenceMap, sentences};

use crate::attention::SINK_TOKENS;
use crate::bm25::{TermIndex, distinct_terms};
use crate::content::{ContentTokens, is_wordy};
use crate::rebuild::{Piece, source_byte};
use crate::words::{add, scaled};

/// Sentences that are cited for each sentence of the answer.
const CITED: usize = 2;
/// Weight of the question's words; that of attention is 1. This and the next were chosen on 400 XQuAD
/// questions with two models, half of which `./x bench evidence` does not ask.
const ASKED_SHARE: f64 = 2.0;
/// Share of a sentence's value that the next one of its paragraph gets: what answers a question often follows
/// the sentence with its words ("He", "This").
const PREVIOUS_SHARE: f64 = 0.3;
/// A shorter sentence counts as if it had this many tokens.
const LENGTH_MIN: usize = 8;

/// A sentence that can be cited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Index of its segment in the prompt.
    pub segment: usize,
    /// Its bytes of that segment's text, without white space at its ends.
    pub bytes: Range<usize>,
}

/// The sentences of a prompt that can be cited, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sources {
    all: Vec<Source>,
    /// For each of them, whether the one before is in the same paragraph.
    follows: Vec<bool>,
}

/// How the texts of a prompt were changed, the last change first: see [`crate::pieces`].
pub type Changes<'a> = [&'a [Option<Vec<Piece>>]];

/// A sentence of an answer, and what it stands on.
#[derive(Debug, Clone, PartialEq)]
pub struct Cited {
    /// Its bytes of the answer, without white space at its ends.
    pub answer: Range<usize>,
    /// The best sentences, best first.
    pub sources: Vec<Citation>,
}

/// A cited sentence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Citation {
    /// Index in [`Sources::all`].
    pub source: usize,
    /// Its share of the values of all sentences, 0 to 1.
    pub score: f64,
}

impl Sources {
    /// Returns the sentences of the refinable segments. If there is no refinable segment, these are the
    /// sentences of users' and tools' texts, except those of the question. The question is the last paragraph
    /// of the last user message, or its last sentence if it has one paragraph.
    pub fn of(segments: &[Segment]) -> Sources {
        let mut marked = segments.to_vec();
        let is_refined = marked.iter().any(|segment| segment.refine);
        if !is_refined {
            let question = question_of(segments);
            for (index, segment) in marked.iter_mut().enumerate() {
                segment.refine = matches!(segment.role, Role::User | Role::Tool);
                if let Some((_, start)) = question.iter().find(|(asked, _)| *asked == index) {
                    segment.text.truncate(*start);
                }
            }
        }
        let map = SentenceMap::new(&marked);
        let (mut sources, mut before) = (Sources::default(), None);
        for unit in map.units().iter().filter(|unit| !unit.title) {
            let bytes = trimmed(&marked[unit.segment].text, unit.bytes.clone());
            if !bytes.is_empty() {
                sources.all.push(Source { segment: unit.segment, bytes });
                sources.follows.push(before == Some(unit.paragraph));
                before = Some(unit.paragraph);
            }
        }
        sources
    }

    /// Returns all sentences, in order.
    pub fn all(&self) -> &[Source] {
        &self.all
    }

    /// Adds to each sentence's value a share of that of the one before it in its paragraph.
    fn spread(&self, values: &mut [f64]) {
        for at in (1..values.len()).rev().filter(|at| self.follows[*at]) {
            values[at] += PREVIOUS_SHARE * values[at - 1];
        }
    }

    /// Returns the sentence that holds a byte of a segment's text.
    fn at(&self, segment: usize, byte: usize) -> Option<usize> {
        let after = self.all.partition_point(|source| (source.segment, source.bytes.end) <= (segment, byte));
        let source = self.all.get(after)?;
        (source.segment == segment && source.bytes.start <= byte).then_some(after)
    }

    /// Returns the sentence of each position of a prompt of `prompt_tokens` tokens, for positions that count.
    /// These are tokens with a letter or digit. The first tokens do not count, because they draw attention
    /// whatever they say.
    ///
    /// `texts` are the prompt's segments as the model gets them, `tokens` their tokens. `changes` lead from
    /// them back to the segments that this was made of; there are none if the prompt was not changed.
    ///
    /// # Panics
    /// If the tokens or changes are those of other texts.
    pub fn of_positions(
        &self,
        texts: &[Segment],
        tokens: &[ContentTokens<'_>],
        changes: &Changes<'_>,
        prompt_tokens: usize,
    ) -> Vec<Option<u32>> {
        let mut of = vec![None; prompt_tokens];
        for part in tokens {
            let text = &texts[part.segment].text;
            for (position, span) in (part.first..).zip(part.spans) {
                if position < SINK_TOKENS || !is_wordy(text, span) {
                    continue;
                }
                let bytes = &text.as_bytes()[span.clone()];
                let first = span.start + bytes.iter().position(|b| !b.is_ascii_whitespace()).unwrap_or(0);
                let byte = changes.iter().try_fold(first, |byte, change| match &change[part.segment] {
                    Some(pieces) => source_byte(pieces, byte),
                    None => Some(byte),
                });
                of[position] = byte.and_then(|byte| self.at(part.segment, byte)).map(|at| at as u32);
            }
        }
        of
    }
}

/// What an answer's tokens attend to.
#[derive(Debug, Clone, Copy)]
pub struct Attended<'a> {
    /// The sentence of each position of the prompt: see [`Sources::of_positions`].
    pub of_positions: &'a [Option<u32>],
    /// For each token of the answer, its attention by sentence, `[sources]`; empty if not known.
    pub rows: &'a [Vec<f32>],
    /// For each token, the byte of the answer's text at which it begins.
    pub starts: &'a [usize],
    /// The prompt's segments before anything was left out; the last one holds the question.
    pub segments: &'a [Segment],
    /// Their sentences.
    pub sources: &'a Sources,
}

/// Returns what each sentence of the answer stands on. Sentences without a known token are left out, except
/// that a sentence of one token has the attention of the token before it if its own is not known. Only
/// sentences of which the model had tokens are cited.
///
/// A sentence's value is the sum of two parts, each divided by its largest value. The first is the attention
/// of the answer sentence's tokens on it, divided by its length. The second is twice its BM25 value against
/// the question. A sentence also gets three tenths of the value of the one before it in its paragraph. Cost:
/// linear in tokens times sources.
pub fn cited(answer: &str, attended: &Attended<'_>) -> Vec<Cited> {
    let Attended { of_positions, rows, starts, segments, sources } = attended;
    let mut lengths = vec![0; sources.all.len()];
    of_positions.iter().flatten().for_each(|source| lengths[*source as usize] += 1);
    let texts = sources.all.iter().map(|source| &segments[source.segment].text[source.bytes.clone()]);
    let index = TermIndex::of_texts(texts);
    let terms = distinct_terms(segments.last().map_or("", |segment| &segment.text));
    let query: Vec<(&str, f64)> = terms.iter().map(|term| (term.as_str(), 1.0)).collect();
    let mut words = index.values(&query);
    words.iter_mut().zip(&lengths).filter(|(_, length)| **length == 0).for_each(|(value, _)| *value = 0.0);
    let words = scaled(&words, ASKED_SHARE);
    let mut all = Vec::new();
    for range in sentences(answer) {
        let mut values = by_length(known_of(&range, starts, rows), &lengths);
        let trimmed = trimmed(answer, range.clone());
        if trimmed.is_empty() || values.iter().all(|value| *value == 0.0) {
            continue;
        }
        values = scaled(&values, 1.0);
        add(&mut values, &words);
        sources.spread(&mut values);
        all.push(Cited { answer: trimmed, sources: best(&values, &lengths) });
    }
    all
}

/// Returns the known rows of the tokens that begin in these bytes. If that is one token, and it is not known,
/// it is the row of the token before it.
fn known_of<'a>(
    bytes: &Range<usize>,
    starts: &[usize],
    rows: &'a [Vec<f32>],
) -> impl Iterator<Item = &'a [f32]> {
    let [first, end] = [bytes.start, bytes.end].map(|byte| starts.partition_point(|start| *start < byte));
    let is_known = |token: usize| rows.get(token).is_some_and(|row| !row.is_empty());
    let is_one_unknown = end == first + 1 && !is_known(first);
    let tokens = if is_one_unknown { first.saturating_sub(1)..first } else { first..end };
    rows.iter().take(tokens.end).skip(tokens.start).map(Vec::as_slice).filter(|row| !row.is_empty())
}

/// Sums the rows, and divides each sentence's sum by its length.
fn by_length<'a>(rows: impl Iterator<Item = &'a [f32]>, lengths: &[usize]) -> Vec<f64> {
    let mut values = vec![0.0; lengths.len()];
    for row in rows {
        values.iter_mut().zip(row).for_each(|(value, more)| *value += f64::from(*more));
    }
    values.iter().zip(lengths).map(|(value, length)| value / (*length).max(LENGTH_MIN) as f64).collect()
}

/// Returns the sentences with the largest values, the best first; of equal ones the earlier.
fn best(values: &[f64], lengths: &[usize]) -> Vec<Citation> {
    let mut order: Vec<usize> = (0..values.len()).filter(|source| lengths[*source] > 0).collect();
    let all: f64 = order.iter().map(|source| values[*source]).sum();
    order.retain(|source| values[*source] > 0.0);
    order.sort_by(|a, b| values[*b].total_cmp(&values[*a]).then(a.cmp(b)));
    order.truncate(CITED);
    order.into_iter().map(|source| Citation { source, score: values[source] / all }).collect()
}

/// Returns the bytes without white space at their ends.
fn trimmed(text: &str, bytes: Range<usize>) -> Range<usize> {
    let own = &text[bytes.clone()];
    let start = bytes.start + own.len() - own.trim_start().len();
    start..(bytes.start + own.trim_end().len()).max(start)
}

/// Returns the segments that the question is in, and the byte at which it begins in each.
fn question_of(segments: &[Segment]) -> Vec<(usize, usize)> {
    let Some(last) = segments.iter().rposition(|segment| segment.role == Role::User) else {
        return Vec::new();
    };
    let before = segments[..last].iter().rposition(|segment| segment.role != Role::User);
    let first = before.map_or(0, |before| before + 1);
    // A document and its question are segments of one message.
    if first < last {
        return (first + 1..=last).map(|index| (index, 0)).collect();
    }
    let alone = SentenceMap::new(&[Segment { refine: true, ..segments[last].clone() }]);
    let units = alone.units();
    let Some(end) = units.last() else { return Vec::new() };
    let paragraph = units.iter().find(|unit| unit.paragraph == end.paragraph).unwrap_or(end);
    let start = if paragraph.paragraph > 0 { paragraph.bytes.start } else { end.bytes.start };
    vec![(last, start)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rebuild::{pieces, rebuild};
    use proptest::prelude::*;

    fn texts(segments: &[Segment]) -> Vec<&str> {
        let sources = Sources::of(segments);
        sources.all().iter().map(|source| &segments[source.segment].text[source.bytes.clone()]).collect()
    }

    #[track_caller]
    fn check(segments: &[Segment], want: &[&str]) {
        assert_eq!(texts(segments), want);
    }

    #[test]
    fn refinable_sentences_are_sources_and_titles_are_not() {
        let segments = [
            Segment::fixed(Role::System, "Answer. Be brief."),
            Segment::refinable(Role::User, "# Trip\n\nOne. Two.\n\nThree."),
            Segment::fixed(Role::User, "\n\nWhat? When?"),
        ];
        check(&segments, &["One.", "Two.", "Three."]);
    }

    #[test]
    fn without_refinable_text_the_question_is_left_out() {
        let user = |text: &str| Segment::fixed(Role::User, text);
        let system = Segment::fixed(Role::System, "Be brief.");
        check(&[system.clone(), user("One. Two.\n\nWhat? When?")], &["One.", "Two."]);
        check(&[system.clone(), user("One. Two. What?")], &["One.", "Two."]);
        check(&[system.clone(), user("One. Two."), user("\n\nQuestion: "), user("What?")], &["One.", "Two."]);
        let said = Segment::fixed(Role::Assistant, "Yes. No.");
        check(&[user("One. Two."), said, user("What?")], &["One.", "Two."]);
        check(&[system], &[]);
    }

    /// Checks what is cited of four sentences: by each sentence of the answer, the sources.
    #[track_caller]
    fn check_cited(
        question: &str,
        answer: &str,
        rows: &[Vec<f32>],
        starts: &[usize],
        want: &[(Range<usize>, &[usize])],
    ) {
        let segments = [
            Segment::refinable(Role::User, "Red is it.\n\nBlue was it.\n\nSo on.\n\nNot there."),
            Segment::fixed(Role::User, question),
        ];
        let sources = Sources::of(&segments);
        // Ten tokens of source 0, eight of 1, two of 2, none of 3.
        let counts = [(0, 10), (1, 8), (2, 2)];
        let of: Vec<Option<u32>> = counts.iter().flat_map(|&(source, n)| vec![Some(source); n]).collect();
        let attended = Attended { of_positions: &of, rows, starts, segments: &segments, sources: &sources };
        let got = cited(answer, &attended);
        let order = |cited: &Cited| cited.sources.iter().map(|citation| citation.source).collect::<Vec<_>>();
        let got: Vec<_> = got.iter().map(|cited| (cited.answer.clone(), order(cited))).collect();
        let want: Vec<_> = want.iter().map(|(answer, order)| (answer.clone(), order.to_vec())).collect();
        assert_eq!(got, want);
    }

    #[test]
    fn the_two_best_by_attention_and_length_are_cited_for_each_sentence() {
        let rows = [vec![0.2, 0.1, 0.0, 0.0], vec![0.3, 0.1, 0.4, 0.0], vec![], vec![0.0, 0.0, 0.1, 0.0]];
        // .5 / 10, .2 / 8 and .4 / 8: two tokens count as eight.
        check_cited("Hm?", "Yes. No.", &rows, &[0, 2, 3, 5], &[(0..4, &[0, 2]), (5..8, &[2])]);
        check_cited("Hm?", "Yes. No.", &rows[..2], &[0, 2], &[(0..4, &[0, 2])]);
        // The last sentence has one token, which is not known: it has the attention of the one before.
        check_cited("Hm?", "Yes. No.", &rows[1..3], &[0, 5], &[(0..4, &[2, 0]), (5..8, &[2, 0])]);
        check_cited("Hm?", "Yes. No. So.", &rows[1..3], &[0, 5, 9], &[(0..4, &[2, 0]), (5..8, &[2, 0])]);
        check_cited("Hm?", "Yes. No.", &rows[1..3], &[0, 5, 6], &[(0..4, &[2, 0])]);
        check_cited("Hm?", "", &[], &[], &[]);
    }

    #[test]
    fn words_of_the_question_count_beside_attention() {
        let rows = [vec![0.3, 0.18, 0.01, 0.0]];
        check_cited("Blue?", "Yes.", &rows, &[0], &[(0..4, &[1, 0])]);
        // A sentence that the model did not have is never cited.
        check_cited("Not there?", "Yes.", &rows, &[0], &[(0..4, &[0, 1])]);
    }

    #[test]
    fn a_sentence_gets_a_share_of_the_one_before_it_in_its_paragraph() {
        let text = "Ann sings. She is in Fen.\n\nBo is loud. Cy is not.";
        let segments =
            [Segment::refinable(Role::User, text), Segment::fixed(Role::User, "Where does Ann live?")];
        let sources = Sources::of(&segments);
        let cited_of = |of: &[Option<u32>], rows: &[Vec<f32>]| {
            let attended =
                Attended { of_positions: of, rows, starts: &[0], segments: &segments, sources: &sources };
            let found = cited("Fen.", &attended).remove(0).sources;
            found.iter().map(|citation| citation.source).collect::<Vec<_>>()
        };
        let all = [0, 1, 2, 3].map(Some);
        assert_eq!(cited_of(&all, &[vec![0.2, 0.2, 0.3, 0.0]]), [0, 1]);
        assert_eq!(cited_of(&all, &[vec![0.2, 0.0, 0.8, 0.0]]), [0, 2]);
        // What the model did not have gives no share.
        assert_eq!(cited_of(&all[1..], &[vec![0.0, 0.2, 0.3, 0.0]]), [2, 1]);
    }

    #[test]
    fn a_score_is_a_share_of_all_values() {
        let segments = [Segment::refinable(Role::User, "A b.\n\nC d."), Segment::fixed(Role::User, "?")];
        let (sources, of) = (Sources::of(&segments), [Some(0), Some(1)]);
        let rows = [vec![0.3, 0.1]];
        let attended =
            Attended { of_positions: &of, rows: &rows, starts: &[0], segments: &segments, sources: &sources };
        let got = cited("Yes.", &attended);
        assert!((got[0].sources[0].score - 0.75).abs() < 1e-6, "{got:?}");
    }

    proptest! {
        /// Each word is a number that says where it stood before anything was left out.
        #[test]
        fn tokens_of_a_refined_prompt_lead_back_to_their_sentences(
            lengths in prop::collection::vec((1usize..5, 0usize..3), 1..20),
            first in prop::collection::vec(any::<bool>(), 60),
            second in prop::collection::vec(any::<bool>(), 60),
        ) {
            let mut text = String::new();
            for (words, end) in lengths {
                for _ in 0..words {
                    let at = text.len();
                    text.push_str(&format!("W{at} "));
                }
                text.pop();
                text.push_str([". ", ".\n\n", "!\n"][end]);
            }
            let fixed = || Segment::fixed(Role::System, "Sys. Tem.");
            let segments = [fixed(), Segment::refinable(Role::User, text)];
            let sources = Sources::of(&segments);
            let mut changes: Vec<Vec<Option<Vec<Piece>>>> = Vec::new();
            let mut now = segments.to_vec();
            for picks in [&first, &second] {
                let map = SentenceMap::new(&now);
                let kept = &picks[..map.len()];
                changes.insert(0, pieces(&now, &map, kept));
                now = rebuild(&now, &map, kept);
            }
            let changes: Vec<&[Option<Vec<Piece>>]> = changes.iter().map(Vec::as_slice).collect();
            let words: Vec<Range<usize>> = now[1].text.match_indices('W').map(|(at, _)| {
                let rest = &now[1].text[at + 1..];
                at..at + 1 + rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())
            }).collect();
            let tokens = [ContentTokens { segment: 1, first: 10, spans: &words }];
            let of = sources.of_positions(&now, &tokens, &changes, 10 + words.len());
            for (span, source) in words.iter().zip(&of[10..]) {
                let at: usize = now[1].text[span.start + 1..span.end].parse().unwrap();
                let source = &sources.all()[source.unwrap() as usize];
                prop_assert!(source.bytes.contains(&at), "word {at} in {source:?}");
            }
        }
    }
}
