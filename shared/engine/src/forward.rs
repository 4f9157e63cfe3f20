//! The forward pass of every family: embed, layers of attention and feed-forward, norm, logits.
//!
//! Written once over a weight source (where weights live) and a backend (what computes); knows neither. Rows
//! of one pass may belong to many sequences, prefill chunks and decode rows alike. Invariant: what a row
//! becomes depends on its own token, its position and its sequence's cache alone.

use std::ops::Range;

use crate::backend::{AttentionShape, Backend, ScoreTarget, SeqSpan};
use crate::config::ModelConfig;
use crate::rope::RopeTable;
use crate::scores::{AttentionScores, Capture};
use crate::tokenizer::TokenId;
use crate::weights::{AttentionWeights, FfnWeights, Part, WeightError, WeightSource};

/// Everything a pass reads and does not change.
pub(crate) struct PassInput<'a, B: Backend> {
    pub(crate) backend: &'a B,
    pub(crate) config: &'a ModelConfig,
    pub(crate) shape: AttentionShape,
    pub(crate) source: &'a dyn WeightSource,
    pub(crate) spans: &'a [SeqSpan],
    /// Of every row.
    pub(crate) ids: &'a [TokenId],
    /// Of every span.
    pub(crate) captures: &'a [Option<&'a Capture>],
}

/// A pass under way: the residual stream and scratch of the same height.
pub(crate) struct Pass<'a, B: Backend> {
    input: PassInput<'a, B>,
    rope: RopeTable,
    /// Residual stream, `[t, e]`.
    x: B::Rows,
    /// A half's input after its norm, and later its output, `[t, e]`.
    normed: B::Rows,
    /// `[t, h d]`.
    q: B::Rows,
    /// `[t, g d]`.
    k: B::Rows,
    /// `[t, g d]`.
    v: B::Rows,
    /// Attention's result, `[t, h d]`.
    mixed: B::Rows,
    /// `[t, h]`.
    lse: B::Rows,
    /// `[t, f]`.
    gate: B::Rows,
    /// `[t, f]`.
    up: B::Rows,
    scores: Vec<Option<AttentionScores>>,
}

impl<'a, B: Backend> Pass<'a, B> {
    /// Embeds the ids. The rows of `spans` are those of `ids`, in order.
    pub(crate) fn begin(input: PassInput<'a, B>) -> Result<Self, WeightError> {
        let (backend, config, t) = (input.backend, input.config, input.ids.len());
        let positions = input.spans.iter().flat_map(|span| span.start..span.start + span.rows.len());
        let rows = |width| backend.rows(t, width);
        let mut x = rows(config.d_model);
        backend.embed(&input.source.embedding()?, input.ids, &mut x);
        Ok(Self {
            rope: config.rope.table(positions),
            x,
            normed: rows(config.d_model),
            q: rows(config.d_q()),
            k: rows(config.d_kv()),
            v: rows(config.d_kv()),
            mixed: rows(config.d_q()),
            lse: rows(config.n_heads),
            gate: rows(config.d_ff),
            up: rows(config.d_ff),
            scores: input.spans.iter().zip(input.captures).map(empty_scores).collect(),
            input,
        })
    }

    /// Runs one layer; layers run in order.
    pub(crate) fn layer(&mut self, kv: &mut B::Kv, layer: usize) -> Result<(), WeightError> {
        let source = self.input.source;
        source.hint(layer, Part::Ffn);
        let weights = source.acquire(layer, Part::Attention)?.attention()?;
        self.attention(kv, layer, &weights);
        if layer + 1 < self.input.config.n_layers {
            source.hint(layer + 1, Part::Attention);
        }
        let weights = source.acquire(layer, Part::Ffn)?.ffn()?;
        self.feed_forward(&weights);
        Ok(())
    }

    fn attention(&mut self, kv: &mut B::Kv, layer: usize, weights: &AttentionWeights<'_>) {
        let PassInput { backend, config, shape, spans, .. } = self.input;
        backend.rms_norm(&self.x, weights.norm, config.norm_eps, &mut self.normed);
        backend.project(
            &self.normed,
            &mut [(weights.q, &mut self.q), (weights.k, &mut self.k), (weights.v, &mut self.v)],
        );
        let [q_bias, k_bias, v_bias] = weights.biases;
        backend.add_bias(&mut self.q, q_bias);
        backend.add_bias(&mut self.k, k_bias);
        backend.add_bias(&mut self.v, v_bias);
        backend.rope(&mut self.q, config.d_head, &self.rope, config.family.rope_style);
        backend.rope(&mut self.k, config.d_head, &self.rope, config.family.rope_style);
        backend.append(kv, layer, &self.k, &self.v, spans);
        backend.attend(kv, layer, &shape, &self.q, spans, &mut self.mixed, &mut self.lse);
        self.capture(kv, layer);
        backend.project(&self.mixed, &mut [(weights.o, &mut self.normed)]);
        backend.add(&mut self.x, &self.normed);
    }

    fn feed_forward(&mut self, weights: &FfnWeights<'_>) {
        let PassInput { backend, config, .. } = self.input;
        backend.rms_norm(&self.x, weights.norm, config.norm_eps, &mut self.normed);
        backend.project(&self.normed, &mut [(weights.gate, &mut self.gate), (weights.up, &mut self.up)]);
        backend.swiglu(&mut self.gate, &self.up);
        backend.project(&self.gate, &mut [(weights.down, &mut self.normed)]);
        backend.add(&mut self.x, &self.normed);
    }

    fn capture(&mut self, kv: &B::Kv, layer: usize) {
        let PassInput { backend, shape, spans, captures, .. } = self.input;
        for ((span, capture), scores) in spans.iter().zip(captures).zip(&mut self.scores) {
            let (Some(capture), Some(scores)) = (capture, scores) else { continue };
            let sums = scores.mean.chunks_exact_mut(scores.keys);
            let mut targets: Vec<_> = capture
                .heads
                .iter()
                .zip(sums)
                .filter(|(id, _)| id.layer == layer)
                .map(|(id, sum)| ScoreTarget { head: id.head, sum })
                .collect();
            if !targets.is_empty() {
                let rows = span.rows.start + capture.window.start..span.rows.start + capture.window.end;
                backend.score(kv, layer, &shape, &self.q, &self.lse, span, rows, &mut targets);
            }
        }
    }

    /// The logits of chosen rows, `[rows, v]`, and the scores of every span; after the last layer.
    pub(crate) fn finish(
        self,
        rows: &[usize],
    ) -> Result<(Vec<f32>, Vec<Option<AttentionScores>>), WeightError> {
        let PassInput { backend, config, source, captures, .. } = self.input;
        let mut scores = self.scores;
        for (scores, capture) in scores.iter_mut().zip(captures) {
            if let (Some(scores), Some(capture)) = (scores, capture) {
                scores.mean.iter_mut().for_each(|sum| *sum /= capture.window.len() as f32);
            }
        }
        if rows.is_empty() {
            return Ok((Vec::new(), scores));
        }
        let output = source.output()?;
        let x = backend.gather(&self.x, rows);
        let mut normed = backend.rows(rows.len(), config.d_model);
        backend.rms_norm(&x, output.norm, config.norm_eps, &mut normed);
        let mut logits = backend.rows(rows.len(), config.vocab_len);
        backend.project(&normed, &mut [(output.head, &mut logits)]);
        Ok((backend.read(logits), scores))
    }
}

fn empty_scores((span, capture): (&SeqSpan, &Option<&Capture>)) -> Option<AttentionScores> {
    capture.map(|capture| {
        let keys = span.start + span.rows.len();
        AttentionScores { heads: capture.heads.clone(), keys, mean: vec![0.0; capture.heads.len() * keys] }
    })
}

/// Rows of a span whose logits are wanted.
pub(crate) fn last_row(span: &SeqSpan) -> Range<usize> {
    span.rows.end - 1..span.rows.end
}
