//! The reading end of an answer on the host's thread, and the way of its reports to the relay.
//!
//! Never: blocks the host. Reports have no bound of their own, but an answer whose reports nobody reads is
//! parked. Always: reports come in order, and a host that ends before the answer shows as the end of the
//! reports.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_generate::answer::Answer;
use baton_generate::job::{JobEvent, Opened, Reading, Sink};
use baton_generate::scheduler::{CloseReason, Closed};
use baton_generate::speculation::SpeculationStats;
use baton_generate::unread::{ReadMark, Unread};
use tokio::sync::mpsc;

use super::command::{EngineEnd, EngineReport, PromptId};
use super::evidence::Attended;

/// Longest wait for the pass that an answer ends with. Without its end there are no citations.
const END_LIMIT: Duration = Duration::from_secs(5);

/// What goes from the host's thread to the reader.
#[derive(Debug)]
pub(crate) enum Message {
    Report(EngineReport),
    /// The host has ended before the answer.
    Lost,
}

/// What reports say of a prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct OfPrompt {
    pub(super) prompt: PromptId,
    /// Not only the part that no mask can change.
    pub(super) whole: bool,
    pub(super) shortened: Option<(usize, usize)>,
}

/// What both ends of an answer know.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Prompts that were ordered and that the host has not taken yet, oldest first.
    ordered: VecDeque<OfPrompt>,
    /// Whether the newest prompt has an accepted part.
    pub(super) accepted: bool,
    /// Whether that part is verified.
    pub(super) verified: bool,
    /// What came of proposals, once the answer has ended.
    pub(super) speculation: Option<SpeculationStats>,
    /// What the answer attended to, once it has ended.
    attended: Option<Attended>,
    /// Why the host has ended the answer.
    over: Option<String>,
}

/// The way from the host's thread to the reader.
#[derive(Debug)]
pub(super) struct Line {
    messages: mpsc::UnboundedSender<Message>,
    state: Mutex<State>,
    /// Told when the answer has ended.
    ended: Condvar,
}

impl Line {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a report that no pass has to wait for.
    pub(super) fn send(&self, report: EngineReport) {
        // If nobody reads any more, the answer is about to be dropped.
        let _unread = self.messages.send(Message::Report(report));
    }

    /// Waits until the host has ended the answer; returns what it attended to.
    pub(super) fn attended(&self) -> Option<Attended> {
        let is_open = |state: &mut State| state.over.is_none();
        let waited = self.ended.wait_timeout_while(self.state(), END_LIMIT, is_open);
        waited.unwrap_or_else(PoisonError::into_inner).0.attended.take()
    }

    /// Notes that a prompt is ordered.
    ///
    /// # Errors
    /// Why the answer has ended, if it has.
    pub(super) fn order(&self, of: OfPrompt) -> Result<(), String> {
        let mut state = self.state();
        if let Some(over) = &state.over {
            return Err(over.clone());
        }
        state.ordered.push_back(of);
        (state.accepted, state.verified) = (false, false);
        Ok(())
    }
}

/// Makes a line and its reading end.
pub(super) fn line(mark: ReadMark) -> (Arc<Line>, Reports) {
    let (messages, receiver) = mpsc::unbounded_channel();
    let line = Line { messages, state: Mutex::default(), ended: Condvar::new() };
    (Arc::new(line), Reports::new(receiver, mark))
}

/// The reports of one answer.
#[derive(Debug)]
pub struct Reports {
    messages: mpsc::UnboundedReceiver<Message>,
    mark: ReadMark,
    /// Reports read so far.
    read: usize,
    lost: bool,
}

impl Reports {
    fn new(messages: mpsc::UnboundedReceiver<Message>, mark: ReadMark) -> Reports {
        Reports { messages, mark, read: 0, lost: false }
    }

    /// Makes the reports of no answer, for tests.
    #[cfg(test)]
    pub(crate) fn channel() -> (mpsc::UnboundedSender<Message>, Reports) {
        let (sender, messages) = mpsc::unbounded_channel();
        (sender, Reports::new(messages, ReadMark::default()))
    }

    /// Waits for the next report. Returns `None` if the engine has ended, also in later calls. Can be
    /// cancelled without losing a report.
    pub async fn recv(&mut self) -> Option<EngineReport> {
        if self.lost {
            return None;
        }
        let message = self.messages.recv().await;
        self.take(message)
    }

    /// Returns the next report, if it is there.
    pub fn try_recv(&mut self) -> Option<EngineReport> {
        let message = self.messages.try_recv().ok()?;
        self.take(Some(message))
    }

    fn take(&mut self, message: Option<Message>) -> Option<EngineReport> {
        match message {
            Some(Message::Report(report)) => {
                self.read += 1;
                self.mark.read_up_to(self.read);
                Some(report)
            }
            Some(Message::Lost) | None => {
                self.lost = true;
                None
            }
        }
    }
}

/// Makes reports of what the host says of one answer.
pub(super) struct Reader {
    line: Arc<Line>,
    unread: Unread,
    of: OfPrompt,
    tokens_max: usize,
    /// Index behind the last token written.
    next_index: usize,
    /// Reports of the pass that runs.
    reports: Vec<EngineReport>,
    closed: bool,
}

impl Reader {
    pub(super) fn new(line: Arc<Line>, unread: Unread, of: OfPrompt, tokens_max: usize) -> Reader {
        Reader { line, unread, of, tokens_max, next_index: 0, reports: Vec::new(), closed: false }
    }

    /// Returns the report of an event, if it has one.
    fn report(&mut self, event: JobEvent) -> Option<EngineReport> {
        let OfPrompt { prompt, whole, shortened } = self.of;
        Some(match event {
            JobEvent::Begun { tokens, cached } => EngineReport::Prompt { prompt, tokens, cached, shortened },
            JobEvent::Computed { done, total, tokens, held: _ } => {
                EngineReport::Progress { prompt, done, total, pass_tokens: tokens }
            }
            JobEvent::Held => {
                let waits = whole && !self.line.state().accepted;
                return waits.then_some(EngineReport::Ready { prompt });
            }
            JobEvent::Verified(verified) => {
                let mut state = self.line.state();
                state.verified = state.ordered.is_empty();
                EngineReport::Verified { prompt, verified }
            }
            JobEvent::Written(token) => {
                self.next_index = token.index + 1;
                EngineReport::Token { prompt, index: token.index, id: token.id, text: token.text }
            }
            JobEvent::Scores(_) => return None,
        })
    }

    /// Returns the last report. `of` is the newest prompt, also if the host has not taken it.
    fn last(&self, closed: &Closed, answer: &Answer, of: OfPrompt) -> Option<EngineReport> {
        let prompt = of.prompt;
        let ended = |why| EngineReport::Ended { prompt, why, text: answer.tail().to_owned() };
        match closed.reason {
            CloseReason::Stop => Some(ended(EngineEnd::EndToken)),
            CloseReason::Cap if self.next_index >= self.tokens_max => Some(ended(EngineEnd::TokensMax)),
            CloseReason::Cap => Some(ended(EngineEnd::ContextFull)),
            CloseReason::Failed | CloseReason::Expired => {
                let none = || "there is no room for this prompt and its answer".to_owned();
                let reason = answer.fault().map_or_else(none, ToString::to_string);
                Some(EngineReport::Failed { prompt, reason })
            }
            CloseReason::Cancelled | CloseReason::Stopped => None,
        }
    }
}

impl Sink for Reader {
    fn opened(&mut self, _opened: Opened) {}

    fn another_prompt(&mut self) {
        let next = self.line.state().ordered.pop_front();
        self.of = next.unwrap_or(self.of);
    }

    fn not_taken(&mut self, reason: String) {
        if let Some(of) = self.line.state().ordered.pop_front() {
            self.reports.push(EngineReport::NotTaken { prompt: of.prompt, reason });
        }
    }

    fn event(&mut self, event: JobEvent) {
        let report = self.report(event);
        self.reports.extend(report);
    }

    fn flush(&mut self, _now: Duration) {
        self.unread.written(self.reports.len());
        for report in self.reports.drain(..) {
            self.line.send(report);
        }
    }

    fn room(&self) -> usize {
        self.unread.room()
    }

    fn reading(&mut self) -> Option<Reading> {
        self.unread.reading()
    }

    fn closed(mut self: Box<Self>, closed: &Closed, mut answer: Answer) {
        let of = {
            let mut state = self.line.state();
            state.speculation = closed.speculation;
            let evidence = answer.take_evidence();
            state.attended = evidence.map(|evidence| Attended { evidence, ids: answer.tokens().to_vec() });
            let over = answer.fault().map_or_else(|| "the answer has ended".to_owned(), ToString::to_string);
            state.over = Some(over);
            self.line.ended.notify_all();
            state.ordered.back().copied().unwrap_or(self.of)
        };
        let last = self.last(closed, &answer, of);
        self.reports.extend(last);
        self.flush(Duration::ZERO);
        // A host that is stopped has ended before the answer.
        self.closed = closed.reason != CloseReason::Stopped;
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if !self.closed {
            self.line.state().over = Some("the engine has ended".to_owned());
            self.line.ended.notify_all();
            // If nobody reads any more, nobody misses the engine.
            let _unread = self.line.messages.send(Message::Lost);
        }
    }
}
