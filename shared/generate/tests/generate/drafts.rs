//! A draft model that proposes for several answers at once.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::{Arc, LazyLock};

use baton_engine::gguf::Gguf;
use baton_engine::tokenizer::TokenId;
use baton_engine::{
    Engine, EngineOptions, Model, Sampler, SamplingParams, StepControl, StepError, StepSeq, Wanted,
};
use baton_generate::scheduler::JobId;
use baton_generate::speculation::{
    DraftError, Drafts, Proposer, Speculation, SpeculationError, Want, Writing,
};
use baton_kernels_cpu::Format;
use baton_synthetic::SyntheticModel;

fn synthetic(seed: u64) -> Arc<Model> {
    let bytes = SyntheticModel::small("llama", Format::F32, seed).to_gguf().unwrap();
    Model::from_gguf(Gguf::from_bytes(bytes).unwrap()).unwrap()
}

static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| synthetic(1));

fn options(kv_tokens: usize) -> EngineOptions {
    EngineOptions { threads: NonZeroUsize::new(1), kv_tokens, ..EngineOptions::default() }
}

fn sampler(seed: u64) -> Sampler {
    let params = SamplingParams { temperature: 0.9, repetition_penalty: 1.2, seed, ..Default::default() };
    Sampler::new(params).unwrap()
}

/// Returns `n` tokens that the model writes behind the prompt, one at a time.
fn alone(prompt: &[TokenId], sampler: &Sampler, n: usize) -> Vec<TokenId> {
    let mut engine = Engine::new(MODEL.clone(), options(1024)).unwrap();
    let seq = engine.create();
    let (mut feed, mut answer) = (prompt.to_vec(), Vec::new());
    while answer.len() < n {
        let step = StepSeq { seq, ids: &feed, logits: Wanted::Last, capture: None };
        let logits = engine.step(&[step], &mut ()).unwrap().remove(0).logits;
        let id = sampler.sample(&logits, answer.len() as u64, &answer);
        answer.push(id);
        if MODEL.tokenizer().is_end(id) {
            break;
        }
        feed = vec![id];
    }
    answer
}

struct Answer {
    prompt: Vec<TokenId>,
    sampler: Sampler,
    whole: Vec<TokenId>,
}

fn answers(lens: &[usize]) -> Vec<Answer> {
    let vocab = MODEL.config().vocab_len;
    let all = lens.iter().enumerate().map(|(at, &len)| {
        let prompt: Vec<TokenId> = (0..len).map(|i| ((7 * i + 31 * at + i * i) % vocab) as TokenId).collect();
        let sampler = sampler(at as u64);
        let whole = alone(&prompt, &sampler, 12);
        Answer { prompt, sampler, whole }
    });
    all.collect()
}

/// Asks for `k` tokens of each answer, of which so many tokens are written.
fn propose(drafts: &mut Drafts, answers: &[Answer], written: usize, k: usize) -> Vec<Vec<TokenId>> {
    let wants: Vec<Want<'_>> = answers
        .iter()
        .enumerate()
        .map(|(at, answer)| {
            let own = &answer.whole[..written.min(answer.whole.len() - 1)];
            let writing = Writing { prompt: &answer.prompt, own, answer: own, sampler: &answer.sampler };
            Want { id: JobId(at as u64), writing, k }
        })
        .collect();
    drafts.propose(&wants, &mut ()).unwrap()
}

#[track_caller]
fn check(answers: &[Answer], written: usize, k: usize, proposed: &[Vec<TokenId>]) {
    for (answer, proposed) in answers.iter().zip(proposed) {
        let from = written.min(answer.whole.len() - 1);
        let to = answer.whole.len().min(from + k);
        assert_eq!(proposed, &answer.whole[from..to], "{written} written");
    }
}

#[test]
fn a_model_that_drafts_for_itself_is_right_for_every_answer() {
    let answers = answers(&[5, 40, 90]);
    let mut drafts = Drafts::new(&MODEL, MODEL.clone(), options(1024)).unwrap();
    for (written, k) in [(1, 4), (3, 1), (8, 4), (2, 3)] {
        let proposed = propose(&mut drafts, &answers, written, k);
        check(&answers, written, k, &proposed);
    }
    drafts.forget(JobId(1));
    drafts.forget(JobId(1));
    check(&answers, 2, 2, &propose(&mut drafts, &answers, 2, 2));
    assert_eq!(propose(&mut drafts, &answers, 2, 0), vec![Vec::<TokenId>::new(); 3]);
}

#[test]
fn it_catches_up_with_a_long_prompt_over_several_passes() {
    let answers = answers(&[300, 20]);
    let mut drafts = Drafts::new(&MODEL, MODEL.clone(), options(1024)).unwrap();
    for pass in 0..2 {
        let proposed = propose(&mut drafts, &answers, 1, 3);
        assert!(proposed[0].is_empty(), "pass {pass}: {proposed:?}");
        check(&answers[1..], 1, 3, &proposed[1..]);
    }
    check(&answers, 1, 3, &propose(&mut drafts, &answers, 1, 3));
}

#[test]
fn a_full_cache_means_fewer_proposals() {
    let answers = answers(&[60, 60, 60]);
    // Two sequences fit: two or three of five blocks each.
    let mut drafts = Drafts::new(&MODEL, MODEL.clone(), options(160)).unwrap();
    for written in 1..6 {
        let proposed = propose(&mut drafts, &answers, written, 2);
        let some = proposed.iter().filter(|own| !own.is_empty()).count();
        assert!((1..=2).contains(&some), "{proposed:?}");
        for (at, own) in proposed.iter().enumerate().filter(|(_, own)| !own.is_empty()) {
            check(&answers[at..=at], written, 2, std::slice::from_ref(own));
        }
    }
    let mut drafts = Drafts::new(&MODEL, MODEL.clone(), options(32)).unwrap();
    assert_eq!(propose(&mut drafts, &answers, 1, 2), vec![Vec::<TokenId>::new(); 3], "none fits");
}

struct Stop(usize);

impl StepControl for Stop {
    fn after_layer(&mut self, _done: usize, _total: usize) -> ControlFlow<()> {
        self.0 = self.0.saturating_sub(1);
        if self.0 == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[test]
fn a_cancelled_pass_changes_nothing() {
    let answers = answers(&[30]);
    let mut drafts = Drafts::new(&MODEL, MODEL.clone(), options(1024)).unwrap();
    for layers in 1..4 {
        let own = &answers[0].whole[..1];
        let Answer { prompt, sampler, .. } = &answers[0];
        let want = Want { id: JobId(0), writing: Writing { prompt, own, answer: own, sampler }, k: 2 };
        let result = drafts.propose(&[want], &mut Stop(layers));
        assert!(matches!(result, Err(StepError::Cancelled { .. })), "{result:?}");
    }
    check(&answers, 1, 2, &propose(&mut drafts, &answers, 1, 2));
}

#[test]
fn the_option_makes_its_source_or_says_why_not() {
    let make = |text: &str| text.parse::<Speculation>().unwrap().proposer(&MODEL, options(256));
    assert!(make("off").unwrap().is_none());
    assert!(make("auto").unwrap().is_some() && make("lookup").unwrap().is_some());
    let Err(err) = make("draft=/nowhere/model.gguf") else { panic!("a file that is not there") };
    assert!(matches!(err, SpeculationError::Open { .. }), "{err}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let model = SyntheticModel::small("llama", Format::F32, 2);
    std::fs::write(file.path(), model.to_gguf().unwrap()).unwrap();
    let made = make(&format!("draft={}", file.path().display()));
    match made {
        Ok(made) => assert!(made.is_some()),
        Err(err) => assert!(matches!(err, SpeculationError::Draft { err: DraftError::Tokenizer { .. }, .. })),
    }
}
