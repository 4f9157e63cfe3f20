//! Tests the faults of cloud and device, one by one.

use super::*;
use crate::local::{EngineReport, PromptId};
use crate::relay::note::AnswerError;

fn lost(fault: CloudFault) -> RelayEvent {
    RelayEvent::CloudLost(fault)
}

/// Runs the relay against a script; the answer must end normally with the cloud's first `cloud` tokens.
#[track_caller]
fn check(script: Vec<(f64, RelayEvent)>, cloud: usize, notes: &[&str]) -> Outcome {
    let mut sim = Sim::new(core(config(), 100), engine(60), script);
    let outcome = sim.run();
    assert_eq!(outcome.ending, Ending::Stop);
    assert_eq!(outcome.answer, expected(cloud, 60));
    assert_eq!(sim.notes(), notes);
    outcome
}

#[test]
fn fault_1_the_cloud_cannot_be_reached() {
    for at in [0.0, 40.0, 900.0] {
        let outcome = check(
            vec![(at, lost(CloudFault::Unreachable { reason: "no connection".into() }))],
            0,
            &["cloud_unreachable"],
        );
        assert_eq!(outcome.timeline.ttft_cloud_ms, None);
    }
}

#[test]
fn fault_2_a_silent_cloud_is_hedged() {
    let outcome = check(Vec::new(), 0, &["cloud_too_slow"]);
    let own_ms = outcome.timeline.ttft_user_ms.unwrap();
    // The device begins at 1,500 ms at the latest; the whole prompt takes 2.5 ms a token.
    let whole_ms = 2.5 * outcome.timeline.prompt_tokens.unwrap() as f64;
    assert!(own_ms <= 1_500.0 + whole_ms + 100.0, "{own_ms} ms for {whole_ms} ms of work");
    // A cloud that answers late is ignored.
    let mut late = good_cloud(26);
    late.iter_mut().for_each(|(at, _)| *at += 30_000.0);
    check(late, 0, &["cloud_too_slow"]);
}

#[test]
fn fault_2_a_cloud_that_answers_during_the_hedge_wins() {
    let mut script = good_cloud(26);
    script.iter_mut().for_each(|(at, _)| *at += 1_400.0);
    check(script, 26, &[]);
}

#[test]
fn fault_3_the_cloud_dies_at_every_token() {
    for died in 1..=26 {
        let mut script = good_cloud(26);
        script.truncate(died + 1);
        script.push((300.0 + 20.0 * died as f64, lost(CloudFault::Disconnected)));
        let notes: &[&str] = if died == 26 { &[] } else { &["cloud_disconnected"] };
        let outcome = check(script, died, notes);
        assert_eq!(outcome.timeline.tokens_from(Source::Cloud), died);
    }
}

#[test]
fn fault_4_a_cloud_that_stalls_is_cut_off_when_the_device_is_ready() {
    for stalled in [1, 5, 20] {
        let mut script = good_cloud(26);
        script.truncate(stalled + 1);
        let outcome = check(script, stalled, &["cloud_silent"]);
        assert_eq!(outcome.timeline.tokens_from(Source::Cloud), stalled);
    }
    // A slow but steady cloud is not cut off.
    let mut script = vec![(300.0, mask_event()), (300.0, first_event(26))];
    script.extend((1..26).map(|i| (300.0 + 110.0 * i as f64, token_event(i))));
    script.push((3_100.0, end_event(EndReason::Cap, 26)));
    check(script, 26, &[]);
}

#[test]
fn fault_5_refusals_are_answered_locally_at_once() {
    let overloaded = CloudFault::Overloaded { status: 429, reason: "busy".into(), retry_after_ms: Some(800) };
    let outcome = check(vec![(30.0, lost(overloaded))], 0, &["cloud_overloaded"]);
    let whole_ms = 2.5 * outcome.timeline.prompt_tokens.unwrap() as f64;
    assert!(outcome.timeline.ttft_user_ms.unwrap() <= 30.0 + whole_ms + 50.0);
    check(vec![(30.0, lost(CloudFault::SignIn { status: 401 }))], 0, &["sign_in"]);
    assert!(CloudFault::SignIn { status: 401 }.to_string().contains("sign in"));
}

#[test]
fn fault_6_a_bad_mask_is_ignored() {
    let spoil: [fn(&mut MaskEvent); 5] = [
        |m| m.count += 1,
        |m| m.content_sha256 = "0".repeat(64),
        |m| m.data = "AAAA".into(),
        |m| m.kept += 1,
        |m| m.segmenter = "s2".into(),
    ];
    for spoil in spoil {
        let mut bad = mask();
        spoil(&mut bad);
        let mut script = good_cloud(26);
        script[0].1 = RelayEvent::Cloud(AssistEvent::Mask(bad));
        let outcome = check(script, 26, &["mask_ignored"]);
        assert_eq!(outcome.timeline.prompt_tokens_refined, outcome.timeline.prompt_tokens, "r = 1");
    }
}

#[test]
fn fault_6_a_mask_that_keeps_nothing_is_ignored() {
    let mut all_zero = mask();
    all_zero.kept = 0;
    let mut script = good_cloud(26);
    script[0].1 = RelayEvent::Cloud(AssistEvent::Mask(all_zero));
    check(script, 26, &["mask_ignored"]);
}

#[test]
fn fault_7_too_few_too_many_twice_and_out_of_order() {
    let mut few = good_cloud(26);
    few.truncate(11);
    few.push((600.0, end_event(EndReason::Cap, 10)));
    check(few, 10, &["token_count"]);

    let mut many = good_cloud(26);
    many.insert(27, (815.0, token_event(26)));
    check(many, 26, &["disorder"]);

    let mut twice = good_cloud(26);
    twice.insert(5, twice[4].clone());
    twice.insert(9, twice[3].clone());
    check(twice, 26, &["disorder"]);

    let mut swapped = good_cloud(26);
    let (a, b) = (swapped[7].1.clone(), swapped[8].1.clone());
    (swapped[7].1, swapped[8].1) = (b, a);
    check(swapped, 26, &["disorder"]);

    let mut hole = good_cloud(26);
    hole.remove(12);
    check(hole, 11, &["disorder", "token_count"]);
}

#[test]
fn fault_9_the_answer_ends_within_the_clouds_tokens() {
    for ended in [1, 2, 10, 25] {
        let mut script = good_cloud(26);
        script.truncate(ended + 1);
        script.push((300.0 + 20.0 * ended as f64, end_event(EndReason::Stop, ended)));
        let mut sim = Sim::new(core(config(), 100), engine(60), script);
        let outcome = sim.run();
        assert_eq!((outcome.answer, outcome.ending), (expected(ended, 0), Ending::Stop));
        assert!(sim.engine_stopped, "the device's work is cancelled");
    }
}

#[test]
fn fault_11_a_captive_portal_is_recognized() {
    let page = CloudFault::NotAnEventStream { content_type: "text/html".into() };
    assert!(page.to_string().contains("sign-in page"));
    check(vec![(80.0, lost(page))], 0, &["not_an_event_stream"]);
}

#[test]
fn fault_12_without_memory_on_the_device_the_cloud_goes_on() {
    let engine = engine(60).failing(Some(64), None);
    let mut sim = Sim::new(core(config(), 40), engine, good_cloud(26));
    sim.continuation = (26..40)
        .map(|i| {
            let event = if i > 26 {
                token_event(i)
            } else {
                let mut first = first(14);
                (first.index, first.id, first.text) =
                    (26, letter(cloud_letter(26)), cloud_letter(26).to_string());
                RelayEvent::Cloud(AssistEvent::First(Box::new(first)))
            };
            (100.0 + 20.0 * i as f64, event)
        })
        .collect();
    let outcome = sim.run();
    assert_eq!(outcome.answer, expected(40, 0));
    assert_eq!(outcome.ending, Ending::Length);
    assert_eq!(sim.notes(), ["cloud_continues"]);
    assert_eq!(sim.accepted.as_deref(), Some(expected(26, 0).as_str()));
}

#[test]
fn fault_23_another_protocol_is_refused_naming_both() {
    let mut newer = first(26);
    newer.protocol = 2;
    let script = vec![(300.0, mask_event()), (300.0, RelayEvent::Cloud(AssistEvent::First(Box::new(newer))))];
    check(script, 0, &["protocol_version"]);
    let text = CloudFault::Version { ours: 1, theirs: 2 }.to_string();
    assert!(text.contains('1') && text.contains('2'), "{text}");
}

#[test]
fn an_error_event_and_an_impossible_id_are_cloud_deaths() {
    let error = baton_protocol::ErrorBody::new(baton_protocol::ErrorCode::Overloaded, "busy")
        .with_retry_after_ms(800);
    let mut script = good_cloud(26);
    script.truncate(6);
    script.push((420.0, RelayEvent::Cloud(AssistEvent::Error(error))));
    check(script, 5, &["cloud_overloaded"]);

    let mut script = good_cloud(26);
    let bad = TokenEvent { index: 7, id: 1 << 30, text: "x".into() };
    script[8].1 = RelayEvent::Cloud(AssistEvent::Token(bad));
    check(script, 7, &["cloud_malformed"]);
}

#[test]
fn without_a_device_a_lost_cloud_is_an_error() {
    let relay = RelayConfig { mode: RelayMode::CloudOnly, has_device: false, ..config() };
    let mut script = good_cloud(26);
    script.truncate(6);
    script.push((420.0, lost(CloudFault::Disconnected)));
    let outcome = Sim::new(core(relay.clone(), 100), engine(60), script).run();
    assert_eq!(outcome.answer, expected(5, 0), "what was there is shown");
    assert_eq!(outcome.ending, Ending::Failed(AnswerError::Cloud(CloudFault::Disconnected)));
    let silent = Sim::new(core(relay, 100), engine(60), Vec::new()).run();
    assert_eq!(silent.ending, Ending::Failed(AnswerError::Cloud(CloudFault::Silent { waited_ms: 10_000 })));
}

#[test]
fn in_cloud_mode_the_device_steps_in_for_a_lost_cloud() {
    let relay = RelayConfig { mode: RelayMode::CloudOnly, ..config() };
    let mut script = good_cloud(80);
    script.truncate(11);
    script.push((520.0, lost(CloudFault::Disconnected)));
    let mut sim = Sim::new(core(relay, 100), engine(60), script);
    assert_eq!(sim.run().answer, expected(10, 60));
    assert_eq!(sim.notes(), ["cloud_disconnected"]);
}

/// Scripts a cloud that sends `tokens` tokens at once every `pause_ms`, 27 in all.
fn bursts(tokens: usize, pause_ms: f64) -> Vec<(f64, RelayEvent)> {
    let mut script = vec![(300.0, mask_event()), (300.0, first_event(27))];
    script.extend((1..27).map(|i| (300.0 + pause_ms * (i / tokens) as f64, token_event(i))));
    script.push((300.0 + pause_ms * 27.0, end_event(EndReason::Cap, 27)));
    script
}

#[test]
fn a_cloud_that_sends_in_bursts_is_not_called_silent() {
    for tokens in [2, 5, 9] {
        for pause_ms in [50.0, 100.0, 150.0, 200.0, 300.0] {
            check(bursts(tokens, pause_ms), 27, &[]);
        }
    }
}

#[test]
fn a_cloud_that_stops_after_a_burst_is_cut_off() {
    for tokens in [2, 5, 9] {
        for bursts_sent in [2, 3] {
            let pause_ms = 150.0;
            let sent = (tokens * bursts_sent).min(26);
            let mut script = bursts(tokens, pause_ms);
            script.truncate(1 + sent);
            let last_ms = script.last().unwrap().0;
            let outcome = check(script, sent, &["cloud_silent"]);
            let own_ms = outcome.timeline.ttft_device_ms.unwrap();
            // The device may still be busy with its prompt.
            let ready_ms = outcome.timeline.prompt_ready_ms.unwrap();
            let latest = (last_ms + 4.0 * pause_ms).max(ready_ms) + 2_000.0;
            assert!(own_ms <= latest, "{own_ms} after {last_ms}, ready at {ready_ms}");
        }
    }
}

/// Returns the progress among the effects.
fn told(fx: &[RelayEffect]) -> Vec<(baton_protocol::ProgressStage, u64)> {
    let progress = |fx: &RelayEffect| match fx {
        RelayEffect::Progress(progress) => Some((progress.stage, progress.total)),
        _ => None,
    };
    fx.iter().filter_map(progress).collect()
}

#[test]
fn a_prompt_that_waits_for_other_answers_says_so() {
    use baton_protocol::ProgressStage::{Prefill, Queue};
    let config = RelayConfig { mode: RelayMode::DeviceOnly, ..config() };
    let mut core = core(config, 100);
    let wake = |fx: &[RelayEffect]| match fx.last() {
        Some(RelayEffect::WakeAt(at)) => at.map(Millis::as_f64),
        other => panic!("{other:?}"),
    };
    let fx = core.step(RelayEvent::Begin, Millis::new(0.0));
    assert_eq!((told(&fx), wake(&fx)), (vec![], Some(200.0)));
    for (now, next) in [(200.0, 2_200.0), (2_200.0, 4_200.0)] {
        let fx = core.step(RelayEvent::Timer, Millis::new(now));
        assert_eq!((told(&fx), wake(&fx)), (vec![(Queue, 0)], Some(next)));
    }
    let prompt = PromptId(16);
    let begun = |tokens| EngineReport::Prompt { prompt, tokens, cached: 0, shortened: None };
    let fx = core.step(RelayEvent::Engine(begun(400)), Millis::new(3_000.0));
    assert_eq!(told(&fx), [(Prefill, 400)]);
    // It gave way to another answer and begins again.
    let progress = EngineReport::Progress { prompt, done: 200, total: 400, pass_tokens: 200 };
    core.step(RelayEvent::Engine(progress), Millis::new(3_500.0));
    core.step(RelayEvent::Engine(begun(400)), Millis::new(9_000.0));
    assert_eq!(
        core.device.progress(Millis::new(9_000.0)).map(|(done, total, _)| (done, total)),
        Some((0, 400))
    );
}
