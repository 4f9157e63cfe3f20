//! The local engine for the relay: takes commands, returns reports, runs one forward pass at a time.
//!
//! Synchronous and without a clock: the worker thread (or a test in virtual time) decides when a pass runs
//! and how long it took. Holds one sequence, with one adapter or none. The part of the KV cache that the next
//! prompt shares is kept, for each adapter separately.
//!
//! What always holds:
//!
//! - Progress is reported at least every 1/16 of a prompt, or at every pass that is large enough to keep a
//!   ring's devices busy.
//! - The cloud's tokens go through the model in the last prefill pass. Its last position already gives the
//!   device's own first token.
//! - Which tokens are written depends on the commands alone. How many one pass writes depends on
//!   [`LocalEngine::took`] as well.

mod command;
mod decode;
mod sequences;
mod shorten;
mod speculate;
mod verify;

pub use command::{
    Accepted, AnswerSpec, EngineCommand, EngineEnd, EngineReport, Keep, PromptId, Scope, Verified,
};
pub use sequences::{SequenceError, Sequences};
pub(crate) use shorten::{assembled, shortened};
pub use speculate::{Decoded, Speculation, SpeculationError};

use baton_engine::pace_emulation::PassContent;
use baton_engine::prompt::Prompt;
use baton_engine::sampling::Sampler;
use baton_engine::speculation::Speculator;
use baton_engine::tokenizer::TokenId;
use baton_engine::{
    Adapter, AdapterId, Engine, EngineError, EngineOptions, Model, SeqId, StepControl, StepSeq, Wanted,
};
use baton_protocol::Segment;
use baton_terminal::chain;
use decode::Decoder;
use std::sync::Arc;
use std::time::Duration;
use verify::Verification;

/// A prompt is prefilled in at least this many passes, unless it is very short.
const PASSES: usize = 16;
/// Least tokens of a prefill pass.
const CHUNK_TOKENS_MIN: usize = 8;
/// The last prompt chunk joins the verification pass if its logits need at most this many floats. No step of
/// that pass returns more.
const MERGED_LOGITS_MAX: usize = 8 << 20;
/// At least one in this many tokens of the context is kept free for the answer.
const ANSWER_SHARE: usize = 4;

/// What one pass did.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PassOutcome {
    /// Reports for the relay.
    pub reports: Vec<EngineReport>,
    /// What the pass computed, to emulate and measure its cost.
    pub content: PassContent,
    /// Number of tokens in the KV cache before a prefill pass.
    pub held_tokens: usize,
    /// Result of a decoding pass; `None` for other passes.
    pub decoded: Option<Decoded>,
    /// The pass was cancelled; nothing changed.
    pub cancelled: bool,
}

/// Why a command was not carried out.
enum Refusal {
    TooLong { tokens: usize, limit: usize },
    Failed(String),
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

impl Refusal {
    fn report(self, prompt: PromptId) -> EngineReport {
        match self {
            Self::TooLong { tokens, limit } => EngineReport::TooLong { prompt, tokens, limit },
            Self::Failed(reason) => EngineReport::Failed { prompt, reason },
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLong { tokens, limit } => {
                write!(f, "prompt has {tokens} tokens, this device holds {limit}")
            }
            Self::Failed(reason) => f.write_str(reason),
        }
    }
}

enum Stage {
    Prefill,
    Ready,
    Decide(Verification),
    Decode(Decoder),
    Idle,
}

struct Job {
    prompt: PromptId,
    spec: AnswerSpec,
    sampler: Sampler,
    /// Token ids of the current prompt.
    ids: Vec<TokenId>,
    /// Number of tokens in the KV cache at which the stage ends.
    target: usize,
    prefix_only: bool,
    begun: bool,
    accepted: Option<Accepted>,
    stage: Stage,
}

/// The engine of one device or of a ring; it works on at most one answer at a time.
pub struct LocalEngine {
    engine: Box<dyn Sequences>,
    seq: SeqId,
    /// The adapter of `seq`.
    adapter: Option<AdapterId>,
    capacity: usize,
    job: Option<Job>,
    /// Why the current answer failed, for commands that were sent before the failure was known.
    failure: Option<String>,
    speculator: Option<Speculator>,
}

impl LocalEngine {
    /// Makes an engine over a model. Its capacity is the smaller of the model's context and the KV cache.
    ///
    /// # Errors
    /// The errors of [`Engine::new`].
    pub fn new(model: Arc<Model>, options: EngineOptions) -> Result<Self, EngineError> {
        let capacity = options.kv_tokens.min(model.config().context_len);
        let mut engine = Engine::new(model, options)?;
        let seq = engine.create();
        Ok(Self {
            engine: Box::new(engine),
            seq,
            adapter: None,
            capacity,
            job: None,
            failure: None,
            speculator: None,
        })
    }

    /// Makes an engine over other sequences, such as a ring's, with room for `kv_tokens` tokens.
    ///
    /// # Errors
    /// [`SequenceError`] if no sequence can be created.
    pub fn over(mut engine: Box<dyn Sequences>, kv_tokens: usize) -> Result<Self, SequenceError> {
        let capacity = kv_tokens.min(engine.model().config().context_len);
        let seq = engine.create_with(None)?;
        Ok(Self { engine, seq, adapter: None, capacity, job: None, failure: None, speculator: None })
    }

    /// Adds an adapter of the model, which answers can then name.
    ///
    /// # Errors
    /// The errors of [`Engine::add_adapter`]; [`SequenceError::Ring`] if several devices compute.
    pub fn add_adapter(&mut self, adapter: Arc<Adapter>) -> Result<AdapterId, SequenceError> {
        self.engine.add_adapter(adapter)
    }

    /// Returns the model.
    pub fn model(&self) -> &Arc<Model> {
        self.engine.model()
    }

    /// Returns the most tokens that prompt and answer may have together.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Takes a command and returns its reports; runs no pass.
    pub fn command(&mut self, command: EngineCommand) -> Vec<EngineReport> {
        let prompt = match &command {
            EngineCommand::Stop => {
                self.job = None;
                self.failure = None;
                return Vec::new();
            }
            EngineCommand::Open { prompt, .. }
            | EngineCommand::Prefill { prompt, .. }
            | EngineCommand::Verify { prompt, .. }
            | EngineCommand::Decode { prompt, .. } => *prompt,
        };
        let mut reports = Vec::new();
        let done = match command {
            EngineCommand::Open { spec, scope, .. } => self.open(prompt, spec, scope, &mut reports),
            EngineCommand::Prefill { segments, .. } => self.prefill(prompt, &segments, &mut reports),
            EngineCommand::Verify { accepted, .. } => {
                if let Some(job) = self.job.as_mut().filter(|job| job.prompt == prompt) {
                    job.accepted = Some(accepted);
                }
                Ok(())
            }
            EngineCommand::Decode { keep, index, .. } => {
                self.decode(prompt, keep, index, &mut reports).map_err(Refusal::from)
            }
            EngineCommand::Stop => Ok(()),
        };
        if let Err(refusal) = done {
            self.job = None;
            self.failure = Some(refusal.to_string());
            reports.push(refusal.report(prompt));
        }
        reports
    }

    /// Returns whether [`LocalEngine::pass`] has something to do.
    pub fn has_work(&self) -> bool {
        self.job.as_ref().is_some_and(|job| match job.stage {
            Stage::Prefill | Stage::Decode(_) => true,
            Stage::Ready => job.accepted.is_some(),
            Stage::Decide(_) | Stage::Idle => false,
        })
    }

    /// Returns how often to call [`LocalEngine::idle`] while no command comes; `None` means never.
    pub fn idle_every(&self) -> Option<Duration> {
        self.engine.idle_every()
    }

    /// Lets a ring check its devices, unless an answer is in progress.
    pub fn idle(&mut self) {
        let over = |job: &Job| matches!(job.stage, Stage::Idle) && !job.prefix_only;
        if self.job.as_ref().is_none_or(over) {
            self.engine.idle();
        }
    }

    /// Runs one forward pass, if there is work. Cost: up to 1/16 of a prompt, or one token of the answer and
    /// the tokens proposed after it.
    pub fn pass(&mut self, control: &mut dyn StepControl) -> PassOutcome {
        let Some(mut job) = self.job.take() else { return PassOutcome::default() };
        let prompt = job.prompt;
        let mut outcome = PassOutcome::default();
        let done = match job.stage {
            Stage::Decode(_) => self.decode_pass(&mut job, control, &mut outcome),
            _ => self.prompt_pass(&mut job, control, &mut outcome),
        };
        match done {
            Ok(()) => self.job = Some(job),
            Err(err) if err.is_cancelled() => {
                self.job = Some(job);
                outcome = PassOutcome { cancelled: true, ..PassOutcome::default() };
            }
            Err(err) => {
                let reason = chain(&err);
                self.failure = Some(reason.clone());
                outcome.reports.push(EngineReport::Failed { prompt, reason });
            }
        }
        outcome
    }

    /// Runs `tokens` tokens through the model on a temporary sequence; returns `None` if that fails, e.g.
    /// because the context is too short.
    pub fn probe(&mut self, tokens: usize) -> Option<()> {
        let seq = self.engine.create_with(None).ok()?;
        let ids = vec![0; tokens];
        let step = StepSeq { seq, ids: &ids, logits: Wanted::Last, capture: None };
        let done = self.engine.step(&[step], &mut ()).is_ok();
        self.engine.release(seq);
        done.then_some(())
    }

    fn held(&self) -> usize {
        self.engine.len(self.seq).unwrap_or(0)
    }

    fn open(
        &mut self,
        prompt: PromptId,
        spec: AnswerSpec,
        scope: Scope,
        reports: &mut Vec<EngineReport>,
    ) -> Result<(), Refusal> {
        let sampler = Sampler::new(spec.sampling).map_err(|err| chain(&err))?;
        self.failure = None;
        self.engine.between_answers();
        self.switch(spec.adapter)?;
        let segments = spec.segments.clone();
        let whole = self.assemble(&segments)?;
        let refinable = segments.iter().position(|s| s.refine);
        let prefix = refinable.map_or(whole.ids.len(), |i| whole.segments[i].tokens.start);
        reports.push(EngineReport::Opened { prompt, tokens: whole.ids.len(), prefix_tokens: prefix });
        self.job = Some(Job {
            prompt,
            spec,
            sampler,
            ids: Vec::new(),
            target: 0,
            prefix_only: scope == Scope::Prefix,
            begun: false,
            accepted: None,
            stage: Stage::Idle,
        });
        match scope {
            Scope::Prefix => {
                let mut ids = whole.ids;
                ids.truncate(prefix);
                Ok(self.begin(ids, None, reports)?)
            }
            Scope::Whole => self.begin_whole(&segments, whole, reports),
        }
    }

    /// Switches to a sequence of this adapter. Full blocks of the previous one stay in the cache while there
    /// is room.
    fn switch(&mut self, adapter: Option<AdapterId>) -> Result<(), String> {
        if adapter != self.adapter {
            let seq = self.engine.create_with(adapter).map_err(|err| chain(&err))?;
            self.engine.release(self.seq);
            (self.seq, self.adapter) = (seq, adapter);
        }
        Ok(())
    }

    fn prefill(
        &mut self,
        prompt: PromptId,
        segments: &[Segment],
        reports: &mut Vec<EngineReport>,
    ) -> Result<(), Refusal> {
        let assembled = self.assemble(segments)?;
        let Some(job) = self.job.as_mut() else {
            return Err(self.failure.take().unwrap_or_else(|| "no answer is open".into()).into());
        };
        job.prompt = prompt;
        job.prefix_only = false;
        job.accepted = None;
        self.begin_whole(segments, assembled, reports)
    }

    fn assemble(&self, segments: &[Segment]) -> Result<Prompt, String> {
        assembled(self.engine.model(), segments)
    }

    /// Begins a whole prompt; shortens it if it is too long and the answer allows it.
    fn begin_whole(
        &mut self,
        segments: &[Segment],
        assembled: Prompt,
        reports: &mut Vec<EngineReport>,
    ) -> Result<(), Refusal> {
        let job = self.job.as_ref().expect("callers set the job");
        let reserve = job.spec.tokens_max.min(self.capacity / ANSWER_SHARE).max(1);
        let limit = self.capacity.saturating_sub(reserve);
        let tokens = assembled.ids.len();
        if tokens <= limit {
            return Ok(self.begin(assembled.ids, None, reports)?);
        }
        let shorter = match job.spec.shorten {
            true => shortened(self.engine.model(), segments, &assembled, limit)?,
            false => None,
        };
        let shorter = shorter.ok_or(Refusal::TooLong { tokens, limit })?;
        Ok(self.begin(shorter.prompt.ids, Some((tokens, limit)), reports)?)
    }

    /// Makes `ids` the current prompt, and keeps the tokens that the sequence already shares with it.
    fn begin(
        &mut self,
        ids: Vec<TokenId>,
        shortened: Option<(usize, usize)>,
        reports: &mut Vec<EngineReport>,
    ) -> Result<(), String> {
        let job = self.job.as_mut().expect("callers set the job");
        let target = if job.prefix_only { ids.len() } else { ids.len() - 1 };
        let held = self.engine.ids(self.seq).map_err(|err| chain(&err))?;
        let mut shared = held.iter().zip(&ids[..target]).take_while(|(a, b)| a == b).count();
        self.engine.truncate(self.seq, shared).map_err(|err| chain(&err))?;
        if shared == 0 {
            // Reuses blocks that an earlier sequence of this adapter left in the cache; the engine never
            // reuses the last id given.
            shared = self.engine.reuse_prefix(self.seq, &ids[..ids.len().min(target + 1)]);
        }
        reports.push(EngineReport::Prompt {
            prompt: job.prompt,
            tokens: ids.len(),
            cached: shared,
            shortened,
        });
        job.target = target;
        job.ids = ids;
        job.begun = false;
        job.stage = Stage::Prefill;
        if shared == target {
            self.prefilled(reports);
        }
        Ok(())
    }

    /// Moves the job to its next stage, after the target was reached.
    fn prefilled(&mut self, reports: &mut Vec<EngineReport>) {
        let job = self.job.as_mut().expect("callers set the job");
        job.stage = end_of_prefill(job, reports);
    }

    fn prompt_pass(
        &mut self,
        job: &mut Job,
        control: &mut dyn StepControl,
        outcome: &mut PassOutcome,
    ) -> Result<(), SequenceError> {
        let held = self.held();
        let left = job.target - held;
        let chunk = (job.ids.len() / PASSES).max(CHUNK_TOKENS_MIN).max(self.engine.pass_tokens_min());
        let vocab_len = self.engine.model().config().vocab_len;
        let merge = left <= chunk && (left + 1) * vocab_len <= MERGED_LOGITS_MAX;
        if job.accepted.is_some() && (left == 0 || merge) {
            return self.verify_pass(job, control, outcome);
        }
        let n = chunk.min(left);
        let ids = &job.ids[held..held + n];
        self.engine.step(&[StepSeq { seq: self.seq, ids, logits: Wanted::None, capture: None }], control)?;
        outcome.content =
            PassContent { prompts_begun: usize::from(!job.begun), prefill_tokens: n, decode_rows: 0 };
        outcome.held_tokens = held;
        job.begun = true;
        outcome.reports.push(EngineReport::Progress {
            prompt: job.prompt,
            done: held + n,
            total: job.ids.len(),
            pass_tokens: n,
        });
        if held + n == job.target {
            job.stage = end_of_prefill(job, &mut outcome.reports);
        }
        Ok(())
    }
}

fn end_of_prefill(job: &Job, reports: &mut Vec<EngineReport>) -> Stage {
    if job.prefix_only {
        return Stage::Idle;
    }
    if job.accepted.is_none() {
        reports.push(EngineReport::Ready { prompt: job.prompt });
    }
    Stage::Ready
}

#[cfg(test)]
pub(crate) mod tests;
