//! Small cases with planted sums. The suite `experiments` has simulated devices.

use super::*;
use crate::experiment::assign::Unit;
use crate::experiment::plan::{Arm, Plan, State};
use serde_json::json;

fn experiment(arms: &[(&str, u32)], guards: Vec<Guard>) -> Experiment {
    let arms = arms.iter().enumerate().map(|(at, (name, weight))| Arm {
        name: (*name).to_owned(),
        weight: *weight,
        overrides: if at == 0 {
            Default::default()
        } else {
            json!({ "mode": "bm25" }).as_object().cloned().unwrap()
        },
    });
    let plan = Plan { scene: "s".into(), goal: Metric::TtftMs, arms: arms.collect(), guards };
    Experiment {
        id: "e".into(),
        revision: 1,
        plan,
        state: State::Running,
        stopped_arms: Vec::new(),
        promoted: None,
        created_ms: 0,
        updated_ms: 0,
        updated_by: String::new(),
    }
}

/// Makes sums of this many units of one answer each. Values are spread evenly by 40 % around `ms`.
fn arm(name: &str, units: usize, ms: f64, failures: usize) -> (String, ArmSums) {
    let mut sums = ArmSums::default();
    for at in 0..units {
        let cell = Unit::device(0, &format!("{name} {at}")).cell("e");
        let bucket = sums.bucket(cell.bucket);
        bucket.mark(cell);
        bucket.add(Metric::TtftMs, ms * (0.8 + 0.4 * (at % 101) as f64 / 100.0));
        bucket.add(Metric::Failures, if at < failures { 1.0 } else { 0.0 });
    }
    (name.to_owned(), sums)
}

#[test]
fn a_faster_arm_wins() {
    let experiment = experiment(&[("control", 1), ("fast", 1), ("same", 1)], Vec::new());
    let sums = Sums::from([
        arm("control", 1_000, 200.0, 0),
        arm("fast", 1_020, 150.0, 0),
        arm("same", 980, 200.0, 0),
    ]);
    let report = report(&experiment, &sums);
    assert_eq!(report.winner.as_deref(), Some("fast"), "{report:?}");
    assert_eq!(report.sample_ratio.result, RatioResult::Fits);
    assert!(report.verdict.contains("better than the control by ttft_ms: -25"), "{}", report.verdict);
    let findings: Vec<Finding> = report.arms.iter().map(|arm| arm.metrics[0].finding).collect();
    assert_eq!(findings, [Finding::Open, Finding::Better, Finding::Open]);
    assert!(harm(&experiment, &sums).is_empty());
}

#[test]
fn a_winner_needs_the_right_shares() {
    let experiment = experiment(&[("control", 1), ("fast", 1)], Vec::new());
    let sums = Sums::from([arm("control", 1_500, 200.0, 0), arm("fast", 1_000, 150.0, 0)]);
    let shown = report(&experiment, &sums);
    assert_eq!((shown.winner, shown.sample_ratio.result), (None, RatioResult::Mismatch));
    assert!(shown.verdict.contains("cannot be compared"), "{}", shown.verdict);
}

#[test]
fn nothing_is_said_of_nothing() {
    let experiment = experiment(&[("control", 1), ("fast", 1)], Vec::new());
    let shown = report(&experiment, &Sums::new());
    assert_eq!((shown.winner, shown.sample_ratio.result), (None, RatioResult::TooFew));
    assert_eq!(shown.verdict, "There is too little data of ttft_ms to compare the arms.");
    assert_eq!(shown.arms[1].units, 0);
}

#[test]
fn a_guard_rail_names_the_harm() {
    let guards =
        vec![Guard { metric: Metric::TtftMs, worst: 0.1 }, Guard { metric: Metric::Failures, worst: 0.02 }];
    let mut experiment = experiment(&[("control", 1), ("slow", 1), ("failing", 1)], guards);
    let sums = Sums::from([
        arm("control", 1_000, 200.0, 10),
        arm("slow", 1_000, 260.0, 10),
        arm("failing", 1_000, 205.0, 200),
    ]);
    let harms = harm(&experiment, &sums);
    let named: Vec<(&str, Metric)> =
        harms.iter().map(|harm| (harm.arm.as_str(), harm.guard.metric)).collect();
    assert_eq!(named, [("slow", Metric::TtftMs), ("failing", Metric::Failures)]);
    let reason = harms[1].stopped().reason;
    assert!(reason.starts_with("guard rail: failures changed by +19.0 points ("), "{reason}");
    experiment.stopped_arms = harms.iter().map(Harm::stopped).collect();
    assert!(harm(&experiment, &sums).is_empty());
    // Only the control is left, so there is nothing to compare.
    let shown = report(&experiment, &sums);
    assert_eq!((shown.winner, shown.sample_ratio.result), (None, RatioResult::TooFew));
    assert!(shown.arms[1].stopped.as_deref().is_some_and(|why| why.contains("ttft_ms")));
}
