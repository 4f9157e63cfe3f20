//! Documents as a prompt refiner leaves them: most sentences are removed, and the relevant ones are kept.
//!
//! A device model is trained and tested on these, because at run time it reads only refined prompts.

use baton_random::SplitMix64;

use crate::{Document, Question, stream};
use std::collections::HashMap;
use std::ops::Range;

/// A shortened document, with the questions that it still answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refined {
    /// The kept sentences in their order; a blank line between sections, one space between sentences.
    pub text: String,
    /// The questions whose gold sentences were all kept, with ranges in the new text; the question in focus
    /// is first.
    pub questions: Vec<Question>,
}

/// Drops sentences until about `words` words are left. Always keeps the gold sentences of question `focus`;
/// keeps those of the next two questions if there is room.
///
/// A section loses single sentences or is dropped as a whole. Three of four remaining sections keep their
/// heading, and half of the documents keep their title. Equal arguments give equal results.
///
/// # Panics
/// If `focus` is not an index into the document's questions.
pub fn refined(document: &Document, focus: usize, words: usize, seed: u64) -> Refined {
    let mut rng = stream(seed ^ 0x05ee_d0f5_e17e_9ce5);
    let mut kept: Vec<Vec<bool>> = document.sections.iter().map(|s| vec![false; s.sentences.len()]).collect();
    let mut count = 0;
    for offset in 0..document.questions.len().min(3) {
        let question = &document.questions[(focus + offset) % document.questions.len()];
        let gold_words: usize = question.gold.iter().map(|range| words_in(document, range)).sum();
        if offset == 0 || count + gold_words <= words {
            count += keep(document, &mut kept, |range| question.gold.contains(range));
        }
    }
    let sections = rng.permutation(document.sections.len());
    for index in sections {
        if count >= words {
            break;
        }
        let whole = rng.percent(50);
        for (flag, range) in kept[index].iter_mut().zip(&document.sections[index].sentences) {
            if !*flag && count < words && (whole || rng.percent(50)) {
                *flag = true;
                count += words_in(document, range);
            }
        }
    }
    rebuild(document, &kept, &mut rng, focus)
}

fn words_in(document: &Document, range: &Range<usize>) -> usize {
    document.text[range.clone()].split(' ').count()
}

/// Marks the sentences for which `wanted` returns true, and returns how many words they add.
fn keep(document: &Document, kept: &mut [Vec<bool>], wanted: impl Fn(&Range<usize>) -> bool) -> usize {
    let mut added = 0;
    for (flags, section) in kept.iter_mut().zip(&document.sections) {
        for (flag, range) in flags.iter_mut().zip(&section.sentences) {
            if !*flag && wanted(range) {
                *flag = true;
                added += words_in(document, range);
            }
        }
    }
    added
}

/// Writes the kept sentences, and moves the gold ranges of the questions to the new text.
fn rebuild(document: &Document, kept: &[Vec<bool>], rng: &mut SplitMix64, focus: usize) -> Refined {
    let mut text = String::new();
    let mut moved: HashMap<usize, Range<usize>> = HashMap::new();
    if rng.percent(50) {
        text.push_str("# ");
        text.push_str(&document.title);
    }
    for (flags, section) in kept.iter().zip(&document.sections) {
        if !flags.contains(&true) {
            continue;
        }
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        if rng.percent(75) {
            text.push_str(&document.text[section.heading.clone()]);
            text.push('\n');
        }
        let body_start = text.len();
        for (_, range) in flags.iter().zip(&section.sentences).filter(|(flag, _)| **flag) {
            if text.len() > body_start {
                text.push(' ');
            }
            let start = text.len();
            text.push_str(&document.text[range.clone()]);
            moved.insert(range.start, start..text.len());
        }
    }
    let count = document.questions.len();
    let questions = (0..count)
        .map(|offset| &document.questions[(focus + offset) % count])
        .filter_map(|question| {
            let gold: Option<Vec<_>> =
                question.gold.iter().map(|range| moved.get(&range.start).cloned()).collect();
            gold.map(|gold| Question { gold, ..question.clone() })
        })
        .collect();
    Refined { text, questions }
}
