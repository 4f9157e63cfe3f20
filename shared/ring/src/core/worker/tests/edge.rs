//! Paths to and from other workers, and pieces for them.

use super::*;
use crate::core::Give;
use crate::core::echo::answer;
use crate::core::worker::giving::GIVEN_MAX;
use crate::wire::frame::{EchoData, MeasuredLink};

/// Returns the echo that is sent over this link.
fn echo(effects: &[Effect], link: LinkId) -> EchoData {
    let echo = effects.iter().find_map(|effect| match effect {
        Effect::Link(LinkEffect::Send(to, Frame::Echo(echo))) if *to == link => Some(echo.clone()),
        _ => None,
    });
    echo.unwrap_or_else(|| panic!("no echo: {effects:?}"))
}

fn unmeasured() -> Effect {
    send(CONTROL, Frame::Edge(MeasuredLink { to: OTHER, speed: None }))
}

#[test]
fn a_path_is_measured_and_told_to_the_head() {
    let mut rig = Rig::with_head();
    let link = connected(&rig.head(Frame::MeasureEdge(node(OTHER))));
    let mut effects = rig.opened(link);
    loop {
        let asked = echo(&effects, link);
        // A megabyte a second, and ten milliseconds each way.
        let bytes = asked.bytes.len() as u64 + u64::from(asked.reply);
        rig.pass(ms(20) + Duration::from_micros(bytes));
        effects = rig.heard(link, answer(&asked));
        if effects.contains(&close(link)) {
            break;
        }
    }
    let [_, Effect::Link(LinkEffect::Send(CONTROL, Frame::Edge(edge)))] = &effects[..] else {
        panic!("{effects:?}")
    };
    let speed = edge.speed.unwrap();
    assert_eq!(edge.to, OTHER);
    assert!((speed.latency_s - 0.01).abs() < 1e-9, "{speed:?}");
    for rate in [speed.there_bytes_per_s, speed.back_bytes_per_s] {
        assert!((rate / 1e6 - 1.0).abs() < 0.01, "{speed:?}");
    }
}

#[test]
fn a_device_that_refuses_is_tried_again_for_half_a_second() {
    let mut rig = Rig::with_head();
    let mut link = connected(&rig.head(Frame::MeasureEdge(node(OTHER))));
    let begun = rig.now;
    loop {
        let effects = rig.not_opened(link);
        if !effects.is_empty() {
            assert_eq!(effects, [unmeasured()]);
            break;
        }
        link = connected(&rig.pass(ms(20)));
    }
    assert_eq!(rig.now - begun, ms(500));
}

#[test]
fn a_device_that_does_not_answer_or_answers_wrong_is_not_measured() {
    let begin = || {
        let mut rig = Rig::with_head();
        let link = connected(&rig.head(Frame::MeasureEdge(node(OTHER))));
        rig.opened(link);
        (rig, link)
    };
    let (mut rig, link) = begin();
    assert_eq!(rig.pass(ms(2900)), []);
    assert_eq!(rig.pass(ms(200)), [close(link), unmeasured()]);
    let (mut rig, link) = begin();
    let wrong = Frame::Echoed(EchoData { number: 9, reply: 0, bytes: Vec::new() });
    assert_eq!(rig.heard(link, wrong), [close(link), unmeasured()]);
    let (mut rig, link) = begin();
    assert_eq!(rig.gone(link), [unmeasured()]);
    let (mut rig, link) = begin();
    let effects = rig.head(Frame::MeasureEdge(node(NEXT)));
    assert_eq!(effects[0], close(link), "a newer one replaces it");
    assert_eq!(effects.len(), 2);
}

/// Measurements were lost once while weights were fetched.
#[test]
fn paths_are_measured_while_weights_are_fetched() {
    let mut rig = Rig::with_head();
    rig.head(Frame::Configure(Box::new(configure(1, false))));
    assert!(rig.on_disk.is_some());
    assert_eq!(connected(&rig.head(Frame::MeasureEdge(node(OTHER)))), LinkId(0));
    let effects = rig.head(Frame::AwaitEdge { from: NEXT });
    assert_eq!(effects, [Effect::Link(LinkEffect::Allow(vec![BEFORE, NEXT, OTHER]))]);
}

/// The list of guests was replaced once by the one device that measures.
#[test]
fn a_device_that_is_awaited_is_let_in_beside_the_others() {
    let mut rig = Rig::with_head();
    rig.serve(configure(1, false));
    let effects = rig.head(Frame::AwaitEdge { from: NEXT });
    assert_eq!(effects, [Effect::Link(LinkEffect::Allow(vec![BEFORE, NEXT, OTHER]))]);
    let effects = rig.head(Frame::Configure(Box::new(configure(2, false))));
    assert!(effects.contains(&Effect::Link(LinkEffect::Allow(vec![BEFORE, OTHER]))), "a part's own guests");
}

#[test]
fn a_device_is_answered_for_six_seconds_and_others_wait() {
    let mut rig = Rig::with_head();
    // A link may come before the head's word.
    let (early, effects) = rig.arrives(OTHER, Purpose::Edge);
    assert_eq!(effects, [hold(early)]);
    let (strange, effects) = rig.arrives(NEXT, Purpose::Edge);
    assert_eq!(effects, [hold(strange)]);
    assert_eq!(rig.head(Frame::AwaitEdge { from: OTHER })[1..], [release(early)]);
    let asked = EchoData { number: 1, reply: 3, bytes: Vec::new() };
    assert_eq!(rig.heard(early, Frame::Echo(asked.clone())), [send(early, answer(&asked))]);
    rig.gone(early);
    let (again, effects) = rig.arrives(OTHER, Purpose::Edge);
    assert_eq!(effects, []);
    assert_eq!(rig.heard(again, Frame::Echo(asked.clone())), [send(again, answer(&asked))]);
    assert_eq!(rig.pass(ms(5900)), []);
    assert_eq!(rig.pass(ms(200)), [close(again)]);
    assert_eq!(rig.head(Frame::AwaitEdge { from: NEXT })[1..], [release(strange)]);
    assert_eq!(rig.heard(strange, Frame::Provided), [close(strange)], "only echoes are answered");
}

#[test]
fn answering_ends_with_the_next_part_and_the_next_device() {
    let mut rig = Rig::with_head();
    rig.head(Frame::AwaitEdge { from: OTHER });
    let (link, _) = rig.arrives(OTHER, Purpose::Edge);
    assert!(rig.head(Frame::AwaitEdge { from: NEXT }).contains(&close(link)));
    let (answered, _) = rig.arrives(NEXT, Purpose::Edge);
    let (waiting, _) = rig.arrives(OTHER, Purpose::Edge);
    let effects = rig.head(Frame::Configure(Box::new(configure(1, true))));
    assert!(effects.contains(&close(answered)) && effects.contains(&close(waiting)));
}

#[test]
fn of_many_links_of_one_device_the_latest_four_stay() {
    for awaited in [true, false] {
        let mut rig = Rig::with_head();
        if awaited {
            rig.head(Frame::AwaitEdge { from: OTHER });
        }
        let links: Vec<LinkId> = (0..6).map(|_| rig.arrives(OTHER, Purpose::Edge).0).collect();
        let open: Vec<bool> = links.iter().map(|link| rig.open.contains(link)).collect();
        assert_eq!(open, [false, false, true, true, true, true], "{awaited}");
    }
}

#[test]
fn pieces_are_given_one_question_at_a_time_and_to_four_devices() {
    let mut rig = Rig::with_head();
    let links: Vec<LinkId> = (0..GIVEN_MAX).map(|_| rig.arrives(OTHER, Purpose::Weights).0).collect();
    let (fifth, effects) = rig.arrives(NEXT, Purpose::Weights);
    assert_eq!(effects, [close(fifth)]);
    let link = links[0];
    let effects = rig.heard(link, Frame::AskPieces { model: MODEL });
    assert_eq!(effects, [Effect::Give(link, Give::Which { model: MODEL })]);
    // The other device may have the answer before it is known here that it was sent.
    let fetch = |first, count| Frame::FetchPieces { first, count };
    let effects = rig.heard(link, fetch(4, 3));
    assert_eq!(effects, [Effect::Give(link, Give::Pieces { first: 4, count: 3 })]);
    rig.event(Event::Gave(link));
    rig.event(Event::Gave(link));
    assert_eq!(rig.heard(link, fetch(6, 1)), [close(link)], "while the answer is under way");
    assert_eq!(rig.heard(links[1], fetch(0, 1)), [close(links[1])], "before it says of which model");
    rig.heard(links[2], Frame::AskPieces { model: MODEL });
    rig.event(Event::Gave(links[2]));
    assert_eq!(rig.heard(links[2], fetch(0, 17)), [close(links[2])], "too many");
    assert_eq!(rig.heard(links[3], Frame::Provided), [close(links[3])]);
}

#[test]
fn a_device_that_asks_for_nothing_is_left() {
    let mut rig = Rig::with_head();
    let (link, _) = rig.arrives(OTHER, Purpose::Weights);
    rig.heard(link, Frame::AskPieces { model: MODEL });
    // The answer may take long; then it has ten seconds.
    assert_eq!(rig.pass(ms(30_000)), []);
    rig.event(Event::Gave(link));
    assert_eq!(rig.pass(ms(9_900)), []);
    assert_eq!(rig.pass(ms(200)), [close(link)]);
}
