//! Answers over a ring: the relay's engine does not know that it has several devices.

use super::*;
use baton_engine::SequenceError;
use baton_generate::speculation::Speculation;
use baton_ring::sim::home::{Home, engine_options, even, first, plan, until_serves};
use baton_ring::wire::frame::Frame;
use baton_ring::wire::link::Purpose;
use baton_ring::wire::memory::Fate;

/// Layers of the model.
const LAYERS: usize = 5;

struct Fixture {
    _folder: tempfile::TempDir,
    model: Arc<Model>,
}

static FIXTURE: LazyLock<Fixture> = LazyLock::new(|| {
    let shape = SyntheticModel {
        n_layers: LAYERS as u32,
        n_heads: 4,
        n_kv_heads: 2,
        d_model: 64,
        d_head: 16,
        d_ff: 96,
        tied: false,
        ..SyntheticModel::small("llama", Format::F32, 11)
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ring.gguf");
    std::fs::write(&path, shape.to_gguf().unwrap()).unwrap();
    Fixture { model: Model::open(&path).unwrap(), _folder: folder }
});

/// Returns a model in a file, as rings need it.
pub(crate) fn model() -> Arc<Model> {
    Arc::clone(&FIXTURE.model)
}

/// Makes a home of so many workers that have the model.
pub(crate) fn home_of(workers: u8) -> Home {
    Home::new(workers, &model())
}

const P: PromptId = PromptId(1);

/// Returns the ids of a whole answer after these accepted tokens.
fn answer<S: Sequences>(engine: &mut Driven<S>, accepted: &[TokenId], sentences: usize) -> Vec<TokenId> {
    let document: String = (0..sentences).map(|i| format!("Item {i} is red. ")).collect();
    let spec = spec(&document, 24, false);
    let mut reports = engine.command(EngineCommand::Open { prompt: P, spec, scope: Scope::Whole });
    reports.extend(
        engine.command(EngineCommand::Verify { prompt: P, accepted: Accepted::Ids(accepted.to_vec()) }),
    );
    reports.extend(run(engine));
    let decode = EngineCommand::Decode { prompt: P, keep: Keep::All, index: accepted.len() };
    reports.extend(engine.command(decode));
    reports.extend(run(engine));
    let failed = reports.iter().find(|report| matches!(report, EngineReport::Failed { .. }));
    assert!(failed.is_none(), "{failed:?}");
    let token = |report: &EngineReport| match report {
        EngineReport::Token { id, .. } => Some(*id),
        _ => None,
    };
    reports.iter().filter_map(token).collect()
}

fn driven<S: Sequences>(engine: S) -> Driven<S> {
    Driven::new(engine, LocalOptions::new(1024))
}

fn alone() -> Driven<Engine> {
    driven(Engine::new(model(), engine_options(1024)).unwrap())
}

fn speculating<S: Sequences>(engine: S) -> Driven<S> {
    let proposer = Speculation::Lookup.proposer(&model(), engine_options(64)).unwrap();
    Driven::new(engine, LocalOptions { proposer, ..LocalOptions::new(1024) })
}

#[test]
fn takeover_verification_and_speculation_are_those_of_one_device() {
    let home = home_of(2);
    let head = home.head(first(plan(2, &[("head", 1), ("w1", 2), ("w2", 2)])));
    let handle = head.handle();
    let mut ring = speculating(head);
    let mut alone = speculating(Engine::new(model(), engine_options(1024)).unwrap());
    // Two prompts with a common beginning, and the first one again.
    for (accepted, sentences) in [(&[][..], 10), (&[65, 66, 67, 68][..], 14), (&[65][..], 10)] {
        let want = answer(&mut alone, accepted, sentences);
        assert!(!want.is_empty());
        assert_eq!(answer(&mut ring, accepted, sentences), want, "after {} tokens", accepted.len());
    }
    let counts = |stats: baton_generate::speculation::SpeculationStats| {
        (stats.steps, stats.proposed, stats.accepted, stats.written)
    };
    let (own, others) = (ring.speculation().unwrap(), alone.speculation().unwrap());
    assert_eq!(counts(own), counts(others), "what came of proposals");
    assert!(handle.stats().lost.is_empty());
    assert!(handle.stats().devices[1].bytes_in > 0 || handle.stats().steps > 0);
}

#[test]
fn an_answer_outlives_its_devices() {
    let home = home_of(2);
    let head = home.head(even(1, LAYERS));
    let handle = head.handle();
    let mut ring = driven(head);
    let mut alone = alone();
    let hub = Arc::clone(&home.hub);
    let mut seen = 0;
    home.hub.hook(move |passing| {
        seen += usize::from(passing.purpose == Purpose::Ring);
        match seen {
            15 => hub.kill(1),
            60 => hub.kill(2),
            _ => {}
        }
        Fate::Pass
    });
    assert_eq!(answer(&mut ring, &[65, 66], 12), answer(&mut alone, &[65, 66], 12));
    assert_eq!(handle.stats().lost.len(), 2, "{:?}", handle.stats());
    assert_eq!(answer(&mut ring, &[], 5), answer(&mut alone, &[], 5), "and the next one");
}

#[test]
fn devices_join_while_nobody_asks_and_not_while_an_answer_waits() {
    let mut home = home_of(1);
    let head = home.head(even(1, LAYERS));
    let handle = head.handle();
    let mut ring = driven(head);
    assert!(ring.host().engine().idle_every().is_some());
    home.add(2, vec![model().path().unwrap().to_owned()]);
    handle.join(Home::node(2));
    until_serves(&handle, "w2", || ring.host().engine_mut().idle());
    let spec = spec("Item 1 is red. ", 24, false);
    ring.command(EngineCommand::Open { prompt: P, spec, scope: Scope::Whole });
    home.add(3, vec![model().path().unwrap().to_owned()]);
    handle.join(Home::node(3));
    run(&mut ring);
    let stats = handle.stats();
    // It may fetch its weights, but the answer waits for the cloud, so it is not taken in.
    assert_eq!(stats.devices.len(), 3, "{stats:?}");
    ring.command(EngineCommand::Stop);
    until_serves(&handle, "w3", || ring.host().engine_mut().idle());
    assert_eq!(handle.stats().devices.len(), 4);
    let mut alone = alone();
    assert!(alone.host().engine().idle_every().is_none());
    assert_eq!(answer(&mut ring, &[65], 10), answer(&mut alone, &[65], 10));
}

#[test]
fn adapters_are_refused_by_a_ring_of_several_and_taken_by_one() {
    let home = home_of(1);
    let bytes = baton_synthetic::SyntheticAdapter::of_seed(1).to_gguf(model().config()).unwrap();
    let gguf = baton_engine::gguf::Gguf::from_bytes(bytes).unwrap();
    let adapter = baton_engine::Adapter::from_gguf(gguf, &model()).unwrap();
    let mut ring = home.head(even(1, LAYERS));
    let refused = ring.add_adapter(Arc::clone(&adapter));
    assert!(matches!(refused, Err(SequenceError::Ring(_))));
    let mut alone = home.head(first(plan(1, &[("head", LAYERS)])));
    let id = alone.add_adapter(adapter).unwrap();
    assert!(alone.create_in(PrefixScope::default(), Some(id)).is_ok());
}

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

#[test]
fn the_next_question_is_answered_after_one_that_was_taken_back() {
    fn ask<S: Sequences>(
        engine: &mut Driven<S>,
        name: u64,
        sentences: usize,
        control: &mut dyn StepControl,
    ) -> Option<Vec<TokenId>> {
        let prompt = PromptId(name);
        let document: String = (0..sentences).map(|i| format!("Item {i} is red. ")).collect();
        let spec = spec(&document, 10, false);
        engine.command(EngineCommand::Open { prompt, spec, scope: Scope::Whole });
        engine.command(EngineCommand::Verify { prompt, accepted: Accepted::Ids(Vec::new()) });
        let mut written = Vec::new();
        loop {
            let worked = engine.turn(control).is_some();
            engine.commit();
            let reports = engine.reports();
            if !worked && reports.is_empty() {
                // It was cancelled.
                return None;
            }
            for report in reports {
                match report {
                    EngineReport::Verified { .. } => {
                        engine.command(EngineCommand::Decode { prompt, keep: Keep::All, index: 0 });
                    }
                    EngineReport::Token { id, .. } => written.push(id),
                    EngineReport::Ended { .. } => return Some(written),
                    EngineReport::Failed { reason, .. } => panic!("{reason}"),
                    _ => {}
                }
            }
        }
    }
    let mut alone = alone();
    let home = home_of(2);
    let head = home.head(first(plan(2, &[("head", 1), ("w1", 2), ("w2", 2)])));
    let mut ring = driven(head);
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
