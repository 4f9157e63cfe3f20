//! Checks which bound limits a plan, and the changes that the explanation suggests.

use self::phone::phone;
use super::*;
use crate::cost::{CloudCost, DeviceCost};
use crate::optimizer::{PromptShape, ScenePolicy, SlowDevice};

pub(crate) mod phone;

fn explained(change: impl FnOnce(&mut OptimizerInput)) -> (OptimizerInput, Explanation) {
    let mut input = phone();
    change(&mut input);
    (input, explain(&input).expect("the numbers are in range"))
}

fn find(explanation: &Explanation, knob: Knob) -> Option<&Relaxation> {
    explanation.relaxations.iter().find(|relaxation| relaxation.knob == knob)
}

/// Checks that every relaxation reaches the goal, and that a value slightly nearer does not.
#[track_caller]
fn check(input: &OptimizerInput, explanation: &Explanation) {
    let goal = explanation.goal.expect("there is a goal");
    for relaxation in &explanation.relaxations {
        assert!(reaches(goal, &relaxation.plan), "{relaxation:?}");
        let to = relaxation.to.expect("a moved figure has a value");
        let nearer = to + (relaxation.from - to) * 0.02 + (relaxation.from - to).signum() * to * 0.011;
        let plan = relay(&with(input, relaxation.knob, nearer)).expect("in range");
        assert!(!reaches(goal, &plan), "{nearer} would do: {relaxation:?}");
    }
}

#[test]
fn tau_binds() {
    let (input, explanation) = explained(|_| ());
    assert_eq!(explanation.plan.assist_tokens, 36);
    assert_eq!(explanation.goal, Some(Goal::FewerTokens { at_most: 27 }));
    check(&input, &explanation);
    // L = ceil(1.3 ceil(A / (tau - k_d))) <= 27 needs A <= 20 (tau - k_d): A = 2,602 ms, tau >= 132.6.
    assert_eq!(find(&explanation, Knob::Tau).and_then(|r| r.to), Some(133.0));
    let prefill = find(&explanation, Knob::DevicePrefill).and_then(|r| r.to).expect("a faster device helps");
    assert!((2.0 + prefill * 1_040.0) / 20.0 <= 100.0 - prefill && prefill > 1.8, "{prefill}");
    assert!(find(&explanation, Knob::Ratio).is_some_and(|r| r.plan.ratio < 0.25));
    assert!(find(&explanation, Knob::CloudDecode).is_none(), "a faster cloud does not make L smaller");
}

#[test]
fn the_cloud_binds() {
    let (input, occupied) = explained(|input| input.cloud.decode_ms = 80.0);
    assert_eq!((occupied.plan.bound_by, occupied.goal), (BoundBy::CloudOccupancy, Some(Goal::WholeMargin)));
    check(&input, &occupied);
    // 36 tokens: 35 gaps within 2,602 ms.
    assert_eq!(find(&occupied, Knob::CloudDecode).and_then(|r| r.to), Some(74.3));
    let (input, slow) = explained(|input| input.cloud.decode_ms = 130.0);
    assert_eq!((slow.plan.bound_by, slow.goal), (BoundBy::CloudDecode, Some(Goal::KeepTau)));
    check(&input, &slow);
    assert!(find(&slow, Knob::Tau).is_some() && find(&slow, Knob::CloudDecode).is_some());
}

#[test]
fn the_device_binds() {
    let (input, slow) = explained(|input| input.scene.tau_ms = 40.0);
    assert_eq!(slow.goal, Some(Goal::KeepTau));
    check(&input, &slow);
    assert!(find(&slow, Knob::DeviceDecode).is_some_and(|r| r.to.is_some_and(|to| to < 40.0)));
    let (_, prefill) = explained(|input| input.scene.tau_ms = 2.5);
    // No single value is enough if both prefill and decoding are too slow.
    assert_eq!((prefill.plan.bound_by, find(&prefill, Knob::DevicePrefill)), (BoundBy::DeviceTooSlow, None));
    let (_, alone) = explained(|input| input.device.prefill_ms_per_token = 0.1);
    assert_eq!((alone.goal, alone.relaxations.len()), (None, 0));
}

#[test]
fn settings_bind() {
    let free = |change: fn(&mut OptimizerInput), knob, to| {
        let (_, explanation) = explained(change);
        assert_eq!(explanation.goal, Some(Goal::Free));
        let relaxation = find(&explanation, knob).expect("the setting is named");
        assert_eq!((relaxation.to, relaxation.plan.assist_tokens), (to, 36));
    };
    free(|i| i.scene.assist_floor = 50, Knob::AssistFloor, Some(36.0));
    free(|i| i.load = 1.0, Knob::Load, None);
    free(|i| i.scene.assist_tokens = Some(60), Knob::AssistTokens, None);
    free(|i| i.scene.answer_tokens_max = 8, Knob::AnswerTokens, Some(36.0));
    // A fixed L that is too small for tau: the explanation gives the smallest sufficient L.
    let (input, short) = explained(|input| input.scene.assist_tokens = Some(12));
    assert_eq!(short.goal, Some(Goal::KeepTau));
    check(&input, &Explanation { relaxations: vec![*find(&short, Knob::Tau).unwrap()], ..short.clone() });
    assert_eq!(find(&short, Knob::AssistTokens).map(|r| r.plan.assist_tokens), Some(27));
}

#[test]
fn refinement_does_not_pay() {
    let (input, whole) = explained(|input| {
        input.scene.xi = 0.99;
        input.scene.tau_ms = 200.0;
    });
    assert_eq!((whole.plan.verdict, whole.goal), (Verdict::NoRefinement, Some(Goal::Refine)));
    check(&input, &whole);
    assert!(find(&whole, Knob::Ratio).is_some_and(|r| r.to.is_some_and(|to| to > 0.9)));
}
