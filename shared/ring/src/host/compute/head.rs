//! The head's engine: all of the head's sequences, and what its core asks of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_engine::engine::OpenStep;
use baton_engine::tokenizer::TokenId;
use baton_engine::{
    Adapter, AdapterError, AdapterId, Engine, EngineOptions, GpuLayers, Model, PrefixScope, SeqId, SeqOutput,
    StepControl, StepError, StepSeq, Wanted,
};
use baton_terminal::chain;

use crate::core::head::{BatchSeq, From, HeadDone, HeadWork, ModelFacts};
use crate::core::{SeqNo, States};
use crate::host::RingError;
use crate::host::give::{FileGiver, ModelFile};
use crate::weights::{CheckedPieces, Part, WeightsError, check_whole};
use crate::wire::frame::{Activations, Operation};

/// Tokens of the cache of an engine that computes single layers.
const AUDIT_TOKENS: usize = 64;

/// What the caller of the present request has given.
pub(in crate::host) struct Request<'a> {
    /// Its step.
    pub(in crate::host) batch: &'a [StepSeq<'a>],
    /// Asked after each layer.
    pub(in crate::host) control: &'a mut dyn StepControl,
    /// The adapter of a sequence that it creates.
    pub(in crate::host) adapter: Option<AdapterId>,
    /// The adapter that it brings.
    pub(in crate::host) brings: Option<Arc<Adapter>>,
}

/// What a request has left with the engine.
#[derive(Debug, Default)]
pub(in crate::host) struct Left {
    /// Logits of the step that was computed last.
    pub(in crate::host) outputs: Vec<SeqOutput>,
    /// Why the engine refused.
    pub(in crate::host) refused: Option<StepError>,
    /// Why the adapter cannot be used, or its id.
    pub(in crate::host) adapter: Option<Result<AdapterId, AdapterError>>,
    /// Why the head cannot go on.
    pub(in crate::host) failed: Option<RingError>,
}

/// Why a work is not done.
enum Refusal {
    /// The engine refuses it.
    Step(StepError),
    /// The sequence or the step of the core is not known.
    Unknown,
}

impl<E: Into<StepError>> std::convert::From<E> for Refusal {
    fn from(err: E) -> Self {
        Self::Step(err.into())
    }
}

/// Does the head's engine work.
pub(in crate::host) struct HeadEngine {
    engine: Engine,
    options: EngineOptions,
    activations: Activations,
    seqs: BTreeMap<SeqNo, SeqId>,
    open: Option<OpenStep>,
    file: FileGiver,
    /// The whole model, opened a second time, if the head's own weights are streamed.
    auditor: Option<Arc<Model>>,
    checked: CheckedPieces,
    left: Left,
}

impl HeadEngine {
    /// Makes one of an engine without sequences; `file` gets the model's file once it is read.
    pub(in crate::host) fn new(
        engine: Engine,
        options: EngineOptions,
        activations: Activations,
        file: FileGiver,
    ) -> Self {
        Self {
            engine,
            options,
            activations,
            seqs: BTreeMap::new(),
            open: None,
            file,
            auditor: None,
            checked: CheckedPieces::default(),
            left: Left::default(),
        }
    }

    /// Returns the engine.
    pub(in crate::host) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the engine's id of a sequence.
    pub(in crate::host) fn id_of(&self, seq: SeqNo) -> Option<SeqId> {
        self.seqs.get(&seq).copied()
    }

    /// Takes what the last request has left.
    pub(in crate::host) fn take_left(&mut self) -> Left {
        std::mem::take(&mut self.left)
    }

    /// Does one work, and returns how long it took.
    pub(in crate::host) fn run(&mut self, work: HeadWork, request: &mut Request<'_>) -> (HeadDone, Duration) {
        let begun = Instant::now();
        let done = match work {
            HeadWork::ReadModel => self.read_model(),
            HeadWork::Sequence(operation) => Ok(self.change(&operation, request.adapter)),
            HeadWork::AddAdapter => Ok(self.add_adapter(request.brings.take())),
            HeadWork::Whole { replay } => self.whole(replay, request),
            HeadWork::Open { replay, .. } => self.open(replay, request.batch),
            HeadWork::Embed { rows } => self.embed(rows),
            HeadWork::Rows { rows, from, layers, logits } => {
                self.rows(rows, from, layers, logits, request.control)
            }
            HeadWork::Layer { layer, ids, begins } => self.layer(layer, &ids, begins),
            HeadWork::Close { commit } => {
                if let Some(open) = self.open.take() {
                    match commit {
                        true => self.engine.commit_step(open),
                        false => self.engine.cancel_step(open),
                    }
                }
                Ok(HeadDone::Done)
            }
            HeadWork::Reset { layers, gpu_layers, prefetch_bytes } => {
                self.reset(layers, gpu_layers, prefetch_bytes)
            }
            HeadWork::CheckFile { layers, anew } => Ok(self.check_file(&layers, anew)),
        };
        (done.unwrap_or_else(|err| self.refuse(err)), begun.elapsed())
    }

    fn refuse(&mut self, refusal: Refusal) -> HeadDone {
        let Refusal::Step(err) = refusal else { return HeadDone::Refused };
        if let Some(fault) = err.gpu_fault() {
            return HeadDone::Lost(fault.to_string());
        }
        let cancelled = matches!(err, StepError::Cancelled { .. });
        self.left.refused = Some(err);
        if cancelled { HeadDone::Cancelled } else { HeadDone::Refused }
    }

    fn fail(&mut self, err: impl Into<RingError>) -> HeadDone {
        self.left.failed = Some(err.into());
        HeadDone::Failed
    }

    fn read_model(&mut self) -> Result<HeadDone, Refusal> {
        let Some(path) = self.engine.model().path() else { return Ok(self.fail(RingError::NoFile)) };
        if self.file.0.get().is_none() {
            match ModelFile::open(path) {
                Ok(file) => drop(self.file.0.set(file)),
                Err(err) => return Ok(self.fail(err)),
            }
        }
        let facts = self.file.0.get().map(|file| ModelFacts {
            digest: file.manifest.digest(),
            file_len: file.manifest.file_len(),
            header_bytes: file.manifest.header_bytes(),
        });
        Ok(facts.map_or(HeadDone::Failed, HeadDone::Model))
    }

    fn change(&mut self, operation: &Operation, adapter: Option<AdapterId>) -> HeadDone {
        match self.changed(operation, adapter) {
            Ok(done) => done,
            Err(err) => self.refuse(err),
        }
    }

    fn seq(&self, number: SeqNo) -> Result<SeqId, Refusal> {
        self.seqs.get(&number).copied().ok_or(Refusal::Unknown)
    }

    fn changed(&mut self, operation: &Operation, adapter: Option<AdapterId>) -> Result<HeadDone, Refusal> {
        match operation {
            Operation::Create { seq } => {
                let own = self.engine.create_in(PrefixScope::default(), adapter)?;
                self.seqs.insert(*seq, own);
            }
            Operation::Fork { from, tokens, seq } => {
                let own = self.engine.fork(self.seq(*from)?, *tokens as usize)?;
                self.seqs.insert(*seq, own);
            }
            Operation::Truncate { seq, tokens } => {
                self.engine.truncate(self.seq(*seq)?, *tokens as usize)?;
            }
            Operation::Release { seq } => {
                if let Some(own) = self.seqs.remove(seq) {
                    self.engine.release(own);
                }
            }
            Operation::Reuse { seq, ids, .. } => {
                let own = self.seq(*seq)?;
                return Ok(HeadDone::Gained(self.engine.reuse_prefix(own, ids)));
            }
            // Steps have works of their own.
            Operation::Open { .. } | Operation::Commit { .. } | Operation::Cancel { .. } => {}
        }
        Ok(HeadDone::Done)
    }

    fn add_adapter(&mut self, adapter: Option<Arc<Adapter>>) -> HeadDone {
        let Some(adapter) = adapter else { return HeadDone::Refused };
        let added = self.engine.add_adapter(adapter);
        let done = if added.is_ok() { HeadDone::Done } else { HeadDone::Refused };
        self.left.adapter = Some(added);
        done
    }

    fn whole(&mut self, replay: Option<BatchSeq>, request: &mut Request<'_>) -> Result<HeadDone, Refusal> {
        self.left.outputs = match replay {
            None => self.engine.step(request.batch, request.control)?,
            Some(own) => {
                let entry =
                    StepSeq { seq: self.seq(own.seq)?, ids: &own.ids, logits: own.wanted, capture: None };
                self.engine.step(&[entry], request.control)?
            }
        };
        Ok(HeadDone::Done)
    }

    fn open(&mut self, replay: Option<BatchSeq>, batch: &[StepSeq<'_>]) -> Result<HeadDone, Refusal> {
        let (open, seqs) = match replay {
            None => (self.engine.open_step(batch)?, batch.len()),
            Some(own) => {
                let entry =
                    StepSeq { seq: self.seq(own.seq)?, ids: &own.ids, logits: own.wanted, capture: None };
                (self.engine.open_step(&[entry])?, 1)
            }
        };
        self.open = Some(open);
        self.left.outputs = vec![SeqOutput { logits: Vec::new(), best: None, scores: None }; seqs];
        Ok(HeadDone::Done)
    }

    fn opened(&self) -> Result<&OpenStep, Refusal> {
        self.open.as_ref().ok_or(Refusal::Unknown)
    }

    fn embed(&mut self, rows: Range<usize>) -> Result<HeadDone, Refusal> {
        let hidden = self.engine.embed(self.opened()?, rows)?;
        Ok(HeadDone::States(States::of(self.activations.carried(hidden))))
    }

    fn rows(
        &mut self,
        rows: Range<usize>,
        from: From,
        layers: Range<usize>,
        logits: bool,
        control: &mut dyn StepControl,
    ) -> Result<HeadDone, Refusal> {
        let Self { engine, open, left, .. } = self;
        let open = open.as_ref().ok_or(Refusal::Unknown)?;
        let mut hidden = match from {
            From::Tokens => engine.embed(open, rows.clone())?,
            From::States(states) => states.into_hidden(),
        };
        if !layers.is_empty() {
            hidden = engine.run_layers(open, rows.clone(), hidden, layers, control)?;
        }
        if !logits {
            return Ok(HeadDone::States(States::of(hidden)));
        }
        let outputs = engine.logits(open, rows, hidden)?;
        for (all, part) in left.outputs.iter_mut().zip(outputs) {
            all.logits.extend(part.logits);
        }
        Ok(HeadDone::Done)
    }

    /// Computes one layer in an engine of its own, and returns what it makes of these rows.
    fn layer(&mut self, layer: usize, ids: &[TokenId], begins: States) -> Result<HeadDone, Refusal> {
        let mut own = match self.auditor(layer) {
            Ok(own) => own,
            Err(words) => {
                tracing::warn!(words, "no device is audited");
                return Ok(HeadDone::Refused);
            }
        };
        let seq = own.create();
        let entry = StepSeq { seq, ids, logits: Wanted::All, capture: None };
        let open = own.open_step(&[entry])?;
        let hidden = own.run_layers(&open, 0..ids.len(), begins.into_hidden(), layer..layer + 1, &mut ())?;
        Ok(HeadDone::States(States::of(self.activations.carried(hidden))))
    }

    /// Returns an engine that computes a single layer.
    fn auditor(&mut self, layer: usize) -> Result<Engine, String> {
        let own = self.engine.model();
        let model = match (&self.auditor, own.streamed()) {
            (Some(model), Some(_)) => Arc::clone(model),
            (_, None) => Arc::clone(own),
            (None, Some(_)) => {
                let path = own.path().ok_or("the model has no file")?;
                let model = Model::open(path).map_err(|err| chain(&err))?;
                self.auditor = Some(Arc::clone(&model));
                model
            }
        };
        let options = EngineOptions {
            kv_tokens: AUDIT_TOKENS,
            prefix_cache_percent: 0,
            layers: Some(vec![layer]),
            gpu: None,
            ..self.options.clone()
        };
        Engine::new(model, options).map_err(|err| chain(&err))
    }

    /// Changes to these layers; if the weights are streamed, these too, without those of the GPU.
    fn reset(
        &mut self,
        layers: Option<Vec<usize>>,
        gpu_layers: Option<Vec<usize>>,
        prefetch_bytes: u64,
    ) -> Result<HeadDone, Refusal> {
        self.open = None;
        if let Err(err) = self.engine.reset(layers, gpu_layers.map_or(GpuLayers::Fit, GpuLayers::Only)) {
            return Ok(self.fail(err));
        }
        let model = Arc::clone(self.engine.model());
        if let Some(weights) = model.streamed() {
            weights.set_prefetch(prefetch_bytes);
            if let Err(err) = self.engine.share_weights() {
                return Ok(self.fail(err));
            }
            let stats = weights.stats();
            let (weight_bytes, resident_bytes) = (stats.weight_bytes, stats.resident_bytes);
            tracing::info!(weight_bytes, resident_bytes, "the head's weights");
        }
        Ok(HeadDone::Done)
    }

    /// Returns `Rotten` if the file has changed in these layers, its header or its tables since the list of
    /// its pieces was made.
    fn check_file(&self, layers: &[usize], anew: bool) -> HeadDone {
        let Some(file) = self.file.0.get() else { return HeadDone::Done };
        let fresh = CheckedPieces::default();
        let checked = if anew { &fresh } else { &self.checked };
        let parts = [Part::Header, Part::Tables, Part::Layers(layers)];
        let place = (file.path.as_path(), &file.manifest);
        match check_whole(place, &parts, checked, &mut || Ok(()), &mut |_, _| {}) {
            Err(err @ WeightsError::Rotten { .. }) => HeadDone::Rotten(chain(&err)),
            _ => HeadDone::Done,
        }
    }
}
