//! One answer that an engine writes: asks, retries and hedges before the first token, waits for the mask, and
//! passes tokens on until L.
//!
//! Always: the reader gets the events that an own engine would give, in the same order, with one end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use baton_engine::stop::StopStrings;
use baton_engine::tokenizer::Tokenizer;
use baton_generate::answer::{Answer, Written};
use baton_generate::clock::Clock;
use baton_generate::job::{JobEvent, Opened, Sink};
use baton_generate::scheduler::{CloseReason, Closed, JobId, SlotTimes};
use baton_protocol::MaskEvent;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tracing::{debug, warn};

use super::ask::Call;
use super::balance::Ended;
use super::client::Events;
use super::facts::Lack;
use super::fault::Fault;
use super::reply::{EngineUsage, Finish, Piece, ReplyReader};
use super::writer::Writer;
use super::{Ask, Lease, Upstream};
use crate::learn::cost::PassSample;
use crate::service::reader::CloudReader;
use crate::service::refining::MaskJob;

/// How often an answer looks whether anybody still wants it, or has read.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Most tokens that go out in one piece.
const TOGETHER_MAX: usize = 32;

/// A mask, and how long it took to make it from the scores.
#[derive(Debug)]
pub(crate) struct Scored {
    mask: MaskEvent,
    elapsed: Duration,
}

/// Makes the mask of an answer when the scorer has its scores. The scorer's own token is not used.
pub(crate) struct ScoreJob {
    mask: Box<MaskJob>,
    to: Option<oneshot::Sender<Scored>>,
    clock: Clock,
}

impl ScoreJob {
    /// Makes the job's reader, and the end where the mask arrives. If the scorer fails, the sender is
    /// dropped.
    pub(crate) fn new(mask: Box<MaskJob>, clock: Clock) -> (ScoreJob, oneshot::Receiver<Scored>) {
        let (to, from) = oneshot::channel();
        (ScoreJob { mask, to: Some(to), clock }, from)
    }
}

impl Sink for ScoreJob {
    fn opened(&mut self, _opened: Opened) {}

    fn event(&mut self, event: JobEvent) {
        let JobEvent::Scores(scores) = event else { return };
        let Some(to) = self.to.take() else { return };
        let started = self.clock.now();
        match self.mask.run(Some(&scores)) {
            // Nobody waits any more if the answer has ended.
            Ok(mask) => drop(to.send(Scored { mask, elapsed: self.clock.now().saturating_sub(started) })),
            Err(err) => warn!(%err, "no mask for this answer"),
        }
    }

    fn flush(&mut self, _now: Duration) {}

    fn closed(self: Box<Self>, _closed: &Closed, _answer: Answer) {}
}

/// One answer to be written by an engine.
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(crate) ask: Ask,
    pub(crate) lease: Lease,
    pub(crate) reader: Box<CloudReader>,
    /// Where the mask arrives, if the scorer makes one.
    pub(crate) mask: Option<oneshot::Receiver<Scored>>,
    pub(crate) stop: StopStrings,
    pub(crate) ends_at_cap: bool,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) prompt_tokens: usize,
    pub(crate) max_tokens: usize,
    /// Deadline of the first token, if the caller set one.
    pub(crate) deadline: Option<Duration>,
}

/// An engine that has begun to write.
struct Begun {
    lease: Lease,
    /// When this engine was asked; others may have been asked before.
    asked_at: Duration,
    events: Events,
    reply: ReplyReader,
    piece: Piece,
}

/// How an answer ended.
enum Outcome {
    Finished(Finish),
    Failed(Fault),
    Cancelled,
    Stopped,
}

impl Job {
    /// Writes the answer.
    pub(crate) async fn run(self) {
        let Job {
            id,
            ask,
            lease,
            reader,
            mask,
            stop,
            ends_at_cap,
            tokenizer,
            prompt_tokens,
            max_tokens,
            deadline,
        } = self;
        let upstream = lease.upstream.clone();
        let mut stop_flag = upstream.stop.subscribe();
        let gone = reader.sink.gone(LOOK_EVERY);
        let mut writer = Writer::new(&tokenizer, stop, ask.continued, ends_at_cap);
        writer.promise(max_tokens);
        let now = upstream.clock.now();
        let mut answer = Writing {
            upstream: upstream.clone(),
            ask,
            reader,
            writer,
            mask,
            prompt_tokens,
            max_tokens,
            asked_at: now,
            writer_asked_at: now,
            first_at: None,
            last_at: now,
            usage: None,
        };
        let within = deadline.map_or(upstream.options.first_token, |at| at.saturating_sub(now));
        let within = within.min(upstream.options.first_token);
        let outcome = tokio::select! {
            outcome = answer.write(lease, within) => outcome.map_or_else(Outcome::Failed, Outcome::Finished),
            () = gone => Outcome::Cancelled,
            () = super::stopped(&mut stop_flag) => Outcome::Stopped,
        };
        answer.end(id, outcome);
    }
}

/// The state of an answer that is being written.
struct Writing {
    upstream: Arc<Upstream>,
    ask: Ask,
    reader: Box<CloudReader>,
    writer: Writer,
    mask: Option<oneshot::Receiver<Scored>>,
    prompt_tokens: usize,
    max_tokens: usize,
    asked_at: Duration,
    /// When the engine that writes was asked; others may have failed before.
    writer_asked_at: Duration,
    first_at: Option<Duration>,
    last_at: Duration,
    usage: Option<EngineUsage>,
}

impl Writing {
    async fn write(&mut self, lease: Lease, within: Duration) -> Result<Finish, Fault> {
        self.reader.opened(Opened { cached: 0, max_tokens: self.max_tokens });
        self.reader.computing(self.prompt_tokens);
        let mut begun = self.begin(lease, within).await?;
        let first = self.upstream.clock.now();
        (self.writer_asked_at, self.first_at) = (begun.asked_at, Some(first));
        self.upstream.balance().first_token(begun.lease.at, first.saturating_sub(begun.asked_at), first);
        self.reader.written_by(&begun.lease.engine().address.url);
        self.take_mask().await;
        let done = self.pass_on(&mut begun).await;
        self.usage = begun.reply.usage();
        if matches!(done, Err(Fault::NoIds)) {
            self.upstream.learn(begun.lease.at, &BTreeSet::from([Lack::AnswerIds]));
        }
        // The connection closes before the place is free for another request.
        drop(begun.events);
        begun.lease.end(done.as_ref().map_or_else(Fault::ended, |_| Ended::Well));
        if let Err(fault) = &done {
            self.blame(fault);
        }
        done
    }

    /// Asks engines until one writes. Another one is asked if one fails, or is slow and hedging is on.
    async fn begin(&self, lease: Lease, within: Duration) -> Result<Begun, Fault> {
        let until = Instant::now() + within;
        let mut tried = vec![lease.at];
        let mut waiting = vec![(lease.at, self.upstream.clock.now())];
        let mut attempts = FuturesUnordered::new();
        attempts.push(self.attempt(lease, (until, within)));
        let hedge = self.upstream.options.hedge;
        let slow = async {
            match hedge {
                Some(after) => sleep(after).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(slow);
        let mut is_hedged = false;
        let mut last = Fault::CutOff;
        loop {
            tokio::select! {
                ended = attempts.next() => {
                    let Some((at, begun)) = ended else { return Err(last) };
                    waiting.retain(|(other, _)| *other != at);
                    match begun {
                        Ok(begun) => {
                            self.too_late(&waiting);
                            return Ok(begun);
                        }
                        Err(fault) if fault.is_of_request() => return Err(fault),
                        Err(fault) => last = fault,
                    }
                }
                () = &mut slow, if !is_hedged => is_hedged = true,
            }
            if let Ok(lease) = self.upstream.lease(&self.ask, &tried) {
                tried.push(lease.at);
                waiting.push((lease.at, self.upstream.clock.now()));
                attempts.push(self.attempt(lease, (until, within)));
            }
        }
    }

    /// Notes how long each engine was waited for in vain, so that one that hangs counts as slow.
    fn too_late(&self, waiting: &[(usize, Duration)]) {
        let now = self.upstream.clock.now();
        let mut balance = self.upstream.balance();
        for &(at, asked_at) in waiting {
            balance.first_token(at, now.saturating_sub(asked_at), now);
        }
    }

    /// Asks one engine, and waits for its first token. Returns which engine it was, too.
    async fn attempt(&self, lease: Lease, until: (Instant, Duration)) -> (usize, Result<Begun, Fault>) {
        (lease.at, self.first_of(lease, until).await)
    }

    async fn first_of(&self, mut lease: Lease, (until, within): (Instant, Duration)) -> Result<Begun, Fault> {
        let mut found = BTreeSet::new();
        let fault = loop {
            let asked_at = self.upstream.clock.now();
            let call = self.ask.call(&lease.facts, self.max_tokens);
            let begun = timeout_at(until, self.first_piece(&lease, &call)).await;
            let fault = match begun.unwrap_or(Err(Fault::Late { within })) {
                Ok((events, reply, piece)) => {
                    if call.reply.has_ids() && !reply.has_ids() {
                        found.insert(Lack::AnswerIds);
                    }
                    self.upstream.learn(lease.at, &found);
                    lease.facts.lacks.append(&mut found);
                    match self.ask.refusal(&lease.facts) {
                        None => return Ok(Begun { lease, asked_at, events, reply, piece }),
                        Some((field, message)) => break Fault::Unsupported { field, message },
                    }
                }
                Err(fault) => fault,
            };
            // The same engine is asked without what it refuses. What it lacks is known once it answers.
            let refused = fault.refused(&call.replaceable);
            if refused.is_empty() {
                break fault;
            }
            found.extend(&refused);
            lease.facts.lacks.extend(refused);
            if let Some((field, message)) = self.ask.refusal(&lease.facts) {
                break Fault::Unsupported { field, message };
            }
        };
        self.blame(&fault);
        warn!(model = self.upstream.model, url = lease.engine().address.url, %fault, "an engine did not begin to write");
        lease.end(fault.ended());
        Err(fault)
    }

    /// Asks an engine, and reads its reply as far as the first piece of the answer.
    async fn first_piece(&self, lease: &Lease, call: &Call) -> Result<(Events, ReplyReader, Piece), Fault> {
        let mut events = lease.engine().client.begin(call, self.ask.affinity).await?;
        let mut reply = ReplyReader::new(call.reply);
        loop {
            let data = events.next().await.ok_or(Fault::CutOff)??;
            let piece = reply.event(&data)?;
            let is_first = if reply.has_ids() { !piece.ids.is_empty() } else { !piece.text.is_empty() };
            if is_first || reply.finish().is_some() {
                return Ok((events, reply, piece));
            }
        }
    }

    /// Waits for the mask, which must come before the first token. If it takes too long, the device goes on
    /// with the whole prompt.
    async fn take_mask(&mut self) {
        let Some(mask) = self.mask.take() else { return };
        let outcome = match timeout(self.upstream.options.mask_wait, mask).await {
            Ok(Ok(Scored { mask, elapsed })) => {
                self.reader.mask_made(mask, elapsed);
                "made"
            }
            Ok(Err(_)) => "failed",
            Err(_) => "late",
        };
        if outcome != "made" {
            self.reader.no_mask();
            debug!(outcome, "no mask for this answer");
        }
        self.upstream.metrics.engine_mask(&self.upstream.model, outcome);
    }

    /// Passes tokens on until the answer ends or L is reached.
    async fn pass_on(&mut self, begun: &mut Begun) -> Result<Finish, Fault> {
        let has_ids = begun.reply.has_ids();
        if !has_ids {
            self.reader.has_no_ids();
        }
        let mut piece = std::mem::take(&mut begun.piece);
        let mut out = Vec::new();
        loop {
            let ended = self.writer.take(&piece, has_ids, &mut out);
            if let (Ok(None), Some(Finish::Stop)) = (&ended, begun.reply.finish()) {
                self.writer.end(&mut out);
            }
            let ended = ended.map(|ended| ended.or(begun.reply.finish()));
            // What has come already goes out in one piece.
            let next = match ended {
                Ok(None) if out.len() < TOGETHER_MAX => begun.events.next().now_or_never(),
                _ => None,
            };
            if next.is_none() {
                self.put(&mut out);
            }
            if let Some(finish) = ended? {
                self.read_usage(begun).await;
                return Ok(finish);
            }
            let next = match next {
                Some(next) => next,
                None => self.next(begun).await?,
            };
            let told = next.ok_or(Fault::CutOff).flatten().and_then(|data| begun.reply.event(&data));
            if told.is_err() {
                self.put(&mut out);
            }
            piece = told?;
        }
    }

    /// Waits until the reader has room, and for the next event.
    async fn next(&self, begun: &mut Begun) -> Result<Option<Result<String, Fault>>, Fault> {
        while self.reader.room() == 0 {
            sleep(LOOK_EVERY).await;
        }
        let silence = self.upstream.options.silence;
        timeout(silence, begun.events.next()).await.map_err(|_| Fault::Silent { silence })
    }

    /// Reads on to the engine's counts, if they come at once: they are in the event behind the last token.
    async fn read_usage(&self, begun: &mut Begun) {
        let until = Instant::now() + LOOK_EVERY;
        while begun.reply.finish().is_some() && begun.reply.usage().is_none() {
            tokio::select! {
                () = sleep_until(until) => return,
                next = begun.events.next() => match next {
                    Some(Ok(data)) if begun.reply.event(&data).is_ok() => {}
                    _ => return,
                },
            }
        }
    }

    fn put(&mut self, out: &mut Vec<Written>) {
        if out.is_empty() {
            return;
        }
        let now = self.upstream.clock.now();
        self.last_at = now;
        for written in out.drain(..) {
            self.reader.event(JobEvent::Written(written));
        }
        self.reader.flush(now);
    }

    fn blame(&self, fault: &Fault) {
        self.upstream.metrics.engine_fault(&self.upstream.model, fault.as_str());
    }

    fn end(mut self, id: JobId, outcome: Outcome) {
        self.learn();
        let now = self.upstream.clock.now();
        let (reason, fault) = match &outcome {
            Outcome::Finished(Finish::Stop) => (CloseReason::Stop, None),
            Outcome::Finished(Finish::Length) => (CloseReason::Cap, None),
            Outcome::Failed(fault) => (CloseReason::Failed, Some(fault)),
            Outcome::Cancelled => (CloseReason::Cancelled, None),
            Outcome::Stopped => (CloseReason::Stopped, None),
        };
        let ms = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64() * 1e3;
        let first = self.first_at.unwrap_or(now);
        let times = SlotTimes {
            queue_ms: 0.0,
            prefill_ms: ms(self.asked_at, first),
            decode_ms: ms(first, now),
            slot_ms: ms(self.asked_at, now),
        };
        if let Some(usage) = self.usage {
            self.reader.counted(usage.prompt, usage.cached);
            self.upstream.metrics.engine_tokens(
                &self.upstream.model,
                usage.prompt,
                usage.cached,
                usage.completion,
            );
        }
        let closed = Closed { id, reason, tokens: self.writer.written(), times, speculation: None };
        self.reader.finish(&closed, fault.map(Fault::to_body));
    }

    /// Learns what prompts and tokens cost at the engines, as the optimizer must know it.
    fn learn(&self) {
        let Some(first) = self.first_at else { return };
        let cached = self.usage.map_or(0, |usage| usage.cached as usize);
        self.reader.figures.record_pass(PassSample {
            prefill_tokens: self.prompt_tokens.saturating_sub(cached),
            decode_rows: 0,
            elapsed: first.saturating_sub(self.writer_asked_at),
        });
        let tokens = u32::try_from(self.writer.written().saturating_sub(1)).unwrap_or(0);
        if tokens > 0 {
            let elapsed = self.last_at.saturating_sub(first) / tokens;
            self.reader.figures.record_pass(PassSample { prefill_tokens: 0, decode_rows: 1, elapsed });
        }
    }
}
