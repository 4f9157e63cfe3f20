//! The frozen tables of segmenter `s1`: character classes and word lists.
//!
//! Device and cloud must split the same bytes at the same places, whatever their Unicode version. So nothing
//! here asks the standard library about a character beyond ASCII. **A change to any table is a new
//! segmenter.**

/// Longest line, in columns, that still counts as wrapped text; longer ones are unwrapped paragraphs.
pub(super) const WRAPPED_COLUMNS_MAX: usize = 160;
/// Shortest line, in columns, whose end can be a soft wrap before a line that starts with a capital.
pub(super) const WRAPPED_COLUMNS_MIN: usize = 40;
/// Columns by which a wrapped line may be shorter than the longest line, in addition to the word that did not
/// fit.
pub(super) const WRAP_SLACK: usize = 2;
/// Most columns of a plain title line.
pub(super) const TITLE_COLUMNS_MAX: usize = 80;
/// Most words (or CJK characters / 2) of a plain title line.
pub(super) const TITLE_WORDS_MAX: usize = 14;
/// Most words or CJK characters of a unit.
pub(super) const UNIT_WEIGHT_MAX: usize = 64;
/// Least weight before a cut.
pub(super) const CUT_WEIGHT_MIN: usize = 16;
/// Characters of a run without white space that count as one word.
pub(super) const WORD_CHARS: usize = 24;

/// Checks for white space.
pub(super) fn is_space(c: char) -> bool {
    matches!(c,
        '\t'..='\r' | ' ' | '\u{85}' | '\u{a0}' | '\u{1680}' | '\u{2000}'..='\u{200a}'
        | '\u{2028}' | '\u{2029}' | '\u{202f}' | '\u{205f}' | '\u{3000}')
}

/// Checks for lower-case letters of Latin-1, Greek and Cyrillic.
pub(super) fn is_lower(c: char) -> bool {
    matches!(c,
        'a'..='z' | '\u{df}'..='\u{f6}' | '\u{f8}'..='\u{ff}' | '\u{3ac}'..='\u{3ce}' | '\u{430}'..='\u{45f}')
}

/// Checks for text that is written without spaces: Han characters, kana, bopomofo, and CJK or full-width
/// punctuation.
///
/// Hangul is not among them, since Korean is written with spaces.
pub fn is_cjk(c: char) -> bool {
    // A fast exit: nearly all other text is below the first of them.
    c >= '\u{2e80}'
        && matches!(c,
        '\u{2e80}'..='\u{2fdf}' | '\u{3001}'..='\u{312f}' | '\u{31a0}'..='\u{31bf}' | '\u{31f0}'..='\u{31ff}'
        | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{fe30}'..='\u{fe4f}'
        | '\u{ff01}'..='\u{ff9f}' | '\u{20000}'..='\u{3ffff}')
}

/// Checks for a character that makes a line more than decoration: letters, digits and everything that is not
/// known punctuation.
pub(super) fn is_wordy(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphanumeric();
    }
    !is_space(c)
        && c >= '\u{aa}'
        && !matches!(c,
            '\u{ab}'..='\u{b4}' | '\u{b6}'..='\u{b9}' | '\u{bb}' | '\u{bf}' | '\u{d7}' | '\u{f7}'
            | '\u{2000}'..='\u{2bff}' | '\u{3000}'..='\u{3004}' | '\u{3008}'..='\u{3020}' | '\u{fe10}'..='\u{fe6f}'
            | '\u{ff01}'..='\u{ff0f}' | '\u{ff1a}'..='\u{ff20}' | '\u{ff3b}'..='\u{ff40}' | '\u{ff5b}'..='\u{ff65}'
            | '\u{fff0}'..='\u{ffff}')
}

/// Checks for marks that end a sentence even without white space after them.
pub(super) fn is_cjk_terminal(c: char) -> bool {
    matches!(c, '。' | '！' | '？' | '；' | '｡' | '．')
}

/// Checks for hiragana with which a Japanese sentence goes on after a quotation: と, って, を, の, へ, が, に. Other
/// hiragana may start the next sentence.
pub(super) fn is_quoting_particle(c: char) -> bool {
    matches!(c, 'と' | 'っ' | 'を' | 'の' | 'へ' | 'が' | 'に')
}

/// Checks for ASCII and full-width letters and digits; a full-width stop after one does not end a sentence.
pub(super) fn is_wide_alphanumeric(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '０'..='９' | 'Ａ'..='Ｚ' | 'ａ'..='ｚ')
}

/// Checks for syllables of Korean words.
pub(super) fn is_hangul(c: char) -> bool {
    matches!(c, '\u{ac00}'..='\u{d7a3}')
}

/// Checks for the syllables that number Korean list items in their order: 가. 나. 다.
pub(super) fn is_hangul_label(c: char) -> bool {
    matches!(
        c,
        '가' | '나' | '다' | '라' | '마' | '바' | '사' | '아' | '자' | '차' | '카' | '타' | '파' | '하'
    )
}

/// Checks for marks that start a list item in East Asian text, with or without white space after them.
pub(super) fn is_unspaced_bullet(c: char) -> bool {
    matches!(c, '・' | '※' | '■' | '□' | '◆' | '◇' | '○' | '◎' | '△' | '▲' | '▶' | '①'..='⑳')
}

/// Checks for marks that end a sentence if white space or the end of the block follows.
pub(super) fn is_spaced_terminal(c: char) -> bool {
    matches!(c, '.' | '!' | '?' | '…' | '‼' | '⁇'..='⁉' | '؟' | '۔' | '।' | '॥' | '։' | '።')
}

/// Checks for marks that stay with the sentence before them. Straight quotes are not among them, because they
/// open too.
pub(super) fn is_closer(c: char) -> bool {
    matches!(
        c,
        ')' | ']'
            | '}'
            | '»'
            | '”'
            | '’'
            | '」'
            | '』'
            | '】'
            | '》'
            | '〉'
            | '）'
            | '］'
            | '｝'
            | '〗'
            | '〕'
            | '〙'
            | '〛'
            | '＂'
            | '＇'
            | '*'
            | '_'
            | '`'
    )
}

/// Checks for marks that may stand before the first letter of a sentence.
pub(super) fn is_opener(c: char) -> bool {
    matches!(
        c,
        '(' | '['
            | '{'
            | '«'
            | '“'
            | '‘'
            | '„'
            | '「'
            | '『'
            | '【'
            | '《'
            | '〈'
            | '（'
            | '［'
            | '｛'
            | '〖'
            | '〔'
            | '"'
            | '\''
            | '*'
            | '_'
            | '`'
            | '¿'
            | '¡'
            | '>'
    )
}

/// Ranks the end of this character as a place to cut: 0 inside a run, 1 at white space, 4 best. `spaced`:
/// white space follows; `before_lower`: a lower-case letter comes next. A full stop inside a sentence mostly
/// belongs to an abbreviation, and parts joined by an enumeration comma mostly belong together.
pub(super) fn clause_rank(c: char, spaced: bool, before_lower: bool) -> u8 {
    match c {
        '；' | '。' | '！' | '？' | '—' => 4,
        ';' | '!' | '?' | ':' if spaced => 4,
        '，' | '：' => 3,
        ',' | '،' | '–' if spaced => 3,
        '.' if spaced && before_lower => 3,
        '、' | '､' => 2,
        _ => u8::from(spaced),
    }
}

/// No sentence ends after one of these words and a full stop (lower case, without the stop).
const NEVER_LAST: &[&str] = &[
    "adm", "approx", "atty", "bros", "brig", "ca", "capt", "cf", "cmdr", "col", "cpl", "dr", "e.g", "eg",
    "esp", "fr", "ft", "gen", "gov", "hon", "i.e", "ie", "incl", "lt", "maj", "messrs", "mlle", "mme", "mr",
    "mrs", "ms", "mt", "mx", "pres", "prof", "rep", "resp", "rev", "sen", "sgt", "st", "supt", "v", "viz",
    "vs",
];

/// No sentence ends after one of these words and a full stop if a digit follows.
const BEFORE_NUMBER: &[&str] = &[
    "app", "apr", "art", "aug", "ch", "chap", "dec", "eq", "eqn", "eqs", "ex", "feb", "fig", "figs", "jan",
    "jul", "jun", "mar", "no", "nos", "nov", "nr", "oct", "p", "par", "pp", "pt", "ref", "refs", "sec",
    "sect", "sep", "sept", "tab", "tel", "vol", "vols",
];

/// A sentence ends after one of these words and a full stop only if the next word often starts a sentence.
const SOMETIMES_LAST: &[&str] = &[
    "al", "apr", "aug", "ave", "bldg", "blvd", "co", "corp", "dec", "dept", "ed", "eds", "esq", "est", "etc",
    "feb", "inc", "jan", "jr", "jul", "jun", "ltd", "mar", "min", "max", "nov", "oct", "op", "plc", "rd",
    "sep", "sept", "sr", "univ",
];

/// Words that often start a sentence.
const STARTERS: &[&str] = &[
    "A", "After", "All", "Also", "Although", "An", "And", "As", "At", "Because", "Before", "But", "By",
    "Did", "Do", "Does", "During", "Each", "For", "From", "He", "Her", "Here", "His", "How", "However", "I",
    "If", "In", "Is", "It", "Its", "Many", "Most", "My", "No", "Now", "Of", "On", "One", "Or", "Our", "She",
    "Since", "So", "Some", "Such", "That", "The", "Their", "Then", "There", "These", "They", "This", "Those",
    "Thus", "To", "Under", "Until", "We", "What", "When", "Where", "Which", "While", "Who", "Why", "With",
    "Yes", "Yet", "You", "Your",
];

/// How a full stop is read, by the word before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// It ends the sentence.
    Ends,
    /// It belongs to an abbreviation that something always follows.
    Inside,
    /// It belongs to an abbreviation; it ends the sentence only before a word that often starts one.
    Unsure,
    /// It belongs to an abbreviation if a digit follows; otherwise it ends the sentence.
    InsideBeforeDigit,
    /// As `InsideBeforeDigit` if a digit follows, otherwise as `Unsure`.
    UnsureOrBeforeDigit,
}

/// Looks up the word before a full stop (as written, without the stop).
pub(super) fn stop_after(word: &str) -> Stop {
    let lower = word.to_ascii_lowercase();
    let has = |list: &[&str]| list.contains(&lower.as_str());
    if has(NEVER_LAST) {
        return Stop::Inside;
    }
    let sometimes = has(SOMETIMES_LAST) || is_dotted(word) || is_initial(word);
    match (has(BEFORE_NUMBER), sometimes) {
        (true, true) => Stop::UnsureOrBeforeDigit,
        (true, false) => Stop::InsideBeforeDigit,
        (false, true) => Stop::Unsure,
        (false, false) => Stop::Ends,
    }
}

/// Checks whether the word often starts a sentence.
pub(super) fn is_starter(word: &str) -> bool {
    STARTERS.contains(&word)
}

/// Checks for one capital letter, as `J` of `J. Smith`.
fn is_initial(word: &str) -> bool {
    let mut chars = word.chars();
    matches!((chars.next(), chars.next()), (Some(c), None) if c.is_ascii_uppercase())
}

/// Checks for letters with stops between them: `U.S`, `Ph.D`, `a.m`.
fn is_dotted(word: &str) -> bool {
    word.contains('.')
        && word
            .split('.')
            .all(|part| matches!(part.len(), 1 | 2) && part.bytes().all(|b| b.is_ascii_alphabetic()))
}
