//! One answer as its reader sees it: events in order, and a way to cancel it.
//!
//! Always: dropping the stream cancels the answer, which frees its slot within one token. An answer is
//! written at most [`UNREAD_TOKENS_MAX`] tokens ahead of its reader, so that the unread events are bounded.
//! Events that belong into one packet come as one batch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use baton_protocol::{AssistEvent, ProgressEvent};
use tokio::sync::mpsc;

use crate::gate::Permit;
use crate::service::desk::Desk;
use crate::service::scheduler::JobId;

/// Events that are sent together.
pub(crate) type Batch = Vec<AssistEvent>;

/// The most tokens that are written ahead of a reader. Then the answer waits without a slot until half of
/// them are read.
///
/// A relay's L is far below this, so only an answer that is hardly read ever waits.
pub const UNREAD_TOKENS_MAX: usize = 256;

/// The most batches of one answer besides those of tokens: its end.
const BATCHES_BESIDES_TOKENS: usize = 2;

/// A cancel flag that both ends of an answer see, in one order with [`Progress`].
///
/// The side that sets it checks afterwards whether the answer is parked. The side that parks the answer
/// checks the flag afterwards.
#[derive(Debug, Clone, Default)]
pub(crate) struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// How many tokens of an answer are written and read, and whether it waits for its reader.
#[derive(Debug, Default)]
struct Progress {
    written: AtomicUsize,
    read: AtomicUsize,
    parked: AtomicBool,
}

impl Progress {
    fn unread(&self) -> usize {
        let read = self.read.load(Ordering::SeqCst);
        self.written.load(Ordering::SeqCst).saturating_sub(read)
    }
}

/// Records how far the reader of an answer is.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadMark {
    progress: Arc<Progress>,
    /// The desk to wake if the answer waits for this reader.
    desk: Option<Arc<Desk>>,
}

impl ReadMark {
    /// Notes that the reader has the first `tokens` tokens.
    pub(crate) fn read_up_to(&self, tokens: usize) {
        self.progress.read.fetch_max(tokens, Ordering::SeqCst);
        // The order matters: the side that parks the answer first sets `parked`, and then checks what was
        // read.
        self.wake();
    }

    /// Returns whether the answer must wait until somebody reads.
    pub(crate) fn is_full(&self) -> bool {
        self.progress.unread() >= UNREAD_TOKENS_MAX
    }

    fn wake(&self) {
        if let Some(desk) = self.desk.as_ref().filter(|_| self.progress.parked.load(Ordering::SeqCst)) {
            desk.wake();
        }
    }
}

/// Counts the tokens among events.
pub(crate) fn tokens_in(events: &[AssistEvent]) -> usize {
    let is_token = |event: &&AssistEvent| matches!(event, AssistEvent::First(_) | AssistEvent::Token(_));
    events.iter().filter(is_token).count()
}

/// The writing end. It belongs to the engine's thread and never blocks it.
#[derive(Debug)]
pub(crate) struct EventSink {
    batches: mpsc::Sender<Batch>,
    cancel: CancelFlag,
    progress: Arc<Progress>,
}

impl EventSink {
    /// Sends a batch. If the reader is gone, cancels the answer.
    pub(crate) fn send(&self, batch: Batch) {
        if batch.is_empty() {
            return;
        }
        self.progress.written.fetch_add(tokens_in(&batch), Ordering::SeqCst);
        // The channel has room for all batches that may be unread. It is full only if an answer was not
        // parked in time, which would be our bug. Then the answer is cancelled instead of blocking the
        // thread.
        if self.batches.try_send(batch).is_err() {
            self.cancel.set();
        }
    }

    pub(crate) fn cancel(&self) -> &CancelFlag {
        &self.cancel
    }

    /// Returns whether the answer waits for its reader.
    pub(crate) fn is_parked(&self) -> bool {
        self.progress.parked.load(Ordering::SeqCst)
    }

    /// Parks the answer if it is as far ahead of its reader as it may be; returns whether it did.
    pub(crate) fn park(&self) -> bool {
        if self.cancel.is_set() || self.progress.unread() < UNREAD_TOKENS_MAX {
            return false;
        }
        self.progress.parked.store(true, Ordering::SeqCst);
        // A reader that read in between did not know that the answer waits for it.
        !self.unpark()
    }

    /// Unparks the answer if its reader has read enough; returns whether it may continue.
    pub(crate) fn unpark(&self) -> bool {
        let goes_on = self.progress.unread() <= UNREAD_TOKENS_MAX / 2;
        if goes_on {
            self.progress.parked.store(false, Ordering::SeqCst);
        }
        goes_on
    }
}

/// Reports the progress of an answer that has no token yet.
#[derive(Debug, Clone)]
pub(crate) struct ProgressSource {
    desk: Arc<Desk>,
    id: JobId,
}

impl ProgressSource {
    /// Returns the current progress; `None` once it has a token.
    pub(crate) fn now(&self) -> Option<ProgressEvent> {
        self.desk.progress(self.id)
    }
}

/// Sees every event of an answer when its reader gets it. Dropped with the stream.
pub trait StreamWatch: Send + std::fmt::Debug {
    /// Called with the next event.
    fn event(&mut self, event: &AssistEvent);
}

/// The place is held as long as the answer's stream exists.
impl StreamWatch for Permit {
    fn event(&mut self, _event: &AssistEvent) {}
}

/// The reading end of one answer.
#[derive(Debug)]
pub struct AssistStream {
    id: JobId,
    batches: mpsc::Receiver<Batch>,
    ready: VecDeque<AssistEvent>,
    cancel: CancelFlag,
    mark: ReadMark,
    /// Tokens handed out; `None` if someone else reports what was read.
    read: Option<usize>,
    prompt_tokens: u64,
    model: String,
    progress: Option<ProgressSource>,
    watches: Vec<Box<dyn StreamWatch>>,
}

impl AssistStream {
    /// Makes a stream and its writing end, for an answer of at most `max_tokens`.
    pub(crate) fn new(id: JobId, max_tokens: usize) -> (EventSink, AssistStream) {
        // Each pass sends one batch; before the next pass, the answer is parked if it must be.
        let (sender, batches) = mpsc::channel(max_tokens.min(UNREAD_TOKENS_MAX) + BATCHES_BESIDES_TOKENS);
        let cancel = CancelFlag::default();
        let progress = Arc::<Progress>::default();
        let sink = EventSink { batches: sender, cancel: cancel.clone(), progress: progress.clone() };
        (
            sink,
            AssistStream {
                id,
                batches,
                ready: VecDeque::new(),
                cancel,
                mark: ReadMark { progress, desk: None },
                read: Some(0),
                prompt_tokens: 0,
                model: String::new(),
                progress: None,
                watches: Vec::new(),
            },
        )
    }

    /// Returns the sequence's id in the scheduler.
    pub fn id(&self) -> JobId {
        self.id
    }

    /// Returns the number of tokens of the prompt.
    pub fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens
    }

    pub(crate) fn set_prompt_tokens(&mut self, tokens: usize) {
        self.prompt_tokens = tokens as u64;
    }

    /// Returns the name of the model that answers.
    pub fn model(&self) -> &str {
        &self.model
    }

    pub(crate) fn set_model(&mut self, name: &str) {
        name.clone_into(&mut self.model);
    }

    /// Sets the desk to wake if the answer waits for its reader.
    pub(crate) fn wakes(&mut self, desk: Arc<Desk>) {
        self.mark.desk = Some(desk);
    }

    /// From now on, taking events out does not mean that they are read; the caller reports that with the
    /// returned mark.
    pub(crate) fn keeps_unread(&mut self) -> ReadMark {
        self.read = None;
        self.mark.clone()
    }

    /// Returns the source of its progress, if there is one.
    pub(crate) fn progress(&self) -> Option<&ProgressSource> {
        self.progress.as_ref()
    }

    pub(crate) fn set_progress(&mut self, desk: Arc<Desk>) {
        self.progress = Some(ProgressSource { desk, id: self.id });
    }

    /// Cancels the answer; an `end` event with reason `cancelled` follows.
    pub fn cancel(&self) {
        self.cancel.set();
        self.mark.wake();
    }

    /// Shows every later event to `watch`, which lives as long as the stream.
    pub fn watch(&mut self, watch: impl StreamWatch + 'static) {
        self.watches.push(Box::new(watch));
    }

    /// Waits for the next event; returns `None` after the last one.
    pub async fn next(&mut self) -> Option<AssistEvent> {
        if self.ready.is_empty() {
            self.ready.extend(self.batches.recv().await?);
        }
        self.pop()
    }

    /// Waits for the events of the next packet; returns `None` after the last one.
    pub async fn next_batch(&mut self) -> Option<Vec<AssistEvent>> {
        let mut batch = Vec::from(std::mem::take(&mut self.ready));
        if batch.is_empty() {
            batch = self.batches.recv().await?;
        }
        while let Ok(more) = self.batches.try_recv() {
            batch.extend(more);
        }
        for event in &batch {
            self.show(event);
        }
        self.mark_read(tokens_in(&batch));
        Some(batch)
    }

    /// Returns the next event if there is one already; for callers that drive the engine themselves.
    pub fn try_next(&mut self) -> Option<AssistEvent> {
        if self.ready.is_empty()
            && let Ok(batch) = self.batches.try_recv()
        {
            self.ready.extend(batch);
        }
        self.pop()
    }

    fn pop(&mut self) -> Option<AssistEvent> {
        let event = self.ready.pop_front()?;
        self.show(&event);
        self.mark_read(tokens_in(std::slice::from_ref(&event)));
        Some(event)
    }

    fn mark_read(&mut self, tokens: usize) {
        if let Some(read) = self.read.as_mut().filter(|_| tokens > 0) {
            *read += tokens;
            self.mark.read_up_to(*read);
        }
    }

    fn show(&mut self, event: &AssistEvent) {
        for watch in &mut self.watches {
            watch.event(event);
        }
    }
}

impl Drop for AssistStream {
    fn drop(&mut self) {
        self.cancel();
    }
}

#[cfg(test)]
mod tests {
    use baton_protocol::TokenEvent;

    use super::*;

    #[test]
    fn an_answer_is_parked_for_a_reader_that_is_there() {
        let full = || {
            let (sink, stream) = AssistStream::new(JobId(1), 2 * UNREAD_TOKENS_MAX);
            for index in 0..UNREAD_TOKENS_MAX as u32 {
                sink.send(vec![AssistEvent::Token(TokenEvent { index, id: 1, text: String::new() })]);
            }
            (sink, stream)
        };
        let (sink, stream) = full();
        assert!(sink.park() && sink.is_parked());
        drop(stream);
        let (sink, stream) = full();
        drop(stream);
        assert!(!sink.park() && !sink.is_parked(), "nobody would wake it");
    }
}
