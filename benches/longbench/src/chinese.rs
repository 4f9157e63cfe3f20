//! Splits Chinese text into words like the Python package `jieba` 0.42.1 in its default mode (with its hidden
//! Markov model).
//!
//! `jieba-rs` has the same dictionary and the same model, but it treats edge cases differently. It counts
//! more characters as Chinese (CJK extensions) and keeps any character between letters and digits. Its
//! dictionary lacks one repeated line that counts in the total frequency. So it is used only for equal parts:
//! the most probable path through one block of characters, and the model's split of one run of Chinese
//! characters. Blocks and single characters are handled here.

use std::sync::LazyLock;

use jieba_rs::Jieba;
use regex::Regex;

/// The repeated line, as a private-use character with its frequency. No block contains this character, so it
/// only affects the total frequency.
const REPEATED_LINE: (&str, usize) = ("\u{E000}", 3);

static DICTIONARY: LazyLock<Jieba> = LazyLock::new(|| {
    let mut jieba = Jieba::new();
    jieba.add_word(REPEATED_LINE.0, Some(REPEATED_LINE.1), None);
    jieba
});
/// Without a dictionary, `jieba-rs` uses only the model.
static MODEL: LazyLock<Jieba> = LazyLock::new(Jieba::empty);
/// A number with decimals, a word, or either with a percent sign.
static LATIN: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[a-zA-Z0-9]+(?:\.[0-9]+)?%?").expect("the pattern is a constant"));

/// Returns the words of `text` in order; joined, they give `text`. Line breaks, blanks and punctuation marks
/// are separate words.
///
/// Cost: linear in the text. The first call of the process also reads the dictionary (350,000 words).
#[must_use]
pub fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for (block, in_class) in runs(text, in_block) {
        if in_class { cut_block(block, &mut words) } else { marks(block, &mut words) }
    }
    words
}

/// Returns whether a character belongs to a block, which is looked up as a whole.
fn in_block(c: char) -> bool {
    is_chinese(c) || c.is_ascii_alphanumeric() || matches!(c, '+' | '#' | '&' | '.' | '_' | '%' | '-')
}

/// Returns whether Python's `jieba` counts a character as Chinese.
fn is_chinese(c: char) -> bool {
    matches!(c, '\u{4E00}'..='\u{9FD5}')
}

/// Splits a text into maximal runs of characters inside and outside a class.
fn runs(text: &str, class: impl Fn(char) -> bool) -> impl Iterator<Item = (&str, bool)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let inside = class(rest.chars().next()?);
        let end = rest.find(|c| class(c) != inside).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        rest = after;
        Some((run, inside))
    })
}

/// Adds every character as a word; a Windows line break is one word.
fn marks<'t>(block: &'t str, words: &mut Vec<&'t str>) {
    let mut rest = block;
    while let Some(first) = rest.chars().next() {
        let len = if rest.starts_with("\r\n") { 2 } else { first.len_utf8() };
        let (word, after) = rest.split_at(len);
        words.push(word);
        rest = after;
    }
}

/// Adds the words of the most probable path. Runs of single characters go through the model, unless they are
/// a word.
fn cut_block<'t>(block: &'t str, words: &mut Vec<&'t str>) {
    let mut singles = 0..0;
    let mut at = 0;
    for token in DICTIONARY.cut(block, false) {
        let start = at;
        at += token.len();
        // `jieba-rs` joins single letters and digits here; no word of the dictionary consists only of these.
        let is_single =
            token.chars().nth(1).is_none() || token.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if is_single {
            singles = if singles.is_empty() { start..at } else { singles.start..at };
            continue;
        }
        cut_singles(&block[singles], words);
        singles = 0..0;
        words.push(token);
    }
    cut_singles(&block[singles], words);
}

fn cut_singles<'t>(run: &'t str, words: &mut Vec<&'t str>) {
    if run.chars().nth(1).is_none() {
        words.extend((!run.is_empty()).then_some(run));
    } else if is_word(run) {
        words.extend(run.char_indices().map(|(at, c)| &run[at..at + c.len_utf8()]));
    } else {
        for (part, chinese) in runs(run, is_chinese) {
            if chinese { words.extend(MODEL.cut(part, true)) } else { latin(part, words) }
        }
    }
}

/// Returns whether the dictionary contains `run`, whose characters are all single on the most probable path.
/// Only words of frequent Chinese characters can be less probable than their single characters, so other runs
/// are not looked up.
fn is_word(run: &str) -> bool {
    run.chars().all(is_chinese) && DICTIONARY.cut_all(run).contains(&run)
}

/// Adds words and numbers, and the text between them.
fn latin<'t>(part: &'t str, words: &mut Vec<&'t str>) {
    let mut end = 0;
    for found in LATIN.find_iter(part) {
        words.extend((end < found.start()).then(|| &part[end..found.start()]));
        words.push(found.as_str());
        end = found.end();
    }
    words.extend((end < part.len()).then(|| &part[end..]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, want: &[&str]) {
        assert_eq!(words(text), want, "{text}");
    }

    #[test]
    fn edges_of_blocks_are_those_of_python() {
        check("", &[]);
        check("\r\n \n\r", &["\r\n", " ", "\n", "\r"]);
        // Characters of CJK extensions, and the last characters of the main block, are single words.
        check("𠮷野家", &["𠮷", "野家"]);
        check("鿖鿕", &["鿖", "鿕"]);
        check("1.0.3-beta_2", &["1.0", ".", "3", "-", "beta", "_", "2"]);
        check("50%。", &["50%", "。"]);
    }
}
