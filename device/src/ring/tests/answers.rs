//! Answers over a ring: the relay's engine does not know that it has several devices.

use super::*;
use crate::local::tests::spec;
use crate::local::{
    Accepted, EngineCommand, EngineReport, Keep, LocalEngine, PromptId, Scope, SequenceError, Speculation,
};

const P: PromptId = PromptId(1);

/// Returns the ids of a whole answer after these accepted tokens.
fn answer(engine: &mut LocalEngine, accepted: &[TokenId], sentences: usize) -> Vec<TokenId> {
    let document: String = (0..sentences).map(|i| format!("Item {i} is red. ")).collect();
    let spec = spec(&document, 24, false);
    let mut reports = engine.command(EngineCommand::Open { prompt: P, spec, scope: Scope::Whole });
    reports.extend(
        engine.command(EngineCommand::Verify { prompt: P, accepted: Accepted::Ids(accepted.to_vec()) }),
    );
    let run = |engine: &mut LocalEngine, reports: &mut Vec<EngineReport>| {
        while engine.has_work() {
            reports.extend(engine.pass(&mut ()).reports);
        }
    };
    run(engine, &mut reports);
    let decode = EngineCommand::Decode { prompt: P, keep: Keep::All, index: accepted.len() };
    reports.extend(engine.command(decode));
    run(engine, &mut reports);
    let failed = reports.iter().find(|report| matches!(report, EngineReport::Failed { .. }));
    assert!(failed.is_none(), "{failed:?}");
    let token = |report: &EngineReport| match report {
        EngineReport::Token { id, .. } => Some(*id),
        _ => None,
    };
    reports.iter().filter_map(token).collect()
}

fn speculating(engine: LocalEngine) -> LocalEngine {
    let speculator = Speculation::Lookup.speculator(&model(), engine_options(64)).unwrap();
    engine.with_speculation(speculator)
}

#[test]
fn takeover_verification_and_speculation_are_those_of_one_device() {
    let home = Home::new(2);
    let head = home.head(first(plan(2, &[("head", 1), ("w1", 2), ("w2", 2)])));
    let handle = head.handle();
    let mut ring = speculating(LocalEngine::over(Box::new(head), 1024).unwrap());
    let mut alone = speculating(LocalEngine::new(model(), engine_options(1024)).unwrap());
    // Two prompts with a common beginning, and the first one again.
    for (accepted, sentences) in [(&[][..], 10), (&[65, 66, 67, 68][..], 14), (&[65][..], 10)] {
        let want = answer(&mut alone, accepted, sentences);
        assert!(!want.is_empty());
        assert_eq!(answer(&mut ring, accepted, sentences), want, "after {} tokens", accepted.len());
    }
    let (own, others) = (ring.speculation().unwrap(), alone.speculation().unwrap());
    assert_eq!(own, others, "what came of proposals");
    assert!(handle.stats().lost.is_empty());
    assert!(handle.stats().devices[1].bytes_in > 0 || handle.stats().steps > 0);
}

#[test]
fn an_answer_outlives_its_devices() {
    let home = Home::new(2);
    let head = home.head(even(1, LAYERS));
    let handle = head.handle();
    let mut ring = LocalEngine::over(Box::new(head), 1024).unwrap();
    let mut alone = LocalEngine::new(model(), engine_options(1024)).unwrap();
    let hub = Arc::clone(&home.hub);
    let mut seen = 0;
    home.hub.hook(move |passing| {
        seen += usize::from(passing.purpose == crate::ring::link::Purpose::Ring);
        match seen {
            15 => hub.kill(1),
            60 => hub.kill(2),
            _ => {}
        }
        crate::ring::link::memory::Fate::Pass
    });
    assert_eq!(answer(&mut ring, &[65, 66], 12), answer(&mut alone, &[65, 66], 12));
    assert_eq!(handle.stats().lost.len(), 2, "{:?}", handle.stats());
    assert_eq!(answer(&mut ring, &[], 5), answer(&mut alone, &[], 5), "and the next one");
}

#[test]
fn devices_join_while_nobody_asks_and_not_while_an_answer_waits() {
    let mut home = Home::new(1);
    let head = home.head(even(1, LAYERS));
    let handle = head.handle();
    let mut ring = LocalEngine::over(Box::new(head), 1024).unwrap();
    assert!(ring.idle_every().is_some());
    home.add(2, vec![model_path()]);
    handle.join(Home::node(2));
    until_serves(&handle, "w2", || ring.idle());
    let spec = spec("Item 1 is red. ", 24, false);
    ring.command(EngineCommand::Open { prompt: P, spec, scope: Scope::Whole });
    home.add(3, vec![model_path()]);
    handle.join(Home::node(3));
    while ring.has_work() {
        ring.pass(&mut ());
        ring.idle();
    }
    ring.idle();
    let stats = handle.stats();
    assert!(
        stats.devices.len() == 3 && stats.fetching.is_empty(),
        "the answer waits for the cloud: {stats:?}"
    );
    ring.command(EngineCommand::Stop);
    until_serves(&handle, "w3", || ring.idle());
    assert_eq!(handle.stats().devices.len(), 4);
    let mut alone = LocalEngine::new(model(), engine_options(1024)).unwrap();
    assert!(alone.idle_every().is_none());
    assert_eq!(answer(&mut ring, &[65], 10), answer(&mut alone, &[65], 10));
}

#[test]
fn adapters_are_refused_by_a_ring_of_several_and_taken_by_one() {
    let home = Home::new(1);
    let bytes = baton_synthetic::SyntheticAdapter::of_seed(1).to_gguf(model().config()).unwrap();
    let gguf = baton_engine::gguf::Gguf::from_bytes(bytes).unwrap();
    let adapter = baton_engine::Adapter::from_gguf(gguf, &model()).unwrap();
    let mut ring = home.head(even(1, LAYERS));
    let refused = ring.add_adapter(Arc::clone(&adapter));
    assert!(matches!(refused, Err(SequenceError::Ring(_))));
    let mut alone = home.head(first(plan(1, &[("head", LAYERS)])));
    let id = alone.add_adapter(adapter).unwrap();
    assert!(alone.create_with(Some(id)).is_ok());
}
