//! Drives the relay core: performs its effects with a real clock, the cloud client and the engine's thread.
//!
//! Makes no decisions itself. Joins every task it starts. As soon as the cloud is not wanted any more it is
//! told so, also if the answer is dropped; the engine stops then.

mod ahead;
mod audit;
mod commands;
mod config;
mod error;
mod evidence;
mod fit;
mod form;
mod handoff;
mod idle;
mod next;
mod own;
mod prepare;
mod prompt;
mod recent;
mod record;
mod report;
mod route;
mod running;
mod stream;

use self::next::{Lines, next_event};

use ahead::Reading;
use audit::Audits;
pub use audit::RouteAudit;
use commands::{Commands, Ended};
pub use error::AgentError;
pub use evidence::{AnswerCitation, CitedSource};
use form::Forms;
pub use own::OwnPrompt;
use prepare::Prepared;
use recent::Recent;
use record::{Recorder, sent_draft};
pub use report::AnswerReport;
use route::Routes;
pub use route::{RouteOptions, RouteReport};
use running::{Running, RunningAnswers};
use stream::{CloudStream, DraftCheck};

use crate::client::{CloudClient, Feedback, OpenRequest, OutgoingDraft, OutgoingRequest};
use crate::fleet::PairLease;
use crate::local::{EngineCommand, Reports};
use crate::prefix::Kept;
use crate::privacy::{Memory, PrivateNames, RedactError};
use crate::relay::{CloudFault, Note, Outcome, Progress, RelayEffect, RelayEvent, RelayMode, Source};
use crate::worker::EngineWorker;
use baton_engine::tokenizer::Tokenizer;
use baton_engine::{AdapterId, Model};
use baton_pacing::{DeviceCost, Millis, PaceMode};
use baton_protocol::{
    AnswerFormat, Corrector, ErrorCode, ModelPair, ProgressStage, RefineOptions, Sampling, SceneInfo,
    Segment, ToolUse, VerifyRequest,
};
use baton_terminal::chain;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tracing::warn;

/// A reader that takes no text for this long counts as gone.
const READER_TIMEOUT: Duration = Duration::from_secs(30);
/// How soon a reader is told that its answer waits, and how often again.
const TOLD_FIRST: Duration = Duration::from_millis(200);
const TOLD_AGAIN: Duration = Duration::from_secs(2);
/// Number of prompt ids reserved for one answer.
const PROMPTS_PER_ANSWER: u64 = 1 << 20;
/// The device cost to use if there is no device model.
const NO_DEVICE: DeviceCost =
    DeviceCost { prefill_ms_per_token: 0.0, prefill_ms_per_token2: 0.0, decode_ms: 0.0, decompress_ms: 0.0 };
const FIRST_TIMEOUT_MS: f64 = 60_000.0;
const IDLE_TIMEOUT_MS: f64 = 20_000.0;

/// One question, with the user's own text.
#[derive(Debug, Clone)]
pub struct Question {
    /// The prompt, not yet redacted.
    pub segments: Vec<Segment>,
    /// The scene of the question.
    pub scene: SceneInfo,
    /// Whether the cloud, the device or both may write the answer.
    pub mode: RelayMode,
    /// How the shown text is paced.
    pub pace: PaceMode,
    /// How the answer is sampled, and its stop strings.
    pub sampling: Sampling,
    /// Most tokens of the answer.
    pub tokens_max: usize,
    /// The user's choices for refining.
    pub refine: RefineOptions,
    /// The user's choice of L.
    pub assist_tokens: Option<u32>,
    /// If true, a prompt that is too long is shortened by BM25, with a note. If false, it is refused.
    pub shorten: bool,
    /// The user's choice of corrector.
    pub corrector: Option<Corrector>,
    /// The tools that the answer may call, not yet redacted.
    pub tools: Option<ToolUse>,
    /// The form that the answer must have.
    pub format: AnswerFormat,
    /// The prompt's ids in place of the segments, if a text is continued. Only a model on this device does
    /// that.
    pub own: Option<OwnPrompt>,
    /// Whether the answer cites sentences of the prompt.
    pub cites: bool,
}

/// What the reader of an answer receives, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum AnswerEvent {
    /// Text to show now.
    Text {
        /// Token index; `None` for the last text that was held back.
        index: Option<usize>,
        /// The text, possibly empty.
        text: String,
        /// Who wrote it.
        source: Source,
    },
    /// Something to tell the person.
    Note(Note),
    /// Progress while there is no text yet: at least every two seconds, if it is known.
    Progress(Progress),
}

/// The device's own model, ready to run.
#[derive(Debug)]
pub struct DeviceModel {
    /// The engine's thread.
    pub worker: Arc<EngineWorker>,
    /// The model.
    pub model: Arc<Model>,
    /// Its adapters, by the name that scenes use.
    pub adapters: BTreeMap<String, AdapterId>,
    /// What of earlier prompts is kept on the disk.
    pub kept: Option<Arc<Kept>>,
}

impl DeviceModel {
    /// Makes a device model without adapters.
    pub fn new(worker: EngineWorker, model: Arc<Model>) -> DeviceModel {
        DeviceModel::shared(Arc::new(worker), model)
    }

    /// Makes a device model without adapters, of a worker that others use too.
    pub fn shared(worker: Arc<EngineWorker>, model: Arc<Model>) -> DeviceModel {
        DeviceModel { worker, model, adapters: BTreeMap::new(), kept: None }
    }
}

/// Answers questions: as many at a time as the device computes; the others wait, first come, first served.
#[derive(Debug)]
pub struct Agent {
    pub(crate) device: Option<DeviceModel>,
    /// The device model's tokenizer, or another one for the text rules if there is no device model.
    tokenizer: Arc<Tokenizer>,
    cloud: Option<CloudClient>,
    device_class: String,
    turn: Semaphore,
    forms: Forms,
    prompts: AtomicU64,
    /// Until when the cloud asked not to be called, and its reason.
    cloud_paused: Mutex<Option<(Instant, String)>>,
    /// Times of the cloud's recent answers.
    recent: Mutex<Recent>,
    network: Option<String>,
    /// Private values of earlier questions. They are restored in an answer, so they come back in the history
    /// of the next question.
    memory: Memory,
    /// What is done with names.
    names: PrivateNames,
    /// How routes are chosen; `None` if each answer has the mode that was asked for.
    routes: Option<Arc<Routes>>,
    /// Where answers are recorded, if they are.
    recorder: Option<Recorder>,
    /// Which turns are audited, if any are.
    audits: Option<Audits>,
    /// The reading of the last conversation, while nothing is asked.
    reading: Mutex<Option<Reading>>,
    /// Answers that are under way, with what is shown of them.
    running: RunningAnswers,
    /// When the last answer began or ended.
    used: Mutex<Instant>,
    /// With which models the cloud may be asked, if its registry rules them.
    lease: Option<PairLease>,
}

impl Agent {
    /// Makes an agent. `tokenizer` is the device model's own; any tokenizer will do if there is no device
    /// model.
    pub fn new(
        device: Option<DeviceModel>,
        tokenizer: Arc<Tokenizer>,
        cloud: Option<CloudClient>,
        device_class: impl Into<String>,
    ) -> Self {
        let answers = device.as_ref().map_or(1, |device| device.worker.answers());
        Self {
            device,
            tokenizer,
            cloud,
            device_class: device_class.into(),
            turn: Semaphore::new(answers),
            forms: Forms::default(),
            prompts: AtomicU64::new(1),
            cloud_paused: Mutex::new(None),
            recent: Mutex::default(),
            network: None,
            memory: Memory::default(),
            names: PrivateNames::default(),
            routes: None,
            recorder: None,
            audits: None,
            reading: Mutex::default(),
            running: RunningAnswers::default(),
            used: Mutex::new(Instant::now()),
            lease: None,
        }
    }

    /// Sets with which models the cloud may be asked. Without a lease this device answers alone.
    #[must_use]
    pub fn with_lease(mut self, lease: PairLease) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Returns the versions of the device's models, if a registry rules them and they may be asked with.
    fn pair(&self) -> Option<ModelPair> {
        self.lease.as_ref()?.pair()
    }

    /// Sets the kind of network that the agent reports to the cloud's optimizer.
    #[must_use]
    pub fn with_network(mut self, network: Option<String>) -> Self {
        self.network = network;
        self
    }

    /// Sets what is done with names before a text leaves this device.
    #[must_use]
    pub fn with_names(mut self, names: PrivateNames) -> Self {
        self.names = names;
        self
    }

    fn reading(&self) -> MutexGuard<'_, Option<Reading>> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the cloud client, if there is one.
    pub fn cloud(&self) -> Option<&CloudClient> {
        self.cloud.as_ref()
    }

    /// Returns the tokenizer that counts tokens on this device.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Answers one question; sends text and notes to `events` as they come. Dropping the receiver cancels the
    /// answer.
    ///
    /// # Errors
    /// [`AgentError`] if nothing was asked. If the answer failed, the [`AnswerReport`] says so.
    pub async fn answer(
        &self,
        question: Question,
        events: mpsc::Sender<AnswerEvent>,
    ) -> Result<AnswerReport, AgentError> {
        let mode = self.mode(&question)?;
        *self.used() = Instant::now();
        self.end_reading().await;
        self.end_audit().await;
        let drawn = self.drawn(&question, mode);
        let turn = self.turn(mode, &events).await;
        if mode != RelayMode::CloudOnly {
            self.load().await?;
        }
        let mut prepared = self.prepare(question, mode, None).await?;
        // The cloud's answers need no place, also if that was only chosen now.
        let turn = turn.filter(|_| prepared.mode != RelayMode::CloudOnly);
        let mut notes = std::mem::take(&mut prepared.notes);
        for note in &notes {
            // The loop in `drive` notices a reader that is gone.
            let _gone = events.send(AnswerEvent::Note(note.clone())).await;
        }
        let table = prepared.redactor.table();
        let running = (!table.is_empty()).then(|| self.running.begin(Arc::clone(&table)));
        let (outcome, ended) = self.drive(&mut prepared, &events, &mut notes, running.as_ref()).await;
        *self.used() = Instant::now();
        let bytes = prepared.request.as_ref().map(|request| request.body().len());
        let request_id = prepared.request.as_ref().map(OutgoingRequest::request_id);
        let feedback = request_id.and_then(|id| Feedback::of(id, &outcome.timeline));
        self.learn(&outcome.timeline, prepared.text_bytes, prepared.whole.take()).await;
        let mut report = AnswerReport::new(outcome, notes, bytes);
        report.route = prepared.route.take();
        if !table.is_empty() {
            // This is done before the answer counts as ended, because the next question may hold it.
            let (memory, answer) = (self.memory.clone(), report.answer.clone());
            let learn = move || memory.learn_answer(&table, &answer);
            tokio::task::spawn_blocking(learn).await.map_err(AgentError::Prepare)?;
        }
        ended.told_in(&mut report, prepared.citing.take());
        let asked = self.asked(&prepared);
        report.record = self.record(asked, &report).await;
        drop(turn);
        self.read_ahead(prepared, &report);
        if let Some(question) = drawn {
            self.audit_later(question, &report);
        }
        if let Some((cloud, feedback)) = self.cloud.as_ref().zip(feedback) {
            cloud.tell_feedback(feedback);
        }
        Ok(report)
    }

    /// Waits until the cloud was told which requests are over, and the figures that it wants; but not long. A
    /// program that ends calls it when its answers have ended.
    pub async fn flush(&self) {
        if let Some(cloud) = &self.cloud {
            cloud.flush().await;
        }
    }

    /// Waits until this device may compute one more answer, and tells the reader so. The cloud's answers need
    /// no place. Returns none for them, and for a reader that is gone.
    async fn turn(&self, mode: RelayMode, events: &mpsc::Sender<AnswerEvent>) -> Option<SemaphorePermit<'_>> {
        if mode == RelayMode::CloudOnly {
            return None;
        }
        let mut turn = std::pin::pin!(self.turn.acquire());
        let mut wait = TOLD_FIRST;
        loop {
            tokio::select! {
                biased;
                turn = &mut turn => return Some(turn.expect("the semaphore is never closed")),
                () = events.closed() => return None,
                () = tokio::time::sleep(wait) => {
                    let (stage, source) = (ProgressStage::Queue, Source::Device);
                    let waits = Progress { source, stage, computed: 0, total: 0, eta_ms: None };
                    // A reader that does not read needs no news.
                    let _unread = events.try_send(AnswerEvent::Progress(waits));
                    wait = TOLD_AGAIN;
                }
            }
        }
    }

    /// Runs the core until the answer has ended.
    async fn drive(
        &self,
        prepared: &mut Prepared,
        events: &mpsc::Sender<AnswerEvent>,
        notes: &mut Vec<Note>,
        running: Option<&Running>,
    ) -> (Outcome, Ended) {
        let mut queue = VecDeque::from([RelayEvent::Begin]);
        let (commands, mut reports) = self.attach(&mut queue).unzip();
        // Times are since the question, also if another prompt is begun.
        let origin = *prepared.begun.get_or_insert_with(Instant::now);
        let mut lines = Lines::default();
        let mut wake: Option<Millis> = None;
        loop {
            while let Some(event) = queue.pop_front() {
                let now = Millis::from(origin.elapsed());
                self.remember_pause(&event);
                lines.hear(&event);
                if let Some(note) = without_cloud(prepared, &event).await {
                    lines.close().await;
                    ended(commands).await;
                    notes.push(note.clone());
                    // A reader that is gone is noticed at the next text.
                    let _gone = deliver(events, AnswerEvent::Note(note)).await;
                    return Box::pin(self.drive(prepared, events, notes, running)).await;
                }
                let now = if matches!(event, RelayEvent::Begin) { Millis::ZERO } else { now };
                for effect in prepared.core.step(event, now) {
                    match effect {
                        RelayEffect::Ask => {
                            let asked = self.ask(prepared);
                            queue.extend(lines.opened(asked));
                        }
                        RelayEffect::AskToContinue { accepted, tokens_max } => {
                            let asked = self.ask_to_continue(prepared, &accepted, tokens_max);
                            queue.extend(lines.opened(asked));
                        }
                        RelayEffect::CancelCloud => lines.close_cloud().await,
                        RelayEffect::Check(draft) => match self.check(prepared, &draft) {
                            Ok(check) => lines.check = Some(check),
                            Err(fault) => queue.push_back(RelayEvent::Checked(Err(fault))),
                        },
                        RelayEffect::DropCheck => lines.check = None,
                        RelayEffect::FetchKv(ticket) => lines.kv = Some(self.fetch_kv(prepared, ticket)),
                        RelayEffect::DropKv => lines.close_kv().await,
                        RelayEffect::Engine(command) => {
                            queue.extend(tell(commands.as_ref(), command).await);
                        }
                        RelayEffect::Show { index, text, source } => {
                            queue.extend(show(events, running, (Some(index), text, source)).await);
                        }
                        RelayEffect::Tail { text } => {
                            queue.extend(show(events, running, (None, text, Source::Device)).await);
                        }
                        RelayEffect::Note(note) => {
                            notes.push(note.clone());
                            queue.extend(deliver(events, AnswerEvent::Note(note)).await);
                        }
                        RelayEffect::Progress(progress) => {
                            queue.extend(deliver(events, AnswerEvent::Progress(progress)).await);
                        }
                        RelayEffect::WakeAt(at) => wake = at,
                        RelayEffect::Finish(outcome) => {
                            lines.close().await;
                            return (*outcome, ended(commands).await);
                        }
                    }
                }
                if !prepared.core.wants_cloud() {
                    lines.request = None;
                }
            }
            let sleep = wake.map(|at| (at - Millis::from(origin.elapsed())).to_duration());
            queue.push_back(next_event(&mut lines, &mut reports, sleep, events).await);
            // `next_event` prefers the cloud, so one engine report is taken here as well. A cloud that never
            // pauses must not starve the engine.
            let report = reports.as_mut().and_then(Reports::try_recv);
            queue.extend(report.map(RelayEvent::Engine));
        }
    }

    /// Begins a new answer of the device. If the engine is gone, queues [`RelayEvent::EngineLost`]: the cloud
    /// may still answer.
    fn attach(&self, queue: &mut VecDeque<RelayEvent>) -> Option<(Commands, Reports)> {
        let Ok((answer, reports)) = self.device.as_ref()?.worker.answer() else {
            queue.push_back(RelayEvent::EngineLost);
            return None;
        };
        Some((Commands::begin(answer), reports))
    }

    fn ask(&self, prepared: &mut Prepared) -> Result<(CloudStream, OpenRequest), CloudFault> {
        let Some(request) = &prepared.request else {
            return Err(prepared.redacted.as_ref().err().cloned().unwrap_or_else(no_cloud));
        };
        if prepared.mode != RelayMode::CloudOnly && self.lease.is_some() && self.pair().is_none() {
            return Err(not_allowed());
        }
        let client = self.client()?;
        prepared.is_sent = true;
        Ok((CloudStream::open(client.clone(), request.clone()), OpenRequest::new(client, request)))
    }

    /// Sends a draft of the answer to the cloud.
    fn check(&self, prepared: &mut Prepared, draft: &VerifyRequest) -> Result<DraftCheck, CloudFault> {
        let request = prepared.request.as_ref().ok_or_else(no_cloud)?;
        let client = self.cloud.as_ref().ok_or_else(no_cloud)?;
        let draft = OutgoingDraft::new(request, draft)
            .map_err(|err| CloudFault::Malformed { reason: err.to_string() })?;
        prepared.drafts.push(sent_draft(client.verify_url(draft.request_id()), &draft));
        Ok(DraftCheck::send(client.clone(), draft))
    }

    /// Returns the cloud client, or a fault if there is none or the pause that it asked for is not over.
    fn client(&self) -> Result<&CloudClient, CloudFault> {
        let client = self.cloud.as_ref().ok_or_else(no_cloud)?;
        let paused = self.cloud_paused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((until, reason)) = paused
            && let Some(left) = until.checked_duration_since(Instant::now())
        {
            let retry_after_ms = Some(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
            return Err(CloudFault::Overloaded { status: 0, reason, retry_after_ms });
        }
        Ok(client)
    }

    fn ask_to_continue(
        &self,
        prepared: &mut Prepared,
        accepted: &str,
        tokens_max: usize,
    ) -> Result<(CloudStream, OpenRequest), CloudFault> {
        let client = self.client()?;
        let redacted = prepared.redacted.as_ref().map_err(Clone::clone)?;
        let tokens_max = u32::try_from(tokens_max).ok();
        let continuation = prepared.redactor.redact_continuation(redacted, accepted, tokens_max);
        let continuation = continuation.map_err(|err| unchecked(&err))?;
        let request = OutgoingRequest::new(&continuation)
            .map_err(|err| CloudFault::Malformed { reason: err.to_string() })?;
        prepared.continued = Some((continuation, request.clone()));
        let open = OpenRequest::new(client, &request);
        Ok((CloudStream::open(client.clone(), request), open))
    }

    /// Remembers for how long an overloaded cloud asked not to be called.
    fn remember_pause(&self, event: &RelayEvent) {
        let RelayEvent::CloudLost(fault) = event else { return };
        if let (CloudFault::Refused { status: 1.., code, .. }, Some(lease)) = (fault, &self.lease)
            && code == ErrorCode::PairNotAllowed.as_str()
        {
            lease.refused();
        }
        if let CloudFault::Overloaded { status, reason, retry_after_ms: Some(ms) } = fault
            && *status != 0
        {
            let pause = (Instant::now() + Duration::from_millis(*ms), reason.clone());
            *self.cloud_paused.lock().unwrap_or_else(PoisonError::into_inner) = Some(pause);
        }
    }
}

/// Ends the device's answer, if there is one.
async fn ended(commands: Option<Commands>) -> Ended {
    match commands {
        Some(commands) => commands.end().await,
        None => Ended::default(),
    }
}

/// Makes the device answer alone from the prompt as it was given, if the cloud was lost before it sent
/// anything. Returns the note of it.
async fn without_cloud(prepared: &mut Prepared, event: &RelayEvent) -> Option<Note> {
    let RelayEvent::CloudLost(fault) = event else { return None };
    match prepared.answer_alone().await {
        Ok(true) => Some(Note::WithoutCloud { fault: fault.clone(), at: 0 }),
        Ok(false) => None,
        Err(err) => {
            warn!(err = chain(&err), "the device answers from the redacted prompt");
            None
        }
    }
}

/// Gives a command to the device's answer; returns an event if there is none, or its task has failed.
async fn tell(commands: Option<&Commands>, command: EngineCommand) -> Option<RelayEvent> {
    let told = match commands {
        Some(commands) => commands.send(command).await,
        None => false,
    };
    (!told).then_some(RelayEvent::EngineLost)
}

/// Returns the fault for a device whose models the cloud does not allow now, as far as this device knows.
fn not_allowed() -> CloudFault {
    CloudFault::Refused {
        status: 0,
        code: ErrorCode::PairNotAllowed.as_str().to_owned(),
        message: "the cloud did not say lately that it allows this device's models".to_owned(),
    }
}

fn no_cloud() -> CloudFault {
    CloudFault::Unreachable { reason: "no cloud is set".into() }
}

/// Returns the fault for a request that could not be checked for private values, and so is not sent.
fn unchecked(err: &RedactError) -> CloudFault {
    CloudFault::Privacy { reason: err.to_string() }
}

/// Shows text to the reader; returns as [`deliver`].
async fn show(
    events: &mpsc::Sender<AnswerEvent>,
    running: Option<&Running>,
    (index, text, source): (Option<usize>, String, Source),
) -> Option<RelayEvent> {
    running.inspect(|running| running.shows(&text));
    deliver(events, AnswerEvent::Text { index, text, source }).await
}

/// Sends an event to the reader; returns [`RelayEvent::Cancel`] if the reader is gone or stuck.
async fn deliver(events: &mpsc::Sender<AnswerEvent>, event: AnswerEvent) -> Option<RelayEvent> {
    match tokio::time::timeout(READER_TIMEOUT, events.send(event)).await {
        Ok(Ok(())) => None,
        Ok(Err(_)) | Err(_) => Some(RelayEvent::Cancel),
    }
}

#[cfg(test)]
pub(crate) mod tests;
