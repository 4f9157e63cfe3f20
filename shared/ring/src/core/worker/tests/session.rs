//! Heads that come and go, and the control channel.

use super::*;
use crate::core::Note;
use crate::wire::frame::{EchoData, PieceData, Provide};

#[test]
fn a_head_is_greeted_and_another_one_must_wait() {
    let mut rig = Rig::new(Planted::default());
    rig.beats = true;
    let effects = rig.arrive(CONTROL, HEAD, Purpose::Control);
    assert_eq!(effects[0], Effect::Tell(WorkerNews::Head { head: HEAD }));
    assert!(
        matches!(&effects[1], Effect::Link(LinkEffect::Send(CONTROL, Frame::Hello(hello))) if hello.name == "desk")
    );
    assert_eq!(effects[2], send(CONTROL, Frame::Heartbeat(Heartbeat::default())));
    assert_eq!(effects.len(), 3);
    rig.beats = false;
    let (link, effects) = rig.arrives(OTHER, Purpose::Control);
    let words = "`desk` serves another ring".to_owned();
    let failure = Failure { epoch: Epoch(0), code: FailureCode::Busy, words };
    assert_eq!(effects, [send(link, Frame::Failed(failure)), close(link)]);
    assert!(rig.gone(CONTROL).contains(&Effect::Tell(WorkerNews::HeadGone { head: HEAD })));
    let (_, effects) = rig.arrives(OTHER, Purpose::Control);
    assert_eq!(effects[0], Effect::Tell(WorkerNews::Head { head: OTHER }), "now it is the other's turn");
}

#[test]
fn the_same_head_may_connect_again_and_begins_anew() {
    let mut rig = Rig::with_head();
    let (out, back) = rig.serve(configure(7, false));
    let (link, effects) = rig.arrives(HEAD, Purpose::Control);
    for closed in [CONTROL, out, back] {
        assert!(effects.contains(&close(closed)), "{closed:?}");
    }
    assert!(effects.contains(&Effect::Tell(WorkerNews::HeadGone { head: HEAD })));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Compute(_, WorkerWork::Forget))));
    let begun = rig.heard(link, Frame::Configure(Box::new(configure(1, false))));
    assert!(on_disk(&begun).is_none(), "the old model is dropped first");
    let effects = rig.computed(WorkerDone::Forgotten);
    assert!(matches!(on_disk(&effects), Some(DiskWork::Look { part: PartOf::Header, .. })), "{effects:?}");
}

#[test]
fn links_without_a_session_are_closed() {
    let mut rig = Rig::new(Planted::default());
    for purpose in [Purpose::Ring, Purpose::Weights, Purpose::Edge] {
        let (link, effects) = rig.arrives(OTHER, purpose);
        assert_eq!(effects, [close(link)]);
    }
    assert_eq!(rig.event(Event::End), []);
    assert_eq!(rig.wake, None, "nothing depends on time");
}

#[test]
fn echoes_are_answered_at_once() {
    let mut rig = Rig::with_head();
    let effects = rig.head(Frame::Echo(EchoData { number: 3, reply: 2, bytes: vec![1] }));
    let answer = EchoData { number: 3, reply: 0, bytes: vec![0; 2] };
    assert_eq!(effects, [send(CONTROL, Frame::Echoed(answer))]);
}

#[test]
fn a_silent_head_is_gone_after_fifteen_seconds() {
    let mut rig = Rig::with_head();
    assert_eq!(rig.pass_with(ms(14_900), false), []);
    let effects = rig.pass_with(ms(300), false);
    assert_eq!(effects, [close(CONTROL), Effect::Tell(WorkerNews::HeadGone { head: HEAD })]);
    assert_eq!(rig.wake, None);
}

#[test]
fn the_own_lateness_is_no_silence_of_the_head() {
    let mut rig = Rig::with_head();
    for _ in 0..50 {
        // Stopped for a minute each time: two ticks of it count.
        rig.now += Duration::from_secs(60);
        assert_eq!(rig.event(Event::Tick(Meters::default())), []);
    }
    rig.head(Frame::Heartbeat(Heartbeat::default()));
    assert_eq!(rig.pass_with(ms(14_000), false), [], "any frame begins the count anew");
}

#[test]
fn what_is_not_the_heads_to_send_ends_the_session() {
    for frame in [
        Frame::Provided,
        Frame::Ready { epoch: Epoch(1) },
        Frame::Step(first_step(1, 1)),
        Frame::Manifest(vec![1]),
        Frame::Piece(PieceData { index: 0, bytes: vec![] }),
    ] {
        let mut rig = Rig::with_head();
        let effects = rig.head(frame.clone());
        assert!(matches!(effects[0], Effect::Note(Note::BadHead { .. })), "{frame:?}: {effects:?}");
        assert_eq!(effects[1..], [close(CONTROL), Effect::Tell(WorkerNews::HeadGone { head: HEAD })]);
    }
    let mut rig = Rig::with_head();
    let effects = rig.no_frame(CONTROL);
    assert!(matches!(effects[0], Effect::Note(Note::BadHead { .. })));
    assert_eq!(effects[1..], [Effect::Tell(WorkerNews::HeadGone { head: HEAD })], "it is gone already");
}

#[test]
fn heartbeats_tell_what_the_host_counts_and_the_memory_of_devices_that_compute() {
    let mut rig = Rig::with_head();
    let meters = Meters { bytes_in: 1, bytes_out: 2, send_us: 3, unsent: 0, memory_bytes: 4 };
    let beat = rig.next_beat(meters);
    assert_eq!((beat.bytes_in, beat.bytes_out, beat.send_us, beat.memory_bytes), (1, 2, 3, 4));
    let mut rig = Rig::new(Planted::default());
    rig.core.base.setup.hello.device = None;
    rig.arrive(CONTROL, HEAD, Purpose::Control);
    assert_eq!(rig.next_beat(meters).memory_bytes, 0, "it only relays");
}

#[test]
fn heartbeats_come_as_often_as_the_part_says() {
    let mut rig = Rig::with_head();
    let count = |rig: &mut Rig| {
        rig.beats = true;
        let effects = rig.pass(ms(3000));
        rig.beats = false;
        let is_beat =
            |effect: &&Effect| matches!(effect, Effect::Link(LinkEffect::Send(CONTROL, Frame::Heartbeat(_))));
        effects.iter().filter(is_beat).count()
    };
    assert_eq!(count(&mut rig), 10);
    rig.serve(Configure { heartbeat: ms(100), ..configure(1, false) });
    assert!((29..=31).contains(&count(&mut rig)));
    rig.serve(Configure { heartbeat: ms(0), ..configure(2, false) });
    assert!((149..=151).contains(&count(&mut rig)), "not more often than every 20 ms");
}

#[test]
fn a_device_that_computes_wrong_forgets_model_and_checks() {
    let mut rig = Rig::with_head();
    let (out, back) = rig.serve(configure(3, false));
    let failure = Failure { epoch: Epoch(3), code: FailureCode::Engine, words: "row 0 differs".into() };
    let effects = rig.head(Frame::Failed(failure.clone()));
    let told = WorkerNews::Failed { epoch: Epoch(3), words: "row 0 differs".into() };
    assert!(matches!(&effects[0], Effect::Note(Note::Distrusted { .. })));
    assert_eq!(effects[1..4], [close(out), close(back), Effect::Tell(told)]);
    assert_eq!(on_disk(&effects), Some(&DiskWork::ForgetChecked));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Compute(_, WorkerWork::Forget))));
    // The next part waits for both.
    assert!(on_disk(&rig.head(Frame::Configure(Box::new(configure(4, false))))).is_none());
    assert!(on_disk(&rig.disk(DiskEvent::Done)).is_none());
    assert!(matches!(on_disk(&rig.computed(WorkerDone::Forgotten)), Some(DiskWork::Look { .. })));
}

/// A `Failed` while weights are fetched was lost once.
#[test]
fn distrust_is_heard_while_weights_are_fetched() {
    let mut rig = Rig::with_head();
    rig.head(Frame::Configure(Box::new(configure(3, false))));
    let failure = Failure { epoch: Epoch(2), code: FailureCode::Engine, words: "wrong".into() };
    let effects = rig.head(Frame::Failed(failure));
    assert!(effects.contains(&failed(3, FailureCode::Weights, "wrong")[0]), "{effects:?}");
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Abort(_))));
    assert_eq!(on_disk(&rig.disk(DiskEvent::Aborted)), Some(&DiskWork::ForgetChecked));
}

#[test]
fn the_end_of_the_program_ends_everything() {
    let mut rig = Rig::with_head();
    let (out, back) = rig.serve(configure(1, false));
    rig.heard(back, Frame::Step(first_step(1, 1)));
    let effects = rig.event(Event::End);
    for effect in [close(out), close(back), close(CONTROL), Effect::Interrupt] {
        assert!(effects.contains(&effect), "{effect:?}");
    }
    let forgets = rig.computed(WorkerDone::Stopped);
    assert!(matches!(forgets[..], [Effect::Compute(_, WorkerWork::Forget)]), "{forgets:?}");
    assert_eq!(rig.computed(WorkerDone::Forgotten), []);
}

#[test]
fn a_device_without_a_part_may_be_asked_to_fetch_and_one_with_a_part_not() {
    let mut rig = Rig::with_head();
    let provide = |layers| Box::new(Provide { model: MODEL, layers, others: Vec::new() });
    assert_eq!(rig.head(Frame::Provide(provide(vec![]))), [send(CONTROL, Frame::Provided)]);
    let effects = rig.head(Frame::Provide(provide(vec![1, 4])));
    let look = DiskWork::Look { model: MODEL, part: PartOf::Header, layers: vec![1, 4] };
    assert_eq!(on_disk(&effects), Some(&look));
    assert_eq!(rig.disk(DiskEvent::Whole("a".into())), [send(CONTROL, Frame::Provided)]);
    rig.head(Frame::Provide(provide(vec![1])));
    assert_eq!(rig.disk(DiskEvent::Failed("full".into())), failed(0, FailureCode::Weights, "full"));
    rig.serve(configure(1, false));
    let effects = rig.head(Frame::Provide(provide(vec![1])));
    assert_eq!(effects, failed(0, FailureCode::Weights, "it has a part already"));
}

#[test]
fn a_part_supersedes_what_is_fetched_without_a_word() {
    let mut rig = Rig::with_head();
    let provide = Provide { model: MODEL, layers: vec![1], others: Vec::new() };
    rig.head(Frame::Provide(Box::new(provide)));
    let effects = rig.head(Frame::Configure(Box::new(configure(1, false))));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Abort(_))));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Link(LinkEffect::Send(..)))));
    let effects = rig.disk(DiskEvent::Aborted);
    assert!(matches!(on_disk(&effects), Some(DiskWork::Look { layers, .. }) if *layers == [2, 3]));
}
