//! Scores the device's redactor on the corpus: covered values, and findings that cover nothing private.

use std::ops::Range;

use anyhow::{Context, ensure};
use baton_device::privacy::{PrivateNames, Redactor};

use super::corpus::Line;
use super::values::Kind;

/// The counts of one kind.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub values: u32,
    pub covered: u32,
    pub findings: u32,
    pub right: u32,
}

impl Counts {
    pub(super) fn recall(&self) -> f64 {
        f64::from(self.covered) / f64::from(self.values)
    }

    pub(super) fn precision(&self) -> f64 {
        f64::from(self.right) / f64::from(self.findings)
    }
}

/// The score of a part of the corpus.
#[derive(Debug, Default)]
pub(super) struct Score {
    pub kinds: Vec<(Kind, Counts)>,
    /// Language, number of values, number of covered values.
    pub languages: Vec<(&'static str, u32, u32)>,
    pub lines: usize,
    pub harmless: u32,
    pub harmless_changed: u32,
    /// Findings of names, which [`super::names`] scores.
    pub names: u32,
    /// Lines with wrong results, for improving the detectors.
    pub wrong: Vec<String>,
}

/// A replaced range of a text.
#[derive(Debug, Clone)]
pub(super) struct Finding {
    pub range: Range<usize>,
    pub label: String,
}

/// What a text belongs to: words that no list has may be names in a conversation only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scene {
    Conversation,
    Other,
}

/// Returns the ranges that the redactor replaces in `text`, found by comparing its output with the text.
pub(super) fn findings(text: &str, scene: Scene) -> anyhow::Result<Vec<Finding>> {
    let names = PrivateNames::default().guessing(scene == Scene::Conversation);
    let mut redactor = Redactor::default().with_names(names);
    let redacted = redactor.redact(text).context("redact a line")?;
    let table = redactor.table();
    let mut found = Vec::new();
    let (mut at, mut rest) = (0, redacted.as_str());
    while !rest.is_empty() {
        let end = rest.find(']').map(|end| end + 1).filter(|_| rest.starts_with('['));
        if let Some((end, value)) = end.and_then(|end| Some((end, table.value(&rest[..end])?))) {
            let label = rest[1..end].split('_').next().unwrap_or_default().to_owned();
            found.push(Finding { range: at..at + value.len(), label });
            (at, rest) = (at + value.len(), &rest[end..]);
            continue;
        }
        let next = rest.chars().next().map_or(0, char::len_utf8);
        ensure!(
            text[at..].starts_with(&rest[..next]),
            "the output is not the text with values replaced: {text:?}"
        );
        (at, rest) = (at + next, &rest[next..]);
    }
    ensure!(at == text.len(), "the output ends before the text: {text:?}");
    Ok(found)
}

impl Score {
    pub(super) fn of(lines: &[Line]) -> anyhow::Result<Score> {
        let mut score =
            Score { kinds: Kind::ALL.map(|kind| (kind, Counts::default())).to_vec(), ..Score::default() };
        score.lines = lines.len();
        for line in lines {
            score.add(line, &findings(&line.text, Scene::Other)?);
        }
        Ok(score)
    }

    fn add(&mut self, line: &Line, found: &[Finding]) {
        let mut wrong = Vec::new();
        for planted in &line.planted {
            let covered = planted.must.clone().all(|at| found.iter().any(|f| f.range.contains(&at)));
            let counts = self.counts(planted.kind);
            counts.values += 1;
            counts.covered += u32::from(covered);
            match self.languages.iter_mut().find(|(language, ..)| *language == line.language) {
                Some((_, values, hits)) => (*values, *hits) = (*values + 1, *hits + u32::from(covered)),
                None => self.languages.push((line.language, 1, u32::from(covered))),
            }
            if !covered {
                wrong.push(format!("missed {}", planted.kind.name()));
            }
        }
        if line.planted.is_empty() {
            self.harmless += 1;
            self.harmless_changed += u32::from(!found.is_empty());
        }
        for finding in found {
            if Kind::Name.labels().contains(&finding.label.as_str()) {
                self.names += 1;
                continue;
            }
            let right = line.planted.iter().find(|planted| {
                planted.may.start <= finding.range.start
                    && finding.range.end <= planted.may.end
                    && planted.kind.labels().contains(&finding.label.as_str())
            });
            // A wrong finding counts for the kind that its placeholder names.
            let named = || Kind::ALL.into_iter().find(|kind| kind.labels().contains(&finding.label.as_str()));
            let kind = right.map(|planted| planted.kind).or_else(named).unwrap_or(Kind::Key);
            let counts = self.counts(kind);
            counts.findings += 1;
            counts.right += u32::from(right.is_some());
            if right.is_none() {
                wrong.push(format!("wrong {} {:?}", finding.label, &line.text[finding.range.clone()]));
            }
        }
        if !wrong.is_empty() {
            self.wrong.push(format!("{:?}: {}", line.text, wrong.join(", ")));
        }
    }

    fn counts(&mut self, kind: Kind) -> &mut Counts {
        let found = self.kinds.iter_mut().find(|(k, _)| *k == kind);
        &mut found.expect("every kind has counts").1
    }
}
