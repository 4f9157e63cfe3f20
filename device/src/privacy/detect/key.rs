//! API keys, access tokens and private keys: by the forms of their issuers, or by the name that they are assigned to.

use super::{Found, begins, pattern, push};
use crate::privacy::EntityKind;

pattern!(
    PRIVATE_KEY,
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[^-]*(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?)"
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
        r#"^(?:\\{0,2}["'`*_]){0,3}[ \t]{0,4}(?:(?i:is|ist|lautet|est|es|è|é|=>|:=)[ \t]|[:=>|]|[ \t]|为|是|は)[ \t]{0,4}(?:\\{0,2}["'`*_]){0,3}[ \t]{0,4}(?i:bearer[ \t]+|basic[ \t]+|token[ \t]+)?(?:\\{0,2}["'`*_]){0,3}"#,
        r#"([A-Za-z0-9_+/=.~!@#$%^*-]{8,512})"#
    )
);

/// Bytes behind a name in which its value may end.
const VALUE_BYTES_MAX: usize = 600;

pub(super) fn find(text: &str, found: &mut Vec<Found>) {
    PRIVATE_KEY.find_iter(text).for_each(|m| {
        let value = m.as_str().trim_end();
        push(found, EntityKind::Key, m.start()..m.start() + value.len());
    });
    for m in KNOWN.find_iter(text) {
        // Markdown's emphasis stands on both sides.
        let marked = text[..m.start()].ends_with('_');
        let value = m.as_str().trim_end_matches(|c| c == '.' || c == '_' && marked);
        if begins(text, m.start()) {
            push(found, EntityKind::Key, m.start()..m.start() + value.len());
        }
    }
    let mut read_to = 0;
    // Names inside a value that was read are no names, so that each byte is read once.
    for name in ASSIGNED.find_iter(text) {
        if name.start() < read_to {
            continue;
        }
        let rest = &text[name.end()..];
        let rest = &rest[..rest.floor_char_boundary(VALUE_BYTES_MAX)];
        let Some(m) = VALUE.captures(rest).and_then(|caps| caps.get(1)) else { continue };
        read_to = name.end() + m.end();
        let value = m.as_str().trim_end_matches(['.', ',', '!', '*', '_', '~', '^']);
        if is_secret(value) {
            push(found, EntityKind::Key, name.end() + m.start()..name.end() + m.start() + value.len());
        }
    }
}

/// A word after "token" or "secret" is prose; a secret mixes letters with digits.
fn is_secret(value: &str) -> bool {
    let digits = value.bytes().filter(u8::is_ascii_digit).count();
    let letters = value.bytes().filter(u8::is_ascii_alphabetic).count();
    // A random string may hold no digit, but then letters change their case within it.
    let cases = value
        .as_bytes()
        .windows(2)
        .filter(|w| w[0].is_ascii_lowercase() && w[1].is_ascii_uppercase())
        .count();
    let ordinal = letters <= 2 && digits <= 4;
    value.len() >= 8 && letters > 0 && (digits > 0 || value.len() >= 20 && cases >= 3) && !ordinal
}
