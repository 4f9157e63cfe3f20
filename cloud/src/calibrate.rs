//! Finds the attention heads of a model that attend from a question to the sentences that answer it, by
//! needle probes.
//!
//! Documents and questions are generated; several questions share one document and its prefill. It runs
//! synchronously and owns its engine. Never: writes a file (the command does). Always: the
//! same model and options give the same heads.

mod recall;

use std::num::NonZeroUsize;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use baton_corpus::{Document, Question, QuestionKind, document, stream};
use baton_engine::prompt::{Prompt, PromptError, PromptSegment, assemble};
use baton_engine::sampling::{Sampler, SamplingError, SamplingParams};
use baton_engine::tokenizer::TokenId;
use baton_engine::{
    AttentionScores, BLOCK_TOKENS, Engine, EngineError, EngineOptions, HeadId, Model, PrefixScope,
    StepControl,
};
use baton_generate::answer::{Answer, AnswerOptions, TextMode, Window};
use baton_generate::clock::Clock;
use baton_generate::hooks::Fault;
use baton_generate::host::{Host, HostOptions, NotTaken};
use baton_generate::job::Job;
use baton_generate::scheduler::{BacklogBound, Goal, JobSpec, Limits, Share, StepBudget};
use baton_generate::unread::CancelFlag;
use baton_protocol::{Role, Segment, SentenceMap};
use baton_random::SplitMix64;
use baton_refine::{
    AttentionShape, Calibration, CalibrationError, ContentTokens, HeadGains, Mode, Probe, RefineError,
    Scores, capture_plan,
};

pub use self::recall::recall;

/// Questions that share a document.
const QUESTIONS_A_DOCUMENT: usize = 4;
/// Prompt tokens in one pass.
const CHUNK_TOKENS: usize = 512;
/// Shorter documents have too few sentences to tell heads apart.
const WORDS_MIN: usize = 100;
/// The first seed of the documents. Neither the trainer nor an evaluation uses the next hundred thousand
/// seeds.
const SEED: u64 = 3_000_000;
const SYSTEM: &str = "You answer from the document.";
const QUESTION_PREFIX: &str = "\n\nQuestion: ";

/// Options of a calibration.
#[derive(Debug, Clone, Copy)]
pub struct ProbeOptions {
    /// Questions asked.
    pub probes: NonZeroUsize,
    /// Words of a document; fewer if the model's context is too short.
    pub words: usize,
    /// Threads of the engine, or `None` for one per core.
    pub threads: Option<NonZeroUsize>,
}

/// Progress of a calibration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Probes done.
    pub probes: usize,
    /// Probes in all.
    pub of: usize,
    /// Prompt tokens computed.
    pub tokens: usize,
}

/// Result of a calibration.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibrated {
    /// The heads to rank sentences by.
    pub calibration: Calibration,
    /// The mean gain of every head: its share of attention on a needle minus that on a random sentence.
    pub gains: Vec<((usize, usize), f64)>,
    /// Probes done.
    pub probes: usize,
    /// Words of the documents.
    pub words: usize,
}

/// Why a model was not calibrated.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// The engine cannot be set up.
    #[error("set the engine up")]
    Engine(#[from] EngineError),
    /// The model's template does not take a document and a question.
    #[error("the probes do not fit the model's chat template")]
    Prompt(#[from] PromptError),
    /// Not even a short document fits.
    #[error("a document of {WORDS_MIN} words has {tokens} tokens, the model's context is {context_len}")]
    Context {
        /// Tokens of the prompt.
        tokens: usize,
        /// The model's context.
        context_len: usize,
    },
    /// A probe was not taken.
    #[error("queue a probe")]
    NotTaken(#[from] NotTaken),
    /// A pass failed.
    #[error("compute a probe")]
    Pass(#[source] Fault),
    /// The probe cannot be made.
    #[error("make a probe")]
    Sampling(#[from] SamplingError),
    /// Scores and prompt do not fit each other.
    #[error("weigh a probe")]
    Probe(#[from] RefineError),
    /// The heads do not make a valid calibration.
    #[error("make a calibration")]
    Calibration(#[from] CalibrationError),
    /// No head attends to the needles more than to other sentences.
    #[error(
        "none of {heads} heads looks at what answers a question more than at other sentences, in {probes} probes"
    )]
    NoHead {
        /// Heads of the model.
        heads: usize,
        /// Probes done.
        probes: usize,
    },
    /// It was told to stop.
    #[error("stopped after {probes} of {of} probes")]
    Stopped {
        /// Probes done.
        probes: usize,
        /// Probes in all.
        of: usize,
    },
}

/// Receives progress after every probe, and may stop the work after every layer.
pub trait CalibrateControl {
    /// Called after each probe.
    fn progress(&mut self, progress: Progress);
    /// Returns whether to stop as soon as possible; called after every layer.
    fn stopped(&self) -> bool;
}

/// Runs the probes and measures the gain of every head. Cost: a prefill for every 4 probes.
///
/// # Errors
/// [`CalibrateError`]; then no results are kept.
pub fn calibrate(
    model: &Arc<Model>,
    options: ProbeOptions,
    control: &mut dyn CalibrateControl,
) -> Result<Calibrated, CalibrateError> {
    let (words, kv_tokens) = fitting_words(model, options.words)?;
    let engine_options = EngineOptions { threads: options.threads, kv_tokens, ..EngineOptions::default() };
    let mut run = Run {
        host: host(Engine::new(model.clone(), engine_options)?, kv_tokens),
        gains: HeadGains::default(),
        rng: stream(SEED),
        progress: Progress { probes: 0, of: options.probes.get(), tokens: 0 },
        control,
    };
    let mut seed = SEED;
    while run.progress.probes < run.progress.of {
        run.document(&document(seed, words))?;
        seed += 1;
    }
    let heads = run.gains.best();
    let probes = run.gains.probes();
    if heads.is_empty() {
        return Err(CalibrateError::NoHead { heads: run.gains.gains().count(), probes });
    }
    let calibration = Calibration::new(model.file_sha256().to_owned(), heads)?;
    Ok(Calibrated { calibration, gains: run.gains.gains().collect(), probes, words })
}

/// Returns how many words of a document, at most `words`, fit into the context together with a question, and
/// the KV tokens that they need.
fn fitting_words(model: &Arc<Model>, words: usize) -> Result<(usize, usize), CalibrateError> {
    let context_len = model.config().context_len;
    let mut words = words.max(WORDS_MIN);
    loop {
        let document = document(SEED, words);
        let question = document.questions.iter().max_by_key(|question| question.text.len());
        let asked = Asked::new(model, &document, question.map_or("", |question| &question.text))?;
        // Other documents and questions may be some tokens longer.
        let tokens = asked.prompt.ids.len() * 9 / 8 + 64;
        if tokens <= context_len {
            return Ok((words, 2 * tokens + CHUNK_TOKENS));
        }
        if words == WORDS_MIN {
            return Err(CalibrateError::Context { tokens, context_len });
        }
        words = (words * 3 / 4).max(WORDS_MIN);
    }
}

/// One question about one document, as the cloud gets it.
struct Asked {
    segments: Vec<Segment>,
    map: SentenceMap,
    prompt: Prompt,
}

impl Asked {
    fn new(model: &Arc<Model>, document: &Document, question: &str) -> Result<Self, PromptError> {
        let segments = vec![
            Segment::fixed(Role::System, SYSTEM),
            Segment::refinable(Role::User, document.text.clone()),
            Segment::fixed(Role::User, format!("{QUESTION_PREFIX}{question}")),
        ];
        let parts: Vec<PromptSegment<'_>> =
            segments.iter().map(|s| PromptSegment { role: s.role.as_str(), text: &s.text }).collect();
        let prompt = assemble(model.tokenizer(), model.template(), &parts)?;
        Ok(Self { map: SentenceMap::new(&segments), segments, prompt })
    }

    /// Returns the unit that contains this byte of the document.
    fn unit_at(&self, byte: usize) -> usize {
        self.map.units().partition_point(|unit| unit.bytes.end <= byte)
    }
}

struct Run<'a> {
    host: Host<Engine>,
    gains: HeadGains,
    /// Draws the sentences that needles are compared with.
    rng: SplitMix64,
    progress: Progress,
    control: &'a mut dyn CalibrateControl,
}

impl Run<'_> {
    /// Asks up to 4 questions about one document.
    fn document(&mut self, document: &Document) -> Result<(), CalibrateError> {
        let model = self.host.engine().model().clone();
        for question in questions(document) {
            if self.progress.probes == self.progress.of {
                break;
            }
            let asked = Asked::new(&model, document, &question.text)?;
            let scores = self.scores(&asked)?;
            self.weigh(&asked, question, &scores)?;
            self.progress.probes += 1;
            self.control.progress(self.progress);
        }
        Ok(())
    }

    /// Returns the scores of all heads for the question's window. After the first question, the document
    /// comes from the prefix cache.
    fn scores(&mut self, asked: &Asked) -> Result<AttentionScores, CalibrateError> {
        let config = self.host.engine().model().config();
        let shape = AttentionShape { n_layers: config.n_layers, n_heads: config.n_heads };
        let layers = (0..shape.n_layers).filter(|layer| config.has_attention(*layer));
        let heads = layers.flat_map(|layer| (0..shape.n_heads).map(move |head| (layer, head)));
        let heads: Vec<(usize, usize)> = heads.collect();
        let question = &asked.prompt.segments[2].tokens;
        let plan = capture_plan(Mode::Attention, shape, question.len(), None);
        let plan = plan.expect("the default mode ranks by attention");
        let window = question.end.saturating_sub(plan.window)..question.end;
        self.scores_of(asked, window, &heads)
    }

    /// Returns the scores of some heads for these queries of the prompt.
    fn scores_of(
        &mut self,
        asked: &Asked,
        window: Range<usize>,
        heads: &[(usize, usize)],
    ) -> Result<AttentionScores, CalibrateError> {
        let config = self.host.engine().model().config();
        let heads = heads.iter().map(|&(layer, head)| HeadId { layer, head });
        let heads = heads.filter(|id| config.has_attention(id.layer)).collect();
        let ids = asked.prompt.ids[..window.end].to_vec();
        let job = self.job(ids, Window { tokens: window, heads })?;
        let mut control = StopWatch { control: &*self.control };
        let done = self.host.run(job, &mut control)?;
        self.progress.tokens += done.computed_tokens;
        let Progress { probes, of, .. } = self.progress;
        match (done.scores, done.answer.fault()) {
            (_, Some(fault)) => Err(CalibrateError::Pass(fault.clone())),
            (Some(scores), None) if done.held => Ok(scores),
            _ => Err(CalibrateError::Stopped { probes, of }),
        }
    }

    /// Returns a job that computes a prompt and captures scores, and writes nothing.
    fn job(&self, prompt: Vec<TokenId>, window: Window) -> Result<Job, SamplingError> {
        let model = self.host.engine().model();
        let (prompt_tokens, vocab_len) = (prompt.len(), model.config().vocab_len);
        let spec = JobSpec {
            id: self.host.handle().new_id(),
            prompt_tokens,
            max_tokens: 1,
            floor_tokens: 1,
            tail_tokens: prompt_tokens - window.tokens.start,
            pass_tokens: usize::MAX,
            bytes: 0,
            deadline: None,
            share: Share::default(),
            goal: Goal::Hold { upto: prompt_tokens },
        };
        let answer = Answer::new(AnswerOptions {
            tokenizer: model.tokenizer().clone(),
            vocab_len,
            sampler: Sampler::new(SamplingParams::default())?,
            prompt,
            continued: Vec::new(),
            max_tokens: 1,
            room_tokens: usize::MAX,
            text: TextMode::Ids,
            constraint: None,
            logprobs: None,
            window: Some(window),
            evidence: None,
        });
        let (scope, cancel) = (PrefixScope::default(), CancelFlag::default());
        Ok(Job { spec, answer, scope, adapter: None, cancel, sink: Box::new(()) })
    }

    fn weigh(
        &mut self,
        asked: &Asked,
        question: &Question,
        scores: &AttentionScores,
    ) -> Result<(), CalibrateError> {
        let needles: Vec<usize> = question.gold.iter().map(|range| asked.unit_at(range.start)).collect();
        let units = asked.map.units();
        let others: Vec<usize> =
            (0..units.len()).filter(|unit| !needles.contains(unit) && !units[*unit].title).collect();
        let other = match others.len() {
            0 => needles[0],
            len => others[self.rng.below(len)],
        };
        let heads: Vec<(usize, usize)> = scores.heads.iter().map(|id| (id.layer, id.head)).collect();
        let place = &asked.prompt.segments[1];
        self.gains.add(&Probe {
            segments: &asked.segments,
            map: &asked.map,
            content: &[ContentTokens { segment: 1, first: place.tokens.start, spans: &place.spans }],
            prompt_tokens: asked.prompt.ids.len(),
            scores: Scores {
                heads: &heads,
                keys: scores.keys,
                mean: &scores.mean,
                queries: asked.prompt.segments[2].tokens.clone(),
            },
            needles: &needles,
            other,
        })?;
        Ok(())
    }
}

/// Returns the questions to ask about a document: the first ones of each kind, in turn.
fn questions(document: &Document) -> Vec<&Question> {
    let of = |kind| document.questions.iter().filter(move |question| question.kind == kind);
    let (mut short, mut long, mut two_hop) =
        (of(QuestionKind::Short), of(QuestionKind::Long), of(QuestionKind::TwoHop));
    let asked = [long.next(), short.next(), two_hop.next(), long.next(), short.next()];
    asked.into_iter().flatten().take(QUESTIONS_A_DOCUMENT).collect()
}

/// Cancels a pass if the work should stop.
struct StopWatch<'a> {
    control: &'a dyn CalibrateControl,
}

impl StepControl for StopWatch<'_> {
    fn after_layer(&mut self, _done: usize, _total: usize) -> ControlFlow<()> {
        if self.control.stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Returns a host that runs one job at a time, with nothing kept but prefixes.
fn host(engine: Engine, kv_tokens: usize) -> Host<Engine> {
    let limits = Limits {
        slots: 1,
        queue: 1,
        backlog: BacklogBound::default(),
        kv_tokens: kv_tokens.next_multiple_of(BLOCK_TOKENS),
        kv_block: BLOCK_TOKENS,
        budget: StepBudget { chunk_tokens: CHUNK_TOKENS, ..StepBudget::default() },
        admit_tokens: 1,
        logit_rows: 1,
        speculation: None,
    };
    Host::new(
        engine,
        HostOptions {
            limits,
            clock: Clock::monotonic(),
            emulation: None,
            turns: None,
            proposer: None,
            idle_sequences: 0,
            idle_for: None,
            watch: None,
        },
    )
}
