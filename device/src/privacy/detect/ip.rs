//! Finds addresses of machines: IPv4, IPv6 and MAC.

use super::{Found, after, before, begins, ends, head, pattern, push, stands_alone};
use crate::privacy::EntityKind;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

pattern!(IPV4, r"(?:[0-9]{1,3}(?:\.|\[\.\]|\(\.\))){3}[0-9]{1,3}");
pattern!(IPV6, r"[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*");
pattern!(MAC, r"(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}|(?:[0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4}");
pattern!(
    MAC_NAMED,
    concat!(
        r"(?i)(?:(?:(?-u:\b)|_)(?:mac|hwaddr|ether|bssid)(?:[ _-]?addr(?:esse?)?)?|adresse mac|物理地址)",
        r"(?:[^0-9a-z\n]|is|ist|est|id|address|adresse|wifi|wlan|lan|eth[0-9]){0,16}?([0-9a-f]{12})"
    )
);
// Words before numbers with dots that are not addresses, and what may be between: other such numbers.
pattern!(
    NUMBERED,
    concat!(
        r"(?i)(?:(?:versi|versão|wersj|верси)\p{L}{0,4}|版本|バージョン|releases?|released|builds?|(?-u:\b)(?:v|ver|oids?|firmware|driver|kernel|changelog|upgrade|upgraded|update|updated|bump|bumped))",
        r"(?:[\s:=,;v'\x22`*\[(/&+<>~^-]|[0-9]+(?:\.[0-9]+)+(?:[a-z0-9.+-]*)|number|is|was|from|to|and|or|und|oder|y|et|of|than|before|after|since){0,24}$"
    )
);
/// Bytes before a number in which such words are looked for.
const NUMBERED_BYTES: usize = 96;
/// Words before the number of a section or figure; all parts of such a number are small.
const PARTS: &[&str] = &[
    "section",
    "chapter",
    "clause",
    "kapitel",
    "abschnitt",
    "chapitre",
    "capítulo",
    "capitolo",
    "hoofdstuk",
    "rozdział",
    "глава",
    "第",
    "figure",
    "table",
    "rule",
    "paragraph",
    "article",
];
/// Words that often come before an address.
const ADDRESSED: &[&str] = &[
    "ip",
    "host",
    "server",
    "ping",
    "address",
    "adresse",
    "inet",
    "from",
    "to",
    "dns",
    "nameserver",
    "gateway",
];

pub(super) fn find(text: &str, found: &mut Vec<Found>) {
    IPV4.find_iter(text)
        .filter(|m| is_ipv4(text, &m.range()))
        .for_each(|m| push(found, EntityKind::Ip, m.range()));
    for m in IPV6.find_iter(text) {
        if let Some(range) = ipv6(text, &m.range()) {
            push(found, EntityKind::Ip, range);
        }
    }
    MAC.find_iter(text)
        .filter(|m| is_mac(text, &m.range()))
        .for_each(|m| push(found, EntityKind::Mac, m.range()));
    for caps in MAC_NAMED.captures_iter(text) {
        if let Some(m) = caps.get(1).filter(|m| ends(text, m.end())) {
            push(found, EntityKind::Mac, m.range());
        }
    }
}

fn is_ipv4(text: &str, range: &Range<usize>) -> bool {
    let longer =
        text[range.end..].starts_with('.') && after(text, range.end + 1).is_some_and(|c| c.is_ascii_digit());
    let prefix = head(text, range.start, 32).trim_end_matches([' ', ':', '=']).to_lowercase();
    let named = |words: &[&str]| words.iter().any(|word| prefix.ends_with(word));
    let small = || text[range.clone()].split('.').all(|part| part.len() <= 2);
    let line = head(text, range.start, NUMBERED_BYTES);
    let line = line.rsplit('\n').next().unwrap_or_default();
    let version = || NUMBERED.is_match(line) && !text[range.end..].starts_with(':');
    let numbered = before(text, range.start) == Some('.')
        || is_of_program(text, range)
        || version()
        || named(PARTS) && small();
    // Four small numbers are mostly the number of a section, a version or an object.
    let private = text[range.clone()].starts_with("10.");
    let short = range.len() == 7 || small() && !private;
    let addressed = || {
        let rest = &text[range.end..];
        rest.starts_with([':', '/'])
            || rest.starts_with(" - ")
            || prefix.ends_with(['@', '/', '['])
            || ADDRESSED.iter().any(|word| prefix.ends_with(word))
    };
    !longer
        && !numbered
        && stands_alone(text, range)
        && text[range.clone()].replace(['[', ']', '(', ')'], "").parse::<Ipv4Addr>().is_ok()
        && (!short || addressed())
}

/// Checks whether a number is the version of a program: `Chrome/118.0.5993.70`, `>= 1.2.3.4`, `1.2.3.4-rc1`.
fn is_of_program(text: &str, range: &Range<usize>) -> bool {
    let before = &text[..range.start];
    let rest = &text[range.end..];
    let product = before.strip_suffix('/').is_some_and(|name| name.ends_with(|c: char| c.is_alphanumeric()));
    let compared =
        [">=", "<=", "==", "~=", "~>", "^"].iter().any(|sign| before.trim_end_matches(' ').ends_with(sign));
    let suffix = rest.strip_prefix(['-', '+', '~']).is_some_and(|tail| tail.starts_with(char::is_alphabetic));
    product || compared || suffix
}

/// Returns the address in this range, or after the first colon of it, as in `client:2001:db8::1`.
fn ipv6(text: &str, whole: &Range<usize>) -> Option<Range<usize>> {
    whole_ipv6(text, whole).or_else(|| {
        let matched = &text[whole.clone()];
        let behind = matched.split_once(':').map(|(_, rest)| rest).filter(|rest| !rest.starts_with(':'))?;
        let range = whole_ipv6(text, &(whole.end - behind.len()..whole.end))?;
        // Names in programs have colons too.
        let groups = text[range.clone()].split(':').filter(|group| !group.is_empty()).count();
        (groups > 2 || behind.find(':') == Some(4)).then_some(range)
    })
}

fn whole_ipv6(text: &str, whole: &Range<usize>) -> Option<Range<usize>> {
    let matched = &text[whole.clone()];
    let trimmed = matched.trim_end_matches(['.', ':']);
    let keep = if matched[trimmed.len()..].starts_with("::") { trimmed.len() + 2 } else { trimmed.len() };
    let candidate = &matched[..keep];
    let range = whole.start..whole.start + keep;
    let mut groups = candidate.split(':').filter(|g| !g.is_empty()).peekable();
    groups.peek()?;
    // `[1::2]` is a slice of a list.
    let small = groups.all(|g| g.len() <= 2 && g.bytes().all(|b| b.is_ascii_digit()));
    let has_digit = candidate.bytes().any(|b| b.is_ascii_digit());
    let is_address = candidate.parse::<Ipv6Addr>().is_ok() && (!small || candidate == "::1");
    (has_digit && is_address && begins(text, range.start) && ends(text, range.end)).then_some(range)
}

fn is_mac(text: &str, range: &Range<usize>) -> bool {
    let value = &text[range.clone()];
    let separators: Vec<u8> = value.bytes().filter(|b| !b.is_ascii_hexdigit()).collect();
    let joins = |c: Option<char>| c.is_some_and(|c| char::from(separators[0]) == c);
    // A longer row of the same form is a fingerprint or a number.
    let longer = joins(before(text, range.start))
        && before(text, range.start - 1).is_some_and(|c| c.is_ascii_hexdigit())
        || joins(after(text, range.end)) && after(text, range.end + 1).is_some_and(|c| c.is_ascii_hexdigit());
    let named = || {
        let head = head(text, range.start, 24).to_lowercase();
        ["mac", "物理地址", "bssid", "ether", "hwaddr"].iter().any(|word| head.contains(word))
    };
    let lettered = value.bytes().any(|b| b.is_ascii_alphabetic());
    separators.iter().all(|&b| b == separators[0])
        && !longer
        && stands_alone(text, range)
        && (separators[0] == b':' || lettered || named())
}
