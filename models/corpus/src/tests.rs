//! Tests the invariants of the crate on every document: equal seeds, gold ranges, answers word for word.

use super::*;

/// The lengths that a training stage, a test or a bench uses, and two others.
const LENGTHS: [usize; 7] = [0, 40, 120, 300, 1_000, 2_000, 20_000];

#[track_caller]
fn check_document(seed: u64, words: usize) {
    let doc = document(seed, words);
    assert_eq!(doc, document(seed, words), "same seed, same document");
    assert!(doc.text.is_ascii() && !doc.text.ends_with('\n'));
    let written = doc.text.split_whitespace().count();
    assert!(
        written + words / 20 + 30 >= words && written <= words + words / 4 + 120,
        "{written} words for {words}"
    );
    for section in &doc.sections {
        assert_eq!(doc.text[section.heading.clone()], format!("## {}", section.name));
        let joined: Vec<&str> = section.sentences.iter().map(|range| &doc.text[range.clone()]).collect();
        assert_eq!(joined.join(" "), doc.text[section.body.clone()]);
        for sentence in joined {
            assert!(sentence.contains(&section.name) && sentence.ends_with('.'), "{sentence}");
            assert_eq!(sentence.matches('.').count(), 1, "a segmenter must see one sentence: {sentence}");
        }
    }
    for question in &doc.questions {
        let gold: String =
            question.gold.iter().map(|range| &doc.text[range.clone()]).collect::<Vec<_>>().join(" ");
        assert!(gold.contains(question.answer.trim_start_matches("The")), "{question:?}");
    }
    assert!(doc.question(QuestionKind::Long).is_some() && doc.question(QuestionKind::Short).is_some());
}

#[test]
fn documents_hold_their_invariants() {
    for words in LENGTHS {
        for seed in [0, 1, 77, u64::MAX] {
            check_document(seed, words);
        }
    }
}

#[test]
fn names_and_values_are_unique() {
    let doc = document(3, 20_000);
    let mut names: Vec<&str> = doc.sections.iter().map(|section| section.name.as_str()).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
    let mut source = Source::new(5);
    let mut values: Vec<String> = (0..8_192).map(|_| source.value()).collect();
    values.sort_unstable();
    values.dedup();
    assert_eq!(values.len(), 8_192);
}

#[test]
fn questions_have_one_answer() {
    for seed in 0..20 {
        let doc = document(seed, 1_500);
        let mut texts: Vec<&str> = doc.questions.iter().map(|question| question.text.as_str()).collect();
        let all = texts.len();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), all, "a question is asked once, seed {seed}");
        assert!(doc.question(QuestionKind::TwoHop).is_some(), "seed {seed}");
    }
}

#[test]
fn refined_documents_keep_their_gold() {
    for seed in 0..50 {
        let doc = document(seed, 1_500);
        let focus = doc.questions.iter().position(|q| q.kind == QuestionKind::Long).expect("a long question");
        let short = refined(&doc, focus, 300, seed);
        assert_eq!(short, refined(&doc, focus, 300, seed));
        assert_eq!(short.questions[0].text, doc.questions[focus].text);
        let words = short.text.split_whitespace().count();
        assert!((280..=450).contains(&words), "{words} words left");
        for question in &short.questions {
            let gold: Vec<&str> = question.gold.iter().map(|range| &short.text[range.clone()]).collect();
            assert!(gold.join(" ").contains(question.answer.trim_start_matches("The")), "{question:?}");
        }
    }
}

#[test]
fn seeds_differ() {
    assert_ne!(document(1, 300).text, document(2, 300).text);
    assert_ne!(document(1, 300).text, document(1 | TRAINING_SEED_BIT, 300).text);
}
