//! Reads what may be between the word for a secret and the secret: words of a sentence, tags, the name of the
//! next field.

use super::pattern;
use std::ops::Range;

/// Most bytes that are read from a word to its secret.
const WAY_BYTES_MAX: usize = 160;

// Tags between the two; a field "value" after the field with the name; or the beginning of a list.
pattern!(
    BRIDGE,
    concat!(
        r#"^(?:(?:[ \t]{0,3}[:=]?[ \t\n]{0,8}(?:(?:</[A-Za-z][^<>\n]{0,30}>|<(?i:b|i|u|strong|em|code|pre|kbd|tt|span|font|mark|td|dd|dt|div|p|li|br|string|value|a)(?:[ \t][^<>\n]{0,60})?/?>)[ \t\n]{0,20}){1,4}){1,2}(?:[:=][ \t\n]{0,8})?"#,
        r#"|(?:\\{0,8}["'])?(?:,?\s{0,20}(?:\\{0,8}["'])?[A-Za-z_-]{1,16}(?:\\{0,8}["'])?\s{0,2}[:=]\s{0,2}(?:\\{0,8}["'])?[\w ./-]{0,24}(?:\\{0,8}["'])?){0,2}?,?\s{0,20}(?:\\{0,8}["'])?(?i:value|val|answer|default[_-]?value|string_?value)(?:\\{0,8}["'])?\s{0,2}[:=]\s{0,2}"#,
        r#"|s?(?:\\{0,8}["'])?\s{0,2}[:=]\s{0,2}\[\s{0,8})"#
    )
);
pattern!(
    NEXT_ITEM,
    r#"^\\{0,8}["']?\s{0,4},\s{0,20}(?:\\{0,8}"([^"\\\n]{3,128})\\{0,8}"|'([^'\n]{3,128})')"#
);

/// Most words between the name of a secret and the verb or sign before the secret.
const WORDS_MAX: usize = 8;
/// Verbs before a secret.
const SAYS: &[&str] = &["is", "was", "ist", "war", "lautet", "est", "es", "era", "è", "é", "jest"];
/// Words between the verb and the secret.
const FILLERS: &[&str] = &["now ", "still ", "currently ", "set to ", "jetzt ", "maintenant ", "ahora "];
/// Words after the name of a secret that show that no secret follows.
const ABOUT: &[&str] = &[
    "policy",
    "rotation",
    "rules",
    "rule",
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
/// Words that begin another clause, or describe how a secret is made and stored.
const OTHER_CLAUSE: &[&str] = &[
    "if",
    "when",
    "whether",
    "that",
    "which",
    "because",
    "unless",
    "until",
    "than",
    "but",
    "where",
    "while",
    "can",
    "cannot",
    "not",
    "never",
    "hash",
    "hashed",
    "hashing",
    "encrypted",
    "encryption",
    "encoded",
    "encoding",
    "stored",
    "algorithm",
    "scheme",
    "version",
    "parameter",
    "function",
    "method",
    "class",
    "variable",
    "column",
    "procedure",
    "count",
    "ring",
    "header",
    "connector",
    "chip",
    "board",
    "gpio",
    "diagram",
    "wenn",
    "dass",
    "lorsque",
    "cuando",
    "standard",
    "protocol",
];
/// Beginnings of names of methods and addresses, which are not secrets.
const METHODS: &[&str] = &[
    "sha1", "sha2", "sha3", "sha5", "sha-", "md5", "md4", "base64", "base32", "base58", "argon2", "bcrypt",
    "scrypt", "pbkdf2", "hmac", "aes1", "aes2", "aes-", "utf8", "utf-8", "utf-16", "rsa2", "rsa4", "rsa-",
    "oauth2", "http://", "https://", "www.",
];

/// Checks whether one of these words shows that no secret follows.
pub(super) fn about(words: &str) -> bool {
    words.split_whitespace().any(|word| ABOUT.contains(&word))
}

/// Checks whether a value is the name of a method, an address, or a call in a program.
pub(super) fn is_method(value: &str) -> bool {
    let low = value.to_lowercase();
    METHODS.iter().any(|name| low.starts_with(name)) || low.contains(['(', '[', '{']) || low.contains("::")
}

/// Returns where the secret begins after tags, the name of the next field or the bracket of a list. The flag
/// tells whether a sign shows that a value follows.
pub(super) fn bridge(rest: &str) -> Option<(usize, bool)> {
    if !rest.starts_with(['<', '"', '\'', ',', ':', '=', '\\', 's', ' ', '\t', '\n']) {
        return None;
    }
    let rest = &rest[..rest.floor_char_boundary(WAY_BYTES_MAX)];
    let m = BRIDGE.find(rest)?;
    // The list must hold strings, not bytes.
    if m.as_str().trim_end().ends_with('[') && !rest[m.end()..].starts_with(['"', '\'', '\\']) {
        return None;
    }
    Some((m.end(), m.as_str().contains([':', '='])))
}

/// Returns where the secret begins after words of its sentence, such as `for the door is`.
pub(super) fn sentence(rest: &str) -> Option<usize> {
    let mut at = 0;
    for count in 0..=WORDS_MAX {
        let gap = spaces(&rest[at..]);
        let from = at + gap;
        let word = rest[from..].split([' ', '\t', '\n']).next().filter(|word| gap > 0 && word.len() < 48)?;
        at = from + word.len();
        let low = word.to_lowercase();
        let named = low.trim_end_matches(':');
        // A dash counts only after a bracket.
        let dash = named == "-" && rest[..from].trim_end().ends_with(')');
        let says = count > 0 && (matches!(named, "" | "=") || dash || SAYS.contains(&named));
        if !says && !is_plain(named) {
            return None;
        }
        if says || named.len() < low.len() {
            return said_from(rest, at);
        }
        let plain = named.trim_matches(['(', ')']);
        if OTHER_CLAUSE.contains(&plain) || ABOUT.contains(&plain) || count == 0 && digit(plain) {
            return None;
        }
    }
    None
}

/// Returns where the secret begins after its sign or verb: after spaces, a word such as "now", and a quote.
fn said_from(rest: &str, at: usize) -> Option<usize> {
    let gap = spaces(&rest[at..]);
    let mut from = at + gap;
    if let Some(word) = FILLERS.iter().find(|word| rest[from..].starts_with(**word)) {
        from += word.len();
    }
    from += usize::from(rest[from..].starts_with(['"', '\'', '`']));
    (gap > 0).then_some(from)
}

fn spaces(text: &str) -> usize {
    text.bytes().take(3).take_while(|b| matches!(b, b' ' | b'\t')).count()
}

fn digit(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
}

/// Checks whether this is a plain word without punctuation that ends a part of the sentence.
fn is_plain(word: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || "\u{2019}'.&/_-".contains(c);
    let bare = word.strip_prefix('(').unwrap_or(word);
    let bare = bare.strip_suffix(')').unwrap_or(bare);
    bare.starts_with(char::is_alphanumeric)
        && bare.ends_with(char::is_alphanumeric)
        && bare.chars().all(inside)
}

/// Returns the further strings of a list whose first string ends at `at`.
pub(super) fn next_items(text: &str, mut at: usize) -> Vec<Range<usize>> {
    let mut items = Vec::new();
    loop {
        let rest = &text[at..];
        let rest = &rest[..rest.floor_char_boundary(WAY_BYTES_MAX)];
        let Some(m) = NEXT_ITEM.captures(rest).and_then(|caps| caps.get(1).or_else(|| caps.get(2))) else {
            return items;
        };
        items.push(at + m.start()..at + m.end());
        at += m.end();
    }
}
