//! Answers that are cancelled while a lost ring is formed again and its sequences are rebuilt.

use std::ops::ControlFlow;

use super::*;
use crate::local::tests::spec;
use crate::local::{Accepted, EngineCommand, EngineReport, LocalEngine, PromptId, Scope};
use crate::ring::frame::Frame;
use crate::ring::link::memory::Fate;
use baton_engine::StepControl;

/// Cancels a step after so many checks.
struct Looks(usize);

impl StepControl for Looks {
    fn after_layer(&mut self, _: usize, _: usize) -> ControlFlow<()> {
        match self.0.checked_sub(1) {
            Some(left) => {
                self.0 = left;
                ControlFlow::Continue(())
            }
            None => ControlFlow::Break(()),
        }
    }
}

fn head(home: &Home) -> RingHead {
    home.head(first(plan(2, &[("head", 1), ("w1", 2), ("w2", 2)])))
}

#[test]
fn a_step_taken_back_while_its_ring_is_formed_again_leaves_every_sequence_as_it_was() {
    let texts = [prompt(1, 620), prompt(2, 90)];
    let begin = |sequences: &mut dyn Sequences| {
        let [a, b] = [(); 2].map(|()| sequences.create_with(None).unwrap());
        let batch = [step(a, &texts[0][..600], Wanted::None), step(b, &texts[1][..40], Wanted::None)];
        sequences.step(&batch, &mut ()).unwrap();
        (a, b)
    };
    let mut engine = one_engine();
    let own = begin(&mut engine);
    let mut cancelled = 0;
    // At once, while the devices are configured, while tokens are computed again, and in the step itself.
    for looks in [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89] {
        let home = Home::new(2);
        let mut head = head(&home);
        let (a, b) = begin(&mut head);
        home.hub.kill(2);
        let done = head.step(&[step(a, &texts[0][600..601], Wanted::Last)], &mut Looks(looks));
        let len = 600 + usize::from(done.is_ok());
        if let Err(err) = done {
            assert!(err.is_cancelled(), "{looks} looks: {err}");
            cancelled += 1;
        }
        assert_eq!((head.len(a).unwrap(), head.len(b).unwrap()), (len, 40), "{looks} looks");
        assert_eq!(head.ids(a).unwrap(), &texts[0][..len], "{looks} looks");
        assert_eq!(head.ids(b).unwrap(), &texts[1][..40], "{looks} looks");
        // Changes to sequences meanwhile take effect, and the next step continues from there.
        let go_on = |sequences: &mut dyn Sequences, (a, b): (SeqId, SeqId)| {
            let c = sequences.fork(a, 100).unwrap();
            sequences.truncate(b, 33).unwrap();
            assert!(sequences.truncate(b, 34).is_err() && sequences.fork(b, 34).is_err());
            let d = sequences.create_with(None).unwrap();
            let batch = [
                step(b, &texts[1][33..50], Wanted::All),
                step(c, &texts[0][100..103], Wanted::All),
                step(d, &texts[1][..5], Wanted::Last),
            ];
            let outputs = sequences.step(&batch, &mut ()).unwrap();
            assert_eq!([b, c, d].map(|seq| sequences.len(seq).unwrap()), [50, 103, 5]);
            [c, d].into_iter().for_each(|seq| sequences.release(seq));
            sequences.truncate(b, 40).unwrap();
            outputs.into_iter().flat_map(|output| output.logits).collect::<Vec<f32>>()
        };
        let want = go_on(&mut engine, own);
        assert_same_bits(&go_on(&mut head, (a, b)), &want, &format!("after {looks} looks"));
        let last = |sequences: &mut dyn Sequences, seq| {
            sequences.truncate(seq, 600).unwrap();
            let step = step(seq, &texts[0][600..603], Wanted::All);
            let logits = sequences.step(&[step], &mut ()).unwrap().remove(0).logits;
            sequences.truncate(seq, 600).unwrap();
            logits
        };
        let want = last(&mut engine, own.0);
        assert_same_bits(&last(&mut head, a), &want, &format!("the long one, after {looks} looks"));
    }
    assert!((5..11).contains(&cancelled), "{cancelled} of 11 were taken back");
}

#[test]
fn an_answer_taken_back_while_a_device_is_waited_for_ends_at_once() {
    let home = Home::new(2);
    let planner = Box::new(first(plan(2, &[("head", 1), ("w1", 2), ("w2", 2)])));
    let mut head = home.head_with(model(), planner, |options| options.patience = Duration::from_secs(600));
    let ids = prompt(4, 60);
    let seq = head.create_with(None).unwrap();
    head.step(&[step(seq, &ids[..50], Wanted::None)], &mut ()).unwrap();
    // A link ends; in the following epoch no worker ever reports that it is ready.
    let mut cut = false;
    home.hub.hook(move |passing| match Frame::decode(passing.frame) {
        Ok(Frame::Step(_)) if !std::mem::replace(&mut cut, true) => Fate::Cut,
        Ok(Frame::Ready { .. }) => Fate::Instead(Vec::new()),
        _ => Fate::Pass,
    });
    let refused = head.step(&[step(seq, &ids[50..], Wanted::Last)], &mut Looks(20)).unwrap_err();
    assert!(refused.is_cancelled(), "{refused}");
    assert!(head.handle().stats().lost.is_empty(), "nobody is blamed for it");
    home.hub.hook(|_| Fate::Pass);
    let have = head.step(&[step(seq, &ids[50..], Wanted::Last)], &mut ()).unwrap().remove(0).logits;
    let mut engine = one_engine();
    let own = engine.create();
    let want = engine.step(&[step(own, &ids, Wanted::Last)], &mut ()).unwrap().remove(0).logits;
    assert_same_bits(&have, &want, "the same step, wanted again");
    assert_eq!(head.handle().stats().devices.len(), 3);
}

/// Runs passes; returns the tokens that were written.
fn run(engine: &mut LocalEngine, control: &mut dyn StepControl) -> (Vec<TokenId>, bool) {
    let mut written = Vec::new();
    while engine.has_work() {
        let outcome = engine.pass(control);
        if outcome.cancelled {
            return (written, true);
        }
        written.extend(outcome.reports.iter().filter_map(|report| match report {
            EngineReport::Token { id, .. } => Some(*id),
            EngineReport::Failed { reason, .. } => panic!("{reason}"),
            _ => None,
        }));
    }
    (written, false)
}

#[test]
fn the_next_question_is_answered_after_one_that_was_taken_back() {
    let ask = |engine: &mut LocalEngine, name: u64, sentences: usize, control: &mut dyn StepControl| {
        let prompt = PromptId(name);
        let document: String = (0..sentences).map(|i| format!("Item {i} is red. ")).collect();
        let spec = spec(&document, 10, false);
        engine.command(EngineCommand::Open { prompt, spec, scope: Scope::Whole });
        engine.command(EngineCommand::Verify { prompt, accepted: Accepted::Ids(Vec::new()) });
        let (_, cancelled) = run(engine, control);
        if cancelled {
            engine.command(EngineCommand::Stop);
            return None;
        }
        let keep = crate::local::Keep::All;
        let begun = engine.command(EngineCommand::Decode { prompt, keep, index: 0 });
        let Some(EngineReport::Token { id, .. }) = begun.first() else { panic!("{begun:?}") };
        Some([vec![*id], run(engine, control).0].concat())
    };
    let mut alone = LocalEngine::new(model(), engine_options(1024)).unwrap();
    let home = Home::new(2);
    let mut ring = LocalEngine::over(Box::new(head(&home)), 1024).unwrap();
    assert_eq!(ask(&mut ring, 1, 20, &mut ()), ask(&mut alone, 1, 20, &mut ()));
    // In the middle of the second answer's first pass, the worker is lost and the answer is cancelled.
    let (hub, mut seen) = (Arc::clone(&home.hub), 0);
    home.hub.hook(move |passing| {
        seen += usize::from(matches!(Frame::decode(passing.frame), Ok(Frame::Step(_))));
        if seen == 3 {
            hub.kill(1);
        }
        Fate::Pass
    });
    assert_eq!(ask(&mut ring, 2, 24, &mut Looks(6)), None);
    home.hub.hook(|_| Fate::Pass);
    for (name, sentences) in [(3, 24), (4, 12)] {
        let want = ask(&mut alone, name, sentences, &mut ());
        assert!(want.is_some());
        assert_eq!(ask(&mut ring, name, sentences, &mut ()), want, "{sentences} sentences");
    }
}
