//! Cuts a text into words and marks, and says how each word is written. Cost: linear in the text.

use super::cues;
use super::lists::lists;
use std::collections::HashSet;

/// How a word is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// As a name is: `Anna`, `Osei-Tutu`, `O'Hara`, `McGill`.
    Name,
    /// One capital letter and a period: `J.`.
    Initial,
    /// Small letters only.
    Lower,
    /// Anything else with letters: `SELECT`, `markStein`, `a1`.
    Other,
    /// Begins with a digit.
    Number,
    /// One character, or one run of characters of a script without spaces.
    Mark,
}

/// A language, as far as it matters to the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    English,
    German,
    Spanish,
    Unknown,
}

/// A word or a mark, and where it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word<'a> {
    pub(super) text: &'a str,
    /// Position in the text, in bytes.
    pub(super) at: usize,
    pub(super) shape: Shape,
    /// Whether there is a space before it.
    pub(super) spaced: bool,
    /// Whether it is the first one of its line.
    pub(super) first: bool,
    pub(super) language: Language,
    /// Whether its line is code.
    pub(super) code: bool,
    /// Whether it is in the list of given names.
    pub(super) given: bool,
    /// Whether it is in the list of surnames.
    pub(super) surname: bool,
    /// Whether it is a common word, or a name that everybody knows.
    pub(super) plain: bool,
}

impl Word<'_> {
    pub(super) fn end(&self) -> usize {
        self.at + self.text.len()
    }

    pub(super) fn is(&self, mark: &str) -> bool {
        self.text == mark
    }

    pub(super) fn is_name(&self) -> bool {
        self.shape == Shape::Name && !self.code
    }

    /// Checks whether it can only be a name, or a word that no list has.
    pub(super) fn firm(&self) -> bool {
        !self.plain
    }

    /// Checks for a name of a list.
    pub(super) fn listed(&self) -> bool {
        self.given || self.surname
    }
}

/// Checks for characters of scripts that have no spaces between words.
fn is_cjk(c: char) -> bool {
    c as u32 >= 0x2e80
}

fn in_word(c: char) -> bool {
    (c.is_alphanumeric() || c == '_') && !is_cjk(c)
}

/// Returns the length of the word at the start of `text`.
fn word_len(text: &str) -> usize {
    let mut end = 0;
    for (at, c) in text.char_indices() {
        if in_word(c) || ('\u{300}'..'\u{370}').contains(&c) {
            end = at + c.len_utf8();
            continue;
        }
        let rest = &text[at + c.len_utf8()..];
        let joins =
            matches!(c, '-' | '\'' | '’') && rest.starts_with(|c: char| c.is_alphabetic() && !is_cjk(c));
        // The ending of a genitive does not belong to the name.
        let genitive =
            c != '-' && rest.starts_with(['s', 'S']) && !rest[1..].starts_with(|c: char| in_word(c));
        if !joins || genitive {
            break;
        }
    }
    end
}

fn shape(word: &str) -> Shape {
    let first = word.chars().next().unwrap_or(' ');
    if first.is_numeric() {
        return Shape::Number;
    }
    if !word.chars().all(|c| c.is_alphabetic() || matches!(c, '-' | '\'' | '’' | '\u{300}'..'\u{370}')) {
        return Shape::Other;
    }
    if !word.chars().any(char::is_uppercase) {
        return Shape::Lower;
    }
    let mut last = ' ';
    let mut inside = false;
    for (at, c) in word.char_indices() {
        let prefix = matches!(&word[..at], "Mc" | "Mac" | "De" | "La" | "Le" | "Van" | "Di" | "Fitz");
        inside |= c.is_uppercase() && at > 0 && !matches!(last, '-' | '\'' | '’') && !prefix;
        last = c;
    }
    let name = first.is_uppercase() && !inside && word.chars().any(char::is_lowercase);
    if name { Shape::Name } else { Shape::Other }
}

/// Checks whether a word touches a character that makes it a part of a path, an address or code.
fn is_part(text: &str, at: usize, end: usize) -> bool {
    let before = text[..at].chars().next_back();
    let rest = &text[end..];
    let mut after = rest.chars();
    let (next, then) = (after.next(), after.next());
    let escape = at >= 2 && matches!(&text.as_bytes()[at - 2..at], b"\\n" | b"\\t" | b"\\r");
    matches!(before, Some('/' | '\\' | '$' | '#' | '.' | '-' | '~')) && !escape && !text[..at].ends_with("C/")
        || matches!(next, Some('/' | '\\' | '(' | '@' | '='))
        || matches!(next, Some('.' | ':')) && then.is_some_and(|c| in_word(c) || c == ':')
}

/// Checks whether a line is code.
fn is_code(line: &str) -> bool {
    const KEYWORDS: &[&str] = &[
        "import", "from", "class", "let", "const", "var", "def", "fn", "func", "function", "public",
        "private", "return", "using", "package", "select", "insert", "update", "struct", "enum", "impl",
        "use", "pub", "if", "for", "while", "export", "async", "static", "void", "int", "#include",
    ];
    let trimmed = line.trim_start();
    let first = trimmed.split(|c: char| c.is_whitespace() || c == '(').next().unwrap_or_default();
    let signs = ["{", "}", ";", "=", "->", "./", "*"].iter().any(|sign| line.contains(sign));
    let keyword = KEYWORDS.iter().any(|word| first.eq_ignore_ascii_case(word));
    keyword && (signs || trimmed.ends_with(':') && trimmed.contains('('))
        || ["=>", "::", "();", "==", "!=", "</script", "&&", "||="].iter().any(|sign| line.contains(sign))
}

fn language(line: &str) -> Language {
    let mut counts = [0u32; 3];
    for word in line.split(|c: char| !c.is_alphabetic()).take(200) {
        for (count, words) in counts.iter_mut().zip([&cues::ENGLISH, &cues::GERMAN, &cues::SPANISH]) {
            *count += u32::from(cues::has(words, word));
        }
    }
    let most = counts.iter().max().copied().unwrap_or(0);
    match counts {
        _ if most == 0 => Language::Unknown,
        [en, ..] if en == most => Language::English,
        [_, de, _] if de == most => Language::German,
        _ => Language::Spanish,
    }
}

/// Cuts a text into words and marks.
pub(super) fn words(text: &str) -> Vec<Word<'_>> {
    let mut words = Vec::with_capacity(text.len() / 5);
    let mut start = 0;
    let mut last = Language::Unknown;
    for line in text.split_inclusive('\n') {
        let found = language(line);
        if found != Language::Unknown || line.trim().is_empty() {
            last = found;
        }
        line_words(text, start..start + line.len(), last, &mut words);
        start += line.len();
    }
    words
}

fn line_words<'a>(text: &'a str, line: std::ops::Range<usize>, language: Language, out: &mut Vec<Word<'a>>) {
    let code = is_code(&text[line.clone()]);
    let (mut at, mut spaced, mut first) = (line.start, false, true);
    while at < line.end {
        let rest = &text[at..line.end];
        let c = rest.chars().next().unwrap_or(' ');
        if c.is_whitespace() && !matches!(c, '\n' | '\t') {
            (at, spaced) = (at + c.len_utf8(), true);
            continue;
        }
        let mut word = Word {
            text: rest,
            at,
            shape: Shape::Mark,
            spaced,
            first,
            language,
            code,
            given: false,
            surname: false,
            plain: false,
        };
        let len = if c == '\\' && rest[1..].starts_with(['n', 't', 'r']) { 2 } else { word_len(rest) };
        if c == '\\' && len == 2 {
            word.text = "\n";
            (at, spaced, first) = (at + 2, false, true);
            out.push(Word { text: if rest.starts_with("\\t") { "\t" } else { "\n" }, ..word });
            continue;
        }
        word.text = match len {
            0 if is_cjk(c) => &rest[..rest.find(|c| !is_cjk(c)).unwrap_or(rest.len())],
            0 => &rest[..c.len_utf8()],
            len => &rest[..len],
        };
        if len > 0 {
            describe(text, &mut word);
        }
        first = matches!(c, '\t' | '\n');
        at = word.at + word.text.len();
        spaced = false;
        out.push(word);
    }
}

/// Returns the words that stand alone in small letters, not in an address, a path or a name in code.
pub(super) fn small_words<'a>(text: &str, words: &[Word<'a>]) -> HashSet<&'a str> {
    let alone = |word: &&Word<'_>| word.shape == Shape::Lower && !is_part(text, word.at, word.end());
    words.iter().filter(alone).map(|word| word.text).collect()
}

/// Says how a word is written, and which lists have it.
fn describe(text: &str, word: &mut Word<'_>) {
    word.shape = shape(word.text);
    let end = word.end();
    if word.shape == Shape::Other && word.text.chars().count() == 1 && text[end..].starts_with('.') {
        word.shape = Shape::Initial;
        return;
    }
    if word.shape == Shape::Name && is_part(text, word.at, end) {
        word.shape = Shape::Other;
    }
    if word.shape == Shape::Name {
        let lists = lists();
        word.given = lists.is_given(word.text);
        word.surname = lists.is_surname(word.text);
        word.plain =
            lists.is_public(word.text) || lists.is_common(word.text, word.language == Language::German);
    }
}
