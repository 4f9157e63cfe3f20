//! Summarizes results: means with intervals by suite, group, length and arm.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::stats::{Estimate, Sample, estimate};
use crate::store::Row;

/// The results that a figure summarizes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Key {
    /// Suite.
    pub suite: String,
    /// Group within the suite.
    pub group: String,
    /// Length bucket, in tokens.
    pub length: usize,
    /// Arm.
    pub arm: String,
}

/// The figures of one key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// The key.
    #[serde(flatten)]
    pub key: Key,
    /// Mean score.
    pub score: Option<Estimate>,
    /// Mean recall of gold sentences, over cases whose gold sentences fit into the budget.
    pub recall: Option<Estimate>,
    /// Mean share of the content's tokens that masks keep.
    pub ratio: Option<f64>,
    /// Mean natural logarithm of the probability of the right answer's tokens.
    pub right_ln_p: Option<Estimate>,
    /// Mean share of the cloud's answer that the device's model finds most probable too.
    pub acceptance: Option<Estimate>,
    /// Cases whose gold sentences do not fit into the budget.
    pub gold_too_large: usize,
    /// Answers that loop.
    pub looped: usize,
    /// Answers that are garbage.
    pub garbled: usize,
    /// Answers that do not fit the question.
    pub off_question: usize,
    /// Cases with an error instead of an answer, e.g. because the prompt does not fit.
    pub failed: usize,
    /// Mean number of tokens in the prompts that answers were written from.
    pub prompt_tokens: f64,
}

/// Computes the figures of all results, by key.
pub fn figures(rows: &[&Row]) -> Vec<Figures> {
    let mut by_key: BTreeMap<Key, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        let key = Key {
            suite: row.suite.clone(),
            group: row.group.clone(),
            length: row.length,
            arm: row.arm.clone(),
        };
        by_key.entry(key).or_default().push(row);
    }
    by_key.into_iter().map(|(key, rows)| figures_of(key, &rows)).collect()
}

fn figures_of(key: Key, rows: &[&Row]) -> Figures {
    let answered: Vec<&&Row> =
        rows.iter().filter(|row| row.score.is_some() || row.right_ln_p.is_some()).collect();
    let count = |test: fn(&Row) -> bool| rows.iter().filter(|row| test(row)).count();
    let ratios: Vec<f64> = rows.iter().filter_map(|row| row.ratio.map(f64::from)).collect();
    Figures {
        key,
        score: estimate(&samples(rows, |row| row.score)),
        recall: estimate(&samples(rows, fitting_recall)),
        ratio: (!ratios.is_empty()).then(|| ratios.iter().sum::<f64>() / ratios.len() as f64),
        right_ln_p: estimate(&samples(rows, |row| row.right_ln_p)),
        acceptance: estimate(&samples(rows, |row| row.acceptance)),
        gold_too_large: count(|row| row.gold_fits == Some(false)),
        looped: count(|row| row.faults.looped),
        garbled: count(|row| row.faults.garbled),
        off_question: count(|row| row.faults.off_question),
        failed: count(|row| row.error.is_some()),
        prompt_tokens: answered.iter().map(|row| row.prompt_tokens as f64).sum::<f64>()
            / answered.len().max(1) as f64,
    }
}

/// Returns the recall if the gold sentences fit into the budget, else `None`, because no mask can keep more
/// than the budget.
pub fn fitting_recall(row: &Row) -> Option<f64> {
    row.recall.filter(|_| row.gold_fits != Some(false))
}

/// Returns the values of the rows that have one, with their clusters.
pub fn samples(rows: &[&Row], value: impl Fn(&Row) -> Option<f64>) -> Vec<Sample> {
    rows.iter().filter_map(|row| Some(Sample { cluster: row.cluster, value: value(row)? })).collect()
}

/// Returns the mean of the differences `a - b` over the cases that both arms have, with its interval.
pub fn paired(rows: &[&Row], [a, b]: [&str; 2], value: impl Fn(&Row) -> Option<f64>) -> Option<Estimate> {
    let of = |arm: &str| -> BTreeMap<&str, &Row> {
        rows.iter().filter(|row| row.arm == arm).map(|row| (row.case.as_str(), *row)).collect()
    };
    let (of_a, of_b) = (of(a), of(b));
    let samples: Vec<Sample> = of_a
        .iter()
        .filter_map(|(case, row)| {
            let difference = value(row)? - value(of_b.get(case)?)?;
            Some(Sample { cluster: row.cluster, value: difference })
        })
        .collect();
    estimate(&samples)
}

/// Formats the figures as a text table.
pub fn table(figures: &[Figures]) -> String {
    let percent = |value: &Option<Estimate>| match value {
        Some(e) => format!("{:5.1} [{:5.1} {:5.1}]", 100.0 * e.mean, 100.0 * e.low, 100.0 * e.high),
        None => String::new(),
    };
    let mut out = String::new();
    let mut line = |cells: [&str; 9]| {
        let [arm, score, recall, ln_p, accepted, n, prompt, faults, failed] = cells;
        let written = writeln!(
            out,
            "{arm:<44} {score:>20} {recall:>20} {ln_p:>20} {accepted:>20} {n:>6} {prompt:>7} {faults:>14} {failed:>6}"
        );
        written.expect("writing to a String cannot fail");
    };
    let mut before: Option<(&str, &str, usize)> = None;
    for figure in figures {
        let key = (figure.key.suite.as_str(), figure.key.group.as_str(), figure.key.length);
        if before != Some(key) {
            let title = match key {
                (suite, group, 0) => format!("{suite} {group}"),
                (suite, group, length) => format!("{suite} {group}, {length} tokens"),
            };
            line([""; 9]);
            let heads = ["score %", "recall %", "ln p of right", "accepted %", "cases", "prompt"];
            let [score, recall, ln_p, accepted, n, prompt] = heads;
            line([&title, score, recall, ln_p, accepted, n, prompt, "loop/garb/off", "failed"]);
            before = Some(key);
        }
        let n = figure.score.or(figure.recall).or(figure.right_ln_p).map_or(0, |e| e.n);
        let faults = match figure.score {
            Some(_) => format!("{}/{}/{}", figure.looped, figure.garbled, figure.off_question),
            None => String::new(),
        };
        let read = figure.score.or(figure.right_ln_p);
        let prompt = read.map_or_else(String::new, |_| format!("{:.0}", figure.prompt_tokens));
        let ln_p = figure
            .right_ln_p
            .map_or_else(String::new, |e| format!("{:6.3} [{:6.3} {:6.3}]", e.mean, e.low, e.high));
        let failed = if figure.failed > 0 { figure.failed.to_string() } else { String::new() };
        let [score, recall, accepted] = [&figure.score, &figure.recall, &figure.acceptance].map(percent);
        let n = n.to_string();
        line([&figure.key.arm, &score, &recall, &ln_p, &accepted, &n, &prompt, &faults, &failed]);
    }
    out
}
