//! A step in pieces: some layers, some rows at a time, hidden states in and out.
//!
//! What a ring of devices is made of: each has an engine of its own layers over the same sequences, and hands the hidden
//! states of a chunk of rows to the next. Invariant: whatever the pieces, the logits are those of [`Engine::step`], bit
//! for bit, as long as every row passes the layers in order and rows of one sequence pass each layer in order.

use std::ops::Range;

use super::{
    Engine, EngineError, SeqOutput, StepControl, StepError, StepSeq, adapted, files_are_intact, wanted,
};
use crate::backend::{Backend, SeqSpan};
use crate::forward::{Pass, PassInput, embed, logits};
use crate::kv::{KvError, SeqId};
use crate::tokenizer::TokenId;

/// Hidden states, `[rows, width]` in f32, row-major.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Hidden {
    /// How many.
    pub rows: usize,
    /// Values of each (`e`).
    pub width: usize,
    /// `rows * width` of them.
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
    /// Rows of the step.
    wanted: Range<usize>,
}

/// A step that was begun; its sequences stay as they are until it is committed or cancelled.
#[derive(Debug)]
pub struct OpenStep {
    seqs: Vec<OpenSeq>,
    /// Of every row.
    ids: Vec<TokenId>,
}

/// A range of a step's rows, counted from its own first row.
struct Chunk<'a> {
    seqs: Vec<SeqId>,
    spans: Vec<SeqSpan>,
    wanted: Vec<Range<usize>>,
    ids: &'a [TokenId],
}

impl OpenStep {
    /// Rows: the new tokens of all sequences, in the order of the batch.
    pub fn rows(&self) -> usize {
        self.ids.len()
    }

    /// How many of these rows have logits.
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

/// What lies in both; empty, and within `b`, where they do not meet.
fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.clamp(b.start, b.end);
    start..a.end.clamp(start, b.end)
}

/// The layers asked for, all where `None`.
pub(super) fn own_layers(layers: Option<Vec<usize>>, n_layers: usize) -> Result<Vec<usize>, EngineError> {
    let layers = layers.unwrap_or_else(|| (0..n_layers).collect());
    let ascending = layers.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending || layers.last().is_some_and(|last| *last >= n_layers) {
        return Err(EngineError::Layers { layers, n_layers });
    }
    Ok(layers)
}

impl Engine {
    /// Begins anew with these layers, ascending, or with all: every sequence stays, and has no tokens; known prefixes
    /// are forgotten, and a step that is open is over.
    ///
    /// # Errors
    /// [`EngineError::Layers`]; nothing has changed then.
    pub fn reset(&mut self, layers: Option<Vec<usize>>) -> Result<(), EngineError> {
        self.layers = own_layers(layers, self.model.config().n_layers)?;
        self.kv = self.kv.emptied(&self.layers);
        self.table.clear();
        Ok(())
    }

    /// Begins a step: checks it and makes room in the cache. Until [`Self::commit_step`] or [`Self::cancel_step`] its
    /// sequences take part in nothing else.
    ///
    /// # Errors
    /// As [`Self::step`]; [`StepError::CaptureInPieces`]. Nothing has changed then.
    pub fn open_step(&mut self, batch: &[StepSeq<'_>]) -> Result<OpenStep, StepError> {
        if batch.iter().any(|entry| entry.capture.is_some()) {
            return Err(StepError::CaptureInPieces);
        }
        self.check(batch)?;
        let wants: Vec<_> = batch.iter().map(|entry| (entry.seq, entry.ids.len())).collect();
        let copies = self.table.reserve(&wants)?;
        let spans = self.spans(batch)?;
        self.backend.prepare(&mut self.kv, &copies, &spans);
        let part = |(entry, span): (&StepSeq<'_>, SeqSpan)| OpenSeq {
            seq: entry.seq,
            wanted: wanted(entry.logits, &span),
            span,
        };
        let ids = batch.iter().flat_map(|entry| entry.ids).copied().collect();
        Ok(OpenStep { seqs: batch.iter().zip(spans).map(part).collect(), ids })
    }

    /// What these rows begin with: the embeddings of their tokens, `[rows, e]`.
    ///
    /// # Errors
    /// [`StepError::Rows`], [`StepError::Weights`], [`StepError::ModelFile`].
    pub fn embed(&self, step: &OpenStep, rows: Range<usize>) -> Result<Hidden, StepError> {
        let (chunk, config) = (step.chunk(&rows)?, self.model.config());
        let x = embed(&self.backend, config, self.model.weights(), chunk.ids)?;
        self.model.intact()?;
        Ok(Hidden { rows: rows.len(), width: config.d_model, values: self.backend.read(x) })
    }

    /// Runs layers over the hidden states of these rows, and writes their keys and values. Behind the model's last layer
    /// only the rows whose logits are wanted are left.
    ///
    /// # Errors
    /// [`StepError::NotHeld`], [`StepError::Rows`], [`StepError::Hidden`], [`StepError::Weights`],
    /// [`StepError::Cancelled`], and [`StepError::Kv`] where the step is not open any more. The step stays open.
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
        let Self { model, backend, window, kv, table, adapters, .. } = self;
        let config = model.config();
        hidden.check((rows.len(), config.d_model))?;
        if rows.is_empty() || layers.is_empty() {
            return Ok(hidden);
        }
        let input = PassInput {
            backend: &*backend,
            config,
            window: *window,
            source: model.weights(),
            spans: &chunk.spans,
            ids: chunk.ids,
            captures: &vec![None; chunk.spans.len()],
            wanted: &chunk.wanted,
        };
        let own = chunk.seqs.iter().zip(&chunk.spans).map(|(seq, span)| (*seq, span.rows.clone()));
        let x = backend.write(hidden.values, config.d_model);
        let mut pass = Pass::go_on(input, adapted(table, adapters, own)?, x, layers.end);
        for layer in layers.clone() {
            pass.layer(kv, layer)?;
            let (done, total) = (layer + 1, config.n_layers);
            if control.after_layer(done, total).is_break() {
                return Err(StepError::Cancelled { done, total });
            }
        }
        files_are_intact(model, adapters)?;
        let left = if layers.end == config.n_layers { step.wanted(&rows) } else { rows.len() };
        Ok(Hidden { rows: left, width: config.d_model, values: pass.hidden() })
    }

    /// The logits of the wanted rows among these, from what the last layer has left of them; one output for each sequence
    /// of the step, empty where none of its wanted rows are among them.
    ///
    /// # Errors
    /// [`StepError::Rows`], [`StepError::Hidden`], [`StepError::Weights`].
    pub fn logits(
        &self,
        step: &OpenStep,
        rows: Range<usize>,
        hidden: Hidden,
    ) -> Result<Vec<SeqOutput>, StepError> {
        step.chunk(&rows)?;
        let (n, config) = (step.wanted(&rows), self.model.config());
        hidden.check((n, config.d_model))?;
        let x = self.backend.write(hidden.values, config.d_model);
        let all = logits(&self.backend, config, self.model.weights(), x, n)?;
        self.model.intact()?;
        let mut rest = all.as_slice();
        let outputs = step.seqs.iter().map(|part| {
            let (own, others) = rest.split_at(overlap(&part.wanted, &rows).len() * config.vocab_len);
            rest = others;
            SeqOutput { logits: own.to_vec(), scores: None }
        });
        Ok(outputs.collect())
    }

    /// Appends the step's tokens, whose rows have passed all layers of this engine. Sequences that were released
    /// meanwhile stay so.
    pub fn commit_step(&mut self, step: OpenStep) {
        for part in step.seqs {
            if self.table.is_open(part.seq) {
                let committed = self.table.commit(part.seq, &step.ids[part.span.rows]);
                debug_assert!(committed.is_ok(), "an open sequence is there");
            }
        }
    }

    /// Forgets the step; its sequences have the lengths they had before.
    pub fn cancel_step(&mut self, step: OpenStep) {
        step.seqs.iter().for_each(|part| self.table.cancel(part.seq));
    }
}
