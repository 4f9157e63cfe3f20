//! The forward pass of every family: embed, layers of attention and feed-forward, norm, logits.
//!
//! Written once over a weight source and a backend; knows neither. Rows of one pass may belong to many
//! sequences, prefill chunks and decode rows alike. Invariant: the result of a row depends only on its own
//! token, its position and its sequence's cache. The last layer computes keys and values of every row, and
//! all else only for rows whose logits or scores are wanted.

mod adapted;
mod captured;
mod halves;
mod inputs;
mod latent;
mod mixture;
mod recurrent;

use std::ops::Range;

use crate::backend::{AttentionShape, Backend, SeqSpan};
use crate::config::{Heads, ModelConfig, SlidingWindow, Temperature};
use crate::family::Activation;
use crate::kv::states::StateMoves;
use crate::rope::RopeTable;
use crate::sampling::Best;
use crate::scores::{AttentionScores, Capture};
use crate::tokenizer::TokenId;
use crate::weights::{GatedWeights, Part, PartWeights, WeightError, WeightSource};

pub(crate) use adapted::Adapted;

use captured::{empty_scores, means, rows_of};

/// The logit of a token that the model must never choose. It is finite, since other values are faults.
const SUPPRESSED: f32 = -1e30;

/// Everything that a pass reads and does not change.
pub(crate) struct PassInput<'a, B: Backend> {
    pub(crate) backend: &'a B,
    pub(crate) config: &'a ModelConfig,
    /// Sliding window of every layer, replacing the model's own.
    pub(crate) window: Option<SlidingWindow>,
    pub(crate) source: &'a dyn WeightSource,
    pub(crate) spans: &'a [SeqSpan],
    /// What happens to the recurrent state of each span; empty if the model has none.
    pub(crate) moves: &'a [StateMoves],
    /// Token ids of all rows.
    pub(crate) ids: &'a [TokenId],
    /// The captures of each span.
    pub(crate) captures: &'a [Option<&'a Capture>],
    /// For each span, the rows whose logits are wanted; within the span's rows.
    pub(crate) wanted: &'a [Range<usize>],
}

/// A running pass: the residual stream and scratch memory of the same height.
pub(crate) struct Pass<'a, B: Backend> {
    input: PassInput<'a, B>,
    rope: RopeTable,
    /// For local layers, if the model has them.
    local_rope: Option<RopeTable>,
    /// The factor of each row's query; empty if the model has none.
    temperature: Vec<f32>,
    /// The inputs of all layers, `[t, l p]`, if the model has them.
    inputs: Option<B::Rows>,
    /// Residual stream, `[t, e]`. In the last layer it shrinks to the wanted rows, and so do `inputs`,
    /// `normed`, `mixed` and `scratch`.
    x: B::Rows,
    /// The input of half a layer after its norm, later its output, `[t, e]`.
    normed: B::Rows,
    /// The heads that the rows below fit.
    heads: Heads,
    /// `[t, h d]`.
    q: B::Rows,
    /// `[t, g d]`.
    k: B::Rows,
    /// `[t, g d]`.
    v: B::Rows,
    /// The gates of the attention output, `[t, h d]`, if the family has them.
    gate: Option<B::Rows>,
    /// The attention output, `[t, h d]`.
    mixed: B::Rows,
    /// `[t, h]`.
    lse: B::Rows,
    /// Scratch memory of dense feed-forward layers.
    scratch: Gated<B::Rows>,
    /// Rows of the residual stream.
    n_rows: usize,
    /// One past the last layer that this pass runs.
    end: usize,
    /// The rows that have an adapter.
    adapted: Adapted<'a>,
    scores: Vec<Option<AttentionScores>>,
}

/// The two halves of a gated network, `[t, f]` each.
struct Gated<R> {
    width: usize,
    gate: R,
    up: R,
}

impl<R> Gated<R> {
    fn new<B: Backend<Rows = R>>(backend: &B, t: usize, f: usize) -> Self {
        Self { width: f, gate: backend.rows(t, f), up: backend.rows(t, f) }
    }

    /// Sets `gate = x gate^T` and `up = x up^T`.
    fn project<B: Backend<Rows = R>>(
        &mut self,
        backend: &B,
        weights: &GatedWeights<'_>,
        x: &R,
    ) -> Result<(), WeightError> {
        backend.project(x, &mut [(weights.gate, &mut self.gate), (weights.up, &mut self.up)])
    }

    /// Adds the biases and sets `gate = act(gate) * up`; only the down projection remains after it.
    fn activate<B: Backend<Rows = R>>(
        &mut self,
        backend: &B,
        weights: &GatedWeights<'_>,
        activation: Activation,
    ) {
        let [gate_bias, up_bias, _] = weights.biases;
        backend.add_bias(&mut self.gate, gate_bias);
        backend.add_bias(&mut self.up, up_bias);
        backend.activate(activation, &mut self.gate, &self.up);
    }
}

impl<'a, B: Backend> Pass<'a, B> {
    /// Embeds the ids; layers before `end` follow by [`Self::layer`]. The rows of `spans` are those of `ids`,
    /// in order; `adapted` gives the rows that have an adapter.
    pub(crate) fn begin(
        input: PassInput<'a, B>,
        adapted: Adapted<'a>,
        end: usize,
    ) -> Result<Self, WeightError> {
        let x = embed(input.backend, input.config, input.source, input.ids)?;
        let inputs = inputs::inputs_of_layers(&input, &x)?;
        Ok(Self { inputs, ..Self::go_on(input, adapted, x, end) })
    }

    /// Continues from the residual stream `x`, `[t, e]`, with layers before `end`. Layers have no inputs of
    /// their own then.
    pub(crate) fn go_on(input: PassInput<'a, B>, adapted: Adapted<'a>, x: B::Rows, end: usize) -> Self {
        let (backend, config, t) = (input.backend, input.config, input.ids.len());
        let positions = || input.spans.iter().flat_map(SeqSpan::positions);
        let rows = |width| backend.rows(t, width);
        let heads = config.heads_at(0);
        // Values of latent attention end in zeros.
        let values = |width| if config.latent.is_some() { backend.zeros(t, width) } else { rows(width) };
        let temperature = |rule: Temperature| positions().map(|at| rule.factor(at)).collect();
        Self {
            rope: config.rope.table(positions()),
            local_rope: config.local.as_ref().map(|local| local.rope.table(positions())),
            temperature: config.temperature.map(temperature).unwrap_or_default(),
            inputs: None,
            x,
            normed: rows(config.d_model),
            heads,
            q: rows(heads.d_q()),
            k: rows(heads.d_kv()),
            v: values(heads.d_kv()),
            gate: config.family.gated_attention.then(|| rows(heads.d_q())),
            mixed: rows(heads.d_q()),
            lse: rows(config.n_heads),
            scratch: Gated::new(backend, t, dense_width(config, 0)),
            n_rows: t,
            end,
            adapted,
            scores: input.spans.iter().zip(input.captures).map(empty_scores).collect(),
            input,
        }
    }

    /// Makes memory that fits the layer, if it differs from the one before.
    fn fit(&mut self, layer: usize) {
        let PassInput { backend, config, .. } = self.input;
        let (heads, t) = (config.heads_at(layer), self.n_rows);
        if heads != self.heads {
            self.heads = heads;
            (self.q, self.mixed) = (backend.rows(t, heads.d_q()), backend.rows(t, heads.d_q()));
            (self.k, self.v) = (backend.rows(t, heads.d_kv()), backend.rows(t, heads.d_kv()));
        }
        let width = dense_width(config, layer);
        if width != self.scratch.width {
            self.scratch = Gated::new(backend, t, width);
        }
    }

    /// Runs one layer; layers must be run in order.
    pub(crate) fn layer(&mut self, kv: &mut B::Kv, layer: usize) -> Result<(), WeightError> {
        self.fit(layer);
        let source = self.input.source;
        let last = layer + 1 == self.input.config.n_layers;
        let ends_here = last && self.input.wanted.iter().all(Range::is_empty);
        if !ends_here {
            source.hint(layer, Part::Ffn);
        }
        match source.acquire(layer, Part::Attention)? {
            PartWeights::Attention(weights) => {
                self.keys_and_values(kv, layer, &weights)?;
                self.attend(kv, layer, weights.sinks, last)?;
                if last {
                    self.keep_wanted();
                }
                if ends_here {
                    return Ok(());
                }
                self.mix(layer, &weights)?;
            }
            PartWeights::Recurrent(weights) => {
                let recurred = self.recur(kv, layer, &weights)?;
                if ends_here {
                    return Ok(());
                }
                self.mix_recurred(recurred, last)?;
            }
            PartWeights::Ffn(_) | PartWeights::Expert(_) => {
                return Err(WeightError::WrongPart(Part::Attention));
            }
        }
        let weights = source.acquire(layer, Part::Ffn)?.ffn()?;
        self.feed_forward(layer, &weights)
    }

    /// Computes attention, and the scores that were requested.
    fn attend(&mut self, kv: &B::Kv, layer: usize, sinks: &[f32], last: bool) -> Result<(), WeightError> {
        let PassInput { backend, spans, .. } = self.input;
        let shape = self.shape(layer, sinks);
        let needed = if last { self.needed_spans(layer) } else { Vec::new() };
        let spans = if last { &needed } else { spans };
        if !spans.is_empty() {
            backend.attend(kv, layer, &shape, &self.q, spans, &mut self.mixed, &mut self.lse);
            self.capture(kv, layer, &shape)?;
            if let Some(gate) = &self.gate {
                backend.gate_by_sigmoid(&mut self.mixed, gate);
            }
        }
        Ok(())
    }

    fn shape<'s>(&self, layer: usize, sinks: &'s [f32]) -> AttentionShape<'s> {
        let PassInput { config, window, .. } = self.input;
        AttentionShape {
            n_heads: self.heads.count,
            n_kv_heads: self.heads.kv,
            d_head: self.heads.width,
            scale: config.attention_scale,
            cap: config.attention_cap,
            sinks,
            window: window.or_else(|| config.window_at(layer)),
        }
    }

    /// Returns the parts of the spans that the last layer attends for: wanted rows, and queries of captured
    /// scores.
    fn needed_spans(&self, layer: usize) -> Vec<SeqSpan> {
        let PassInput { spans, captures, wanted, .. } = self.input;
        let mut parts = Vec::new();
        for ((span, capture), wanted) in spans.iter().zip(captures).zip(wanted) {
            let captured = capture.filter(|capture| capture.heads.iter().any(|id| id.layer == layer));
            let captured = captured.map_or(0..0, |capture| rows_of(span, capture));
            for rows in union(wanted.clone(), captured) {
                let start = span.start + rows.start - span.rows.start;
                parts.push(SeqSpan { rows, start, blocks: span.blocks.clone(), ..*span });
            }
        }
        parts
    }

    fn wanted_rows(&self) -> Vec<usize> {
        self.input.wanted.iter().cloned().flatten().collect()
    }

    /// Drops all rows but the wanted ones.
    fn keep_wanted(&mut self) {
        let PassInput { backend, config, ids, .. } = self.input;
        let rows = self.wanted_rows();
        if rows.len() == ids.len() {
            return;
        }
        self.n_rows = rows.len();
        self.adapted.keep(&rows);
        self.x = backend.gather(&self.x, &rows);
        self.mixed = backend.gather(&self.mixed, &rows);
        self.inputs = self.inputs.as_ref().map(|inputs| backend.gather(inputs, &rows));
        self.normed = backend.rows(rows.len(), config.d_model);
        self.scratch = Gated::new(backend, rows.len(), self.scratch.width);
    }

    fn hint_next_layer(&self, layer: usize) {
        if layer + 1 < self.end {
            self.input.source.hint(layer + 1, Part::Attention);
        }
    }

    /// Returns the logits of the wanted rows, `[rows, v]`, and the scores of every span. Called after the
    /// model's last layer. With `best` it returns the most probable tokens if logits cost more.
    pub(crate) fn finish(self, best: bool) -> Result<Outcome, WeightError> {
        let PassInput { backend, config, source, captures, .. } = self.input;
        let n_rows = self.wanted_rows().len();
        if n_rows == 0 {
            backend.settle(&self.x)?;
        }
        let (logits, best) = logits(backend, config, source, (self.x, n_rows), best)?;
        Ok((logits, best, means(self.scores, captures)))
    }

    /// Returns the residual stream (of every row, or after the model's last layer of the wanted rows) and the
    /// scores of every span.
    pub(crate) fn hidden(self) -> Result<Outcome, WeightError> {
        let PassInput { backend, captures, .. } = self.input;
        Ok((backend.read(self.x)?, Vec::new(), means(self.scores, captures)))
    }
}

/// What a pass gives: numbers row by row, or the most probable tokens in place of logits; and the scores of
/// every span.
pub(crate) type Outcome = (Vec<f32>, Vec<Best>, Vec<Option<AttentionScores>>);

/// Returns the embeddings of `ids`, one row each, `[t, e]`.
pub(crate) fn embed<B: Backend>(
    backend: &B,
    config: &ModelConfig,
    source: &dyn WeightSource,
    ids: &[TokenId],
) -> Result<B::Rows, WeightError> {
    let mut x = backend.rows(ids.len(), config.d_model);
    backend.embed(&source.embedding()?, ids, &mut x);
    backend.scale(&mut x, config.embedding_scale);
    Ok(x)
}

/// Returns the logits of `n_rows` rows of the residual stream after the last layer, `[n_rows, v]`. With
/// `best` it returns the most probable token of each, if the backend finds it without giving out logits.
pub(crate) fn logits<B: Backend>(
    backend: &B,
    config: &ModelConfig,
    source: &dyn WeightSource,
    (x, n_rows): (B::Rows, usize),
    best: bool,
) -> Result<(Vec<f32>, Vec<Best>), WeightError> {
    if n_rows == 0 {
        return Ok((Vec::new(), Vec::new()));
    }
    let output = source.output()?;
    let mut normed = backend.rows(n_rows, config.d_model);
    backend.rms_norm(&x, output.norm, config.norm_eps, &mut normed);
    let mut logits = backend.rows(n_rows, config.vocab_len);
    backend.project(&normed, &mut [(output.head, &mut logits)])?;
    backend.scale(&mut logits, config.logit_scale);
    if let Some(cap) = config.logit_cap {
        backend.soft_cap(&mut logits, cap);
    }
    // Tokens that must not be chosen are taken out below.
    if best
        && config.suppressed.is_empty()
        && let Some(best) = backend.best(&logits)?
    {
        return Ok((Vec::new(), best));
    }
    let mut logits = backend.read(logits)?;
    for row in logits.chunks_exact_mut(config.vocab_len) {
        config.suppressed.iter().for_each(|id| row[*id as usize] = SUPPRESSED);
    }
    Ok((logits, Vec::new()))
}

/// Returns the rotations of a layer.
fn rope_at<'t>(
    config: &ModelConfig,
    layer: usize,
    all: &'t RopeTable,
    local: Option<&'t RopeTable>,
) -> &'t RopeTable {
    local.filter(|_| config.is_local(layer)).unwrap_or(all)
}

/// Returns the width of the scratch memory of a layer's dense network, which not every layer has.
fn dense_width(config: &ModelConfig, layer: usize) -> usize {
    let beside = config.family.experts.is_some_and(|rule| rule.beside);
    if beside || config.experts_at(0).is_none() { config.d_ff_at(layer) } else { 1 }
}

/// Returns both ranges in order, merged if they touch, without empty ones.
fn union(a: Range<usize>, b: Range<usize>) -> Vec<Range<usize>> {
    let mut parts = [a, b];
    parts.sort_by_key(|range| range.start);
    let [first, second] = parts;
    if first.is_empty() || second.is_empty() || second.start > first.end {
        [first, second].into_iter().filter(|range| !range.is_empty()).collect()
    } else {
        std::iter::once(first.start..first.end.max(second.end)).collect()
    }
}

/// Returns the last row of a span.
pub(crate) fn last_row(span: &SeqSpan) -> Range<usize> {
    span.rows.end - 1..span.rows.end
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of ranges, some of one")]
mod tests {
    use super::*;

    #[track_caller]
    fn check(a: Range<usize>, b: Range<usize>, want: &[Range<usize>]) {
        assert_eq!(union(a.clone(), b.clone()), want);
        assert_eq!(union(b, a), want);
    }

    #[test]
    fn unions_hold_every_row_once() {
        check(9..10, 0..0, &[9..10]);
        check(9..9, 0..0, &[]);
        check(9..10, 2..5, &[2..5, 9..10]);
        check(5..10, 2..5, std::slice::from_ref(&(2..10)));
        check(0..10, 2..5, std::slice::from_ref(&(0..10)));
        check(3..10, 2..5, std::slice::from_ref(&(2..10)));
    }
}
