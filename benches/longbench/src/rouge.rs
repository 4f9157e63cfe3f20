//! ROUGE-L as in the Python package `rouge` 1.0.1 (summary level, distinct words): F1 of precision and
//! recall.
//!
//! Sentences end at every full stop; a sentence is the list of its words. Source: Lin 2004, "ROUGE", section
//! 3.2, with three properties of the package. Each distinct word counts once over all sentences. The
//! smoothing constant keeps the score of equal texts slightly below 1. Its recursion through the table must
//! stay within Python's limit.

use std::collections::{HashMap, HashSet};

use crate::normalize::is_blank;

/// Maximum depth of the package's recursion in CPython 3.11 (limit 1,000) when `eval.py` calls `rouge_score`.
/// Beyond it, an exception makes the score 0.
pub(crate) const DEPTH_MAX: usize = 991;
/// Integers up to this value are shared objects in CPython; comparing larger ones needs one more call.
const SHARED_NUMBER_MAX: usize = 256;
/// The constant with which the package avoids a division by zero.
const SMOOTHING: f64 = 1e-8;

/// Returns F1 of ROUGE-L; 0 if either text has no sentence or the recursion is deeper than `depth_max`.
pub(crate) fn rouge_l(prediction: &str, truth: &str, depth_max: usize) -> f64 {
    let mut ids = HashMap::new();
    let prediction = sentences(prediction, &mut ids);
    let truth = sentences(truth, &mut ids);
    if prediction.is_empty() || truth.is_empty() {
        return 0.0;
    }
    let mut common = HashSet::new();
    for wanted in &truth {
        for written in &prediction {
            let Some(path) = longest_common(wanted, written, depth_max) else { return 0.0 };
            common.extend(path);
        }
    }
    let distinct = |sentences: &[Vec<u32>]| sentences.iter().flatten().collect::<HashSet<_>>().len() as f64;
    let recall = common.len() as f64 / distinct(&truth);
    let precision = common.len() as f64 / distinct(&prediction);
    2.0 * ((precision * recall) / (precision + recall + SMOOTHING))
}

/// Splits a text into sentences of word numbers. A sentence of only blanks is one empty word.
fn sentences<'t>(text: &'t str, ids: &mut HashMap<&'t str, u32>) -> Vec<Vec<u32>> {
    let mut number = |word| {
        let next = u32::try_from(ids.len()).expect("a text has fewer than 2^32 words");
        *ids.entry(word).or_insert(next)
    };
    text.split('.')
        .filter(|sentence| !sentence.is_empty())
        .map(|sentence| {
            let mut words: Vec<u32> =
                sentence.split(is_blank).filter(|word| !word.is_empty()).map(&mut number).collect();
            if words.is_empty() {
                words.push(number(""));
            }
            words
        })
        .collect()
}

/// Returns the words of the longest common subsequence that the package finds, or `None` if its recursion is
/// too deep.
fn longest_common(wanted: &[u32], written: &[u32], depth_max: usize) -> Option<Vec<u32>> {
    let (n, m) = (wanted.len(), written.len());
    // Each call consumes at least one word of one sentence, and the recursion ends when one sentence is
    // empty.
    if n.min(m) >= depth_max {
        return None;
    }
    let width = m + 1;
    let mut table = vec![0_u32; (n + 1) * width];
    for i in 1..=n {
        for j in 1..=m {
            table[i * width + j] = if wanted[i - 1] == written[j - 1] {
                table[(i - 1) * width + j - 1] + 1
            } else {
                table[(i - 1) * width + j].max(table[i * width + j - 1])
            };
        }
    }
    let (mut i, mut j, mut depth) = (n, m, 1);
    let mut path = Vec::new();
    while i > 0 && j > 0 {
        // Looking up a pair of numbers compares them, which is one call deeper; large numbers need one more.
        let compares = if wanted[i - 1] == written[j - 1] {
            path.push(wanted[i - 1]);
            (i, j) = (i - 1, j - 1);
            0
        } else {
            let compares = 1 + usize::from(i.max(j) > SHARED_NUMBER_MAX);
            if table[(i - 1) * width + j] > table[i * width + j - 1] {
                i -= 1
            } else {
                j -= 1
            }
            compares
        };
        if depth + compares > depth_max {
            return None;
        }
        depth += 1;
    }
    (depth <= depth_max).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_words_of_all_sentences_count_once() {
        // Precision 1 of 2 words, recall 1 of 1.
        let f1 = rouge_l("a b a. a", "a. a a", DEPTH_MAX);
        assert!((f1 - 2.0 / 3.0).abs() < 1e-7, "{f1}");
        assert_eq!(rouge_l("...", "a", DEPTH_MAX), 0.0);
        assert_eq!(rouge_l("a", "", DEPTH_MAX), 0.0);
        // Blanks between full stops count as one empty word.
        assert!(rouge_l(" . ", " ", DEPTH_MAX) > 0.99);
    }

    #[test]
    fn a_walk_that_goes_too_deep_scores_nothing() {
        assert!(rouge_l(&"w ".repeat(20), &"w ".repeat(20), 21) > 0.99);
        assert_eq!(rouge_l(&"w ".repeat(20), &"w ".repeat(20), 20), 0.0);
    }
}
