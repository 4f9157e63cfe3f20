//! Weights from the disk, from other workers and from the head.

use super::*;
use crate::core::Note;
use crate::wire::frame::PieceData;

fn piece(index: u32) -> Frame {
    Frame::Piece(PieceData { index, bytes: vec![index as u8; 10] })
}

fn ask(first: u32, count: u32) -> Frame {
    Frame::FetchPieces { first, count }
}

fn lacks(pieces: impl IntoIterator<Item = u32>) -> DiskEvent {
    let pieces = pieces.into_iter().map(|piece| (piece, 10)).collect();
    DiskEvent::Lacks { pieces, path: "part".into() }
}

fn bits(pieces: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let mut which = vec![0; 4];
    pieces.into_iter().for_each(|piece| which[piece as usize / 8] |= 1 << (piece % 8));
    which
}

/// A part whose weights are looked for; `others` may have some.
fn looking(others: &[DeviceId], planted: Planted) -> Rig {
    let mut rig = Rig::with_head_and(planted);
    let others = others.iter().map(|device| node(*device)).collect();
    rig.head(Frame::Configure(Box::new(Configure { others, ..configure(1, false) })));
    rig
}

/// The header is here; returns what follows when these pieces of the layers are missing.
fn missing(rig: &mut Rig, pieces: impl IntoIterator<Item = u32>) -> Vec<Effect> {
    let effects = rig.disk(lacks([]));
    let part = PartOf::Layers(vec![2, 3]);
    assert_eq!(on_disk(&effects), Some(&DiskWork::Look { model: MODEL, part, layers: vec![2, 3] }));
    rig.disk(lacks(pieces))
}

/// Another worker is asked and has these pieces; returns its link and what follows.
fn has(rig: &mut Rig, effects: &[Effect], pieces: &[u32]) -> (LinkId, Vec<Effect>) {
    let link = connected(effects);
    assert_eq!(rig.opened(link), [send(link, Frame::AskPieces { model: MODEL })]);
    (link, rig.heard(link, Frame::HasPieces(bits(pieces.iter().copied()))))
}

/// Answers every question of the worker until its engine begins or the part ends. Returns the pieces that
/// were asked for, with the link.
fn finish(rig: &mut Rig, mut effects: Vec<Effect>) -> Vec<(LinkId, u32)> {
    let mut asked = Vec::new();
    for _ in 0..1000 {
        let question = effects.iter().find_map(|effect| match effect {
            Effect::Link(LinkEffect::Send(link, Frame::FetchPieces { first, count })) => {
                Some((*link, *first, *count))
            }
            _ => None,
        });
        if begins(&effects) {
            return asked;
        }
        let (link, first, count) = question.unwrap_or_else(|| panic!("nothing is asked: {effects:?}"));
        for index in first..first + count {
            asked.push((link, index));
            rig.heard(link, piece(index));
            rig.disk(DiskEvent::Done);
        }
        effects = rig.disk(DiskEvent::Done);
    }
    panic!("it does not end");
}

#[test]
fn what_is_here_is_used_and_the_head_hears_that_it_is_looked_for() {
    let mut rig = looking(&[], Planted::default());
    let progress = |done| DiskEvent::Progress { done, total: 100 };
    let told = |done| Effect::Tell(WorkerNews::Checking { done, total: 100 });
    assert_eq!(rig.disk(progress(1)), [told(1), send(CONTROL, Frame::FetchProgress)]);
    assert_eq!(rig.disk(progress(2)), [told(2)]);
    rig.pass(ms(500));
    assert_eq!(rig.disk(progress(3)), [told(3), send(CONTROL, Frame::FetchProgress)]);
    assert!(begins(&missing(&mut rig, [])), "nothing is missing");
}

#[test]
fn the_list_comes_from_the_head_and_must_be_of_the_model() {
    let mut rig = looking(&[], Planted::default());
    assert_eq!(rig.disk(DiskEvent::NoList), [send(CONTROL, Frame::FetchManifest)]);
    let effects = rig.head(Frame::Manifest(vec![1, 2]));
    assert_eq!(on_disk(&effects), Some(&DiskWork::Keep { model: MODEL, list: vec![1, 2] }));
    let mut other = looking(&[], Planted::default());
    assert!(matches!(on_disk(&rig.disk(DiskEvent::Done)), Some(DiskWork::Look { part: PartOf::Header, .. })));
    other.disk(DiskEvent::NoList);
    other.head(Frame::Manifest(vec![1]));
    let effects = other.disk(DiskEvent::Failed("another model".into()));
    assert_eq!(effects, failed(1, FailureCode::Weights, "another model"));
}

#[test]
fn a_head_that_gives_nothing_fails_the_part_and_its_late_answers_are_dropped() {
    let mut rig = looking(&[], Planted::default());
    rig.disk(DiskEvent::NoList);
    assert_eq!(rig.pass(ms(9_900)), []);
    assert_eq!(rig.pass(ms(200)), failed(1, FailureCode::Weights, "the head gave nothing within 10s"));
    // The list and sixteen pieces of an abandoned question, then the answers of the present one.
    rig.head(Frame::Configure(Box::new(configure(2, false))));
    let effects = missing(&mut rig, 0..20);
    assert_eq!(
        effects,
        [Effect::Link(LinkEffect::Connect {
            link: LinkId(0),
            to: node(OTHER),
            purpose: Purpose::Weights,
            within: PATIENCE / 2,
        })]
    );
    rig.pass(ms(501));
    rig.not_opened(LinkId(0));
    rig.head(Frame::Manifest(vec![1]));
    rig.head(piece(0));
    rig.disk(DiskEvent::Done);
    rig.head(Frame::Configure(Box::new(Configure { others: Vec::new(), ..configure(3, false) })));
    let effects = missing(&mut rig, [30]);
    assert_eq!(effects, [send(CONTROL, ask(30, 1))]);
    for late in 1..16 {
        assert_eq!(rig.head(piece(late)), [], "{late}");
    }
    assert!(matches!(on_disk(&rig.head(piece(30))), Some(DiskWork::Put { index: 30, .. })));
    let effects = rig.head(piece(31));
    assert!(matches!(effects[0], Effect::Note(Note::BadHead { .. })), "nobody asked: {effects:?}");
}

#[test]
fn pieces_are_stored_in_order_and_brought_to_the_disk_after_each_run() {
    let mut rig = looking(&[], Planted::default());
    let effects = missing(&mut rig, [3, 4, 7]);
    assert_eq!(effects, [send(CONTROL, ask(3, 2))]);
    let put = |index, missing| DiskWork::Put { index, bytes: vec![index as u8; 10], missing };
    assert_eq!(on_disk(&rig.head(piece(3))), Some(&put(3, 30)));
    assert_eq!(rig.head(piece(4)), [], "it waits for the disk");
    let told = |done| Effect::Tell(WorkerNews::Fetching { done, total: 30 });
    let effects = rig.disk(DiskEvent::Done);
    assert_eq!((&effects[0], on_disk(&effects)), (&told(10), Some(&put(4, 20))));
    let effects = rig.disk(DiskEvent::Done);
    assert_eq!((&effects[0], on_disk(&effects)), (&told(20), Some(&DiskWork::Sync { missing: 10 })));
    assert_eq!(rig.disk(DiskEvent::Done), [send(CONTROL, ask(7, 1))]);
    rig.head(piece(7));
    rig.disk(DiskEvent::Done);
    assert!(begins(&rig.disk(DiskEvent::Done)));
}

#[test]
fn a_slow_disk_stops_the_head_and_not_the_session() {
    let mut rig = looking(&[], Planted::default());
    missing(&mut rig, 0..16);
    rig.head(piece(0));
    assert_eq!(rig.head(piece(1)), []);
    assert_eq!(rig.head(piece(2)), []);
    assert_eq!(rig.head(piece(3)), [hold(CONTROL)]);
    assert_eq!(rig.head(piece(4)), [], "one that was under way");
    assert_eq!(rig.pass_with(ms(60_000), false), [], "neither late nor silent");
    assert!(!rig.disk(DiskEvent::Done).contains(&release(CONTROL)));
    assert!(rig.disk(DiskEvent::Done).contains(&release(CONTROL)));
}

#[test]
fn a_head_that_forges_or_stops_fails_the_part_and_what_came_is_kept() {
    let mut rig = looking(&[], Planted::default());
    missing(&mut rig, 0..3);
    rig.head(piece(0));
    assert!(matches!(on_disk(&rig.disk(DiskEvent::Forged(0))), Some(DiskWork::Sync { .. })));
    let effects = rig.disk(DiskEvent::Done);
    let words = "fetch weights from the head: piece 0 has other bytes than the list of pieces says";
    assert_eq!(effects, failed(1, FailureCode::Weights, words));

    let mut rig = looking(&[], Planted::default());
    missing(&mut rig, 0..3);
    assert!(matches!(on_disk(&rig.pass(ms(10_000))), Some(DiskWork::Sync { .. })));
    let effects = rig.disk(DiskEvent::Done);
    assert_eq!(
        effects,
        failed(1, FailureCode::Weights, "fetch weights from the head: it gave nothing within 10s")
    );

    let mut rig = looking(&[], Planted::default());
    missing(&mut rig, 0..3);
    assert!(matches!(on_disk(&rig.head(piece(1))), Some(DiskWork::Sync { .. })));
    let effects = rig.disk(DiskEvent::Done);
    assert_eq!(
        effects,
        failed(1, FailureCode::Weights, "fetch weights from the head: it did not answer with piece 0")
    );
}

#[test]
fn a_full_disk_fails_the_part_after_what_came_is_kept() {
    let mut rig = looking(&[], Planted::default());
    missing(&mut rig, 0..3);
    rig.head(piece(0));
    assert!(matches!(on_disk(&rig.disk(DiskEvent::Failed("full".into()))), Some(DiskWork::Sync { .. })));
    assert_eq!(rig.disk(DiskEvent::Done), failed(1, FailureCode::Weights, "full"));
}

#[test]
fn others_are_asked_first_one_after_the_other_and_the_head_for_the_rest() {
    let mut rig = looking(&[OTHER, NEXT], Planted::default());
    let effects = missing(&mut rig, 0..8);
    let (first, effects) = has(&mut rig, &effects, &[0, 1]);
    assert_eq!(effects[0], send(CONTROL, Frame::FetchProgress));
    let (second, effects) = has(&mut rig, &effects, &[1, 2, 3, 6]);
    let asked = finish(&mut rig, effects);
    let want = [
        (first, 0),
        (first, 1),
        (second, 2),
        (second, 3),
        (CONTROL, 4),
        (CONTROL, 5),
        (second, 6),
        (CONTROL, 7),
    ];
    assert_eq!(asked, want);
    assert!(!rig.open.contains(&first) && !rig.open.contains(&second), "they are closed at the end");
}

#[test]
fn a_device_that_does_not_answer_has_nothing() {
    let mut rig = looking(&[OTHER, NEXT], Planted::default());
    let effects = missing(&mut rig, [0]);
    let link = connected(&effects);
    rig.opened(link);
    assert_eq!(rig.pass(ms(4_900)), []);
    let effects = rig.pass(ms(100));
    assert_eq!(effects[0], close(link));
    assert!(matches!(effects[1], Effect::Note(Note::NoWeightsFrom { .. })));
    assert_eq!(effects[2], send(CONTROL, Frame::FetchProgress));
    let mut link = connected(&effects);
    let begun = rig.now;
    // One that refuses is tried again for half a second.
    let effects = loop {
        let effects = rig.not_opened(link);
        if !effects.is_empty() {
            break effects;
        }
        link = connected(&rig.pass(ms(20)));
    };
    assert_eq!(rig.now - begun, ms(500));
    assert!(effects.contains(&send(CONTROL, ask(0, 1))), "the head has it: {effects:?}");
}

#[test]
fn a_device_that_lies_or_fails_costs_only_time() {
    type Break = fn(&mut Rig, LinkId) -> Vec<Effect>;
    let cases: [(Break, bool); 5] = [
        (
            |rig, link| {
                rig.heard(link, piece(0));
                rig.disk(DiskEvent::Forged(0))
            },
            true,
        ),
        (|rig, link| rig.heard(link, piece(1)), true),
        (|rig, link| rig.heard(link, Frame::Provided), true),
        (|rig, link| rig.gone(link), false),
        (|rig, _| rig.pass(PATIENCE / 2), true),
    ];
    for (case, (break_it, closed)) in cases.into_iter().enumerate() {
        let mut rig = looking(&[OTHER, NEXT], Planted::default());
        let effects = missing(&mut rig, 0..2);
        let (bad, effects) = has(&mut rig, &effects, &[0, 1]);
        let (good, effects) = has(&mut rig, &effects, &[1]);
        assert!(effects.contains(&send(bad, ask(0, 2))));
        let effects = break_it(&mut rig, bad);
        assert_eq!(effects.contains(&close(bad)), closed, "{case}: {effects:?}");
        assert!(effects.iter().any(|effect| matches!(effect, Effect::Note(Note::WeightsNotUsed { .. }))));
        assert!(matches!(on_disk(&effects), Some(DiskWork::Sync { .. })), "{case}: {effects:?}");
        let effects = rig.disk(DiskEvent::Done);
        assert_eq!(effects[0], send(CONTROL, Frame::FetchProgress));
        assert_eq!(finish(&mut rig, effects), [(CONTROL, 0), (good, 1)], "{case}");
    }
}

#[test]
fn the_planted_bug_asks_a_forger_for_ever() {
    let mut rig = looking(&[OTHER], Planted::bug(Bug::ForgerAskedAgain));
    let effects = missing(&mut rig, [0]);
    let (bad, _) = has(&mut rig, &effects, &[0]);
    for _ in 0..20 {
        rig.heard(bad, piece(0));
        rig.disk(DiskEvent::Forged(0));
        assert!(rig.disk(DiskEvent::Done).contains(&send(bad, ask(0, 1))));
    }
}

#[test]
fn a_newer_part_ends_the_fetch_and_closes_its_links() {
    let mut rig = looking(&[OTHER], Planted::default());
    let effects = missing(&mut rig, 0..4);
    let (peer, _) = has(&mut rig, &effects, &[0, 1]);
    rig.heard(peer, piece(0));
    let effects = rig.head(Frame::Configure(Box::new(configure(2, true))));
    assert!(effects.contains(&close(peer)));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Abort(_))), "{effects:?}");
    // A relay waits for the disk too.
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Link(LinkEffect::Connect { .. }))));
    assert_eq!(connected(&rig.disk(DiskEvent::Done)), LinkId(2));
}
