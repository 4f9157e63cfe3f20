//! Tests a full KV cache with the real engine: answers pause, none is lost, and no token differs.

use std::num::NonZeroUsize;

use baton_cloud::service::{ServiceError, ServiceOptions};
use baton_engine::BLOCK_TOKENS;
use baton_engine::Engine;
use baton_generate::host::Host;
use baton_protocol::{AssistEvent, AssistRequest, EndReason, Sampling};

use crate::world::{answer, by_hand, chunks, document, drain, end, options, request, tokens};

/// Returns requests about different documents, sampled with different seeds.
fn requests(n: usize, cap: u32) -> Vec<AssistRequest> {
    let one = |at: usize| {
        let text = format!("Chapter {at}. {}", document(4 + at % 3)).replace("Item", &format!("Thing {at}"));
        let mut request = request("doc-qa", &text, cap);
        let temperature = if at.is_multiple_of(2) { 1.2 } else { 0.0 };
        request.sampling = Sampling { temperature, seed: at as u64, ..Sampling::default() };
        request
    };
    (0..n).map(one).collect()
}

fn small_cache(kv_tokens: usize) -> ServiceOptions {
    ServiceOptions { kv_tokens: NonZeroUsize::new(kv_tokens), slots: 6, queue: 16, ..options() }
}

fn mask(events: &[AssistEvent]) -> Vec<&AssistEvent> {
    events.iter().filter(|event| matches!(event, AssistEvent::Mask(_))).collect()
}

/// Runs to the end; returns the number of prompt tokens computed.
fn run(host: &mut Host<Engine>) -> usize {
    let mut computed = 0;
    for _ in 0..10_000 {
        let Some(pass) = host.turn() else { return computed };
        computed += pass.content().prefill_tokens;
        host.commit(pass);
    }
    panic!("the answers do not end");
}

#[test]
fn preempted_answers_are_what_they_are_without_preemption() {
    let requests = requests(6, 150);
    let alone: Vec<Vec<AssistEvent>> = requests
        .iter()
        .map(|request| {
            let (service, mut host) = by_hand(options());
            answer(&service, &mut host, request)
        })
        .collect();
    let longest = alone.iter().map(|events| end(events).usage.prompt_tokens).max().unwrap() as usize;
    for (kv_tokens, chunk) in [(longest + 300, 64), (2 * longest + 100, 512), (2 * longest + 60, 17)] {
        let options = ServiceOptions { budget: chunks(chunk), ..small_cache(kv_tokens) };
        let (service, mut host) = by_hand(options);
        let free = host.free_kv_tokens();
        let mut streams: Vec<_> = requests.iter().map(|request| service.assist(request).unwrap()).collect();
        let computed = run(&mut host);
        for (stream, want) in streams.iter_mut().zip(&alone) {
            let events = drain(stream);
            assert_eq!(tokens(&events), tokens(want), "{kv_tokens} KV tokens");
            assert_eq!(mask(&events), mask(want), "one mask, from the first prefill");
            assert_eq!(end(&events).reason, end(want).reason);
            assert_eq!(end(&events).usage.prompt_tokens, end(want).usage.prompt_tokens);
        }
        let stats = service.stats();
        assert!(
            stats.preemptions_total > 0,
            "{kv_tokens} KV tokens were enough for all: {computed} computed"
        );
        assert_eq!((stats.running, stats.waiting, stats.kv_held_tokens), (0, 0, 0));
        assert_eq!(host.free_kv_tokens(), free);
        assert_eq!(service.kv().free_tokens, free, "the figures follow");
    }
}

#[test]
fn a_preempted_answer_can_be_cancelled() {
    let requests = requests(3, 250);
    let (service, mut host) = by_hand(small_cache(896));
    let free = host.free_kv_tokens();
    let mut streams: Vec<_> = requests.iter().map(|request| service.assist(request).unwrap()).collect();
    let mut waited = 0;
    while service.stats().preemptions_total == 0 {
        let pass = host.turn().expect("the cache is too small for three");
        host.commit(pass);
        waited += 1;
        assert!(waited < 2000);
    }
    let last = streams.pop().unwrap();
    last.cancel();
    run(&mut host);
    let mut last = last;
    let events = drain(&mut last);
    assert_eq!(end(&events).reason, EndReason::Cancelled);
    assert_eq!(end(&events).usage.completion_tokens, tokens(&events).len() as u64);
    for stream in &mut streams {
        assert_ne!(end(&drain(stream)).reason, EndReason::Cancelled);
    }
    assert_eq!(host.free_kv_tokens(), free);
}

#[test]
fn requests_that_come_together_compute_their_common_prompt_once() {
    let (service, mut host) = by_hand(ServiceOptions { budget: chunks(64), slots: 4, ..options() });
    let request = request("doc-qa", &document(30), 5);
    let mut streams: Vec<_> = (0..4).map(|_| service.assist(&request).unwrap()).collect();
    let computed = run(&mut host);
    let ends: Vec<_> = streams.iter_mut().map(drain).collect();
    assert!(ends.iter().all(|events| tokens(events) == tokens(&ends[0])));
    let prompt = end(&ends[0]).usage.prompt_tokens as usize;
    // Each request computes its scoring window, and chunks run at the same time while the first prompt is
    // unfinished.
    assert!(computed < prompt * 2, "{computed} tokens computed for four prompts of {prompt}");
    let prefix = service.kv().prefix;
    assert_eq!(prefix.queries, 4);
    assert!(prefix.hit_tokens as usize > 2 * prompt, "{prefix:?}");
    assert!(prefix.cached_blocks > 0 && prefix.cached_blocks * BLOCK_TOKENS < 2 * prompt, "{prefix:?}");
}

#[test]
fn what_never_fits_is_refused_with_limit_and_value() {
    let (service, _host) = by_hand(small_cache(256));
    let err = service.assist(&request("doc-qa", &document(14), 5)).unwrap_err();
    let ServiceError::PromptTooLong { tokens, limit: 255 } = err else { panic!("{err}") };
    assert!(tokens > 256 && err.to_string().contains(&format!("{tokens} tokens, the limit is 255")));
    // Text that is longer than a context of the longest tokens (two bytes each) is not even tokenized.
    let err = service.assist(&request("doc-qa", &document(30), 5)).unwrap_err();
    assert!(matches!(err, ServiceError::TextTooLong { bytes: 513.., limit: 512 }), "{err}");
    assert_eq!(err.to_body().error.code, baton_protocol::ErrorCode::PromptTooLong);
}
