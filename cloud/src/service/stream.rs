//! One answer as its reader sees it: events in order, and a way to cancel it.
//!
//! Always: dropping the stream cancels the answer, which frees its slot within one token. An answer is
//! written at most [`UNREAD_TOKENS_MAX`] tokens ahead of its reader, so that the unread events are bounded.
//! Events that belong into one packet come as one batch.

use std::collections::VecDeque;
use std::time::Duration;

use baton_generate::host::HostHandle;
use baton_generate::scheduler::{JobId, Progress};
use baton_generate::unread::{CancelFlag, ReadMark, Unread};
use baton_protocol::{AssistEvent, ProgressEvent, ProgressStage};
use tokio::sync::mpsc;

use crate::gate::Permit;

/// Events that are sent together.
pub(crate) type Batch = Vec<AssistEvent>;

/// The most tokens that are written ahead of a reader. Then the answer waits without a slot until half of
/// them are read.
///
/// A relay's L is far below this, so only an answer that is hardly read ever waits.
pub const UNREAD_TOKENS_MAX: usize = 256;

/// The most batches of one answer besides those of tokens: its end.
const BATCHES_BESIDES_TOKENS: usize = 2;

/// Counts the tokens among events.
pub(crate) fn tokens_in(events: &[AssistEvent]) -> usize {
    let is_token = |event: &&AssistEvent| matches!(event, AssistEvent::First(_) | AssistEvent::Token(_));
    events.iter().filter(is_token).count()
}

/// The writing end. It belongs to the host's thread and never blocks it.
#[derive(Debug)]
pub(crate) struct EventSink {
    batches: mpsc::Sender<Batch>,
    unread: Unread,
}

impl EventSink {
    /// Sends a batch. If the reader is gone, cancels the answer.
    pub(crate) fn send(&self, batch: Batch) {
        if batch.is_empty() {
            return;
        }
        self.unread.written(tokens_in(&batch));
        // The channel has room for all batches that may be unread. It is full only if an answer was not
        // parked in time, which would be our bug. Then the answer is cancelled instead of blocking the
        // thread.
        if self.batches.try_send(batch).is_err() {
            self.cancel().set();
        }
    }

    pub(crate) fn cancel(&self) -> &CancelFlag {
        self.unread.cancel()
    }

    pub(crate) fn unread(&self) -> &Unread {
        &self.unread
    }

    /// Waits until nobody wants the answer any more: its reader has left, or has cancelled it, which is
    /// looked for this often.
    pub(crate) fn gone(&self, look_every: Duration) -> impl Future<Output = ()> + Send + use<> {
        let (batches, cancel) = (self.batches.clone(), self.cancel().clone());
        async move {
            while !cancel.is_set() {
                tokio::select! {
                    () = batches.closed() => return,
                    () = tokio::time::sleep(look_every) => {}
                }
            }
        }
    }
}

/// Reports the progress of an answer that has no token yet.
#[derive(Debug, Clone)]
pub(crate) struct ProgressSource {
    handle: HostHandle,
    id: JobId,
}

impl ProgressSource {
    /// Returns the current progress; `None` once it has a token.
    pub(crate) fn now(&self) -> Option<ProgressEvent> {
        let Progress { running, computed, total, eta_ms } = self.handle.progress(self.id)?;
        let stage = if running { ProgressStage::Prefill } else { ProgressStage::Queue };
        Some(ProgressEvent { stage, computed: computed as u64, total: total as u64, eta_ms })
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
    ratio: f32,
    model: String,
    progress: Option<ProgressSource>,
    watches: Vec<Box<dyn StreamWatch>>,
}

impl AssistStream {
    /// Makes a stream and its writing end, for an answer of at most `max_tokens` that `host` writes, if any.
    pub(crate) fn new(id: JobId, max_tokens: usize, host: Option<&HostHandle>) -> (EventSink, AssistStream) {
        // Each pass sends one batch; before the next pass, the answer is parked if it must be.
        let (sender, batches) = mpsc::channel(max_tokens.min(UNREAD_TOKENS_MAX) + BATCHES_BESIDES_TOKENS);
        let unread = Unread::new(UNREAD_TOKENS_MAX, CancelFlag::default());
        let stream = AssistStream {
            id,
            batches,
            ready: VecDeque::new(),
            cancel: unread.cancel().clone(),
            mark: unread.mark(host.cloned()),
            read: Some(0),
            prompt_tokens: 0,
            ratio: 1.0,
            model: String::new(),
            progress: host.map(|host| ProgressSource { handle: host.clone(), id }),
            watches: Vec::new(),
        };
        (EventSink { batches: sender, unread }, stream)
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

    /// Returns the largest share of the content that the mask may keep (r); 1 if there is no mask.
    pub fn ratio(&self) -> f32 {
        self.ratio
    }

    pub(crate) fn set_ratio(&mut self, ratio: f32) {
        self.ratio = ratio;
    }

    /// Returns the name of the model that answers.
    pub fn model(&self) -> &str {
        &self.model
    }

    pub(crate) fn set_model(&mut self, name: &str) {
        name.clone_into(&mut self.model);
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

    /// Cancels the answer; an `end` event with reason `cancelled` follows.
    pub fn cancel(&self) {
        self.cancel.set();
        if let Some(progress) = &self.progress {
            progress.handle.cancelled();
        }
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
