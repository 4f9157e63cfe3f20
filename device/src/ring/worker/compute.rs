//! One epoch's work on a worker: it receives frames, computes its windows, and sends the frames on.
//!
//! It holds the same sequences as the head, by the same operations in the same order. Whatever differs is
//! refused before anything is computed. Hidden states that are not finite or have another shape are refused
//! on arrival, so that the device at fault is known.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use baton_engine::engine::OpenStep;
use baton_engine::{Engine, KvError, SeqId, StepControl, StepError, StepSeq};

use super::super::frame::{Configure, FailureCode, Frame, Heartbeat, Operation, Span, Step};
use super::super::link::{LinkError, Outbox};

/// Most sequences of one epoch at once: far more than a head has answers.
const SEQUENCES_MAX: usize = 4096;
/// Wait between two checks whether to stop.
const SLICE: Duration = Duration::from_millis(50);

/// What has been done in an epoch, for heartbeats.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) epoch: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) compute_us: AtomicU64,
    pub(super) wait_us: AtomicU64,
    pub(super) send_us: AtomicU64,
    pub(super) bytes_in: AtomicU64,
    pub(super) bytes_out: AtomicU64,
    pub(super) singles: AtomicU64,
    pub(super) singles_us: AtomicU64,
    /// Of the device, not of the epoch.
    pub(super) memory_bytes: AtomicU64,
}

fn micros(since: Instant) -> u64 {
    since.elapsed().as_micros() as u64
}

impl Counters {
    /// Resets all counts.
    pub(super) fn begin(&self, epoch: u64) {
        let counts = [&self.received, &self.sent, &self.compute_us, &self.wait_us, &self.send_us];
        counts
            .into_iter()
            .chain([&self.bytes_in, &self.bytes_out, &self.singles, &self.singles_us])
            .for_each(|c| c.store(0, Ordering::Release));
        self.epoch.store(epoch, Ordering::Release);
    }

    pub(super) fn beat(&self) -> Heartbeat {
        let read = |count: &AtomicU64| count.load(Ordering::Acquire);
        Heartbeat {
            epoch: read(&self.epoch),
            received: read(&self.received),
            sent: read(&self.sent),
            refused: read(&self.refused),
            compute_us: read(&self.compute_us),
            wait_us: read(&self.wait_us),
            send_us: read(&self.send_us),
            bytes_in: read(&self.bytes_in),
            bytes_out: read(&self.bytes_out),
            singles: read(&self.singles),
            singles_us: read(&self.singles_us),
            memory_bytes: read(&self.memory_bytes),
        }
    }
}

/// Why an epoch ends on this device.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkFault {
    /// A frame that does not fit.
    #[error("the device before sent a frame that does not fit: {0}")]
    Refused(String),
    /// This device's engine failed.
    #[error("compute")]
    Engine(#[from] StepError),
    /// This device's layers returned a value that is not finite.
    #[error("layers {begin} to {end} gave a value that is no number")]
    NoNumber {
        /// First layer.
        begin: usize,
        /// One past the last layer.
        end: usize,
    },
    /// The next device accepts no frames.
    #[error("the next device takes no frame")]
    Next(#[source] LinkError),
    /// The epoch was ended from outside.
    #[error("stopped")]
    Stopped,
}

impl WorkFault {
    pub(super) fn code(&self) -> FailureCode {
        match self {
            Self::Refused(_) => FailureCode::Refused,
            Self::Engine(_) | Self::NoNumber { .. } | Self::Stopped => FailureCode::Engine,
            Self::Next(_) => FailureCode::Next,
        }
    }
}

/// Ends a forward pass when its epoch is over.
struct UntilStopped<'a>(&'a AtomicBool);

impl StepControl for UntilStopped<'_> {
    fn after_layer(&mut self, _done: usize, _total: usize) -> ControlFlow<()> {
        if self.0.load(Ordering::Acquire) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// The head's sequences on this device.
struct Replica {
    engine: Engine,
    seqs: BTreeMap<u64, SeqId>,
    open: Option<(u64, OpenStep)>,
}

fn refused(words: impl Into<String>) -> WorkFault {
    WorkFault::Refused(words.into())
}

impl Replica {
    fn seq(&self, number: u64) -> Result<SeqId, WorkFault> {
        self.seqs.get(&number).copied().ok_or_else(|| refused(format!("sequence {number} is not known")))
    }

    fn add(&mut self, number: u64, seq: SeqId) -> Result<(), WorkFault> {
        if self.seqs.len() >= SEQUENCES_MAX {
            return Err(refused(format!("more than {SEQUENCES_MAX} sequences")));
        }
        match self.seqs.insert(number, seq) {
            None => Ok(()),
            Some(_) => Err(refused(format!("sequence {number} is there already"))),
        }
    }

    /// Applies an operation. If the engine refuses it, the frame was wrong, because the head's engine has
    /// accepted the same.
    fn apply(&mut self, operation: Operation) -> Result<(), WorkFault> {
        let differs = |err: KvError| refused(err.to_string());
        match operation {
            Operation::Create { seq } => {
                let own = self.engine.create();
                self.add(seq, own)
            }
            Operation::Fork { from, tokens, seq } => {
                let own = self.engine.fork(self.seq(from)?, tokens as usize).map_err(differs)?;
                self.add(seq, own)
            }
            Operation::Truncate { seq, tokens } => {
                self.engine.truncate(self.seq(seq)?, tokens as usize).map_err(differs)
            }
            Operation::Release { seq } => {
                self.engine.release(self.seq(seq)?);
                self.seqs.remove(&seq);
                Ok(())
            }
            Operation::Reuse { seq, ids, gained } => {
                let found = self.engine.reuse_prefix(self.seq(seq)?, &ids) as u64;
                if found == gained {
                    return Ok(());
                }
                Err(refused(format!("{gained} tokens of a prefix, this device has {found}")))
            }
            Operation::Open { step, spans } => self.begin(step, &spans),
            Operation::Commit { step } => {
                let open = self.end(step)?;
                self.engine.commit_step(open);
                Ok(())
            }
            Operation::Cancel { step } => {
                let open = self.end(step)?;
                self.engine.cancel_step(open);
                Ok(())
            }
        }
    }

    fn begin(&mut self, step: u64, spans: &[Span]) -> Result<(), WorkFault> {
        if let Some((open, _)) = &self.open {
            return Err(refused(format!("step {step} begins while step {open} is open")));
        }
        let mut batch = Vec::with_capacity(spans.len());
        for span in spans {
            let seq = self.seq(span.seq)?;
            let len = self.engine.len(seq).map_err(|err| refused(err.to_string()))? as u64;
            if len != span.start {
                return Err(refused(format!(
                    "sequence {} begins at {}, has {len} tokens",
                    span.seq, span.start
                )));
            }
            batch.push(StepSeq { seq, ids: &span.ids, logits: span.wanted, capture: None });
        }
        let open = self.engine.open_step(&batch).map_err(|err| refused(err.to_string()))?;
        self.open = Some((step, open));
        Ok(())
    }

    fn end(&mut self, step: u64) -> Result<OpenStep, WorkFault> {
        match self.open.take() {
            Some((open, held)) if open == step => Ok(held),
            _ => Err(refused(format!("step {step} is not open"))),
        }
    }
}

/// One epoch's work.
pub(super) struct Work {
    configure: Configure,
    replica: Option<Replica>,
    counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
    out: Outbox,
}

impl Work {
    /// Makes the work for this engine. Without an engine, frames are only passed on.
    pub(super) fn new(
        configure: Configure,
        engine: Option<Engine>,
        counters: Arc<Counters>,
        stop: Arc<AtomicBool>,
        out: Outbox,
    ) -> Self {
        let replica = engine.map(|engine| Replica { engine, seqs: BTreeMap::new(), open: None });
        Self { configure, replica, counters, stop, out }
    }

    /// Works until it is stopped, or until something is wrong.
    pub(super) fn run(&mut self, frames: &Receiver<Step>) -> Result<(), WorkFault> {
        let mut idle = Instant::now();
        loop {
            let step = match frames.recv_timeout(SLICE) {
                Ok(step) => step,
                Err(RecvTimeoutError::Timeout) if self.stop.load(Ordering::Acquire) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            self.counters.wait_us.fetch_add(micros(idle), Ordering::AcqRel);
            let begun = Instant::now();
            let single = step.rows.len() == 1;
            let step = self.pass(step)?;
            let took = micros(begun);
            self.counters.compute_us.fetch_add(took, Ordering::AcqRel);
            if single {
                self.counters.singles.fetch_add(1, Ordering::AcqRel);
                self.counters.singles_us.fetch_add(took, Ordering::AcqRel);
            }
            let begun = Instant::now();
            let bytes = Frame::Step(step).encode();
            let len = bytes.len() as u64;
            self.out.send(bytes).map_err(WorkFault::Next)?;
            self.counters.send_us.fetch_add(micros(begun), Ordering::AcqRel);
            self.counters.bytes_out.fetch_add(len, Ordering::AcqRel);
            self.counters.sent.fetch_add(1, Ordering::AcqRel);
            idle = Instant::now();
        }
    }

    /// Returns a frame after this device's window of its round, if it has one.
    fn pass(&mut self, mut step: Step) -> Result<Step, WorkFault> {
        let Self { configure, replica, stop, .. } = self;
        let (width, n_layers) = (configure.width as usize, usize::from(configure.n_layers));
        let done = usize::from(step.layers_done);
        if step.hidden.width != width || done > n_layers {
            let words = format!("{} values behind layer {done}, the model has {width}", step.hidden.width);
            return Err(refused(words));
        }
        let expected = passed_before(configure, &step);
        if done != expected {
            return Err(refused(format!(
                "{done} layers are done, it comes to this device behind {expected}"
            )));
        }
        if !step.hidden.values.iter().all(|value| value.is_finite()) {
            return Err(refused("a hidden state is no number"));
        }
        let Some(replica) = replica else { return Ok(step) };
        for operation in &step.operations {
            replica.apply(operation.clone())?;
        }
        let (number, open) = match &replica.open {
            Some((number, open)) if *number == step.step => (*number, open),
            _ => return Err(refused(format!("step {} is not open", step.step))),
        };
        let want = if done == n_layers { open.wanted(&step.rows) } else { step.rows.len() };
        if step.rows.end > open.rows() || step.hidden.rows != want {
            return Err(refused(format!(
                "{} rows for rows {:?} of step {number}, must be {want} of {}",
                step.hidden.rows,
                step.rows,
                open.rows()
            )));
        }
        let Some(layers) = layers_of(configure, &step)? else { return Ok(step) };
        let hidden = std::mem::take(&mut step.hidden);
        let (begin, end) = (layers.start, layers.end);
        let control = &mut UntilStopped(stop);
        step.hidden = match replica.engine.run_layers(open, step.rows.clone(), hidden, layers, control) {
            Ok(hidden) => hidden,
            Err(StepError::Cancelled { .. }) => return Err(WorkFault::Stopped),
            Err(err) => return Err(err.into()),
        };
        if !step.hidden.values.iter().all(|value| value.is_finite()) {
            return Err(WorkFault::NoNumber { begin, end });
        }
        step.layers_done = end as u16;
        Ok(step)
    }
}

/// Returns the layers that a frame must have passed when it arrives here. If the number differs, the sender
/// is at fault, and no later device.
fn passed_before(configure: &Configure, step: &Step) -> usize {
    let here = (usize::from(step.round), usize::from(configure.place));
    match step.audit {
        Some(audit) if audit.place < configure.place => usize::from(audit.end),
        Some(audit) => usize::from(audit.begin),
        None => {
            let before = configure.windows.iter().filter(|window| (window.round, window.place) < here);
            before.map(|window| window.end).max().unwrap_or(0)
        }
    }
}

/// Returns the layers that a frame shall pass here, or `None` if it is only passed on.
fn layers_of(configure: &Configure, step: &Step) -> Result<Option<Range<usize>>, WorkFault> {
    let place = usize::from(configure.place);
    let mut own = configure.windows.iter().filter(|window| window.place == place);
    let Some(audit) = step.audit else {
        let window = own.find(|window| window.round == usize::from(step.round));
        return Ok(window.map(|window| window.begin..window.end));
    };
    if audit.place != configure.place {
        return Ok(None);
    }
    let (begin, end) = (usize::from(audit.begin), usize::from(audit.end));
    match own.any(|window| window.begin <= begin && begin < end && end <= window.end) {
        true => Ok(Some(begin..end)),
        false => {
            Err(refused(format!("an audit of layers {begin} to {end}, which are not all this device's")))
        }
    }
}
