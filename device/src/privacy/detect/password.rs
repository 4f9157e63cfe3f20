//! Finds passwords, PINs and one-time codes by the word before them, and the credentials in URLs.

use super::{Certainty, Found, named, names, pattern, push, push_as};
use crate::privacy::EntityKind;
use std::ops::Range;

// Words for "password" in the supported languages.
pattern!(
    NAMED,
    concat!(
        r"(?i:pass[ _-]?word|passwd|pass[ _-]?phrase|pass[ _-]?code|passwort|kennwort|losung|mot[ _]de[ _]passe|contraseña|contrasena|clave|parola(?: d'ordine)?",
        r"|palavra-passe|senha|wachtwoord|hasło|пароль|lösenord|adgangskode|salasana|heslo|jelszó|şifre|sifre|비밀번호|암호|पासवर्ड|كلمة (?:المرور|السر))",
        r"|密码|口令|パスワード|暗証番号|(?-u:\b)(?i:pwd|pass|pw|mdp)(?-u:\b)"
    )
);
pattern!(
    ASSIGNED,
    concat!(
        r#"^(?P<name>[\w-]{0,16})(?:\\{0,8}["'`*_]){0,3}(?P<words>(?:[ \t]\p{L}[\p{L}']{0,14}){0,3})[ \t]{0,3}"#,
        r#"(?:(?P<sign>(?:=>|:=|[:=>])(?:\\{0,8}[*_]){0,3}[ \t]{0,3}(?:(?:[|>][+-]?[ \t]{0,3})?(?:\n|\\{1,8}[nrt])[ \t]{0,4}(?:-[ \t]{1,3})?){0,2})|(?P<says>[ \t+](?i:is|was|ist|lautet|est|es|è|é|to|-)[ \t+]|为|是|は|-{1,2}[ \t]|(?:을|를|은|는)[ \t]?)|(?P<space>[ \t|]))[ \t]{0,4}"#,
        // A value in escaped quotes ends at an escaped quote; a value in plain quotes may hold escaped ones.
        r#"(?:\\{1,8}(?:"(?P<double>[^"\n]{3,128})"|'(?P<single>[^'\n]{3,128})')|"(?P<whole>(?:[^"\\\n]|\\[^\n]){3,128})"|'(?P<other>(?:[^'\\\n]|\\[^\n]){3,128})'"#,
        r#"|"(?P<outer>[^"\n]{3,128})"|'(?P<last>[^'\n]{3,128})'|(?:\\{0,8}["'`])?(?P<bare>[^\s"'`>|]\S{2,127}))"#
    )
);
pattern!(
    PIN,
    concat!(
        r"(?-u:\b)(?i:pin(?:[ -]?(?:code|nummer|number))?|cvv2?|cvc2?|otp|tan|geheimzahl|code pin|código pin|codice pin|security code|passcode|puk",
        r"|(?:one-time|verification|access|login|2fa|sms|confirmation) (?:code|pin|password)|bestätigungscode|prüfziffer|код подтверждения|пин-код|пин)(?-u:\b)",
        r"|验证码|动态码|校验码|暗証番号|認証コード"
    )
);
pattern!(
    PIN_VALUE,
    r#"^(?:\\{0,8}["'`*_]){0,3}\)?[ \t]{0,3}(?:code[ \t]?)?(?:(?i:is|ist|est|es|è|é|to)[ \t]|(?i:is|ist|est|es)?[:=](?:\\{0,8}[*_]){0,3}[ \t]{0,3}(?:(?:\n|\\{1,8}[nrt])[ \t]{0,8}){0,2}|-[ \t]|[ \t]|为|是|は)?[ \t]{0,3}(?:\\{0,8}["'`*_]){0,3}([0-9]{3,8})([ -][0-9]{3,4})?"#
);
pattern!(URL, r#"[A-Za-z][A-Za-z0-9+.-]{1,20}://([^\s/?"'<>\\]{1,300})@"#);
pattern!(USER_OPTION, r#"(?:^|\s)(?:-u|--user|--proxy-user)[ =]["']?([^\s:"']{1,64}:[^\s"']{3,128})"#);
pattern!(
    PHRASE,
    r#"(?i)(?:pass[ -]?phrase|seed(?: phrase)?|recovery phrase|mnemonic(?: phrase)?|backup phrase)["'*_`]{0,2}[ \t]{0,3}(?:[:=]|is)[ \t"'*_`]{0,4}\n?(\p{Ll}{2,12}(?:[ \n]\p{Ll}{2,12}){3,24})"#
);
// A number after a sentence about a PIN; it must not be a count, so only punctuation or certain words may
// follow.
pattern!(
    PIN_SAID,
    r#"^([0-9]{3,8})([ -][0-9]{3,4})?(?:[.,;!)"'`]{1,2}(?:\s|$)|\s*$|\n|[ \t](?:and|or|but|please|now|thanks|und|et|y|e)[ \t])"#
);
// A code at the start of a message that then says what it is.
pattern!(
    CODE_FIRST,
    r"(?-u:\b)([0-9]{4,8}|[0-9]{3}[ -][0-9]{3}) (?i:is your|is the (?:verification|security|login|access|one-time|confirmation)|ist Ihr|ist dein|est votre|es tu|es su) [^.\n]{0,40}?(?i:code|pin|otp|passcode|password|código)"
);
// What ends a value without spaces: the tag, the quote or the column around it.
pattern!(
    CLOSES,
    r#"</|<(?i:br|hr|p|b|i|u|td|tr|th|li|div|span|strong|em|code|pre|a|input)(?:/?>|$)|\\*["'`](?:[,;:)}\]>]|/>|\.?$)|\|$"#
);
// A call, an index or a variable's type in program code.
pattern!(
    CALL,
    r#"^<[^<>]*>|^::?[A-Za-z_<]|^&'|^\[[0-9]|^\{?[A-Za-z]+(?:\|[A-Za-z]+)+\}?$|::<|[(\[{=,+][bru]?["'`]|^[A-Za-z_:]{3,}<[\[(&]|^[A-Za-z_:]{3,}<[\w:<>,&\[\];']*>[,;)]*$"#
);
// The start of the next field after a value without spaces.
pattern!(NEXT_FIELD, r"[;&,][ ]?[A-Za-z_][A-Za-z0-9_ .-]{0,30}[=:]");

// A template for a password that is inserted later.
pattern!(
    TEMPLATE,
    r"^(?:\$[({]?[A-Za-z_]|\{[A-Za-z_][A-Za-z0-9_.]*$|(?:process|os|config|settings|self|this)\.[A-Za-z_]|\{\{|%[(A-Za-z]|\*+$|x+$|•+$)"
);

/// Words for a password that often have another meaning.
const SHORT: &[&str] = &["pass", "pw", "mdp", "clave", "parola"];
/// Words after "password:" that are not a password.
const NO_PASSWORD: &[&str] = &[
    "required",
    "optional",
    "none",
    "null",
    "true",
    "false",
    "yes",
    "no",
    "empty",
    "hidden",
    "unknown",
    "invalid",
    "incorrect",
    "wrong",
    "expired",
    "missing",
    "protected",
    "changed",
    "reset",
    "forgotten",
    "strict",
    "strong",
    "weak",
    "string",
    "mandatory",
    "set",
    "unset",
    "ok",
    "redacted",
    "erforderlich",
    "vergessen",
    "falsch",
    "keins",
    "obligatoire",
    "oublié",
    "requis",
    "obligatoria",
    "olvidada",
    "requerida",
    "obbligatoria",
    "obrigatória",
    "verplicht",
    "vergeten",
    "wymagane",
    "обязателен",
    "必须",
    "必須",
    "monthly",
    "weekly",
    "daily",
    "undefined",
    "return",
    "pass",
    "raise",
    "continue",
    "break",
    "admin",
    "text",
];
pub(super) fn find(text: &str, found: &mut Vec<Found>) {
    let mut read_to = 0;
    // Names inside a value that was read are ignored, so that each byte is read once.
    for name in NAMED.find_iter(text) {
        if name.start() < read_to {
            continue;
        }
        let rest = &text[name.end()..];
        let rest = &rest[..rest.floor_char_boundary(256)];
        let Some(range) =
            behind_bridge(rest).or_else(|| password(rest)).or_else(|| said(name.as_str(), rest))
        else {
            continue;
        };
        let is_weak = SHORT.contains(&name.as_str().to_lowercase().as_str());
        // `Pass -DX=ON to it` gives no password.
        if is_weak && rest[range.clone()].starts_with('-') {
            continue;
        }
        let range = name.end() + range.start..name.end() + range.end;
        read_to = range.end;
        // A word after `pass` may be a password here, but is none in other texts.
        let certainty = match is_weak && names::is_word(&text[range.clone()]) {
            true => Certainty::Likely,
            false => Certainty::Shown,
        };
        push_as(found, certainty, EntityKind::Password, range.clone());
        if text[..range.start].ends_with(['"', '\'']) && text[name.end()..range.start].contains('[') {
            for item in named::next_items(text, range.end) {
                read_to = item.end;
                push(found, EntityKind::Password, item);
            }
        }
    }
    for name in PIN.find_iter(text) {
        let rest = &text[name.end()..];
        let rest = &rest[..rest.floor_char_boundary(192)];
        if let Some(range) = pin(text, name.as_str(), rest, name.end()) {
            push(found, EntityKind::Password, range);
        }
    }
    let said = PHRASE.captures_iter(text).chain(USER_OPTION.captures_iter(text));
    for caps in said.chain(CODE_FIRST.captures_iter(text)) {
        if let Some(m) = caps.get(1) {
            push(found, EntityKind::Password, m.range());
        }
    }
    for caps in URL.captures_iter(text) {
        let Some(info) = caps.get(1) else { continue };
        // User and password are separate findings, so that each is known if it appears alone.
        let user = info.as_str().split(':').next().map_or(0, str::len);
        if !super::path::is_nobody(&info.as_str()[..user]) {
            push(found, EntityKind::User, info.start()..info.start() + user);
        }
        if user < info.len() {
            push(found, EntityKind::Password, info.start() + user + 1..info.end());
        }
    }
}

/// Returns the position of each `@` that ends the credentials of a URL, in order. The text before it is found
/// here, and is not an e-mail address.
pub(super) fn credential_ends(text: &str) -> Vec<usize> {
    URL.find_iter(text).map(|m| m.end() - 1).collect()
}

/// Finds the number after the name of a PIN; `rest` begins at byte `at` of `text`.
fn pin(text: &str, name: &str, rest: &str, at: usize) -> Option<Range<usize>> {
    // Takes both groups if they end where a number may end, otherwise only the first.
    let whole = |caps: &regex::Captures<'_>, from: usize| {
        let (one, two) = (caps.get(1)?, caps.get(2));
        let even = two.filter(|two| two.len() == one.len() + 1).map(|two| two.end());
        let ranges = even.into_iter().chain([one.end()]).map(|end| at + from + one.start()..at + from + end);
        ranges.into_iter().find(|range| super::stands_alone(text, range))
    };
    let near = &rest[..rest.floor_char_boundary(48)];
    if let Some(range) = PIN_VALUE.captures(near).and_then(|caps| whole(&caps, 0)) {
        return Some(range);
    }
    if let Some((from, signed)) = named::bridge(rest)
        && let Some(range) = PIN_VALUE.captures(&rest[from..]).and_then(|caps| whole(&caps, from))
        && (signed || text[range.end..].starts_with('<'))
    {
        return Some(range);
    }
    // `tan` in lower case is the tangent, not a bank's code.
    let from = named::sentence(rest).filter(|_| name != "tan")?;
    PIN_SAID.captures(&rest[from..]).and_then(|caps| whole(&caps, from))
}

/// Finds the password after tags, the name of the next field, or the bracket of a list.
fn behind_bridge(rest: &str) -> Option<Range<usize>> {
    let (from, signed) = named::bridge(rest)?;
    // It is read as after a sign; a plain word counts only if there is a sign.
    let value = password(&[":", &rest[from..]].concat())?;
    let range = from + value.start - 1..from + value.end - 1;
    (signed || !rest[range.clone()].chars().all(char::is_alphabetic)).then_some(range)
}

/// Finds the password after words of its sentence.
fn said(name: &str, rest: &str) -> Option<Range<usize>> {
    if SHORT.contains(&name.to_lowercase().as_str()) {
        return None;
    }
    let from = named::sentence(rest)?;
    let bare = rest[from..].split(char::is_whitespace).next().unwrap_or_default();
    let value = trimmed(bare, false);
    let plain = value.trim_end_matches(['!', '?']);
    let lettered = plain.chars().any(char::is_alphabetic) && plain.len() >= 6;
    let is = lettered && is_odd(plain) && !is_none(value) && !named::is_method(value) && !measured(value);
    is.then_some(from..from + value.len())
}

/// Checks whether a value in a column of passwords is a password: it has no spaces, and is not empty.
pub(super) fn stands_in_column(value: &str) -> bool {
    let call = value.ends_with(['(', '{', '[', ':']) || value.contains('(') && value.ends_with(')');
    let word = !value.contains(char::is_whitespace) && value.contains(char::is_alphanumeric);
    (4..=128).contains(&value.len()) && word && !call && !is_none(value)
}

/// Checks whether a value is a number joined with a word, such as `8-character`.
fn measured(value: &str) -> bool {
    let rest = value.trim_start_matches(|c: char| c.is_ascii_digit());
    rest.len() < value.len()
        && rest.strip_prefix('-').is_some_and(|word| word.chars().all(char::is_alphabetic))
}

/// Checks whether a value holds characters that words of prose do not have.
fn is_odd(value: &str) -> bool {
    // Words of prose have upper case only at their beginning.
    let rises = |pair: &[u8]| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase();
    let sign = |c: char| matches!(c, '!' | '@' | '#' | '$' | '%' | '^' | '&' | '*' | '+' | '=');
    value.chars().any(|c| c.is_ascii_digit() || sign(c))
        || value.as_bytes().windows(2).filter(|pair| rises(pair)).count() >= 2
}

/// Checks whether a value says that there is no password, or is a template for one.
fn is_none(value: &str) -> bool {
    NO_PASSWORD.contains(&value.to_lowercase().as_str()) || TEMPLATE.is_match(value)
}

/// Finds the password that follows its name at the start of `rest`.
fn password(rest: &str) -> Option<Range<usize>> {
    let caps = ASSIGNED.captures(rest)?;
    let words = caps.name("words").map_or("", |m| m.as_str()).to_lowercase();
    if named::about(&words) {
        return None;
    }
    let quoted =
        ["double", "single", "whole", "other", "outer", "last"].iter().find_map(|name| caps.name(name));
    let m = quoted.or_else(|| caps.name("bare"))?;
    let value = match quoted {
        // A backslash before the closing quote belongs to the quote.
        Some(m) if rest[..m.start() - 1].ends_with('\\') => m.as_str().trim_end_matches('\\'),
        Some(m) => m.as_str(),
        None => trimmed(m.as_str(), caps.name("space").is_some_and(|space| space.as_str() == "|")),
    };
    let signed = caps.name("sign").is_some();
    let date = value.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'-' | b'.' | b'/' | b':'))
        && value.contains(['-', '/', '.']);
    let behind = &rest[m.start() + value.len()..];
    let closed = CLOSES.find(&m.as_str()[value.len()..]).is_some_and(|m| m.start() == 0);
    let clause_ends = quoted.is_some()
        || closed
        || matches!(
            rest[m.end()..].chars().next(),
            None | Some('\n' | '\r' | ',' | ';' | '}' | ')' | '<' | '|')
        );
    let label = behind.starts_with(':');
    let word =
        value.chars().all(char::is_alphabetic) && value.chars().count() >= 4 && words.is_empty() && !label;
    let phrase = quoted.is_some()
        && signed
        && value.split(' ').count() <= 4
        && value.chars().all(|c| c.is_alphabetic() || c == ' ');
    let says = |word: &str| ["is", "was", "ist", "lautet", "est", "es", "è", "é", "to"].contains(&word);
    // Code is often in backticks, also after a word such as "pass".
    let coded = rest[..m.start()].ends_with('`');
    let spaced = caps.name("space").is_some()
        && words.split_whitespace().next_back().map_or(coded, |word| !says(word));
    let long = value.len() >= if signed || quoted.is_some() { 4 } else { 6 };
    let described = caps.name("says").is_some() && (named::is_method(value) || measured(value));
    let plausible = is_odd(value) && !date && !spaced && long && !described;
    let said = caps.name("says").is_some();
    let is = !is_none(value)
        && (plausible || phrase || word && (signed && clause_ends || quoted.is_some() && (signed || said)));
    let start = m.start();
    is.then_some(start..start + value.len())
}

/// Removes what ends the sentence or the field.
fn trimmed(value: &str, piped: bool) -> &str {
    // A call in program code ends before its first quote or type.
    let call = CALL.find(value).map(|m| {
        let inside = m.as_str().find(['(', '[', '{', '=', ',', '+', '<', ':']).map_or(0, |i| i + 1);
        if m.as_str().starts_with([':', '<']) { m.start() } else { m.start() + inside }
    });
    let pipe = value.find('|').filter(|_| piped);
    let end = ["\\n", "\\r", "\\\"", "。", "，", "；", "、", "です", "；", "」", "』"]
        .iter()
        .filter_map(|mark| value.find(mark))
        .chain(CLOSES.find(value).map(|m| m.start()))
        .chain(call)
        .chain(pipe)
        .min();
    let value = &value[..end.unwrap_or(value.len())];
    let value = &value[..NEXT_FIELD.find(value).map_or(value.len(), |m| m.start())];
    value.trim_end_matches(['.', ',', ';', ')', ']', '}', '*', ':', '>', '\\'])
}
