//! A worker's engine and the head's sequences in it.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use baton_engine::engine::OpenStep;
use baton_engine::{
    Engine, EngineError, EngineOptions, GpuLayers, GpuUse, KvError, Model, SeqId, StepControl, StepError,
    StepSeq,
};
use baton_terminal::chain;

use crate::core::layout::gpu_layers_of;
use crate::core::worker::{WorkerDone, WorkerWork};
use crate::core::{SeqNo, States};
use crate::host::caught;
use crate::host::machine::{Machine, OpenShare};
use crate::wire::frame::{Configure, Operation, Span, Step};

/// Ends a pass when it is interrupted.
struct UntilInterrupted<'a>(&'a AtomicBool);

impl StepControl for UntilInterrupted<'_> {
    fn after_layer(&mut self, _done: usize, _total: usize) -> ControlFlow<()> {
        if self.0.load(Ordering::Acquire) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// The head's sequences on this device.
struct Replica {
    engine: Engine,
    seqs: BTreeMap<SeqNo, SeqId>,
    open: Option<OpenStep>,
}

/// Does a worker's engine work.
pub(in crate::host) struct WorkerEngine {
    machine: Arc<dyn Machine>,
    threads: Option<NonZeroUsize>,
    interrupt: Arc<AtomicBool>,
    model: Option<Arc<Model>>,
    replica: Option<Replica>,
}

impl WorkerEngine {
    /// Makes one without a model; `interrupt` ends the work under way.
    pub(in crate::host) fn new(
        machine: Arc<dyn Machine>,
        threads: Option<NonZeroUsize>,
        interrupt: Arc<AtomicBool>,
    ) -> Self {
        Self { machine, threads, interrupt, model: None, replica: None }
    }

    /// Does one work, and returns how long it took. After a panic, engine and model are gone.
    pub(in crate::host) fn run(&mut self, work: WorkerWork) -> (WorkerDone, Duration) {
        let begun = Instant::now();
        let done = caught("the engine", || self.perform(work)).unwrap_or_else(|words| {
            (self.replica, self.model) = (None, None);
            Err(WorkerDone::Panicked(words))
        });
        (done.unwrap_or_else(|failed| failed), begun.elapsed())
    }

    fn perform(&mut self, work: WorkerWork) -> Result<WorkerDone, WorkerDone> {
        match work {
            WorkerWork::Begin { file, configure, layers, same } => {
                self.begin(&file, &configure, layers, same).map(|()| WorkerDone::Begun)
            }
            WorkerWork::Pass { step, layers } => self.pass(step, layers),
            WorkerWork::Forget => {
                (self.replica, self.model) = (None, None);
                Ok(WorkerDone::Forgotten)
            }
        }
    }

    fn begin(
        &mut self,
        file: &Path,
        configure: &Configure,
        layers: Vec<usize>,
        same: bool,
    ) -> Result<(), WorkerDone> {
        self.replica = None;
        let gpu = self.machine.gpu();
        let on_gpu = gpu_layers_of(&configure.windows, usize::from(configure.place));
        let on_gpu = if gpu.is_some() { on_gpu } else { Vec::new() };
        let kv_tokens = configure.kv_tokens as usize;
        let model = match self.model.take().filter(|_| same) {
            Some(model) => model,
            None => {
                // If the GPU computes all, weights that it has no room for come from here.
                let is_here = |layer: &usize| on_gpu.len() == layers.len() || !on_gpu.contains(layer);
                let share = OpenShare {
                    layers: layers.iter().copied().filter(is_here).collect(),
                    kv_tokens,
                    kv_format: configure.kv_format,
                    reads_ahead: configure.reads_ahead,
                };
                let opened = self.machine.open(file, &share);
                opened.map_err(|err| WorkerDone::Weights(chain(err.as_ref())))?
            }
        };
        let model = self.model.insert(model);
        if let Some(weights) = model.streamed() {
            weights.set_prefetch(configure.prefetch_bytes);
        }
        let (n_layers, width) = (usize::from(configure.n_layers), configure.width as usize);
        let config = model.config();
        if (config.n_layers, config.d_model) != (n_layers, width) {
            return Err(WorkerDone::Weights(format!(
                "the plan is of {n_layers} layers of {width} values, the model has {} of {}",
                config.n_layers, config.d_model
            )));
        }
        let options = EngineOptions {
            threads: self.threads,
            kv_tokens,
            kv_format: configure.kv_format,
            window: configure.window,
            prefix_cache_percent: configure.prefix_percent,
            layers: Some(layers),
            gpu: gpu.map(|gpu| GpuUse { layers: GpuLayers::Only(on_gpu), ..gpu }),
            ..EngineOptions::default()
        };
        let engine = engine_of(model, options).map_err(|err| WorkerDone::Engine(chain(&err)))?;
        engine.share_weights().map_err(|err| WorkerDone::Weights(chain(&err)))?;
        self.replica = Some(Replica { engine, seqs: BTreeMap::new(), open: None });
        Ok(())
    }

    fn pass(&mut self, mut step: Box<Step>, layers: Range<usize>) -> Result<WorkerDone, WorkerDone> {
        let no_engine = || WorkerDone::Engine("there is no engine".to_owned());
        let replica = self.replica.as_mut().ok_or_else(no_engine)?;
        for operation in &step.operations {
            replica.apply(operation)?;
        }
        if layers.is_empty() {
            return Ok(WorkerDone::Passed(step));
        }
        let not_open = || WorkerDone::Refused(format!("step {} is not open", step.step));
        let open = replica.open.as_ref().ok_or_else(not_open)?;
        let hidden = std::mem::take(&mut step.states).into_hidden();
        let control = &mut UntilInterrupted(&self.interrupt);
        match replica.engine.run_layers(open, step.rows.clone(), hidden, layers, control) {
            Ok(hidden) => {
                step.states = States::of(hidden);
                Ok(WorkerDone::Passed(step))
            }
            Err(StepError::Cancelled { .. }) => Err(WorkerDone::Stopped),
            Err(err) => Err(WorkerDone::Engine(chain(&err))),
        }
    }
}

/// Makes an engine. If the GPU refuses its layers or fails, the CPU computes all of them.
fn engine_of(model: &Arc<Model>, options: EngineOptions) -> Result<Engine, EngineError> {
    match Engine::new(Arc::clone(model), options.clone()) {
        Err(err @ (EngineError::Gpu(_) | EngineError::GpuRefused { .. })) => {
            tracing::warn!(err = %chain(&err), "the CPU computes the layers that the plan gives to the GPU");
            Engine::new(Arc::clone(model), EngineOptions { gpu: None, ..options })
        }
        made => made,
    }
}

fn refused(words: impl Into<String>) -> WorkerDone {
    WorkerDone::Refused(words.into())
}

impl Replica {
    fn seq(&self, number: SeqNo) -> Result<SeqId, WorkerDone> {
        self.seqs.get(&number).copied().ok_or_else(|| refused(format!("sequence {number} is not known")))
    }

    /// Applies an operation. The core has checked it; what the engine refuses nevertheless, the head's engine
    /// has accepted.
    fn apply(&mut self, operation: &Operation) -> Result<(), WorkerDone> {
        let differs = |err: KvError| refused(err.to_string());
        match operation {
            Operation::Create { seq } => {
                let own = self.engine.create();
                self.seqs.insert(*seq, own);
            }
            Operation::Fork { from, tokens, seq } => {
                let own = self.engine.fork(self.seq(*from)?, *tokens as usize).map_err(differs)?;
                self.seqs.insert(*seq, own);
            }
            Operation::Truncate { seq, tokens } => {
                self.engine.truncate(self.seq(*seq)?, *tokens as usize).map_err(differs)?;
            }
            Operation::Release { seq } => {
                self.engine.release(self.seq(*seq)?);
                self.seqs.remove(seq);
            }
            Operation::Reuse { seq, ids, gained } => {
                let found = self.engine.reuse_prefix(self.seq(*seq)?, ids) as u64;
                if found != *gained {
                    return Err(WorkerDone::Gains { want: *gained, found });
                }
            }
            Operation::Open { spans, .. } => self.open = Some(self.opened(spans)?),
            Operation::Commit { step } => {
                let open = self.open.take().ok_or_else(|| refused(format!("step {step} is not open")))?;
                self.engine.commit_step(open);
            }
            Operation::Cancel { step } => {
                let open = self.open.take().ok_or_else(|| refused(format!("step {step} is not open")))?;
                self.engine.cancel_step(open);
            }
        }
        Ok(())
    }

    fn opened(&mut self, spans: &[Span]) -> Result<OpenStep, WorkerDone> {
        let mut batch = Vec::with_capacity(spans.len());
        for span in spans {
            let seq = self.seq(span.seq)?;
            batch.push(StepSeq { seq, ids: &span.ids, logits: span.wanted, capture: None });
        }
        self.engine.open_step(&batch).map_err(|err| refused(err.to_string()))
    }
}
