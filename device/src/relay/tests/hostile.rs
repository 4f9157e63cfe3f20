//! Tests a hostile cloud: its reports alone never hold a device, and its numbers are limited.

use super::*;
use baton_protocol::{ErrorCode, ErrorDetail, ProgressEvent, ProgressStage};

/// Runs an answer that the device takes over after the cloud's first tokens; returns the notes and the total
/// time.
#[track_caller]
fn taken_over(script: Vec<(f64, RelayEvent)>, cloud: usize) -> (Vec<&'static str>, f64) {
    let mut sim = Sim::new(core(config(), 100), engine(60), script);
    let outcome = sim.run();
    assert_eq!((outcome.answer, outcome.ending), (expected(cloud, 60), Ending::Stop));
    (sim.notes(), outcome.timeline.total_ms.unwrap())
}

#[test]
fn the_same_token_again_is_no_sign_of_life() {
    let mut script = vec![(300.0, mask_event()), (300.0, first_event(26))];
    script.extend((1..30_000).map(|i| (300.0 + 20.0 * f64::from(i), token_event(0))));
    let (notes, total_ms) = taken_over(script.clone(), 1);
    assert_eq!(notes, ["disorder", "cloud_silent"]);
    assert!(total_ms < 15_000.0, "{total_ms}");
    // Tokens far ahead, after a missing token that never comes.
    for (i, (_, event)) in script.iter_mut().enumerate().skip(2) {
        *event = token_event(2 + i % 24);
    }
    let (_, total_ms) = taken_over(script.clone(), 1);
    assert!(total_ms < 15_000.0, "{total_ms}");
    // Without a device the answer fails in time.
    let alone = RelayConfig { mode: RelayMode::CloudOnly, has_device: false, ..config() };
    let mut sim = Sim::new(core(alone, 100), engine(60), script);
    assert!(matches!(sim.run().ending, Ending::Failed(AnswerError::Cloud(CloudFault::Silent { .. }))));
    assert!(sim.core.cloud.last_at <= Millis::new(301.0));
}

#[test]
fn an_absurd_tau_is_not_believed() {
    for (scene_tau_ms, cloud_tau_ms) in [(100.0, 60_000.0), (60_000.0, 60_000.0), (f64::NAN, 60_000.0)] {
        let first = FirstEvent { tau_ms: cloud_tau_ms as f32, ..first(512) };
        let mut script =
            vec![(300.0, mask_event()), (300.0, RelayEvent::Cloud(AssistEvent::First(Box::new(first))))];
        script.extend((1..12).map(|i| (300.0 + 20.0 * i as f64, token_event(i))));
        let relay = RelayConfig { tau_ms: scene_tau_ms, ..config() };
        let outcome = Sim::new(core(relay, 100), engine(60), script).run();
        assert_eq!(outcome.answer, expected(12, 60));
        assert_eq!(outcome.timeline.tau_ms, 1_000.0);
        let at_ms = outcome.timeline.shown[12].at_ms;
        assert!(at_ms <= 300.0 + 13.0 * 1_000.0, "token 12 after {at_ms} ms");
    }
}

#[test]
fn tokens_that_drip_do_not_hold_a_device_that_is_faster() {
    let mut script = vec![(300.0, mask_event()), (300.0, first_event(512))];
    script.extend((1..500).map(|i| (300.0 + 1_900.0 * i as f64, token_event(i))));
    let mut sim = Sim::new(core(config(), 100), engine(60), script);
    let outcome = sim.run();
    let cloud = outcome.timeline.tokens_from(Source::Cloud);
    assert!(cloud <= 4, "{cloud} tokens by the cloud");
    assert_eq!(outcome.answer, expected(cloud, 60));
    assert_eq!(sim.notes(), ["cloud_silent"]);
}

fn progress(stage: ProgressStage, computed: u64, total: u64) -> RelayEvent {
    let event = ProgressEvent { stage, computed, total, eta_ms: Some(1e6) };
    RelayEvent::Cloud(AssistEvent::Progress(event))
}

#[test]
fn only_a_prompt_that_goes_on_keeps_a_cloud_alive() {
    let alone = || RelayConfig { mode: RelayMode::CloudOnly, has_device: false, ..config() };
    let run = |script| Sim::new(core(alone(), 26), engine(60), script).run().ending;
    let at = |i: u64| 2_000.0 * i as f64;
    // A long prompt: one minute, with a report every two seconds.
    let mut script: Vec<_> =
        (1..=30).map(|i| (at(i), progress(ProgressStage::Prefill, 1_000 * i, 30_000))).collect();
    script.extend(good_cloud(26).into_iter().map(|(after, event)| (60_000.0 + after, event)));
    assert_eq!(run(script), Ending::Length);
    // Reports without progress: a queue, a prompt that stands still, one that is too slow, one that grows.
    for word in [
        (|_| progress(ProgressStage::Queue, 0, 30_000)) as fn(u64) -> RelayEvent,
        |_| progress(ProgressStage::Prefill, 29_999, 30_000),
        |i| progress(ProgressStage::Prefill, i, 30_000),
        |i| progress(ProgressStage::Prefill, 1_000 * i, 2_000 * i),
    ] {
        let script: Vec<_> = (1..20_000).map(|i| (at(i), word(i))).collect();
        let mut sim = Sim::new(core(alone(), 26), engine(60), script);
        let ending = sim.run().ending;
        assert!(
            matches!(ending, Ending::Failed(AnswerError::Cloud(CloudFault::Silent { .. }))),
            "{ending:?}"
        );
        assert!(sim.now() <= 25_000.0, "{}", sim.now());
    }
}

#[test]
fn a_clouds_own_words_and_times_are_bounded() {
    let detail = |code, retry_after_ms| ErrorDetail {
        code,
        message: "x".repeat(100_000),
        kind: String::new(),
        param: None,
        retry_after_ms,
    };
    let overloaded = fault_of(429, &detail(ErrorCode::Overloaded, Some(u64::MAX)));
    let reason = "x".repeat(400);
    let retry_after_ms = Some(3_600_000);
    assert_eq!(overloaded, CloudFault::Overloaded { status: 429, reason, retry_after_ms });
    let CloudFault::Refused { message, .. } = fault_of(0, &detail(ErrorCode::Internal, None)) else {
        panic!("it is refused")
    };
    assert_eq!(message.len(), 400);
    let first = FirstEvent { assist_bound_by: "\u{1b}[2J".repeat(9_999), ..first(26) };
    let mut script = good_cloud(26);
    script[1].1 = RelayEvent::Cloud(AssistEvent::First(Box::new(first)));
    let outcome = Sim::new(core(config(), 100), engine(60), script).run();
    let bound_by = outcome.timeline.assist_bound_by.unwrap();
    assert!(bound_by.chars().count() == 64 && !bound_by.contains('\u{1b}'), "{bound_by:?}");
}

#[test]
fn who_waits_is_told_at_least_every_two_seconds() {
    // A device alone, and one that waits for a cloud that reports its progress.
    let alone = RelayConfig {
        mode: RelayMode::DeviceOnly,
        cost: DeviceCost { prefill_ms_per_token: 25.0, ..config().cost },
        ..config()
    };
    let mut sim = Sim::new(core(alone, 100), engine(30), Vec::new());
    sim.slowness = 10.0;
    let first_ms = sim.run().timeline.ttft_user_ms.unwrap();
    assert!(first_ms > 8_000.0, "{first_ms}");
    let told: Vec<f64> = sim.progress.iter().map(|(at, _)| *at).take_while(|at| *at <= first_ms).collect();
    let silent = told.windows(2).map(|two| two[1] - two[0]).fold(first_ms - told.last().unwrap(), f64::max);
    assert!(told[0] < 100.0 && silent <= 2_000.0, "{silent} {told:?}");
    let progress = |at: usize| sim.progress[at].1;
    assert!(
        progress(1).computed <= progress(told.len() - 1).computed && progress(1).source == Source::Device
    );
    let eta_ms = progress(told.len() / 2).eta_ms.unwrap();
    let really_ms = first_ms - told[told.len() / 2];
    assert!((0.5..2.0).contains(&(eta_ms / really_ms)), "{eta_ms} for {really_ms}");

    let cloud = RelayConfig { mode: RelayMode::CloudOnly, has_device: false, ..config() };
    let mut script = vec![(2_000.0, super::hostile::progress(ProgressStage::Queue, 0, 9_000))];
    script.extend(good_cloud(26).into_iter().map(|(after, event)| (9_000.0 + after, event)));
    let mut sim = Sim::new(core(cloud, 26), engine(30), script);
    sim.run();
    let told: Vec<_> = sim.progress.iter().map(|(at, told)| (*at, told.source, told.eta_ms)).collect();
    assert_eq!(told[0], (2_000.0, Source::Cloud, Some(1e6)));
    assert_eq!(told[1], (4_000.0, Source::Cloud, Some(1e6 - 2_000.0)), "it is told again, by the clock");
    assert!(told.len() >= 4 && told.last().unwrap().0 < 9_300.0, "{told:?}");
}
