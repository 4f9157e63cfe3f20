//! Tests that proposed tokens change only the number of passes of an answer.

use super::*;
use baton_engine::speculation::{Draft, DraftError, Policy, Proposer, SpeculationStats};
use std::path::PathBuf;

fn demo(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../models")).join(name)
}

fn open_demo(name: &str) -> Arc<Model> {
    Model::open(&demo(name)).unwrap()
}

struct Written {
    ids: Vec<TokenId>,
    ended: Option<EngineReport>,
    passes: usize,
    stats: SpeculationStats,
}

/// Writes the whole answer on a device alone.
fn write(model: &Arc<Model>, speculator: Option<Speculator>, spec: &AnswerSpec, kv_tokens: usize) -> Written {
    let engine = LocalEngine::new(model.clone(), options(kv_tokens)).unwrap();
    let mut engine = engine.with_speculation(speculator);
    engine.command(EngineCommand::Open { prompt: P, spec: spec.clone(), scope: Scope::Whole });
    run(&mut engine);
    engine.command(EngineCommand::Verify { prompt: P, accepted: Accepted::Ids(Vec::new()) });
    run(&mut engine);
    let mut reports = engine.command(EngineCommand::Decode { prompt: P, keep: Keep::All, index: 0 });
    let mut passes = 0;
    while engine.has_work() {
        let outcome = engine.pass(&mut ());
        if let Some(decoded) = outcome.decoded {
            assert_eq!(outcome.content.prefill_tokens, decoded.proposed);
            // The time that a machine would measure that is limited by reading weights.
            engine.took(decoded, 10.0 + decoded.proposed as f64);
            passes += 1;
        }
        reports.extend(outcome.reports);
    }
    let ids =
        reports.iter().filter_map(|r| if let EngineReport::Token { id, .. } = r { Some(*id) } else { None });
    let ids: Vec<TokenId> = ids.collect();
    let ended = reports.iter().find(|r| matches!(r, EngineReport::Ended { .. })).cloned();
    Written { ids, ended, passes, stats: engine.speculation().unwrap_or_default() }
}

fn lookup(model: &Model) -> Option<Speculator> {
    Speculation::Lookup.speculator(model, EngineOptions::default()).unwrap()
}

fn draft(target: &Model, draft: &Arc<Model>) -> Option<Speculator> {
    let draft = Draft::new(target, draft.clone(), options(1024)).unwrap();
    Some(Speculator::new(Proposer::Draft(Box::new(draft)), Policy::Always))
}

/// Returns greedy sampling, plain sampling, and sampling with every filter and a penalty.
fn samplings(seed: u64) -> [SamplingParams; 3] {
    let greedy = SamplingParams { seed, ..SamplingParams::default() };
    let warm = SamplingParams { temperature: 0.9, ..greedy };
    let filters = SamplingParams { top_k: Some(40), top_p: Some(0.95), min_p: Some(0.01), ..warm };
    [greedy, warm, SamplingParams { repetition_penalty: 1.2, ..filters }]
}

#[track_caller]
fn check(
    model: &Arc<Model>,
    spec: &AnswerSpec,
    kv_tokens: usize,
    speculator: Option<Speculator>,
) -> SpeculationStats {
    let plain = write(model, None, spec, kv_tokens);
    let fast = write(model, speculator, spec, kv_tokens);
    assert_eq!(fast.ids, plain.ids, "{:?}", spec.sampling);
    assert_eq!(fast.ended, plain.ended, "{:?}", spec.sampling);
    assert!(fast.passes <= plain.passes, "{} passes instead of {}", fast.passes, plain.passes);
    assert_eq!(fast.passes as u64, fast.stats.steps);
    fast.stats
}

#[test]
fn a_random_model_writes_the_same_with_lookup_whatever_the_seed() {
    let mut sum = (0, 0);
    for seed in 0..24 {
        for sampling in samplings(seed) {
            let spec = AnswerSpec { sampling, ..spec(&document(6), 60, false) };
            let stats = check(&model(), &spec, 1024, lookup(&model()));
            sum = (sum.0 + stats.proposed, sum.1 + stats.accepted);
        }
    }
    assert!(sum.0 > 0 && sum.1 <= sum.0, "{sum:?}");
}

#[test]
fn a_model_that_drafts_for_itself_is_always_right() {
    for sampling in samplings(7) {
        let spec = AnswerSpec { sampling, ..spec(&document(6), 40, false) };
        let stats = check(&model(), &spec, 1024, draft(&model(), &model()));
        assert_eq!(stats.accepted, stats.proposed, "the same logits and the same sampler: {stats:?}");
        assert!(stats.accepted > 0);
    }
}

#[test]
fn answers_end_where_they_end_without_proposals() {
    // Token limits near the number of proposed tokens, and a cache that is full before the limit.
    for tokens_max in 1..12 {
        let spec = spec(&document(6), tokens_max, false);
        check(&model(), &spec, 1024, draft(&model(), &model()));
        check(&model(), &spec, 1024, lookup(&model()));
    }
    let spec = spec(&document(5), 400, false);
    let plain = write(&model(), None, &spec, 224);
    let full = matches!(plain.ended, Some(EngineReport::Ended { why: EngineEnd::ContextFull, .. }));
    assert!(full, "{:?} after {} tokens", plain.ended, plain.ids.len());
    check(&model(), &spec, 224, draft(&model(), &model()));
    check(&model(), &spec, 224, lookup(&model()));
}

fn demo_spec(sampling: SamplingParams) -> AnswerSpec {
    let text =
        "The ferry to Marrow Island leaves at 7:40 from pier 3. The harbour master is Ada Quill. ".repeat(3);
    let segments = vec![
        Segment::fixed(Role::System, "You answer from the document."),
        Segment::refinable(Role::User, text),
        Segment::fixed(Role::User, "\n\nQuestion: When does the ferry to Marrow Island leave?"),
    ];
    AnswerSpec { segments: Arc::from(segments), adapter: None, sampling, tokens_max: 48, shorten: false }
}

#[test]
fn the_demo_models_write_the_same_and_copy_faster() {
    let (cloud, device) = (open_demo("demo-cloud.gguf"), open_demo("demo-device.gguf"));
    let (mut looked_up, mut drafted) = (SpeculationStats::default(), SpeculationStats::default());
    let add = |sum: &mut SpeculationStats, stats: SpeculationStats| {
        sum.proposed += stats.proposed;
        sum.accepted += stats.accepted;
    };
    for seed in 0..4 {
        for sampling in samplings(seed) {
            let spec = demo_spec(sampling);
            add(&mut looked_up, check(&cloud, &spec, 1024, lookup(&cloud)));
            add(&mut drafted, check(&cloud, &spec, 1024, draft(&cloud, &device)));
        }
    }
    eprintln!("lookup: {} of {}", looked_up.accepted, looked_up.proposed);
    eprintln!("draft: {} of {}", drafted.accepted, drafted.proposed);
    assert!(looked_up.accepted > 0, "an answer quotes its document: {looked_up:?}");
    assert!(drafted.acceptance().unwrap() > 0.3, "a model of the same training: {drafted:?}");
}

#[test]
fn a_draft_with_another_tokenizer_is_refused() {
    let cloud = open_demo("demo-cloud.gguf");
    let path = demo("demo-device-b.gguf");
    let err = Speculation::Draft(path.clone()).speculator(&cloud, options(64)).unwrap_err();
    let SpeculationError::Draft { err: DraftError::Tokenizer { draft, target }, .. } = &err else {
        panic!("{err}")
    };
    assert_eq!(target, cloud.tokenizer().digest_hex());
    assert_ne!(draft, target);
    let missing = Speculation::Draft("no such file".into()).speculator(&cloud, options(64)).unwrap_err();
    assert!(matches!(missing, SpeculationError::Open { .. }), "{missing}");
    assert!(Speculation::Off.speculator(&cloud, options(64)).unwrap().is_none());
}

#[test]
fn a_draft_catches_up_a_part_at_a_time() {
    let spec = spec(&document(40), 24, false);
    let stats = check(&model(), &spec, 1024, draft(&model(), &model()));
    assert!(stats.speculative_steps > 0, "{stats:?}");
    assert!(stats.steps - stats.speculative_steps >= 4, "some hundred tokens, 128 in a pass: {stats:?}");
    // A draft model whose cache is too small proposes nothing, and the answer stays the same.
    let small = Draft::new(&model(), model(), options(64)).unwrap();
    let small = Speculator::new(Proposer::Draft(Box::new(small)), Policy::Always);
    assert_eq!(check(&model(), &spec, 1024, Some(small)).proposed, 0);
}
