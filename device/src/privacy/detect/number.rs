//! Finds payment cards and bank accounts: numbers with checksums.

use super::{Found, before, begins, ends, head, pattern, push};
use crate::privacy::EntityKind;
use crate::privacy::checksum::{iban_len, luhn, mod97};
use std::ops::Range;

/// Number of digits of a payment card.
const CARD_DIGITS: std::ops::RangeInclusive<usize> = 13..=19;
/// Lengths of the groups in which cards are written. Groups of four are also accepted, with a last group of 1
/// to 4 digits.
const CARD_GROUPS: &[&[usize]] = &[&[4, 6, 5], &[4, 6, 4], &[6, 13], &[4, 4, 5], &[8, 8], &[6, 4, 6]];

pattern!(GROUP, r"[0-9]+");
pattern!(
    CARD_WORD,
    concat!(
        r"(?i)(?:card|visa|mastercard|amex|american express|discover|maestro|credit|debit|payment|(?-u:\b)(?:cc|pan)(?-u:\b)|karte|tarjeta|carte|carta|cartão|kaart|karta|kartı|kort",
        r"|карт|卡|カード|카드|कार्ड|بطاقة)"
    )
);
/// Bytes before and after a number in which a word for cards shows that it is one.
const CARD_WORD_BYTES: [usize; 2] = [64, 24];
pattern!(IBAN_START, r"[A-Za-z]{2} ?[0-9]{2}");

pub(super) fn cards(text: &str, found: &mut Vec<Found>) {
    let groups: Vec<_> = GROUP.find_iter(text).map(|m| m.range()).collect();
    for (first, group) in groups.iter().enumerate() {
        if fraction(text, group.start) || !begins_number(text, group.start) {
            continue;
        }
        let mut digits: Vec<u8> = Vec::with_capacity(19);
        let mut lens: Vec<usize> = Vec::with_capacity(5);
        let mut best = None;
        let mut end = group.start;
        for next in &groups[first..] {
            let gap = &text[end..next.start];
            if !(lens.is_empty() || is_gap(gap)) || digits.len() + next.len() > *CARD_DIGITS.end() {
                break;
            }
            digits.extend_from_slice(&text.as_bytes()[next.clone()]);
            lens.push(next.len());
            end = next.end;
            let decimal =
                text[end..].starts_with('.') && text.as_bytes().get(end + 1).is_some_and(u8::is_ascii_digit);
            if CARD_DIGITS.contains(&digits.len())
                && grouped_as_card(&lens)
                && bordered(text, group.start..end, false)
                && !(decimal && lens.len() == 1)
                && is_card(&digits, lens.len() > 1)
                && (lens.len() == 1
                    || is_one_number(text, &groups[first..first + lens.len()])
                    || card_word(text, &(group.start..end)))
            {
                best = Some(end);
            }
        }
        if let Some(end) = best {
            push(found, EntityKind::Card, group.start..end);
        }
    }
}

/// Checks for a word for cards near a number.
fn card_word(text: &str, range: &Range<usize>) -> bool {
    let [before, after] = CARD_WORD_BYTES;
    let rest = &text[range.end..];
    CARD_WORD.is_match(head(text, range.start, before))
        || CARD_WORD.is_match(&rest[..rest.floor_char_boundary(after)])
}

/// Checks whether groups of digits are one number and not a row or a column of numbers. They have one
/// separator, at most one line break, and do not rise in small steps or go on as groups of four.
fn is_one_number(text: &str, groups: &[Range<usize>]) -> bool {
    let (Some(first), Some(last)) = (groups.first(), groups.last()) else { return false };
    let gaps = || groups.windows(2).map(|pair| &text[pair[0].end..pair[1].start]);
    let separator = gaps().find(|gap| !gap.contains('\n')).unwrap_or("\n");
    let breaks = gaps().filter(|gap| gap.contains('\n')).count();
    let alike = gaps().all(|gap| {
        let bare = gap.trim_matches(|c: char| c == '\n' || c == ' ' || c == '\t');
        gap == separator || gap.contains('\n') && (bare.is_empty() || bare == separator)
    });
    if !alike || breaks > 1 {
        return false;
    }
    let is_four = |group: &str| group.len() == 4 && group.bytes().all(|b| b.is_ascii_digit());
    if !groups.iter().all(|group| group.len() == 4) {
        return true;
    }
    let values: Vec<u64> = groups.iter().filter_map(|group| text[group.clone()].parse().ok()).collect();
    let rises = values.windows(2).all(|pair| pair[0] < pair[1] && pair[1] - pair[0] < STEP_MAX);
    let digit = |c: char| !c.is_ascii_digit();
    let next = text[last.end..].strip_prefix(separator).and_then(|rest| rest.split(digit).next());
    let before = text[..first.start].strip_suffix(separator).and_then(|head| head.rsplit(digit).next());
    !(rises || next.is_some_and(is_four) || before.is_some_and(is_four))
}

/// Numbers of four digits that rise by less are ports, years or sizes.
const STEP_MAX: u64 = 1000;

/// Checks whether the digits at `at` are the fraction of a decimal number. A comma may also separate the
/// columns of a table.
fn fraction(text: &str, at: usize) -> bool {
    match before(text, at) {
        Some('.') => text[..at - 1].ends_with(|c: char| c.is_ascii_digit()),
        Some(',') => text[..at - 1].ends_with('0') && begins(text, at - 2),
        _ => false,
    }
}

/// Checks whether a number with a checksum may begin here, see [`bordered`].
fn begins_number(text: &str, at: usize) -> bool {
    begins(text, at) || before(text, at) == Some('_')
}

/// Checks whether a number with a checksum stands alone. The name of a file may continue at underscores
/// around it, unless the number holds underscores itself, as names in programs do.
fn bordered(text: &str, range: Range<usize>, labelled: bool) -> bool {
    let plain = !text[range.clone()].contains('_');
    let starts = begins(text, range.start) || labelled || plain && before(text, range.start) == Some('_');
    starts && (ends(text, range.end) || plain && text[range.end..].starts_with('_'))
}

/// Checks whether this may be between two groups of one card: a separator, a line break, or both.
fn is_gap(gap: &str) -> bool {
    let line = gap.strip_prefix(['-', ' ']).unwrap_or(gap).strip_prefix('\n');
    matches!(gap, " " | "-" | "." | "_" | "+" | "\t" | "  " | " - " | "/" | "\u{b7}")
        || line.is_some_and(|rest| matches!(rest.trim_start_matches([' ', '\t']), "" | "-") && rest.len() < 8)
}

fn grouped_as_card(lens: &[usize]) -> bool {
    let (last, fours) = lens.split_last().expect("a card has at least one group");
    let even = lens.iter().all(|&len| len == 1) || lens.iter().all(|&len| len == 2);
    lens.len() == 1 || even || CARD_GROUPS.contains(&lens) || fours.iter().all(|&len| len == 4) && *last <= 4
}

fn is_card(digits: &[u8], separators: bool) -> bool {
    issued(digits, separators) && luhn(digits) && digits.iter().any(|&d| d != digits[0])
}

/// Checks whether numbers of this length are issued with these leading digits (ISO/IEC 7812 ranges of the
/// large schemes).
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

pub(super) fn ibans(text: &str, found: &mut Vec<Found>) {
    for m in IBAN_START.find_iter(text) {
        let start = m.start();
        let labelled = super::head(text, start, 4).eq_ignore_ascii_case("iban");
        let bytes = text.as_bytes();
        // Text such as "no 12" begins like an account number.
        let apart = m.as_str().contains(' ') && m.as_str().contains(|c: char| c.is_ascii_lowercase());
        if apart || !begins_number(text, start) && !labelled {
            continue;
        }
        let country = [bytes[start].to_ascii_uppercase(), bytes[start + 1].to_ascii_uppercase()];
        let Some(want) = iban_len(country) else { continue };
        let mut compact = Vec::with_capacity(want);
        let (mut end, mut gap) = (start, 0);
        for (i, &byte) in bytes[start..].iter().enumerate() {
            match byte {
                b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => compact.push(byte.to_ascii_uppercase()),
                b' ' | b'-' | b'.' | b'_' | b'/' | b'+' | b'\t' | b'\n' | b'\r' if gap < 2 => {
                    gap += 1;
                    continue;
                }
                _ => break,
            }
            gap = 0;
            end = start + i + 1;
            if compact.len() == want {
                break;
            }
        }
        if compact.len() == want && mod97(&compact) && bordered(text, start..end, labelled) {
            push(found, EntityKind::Iban, start..end);
        }
    }
}
