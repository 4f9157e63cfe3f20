//! The normal form of text for detectors: characters and escapes that look or mean the same become one
//! character. Positions map back to the original.
//!
//! Full-width and mathematical letters, digits of other scripts, spaces and dashes of every kind become
//! ASCII. Characters without width are removed. `\u0040`, `%40` and `&#64;` become the character that they
//! encode. Cost: linear in the text.
//!
//! What always holds: a range of the normal text maps to whole characters of the original.

use std::borrow::Cow;
use std::ops::Range;

/// A piece of the original text and the piece of normal text that it became.
#[derive(Debug, Clone, Copy)]
struct Run {
    normal: usize,
    original: usize,
    /// Length in the normal text, in bytes.
    len: usize,
    /// Length in the original, in bytes. If `copied`, the two pieces are equal.
    original_len: usize,
    copied: bool,
}

/// A text in normal form.
#[derive(Debug)]
pub(super) struct Normal<'a> {
    text: Cow<'a, str>,
    /// Empty if the text was already normal.
    runs: Vec<Run>,
}

/// How the beginning of a text changes.
enum Change {
    /// The first character stays.
    Stays,
    /// This many bytes are removed.
    Dropped(usize),
    /// This many bytes become this character.
    Becomes(usize, char),
}

/// How `%20` is read: as a space between words, or as part of a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spaces {
    Part,
    Stay,
}

impl<'a> Normal<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self::with(text, Spaces::Part)
    }

    /// Returns the text with encoded spaces and line breaks left as they are, if there are any: a value of a
    /// URL query goes on after them.
    pub(super) fn with_encoded_spaces(text: &'a str) -> Option<Self> {
        let mut signs = text.match_indices('%').map(|(at, _)| &text.as_bytes()[at..]);
        signs
            .any(|bytes| matches!(percent(bytes), Change::Becomes(_, ' ')))
            .then(|| Self::with(text, Spaces::Stay))
    }

    fn with(text: &'a str, spaces: Spaces) -> Self {
        let mut at = 0;
        let mut copied_from = 0;
        let mut out: Option<(String, Vec<Run>)> = None;
        while at < text.len() {
            let (len, becomes) = match change(text, at) {
                Change::Becomes(_, ' ') if spaces == Spaces::Stay && text[at..].starts_with('%') => {
                    at += 1;
                    continue;
                }
                Change::Stays => {
                    at += text[at..].chars().next().map_or(1, char::len_utf8);
                    continue;
                }
                Change::Dropped(len) => (len, None),
                Change::Becomes(len, c) => (len, Some(c)),
            };
            let (normal, runs) = out.get_or_insert_with(|| (String::with_capacity(text.len()), Vec::new()));
            copy(text, copied_from..at, normal, runs);
            if let Some(c) = becomes {
                let run = Run {
                    normal: normal.len(),
                    original: at,
                    len: c.len_utf8(),
                    original_len: len,
                    copied: false,
                };
                runs.push(run);
                normal.push(c);
            }
            at += len;
            copied_from = at;
        }
        match out {
            None => Self { text: Cow::Borrowed(text), runs: Vec::new() },
            Some((mut normal, mut runs)) => {
                copy(text, copied_from..text.len(), &mut normal, &mut runs);
                Self { text: Cow::Owned(normal), runs }
            }
        }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the range of the original that a range of the normal text came from. The range must not be
    /// empty, and both of its ends must be between characters.
    pub(super) fn original(&self, range: &Range<usize>) -> Range<usize> {
        if self.runs.is_empty() {
            return range.clone();
        }
        let run = |at: usize| self.runs[self.runs.partition_point(|run| run.normal <= at).saturating_sub(1)];
        let (first, last) = (run(range.start), run(range.end - 1));
        let start = if first.copied { first.original + range.start - first.normal } else { first.original };
        let end = if last.copied {
            last.original + range.end - last.normal
        } else {
            last.original + last.original_len
        };
        start..end
    }
}

fn copy(text: &str, range: Range<usize>, normal: &mut String, runs: &mut Vec<Run>) {
    if !range.is_empty() {
        let len = range.len();
        runs.push(Run { normal: normal.len(), original: range.start, len, original_len: len, copied: true });
        normal.push_str(&text[range]);
    }
    debug_assert!(runs.last().is_none_or(|run| run.normal + run.len == normal.len()));
}

/// Decides how the text at `at` changes.
fn change(whole: &str, at: usize) -> Change {
    let text = &whole[at..];
    let bytes = text.as_bytes();
    match bytes[0] {
        b'\\' => json_escape(bytes),
        b'%' => percent(bytes),
        // A line break is one character.
        b'\r' if bytes.get(1) == Some(&b'\n') => Change::Dropped(1),
        b'&' => entity(text),
        b'=' if soft_break(whole, at) => Change::Dropped(if bytes[1] == b'\r' { 3 } else { 2 }),
        0..0x80 => Change::Stays,
        _ => {
            let c = text.chars().next().expect("the text is not empty");
            if has_no_width(c) {
                return Change::Dropped(c.len_utf8());
            }
            match plain(c) {
                Some(same) => Change::Becomes(c.len_utf8(), same),
                None => Change::Stays,
            }
        }
    }
}

/// Checks whether the `=` at `at` breaks a full line of quoted-printable mail; it may also be the end of a
/// value.
fn soft_break(text: &str, at: usize) -> bool {
    let (head, rest) = (&text.as_bytes()[..at], &text[at + 1..]);
    let column = head.iter().rev().take(80).take_while(|&&b| b != b'\n').count();
    (70..=76).contains(&column)
        && head.last() != Some(&b'=')
        && (rest.starts_with('\n') || rest.starts_with("\r\n"))
}

/// Decodes `%40`, also if the percent sign is itself encoded (`%2540`). Every encoded space or line break
/// becomes a space.
fn percent(bytes: &[u8]) -> Change {
    const TIMES_MAX: usize = 3;
    let mut at = 1;
    while at < 2 * TIMES_MAX && bytes.get(at..at + 2) == Some(b"25") && hex2(bytes, at + 2).is_some() {
        at += 2;
    }
    match hex2(bytes, at) {
        // An encoded slash stays, because it may be inside a part of a path.
        Some('/' | '\\') | None => Change::Stays,
        Some(' ' | '\t' | '\r' | '\n') => Change::Becomes(at + 2, ' '),
        Some(c) if c.is_ascii_graphic() => Change::Becomes(at + 2, c),
        Some(_) => Change::Stays,
    }
}

fn hex2(bytes: &[u8], at: usize) -> Option<char> {
    bytes.get(at..at + 2).and_then(hex).and_then(char::from_u32)
}

fn hex(digits: &[u8]) -> Option<u32> {
    let value = |sum: u32, &byte: &u8| Some(sum * 16 + char::from(byte).to_digit(16)?);
    if digits.is_empty() { None } else { digits.iter().try_fold(0, value) }
}

/// Decodes `\u0040` and `\/`, also if they were escaped several times. An escaped space becomes a space; an
/// escaped control character stays.
fn json_escape(bytes: &[u8]) -> Change {
    let slashes = bytes.iter().take(8).take_while(|&&b| b == b'\\').count();
    if matches!(slashes, 1 | 3 | 7) && bytes.get(slashes) == Some(&b'/') {
        return Change::Becomes(slashes + 1, '/');
    }
    let code = bytes.get(1).filter(|&&b| b == b'u').and_then(|_| hex(bytes.get(2..6)?));
    match code.and_then(char::from_u32) {
        Some(c) if has_no_width(c) => Change::Dropped(6),
        Some(c) if !c.is_control() => Change::Becomes(6, plain(c).unwrap_or(c)),
        _ => Change::Stays,
    }
}

/// Decodes `&#64;`, `&#x40;` and the named entities that occur in numbers and addresses.
fn entity(text: &str) -> Change {
    const NAMED: &[(&str, char)] = &[
        ("commat", '@'),
        ("period", '.'),
        ("colon", ':'),
        ("plus", '+'),
        ("hyphen", '-'),
        ("dash", '-'),
        ("lpar", '('),
        ("rpar", ')'),
        ("nbsp", ' '),
        ("ensp", ' '),
        ("emsp", ' '),
        ("thinsp", ' '),
        ("ndash", '-'),
        ("mdash", '-'),
        ("minus", '-'),
        ("shy", '\u{ad}'),
        ("zwnj", '\u{200c}'),
        ("zwj", '\u{200d}'),
        ("amp", '&'),
        ("quot", '"'),
        ("lt", '<'),
        ("gt", '>'),
    ];
    let Some(end) = text.bytes().take(12).position(|b| b == b';') else { return Change::Stays };
    let name = &text[1..end];
    let numbered = name.strip_prefix('#').and_then(|number| {
        let code = match number.strip_prefix(['x', 'X']) {
            Some(digits) => hex(digits.as_bytes()).filter(|_| digits.len() <= 6),
            None => number.parse().ok(),
        };
        code.and_then(char::from_u32).filter(|c| !c.is_control())
    });
    let named = || NAMED.iter().find(|(n, _)| *n == name).map(|&(_, c)| c);
    match numbered.or_else(named) {
        Some(c) if has_no_width(c) => Change::Dropped(end + 1),
        Some(c) => Change::Becomes(end + 1, plain(c).unwrap_or(c)),
        None => Change::Stays,
    }
}

/// Checks for characters that a reader does not see, and for lines and frames drawn over other characters:
/// zero-width, soft hyphen, direction marks, strokes, variation selectors, tags.
fn has_no_width(c: char) -> bool {
    matches!(c, '\u{332}' | '\u{333}' | '\u{335}'..='\u{338}' | '\u{20dd}'..='\u{20e4}' | '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180b}'..='\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{e0000}'..='\u{e01ef}')
}

/// Code points of the digit zero, in scripts whose ten digits are consecutive.
const ZEROS: &[u32] = &[
    0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6, 0xe50, 0xed0,
    0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50, 0x1bb0, 0x1c40, 0x1c50,
    0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6,
    0x1fbf0,
];

/// Returns the ASCII character that means the same, if there is one.
fn plain(c: char) -> Option<char> {
    let code = c as u32;
    let same = match code {
        0xff01..=0xff5e => code - 0xfee0,
        0xa0 | 0x1680 | 0x2000..=0x200a | 0x2028 | 0x202f | 0x205f | 0x3000 => 0x20,
        0x2010..=0x2015 | 0x2043 | 0x2212 | 0xfe58 | 0xfe63 => 0x2d,
        0x2024 | 0xfe52 => 0x2e,
        0xfe6b => 0x40,
        0x2236 | 0xfe55 => 0x3a,
        0xb9 | 0xb2 | 0xb3 => 0x30 + [1, 2, 3][if code == 0xb9 { 0 } else { code as usize - 0xb1 }],
        0x2070 | 0x2074..=0x2079 => code - 0x2040,
        0x2080..=0x2089 => code - 0x2050,
        0x2460..=0x2468 => code - 0x2460 + 0x31,
        0x24ea => 0x30,
        0x2044 | 0x2215 => 0x2f,
        0x1d400..=0x1d6a3 => {
            let letter = (code - 0x1d400) % 52;
            if letter < 26 { 0x41 + letter } else { 0x61 + letter - 26 }
        }
        _ => {
            let zero = ZEROS.iter().find(|&&zero| (zero..zero + 10).contains(&code))?;
            0x30 + code - zero
        }
    };
    char::from_u32(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, want: &str) {
        assert_eq!(Normal::new(text).text(), want, "{text:?}");
    }

    #[test]
    fn look_alikes_and_escapes_become_plain() {
        check("plain ASCII stays, 100% of it & more \\n", "plain ASCII stays, 100% of it & more \\n");
        check("ａ＠ｂ．ｃｏｍ", "a@b.com");
        check("+49\u{a0}30\u{2009}1\u{2011}2\u{2013}3", "+49 30 1-2-3");
        check("a\u{200b}b\u{ad}c\u{2060}d\u{feff}", "abcd");
        check("٠١٢ ०१२ 𝟎𝟏𝟐 𝐀𝐛", "012 012 012 Ab");
        check("a\\u0040b%40c&#64;d&#x40;e&commat;f", "a@b@c@d@e@f");
        check("50%zz \\u00zz &nosuch; &#0; %0g %00", "50%zz \\u00zz &nosuch; &#0; %0g %00");
        check("a%20b%0Ac%2540d%252540e%2520f", "a b c@d@e f");
        check("a\\/b\\\\\\/c\r\nd\re %2F %5c", "a/b/c\nd\re %2F %5c");
        check("日本語はそのまま é ü", "日本語はそのまま é ü");
    }

    #[test]
    fn ranges_map_back_to_whole_characters() {
        let text = "x ａ\u{200b}ｂ%40 y";
        let normal = Normal::new(text);
        assert_eq!(normal.text(), "x ab@ y");
        let back = |range: Range<usize>| &text[normal.original(&range)];
        assert_eq!(back(2..3), "ａ");
        assert_eq!(back(2..4), "ａ\u{200b}ｂ");
        assert_eq!(back(3..5), "ｂ%40");
        assert_eq!(back(0..7), text);
        assert_eq!(back(6..7), "y");
    }
}
