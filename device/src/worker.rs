//! The engine's thread: takes commands, runs passes, waits for emulated time, sends reports.
//!
//! Only here does the local engine meet a clock. Never blocks async code. If the report channel is dropped,
//! the answer is dropped. Emulation makes a pass last as long as the emulated machine would need, if that is
//! longer; a newer answer interrupts the wait.

use crate::local::{EngineCommand, EngineReport, LocalEngine, PassOutcome};
use baton_engine::StepControl;
use baton_engine::pace_emulation::PassCost;
use baton_engine::speculation::SpeculationStats;
use baton_pacing::DeviceCost;
use baton_pacing::refit::{PrefillSample, fit_prefill};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Most commands that may wait.
const COMMANDS_MAX: usize = 64;
/// Most reports that may wait; a full queue pauses the engine.
const REPORTS_MAX: usize = 1024;
/// Number of tokens prefilled to measure the device's cost at the start.
const PROBE_TOKENS: usize = 96;
/// Number of prefill passes from which the device's cost is fitted.
const PREFILL_SAMPLES: usize = 128;

enum Message {
    Attach(mpsc::Sender<EngineReport>),
    Command(EngineCommand),
}

/// Why the worker cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The operating system could not start a thread.
    #[error("start the engine thread")]
    Spawn(#[source] std::io::Error),
    /// The thread is gone.
    #[error("the engine thread has ended")]
    Gone,
}

/// A handle of the engine's thread. Dropping it ends the thread after the current pass.
#[derive(Debug)]
pub struct EngineWorker {
    messages: Option<SyncSender<Message>>,
    interrupt: Arc<AtomicBool>,
    cost: Arc<Mutex<DeviceCost>>,
    speculation: Arc<Mutex<Option<SpeculationStats>>>,
    context_tokens: usize,
    thread: Option<JoinHandle<()>>,
}

impl EngineWorker {
    /// Measures the device's cost with a few passes, then starts the thread; `emulate` slows passes down.
    ///
    /// # Errors
    /// [`WorkerError::Spawn`] if the thread cannot be started.
    pub fn start(mut engine: LocalEngine, emulate: PassCost) -> Result<Self, WorkerError> {
        let context_tokens = engine.capacity();
        let measured = measure(&mut engine, emulate);
        let probe = PrefillSample {
            held: 0.0,
            tokens: PROBE_TOKENS as f64,
            ms: PROBE_TOKENS as f64 * measured.prefill_ms_per_token,
        };
        let cost = Arc::new(Mutex::new(measured));
        let speculation = Arc::new(Mutex::new(engine.speculation()));
        let interrupt = Arc::new(AtomicBool::new(false));
        let (messages, inbox) = sync_channel(COMMANDS_MAX);
        let mut thread = Thread {
            engine,
            emulate,
            inbox,
            pending: VecDeque::new(),
            reports: None,
            interrupt: interrupt.clone(),
            cost: cost.clone(),
            prefills: VecDeque::from([probe]),
            speculation: speculation.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("baton-engine".into())
            .spawn(move || thread.run())
            .map_err(WorkerError::Spawn)?;
        let (messages, thread) = (Some(messages), Some(thread));
        Ok(Self { messages, interrupt, cost, speculation, context_tokens, thread })
    }

    /// Returns the most tokens of prompt and answer together.
    pub fn context_tokens(&self) -> usize {
        self.context_tokens
    }

    /// Returns the device's cost as measured so far.
    pub fn cost(&self) -> DeviceCost {
        *self.cost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the results of speculation since the start; `None` if no tokens are proposed.
    pub fn speculation(&self) -> Option<SpeculationStats> {
        *self.speculation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a new answer; from now on all reports go to the returned channel.
    ///
    /// # Errors
    /// [`WorkerError::Gone`] if the thread has ended.
    pub async fn attach(&self) -> Result<mpsc::Receiver<EngineReport>, WorkerError> {
        let (sender, receiver) = mpsc::channel(REPORTS_MAX);
        self.send(Message::Attach(sender)).await?;
        Ok(receiver)
    }

    /// Gives a command to the engine.
    ///
    /// # Errors
    /// [`WorkerError::Gone`] if the thread has ended.
    pub async fn command(&self, command: EngineCommand) -> Result<(), WorkerError> {
        if matches!(command, EngineCommand::Open { .. } | EngineCommand::Stop) {
            self.interrupt.store(true, Ordering::Release);
        }
        self.send(Message::Command(command)).await
    }

    /// Sends a message; if the queue is full, waits until there is room. The engine empties its queue within
    /// one pass.
    async fn send(&self, message: Message) -> Result<(), WorkerError> {
        let messages = self.messages.as_ref().ok_or(WorkerError::Gone)?;
        let mut message = message;
        loop {
            message = match messages.try_send(message) {
                Ok(()) => return Ok(()),
                Err(std::sync::mpsc::TrySendError::Full(message)) => message,
                Err(std::sync::mpsc::TrySendError::Disconnected(_)) => return Err(WorkerError::Gone),
            };
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Drop for EngineWorker {
    fn drop(&mut self) {
        self.interrupt.store(true, Ordering::Release);
        self.messages = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has already printed its message.
            let _ended = thread.join();
        }
    }
}

struct Interruptible<'a>(&'a AtomicBool);

impl StepControl for Interruptible<'_> {
    fn after_layer(&mut self, _done: usize, _total: usize) -> ControlFlow<()> {
        if self.0.load(Ordering::Acquire) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

struct Thread {
    engine: LocalEngine,
    emulate: PassCost,
    inbox: Receiver<Message>,
    pending: VecDeque<Message>,
    reports: Option<mpsc::Sender<EngineReport>>,
    interrupt: Arc<AtomicBool>,
    cost: Arc<Mutex<DeviceCost>>,
    /// The times of the newest prefill passes.
    prefills: VecDeque<PrefillSample>,
    speculation: Arc<Mutex<Option<SpeculationStats>>>,
}

impl Thread {
    fn run(&mut self) {
        loop {
            let message = match self.pending.pop_front() {
                Some(message) => Some(message),
                None if self.engine.has_work() => match self.inbox.try_recv() {
                    Ok(message) => Some(message),
                    Err(TryRecvError::Empty) => None,
                    Err(TryRecvError::Disconnected) => return,
                },
                None => match self.await_message() {
                    Ok(message) => Some(message),
                    Err(RecvTimeoutError::Timeout) => {
                        self.engine.idle();
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                },
            };
            match message {
                Some(message) => self.take(message),
                None => self.pass(),
            }
        }
    }

    /// Waits for the next message; times out if the engine has idle work to do.
    fn await_message(&self) -> Result<Message, RecvTimeoutError> {
        match self.engine.idle_every() {
            Some(every) => self.inbox.recv_timeout(every),
            None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Attach(reports) => self.reports = Some(reports),
            Message::Command(command) => {
                if matches!(command, EngineCommand::Open { .. } | EngineCommand::Stop) {
                    self.interrupt.store(false, Ordering::Release);
                }
                let reports = self.engine.command(command);
                self.report(reports);
            }
        }
    }

    fn report(&mut self, reports: Vec<EngineReport>) {
        for report in reports {
            let gone = self.reports.as_ref().is_none_or(|channel| channel.blocking_send(report).is_err());
            if gone {
                self.reports = None;
                self.engine.command(EngineCommand::Stop);
                return;
            }
        }
    }

    fn pass(&mut self) {
        let begun = Instant::now();
        let outcome = self.engine.pass(&mut Interruptible(&self.interrupt));
        if outcome.cancelled {
            // The interrupting command is already in the queue, or the handle was dropped.
            match self.inbox.recv() {
                Ok(message) => self.pending.push_back(message),
                Err(_) => self.interrupt.store(false, Ordering::Release),
            }
            return;
        }
        let until = begun + begun.elapsed() + self.emulate.wait(outcome.content, begun.elapsed());
        if !self.wait(until) {
            return;
        }
        self.learn(&outcome, begun.elapsed());
        self.report(outcome.reports);
    }

    /// Waits until `until`; returns false if a newer answer interrupted the wait.
    fn wait(&mut self, until: Instant) -> bool {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            match self.inbox.recv_timeout(left) {
                Ok(message) => {
                    let ends = matches!(
                        &message,
                        Message::Command(EngineCommand::Open { .. } | EngineCommand::Stop)
                    );
                    self.pending.push_back(message);
                    if ends {
                        return false;
                    }
                }
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    fn learn(&mut self, outcome: &PassOutcome, took: Duration) {
        let took_ms = took.as_secs_f64() * 1e3;
        let toward = |old: f64, new: f64| 0.8 * old + 0.2 * new;
        let mut cost = self.cost.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(decoded) = outcome.decoded {
            self.engine.took(decoded, took_ms);
            *self.speculation.lock().unwrap_or_else(PoisonError::into_inner) = self.engine.speculation();
            cost.decode_ms = toward(cost.decode_ms, took_ms / decoded.written.max(1) as f64);
        } else if outcome.content.prefill_tokens >= PROBE_TOKENS / 4 {
            if self.prefills.len() == PREFILL_SAMPLES {
                self.prefills.pop_front();
            }
            self.prefills.push_back(PrefillSample {
                held: outcome.held_tokens as f64,
                tokens: outcome.content.prefill_tokens as f64,
                ms: took_ms,
            });
            if let Some(fit) = fit_prefill(self.prefills.make_contiguous()) {
                cost.prefill_ms_per_token = fit.ms_per_token;
                cost.prefill_ms_per_token2 = fit.ms_per_token2;
            }
        }
    }
}

/// Measures prefill and decoding on a temporary sequence; takes the emulated machine's figures if they are
/// larger.
fn measure(engine: &mut LocalEngine, emulate: PassCost) -> DeviceCost {
    let mut best = |tokens: usize| {
        (0..2)
            .filter_map(|_| {
                let begun = Instant::now();
                engine.probe(tokens)?;
                Some(begun.elapsed().as_secs_f64() * 1e3)
            })
            .fold(f64::INFINITY, f64::min)
    };
    let (prefill, decode) = (best(PROBE_TOKENS) / PROBE_TOKENS as f64, best(1));
    let finite = |ms: f64| if ms.is_finite() { ms } else { 0.0 };
    DeviceCost {
        prefill_ms_per_token: finite(prefill).max(emulate.prefill_ms_per_token),
        prefill_ms_per_token2: 0.0,
        decode_ms: finite(decode).max(emulate.decode_ms),
        decompress_ms: 0.0,
    }
}

#[cfg(test)]
mod tests;
