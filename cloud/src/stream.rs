//! One answer as its reader sees it: events in order, and the means to stop it.
//!
//! Always: dropping the stream cancels the answer (a reader that is gone frees its slot within one token); what waits
//! here is bounded by the answer's cap; events that belong into one packet come as one batch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use baton_protocol::AssistEvent;
use tokio::sync::mpsc;

use crate::scheduler::JobId;

/// Events that go out together.
pub(crate) type Batch = Vec<AssistEvent>;

/// Batches besides the tokens' own that one answer can have: the end.
const BATCHES_BESIDES_TOKENS: usize = 2;

/// A flag that both ends of an answer see.
#[derive(Debug, Clone, Default)]
pub(crate) struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The writing end; belongs to the engine's thread and never blocks it.
#[derive(Debug)]
pub(crate) struct EventSink {
    batches: mpsc::Sender<Batch>,
    cancel: CancelFlag,
}

impl EventSink {
    /// Hands a batch over; a reader that is gone cancels the answer.
    pub(crate) fn send(&self, batch: Batch) {
        if batch.is_empty() {
            return;
        }
        // The channel holds as many batches as the answer has tokens, so that it is full only for a reader whose
        // answer broke its cap: that would be our bug, and the answer is given up rather than the thread blocked.
        if self.batches.try_send(batch).is_err() {
            self.cancel.set();
        }
    }

    pub(crate) fn cancel(&self) -> &CancelFlag {
        &self.cancel
    }
}

/// Sees every event of an answer when its reader gets it; dropped with the stream.
pub trait StreamWatch: Send + std::fmt::Debug {
    /// The next event.
    fn event(&mut self, event: &AssistEvent);
}

/// The reading end of one answer.
#[derive(Debug)]
pub struct AssistStream {
    id: JobId,
    batches: mpsc::Receiver<Batch>,
    ready: VecDeque<AssistEvent>,
    cancel: CancelFlag,
    prompt_tokens: u64,
    model: String,
    watches: Vec<Box<dyn StreamWatch>>,
}

impl AssistStream {
    /// A stream and its writing end, for an answer of at most `max_tokens`.
    pub(crate) fn new(id: JobId, max_tokens: usize) -> (EventSink, AssistStream) {
        let (sender, batches) = mpsc::channel(max_tokens + BATCHES_BESIDES_TOKENS);
        let cancel = CancelFlag::default();
        let sink = EventSink { batches: sender, cancel: cancel.clone() };
        (
            sink,
            AssistStream {
                id,
                batches,
                ready: VecDeque::new(),
                cancel,
                prompt_tokens: 0,
                model: String::new(),
                watches: Vec::new(),
            },
        )
    }

    /// The sequence's name in the scheduler.
    pub fn id(&self) -> JobId {
        self.id
    }

    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens
    }

    pub(crate) fn set_prompt_tokens(&mut self, tokens: usize) {
        self.prompt_tokens = tokens as u64;
    }

    /// Name of the model that answers.
    pub fn model(&self) -> &str {
        &self.model
    }

    pub(crate) fn set_model(&mut self, name: &str) {
        name.clone_into(&mut self.model);
    }

    /// Asks for an early end; an `end` event with reason `cancelled` follows.
    pub fn cancel(&self) {
        self.cancel.set();
    }

    /// Shows every further event to `watch`, which lives as long as the stream.
    pub fn watch(&mut self, watch: impl StreamWatch + 'static) {
        self.watches.push(Box::new(watch));
    }

    /// The next event; none after the last one.
    pub async fn next(&mut self) -> Option<AssistEvent> {
        if self.ready.is_empty() {
            self.ready.extend(self.batches.recv().await?);
        }
        self.pop()
    }

    /// Everything that belongs into the next packet; none after the last one.
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
        Some(batch)
    }

    /// The next event if it is there already: for callers that drive the engine themselves.
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
        Some(event)
    }

    fn show(&mut self, event: &AssistEvent) {
        for watch in &mut self.watches {
            watch.event(event);
        }
    }
}

impl Drop for AssistStream {
    fn drop(&mut self) {
        self.cancel.set();
    }
}
