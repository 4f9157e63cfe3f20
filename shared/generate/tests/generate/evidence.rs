//! What an answer attends to, against sums over one pass of prompt and answer.

use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use baton_engine::gguf::Gguf;
use baton_engine::tokenizer::TokenId;
use baton_engine::{
    Capture, Engine, EngineOptions, HeadId, MeanOver, Model, PrefixScope, Sampler, SamplingParams, StepSeq,
    Wanted,
};
use baton_generate::answer::{Accepted, Answer, AnswerOptions, Keep, TextMode};
use baton_generate::clock::Clock;
use baton_generate::evidence::{Evidence, KeyGroups};
use baton_generate::host::{Host, HostOptions};
use baton_generate::job::{Job, JobEvent, Opened, Order, Sink};
use baton_generate::scheduler::{
    BacklogBound, Closed, Goal, JobSpec, Limits, MixedTokens, Share, StepBudget,
};
use baton_generate::speculation::Speculation;
use baton_generate::unread::CancelFlag;
use baton_kernels_cpu::Format;
use baton_random::SplitMix64;
use baton_synthetic::SyntheticModel;

/// Groups of the prompt's tokens.
const GROUPS: usize = 5;

static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| {
    let bytes = SyntheticModel::small("llama", Format::F32, 3).to_gguf().unwrap();
    Model::from_gguf(Gguf::from_bytes(bytes).unwrap()).unwrap()
});

fn options() -> EngineOptions {
    EngineOptions { threads: NonZeroUsize::new(2), kv_tokens: 1024, ..EngineOptions::default() }
}

fn engine() -> Engine {
    Engine::new(Arc::clone(&MODEL), options()).unwrap()
}

fn groups(prompt: usize, random: &mut SplitMix64) -> KeyGroups {
    let config = MODEL.config();
    let heads = [(0, 1), (config.n_layers - 1, 0), (0, 0)];
    KeyGroups {
        heads: heads.map(|(layer, head)| HeadId { layer, head }).to_vec(),
        of_key: (0..prompt)
            .map(|_| random.below(GROUPS + 1).checked_sub(1).map(|group| group as u32))
            .collect(),
        count: GROUPS,
    }
}

/// Returns the sums of every answer token: those of the row before it, in one pass over everything.
fn brute_force(groups: &KeyGroups, prompt: &[TokenId], answer: &[TokenId]) -> Vec<Vec<f64>> {
    let (mut engine, ids) = (engine(), [prompt, answer].concat());
    let seq = engine.create();
    let capture = Capture { window: 0..ids.len(), heads: groups.heads.clone(), over: MeanOver::Heads };
    let step = StepSeq { seq, ids: &ids, logits: Wanted::None, capture: Some(&capture) };
    let scores = engine.step(&[step], &mut ()).unwrap().remove(0).scores.unwrap();
    let sum = |row: usize, group: usize| {
        let keys = (0..prompt.len()).filter(|key| groups.of_key[*key] == Some(group as u32));
        keys.map(|key| f64::from(scores.mean[row * scores.keys + key])).sum::<f64>()
    };
    let rows = prompt.len() - 1..prompt.len() - 1 + answer.len();
    rows.map(|row| (0..GROUPS).map(|group| sum(row, group)).collect()).collect()
}

#[track_caller]
fn check(answer: &mut Answer, groups: &KeyGroups, prompt: &[TokenId]) {
    let ids = answer.tokens().to_vec();
    let evidence = answer.take_evidence().unwrap();
    let want = brute_force(groups, prompt, &ids);
    assert_eq!(evidence.rows().len(), want.len());
    for (at, (have, want)) in evidence.rows().iter().zip(&want).enumerate() {
        if at % 2 == 1 {
            assert!(have.is_empty(), "token {at}");
            continue;
        }
        assert_eq!(have.len(), GROUPS, "token {at}");
        let near = have.iter().zip(want).all(|(have, want)| (f64::from(*have) - want).abs() < 1e-5);
        assert!(near, "token {at}: {have:?} for {want:?}");
    }
}

fn answer(prompt: &[TokenId], seed: u64, evidence: Option<Evidence>) -> Answer {
    let sampling = SamplingParams { temperature: 0.7, seed, ..SamplingParams::default() };
    Answer::new(AnswerOptions {
        tokenizer: Arc::clone(MODEL.tokenizer()),
        vocab_len: MODEL.config().vocab_len,
        sampler: Sampler::new(sampling).unwrap(),
        prompt: prompt.to_vec(),
        continued: Vec::new(),
        max_tokens: 24,
        room_tokens: 500,
        text: TextMode::Ids,
        constraint: None,
        logprobs: None,
        window: None,
        evidence,
    })
}

fn host(speculates: bool) -> Host<Engine> {
    let way = if speculates { Speculation::Lookup } else { Speculation::Off };
    let (proposer, speculation) = way.proposer(&MODEL, options()).unwrap().unzip();
    let limits = Limits {
        slots: 1,
        queue: 4,
        backlog: BacklogBound::NONE,
        kv_tokens: 1024,
        kv_block: baton_engine::BLOCK_TOKENS,
        budget: StepBudget { chunk_tokens: 16, mixed: MixedTokens::MaxStall(5.0) },
        admit_tokens: 1,
        logit_rows: 4,
        speculation,
    };
    let (clock, emulation, turns, watch) = (Clock::monotonic(), None, None, None);
    Host::new(
        engine(),
        HostOptions { limits, clock, emulation, turns, proposer, idle_sequences: 0, idle_for: None, watch },
    )
}

fn job(host: &Host<Engine>, answer: Answer, goal: Goal, sink: Box<dyn Sink>) -> Job {
    let prompt_tokens = answer.prompt().len();
    let spec = JobSpec {
        id: host.handle().new_id(),
        prompt_tokens,
        max_tokens: 24,
        floor_tokens: 24,
        tail_tokens: usize::from(goal == Goal::Write),
        pass_tokens: 16,
        bytes: 0,
        deadline: None,
        share: Share::default(),
        goal,
    };
    Job { spec, answer, scope: PrefixScope::default(), adapter: None, cancel: CancelFlag::default(), sink }
}

/// A prompt that repeats itself, so that tokens are proposed.
fn prompt(random: &mut SplitMix64) -> Vec<TokenId> {
    let part: Vec<TokenId> = (0..7).map(|_| random.below(MODEL.config().vocab_len) as TokenId).collect();
    part.iter().copied().cycle().take(20 + random.below(30)).collect()
}

#[test]
fn evidence_of_a_written_answer_is_that_of_one_pass_with_and_without_proposals() {
    let mut random = SplitMix64::new(5);
    for case in 0..6 {
        let mut host = host(case % 2 == 1);
        let prompt = prompt(&mut random);
        let groups = groups(prompt.len(), &mut random);
        let answer = answer(&prompt, case, Some(Evidence::new(groups.clone())));
        let job = job(&host, answer, Goal::Write, Box::new(()));
        let mut done = host.run(job, &mut ()).unwrap();
        check(&mut done.answer, &groups, &prompt);
    }
}

/// Keeps the answer at its end.
struct AtEnd(Arc<Mutex<Option<Answer>>>);

impl Sink for AtEnd {
    fn opened(&mut self, _opened: Opened) {}

    fn event(&mut self, event: JobEvent) {
        assert!(!matches!(event, JobEvent::Scores(_)), "there is no window");
    }

    fn flush(&mut self, _now: Duration) {}

    fn closed(self: Box<Self>, _closed: &Closed, answer: Answer) {
        *self.0.lock().unwrap() = Some(answer);
    }
}

#[test]
fn evidence_of_a_taken_over_answer_is_that_of_the_prompt_and_the_tokens_that_stayed() {
    let mut random = SplitMix64::new(8);
    for case in 0..6u64 {
        let mut host = host(case % 2 == 1);
        let (first, prompt) = (prompt(&mut random), prompt(&mut random));
        let (of_first, groups) = (groups(first.len(), &mut random), groups(prompt.len(), &mut random));
        let end = Arc::default();
        let begun = answer(&first, case, Some(Evidence::new(of_first)));
        let hold = Goal::Hold { upto: first.len() - 1 };
        let job = job(&host, begun, hold, Box::new(AtEnd(Arc::clone(&end))));
        let (id, handle) = (job.spec.id, host.handle());
        handle.submit(job).unwrap();
        // The refined prompt comes, then the other side's tokens, of which some stay.
        let goal = Goal::Hold { upto: prompt.len() - 1 };
        let evidence = Some(Evidence::new(groups.clone()));
        let ids = prompt.clone();
        handle.order(id, Order::Prompt { ids, evidence, max_tokens: 24, goal, pass_tokens: 16 });
        let accepted: Vec<TokenId> = (0..9).map(|_| 40 + random.below(20) as TokenId).collect();
        handle.order(id, Order::Accept(Accepted::Ids(accepted.clone())));
        let kept = [9, 4, 0][case as usize % 3];
        handle.order(id, Order::Decide { keep: Keep::Tokens(kept), index: kept });
        while end.lock().unwrap().is_none() {
            let pass = host.turn().expect("the answer goes on");
            host.commit(pass);
        }
        let mut answer = end.lock().unwrap().take().unwrap();
        assert_eq!(answer.tokens()[..kept], accepted[..kept]);
        check(&mut answer, &groups, &prompt);
    }
}
