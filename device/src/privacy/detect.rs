//! Detectors of private values: patterns, then checksums and boundaries that keep look-alikes out.
//!
//! Every detector runs in time linear in the text for ordinary input (the patterns have no backtracking) and reports
//! byte ranges; it never changes the text.

use super::EntityKind;
use super::checksum::{iban_len, luhn, mod97};
use regex::Regex;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::sync::LazyLock;

/// One finding of a detector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Bytes of the value in the text.
    pub range: Range<usize>,
    /// What it is.
    pub kind: EntityKind,
}

/// Why a detector could not check a text.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct DetectError {
    /// What went wrong, without any of the text.
    pub reason: String,
}

/// Finds values of one or more kinds in a text.
pub trait Detector: Send + Sync {
    /// Name for messages.
    fn name(&self) -> &'static str;
    /// Appends what it finds to `found`, in any order.
    ///
    /// # Errors
    /// [`DetectError`] when the text could not be checked; nothing is sent then.
    fn find(&self, text: &str, found: &mut Vec<Found>) -> Result<(), DetectError>;
}

/// The detectors that come with the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuiltIn {
    /// E-mail addresses.
    Email,
    /// Telephone numbers: international, North American, Chinese mobile, and any after a word such as "phone".
    Phone,
    /// Payment cards.
    Card,
    /// Bank accounts.
    Iban,
    /// IPv4 and IPv6 addresses.
    Ip,
    /// API keys, tokens, password assignments, private keys.
    Key,
}

impl BuiltIn {
    /// All of them.
    pub fn all() -> Vec<Box<dyn Detector>> {
        [Self::Email, Self::Phone, Self::Card, Self::Iban, Self::Ip, Self::Key]
            .into_iter()
            .map(|d| Box::new(d) as Box<dyn Detector>)
            .collect()
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
            Self::Key => "key",
        }
    }

    fn find(&self, text: &str, found: &mut Vec<Found>) -> Result<(), DetectError> {
        match self {
            Self::Email => email(text, found),
            Self::Phone => phone(text, found),
            Self::Card => card(text, found),
            Self::Iban => iban(text, found),
            Self::Ip => ip(text, found),
            Self::Key => key(text, found),
        }
        Ok(())
    }
}

macro_rules! pattern {
    ($name:ident, $text:expr) => {
        static $name: LazyLock<Regex> =
            LazyLock::new(|| Regex::new($text).expect("a fixed pattern, compiled in the tests"));
    };
}

pattern!(PLACEHOLDER, r"\[(?:EMAIL|PHONE|CARD|IBAN|IP|KEY|TEXT)_[0-9]{1,9}\]");
pattern!(EMAIL, r"[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}");
pattern!(PHONE_INTERNATIONAL, r"(?:\+|(?-u:\b)00)[1-9][0-9]{0,2}(?:[ .-]?\(?[0-9]{1,5}\)?){2,6}");
pattern!(PHONE_AMERICAN, r"\(?[2-9][0-9]{2}\)?[ .-][2-9][0-9]{2}[.-][0-9]{4}");
pattern!(PHONE_CHINESE, r"1[3-9][0-9][ -]?[0-9]{4}[ -]?[0-9]{4}");
pattern!(
    PHONE_NAMED,
    r"(?:(?-u:\b)(?i-u:phone|telephone|tel|mobile|cell|fax|call|hotline|whatsapp)(?-u:\b)|电话|手机|座机|传真)[^0-9+\n]{0,16}([0-9+(][0-9 ()./-]{5,22}[0-9])"
);
pattern!(DIGITS, r"[0-9][0-9 -]{11,40}");
pattern!(IBAN_START, r"[A-Za-z]{2}[0-9]{2}");
pattern!(IPV4, r"(?:[0-9]{1,3}\.){3}[0-9]{1,3}");
pattern!(IPV6, r"[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*");
pattern!(
    PRIVATE_KEY,
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[^-]*(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?)"
);
pattern!(
    KNOWN_KEY,
    concat!(
        r"sk-[A-Za-z0-9_-]{16,}|[srp]k_(?:live|test)_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,}",
        r"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{35}|xox[abeprs]-[A-Za-z0-9-]{10,}|glpat-[A-Za-z0-9_-]{20,}",
        r"|npm_[A-Za-z0-9]{36}|hf_[A-Za-z0-9]{30,}|eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"
    )
);
pattern!(
    ASSIGNED_KEY,
    r#"(?:(?-u:\b)|_)(?i-u:api[_-]?key|secret[_-]?key|client[_-]?secret|secret|access[_-]?token|auth[_-]?token|token|password|passwd|passphrase|bearer)["']?[ \t]{0,4}[:= \t][ \t]{0,4}["']?([A-Za-z0-9_+/=.~!@#$%^&*-]{8,256})"#
);

/// Ranges of text that already looks like a placeholder.
pub(super) fn placeholder_ranges(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    PLACEHOLDER.find_iter(text).map(|m| m.range())
}

fn before(text: &str, at: usize) -> Option<char> {
    text[..at].chars().next_back()
}

fn after(text: &str, at: usize) -> Option<char> {
    text[at..].chars().next()
}

/// No ASCII letter or digit touches the range (CJK letters may: Chinese has no spaces).
fn stands_alone(text: &str, range: &Range<usize>) -> bool {
    let touches = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    !touches(before(text, range.start)) && !touches(after(text, range.end))
}

fn digit_count(text: &str) -> usize {
    text.bytes().filter(u8::is_ascii_digit).count()
}

fn push(found: &mut Vec<Found>, kind: EntityKind, range: Range<usize>) {
    found.push(Found { range, kind });
}

fn email(text: &str, found: &mut Vec<Found>) {
    for m in EMAIL.find_iter(text) {
        let start = m.start() + m.as_str().len() - m.as_str().trim_start_matches(['.', '-']).len();
        if !text[start..].starts_with('@') {
            push(found, EntityKind::Email, start..m.end());
        }
    }
}

fn phone(text: &str, found: &mut Vec<Found>) {
    let mut take = |range: Range<usize>, digits: Range<usize>| {
        let value = text[range.clone()].trim_end_matches([' ', '(', '.', '-', '/']);
        let range = range.start..range.start + value.len();
        // Not the inside of a longer number: `89 0044 0532`, `3.0044`.
        let lead = text[..range.start].trim_end_matches(' ');
        let inside = value.starts_with("00") && lead.ends_with(|c: char| c.is_ascii_digit());
        let decimal = inside || (lead.len() == range.start && lead.ends_with(['.', ',']));
        let more = text[range.end..].starts_with('.')
            && after(text, range.end + 1).is_some_and(|c| c.is_ascii_digit());
        if digits.contains(&digit_count(value)) && stands_alone(text, &range) && !decimal && !more {
            push(found, EntityKind::Phone, range);
        }
    };
    PHONE_INTERNATIONAL.find_iter(text).for_each(|m| take(m.range(), 8..16));
    PHONE_AMERICAN.find_iter(text).for_each(|m| take(m.range(), 10..11));
    PHONE_CHINESE.find_iter(text).for_each(|m| take(m.range(), 11..12));
    for caps in PHONE_NAMED.captures_iter(text) {
        if let Some(m) = caps.get(1) {
            take(m.range(), 7..16);
        }
    }
}

fn card(text: &str, found: &mut Vec<Found>) {
    for m in DIGITS.find_iter(text) {
        let bytes = m.as_str().as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            let starts = bytes[at].is_ascii_digit() && (at == 0 || !bytes[at - 1].is_ascii_digit());
            match starts.then(|| card_len(&bytes[at..])).flatten() {
                Some(len) => {
                    let range = m.start() + at..m.start() + at + len;
                    if stands_alone(text, &range) {
                        push(found, EntityKind::Card, range);
                    }
                    at += len;
                }
                None => at += 1,
            }
        }
    }
}

/// Bytes of the longest card number at the start of `bytes` (digits with single separators), if there is one.
fn card_len(bytes: &[u8]) -> Option<usize> {
    let mut digits = Vec::with_capacity(19);
    let mut best = None;
    let mut separators = false;
    for (i, &byte) in bytes.iter().enumerate() {
        if !byte.is_ascii_digit() {
            if !bytes[i - 1].is_ascii_digit() {
                break;
            }
            separators = true;
            continue;
        }
        digits.push(byte);
        if digits.len() > 19 {
            break;
        }
        let ends = bytes.get(i + 1).is_none_or(|b| !b.is_ascii_digit());
        if ends && issued(&digits, separators) && luhn(&digits) && digits.iter().any(|&d| d != digits[0]) {
            best = Some(i + 1);
        }
    }
    best
}

/// Whether a number of this length is issued under these leading digits (ISO/IEC 7812 ranges of the large schemes).
fn issued(digits: &[u8], separators: bool) -> bool {
    match (digits[0], digits.get(1).copied().unwrap_or(b'0'), digits.len()) {
        (b'4', _, 13) => !separators,
        (b'4', _, 16 | 19) => true,
        (b'3', b'4' | b'7', 15) => true,
        (b'3', b'0' | b'6' | b'8' | b'9', 14) => true,
        (b'3', b'5', 16..=19) => true,
        (b'5', b'1'..=b'5', 16) | (b'2', b'2'..=b'7', 16) => true,
        (b'5', b'0' | b'6'..=b'9', 16..=19) | (b'6', _, 16..=19) => true,
        _ => false,
    }
}

fn iban(text: &str, found: &mut Vec<Found>) {
    for m in IBAN_START.find_iter(text) {
        let start = m.start();
        if before(text, start).is_some_and(|c| c.is_ascii_alphanumeric()) {
            continue;
        }
        let country =
            [text.as_bytes()[start].to_ascii_uppercase(), text.as_bytes()[start + 1].to_ascii_uppercase()];
        let Some(want) = iban_len(country) else { continue };
        let mut compact = Vec::with_capacity(want);
        let mut end = start;
        for (i, &byte) in text.as_bytes()[start..].iter().enumerate() {
            match byte {
                b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => compact.push(byte.to_ascii_uppercase()),
                b' ' | b'-' if text.as_bytes()[start + i - 1].is_ascii_alphanumeric() => continue,
                _ => break,
            }
            end = start + i + 1;
            if compact.len() == want {
                break;
            }
        }
        let range = start..end;
        if compact.len() == want && mod97(&compact) && stands_alone(text, &range) {
            push(found, EntityKind::Iban, range);
        }
    }
}

fn ip(text: &str, found: &mut Vec<Found>) {
    for m in IPV4.find_iter(text) {
        let range = m.range();
        let longer = text[range.end..].starts_with('.')
            && after(text, range.end + 1).is_some_and(|c| c.is_ascii_digit());
        let prefix = text[..range.start].trim_end().to_ascii_lowercase();
        let version = before(text, range.start) == Some('.')
            || ["version", "release", "section", "chapter", "build"].iter().any(|w| prefix.ends_with(w));
        if !longer && !version && stands_alone(text, &range) && m.as_str().parse::<Ipv4Addr>().is_ok() {
            push(found, EntityKind::Ip, range);
        }
    }
    for m in IPV6.find_iter(text) {
        let trimmed = m.as_str().trim_end_matches(['.', ':']);
        let candidate = if m.as_str().starts_with(trimmed) && m.as_str()[trimmed.len()..].starts_with("::") {
            &m.as_str()[..trimmed.len() + 2]
        } else {
            trimmed
        };
        let range = m.start()..m.start() + candidate.len();
        let groups = candidate.split(':').filter(|g| !g.is_empty()).count();
        let has_digit = candidate.bytes().any(|b| b.is_ascii_digit());
        if groups >= 1 && has_digit && stands_alone(text, &range) && candidate.parse::<Ipv6Addr>().is_ok() {
            push(found, EntityKind::Ip, range);
        }
    }
}

fn key(text: &str, found: &mut Vec<Found>) {
    PRIVATE_KEY.find_iter(text).for_each(|m| {
        let value = m.as_str().trim_end();
        push(found, EntityKind::Key, m.start()..m.start() + value.len());
    });
    for m in KNOWN_KEY.find_iter(text) {
        if !before(text, m.start()).is_some_and(|c| c.is_ascii_alphanumeric()) {
            push(found, EntityKind::Key, m.range());
        }
    }
    for caps in ASSIGNED_KEY.captures_iter(text) {
        let Some(m) = caps.get(1) else { continue };
        let value = m.as_str().trim_end_matches(['.', ',', '!', '*']);
        // A word after "token" or "password" is prose; a secret mixes letters with digits.
        let mixed =
            value.bytes().any(|b| b.is_ascii_digit()) && value.bytes().any(|b| b.is_ascii_alphabetic());
        let date_like = value.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'-' | b'.' | b'/'));
        if mixed && !date_like && value.len() >= 8 {
            push(found, EntityKind::Key, m.start()..m.start() + value.len());
        }
    }
}
