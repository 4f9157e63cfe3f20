//! Lines with names of people, places and organisations, in four languages, and the score of the redactor on
//! them.
//!
//! The lines are in text files. `unseen.LANG.txt` was written before the detector and is only for the
//! evaluation; half of its people have names that are in no list of the detector. `seen.LANG.txt` may be used
//! to improve the detector.

use std::collections::HashSet;
use std::ops::Range;

use anyhow::{Context, ensure};

use super::corpus::{Line, Planted};
use super::score::{Finding, Scene, findings};
use super::values::Kind;
use crate::random::Random;

/// The two parts of the corpus: language, and the text of the file.
pub(super) const SEEN: [(&str, &str); 4] = [
    ("en", include_str!("names/seen.en.txt")),
    ("de", include_str!("names/seen.de.txt")),
    ("es", include_str!("names/seen.es.txt")),
    ("zh", include_str!("names/seen.zh.txt")),
];
pub(super) const UNSEEN: [(&str, &str); 4] = [
    ("en", include_str!("names/unseen.en.txt")),
    ("de", include_str!("names/unseen.de.txt")),
    ("es", include_str!("names/unseen.es.txt")),
    ("zh", include_str!("names/unseen.zh.txt")),
];

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameKind {
    /// A person whose names are in the detector's lists.
    Listed,
    /// A person whose given name or surname is in none of them.
    Unlisted,
    Org,
    Place,
}

/// A line, and where its names are.
#[derive(Debug, Clone)]
pub(super) struct NameLine {
    pub text: String,
    pub names: Vec<(NameKind, Range<usize>)>,
    pub language: &'static str,
}

impl NameLine {
    /// Returns the line as one of the other corpus.
    pub(super) fn into_line(self) -> Line {
        let planted =
            |(_, name): (NameKind, Range<usize>)| Planted { kind: Kind::Name, must: name.clone(), may: name };
        Line {
            text: self.text,
            planted: self.names.into_iter().map(planted).collect(),
            language: self.language,
        }
    }
}

/// Checks that the names of people that count as unlisted are in no list of the detector.
///
/// # Errors
/// Fails with the first name that is in one.
pub(super) fn check_unlisted() -> anyhow::Result<()> {
    let listed: HashSet<&str> = LISTS.iter().flat_map(|list| list.split_whitespace()).collect();
    for (language, file) in UNSEEN.iter().filter(|(language, _)| *language != "zh") {
        let rows = file.lines().filter(|row| row.starts_with('@') && row.contains(" unlisted: "));
        for word in
            rows.filter_map(|row| row.split_once(": ")).flat_map(|(_, values)| values.split_whitespace())
        {
            ensure!(
                !listed.contains(word),
                "{language}: the unlisted name `{word}` is in a list of the detector"
            );
        }
    }
    Ok(())
}

/// The detector's lists of names.
const LISTS: [&str; 2] = [
    include_str!("../../../device/src/privacy/detect/names/lists/given.txt"),
    include_str!("../../../device/src/privacy/detect/names/lists/surnames.txt"),
];

/// The values of a file.
struct Values<'a> {
    lists: Vec<(&'a str, Vec<&'a str>)>,
}

impl<'a> Values<'a> {
    fn pick(&self, random: &mut Random, name: &str) -> anyhow::Result<&'a str> {
        let list = self.lists.iter().find(|(list, _)| *list == name).map(|(_, values)| values);
        let list = list.filter(|list| !list.is_empty()).with_context(|| format!("no list `{name}`"))?;
        Ok(list[random.count((0, list.len() as u32 - 1)) as usize])
    }
}

/// Makes the lines of a part. Each line is made twice: with people of the lists, and with others.
pub(super) fn lines(files: &[(&'static str, &'static str)], seed: u64) -> anyhow::Result<Vec<NameLine>> {
    let mut random = Random::new(seed, 0x71, 1);
    let mut all = Vec::new();
    for &(language, file) in files {
        let rows = file.lines().filter(|row| !row.starts_with('#') && !row.is_empty());
        let (lists, rows): (Vec<&str>, Vec<&str>) = rows.partition(|row| row.starts_with('@'));
        let split = |row: &'static str| {
            let (name, values) = row[1..].split_once(": ")?;
            Some((name, values.split(" | ").collect()))
        };
        let values = Values { lists: lists.into_iter().filter_map(split).collect() };
        for row in rows {
            let row = row.replace("\\n", "\n").replace("\\t", "\t");
            match row.strip_prefix("= ") {
                Some(text) => all.push(NameLine { text: text.to_owned(), names: Vec::new(), language }),
                None => {
                    for kind in [NameKind::Listed, NameKind::Unlisted] {
                        all.push(line(&row, kind, language, &values, &mut random)?);
                    }
                }
            }
        }
    }
    Ok(all)
}

fn line(
    row: &str,
    people: NameKind,
    language: &'static str,
    values: &Values<'_>,
    random: &mut Random,
) -> anyhow::Result<NameLine> {
    let listed = if people == NameKind::Listed { "listed" } else { "unlisted" };
    let mut line = NameLine { text: String::new(), names: Vec::new(), language };
    let mut person: Option<(&str, &str)> = None;
    let mut rest = row;
    while let Some((head, tail)) = rest.split_once('{') {
        line.text.push_str(head);
        let Some(mark) = tail.get(..2).filter(|mark| mark.ends_with('}')) else {
            line.text.push('{');
            rest = tail;
            continue;
        };
        let draw = |random: &mut Random| -> anyhow::Result<(&str, &str)> {
            let given = values.pick(random, &format!("given {listed}"))?;
            Ok((given, values.pick(random, &format!("surname {listed}"))?))
        };
        let (kind, value) = match &mark[..1] {
            "p" => {
                let (given, surname) = *person.insert(draw(random)?);
                let name =
                    if language == "zh" { format!("{surname}{given}") } else { format!("{given} {surname}") };
                (people, name)
            }
            "s" => (people, person.map_or_else(|| draw(random), Ok)?.1.to_owned()),
            "g" => (people, person.map_or_else(|| draw(random), Ok)?.0.to_owned()),
            "o" => (NameKind::Org, values.pick(random, "org")?.to_owned()),
            "a" => (NameKind::Place, values.pick(random, "street")?.to_owned()),
            "t" => (NameKind::Place, values.pick(random, "town")?.to_owned()),
            "z" => (NameKind::Place, values.pick(random, "code")?.to_owned()),
            other => anyhow::bail!("the mark `{other}` is not known"),
        };
        line.names.push((kind, line.text.len()..line.text.len() + value.len()));
        line.text.push_str(&value);
        rest = &tail[2..];
    }
    line.text.push_str(rest);
    Ok(line)
}

/// Values and covered values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub of: u32,
    pub hits: u32,
}

impl Share {
    fn count(&mut self, hit: bool) {
        self.of += 1;
        self.hits += u32::from(hit);
    }

    pub(super) fn rate(self) -> f64 {
        f64::from(self.hits) / f64::from(self.of.max(1))
    }

    pub(super) fn and(self, other: Share) -> Share {
        Share { of: self.of + other.of, hits: self.hits + other.hits }
    }
}

/// The score of one language.
#[derive(Debug, Default)]
pub(super) struct NameScore {
    pub listed: Share,
    pub unlisted: Share,
    pub orgs: Share,
    pub places: Share,
    /// Findings of people and organisations, and those that cover nothing but private names.
    pub names_right: Share,
    pub places_right: Share,
    pub lines: usize,
    pub harmless: Share,
    /// Lines with wrong results.
    pub wrong: Vec<String>,
}

impl NameScore {
    /// Scores the redactor on the lines of a language.
    pub(super) fn of(language: &'static str, lines: &[NameLine], scene: Scene) -> anyhow::Result<NameScore> {
        let mut score = NameScore::default();
        for line in lines.iter().filter(|line| line.language == language) {
            score.add(line, &findings(&line.text, scene)?);
        }
        Ok(score)
    }

    /// Adds a line and what the redactor replaced in it.
    fn add(&mut self, line: &NameLine, found: &[Finding]) {
        self.lines += 1;
        let mut wrong = Vec::new();
        let letters = |range: Range<usize>| {
            let start = range.start;
            line.text[range]
                .char_indices()
                .filter(|(_, c)| c.is_alphanumeric())
                .map(move |(at, _)| at + start)
        };
        for (kind, name) in &line.names {
            let covered = letters(name.clone()).all(|at| found.iter().any(|f| f.range.contains(&at)));
            let share = match kind {
                NameKind::Listed => &mut self.listed,
                NameKind::Unlisted => &mut self.unlisted,
                NameKind::Org => &mut self.orgs,
                NameKind::Place => &mut self.places,
            };
            share.count(covered);
            if !covered {
                wrong.push(format!("missed {:?}", &line.text[name.clone()]));
            }
        }
        // A finding is right if all of its letters belong to names. Which of the three kinds it has does not
        // matter, because the name is private in any case.
        for finding in found {
            let right =
                letters(finding.range.clone()).all(|at| line.names.iter().any(|(_, n)| n.contains(&at)));
            let share = if finding.label == "PLACE" { &mut self.places_right } else { &mut self.names_right };
            share.count(right);
            if !right {
                wrong.push(format!("wrong {} {:?}", finding.label, &line.text[finding.range.clone()]));
            }
        }
        if line.names.is_empty() {
            self.harmless.count(found.is_empty());
        }
        if !wrong.is_empty() {
            self.wrong.push(format!("{} {:?}: {}", line.language, line.text, wrong.join(", ")));
        }
    }
}
