//! Keeps answers whose readers may come back: while they are written, and ten seconds beyond.
//!
//! A request with `resume` goes on without its reader, up to [`crate::service::stream::UNREAD_TOKENS_MAX`]
//! unread tokens like any answer. If no reader comes for ten seconds it ends, whether it waits for a slot,
//! computes its prompt or writes. Its events stay here: `GET /v1/assist/{id}` with `Last-Event-ID` continues
//! after the last event seen. The same request sent again gets the same stream. A request that its client has
//! ended is remembered as long, so that it does not begin if it comes behind its end. Always: bounded in
//! number and bytes. Ended answers are dropped first, and an answer for which there is no room is not kept.
//! An answer is found only with the key that asked for it.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::http::{HeaderMap, header};
use baton_generate::unread::ReadMark;
use baton_protocol::AssistEvent;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use super::sse::is_terminal;
use crate::service::stream::{AssistStream, ProgressSource, tokens_in};

/// Limits of all kept answers together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct KeptLimits {
    /// The most answers.
    pub(super) answers_max: usize,
    /// The most bytes of their events.
    pub(super) bytes_max: usize,
    /// How long an answer is kept after its end, and how long it goes on without a reader.
    pub(super) after_end: Duration,
}

impl Default for KeptLimits {
    fn default() -> KeptLimits {
        KeptLimits { answers_max: 1024, bytes_max: 64 << 20, after_end: Duration::from_secs(10) }
    }
}

/// The owner of an answer: a digest of the credentials that asked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Owner([u8; 32]);

impl Owner {
    pub(super) fn of(headers: &HeaderMap) -> Owner {
        let sent = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
        Owner(Sha256::digest(sent).into())
    }

    /// Returns the digest.
    pub(super) fn digest(self) -> [u8; 32] {
        self.0
    }
}

/// The request of an answer: a digest of its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked([u8; 32]);

impl Asked {
    pub(super) fn by(body: &[u8]) -> Asked {
        Asked(Sha256::digest(body).into())
    }
}

type Name = (Owner, Uuid);

/// The most events that a reader takes at once. A client that reconnects many times and never reads then does
/// not hold a whole answer each time.
const BATCH_EVENTS_MAX: usize = 256;

/// The kept answers of one service.
#[derive(Debug, Clone, Default)]
pub(super) struct KeptAnswers {
    limits: KeptLimits,
    book: Arc<Mutex<Book>>,
}

#[derive(Debug, Default)]
struct Book {
    answers: HashMap<Name, Arc<Kept>>,
    bytes: usize,
}

/// One kept answer.
#[derive(Debug)]
struct Kept {
    /// `None` if the client has ended the request: nobody finds its answer any more.
    asked: Option<Asked>,
    state: Mutex<State>,
    /// How far the furthest reader has read.
    mark: ReadMark,
    progress: Option<ProgressSource>,
    /// The number of events.
    count: watch::Sender<usize>,
    /// Readers that have come so far.
    readers: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    events: Vec<AssistEvent>,
    bytes: usize,
    ended_at: Option<Instant>,
}

/// A reader of a kept answer. Dropping it does not cancel the answer.
#[derive(Debug)]
pub(super) struct KeptReader {
    kept: Arc<Kept>,
    count: watch::Receiver<usize>,
    next: usize,
    /// Tokens among the events before `next`.
    tokens: usize,
    /// Index of the last token that the reader has seen.
    seen: Option<u32>,
}

impl KeptAnswers {
    pub(super) fn new(limits: KeptLimits) -> KeptAnswers {
        KeptAnswers { limits, book: Arc::default() }
    }

    /// Returns a reader of the answer with this id, starting after the token `seen`.
    pub(super) fn find(&self, owner: Owner, id: Uuid, seen: Option<u32>) -> Option<KeptReader> {
        let kept = self.lock().answers.get(&(owner, id)).cloned()?;
        kept.asked?;
        Some(Kept::reader(kept, seen))
    }

    /// Notes that the client has ended this request. What is kept of its answer is forgotten. Whoever reads
    /// it reads on.
    pub(super) fn end(&self, owner: Owner, id: Uuid) {
        let name = (owner, id);
        let mut book = self.lock();
        book.forget_old_ends(self.limits.after_end);
        if let Some(kept) = book.answers.get(&name).cloned() {
            book.forget(name, &kept);
        }
        if book.answers.len() < self.limits.answers_max || book.drop_ended(owner) {
            book.answers.insert(name, Arc::new(Kept::ended()));
        }
    }

    /// Returns whether the client has ended this request, within the time that ended answers are kept.
    pub(super) fn is_ended(&self, owner: Owner, id: Uuid) -> bool {
        let mut book = self.lock();
        book.forget_old_ends(self.limits.after_end);
        book.answers.get(&(owner, id)).is_some_and(|kept| kept.asked.is_none())
    }

    /// Keeps an answer if there is room, and returns a reader from its beginning. Returns the answer itself
    /// if there is no room, or if another request has the same id.
    ///
    /// If the same request came meanwhile, returns a reader of that answer and drops this one. Must be called
    /// within a runtime, because it spawns the task that records the events.
    pub(super) fn keep(
        &self,
        owner: Owner,
        id: Uuid,
        asked: Asked,
        mut answer: AssistStream,
    ) -> Result<KeptReader, Box<AssistStream>> {
        let name = (owner, id);
        let kept;
        {
            let mut book = self.lock();
            if let Some(there) = book.answers.get(&name) {
                let same = there.asked == Some(asked);
                return if same { Ok(Kept::reader(there.clone(), None)) } else { Err(Box::new(answer)) };
            }
            if book.answers.len() >= self.limits.answers_max && !book.drop_ended(owner) {
                return Err(Box::new(answer));
            }
            let (mark, progress) = (answer.keeps_unread(), answer.progress().cloned());
            kept = Arc::new(Kept { mark, progress, ..Kept::new(Some(asked)) });
            book.answers.insert(name, kept.clone());
        }
        let reader = Kept::reader(kept.clone(), None);
        tokio::spawn(self.clone().write_down(name, kept, answer));
        Ok(reader)
    }

    /// Records an answer until its end, and forgets it `after_end` later.
    async fn write_down(self, name: Name, kept: Arc<Kept>, answer: AssistStream) {
        self.take_over(name, &kept, answer).await;
        kept.end();
        tokio::time::sleep(self.limits.after_end).await;
        self.lock().forget(name, &kept);
    }

    /// Records every event of an answer. Cancels the answer if it is abandoned.
    async fn take_over(&self, name: Name, kept: &Arc<Kept>, mut answer: AssistStream) {
        // One wait for the whole answer: it does not begin again with each event.
        let mut abandoned = pin!(kept.abandoned(self.limits.after_end));
        let mut is_abandoned = false;
        loop {
            let batch = tokio::select! {
                batch = answer.next_batch() => batch,
                () = &mut abandoned, if !is_abandoned => {
                    answer.cancel();
                    is_abandoned = true;
                    continue;
                }
            };
            let Some(batch) = batch else { return };
            self.count_bytes(name, kept, batch.iter().map(bytes_of).sum());
            if batch.last().is_some_and(is_terminal) {
                // Dropped first, so that its tenant's quota is free when the reader receives the end.
                drop(answer);
                return kept.add(batch);
            }
            kept.add(batch);
        }
    }

    /// Makes room for an answer's new events. If there is no room, forgets the answer, so that new readers do
    /// not find it.
    fn count_bytes(&self, name: Name, kept: &Arc<Kept>, bytes: usize) {
        let mut book = self.lock();
        if !book.holds(name, kept) {
            return;
        }
        while book.bytes + bytes > self.limits.bytes_max {
            if !book.drop_ended(name.0) {
                return book.forget(name, kept);
            }
        }
        book.bytes += bytes;
        kept.lock().bytes += bytes;
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect(POISONED)
    }
}

impl Book {
    fn holds(&self, name: Name, kept: &Arc<Kept>) -> bool {
        self.answers.get(&name).is_some_and(|there| Arc::ptr_eq(there, kept))
    }

    fn forget(&mut self, name: Name, kept: &Arc<Kept>) {
        if self.holds(name, kept) {
            self.answers.remove(&name);
            self.bytes -= kept.lock().bytes;
        }
    }

    /// Forgets requests that their clients ended longer ago than this.
    fn forget_old_ends(&mut self, after: Duration) {
        let is_old = |kept: &Kept| kept.lock().ended_at.is_some_and(|at| at.elapsed() >= after);
        self.answers.retain(|_, kept| kept.asked.is_some() || !is_old(kept));
    }

    /// Forgets the answer that ended first: this owner's answers before those of others. Returns false if no
    /// answer has ended.
    fn drop_ended(&mut self, owner: Owner) -> bool {
        let ended = self.answers.iter().filter_map(|(name, kept)| Some((kept.lock().ended_at?, *name)));
        let first = ended.min_by_key(|(at, name)| (name.0 != owner, *at));
        let Some((_, name)) = first else { return false };
        if let Some(kept) = self.answers.remove(&name) {
            self.bytes -= kept.lock().bytes;
        }
        true
    }
}

impl Kept {
    fn new(asked: Option<Asked>) -> Kept {
        Kept {
            asked,
            state: Mutex::default(),
            mark: ReadMark::default(),
            progress: None,
            count: watch::Sender::new(0),
            readers: AtomicUsize::new(0),
        }
    }

    /// Makes what stands for a request that its client has ended.
    fn ended() -> Kept {
        let kept = Kept::new(None);
        kept.end();
        kept
    }

    fn reader(kept: Arc<Kept>, seen: Option<u32>) -> KeptReader {
        let count = kept.count.subscribe();
        kept.readers.fetch_add(1, Ordering::Relaxed);
        KeptReader { kept, count, next: 0, tokens: 0, seen }
    }

    /// Returns once the answer has had no reader for this long.
    async fn abandoned(&self, wait: Duration) {
        loop {
            self.count.closed().await;
            let came = self.readers.load(Ordering::Relaxed);
            tokio::time::sleep(wait).await;
            // A reader may have come and gone meanwhile.
            if self.readers.load(Ordering::Relaxed) == came && self.count.receiver_count() == 0 {
                return;
            }
        }
    }

    fn add(&self, batch: Vec<AssistEvent>) {
        let mut state = self.lock();
        state.events.extend(batch);
        self.count.send_replace(state.events.len());
    }

    fn end(&self) {
        let mut state = self.lock();
        state.ended_at = Some(Instant::now());
        self.count.send_replace(state.events.len());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect(POISONED)
    }
}

impl KeptReader {
    /// Returns whether this is the answer to that request.
    pub(super) fn answers(&self, asked: Asked) -> bool {
        self.kept.asked == Some(asked)
    }

    /// Returns the source of the answer's progress, if it has one.
    pub(super) fn progress(&self) -> Option<&ProgressSource> {
        self.kept.progress.as_ref()
    }

    /// Waits for the events of the next packet. Returns `None` after the last one.
    pub(super) async fn next_batch(&mut self) -> Option<Vec<AssistEvent>> {
        loop {
            {
                let state = self.kept.lock();
                let end = state.events.len().min(self.next + BATCH_EVENTS_MAX);
                let new = &state.events[self.next..end];
                self.next = end;
                self.tokens += tokens_in(new);
                self.kept.mark.read_up_to(self.tokens);
                let wanted: Vec<AssistEvent> =
                    new.iter().filter(|event| self.wants(event)).cloned().collect();
                if !wanted.is_empty() {
                    return Some(wanted);
                }
                if self.next < state.events.len() {
                    continue;
                }
                if state.ended_at.is_some() {
                    return None;
                }
                // Marked under the lock, so that any later change wakes the wait below.
                self.count.mark_unchanged();
            }
            self.count.changed().await.ok()?;
        }
    }

    /// Returns whether the reader still needs this event. A reader that has seen a token has seen the mask,
    /// which comes before it, but not the end.
    fn wants(&self, event: &AssistEvent) -> bool {
        let Some(seen) = self.seen else { return true };
        match event {
            AssistEvent::Progress(_) | AssistEvent::Mask(_) => false,
            AssistEvent::First(_) | AssistEvent::Token(_) => event.index().is_some_and(|index| index > seen),
            AssistEvent::End(_) | AssistEvent::Error(_) => true,
        }
    }
}

/// Estimates the bytes of an event: its text and its fixed part.
fn bytes_of(event: &AssistEvent) -> usize {
    let own = match event {
        AssistEvent::Mask(mask) => mask.data.len(),
        AssistEvent::First(first) => first.text.len(),
        AssistEvent::Token(token) => token.text.len(),
        AssistEvent::Progress(_) | AssistEvent::End(_) | AssistEvent::Error(_) => 0,
    };
    own + size_of::<AssistEvent>()
}

const POISONED: &str = "nothing panics while it holds this lock";

#[cfg(test)]
mod tests;
