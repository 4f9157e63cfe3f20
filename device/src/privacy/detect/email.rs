//! Finds e-mail addresses: scans outwards from each `@`, or from what people write instead of it.

use super::{Found, after, before, ends, pattern, push};
use crate::privacy::EntityKind;
use std::ops::Range;

/// Most characters of the part before the `@`.
const LOCAL_CHARS_MAX: usize = 256;
const DOMAIN_CHARS_MAX: usize = 253;

pattern!(SPOKEN_AT, r"(?i)[ \t]{0,2}[\[({<][ \t]?(?:at|ät|arroba|chiocciola|@)[ \t]?[\])}>][ \t]{0,2}");
pattern!(
    SPOKEN_DOT,
    r"(?i)^[ \t]{0,2}[\[({<][ \t]?(?:dot|punkt|punto|ponto|point|\.)[ \t]?[\])}>][ \t]{0,2}"
);
pattern!(
    BROKEN,
    concat!(
        r"^(?:\.\n[ \t]{0,8}|\n[ \t]{0,8}\.)",
        r"((?:[A-Za-z0-9-]{1,63}\.){0,4}(?:com|org|net|edu|gov|info|io|de|fr|es|it|pt|nl|pl|ru|cn|jp|uk|eu))"
    )
);
pattern!(
    WORDS,
    r"(?i) at ((?:[a-z0-9-]{1,63} dot ){1,4}(?:com|org|net|edu|gov|info|io|de|fr|es|it|pt|nl|pl|uk|eu|ch))"
);

pub(super) fn find(text: &str, found: &mut Vec<Found>) {
    let credentials = super::password::credential_ends(text);
    for (at, _) in text.match_indices('@') {
        if credentials.binary_search(&at).is_err() {
            find_around(text, &(at..at + 1), found);
        }
    }
    for m in SPOKEN_AT.find_iter(text) {
        find_around(text, &m.range(), found);
    }
    for caps in WORDS.captures_iter(text) {
        let (Some(whole), Some(domain)) = (caps.get(0), caps.get(1)) else { continue };
        let start = local_start(text, whole.start());
        let named = &text[start..whole.start()];
        if named.len() > 1 && !domain.as_str().starts_with("the ") && ends(text, whole.end()) {
            push(found, EntityKind::Email, start..whole.end());
        }
    }
}

/// Looks for an address around this range, which is its `@` in some spelling.
fn find_around(text: &str, sign: &Range<usize>, found: &mut Vec<Found>) {
    let mut left = sign.start;
    let mut right = sign.end;
    // An address may have a line break at its `@`.
    if let Some(rest) = text[..left].strip_suffix('\n') {
        left = rest.trim_end_matches('\r').len();
    }
    if let Some(rest) = text[right..].strip_prefix("\r\n").or_else(|| text[right..].strip_prefix('\n')) {
        right = text.len() - rest.trim_start_matches([' ', '\t']).len();
    }
    let gaps = [text[..left].ends_with(' '), text[right..].starts_with(' ')];
    let plain = sign.len() == 1;
    if plain {
        (left, right) = (left - usize::from(gaps[0]), right + usize::from(gaps[1]));
    }
    let start = local_start(text, left);
    let Some(end) = domain_end(text, right) else { return };
    if start == left || plain && !spaced(&text[start..left], gaps, &text[right..end]) {
        return;
    }
    let (local, domain) = (&text[start..left], &text[right..end]);
    // `git` at a code host is not a person; `icon@2x.png` is a file.
    let nobody = local == "git" && after(text, end) == Some(':');
    let file = [".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg"].iter().any(|kind| domain.ends_with(kind));
    if !nobody && !file {
        push(found, EntityKind::Email, start..end);
    }
}

/// Words before an `@` that means "at" a place.
const AT_PLACES: &[&str] = &[
    "us",
    "me",
    "it",
    "is",
    "are",
    "here",
    "site",
    "online",
    "live",
    "now",
    "page",
    "found",
    "available",
    "shop",
    "store",
    "more",
    "posted",
    "and",
    "or",
    "out",
    "visit",
    "website",
    "thanks",
    "follow",
    "join",
    "see",
    "meet",
];

/// Checks whether an address may have these spaces before and after its `@`.
fn spaced(local: &str, gaps: [bool; 2], domain: &str) -> bool {
    if gaps == [false, false] {
        return true;
    }
    let top = domain.rsplit('.').next().unwrap_or_default().to_lowercase();
    let marked = local.contains(|c: char| matches!(c, '.' | '_' | '-' | '+') || c.is_ascii_digit());
    let named = match gaps {
        // The name of an account begins with its `@`.
        [true, false] => marked,
        _ => marked || local.len() > 1 && !AT_PLACES.contains(&local.to_lowercase().as_str()),
    };
    named && COMMON_TOP.contains(&top.as_str())
}

fn is_cjk(c: char) -> bool {
    matches!(c as u32, 0x2e80..=0x9fff | 0xac00..=0xd7af | 0xf900..=0xfaff | 0x1100..=0x11ff | 0x20000..=0x3ffff)
}

fn is_mark(c: char) -> bool {
    matches!(c as u32, 0x300..=0x36f)
}

/// Returns where the local part that ends at `end` begins; `end` if there is none.
fn local_start(text: &str, end: usize) -> usize {
    if let Some(inner) = text[..end].strip_suffix('"') {
        let quoted = super::head(text, inner.len(), LOCAL_CHARS_MAX);
        let open = quoted.rfind('"').filter(|&i| !quoted[i..].contains('\n') && i + 1 < quoted.len());
        return open.map_or(end, |i| inner.len() - quoted.len() + i);
    }
    let Some(last) = before(text, end) else { return end };
    let allowed = |c: char| {
        c.is_alphanumeric() && is_cjk(c) == is_cjk(last)
            || is_mark(c)
            || matches!(c, '.' | '_' | '+' | '-' | '\'' | '!' | '#' | '$' | '%' | '~' | '^')
    };
    let count =
        text[..end].chars().rev().take(LOCAL_CHARS_MAX).take_while(|&c| allowed(c)).map(char::len_utf8);
    let mut start = end - count.sum::<usize>();
    // Marks before a name belong to the text around it.
    start += text[start..end].len()
        - text[start..end].trim_start_matches(['.', '-', '\'', '+', '#', '$', '%', '~', '^']).len();
    let opens = text[start..end].starts_with('_') && !text[..start].ends_with(|c: char| c.is_alphanumeric());
    if opens {
        start += text[start..end].len() - text[start..end].trim_start_matches('_').len();
    }
    let escape = before(text, start) == Some('\\') && text[start..end].starts_with(['n', 'r', 't']);
    if escape && start + 1 < end {
        start += 1;
    }
    start
}

/// Top-level domains after which text goes on without a space in their languages.
const CJK_TOP: &[&str] = &[
    "公司",
    "中国",
    "中國",
    "网络",
    "網絡",
    "在线",
    "香港",
    "台湾",
    "台灣",
    "商城",
    "网站",
    "世界",
    "みんな",
    "テスト",
    "コム",
    "한국",
    "닷컴",
    "机构",
    "集团",
    "我爱你",
];
/// Top-level domains for which an address may have a line break or a space in it.
const COMMON_TOP: &[&str] = &[
    "com", "org", "net", "edu", "gov", "info", "io", "de", "fr", "es", "it", "pt", "nl", "pl", "ru", "cn",
    "jp", "uk", "eu",
];

/// Returns where the domain that begins at `start` ends, if there is a domain with at least one dot, or the
/// name of this machine.
fn domain_end(text: &str, start: usize) -> Option<usize> {
    if text[start..].starts_with('[') {
        let close = text[start..].bytes().take(48).position(|b| b == b']')? + start;
        let inner = text[start + 1..close].trim_start_matches("IPv6:");
        return inner.parse::<std::net::IpAddr>().ok().map(|_| close + 1);
    }
    let local = "localhost";
    let host = text.get(start..start + local.len()).filter(|host| host.eq_ignore_ascii_case(local));
    let mut end = host.map(|host| start + host.len()).filter(|&end| ends(text, end));
    let mut at = start;
    while at - start < DOMAIN_CHARS_MAX {
        let label = label_end(text, at);
        let name = &text[at..label];
        if name.is_empty() {
            break;
        }
        if at > start && is_top(name) {
            end = Some(label);
        }
        let Some(next) = dot(text, label, end.is_none()) else { break };
        at = next;
    }
    end
}

/// Returns the position after the dot at `at`. `open`: the address has no top-level domain yet.
fn dot(text: &str, at: usize, open: bool) -> Option<usize> {
    let rest = &text[at..];
    // The dot may be on either side of a line break.
    let near = &rest[..rest.floor_char_boundary(DOMAIN_CHARS_MAX)];
    if let Some(m) = BROKEN.captures(near).filter(|_| open).and_then(|caps| caps.get(1)) {
        return ends(near, m.end()).then_some(at + m.start());
    }
    if let Some(m) = SPOKEN_DOT.find(&rest[..rest.floor_char_boundary(24)]) {
        return Some(at + m.end());
    }
    let (dot, rest) = match after(text, at)? {
        '.' => (1, &rest[1..]),
        // A Chinese full stop ends a sentence, unless a lower-case Latin letter follows it directly.
        c @ ('\u{3002}' | '\u{ff61}') if after(text, at + c.len_utf8())?.is_ascii_lowercase() => {
            (c.len_utf8(), &rest[c.len_utf8()..])
        }
        _ => return None,
    };
    if let Some(broken) = rest.strip_prefix('\n') {
        let top = &broken[..broken.bytes().take_while(u8::is_ascii_alphabetic).count()];
        return COMMON_TOP.contains(&top).then_some(at + dot + 1);
    }
    Some(at + dot)
}

fn is_top(name: &str) -> bool {
    let plain =
        (2..=24).contains(&name.chars().count()) && name.chars().all(|c| c.is_alphabetic() || is_mark(c));
    plain || name.len() > 4 && name.as_bytes()[..4].eq_ignore_ascii_case(b"xn--")
}

fn label_end(text: &str, start: usize) -> usize {
    let Some(first) = after(text, start) else { return start };
    if is_cjk(first)
        && let Some(top) = CJK_TOP.iter().find(|top| text[start..].starts_with(**top))
    {
        return start + top.len();
    }
    let hiragana = |c: char| matches!(c as u32, 0x3040..=0x309f);
    let mut end = start;
    let mut last = first;
    for (i, c) in text[start..].char_indices().take(63) {
        let other_script = is_cjk(c) != is_cjk(first)
            || hiragana(c)
                && !hiragana(last)
                && end > start
                && !hiragana(first)
                && !next_is_dot(text, start + i);
        if !(c.is_alphanumeric() || c == '-' || is_mark(c)) || other_script {
            break;
        }
        end = start + i + c.len_utf8();
        last = c;
    }
    start + text[start..end].trim_end_matches('-').len()
}

/// Checks whether the label that continues at `at` is followed by a dot, so that it is not the last one.
fn next_is_dot(text: &str, at: usize) -> bool {
    text[at..].chars().take(63).find(|c| !c.is_alphanumeric()) == Some('.')
}
