//! Tests that proposed tokens change only the number of passes of an answer.

use super::*;
use baton_generate::speculation::{
    DraftError, Drafts, Policy, Speculation, SpeculationError, SpeculationLimits,
};
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
fn write(
    model: &Arc<Model>,
    proposer: Option<ProposerWithLimits>,
    spec: &AnswerSpec,
    kv_tokens: usize,
) -> Written {
    let engine = Engine::new(model.clone(), options(kv_tokens)).unwrap();
    let mut engine = Driven::new(engine, LocalOptions { proposer, ..LocalOptions::new(kv_tokens) });
    engine.command(EngineCommand::Open { prompt: P, spec: spec.clone(), scope: Scope::Whole });
    run(&mut engine);
    engine.command(EngineCommand::Verify { prompt: P, accepted: Accepted::Ids(Vec::new()) });
    run(&mut engine);
    let mut reports = engine.command(EngineCommand::Decode { prompt: P, keep: Keep::All, index: 0 });
    let mut passes = 0;
    let mut proposed = 0;
    while let Some(content) = engine.turn(&mut ()) {
        assert_eq!((content.decode_rows, content.prompts_begun), (1, 0));
        proposed += content.prefill_tokens;
        passes += 1;
        engine.commit();
        reports.extend(engine.reports());
    }
    reports.extend(engine.reports());
    let ids =
        reports.iter().filter_map(|r| if let EngineReport::Token { id, .. } = r { Some(*id) } else { None });
    let ids: Vec<TokenId> = ids.collect();
    let ended = reports.iter().find(|r| matches!(r, EngineReport::Ended { .. })).cloned();
    let stats = engine.speculation().unwrap_or_default();
    assert_eq!(stats.proposed as usize, proposed, "proposed tokens count as prefill");
    Written { ids, ended, passes, stats }
}

fn lookup(model: &Model) -> Option<ProposerWithLimits> {
    Speculation::Lookup.proposer(model, EngineOptions::default()).unwrap()
}

fn draft(target: &Model, draft: &Arc<Model>) -> Option<ProposerWithLimits> {
    draft_of(target, draft, 1024)
}

fn draft_of(target: &Model, draft: &Arc<Model>, kv_tokens: usize) -> Option<ProposerWithLimits> {
    let drafts = Drafts::new(target, draft.clone(), options(kv_tokens)).unwrap();
    Some((Box::new(drafts), SpeculationLimits::draft(Policy::Always)))
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
    proposer: Option<ProposerWithLimits>,
) -> SpeculationStats {
    let plain = write(model, None, spec, kv_tokens);
    let fast = write(model, proposer, spec, kv_tokens);
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
    AnswerSpec::plain(Arc::from(segments), sampling, 48)
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
    let err = Speculation::Draft(path.clone()).proposer(&cloud, options(64)).err().unwrap();
    let SpeculationError::Draft { err: DraftError::Tokenizer { draft, target }, .. } = &err else {
        panic!("{err}")
    };
    assert_eq!(target, cloud.tokenizer().digest_hex());
    assert_ne!(draft, target);
    let missing = Speculation::Draft("no such file".into()).proposer(&cloud, options(64)).err().unwrap();
    assert!(matches!(missing, SpeculationError::Open { .. }), "{missing}");
    assert!(Speculation::Off.proposer(&cloud, options(64)).unwrap().is_none());
}

#[test]
fn a_draft_catches_up_a_part_at_a_time() {
    let spec = spec(&document(40), 24, false);
    let stats = check(&model(), &spec, 1024, draft(&model(), &model()));
    assert!(stats.speculative_steps > 0, "{stats:?}");
    assert!(stats.steps - stats.speculative_steps >= 4, "some hundred tokens, 128 in a pass: {stats:?}");
    // A draft model whose cache is too small proposes nothing, and the answer stays the same.
    let small = draft_of(&model(), &model(), 64);
    assert_eq!(check(&model(), &spec, 1024, small).proposed, 0);
}
