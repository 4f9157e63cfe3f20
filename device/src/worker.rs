//! The engine's thread, and what the device's passes cost.
//!
//! The thread runs a host, which waits for emulated time and gives out the reports. Never blocks async code.
//! Always: the costs are those of this device, with all answers that it computes at the same time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use baton_engine::Sequences;
use baton_engine::pace_emulation::PassCost;
use baton_generate::host::{Host, PassSample, PassWatch};
use baton_pacing::DeviceCost;
use baton_pacing::refit::{PrefillSample, fit_prefill};

use crate::local::{LocalAnswer, LocalModel, LocalOptions, Reports};

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
}

/// A handle of the engine's thread. Dropping it ends the thread after the current pass.
#[derive(Debug)]
pub struct EngineWorker {
    local: LocalModel,
    costs: DeviceCosts,
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
        let thread = std::thread::Builder::new()
            .name("baton-engine".into())
            .spawn(move || host.serve())
            .map_err(WorkerError::Spawn)?;
        Ok(Self { local, costs, thread: Some(thread) })
    }

    /// Returns the most tokens of prompt and answer together.
    pub fn context_tokens(&self) -> usize {
        self.local.capacity()
    }

    /// Returns how many answers are computed at the same time.
    pub fn answers(&self) -> usize {
        self.local.answers()
    }

    /// Returns the device's cost as measured so far.
    pub fn cost(&self) -> DeviceCost {
        self.costs.learned().cost
    }

    /// Makes a new answer, and the end that gets its reports.
    ///
    /// # Errors
    /// [`WorkerError::Gone`] if the thread has ended.
    pub fn answer(&self) -> Result<(LocalAnswer, Reports), WorkerError> {
        if !self.local.is_open() {
            return Err(WorkerError::Gone);
        }
        Ok(LocalAnswer::new(&self.local))
    }
}

impl Drop for EngineWorker {
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
}

/// The device's cost, learned from its passes.
#[derive(Debug, Clone)]
struct DeviceCosts(Arc<Mutex<Learned>>);

impl Default for DeviceCosts {
    fn default() -> DeviceCosts {
        let cost = DeviceCost {
            prefill_ms_per_token: 0.0,
            prefill_ms_per_token2: 0.0,
            decode_ms: 0.0,
            decompress_ms: 0.0,
        };
        DeviceCosts(Arc::new(Mutex::new(Learned { cost, prefills: VecDeque::new() })))
    }
}

impl DeviceCosts {
    fn learned(&self) -> MutexGuard<'_, Learned> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins with a measured cost.
    fn begin(&self, cost: DeviceCost) {
        let tokens = PROBE_TOKENS as f64;
        let probe = PrefillSample { held: 0.0, tokens, ms: tokens * cost.prefill_ms_per_token };
        *self.learned() = Learned { cost, prefills: VecDeque::from([probe]) };
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
