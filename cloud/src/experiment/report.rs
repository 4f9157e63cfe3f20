//! Compares the arms of an experiment: intervals, sample-ratio check, winner and guard rails.
//!
//! Always: all intervals of an experiment hold together at all times with probability 1 - [`ALPHA`]. For that
//! alpha is divided by the number of comparisons (Bonferroni). Guard rails and the sample-ratio check have
//! levels of their own.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::metric::{Metric, Scale};
use super::plan::{Experiment, Guard, StoppedArm};
use super::sequential::{self, Effect};
use super::sums::{ArmSums, UnitCount};

/// Probability that any interval of an experiment ever misses the truth.
pub const ALPHA: f64 = 0.05;
/// Probability that a guard rail ever stops an arm of an experiment that is not worse than allowed.
pub const GUARD_ALPHA: f64 = 0.05;
/// Probability that the sample-ratio check ever blames an experiment without fault. Such checks are strict
/// because a fault is rare and a blamed experiment is lost (Fabijan et al. 2019, "Diagnosing sample ratio
/// mismatch in online controlled experiments", use thresholds of 0.01 and below). The check is done at each
/// look, so the threshold of chi-square is the always-valid one and not its quantile.
pub const RATIO_ALPHA: f64 = 0.001;
/// The prior variance of deviations in the sample-ratio check: a standard deviation of a tenth of a share's
/// own, as from 50 % to 45 % or 55 %.
const RATIO_PRIOR: f64 = 0.01;
/// Units of all arms that must have been seen before their shares are checked.
const RATIO_UNITS_MIN: f64 = 200.0;

/// What is known of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Report {
    /// The arms, in the order of the plan.
    pub arms: Vec<ArmReport>,
    /// Whether the arms have the shares of devices that their weights ask for.
    pub sample_ratio: SampleRatio,
    /// The arm that is shown to be the best by the goal; null if none is.
    pub winner: Option<String>,
    /// Why there is no winner, or what the winner is shown to be, in one sentence.
    pub verdict: String,
}

/// One arm.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ArmReport {
    /// Its name.
    pub name: String,
    /// Estimated number of devices, or of requests that named none.
    pub units: u64,
    /// Why it was stopped; null if it takes part.
    pub stopped: Option<String>,
    /// Its metrics.
    pub metrics: Vec<MetricReport>,
}

/// One metric of an arm.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct MetricReport {
    /// Which one.
    pub metric: Metric,
    /// Answers that have it.
    pub answers: u64,
    /// Mean over these answers, in milliseconds or as a share; null if there are none.
    pub mean: Option<f64>,
    /// Change against the control: relative for times (-0.1: 10 % less), a difference for shares. Null for
    /// the control, for stopped arms, and while there is too little data.
    pub change: Option<f64>,
    /// Lower end of the interval of the change.
    pub low: Option<f64>,
    /// Upper end of the interval of the change.
    pub high: Option<f64>,
    /// What the interval shows.
    pub finding: Finding,
}

/// What an interval shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Finding {
    /// Nothing yet.
    Open,
    /// The arm is better than the control.
    Better,
    /// The arm is worse than the control.
    Worse,
}

impl Finding {
    /// Returns its name in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Finding::Open => "open",
            Finding::Better => "better",
            Finding::Worse => "worse",
        }
    }
}

/// The result of the sample-ratio check.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct SampleRatio {
    /// Chi-square of the units of all arms that take part; null if it was not computed.
    pub chi_square: Option<f64>,
    /// The value that it must not exceed at this number of units.
    pub limit: Option<f64>,
    /// What it shows.
    pub result: RatioResult,
}

impl SampleRatio {
    /// Says in a sentence what the check shows.
    #[must_use]
    pub fn text(&self) -> String {
        let shown = match self.result {
            RatioResult::TooFew => "Shares of devices are not checked yet: there are too few",
            RatioResult::Fits => "The arms have the shares of devices that their weights ask for",
            RatioResult::Mismatch => "The arms do not have the shares of devices that their weights ask for",
            RatioResult::TooMany => "Shares of devices are not checked: there are too many to count",
        };
        match (self.chi_square, self.limit) {
            (Some(chi_square), Some(limit)) => {
                format!("{shown} (chi-square {chi_square:.1}, limit {limit:.1}).")
            }
            _ => format!("{shown}."),
        }
    }
}

/// What the sample-ratio check shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RatioResult {
    /// There are too few units, or only one arm is left.
    TooFew,
    /// The shares fit the weights.
    Fits,
    /// They do not: something loses or adds devices of one arm, so that arms cannot be compared.
    Mismatch,
    /// There are too many units to count them.
    TooMany,
}

/// An arm that a guard rail stops.
#[derive(Debug, Clone, PartialEq)]
pub struct Harm {
    /// The arm.
    pub arm: String,
    /// The guard rail.
    pub guard: Guard,
    /// The effect, with its interval.
    pub effect: Effect,
}

impl Harm {
    /// Returns the arm with the reason that the audit log and the console show.
    #[must_use]
    pub fn stopped(&self) -> StoppedArm {
        let Guard { metric, worst } = self.guard;
        let Effect { change, low, high } = self.effect;
        let show = |value: f64| match metric.scale() {
            Scale::Time => format!("{:+.1} %", value * 100.0),
            Scale::Share => format!("{:+.1} points", value * 100.0),
        };
        let allowed = if metric.more_is_better() { -worst } else { worst };
        let (low, high, change, allowed) = (show(low), show(high), show(change), show(allowed));
        let metric = metric.as_str();
        let reason =
            format!("guard rail: {metric} changed by {change} ({low} to {high}), allowed is {allowed}");
        StoppedArm { name: self.arm.clone(), reason }
    }
}

/// The sums of an experiment by the names of its arms.
pub type Sums = BTreeMap<String, ArmSums>;

/// Makes the report of an experiment.
#[must_use]
pub fn report(experiment: &Experiment, sums: &Sums) -> Report {
    let plan = &experiment.plan;
    let none = ArmSums::default();
    let of = |name: &str| sums.get(name).unwrap_or(&none);
    let control = of(&plan.arms[0].name);
    let comparisons = (plan.arms.len() - 1) * Metric::ALL.len();
    let arms = plan.arms.iter().enumerate().map(|(at, arm)| {
        let stopped = experiment.stopped_arms.iter().find(|stopped| stopped.name == arm.name);
        let own = of(&arm.name);
        let is_compared = at > 0 && stopped.is_none();
        let metric = |metric: Metric| {
            let pair = control.mean(metric).zip(own.mean(metric)).filter(|_| is_compared);
            let effect = pair.and_then(|(control, arm)| {
                sequential::compare(metric, &control, &arm, ALPHA / comparisons as f64)
            });
            metric_report(metric, own.total(metric), effect)
        };
        ArmReport {
            name: arm.name.clone(),
            units: own.units_about().round() as u64,
            stopped: stopped.map(|stopped| stopped.reason.clone()),
            metrics: Metric::ALL.into_iter().map(metric).collect(),
        }
    });
    let arms: Vec<ArmReport> = arms.collect();
    let sample_ratio = sample_ratio(experiment, sums);
    let (winner, verdict) = verdict(plan.goal, &arms, sample_ratio.result);
    Report { arms, sample_ratio, winner, verdict }
}

fn metric_report(metric: Metric, (answers, total): (u64, f64), effect: Option<Effect>) -> MetricReport {
    let finding = effect.map_or(Finding::Open, |Effect { low, high, .. }| {
        match (low > 0.0, high < 0.0, metric.more_is_better()) {
            (true, _, true) | (_, true, false) => Finding::Better,
            (true, _, false) | (_, true, true) => Finding::Worse,
            (false, false, _) => Finding::Open,
        }
    });
    MetricReport {
        metric,
        answers,
        mean: (answers > 0).then(|| total / answers as f64),
        change: effect.map(|effect| effect.change),
        low: effect.map(|effect| effect.low),
        high: effect.map(|effect| effect.high),
        finding,
    }
}

/// Checks whether the arms that take part have the shares of units that their weights ask for.
///
/// Arms that were stopped are left out, because their units are not counted any more.
#[must_use]
pub fn sample_ratio(experiment: &Experiment, sums: &Sums) -> SampleRatio {
    let none = ArmSums::default();
    let arms = experiment.plan.arms.iter().filter(|arm| !experiment.is_stopped(&arm.name));
    let arms: Vec<(f64, &ArmSums)> =
        arms.map(|arm| (f64::from(arm.weight), sums.get(&arm.name).unwrap_or(&none))).collect();
    let all = |count: fn(&ArmSums) -> Option<UnitCount>| {
        arms.iter().map(|(weight, sums)| Some((*weight, count(sums)?))).collect::<Option<Vec<_>>>()
    };
    let result = |result| SampleRatio { chi_square: None, limit: None, result };
    let Some(counts) = all(ArmSums::units).or_else(|| all(ArmSums::sampled_units)) else {
        return result(RatioResult::TooMany);
    };
    let units: f64 = counts.iter().map(|(_, count)| count.units).sum();
    if counts.len() < 2 || units < RATIO_UNITS_MIN {
        return result(RatioResult::TooFew);
    }
    let weights: f64 = counts.iter().map(|(weight, _)| weight).sum();
    let inflation = counts.iter().map(|(_, count)| count.inflation).fold(1.0, f64::max);
    let part = |(weight, count): &(f64, UnitCount)| {
        let expected = units * weight / weights;
        (count.units - expected).powi(2) / (expected * inflation)
    };
    let chi_square: f64 = counts.iter().map(part).sum();
    let limit = sequential::bound(inflation / (units * RATIO_PRIOR), RATIO_ALPHA, counts.len() - 1);
    let shown = if chi_square > limit { RatioResult::Mismatch } else { RatioResult::Fits };
    SampleRatio { chi_square: Some(chi_square), limit: Some(limit), result: shown }
}

/// Returns the winner by the goal, and why it is that arm or none.
fn verdict(goal: Metric, arms: &[ArmReport], ratio: RatioResult) -> (Option<String>, String) {
    if ratio == RatioResult::Mismatch {
        let why = "The arms do not have the devices that their weights ask for, so they cannot be compared: \
                   look for errors, restarts or retries that only one arm has.";
        return (None, why.to_owned());
    }
    let of = |arm: &ArmReport| arm.metrics.iter().find(|report| report.metric == goal).cloned();
    let better = arms.iter().filter_map(|arm| {
        let report = of(arm)?;
        Some((arm, report.change?)).filter(|_| report.finding == Finding::Better)
    });
    let gain = |change: f64| if goal.more_is_better() { change } else { -change };
    let best = better.max_by(|(_, a), (_, b)| gain(*a).total_cmp(&gain(*b)));
    let name = goal.as_str();
    let Some((arm, change)) = best else {
        let why = if arms.iter().any(|arm| of(arm).is_some_and(|report| report.change.is_some())) {
            format!("No arm is shown to be better than the control by {name}.")
        } else {
            format!("There is too little data of {name} to compare the arms.")
        };
        return (None, why);
    };
    let worse: Vec<&str> = arm
        .metrics
        .iter()
        .filter(|report| report.finding == Finding::Worse)
        .map(|report| report.metric.as_str())
        .collect();
    let but = if worse.is_empty() { String::new() } else { format!(", but worse by {}", worse.join(", ")) };
    let change = change * 100.0;
    let unit = if goal.scale() == Scale::Time { "%" } else { "points" };
    let verdict = format!("`{}` is better than the control by {name}: {change:+.1} {unit}{but}.", arm.name);
    (Some(arm.name.clone()), verdict)
}

/// Returns the arms that are shown to be worse than a guard rail allows. Arms that were stopped before are
/// not among them. An arm is named once, by its first guard rail.
#[must_use]
pub fn harm(experiment: &Experiment, sums: &Sums) -> Vec<Harm> {
    let plan = &experiment.plan;
    let Some(control) = sums.get(&plan.arms[0].name) else { return Vec::new() };
    let comparisons = (plan.arms.len() - 1) * plan.guards.len();
    let running = plan.arms[1..].iter().filter(|arm| !experiment.is_stopped(&arm.name));
    let harmed = running.filter_map(|arm| {
        let own = sums.get(&arm.name)?;
        plan.guards.iter().find_map(|&guard| {
            let Guard { metric, worst } = guard;
            let (control, own) = (control.mean(metric)?, own.mean(metric)?);
            let effect = sequential::compare(metric, &control, &own, GUARD_ALPHA / comparisons as f64)?;
            let is_harm = if metric.more_is_better() { effect.high < -worst } else { effect.low > worst };
            is_harm.then(|| Harm { arm: arm.name.clone(), guard, effect })
        })
    });
    harmed.collect()
}

#[cfg(test)]
mod tests;
