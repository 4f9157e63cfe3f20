//! Tests answers of the service in virtual time: masks, caps, prefixes, cancellation, sampling.

use std::time::Duration;

use baton_cloud::scene::book::SceneBook;
use baton_cloud::scene::{Scene, SceneSettings};
use baton_cloud::service::{CloudService, ServiceError, ServiceOptions};
use baton_engine::pace_emulation::PassCost;
use baton_generate::speculation::Speculation;
use baton_protocol::{AssistEvent, EndReason, MaskEvent, Sampling, SentenceMap};
use baton_refine::Mode;

use crate::world::{
    HandClock, QUESTION, answer, by_hand, chunks, document, drain, end, greedy, model, options, prompt_ids,
    request, run_all, setup, tokens,
};

fn mask(events: &[AssistEvent]) -> Option<&MaskEvent> {
    let masks: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            AssistEvent::Mask(mask) => Some(mask),
            _ => None,
        })
        .collect();
    assert!(masks.len() <= 1);
    masks.first().copied()
}

#[test]
fn the_mask_comes_with_the_first_token_and_opens_on_the_other_side() {
    let (service, mut host) = by_hand(options());
    let masked = [Mode::Attention, Mode::Bm25].map(|mode| Some(mode.to_string()));
    for mode in std::iter::once(None).chain(masked) {
        let mut request = request("doc-qa", &document(40), 6);
        request.refine.mode.clone_from(&mode);
        let events = answer(&service, &mut host, &request);
        assert!(matches!(events[..2], [AssistEvent::Mask(_), AssistEvent::First(_)]), "{mode:?}: {events:?}");
        let map = SentenceMap::new(&request.segments);
        let mask = mask(&events).unwrap();
        let kept = mask.open(&map).unwrap();
        assert!(mask.ratio > 0.0 && mask.ratio <= 0.25, "{mode:?}: {}", mask.ratio);
        assert!(kept.iter().any(|&kept| kept) && kept.iter().any(|&kept| !kept));
        let other = SentenceMap::new(&crate::world::request("doc-qa", &document(41), 6).segments);
        assert!(mask.open(&other).is_err(), "a mask is for one text only");
    }
}

#[test]
fn a_scene_has_a_mode_and_a_request_may_name_another() {
    let scene = |mode: Mode| {
        let mode = mode.to_string();
        SceneSettings { ratio: Some(0.25), mode, ..SceneSettings::with_system("") }
    };
    let book = SceneBook::new([
        Scene { id: "words".into(), version: 1, settings: scene(Mode::Bm25) },
        Scene { id: "whole".into(), version: 1, settings: scene(Mode::None) },
    ]);
    let (service, mut host) = CloudService::new(setup(), book, options()).unwrap();
    let mut kept = |scene: &str, mode: Option<&str>| {
        let mut request = request(scene, &document(40), 2);
        request.refine.mode = mode.map(str::to_owned);
        let map = SentenceMap::new(&request.segments);
        mask(&answer(&service, &mut host, &request)).map(|mask| mask.open(&map).unwrap())
    };
    let words = kept("words", None);
    assert!(words.as_ref().is_some_and(|kept| kept.contains(&true) && kept.contains(&false)));
    assert_eq!(kept("whole", None), None, "nothing is left out, so there is no mask");
    assert_eq!(kept("words", Some("none")), None);
    assert_eq!(kept("whole", Some("bm25")), words);
    let mut request = request("whole", &document(40), 2);
    for mode in ["paper", "best"] {
        request.refine.mode = Some(mode.into());
        let refused = service.assist(&request).unwrap_err();
        assert!(matches!(refused, ServiceError::Unsupported { field: "refine.mode", .. }));
        let want = format!("unknown refiner mode `{mode}`, must be attention, bm25 or none");
        assert!(refused.to_string().contains(&want), "{refused}");
    }
}

#[test]
fn no_mask_where_nothing_is_left_out() {
    let (service, mut host) = by_hand(options());
    let mut none = request("doc-qa", &document(40), 4);
    none.refine.mode = Some("none".into());
    let mut whole = request("doc-qa", &document(40), 4);
    whole.refine.ratio = Some(1.0);
    let mut plain = request("doc-qa", &document(40), 4);
    plain.segments[1].refine = false;
    let full = request("doc-qa-full", &document(40), 4);
    let mut texts = Vec::new();
    for request in [none, whole, plain, full, request("doc-qa", &document(40), 4)] {
        let events = answer(&service, &mut host, &request);
        texts.push((mask(&events).is_some(), tokens(&events)));
    }
    let masks: Vec<bool> = texts.iter().map(|(mask, _)| *mask).collect();
    assert_eq!(masks, [false, false, false, false, true]);
    assert!(
        texts.iter().all(|(_, tokens)| *tokens == texts[0].1),
        "refinement never changes the cloud's own tokens"
    );
}

#[test]
fn l_tokens_then_the_slot_is_free() {
    let (service, mut host) = by_hand(options());
    let free = host.free_kv_tokens();
    let long = tokens(&answer(&service, &mut host, &request("doc-qa", &document(20), 20)));
    for cap in [1, 2, 7] {
        let events = answer(&service, &mut host, &request("doc-qa", &document(20), cap));
        let got = tokens(&events);
        assert_eq!(got[..], long[..cap as usize], "the first tokens do not depend on the cap");
        let end = end(&events);
        assert_eq!((end.reason, end.usage.completion_tokens), (EndReason::Cap, u64::from(cap)));
        let stats = service.stats();
        assert_eq!((stats.running, stats.waiting, stats.kv_held_tokens), (0, 0, 0));
        assert_eq!(host.free_kv_tokens(), free, "nothing leaks");
    }
    let [_, AssistEvent::First(first), ..] =
        &answer(&service, &mut host, &request("doc-qa", &document(20), 7))[..]
    else {
        panic!("a mask, then the first token")
    };
    assert_eq!((first.assist_tokens, first.assist_bound_by.as_str()), (7, "fixed"));
    assert_eq!(first.tokenizer_sha256.as_deref(), Some(model().tokenizer().digest_hex()));
}

#[test]
fn an_answer_does_not_depend_on_its_neighbours_or_chunks() {
    let requests: Vec<_> = [5, 12, 30, 44].map(|n| request("doc-qa", &document(n), 9)).into();
    let alone: Vec<_> = requests
        .iter()
        .map(|request| {
            let (service, mut host) = by_hand(ServiceOptions { budget: chunks(4096), ..options() });
            let events = answer(&service, &mut host, request);
            (mask(&events).cloned(), tokens(&events))
        })
        .collect();
    for chunk_tokens in [1, 17, 64, 300] {
        let (service, mut host) =
            by_hand(ServiceOptions { budget: chunks(chunk_tokens), slots: 3, ..options() });
        let mut streams: Vec<_> = requests.iter().map(|request| service.assist(request).unwrap()).collect();
        run_all(&mut host);
        for (stream, want) in streams.iter_mut().zip(&alone) {
            let events = drain(stream);
            assert_eq!(&(mask(&events).cloned(), tokens(&events)), want, "chunks of {chunk_tokens}");
            end(&events);
        }
    }
}

#[test]
fn a_known_prefix_is_not_computed_again_and_changes_nothing() {
    let (service, mut host) = by_hand(options());
    let first = answer(&service, &mut host, &request("doc-qa", &document(40), 5));
    let second = answer(&service, &mut host, &request("doc-qa", &document(40), 5));
    assert_eq!(end(&first).usage.cached_prefix_tokens, 0);
    let usage = end(&second).usage;
    let question = QUESTION.len() as u64;
    assert!(usage.cached_prefix_tokens > usage.prompt_tokens / 2, "{usage:?}");
    assert!(
        usage.cached_prefix_tokens + 32.min(question) <= usage.prompt_tokens,
        "the window is computed: {usage:?}"
    );
    assert_eq!(mask(&first), mask(&second));
    assert_eq!(tokens(&first), tokens(&second));
}

#[test]
fn an_answer_goes_on_from_its_accepted_part() {
    let (service, mut host) = by_hand(options());
    let mut request = request("doc-qa", &document(10), 6);
    request.continue_from = Some("abc".into());
    let events = answer(&service, &mut host, &request);
    assert!(mask(&events).is_none(), "nobody prefills for an answer that goes on");
    let AssistEvent::First(first) = &events[0] else { panic!("{events:?}") };

    let model = model();
    let mut ids = prompt_ids(&model, &request);
    let continued = model.tokenizer().encode("abc");
    assert_eq!(first.index as usize, continued.len());
    ids.extend(&continued);
    assert_eq!(end(&events).usage.prompt_tokens as usize, ids.len());
    let want = greedy(&model, None, ids, 6);
    let got: Vec<u32> = tokens(&events).into_iter().map(|(id, _)| id).collect();
    assert_eq!(got, want, "the engine's own greedy continuation");
}

#[test]
fn sampling_is_keyed_by_seed_and_index() {
    let (service, mut host) = by_hand(options());
    let sampled = |seed| {
        let mut request = request("doc-qa", &document(12), 12);
        request.sampling = Sampling { temperature: 1.5, seed, ..Sampling::default() };
        request
    };
    let once = tokens(&answer(&service, &mut host, &sampled(1)));
    assert_eq!(once, tokens(&answer(&service, &mut host, &sampled(1))));
    assert_ne!(once, tokens(&answer(&service, &mut host, &sampled(2))));
}

#[test]
fn a_dropped_stream_frees_its_slot_within_one_pass() {
    let (service, mut host) = by_hand(ServiceOptions { slots: 1, ..options() });
    let free = host.free_kv_tokens();
    for passes_before in 0..14 {
        let stream = service.assist(&request("doc-qa", &document(20), 50)).unwrap();
        for _ in 0..passes_before {
            let pass = host.turn().unwrap();
            host.commit(pass);
        }
        drop(stream);
        assert!(host.turn().is_none(), "nothing runs for a reader that is gone ({passes_before} passes)");
        assert_eq!((service.stats().running, service.stats().waiting), (0, 0));
        assert_eq!(host.free_kv_tokens(), free);
    }
}

#[test]
fn a_cancelled_stream_says_so_and_the_next_one_starts() {
    let (service, mut host) = by_hand(ServiceOptions { slots: 1, ..options() });
    let mut first = service.assist(&request("doc-qa", &document(3), 50)).unwrap();
    let mut second = service.assist(&request("doc-qa", &document(3), 2)).unwrap();
    for _ in 0..6 {
        let pass = host.turn().unwrap();
        host.commit(pass);
    }
    first.cancel();
    run_all(&mut host);
    let events = drain(&mut first);
    let end_first = end(&events);
    assert_eq!(end_first.reason, EndReason::Cancelled);
    assert_eq!(end_first.usage.completion_tokens, tokens(&events).len() as u64);
    assert_eq!(end(&drain(&mut second)).reason, EndReason::Cap);
}

#[test]
fn a_reader_that_goes_while_a_pass_is_stretched_gets_nothing_more() {
    let (service, mut host) = by_hand(options());
    let stream = service.assist(&request("doc-qa", &document(40), 5)).unwrap();
    let pass = host.turn().unwrap();
    // The reader disconnects while the pass is stretched: its tokens are dropped.
    drop(stream);
    host.commit(pass);
    assert!(host.turn().is_none());
    assert_eq!(service.stats().closed_total, 1);
}

#[test]
fn a_full_service_refuses_with_a_time_to_come_back() {
    let (service, mut host) = by_hand(ServiceOptions { slots: 1, queue: 1, ..options() });
    let request = request("doc-qa", &document(3), 2);
    let (_one, _two) = (service.assist(&request).unwrap(), service.assist(&request).unwrap());
    let err = service.assist(&request).unwrap_err();
    assert!(matches!(err, ServiceError::Overloaded { retry_after_ms: 100.., .. }), "{err}");
    assert!(err.to_body().error.retry_after_ms.is_some());
    run_all(&mut host);
    assert!(service.assist(&request).is_ok());
}

#[test]
fn slot_time_is_the_time_of_its_passes() {
    let hand = HandClock::default();
    let cost = PassCost { base_ms: 60_000.0, prefill_ms_per_token: 100.0, decode_ms: 20_000.0 };
    let (service, mut host) =
        by_hand(ServiceOptions { clock: hand.clock(), emulation: Some(cost), ..options() });
    let mut stream = service.assist(&request("doc-qa", &document(10), 3)).unwrap();
    hand.advance(Duration::from_millis(5));
    while let Some(pass) = host.turn() {
        // The real compute time counts as nothing here; the emulated figures are far above it.
        hand.advance(cost.modelled(pass.content()));
        host.commit(pass);
    }
    let events = drain(&mut stream);
    let end = end(&events);
    let timing = end.timing.unwrap();
    let prefill_ms = 60_000.0 + 100.0 * end.usage.prompt_tokens as f64;
    let AssistEvent::First(first) = &events[1] else { panic!("{events:?}") };
    for (name, have, want) in [
        ("queue", timing.queue_ms, 5.0),
        ("prefill", timing.prefill_ms, prefill_ms),
        ("decode", timing.decode_ms, 40_000.0),
        ("slot", timing.slot_ms, prefill_ms + 40_000.0),
        ("slots in all", service.stats().slot_ms_total, timing.slot_ms),
        ("queue at first", first.timing.queue_ms, 5.0),
        ("prefill at first", first.timing.prefill_ms, prefill_ms),
    ] {
        assert!((have - want).abs() < 1e-6, "{name}: {have} ms, want {want} ms");
    }
}

#[test]
fn l_follows_the_device() {
    let cost = PassCost { base_ms: 60.0, prefill_ms_per_token: 0.1, decode_ms: 1.0 };
    let (service, mut host) = by_hand(ServiceOptions { emulation: Some(cost), ..options() });
    let assist_tokens = |ms_per_token: Option<f64>, host: &mut _| {
        let mut request = request("doc-qa", &document(60), 1);
        request.assist_tokens = None;
        request.device = Some(baton_protocol::DeviceInfo {
            class: "phone".into(),
            model: "m".into(),
            pair: None,
            kv: None,
            prefill_ms_per_token: ms_per_token,
            prefill_ms_per_token2: 0.0,
            decode_ms: ms_per_token.map(|_| 45.0),
            network: Some("wifi".into()),
            network_ms: None,
        });
        let events = answer(&service, host, &request);
        let AssistEvent::First(first) = &events[1] else { panic!("{events:?}") };
        (first.assist_tokens, first.assist_bound_by.clone())
    };
    let (assumed, _) = assist_tokens(None, &mut host);
    let (slow, bound_by) = assist_tokens(Some(5.0), &mut host);
    let (fast, _) = assist_tokens(Some(2.5), &mut host);
    assert!(slow > fast && fast >= 4, "slow {slow}, fast {fast}");
    assert_eq!(bound_by, "tau");
    // A device that reports nothing about itself counts as one of its class: first as assumed, then as the
    // class reports.
    assert_eq!(assumed, fast);
    for _ in 0..3 {
        assist_tokens(Some(5.0), &mut host);
    }
    assert_eq!(assist_tokens(None, &mut host).0, slow);
    assert_eq!(assist_tokens(Some(2.5), &mut host).0, fast, "its own values win");
    let phones = service.coefficients().devices["phone"];
    assert_eq!((phones.value.prefill_ms_per_token, phones.samples), (5.0, 6));
}

#[test]
fn what_cannot_be_served_is_refused_with_its_field() {
    let (service, _host) = by_hand(options());
    let good = || request("doc-qa", &document(10), 5);
    let check = |change: &dyn Fn(&mut baton_protocol::AssistRequest), code: &str, param: Option<&str>| {
        let mut request = good();
        change(&mut request);
        let body = service.assist(&request).unwrap_err().to_body();
        assert_eq!((body.error.code.as_str(), body.error.param.as_deref()), (code, param), "{body}");
    };
    check(&|r| r.scene = "nothing".into(), "unknown_scene", Some("scene"));
    check(&|r| r.scene_version = Some(9), "scene_changed", Some("scene_version"));
    check(&|r| r.model = "gpt".into(), "unknown_model", Some("model"));
    check(&|r| r.protocol = 2, "unsupported_protocol", Some("protocol"));
    check(&|r| r.segments[1].text = " \n".into(), "invalid_request", Some("segments[1].text"));
    check(&|r| r.segments.clear(), "invalid_request", Some("segments"));
    check(&|r| r.refine.ratio = Some(0.0), "invalid_request", Some("refine.ratio"));
    check(&|r| r.refine.ratio = Some(1.5), "invalid_request", Some("refine.ratio"));
    check(&|r| r.refine.ratio = Some(f32::NAN), "invalid_request", Some("refine.ratio"));
    check(&|r| r.refine.ratio = Some(0.125), "invalid_request", Some("refine.ratio"));
    check(&|r| r.refine.mode = Some("magic".into()), "invalid_request", Some("refine.mode"));
    check(&|r| r.assist_tokens = Some(0), "invalid_request", Some("assist_tokens"));
    check(&|r| r.sampling.temperature = -1.0, "invalid_request", Some("sampling.temperature"));
    check(&|r| r.segments[1].text = document(200), "prompt_too_long", None);
    let full = |r: &mut baton_protocol::AssistRequest| {
        r.scene = "doc-qa-full".into();
        r.refine.ratio = Some(0.5);
    };
    check(&full, "invalid_request", Some("refine.ratio"));
    assert_eq!(service.stats().waiting, 0, "nothing refused is queued");
}

#[test]
fn stopping_cancels_and_refuses() {
    let (service, mut host) = by_hand(options());
    let mut stream = service.assist(&request("doc-qa", &document(3), 500)).unwrap();
    let pass = host.turn().unwrap();
    host.commit(pass);
    service.drain();
    assert!(matches!(service.assist(&request("doc-qa", &document(3), 5)), Err(ServiceError::Stopping)));
    let pass = host.turn().expect("running answers go on while the service drains");
    host.commit(pass);
    service.stop();
    assert!(host.turn().is_none());
    let events = drain(&mut stream);
    let Some(AssistEvent::Error(body)) = events.last() else { panic!("{events:?}") };
    assert_eq!((body.error.code.as_str(), body.error.retry_after_ms), ("unavailable", Some(1000)));
}

#[test]
fn proposed_tokens_save_passes_and_change_no_answer() {
    let mut ask = request("chat", "One two three.", 300);
    ask.sampling.temperature = 0.0;
    let written = |speculation| {
        let (service, mut host) = by_hand(ServiceOptions { speculation, ..options() });
        let mut stream = service.assist(&ask).unwrap_or_else(|err| panic!("{err}"));
        let passes = run_all(&mut host);
        (tokens(&drain(&mut stream)), passes, service.models_in_use().remove(0))
    };
    let (plain, passes, stats) = written(Speculation::Off);
    assert_eq!(stats.proposed, 0);
    // Greedy answers of a small random model soon repeat themselves.
    let (proposed, fewer, stats) = written(Speculation::Lookup);
    assert_eq!(proposed, plain);
    assert!(0 < stats.accepted && stats.accepted <= stats.proposed, "{stats:?}");
    assert!(fewer < passes, "{fewer} passes with proposals, {passes} without");
}
