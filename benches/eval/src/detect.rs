//! Detects faults that a score does not show: loops, garbage, answers to another question.
//!
//! Pure functions of texts. They avoid false alarms: each has a threshold below which it reports nothing.

use std::collections::HashSet;

use baton_protocol::{is_cjk, sentences};
use serde::{Deserialize, Serialize};

/// Longest period of a loop that is searched for, in words.
const PERIOD_MAX: usize = 48;
/// Minimum number of consecutive repetitions in a loop.
const REPEATS_MIN: usize = 3;
/// Minimum number of words in a loop, over all repetitions.
const LOOP_WORDS_MIN: usize = 9;
/// A longer run of letters and digits counts as garbage.
const WORD_CHARS_MAX: usize = 30;
/// Maximum share of characters that are neither letters, digits nor white space.
const MARKS_SHARE_MAX: f64 = 0.4;
/// Minimum share of the answer's words that occur in the prompt.
const KNOWN_SHARE_MIN: f64 = 0.5;
/// A word of the question that occurs in more than this share of the sentences is not a key word.
const KEY_SHARE_MAX: f64 = 0.2;
/// An answer of fewer words is a value, which does not have to repeat the question's words.
const STATEMENT_WORDS_MIN: usize = 5;

/// The faults of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// It repeats the same words again and again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub looped: bool,
    /// It is garbage.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub garbled: bool,
    /// It answers another question.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub off_question: bool,
}

impl Faults {
    /// Runs all detectors on one answer.
    pub fn of(answer: &str, question: &str, content: &str) -> Self {
        Self {
            looped: looped(answer),
            garbled: garbled(answer),
            off_question: off_question(answer, question, content),
        }
    }

    /// Returns whether there is any fault.
    pub fn any(&self) -> bool {
        self.looped || self.garbled || self.off_question
    }
}

/// Splits a text into lower-case words, and CJK text into single characters, because its words are not
/// separated.
fn words(text: &str) -> Vec<String> {
    let mut spaced = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if is_cjk(c) && c.is_alphanumeric() => spaced.extend([' ', c, ' ']),
            c if c.is_alphanumeric() => spaced.extend(c.to_lowercase()),
            _ => spaced.push(' '),
        }
    }
    spaced.split_whitespace().map(str::to_owned).collect()
}

/// Returns whether a sequence of up to 48 words occurs at least three times in a row, with at least nine
/// words in total.
///
/// Cost: `O(48 n)` for `n` words.
pub fn looped(text: &str) -> bool {
    let words = words(text);
    (1..=PERIOD_MAX.min(words.len() / REPEATS_MIN)).any(|period| {
        let needed = (period * REPEATS_MIN).max(LOOP_WORDS_MIN);
        let mut same = 0;
        words[period..].iter().zip(&words).any(|(word, before)| {
            same = if word == before { same + 1 } else { 0 };
            same + period >= needed
        })
    })
}

/// Returns whether a text is garbage: invalid characters, very long words, or mostly punctuation marks.
pub fn garbled(text: &str) -> bool {
    let broken = |c: char| c == '\u{fffd}' || (c.is_control() && !c.is_whitespace());
    if text.chars().any(broken) {
        return true;
    }
    let long = |word: &str| word.chars().take_while(|c| !is_cjk(*c)).count() > WORD_CHARS_MAX;
    if text.split(|c: char| !c.is_alphanumeric()).any(long) {
        return true;
    }
    let all = text.chars().count();
    let marks = text.chars().filter(|c| !c.is_alphanumeric() && !c.is_whitespace()).count();
    all >= 8 && marks as f64 > MARKS_SHARE_MAX * all as f64
}

/// Returns whether an answer does not fit the question. It does not if it is empty, or if most of its words
/// occur in neither text nor question. A statement without any key word of the question does not fit either.
///
/// The key words of a question are those that occur in the text, but in at most a fifth of its sentences.
pub fn off_question(answer: &str, question: &str, content: &str) -> bool {
    let said = words(answer);
    if said.is_empty() {
        return true;
    }
    let parts: Vec<HashSet<String>> =
        sentences(content).into_iter().map(|range| words(&content[range]).into_iter().collect()).collect();
    let asked: HashSet<String> = words(question).into_iter().collect();
    let known = |word: &String| asked.contains(word) || parts.iter().any(|part| part.contains(word));
    let n_known = said.iter().filter(|word| known(word)).count();
    if (n_known as f64) < KNOWN_SHARE_MIN * said.len() as f64 {
        return true;
    }
    let is_key = |word: &&String| {
        let with = parts.iter().filter(|part| part.contains(*word)).count();
        with > 0 && with as f64 <= KEY_SHARE_MAX * parts.len() as f64
    };
    let mut keys = asked.iter().filter(is_key).peekable();
    said.len() >= STATEMENT_WORDS_MIN && keys.peek().is_some() && !keys.any(|key| said.contains(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_are_found() {
        assert!(looped("the toys of the toys of the toys of"));
        assert!(looped(&"no ".repeat(9)));
        assert!(looped("It is so. And then a b c d. And then a b c d. And then a b c d."));
        assert!(looped("他说好他说好他说好"));
        assert!(!looped(&"no ".repeat(8)), "too short to be sure");
        assert!(!looped("the toys of A are rings, the toys of B are bells, the toys of C are drums"));
        assert!(!looped("") && !looped("word"));
        assert!(!looped("a b c a b c"), "twice is no loop");
    }

    #[test]
    fn garbage_is_found() {
        assert!(garbled("the \u{fffd}"));
        assert!(garbled("a\u{0}b"));
        assert!(garbled(&"x".repeat(31)));
        assert!(garbled("#$%#$%&& a (("));
        assert!(!garbled("The toys of Dorkost are broken rings."));
        assert!(!garbled("-5 %"), "short answers may be mostly marks");
        assert!(!garbled("一".repeat(80).as_str()));
        assert!(!garbled("") && !garbled("line one\nline two\t."));
    }

    const TEXT: &str = "The toys of Dorkost are broken rings. The keeper of Velgard is Ada Hill. The toys of Velgard are drums. \
        The year of Fenwick is 1207. The year of Albeck is 1300. Many visit Albeck for coins.";

    #[track_caller]
    fn check(answer: &str, question: &str, want: bool) {
        assert_eq!(off_question(answer, question, TEXT), want, "`{answer}` to `{question}`");
    }

    #[test]
    fn answers_to_other_questions_are_found() {
        check("The toys of Dorkost are broken rings.", "What are the toys of Dorkost?", false);
        check("The keeper of Velgard is Ada Hill.", "What is it about Dorkost?", true);
        check("broken rings", "What are the toys of Dorkost?", false);
        check("1207", "Which year has Fenwick?", false);
        check("", "What are the toys of Dorkost?", true);
        check("purple monkeys sing loudly tonight", "What are the toys of Dorkost?", true);
        check("The toys of Velgard are drums.", "Tell me something.", false);
    }

    #[test]
    fn an_answer_has_all_its_faults() {
        let faults = Faults::of(&"zork ".repeat(12), "What are the toys of Dorkost?", TEXT);
        assert_eq!(faults, Faults { looped: true, garbled: false, off_question: true });
        assert!(faults.any() && !Faults::default().any());
    }
}
