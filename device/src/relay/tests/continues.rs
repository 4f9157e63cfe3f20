//! Tests a device that fails in the middle of an answer. The cloud goes on after exactly the accepted text,
//! or the answer ends with what was written.

use super::*;
use proptest::prelude::*;

/// Scripts the cloud that was asked to go on with token `from`: first token after 300 ms, then one every 20
/// ms, up to token `to`.
fn going_on(from: usize, to: usize, reason: EndReason) -> Vec<(f64, RelayEvent)> {
    let mut first = first((to - from) as u32);
    let letter_of = cloud_letter(from);
    (first.index, first.id, first.text) = (from as u32, letter(letter_of), letter_of.to_string());
    let mut script = vec![(300.0, RelayEvent::Cloud(AssistEvent::First(Box::new(first))))];
    script.extend((from + 1..to).map(|i| (300.0 + 20.0 * (i - from) as f64, token_event(i))));
    script.push((300.0 + 20.0 * (to - from) as f64, end_event(reason, to - from)));
    script
}

/// Makes an engine that fails when it would write this token.
fn failing(at: usize) -> ScriptedEngine {
    engine(400).failing(None, Some(at))
}

/// Returns the text of the cloud's tokens, then the device's from `device` on, then the cloud's again from
/// `back` to `end`.
fn letters(device: usize, back: usize, end: usize) -> String {
    (0..end).map(|i| if (device..back).contains(&i) { device_letter(i) } else { cloud_letter(i) }).collect()
}

#[test]
fn a_device_that_fails_at_any_token_costs_none() {
    for at in 26..46 {
        for (reason, ending) in [(EndReason::Cap, Ending::Length), (EndReason::Stop, Ending::Stop)] {
            let end = if ending == Ending::Stop { 48 } else { 50 };
            let mut sim = Sim::new(core(config(), 50), failing(at), good_cloud(26));
            sim.continuation = going_on(at, end, reason);
            let outcome = sim.run();
            assert_eq!((outcome.answer, outcome.ending), (letters(26, at, end), ending), "token {at}");
            assert_eq!(sim.notes(), ["cloud_continues"], "token {at}");
            assert_eq!(sim.accepted, Some(letters(26, at, at)), "token {at}");
            assert!(sim.cloud_closed(), "token {at}");
        }
    }
}

#[test]
fn a_cloud_that_was_not_there_or_too_slow_is_asked_again_by_a_device_that_fails() {
    let lost = |at: f64, fault: CloudFault| (at, RelayEvent::CloudLost(fault));
    let mut cut = good_cloud(26);
    cut.truncate(6);
    cut.push(lost(420.0, CloudFault::Disconnected));
    let unreachable = CloudFault::Unreachable { reason: "no connection".into() };
    let busy = CloudFault::Overloaded { status: 429, reason: "busy".into(), retry_after_ms: Some(800) };
    for (script, cloud, note) in [
        (vec![lost(30.0, unreachable)], 0, "cloud_unreachable"),
        (vec![lost(30.0, busy)], 0, "cloud_overloaded"),
        (cut, 5, "cloud_disconnected"),
        (Vec::new(), 0, "cloud_too_slow"),
    ] {
        let mut sim = Sim::new(core(config(), 40), failing(20), script);
        sim.continuation = going_on(20, 40, EndReason::Cap);
        let outcome = sim.run();
        assert_eq!((outcome.answer, outcome.ending), (letters(cloud, 20, 40), Ending::Length), "{note}");
        assert_eq!(sim.notes(), [note, "cloud_continues"]);
    }
}

#[test]
fn a_cloud_that_says_the_same_whenever_it_is_asked_is_not_asked_again() {
    let fault = CloudFault::SignIn { status: 401 };
    let script = vec![(30.0, RelayEvent::CloudLost(fault.clone()))];
    let mut sim = Sim::new(core(config(), 40), failing(20), script);
    let outcome = sim.run();
    assert_eq!(outcome.answer, letters(0, 20, 20), "what was written stays");
    let reason = "the ring is lost".to_owned();
    assert_eq!(outcome.ending, Ending::Failed(AnswerError::DeviceAndCloud { reason, fault }));
    assert_eq!((sim.notes(), sim.accepted), (vec!["sign_in"], None));
}

#[test]
fn it_does_not_matter_how_long_ago_the_cloud_was_heard() {
    // 270 tokens at 45 ms take longer than the 10 s that a cloud may take for its first token.
    let mut sim = Sim::new(core(config(), 320), failing(296), good_cloud(26));
    sim.continuation = going_on(296, 320, EndReason::Cap);
    let outcome = sim.run();
    assert!(outcome.timeline.total_ms > Some(12_000.0), "{:?}", outcome.timeline.total_ms);
    assert_eq!((outcome.answer, outcome.ending), (letters(26, 296, 320), Ending::Length));
}

#[test]
fn a_cloud_that_goes_on_may_pause() {
    let mut sim = Sim::new(core(config(), 50), failing(30), good_cloud(26));
    sim.continuation = going_on(30, 50, EndReason::Cap);
    // No device can take over, so two seconds do not count as silence.
    sim.continuation.iter_mut().skip(8).for_each(|(at, _)| *at += 2_000.0);
    let outcome = sim.run();
    assert_eq!((outcome.answer, outcome.ending), (letters(26, 30, 50), Ending::Length));
    assert_eq!(sim.notes(), ["cloud_continues"]);
}

#[test]
fn a_character_that_its_token_did_not_complete_is_written_once() {
    let pair = tokenizer().encode("é");
    assert_eq!(pair.len(), 2, "the vocabulary is bytes");
    let half: fn(usize) -> u32 =
        |i| if i == 30 { tokenizer().encode("é")[0] } else { letter(device_letter(i)) };
    let engine = ScriptedEngine::new(half, 400).failing(None, Some(31));
    let mut sim = Sim::new(core(config(), 50), engine, good_cloud(26));
    let mut script = going_on(30, 33, EndReason::Stop);
    for (at, id) in [(0, pair[0]), (1, pair[1])] {
        match &mut script[at].1 {
            RelayEvent::Cloud(AssistEvent::First(first)) => (first.id, first.text) = (id, String::new()),
            RelayEvent::Cloud(AssistEvent::Token(token)) => (token.id, token.text) = (id, "é".to_owned()),
            event => panic!("{event:?}"),
        }
    }
    sim.continuation = script;
    let outcome = sim.run();
    assert_eq!(sim.accepted, Some(letters(26, 30, 30)), "the half is no text");
    assert_eq!(outcome.answer, format!("{}é{}", letters(26, 30, 30), cloud_letter(32)));
    assert_eq!(outcome.ending, Ending::Stop);
}

#[test]
fn a_cloud_whose_stream_broke_off_after_the_device_failed_is_asked_once_more() {
    for cut in 1..26 {
        let mut script = good_cloud(26);
        script.truncate(cut + 1);
        script.push((300.0 + 20.0 * cut as f64, RelayEvent::CloudLost(CloudFault::Disconnected)));
        let engine = engine(60).failing(Some(16), None);
        let mut sim = Sim::new(core(config(), 40), engine, script);
        sim.continuation = going_on(cut, 40, EndReason::Cap);
        let outcome = sim.run();
        assert_eq!((outcome.answer, outcome.ending), (letters(40, 40, 40), Ending::Length), "cut at {cut}");
        assert_eq!(sim.notes(), ["cloud_continues"], "cut at {cut}");
        assert_eq!(sim.accepted, Some(letters(cut, cut, cut)), "cut at {cut}");
    }
}

#[test]
fn where_nobody_can_go_on_the_error_names_both_and_what_was_written_stays() {
    let fault = CloudFault::Disconnected;
    let mut sim = Sim::new(core(config(), 50), failing(30), good_cloud(26));
    sim.continuation = going_on(30, 50, EndReason::Cap);
    sim.continuation.truncate(5);
    sim.continuation.push((400.0, RelayEvent::CloudLost(fault.clone())));
    let outcome = sim.run();
    let reason = "the ring is lost".to_owned();
    let error = AnswerError::DeviceAndCloud { reason: reason.clone(), fault };
    assert!(["the ring is lost", "broke", "stays"].iter().all(|word| error.to_string().contains(word)));
    assert_eq!((outcome.answer, outcome.ending), (letters(26, 30, 35), Ending::Failed(error)));

    let alone = RelayConfig { mode: RelayMode::DeviceOnly, ..config() };
    for at in [0, 1, 17] {
        let mut sim = Sim::new(core(alone.clone(), 50), failing(at), Vec::new());
        let outcome = sim.run();
        let error = AnswerError::Device { reason: reason.clone() };
        assert!(["the ring is lost", "--cloud"].iter().all(|word| error.to_string().contains(word)));
        assert_eq!((outcome.answer, outcome.ending), (letters(0, at, at), Ending::Failed(error)));
        assert_eq!(sim.accepted, None, "nobody else is asked");
    }
}

#[test]
fn a_cloud_that_goes_on_to_the_end_of_its_context_ends_the_answer() {
    let mut sim = Sim::new(core(config(), 50), failing(30), good_cloud(26));
    sim.continuation = going_on(30, 44, EndReason::Cap);
    let outcome = sim.run();
    assert_eq!((outcome.answer, outcome.ending), (letters(26, 30, 44), Ending::Length));

    let mut sim = Sim::new(core(config(), 50), failing(30), good_cloud(26));
    sim.continuation = going_on(30, 44, EndReason::Cap);
    sim.continuation.remove(6);
    let outcome = sim.run();
    assert_eq!(outcome.answer, letters(26, 30, 36), "what came before the hole");
    assert!(
        matches!(outcome.ending, Ending::Failed(AnswerError::DeviceAndCloud { .. })),
        "{:?}",
        outcome.ending
    );
}

#[test]
fn a_missing_token_is_an_error_if_there_is_no_device() {
    let alone = RelayConfig { mode: RelayMode::CloudOnly, has_device: false, ..config() };
    for lost in [1, 2, 13] {
        let mut cloud = good_cloud(26);
        let position =
            cloud.iter().position(|(_, event)| matches!(event, RelayEvent::Cloud(AssistEvent::First(_))));
        cloud.remove(position.unwrap() + lost - 1);
        let mut sim = Sim::new(core(alone.clone(), 26), failing(0), cloud);
        let outcome = sim.run();
        let ending = &outcome.ending;
        assert!(
            matches!(ending, Ending::Failed(AnswerError::Cloud(CloudFault::Malformed { .. }))),
            "{lost}: {ending:?}"
        );
        assert_eq!(outcome.answer, expected(lost - 1, 0), "what came before the hole");
    }
}

/// Scripts a cloud whose part is corrected by the device, without its `end`. `after` is an event that comes
/// this many milliseconds after the verification. The last value is the number of cloud tokens that stay.
fn corrected(
    idle_timeout_ms: f64,
    after: Option<(f64, RelayEvent)>,
) -> (RelayCore, Vec<(f64, RelayEvent)>, usize) {
    let relay = RelayConfig { corrector_override: Some(Corrector::Device), idle_timeout_ms, ..config() };
    let outcome = Sim::new(core(relay.clone(), 60), engine(400), good_cloud(26)).run();
    let verified_ms = outcome.timeline.ttft_device_ms.unwrap();
    let kept = outcome.timeline.tokens_from(Source::Cloud);
    assert_eq!((outcome.answer, outcome.ending), (letters(kept, 60, 60), Ending::Length));
    assert!(kept < 18, "{kept} stay: the device is soon past the cloud's part");
    let mut script = good_cloud(26);
    script.pop();
    script.extend(after.map(|(ms, event)| (verified_ms + ms, event)));
    (core(relay, 60), script, kept)
}

#[test]
fn a_cloud_that_is_lost_behind_its_corrected_part_is_not_missed() {
    let events = [
        Some(RelayEvent::CloudLost(CloudFault::Disconnected)),
        Some(end_event(EndReason::Cancelled, 26)),
        Some(end_event(EndReason::Cap, 26)),
        Some(end_event(EndReason::Stop, 26)),
        // It sends nothing more, and is given up 300 ms after its last token.
        None,
    ];
    for event in events {
        let (core, script, kept) = corrected(300.0, event.clone().map(|event| (50.0, event)));
        let mut sim = Sim::new(core, engine(400), script);
        let outcome = sim.run();
        assert_eq!((outcome.answer, outcome.ending), (letters(kept, 60, 60), Ending::Length), "{event:?}");
        assert_eq!(sim.notes(), ["corrected"], "{event:?}");
        assert!(sim.cloud_closed(), "{event:?}");
    }
}

#[test]
fn a_device_that_fails_behind_a_corrected_part_has_the_cloud_asked_at_once() {
    let (core, script, kept) = corrected(300_000.0, None);
    let at = kept + 2;
    let mut sim = Sim::new(core, failing(at), script);
    sim.continuation = going_on(at, 60, EndReason::Cap);
    let outcome = sim.run();
    assert_eq!((outcome.answer, outcome.ending), (letters(kept, at, 60), Ending::Length));
    assert_eq!(sim.notes(), ["corrected", "cloud_continues"]);
    assert_eq!(sim.accepted, Some(letters(kept, at, at)));
    assert!(outcome.timeline.total_ms < Some(60_000.0), "{:?}", outcome.timeline.total_ms);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whenever the device and the cloud fail, every token is one that cloud or device writes at that index.
    /// The answer stays unfinished only if a cloud is asked and does not answer.
    #[test]
    fn no_token_is_lost_or_doubled_whoever_fails_when(
        prompt in prop::option::of(0usize..400),
        token in 0usize..60,
        cloud_dies in prop::option::of(0.0f64..3_000.0),
        goes_on in any::<bool>(),
        instant in any::<bool>(),
    ) {
        let pace = if instant { PaceMode::Instant } else { PaceMode::Paced };
        let engine = engine(50).failing(prompt, Some(token));
        let mut script = good_cloud(26);
        if let Some(at) = cloud_dies {
            script.retain(|(when, _)| *when < at);
            script.push((at, RelayEvent::CloudLost(CloudFault::Disconnected)));
        }
        let mut sim = Sim::new(core(RelayConfig { pace, ..config() }, 50), engine, script);
        sim.answers_from = goes_on.then_some(|from| going_on(from, 50, EndReason::Cap));
        if !goes_on {
            sim.continuation = vec![(50.0, RelayEvent::CloudLost(CloudFault::Disconnected))];
        }
        let outcome = sim.run();
        let asked = sim.accepted.is_some();
        match &outcome.ending {
            Ending::Failed(err) => {
                let both = matches!(err, AnswerError::DeviceAndCloud { .. });
                prop_assert!(both && !(asked && goes_on), "{err}");
            }
            ending => prop_assert!(!asked || goes_on, "{ending:?}"),
        }
        for (i, c) in outcome.answer.chars().enumerate() {
            prop_assert!(c == cloud_letter(i) || c == device_letter(i), "token {i} of {}", outcome.answer);
        }
        if let Some(accepted) = &sim.accepted {
            prop_assert!(outcome.answer.starts_with(accepted.as_str()));
            prop_assert!(!goes_on || outcome.answer.chars().count() == 50);
        }
    }
}
