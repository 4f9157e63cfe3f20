//! A tiny model, a clock that tests move, sinks that record, and answers written by plain loops.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use baton_engine::gguf::Gguf;
use baton_engine::sampling::SamplingParams;
use baton_engine::tokenizer::TokenId;
use baton_engine::{
    Adapter, BLOCK_TOKENS, Engine, EngineOptions, Model, PrefixScope, Sampler, StepSeq, Wanted,
};
use baton_generate::answer::{Accepted, Answer, AnswerEnd, AnswerOptions, Keep, TextMode, Verified};
use baton_generate::clock::Clock;
use baton_generate::host::HostOptions;
use baton_generate::job::{Job, JobEvent, Opened, Reading, Sink};
use baton_generate::scheduler::{
    BacklogBound, CloseReason, Closed, Goal, JobId, JobSpec, Limits, MixedTokens, Share, StepBudget, StepRow,
};
use baton_generate::unread::{CancelFlag, ReadMark, Unread};
use baton_kernels_cpu::Format;
use baton_random::SplitMix64;
use baton_synthetic::{SyntheticAdapter, SyntheticModel};

/// The model of all tests here.
static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| {
    let synthetic = SyntheticModel {
        n_layers: 1,
        n_heads: 2,
        n_kv_heads: 1,
        d_model: 64,
        d_head: 32,
        d_ff: 64,
        ..SyntheticModel::small("llama", Format::F32, 11)
    };
    Model::from_gguf(Gguf::from_bytes(synthetic.to_gguf().unwrap()).unwrap()).unwrap()
});

static ADAPTER: LazyLock<Arc<Adapter>> = LazyLock::new(|| {
    let bytes = SyntheticAdapter::of_seed(5).to_gguf(MODEL.config()).unwrap();
    Adapter::from_gguf(Gguf::from_bytes(bytes).unwrap(), &MODEL).unwrap()
});

pub(super) fn model() -> &'static Arc<Model> {
    &MODEL
}

pub(super) fn adapter() -> &'static Arc<Adapter> {
    &ADAPTER
}

pub(super) fn engine(kv_tokens: usize) -> Engine {
    let options = EngineOptions { threads: NonZeroUsize::new(1), kv_tokens, ..EngineOptions::default() };
    Engine::new(Arc::clone(&MODEL), options).unwrap()
}

/// A clock that stands still until it is moved.
#[derive(Clone, Default)]
pub(super) struct ByHand(Arc<AtomicU64>);

impl ByHand {
    pub(super) fn clock(&self) -> Clock {
        let micros = Arc::clone(&self.0);
        Clock::from_fn(move || Duration::from_micros(micros.load(Ordering::SeqCst)))
    }

    pub(super) fn advance(&self, micros: u64) {
        self.0.fetch_add(micros, Ordering::SeqCst);
    }
}

/// Options of a host that lets in what fits, without proposals.
pub(super) fn options(kv_tokens: usize, clock: Clock) -> HostOptions {
    let limits = Limits {
        slots: 4,
        queue: 64,
        backlog: BacklogBound::NONE,
        kv_tokens: kv_tokens.next_multiple_of(BLOCK_TOKENS),
        kv_block: BLOCK_TOKENS,
        budget: StepBudget { chunk_tokens: 64, mixed: MixedTokens::MaxStall(5.0) },
        admit_tokens: 1,
        logit_rows: 16,
        speculation: None,
    };
    HostOptions {
        limits,
        clock,
        emulation: None,
        turns: None,
        proposer: None,
        idle_sequences: 0,
        idle_for: None,
        watch: None,
    }
}

/// What an answer is asked for with.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) prompt: Vec<TokenId>,
    pub(super) sampling: SamplingParams,
    pub(super) max_tokens: usize,
    pub(super) adapted: bool,
    pub(super) owner: u128,
}

impl Ask {
    pub(super) fn answer(&self) -> Answer {
        Answer::new(AnswerOptions {
            tokenizer: Arc::clone(MODEL.tokenizer()),
            vocab_len: MODEL.config().vocab_len,
            sampler: Sampler::new(self.sampling).unwrap(),
            prompt: self.prompt.clone(),
            continued: Vec::new(),
            max_tokens: self.max_tokens,
            room_tokens: MODEL.config().context_len,
            text: TextMode::Ids,
            constraint: None,
            logprobs: None,
            window: None,
            evidence: None,
        })
    }

    pub(super) fn job(
        &self,
        id: JobId,
        goal: Goal,
        adapter: Option<baton_engine::AdapterId>,
    ) -> (Job, Reader) {
        let cancel = CancelFlag::default();
        let unread = Unread::new(6, cancel.clone());
        let record = Arc::<Mutex<Record>>::default();
        let reader = Reader { record: Arc::clone(&record), cancel: cancel.clone(), mark: unread.mark(None) };
        let spec = JobSpec {
            id,
            prompt_tokens: self.prompt.len(),
            max_tokens: self.max_tokens,
            floor_tokens: self.max_tokens,
            tail_tokens: usize::from(goal == Goal::Write),
            pass_tokens: (self.prompt.len() / 16).max(8),
            bytes: 0,
            deadline: None,
            share: Share::default(),
            goal,
        };
        let scope = PrefixScope { owner: self.owner, shared_tokens: 0 };
        let sink = Box::new(Recorder { record, unread, pending: 0 });
        let adapter = adapter.filter(|_| self.adapted);
        (Job { spec, answer: self.answer(), scope, adapter, cancel, sink }, reader)
    }

    /// Returns the tokens that the engine alone writes behind these answer tokens, and whether it ends by
    /// itself.
    pub(super) fn alone(&self, accepted: &[TokenId]) -> (Vec<TokenId>, bool) {
        let mut engine = engine(1024);
        let adapter = self.adapted.then(|| engine.add_adapter(Arc::clone(&ADAPTER)).unwrap());
        let seq = engine.create_with(adapter).unwrap();
        let sampler = Sampler::new(self.sampling).unwrap();
        let mut ids = [&self.prompt, accepted].concat();
        let mut answer = accepted.to_vec();
        while answer.len() < self.max_tokens {
            let step = StepSeq { seq, ids: &ids, logits: Wanted::Last, capture: None };
            let logits = engine.step(&[step], &mut ()).unwrap().remove(0).logits;
            let id = sampler.sample(&logits, answer.len() as u64, &answer);
            if MODEL.tokenizer().is_end(id) {
                return (answer, true);
            }
            answer.push(id);
            ids = vec![id];
        }
        (answer, false)
    }

    /// Returns the tokens that an answer has behind a text that it keeps whole, row by row on an engine of
    /// its own.
    pub(super) fn alone_behind(&self, text: &str) -> (Vec<TokenId>, bool) {
        let mut engine = engine(1024);
        let adapter = self.adapted.then(|| engine.add_adapter(Arc::clone(&ADAPTER)).unwrap());
        let seq = engine.create_with(adapter).unwrap();
        let mut answer = self.answer();
        let accepted = answer.accept(Accepted::Text(text.to_owned())).unwrap();
        let (id, mut out) = (JobId(0), Vec::new());
        let tokens = 0..self.prompt.len() + accepted;
        let ids = answer.feed(tokens.clone());
        let step = StepSeq { seq, ids: &ids, logits: Wanted::All, capture: None };
        let logits = engine.step(&[step], &mut ()).unwrap().remove(0).logits;
        answer.took(&StepRow::Verify { id, tokens, last: true }, &[], &logits, &mut out);
        let decided = answer.decide(Keep::All, accepted, &mut out);
        engine.truncate(seq, self.prompt.len() + decided.kept).unwrap();
        let mut end = decided.end;
        while end.is_none() {
            let row = StepRow::Decode { id, proposed: 0 };
            let ids = answer.rows(&row, &[]).ids;
            let step = StepSeq { seq, ids: &ids, logits: Wanted::Last, capture: None };
            let logits = engine.step(&[step], &mut ()).unwrap().remove(0).logits;
            end = answer.took(&row, &[], &logits, &mut out).end;
        }
        (answer.tokens().to_vec(), end == Some(AnswerEnd::Stop))
    }
}

/// What a sink has seen.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) opened: usize,
    pub(super) begun: usize,
    pub(super) held: usize,
    pub(super) computed_tokens: usize,
    pub(super) verified: Vec<Verified>,
    /// Index and id of each token.
    pub(super) written: Vec<(usize, TokenId)>,
    /// Tokens given out by a flush or the end.
    pub(super) given_out: usize,
    pub(super) parked: usize,
    pub(super) end: Option<(CloseReason, Vec<TokenId>, Option<String>)>,
    pub(super) closed: Option<Closed>,
}

/// The test's end of a job.
pub(super) struct Reader {
    pub(super) record: Arc<Mutex<Record>>,
    pub(super) cancel: CancelFlag,
    pub(super) mark: ReadMark,
}

impl Reader {
    pub(super) fn with<T>(&self, look: impl FnOnce(&Record) -> T) -> T {
        look(&self.record.lock().unwrap())
    }

    pub(super) fn ended(&self) -> bool {
        self.with(|record| record.end.is_some())
    }

    /// Reads everything that was given out.
    pub(super) fn read(&self) {
        self.mark.read_up_to(self.with(|record| record.given_out));
    }
}

struct Recorder {
    record: Arc<Mutex<Record>>,
    unread: Unread,
    pending: usize,
}

impl Recorder {
    fn with<T>(&self, change: impl FnOnce(&mut Record) -> T) -> T {
        let mut record = self.record.lock().unwrap();
        assert!(record.end.is_none(), "nothing comes behind the end");
        change(&mut record)
    }

    fn give_out(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        self.with(|record| record.given_out += pending);
        self.unread.written(pending);
    }
}

impl Sink for Recorder {
    fn opened(&mut self, _opened: Opened) {
        self.with(|record| record.opened += 1);
    }

    fn event(&mut self, event: JobEvent) {
        self.pending += usize::from(matches!(event, JobEvent::Written(_)));
        self.with(|record| {
            assert_eq!(record.opened, 1, "a job is opened once, before anything else");
            match event {
                JobEvent::Begun { tokens, cached } => {
                    assert!(cached <= tokens);
                    record.begun += 1;
                }
                JobEvent::Computed { done, total, tokens, held } => {
                    assert!(record.begun > 0 && tokens > 0 && done <= total && done <= held + tokens);
                    record.computed_tokens += tokens;
                }
                JobEvent::Held => record.held += 1,
                JobEvent::Scores(_) => panic!("nobody asked for scores"),
                JobEvent::Verified(verified) => record.verified.push(verified),
                JobEvent::Written(token) => {
                    let next = record.written.last().map(|(index, _)| index + 1);
                    assert!(next.is_none_or(|next| next == token.index), "indices have no gaps: {record:?}");
                    record.written.push((token.index, token.id));
                }
            }
        });
    }

    fn flush(&mut self, _now: Duration) {
        self.give_out();
    }

    fn room(&self) -> usize {
        self.unread.room()
    }

    fn reading(&mut self) -> Option<Reading> {
        let reading = self.unread.reading();
        self.with(|record| record.parked += usize::from(reading == Some(Reading::Park)));
        reading
    }

    fn closed(mut self: Box<Self>, closed: &Closed, answer: Answer) {
        self.give_out();
        let fault = answer.fault().map(ToString::to_string);
        self.with(|record| {
            record.closed = Some(*closed);
            record.end = Some((closed.reason, answer.tokens().to_vec(), fault));
        });
    }
}

/// Returns a prompt that begins like others: of one of three texts, then of its own.
pub(super) fn prompt(random: &mut SplitMix64, tokens_max: usize) -> Vec<TokenId> {
    let base = random.below(3) as u32;
    let tokens = 2 + random.below(tokens_max - 2);
    let shared = random.below(tokens);
    let text = |at: usize| (at as u32 * 37 + base * 11 + 5) % 200;
    (0..tokens).map(|at| if at < shared { text(at) } else { random.below(200) as u32 }).collect()
}

/// Returns greedy or warm sampling.
pub(super) fn sampling(random: &mut SplitMix64) -> SamplingParams {
    let seed = random.next_u64();
    match random.below(3) {
        0 => SamplingParams::default(),
        1 => SamplingParams { temperature: 0.7, top_k: Some(20), seed, ..SamplingParams::default() },
        _ => SamplingParams {
            temperature: 1.3,
            repetition_penalty: 1.2,
            presence_penalty: 0.3,
            seed,
            ..SamplingParams::default()
        },
    }
}
