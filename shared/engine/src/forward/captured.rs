//! Attention scores that a pass captures on its way.

use std::ops::Range;

use super::{Pass, PassInput};
use crate::backend::{AttentionShape, Backend, ScoreTarget, SeqSpan};
use crate::scores::{AttentionScores, Capture};
use crate::weights::WeightError;

impl<B: Backend> Pass<'_, B> {
    /// Adds the layer's softmax weights that were requested.
    pub(super) fn capture(
        &mut self,
        kv: &B::Kv,
        layer: usize,
        shape: &AttentionShape<'_>,
    ) -> Result<(), WeightError> {
        let PassInput { backend, spans, captures, .. } = self.input;
        for ((span, capture), scores) in spans.iter().zip(captures).zip(&mut self.scores) {
            let (Some(capture), Some(scores)) = (capture, scores) else { continue };
            if !capture.heads.iter().any(|id| id.layer == layer) {
                continue;
            }
            let all = rows_of(span, capture);
            let keys = scores.keys;
            for (query, own) in scores.mean.chunks_exact_mut(capture.heads.len() * keys).enumerate() {
                let rows = if capture.each { all.start + query..all.start + query + 1 } else { all.clone() };
                let mut targets: Vec<_> = capture
                    .heads
                    .iter()
                    .zip(own.chunks_exact_mut(keys))
                    .filter(|(id, _)| id.layer == layer)
                    .map(|(id, sum)| ScoreTarget { head: id.head, sum })
                    .collect();
                backend.score(kv, layer, shape, &self.q, &self.lse, span, rows, &mut targets)?;
            }
        }
        Ok(())
    }
}

/// Divides sums of softmax weights by the number of queries, unless each query has its own.
pub(super) fn means(
    mut scores: Vec<Option<AttentionScores>>,
    captures: &[Option<&Capture>],
) -> Vec<Option<AttentionScores>> {
    for (scores, capture) in scores.iter_mut().zip(captures) {
        if let (Some(scores), Some(capture)) = (scores, capture)
            && !capture.each
        {
            scores.mean.iter_mut().for_each(|sum| *sum /= capture.window.len() as f32);
        }
    }
    scores
}

/// Returns the rows of the queries whose scores are captured.
pub(super) fn rows_of(span: &SeqSpan, capture: &Capture) -> Range<usize> {
    let first = span.new_rows().start;
    first + capture.window.start..first + capture.window.end
}

/// Returns zeros for a span whose scores are requested.
pub(super) fn empty_scores((span, capture): (&SeqSpan, &Option<&Capture>)) -> Option<AttentionScores> {
    capture.map(|capture| {
        let keys = span.start + span.rows.len();
        let queries = if capture.each { capture.window.len() } else { 1 };
        let mean = vec![0.0; queries * capture.heads.len() * keys];
        AttentionScores { heads: capture.heads.clone(), keys, mean }
    })
}
