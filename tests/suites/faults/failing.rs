//! A device whose sequences fail for good after some steps, like those of a ring that has lost all its
//! devices.

use baton_device::relay::{Ending, Source};
use baton_e2e::{
    pair::{Pair, demo_model},
    simulation::LineFault,
};
use baton_engine::{Engine, EngineOptions, SequenceError, Sequences, StepControl, StepSeq};
use baton_protocol::Corrector;
use baton_synthetic::Stepped;

use super::{ASSIST_TOKENS, TOKENS_MAX, ask, check_shown, continuation_by, line, taken_over};

/// Makes a device that fails after `steps` steps, and a cloud with another model.
fn pair(steps: usize) -> Pair {
    let cloud = demo_model("demo-cloud.gguf").expect("the demo model is in the checkout");
    let device = demo_model("demo-device.gguf").expect("the demo model is in the checkout");
    let options = EngineOptions { kv_tokens: 4096, ..EngineOptions::default() };
    let engine = Engine::new(device, options).expect("an engine for the device");
    let mut steps_left = steps;
    let step = move |engine: &mut Engine, batch: &[StepSeq<'_>], control: &mut dyn StepControl| {
        let Some(left) = steps_left.checked_sub(1) else {
            return Err(SequenceError::Ring(std::io::Error::other("nobody is left to compute").into()));
        };
        steps_left = left;
        Sequences::step(engine, batch, control)
    };
    let failing = Stepped::new(engine, step);
    Pair::over(cloud, Box::new(failing), 0.25, Corrector::Cloud).expect("set up both sides")
}

/// Checks the answer's parts. Before the cloud was asked to go on, the tokens are the cloud's and the
/// device's own. After that, they are what the cloud's model alone writes after that text.
fn check(fault: LineFault, steps: usize) -> Option<usize> {
    let what = format!("{fault:?}, the device fails after {steps} steps");
    let mut pair = pair(steps);
    let (_, question) = ask(11, 400);
    let told = pair.relay(&question, line(fault)).expect("the answer ends");
    check_shown(&told, &what);
    let (segments, cloud_ids) = taken_over(&told, &question.segments);
    let by_device = told.device_tokens.len();
    let Some(accepted) = &told.continued_from else {
        assert!(by_device > 0, "nobody else finishes an answer, {what}");
        return None;
    };
    if by_device > 0 {
        let own = continuation_by(pair.device.model(), &segments, &cloud_ids);
        assert!(own.starts_with(accepted.as_str()), "{accepted:?} of {own:?}, {what}");
    }
    let cloud = demo_model("demo-cloud.gguf").expect("the demo model is in the checkout");
    let ids = cloud.tokenizer().encode(accepted);
    let want = continuation_by(&cloud, &question.segments, &ids);
    assert_eq!(told.outcome.answer, want, "{what}");
    let notes: Vec<&str> = told.notes.iter().map(baton_device::relay::Note::code).collect();
    assert_eq!(notes.iter().filter(|note| **note == "cloud_continues").count(), 1, "{notes:?}, {what}");
    let shown = &told.outcome.timeline.shown;
    assert_eq!(shown.iter().filter(|s| s.source == Source::Device).count(), by_device, "{what}");
    assert!(shown.len() <= TOKENS_MAX && told.outcome.ending != Ending::Cancelled, "{what}");
    Some(by_device)
}

#[test]
fn a_device_that_fails_for_good_at_any_step_hands_the_answer_to_the_cloud() {
    let mut cuts = Vec::new();
    for steps in 0..64 {
        match check(LineFault::None, steps) {
            Some(by_device) => cuts.push(by_device),
            None => break,
        }
    }
    assert!(cuts.is_sorted(), "{cuts:?}");
    assert!(cuts[0] == 0 && cuts.last() > Some(&10), "before its first token, and behind many: {cuts:?}");
}

#[test]
fn a_cloud_whose_line_was_cut_is_asked_again_by_a_device_that_fails() {
    for cut in [1, 7, ASSIST_TOKENS as usize - 1] {
        // The device fails before the cut, or long after it.
        for steps in [0, 30, 37] {
            assert!(check(LineFault::CutOnceAt(cut), steps).is_some(), "cut at {cut}, {steps} steps");
        }
    }
    // Nothing had come from the cloud, so the device wrote everything until then.
    assert!(check(LineFault::CutOnceAt(0), 37) > Some(0));
}
