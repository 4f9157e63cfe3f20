//! Checksums that tell real numbers from look-alikes: Luhn (ISO/IEC 7812) and mod 97 (ISO 13616).

/// Whether `digits` (ASCII digits only) satisfy the Luhn checksum.
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

/// Length of an IBAN of this country, or `None` for a country without IBANs. Source: the SWIFT IBAN registry.
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

/// Whether `iban` (upper-case letters and digits only, country first) satisfies the mod 97 checksum.
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
}
