//! Tests on the generated documents that the demo models are trained on. Their headings and sentences must be
//! units, because a mask can only name units.

use baton_corpus::{QuestionKind, document};
use baton_protocol::{Role, Segment, SentenceMap};
use baton_refine::{ContentTokens, Mode, RefineInput, rebuild, refine};

#[test]
fn headings_and_sentences_are_units() {
    for seed in 0..40 {
        let document = document(seed, 200 + 50 * (seed as usize % 30));
        let text = document.text.clone();
        let map = SentenceMap::new(&[Segment::refinable(Role::User, text.clone())]);
        let units: Vec<&str> = map.units().iter().map(|unit| text[unit.bytes.clone()].trim()).collect();
        let mut want: Vec<&str> = vec![text.lines().next().unwrap()];
        for section in &document.sections {
            want.push(&text[section.heading.clone()]);
            want.extend(section.sentences.iter().map(|range| &text[range.clone()]));
        }
        assert_eq!(units, want, "seed {seed}");
        for (unit, text) in map.units().iter().zip(&units) {
            assert_eq!(unit.title, text.starts_with('#'), "{text}");
        }
    }
}

#[test]
fn bm25_finds_the_gold_of_short_questions_where_words_are_shared() {
    let mut found = 0;
    let mut asked = 0;
    for seed in 0..40 {
        let document = document(seed, 1200);
        let segments = [Segment::refinable(Role::User, document.text.clone())];
        let map = SentenceMap::new(&segments);
        let spans: Vec<_> = word_spans(&document.text);
        for question in document.questions.iter().filter(|q| q.kind == QuestionKind::Short) {
            let refined = refine(RefineInput {
                segments: &segments,
                map: &map,
                content: &[ContentTokens { segment: 0, first: 0, spans: &spans }],
                prompt_tokens: spans.len() + 20,
                scores: None,
                calibration: None,
                question: &question.text,
                ratio: 0.25,
                least_value: None,
                mode: Mode::Bm25,
            })
            .unwrap();
            assert!(refined.ratio <= 0.25);
            let text = &rebuild(&segments, &map, &refined.kept)[0].text;
            asked += 1;
            found +=
                usize::from(question.gold.iter().all(|gold| text.contains(&document.text[gold.clone()])));
        }
    }
    assert!(asked >= 40, "{asked} questions");
    assert!(found * 100 >= asked * 95, "{found} of {asked}");
}

fn word_spans(text: &str) -> Vec<std::ops::Range<usize>> {
    let mut start = 0;
    let ends = text.match_indices([' ', '\n']).map(|(at, _)| at).chain([text.len()]);
    let spans = ends.map(|end| {
        let span = start..end;
        start = end;
        span
    });
    spans.filter(|span| !span.is_empty()).collect()
}
