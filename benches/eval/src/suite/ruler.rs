//! `ruler`: the retrieval, tracing and counting tasks of RULER (Hsieh 2024), implemented on this project's
//! texts.
//!
//! Tasks:
//!
//! - `single`: one needle;
//! - `multikey`: one needle among many similar ones;
//! - `multivalue`: all four values of one key;
//! - `multiquery`: four keys at once;
//! - `tracking`: a chain of assignments;
//! - `frequent`: the three most frequent words.
//!
//! The haystack is a generated document; each needle is a separate sentence at a random place. As in RULER, a
//! score is the share of the right strings that occur in the answer.

use std::ops::Range;

use baton_corpus::{document, stream};
use baton_engine::Tokenizer;
use baton_random::SplitMix64;

use crate::case::Case;
use crate::metric::{Metric, TextMetric};
use crate::suite::SYSTEM;

/// The tasks.
const TASKS: [&str; 6] = ["single", "multikey", "multivalue", "multiquery", "tracking", "frequent"];
/// Number of needles in tasks that have several, and of links in a chain.
const NEEDLES: usize = 4;
/// Number of needles with other keys than the one asked for.
const DISTRACTORS: usize = 24;
/// Maximum number of tokens in an answer.
const MAX_TOKENS: usize = 96;
/// Occurrences of the three most frequent words; other words occur at most twice.
const FREQUENCIES: [usize; 3] = [24, 16, 10];

/// Makes the cases: `count` of each task at each of `lengths` (approximate, in tokens).
pub fn cases(lengths: &[usize], count: usize, seed: u64, tokenizer: &Tokenizer) -> Vec<Case> {
    let mut cases = Vec::new();
    for &length in lengths {
        for index in 0..count as u64 {
            let seed = seed.wrapping_add(index) & !baton_corpus::TRAINING_SEED_BIT;
            let sample = document(seed, length / 4).text;
            let words = length / 4 * length / tokenizer.encode(&sample).len().max(1);
            for task in TASKS {
                let made = make(task, words, stream(seed ^ (task.len() as u64) << 32));
                cases.push(Case {
                    id: format!("ruler/{task}/{length}/{seed}"),
                    suite: "ruler",
                    group: task.to_owned(),
                    length,
                    cluster: seed,
                    system: SYSTEM.to_owned(),
                    lead: String::new(),
                    content: made.text,
                    question: format!("\n\n{}", made.question),
                    answers: made.answers,
                    gold: made.gold,
                    metric: Metric::Text(TextMetric::ContainsAll),
                    classes: Vec::new(),
                    max_tokens: MAX_TOKENS,
                });
            }
        }
    }
    cases
}

/// A task with its text.
struct Made {
    text: String,
    gold: Vec<Range<usize>>,
    question: String,
    answers: Vec<String>,
}

fn make(task: &str, words: usize, mut rng: SplitMix64) -> Made {
    match task {
        "tracking" => tracking(words, &mut rng),
        "frequent" => frequent(words, &mut rng),
        _ => needles(task, words, &mut rng),
    }
}

/// Draws a number of seven digits, as in RULER.
fn number(rng: &mut SplitMix64) -> String {
    (1_000_000 + rng.below(9_000_000)).to_string()
}

/// Draws distinct invented words of six letters.
fn keys(rng: &mut SplitMix64, count: usize) -> Vec<String> {
    let mut keys: Vec<String> = Vec::with_capacity(count);
    while keys.len() < count {
        let key: String = (0..3)
            .flat_map(|_| [b"bdfgklmnprstvz"[rng.below(14)], b"aeiou"[rng.below(5)]])
            .map(char::from)
            .collect();
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

fn needle(key: &str, value: &str) -> String {
    format!("One of the special magic numbers for {key} is: {value}.")
}

fn needles(task: &str, words: usize, rng: &mut SplitMix64) -> Made {
    let several = if task == "single" || task == "multikey" { 1 } else { NEEDLES };
    let keys = keys(rng, NEEDLES + DISTRACTORS);
    let values: Vec<String> = (0..several).map(|_| number(rng)).collect();
    let key_of = |i: usize| if task == "multiquery" { &keys[i] } else { &keys[0] };
    let wanted: Vec<String> = values.iter().enumerate().map(|(i, value)| needle(key_of(i), value)).collect();
    let distractors = if task == "multikey" { DISTRACTORS } else { 0 };
    let others: Vec<String> =
        keys[NEEDLES..NEEDLES + distractors].iter().map(|key| needle(key, &number(rng))).collect();
    let (text, gold) = hidden(words, &wanted, &others, rng);
    let question = match task {
        "multiquery" => {
            let asked = format!("{} and {}", keys[..NEEDLES - 1].join(", "), keys[NEEDLES - 1]);
            format!("What are all the special magic numbers for {asked} mentioned in the provided text?")
        }
        "multivalue" => {
            format!("What are all the special magic numbers for {} mentioned in the provided text?", keys[0])
        }
        _ => format!("What is the special magic number for {} mentioned in the provided text?", keys[0]),
    };
    Made { text, gold, question, answers: values }
}

fn tracking(words: usize, rng: &mut SplitMix64) -> Made {
    let names: Vec<String> =
        keys(rng, 2 * (NEEDLES + 1)).into_iter().map(|key| key[..5].to_uppercase()).collect();
    let (chain, other) = names.split_at(NEEDLES + 1);
    let (value, other_value) = (number(rng), number(rng));
    let links = |names: &[String], value: &str| -> Vec<String> {
        let first = format!("VAR {} = {value}.", names[0]);
        let rest = names.windows(2).map(|pair| format!("VAR {} = VAR {}.", pair[1], pair[0]));
        std::iter::once(first).chain(rest).collect()
    };
    let (text, gold) = hidden(words, &links(chain, &value), &links(other, &other_value), rng);
    let question = format!("Find all variables that are assigned the value {value} in the text above.");
    Made { text, gold, question, answers: chain.to_vec() }
}

/// Makes a list of invented words, three of which are frequent.
fn frequent(words: usize, rng: &mut SplitMix64) -> Made {
    let often: usize = FREQUENCIES.iter().sum();
    // An invented word has about three times the tokens of a common one.
    let rest = (words / 3).saturating_sub(often).max(3);
    let keys = keys(rng, FREQUENCIES.len() + rest.div_ceil(2));
    let mut list: Vec<&str> = Vec::new();
    for (key, count) in keys.iter().zip(FREQUENCIES) {
        list.extend(std::iter::repeat_n(key.as_str(), count));
    }
    list.extend((0..rest).map(|i| keys[FREQUENCIES.len() + i / 2].as_str()));
    rng.shuffle(&mut list);
    let lines: Vec<String> = list.chunks(10).map(|line| line.join(" ") + ".").collect();
    Made {
        text: lines.join(" "),
        gold: Vec::new(),
        question: "What are the three most frequently appeared words in the text above?".to_owned(),
        answers: keys[..FREQUENCIES.len()].to_vec(),
    }
}

/// Makes a document with inserted sentences, and returns the byte ranges of those of `wanted`. The order
/// within each list is kept.
fn hidden(
    words: usize,
    wanted: &[String],
    others: &[String],
    rng: &mut SplitMix64,
) -> (String, Vec<Range<usize>>) {
    // Needles have more tokens per word than prose.
    let inserted: usize = wanted.iter().chain(others).map(|text| text.split(' ').count()).sum();
    let words = words.saturating_sub(inserted * 3 / 2);
    let document = document(rng.next_u64() & !baton_corpus::TRAINING_SEED_BIT, words);
    let ends: Vec<usize> = document
        .sections
        .iter()
        .flat_map(|section| section.sentences.iter().map(|range| range.end))
        .collect();
    let mut places = |count: usize| {
        let mut places: Vec<usize> = (0..count).map(|_| ends[rng.below(ends.len())]).collect();
        places.sort_unstable();
        places
    };
    let mut inserts: Vec<(usize, &str, bool)> = Vec::new();
    inserts.extend(places(wanted.len()).into_iter().zip(wanted).map(|(at, text)| (at, text.as_str(), true)));
    inserts.extend(places(others.len()).into_iter().zip(others).map(|(at, text)| (at, text.as_str(), false)));
    inserts.sort_by_key(|insert| insert.0);
    let (mut text, mut gold, mut done) = (String::new(), Vec::new(), 0);
    for (at, sentence, is_gold) in inserts {
        text.push_str(&document.text[done..at]);
        done = at;
        text.push(' ');
        let start = text.len();
        text.push_str(sentence);
        if is_gold {
            gold.push(start..text.len());
        }
    }
    text.push_str(&document.text[done..]);
    (text, gold)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_stands_in_its_text() {
        for task in TASKS {
            for seed in 0..5 {
                let made = make(task, 900, stream(seed));
                for answer in &made.answers {
                    assert!(made.text.contains(answer.as_str()), "{task}: {answer}");
                }
                for gold in &made.gold {
                    let sentence = &made.text[gold.clone()];
                    assert!(
                        sentence.ends_with('.') && sentence.starts_with(['O', 'V']),
                        "{task}: {sentence}"
                    );
                }
                assert_eq!(made.gold.is_empty(), task == "frequent");
            }
        }
    }

    #[test]
    fn a_chain_is_asked_for_whole() {
        let made = make("tracking", 600, stream(3));
        assert_eq!((made.answers.len(), made.gold.len()), (NEEDLES + 1, NEEDLES + 1));
        for (gold, name) in made.gold.iter().zip(&made.answers) {
            assert!(made.text[gold.clone()].starts_with(&format!("VAR {name} = ")), "in order");
        }
        assert_eq!(made.text.matches("VAR ").count(), 2 * (2 * NEEDLES + 1), "two chains");
    }

    #[test]
    fn the_frequent_words_are_the_most_frequent() {
        let made = make("frequent", 900, stream(4));
        let count = |word: &str| made.text.split([' ', '.']).filter(|w| *w == word).count();
        for (word, want) in made.answers.iter().zip(FREQUENCIES) {
            assert_eq!(count(word), want);
        }
        let others =
            made.text.split([' ', '.']).filter(|w| !w.is_empty() && !made.answers.iter().any(|a| a == w));
        assert!(others.map(count).all(|n| n <= 2));
    }
}
