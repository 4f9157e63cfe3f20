//! Checksums that distinguish real numbers from look-alikes: Luhn (ISO/IEC 7812), mod 97 (ISO 13616), the
//! checksums of wallets, and the rules of the issuers of national ids. An `id` argument holds only the
//! letters and digits of a number that matched its pattern.

use sha2::{Digest, Sha256};

/// Checks whether `digits` (ASCII digits only) satisfy the Luhn checksum.
pub(super) fn luhn(digits: &[u8]) -> bool {
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(i, &byte)| {
            let digit = u32::from(byte - b'0');
            match i % 2 {
                0 => digit,
                _ if digit > 4 => 2 * digit - 9,
                _ => 2 * digit,
            }
        })
        .sum();
    sum.is_multiple_of(10)
}

/// Returns the length of an IBAN of this country, or `None` for a country without IBANs. Source: the SWIFT
/// IBAN registry.
pub(super) fn iban_len(country: [u8; 2]) -> Option<usize> {
    const LENGTHS: &[(&str, usize)] = &[
        ("NO", 15),
        ("BE", 16),
        ("BI DK FO FI FK GL NL SD", 18),
        ("MK SI", 19),
        ("AT BA EE KZ LT LU MN XK", 20),
        ("CH HR LI LV", 21),
        ("BG BH CR DE GB GE IE ME RS VA", 22),
        ("AE GI IL IQ OM SO TL", 23),
        ("AD CZ ES MD PK RO SA SE SK TN VG", 24),
        ("LY PT ST", 25),
        ("IS TR", 26),
        ("BY DJ FR GR IT MC MR SM", 27),
        ("AL AZ CY DO GT HN HU LB NI PL SV", 28),
        ("BR EG PS QA UA", 29),
        ("JO KW MU YE", 30),
        ("MT SC", 31),
        ("LC", 32),
        ("RU", 33),
    ];
    let country = std::str::from_utf8(&country).ok()?.to_owned();
    LENGTHS.iter().find(|(names, _)| names.split(' ').any(|n| n == country)).map(|&(_, len)| len)
}

/// Checks whether `iban` (upper-case letters and digits only, country first) satisfies the mod 97 checksum.
pub(super) fn mod97(iban: &[u8]) -> bool {
    if iban.len() < 5 {
        return false;
    }
    let remainder = iban[4..].iter().chain(&iban[..4]).fold(0u32, |rest, &byte| match byte {
        b'0'..=b'9' => (rest * 10 + u32::from(byte - b'0')) % 97,
        _ => (rest * 100 + u32::from(byte - b'A') + 10) % 97,
    });
    remainder == 1
}

/// Checks whether base58 text decodes to `bytes` bytes, of which the last four are the double SHA-256 of the
/// rest.
pub(super) fn base58check(text: &str, bytes: usize) -> bool {
    const ALPHABET: &[u8] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
    let mut number = vec![0_u8; bytes];
    for byte in text.bytes() {
        let Some(digit) = ALPHABET.iter().position(|&b| b == byte) else { return false };
        let mut carry = u32::try_from(digit).unwrap_or(u32::MAX);
        for place in number.iter_mut().rev() {
            carry += u32::from(*place) * 58;
            *place = carry.to_le_bytes()[0];
            carry >>= 8;
        }
        if carry != 0 {
            return false;
        }
    }
    let (payload, check) = number.split_at(bytes.saturating_sub(4));
    Sha256::digest(Sha256::digest(payload))[..4] == *check
}

/// Checks whether a segregated witness address has the checksum of BIP 173 or BIP 350.
pub(super) fn bech32(text: &str) -> bool {
    const ALPHABET: &[u8] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";
    const GENERATOR: [u32; 5] = [0x3b6a_57b2, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3];
    let text = text.to_ascii_lowercase();
    let Some((prefix, data)) = text.rsplit_once('1') else { return false };
    let mut sum = 1_u32;
    let mut add = |value: u8| {
        let top = sum >> 25;
        sum = ((sum & 0x01ff_ffff) << 5) ^ u32::from(value);
        for (bit, generator) in GENERATOR.iter().enumerate() {
            sum ^= if (top >> bit) & 1 == 1 { *generator } else { 0 };
        }
    };
    prefix.bytes().for_each(|b| add(b >> 5));
    add(0);
    prefix.bytes().for_each(|b| add(b & 31));
    for byte in data.bytes() {
        let Some(value) = ALPHABET.iter().position(|&b| b == byte) else { return false };
        add(u8::try_from(value).unwrap_or(u8::MAX));
    }
    matches!(sum, 1 | 0x2bc8_30a3)
}

/// Returns the digits as numbers; a letter counts as zero.
fn numbers(id: &[u8]) -> Vec<u32> {
    id.iter().map(|&b| char::from(b).to_digit(10).unwrap_or(0)).collect()
}

fn number(id: &[u8]) -> u64 {
    id.iter().filter(|b| b.is_ascii_digit()).fold(0, |sum, &b| sum * 10 + u64::from(b - b'0'))
}

fn weighted(id: &[u8], weights: &[u32]) -> u32 {
    numbers(id).iter().zip(weights).map(|(digit, weight)| digit * weight).sum()
}

fn digit(id: &[u8], at: usize) -> u32 {
    id.get(at).and_then(|&b| char::from(b).to_digit(10)).unwrap_or(u32::MAX)
}

fn is_day(day: u64, month: u64) -> bool {
    (1..=31).contains(&day) && (1..=12).contains(&month)
}

/// Checks a social security number of the United States: only areas, groups and serials that are issued.
pub(super) fn us_ssn(id: &[u8]) -> bool {
    let (area, group, serial) = (number(&id[..3]), number(&id[3..5]), number(&id[5..]));
    area != 0 && area != 666 && area < 900 && group != 0 && serial != 0
}

/// Checks a national insurance number of the United Kingdom: no prefix that is never issued, no mix of cases.
pub(super) fn uk_nino(id: &[u8]) -> bool {
    const NEVER: [&[u8]; 7] = [b"BG", b"GB", b"KN", b"NK", b"NT", b"TN", b"ZZ"];
    let upper = id.to_ascii_uppercase();
    let one_case = id.iter().all(|b| !b.is_ascii_lowercase()) || id.iter().all(|b| !b.is_ascii_uppercase());
    one_case && !NEVER.contains(&&upper[..2])
}

/// Checks a resident identity number of China (GB 11643, ISO 7064 MOD 11-2).
pub(super) fn chinese(id: &[u8]) -> bool {
    const WEIGHTS: [u32; 17] = [7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2];
    let check = b"10X98765432"[weighted(&id[..17], &WEIGHTS) as usize % 11];
    id.len() == 18 && id[17].to_ascii_uppercase() == check
}

/// Checks a Spanish DNI or NIE: the letter is the number modulo 23; X, Y and Z count as 0, 1 and 2.
pub(super) fn spanish(id: &[u8]) -> bool {
    let (last, body) = id.split_last().expect("the pattern has nine characters");
    let lead = match body[0].to_ascii_uppercase() {
        b'Y' => 10_000_000,
        b'Z' => 20_000_000,
        _ => 0,
    };
    let rest = usize::try_from((lead + number(body)) % 23).unwrap_or(0);
    last.to_ascii_uppercase() == b"TRWAGMYFPDXBNJZSQVHLCKE"[rest]
}

/// Checks a French NIR: the key is 97 less the number modulo 97; Corsica's 2A and 2B count as 19 and 18.
pub(super) fn french(id: &[u8]) -> bool {
    if id.len() != 15 {
        return false;
    }
    let mut body = id[..13].to_vec();
    match body[6] {
        b'A' => body[5..7].copy_from_slice(b"19"),
        b'B' => body[5..7].copy_from_slice(b"18"),
        _ => {}
    }
    97 - number(&body) % 97 == number(&id[13..])
}

/// Checks a German tax id: exactly one digit occurs more than once among the first ten; check digit by ISO
/// 7064 MOD 11,10.
pub(super) fn german_tax(id: &[u8]) -> bool {
    let digits = numbers(id);
    let counts = (0..10).map(|d| digits[..10].iter().filter(|&&x| x == d).count());
    let repeated = counts.filter(|&count| count > 1).count();
    let product = digits[..10].iter().fold(10, |product, digit| {
        let sum = (digit + product) % 10;
        2 * if sum == 0 { 10 } else { sum } % 11
    });
    repeated == 1 && (11 - product) % 10 == digits[10]
}

/// Checks an Italian fiscal code: odd places by a table, even places by value; the sum modulo 26 is a letter.
pub(super) fn italian(id: &[u8]) -> bool {
    const ODD: [u32; 26] =
        [1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23];
    let id = id.to_ascii_uppercase();
    let value = |b: u8| u32::from(if b.is_ascii_digit() { b - b'0' } else { b - b'A' });
    let add = |(at, &b): (usize, &u8)| if at % 2 == 0 { ODD[value(b) as usize] } else { value(b) };
    let sum: u32 = id[..15].iter().enumerate().map(add).sum();
    sum % 26 == value(id[15])
}

/// Checks Verhoeff's check digit, used by Aadhaar numbers.
pub(super) fn verhoeff(id: &[u8]) -> bool {
    const TURN: [u32; 10] = [1, 5, 7, 6, 2, 8, 3, 0, 9, 4];
    // Multiplication in the dihedral group of order ten.
    let times = |a: u32, b: u32| match (a < 5, b < 5) {
        (true, true) => (a + b) % 5,
        (true, false) => 5 + (a + b) % 5,
        (false, true) => 5 + (a - b) % 5,
        (false, false) => (a + 5 - b) % 5,
    };
    let turned = |at: usize, digit: u32| (0..at % 8).fold(digit, |d, _| TURN[d as usize]);
    numbers(id).iter().rev().enumerate().fold(0, |sum, (at, &digit)| times(sum, turned(at, digit))) == 0
}

/// Checks a Brazilian CPF: two check digits modulo 11; not eleven equal digits.
pub(super) fn brazilian(id: &[u8]) -> bool {
    let check = |len: usize| {
        let weights: Vec<u32> = (2..=u32::try_from(len).unwrap_or(0) + 1).rev().collect();
        let rest = weighted(&id[..len], &weights) % 11;
        if rest < 2 { 0 } else { 11 - rest }
    };
    check(9) == digit(id, 9) && check(10) == digit(id, 10) && id.iter().any(|&b| b != id[0])
}

/// Checks a Polish PESEL: a weighted sum, and a date whose month also encodes the century.
pub(super) fn polish(id: &[u8]) -> bool {
    let check = (10 - weighted(&id[..10], &[1, 3, 7, 9, 1, 3, 7, 9, 1, 3]) % 10) % 10;
    check == digit(id, 10) && is_day(number(&id[4..6]), number(&id[2..4]) % 20)
}

/// Checks a Swedish personal number: Luhn over the last ten digits, and a date; coordination numbers add 60
/// to the day.
pub(super) fn swedish(id: &[u8]) -> bool {
    let last = &id[id.len() - 10..];
    let day = number(&last[4..6]);
    luhn(last) && is_day(if day > 60 { day - 60 } else { day }, number(&last[2..4]))
}

/// Checks a Finnish identity code: the number modulo 31 as a character, and a date.
pub(super) fn finnish(id: &[u8]) -> bool {
    let (last, body) = id.split_last().expect("the pattern has ten characters");
    let digits: Vec<u8> = body.iter().copied().filter(u8::is_ascii_digit).collect();
    let rest = usize::try_from(number(&digits) % 31).unwrap_or(0);
    is_day(number(&id[..2]), number(&id[2..4])) && *last == b"0123456789ABCDEFHJKLMNPRSTUVWXY"[rest]
}

/// Checks a Swiss AHV number: the check digit of EAN-13.
pub(super) fn ean13(id: &[u8]) -> bool {
    let sum = weighted(&id[..12], &[1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3]);
    (10 - sum % 10) % 10 == digit(id, 12)
}

/// Checks a Russian pension account (SNILS): the sum, weighted by place, modulo 101.
pub(super) fn russian_pension(id: &[u8]) -> bool {
    let rest = weighted(&id[..9], &[9, 8, 7, 6, 5, 4, 3, 2, 1]) % 101;
    u64::from(if rest == 100 { 0 } else { rest }) == number(&id[9..])
}

/// Checks a Singaporean NRIC of citizens and residents.
pub(super) fn singaporean(id: &[u8]) -> bool {
    let lead = if id[0].eq_ignore_ascii_case(&b'T') { 4 } else { 0 };
    let rest = (lead + weighted(&id[1..8], &[2, 7, 6, 5, 4, 3, 2])) % 11;
    id[8].to_ascii_uppercase() == b"JZIHGFEDCBA"[rest as usize]
}

/// Checks a Turkish identity number: two check digits.
pub(super) fn turkish(id: &[u8]) -> bool {
    let digits = numbers(id);
    let odd: u32 = digits[..9].iter().step_by(2).sum();
    let even: u32 = digits[1..8].iter().step_by(2).sum();
    (odd * 7 + 100 - even) % 10 == digits[9] && (odd + even + digits[9]) % 10 == digits[10]
}

/// Checks a Belgian national number: 97 less the number modulo 97; for births since 2000 the number has a 2
/// in front.
pub(super) fn belgian(id: &[u8]) -> bool {
    let (body, check) = (number(&id[..9]), number(&id[9..]));
    97 - body % 97 == check || 97 - (2_000_000_000 + body) % 97 == check
}

/// Checks an identity number of Taiwan: the letter counts as two digits.
pub(super) fn taiwanese(id: &[u8]) -> bool {
    const ORDER: &[u8] = b"ABCDEFGHJKLMNPQRSTUVXYWZIO";
    let Some(at) = ORDER.iter().position(|&b| b == id[0]) else { return false };
    let letter = u32::try_from(at).unwrap_or(0) + 10;
    let sum = letter / 10 + letter % 10 * 9 + weighted(&id[1..], &[8, 7, 6, 5, 4, 3, 2, 1, 1]);
    sum.is_multiple_of(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn luhn_knows_published_test_numbers() {
        for good in ["4111111111111111", "5555555555554444", "378282246310005", "6011111111111117"] {
            assert!(luhn(good.as_bytes()), "{good}");
        }
        assert!(!luhn(b"4111111111111112"));
        assert!(!luhn(b"4111111111111121"));
    }

    #[test]
    fn mod97_knows_published_examples() {
        for good in ["GB82WEST12345698765432", "DE89370400440532013000", "FR1420041010050500013M02606"] {
            assert!(mod97(good.as_bytes()), "{good}");
            assert_eq!(iban_len([good.as_bytes()[0], good.as_bytes()[1]]), Some(good.len()), "{good}");
        }
        assert!(!mod97(b"GB82WEST12345698765433"));
        assert!(!mod97(b"GB8"));
        assert_eq!(iban_len(*b"US"), None);
    }

    #[test]
    fn wallets_know_published_examples() {
        assert!(base58check("1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa", 25));
        assert!(!base58check("1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNb", 25));
        assert!(bech32("BC1QW508D6QEJXTDG4Y5R3ZARVARY0C5XW7KV8F3T4"));
        assert!(bech32("bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj0"));
        assert!(!bech32("bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t5"));
    }

    #[test]
    fn national_ids_know_published_examples() {
        type Check = fn(&[u8]) -> bool;
        let cases: &[(Check, &str, &str)] = &[
            (us_ssn, "078051120", "666051120"),
            (uk_nino, "QQ123456C", "BG123456C"),
            (chinese, "11010519491231002X", "110105194912310021"),
            (spanish, "12345678Z", "12345678A"),
            (spanish, "X1234567L", "X1234567M"),
            (french, "255081416802538", "255081416802539"),
            (german_tax, "86095742719", "86095742718"),
            (italian, "RSSMRA85T10A562S", "RSSMRA85T10A562T"),
            (verhoeff, "2363", "2364"),
            (brazilian, "52998224725", "52998224726"),
            (polish, "44051401359", "44051401358"),
            (swedish, "8112189876", "8112189875"),
            (finnish, "131052308T", "131052308U"),
            (ean13, "7569217076985", "7569217076984"),
            (russian_pension, "11223344595", "11223344594"),
            (singaporean, "S0000001I", "S0000001J"),
            (turkish, "10000000146", "10000000147"),
            (belgian, "85073003328", "85073003329"),
            (taiwanese, "A123456789", "A123456788"),
        ];
        for (check, good, bad) in cases {
            assert!(check(good.as_bytes()), "{good}");
            assert!(!check(bad.as_bytes()), "{bad}");
        }
    }
}
