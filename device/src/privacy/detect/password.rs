//! Passwords, PINs and one-time codes by the word before them, and the credentials in URLs.

use super::{Found, pattern, push};
use crate::privacy::EntityKind;

// Words for a password in the languages that are known here.
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
        r#"^(?P<name>[\w-]{0,16})(?:\\{0,2}["'`*_]){0,3}(?P<words>(?:[ \t]\p{L}[\p{L}']{0,14}){0,3})[ \t]{0,3}"#,
        r#"(?:(?P<sign>(?:=>|:=|[:=>])(?:\\{0,2}[*_]){0,3}[ \t]{0,3}\n?)|(?P<says>[ \t](?i:is|was|ist|lautet|est|es|è|é|to|-)[ \t]|为|是|は|-{1,2}[ \t]|(?:을|를|은|는)[ \t]?)|(?P<space>[ \t|]))[ \t]{0,4}\\{0,2}"#,
        r#"(?:"(?P<double>[^"\n]{3,128})"|'(?P<single>[^'\n]{3,128})'|(?P<bare>[^\s"'`<>|]{3,128}))"#
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
    r#"^["'`]{0,2}[ \t]{0,3}(?:(?i:is|ist|est|es|è|é|to|code)[ \t]|[:=]|-[ \t]|[ \t]|为|是|は)?[ \t]{0,3}["'`]{0,2}([0-9]{3,8})"#
);
pattern!(URL, r#"[A-Za-z][A-Za-z0-9+.-]{1,20}://([^\s/?"'<>\\]{1,300})@"#);
pattern!(USER_OPTION, r#"(?:^|\s)(?:-u|--user|--proxy-user)[ =]["']?([^\s:"']{1,64}:[^\s"']{3,128})"#);
pattern!(
    PHRASE,
    r#"(?i)(?:pass[ -]?phrase|seed(?: phrase)?|recovery phrase|mnemonic(?: phrase)?|backup phrase)["'*_`]{0,2}[ \t]{0,3}(?:[:=]|is)[ \t"'*_`]{0,4}\n?(\p{Ll}{2,12}(?:[ \n]\p{Ll}{2,12}){3,24})"#
);
// Where the next field begins behind a value that runs on without a space.
pattern!(NEXT_FIELD, r"[;&,][ ]?[A-Za-z_][A-Za-z0-9_ .-]{0,30}[=:]");

// What stands for a password that is put in later.
pattern!(TEMPLATE, r"^(?:\$[({]?[A-Za-z_]|\{\{|%[(A-Za-z]|\*+$|x+$|•+$)");

/// Words after "password:" that are no password.
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
    "admin",
    "text",
];
/// Words between "password" and its sign that say that something else follows.
const ABOUT: &[&str] = &[
    "policy",
    "rotation",
    "rules",
    "length",
    "format",
    "type",
    "field",
    "hint",
    "manager",
    "reset",
    "strength",
    "requirements",
    "file",
    "expiry",
    "options",
    "settings",
    "protection",
    "security",
    "change",
    "history",
    "age",
    "must",
    "should",
    "may",
];

pub(super) fn find(text: &str, found: &mut Vec<Found>) {
    let mut read_to = 0;
    // Names inside a value that was read are no names, so that each byte is read once.
    for name in NAMED.find_iter(text) {
        if name.start() < read_to {
            continue;
        }
        let rest = &text[name.end()..];
        let rest = &rest[..rest.floor_char_boundary(256)];
        if let Some(range) = password(rest) {
            read_to = name.end() + range.end;
            push(found, EntityKind::Password, name.end() + range.start..name.end() + range.end);
        }
    }
    for name in PIN.find_iter(text) {
        let rest = &text[name.end()..];
        let rest = &rest[..rest.floor_char_boundary(48)];
        let Some(m) = PIN_VALUE.captures(rest).and_then(|caps| caps.get(1)) else { continue };
        let start = name.end() + m.start();
        if super::stands_alone(text, &(start..name.end() + m.end())) {
            push(found, EntityKind::Password, start..name.end() + m.end());
        }
    }
    for caps in PHRASE.captures_iter(text).chain(USER_OPTION.captures_iter(text)) {
        if let Some(m) = caps.get(1) {
            push(found, EntityKind::Password, m.range());
        }
    }
    for caps in URL.captures_iter(text) {
        let Some(info) = caps.get(1) else { continue };
        // Apart, so that each is known when it stands alone.
        let user = info.as_str().split(':').next().map_or(0, str::len);
        if !super::path::is_nobody(&info.as_str()[..user]) {
            push(found, EntityKind::User, info.start()..info.start() + user);
        }
        if user < info.len() {
            push(found, EntityKind::Password, info.start() + user + 1..info.end());
        }
    }
}

/// Each `@` that ends the credentials of a URL, in order: what stands before it is found here, and is no address of mail.
pub(super) fn credential_ends(text: &str) -> Vec<usize> {
    URL.find_iter(text).map(|m| m.end() - 1).collect()
}

/// The password that follows its name at the start of `rest`.
fn password(rest: &str) -> Option<std::ops::Range<usize>> {
    let caps = ASSIGNED.captures(rest)?;
    let words = caps.name("words").map_or("", |m| m.as_str()).to_lowercase();
    if words.split_whitespace().any(|word| ABOUT.contains(&word)) {
        return None;
    }
    let quoted = caps.name("double").or_else(|| caps.name("single"));
    let m = quoted.or_else(|| caps.name("bare"))?;
    let value = match quoted {
        Some(m) => m.as_str(),
        None => trimmed(m.as_str()),
    };
    let signed = caps.name("sign").is_some();
    let odd = value.chars().any(|c| {
        c.is_ascii_digit() || matches!(c, '!' | '@' | '#' | '$' | '%' | '^' | '&' | '*' | '+' | '=')
    });
    // Words of prose change their case at their beginning only.
    let rises = |pair: &[u8]| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase();
    let odd = odd || value.as_bytes().windows(2).filter(|pair| rises(pair)).count() >= 2;
    let date = value.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'-' | b'.' | b'/' | b':'))
        && value.contains(['-', '/', '.']);
    let clause_ends = rest[m.end()..]
        .trim_start_matches(['"', '\''])
        .chars()
        .next()
        .is_none_or(|c| matches!(c, '\n' | '\r' | ',' | ';' | '}' | ')' | '<' | '|') || quoted.is_some());
    let word = value.chars().all(char::is_alphabetic) && value.chars().count() >= 4 && words.is_empty();
    let phrase = quoted.is_some()
        && signed
        && value.split(' ').count() <= 4
        && value.chars().all(|c| c.is_alphabetic() || c == ' ');
    let none = NO_PASSWORD.contains(&value.to_lowercase().as_str()) || TEMPLATE.is_match(value);
    let says = |word: &str| ["is", "was", "ist", "lautet", "est", "es", "è", "é", "to"].contains(&word);
    let spaced =
        caps.name("space").is_some() && words.split_whitespace().next_back().is_some_and(|word| !says(word));
    let plausible = odd && !date && !spaced && value.len() >= if signed || quoted.is_some() { 4 } else { 6 };
    let is = !none && (plausible || phrase || word && (signed && clause_ends || quoted.is_some()));
    let start = m.start();
    is.then_some(start..start + value.len())
}

/// Without what ends the sentence or the field.
fn trimmed(value: &str) -> &str {
    let end = ["\\n", "\\r", "\\\"", "。", "，", "；", "、", "です", "；", "」", "』"]
        .iter()
        .filter_map(|mark| value.find(mark))
        .min();
    let value = &value[..end.unwrap_or(value.len())];
    let value = &value[..NEXT_FIELD.find(value).map_or(value.len(), |m| m.start())];
    value.trim_end_matches(['.', ',', ';', ')', ']', '}', '*', ':'])
}
