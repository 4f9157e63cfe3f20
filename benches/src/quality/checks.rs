//! The checks on the results.

use baton_baselines::Ranking;
use baton_eval::stats::{Estimate, estimate};
use baton_eval::store::Row;
use baton_eval::suite::facts::Kind;
use baton_eval::summary::{fitting_recall, paired, samples};

use super::{
    ASSIST_TOKENS, BM25, DEFAULT, FULL, JUDGED, LENGTHS, OTHER, PAPER, PHONE, RANDOM, RATIOS, WINDOWED,
};
use crate::report::Report;

/// Minimum gold recall of the default mode for each r.
const RECALL_MIN: [f64; 3] = [0.90, 0.98, 0.995];
/// BM25 is weak on a set if its recall at r = 0.1 is at most this, because words do not match.
const BM25_WEAK: f64 = 0.85;
/// Kinds whose answers are checked: those that models of this size can answer.
const ANSWERED: [Kind; 3] = [Kind::Short, Kind::Long, Kind::Distractor];
/// Maximum loss of a device with full attention at r = 0.25.
const LOSS_MAX: f64 = 0.01;
/// Maximum gain of a device with full attention at lengths for which [`WINDOW_GAIN_MIN`] is checked.
const GAIN_MAX: f64 = 0.02;
/// Minimum gain of a device with a window.
const WINDOW_GAIN_MIN: f64 = 0.15;
/// Minimum length for which the gain of a device with a window is checked.
const WINDOW_LOSES_FROM: usize = 2048;

fn mask(ranking: Ranking, ratio: f32) -> String {
    format!("mask:{ranking}@{ratio}")
}

fn relay(device: &str, ratio: f32, tokens: usize) -> String {
    format!("relay:{device}:attention@{ratio}:{tokens}:cloud")
}

fn of_arm<'a>(rows: &[&'a Row], arm: &str) -> Vec<&'a Row> {
    rows.iter().copied().filter(|row| row.arm == arm).collect()
}

/// Returns the rows of one group and length.
fn subset<'a>(rows: &[&'a Row], kind: Kind, length: usize) -> Vec<&'a Row> {
    rows.iter().copied().filter(|row| row.group == kind.as_str() && row.length == length).collect()
}

fn percent(value: Option<Estimate>) -> String {
    value.map_or_else(String::new, |e| {
        format!("{:.1} [{:.1} {:.1}]", 100.0 * e.mean, 100.0 * e.low, 100.0 * e.high)
    })
}

fn recall(rows: &[&Row], ranking: Ranking, ratio: f32) -> Option<Estimate> {
    estimate(&samples(&of_arm(rows, &mask(ranking, ratio)), fitting_recall))
}

/// Checks the recall of gold sentences.
pub(super) fn masks(report: &mut Report, rows: &[&Row]) {
    let names: Vec<String> = JUDGED.iter().map(Ranking::to_string).collect();
    let mut header = vec!["questions, tokens, r", "cases"];
    header.extend(names.iter().map(String::as_str));
    let mut lines = Vec::new();
    let mut failed = Failed::default();
    for kind in Kind::ALL {
        for length in LENGTHS {
            let own = subset(rows, kind, length);
            let weak = recall(&own, BM25, RATIOS[0]).is_some_and(|bm25| bm25.mean <= BM25_WEAK);
            for ratio in RATIOS {
                let Some(default) = recall(&own, DEFAULT, ratio) else { continue };
                let mut line = vec![format!("{}, {length}, {ratio}", kind.as_str()), default.n.to_string()];
                line.extend(JUDGED.iter().map(|&ranking| percent(recall(&own, ranking, ratio))));
                lines.push(line);
                let words_fail = weak && matches!(kind, Kind::TwoHop | Kind::Paraphrase);
                failed.count(&own, ratio, default, words_fail);
            }
        }
    }
    report.table("recall of gold sentences, %", &header, &lines);
    for (ratio, least) in RATIOS.into_iter().zip(RECALL_MIN) {
        let all = recall(rows, DEFAULT, ratio).map_or(f64::NAN, |e| e.mean);
        report.check_at_least(format!("gold recall at r = {ratio}"), all, least);
    }
    report.check_equal("sets below bm25 by more than the interval", failed.below_bm25, 0.0);
    report.check_at_least("sets where words do not match", failed.weak_sets, 1.0);
    report.check_equal("of these, not above bm25", failed.not_above_bm25, 0.0);
    report.check_equal("sets not over paper", failed.not_over[0], 0.0);
    report.check_equal("sets not over random", failed.not_over[1], 0.0);
}

#[derive(Default)]
struct Failed {
    below_bm25: f64,
    weak_sets: f64,
    not_above_bm25: f64,
    not_over: [f64; 2],
}

impl Failed {
    /// Counts the failures of one set at one r. `words_fail`: BM25 is weak on it at the smallest r.
    fn count(&mut self, rows: &[&Row], ratio: f32, default: Estimate, words_fail: bool) {
        let arm = mask(DEFAULT, ratio);
        let over = |other: Ranking| paired(rows, [&arm, &mask(other, ratio)], fitting_recall);
        let add = |count: &mut f64, failed: bool| *count += f64::from(u8::from(failed));
        let perfect = default.mean >= 1.0;
        if let Some(gap) = over(BM25) {
            add(&mut self.below_bm25, gap.high < 0.0);
            if words_fail && ratio == RATIOS[0] {
                self.weak_sets += 1.0;
                add(&mut self.not_above_bm25, gap.mean <= 0.0);
            }
        }
        for (count, other) in self.not_over.iter_mut().zip([PAPER, RANDOM]) {
            // If all gold sentences are found, no better result is possible.
            add(count, over(other).is_some_and(|gap| gap.mean <= 0.0) && !perfect);
        }
    }
}

/// Checks the exact match of answers.
pub(super) fn answers(report: &mut Report, rows: &[&Row]) {
    table(report, rows);
    let rows: Vec<&Row> =
        rows.iter().copied().filter(|row| ANSWERED.iter().any(|kind| kind.as_str() == row.group)).collect();
    let full = format!("device:{FULL}");
    let gap = |rows: &[&Row], a: &str, b: &str| paired(rows, [a, b], |row| row.score);
    let mean = |value: Option<Estimate>| value.map_or(f64::NAN, |e| e.mean);
    let quarter = mean(gap(&rows, &relay(FULL, 0.25, 1), &full));
    report.check_at_least("exact match, r = 0.25 less full prompt, full attention", quarter, -LOSS_MAX);
    for length in LENGTHS.into_iter().filter(|length| *length >= WINDOW_LOSES_FROM) {
        let own: Vec<&Row> = rows.iter().copied().filter(|row| row.length == length).collect();
        let windowed = mean(gap(&own, &relay(WINDOWED, 0.25, 1), &format!("device:{WINDOWED}")));
        report.check_at_least(format!("the same, window of 512, {length} tokens"), windowed, WINDOW_GAIN_MIN);
        let gone = mean(gap(&own, &relay(FULL, 0.25, 1), &full));
        report.check_at_most(format!("that advantage with full attention, {length} tokens"), gone, GAIN_MAX);
    }
    let tenth = relay(FULL, 0.1, 1);
    let fitting: Vec<&str> = of_arm(&rows, &tenth)
        .iter()
        .filter(|row| row.gold_fits != Some(false))
        .map(|row| row.case.as_str())
        .collect();
    let fits: Vec<&Row> = rows.iter().copied().filter(|row| fitting.contains(&row.case.as_str())).collect();
    let score = |rows: &[&Row], arm: &str| mean(estimate(&samples(&of_arm(rows, arm), |row| row.score)));
    let share = score(&fits, &tenth) / score(&fits, &full);
    report.check_at_least("exact match at r = 0.1 over full prompt, where gold fits", share, 0.93);
    larger_cloud(report, &rows);
}

/// Checks the answers of devices with a smaller model than the cloud's, and with another tokenizer.
fn larger_cloud(report: &mut Report, rows: &[&Row]) {
    let score =
        |arm: &str| estimate(&samples(&of_arm(rows, arm), |row| row.score)).map_or(f64::NAN, |e| e.mean);
    let arms = ASSIST_TOKENS.map(|tokens| relay(PHONE, 0.25, tokens));
    for (tokens, arm) in ASSIST_TOKENS.iter().zip(&arms) {
        report.check_at_least(
            format!("larger cloud model, L = {tokens}: relay over cloud alone"),
            score(arm) / score("cloud"),
            0.85,
        );
        let above = paired(rows, [arm, &format!("device:{PHONE}")], |row| row.score);
        let above = above.map_or(f64::NAN, |e| e.mean);
        report.check(
            format!("larger cloud model, L = {tokens}: relay less device alone"),
            above,
            "> 0",
            above > 0.0,
        );
    }
    for pair in arms.windows(2) {
        let gap = paired(rows, [&pair[1], &pair[0]], |row| row.score);
        let high = gap.map_or(f64::NAN, |e| e.high);
        report.check_at_least("larger cloud model: gain by the next L, upper end", high, 0.0);
    }
    let [own, relayed] = [format!("device:{OTHER}"), relay(OTHER, 0.25, 8)];
    let gap = paired(rows, [&relayed, &own], |row| row.score).map_or(f64::NAN, |e| e.mean);
    report.check_at_least("another tokenizer on the device: relay less device alone", gap, 0.0);
}

fn table(report: &mut Report, rows: &[&Row]) {
    let mut arms: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| row.score.is_some() || row.error.is_some()) {
        if !arms.contains(&row.arm.as_str()) {
            arms.push(&row.arm);
        }
    }
    let kinds = Kind::ALL.map(Kind::as_str);
    let mut header = vec!["arm, tokens"];
    header.extend(kinds);
    let mut lines = Vec::new();
    for length in LENGTHS {
        for arm in &arms {
            let mut line = vec![format!("{arm}, {length}")];
            line.extend(Kind::ALL.iter().map(|&kind| {
                let own = of_arm(&subset(rows, kind, length), arm);
                percent(estimate(&samples(&own, |row| row.score)))
            }));
            lines.push(line);
        }
    }
    report.table("exact match (paraphrase: value contained), %", &header, &lines);
}
