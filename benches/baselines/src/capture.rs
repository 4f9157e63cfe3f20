//! The evidence that a ranking needs besides the text.

use baton_refine::{AttentionShape, Calibration, CapturePlan, capture_plan};

use crate::ranking::{Baseline, Ranking};

/// Queries in the paper's window.
const WINDOW: usize = 32;
/// Depth of the layer that `gemfilter` reads: layer 13 of 32, as its authors chose for Llama 3.1 8B.
const FILTER_DEPTH: f64 = 0.41;

/// The evidence that a ranking needs. The caller passes it to [`crate::choose()`] as [`crate::Evidence`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Needs {
    /// Only the text.
    Nothing,
    /// Attention of the cloud's model, captured during prefill.
    Attention(CapturePlan),
    /// The log-probability of every content token under a language model, which may be a smaller one. It
    /// takes one pass over the prompt with logits at every position.
    LogProbs,
}

/// Returns the evidence that `ranking` needs.
///
/// `suffix_tokens`: number of tokens in the last segment's own text, which holds the question. For a mode of
/// the refiner, the result is that of [`capture_plan`].
pub fn needs(
    ranking: Ranking,
    shape: AttentionShape,
    suffix_tokens: usize,
    calibration: Option<&Calibration>,
) -> Needs {
    let baseline = match ranking {
        Ranking::Baseline(baseline) => baseline,
        Ranking::Mode(mode) | Ranking::AtLeast(mode, _) => {
            let plan = capture_plan(mode, shape, suffix_tokens, calibration);
            return plan.map_or(Needs::Nothing, Needs::Attention);
        }
    };
    match baseline {
        Baseline::Paper | Baseline::Tokens | Baseline::Chunk => {
            Needs::Attention(CapturePlan { window: WINDOW, heads: shape.heads_of(0..shape.n_layers) })
        }
        Baseline::GemFilter => {
            let layer = (FILTER_DEPTH * shape.n_layers as f64) as usize;
            Needs::Attention(CapturePlan { window: 1, heads: shape.heads_of(std::iter::once(layer)) })
        }
        Baseline::Perplexity => Needs::LogProbs,
        Baseline::Streaming | Baseline::Random { .. } => Needs::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_refine::Mode;

    fn plan(ranking: impl Into<Ranking>, n_layers: usize) -> CapturePlan {
        let ranking = ranking.into();
        match needs(ranking, AttentionShape { n_layers, n_heads: 2 }, 9, None) {
            Needs::Attention(plan) => plan,
            other => panic!("{ranking} needs {other:?}"),
        }
    }

    #[test]
    fn votes_take_all_heads_and_the_filter_one_layer() {
        for baseline in [Baseline::Paper, Baseline::Tokens, Baseline::Chunk] {
            let plan = plan(baseline, 3);
            assert_eq!((plan.window, plan.heads.len()), (32, 6));
        }
        for (n_layers, layer) in [(1, 0), (6, 2), (32, 13)] {
            let want = CapturePlan { window: 1, heads: vec![(layer, 0), (layer, 1)] };
            assert_eq!(plan(Baseline::GemFilter, n_layers), want);
        }
    }

    #[test]
    fn modes_ask_for_what_the_refiner_says() {
        let shape = AttentionShape { n_layers: 3, n_heads: 2 };
        assert_eq!(Some(plan(Mode::Attention, 3)), capture_plan(Mode::Attention, shape, 9, None));
    }

    #[test]
    fn others_need_no_attention() {
        let shape = AttentionShape { n_layers: 3, n_heads: 4 };
        for ranking in [
            Ranking::from(Mode::Bm25),
            Mode::None.into(),
            Baseline::Streaming.into(),
            Baseline::Random { seed: 1 }.into(),
        ] {
            assert_eq!(needs(ranking, shape, 9, None), Needs::Nothing);
        }
        assert_eq!(needs(Baseline::Perplexity.into(), shape, 9, None), Needs::LogProbs);
    }
}
