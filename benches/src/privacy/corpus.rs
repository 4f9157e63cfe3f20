//! Makes lines with private values at known positions, and harmless lines, from templates and a seed.

use std::ops::Range;

use super::ids::Country;
use super::values::{self, Kind, Value, draw, fill, pick};
use crate::random::Random;

/// Templates of one part of the corpus; `{}` stands for the value.
pub(super) struct Templates {
    pub carriers: &'static [(&'static str, &'static [&'static str])],
    pub markup: &'static [&'static str],
    pub phones: &'static [PhoneLines],
    pub free_phones: &'static [&'static str],
    pub ids: &'static [IdLines],
    pub key_lines: &'static [&'static str],
    pub password_lines: &'static [(&'static str, &'static [&'static str])],
    pub word_lines: &'static [&'static str],
    pub pin_lines: &'static [&'static str],
    pub url_lines: &'static [&'static str],
    pub path_lines: &'static [&'static str],
    pub mac_lines: &'static [&'static str],
    pub ip_lines: &'static [&'static str],
    pub ip6_lines: &'static [&'static str],
    pub harmless: &'static [(&'static str, &'static [&'static str])],
    pub forms: &'static [Form],
}

/// National formats of phone numbers, and lines that name them as such.
pub(super) struct PhoneLines {
    pub language: &'static str,
    pub formats: &'static [&'static str],
    pub lines: &'static [&'static str],
}

pub(super) struct IdLines {
    pub country: Country,
    pub lines: &'static [&'static str],
}

/// A way to write a value that a reader still recognizes but a simple pattern does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Plain,
    FullWidth,
    NoBreakSpace,
    ThinSpace,
    FigureSpace,
    EnDash,
    NoBreakHyphen,
    ZeroWidth,
    WordJoiner,
    SoftHyphen,
    LineBreak,
    Upper,
    Lower,
    ArabicDigits,
    DevanagariDigits,
    MathDigits,
    PercentAt,
    JsonAt,
    EntityAt,
    CommaEntityAt,
    BracketAt,
    ParenAt,
}

/// A private value in a line: all of `must` has to be replaced; `may` is the range that may be replaced.
#[derive(Debug, Clone)]
pub(super) struct Planted {
    pub kind: Kind,
    pub must: Range<usize>,
    pub may: Range<usize>,
}

/// One line of the corpus.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub text: String,
    pub planted: Vec<Planted>,
    pub language: &'static str,
}

struct Lines<'a> {
    random: Random,
    templates: &'a Templates,
    lines: Vec<Line>,
}

/// Makes the corpus of these templates and this seed. The same arguments give the same lines.
pub(super) fn lines(templates: &Templates, seed: u64) -> Vec<Line> {
    let mut all = Lines { random: Random::new(seed, 0x70, 1), templates, lines: Vec::new() };
    all.in_prose_and_markup();
    all.in_other_forms();
    all.phones();
    all.ids();
    all.secrets();
    all.machines();
    all.harmless();
    all.lines
}

impl Lines<'_> {
    fn add(&mut self, language: &'static str, template: &str, kind: Kind, value: &Value) {
        let (head, tail) = template.split_once("{}").expect("a template has a place for the value");
        let start = head.len();
        let must = start + value.before.len()..start + value.before.len() + value.must.len();
        let may = start..must.end + value.after.len();
        let text = format!("{head}{}{}{}{tail}", value.before, value.must, value.after);
        self.lines.push(Line { text, planted: vec![Planted { kind, must, may }], language });
    }

    /// Draws a value that is recognizable without a word beside it, in its usual form.
    fn value(&mut self, kind: Kind, hard: bool) -> Value {
        let random = &mut self.random;
        let separator = pick(random, &["", " ", "-"]);
        match kind {
            Kind::Email => values::email(random, hard),
            Kind::Phone => {
                let format = pick(random, self.templates.free_phones);
                phone(random, format)
            }
            Kind::Card => values::card(random, separator),
            Kind::Iban => values::iban(random, if separator == "-" { "" } else { separator }),
            Kind::Wallet => values::wallet(random),
            _ => values::known_key(random),
        }
    }

    fn in_prose_and_markup(&mut self) {
        for kind in [Kind::Email, Kind::Card, Kind::Iban, Kind::Wallet, Kind::Key, Kind::Phone] {
            for &(language, carriers) in self.templates.carriers {
                for (at, carrier) in carriers.iter().enumerate() {
                    let value = self.value(kind, at == 0);
                    self.add(language, carrier, kind, &value);
                }
            }
            for markup in self.templates.markup {
                let value = self.value(kind, false);
                self.add("markup", markup, kind, &value);
            }
        }
        for _ in 0..12 {
            let value = values::pem(&mut self.random);
            self.add("markup", "config:\n{}\nend", Kind::Key, &value);
            let value = values::email(&mut self.random, true);
            self.add("en", "Ask {} about it.", Kind::Email, &value);
        }
    }

    fn in_other_forms(&mut self) {
        let carriers = self.templates.carriers[0].1;
        for &form in self.templates.forms {
            for kind in [Kind::Email, Kind::Card, Kind::Iban, Kind::Phone] {
                for _ in 0..8 {
                    let value = match kind {
                        Kind::Card => values::card(
                            &mut self.random,
                            pick(&mut Random::new(1, form as u64, self.lines.len() as u64), &[" ", "-"]),
                        ),
                        Kind::Iban => values::iban(&mut self.random, " "),
                        _ => self.value(kind, false),
                    };
                    let Some(must) = self.formed(&value.must, form, kind) else { continue };
                    let carrier = pick(&mut self.random, carriers);
                    self.add("forms", carrier, kind, &Value { must, ..value });
                }
            }
        }
    }

    /// Returns the text in another form, or `None` if the form does not apply.
    fn formed(&mut self, text: &str, form: Form, kind: Kind) -> Option<String> {
        let spaced = |to: &str| text.contains(' ').then(|| text.replace(' ', to));
        let dashed = |to: &str| text.contains('-').then(|| text.replace('-', to));
        let digits = |zero: u32| {
            let change = |c: char| {
                c.to_digit(10).map_or(c, |d| char::from_u32(zero + d).expect("a digit of that script"))
            };
            matches!(kind, Kind::Card | Kind::Phone).then(|| text.chars().map(change).collect())
        };
        let at = |to: &str| (kind == Kind::Email).then(|| text.replace('@', to));
        match form {
            Form::Plain => Some(text.to_owned()),
            Form::FullWidth => Some(
                text.chars()
                    .map(|c| {
                        if c.is_ascii_graphic() { char::from_u32(c as u32 + 0xfee0).unwrap_or(c) } else { c }
                    })
                    .collect(),
            ),
            Form::NoBreakSpace => spaced("\u{a0}"),
            Form::ThinSpace => spaced("\u{2009}"),
            Form::FigureSpace => spaced("\u{2007}"),
            Form::EnDash => dashed("\u{2013}"),
            Form::NoBreakHyphen => dashed("\u{2011}"),
            Form::ZeroWidth => Some(self.inserted(text, "\u{200b}")),
            Form::WordJoiner => Some(self.inserted(text, "\u{2060}")),
            Form::SoftHyphen => Some(self.inserted(text, "\u{ad}")),
            Form::LineBreak if kind == Kind::Email => Some(text.replacen('@', "@\n", 1)),
            Form::LineBreak => {
                text.match_indices(' ').nth(1).map(|(at, _)| format!("{}\n{}", &text[..at], &text[at + 1..]))
            }
            Form::Upper => (kind == Kind::Email).then(|| text.to_uppercase()),
            Form::Lower => (kind == Kind::Iban).then(|| text.to_lowercase()),
            Form::ArabicDigits => digits(0x660),
            Form::DevanagariDigits => digits(0x966),
            Form::MathDigits => digits(0x1d7ce),
            Form::PercentAt => at("%40"),
            Form::JsonAt => at("\\u0040"),
            Form::EntityAt => at("&#64;"),
            Form::CommaEntityAt => at("&commat;"),
            Form::BracketAt => at(" [at] "),
            Form::ParenAt => at(" (at) "),
        }
    }

    fn inserted(&mut self, text: &str, mark: &str) -> String {
        let at = self.random.count((1, text.len() as u32 - 1)) as usize;
        let at = (at..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
        format!("{}{mark}{}", &text[..at], &text[at..])
    }

    fn phones(&mut self) {
        for PhoneLines { language, formats, lines } in self.templates.phones {
            for format in *formats {
                for _ in 0..2 {
                    let line = pick(&mut self.random, lines);
                    let value = phone(&mut self.random, format);
                    self.add(language, line, Kind::Phone, &value);
                }
            }
            for line in *lines {
                let format = pick(&mut self.random, formats);
                let value = phone(&mut self.random, format);
                self.add(language, line, Kind::Phone, &value);
            }
        }
    }

    fn ids(&mut self) {
        for IdLines { country, lines } in self.templates.ids {
            for line in *lines {
                for _ in 0..4 {
                    let value = values::national_id(&mut self.random, *country);
                    self.add("ids", line, Kind::Id, &value);
                }
            }
        }
    }

    fn secrets(&mut self) {
        for line in self.templates.key_lines {
            for _ in 0..5 {
                let value = values::bare_key(&mut self.random);
                self.add("markup", line, Kind::Key, &value);
            }
        }
        for &(language, lines) in self.templates.password_lines {
            for line in lines {
                for _ in 0..4 {
                    let value = values::password(&mut self.random);
                    self.add(language, line, Kind::Password, &value);
                }
            }
        }
        for line in self.templates.word_lines {
            let value = values::word_password(&mut self.random);
            self.add("en", line, Kind::Password, &value);
        }
        for line in self.templates.pin_lines {
            for _ in 0..3 {
                let value = values::pin(&mut self.random);
                self.add("en", line, Kind::Password, &value);
            }
        }
        for line in self.templates.url_lines {
            for _ in 0..6 {
                let value = values::url_credential(&mut self.random);
                self.add("markup", line, Kind::Url, &value);
            }
        }
    }

    fn machines(&mut self) {
        for line in self.templates.path_lines {
            for _ in 0..6 {
                let value = values::path_user(&mut self.random);
                self.add("markup", line, Kind::Path, &value);
            }
        }
        for line in self.templates.mac_lines {
            for _ in 0..6 {
                let value = values::mac(&mut self.random);
                self.add("markup", line, Kind::Mac, &value);
            }
        }
        for line in self.templates.ip_lines {
            for _ in 0..4 {
                let value = values::ipv4(&mut self.random);
                self.add("markup", line, Kind::Ip, &value);
            }
        }
        for line in self.templates.ip6_lines {
            for _ in 0..5 {
                let value = values::ipv6(&mut self.random);
                self.add("markup", line, Kind::Ip, &value);
            }
        }
    }

    fn harmless(&mut self) {
        for &(language, templates) in self.templates.harmless {
            for template in templates {
                for _ in 0..2 {
                    let text = fill(&mut self.random, template);
                    self.lines.push(Line { text, planted: Vec::new(), language });
                }
            }
        }
        for _ in 0..20 {
            // Long numbers whose card checksum is wrong.
            let body = format!("4{}", draw(&mut self.random, values::DIGITS, 14));
            let wrong = (values::luhn_digit(&body) + 5) % 10;
            let text = format!("tracking code {body}{wrong} left the hub");
            self.lines.push(Line { text, planted: Vec::new(), language: "en" });
        }
    }
}

fn phone(random: &mut Random, format: &str) -> Value {
    // The scheme of a link and an extension may be replaced together with the number.
    let (before, rest) = format.strip_prefix("tel:").map_or(("", format), |rest| ("tel:", rest));
    let (number, extension) = rest.split_once(" ext").map_or((rest, None), |(n, e)| (n, Some(e)));
    Value {
        before: before.to_owned(),
        must: fill(random, number),
        after: extension.map_or(String::new(), |e| fill(random, &format!(" ext{e}"))),
    }
}
