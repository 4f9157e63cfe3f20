//! One answer on this device: the relay's commands become jobs and orders of the host, and what the host says
//! becomes reports.
//!
//! Commands may tokenize, so they take milliseconds, but they never wait for the engine. Several answers can
//! be under way on one host; each has its own [`LocalAnswer`] and its own [`Reports`].
//!
//! What always holds:
//!
//! - Progress is reported at least every 1/16 of a prompt or every 32 tokens. Passes of a ring may be larger,
//!   to keep its devices busy.
//! - The cloud's tokens go through the model in the last prefill pass. Its last position already gives the
//!   device's own first token.
//! - Which tokens are written depends on the commands alone. How many one pass writes depends on what
//!   proposals cost.

mod command;
mod driven;
mod evidence;
mod form;
mod reader;
mod shorten;

use std::sync::Arc;

use baton_engine::pace_emulation::PassCost;
use baton_engine::prompt::Prompt;
use baton_engine::rows::kv_identity;
use baton_engine::sampling::Sampler;
use baton_engine::tokenizer::TokenId;
use baton_engine::{BLOCK_TOKENS, KvRows, KvWidth, Model, PrefixScope, Sequences, StepSize};
use baton_generate::answer::{Answer, AnswerOptions, TextMode};
use baton_generate::clock::Clock;
use baton_generate::evidence::Evidence;
use baton_generate::host::{Host, HostHandle, HostOptions, NotTaken, PassWatch, Stage};
use baton_generate::job::{Job, Order, Take};
use baton_generate::scheduler::{BacklogBound, Goal, JobId, JobSpec, Limits, MixedTokens, Share, StepBudget};
use baton_generate::speculation::{ProposerWithLimits, SpeculationStats};
use baton_generate::unread::{CancelFlag, Unread};
use baton_protocol::Segment;
use baton_terminal::chain;
use uuid::Uuid;

pub use self::command::{
    Accepted, AnswerSpec, EngineCommand, EngineEnd, EngineReport, Keep, PromptId, Scope, Verified,
};
pub use self::driven::Driven;
pub use self::evidence::{Attended, CitingHeads};
use self::evidence::{Kept, evidence};
pub use self::form::OnceForm;
#[cfg(test)]
pub(crate) use self::reader::Message;
pub use self::reader::Reports;
use self::reader::{Line, OfPrompt, Reader};
use self::shorten::{Shorter, prompt_of};
pub(crate) use self::shorten::{assembled, shortened};

/// A prompt is prefilled in at least this many passes, unless it is very short.
const PASSES: usize = 16;
/// Least tokens of a prefill pass. In smaller ones, the tokens of other answers would take a large share.
const CHUNK_TOKENS_MIN: usize = 32;
/// The most tokens of all prompts in one pass. More than 1/16 of any prompt up to 32,768 tokens, so that a
/// lone prompt of that size is not divided further.
const CHUNK_TOKENS_MAX: usize = 2048;
/// While answers are written, a pass with prompts takes at most this many times as long as one without.
const STALL_MAX: f64 = 5.0;
/// The logits that a verification pass has at most, as floats.
const LOGITS_MAX: usize = 8 << 20;
/// At least one in this many tokens of the context is kept free for the answer.
const ANSWER_SHARE: usize = 4;
/// Answers that may wait for room in the KV cache.
const WAITING_MAX: usize = 16;
/// An answer gets a slot if there is room for so many tokens of it. A device computes a prompt again slowly,
/// so an answer that begins should rarely have to give way.
const ADMIT_TOKENS: usize = 256;
/// An answer with so many unread reports waits for its reader.
const UNREAD_MAX: usize = 512;

/// Returns the rows of logits that a verification pass has at most.
fn logit_rows(vocab_len: usize) -> usize {
    (LOGITS_MAX / vocab_len).max(1)
}

/// Returns the largest step of a host that computes so many answers at the same time.
pub fn largest_step(vocab_len: usize, answers: usize) -> StepSize {
    StepSize { tokens: CHUNK_TOKENS_MAX + answers, logit_rows: logit_rows(vocab_len) + answers }
}

/// What a device's host is made with.
pub struct LocalOptions {
    /// Tokens that the answers under way may have together, with their prompts.
    pub kv_tokens: usize,
    /// The most answers that are computed at the same time, at least 1.
    pub answers: usize,
    /// Sequences that are kept after their answers, for the next ones.
    pub idle_sequences: usize,
    /// Makes proposals.
    pub proposer: Option<ProposerWithLimits>,
    /// The machine to emulate.
    pub emulation: PassCost,
    /// The clock.
    pub clock: Clock,
    /// Hears of every pass.
    pub watch: Option<Box<dyn PassWatch>>,
}

impl LocalOptions {
    /// Returns the options for one answer at a time, without proposals.
    pub fn new(kv_tokens: usize) -> LocalOptions {
        LocalOptions {
            kv_tokens,
            answers: 1,
            idle_sequences: 1,
            proposer: None,
            emulation: PassCost::default(),
            clock: Clock::monotonic(),
            watch: None,
        }
    }
}

/// What keys and values a device can take in place of a prefill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvSide {
    /// The name of what decides their bits.
    pub identity: Arc<str>,
    /// The layers that have some of their own.
    pub widths: Arc<[KvWidth]>,
}

/// A device's model: what an answer needs to begin.
#[derive(Debug, Clone)]
pub struct LocalModel {
    handle: HostHandle,
    model: Arc<Model>,
    kv: Result<KvSide, String>,
    capacity: usize,
    answers: usize,
}

impl LocalModel {
    /// Makes a host over `engine`, and the model that it serves.
    ///
    /// # Panics
    /// If there is no room for a token, or `answers` is 0.
    pub fn host<S: Sequences>(engine: S, options: LocalOptions) -> (Host<S>, LocalModel) {
        let model = Arc::clone(engine.model());
        let config = model.config();
        let (capacity, vocab_len) = (options.kv_tokens.min(config.context_len), config.vocab_len);
        let kv = engine.kv_widths().map_err(|err| err.to_string());
        let kv = kv.map(|widths| KvSide { identity: kv_identity(&model).into(), widths: widths.into() });
        let (proposer, speculation) = options.proposer.unzip();
        let limits = Limits {
            slots: options.answers,
            queue: WAITING_MAX,
            backlog: BacklogBound::NONE,
            kv_tokens: engine.kv_tokens(),
            kv_block: BLOCK_TOKENS,
            budget: StepBudget { chunk_tokens: CHUNK_TOKENS_MAX, mixed: MixedTokens::MaxStall(STALL_MAX) },
            admit_tokens: ADMIT_TOKENS,
            logit_rows: logit_rows(vocab_len),
            speculation,
        };
        let options = HostOptions {
            limits,
            clock: options.clock,
            emulation: Some(options.emulation).filter(|cost| !cost.is_none()),
            turns: None,
            proposer,
            idle_sequences: options.idle_sequences,
            idle_for: None,
            watch: options.watch,
        };
        let host = Host::new(engine, options);
        let local = LocalModel { handle: host.handle(), model, kv, capacity, answers: limits.slots };
        (host, local)
    }

    /// Returns the model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Returns what keys and values can be taken in place of a prefill.
    ///
    /// # Errors
    /// Why none can.
    pub fn kv(&self) -> Result<KvSide, String> {
        self.kv.clone()
    }

    /// Returns the most tokens that prompt and answer may have together.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns how many answers are computed at the same time.
    pub fn answers(&self) -> usize {
        self.answers
    }

    /// Returns access to the host.
    pub fn handle(&self) -> &HostHandle {
        &self.handle
    }

    /// Returns whether the host still takes answers.
    pub fn is_open(&self) -> bool {
        self.handle.stage() == Stage::Open
    }
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

/// A prompt as the host gets it.
struct HostPrompt {
    ids: Vec<TokenId>,
    /// Its tokens before it was shortened, and the most that fit.
    shortened: Option<(usize, usize)>,
    /// Records what is attended to of it.
    evidence: Option<Evidence>,
}

impl HostPrompt {
    fn pass_tokens(&self) -> usize {
        (self.ids.len() / PASSES).max(CHUNK_TOKENS_MIN)
    }

    /// All but the last token: that one goes through the model together with the cloud's.
    fn all_but_last(&self) -> Goal {
        Goal::Hold { upto: self.ids.len() - 1 }
    }
}

/// Returns the most prompt tokens that leave room for an answer, of `capacity` tokens of both.
pub(crate) fn room_for(capacity: usize, tokens_max: usize) -> usize {
    capacity.saturating_sub(tokens_max.min(capacity / ANSWER_SHARE).max(1))
}

/// One answer of a device. Dropping it ends the answer.
#[derive(Debug)]
pub struct LocalAnswer {
    local: LocalModel,
    line: Arc<Line>,
    cancel: CancelFlag,
    /// The count of reports.
    unread: Unread,
    spec: Option<AnswerSpec>,
    /// What the answer may reuse.
    scope: PrefixScope,
    /// The ids of the prompt.
    ids: Vec<TokenId>,
    prompt: PromptId,
    /// The prompt that keys and values came for; it is in force unless they were refused.
    taken: Option<PromptId>,
    job: Option<JobId>,
    /// Why the answer failed, for commands that were sent before the failure was known.
    failure: Option<String>,
}

impl LocalAnswer {
    /// Makes an answer that waits for [`EngineCommand::Open`], and the end that gets its reports.
    pub fn new(local: &LocalModel) -> (LocalAnswer, Reports) {
        let cancel = CancelFlag::default();
        let unread = Unread::new(UNREAD_MAX, cancel.clone());
        let (line, reports) = reader::line(unread.mark(Some(local.handle.clone())));
        let answer = LocalAnswer {
            local: local.clone(),
            line,
            cancel,
            unread,
            spec: None,
            scope: PrefixScope::default(),
            ids: Vec::new(),
            prompt: PromptId::default(),
            taken: None,
            job: None,
            failure: None,
        };
        (answer, reports)
    }

    /// Takes a command. Tokenizes a prompt that comes with it, and never waits for the engine.
    pub fn command(&mut self, command: EngineCommand) {
        let (prompt, done) = match command {
            EngineCommand::Stop => return self.end(),
            EngineCommand::Open { prompt, spec, scope } => (prompt, self.open(prompt, spec, scope)),
            EngineCommand::Prefill { prompt, segments, kept } => {
                (prompt, self.prefill(prompt, &segments, kept.as_deref()))
            }
            EngineCommand::Take { prompt, rows } => return self.take(prompt, rows),
            EngineCommand::Verify { prompt, accepted } => return self.verify(prompt, accepted),
            EngineCommand::Decode { prompt, keep, index } => (prompt, self.decode(prompt, keep, index)),
            EngineCommand::Draft { prompt, answer, tokens_max } => {
                (prompt, self.draft(prompt, answer, tokens_max))
            }
        };
        if let Err(refusal) = done {
            self.end();
            self.failure = Some(refusal.to_string());
            self.line.send(refusal.report(prompt));
        }
    }

    /// Returns what came of proposals; none if none are made, or nothing is open.
    pub fn speculation(&self) -> Option<SpeculationStats> {
        let running = self.job.and_then(|job| self.local.handle.speculation_of(job));
        running.or_else(|| self.line.state().speculation)
    }

    /// Ends the answer; returns what it attended to, if it records that. Waits for the pass that runs.
    pub fn attended(&mut self) -> Option<Attended> {
        self.spec.as_ref()?.cites.as_ref()?;
        self.end();
        self.job.and_then(|_| self.line.attended())
    }

    fn open(&mut self, prompt: PromptId, spec: AnswerSpec, scope: Scope) -> Result<(), Refusal> {
        if self.spec.is_some() {
            return Err("an answer was opened already".to_owned().into());
        }
        let sampler = Sampler::new(spec.sampling).map_err(|err| chain(&err))?;
        let segments = Arc::clone(&spec.segments);
        let whole = prompt_of(&self.local.model, &segments, &spec)?;
        let refinable = segments.iter().position(|segment| segment.refine);
        let prefix = refinable.map_or(whole.ids.len(), |i| whole.segments[i].tokens.start);
        self.prompt = prompt;
        self.line.send(EngineReport::Opened { prompt, tokens: whole.ids.len(), prefix_tokens: prefix });
        let tokens_max = spec.tokens_max;
        self.scope = scope_of(spec.known_max);
        self.spec = Some(spec);
        let (fitted, goal) = match scope {
            Scope::Prefix => {
                self.check_room(prefix, tokens_max)?;
                let mut ids = whole.ids;
                ids.truncate(prefix.max(1));
                (HostPrompt { ids, shortened: None, evidence: None }, Goal::Hold { upto: prefix })
            }
            Scope::Whole => {
                let fitted = self.fit(&segments, None, whole)?;
                let goal = fitted.all_but_last();
                (fitted, goal)
            }
        };
        let of = OfPrompt { prompt, whole: scope == Scope::Whole, shortened: fitted.shortened };
        self.ids.clone_from(&fitted.ids);
        let reader = self.reader(of, tokens_max);
        self.submit(fitted, Vec::new(), goal, sampler, (reader, tokens_max))
    }

    /// Makes the reading end of a job.
    fn reader(&self, of: OfPrompt, tokens_max: usize) -> Reader {
        Reader::new(Arc::clone(&self.line), self.unread.another(self.cancel.clone()), of, tokens_max)
    }

    fn submit(
        &mut self,
        fitted: HostPrompt,
        continued: Vec<TokenId>,
        goal: Goal,
        sampler: Sampler,
        (reader, tokens_max): (Reader, usize),
    ) -> Result<(), Refusal> {
        let Some(spec) = &self.spec else { return Err("no answer is open".to_owned().into()) };
        let constraint = match &spec.form {
            Some(form) => Some(form.take().ok_or_else(|| "the form was used by another answer".to_owned())?),
            None => None,
        };
        let id = self.local.handle.new_id();
        let max_tokens = self.room_behind(fitted.ids.len(), tokens_max);
        let job = Job {
            spec: JobSpec {
                id,
                prompt_tokens: fitted.ids.len(),
                max_tokens,
                floor_tokens: max_tokens,
                tail_tokens: usize::from(goal == Goal::Write),
                pass_tokens: fitted.pass_tokens(),
                bytes: size_of_val(&fitted.ids[..]),
                deadline: None,
                share: Share::default(),
                goal,
            },
            adapter: spec.adapter,
            answer: Answer::new(AnswerOptions {
                tokenizer: Arc::clone(self.local.model.tokenizer()),
                vocab_len: self.local.model.config().vocab_len,
                sampler,
                prompt: fitted.ids,
                continued,
                max_tokens: tokens_max,
                room_tokens: self.local.capacity,
                text: TextMode::Ids,
                constraint,
                logprobs: None,
                window: None,
                evidence: fitted.evidence,
            }),
            scope: self.scope,
            cancel: self.cancel.clone(),
            sink: Box::new(reader),
        };
        match self.local.handle.submit(job) {
            Ok(()) => {
                self.job = Some(id);
                Ok(())
            }
            Err(err @ NotTaken::Refused(_)) => Err(format!("this device takes no answer now: {err}").into()),
            // The reader was dropped, which tells that the engine is lost.
            Err(NotTaken::Draining | NotTaken::Gone) => Ok(()),
        }
    }

    fn prefill(
        &mut self,
        prompt: PromptId,
        segments: &[Segment],
        kept: Option<&[bool]>,
    ) -> Result<(), Refusal> {
        let missing = || self.failure.clone().unwrap_or_else(|| "no answer is open".to_owned());
        let (Some(job), Some(spec)) = (self.job, &self.spec) else { return Err(missing().into()) };
        let tokens_max = spec.tokens_max;
        let fitted = self.fit(segments, kept, prompt_of(&self.local.model, segments, spec)?)?;
        self.prompt = prompt;
        self.ids.clone_from(&fitted.ids);
        self.line.order(OfPrompt { prompt, whole: true, shortened: fitted.shortened })?;
        let order = Order::Prompt {
            max_tokens: self.room_behind(fitted.ids.len(), tokens_max),
            goal: fitted.all_but_last(),
            pass_tokens: fitted.pass_tokens(),
            evidence: fitted.evidence,
            ids: fitted.ids,
        };
        self.local.handle.order(job, order);
        Ok(())
    }

    /// Has the host go on from keys and values of the whole prompt. Nothing else changes if it cannot.
    fn take(&mut self, prompt: PromptId, rows: Arc<KvRows>) {
        if let Err(reason) = self.take_or_say(prompt, rows) {
            self.line.send(EngineReport::NotTaken { prompt, reason });
        }
    }

    fn take_or_say(&mut self, prompt: PromptId, rows: Arc<KvRows>) -> Result<(), String> {
        let missing = || self.failure.clone().unwrap_or_else(|| "no answer is open".to_owned());
        let (Some(job), Some(spec)) = (self.job, &self.spec) else { return Err(missing()) };
        let ids = prompt_of(&self.local.model, &spec.segments, spec)?.ids;
        let too_long = |refusal: Refusal| refusal.to_string();
        self.check_room(ids.len(), spec.tokens_max).map_err(too_long)?;
        let whole = HostPrompt { ids, shortened: None, evidence: None };
        let max_tokens = self.room_behind(whole.ids.len(), spec.tokens_max);
        self.line.order(OfPrompt { prompt, whole: true, shortened: None })?;
        self.taken = Some(prompt);
        let pass_tokens = whole.pass_tokens();
        if !self.line.state().accepted {
            // The pass that runs would be computed for nothing.
            self.cancel.replace();
        }
        self.local.handle.order(job, Order::Take(Take { ids: whole.ids, rows, max_tokens, pass_tokens }));
        Ok(())
    }

    /// Returns the job, if this prompt is in force.
    fn job_of(&self, prompt: PromptId) -> Option<JobId> {
        self.job.filter(|_| self.prompt == prompt || self.taken == Some(prompt))
    }

    fn verify(&mut self, prompt: PromptId, accepted: Accepted) {
        if let Some(job) = self.job_of(prompt) {
            self.line.state().accepted = true;
            self.local.handle.order(job, Order::Accept(accepted));
        }
    }

    fn decode(&mut self, prompt: PromptId, keep: Keep, index: usize) -> Result<(), Refusal> {
        let job = self.job_of(prompt).ok_or_else(|| "decode without a prompt".to_owned())?;
        if !self.line.state().verified {
            return Err("decode before the verification pass".to_owned().into());
        }
        self.local.handle.order(job, Order::Decide { keep, index });
        Ok(())
    }

    /// Ends what is written, and writes on behind `answer`. What the KV cache has of it is kept.
    fn draft(&mut self, prompt: PromptId, answer: Vec<TokenId>, tokens_max: usize) -> Result<(), Refusal> {
        let missing = || self.failure.clone().unwrap_or_else(|| "no answer is open".to_owned());
        let Some(spec) = &self.spec else { return Err(missing().into()) };
        let sampler = Sampler::new(spec.sampling).map_err(|err| chain(&err))?;
        self.end();
        self.cancel = CancelFlag::default();
        self.prompt = prompt;
        let ids = [&self.ids[..], &answer].concat();
        if ids.len() >= self.local.capacity {
            let why = EngineEnd::ContextFull;
            self.line.send(EngineReport::Ended { prompt, why, text: String::new() });
            return Ok(());
        }
        let of = OfPrompt { prompt, whole: true, shortened: None };
        let reader = self.reader(of, answer.len() + tokens_max);
        let fitted = HostPrompt { ids, shortened: None, evidence: None };
        self.submit(fitted, answer, Goal::Write, sampler, (reader, tokens_max))
    }

    /// Returns the prompt; shortened if it is too long and the answer allows it. `kept` are the sentences of
    /// the answer's own segments that `segments` are made of, if not all.
    fn fit(
        &self,
        segments: &[Segment],
        kept: Option<&[bool]>,
        assembled: Prompt,
    ) -> Result<HostPrompt, Refusal> {
        let Some(spec) = &self.spec else { return Err("no answer is open".to_owned().into()) };
        let tokens = assembled.ids.len();
        let refined: Option<Kept<'_>> = kept.map(|kept| (&*spec.segments, kept));
        let Err(limit) = self.room_for(tokens, spec.tokens_max) else {
            let evidence = evidence(spec, (segments, &assembled), refined.as_slice());
            return Ok(HostPrompt { ids: assembled.ids, shortened: None, evidence });
        };
        let shorter = match spec.shorten && spec.own.is_none() {
            true => shortened(&self.local.model, (segments, spec.offered()), &assembled, limit)?,
            false => None,
        };
        let Shorter { kept, segments: left, prompt } = shorter.ok_or(Refusal::TooLong { tokens, limit })?;
        let changes: Vec<Kept<'_>> = [(segments, kept.as_slice())].into_iter().chain(refined).collect();
        let evidence = evidence(spec, (&left, &prompt), &changes);
        Ok(HostPrompt { ids: prompt.ids, shortened: Some((tokens, limit)), evidence })
    }

    fn check_room(&self, tokens: usize, tokens_max: usize) -> Result<(), Refusal> {
        self.room_for(tokens, tokens_max).map_err(|limit| Refusal::TooLong { tokens, limit })
    }

    /// Checks that a prompt leaves room for an answer; returns the most tokens that it may have otherwise.
    fn room_for(&self, tokens: usize, tokens_max: usize) -> Result<(), usize> {
        let limit = room_for(self.local.capacity, tokens_max);
        if tokens <= limit { Ok(()) } else { Err(limit) }
    }

    /// Returns the most answer tokens behind a prompt of this length.
    fn room_behind(&self, prompt_tokens: usize, tokens_max: usize) -> usize {
        tokens_max.min(self.local.capacity.saturating_sub(prompt_tokens)).max(1)
    }

    /// Ends the answer, if one is open.
    fn end(&mut self) {
        if self.job.is_some() {
            self.cancel.set();
            self.local.handle.cancelled();
        }
    }
}

/// Returns what an answer may reuse. An answer that may not know all that was computed before owns its blocks
/// behind that point.
fn scope_of(known_max: Option<usize>) -> PrefixScope {
    let bounded = |shared_tokens| PrefixScope { owner: Uuid::new_v4().as_u128(), shared_tokens };
    known_max.map_or_else(PrefixScope::default, bounded)
}

impl Drop for LocalAnswer {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
pub(crate) mod tests;
