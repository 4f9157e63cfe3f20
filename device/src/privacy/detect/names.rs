//! Names of people, places and organisations.
//!
//! There is no model: lists of names and words, the words around a name, and the forms of addresses and of
//! company names decide. English, German, Spanish and Chinese are covered; names in other languages with
//! capital letters are found if a list has them or if a rule happens to fit.
//!
//! Countries, capitals, very large cities, languages, months, products and other names that everybody knows
//! are not private by themselves (`lists/public.txt`). A person who is known to everybody is still a person.
//!
//! Lines of code are left alone, and so is a word that touches a sign of a path or of code.

use super::{Found, pattern};

mod chinese;
mod cues;
mod firms;
mod lists;
mod people;
mod places;
mod words;

pub(super) fn find(text: &str, found: &mut Vec<Found>) {
    if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        let words = words::words(text);
        people::find(text, &words, found);
        firms::find(text, found);
        places::find(text, found);
    }
    if text.chars().any(chinese::is_han) {
        chinese::find(text, found);
    }
}

/// Checks for a word of a dictionary, or one of the common words of the languages.
pub(super) fn is_word(text: &str) -> bool {
    let letters = !text.is_empty() && text.chars().all(|c| c.is_alphabetic() || c == '-');
    letters && (lists::lists().in_dictionary(text) || lists::lists().is_common(text, true))
}

/// A part of a person's name that may stand alone later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::privacy) struct NamePart {
    pub(in crate::privacy) text: String,
    /// Whether it is also a word, so that it is a name only where a word would not have a capital letter.
    pub(in crate::privacy) is_word: bool,
}

/// Returns the parts of a person's name that may stand alone later.
pub(in crate::privacy) fn parts(name: &str) -> Vec<NamePart> {
    let lists = lists::lists();
    if name.chars().all(chinese::is_han) {
        let given: String = name.chars().skip(name.chars().count().saturating_sub(2)).collect();
        let alone = name.chars().count() == 3 && !lists.chinese_words.contains(given.as_str());
        return alone.then_some(NamePart { text: given, is_word: false }).into_iter().collect();
    }
    let words: Vec<&str> = name.split_whitespace().collect();
    let long = |word: &&str| {
        word.chars().count() >= 3 && word.starts_with(char::is_uppercase) && !word.ends_with('.')
    };
    let part = |word: &str| NamePart {
        text: word.to_owned(),
        is_word: lists.is_common(word, true) || lists.is_public(word),
    };
    if words.len() < 2 { Vec::new() } else { words.into_iter().filter(long).map(part).collect() }
}

/// Checks whether a name that is also a word may be a name after this text: not at the start of a sentence,
/// and not after an article.
pub(in crate::privacy) fn may_follow(before: &str) -> bool {
    let trimmed = before.trim_end_matches([' ', '*', '"', '(']);
    let last = trimmed.rsplit(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
    !trimmed.is_empty()
        && !trimmed.ends_with(['.', '!', '?', ':', '\n', '|', '\t'])
        && !cues::has(&cues::ARTICLES, last)
}
