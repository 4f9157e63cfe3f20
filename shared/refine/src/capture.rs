//! What a mode must be given before it can rank.

use std::ops::RangeInclusive;

use crate::calibration::Calibration;
use crate::mode::Mode;

/// Most queries of the window.
const WINDOW_MAX: usize = 32;
/// A suffix shorter than this is too short a window.
const WINDOW_MIN: usize = 8;
/// The window where the suffix is too short; it reaches into the content then.
const WINDOW_WIDE: usize = 16;
/// Depth, as a share of all layers, of the layers that an uncalibrated ranking uses.
const UNIFORM_DEPTH: RangeInclusive<f64> = 0.3..=0.8;
/// Depth of the one layer of `gemfilter`: layer 13 of the 32 of Llama 3.1 8B, as its authors chose.
const FILTER_DEPTH: f64 = 0.41;

/// Layers and heads of the model whose attention is captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Layers.
    pub n_layers: usize,
    /// Query heads of a layer.
    pub n_heads: usize,
}

/// What a mode ranks by, to be handed to [`crate::refine()`] as [`crate::Evidence`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Needs {
    /// The text alone.
    Nothing,
    /// Attention of the cloud's model, captured during prefill.
    Attention(CapturePlan),
    /// The log-probability of every content token by some language model, small or the same: one pass over the prompt
    /// with logits everywhere. No service gives them in passing, so this is for evaluation.
    LogProbs,
}

/// The scores to capture: softmax weights of the window's queries against all keys, mean over the queries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturePlan {
    /// The queries: the last so many tokens up to the end of the suffix's own text.
    pub window: usize,
    /// (layer, query head), in ascending order.
    pub heads: Vec<(usize, usize)>,
}

/// Says what a mode must be given.
///
/// `suffix_tokens`: tokens of the last segment's own text, what the content is asked about. Calibrated heads that the
/// model does not have are left out (see [`Calibration::check_model`]).
pub fn needs(
    mode: Mode,
    shape: AttentionShape,
    suffix_tokens: usize,
    calibration: Option<&Calibration>,
) -> Needs {
    let AttentionShape { n_layers, n_heads } = shape;
    let heads_of = |layers: &mut dyn Iterator<Item = usize>| -> Vec<(usize, usize)> {
        layers.flat_map(|layer| (0..n_heads).map(move |head| (layer, head))).collect()
    };
    let plan = |window: usize, heads: Vec<(usize, usize)>| Needs::Attention(CapturePlan { window, heads });
    match (mode, calibration) {
        (Mode::Attention, Some(calibration)) => {
            let has = |&(layer, head): &(usize, usize)| layer < n_layers && head < n_heads;
            let mut heads: Vec<_> =
                calibration.heads().iter().map(|h| (h.layer, h.head)).filter(has).collect();
            heads.sort_unstable();
            plan(window(suffix_tokens), heads)
        }
        (Mode::Attention, None) => {
            // A layer counts by the depth of its middle, so that a model of any depth has at least one.
            let depth = |layer: usize| (layer as f64 + 0.5) / n_layers as f64;
            let heads = heads_of(&mut (0..n_layers).filter(|&layer| UNIFORM_DEPTH.contains(&depth(layer))));
            plan(window(suffix_tokens), heads)
        }
        (Mode::Paper | Mode::Tokens | Mode::Chunk, _) => plan(WINDOW_MAX, heads_of(&mut (0..n_layers))),
        (Mode::GemFilter, _) => {
            let layer = (FILTER_DEPTH * n_layers as f64) as usize;
            plan(1, heads_of(&mut std::iter::once(layer)))
        }
        (Mode::Perplexity, _) => Needs::LogProbs,
        (Mode::Bm25 | Mode::Streaming | Mode::Random { .. } | Mode::None, _) => Needs::Nothing,
    }
}

/// Queries of the default mode's window.
fn window(suffix_tokens: usize) -> usize {
    match suffix_tokens {
        0..WINDOW_MIN => WINDOW_WIDE,
        _ => suffix_tokens.min(WINDOW_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::WeightedHead;

    fn plan(mode: Mode, n_layers: usize, suffix_tokens: usize) -> CapturePlan {
        match needs(mode, AttentionShape { n_layers, n_heads: 2 }, suffix_tokens, None) {
            Needs::Attention(plan) => plan,
            other => panic!("{mode} needs {other:?}"),
        }
    }

    #[test]
    fn the_window_is_the_suffix_within_its_limits() {
        let window = |suffix| plan(Mode::Attention, 4, suffix).window;
        assert_eq!([0, 7, 8, 20, 32, 33, 500].map(window), [16, 16, 8, 20, 32, 32, 32]);
        assert_eq!(plan(Mode::Paper, 4, 9).window, 32);
    }

    #[test]
    fn uncalibrated_layers_are_those_of_middle_depth() {
        let layers = |n| {
            let mut layers: Vec<usize> =
                plan(Mode::Attention, n, 9).heads.iter().map(|head| head.0).collect();
            layers.dedup();
            layers
        };
        assert_eq!(layers(1), [0]);
        assert_eq!(layers(2), [1]);
        assert_eq!(layers(4), [1, 2]);
        assert_eq!(layers(10), [3, 4, 5, 6, 7]);
        assert_eq!(layers(32).len(), 16);
    }

    #[test]
    fn calibrated_heads_are_asked_for_in_order() {
        let heads =
            [(2, 1), (0, 3), (9, 0)].map(|(layer, head)| WeightedHead { layer, head, weight: 1.0 / 3.0 });
        let calibration = Calibration::new(String::new(), heads.to_vec()).unwrap();
        let shape = AttentionShape { n_layers: 4, n_heads: 4 };
        let got = needs(Mode::Attention, shape, 9, Some(&calibration));
        assert_eq!(got, Needs::Attention(CapturePlan { window: 9, heads: vec![(0, 3), (2, 1)] }));
    }

    #[test]
    fn votes_take_all_heads_and_the_filter_one_layer() {
        for mode in [Mode::Paper, Mode::Tokens, Mode::Chunk] {
            assert_eq!(plan(mode, 3, 9).heads.len(), 6);
        }
        for (n_layers, layer) in [(1, 0), (6, 2), (32, 13)] {
            let want = CapturePlan { window: 1, heads: vec![(layer, 0), (layer, 1)] };
            assert_eq!(plan(Mode::GemFilter, n_layers, 9), want);
        }
    }

    #[test]
    fn others_need_no_attention() {
        let shape = AttentionShape { n_layers: 3, n_heads: 4 };
        for mode in [Mode::Bm25, Mode::Streaming, Mode::Random { seed: 1 }, Mode::None] {
            assert_eq!(needs(mode, shape, 9, None), Needs::Nothing);
        }
        assert_eq!(needs(Mode::Perplexity, shape, 9, None), Needs::LogProbs);
    }
}
