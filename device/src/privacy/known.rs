//! Finds values again that were found once: in another message, without the word that showed they are
//! private, in another case, or with other separators.
//!
//! A [`Memory`] outlives one request. So a value that the device restored in an answer is known when that
//! answer comes back as history. It stays on the device, is never written to disk, and is bounded. All values
//! of a request are looked for in that request, however many there are.

use super::detect::names::{NamePart, may_follow, parts};
use super::normal::Normal;
use super::{EntityKind, PlaceholderTable};
use aho_corasick::{AhoCorasick, Anchored, Input, MatchKind, StartKind};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most values that are remembered after their request; the least recently used are forgotten first.
pub const REMEMBERED_MAX: usize = 20_000;
/// Longest value that is remembered, in bytes. Longer ones (private keys) are found again by their form.
const VALUE_BYTES_MAX: usize = 2048;
/// Fewest letters and digits of a value that is looked for; shorter ones would be found everywhere. Numbers
/// need one digit more.
const VALUE_CHARS_MIN: usize = 3;
/// Values with fewer characters are found only as they were written.
const LOOSE_CHARS_MIN: usize = 7;
/// Longest value that must stand alone, in bytes; bounds the time spent on overlapping values.
const WORD_BYTES_MAX: usize = 64;
/// Most letters and digits around a restored value that are remembered with it.
const NEIGHBOURS_MAX: usize = 64;
/// Most bytes of separators between two characters of a value that is written in another form.
const GAP_BYTES_MAX: usize = 3;

/// Private values of earlier texts. Clones share the same memory.
#[derive(Clone, Default)]
pub struct Memory(Arc<Mutex<Values>>);

#[derive(Default)]
struct Values {
    /// The entries, by the value in normal form; names in their own case, all others in lower case.
    entries: HashMap<String, Entry>,
    clock: u64,
    matcher: Option<Arc<Matcher>>,
}

struct Entry {
    kind: EntityKind,
    /// Whether it is a name that is also a word.
    is_word: bool,
    used: u64,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} values)", self.values().entries.len())
    }
}

impl Memory {
    fn values(&self) -> MutexGuard<'_, Values> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.values().entries.len()
    }

    /// Returns whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds values; returns a matcher that finds them and all values known before. Cost: linear in all known
    /// values if any value is new.
    pub(super) fn learn(&self, found: impl Iterator<Item = (EntityKind, String)>) -> Arc<Matcher> {
        let mut values = self.values();
        values.clock += 1;
        let used = values.clock;
        let found = found.flat_map(|(kind, value)| with_parts(kind, &value));
        for (kind, NamePart { text: value, is_word }) in found {
            let chars = value.chars().filter(|c| c.is_alphanumeric()).count();
            let number = !value.chars().any(char::is_alphabetic);
            let short = chars < VALUE_CHARS_MIN + usize::from(number) && !is_short_name(kind, &value);
            if kind == EntityKind::Text || value.len() > VALUE_BYTES_MAX || short {
                continue;
            }
            match values.entries.get_mut(&value) {
                Some(entry) => entry.used = used,
                None => {
                    values.entries.insert(value, Entry { kind, is_word, used });
                    values.matcher = None;
                }
            }
        }
        if let Some(matcher) = &values.matcher {
            return Arc::clone(matcher);
        }
        let matcher =
            Arc::new(Matcher::new(values.entries.iter().map(|(value, entry)| (value.as_str(), entry))));
        values.forget();
        // The stored matcher still finds the forgotten values, until the next new value replaces it.
        values.matcher = Some(Arc::clone(&matcher));
        matcher
    }
}

impl Memory {
    /// Remembers the values of `table` in the form that they have in `answer`, where they were restored. A
    /// cloud may write letters around a placeholder, so that the value would not be recognized later.
    pub fn learn_answer(&self, table: &PlaceholderTable, answer: &str) {
        let forms: Vec<(EntityKind, &str)> = table.entries().collect();
        if forms.is_empty() || answer.is_empty() {
            return;
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(forms.iter().map(|(_, form)| form));
        let automaton = automaton.expect("the values of one table fit an automaton");
        let learned = automaton.find_iter(answer).filter_map(|m| {
            let before = answer[..m.start()].chars().rev().take(NEIGHBOURS_MAX).take_while(|&c| joins(c));
            let after = answer[m.end()..].chars().take(NEIGHBOURS_MAX).take_while(|&c| joins(c));
            let start = m.start() - before.map(char::len_utf8).sum::<usize>();
            let end = m.end() + after.map(char::len_utf8).sum::<usize>();
            let (kind, form) = forms[m.pattern().as_usize()];
            let changed = end - start != m.len() || table.placeholder_of(kind, form).is_none();
            changed.then(|| (kind, Normal::new(&answer[start..end]).text().to_owned()))
        });
        self.learn(learned.collect::<Vec<_>>().into_iter());
    }
}

impl Values {
    fn forget(&mut self) {
        let over = self.entries.len().saturating_sub(REMEMBERED_MAX);
        if over == 0 {
            return;
        }
        let mut used: Vec<u64> = self.entries.values().map(|entry| entry.used).collect();
        used.sort_unstable();
        let oldest = used[over];
        self.entries.retain(|_, entry| entry.used >= oldest);
        // Many values of one request may have the same age.
        let surplus: Vec<String> =
            self.entries.keys().take(self.entries.len().saturating_sub(REMEMBERED_MAX)).cloned().collect();
        for value in surplus {
            self.entries.remove(&value);
        }
    }
}

/// Returns a value as it is remembered, and the parts of it that may stand alone.
fn with_parts(kind: EntityKind, value: &str) -> Vec<(EntityKind, NamePart)> {
    let value = value.trim();
    let whole = if kind.is_name() { value.to_owned() } else { lower(value) };
    let parts = if kind == EntityKind::Person { parts(value) } else { Vec::new() };
    [NamePart { text: whole, is_word: false }].into_iter().chain(parts).map(|part| (kind, part)).collect()
}

/// Checks for a name of two Chinese characters.
fn is_short_name(kind: EntityKind, value: &str) -> bool {
    kind.is_name() && value.chars().count() == 2 && !value.chars().any(joins)
}

fn lower(text: &str) -> String {
    text.chars().map(lower_char).collect()
}

fn lower_char(c: char) -> char {
    if c.is_ascii() { c.to_ascii_lowercase() } else { c.to_lowercase().next().unwrap_or(c) }
}

fn separates(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '-' | '.' | '(' | ')' | '/' | '_' | ':')
}

/// Finds known values in a text.
pub(super) struct Matcher {
    /// Values without separators that are long and mixed enough to be found in any form.
    loose: Option<AhoCorasick>,
    loose_kinds: Vec<EntityKind>,
    /// Values that must stand alone, and are found only as they were written.
    words: Option<AhoCorasick>,
    word_kinds: Vec<EntityKind>,
    /// Names, which are found only in the case in which they were written.
    names: Option<AhoCorasick>,
    /// Of each name its kind, and whether it is also a word.
    name_kinds: Vec<(EntityKind, bool)>,
    /// Every value without separators, to recognize parts of values.
    all: Vec<String>,
}

/// A text in lower case without separators, with positions in the source.
struct Packed {
    text: String,
    /// For each byte of `text`, the byte of the source that it came from.
    from: Vec<usize>,
}

fn packed(text: &str) -> Packed {
    let mut out = Packed { text: String::with_capacity(text.len()), from: Vec::with_capacity(text.len()) };
    for (at, c) in text.char_indices().filter(|(_, c)| !separates(*c)) {
        out.text.push(lower_char(c));
        out.from.resize(out.text.len(), at);
    }
    out
}

/// Country codes of two digits (ITU-T E.164). Codes that begin with 1 or 7 have one digit, all others three.
const TWO_DIGIT_CODES: &[u8] = &[
    20, 27, 30, 31, 32, 33, 34, 36, 39, 40, 41, 43, 44, 45, 46, 47, 48, 49, 51, 52, 53, 54, 55, 56, 57, 58,
    60, 61, 62, 63, 64, 65, 66, 81, 82, 84, 86, 90, 91, 92, 93, 94, 95, 98,
];

/// Returns the other ways to write an international number without separators: without the sign, and from
/// within its country.
fn other_notations(bare: &str) -> Vec<String> {
    let Some(number) = bare.strip_prefix('+').or_else(|| bare.strip_prefix("00")) else { return Vec::new() };
    if number.len() < 10 || !number.bytes().all(|b| b.is_ascii_digit()) {
        return Vec::new();
    }
    let code = match number.as_bytes()[0] {
        b'1' | b'7' => 1,
        _ if number[..2].parse().is_ok_and(|code| TWO_DIGIT_CODES.contains(&code)) => 2,
        _ => 3,
    };
    // A zero in brackets is only dialled within the country.
    let national = number[code..].trim_start_matches('0');
    let mut forms = vec![number.to_owned(), format!("0{national}")];
    if national.len() >= 9 {
        forms.push(national.to_owned());
    }
    forms
}

/// Builds an automaton of values; returns it with what belongs to each of them.
fn automaton<T>(values: HashMap<String, T>, starts: StartKind) -> (Option<AhoCorasick>, Vec<T>) {
    let (patterns, kinds): (Vec<String>, Vec<T>) = values.into_iter().unzip();
    let automaton = (!patterns.is_empty()).then(|| {
        AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .start_kind(starts)
            .build(&patterns)
            .expect("bounded values fit an automaton")
    });
    (automaton, kinds)
}

/// Returns the longest match at `start` that stands alone; each try is shorter than the one before.
fn longest(
    automaton: &AhoCorasick,
    text: &str,
    start: usize,
    stands: impl Fn(Range<usize>) -> bool,
) -> Option<aho_corasick::Match> {
    let mut end = text.len();
    while let Some(m) = automaton.find(Input::new(text).range(start..end).anchored(Anchored::Yes)) {
        if stands(m.range()) {
            return Some(m);
        }
        end = m.end() - 1;
    }
    None
}

impl Matcher {
    /// Makes a matcher for the user's own list.
    pub(super) fn of_list(texts: &[&str]) -> Self {
        let entry = Entry { kind: EntityKind::Name, is_word: false, used: 0 };
        let texts: Vec<String> = texts.iter().map(|text| lower(Normal::new(text).text())).collect();
        Self::new(texts.iter().map(|text| (text.as_str(), &entry)))
    }

    fn new<'a>(values: impl Iterator<Item = (&'a str, &'a Entry)>) -> Self {
        let (mut loose, mut words, mut names) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut all = Vec::new();
        for (value, entry) in values {
            let kind = entry.kind;
            let bare = packed(value).text;
            all.push(bare.clone());
            if kind.is_name() {
                names.insert(value.to_owned(), (kind, entry.is_word));
                continue;
            }
            if kind == EntityKind::Phone {
                let forms = other_notations(&bare).into_iter();
                loose.extend(forms.filter(|form| form.len() >= LOOSE_CHARS_MIN).map(|form| (form, kind)));
            }
            let mixed = bare.chars().any(|c| c.is_ascii_digit()) || bare.contains('@');
            if mixed && bare.chars().count() >= LOOSE_CHARS_MIN {
                loose.insert(bare, kind);
            } else if value.len() <= WORD_BYTES_MAX {
                words.insert(value.to_owned(), kind);
            } else {
                loose.insert(bare, kind);
            }
        }
        let (loose, loose_kinds) = automaton(loose, StartKind::Unanchored);
        let (words, word_kinds) = automaton(words, StartKind::Anchored);
        let (names, name_kinds) = automaton(names, StartKind::Anchored);
        Self { loose, loose_kinds, words, word_kinds, names, name_kinds, all }
    }

    /// Returns the ranges of `text` (in normal form) that hold a known value.
    pub(super) fn find(&self, text: &str) -> Vec<(Range<usize>, EntityKind)> {
        let mut found = Vec::new();
        if let Some(loose) = &self.loose {
            let packed = packed(text);
            for m in loose.find_iter(&packed.text) {
                let (start, last) = (packed.from[m.start()], packed.from[m.end() - 1]);
                let end = last + text[last..].chars().next().map_or(1, char::len_utf8);
                let whole =
                    end - start == m.len() || alone(text, &(start..end)) && !has_gap(&packed.from[m.range()]);
                if whole {
                    found.push((start..end, self.loose_kinds[m.pattern().as_usize()]));
                }
            }
        }
        if let Some(words) = &self.words {
            let lowered = Lowered::new(text);
            for start in word_starts(&lowered.text) {
                let stands = |range| alone(text, &lowered.original(range, text));
                if let Some(m) = longest(words, &lowered.text, start, stands) {
                    let range = lowered.original(m.range(), text);
                    found.push((range, self.word_kinds[m.pattern().as_usize()]));
                }
            }
        }
        if let Some(names) = &self.names {
            for start in word_starts(text) {
                if let Some(m) = longest(names, text, start, |range| alone(text, &range)) {
                    let (kind, is_word) = self.name_kinds[m.pattern().as_usize()];
                    if !is_word || may_follow(&text[..start]) {
                        found.push((m.range(), kind));
                    }
                }
            }
        }
        found
    }

    /// Checks whether `text` is part of a known value, and long enough to reveal something of it.
    pub(super) fn holds_part(&self, text: &str) -> bool {
        let part = packed(&lower(Normal::new(text).text())).text;
        part.chars().filter(|c| c.is_alphanumeric()).count() >= VALUE_CHARS_MIN
            && self.all.iter().any(|value| value.contains(&part))
    }
}

/// Returns the positions at which a value that stands alone may begin.
fn word_starts(text: &str) -> impl Iterator<Item = usize> + '_ {
    let mut last = None;
    text.char_indices().filter_map(move |(at, c)| {
        let inside = last.replace(c).is_some_and(|last| joins(last) && joins(c));
        let escape =
            text[..at].ends_with("\\n") || text[..at].ends_with("\\t") || text[..at].ends_with("\\r");
        (!inside || escape).then_some(at)
    })
}

/// Checks for letters and digits of scripts that have spaces between words; Chinese and Japanese have none.
fn joins(c: char) -> bool {
    c.is_alphanumeric() && (c as u32) < 0x2e80
}

/// A text in lower case, with positions in the source, because lengths may differ.
struct Lowered {
    text: String,
    /// Positions in `text` and in the source after each character whose two lengths differ.
    shifts: Vec<(usize, usize)>,
}

impl Lowered {
    fn new(source: &str) -> Self {
        let mut text = String::with_capacity(source.len());
        let mut shifts = vec![(0, 0)];
        for (at, c) in source.char_indices() {
            let low = lower_char(c);
            text.push(low);
            if low.len_utf8() != c.len_utf8() {
                shifts.push((text.len(), at + c.len_utf8()));
            }
        }
        Self { text, shifts }
    }

    fn original(&self, range: Range<usize>, source: &str) -> Range<usize> {
        let back = |at: usize| {
            let (low, from) =
                self.shifts[self.shifts.partition_point(|(low, _)| *low <= at).saturating_sub(1)];
            let at = (from + at - low).min(source.len());
            (at..=source.len()).find(|&at| source.is_char_boundary(at)).unwrap_or(source.len())
        };
        back(range.start)..back(range.end)
    }
}

/// Checks whether two characters of a match are too far apart in the source.
fn has_gap(from: &[usize]) -> bool {
    from.windows(2).any(|pair| pair[1] - pair[0] > GAP_BYTES_MAX + 4)
}

/// Checks that no letter or digit outside the range touches a letter or digit at its ends.
fn alone(text: &str, range: &Range<usize>) -> bool {
    let touches = |c: Option<char>| c.is_some_and(joins);
    let first = text[range.clone()].chars().next();
    let last = text[range.clone()].chars().next_back();
    let before = touches(text[..range.start].chars().next_back()) && touches(first);
    let escape = text[..range.start].ends_with("\\n")
        || text[..range.start].ends_with("\\t")
        || text[..range.start].ends_with("\\r");
    let after = touches(text[range.end..].chars().next()) && touches(last);
    (!before || escape) && !after
}
