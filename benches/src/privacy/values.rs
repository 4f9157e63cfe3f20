//! Draws artificial private values in their published formats, with checksums computed here.
//!
//! It shares no code with the detectors of the device. No value belongs to a real person: numbers are random,
//! names are invented, and domains are reserved for examples if the form allows it.

use sha2::{Digest, Sha256};

use super::ids;
use crate::random::Random;

/// A kind of private value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Email,
    Phone,
    Card,
    Iban,
    Ip,
    Mac,
    Wallet,
    Id,
    Key,
    Password,
    Url,
    Path,
    /// Name of a person, a place or an organisation; scored apart from the others.
    Name,
}

impl Kind {
    /// The kinds with a form of their own.
    pub(super) const ALL: [Kind; 12] = [
        Kind::Email,
        Kind::Phone,
        Kind::Card,
        Kind::Iban,
        Kind::Ip,
        Kind::Mac,
        Kind::Wallet,
        Kind::Id,
        Kind::Key,
        Kind::Password,
        Kind::Url,
        Kind::Path,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Email => "e-mail address",
            Kind::Phone => "phone number",
            Kind::Card => "payment card",
            Kind::Iban => "IBAN",
            Kind::Ip => "IP address",
            Kind::Mac => "MAC address",
            Kind::Wallet => "crypto wallet",
            Kind::Id => "national id",
            Kind::Key => "key or token",
            Kind::Password => "password or PIN",
            Kind::Url => "credential in a URL",
            Kind::Path => "user name in a path",
            Kind::Name => "name",
        }
    }

    /// Returns the placeholder labels for this kind.
    pub(super) fn labels(self) -> &'static [&'static str] {
        match self {
            Kind::Email => &["EMAIL"],
            Kind::Phone => &["PHONE"],
            Kind::Card => &["CARD"],
            Kind::Iban => &["IBAN"],
            Kind::Ip => &["IP"],
            Kind::Mac => &["MAC"],
            Kind::Wallet => &["WALLET"],
            Kind::Id => &["ID"],
            Kind::Key | Kind::Password => &["KEY", "PASSWORD"],
            Kind::Url => &["KEY", "PASSWORD", "USER"],
            Kind::Path => &["USER"],
            Kind::Name => &["PERSON", "PLACE", "ORG"],
        }
    }
}

/// A private value: `must` has to be replaced; `before` and `after` may be replaced.
#[derive(Debug, Clone, Default)]
pub(super) struct Value {
    pub before: String,
    pub must: String,
    pub after: String,
}

impl Value {
    pub(super) fn plain(must: impl Into<String>) -> Self {
        Self { must: must.into(), ..Self::default() }
    }
}

pub(super) const DIGITS: &str = "0123456789";
pub(super) const UPPER: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const LOWER: &str = "abcdefghijklmnopqrstuvwxyz";
const HEX: &str = "0123456789abcdef";
const ALNUM: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
const BASE64: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const BASE58: &str = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
const BECH32: &[u8] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";

pub(super) fn pick<'a, T: ?Sized>(random: &mut Random, from: &[&'a T]) -> &'a T {
    from[random.count((0, from.len() as u32 - 1)) as usize]
}

/// Draws characters from an ASCII alphabet.
pub(super) fn draw(random: &mut Random, alphabet: &str, count: usize) -> String {
    let bytes = alphabet.as_bytes();
    (0..count).map(|_| char::from(bytes[random.count((0, bytes.len() as u32 - 1)) as usize])).collect()
}

/// Fills a pattern: `#` becomes a digit, `N` a digit from 2 to 9; other characters stay.
pub(super) fn fill(random: &mut Random, pattern: &str) -> String {
    let mut out = String::new();
    for c in pattern.chars() {
        match c {
            '#' => out.push_str(&draw(random, DIGITS, 1)),
            'N' => out.push_str(&draw(random, "23456789", 1)),
            other => out.push(other),
        }
    }
    out
}

const FIRST: &[&str] = &[
    "jane", "olu", "mateo", "ines", "yuki", "bela", "tamsin", "pavol", "ayse", "dmitri", "carla", "henk",
    "lucie", "wanda", "kofi", "priya",
];
const LAST: &[&str] = &[
    "doe",
    "quill",
    "farrow",
    "ibanez",
    "moreau",
    "kestrel",
    "holm",
    "novik",
    "okoro",
    "lindqvist",
    "brandt",
    "sousa",
    "vries",
    "yamada",
    "rossi",
    "tran",
];

/// Draws an invented user name.
pub(super) fn user(random: &mut Random) -> String {
    let (first, last) = (pick(random, FIRST), pick(random, LAST));
    match random.count((0, 4)) {
        0 => first.to_owned() + last,
        1 => format!("{first}.{last}"),
        2 => format!("{}{last}", &first[..1]),
        3 => format!("{first}_{last}"),
        _ => format!("{last}{}", random.count((10, 99))),
    }
}

const LOCAL_HARD: &[&str] = &[
    "jürgen.müller",
    "zoë",
    "andré.lefèvre",
    "o'brien",
    "first.last+tag",
    "x",
    "a.b.c.d",
    "user_name-99",
    "søren",
    "łukasz.nowak",
    "josé",
    "иван.петров",
    "!odd#local",
    "\"jane doe\"",
];
const DOMAINS: &[&str] = &[
    "example.com",
    "example.org",
    "example.net",
    "mail.example.com",
    "example.de",
    "sub.dept.example.co.uk",
    "example.fr",
    "example.com.br",
    "xn--bcher-kva.example",
    "example.museum",
    "my-site.example.io",
];
const DOMAINS_HARD: &[&str] =
    &["bücher.example", "例え.テスト", "почта.рф", "example.公司", "münchen.example.de"];

pub(super) fn email(random: &mut Random, hard: bool) -> Value {
    let local = if hard && random.chance(0.6) { pick(random, LOCAL_HARD).to_owned() } else { user(random) };
    let domains = if hard && random.chance(0.5) { DOMAINS_HARD } else { DOMAINS };
    let domain = pick(random, domains);
    Value::plain(format!("{local}@{domain}"))
}

/// Returns the Luhn check digit for the digits before it.
pub(super) fn luhn_digit(digits: &str) -> u32 {
    let doubled = |(at, d): (usize, u32)| if at % 2 == 0 { (2 * d) / 10 + (2 * d) % 10 } else { d };
    let sum: u32 = digits.chars().rev().filter_map(|c| c.to_digit(10)).enumerate().map(doubled).sum();
    (10 - sum % 10) % 10
}

/// Issuer prefix, total number of digits, and grouping.
const CARDS: &[(&str, usize, &[usize])] = &[
    ("4", 16, &[4, 4, 4, 4]),
    ("51", 16, &[4, 4, 4, 4]),
    ("55", 16, &[4, 4, 4, 4]),
    ("2221", 16, &[4, 4, 4, 4]),
    ("2720", 16, &[4, 4, 4, 4]),
    ("34", 15, &[4, 6, 5]),
    ("37", 15, &[4, 6, 5]),
    ("6011", 16, &[4, 4, 4, 4]),
    ("65", 16, &[4, 4, 4, 4]),
    ("3530", 16, &[4, 4, 4, 4]),
    ("36", 14, &[4, 6, 4]),
    ("62", 16, &[4, 4, 4, 4]),
    ("62", 19, &[6, 13]),
    ("6759", 16, &[4, 4, 4, 4]),
];

pub(super) fn card(random: &mut Random, separator: &str) -> Value {
    let (prefix, len, groups) = CARDS[random.count((0, CARDS.len() as u32 - 1)) as usize];
    let body = format!("{prefix}{}", draw(random, DIGITS, len - 1 - prefix.len()));
    let digits = format!("{body}{}", luhn_digit(&body));
    Value::plain(grouped(&digits, groups, separator))
}

fn grouped(digits: &str, groups: &[usize], separator: &str) -> String {
    let mut parts = Vec::new();
    let mut from = 0;
    for &group in groups {
        parts.push(&digits[from..from + group]);
        from += group;
    }
    parts.join(separator)
}

/// Country and form of its account number: `#` is a digit, `A` a letter, `*` either of them.
const IBANS: &[(&str, &str)] = &[
    ("DE", "##################"),
    ("FR", "##########***********##"),
    ("GB", "AAAA##############"),
    ("NL", "AAAA##########"),
    ("ES", "####################"),
    ("IT", "A##########************"),
    ("PL", "########################"),
    ("CH", "#####************"),
    ("BE", "############"),
    ("PT", "#####################"),
    ("SE", "####################"),
    ("NO", "###########"),
    ("AT", "################"),
    ("TR", "######****************"),
    ("MT", "AAAA#####******************"),
];

pub(super) fn iban(random: &mut Random, separator: &str) -> Value {
    let (country, form) = IBANS[random.count((0, IBANS.len() as u32 - 1)) as usize];
    let account: String = form
        .chars()
        .map(|c| match c {
            'A' => draw(random, UPPER, 1),
            '*' => draw(random, &format!("{DIGITS}{UPPER}"), 1),
            _ => draw(random, DIGITS, 1),
        })
        .collect();
    let number = |text: &str| -> u64 {
        text.chars().fold(0, |rest, c| {
            let value = u64::from(c.to_digit(36).expect("letters and digits"));
            (rest * if value > 9 { 100 } else { 10 } + value) % 97
        })
    };
    let check = 98 - number(&format!("{account}{country}00"));
    let whole = format!("{country}{check:02}{account}");
    let parts: Vec<&str> =
        (0..whole.len()).step_by(4).map(|at| &whole[at..whole.len().min(at + 4)]).collect();
    Value::plain(parts.join(separator))
}

pub(super) fn ipv4(random: &mut Random) -> Value {
    let prefix = pick(random, &["192.0.2", "198.51.100", "203.0.113", "10.20.30", "172.16.5", "192.168.178"]);
    Value::plain(format!("{prefix}.{}", random.count((1, 254))))
}

pub(super) fn ipv6(random: &mut Random) -> Value {
    let group = |random: &mut Random| draw(random, HEX, 4);
    let text = match random.count((0, 4)) {
        0 => {
            let groups: Vec<String> = (0..6).map(|_| group(random)).collect();
            format!("2001:0db8:{}", groups.join(":"))
        }
        1 => format!("2001:db8::{}:{}", group(random), random.count((1, 9))),
        2 => format!(
            "fe80::{}:{}ff:fe{}:{}",
            group(random),
            draw(random, HEX, 2),
            draw(random, HEX, 2),
            group(random)
        ),
        3 => format!("fd12:{}::{}", group(random), random.count((1, 9))),
        _ => format!("2001:DB8:{}::{}", group(random).to_uppercase(), random.count((10, 99))),
    };
    Value::plain(text)
}

pub(super) fn mac(random: &mut Random) -> Value {
    let octets: Vec<String> = (0..6).map(|_| draw(random, HEX, 2)).collect();
    let text = match random.count((0, 3)) {
        0 => octets.join(":"),
        1 => octets.join("-").to_uppercase(),
        2 => octets.join(":").to_uppercase(),
        _ => {
            let all = octets.concat();
            format!("{}.{}.{}", &all[..4], &all[4..8], &all[8..])
        }
    };
    Value::plain(text)
}

fn base58check(payload: &[u8]) -> String {
    let check = Sha256::digest(Sha256::digest(payload));
    let mut number: Vec<u8> = payload.iter().chain(&check[..4]).copied().collect();
    let zeros = number.iter().take_while(|&&b| b == 0).count();
    let mut out = Vec::new();
    while number.iter().any(|&b| b != 0) {
        let mut rest = 0_u32;
        for byte in &mut number {
            let value = rest * 256 + u32::from(*byte);
            *byte = u8::try_from(value / 58).expect("less than 256");
            rest = value % 58;
        }
        out.push(BASE58.as_bytes()[rest as usize]);
    }
    out.extend(std::iter::repeat_n(b'1', zeros));
    out.reverse();
    String::from_utf8(out).expect("ASCII")
}

/// Draws a segwit address. Source: BIP 173 and BIP 350.
fn segwit(random: &mut Random, prefix: &str, version: u8, program: usize) -> String {
    let mut data = vec![version];
    let bits = program * 8;
    data.extend((0..bits.div_ceil(5)).map(|_| random.count((0, 31)) as u8));
    // The padding bits of the last group are zero.
    let spare = bits.div_ceil(5) * 5 - bits;
    if let Some(last) = data.last_mut() {
        *last = (*last >> spare) << spare;
    }
    let constant: u32 = if version == 0 { 1 } else { 0x2bc8_30a3 };
    let mut values: Vec<u8> = prefix.bytes().map(|b| b >> 5).collect();
    values.push(0);
    values.extend(prefix.bytes().map(|b| b & 31));
    values.extend(&data);
    values.extend([0; 6]);
    let generator = [0x3b6a_57b2_u32, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3];
    let sum = values.iter().fold(1_u32, |sum, &value| {
        let top = sum >> 25;
        let next = ((sum & 0x01ff_ffff) << 5) ^ u32::from(value);
        generator.iter().enumerate().fold(next, |acc, (i, g)| if (top >> i) & 1 == 1 { acc ^ g } else { acc })
    }) ^ constant;
    data.extend((0..6).map(|i| ((sum >> (5 * (5 - i))) & 31) as u8));
    let text: String = data.iter().map(|&d| char::from(BECH32[usize::from(d)])).collect();
    format!("{prefix}1{text}")
}

pub(super) fn wallet(random: &mut Random) -> Value {
    let mut versioned = |version: u8| {
        let mut payload = vec![version];
        payload.extend((0..20).map(|_| random.count((0, 255)) as u8));
        base58check(&payload)
    };
    let base58 = [versioned(0x00), versioned(0x05), versioned(0x30), versioned(0x41)];
    let text = match random.count((0, 8)) {
        at @ 0..=3 => base58[at as usize].clone(),
        4 => segwit(random, "bc", 0, 20),
        5 => segwit(random, "bc", 1, 32),
        6 => segwit(random, "bc", 0, 20).to_uppercase(),
        7 => format!("0x{}", draw(random, HEX, 40)),
        _ => {
            let lower = draw(random, HEX, 40);
            let mixed =
                lower.chars().enumerate().map(|(i, c)| if i % 3 == 0 { c.to_ascii_uppercase() } else { c });
            format!("0x{}", mixed.collect::<String>())
        }
    };
    Value::plain(text)
}

pub(super) fn national_id(random: &mut Random, country: ids::Country) -> Value {
    Value::plain(ids::draw_id(random, country))
}

/// Draws a key that is recognizable by its form alone.
pub(super) fn known_key(random: &mut Random) -> Value {
    let upper_digits = format!("{UPPER}{DIGITS}");
    let url64 = format!("{ALNUM}-_");
    let text = match random.count((0, 21)) {
        0 => format!("AKIA{}", draw(random, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 16)),
        1 => format!("ghp_{}", draw(random, ALNUM, 36)),
        2 => format!("github_pat_{}_{}", draw(random, ALNUM, 22), draw(random, ALNUM, 59)),
        3 => format!("glpat-{}", draw(random, ALNUM, 20)),
        4 => format!(
            "xoxb-{}-{}-{}",
            draw(random, DIGITS, 12),
            draw(random, DIGITS, 12),
            draw(random, ALNUM, 24)
        ),
        5 => format!("sk_live_{}", draw(random, ALNUM, 24)),
        6 => format!("sk-{}", draw(random, ALNUM, 48)),
        7 => format!("sk-proj-{}", draw(random, ALNUM, 64)),
        8 => format!("sk-ant-api03-{}AA", draw(random, &url64, 91)),
        9 => format!("AIza{}", draw(random, ALNUM, 35)),
        10 => format!("npm_{}", draw(random, ALNUM, 36)),
        11 => format!("hf_{}", draw(random, ALNUM, 34)),
        12 => format!("SG.{}.{}", draw(random, ALNUM, 22), draw(random, ALNUM, 43)),
        13 => format!("dop_v1_{}", draw(random, HEX, 64)),
        14 => format!("{}:AA{}", draw(random, "123456789", 10), draw(random, ALNUM, 33)),
        15 => format!("shpat_{}", draw(random, HEX, 32)),
        16 => format!("pypi-AgEIcHlwaS5vcmc{}", draw(random, ALNUM, 60)),
        17 => format!("ya29.{}", draw(random, &url64, 60)),
        18 => format!("lin_api_{}", draw(random, ALNUM, 40)),
        19 => format!("rk_live_{}", draw(random, ALNUM, 24)),
        20 => format!("ASIA{}", draw(random, &upper_digits, 16)),
        _ => {
            let part = |random: &mut Random, n| draw(random, &url64, n);
            format!("eyJ{}.eyJ{}.{}", part(random, 17), part(random, 40), part(random, 43))
        }
    };
    Value::plain(text)
}

/// Draws a key that is recognizable only by the text around it.
pub(super) fn bare_key(random: &mut Random) -> Value {
    let text = match random.count((0, 3)) {
        0 => draw(random, HEX, 32),
        1 => draw(random, ALNUM, 40),
        2 => format!("{}==", draw(random, BASE64, 86)),
        _ => format!("{}-{}", draw(random, ALNUM, 12), draw(random, ALNUM, 12)),
    };
    Value::plain(text)
}

pub(super) fn pem(random: &mut Random) -> Value {
    let kind = pick(random, &["RSA PRIVATE KEY", "PRIVATE KEY", "EC PRIVATE KEY", "OPENSSH PRIVATE KEY"]);
    let lines: Vec<String> = (0..3).map(|_| draw(random, BASE64, 64)).collect();
    Value::plain(format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----", lines.join("\n")))
}

const WORDS: &[&str] =
    &["sunshine", "dragonfly", "moonlight", "raspberry", "butterfly", "trombone", "penguin"];

pub(super) fn password(random: &mut Random) -> Value {
    let text = match random.count((0, 6)) {
        0 => format!("{}{}", pick(random, WORDS), random.count((10, 9999))),
        1 => format!("Tr0ub4dor&{}", random.count((1, 99))),
        2 => draw(random, ALNUM, 12),
        3 => format!("{}!{}", pick(random, WORDS), draw(random, DIGITS, 3)),
        4 => format!("{}#{}${}", draw(random, LOWER, 4), draw(random, UPPER, 3), draw(random, DIGITS, 3)),
        5 => format!("{}-{}-{}", pick(random, WORDS), pick(random, WORDS), draw(random, DIGITS, 2)),
        _ => format!("P@ssw0rd{}", random.count((10, 99))),
    };
    Value::plain(text)
}

pub(super) fn word_password(random: &mut Random) -> Value {
    Value::plain(pick(random, WORDS))
}

pub(super) fn pin(random: &mut Random) -> Value {
    let digits = random.count((4, 6)) as usize;
    Value::plain(draw(random, DIGITS, digits))
}

/// Draws `user:password@` of a URL: the password has to be replaced, the rest may be.
pub(super) fn url_credential(random: &mut Random) -> Value {
    let secret = password(random).must.replace(['#', '@', '/'], "%40");
    let before = if random.chance(0.2) { ":".to_owned() } else { format!("{}:", user(random)) };
    Value { before, must: secret, after: "@".to_owned() }
}

pub(super) fn path_user(random: &mut Random) -> Value {
    let name = if random.chance(0.2) {
        let (first, last) = (pick(random, FIRST), pick(random, LAST));
        let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
        format!("{}{}", capital(first), capital(last))
    } else {
        user(random)
    };
    Value::plain(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_of_published_examples() {
        assert_eq!(luhn_digit("411111111111111"), 1);
        assert_eq!(luhn_digit("37828224631000"), 5);
        // The payload of the address in the first block of Bitcoin: the hash of its public key.
        let payload = [
            0x00, 0x62, 0xe9, 0x07, 0xb1, 0x5c, 0xbf, 0x27, 0xd5, 0x42, 0x53, 0x99, 0xeb, 0xf6, 0xf0, 0xfb,
            0x50, 0xeb, 0xb8, 0x8f, 0x18,
        ];
        assert_eq!(base58check(&payload), "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa");
    }
}
