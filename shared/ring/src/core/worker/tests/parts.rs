//! A part until it is ready, and what ends it before.

use super::*;

fn configured(rig: &mut Rig, configure: Configure) -> Vec<Effect> {
    rig.head(Frame::Configure(Box::new(configure)))
}

/// Has weights and engine; returns the link to the next device, which is being opened.
fn linking(rig: &mut Rig, epoch: u64) -> LinkId {
    configured(rig, configure(epoch, false));
    if rig.on_disk.is_some() {
        rig.disk(DiskEvent::Whole("model".into()));
    }
    connected(&rig.computed(WorkerDone::Begun))
}

#[test]
fn a_part_goes_from_weights_over_engine_and_links_to_ready() {
    let mut rig = Rig::with_head();
    let effects = configured(&mut rig, configure(5, false));
    let guests = LinkEffect::Allow(vec![BEFORE, OTHER]);
    let look = DiskWork::Look { model: MODEL, part: PartOf::Header, layers: vec![2, 3] };
    assert_eq!(effects, [Effect::Link(guests), Effect::Disk(DiskId(0), look)]);
    let effects = rig.disk(DiskEvent::Whole("model".into()));
    let begin = WorkerWork::Begin {
        file: "model".into(),
        configure: Box::new(configure(5, false)),
        layers: vec![2, 3],
        same: false,
    };
    assert_eq!(effects, [Effect::Compute(WorkId(0), begin)]);
    let effects = rig.computed(WorkerDone::Begun);
    let out = LinkId(0);
    let connect = LinkEffect::Connect { link: out, to: node(NEXT), purpose: Purpose::Ring, within: PATIENCE };
    assert_eq!(effects, [Effect::Link(connect)]);
    assert_eq!(rig.opened(out), [send(out, Frame::Enter { epoch: Epoch(5), place: 1 })]);
    let (back, effects) = rig.arrives(BEFORE, Purpose::Ring);
    assert_eq!(effects, []);
    let effects = rig.heard(back, Frame::Enter { epoch: Epoch(5), place: 0 });
    let ready = WorkerNews::Ready { epoch: Epoch(5), place: 1, layers: vec![2, 3] };
    assert_eq!(effects, [send(CONTROL, Frame::Ready { epoch: Epoch(5) }), Effect::Tell(ready)]);
    assert_eq!(rig.next_beat(Meters::default()).epoch, Epoch(5));
}

#[test]
fn a_model_that_is_open_already_is_used_again() {
    let mut rig = Rig::with_head();
    rig.serve(configure(1, false));
    let effects = configured(&mut rig, configure(2, false));
    let begin = effects.iter().find_map(|effect| match effect {
        Effect::Compute(_, WorkerWork::Begin { file, same, .. }) => Some((file.clone(), *same)),
        _ => None,
    });
    assert_eq!(begin, Some((PathBuf::from("model"), true)));
    rig.computed(WorkerDone::Begun);
    for other in [
        Configure { model: [8; 32], ..configure(3, false) },
        Configure { reads_ahead: true, ..configure(4, false) },
    ] {
        let effects = configured(&mut rig, other);
        assert!(matches!(effects.last(), Some(Effect::Compute(_, WorkerWork::Forget))), "{effects:?}");
        assert!(on_disk(&rig.computed(WorkerDone::Forgotten)).is_some());
        rig.disk(DiskEvent::Whole("other".into()));
        rig.computed(WorkerDone::Begun);
    }
}

#[test]
fn a_relay_needs_neither_weights_nor_engine() {
    let mut rig = Rig::with_head();
    let effects = configured(&mut rig, configure(1, true));
    assert!(on_disk(&effects).is_none() && connected(&effects) == LinkId(0));
    assert!(rig.computing.is_none());
}

#[test]
fn an_epoch_that_is_not_newer_is_refused() {
    let mut rig = Rig::with_head();
    let (_, back) = rig.serve(configure(5, false));
    for epoch in [5, 4] {
        let words = format!("epoch {epoch} is not newer than 5");
        let effects = configured(&mut rig, configure(epoch, false));
        assert_eq!(effects, failed(epoch, FailureCode::Engine, &words));
    }
    assert!(passes(&rig.heard(back, Frame::Step(first_step(5, 1)))).is_some(), "the part goes on");
}

#[test]
fn a_newer_part_waits_for_the_disk_and_the_newest_replaces_it() {
    let mut rig = Rig::with_head();
    configured(&mut rig, configure(1, false));
    let effects = configured(&mut rig, configure(2, false));
    assert!(matches!(effects.as_slice(), [Effect::Abort(DiskId(0)), Effect::Link(LinkEffect::Allow(_))]));
    let newest = Configure { others: Vec::new(), ..configure(3, false) };
    assert_eq!(configured(&mut rig, newest), [Effect::Link(LinkEffect::Allow(vec![BEFORE]))]);
    let effects = rig.disk(DiskEvent::Aborted);
    assert!(matches!(effects.as_slice(), [Effect::Disk(_, DiskWork::Look { .. })]));
    rig.disk(DiskEvent::Whole("model".into()));
    let out = connected(&rig.computed(WorkerDone::Begun));
    assert_eq!(rig.opened(out), [send(out, Frame::Enter { epoch: Epoch(3), place: 1 })]);
}

#[test]
fn a_newer_part_interrupts_the_engine_and_takes_the_model_that_it_opened() {
    let mut rig = Rig::with_head();
    configured(&mut rig, configure(1, false));
    rig.disk(DiskEvent::Whole("model".into()));
    let effects = configured(&mut rig, configure(2, false));
    assert!(effects.contains(&Effect::Interrupt));
    assert_eq!(configured(&mut rig, configure(3, false)).len(), 1, "interrupted once");
    let effects = rig.computed(WorkerDone::Begun);
    assert!(matches!(effects.as_slice(), [Effect::Compute(_, WorkerWork::Begin { same: true, .. })]));
}

#[test]
fn what_the_engine_says_of_weights_and_itself_reaches_the_head() {
    for (done, code, words) in [
        (WorkerDone::Weights("no such tensor".into()), FailureCode::Weights, "no such tensor"),
        (WorkerDone::Engine("no threads".into()), FailureCode::Engine, "no threads"),
    ] {
        let mut rig = Rig::with_head();
        configured(&mut rig, configure(1, false));
        rig.disk(DiskEvent::Whole("model".into()));
        assert_eq!(rig.computed(done), failed(1, code, words));
        let effects = configured(&mut rig, configure(2, false));
        assert!(matches!(effects.last(), Some(Effect::Compute(_, WorkerWork::Forget))), "{effects:?}");
    }
}

#[test]
fn the_next_device_is_tried_again_until_patience_ends() {
    let mut rig = Rig::with_head();
    let mut link = linking(&mut rig, 1);
    let begun = rig.now;
    let mut tries = 1;
    loop {
        let effects = rig.not_opened(link);
        if !effects.is_empty() {
            assert_eq!(effects, failed(1, FailureCode::Next, "refused"));
            break;
        }
        link = connected(&rig.pass(ms(20)));
        tries += 1;
    }
    assert_eq!((rig.now - begun, tries), (PATIENCE, 501));
}

#[test]
fn links_that_end_before_the_part_is_ready_end_it() {
    let mut rig = Rig::with_head();
    let out = linking(&mut rig, 1);
    rig.opened(out);
    assert_eq!(rig.gone(out), failed(1, FailureCode::Next, "cut"));

    let out = linking(&mut rig, 2);
    let (back, _) = rig.arrives(BEFORE, Purpose::Ring);
    rig.heard(back, Frame::Enter { epoch: Epoch(2), place: 0 });
    let effects = rig.gone(back);
    assert_eq!(effects[..2], failed(2, FailureCode::Before, "cut"));
    assert_eq!(effects[2..], [close(out)], "its opening is given up");
}

#[test]
fn a_link_of_an_older_epoch_is_closed_and_one_of_a_newer_stays() {
    let mut rig = Rig::with_head();
    let out = linking(&mut rig, 5);
    rig.opened(out);
    let enter = |epoch| Frame::Enter { epoch: Epoch(epoch), place: 0 };
    let (newer, _) = rig.arrives(BEFORE, Purpose::Ring);
    assert_eq!(rig.heard(newer, enter(6)), []);
    let (older, _) = rig.arrives(BEFORE, Purpose::Ring);
    assert_eq!(rig.heard(older, enter(4)), [close(older)]);
    let (strange, _) = rig.arrives(OTHER, Purpose::Ring);
    assert_eq!(rig.heard(strange, enter(5)), [], "not from the device before");
    assert_eq!(rig.next_beat(Meters::default()).refused, 1);
    // The newer part finds its link.
    let out = linking(&mut rig, 6);
    let effects = rig.opened(out);
    assert!(effects.contains(&send(CONTROL, Frame::Ready { epoch: Epoch(6) })), "{effects:?}");
    assert_eq!(rig.next_beat(Meters::default()).refused, 1, "counted over all epochs");
}

/// A link that says nothing held up the whole session once.
#[test]
fn a_silent_link_holds_up_nobody() {
    let mut rig = Rig::with_head();
    let out = linking(&mut rig, 1);
    rig.opened(out);
    let silent: Vec<LinkId> = (0..3).map(|_| rig.arrives(BEFORE, Purpose::Ring).0).collect();
    let (back, _) = rig.arrives(BEFORE, Purpose::Ring);
    let effects = rig.heard(back, Frame::Enter { epoch: Epoch(1), place: 0 });
    assert!(effects.contains(&send(CONTROL, Frame::Ready { epoch: Epoch(1) })));
    for _ in 0..2 {
        rig.arrives(BEFORE, Purpose::Ring);
    }
    assert!(!rig.open.contains(&silent[0]), "at most four of one device wait");
    assert!(rig.open.contains(&silent[1]));
    let effects = configured(&mut rig, configure(2, false));
    assert!(begins(&effects), "a newer part begins at once");
}

#[test]
fn a_link_that_begins_with_another_frame_is_closed() {
    let mut rig = Rig::with_head();
    let (link, _) = rig.arrives(BEFORE, Purpose::Ring);
    assert_eq!(rig.heard(link, Frame::Step(first_step(1, 1))), [close(link)]);
    let (link, _) = rig.arrives(BEFORE, Purpose::Ring);
    assert_eq!(rig.heard(link, Frame::Enter { epoch: Epoch(9), place: 0 }), []);
    assert_eq!(rig.heard(link, Frame::Enter { epoch: Epoch(9), place: 0 }), [close(link)], "once");
}

#[test]
fn a_frame_that_comes_too_early_is_refused() {
    let mut rig = Rig::with_head();
    linking(&mut rig, 1);
    let (back, _) = rig.arrives(BEFORE, Purpose::Ring);
    rig.heard(back, Frame::Enter { epoch: Epoch(1), place: 0 });
    let effects = rig.heard(back, Frame::Step(first_step(1, 1)));
    assert_eq!(effects[..2], failed(1, FailureCode::Refused, "a frame that is no step, or came too early"));
    assert!(effects.contains(&close(back)));
}
