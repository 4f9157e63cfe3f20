//! The engine's thread, and what the device's passes cost.
//!
//! The thread runs a host, which waits for emulated time and gives out the reports. Never blocks async
//! code. Always: the costs are those of this device, with all answers that it computes at the same time. A
//! worker that can make its engine again may be stopped while nothing is asked, which frees the engine's
//! memory.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use baton_engine::Sequences;
use baton_engine::pace_emulation::PassCost;
use baton_generate::host::{Host, PassSample, PassWatch};
use baton_pacing::DeviceCost;
use baton_pacing::refit::{PrefillSample, fit_prefill};

use crate::local::{KvSide, LocalAnswer, LocalModel, LocalOptions, Reports};

/// Number of tokens prefilled to measure the device's cost at the start.
const PROBE_TOKENS: usize = 96;
/// Number of prefill passes from which the device's cost is fitted.
const PREFILL_SAMPLES: usize = 128;

/// Why the worker cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The operating system could not start a thread.
    #[error("start the engine thread")]
    Spawn(#[source] std::io::Error),
    /// The thread is gone.
    #[error("the engine thread has ended")]
    Gone,
    /// The engine could not be made.
    #[error("start the engine")]
    Make(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// An engine, and what its host is made with.
pub type Made = (Box<dyn Sequences>, LocalOptions);
/// Makes the engine, each time in the same way.
type Make = Box<dyn Fn() -> anyhow::Result<Made> + Send + Sync>;

/// A handle of the engine's thread. Dropping it ends the thread after the current pass.
pub struct EngineWorker {
    running: Mutex<Option<Running>>,
    /// Makes the engine again after [`Self::stop`]; `None` if that is not possible.
    make: Option<Make>,
    costs: DeviceCosts,
    context_tokens: usize,
    answers: usize,
}

impl std::fmt::Debug for EngineWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineWorker").field("is_running", &self.is_running()).finish_non_exhaustive()
    }
}

/// The thread. Dropping it ends the thread after the current pass.
#[derive(Debug)]
struct Running {
    local: LocalModel,
    thread: Option<JoinHandle<()>>,
}

impl EngineWorker {
    /// Measures the device's cost with a few passes, then starts the thread. `options.watch` is not used.
    ///
    /// # Errors
    /// [`WorkerError::Spawn`] if the thread cannot be started.
    ///
    /// # Panics
    /// As [`LocalModel::host`].
    pub fn start<S: Sequences + 'static>(engine: S, options: LocalOptions) -> Result<Self, WorkerError> {
        let emulate = options.emulation;
        let costs = DeviceCosts::default();
        let (mut host, local) =
            LocalModel::host(engine, LocalOptions { watch: Some(Box::new(costs.clone())), ..options });
        costs.begin(measure(&mut host, emulate));
        Ok(Self::new(Running::start(local, move || host.serve())?, costs, None))
    }

    /// Starts the thread, which measures the device's cost before it serves. `again` makes the engine in
    /// the same way again, so [`Self::stop`] is possible.
    ///
    /// # Errors
    /// [`WorkerError::Spawn`] if the thread cannot be started.
    pub fn restartable(
        first: Made,
        again: impl Fn() -> anyhow::Result<Made> + Send + Sync + 'static,
    ) -> Result<Self, WorkerError> {
        let costs = DeviceCosts::default();
        let running = Running::measuring(first, &costs)?;
        Ok(Self::new(running, costs, Some(Box::new(again))))
    }

    fn new(running: Running, costs: DeviceCosts, make: Option<Make>) -> Self {
        let (context_tokens, answers) = (running.local.capacity(), running.local.answers());
        Self { running: Mutex::new(Some(running)), make, costs, context_tokens, answers }
    }

    /// Returns the most tokens of prompt and answer together.
    pub fn context_tokens(&self) -> usize {
        self.context_tokens
    }

    /// Returns how many answers are computed at the same time.
    pub fn answers(&self) -> usize {
        self.answers
    }

    /// Returns the device's cost as measured so far. Waits if it was not measured yet.
    pub fn cost(&self) -> DeviceCost {
        self.costs.wait().cost
    }

    /// Returns what keys and values the engine can take in place of a prefill.
    ///
    /// # Errors
    /// Why none can.
    pub fn kv(&self) -> Result<KvSide, String> {
        let running = self.running();
        running.as_ref().map_or_else(|| Err("the engine is not in memory".to_owned()), |it| it.local.kv())
    }

    /// Makes a new answer, and the end that gets its reports.
    ///
    /// # Errors
    /// [`WorkerError::Gone`] if the thread has ended.
    pub fn answer(&self) -> Result<(LocalAnswer, Reports), WorkerError> {
        let running = self.running();
        let local = running.as_ref().map(|running| &running.local).filter(|local| local.is_open());
        local.map(LocalAnswer::new).ok_or(WorkerError::Gone)
    }

    /// Whether the engine is in memory.
    pub fn is_running(&self) -> bool {
        self.running().is_some()
    }

    /// Whether [`Self::stop`] can be undone.
    pub fn is_restartable(&self) -> bool {
        self.make.is_some()
    }

    /// Makes the engine again, if it was stopped. Blocks until it is there.
    ///
    /// # Errors
    /// [`WorkerError`] if the engine cannot be made, or the thread cannot be started.
    pub fn restart(&self) -> Result<(), WorkerError> {
        let mut running = self.running();
        if let (None, Some(make)) = (&*running, &self.make) {
            let made = make().map_err(|err| WorkerError::Make(err.into()))?;
            *running = Some(Running::measuring(made, &self.costs)?);
        }
        Ok(())
    }

    /// Frees the engine's memory, if the engine can be made again. Blocks until it is free. No answer may be
    /// under way. Returns whether there was something to free.
    pub fn stop(&self) -> bool {
        self.is_restartable() && self.running().take().is_some()
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    fn start(local: LocalModel, serve: impl FnOnce() + Send + 'static) -> Result<Self, WorkerError> {
        let thread = std::thread::Builder::new().name("baton-engine".into()).spawn(serve);
        Ok(Self { local, thread: Some(thread.map_err(WorkerError::Spawn)?) })
    }

    /// Starts a thread that first measures the engine, if none before it was measured.
    fn measuring((engine, options): Made, costs: &DeviceCosts) -> Result<Self, WorkerError> {
        let emulate = options.emulation;
        let (mut host, local) =
            LocalModel::host(engine, LocalOptions { watch: Some(Box::new(costs.clone())), ..options });
        let costs = costs.clone();
        Self::start(local, move || {
            if !costs.are_known() {
                // Also if measuring panics: who waits for the cost goes on.
                let costs = KnownAtEnd(&costs);
                costs.0.begin(measure(&mut host, emulate));
            }
            host.serve();
        })
    }
}

/// Ends the wait for costs.
struct KnownAtEnd<'a>(&'a DeviceCosts);

impl Drop for KnownAtEnd<'_> {
    fn drop(&mut self) {
        self.0.know();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.local.handle().stop();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has already printed its message.
            let _ended = thread.join();
        }
    }
}

/// What the device's passes have taught.
#[derive(Debug)]
struct Learned {
    cost: DeviceCost,
    /// The times of the newest prefill passes.
    prefills: VecDeque<PrefillSample>,
    /// Whether the cost was measured.
    is_known: bool,
}

/// The device's cost, learned from its passes.
#[derive(Debug, Clone)]
struct DeviceCosts(Arc<(Mutex<Learned>, Condvar)>);

impl Default for DeviceCosts {
    fn default() -> DeviceCosts {
        let cost = DeviceCost {
            prefill_ms_per_token: 0.0,
            prefill_ms_per_token2: 0.0,
            decode_ms: 0.0,
            decompress_ms: 0.0,
        };
        let learned = Learned { cost, prefills: VecDeque::new(), is_known: false };
        DeviceCosts(Arc::new((Mutex::new(learned), Condvar::new())))
    }
}

impl DeviceCosts {
    fn learned(&self) -> MutexGuard<'_, Learned> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the cost was measured.
    fn wait(&self) -> MutexGuard<'_, Learned> {
        let known = self.0.1.wait_while(self.learned(), |learned| !learned.is_known);
        known.unwrap_or_else(PoisonError::into_inner)
    }

    fn are_known(&self) -> bool {
        self.learned().is_known
    }

    fn know(&self) {
        self.learned().is_known = true;
        self.0.1.notify_all();
    }

    /// Begins with a measured cost.
    fn begin(&self, cost: DeviceCost) {
        let tokens = PROBE_TOKENS as f64;
        let probe = PrefillSample { held: 0.0, tokens, ms: tokens * cost.prefill_ms_per_token };
        *self.learned() = Learned { cost, prefills: VecDeque::from([probe]), is_known: false };
        self.know();
    }
}

impl PassWatch for DeviceCosts {
    fn pass(&mut self, sample: &PassSample) {
        let ms = sample.elapsed.as_secs_f64() * 1e3;
        let toward = |old: f64, new: f64| 0.8 * old + 0.2 * new;
        let mut learned = self.learned();
        if sample.prompts == 0 && sample.written > 0 {
            // What one answer waits for its next token.
            let each = ms * sample.decode_rows as f64 / sample.written as f64;
            learned.cost.decode_ms = toward(learned.cost.decode_ms, each);
        } else if sample.decode_rows == 0 && sample.prompts == 1 && sample.prefill_tokens >= PROBE_TOKENS / 4
        {
            if learned.prefills.len() == PREFILL_SAMPLES {
                learned.prefills.pop_front();
            }
            let (held, tokens) = (sample.held_tokens as f64, sample.prefill_tokens as f64);
            learned.prefills.push_back(PrefillSample { held, tokens, ms });
            if let Some(fit) = fit_prefill(learned.prefills.make_contiguous()) {
                learned.cost.prefill_ms_per_token = fit.ms_per_token;
                learned.cost.prefill_ms_per_token2 = fit.ms_per_token2;
            }
        }
    }
}

/// Measures prefill and decoding on a temporary sequence; takes the emulated machine's figures if they are
/// larger.
fn measure<S: Sequences>(host: &mut Host<S>, emulate: PassCost) -> DeviceCost {
    let mut best = |tokens: usize| {
        (0..2)
            .filter_map(|_| {
                let begun = Instant::now();
                host.probe(tokens)?;
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
