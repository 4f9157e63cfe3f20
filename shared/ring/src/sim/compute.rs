//! What the engines and disks of simulated devices do with the works that cores give them.
//!
//! A work is done at the moment when it ends, so that an interrupted one is done in part. It never looks at
//! a core.

use std::ops::Range;
use std::time::Duration;

use crate::core::head::{BatchSeq, From, HeadDone, HeadWork, ModelFacts};
use crate::core::worker::{DiskEvent, DiskWork, PartOf, WorkerDone, WorkerWork};
use crate::core::{SeqNo, States, StepNo};
use crate::wire::frame::{Operation, Span, Step};

use super::disk::{FakeDisk, HEADER, LIST, MODEL, file_len};
use super::engine::{FakeEngine, Refusal, one_layer, output, pack, unpack};

/// Time that any work takes.
const LEAST: Duration = Duration::from_micros(20);

/// The head's engine.
#[derive(Debug)]
pub(super) struct HeadEngine {
    /// The engine.
    pub(super) engine: FakeEngine,
    n_layers: usize,
    step: StepNo,
    /// What the caller's present step computes.
    pub(super) batch: Vec<BatchSeq>,
    /// Outputs since the last step began.
    pub(super) outputs: Vec<u64>,
}

fn spans(engine: &FakeEngine, batch: &[BatchSeq]) -> Vec<Span> {
    let start = |seq: SeqNo| engine.ids(seq).map_or(0, <[u32]>::len) as u64;
    let span = |part: &BatchSeq| Span {
        seq: part.seq,
        start: start(part.seq),
        wanted: part.wanted,
        ids: part.ids.clone(),
    };
    batch.iter().map(span).collect()
}

fn states(states: &[u64]) -> HeadDone {
    HeadDone::States(States::of(pack(states)))
}

impl HeadEngine {
    /// An engine with all layers.
    pub(super) fn new(n_layers: usize, capacity: usize) -> Self {
        let engine = FakeEngine::new(n_layers, (0..n_layers).collect(), capacity);
        Self { engine, n_layers, step: StepNo(0), batch: Vec::new(), outputs: Vec::new() }
    }

    /// How long a work takes, if a row of one layer takes `pace`.
    pub(super) fn time(&self, work: &HeadWork, pace: Duration) -> Duration {
        let rows: usize = match work {
            HeadWork::Whole { replay: Some(part) } => part.ids.len() * self.n_layers,
            HeadWork::Whole { replay: None } => {
                self.batch.iter().map(|part| part.ids.len()).sum::<usize>() * self.n_layers
            }
            HeadWork::Rows { rows, layers, .. } => rows.len() * layers.len(),
            _ => 0,
        };
        LEAST + pace * rows as u32
    }

    /// Whether the caller's control can end a work.
    pub(super) fn hears(work: &HeadWork) -> bool {
        matches!(work, HeadWork::Whole { .. } | HeadWork::Rows { .. })
    }

    /// Does a work, or only its first layers.
    pub(super) fn run(&mut self, work: HeadWork, most: Option<usize>) -> HeadDone {
        match work {
            HeadWork::ReadModel => HeadDone::Model(ModelFacts {
                digest: MODEL,
                file_len: file_len(self.n_layers),
                header_bytes: HEADER,
            }),
            HeadWork::Sequence(Operation::Reuse { seq, ids, .. }) => {
                HeadDone::Gained(self.engine.reuse(seq, &ids))
            }
            HeadWork::Sequence(operation) => match self.engine.apply(&operation) {
                Ok(()) => HeadDone::Done,
                Err(_) => HeadDone::Refused,
            },
            HeadWork::Whole { .. } if most.is_some() => HeadDone::Cancelled,
            HeadWork::Whole { replay } => {
                let own = replay.is_none();
                let batch = replay.map_or_else(|| self.batch.clone(), |part| vec![part]);
                self.outputs.clear();
                let done = self.engine.step(&spans(&self.engine, &batch));
                match done {
                    Ok(outputs) => {
                        self.outputs = if own { outputs } else { Vec::new() };
                        HeadDone::Done
                    }
                    Err(_) => HeadDone::Refused,
                }
            }
            HeadWork::Open { step, replay } => {
                self.outputs.clear();
                let batch = replay.map_or_else(|| self.batch.clone(), |part| vec![part]);
                self.step = step;
                match self.engine.open(step, &spans(&self.engine, &batch)) {
                    Ok(()) => HeadDone::Done,
                    Err(_) => HeadDone::Refused,
                }
            }
            HeadWork::Embed { rows } => {
                self.engine.embed(&rows).map_or(HeadDone::Refused, |found| states(&found))
            }
            HeadWork::Rows { rows, from, layers, logits } => self.rows(&rows, from, &layers, logits, most),
            HeadWork::Layer { layer, ids, begins } => match unpack(begins.hidden()) {
                Some(begins) if begins.len() == ids.len() => states(&one_layer(layer, &begins)),
                _ => HeadDone::Refused,
            },
            HeadWork::Close { commit } => match self.engine.close(self.step, commit) {
                Ok(()) => HeadDone::Done,
                Err(_) => HeadDone::Failed,
            },
            HeadWork::Reset { layers, .. } => {
                self.engine.reset(layers.unwrap_or_else(|| (0..self.n_layers).collect()));
                HeadDone::Done
            }
            HeadWork::CheckFile { .. } | HeadWork::AddAdapter => HeadDone::Done,
        }
    }

    fn rows(
        &mut self,
        rows: &Range<usize>,
        from: From,
        layers: &Range<usize>,
        logits: bool,
        most: Option<usize>,
    ) -> HeadDone {
        let begin = match from {
            From::Tokens => self.engine.embed(rows),
            From::States(states) => unpack(states.hidden()),
        };
        let Some(begin) = begin else { return HeadDone::Refused };
        let Ok(found) = self.engine.run(rows, layers, begin, most.unwrap_or(usize::MAX)) else {
            return HeadDone::Refused;
        };
        if most.is_some() {
            return HeadDone::Cancelled;
        }
        if !logits {
            return states(&found);
        }
        self.outputs.extend(found.into_iter().map(output));
        HeadDone::Done
    }
}

/// A worker's engine.
#[derive(Debug)]
pub(super) struct WorkerEngine {
    /// The engine, if the worker has a part.
    pub(super) engine: Option<FakeEngine>,
    n_layers: usize,
    /// Whether every layer is computed wrong.
    pub(super) wrong: bool,
    /// Values that were computed wrong since the flag was cleared.
    pub(super) spoiled: bool,
    /// Something that a core must not have asked for.
    pub(super) broken: Option<String>,
}

impl WorkerEngine {
    /// Without a part.
    pub(super) fn new(n_layers: usize) -> Self {
        Self { engine: None, n_layers, wrong: false, spoiled: false, broken: None }
    }

    /// How long a work takes, if a row of one layer takes `pace`.
    pub(super) fn time(work: &WorkerWork, pace: Duration, opens: Duration) -> Duration {
        match work {
            WorkerWork::Begin { .. } => opens,
            WorkerWork::Pass { step, layers } => LEAST + pace * (step.rows.len() * layers.len()) as u32,
            WorkerWork::Forget => LEAST,
        }
    }

    /// Does a work, or only its first layers.
    pub(super) fn run(&mut self, work: WorkerWork, disk: &FakeDisk, most: Option<usize>) -> WorkerDone {
        match work {
            WorkerWork::Begin { configure, layers, same, .. } => {
                if !disk.lacks(&[]).is_empty() || !disk.lacks(&layers).is_empty() {
                    self.broken.get_or_insert("a part begins without its weights".to_owned());
                }
                if same && self.engine.is_none() {
                    self.broken.get_or_insert("a part goes on with a model that is not open".to_owned());
                }
                if most.is_some() {
                    return WorkerDone::Stopped;
                }
                self.engine = Some(FakeEngine::new(self.n_layers, layers, configure.kv_tokens as usize));
                WorkerDone::Begun
            }
            WorkerWork::Pass { step, layers } => self.pass(step, &layers, most),
            WorkerWork::Forget => {
                self.engine = None;
                WorkerDone::Forgotten
            }
        }
    }

    fn pass(&mut self, mut step: Box<Step>, layers: &Range<usize>, most: Option<usize>) -> WorkerDone {
        let Some(engine) = &mut self.engine else {
            return WorkerDone::Engine("there is no engine".to_owned());
        };
        for operation in &step.operations {
            match engine.apply(operation) {
                Ok(()) => {}
                Err(Refusal::Refused(words)) => return WorkerDone::Refused(words),
                Err(Refusal::Gains { want, found }) => return WorkerDone::Gains { want, found },
            }
        }
        if layers.is_empty() {
            return if most.is_some() { WorkerDone::Stopped } else { WorkerDone::Passed(step) };
        }
        let Some(begin) = unpack(step.states.hidden()) else {
            return WorkerDone::Refused("states are no hidden states".to_owned());
        };
        engine.wrong = self.wrong;
        self.spoiled |= self.wrong;
        match engine.run(&step.rows, layers, begin, most.unwrap_or(usize::MAX)) {
            Ok(_) if most.is_some() => WorkerDone::Stopped,
            Ok(found) => {
                step.states = States::of(pack(&found));
                WorkerDone::Passed(step)
            }
            Err(Refusal::Gains { .. }) => WorkerDone::Engine("a pass gains nothing".to_owned()),
            Err(Refusal::Refused(words)) => WorkerDone::Refused(words),
        }
    }
}

/// Does a work of a worker's disk; the time that it took, and the answer.
pub(super) fn disk(disk: &mut FakeDisk, work: DiskWork, opens: Duration) -> (Duration, DiskEvent) {
    let quick = Duration::from_millis(1);
    match work {
        DiskWork::Look { .. } if disk.whole => (opens, DiskEvent::Whole("model".into())),
        DiskWork::Look { .. } if !disk.list => (quick, DiskEvent::NoList),
        DiskWork::Look { part, .. } => {
            let pieces = match part {
                PartOf::Header => disk.lacks(&[]),
                PartOf::Layers(layers) if layers.is_empty() => Vec::new(),
                PartOf::Layers(layers) => disk.lacks(&layers),
            };
            let pieces = pieces.into_iter().map(|index| (index, HEADER)).collect();
            (opens, DiskEvent::Lacks { pieces, path: "pieces".into() })
        }
        DiskWork::Keep { model, list } if model == MODEL && list == LIST => {
            disk.list = true;
            (quick, DiskEvent::Done)
        }
        DiskWork::Keep { .. } => (quick, DiskEvent::Failed("another list".to_owned())),
        DiskWork::Put { index, bytes, .. } if disk.put(index, &bytes) => (quick, DiskEvent::Done),
        DiskWork::Put { index, .. } => (quick, DiskEvent::Forged(index)),
        DiskWork::Sync { .. } | DiskWork::ForgetChecked => (quick, DiskEvent::Done),
    }
}
