//! Finds API keys, access tokens and private keys: by the forms of their issuers, or by the name that they
//! are assigned to.

use super::{Found, begins, named, pattern, push};
use crate::privacy::EntityKind;
use std::borrow::Cow;
use std::ops::Range;

pattern!(
    PRIVATE_KEY,
    concat!(
        // The headers of an encoded key may hold hyphens; the encoded key does not.
        r"-{4,5} ?BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5}(?:(?:\s|\\{1,8}[rn])*[A-Za-z][A-Za-z-]{1,30}: ?[^\r\n\\]{0,200})*",
        r"[^-]*(?:-{4,5} ?END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5})?",
        r"|Private-Lines: [0-9]{1,3}(?:\n[A-Za-z0-9+/=]{1,76}){1,200}"
    )
);
pattern!(
    KNOWN,
    concat!(
        r"sk-[A-Za-z0-9_-]{16,}|[srp]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9]{24,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,}",
        r"|(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{35}|ya29\.[0-9A-Za-z_-]{20,}|GOCSPX-[0-9A-Za-z_-]{20,}",
        r"|xox[abeprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}|glpat-[A-Za-z0-9_-]{20,}|gl(?:dt|rt|ptt|soat)-[A-Za-z0-9_-]{20,}",
        r"|npm_[A-Za-z0-9]{36}|hf_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{40,}|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|key-[0-9a-f]{32}",
        r"|do[opr]_v1_[0-9a-f]{40,}|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}|lin_api_[A-Za-z0-9]{32,}|sq0(?:atp|csp)-[A-Za-z0-9_-]{22,}",
        r"|dapi[0-9a-f]{32}|ntn_[A-Za-z0-9]{40,}|secret_[A-Za-z0-9]{40,}|gsk_[A-Za-z0-9]{40,}|r8_[A-Za-z0-9]{30,}|pplx-[A-Za-z0-9]{40,}",
        r"|xai-[A-Za-z0-9]{40,}|AGE-SECRET-KEY-1[0-9A-Z]{50,}|dckr_pat_[A-Za-z0-9_-]{20,}|hvs\.[A-Za-z0-9_-]{24,}|ATATT3[A-Za-z0-9_=-]{40,}",
        r"|(?:SK|AC)[0-9a-f]{32}|[0-9]{8,10}:AA[A-Za-z0-9_-]{32,35}|PMAK-[0-9a-f]{24}-[0-9a-f]{34}|figd_[A-Za-z0-9_-]{36,}",
        r"|eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}|https://hooks\.slack\.com/services/[A-Za-z0-9/]{20,}"
    )
);
pattern!(
    ASSIGNED,
    concat!(
        r"(?i:api[ _-]?(?:key|token|secret|schlüssel)|secret[ _-]?(?:access[ _-]?)?key|client[ _-]?secret|secret|access[ _-]?(?:token|key)",
        r"|auth[a-z]{0,12}[ _-]?token|token|bearer|account[ _-]?key|private[ _-]?key(?:[ _-]?id)?|signing[ _-]?key|encryption[ _-]?key|license[ _-]?key",
        r"|x-api-key|authorization|session[ _-]?id|sessid|jsessionid|cl[ée] (?:d'|de l')?api|(?:llave|clave) (?:de )?api|chiave api|chave (?:de )?api|klucz api|ключ(?: api)?|токен)",
        r"|密钥|令牌|秘钥|トークン|APIキー|シークレット"
    )
);
pattern!(
    VALUE,
    concat!(
        r#"^(?:\\{0,8}["'`*_]){0,3}[ \t]{0,4}(?:(?i:is|ist|lautet|est|es|è|é|=>|:=)[ \t]|[:=>|][ \t]{0,4}(?:(?:[|>][+-]?[ \t]{0,3})?(?:\n|\\{1,8}[nrt])[ \t]{0,4}(?:-[ \t]{1,3})?){0,2}|[ \t]|为|是|は)"#,
        r#"[ \t]{0,4}(?:\\{0,8}["'`*_]){0,3}[ \t]{0,4}(?i:bearer[ \t]+|basic[ \t]+|token[ \t]+)?(?:\\{0,8}["'`*_]){0,3}"#,
        r#"([A-Za-z0-9_+/=.~!@#$%^*-]{8,512})"#
    )
);

pattern!(RUN, r"^[A-Za-z0-9_+/=.~!@#$%^*-]{8,512}");

/// Most bytes after a name that are searched for its value.
const VALUE_BYTES_MAX: usize = 600;
/// A value of at least this length may continue after the part that was read.
const VALUE_LONG: usize = 400;

pub(super) fn find(text: &str, found: &mut Vec<Found>) {
    PRIVATE_KEY.find_iter(text).for_each(|m| {
        let value = m.as_str().trim_end();
        push(found, EntityKind::Key, m.start()..m.start() + value.len());
    });
    for m in KNOWN.find_iter(text) {
        // Markdown's emphasis is on both sides.
        let marked = text[..m.start()].ends_with('_');
        let value = m.as_str().trim_end_matches(|c| c == '.' || c == '_' && marked);
        if begins(text, m.start()) {
            push(found, EntityKind::Key, m.start()..m.start() + value.len());
        }
    }
    let mut read_to = 0;
    // Names inside a value that was read are ignored, so that each byte is read once.
    for name in ASSIGNED.find_iter(text) {
        if name.start() < read_to {
            continue;
        }
        let rest = &text[name.end()..];
        let rest = &rest[..rest.floor_char_boundary(VALUE_BYTES_MAX)];
        let Some((value, read, secret)) = assigned(rest) else { continue };
        // The rest of a line of a protocol follows a path: `/private_key HTTP/1.1`.
        let secret = secret && !rest[value.clone()].starts_with("HTTP/");
        read_to = name.end() + read;
        if !secret {
            continue;
        }
        // A value that is longer than the part that was read continues with the same characters.
        let more = if value.len() >= VALUE_LONG { run(&text[name.end() + value.end..]) } else { 0 };
        let range = name.end() + value.start..name.end() + value.end + more;
        read_to = read_to.max(range.end);
        push(found, EntityKind::Key, range.clone());
        if text[..range.start].ends_with(['"', '\'']) {
            let items = named::next_items(text, range.end);
            items.iter().filter(|item| is_secret(&text[(*item).clone()])).for_each(|item| {
                push(found, EntityKind::Key, item.clone());
            });
            read_to = items.last().map_or(read_to, |item| item.end);
        }
    }
}

/// Reads the value that is assigned to a name; `rest` is the text after the name. Returns the value's range,
/// where reading ended, and whether the value is a secret.
fn assigned(rest: &str) -> Option<(Range<usize>, usize, bool)> {
    let bridged = named::bridge(rest);
    for from in [bridged, None] {
        // After a bridge, the value is read as after a sign.
        let (head, text) = match from {
            Some((from, _)) => (1, Cow::Owned([":", &rest[from..]].concat())),
            None => (0, Cow::Borrowed(rest)),
        };
        let (from, signed) = from.unwrap_or((0, true));
        let Some(m) = VALUE.captures(&text).and_then(|caps| caps.get(1)) else { continue };
        let value = m.as_str().trim_end_matches(['.', ',', '!', '*', '_', '~', '^']);
        let start = from + m.start() - head;
        // After tags alone, the next name of an index may follow.
        let secret = is_secret(value) && (signed || value.contains(|c: char| c.is_ascii_digit()));
        if secret || from == 0 && named::sentence(rest).is_none() {
            return Some((start..start + value.len(), from + m.end() - head, secret));
        }
    }
    let from = named::sentence(rest)?;
    let m = RUN.find(&rest[from..])?;
    let value = m.as_str().trim_end_matches(['.', ',', '!', '*', '_', '~', '^']);
    let digits = value.bytes().filter(u8::is_ascii_digit).count();
    let secret = is_secret(value) && value.len() >= 10 && digits >= 2 && !named::is_method(value);
    Some((from..from + value.len(), from + m.end(), secret))
}

/// Returns how many bytes of `rest` may belong to the key before it.
fn run(rest: &str) -> usize {
    rest.bytes().take_while(|b| b.is_ascii_alphanumeric() || b"_+/=.~-".contains(b)).count()
}

/// Checks whether a value looks like a secret: it mixes letters with digits. A plain word after "token" or
/// "secret" is prose.
pub(super) fn is_secret(value: &str) -> bool {
    let digits = value.bytes().filter(u8::is_ascii_digit).count();
    let letters = value.bytes().filter(u8::is_ascii_alphabetic).count();
    // A random string may have no digits, but then upper and lower case alternate in it.
    let cases = value
        .as_bytes()
        .windows(2)
        .filter(|w| w[0].is_ascii_lowercase() && w[1].is_ascii_uppercase())
        .count();
    let ordinal = letters <= 2 && digits <= 4;
    value.len() >= 8 && letters > 0 && (digits > 0 || value.len() >= 20 && cases >= 3) && !ordinal
}
