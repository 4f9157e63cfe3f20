//! Finds national identity, social security and tax numbers. If form and check digits are strong, they are
//! enough; otherwise a word must come before the number. Passports, licences and accounts are found only by a
//! word.

use super::{Found, before, begins, ends, head, in_longer_number, pattern, push};
use crate::privacy::EntityKind;
use crate::privacy::checksum as sum;
use regex::{Regex, RegexSet};
use std::ops::Range;
use std::sync::LazyLock;

/// What must come before a number of a form.
enum Needs {
    /// Nothing: form and check digits are enough.
    Nothing,
    /// One of these words.
    Word(&'static [&'static str]),
}
use Needs::{Nothing, Word};

/// A form of number: its pattern, what must come before it, and the check of its letters and digits.
struct Form {
    pattern: &'static str,
    needs: Needs,
    checks: fn(&[u8]) -> bool,
}

const fn form(pattern: &'static str, needs: Needs, checks: fn(&[u8]) -> bool) -> Form {
    Form { pattern, needs, checks }
}

const US: &[&str] = &["ssn", "social security", "itin", "tax id", "taxpayer"];
const GERMAN: &[&str] = &[
    "steuer",
    "steueridentifikationsnummer",
    "identifikationsnummer",
    "idnr",
    "steuernummer",
    "tin",
    "id-nr",
];
const NORDIC: &[&str] = &["cpr", "personnummer", "personnr", "fødselsnummer", "fodselsnummer"];
const PORTUGUESE: &[&str] = &["nif", "contribuinte", "nipc"];

/// All known forms. Sources: the issuers' published rules. Each pattern is matched at the start of a
/// candidate.
const FORMS: &[Form] = &[
    form(r"[0-9]{3}-[0-9]{2}-[0-9]{4}", Nothing, sum::us_ssn),
    form(r"[0-9]{3}[ -]?[0-9]{2}[ -]?[0-9]{4}", Word(US), |_| true),
    form(
        r"(?i)(?:[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z]|QQ)[ -]?[0-9]{2}[ -]?[0-9]{2}[ -]?[0-9]{2}[ -]?[A-D]",
        Nothing,
        sum::uk_nino,
    ),
    form(
        r"[1-9][0-9]{5}(?:18|19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])[0-9]{3}[0-9Xx]",
        Nothing,
        sum::chinese,
    ),
    form(r"(?i)(?:[0-9]{8}|[0-9]{2}\.[0-9]{3}\.[0-9]{3})[ -]?[A-HJ-NP-TV-Z]", Nothing, sum::spanish),
    form(r"(?i)[XYZ][ -]?[0-9]{7}[ -]?[A-HJ-NP-TV-Z]", Nothing, sum::spanish),
    form(
        r"[12][ .]?[0-9]{2}[ .]?(?:0[1-9]|1[0-2]|[2-9][0-9])[ .]?(?:[0-9]{2}|2[AB])[ .]?[0-9]{3}[ .]?[0-9]{3}[ .]?[0-9]{2}",
        Nothing,
        sum::french,
    ),
    form(r"[1-9][0-9] [0-9]{3} [0-9]{3} [0-9]{3}", Nothing, sum::german_tax),
    form(r"[1-9][0-9] ?[0-9]{3} ?[0-9]{3} ?[0-9]{3}", Word(GERMAN), |_| true),
    form(r"[0-9]{2,3}/[0-9]{3}/[0-9]{4,5}", Word(GERMAN), |_| true),
    form(
        r"(?i)[A-Z]{6}[0-9LMNPQRSTUV]{2}[ABCDEHLMPRST][0-9LMNPQRSTUV]{2}[A-Z][0-9LMNPQRSTUV]{3}[A-Z]",
        Nothing,
        sum::italian,
    ),
    form(r"[2-9][0-9]{3}[ -][0-9]{4}[ -][0-9]{4}", Nothing, |id| {
        // Three years in a row are not an id.
        sum::verhoeff(id) && !id.chunks(4).all(|group| group.starts_with(b"20") || group.starts_with(b"19"))
    }),
    form(r"[2-9][0-9]{3}[ -]?[0-9]{4}[ -]?[0-9]{4}", Word(&["aadhaar", "uidai", "आधार"]), |_| true),
    form(r"[A-Z]{3}[ABCFGHJLPT][A-Z][0-9]{4}[A-Z]", Nothing, |_| true),
    form(r"[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}", Nothing, sum::brazilian),
    form(r"[0-9]{3}\.?[0-9]{3}\.?[0-9]{3}[-.]?[0-9]{2}", Word(&["cpf"]), |_| true),
    form(r"[0-9]{2}\.[0-9]{3}\.[0-9]{3}/[0-9]{4}-[0-9]{2}", Nothing, |_| true),
    form(r"[0-9]{11}", Word(&["pesel"]), sum::polish),
    form(
        r"[0-9]{9}|[0-9]{4}[. ][0-9]{2}[. ][0-9]{3}",
        Word(&["bsn", "burgerservicenummer", "sofinummer"]),
        |_| true,
    ),
    form(r"(?:[0-9]{2})?[0-9]{6}[-+][0-9]{4}", Nothing, sum::swedish),
    form(r"(?:[0-9]{2})?[0-9]{6}[-+ ]?[0-9]{4,5}", Word(NORDIC), |_| true),
    form(r"[0-3][0-9][01][0-9]{3}[-+A][0-9]{3}[0-9A-FHJ-NPR-Y]", Nothing, sum::finnish),
    form(r"756[. ]?[0-9]{4}[. ]?[0-9]{4}[. ]?[0-9]{2}", Nothing, sum::ean13),
    form(r"[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])-[1-8][0-9]{6}", Nothing, |_| true),
    form(r"[0-9]{3}-[0-9]{3}-[0-9]{3}[ -][0-9]{2}", Nothing, sum::russian_pension),
    form(r"[0-9]{10}(?:[0-9]{2})?", Word(&["инн", "inn"]), |_| true),
    form(r"(?i)[ST][0-9]{7}[A-Z]", Nothing, sum::singaporean),
    form(r"(?i)[FGM][0-9]{7}[A-Z]", Word(&["nric", "fin"]), |_| true),
    form(r"[1-9][0-9]{10}", Word(&["kimlik", "tckn", "t.c.", "tc"]), sum::turkish),
    form(r"[0-9]{2}\.[0-9]{2}\.[0-9]{2}-[0-9]{3}\.[0-9]{2}", Nothing, sum::belgian),
    form(r"[0-9]{3} ?[0-9]{3} ?[0-9]{3}", Word(PORTUGUESE), |_| true),
    form(r"[0-9]{4}[ -]?[0-9]{4}[ -]?[0-9]{4}", Word(&["マイナンバー", "個人番号"]), |_| true),
    form(r"[A-Z][1289][0-9]{8}", Nothing, sum::taiwanese),
    form(r"[A-Z]{1,2}[0-9]{6}\([0-9A]\)", Nothing, |_| true),
    form(r"[A-Z]{4}[0-9]{6}[HM][A-Z]{5}[A-Z0-9][0-9]", Nothing, |_| true),
    form(
        r"[0-9]{3}[ -]?[0-9]{3}[ -]?[0-9]{3}",
        Word(&["sin", "social insurance", "tfn", "tax file"]),
        |_| true,
    ),
];

static PATTERNS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    FORMS
        .iter()
        .map(|form| Regex::new(&anchored(form.pattern)).expect("a fixed pattern, compiled in the tests"))
        .collect()
});
static SET: LazyLock<RegexSet> = LazyLock::new(|| {
    RegexSet::new(FORMS.iter().map(|form| anchored(form.pattern)))
        .expect("fixed patterns, compiled in the tests")
});

fn anchored(pattern: &str) -> String {
    let (flags, rest) = pattern.strip_prefix("(?i)").map_or(("", pattern), |rest| ("(?i)", rest));
    format!("{flags}^(?:{rest})")
}

pattern!(DIGITS, "[0-9]+");
pattern!(
    NAMED,
    concat!(
        r"(?i:passport|reisepass|ausweis|passeport|pasaporte|passaporto|passaporte|paspoort|paszport\p{L}{0,2}|паспорт\p{L}{0,2}|identity card|id card|carte d'identité|carta d'identità",
        r"|national id|documento de identidad|dowód osobisty|rijbewijs|führerschein\p{L}{0,8}|permis de conduire|driv(?:er|ing)(?:'?s)? licen[cs]e|licencia de conducir|patente",
        r"|bank account|(?:bank )?account ?(?:number|no\.?|#)|acct\.? ?(?:number|no\.?|#)|a/c ?(?:number|no\.?|#)|kontonummer|konto-?nr\.?|numéro de compte|número de cuenta|routing number|sort code|medicare|insurance number|versicherungsnummer|patient id)",
        r"|护照|驾驶证|身份证|银行账号|旅券番号|パスポート番号|口座番号"
    )
);
pattern!(
    NAMED_VALUE,
    r"^[^0-9\n]{0,20}?(\n[ \t]{0,8})?((?:[A-Z]{1,5}[ -]?)?[0-9][0-9A-Z]*(?:[ ./-][0-9][0-9A-Z]*){0,5})"
);
/// Most bytes between a word and the number after it.
const WORD_BYTES_MAX: usize = 48;
/// Longest number of a form, in bytes.
const FORM_BYTES_MAX: usize = 32;

pub(super) fn find(text: &str, found: &mut Vec<Found>) {
    for m in DIGITS.find_iter(text) {
        for start in starts(text, m.start()) {
            if let Some(end) = best(text, start) {
                push(found, EntityKind::Id, start..end);
            }
        }
    }
    for name in NAMED.find_iter(text) {
        let rest = &text[name.end()..];
        let rest = &rest[..rest.floor_char_boundary(64)];
        let Some(caps) = NAMED_VALUE.captures(rest) else { continue };
        let Some(m) = caps.get(2) else { continue };
        let value = m.as_str();
        let range = name.end() + m.start()..name.end() + m.end();
        let digits = value.bytes().filter(u8::is_ascii_digit).count();
        let year = digits == 8
            && value.contains(['.', '/', '-'])
            && value.split(['.', '/', '-']).any(|part| part.len() == 4);
        // A value on the next line must fill that line.
        let alone = caps.get(1).is_none()
            || matches!(text[range.end..].chars().next(), None | Some('\n' | ',' | ';' | '|' | '<' | '"'));
        let fits = (6..=20).contains(&digits) || digits >= 2 && is_lettered(value);
        if fits && alone && !year && begins(text, range.start) && ends(text, range.end) {
            push(found, EntityKind::Id, range);
        }
    }
}

/// Checks whether a value mixes letters with digits, as passports of some countries do.
fn is_lettered(value: &str) -> bool {
    (8..=10).contains(&value.len())
        && value.bytes().all(|b| b.is_ascii_alphanumeric())
        && value.bytes().filter(u8::is_ascii_alphabetic).count() >= 2
}

/// Returns where a number with its first digit at `digit` may begin: at the digit, at letters directly before
/// it, or at letters with one separator between.
fn starts(text: &str, digit: usize) -> impl Iterator<Item = usize> {
    let letters = |end: usize| {
        let count =
            text.as_bytes()[..end].iter().rev().take(7).take_while(|b| b.is_ascii_alphabetic()).count();
        (1..=6).contains(&count).then_some(end - count)
    };
    let attached = letters(digit);
    let apart = before(text, digit)
        .filter(|c| matches!(c, ' ' | '-'))
        .and_then(|_| letters(digit - 1))
        .filter(|&s| digit - s <= 3);
    [Some(digit), attached, apart]
        .into_iter()
        .flatten()
        .filter(|&start| begins(text, start) && before(text, start) != Some('+'))
}

/// Returns the end of the longest number that begins at `start`.
fn best(text: &str, start: usize) -> Option<usize> {
    let rest = &text[start..];
    let rest = &rest[..rest.floor_char_boundary(FORM_BYTES_MAX)];
    SET.matches(rest)
        .into_iter()
        .filter_map(|at| {
            let m = PATTERNS[at].find(rest)?;
            let range = start..start + m.end();
            let plain: Vec<u8> = m.as_str().bytes().filter(u8::is_ascii_alphanumeric).collect();
            let fits = ends(text, range.end)
                && !joined(text, &range)
                && (FORMS[at].checks)(&plain)
                && match &FORMS[at].needs {
                    Nothing => true,
                    Word(words) => named(text, start, words),
                };
            fits.then_some(range.end)
        })
        .max()
}

/// Checks whether the number is part of a longer row of numbers.
fn joined(text: &str, range: &Range<usize>) -> bool {
    let first = text.as_bytes()[range.start];
    in_longer_number(text, range) && first.is_ascii_digit()
}

/// Checks whether one of `words` is shortly before `at`.
fn named(text: &str, at: usize, words: &[&str]) -> bool {
    let head = head(text, at, WORD_BYTES_MAX).to_lowercase();
    words.iter().any(|word| {
        head.rmatch_indices(word).any(|(i, _)| {
            let letter = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphabetic());
            let stem = word.len() > 5;
            !letter(head[..i].chars().next_back()) && (stem || !letter(head[i + word.len()..].chars().next()))
        })
    })
}
