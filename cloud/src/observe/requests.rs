//! A bounded record of this replica's requests: those that run, and the last ones that ended.
//!
//! Never: holds a word of a prompt or of an answer, or a key. Always: a request that runs is listed until it
//! ends, and at most [`ENDED_MAX`] ended ones are kept. The lock is taken when a request begins and ends, not
//! for its tokens. A request that is refused before it waits is not kept.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use baton_generate::unread::CancelFlag;
use uuid::Uuid;

/// The most ended requests that are kept.
pub const ENDED_MAX: usize = 2000;

/// A time that is not known yet.
const UNKNOWN: u64 = u64::MAX;

/// The requests of one replica.
#[derive(Default)]
pub struct RequestBook(Mutex<Kept>);

impl std::fmt::Debug for RequestBook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestBook").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Kept {
    /// Number of the next request.
    next: u64,
    running: BTreeMap<u64, Running>,
    /// The last to end is the last here.
    ended: VecDeque<Arc<Record>>,
}

struct Running {
    record: Arc<Record>,
    cancel: CancelFlag,
}

/// Who asked, as a digest of the credentials, and the `request_id`.
pub(crate) type RequestKey = ([u8; 32], Uuid);

/// What is known of a request when it begins to wait.
#[derive(Debug, Clone, Default)]
pub(crate) struct NewRequest {
    pub(crate) id: String,
    /// By which its client ends it; `None` if it cannot.
    pub(crate) key: Option<RequestKey>,
    pub(crate) tenant: String,
    pub(crate) scene: Option<String>,
    pub(crate) arm: Option<String>,
    pub(crate) model: String,
    pub(crate) prompt_tokens: usize,
    pub(crate) max_tokens: usize,
    /// When it arrived, by the service's clock.
    pub(crate) arrived_at: Duration,
    /// When it arrived, in milliseconds since 1970.
    pub(crate) arrived_ms: i64,
}

/// How a request ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestEnd {
    pub(crate) outcome: &'static str,
    pub(crate) tokens: usize,
    pub(crate) queue: Duration,
    pub(crate) prefill: Duration,
    pub(crate) decode: Duration,
}

/// One request. Its reader writes the numbers, and others read them at any time.
#[derive(Debug)]
struct Record {
    number: u64,
    begun: NewRequest,
    prompt_tokens: AtomicUsize,
    max_tokens: AtomicUsize,
    tokens: AtomicUsize,
    /// Microseconds from arrival to slot.
    opened_us: AtomicU64,
    /// Microseconds from arrival to the first token.
    first_us: AtomicU64,
    /// The engine elsewhere that writes.
    engine: OnceLock<String>,
    /// Whether an operator has cancelled it.
    is_cancelled: AtomicBool,
    end: OnceLock<RequestEnd>,
}

/// The state of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestState {
    /// It waits for a slot.
    Waiting,
    /// Its prompt is computed.
    Prefill,
    /// Its answer is written.
    Writing,
    /// It has ended.
    Ended,
}

impl RequestState {
    /// Returns its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            RequestState::Waiting => "waiting",
            RequestState::Prefill => "prefill",
            RequestState::Writing => "writing",
            RequestState::Ended => "ended",
        }
    }
}

/// One request as it is now.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestEntry {
    /// Its id, as in the log.
    pub id: String,
    /// Its tenant; empty if it has none.
    pub tenant: String,
    /// Its scene; `None` for the chat API.
    pub scene: Option<String>,
    /// Experiment and arm, as `EXPERIMENT/ARM`; `None` if it takes part in none.
    pub arm: Option<String>,
    /// The model.
    pub model: String,
    /// The engine elsewhere that writes; `None` if there is none, or none has begun.
    pub engine: Option<String>,
    /// When it arrived, in milliseconds since 1970.
    pub arrived_ms: i64,
    /// Time since its arrival, or from its arrival to its end.
    pub elapsed: Duration,
    /// Its state.
    pub state: RequestState,
    /// How it ended: `stop`, `cap`, `cancelled`, `failed`, `expired` or `stopped`.
    pub outcome: Option<&'static str>,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// The most tokens that the cloud writes: L of an assist request.
    pub max_tokens: usize,
    /// Tokens written.
    pub tokens: usize,
    /// Time from arrival to slot.
    pub queue: Option<Duration>,
    /// Time from slot to first token.
    pub prefill: Option<Duration>,
    /// Time from first token to end.
    pub decode: Option<Duration>,
}

/// Which requests are asked for. What is `None` or empty is not looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestQuery {
    /// Whether they have ended.
    pub ended: Option<bool>,
    /// How their ids begin.
    pub id: String,
    /// Their tenant.
    pub tenant: Option<String>,
    /// Their scene.
    pub scene: Option<String>,
    /// Their model.
    pub model: Option<String>,
    /// The most that are returned.
    pub limit: usize,
}

/// Requests that were found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RequestsFound {
    /// Those that run come first; of each kind the newest comes first.
    pub requests: Vec<RequestEntry>,
    /// Whether there are more than were asked for.
    pub has_more: bool,
    /// How many run on this replica, all together.
    pub running: usize,
    /// How many ended ones are kept, all together.
    pub ended: usize,
}

/// What is known of the requests of one id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownRequests {
    /// This many requests of the id run.
    Running(usize),
    /// A request of the id has ended, and none runs.
    Ended,
    /// This replica knows no request of the id.
    Unknown,
}

impl RequestBook {
    /// Lists a request that begins to wait.
    pub(crate) fn begin(self: &Arc<RequestBook>, begun: NewRequest, cancel: CancelFlag) -> LiveRequest {
        let mut kept = self.lock();
        let number = kept.next;
        kept.next += 1;
        let record = Arc::new(Record {
            number,
            prompt_tokens: AtomicUsize::new(begun.prompt_tokens),
            max_tokens: AtomicUsize::new(begun.max_tokens),
            tokens: AtomicUsize::new(0),
            opened_us: AtomicU64::new(UNKNOWN),
            first_us: AtomicU64::new(UNKNOWN),
            engine: OnceLock::new(),
            is_cancelled: AtomicBool::new(false),
            end: OnceLock::new(),
            begun,
        });
        kept.running.insert(number, Running { record: record.clone(), cancel });
        drop(kept);
        LiveRequest { book: self.clone(), record }
    }

    /// Returns requests as they are at `now`, by the service's clock.
    #[must_use]
    pub fn find(&self, query: &RequestQuery, now: Duration) -> RequestsFound {
        let kept = self.lock();
        let (running, ended) = (kept.running.len(), kept.ended.len());
        let mut records: Vec<Arc<Record>> = Vec::new();
        if query.ended != Some(true) {
            records.extend(kept.running.values().rev().map(|running| running.record.clone()));
        }
        if query.ended != Some(false) {
            records.extend(kept.ended.iter().rev().cloned());
        }
        drop(kept);
        let mut matching = records.iter().filter(|record| record.matches(query));
        let requests = matching.by_ref().take(query.limit).map(|record| record.entry(now)).collect();
        RequestsFound { requests, has_more: matching.next().is_some(), running, ended }
    }

    /// Returns the newest request of exactly this id. One that runs comes before those that ended.
    #[must_use]
    pub fn get(&self, id: &str, now: Duration) -> Option<RequestEntry> {
        let kept = self.lock();
        let mut running = kept.running.values().rev().map(|running| &running.record);
        let found = running.find(|record| record.begun.id == id);
        let found = found.or_else(|| kept.ended.iter().rev().find(|record| record.begun.id == id)).cloned();
        drop(kept);
        found.map(|record| record.entry(now))
    }

    /// Returns what is known of requests of exactly this id.
    #[must_use]
    pub fn known(&self, id: &str) -> KnownRequests {
        let kept = self.lock();
        let running = kept.running.values().filter(|running| running.record.begun.id == id).count();
        match running {
            0 if kept.ended.iter().any(|record| record.begun.id == id) => KnownRequests::Ended,
            0 => KnownRequests::Unknown,
            running => KnownRequests::Running(running),
        }
    }

    /// Sets the cancel flag of every running request of exactly this id; returns their number. Clients choose
    /// ids, so there may be several. Their hosts must be woken then.
    pub fn cancel(&self, id: &str) -> usize {
        let kept = self.lock();
        let mut cancelled = 0;
        for running in kept.running.values().filter(|running| running.record.begun.id == id) {
            running.record.is_cancelled.store(true, Ordering::Relaxed);
            running.cancel.set();
            cancelled += 1;
        }
        cancelled
    }

    /// Sets the cancel flag of every running request of this key; returns their number. Their hosts must be
    /// woken then.
    pub(crate) fn end(&self, key: RequestKey) -> usize {
        let kept = self.lock();
        let of_key = kept.running.values().filter(|running| running.record.begun.key == Some(key));
        of_key.map(|running| running.cancel.set()).count()
    }

    /// Takes a request off those that run. If it has ended and was not refused, keeps it among those that
    /// ended.
    fn close(&self, number: u64) {
        let mut kept = self.lock();
        let Some(Running { record, .. }) = kept.running.remove(&number) else { return };
        if record.end.get().is_some() {
            if kept.ended.len() == ENDED_MAX {
                kept.ended.pop_front();
            }
            kept.ended.push_back(record);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().expect("nothing panics while the requests are locked")
    }
}

impl Record {
    fn matches(&self, query: &RequestQuery) -> bool {
        let begun = &self.begun;
        let is = |asked: &Option<String>, value: &str| asked.as_ref().is_none_or(|asked| asked == value);
        let scene = query.scene.is_none() || query.scene == begun.scene;
        let named = is(&query.tenant, &begun.tenant) && is(&query.model, &begun.model);
        scene && named && begun.id.starts_with(&query.id)
    }

    fn entry(&self, now: Duration) -> RequestEntry {
        let known = |micros: &AtomicU64| {
            let micros = micros.load(Ordering::Acquire);
            (micros != UNKNOWN).then(|| Duration::from_micros(micros))
        };
        let (opened, first, end) = (known(&self.opened_us), known(&self.first_us), self.end.get());
        let begun = &self.begun;
        let state = match (end, first, opened) {
            (Some(_), ..) => RequestState::Ended,
            (None, Some(_), _) => RequestState::Writing,
            (None, None, Some(_)) => RequestState::Prefill,
            (None, None, None) => RequestState::Waiting,
        };
        let (queue, prefill, decode) = match end {
            Some(end) => (
                Some(end.queue),
                opened.is_some().then_some(end.prefill),
                (end.tokens > 0).then_some(end.decode),
            ),
            None => (opened, first.map(|first| first.saturating_sub(opened.unwrap_or_default())), None),
        };
        let elapsed = end
            .map_or_else(|| now.saturating_sub(begun.arrived_at), |end| end.queue + end.prefill + end.decode);
        RequestEntry {
            id: begun.id.clone(),
            tenant: begun.tenant.clone(),
            scene: begun.scene.clone(),
            arm: begun.arm.clone(),
            model: begun.model.clone(),
            engine: self.engine.get().cloned(),
            arrived_ms: begun.arrived_ms,
            elapsed,
            state,
            outcome: end.map(|end| end.outcome),
            prompt_tokens: self.prompt_tokens.load(Ordering::Relaxed),
            max_tokens: self.max_tokens.load(Ordering::Relaxed),
            tokens: end.map_or_else(|| self.tokens.load(Ordering::Relaxed), |end| end.tokens),
            queue,
            prefill,
            decode,
        }
    }

    /// Sets a time that is set once.
    fn at(&self, time: &AtomicU64, now: Duration) {
        let micros = now.saturating_sub(self.begun.arrived_at).as_micros();
        let micros = u64::try_from(micros).unwrap_or(UNKNOWN - 1);
        // Only the reader writes.
        if time.load(Ordering::Relaxed) == UNKNOWN {
            time.store(micros, Ordering::Release);
        }
    }
}

/// The record of a request, for its reader. When it is dropped, the request runs no more.
#[derive(Debug)]
pub(crate) struct LiveRequest {
    book: Arc<RequestBook>,
    record: Arc<Record>,
}

impl LiveRequest {
    /// It has a slot, and at most this many tokens are written.
    pub(crate) fn opened(&self, now: Duration, max_tokens: usize) {
        self.record.max_tokens.store(max_tokens, Ordering::Relaxed);
        self.record.at(&self.record.opened_us, now);
    }

    /// This many tokens are written.
    pub(crate) fn wrote(&self, now: Duration, tokens: usize) {
        if tokens > 0 {
            self.record.tokens.store(tokens, Ordering::Relaxed);
            self.record.at(&self.record.first_us, now);
        }
    }

    /// This engine writes the answer.
    pub(crate) fn written_by(&self, engine: &str) {
        self.record.engine.get_or_init(|| engine.to_owned());
    }

    /// The engine has counted the prompt's tokens.
    pub(crate) fn counted(&self, prompt_tokens: usize) {
        self.record.prompt_tokens.store(prompt_tokens, Ordering::Relaxed);
    }

    /// Returns whether an operator has cancelled it.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.record.is_cancelled.load(Ordering::Relaxed)
    }

    /// It has ended.
    pub(crate) fn ended(&self, end: RequestEnd) {
        self.record.end.get_or_init(|| end);
        self.book.close(self.record.number);
    }
}

impl Drop for LiveRequest {
    fn drop(&mut self) {
        self.book.close(self.record.number);
    }
}

#[cfg(test)]
mod tests;
