//! Seeded simulation of the whole service in virtual time: readers come, cancel and disconnect; nothing
//! leaks.

use std::time::Duration;

use baton_cloud::service::ServiceOptions;
use baton_cloud::service::stream::AssistStream;
use baton_protocol::AssistEvent;
use baton_random::SplitMix64;

use crate::world::{HandClock, by_hand, chunks, document, drain, options, request, tokens};

struct Reader {
    stream: AssistStream,
    cap: usize,
    events: Vec<AssistEvent>,
}

impl Reader {
    fn read(&mut self) {
        self.events.extend(drain(&mut self.stream));
    }

    fn ended(&self) -> bool {
        matches!(self.events.last(), Some(AssistEvent::End(_) | AssistEvent::Error(_)))
    }
}

fn simulate(seed: u64) {
    let mut rng = SplitMix64::new(seed);
    let hand = HandClock::default();
    let (slots, queue) = (1 + rng.below(3), rng.below(4));
    let (service, mut host) = by_hand(ServiceOptions {
        slots,
        queue,
        budget: chunks(16 + rng.below(200)),
        kv_tokens: std::num::NonZeroUsize::new(1024 + rng.below(2048)),
        clock: hand.clock(),
        ..options()
    });
    let free = host.free_kv_tokens();
    let mut readers: Vec<Reader> = Vec::new();
    let (mut accepted, mut dropped) = (0_u64, 0_u64);
    for _ in 0..60 {
        if rng.below(3) == 0 {
            let cap = 1 + rng.below(12);
            let scene = ["doc-qa", "doc-qa-full"][rng.below(2)];
            let sentences = 1 + rng.below(12);
            if let Ok(stream) = service.assist(&request(scene, &document(sentences), cap as u32)) {
                accepted += 1;
                readers.push(Reader { stream, cap, events: Vec::new() });
            }
        }
        if let Some(pass) = host.turn() {
            hand.advance(Duration::from_millis(1 + rng.below(50) as u64));
            host.commit(pass);
        }
        if !readers.is_empty() && rng.below(6) == 0 {
            let at = rng.below(readers.len());
            if rng.below(2) == 0 {
                dropped += u64::from(!readers[at].ended());
                drop(readers.swap_remove(at));
            } else {
                readers[at].stream.cancel();
            }
        }
        let stats = service.stats();
        assert!(
            stats.running <= slots && stats.running + stats.waiting <= slots + queue,
            "seed {seed}: {stats:?}"
        );
        readers.iter_mut().for_each(Reader::read);
    }
    let mut passes = 0;
    while let Some(pass) = host.turn() {
        host.commit(pass);
        passes += 1;
        assert!(passes < 5_000, "seed {seed}: every answer ends in bounded time");
    }
    for reader in &mut readers {
        reader.read();
        let terminal = reader.events.iter().filter(|event| matches!(event, AssistEvent::End(_))).count();
        assert!(reader.ended() && terminal == 1, "seed {seed}: {:?}", reader.events);
        let written = tokens(&reader.events).len();
        assert!(written <= reader.cap, "seed {seed}: at most L tokens");
    }
    let stats = service.stats();
    assert_eq!(stats.closed_total, accepted, "seed {seed}: one end each ({dropped} dropped)");
    assert_eq!((stats.running, stats.waiting, stats.kv_held_tokens), (0, 0, 0), "seed {seed}");
    assert_eq!(host.free_kv_tokens(), free, "seed {seed}: the KV cache is free again");
}

#[test]
fn readers_come_and_go() {
    for seed in 0..40 {
        simulate(seed);
    }
}
