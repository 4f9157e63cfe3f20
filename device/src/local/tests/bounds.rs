//! Tests that a verification pass holds a bounded number of logits, however long the accepted part is.

use super::watched::watched;
use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of accepted tokens; their logits are more than one step may return.
const ACCEPTED: u32 = 300;

/// Makes a model with a vocabulary so large that the logits of the accepted part are too many.
fn wide_model() -> Arc<Model> {
    let wide = SyntheticModel {
        d_model: 64,
        d_head: 16,
        d_ff: 96,
        vocab_len: 65_536,
        ..SyntheticModel::small("llama", Format::F32, 9)
    };
    Model::from_gguf(Gguf::from_bytes(wide.to_gguf().unwrap()).unwrap()).unwrap()
}

/// Returns letters in an order in which no two of them form one token.
fn accepted() -> Vec<TokenId> {
    (0..ACCEPTED).map(|i| TokenId::from(b'a') + i * 7 % 26).collect()
}

/// Returns the model's own choices at every accepted position, from the logits of a single step.
fn choices(model: &Arc<Model>, spec: &AnswerSpec) -> Vec<TokenId> {
    let mut engine = Engine::new(model.clone(), options(1024)).unwrap();
    let seq = engine.create();
    let parts: Vec<PromptSegment<'_>> =
        spec.segments.iter().map(|s| PromptSegment { role: s.role.as_str(), text: &s.text }).collect();
    let mut ids = assemble(model.tokenizer(), model.template(), &parts).unwrap().ids;
    let prompt = ids.len();
    let accepted = accepted();
    ids.extend_from_slice(&accepted);
    let step = StepSeq { seq, ids: &ids, logits: Wanted::All, capture: None };
    let logits = engine.step(&[step], &mut ()).unwrap().pop().unwrap().logits;
    let sampler = Sampler::new(spec.sampling).unwrap();
    let rows = logits.chunks_exact(model.config().vocab_len).skip(prompt - 1);
    rows.enumerate().map(|(i, row)| sampler.sample(row, i as u64, &accepted[..i])).collect()
}

/// Prepares an engine that holds the prompt and has the command to verify the accepted part.
fn verifying<S: Sequences>(engine: S, spec: &AnswerSpec, accepted: Accepted) -> Driven<S> {
    let mut engine = Driven::new(engine, LocalOptions::new(1024));
    engine.command(EngineCommand::Open { prompt: P, spec: spec.clone(), scope: Scope::Whole });
    run(&mut engine);
    engine.command(EngineCommand::Verify { prompt: P, accepted });
    engine
}

#[test]
fn a_long_accepted_part_is_verified_in_steps_of_bounded_logits() {
    let model = wide_model();
    let vocab_len = model.config().vocab_len;
    assert!(ACCEPTED as usize * vocab_len > LOGITS_MAX);
    let spec = spec(&document(4), 400, false);
    let want = choices(&model, &spec);
    let ids = accepted();
    let text: String = ids.iter().map(|&id| char::from(id as u8)).collect();
    for accepted in [Accepted::Ids(ids.clone()), Accepted::Text(text)] {
        let largest = Arc::new(AtomicUsize::new(0));
        let seen = largest.clone();
        let engine = watched(model.clone(), move |_, output| {
            seen.fetch_max(output.logits.len(), Ordering::Relaxed);
        });
        let mut engine = verifying(engine, &spec, accepted.clone());
        let reports = run(&mut engine);
        let Some(EngineReport::Verified { verified, .. }) = reports.last() else { panic!("{reports:?}") };
        assert_eq!(verified.compared, ids.len());
        if let Accepted::Ids(_) = accepted {
            assert_eq!(verified.own, want, "as of a single step");
        }
        let largest = largest.load(Ordering::Relaxed);
        assert!(largest <= LOGITS_MAX, "{largest} floats in one step");
        engine.command(EngineCommand::Decode { prompt: P, keep: Keep::All, index: ids.len() });
        let reports = run(&mut engine);
        match reports.first() {
            Some(EngineReport::Token { id, .. }) => assert_eq!(Some(id), want.last()),
            Some(EngineReport::Ended { .. }) => {
                assert!(want.last().is_some_and(|&id| model.tokenizer().is_end(id)));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Cancels a step after this many layers.
struct CancelAfter(usize);

impl StepControl for CancelAfter {
    fn after_layer(&mut self, _: usize, _: usize) -> ControlFlow<()> {
        self.0 = self.0.saturating_sub(1);
        if self.0 == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[test]
fn a_verification_that_is_cancelled_between_its_steps_changes_nothing() {
    let model = wide_model();
    let spec = spec(&document(4), 400, false);
    let engine = Engine::new(model.clone(), options(1024)).unwrap();
    let mut engine = verifying(engine, &spec, Accepted::Ids(accepted()));
    // The model has two layers, so this cancels in the second pass.
    let mut control = CancelAfter(3);
    assert!(engine.turn(&mut control).is_some());
    engine.commit();
    assert_eq!(engine.turn(&mut control), None);
    let told = engine.reports();
    assert!(!told.iter().any(|report| matches!(report, EngineReport::Verified { .. })), "{told:?}");
    // The next answer finds what the first pass has computed.
    engine.command(EngineCommand::Open { prompt: P, spec: spec.clone(), scope: Scope::Whole });
    engine.command(EngineCommand::Verify { prompt: P, accepted: Accepted::Ids(accepted()) });
    let reports = run(&mut engine);
    let Some(EngineReport::Verified { verified, .. }) = reports.last() else { panic!("{reports:?}") };
    assert_eq!(verified.own, choices(&model, &spec));
}
