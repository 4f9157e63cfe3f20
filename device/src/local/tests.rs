//! Tests the local engine: passes, verification, shared prefixes, prompts that do not fit.

mod adapters;
mod bounds;
mod other_tokenizer;
pub(crate) mod ring;
mod speculation;
pub(crate) mod watched;

use super::*;
use baton_engine::gguf::Gguf;
use baton_engine::prompt::{PromptSegment, assemble};
use baton_engine::sampling::SamplingParams;
use baton_engine::{Adapter, Engine, EngineOptions, StepControl, StepSeq, Wanted};
use baton_kernels_cpu::Format;
use baton_protocol::Role;
use baton_synthetic::{SyntheticAdapter, SyntheticModel};
use std::ops::ControlFlow;
use std::sync::LazyLock;

static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| {
    let bytes = SyntheticModel::small("llama", Format::F32, 1).to_gguf().unwrap();
    Model::from_gguf(Gguf::from_bytes(bytes).unwrap()).unwrap()
});

/// Returns a model of random weights, shared by the tests.
pub(crate) fn model() -> Arc<Model> {
    MODEL.clone()
}

/// Makes an adapter of that model.
pub(crate) fn adapter(seed: u64) -> Arc<Adapter> {
    let bytes = SyntheticAdapter::of_seed(seed).to_gguf(model().config()).unwrap();
    Adapter::from_gguf(Gguf::from_bytes(bytes).unwrap(), &model()).unwrap()
}

fn options(kv_tokens: usize) -> EngineOptions {
    EngineOptions { threads: std::num::NonZeroUsize::new(1), kv_tokens, ..EngineOptions::default() }
}

/// Returns `accepted` and the tokens that a device alone writes after it, one token at a time.
pub(crate) fn continuation(spec: &AnswerSpec, accepted: &[TokenId]) -> Vec<TokenId> {
    adapted_continuation(spec, None, accepted)
}

/// Like [`continuation`], with an adapter of the model.
pub(crate) fn adapted_continuation(
    spec: &AnswerSpec,
    adapter: Option<&Arc<Adapter>>,
    accepted: &[TokenId],
) -> Vec<TokenId> {
    let model = model();
    let mut engine = Engine::new(model.clone(), options(1024)).unwrap();
    let adapter = adapter.map(|adapter| engine.add_adapter(adapter.clone()).unwrap());
    let seq = engine.create_with(adapter).unwrap();
    let parts: Vec<PromptSegment<'_>> =
        spec.segments.iter().map(|s| PromptSegment { role: s.role.as_str(), text: &s.text }).collect();
    let mut feed = assemble(model.tokenizer(), model.template(), &parts).unwrap().ids;
    feed.extend_from_slice(accepted);
    let sampler = Sampler::new(spec.sampling).unwrap();
    let mut answer = accepted.to_vec();
    while answer.len() < spec.tokens_max {
        let step = StepSeq { seq, ids: &feed, logits: Wanted::Last, capture: None };
        let logits = engine.step(&[step], &mut ()).unwrap().pop().unwrap().logits;
        let token = sampler.sample(&logits, answer.len() as u64, &answer);
        if model.tokenizer().is_end(token) {
            break;
        }
        answer.push(token);
        feed = vec![token];
    }
    answer
}

/// Makes a question about a document.
pub(crate) fn spec(document: &str, tokens_max: usize, shorten: bool) -> AnswerSpec {
    let segments = vec![
        Segment::fixed(Role::System, "You answer."),
        Segment::refinable(Role::User, document),
        Segment::fixed(Role::User, "\n\nQuestion: why is item 3 red?"),
    ];
    let sampling = SamplingParams::default();
    AnswerSpec { shorten, ..AnswerSpec::plain(Arc::from(segments), sampling, tokens_max) }
}

fn document(sentences: usize) -> String {
    (0..sentences).map(|i| format!("Item {i} is red. ")).collect()
}

/// Makes a device with a cache of so many tokens.
pub(crate) fn device(kv_tokens: usize) -> Driven<Engine> {
    Driven::new(Engine::new(model(), options(kv_tokens)).unwrap(), LocalOptions::new(kv_tokens))
}

/// Runs passes until there is no work.
pub(crate) fn run<S: Sequences>(engine: &mut Driven<S>) -> Vec<EngineReport> {
    let mut reports = Vec::new();
    loop {
        let worked = engine.turn(&mut ()).is_some();
        engine.commit();
        reports.extend(engine.reports());
        if !worked {
            return reports;
        }
    }
}

const P: PromptId = PromptId(1);

#[test]
fn progress_is_reported_at_least_every_sixteenth() {
    let mut engine = device(1024);
    let mut reports = engine.command(EngineCommand::Open {
        prompt: P,
        spec: spec(&document(30), 8, false),
        scope: Scope::Whole,
    });
    let EngineReport::Opened { tokens, prefix_tokens, .. } = reports[0] else { panic!("{reports:?}") };
    assert!(prefix_tokens > 0 && prefix_tokens < tokens);
    reports.extend(run(&mut engine));
    let passes: Vec<usize> = reports
        .iter()
        .filter_map(|r| {
            if let EngineReport::Progress { pass_tokens, .. } = r { Some(*pass_tokens) } else { None }
        })
        .collect();
    assert!(passes.len() >= PASSES && passes.iter().all(|&n| n <= tokens / PASSES), "{passes:?} of {tokens}");
    assert_eq!(passes.iter().sum::<usize>(), tokens - 1, "the last token waits for the cloud's");
    assert_eq!(reports.last(), Some(&EngineReport::Ready { prompt: P }));
}

#[test]
fn cloud_tokens_go_through_in_the_last_pass() {
    let spec = spec(&document(20), 12, false);
    let want = continuation(&spec, &[]);
    for early in [false, true] {
        let mut engine = device(1024);
        let mut reports =
            engine.command(EngineCommand::Open { prompt: P, spec: spec.clone(), scope: Scope::Whole });
        let accepted = Accepted::Ids(want[..5].to_vec());
        let verify = EngineCommand::Verify { prompt: P, accepted };
        if early {
            reports.extend(engine.command(verify));
            reports.extend(run(&mut engine));
            assert!(!reports.contains(&EngineReport::Ready { prompt: P }));
        } else {
            reports.extend(run(&mut engine));
            reports.extend(engine.command(verify));
            reports.extend(run(&mut engine));
        }
        let Some(EngineReport::Verified { verified, .. }) = reports.last() else { panic!("{reports:?}") };
        assert_eq!(verified.own, want[..6], "its own choice at every position, and one more");
        assert_eq!((verified.compared, verified.agreed), (5, 5));
        let mut reports = engine.command(EngineCommand::Decode { prompt: P, keep: Keep::All, index: 5 });
        reports.extend(run(&mut engine));
        let own: Vec<TokenId> = reports
            .iter()
            .filter_map(|r| if let EngineReport::Token { id, .. } = r { Some(*id) } else { None })
            .collect();
        assert_eq!(own, want[5..]);
    }
}

#[test]
fn a_shared_prefix_stays_in_the_cache() {
    let mut engine = device(1024);
    let whole = spec(&document(12), 8, false);
    let reports =
        engine.command(EngineCommand::Open { prompt: P, spec: whole.clone(), scope: Scope::Prefix });
    let EngineReport::Opened { prefix_tokens, .. } = reports[0] else { panic!("{reports:?}") };
    run(&mut engine);
    let segments = spec("Item 3 is red.", 8, false).segments;
    engine.command(EngineCommand::Prefill { prompt: PromptId(2), segments, kept: None });
    let reports = run(&mut engine);
    let EngineReport::Prompt { prompt: PromptId(2), cached, .. } = reports[0] else { panic!("{reports:?}") };
    assert!(cached >= prefix_tokens, "{cached} of {prefix_tokens}");
}

#[test]
fn a_prompt_that_does_not_fit_is_shortened_or_refused() {
    let mut engine = device(256);
    let long = document(60);
    let reports =
        engine.command(EngineCommand::Open { prompt: P, spec: spec(&long, 16, false), scope: Scope::Whole });
    let Some(&EngineReport::TooLong { tokens: asked, limit: 240, .. }) = reports.last() else {
        panic!("{reports:?}")
    };
    assert!(asked > 240);
    engine.command(EngineCommand::Open { prompt: P, spec: spec(&long, 16, true), scope: Scope::Whole });
    let reports = run(&mut engine);
    let Some(EngineReport::Prompt { tokens, shortened: Some((whole, limit)), .. }) = reports.first() else {
        panic!("{reports:?}")
    };
    assert!(tokens <= limit && whole > limit && *whole == asked, "{tokens} {limit} {whole}");
    // A prompt without refinable text cannot be shortened.
    let mut fixed = spec(&long, 16, true);
    let segments: Vec<_> = fixed.segments.iter().map(|s| Segment::fixed(s.role, s.text.as_str())).collect();
    fixed.segments = segments.into();
    let reports = engine.command(EngineCommand::Open { prompt: P, spec: fixed, scope: Scope::Whole });
    assert!(matches!(reports.last(), Some(EngineReport::TooLong { limit: 240, .. })), "{reports:?}");
}

#[test]
fn commands_out_of_place_are_refused() {
    let mut engine = device(256);
    let reports = engine.command(EngineCommand::Decode { prompt: P, keep: Keep::All, index: 0 });
    assert!(matches!(reports[..], [EngineReport::Failed { .. }]));
    assert_eq!(engine.command(EngineCommand::Verify { prompt: P, accepted: Accepted::Ids(vec![]) }), []);
    assert_eq!(engine.command(EngineCommand::Stop), []);
    assert_eq!(engine.turn(&mut ()), None);
    // An answer that was opened is told at once, not when its turn comes.
    engine.command(EngineCommand::Open { prompt: P, spec: spec("Item 1.", 4, false), scope: Scope::Whole });
    let reports = engine.command(EngineCommand::Decode { prompt: P, keep: Keep::All, index: 0 });
    assert!(matches!(&reports[..], [EngineReport::Failed { reason, .. }] if reason.contains("verification")));
    assert_eq!(run(&mut engine), [], "it has ended");
    // What comes after a failure fails too.
    let segments = spec("Item 2.", 4, false).segments;
    let reports = engine.command(EngineCommand::Prefill { prompt: PromptId(2), segments, kept: None });
    assert!(matches!(&reports[..], [EngineReport::Failed { prompt: PromptId(2), .. }]), "{reports:?}");
}

struct Cancel;
impl StepControl for Cancel {
    fn after_layer(&mut self, _: usize, _: usize) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}

#[test]
fn a_cancelled_pass_changes_nothing() {
    let mut engine = device(512);
    let open = || EngineCommand::Open { prompt: P, spec: spec(&document(4), 4, false), scope: Scope::Whole };
    engine.command(open());
    assert_eq!(engine.turn(&mut Cancel), None, "the answer ends with its pass");
    assert!(!engine.reports().iter().any(|report| matches!(report, EngineReport::Progress { .. })));
    engine.command(open());
    let reports = run(&mut engine);
    assert!(matches!(reports[0], EngineReport::Prompt { cached: 0, .. }), "{reports:?}");
    assert_eq!(reports.last(), Some(&EngineReport::Ready { prompt: P }));
}
