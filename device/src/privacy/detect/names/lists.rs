//! The lists of names and words that the detectors of names look things up in.
//!
//! They are text files beside this source; each says where it comes from. They are read once, at first use.

use super::cues;
use flate2::read::GzDecoder;
use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::sync::LazyLock;

/// A set of words of a file.
type Set = HashSet<&'static str>;

/// All lists.
pub(super) struct Lists {
    given: Set,
    surnames: Set,
    common: Set,
    /// English words of a spell checker.
    english: HashSet<Box<str>>,
    public: Set,
    towns: Set,
    /// Chinese surnames of one or two characters.
    pub(super) chinese_surnames: Set,
    /// Characters that are usual in Chinese given names.
    pub(super) chinese_given: HashSet<char>,
    /// Frequent Chinese characters.
    pub(super) chinese_common: HashSet<char>,
    /// Simplified forms of traditional characters.
    pub(super) chinese_simplified: HashMap<char, char>,
    /// Frequent Chinese words of two characters.
    pub(super) chinese_frequent: Set,
    /// Chinese words whose first character is also a surname.
    pub(super) chinese_words: Set,
}

/// Returns the lists.
pub(super) fn lists() -> &'static Lists {
    static LISTS: LazyLock<Lists> = LazyLock::new(Lists::read);
    &LISTS
}

fn set(text: &'static str) -> Set {
    text.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace).collect()
}

/// Returns the words of a section of the file of Chinese lists.
pub(super) fn chinese(section: &str) -> Vec<&'static str> {
    let rest = include_str!("lists/zh.txt").split_once(section).map_or("", |(_, rest)| rest);
    rest.split("\n[").next().unwrap_or_default().split_whitespace().collect()
}

/// Returns the words of the dictionary; `lists/english.py` made it.
fn english() -> HashSet<Box<str>> {
    let mut text = String::with_capacity(ENGLISH_BYTES);
    let mut packed = GzDecoder::new(&include_bytes!("lists/english.gz")[..]);
    packed.read_to_string(&mut text).expect("a file of this program, read in the tests");
    text.lines().map(Box::from).collect()
}

/// Bytes of the unpacked dictionary, and some more.
const ENGLISH_BYTES: usize = 1 << 20;

/// Reads two characters.
fn pair(text: &str) -> Option<(char, char)> {
    let mut chars = text.chars();
    Some((chars.next()?, chars.next()?))
}

impl Lists {
    fn read() -> Self {
        let section = |name: &str| chinese(name).into_iter().collect::<Set>();
        Self {
            given: set(include_str!("lists/given.txt")),
            surnames: set(include_str!("lists/surnames.txt")),
            common: set(include_str!("lists/common.txt")),
            english: english(),
            public: set(include_str!("lists/public.txt")),
            towns: set(include_str!("lists/towns.txt")),
            chinese_surnames: section("[surnames]"),
            chinese_given: section("[given]").into_iter().flat_map(str::chars).collect(),
            chinese_common: section("[common]").into_iter().flat_map(str::chars).collect(),
            chinese_simplified: section("[traditional]").into_iter().filter_map(pair).collect(),
            chinese_frequent: section("[frequent]"),
            chinese_words: section("[words]"),
        }
    }

    /// Checks whether all parts of a word such as `Anna-Lena` are in a set.
    fn all_in(set: &Set, word: &str) -> bool {
        set.contains(word) || word.contains('-') && word.split('-').all(|part| set.contains(part))
    }

    pub(super) fn is_given(&self, word: &str) -> bool {
        Self::all_in(&self.given, word)
    }

    pub(super) fn is_surname(&self, word: &str) -> bool {
        Self::all_in(&self.surnames, word)
    }

    pub(super) fn is_town(&self, word: &str) -> bool {
        self.towns.contains(word)
    }

    /// Checks whether a name is known to everybody, so that it is not private by itself.
    pub(super) fn is_public(&self, word: &str) -> bool {
        self.public.contains(word)
    }

    /// Checks whether a dictionary has a word, or all parts of a word such as `Low-Resource`. Its case does
    /// not count.
    pub(super) fn in_dictionary(&self, word: &str) -> bool {
        let lower = word.to_lowercase();
        lower.split('-').all(|part| self.english.contains(part) || self.has_word(part))
    }

    /// Checks for a word of the languages, in any usual form. Names that are also words are such words too.
    /// `compounds` also takes words made of two, as German has them.
    pub(super) fn is_common(&self, word: &str, compounds: bool) -> bool {
        let lower = word.to_lowercase();
        [&cues::ENGLISH, &cues::GERMAN, &cues::SPANISH].iter().any(|words| words.contains(lower.as_str()))
            || self.has_word(&lower)
            || cues::NOUN_ENDINGS.iter().any(|end| lower.len() > end.len() + 2 && lower.ends_with(end))
            || compounds
                && (COMPOUND_CHARS_MIN..COMPOUND_CHARS_MAX).contains(&lower.chars().count())
                && self.is_compound(&lower)
            || word.contains('-') && lower.split('-').all(|part| self.has_word(part))
    }

    /// Checks for a word, its plural or its inflected form.
    fn has_word(&self, lower: &str) -> bool {
        let known = |word: &str| word.len() > 1 && self.common.contains(word);
        known(lower)
            || cues::ENDINGS
                .iter()
                .any(|end| lower.strip_suffix(end).is_some_and(|stem| stem.len() > 2 && known(stem)))
            || lower.strip_suffix("ies").is_some_and(|stem| known(&format!("{stem}y")))
            || lower.strip_suffix("ing").is_some_and(|stem| known(&format!("{stem}e")))
            || lower.strip_suffix("ed").is_some_and(|stem| known(&format!("{stem}e")))
    }

    /// Checks whether a long word is made of two words, as German ones are.
    fn is_compound(&self, lower: &str) -> bool {
        const PART_MIN: usize = 4;
        let cuts = lower.char_indices().map(|(at, _)| at);
        cuts.filter(|&at| at >= PART_MIN && lower.len() - at >= PART_MIN).any(|at| {
            let (head, tail) = lower.split_at(at);
            let joint = |end: &str| head.strip_suffix(end).is_some_and(|head| self.common.contains(head));
            (self.common.contains(head) || joint("s") || joint("n") || joint("en")) && self.has_word(tail)
        })
    }
}

/// Longer words are not looked at as compounds, because that takes time quadratic in the length.
const COMPOUND_CHARS_MAX: usize = 48;
/// Fewest letters of a word that is looked at as a compound.
const COMPOUND_CHARS_MIN: usize = 9;
