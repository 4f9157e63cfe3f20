//! A step in pieces: some layers, some rows at a time, hidden states in and out.
//!
//! This is the basis of a ring of devices. Each device has an engine with its own layers over the same
//! sequences, and passes the hidden states of a chunk of rows to the next. Invariant: for any pieces, the
//! logits are those of [`Engine::step`], bit for bit. Every row must pass the layers in order, and rows of
//! one sequence must pass each layer in order.

use std::ops::Range;

use super::gpu::GpuLayers;
use super::segments::{End, Lanes, StepInput, logits_of};
use super::{
    Engine, EngineError, SeqOutput, StepControl, StepError, StepSeq, adapted, files_are_intact, wanted,
};
use crate::backend::{Backend, SeqSpan};
use crate::config::ModelConfig;
use crate::forward::embed;
use crate::kv::{KvError, SeqId};
use crate::tokenizer::TokenId;

/// Hidden states, `[rows, width]` in f32, row-major.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Hidden {
    /// Number of rows.
    pub rows: usize,
    /// Values per row (`e`).
    pub width: usize,
    /// `rows * width` values.
    pub values: Vec<f32>,
}

impl Hidden {
    fn check(&self, want: (usize, usize)) -> Result<(), StepError> {
        let found = (self.rows, self.width);
        if found != want || self.values.len() != want.0 * want.1 {
            return Err(StepError::Hidden { found, want });
        }
        Ok(())
    }
}

/// One sequence's part of an open step.
#[derive(Debug)]
struct OpenSeq {
    seq: SeqId,
    span: SeqSpan,
    /// Rows of the step whose logits are wanted.
    wanted: Range<usize>,
}

/// A step that has begun. Its sequences do not change until it is committed or cancelled.
#[derive(Debug)]
pub struct OpenStep {
    seqs: Vec<OpenSeq>,
    /// Token ids of all rows.
    ids: Vec<TokenId>,
}

/// A range of a step's rows, counted from the range's first row.
struct Chunk<'a> {
    seqs: Vec<SeqId>,
    spans: Vec<SeqSpan>,
    wanted: Vec<Range<usize>>,
    ids: &'a [TokenId],
}

impl OpenStep {
    /// Returns the number of rows: the new tokens of all sequences, in the order of the batch.
    pub fn rows(&self) -> usize {
        self.ids.len()
    }

    /// Returns how many of these rows have logits.
    pub fn wanted(&self, rows: &Range<usize>) -> usize {
        self.seqs.iter().map(|part| overlap(&part.wanted, rows).len()).sum()
    }

    fn chunk(&self, rows: &Range<usize>) -> Result<Chunk<'_>, StepError> {
        let total = self.rows();
        if rows.start > rows.end || rows.end > total {
            return Err(StepError::Rows { rows: rows.clone(), total });
        }
        let own = |range: &Range<usize>| {
            let both = overlap(range, rows);
            both.start - rows.start..both.end - rows.start
        };
        let ids = &self.ids[rows.clone()];
        let mut chunk = Chunk { seqs: Vec::new(), spans: Vec::new(), wanted: Vec::new(), ids };
        for part in &self.seqs {
            let span = &part.span;
            let span_rows = own(&span.rows);
            if span_rows.is_empty() {
                continue;
            }
            let start = span.start + rows.start.saturating_sub(span.rows.start);
            chunk.seqs.push(part.seq);
            chunk.spans.push(SeqSpan { rows: span_rows, start, blocks: span.blocks.clone(), ..*span });
            chunk.wanted.push(own(&part.wanted));
        }
        Ok(chunk)
    }
}

/// Returns the intersection; if it is empty, an empty range within `b`.
fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.clamp(b.start, b.end);
    start..a.end.clamp(start, b.end)
}

/// Returns the layers requested; `None` means all.
pub(super) fn own_layers(
    layers: Option<Vec<usize>>,
    config: &ModelConfig,
) -> Result<Vec<usize>, EngineError> {
    let n_layers = config.n_layers;
    let layers = layers.unwrap_or_else(|| (0..n_layers).collect());
    let ascending = layers.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending || layers.last().is_some_and(|last| *last >= n_layers) {
        return Err(EngineError::Layers { layers, n_layers });
    }
    match EngineError::undivided(config) {
        Some(err) if layers.len() < n_layers => Err(err),
        _ => Ok(layers),
    }
}

impl Engine {
    /// Starts over with these layers, ascending; `None` means all. The engine's GPU computes `gpu` of them.
    /// Every sequence stays but has no tokens. Known prefixes are forgotten, and an open step ends.
    ///
    /// # Errors
    /// [`EngineError::Layers`], [`EngineError::Recurrent`], [`EngineError::TiedLayers`]; nothing has changed
    /// then.
    pub fn reset(&mut self, layers: Option<Vec<usize>>, gpu: GpuLayers) -> Result<(), EngineError> {
        self.layers = own_layers(layers, self.model.config())?;
        self.table.clear();
        self.share_out(gpu);
        Ok(())
    }

    /// Begins a step: checks it and makes room in the cache. Until [`Self::commit_step`] or
    /// [`Self::cancel_step`], its sequences cannot be used otherwise.
    ///
    /// # Errors
    /// Those of [`Self::step`], [`StepError::CaptureInPieces`], [`StepError::RecurrentInPieces`] and
    /// [`StepError::TiedInPieces`]. Nothing has changed then.
    pub fn open_step(&mut self, batch: &[StepSeq<'_>]) -> Result<OpenStep, StepError> {
        if batch.iter().any(|entry| entry.capture.is_some()) {
            return Err(StepError::CaptureInPieces);
        }
        let config = self.model.config();
        if config.recurrent.is_some() {
            return Err(StepError::RecurrentInPieces { family: config.family.name });
        }
        if config.has_tied_layers() {
            return Err(StepError::TiedInPieces { family: config.family.name });
        }
        self.check(batch)?;
        for entry in batch {
            if self.first_lost(entry.seq)?.is_some() {
                return Err(StepError::Lost(entry.seq));
            }
        }
        let wants: Vec<_> = batch.iter().map(|entry| (entry.seq, entry.ids.len())).collect();
        let copies = self.table.reserve(&wants)?;
        let spans = self.spans(batch)?;
        self.prepare(&copies, &spans);
        let part = |(entry, span): (&StepSeq<'_>, SeqSpan)| OpenSeq {
            seq: entry.seq,
            wanted: wanted(entry.logits, &span),
            span,
        };
        let ids = batch.iter().flat_map(|entry| entry.ids).copied().collect();
        Ok(OpenStep { seqs: batch.iter().zip(spans).map(part).collect(), ids })
    }

    /// Returns the input of the first layer for these rows: the embeddings of their tokens, `[rows, e]`.
    ///
    /// # Errors
    /// [`StepError::Rows`], [`StepError::Weights`], [`StepError::ModelFile`].
    pub fn embed(&self, step: &OpenStep, rows: Range<usize>) -> Result<Hidden, StepError> {
        let (chunk, config) = (step.chunk(&rows)?, self.model.config());
        let backend = &self.host.backend;
        let x = embed(backend, config, self.model.weights(), chunk.ids)?;
        self.model.intact()?;
        Ok(Hidden { rows: rows.len(), width: config.d_model, values: backend.read(x)? })
    }

    /// Runs layers over the hidden states of these rows, and writes their keys and values. After the model's
    /// last layer, only the rows whose logits are wanted are left.
    ///
    /// # Errors
    /// [`StepError::NotHeld`], [`StepError::Rows`], [`StepError::Hidden`], [`StepError::Weights`],
    /// [`StepError::ModelFile`], [`StepError::Cancelled`]; [`StepError::Kv`] if the step is not open any
    /// more. The step stays open.
    pub fn run_layers(
        &mut self,
        step: &OpenStep,
        rows: Range<usize>,
        hidden: Hidden,
        layers: Range<usize>,
        control: &mut dyn StepControl,
    ) -> Result<Hidden, StepError> {
        self.holds(layers.clone())?;
        let chunk = step.chunk(&rows)?;
        if let Some(seq) = chunk.seqs.iter().find(|seq| !self.table.is_open(**seq)) {
            return Err(KvError::UnknownSequence(*seq).into());
        }
        let config = self.model.config();
        hidden.check((rows.len(), config.d_model))?;
        if rows.is_empty() || layers.is_empty() {
            return Ok(hidden);
        }
        let left = if layers.end == config.n_layers { step.wanted(&rows) } else { rows.len() };
        let width = config.d_model;
        match self.run_chunk(&chunk, hidden, layers, control) {
            Ok(values) => Ok(Hidden { rows: left, width, values }),
            Err(err) => {
                self.leave_gpu(&err);
                Err(err)
            }
        }
    }

    fn run_chunk(
        &mut self,
        chunk: &Chunk<'_>,
        hidden: Hidden,
        layers: Range<usize>,
        control: &mut dyn StepControl,
    ) -> Result<Vec<f32>, StepError> {
        let Self { model, host, gpu, window, table, adapters, .. } = self;
        let input = StepInput {
            window: *window,
            spans: &chunk.spans,
            moves: &[],
            ids: chunk.ids,
            captures: &vec![None; chunk.spans.len()],
            wanted: &chunk.wanted,
        };
        let rows = || chunk.seqs.iter().zip(&chunk.spans).map(|(seq, span)| (*seq, span.rows.clone()));
        let own = || adapted(table, adapters, rows());
        let mut lanes = Lanes { model, host, gpu: gpu.as_mut() };
        let computed = lanes.run(&input, &own, Some(hidden.values), (layers, End::Hidden), control)?;
        files_are_intact(model, adapters)?;
        Ok(computed.values)
    }

    /// Returns the logits of the wanted rows among these, given their hidden states after the last layer.
    /// There is one output per sequence of the step, empty if none of its wanted rows are among them.
    ///
    /// # Errors
    /// [`StepError::Rows`], [`StepError::Hidden`], [`StepError::Weights`], [`StepError::ModelFile`].
    pub fn logits(
        &self,
        step: &OpenStep,
        rows: Range<usize>,
        hidden: Hidden,
    ) -> Result<Vec<SeqOutput>, StepError> {
        step.chunk(&rows)?;
        let (n, config) = (step.wanted(&rows), self.model.config());
        hidden.check((n, config.d_model))?;
        let all = logits_of(&self.model, &self.host, self.gpu.as_ref(), (hidden.values, n), false)?.0;
        self.model.intact()?;
        let mut rest = all.as_slice();
        let outputs = step.seqs.iter().map(|part| {
            let (own, others) = rest.split_at(overlap(&part.wanted, &rows).len() * config.vocab_len);
            rest = others;
            SeqOutput { logits: own.to_vec(), best: None, scores: None }
        });
        Ok(outputs.collect())
    }

    /// Appends the step's tokens, whose rows have passed all layers of this engine. Sequences that were
    /// released meanwhile stay released.
    pub fn commit_step(&mut self, step: OpenStep) {
        for part in step.seqs {
            if self.table.is_open(part.seq) {
                let committed = self.table.commit(part.seq, &step.ids[part.span.rows]);
                debug_assert!(committed.is_ok(), "an open sequence is there");
            }
        }
    }

    /// Discards the step; its sequences keep the lengths they had before.
    pub fn cancel_step(&mut self, step: OpenStep) {
        step.seqs.iter().for_each(|part| self.table.cancel(part.seq));
    }
}
