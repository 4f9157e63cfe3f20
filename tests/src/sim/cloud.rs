//! The simulated cloud: the real service, its host and its gate over an engine that computes nothing.
//!
//! What the HTTP layer does is done here in virtual time: it admits, keeps streams for readers that come
//! back, and cancels answers whose reader is gone. Every event that the service gives out is checked at
//! once, before any network touches it.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use baton_cloud::access::{Tenant, TenantSettings};
use baton_cloud::gate::{Gate, Permit};
use baton_cloud::observe::metrics::Metrics;
use baton_cloud::scene::book::SceneBook;
use baton_cloud::scene::{Scene, SceneSettings};
use baton_cloud::service::stream::{AssistStream, UNREAD_TOKENS_MAX};
use baton_cloud::service::{CloudService, Handoff, ModelSetup, ServiceError, ServiceOptions, Terms};
use baton_cloud::store::UsageDelta;
use baton_device::relay::CloudFault;
use baton_engine::pace_emulation::PassContent;
use baton_generate::clock::Clock;
use baton_generate::host::{Host, Pass};
use baton_protocol::{AssistEvent, AssistRequest, EndReason, ErrorCode, KvEncoding, VerifyRequest};
use uuid::Uuid;

use super::accounts::{Books, Due, TENANT, UsageStore};
use super::check::CloudAnswer;
use super::drafts::{DraftNo, Drafts};
use super::engine::{SimEngine, Trouble, model};
use super::scenario::CloudShape;

/// The scene of all questions.
pub(super) const SCENE: &str = "sim";
/// How long a stream is kept after its end, and how long one goes on without a reader.
const KEPT_NS: u64 = 10_000_000_000;
/// The digest of the credentials that all questions have.
const ASKER: [u8; 32] = [1; 32];

/// Registering metrics takes longer than a whole seed, so all services of a process share them.
static METRICS: LazyLock<Arc<Metrics>> = LazyLock::new(Arc::default);

/// Counts the streams of a simulation.
pub(super) type StreamNo = u64;

/// The cloud.
pub(super) struct Cloud {
    shape: CloudShape,
    clock: Arc<AtomicU64>,
    pub(super) wall_ms: Arc<AtomicI64>,
    tenant: Arc<Tenant>,
    pub(super) database: UsageStore,
    pub(super) books: Books,
    /// Counts its lives.
    pub(super) life: u32,
    pub(super) up: Option<Up>,
    next_stream: StreamNo,
}

/// The program while it runs.
pub(super) struct Up {
    service: CloudService,
    host: Host<SimEngine>,
    gate: Gate,
    pass: Option<Pass>,
    pub(super) trouble: Trouble,
    pub(super) streams: BTreeMap<StreamNo, Stream>,
    pub(super) drains: bool,
    pub(super) drafts: Drafts,
    /// Requests that their device has ended, and when.
    ended: BTreeMap<Uuid, u64>,
    /// Sequences that may be kept for devices to go on with: one of each answer, and one for each draft that
    /// is checked beside another of the same answer.
    keepable: usize,
}

/// An answer, and what its readers may still want of it.
pub(super) struct Stream {
    /// The question, and whether it goes on with an answer.
    pub(super) request: (usize, bool),
    asked: Arc<AssistRequest>,
    answer: Option<AssistStream>,
    permit: Option<Permit>,
    check: CloudAnswer,
    /// All events so far.
    pub(super) log: Vec<AssistEvent>,
    /// How many events the furthest reader has taken.
    pub(super) taken: usize,
    /// Readers that are connected.
    pub(super) readers: usize,
    pub(super) cancelled: bool,
    /// Turns of the host since it was cancelled.
    turns: usize,
    /// When it ended, or lost its last reader.
    since_ns: u64,
}

impl Stream {
    /// Returns whether it has all its events.
    pub(super) fn ended(&self) -> bool {
        self.answer.is_none()
    }

    /// Returns whether it holds as many events as it may.
    fn is_full(&self) -> bool {
        self.log.len() - self.taken >= UNREAD_TOKENS_MAX
    }

    /// Cancels the answer.
    pub(super) fn cancel(&mut self) {
        if let Some(answer) = &self.answer {
            answer.cancel();
            self.cancelled = true;
            self.permit = None;
        }
    }
}

impl Cloud {
    pub(super) fn new(shape: &CloudShape, clock: &Arc<AtomicU64>) -> Cloud {
        let settings = TenantSettings {
            tokens_per_day: shape.tokens_per_day,
            concurrency_max: shape.concurrency_max,
            ..TenantSettings::default()
        };
        let tenant = Tenant {
            id: TENANT.to_owned(),
            revision: 1,
            settings,
            created_ms: 0,
            updated_ms: 0,
            updated_by: String::new(),
        };
        let mut cloud = Cloud {
            shape: shape.clone(),
            clock: Arc::clone(clock),
            // A day that begins within the simulation.
            wall_ms: Arc::new(AtomicI64::new(20_000 * 86_400_000 - 4_000)),
            tenant: Arc::new(tenant),
            database: UsageStore::new(shape.stores),
            books: Books::default(),
            life: 0,
            up: None,
            next_stream: 0,
        };
        cloud.start();
        cloud
    }

    /// Starts the program; it first learns what was used.
    pub(super) fn start(&mut self) -> bool {
        let now = Arc::clone(&self.clock);
        let clock = Clock::from_fn(move || Duration::from_nanos(now.load(Ordering::Relaxed)));
        let wall = Arc::clone(&self.wall_ms);
        let gate = Gate::new(clock.clone(), move || wall.load(Ordering::Relaxed));
        let replica = self.life + 1;
        let Some(shared) = self.database.exchange(replica, &[], self.wall()) else { return false };
        gate.exchanged(&[], &shared);
        self.life = replica;
        let options = ServiceOptions {
            threads: NonZeroUsize::new(1),
            kv_tokens: NonZeroUsize::new(self.shape.kv_tokens),
            slots: self.shape.slots,
            queue: self.shape.queue,
            clock,
            metrics: Arc::clone(&METRICS),
            ..ServiceOptions::default()
        };
        let voice = self.shape.voice;
        let mut trouble = Trouble::default();
        let made = CloudService::over(
            vec![ModelSetup::named("default", Arc::clone(model()))],
            SceneBook::new(vec![self.scene()]),
            options,
            |model, options| {
                let engine = SimEngine::new(&model, options.kv_tokens, voice);
                trouble = engine.trouble();
                Ok(engine)
            },
        );
        let (service, mut hosts) = made.expect("the engine asks for nothing");
        let host = hosts.remove(0);
        let streams = BTreeMap::new();
        self.up = Some(Up {
            service,
            host,
            gate,
            pass: None,
            trouble,
            streams,
            drains: false,
            drafts: Drafts::default(),
            ended: BTreeMap::new(),
            keepable: 0,
        });
        true
    }

    fn scene(&self) -> Scene {
        let settings = SceneSettings {
            ratio: Some(self.shape.ratio),
            xi: self.shape.ratio,
            refine: self.shape.ratio < 1.0,
            corrector: self.shape.corrector,
            verify: self.shape.verify,
            kv: self.shape.moves_kv.then_some(KvEncoding::F16),
            ..SceneSettings::with_system("Answer.")
        };
        Scene { id: SCENE.to_owned(), version: 1, settings }
    }

    /// Returns the scene's settings, as a device has them.
    pub(super) fn settings(&self) -> SceneSettings {
        self.scene().settings
    }

    fn wall(&self) -> i64 {
        self.wall_ms.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Takes a request; returns its stream, or the stream of the same request.
    pub(super) fn post(
        &mut self,
        request: (usize, bool),
        asked: &Arc<AssistRequest>,
        deadline: Option<Duration>,
    ) -> Result<StreamNo, CloudFault> {
        let now = self.now();
        let Some(up) = &mut self.up else { return Err(unreachable()) };
        let permit = up.gate.admit(&self.tenant).map_err(|err| refused(&ServiceError::from(err)))?;
        if up.ended.get(&asked.request_id).is_some_and(|at| now < at + KEPT_NS) {
            let message = "the device has ended it".to_owned();
            return Err(CloudFault::Refused { status: 410, code: ErrorCode::Gone.to_string(), message });
        }
        if let Some((no, _)) = up.kept(asked) {
            return Ok(no);
        }
        let terms = Terms { deadline, asker: Some(ASKER), ..Terms::default() };
        let answer =
            up.service.assist_for(asked, terms, Some(permit.payer())).map_err(|err| refused(&err))?;
        let no = self.next_stream;
        self.next_stream += 1;
        let check = CloudAnswer::new(self.shape.voice, self.shape.ratio, asked);
        let stream = Stream {
            request,
            asked: Arc::clone(asked),
            answer: Some(answer),
            permit: Some(permit),
            check,
            log: Vec::new(),
            taken: 0,
            readers: 0,
            cancelled: false,
            turns: 0,
            since_ns: now,
        };
        up.streams.insert(no, stream);
        up.keepable += usize::from(asked.verify);
        Ok(no)
    }

    /// Ends a request that its device wants no more.
    pub(super) fn end(&mut self, asked: &AssistRequest) {
        let now = self.now();
        let Some(up) = &mut self.up else { return };
        up.ended.insert(asked.request_id, now);
        up.service.end_assist(Terms::default().owner, (ASKER, asked.request_id));
        let streams = up.streams.values_mut();
        streams.filter(|stream| stream.asked.request_id == asked.request_id).for_each(Stream::cancel);
    }

    /// Takes a draft.
    pub(super) fn verify(
        &mut self,
        id: (usize, DraftNo),
        (of, request): (&Arc<AssistRequest>, &Arc<VerifyRequest>),
    ) -> Result<(), CloudFault> {
        let Some(up) = &mut self.up else { return Err(unreachable()) };
        let permit = up.gate.admit(&self.tenant).map_err(|err| refused(&ServiceError::from(err)))?;
        let payer = Some(permit.payer());
        let check = up.service.verify(of.request_id, (**request).clone(), Terms::default(), payer);
        up.keepable += usize::from(up.drafts.are_checked_of(of.request_id));
        up.drafts.begin(id, (of, request), (check.map_err(|err| refused(&err))?, permit));
        Ok(())
    }

    /// Returns the keys and values that were offered for a request.
    pub(super) fn handoff(&self, request: Uuid) -> Option<Arc<Handoff>> {
        self.up.as_ref()?.service.handoff(ASKER, request)
    }

    /// Forgets keys and values that were read.
    pub(super) fn handoff_read(&self, request: Uuid) {
        if let Some(up) = &self.up {
            up.service.handoff_read(ASKER, request);
        }
    }

    /// Nobody waits for a draft any more.
    pub(super) fn drop_draft(&mut self, draft: DraftNo) {
        if let Some(up) = &mut self.up {
            self.books.add(up.drafts.forget(draft));
        }
    }

    /// Returns the kept stream of a request.
    pub(super) fn find(&self, asked: &AssistRequest) -> Option<StreamNo> {
        self.up.as_ref()?.kept(asked).map(|(no, _)| no)
    }

    /// One reader more, or one less.
    pub(super) fn read_by(&mut self, no: StreamNo, more: bool) {
        let now = self.now();
        let Some(stream) = self.up.as_mut().and_then(|up| up.streams.get_mut(&no)) else { return };
        stream.readers = if more { stream.readers + 1 } else { stream.readers.saturating_sub(1) };
        stream.since_ns = now;
        if stream.readers == 0 && !stream.asked.resume {
            stream.cancel();
        }
    }

    /// Computes a pass, if none is under way and there is something to do; returns what it computes.
    ///
    /// # Errors
    /// A check that does not hold.
    pub(super) fn turn(&mut self) -> Result<Option<PassContent>, String> {
        let Some(up) = &mut self.up else { return Ok(None) };
        if up.pass.is_some() {
            return Ok(None);
        }
        self.pull()?;
        let Some(up) = &mut self.up else { return Ok(None) };
        up.pass = up.host.turn();
        // A stream with room has read all that was written, so its answer goes on in this turn.
        let unread =
            up.streams.values().filter(|stream| !stream.ended() && (stream.is_full() || stream.cancelled));
        if up.service.stats().parked > unread.count() {
            return Err("I4: an answer that is read stays parked".to_owned());
        }
        self.pull()?;
        let Some(up) = &mut self.up else { return Ok(None) };
        for stream in up.streams.values_mut().filter(|stream| stream.cancelled && !stream.ended()) {
            stream.turns += 1;
            if stream.turns > 1 {
                return Err(format!("I4: question {:?} is cancelled and keeps its slot", stream.request));
            }
        }
        let live = up.streams.values().filter(|stream| !stream.ended()).count() + up.drafts.live();
        let stats = up.service.stats();
        let held = stats.running + stats.waiting + stats.parked;
        // An answer that nobody reads may be written to its end.
        let unread = up.streams.values().filter(|stream| !stream.ended() && stream.is_full()).count();
        if held > live || held + unread < live {
            return Err(format!("I8: the cloud holds {held} answers, {live} are wanted"));
        }
        if stats.running > self.shape.slots || stats.waiting > self.shape.queue + self.shape.slots {
            return Err(format!("I8: {} answers run, {} wait", stats.running, stats.waiting));
        }
        Ok(up.pass.as_ref().map(Pass::content))
    }

    /// Ends the pass under way.
    ///
    /// # Errors
    /// A check that does not hold.
    pub(super) fn commit(&mut self) -> Result<(), String> {
        if let Some(up) = &mut self.up
            && let Some(pass) = up.pass.take()
        {
            up.host.commit(pass);
        }
        self.pull()
    }

    /// Takes new events of all answers, as far as they are read.
    ///
    /// # Errors
    /// A check that does not hold.
    pub(super) fn pull(&mut self) -> Result<(), String> {
        let now = self.now();
        let Some(up) = &mut self.up else { return Ok(()) };
        for stream in up.streams.values_mut() {
            while !stream.is_full() || stream.cancelled {
                let Some(event) = stream.answer.as_mut().and_then(AssistStream::try_next) else { break };
                stream.check.heard(&event)?;
                let last = matches!(event, AssistEvent::End(_) | AssistEvent::Error(_));
                if last {
                    (stream.answer, stream.permit, stream.since_ns) = (None, None, now);
                    self.books.note(stream.request, due(&event, &stream.check));
                }
                stream.log.push(event);
            }
            // A stream without a reader is given up after a while.
            if !stream.ended() && stream.readers == 0 && now > stream.since_ns + KEPT_NS {
                stream.cancel();
            }
        }
        self.books.add(up.drafts.pull((self.shape.voice, self.shape.tokens_per_day.is_some()), refused)?);
        up.streams.retain(|_, stream| {
            !stream.ended() || stream.readers > 0 || stream.asked.resume && now < stream.since_ns + KEPT_NS
        });
        Ok(())
    }

    /// Returns what the gate would send to the database now.
    pub(super) fn deltas(&self) -> Vec<UsageDelta> {
        self.up.as_ref().map_or_else(Vec::new, |up| up.gate.deltas())
    }

    /// Sends usage to the database, and hears what is used everywhere. `None` if the database is away.
    pub(super) fn exchange(&mut self, sent: &[UsageDelta]) -> bool {
        let (life, wall) = (self.life, self.wall());
        let Some(shared) = self.database.exchange(life, sent, wall) else { return false };
        if let Some(up) = &self.up {
            up.gate.exchanged(sent, &shared);
        }
        true
    }

    /// The program ends, and what it has not told the database is lost.
    ///
    /// # Errors
    /// A check that does not hold.
    pub(super) fn stop(&mut self) -> Result<(), String> {
        self.check_books()?;
        self.up = None;
        self.books = Books::new(self.database.tokens(), self.books.jumped);
        Ok(())
    }

    /// Lets answers under way end and takes no new ones.
    pub(super) fn drain(&mut self) {
        if let Some(up) = &mut self.up {
            up.service.drain();
            up.drains = true;
        }
    }

    /// Whether no pass is under way.
    pub(super) fn rests(&self) -> bool {
        self.up.as_ref().is_none_or(|up| up.pass.is_none())
    }

    /// Whether it drains and has nothing left.
    pub(super) fn is_drained(&self) -> bool {
        self.up.as_ref().is_some_and(|up| up.drains && up.is_idle())
    }

    /// Checks what was charged, if no answer is under way.
    ///
    /// # Errors
    /// A check that does not hold.
    pub(super) fn check_books(&self) -> Result<(), String> {
        self.database.check()?;
        let Some(up) = &self.up else { return Ok(()) };
        let deltas = up.gate.deltas();
        let pending: u64 = deltas.iter().map(|delta| delta.tokens).sum();
        let charged = self.database.tokens() + pending;
        if let Some(limit) = self.shape.tokens_per_day.filter(|_| !self.books.jumped && self.life == 1) {
            let wall = self.wall();
            let today = wall - wall.rem_euclid(86_400_000);
            let own: u64 =
                deltas.iter().filter(|delta| delta.day_ms == today).map(|delta| delta.tokens).sum();
            let used = self.database.tokens_of(wall) + own;
            if used > limit {
                return Err(format!("quota: the tenant may use {limit} tokens in a day and used {used}"));
            }
        }
        let Due { least, most } = self.books.due();
        let under_way = !up.is_idle();
        let above = charged > most && !under_way;
        if charged < least || above {
            return Err(format!("quota: {charged} tokens are charged, due are {least} to {most}"));
        }
        Ok(())
    }

    /// Checks that nothing is left once every answer has ended.
    ///
    /// # Errors
    /// A check that does not hold.
    pub(super) fn check_rest(&mut self) -> Result<(), String> {
        self.check_books()?;
        let Some(up) = &self.up else { return Ok(()) };
        let (free, all) = (up.host.free_kv_tokens(), up.host.engine().live().count());
        // What devices may still go on with is kept for a while.
        let is_free = free == self.shape.kv_tokens.next_multiple_of(baton_engine::BLOCK_TOKENS) && all == 0;
        if all > up.keepable || (up.keepable == 0 && !is_free) {
            return Err(format!("I8: the cloud has {free} tokens free and {all} sequences at the end"));
        }
        let deltas = up.gate.deltas();
        if deltas.iter().any(|delta| delta.running != 0 || delta.reserved != 0) {
            return Err(format!("quota: not given back at the end: {deltas:?}"));
        }
        Ok(())
    }
}

impl Up {
    /// Whether no answer and no draft is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.streams.values().all(Stream::ended) && self.drafts.checking.is_empty()
    }

    /// Returns the stream of the same request, if it is kept.
    fn kept(&self, asked: &AssistRequest) -> Option<(StreamNo, &Stream)> {
        let same = |stream: &Stream| asked.resume && stream.asked.request_id == asked.request_id;
        self.streams.iter().find(|(_, stream)| same(stream)).map(|(no, stream)| (*no, stream))
    }
}

/// Returns what an answer that ended so must have cost.
fn due(end: &AssistEvent, check: &CloudAnswer) -> Due {
    let (prompt, written) = (check.prompt_tokens(), check.tokens());
    let begun = if written > 0 { prompt + written } else { 0 };
    match end {
        AssistEvent::End(end) if end.reason == EndReason::Cancelled => {
            Due { least: begun, most: prompt + written }
        }
        AssistEvent::End(_) => Due { least: prompt + written, most: prompt + written },
        _ => Due { least: begun, most: begun },
    }
}

pub(super) fn unreachable() -> CloudFault {
    CloudFault::Unreachable { reason: "no connection".to_owned() }
}

/// Returns the fault that a device makes of a refusal.
fn refused(err: &ServiceError) -> CloudFault {
    let detail = err.to_body().error;
    match detail.code {
        ErrorCode::Overloaded => CloudFault::Overloaded {
            status: 429,
            reason: detail.message,
            retry_after_ms: detail.retry_after_ms,
        },
        ErrorCode::Unavailable => CloudFault::Overloaded {
            status: 503,
            reason: detail.message,
            retry_after_ms: detail.retry_after_ms,
        },
        code => CloudFault::Refused { status: 400, code: code.to_string(), message: detail.message },
    }
}
