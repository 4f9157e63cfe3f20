//! Attention scores that a pass captures on its way.

use std::ops::Range;

use super::{Pass, PassInput};
use crate::backend::{Attending, AttentionShape, Backend, ScoreTarget, SeqSpan};
use crate::scores::{AttentionScores, Capture, MeanOver};
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
            let queries = Attending { kv, layer, shape, q: &self.q, lse: &self.lse, span };
            let (rows, own) = (rows_of(span, capture), scores.mean.chunks_exact_mut(scores.keys));
            let heads = capture.heads.iter().map(|id| (id.layer == layer).then_some(id.head));
            match capture.over {
                MeanOver::Queries => {
                    let targets =
                        heads.zip(own).filter_map(|(head, sum)| Some(ScoreTarget { head: head?, sum }));
                    backend.score(&queries, rows, &mut targets.collect::<Vec<_>>())?;
                }
                MeanOver::Heads => {
                    let heads: Vec<usize> = heads.flatten().collect();
                    rows.zip(own)
                        .try_for_each(|(row, sum)| backend.score_heads(&queries, row, &heads, sum))?;
                }
            }
        }
        Ok(())
    }
}

/// Divides sums of softmax weights by the number of queries, or of heads.
pub(super) fn means(
    mut scores: Vec<Option<AttentionScores>>,
    captures: &[Option<&Capture>],
) -> Vec<Option<AttentionScores>> {
    for (scores, capture) in scores.iter_mut().zip(captures) {
        let (Some(scores), Some(capture)) = (scores, capture) else { continue };
        let n = match capture.over {
            MeanOver::Queries => capture.window.len(),
            MeanOver::Heads => capture.heads.len(),
        };
        scores.mean.iter_mut().for_each(|sum| *sum /= n as f32);
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
        let rows = match capture.over {
            MeanOver::Queries => capture.heads.len(),
            MeanOver::Heads => capture.window.len(),
        };
        let mean = vec![0.0; rows * keys];
        AttentionScores { heads: capture.heads.clone(), keys, mean }
    })
}
