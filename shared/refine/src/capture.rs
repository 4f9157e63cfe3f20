//! The attention that must be captured for a mode of the refiner.

use std::ops::RangeInclusive;

use crate::calibration::Calibration;
use crate::mode::Mode;

/// Maximum number of queries in the window.
const WINDOW_MAX: usize = 32;
/// Minimum length of a suffix that is used as the window.
const WINDOW_MIN: usize = 8;
/// Length of the window if the suffix is too short; the window then reaches into the content.
const WINDOW_WIDE: usize = 16;
/// Range of depth, as a share of all layers, of the layers that an uncalibrated ranking uses.
const UNIFORM_DEPTH: RangeInclusive<f64> = 0.3..=0.8;

/// Depths, as shares of all layers, of the layers by whose heads answers cite. They are the same for every
/// model: on real texts, heads that were calibrated on generated ones were worse (`benches/README.md`).
const CITING_DEPTHS: [f64; 2] = [0.6, 0.7];

/// Numbers of layers and heads of the model whose attention is captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Number of layers.
    pub n_layers: usize,
    /// Number of query heads per layer.
    pub n_heads: usize,
}

impl AttentionShape {
    /// Returns every head of these layers, as (layer, query head).
    pub fn heads_of(self, layers: impl Iterator<Item = usize>) -> Vec<(usize, usize)> {
        layers.flat_map(|layer| (0..self.n_heads).map(move |head| (layer, head))).collect()
    }
}

/// The scores to capture: softmax weights of the window's queries over all keys, averaged over the queries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturePlan {
    /// Number of queries: the last tokens up to the end of the suffix's own text.
    pub window: usize,
    /// (layer, query head), in ascending order.
    pub heads: Vec<(usize, usize)>,
}

/// Returns the scores that must be captured during prefill for a mode, or `None` if the mode needs none.
///
/// `suffix_tokens`: number of tokens in the last segment's own text, which holds the question. Calibrated
/// heads that the model does not have are left out (see [`Calibration::check_model`]).
pub fn capture_plan(
    mode: Mode,
    shape: AttentionShape,
    suffix_tokens: usize,
    calibration: Option<&Calibration>,
) -> Option<CapturePlan> {
    let AttentionShape { n_layers, n_heads } = shape;
    let heads = match (mode, calibration) {
        (Mode::Bm25 | Mode::None, _) => return None,
        (Mode::Attention, Some(calibration)) => {
            let has = |&(layer, head): &(usize, usize)| layer < n_layers && head < n_heads;
            let mut heads: Vec<_> =
                calibration.heads().iter().map(|h| (h.layer, h.head)).filter(has).collect();
            heads.sort_unstable();
            heads
        }
        (Mode::Attention, None) => {
            // The depth of a layer is that of its middle, so that a model of any depth has at least one layer
            // in range.
            let depth = |layer: usize| (layer as f64 + 0.5) / n_layers as f64;
            shape.heads_of((0..n_layers).filter(|&layer| UNIFORM_DEPTH.contains(&depth(layer))))
        }
    };
    Some(CapturePlan { window: window(suffix_tokens), heads })
}

/// Returns the heads by which answers cite: all of a few layers, as (layer, query head). `sees_all` tells
/// whether a layer attends to all of the prompt; other layers are not used.
pub fn citing(shape: AttentionShape, sees_all: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
    let all: Vec<usize> = (0..shape.n_layers).filter(|layer| sees_all(*layer)).collect();
    let nearest = |depth: f64| {
        let away = |layer: usize| (layer as f64 - depth * shape.n_layers as f64).abs();
        all.iter().copied().min_by(|a, b| away(*a).total_cmp(&away(*b)))
    };
    let mut layers: Vec<usize> = CITING_DEPTHS.into_iter().filter_map(nearest).collect();
    layers.dedup();
    shape.heads_of(layers.into_iter())
}

/// Returns the number of queries in the window.
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

    fn plan(n_layers: usize, suffix_tokens: usize) -> CapturePlan {
        capture_plan(Mode::Attention, AttentionShape { n_layers, n_heads: 2 }, suffix_tokens, None).unwrap()
    }

    #[test]
    fn the_window_is_the_suffix_within_its_limits() {
        let window = |suffix| plan(4, suffix).window;
        assert_eq!([0, 7, 8, 20, 32, 33, 500].map(window), [16, 16, 8, 20, 32, 32, 32]);
    }

    #[test]
    fn uncalibrated_layers_are_those_of_middle_depth() {
        let layers = |n| {
            let mut layers: Vec<usize> = plan(n, 9).heads.iter().map(|head| head.0).collect();
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
        let got = capture_plan(Mode::Attention, shape, 9, Some(&calibration));
        assert_eq!(got, Some(CapturePlan { window: 9, heads: vec![(0, 3), (2, 1)] }));
    }

    #[test]
    fn answers_cite_by_all_heads_of_two_layers_that_see_everything() {
        let layers = |n_layers, sees_all: fn(usize) -> bool| {
            let heads = citing(AttentionShape { n_layers, n_heads: 2 }, sees_all);
            let pairs = heads.chunks(2);
            assert!(pairs.clone().all(|pair| pair[0].0 == pair[1].0 && (pair[0].1, pair[1].1) == (0, 1)));
            pairs.map(|pair| pair[0].0).collect::<Vec<_>>()
        };
        assert_eq!(layers(30, |_| true), [18, 21]);
        assert_eq!(layers(1, |_| true), [0]);
        assert_eq!(layers(18, |layer| layer % 6 == 5), [11]);
        assert!(layers(18, |_| false).is_empty());
    }

    #[test]
    fn others_need_no_attention() {
        let shape = AttentionShape { n_layers: 3, n_heads: 4 };
        for mode in [Mode::Bm25, Mode::None] {
            assert_eq!(capture_plan(mode, shape, 9, None), None);
        }
    }
}
