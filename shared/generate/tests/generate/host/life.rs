//! A host from its first job to its end: its thread, its stages, and jobs that run alone.

use std::ops::ControlFlow;
use std::sync::mpsc;
use std::time::Duration;

use baton_engine::pace_emulation::PassCost;
use baton_engine::sampling::SamplingParams;
use baton_engine::{Engine, StepControl};
use baton_generate::answer::Answer;
use baton_generate::clock::Clock;
use baton_generate::host::{Host, HostOptions, NotTaken, Stage};
use baton_generate::job::{Job, JobEvent, Opened, Order, Sink};
use baton_generate::scheduler::{CloseReason, Closed, Goal, JobId};

use super::world::{Ask, ByHand, Reader, engine, options};

const KV_TOKENS: usize = 512;

fn ask(tokens: usize, max_tokens: usize) -> Ask {
    let prompt = (0..tokens as u32).map(|at| (at * 31 + 7) % 200).collect();
    Ask { prompt, sampling: SamplingParams::default(), max_tokens, adapted: false, owner: 0 }
}

fn host(change: impl FnOnce(HostOptions) -> HostOptions) -> Host<Engine> {
    Host::new(engine(KV_TOKENS), change(options(KV_TOKENS, Clock::monotonic())))
}

/// Submits an answer to write.
#[track_caller]
fn submit(host: &Host<Engine>, ask: &Ask) -> (JobId, Reader) {
    let id = host.handle().new_id();
    let (job, reader) = ask.job(id, Goal::Write, None);
    host.handle().submit(job).unwrap();
    (id, reader)
}

fn reason(reader: &Reader) -> Option<CloseReason> {
    reader.with(|record| record.end.as_ref().map(|(reason, _, _)| *reason))
}

/// Runs turns until there is nothing to do.
fn run_all(host: &mut Host<Engine>) {
    while let Some(pass) = host.turn() {
        host.commit(pass);
    }
}

#[test]
fn a_host_serves_until_it_is_drained_and_empty() {
    let host = host(|options| options);
    let handle = host.handle();
    let asks = [ask(40, 5), ask(20, 3), ask(70, 4)];
    let readers: Vec<Reader> = asks.iter().map(|ask| submit(&host, ask).1).collect();
    let thread = std::thread::spawn(move || host.serve());
    handle.drain();
    thread.join().unwrap();
    for (ask, reader) in asks.iter().zip(&readers) {
        let tokens = reader.with(|record| record.end.clone()).unwrap().1;
        assert_eq!(tokens, ask.alone(&[]).0);
    }
    let (job, _reader) = asks[0].job(handle.new_id(), Goal::Write, None);
    assert_eq!(handle.submit(job), Err(NotTaken::Draining));
    assert_eq!(handle.stage(), Stage::Stopping, "the thread has ended");
}

#[test]
fn a_stopped_host_tells_those_that_hold_and_those_that_wait() {
    let mut host = host(|options| options);
    let handle = host.handle();
    let (job, held) = ask(40, 5).job(handle.new_id(), Goal::Hold { upto: 39 }, None);
    handle.submit(job).unwrap();
    run_all(&mut host);
    assert!(held.with(|record| record.held == 1) && reason(&held).is_none());
    handle.pause(true);
    let (_, waits) = submit(&host, &ask(20, 3));
    let thread = std::thread::spawn(move || host.serve());
    handle.stop();
    thread.join().unwrap();
    assert_eq!([reason(&held), reason(&waits)], [Some(CloseReason::Stopped); 2]);
}

#[test]
fn a_job_that_cannot_get_a_slot_expires_all_the_same() {
    let host = host(|options| options);
    let handle = host.handle();
    handle.pause(true);
    let (mut job, reader) = ask(20, 3).job(handle.new_id(), Goal::Write, None);
    job.spec.deadline = Some(handle.now() + Duration::from_millis(20));
    handle.submit(job).unwrap();
    let thread = std::thread::spawn(move || host.serve());
    while !reader.ended() {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(reason(&reader), Some(CloseReason::Expired));
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn an_emulated_wait_ends_if_nobody_wants_its_pass() {
    let slow = PassCost { decode_ms: 60_000.0, ..PassCost::default() };
    let host = host(|options| HostOptions { emulation: Some(slow), ..options });
    let handle = host.handle();
    let (_, reader) = submit(&host, &ask(20, 3));
    let thread = std::thread::spawn(move || host.serve());
    while handle.stats().kv_held_tokens == 0 {
        std::thread::sleep(Duration::from_millis(2));
    }
    reader.cancel.set();
    handle.cancelled();
    handle.drain();
    thread.join().unwrap();
    assert_eq!(reason(&reader), Some(CloseReason::Cancelled));
}

/// A sink that panics at the first event, and says when it is dropped.
struct Panics {
    _said: mpsc::Sender<()>,
}

impl Sink for Panics {
    fn opened(&mut self, _opened: Opened) {}

    fn event(&mut self, _event: JobEvent) {
        panic!("a reader's fault, on purpose");
    }

    fn flush(&mut self, _now: Duration) {}

    fn closed(self: Box<Self>, _closed: &Closed, _answer: Answer) {}
}

#[test]
fn a_thread_that_panics_leaves_nobody_waiting() {
    let host = host(|options| options);
    let handle = host.handle();
    let (said, heard) = mpsc::channel();
    let (job, _reader) = ask(20, 3).job(handle.new_id(), Goal::Write, None);
    handle.submit(Job { sink: Box::new(Panics { _said: said }), ..job }).unwrap();
    assert!(std::thread::spawn(move || host.serve()).join().is_err());
    assert_eq!(handle.stage(), Stage::Failed);
    assert!(heard.recv().is_err(), "the sink is dropped");
    let (job, _reader) = ask(20, 3).job(handle.new_id(), Goal::Write, None);
    assert_eq!(handle.submit(job), Err(NotTaken::Gone));
}

/// Stops after so many layers.
struct After(usize);

impl StepControl for After {
    fn after_layer(&mut self, _done: usize, _total: usize) -> ControlFlow<()> {
        match self.0.checked_sub(1) {
            Some(left) => self.0 = left,
            None => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }
}

#[test]
fn a_job_runs_alone_to_its_end_or_until_it_is_stopped() {
    let mut host = host(|options| options);
    let ask = ask(150, 6);
    let job = |host: &Host<Engine>, goal| ask.job(host.handle().new_id(), goal, None).0;
    let whole = host.run(job(&host, Goal::Write), &mut ()).unwrap();
    assert_eq!((whole.answer.tokens(), whole.held), (&ask.alone(&[]).0[..], false));
    assert!([CloseReason::Stop, CloseReason::Cap].contains(&whole.closed.reason));
    assert_eq!(whole.computed_tokens, 150);
    let held = host.run(job(&host, Goal::Hold { upto: 140 }), &mut ()).unwrap();
    assert!(held.held && held.answer.tokens().is_empty());
    assert_eq!(
        (held.closed.reason, held.computed_tokens),
        (CloseReason::Cancelled, 12),
        "whole blocks are known"
    );
    // The passes of the prompt have one layer each.
    for layers in 0..3 {
        let stopped = host.run(job(&host, Goal::Write), &mut After(layers)).unwrap();
        assert_eq!(stopped.closed.reason, CloseReason::Cancelled);
        assert!(ask.alone(&[]).0.starts_with(stopped.answer.tokens()));
    }
    assert_eq!(host.free_kv_tokens(), KV_TOKENS);
    assert!(host.probe(16).is_some() && host.probe(5000).is_none());
    assert_eq!(host.free_kv_tokens(), KV_TOKENS);
    let huge = super::world::Ask { max_tokens: 2 * KV_TOKENS, ..ask.clone() };
    let (job, _reader) = huge.job(host.handle().new_id(), Goal::Write, None);
    assert!(matches!(host.run(job, &mut ()), Err(NotTaken::Refused(_))));
}

#[test]
fn the_next_turn_of_a_conversation_computes_only_what_is_new() {
    for (idle_sequences, reused) in [(0, 64), (1, 75)] {
        let mut host = host(|options| HostOptions { idle_sequences, ..options });
        let first = ask(70, 6);
        let (_, reader) = submit(&host, &first);
        run_all(&mut host);
        // The last token of an answer is written, but not computed.
        let (_, tokens, _) = reader.with(|record| record.end.clone()).unwrap();
        assert_eq!(tokens.len(), 6);
        let next = Ask { prompt: [&first.prompt[..], &tokens, &[3; 20]].concat(), ..first.clone() };
        let (_, reader) = submit(&host, &next);
        run_all(&mut host);
        assert_eq!(reader.with(|record| record.computed_tokens), next.prompt.len() - reused);
        assert_eq!(reader.with(|record| record.end.clone()).unwrap().1, next.alone(&[]).0);
    }
}

#[test]
fn a_kept_sequence_is_released_while_nobody_asks() {
    let clock = ByHand::default();
    let idle =
        |options| HostOptions { idle_sequences: 2, idle_for: Some(Duration::from_secs(30)), ..options };
    let mut host = Host::new(engine(KV_TOKENS), idle(options(KV_TOKENS, clock.clock())));
    submit(&host, &ask(70, 6));
    run_all(&mut host);
    let kept = |host: &Host<Engine>| (host.handle().kv().kept_tokens, KV_TOKENS - host.free_kv_tokens());
    assert_eq!(kept(&host), (75, 32), "its full blocks are claimed by nobody");
    clock.advance(29_000_000);
    assert!(host.turn().is_none());
    assert_eq!(kept(&host).0, 75);
    clock.advance(1_000_000);
    assert!(host.turn().is_none());
    assert_eq!(kept(&host), (0, 0));
    // The host's own thread wakes for it.
    let short =
        |options| HostOptions { idle_sequences: 2, idle_for: Some(Duration::from_millis(20)), ..options };
    let real = self::host(short);
    let handle = real.handle();
    let (_, reader) = submit(&real, &ask(70, 6));
    let thread = std::thread::spawn(move || real.serve());
    let begun = std::time::Instant::now();
    while !reader.ended() || handle.kv().kept_tokens > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is kept");
        std::thread::sleep(Duration::from_millis(1));
    }
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn an_owner_with_many_kept_sequences_costs_others_none() {
    let mut host = host(|options| HostOptions { idle_sequences: 3, ..options });
    let of = |owner: u128, first: u32| {
        let ask = ask(50, 3);
        Ask { owner, prompt: [&[first], &ask.prompt[..]].concat(), ..ask }
    };
    let first = of(2, 1);
    let (_, reader) = submit(&host, &first);
    run_all(&mut host);
    let tokens = reader.with(|record| record.end.clone()).unwrap().1;
    for at in 0..4 {
        submit(&host, &of(1, 10 + at));
        run_all(&mut host);
    }
    let next = Ask { prompt: [&first.prompt[..], &tokens, &[3; 20]].concat(), ..first.clone() };
    let (_, reader) = submit(&host, &next);
    run_all(&mut host);
    let kept = first.prompt.len() + tokens.len() - 1;
    assert_eq!(reader.with(|record| record.computed_tokens), next.prompt.len() - kept, "it was kept");
}

#[test]
fn an_order_that_does_not_fit_ends_its_job_alone() {
    use baton_generate::answer::{Accepted, Keep};
    let clock = ByHand::default();
    let mut host = Host::new(engine(KV_TOKENS), options(KV_TOKENS, clock.clock()));
    let handle = host.handle();
    let ask = ask(40, 5);
    let orders = [
        Order::Accept(Accepted::Ids(vec![1])),
        Order::Decide { keep: Keep::All, index: 0 },
        Order::Prompt { ids: vec![1; 9], evidence: None, max_tokens: 2, goal: Goal::Write, pass_tokens: 8 },
    ];
    for order in orders {
        let (other, beside) = submit(&host, &ask);
        let (id, reader) = submit(&host, &ask);
        handle.order(id, order);
        handle.order(JobId(u64::MAX), Order::Decide { keep: Keep::All, index: 0 });
        run_all(&mut host);
        assert_eq!(reason(&reader), Some(CloseReason::Failed));
        assert!(reader.with(|record| record.end.as_ref().unwrap().2.is_some()), "it says why");
        assert_eq!(beside.with(|record| record.end.clone()).unwrap().1, ask.alone(&[]).0, "{other:?}");
    }
}
