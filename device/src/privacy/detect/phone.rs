//! Finds telephone numbers: international ones, forms that a country uses for nothing else, and any number
//! after a word for it.

use super::{Found, before, begins, digits, ends, in_longer_number, pattern, push};
use crate::privacy::EntityKind;
use std::ops::Range;

pattern!(INTERNATIONAL, r"(?:\+|00)[1-9][0-9]{0,2}(?:[ ./-]{0,2}\n?\(?[0-9]{1,5}\)?){2,7}");
// A value of a URL query, in which a plus means a space.
pattern!(IN_QUERY, r"=((?:\+|00)[1-9][0-9]{0,2}(?:\+[0-9]{2,5}){2,5})");
// Forms that need no word before them: North America, China, France, Japan, Russia, Brazil, mobile numbers of
// the United Kingdom.
pattern!(
    NATIONAL,
    concat!(
        r"(?:1[ .-])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[ .-])[2-9][0-9]{2}[.-]\n?[0-9]{4}|\([2-9][0-9]{2}\) ?[2-9][0-9]{2} ?[0-9]{4}",
        r"|1[3-9][0-9][ -]?[0-9]{4}[ -]?[0-9]{4}",
        r"|\(?0[1-9][0-9]{1,2}\)?[ -][2-9][0-9]{6,7}|\(0[1-9][0-9]{1,2}\) ?[2-9][0-9]{2,3}[ -]?[0-9]{4}",
        r"|0[1-9](?:[ .-][0-9]{2}){4}",
        r"|0[0-9]{1,3}-[0-9]{2,4}-[0-9]{4}",
        r"|8[ -]?\(?[0-9]{3}\)?[ -][0-9]{3}-[0-9]{2}-[0-9]{2}",
        r"|\([1-9][0-9]\) ?9?[0-9]{4}-[0-9]{4}",
        r"|07[0-9]{3} [0-9]{6}|0[0-9]{2} [0-9]{4} [0-9]{4}"
    )
);
pattern!(
    NAMED,
    concat!(
        r"(?i:phon[a-z]{0,4}|telefon|telefoon|téléphon|teléfon|telefón|telefôn|telefòn|telemóvel|tel|mobile|mobil|mobiel|cell|cellular|celular|fax|faks|факс|hotline|whatsapp|viber|handy|rufnummer",
        r"|durchwahl|rufen sie|anrufen|erreichbar|portable|joignable|tél|(?:mon|votre|son) numéro|gsm|móvil|mi número|komórk|тел|моб|(?:мой|контактный|наш) номер|cep",
        r"|(?:my|contact|office|home|work|direct) number|(?:reach|contact) (?:me|us|him|her|them)|call|ring|text|signal|appel|llam|chiam|ligue|liga|bel|zadzwo|dzwoni|звон)",
        r"|电话|手机|座机|传真|致电|联系方式|热线|電話|携帯|連絡先|ファックス|전화|휴대폰|연락처|फ़ोन|फोन|मोबाइल|هاتف|جوال"
    )
);
/// Words that often have another meaning; after them, a number must be written like a telephone number.
const WEAK: &[&str] = &[
    "call",
    "ring",
    "text",
    "signal",
    "appel",
    "llam",
    "chiam",
    "ligue",
    "liga",
    "bel",
    "zadzwo",
    "dzwoni",
    "звон",
    "mobile",
    "cell",
    "portable",
    "handy",
    "erreichbar",
    "joignable",
    "reach me",
    "reach us",
    "reach him",
    "reach her",
    "reach them",
    "contact me",
    "contact us",
    "contact him",
    "contact her",
    "contact them",
];
// After the word, numbers may be counted: `phone1`, `Phone 2:`.
pattern!(
    AFTER_NAME,
    concat!(
        r#"^(?:[ ._-]{0,2}#?[0-9]{1,2}(?:\\{0,8}["'`*])?[ \t]{0,2}[:=|])?"#,
        r"([^0-9+\n]{0,24}?)\n?[ \t]{0,4}([+(]{0,2}[0-9][0-9 ()./-]{4,24}[0-9])"
    )
);
// The next of several numbers after one word.
pattern!(
    NEXT_NUMBER,
    r"^(?: ?[,;/|、] ?| (?:or|and|und|oder|ou|et|o|y|e|of|en|lub|i|или|и) |或|和)([+(]{0,2}[0-9][0-9 ()./-]{4,24}[0-9])"
);
/// Words between "phone" and a number that show that the number belongs to the phone.
const NUMBER_WORDS: &[&str] = &[
    "number", "numbers", "no", "nr", "num", "nummer", "numéro", "número", "numero", "home", "work", "office",
    "mobile", "is", "ist", "est", "es", "at", "me", "us", "on", "value",
];
/// Bytes before a number in which the name of arXiv is looked for.
const ARXIV_BYTES: usize = 24;
/// Most digits of a number (ITU-T E.164).
const NUMBER_DIGITS_MAX: usize = 15;
/// Units after a sum of money or a measure.
const UNITS: &[&str] = &[
    "€", "$", "£", "¥", "%", "°", "₽", "₹", "EUR", "USD", "GBP", "CHF", "JPY", "CNY", "元", "円", "руб", "zł",
];
pattern!(
    DATE_OR_YEARS,
    r"^(?:[12][0-9]{3}[./-][0-9]{1,2}[./-][0-9]{1,2}.*|[0-9]{1,2}[./-][0-9]{1,2}[./-](?:[12][0-9])?[0-9]{2}|[12][0-9]{3} ?[-/] ?[12][0-9]{3}|(?:19|20)[0-9]{2}[-/](?:0[1-9]|1[0-2]))$"
);

// A signed year of four digits or more in a date (ISO 8601).
// The number of a paper at arXiv: year, month, number.
pattern!(ARXIV, r"^[0-3][0-9](?:0[1-9]|1[0-2])\.[0-9]{4,5}$");
pattern!(SIGNED_DATE, r"^\+[0-9]{4,6}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])(?:[ T]|$)");

pub(super) fn find(text: &str, found: &mut Vec<Found>) {
    for m in INTERNATIONAL.find_iter(text) {
        // The digits on the next line may be part of the number or not.
        let first_line = m.as_str().split('\n').next().unwrap_or_default();
        let candidates = [m.as_str(), first_line];
        if let Some(number) = candidates.into_iter().map(balanced).find(|n| international(text, m.start(), n))
        {
            push(found, EntityKind::Phone, m.start()..m.start() + number.len());
        }
    }
    for m in IN_QUERY.captures_iter(text).filter_map(|caps| caps.get(1)) {
        if (9..=16).contains(&digits(m.as_str()).len()) && ends(text, m.end()) {
            push(found, EntityKind::Phone, m.range());
        }
    }
    for m in NATIONAL.find_iter(text) {
        let range = m.range();
        let alone = begins(text, range.start) && ends(text, range.end) && !in_longer_number(text, &range);
        if alone && !DATE_OR_YEARS.is_match(m.as_str()) {
            push(found, EntityKind::Phone, range);
        }
    }
    for name in NAMED.find_iter(text) {
        let Some(from) = word_end(text, &name.range()) else { continue };
        let rest = &text[from..];
        if name.as_str().eq_ignore_ascii_case("tel")
            && rest.get(..5).is_some_and(|word| word.eq_ignore_ascii_case(" aviv"))
        {
            continue;
        }
        let rest = &rest[..rest.floor_char_boundary(128)];
        let Some(caps) = AFTER_NAME.captures(rest) else { continue };
        let (Some(between), Some(m)) = (caps.get(1), caps.get(2)) else { continue };
        let number = one_number(m.as_str());
        let range = from + m.start()..from + m.start() + number.len();
        let weak = WEAK.contains(&name.as_str().to_lowercase().as_str());
        let paper = ARXIV.is_match(number)
            && (weak || super::head(text, range.start, ARXIV_BYTES).to_lowercase().contains("arxiv"));
        let counted = number.ends_with("000") && !is_written(number) && counts(between.as_str());
        if (is_written(number) || !weak) && !counted && !paper && is_number(text, &range) {
            let count = digits(number).len();
            let end = range.end;
            push(found, EntityKind::Phone, range);
            further(text, end, count, found);
        }
    }
}

/// Finds the numbers that follow the one that ends at `at`, if they are written like telephone numbers or
/// have as many digits.
fn further(text: &str, mut at: usize, count: usize, found: &mut Vec<Found>) {
    loop {
        let rest = &text[at..];
        let rest = &rest[..rest.floor_char_boundary(64)];
        let Some(m) = NEXT_NUMBER.captures(rest).and_then(|caps| caps.get(1)) else { return };
        let number = one_number(m.as_str());
        let range = at + m.start()..at + m.start() + number.len();
        let alike = digits(number).len() == count || is_written(number) && digits(number).len() >= 7;
        if !alike || !is_number(text, &range) {
            return;
        }
        at = range.end;
        push(found, EntityKind::Phone, range);
    }
}

/// Returns the first number, if there are two with a slash or a dash between them.
fn one_number(numbers: &str) -> &str {
    let first = match digits(numbers).len() > NUMBER_DIGITS_MAX {
        true => {
            [" / ", " - ", "/"].iter().find_map(|between| numbers.split_once(between)).map(|(one, _)| one)
        }
        false => None,
    };
    balanced(first.unwrap_or(numbers))
}

/// Checks whether a number is written like a telephone number, not like a count.
fn is_written(number: &str) -> bool {
    number.starts_with(['+', '0', '('])
        || number.contains([' ', '-', '.', '/'])
        || matches!(digits(number).len(), 10 | 11)
}

/// Checks whether the range after a word for a phone is a whole number, and not a date or a sum of money.
fn is_number(text: &str, range: &Range<usize>) -> bool {
    let number = &text[range.clone()];
    (6..=NUMBER_DIGITS_MAX).contains(&digits(number).len())
        && ends(text, range.end)
        && !decimal(text, range)
        && !DATE_OR_YEARS.is_match(number)
}

/// Checks whether words between the name and the number show that something is counted, as in `phone sales:
/// 1500000`.
fn counts(between: &str) -> bool {
    between
        .split(|c: char| !c.is_alphabetic())
        .any(|word| !word.is_empty() && !NUMBER_WORDS.contains(&word.to_lowercase().as_str()))
}

/// Checks whether the text at `start`, which begins with `+` or `00`, is a whole telephone number.
fn international(text: &str, start: usize, number: &str) -> bool {
    let range = start..start + number.len();
    let plus = number.starts_with('+');
    let count = digits(number).len() - if plus { 0 } else { 2 };
    let after_digit = |text: &str| text.ends_with(|c: char| c.is_ascii_digit());
    // The sign of an exponent follows a digit and an E.
    let exponent = text[..start].strip_suffix(['e', 'E']).is_some_and(after_digit);
    let begins_here = match plus {
        true => !after_digit(&text[..start]) && !exponent,
        // It must not be inside a longer number, as in `89 0044 0532`.
        false => begins(text, start) && !after_digit(text[..start].trim_end_matches(' ')),
    };
    (8..=NUMBER_DIGITS_MAX).contains(&count)
        && begins_here
        && !SIGNED_DATE.is_match(number)
        && ends(text, range.end)
        && !decimal(text, &range)
}

/// Returns the end of the word that begins with this name; `None` if the name is inside another word.
fn word_end(text: &str, name: &Range<usize>) -> Option<usize> {
    let word = text[name.clone()].to_lowercase();
    let letter = |c: char| c.is_alphabetic() && (c as u32) < 0x2e80;
    // Compound words, such as smartphone or Festnetztelefon.
    let compound = word.contains("phon") || word.contains("fon") || word.contains("rufnummer");
    if !compound && before(text, name.start).is_some_and(letter) && text[name.clone()].chars().all(letter) {
        return None;
    }
    let ending: usize =
        text[name.end..].chars().take(12).take_while(|&c| letter(c)).map(char::len_utf8).sum();
    let stem =
        word.chars().count() > 3 || matches!(word.as_str(), "тел" | "моб") || !word.is_ascii() && ending == 0;
    (ending == 0 || stem && word != "call" && word != "ring").then_some(name.end + ending)
}

/// Removes separators after a number, and a bracket that does not belong to it.
fn balanced(number: &str) -> &str {
    let trim = |text: &str| text.trim_end_matches([' ', '.', '/', '-', '(', '\n']).len();
    let mut number = &number[..trim(number)];
    let count = |text: &str, c: char| text.matches(c).count();
    if count(number, ')') > count(number, '(') && number.ends_with(')') {
        number = &number[..number.len() - 1];
    } else if count(number, '(') > count(number, ')') && !number.starts_with('(') {
        number = &number[..number.rfind('(').unwrap_or(number.len())];
    }
    &number[..trim(number)]
}

/// Checks whether a decimal part or a unit of money follows.
fn decimal(text: &str, range: &Range<usize>) -> bool {
    let (number, rest) = (&text[range.clone()], &text[range.end..]);
    let unit = |rest: &str| UNITS.iter().any(|unit| rest.starts_with(unit));
    if unit(rest) {
        return true;
    }
    let run = number.trim_start_matches('+');
    let compact = run.bytes().all(|b| b.is_ascii_digit());
    if number.starts_with('+') && compact && run.len() >= 10 {
        return false;
    }
    // Sums of money are written in groups of three digits after the first group, or without groups.
    let sum = compact || run.split([' ', '.', ',']).skip(1).all(|group| group.len() == 3);
    let fraction = match rest.strip_prefix(',') {
        Some(fraction) => {
            let digits = fraction.bytes().take(3).take_while(u8::is_ascii_digit).count();
            sum && (1..=2).contains(&digits) && !fraction[digits..].starts_with(',') && ends(fraction, digits)
        }
        None => rest.starts_with('.') && rest[1..].starts_with(|c: char| c.is_ascii_digit()),
    };
    fraction || sum && unit(rest.trim_start_matches(' '))
}
