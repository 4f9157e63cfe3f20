//! Detectors of private values: patterns find them; checksums, boundaries and nearby words exclude
//! look-alikes.
//!
//! Each detector reads a text in normal form (plain spaces, dashes and digits) and reports byte ranges; none
//! changes the text. It takes time linear in the text: the patterns do not backtrack, and scans around a mark
//! are bounded.

use super::EntityKind;
use std::ops::Range;

mod column;
mod email;
mod id;
mod ip;
mod key;
mod named;
pub(super) mod names;
mod number;
mod password;
mod path;
mod phone;
mod wallet;

/// How sure a finding is, the least sure first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certainty {
    /// A name because no list has its words. It counts in conversations only.
    Guessed,
    /// A name because a list has one of its words. It is replaced where it was found.
    Likely,
    /// Its form or a word beside it shows what it is. It is also looked for in other texts.
    Shown,
}

/// One finding of a detector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Byte range of the value in the text.
    pub range: Range<usize>,
    /// Its kind.
    pub kind: EntityKind,
    /// How sure it is.
    pub certainty: Certainty,
}

/// Why a detector could not check a text.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct DetectError {
    /// What went wrong; never holds any of the text.
    pub reason: String,
}

/// Finds values of one or more kinds in a text.
pub trait Detector: Send + Sync {
    /// Returns the detector's name for messages.
    fn name(&self) -> &'static str;
    /// Appends its findings to `found`, in any order.
    ///
    /// # Errors
    /// [`DetectError`] if the text could not be checked; then nothing is sent.
    fn find(&self, text: &str, found: &mut Vec<Found>) -> Result<(), DetectError>;
}

/// Name of the detector of names.
pub(super) const NAMES: &str = "names";

/// The detectors that come with the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuiltIn {
    /// E-mail addresses, also spelled with `[at]`.
    Email,
    /// Telephone numbers: international, in the usual national forms, or in any form after a word such as
    /// "phone".
    Phone,
    /// Payment cards.
    Card,
    /// Bank accounts.
    Iban,
    /// IPv4, IPv6 and MAC addresses.
    Ip,
    /// Numbers of identity cards, social security and tax: by checksum, form, or the word before them.
    Id,
    /// Crypto wallets.
    Wallet,
    /// API keys, tokens, private keys.
    Key,
    /// Passwords, PINs and credentials in URLs.
    Password,
    /// User names in paths.
    Path,
    /// Tables whose header row says what a column holds.
    Column,
    /// Names of people, places and organisations.
    Names,
}

impl BuiltIn {
    const ALL: [BuiltIn; 12] = [
        Self::Email,
        Self::Phone,
        Self::Card,
        Self::Iban,
        Self::Ip,
        Self::Id,
        Self::Wallet,
        Self::Key,
        Self::Password,
        Self::Path,
        Self::Column,
        Self::Names,
    ];

    /// Makes all built-in detectors.
    pub fn all() -> Vec<Box<dyn Detector>> {
        Self::ALL.into_iter().map(|d| Box::new(d) as Box<dyn Detector>).collect()
    }
}

impl Detector for BuiltIn {
    fn name(&self) -> &'static str {
        match self {
            Self::Email => "email",
            Self::Phone => "phone",
            Self::Card => "card",
            Self::Iban => "iban",
            Self::Ip => "ip",
            Self::Id => "id",
            Self::Wallet => "wallet",
            Self::Key => "key",
            Self::Password => "password",
            Self::Path => "path",
            Self::Column => "column",
            Self::Names => NAMES,
        }
    }

    fn find(&self, text: &str, found: &mut Vec<Found>) -> Result<(), DetectError> {
        match self {
            Self::Email => email::find(text, found),
            Self::Phone => phone::find(text, found),
            Self::Card => number::cards(text, found),
            Self::Iban => number::ibans(text, found),
            Self::Ip => ip::find(text, found),
            Self::Id => id::find(text, found),
            Self::Wallet => wallet::find(text, found),
            Self::Key => key::find(text, found),
            Self::Password => password::find(text, found),
            Self::Path => path::find(text, found),
            Self::Column => column::find(text, found),
            Self::Names => names::find(text, found),
        }
        Ok(())
    }
}

macro_rules! pattern {
    ($name:ident, $text:expr) => {
        static $name: std::sync::LazyLock<regex::Regex> = std::sync::LazyLock::new(|| {
            regex::Regex::new($text).expect("a fixed pattern, compiled in the tests")
        });
    };
}
use pattern;

fn push(found: &mut Vec<Found>, kind: EntityKind, range: Range<usize>) {
    push_as(found, Certainty::Shown, kind, range);
}

fn push_as(found: &mut Vec<Found>, certainty: Certainty, kind: EntityKind, range: Range<usize>) {
    if !range.is_empty() {
        found.push(Found { range, kind, certainty });
    }
}

fn before(text: &str, at: usize) -> Option<char> {
    text[..at].chars().next_back()
}

fn after(text: &str, at: usize) -> Option<char> {
    text[at..].chars().next()
}

/// Checks whether a value may begin here: no ASCII letter, digit or underscore is before it. CJK letters may
/// be, because Chinese has no spaces. The letter of an escape such as `\n` does not count as a letter.
fn begins(text: &str, at: usize) -> bool {
    match before(text, at) {
        Some('n' | 'r' | 't') if text[..at - 1].ends_with('\\') => true,
        // An underscore may be Markdown's emphasis.
        Some('_') => before(text, at - 1).is_none_or(|c| !c.is_ascii_alphanumeric()),
        Some(c) => !c.is_ascii_alphanumeric(),
        None => true,
    }
}

/// Checks whether a value may end here.
fn ends(text: &str, at: usize) -> bool {
    match after(text, at) {
        Some('_') => after(text, at + 1).is_none_or(|c| !c.is_ascii_alphanumeric()),
        Some(c) => !c.is_ascii_alphanumeric(),
        None => true,
    }
}

fn stands_alone(text: &str, range: &Range<usize>) -> bool {
    begins(text, range.start) && ends(text, range.end)
}

/// Least digits of a number without separators that is too long to be a group of another number.
const LONG_DIGITS: usize = 8;

/// Checks whether the range is part of a longer row of numbers, such as `1.2.3.4.5` or one group of a grouped
/// number. A number with separators continues only after a separator that it has itself, so the next column
/// of a table is not part of it.
fn in_longer_number(text: &str, range: &Range<usize>) -> bool {
    let own = &text[range.clone()];
    let bytes = text.as_bytes();
    let mixed = own.contains(['-', '.', '/', '(']);
    let separated = mixed || own.contains(' ');
    let long = !separated && own.bytes().filter(u8::is_ascii_digit).count() >= LONG_DIGITS;
    let joins = |b: u8| match b {
        b',' => !separated && !long,
        b' ' if mixed || long => false,
        b'.' | b'-' | b' ' | b'/' | b':' => !separated || own.as_bytes().contains(&b),
        _ => false,
    };
    let left = range.start >= 2 && joins(bytes[range.start - 1]) && bytes[range.start - 2].is_ascii_digit();
    let right = bytes.get(range.end).is_some_and(|&b| joins(b))
        && bytes.get(range.end + 1).is_some_and(u8::is_ascii_digit);
    left || right || long && !text[..range.start].ends_with(',') && cents(&text[range.end..])
}

/// Checks whether a decimal comma and one or two digits follow, and no further column.
fn cents(rest: &str) -> bool {
    let Some(fraction) = rest.strip_prefix(',') else { return false };
    let digits = fraction.bytes().take(3).take_while(u8::is_ascii_digit).count();
    let behind = &fraction[digits..];
    (1..=2).contains(&digits) && ends(fraction, digits) && !behind.starts_with([',', '.', '-', '/', ':'])
}

fn digits(text: &str) -> Vec<u32> {
    text.chars().filter_map(|c| c.to_digit(10)).collect()
}

/// Returns the text before `at`: at most `len` bytes, whole characters only.
fn head(text: &str, at: usize, len: usize) -> &str {
    let mut start = at.saturating_sub(len);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..at]
}
