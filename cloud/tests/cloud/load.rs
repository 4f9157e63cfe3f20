//! Tests L under load, as readers see it: lowered towards the scene's floor while others wait, never for a
//! chat.

use std::time::Duration;

use baton_cloud::service::ServiceOptions;
use baton_cloud::service::completion::CompletionRequest;
use baton_cloud::service::stream::AssistStream;
use baton_engine::Engine;
use baton_engine::pace_emulation::PassCost;
use baton_generate::host::Host;
use baton_generate::scheduler::BacklogBound;
use baton_openai::ChatMessage;
use baton_protocol::{AssistEvent, AssistRequest, FirstEvent, Role};

use crate::world::{HandClock, by_hand, document, drain, end, options, request, tokens};

const COST: PassCost = PassCost { base_ms: 0.0, prefill_ms_per_token: 1.0, decode_ms: 5.0 };

/// Returns a question from a slow device, whose L the cloud chooses.
fn question() -> AssistRequest {
    let mut request = request("doc-qa", &document(60), 1);
    request.assist_tokens = None;
    request.device = Some(baton_protocol::DeviceInfo {
        class: "phone".into(),
        model: "m".into(),
        pair: None,
        kv: None,
        // Slow enough that L is well above the scene's floor.
        prefill_ms_per_token: Some(8.0),
        prefill_ms_per_token2: 0.0,
        decode_ms: Some(45.0),
        network: None,
        network_ms: None,
    });
    request
}

fn run_all(host: &mut Host<Engine>, hand: &HandClock) {
    while let Some(pass) = host.turn() {
        hand.advance(COST.modelled(pass.content()));
        host.commit(pass);
    }
}

#[track_caller]
fn first(stream: &mut AssistStream) -> FirstEvent {
    let events = drain(stream);
    let first = events.iter().find_map(|event| match event {
        AssistEvent::First(first) => Some((**first).clone()),
        _ => None,
    });
    let first = first.unwrap_or_else(|| panic!("{events:?}"));
    let written = end(&events).usage.completion_tokens;
    assert_eq!(written, tokens(&events).len() as u64);
    assert!(written <= u64::from(first.assist_tokens), "at most the L that it was told");
    first
}

#[test]
fn l_falls_while_others_wait_and_says_so() {
    let hand = HandClock::default();
    let backlog = BacklogBound { wait: Duration::from_secs(10), ..BacklogBound::default() };
    let (service, mut host) = by_hand(ServiceOptions {
        slots: 1,
        backlog,
        prefix_cache_percent: 0,
        emulation: Some(COST),
        clock: hand.clock(),
        ..options()
    });
    let mut alone = service.assist(&question()).unwrap();
    run_all(&mut host, &hand);
    let alone = first(&mut alone);
    assert_eq!(alone.assist_bound_by, "tau");
    assert!(alone.assist_tokens > 20, "{alone:?}");

    let mut waiting: Vec<AssistStream> = Vec::new();
    while let Ok(stream) = service.assist(&question()) {
        waiting.push(stream);
        assert!(waiting.len() < 100, "the queue is bounded by time");
    }
    let messages = vec![ChatMessage::new(Role::User, "Hi")];
    let chat = CompletionRequest { max_tokens: Some(60), ..CompletionRequest::new("default", messages) };
    let mut chat = service.complete(&chat).ok();
    let most = service.stats().load;
    assert!(most > 0.9, "the queue is full: load {most}");
    run_all(&mut host, &hand);
    let told: Vec<FirstEvent> = waiting.iter_mut().map(first).collect();
    assert_eq!((told[0].assist_bound_by.as_str(), told[0].assist_tokens), ("load", 4), "the scene's floor");
    let (lowered, free): (Vec<FirstEvent>, Vec<FirstEvent>) =
        told.into_iter().partition(|first| first.assist_bound_by == "load");
    let lengths: Vec<u32> = lowered.iter().map(|first| first.assist_tokens).collect();
    assert!(lengths.len() > 2 && lengths.is_sorted(), "the fewer wait, the more is written: {lengths:?}");
    assert!(!free.is_empty(), "the last one waits before nobody");
    for first in &free {
        assert_eq!(first.assist_bound_by, "tau");
        // Its own wait changes nothing: the device waits for its mask, and begins then.
        assert_eq!(first.assist_tokens, alone.assist_tokens, "{first:?} beside {alone:?}");
        assert!(first.assist_tokens > lengths[lengths.len() - 1], "{first:?} after {lengths:?}");
    }
    if let Some(chat) = &mut chat {
        let chat = first(chat);
        assert_eq!((chat.assist_bound_by.as_str(), chat.assist_tokens), ("fixed", 60));
    }
}

#[test]
fn a_wish_is_followed_under_load_too() {
    let hand = HandClock::default();
    let backlog = BacklogBound { wait: Duration::from_secs(10), ..BacklogBound::default() };
    let (service, mut host) = by_hand(ServiceOptions {
        slots: 1,
        backlog,
        emulation: Some(COST),
        clock: hand.clock(),
        ..options()
    });
    let mut before = service.assist(&question()).unwrap();
    run_all(&mut host, &hand);
    first(&mut before);
    let mut wished = question();
    wished.assist_tokens = Some(30);
    let mut wished = service.assist(&wished).unwrap();
    let mut behind = 0;
    while service.assist(&question()).map(std::mem::forget).is_ok() {
        behind += 1;
        assert!(behind < 100);
    }
    run_all(&mut host, &hand);
    let wished = first(&mut wished);
    assert_eq!((wished.assist_bound_by.as_str(), wished.assist_tokens), ("fixed", 30));
}
