//! Keeps answers whose readers may come back: while they are written, and ten seconds beyond.
//!
//! A request with `resume` goes on without its reader, up to [`crate::service::stream::UNREAD_TOKENS_MAX`]
//! unread tokens like any answer. Then it waits without a slot, and ends if no reader comes for ten
//! seconds. Its events stay here: `GET /v1/assist/{id}` with `Last-Event-ID` continues after the last event
//! seen. The same request sent again gets the same stream. Always: bounded in number and bytes. Ended
//! answers are dropped first, and an answer for which there is no room is not kept. An answer is found only
//! with the key that asked for it.

use std::collections::HashMap;
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
    /// How long an answer is kept after its end, and how long a full answer waits for a reader.
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
    asked: Asked,
    state: Mutex<State>,
    /// How far the furthest reader has read.
    mark: ReadMark,
    progress: Option<ProgressSource>,
    /// The number of events.
    count: watch::Sender<usize>,
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
        Some(Kept::reader(kept, seen))
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
                let same = there.asked == asked;
                return if same { Ok(Kept::reader(there.clone(), None)) } else { Err(Box::new(answer)) };
            }
            if book.answers.len() >= self.limits.answers_max && !book.drop_ended(owner) {
                return Err(Box::new(answer));
            }
            let (mark, progress) = (answer.keeps_unread(), answer.progress().cloned());
            let count = watch::Sender::new(0);
            kept = Arc::new(Kept { asked, state: Mutex::default(), mark, progress, count });
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
        loop {
            let batch = tokio::select! {
                batch = answer.next_batch() => batch,
                () = kept.abandoned(self.limits.after_end) => {
                    answer.cancel();
                    answer.next_batch().await
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
    fn reader(kept: Arc<Kept>, seen: Option<u32>) -> KeptReader {
        let count = kept.count.subscribe();
        KeptReader { kept, count, next: 0, tokens: 0, seen }
    }

    /// Returns once the answer is full and has had no reader for this long.
    async fn abandoned(&self, wait: Duration) {
        loop {
            self.count.closed().await;
            tokio::time::sleep(wait).await;
            if self.mark.is_full() && self.count.receiver_count() == 0 {
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
        self.kept.asked == asked
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
mod tests {
    use super::*;
    use crate::service::stream::{EventSink, UNREAD_TOKENS_MAX};
    use baton_generate::scheduler::JobId;
    use baton_protocol::{EndEvent, EndReason, TokenEvent};

    const ID: Uuid = Uuid::from_u128(1);
    const ASKED: Asked = Asked([7; 32]);

    fn owner(key: &str) -> Owner {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
        Owner::of(&headers)
    }

    fn token(index: u32) -> AssistEvent {
        AssistEvent::Token(TokenEvent { index, id: 7, text: "x".into() })
    }

    fn end() -> AssistEvent {
        AssistEvent::End(EndEvent { reason: EndReason::Cap, usage: Default::default(), timing: None })
    }

    fn answer() -> (EventSink, AssistStream) {
        AssistStream::new(JobId(1), 100, None)
    }

    async fn rest(reader: &mut KeptReader) -> Vec<AssistEvent> {
        let mut events = Vec::new();
        while let Some(batch) = reader.next_batch().await {
            events.extend(batch);
        }
        events
    }

    #[tokio::test]
    async fn an_answer_goes_on_without_its_reader_and_is_taken_up_again() {
        let kept = KeptAnswers::default();
        let (sink, stream) = answer();
        let mut reader = kept.keep(owner("a"), ID, ASKED, stream).unwrap();
        sink.send(vec![token(0), token(1)]);
        assert_eq!(reader.next_batch().await.unwrap(), [token(0), token(1)]);
        drop(reader);
        sink.send(vec![token(2)]);
        assert!(!sink.cancel().is_set(), "nobody reads, and it goes on");
        let mut again = kept.find(owner("a"), ID, Some(0)).unwrap();
        assert_eq!(again.next_batch().await.unwrap()[0], token(1));
        sink.send(vec![token(3), end()]);
        drop(sink);
        assert_eq!(rest(&mut again).await.last(), Some(&end()));
        // Another key, another id, and then the whole stream again.
        assert!(kept.find(owner("b"), ID, None).is_none());
        assert!(kept.find(owner("a"), Uuid::from_u128(2), None).is_none());
        let mut whole = kept.find(owner("a"), ID, None).unwrap();
        assert_eq!(rest(&mut whole).await, [token(0), token(1), token(2), token(3), end()]);
        let mut only_end = kept.find(owner("a"), ID, Some(3)).unwrap();
        assert_eq!(rest(&mut only_end).await, [end()]);
        assert!(kept.lock().bytes > 0);
    }

    /// Something that lives as long as an answer's stream.
    #[derive(Debug)]
    struct Place(#[expect(dead_code, reason = "its end is what counts")] tokio::sync::oneshot::Sender<()>);

    impl crate::service::stream::StreamWatch for Place {
        fn event(&mut self, _: &AssistEvent) {}
    }

    #[tokio::test]
    async fn a_place_is_free_when_the_reader_hears_of_the_end() {
        let kept = KeptAnswers::default();
        let (sink, mut stream) = answer();
        let (place, mut free) = tokio::sync::oneshot::channel();
        stream.watch(Place(place));
        let mut reader = kept.keep(owner("a"), ID, ASKED, stream).unwrap();
        sink.send(vec![token(0)]);
        assert_eq!(reader.next_batch().await.unwrap(), [token(0)]);
        assert_eq!(free.try_recv(), Err(tokio::sync::oneshot::error::TryRecvError::Empty));
        sink.send(vec![token(1), end()]);
        assert_eq!(reader.next_batch().await.unwrap(), [token(1), end()]);
        assert_eq!(free.try_recv(), Err(tokio::sync::oneshot::error::TryRecvError::Closed));
        assert!(kept.find(owner("a"), ID, None).is_some(), "and the answer is still kept");
    }

    #[tokio::test]
    async fn an_answer_that_is_full_and_has_no_reader_is_given_up() {
        let soon = KeptLimits { after_end: Duration::from_millis(1), ..KeptLimits::default() };
        let tokens = |from: u32, n: usize| (from..).take(n).map(token).collect::<Vec<_>>();
        let kept = KeptAnswers::new(soon);
        let (sink, stream) = AssistStream::new(JobId(1), 1000, None);
        let mut reader = kept.keep(owner("a"), ID, ASKED, stream).unwrap();
        sink.send(tokens(0, UNREAD_TOKENS_MAX - 1));
        assert!(!sink.unread().park(), "it may write one more");
        sink.send(tokens(UNREAD_TOKENS_MAX as u32 - 1, 1));
        assert!(sink.unread().park() && sink.unread().is_parked() && !sink.unread().unpark());
        // Its reader reads, so it can go on.
        assert_eq!(reader.next_batch().await.unwrap().len(), BATCH_EVENTS_MAX);
        assert!(sink.unread().unpark() && !sink.unread().is_parked());
        drop(reader);
        sink.send(tokens(UNREAD_TOKENS_MAX as u32, UNREAD_TOKENS_MAX));
        assert!(sink.unread().park());
        let given_up = async {
            while !sink.cancel().is_set() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), given_up).await.expect("nobody comes");
    }

    #[tokio::test]
    async fn what_has_ended_is_forgotten() {
        let soon = KeptLimits { after_end: Duration::from_millis(1), ..KeptLimits::default() };
        let kept = KeptAnswers::new(soon);
        let (sink, stream) = answer();
        let _reader = kept.keep(owner("a"), ID, ASKED, stream).unwrap();
        sink.send(vec![token(0), end()]);
        drop(sink);
        let gone = async {
            while kept.find(owner("a"), ID, None).is_some() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), gone).await.expect("it is forgotten");
        assert_eq!(kept.lock().bytes, 0);
    }

    #[tokio::test]
    async fn a_name_stands_for_one_answer() {
        let kept = KeptAnswers::default();
        let ((first, first_stream), (second, second_stream)) = (answer(), answer());
        let _one = kept.keep(owner("a"), ID, ASKED, first_stream).unwrap();
        let mut two = kept.keep(owner("a"), ID, ASKED, second_stream).unwrap();
        assert!(second.cancel().is_set(), "the later one is given up");
        first.send(vec![token(0), end()]);
        drop(first);
        assert_eq!(rest(&mut two).await, [token(0), end()]);
        // Another request with the same id gets no part of it.
        let (_other, other_stream) = answer();
        assert!(kept.keep(owner("a"), ID, Asked([8; 32]), other_stream).is_err());
        let reader = kept.find(owner("a"), ID, None).unwrap();
        assert!(reader.answers(ASKED) && !reader.answers(Asked([8; 32])));
    }

    #[tokio::test]
    async fn what_is_kept_is_bounded() {
        let limits = KeptLimits { answers_max: 2, ..KeptLimits::default() };
        let kept = KeptAnswers::new(limits);
        let (running, stream) = answer();
        let _running = kept.keep(owner("a"), Uuid::from_u128(1), ASKED, stream).unwrap();
        let (ended, stream) = answer();
        let mut ended_reader = kept.keep(owner("a"), Uuid::from_u128(2), ASKED, stream).unwrap();
        let (third, stream) = answer();
        let Err(stream) = kept.keep(owner("a"), Uuid::from_u128(3), ASKED, stream) else {
            panic!("both run")
        };
        ended.send(vec![end()]);
        drop(ended);
        rest(&mut ended_reader).await;
        assert!(
            kept.keep(owner("a"), Uuid::from_u128(3), ASKED, *stream).is_ok(),
            "what has ended gives way"
        );
        assert!(kept.find(owner("a"), Uuid::from_u128(2), None).is_none());
        drop((running, third));

        // The owner who fills the room loses an answer first, even if another owner's answer ended earlier.
        let kept = KeptAnswers::new(limits);
        for (key, id) in [("a", 1), ("b", 2)] {
            let (sink, stream) = answer();
            let mut reader = kept.keep(owner(key), Uuid::from_u128(id), ASKED, stream).unwrap();
            sink.send(vec![end()]);
            drop(sink);
            rest(&mut reader).await;
        }
        let (_sink, stream) = answer();
        let _third = kept.keep(owner("b"), Uuid::from_u128(3), ASKED, stream).unwrap();
        assert!(kept.find(owner("a"), Uuid::from_u128(1), None).is_some());
        assert!(kept.find(owner("b"), Uuid::from_u128(2), None).is_none());

        let one = bytes_of(&token(0));
        let kept = KeptAnswers::new(KeptLimits { bytes_max: 2 * one, ..KeptLimits::default() });
        let (sink, stream) = answer();
        let mut reader = kept.keep(owner("a"), ID, ASKED, stream).unwrap();
        sink.send(vec![token(0), token(1)]);
        reader.next_batch().await.unwrap();
        sink.send(vec![token(2), end()]);
        drop(sink);
        assert_eq!(rest(&mut reader).await, [token(2), end()], "its reader sees everything");
        assert!(kept.find(owner("a"), ID, None).is_none(), "but nobody else does");
        assert_eq!(kept.lock().bytes, 0);
    }
}
