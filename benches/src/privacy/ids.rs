//! Draws national identity numbers by the published rules of their issuers, with check digits.

use super::values::{DIGITS, UPPER, draw, fill, luhn_digit, pick};
use crate::random::Random;

/// The issuer of a number, and its form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Country {
    UnitedStates,
    UnitedKingdom,
    China,
    SpainDni,
    SpainNie,
    France,
    Germany,
    Italy,
    IndiaAadhaar,
    IndiaPan,
    Brazil,
    Poland,
    Netherlands,
    Sweden,
    Finland,
    Switzerland,
    Korea,
    Russia,
    Singapore,
    Turkey,
    Belgium,
    Portugal,
}

fn two(value: u32) -> String {
    format!("{value:02}")
}

/// Draws a valid day, month, and two digits of the year.
fn date(random: &mut Random) -> (String, String, String) {
    (two(random.count((1, 28))), two(random.count((1, 12))), two(random.count((40, 99))))
}

fn weighted(digits: &str, weights: &[u32]) -> u32 {
    digits.chars().filter_map(|c| c.to_digit(10)).zip(weights).map(|(d, w)| d * w).sum()
}

/// Draws a number, with separators if its form allows them.
pub(super) fn draw_id(random: &mut Random, country: Country) -> String {
    match country {
        Country::UnitedStates => {
            let area = loop {
                let area = random.count((1, 899));
                if area != 666 {
                    break area;
                }
            };
            format!("{area:03}-{:02}-{:04}", random.count((1, 99)), random.count((1, 9999)))
        }
        Country::UnitedKingdom => {
            let prefix = pick(random, &["AB", "CE", "HK", "JN", "PR", "SW", "TY", "WM", "ZX"]);
            let (n, end) = (fill(random, "## ## ##"), pick(random, &["A", "B", "C", "D"]));
            format!("{prefix} {n} {end}")
        }
        Country::China => china(random),
        Country::SpainDni => {
            let n = random.count((1_000_000, 99_999_999));
            format!("{n:08}{}", spanish_letter(n))
        }
        Country::SpainNie => {
            let (first, n) = (random.count((0, 2)), random.count((100_000, 9_999_999)));
            let letter = ["X", "Y", "Z"][first as usize];
            format!("{letter}-{n:07}-{}", spanish_letter(first * 10_000_000 + n))
        }
        Country::France => france(random),
        Country::Germany => germany(random),
        Country::Italy => italy(random),
        Country::IndiaAadhaar => aadhaar(random),
        Country::IndiaPan => format!(
            "{}P{}{}{}",
            draw(random, UPPER, 3),
            draw(random, UPPER, 1),
            fill(random, "####"),
            draw(random, UPPER, 1)
        ),
        Country::Brazil => brazil(random),
        Country::Poland => {
            let (day, month, year) = date(random);
            let body = format!("{year}{month}{day}{}", fill(random, "####"));
            format!("{body}{}", (10 - weighted(&body, &[1, 3, 7, 9, 1, 3, 7, 9, 1, 3]) % 10) % 10)
        }
        Country::Turkey => turkey(random),
        _ => draw_other(random, country),
    }
}

/// Draws a number for the other countries of [`draw_id`].
fn draw_other(random: &mut Random, country: Country) -> String {
    match country {
        Country::Netherlands => loop {
            let body = fill(random, "########");
            let sum = weighted(&body, &[9, 8, 7, 6, 5, 4, 3, 2]) % 11;
            if sum < 10 && !body.starts_with("00") {
                break format!("{body}{sum}");
            }
        },
        Country::Sweden => {
            let (day, month, year) = date(random);
            let (birth, serial) = (format!("{year}{month}{day}"), fill(random, "###"));
            format!("{birth}-{serial}{}", luhn_digit(&format!("{birth}{serial}")))
        }
        Country::Finland => {
            let (day, month, year) = date(random);
            let serial = random.count((2, 899));
            let number: u32 = format!("{day}{month}{year}{serial:03}").parse().expect("digits");
            let mark = char::from(b"0123456789ABCDEFHJKLMNPRSTUVWXY"[(number % 31) as usize]);
            format!("{day}{month}{year}-{serial:03}{mark}")
        }
        Country::Switzerland => {
            let body = format!("756{}", fill(random, "#########"));
            let sum = weighted(&body, &[1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3]);
            format!("756.{}.{}.{}{}", &body[3..7], &body[7..11], &body[11..], (10 - sum % 10) % 10)
        }
        Country::Korea => {
            let (day, month, year) = date(random);
            let body = format!("{year}{month}{day}{}{}", random.count((1, 2)), fill(random, "#####"));
            let sum = weighted(&body, &[2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5]);
            format!("{}-{}{}", &body[..6], &body[6..], (11 - sum % 11) % 10)
        }
        Country::Russia => {
            let body = format!("1{}", fill(random, "########"));
            let sum = weighted(&body, &[9, 8, 7, 6, 5, 4, 3, 2, 1]) % 101;
            format!("{}-{}-{} {:02}", &body[..3], &body[3..6], &body[6..], if sum == 100 { 0 } else { sum })
        }
        Country::Singapore => {
            let body = fill(random, "#######");
            let sum = weighted(&body, &[2, 7, 6, 5, 4, 3, 2]);
            format!("S{body}{}", char::from(b"JZIHGFEDCBA"[(sum % 11) as usize]))
        }
        Country::Belgium => {
            let (day, month, year) = date(random);
            let serial = random.count((1, 997));
            let number: u32 = format!("{year}{month}{day}{serial:03}").parse().expect("nine digits");
            format!("{year}.{month}.{day}-{serial:03}.{:02}", 97 - number % 97)
        }
        _ => {
            let body = format!("2{}", fill(random, "#######"));
            let rest = weighted(&body, &[9, 8, 7, 6, 5, 4, 3, 2]) % 11;
            format!("{body}{}", if rest < 2 { 0 } else { 11 - rest })
        }
    }
}

fn china(random: &mut Random) -> String {
    let area = pick(random, &["110101", "310104", "440305", "510107", "330106"]);
    let (day, month, year) = date(random);
    let body = format!("{area}19{year}{month}{day}{}", fill(random, "###"));
    let sum = weighted(&body, &[7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2]);
    format!("{body}{}", char::from(b"10X98765432"[(sum % 11) as usize]))
}

fn spanish_letter(n: u32) -> char {
    char::from(b"TRWAGMYFPDXBNJZSQVHLCKE"[(n % 23) as usize])
}

fn france(random: &mut Random) -> String {
    let (_, month, year) = date(random);
    let (department, sex) = (two(random.count((1, 95)).max(21)), random.count((1, 2)));
    let (town, order) = (fill(random, "###"), fill(random, "###"));
    let number: u64 = format!("{sex}{year}{month}{department}{town}{order}").parse().expect("digits");
    format!("{sex} {year} {month} {department} {town} {order} {:02}", 97 - number % 97)
}

/// Draws a German tax number. Among the first ten digits, one occurs twice and another is missing; the last
/// is the check digit of ISO 7064, MOD 11,10.
fn germany(random: &mut Random) -> String {
    let mut digits: Vec<u32> = (0..10).collect();
    for at in (1..10).rev() {
        digits.swap(at, random.count((0, at as u32)) as usize);
    }
    digits[9] = digits[random.count((1, 8)) as usize];
    if digits[0] == 0 {
        digits.swap(0, 4);
    }
    let mut product = 10;
    for digit in &digits {
        let sum = (digit + product) % 10;
        product = (2 * if sum == 0 { 10 } else { sum }) % 11;
    }
    let check = (11 - product) % 10;
    let text: String = digits.iter().chain([&check]).map(u32::to_string).collect();
    format!("{} {} {} {}", &text[..2], &text[2..5], &text[5..8], &text[8..])
}

fn italy(random: &mut Random) -> String {
    let consonants = "BCDFGLMNPRSTVZ";
    let (names, year) = (draw(random, consonants, 6), two(random.count((40, 99))));
    let (month, day) = (draw(random, "ABCDEHLMPRST", 1), two(random.count((1, 28))));
    let town = pick(random, &["H501", "F205", "L219", "D612", "A944"]);
    let body = format!("{names}{year}{month}{day}{town}");
    let odd = [1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23];
    let value = |c: char| c.to_digit(10).unwrap_or_else(|| c as u32 - 'A' as u32);
    let sum: u32 = body
        .chars()
        .enumerate()
        .map(|(at, c)| if at % 2 == 0 { odd[value(c) as usize] } else { value(c) })
        .sum();
    format!("{body}{}", char::from(b'A' + (sum % 26) as u8))
}

/// Draws an Aadhaar number, with Verhoeff's check digit: multiplication in the dihedral group of order ten.
fn aadhaar(random: &mut Random) -> String {
    let times = |a: u32, b: u32| match (a < 5, b < 5) {
        (true, true) => (a + b) % 5,
        (true, false) => 5 + (a + b - 5) % 5,
        (false, true) => 5 + (a - 5 + 5 - b) % 5,
        (false, false) => (a - 5 + 5 - (b - 5)) % 5,
    };
    let turn = [1, 5, 7, 6, 2, 8, 3, 0, 9, 4];
    let body = fill(random, "N##########");
    let sum = body
        .chars()
        .rev()
        .filter_map(|c| c.to_digit(10))
        .enumerate()
        .fold(0, |sum, (at, digit)| times(sum, (0..=at % 8).fold(digit, |d, _| turn[d as usize])));
    let check = (0..10).find(|&d| times(sum, d) == 0).expect("every element has an inverse");
    format!("{} {} {}{check}", &body[..4], &body[4..8], &body[8..])
}

fn brazil(random: &mut Random) -> String {
    let body = draw(random, DIGITS, 9);
    let check = |text: &str, top: u32| {
        let weights: Vec<u32> = (2..=top).rev().collect();
        let rest = weighted(text, &weights) % 11;
        if rest < 2 { 0 } else { 11 - rest }
    };
    let first = check(&body, 10);
    let second = check(&format!("{body}{first}"), 11);
    format!("{}.{}.{}-{first}{second}", &body[..3], &body[3..6], &body[6..])
}

fn turkey(random: &mut Random) -> String {
    let body = fill(random, "N########");
    let digits: Vec<u32> = body.chars().filter_map(|c| c.to_digit(10)).collect();
    let odd: u32 = digits.iter().step_by(2).sum();
    let even: u32 = digits.iter().skip(1).step_by(2).sum();
    let tenth = (odd * 7 + 100 - even) % 10;
    let last = (odd + even + tenth) % 10;
    format!("{body}{tenth}{last}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_characters_of_published_examples() {
        assert_eq!(spanish_letter(12_345_678), 'Z');
        let mut random = Random::new(1, 2, 3);
        for _ in 0..50 {
            assert_eq!(draw_id(&mut random, Country::China).len(), 18);
            assert_eq!(draw_id(&mut random, Country::Italy).len(), 16);
            assert_eq!(draw_id(&mut random, Country::Germany).replace(' ', "").len(), 11);
        }
    }
}
