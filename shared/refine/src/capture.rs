//! Which attention scores a refinement needs.

use crate::calibration::Calibration;
use crate::mode::Mode;

/// Most queries of the window.
const WINDOW_MAX: usize = 32;
/// A suffix shorter than this is too short a window.
const WINDOW_MIN: usize = 8;
/// The window where the suffix is too short; it reaches into the content then.
const WINDOW_WIDE: usize = 16;
/// Depth, as a share of all layers, of the layers that an uncalibrated ranking uses.
const UNIFORM_DEPTH: std::ops::RangeInclusive<f64> = 0.3..=0.8;

/// The scores to capture: softmax weights of the window's queries against all keys, mean over the queries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturePlan {
    /// The queries: the last so many tokens up to the end of the suffix's own text.
    pub window: usize,
    /// (layer, query head), in ascending order.
    pub heads: Vec<(usize, usize)>,
}

/// Says what to capture; `None` where the mode ranks without attention.
///
/// `suffix_tokens`: tokens of the last segment's own text, what the content is asked about. Calibrated heads that the
/// model does not have are left out (see [`Calibration::check_model`]).
pub fn capture_plan(
    mode: Mode,
    n_layers: usize,
    n_heads: usize,
    suffix_tokens: usize,
    calibration: Option<&Calibration>,
) -> Option<CapturePlan> {
    let all = |layers: &mut dyn Iterator<Item = usize>| -> Vec<(usize, usize)> {
        layers.flat_map(|layer| (0..n_heads).map(move |head| (layer, head))).collect()
    };
    let window = match suffix_tokens {
        0..WINDOW_MIN => WINDOW_WIDE,
        _ => suffix_tokens.min(WINDOW_MAX),
    };
    match (mode, calibration) {
        (Mode::Attention, Some(calibration)) => {
            let has = |&(layer, head): &(usize, usize)| layer < n_layers && head < n_heads;
            let mut heads: Vec<_> =
                calibration.heads().iter().map(|h| (h.layer, h.head)).filter(has).collect();
            heads.sort_unstable();
            Some(CapturePlan { window, heads })
        }
        (Mode::Attention, None) => {
            // A layer counts by the depth of its middle, so that a model of any depth has at least one.
            let depth = |layer: usize| (layer as f64 + 0.5) / n_layers as f64;
            let heads = all(&mut (0..n_layers).filter(|&layer| UNIFORM_DEPTH.contains(&depth(layer))));
            Some(CapturePlan { window, heads })
        }
        (Mode::Paper, _) => Some(CapturePlan { window: WINDOW_MAX, heads: all(&mut (0..n_layers)) }),
        (Mode::Bm25 | Mode::Random { .. } | Mode::None, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::WeightedHead;

    #[test]
    fn the_window_is_the_suffix_within_its_limits() {
        let window = |suffix| capture_plan(Mode::Attention, 4, 2, suffix, None).unwrap().window;
        assert_eq!([0, 7, 8, 20, 32, 33, 500].map(window), [16, 16, 8, 20, 32, 32, 32]);
        assert_eq!(capture_plan(Mode::Paper, 4, 2, 9, None).unwrap().window, 32);
    }

    #[test]
    fn uncalibrated_layers_are_those_of_middle_depth() {
        let layers = |n| {
            let mut layers: Vec<usize> =
                capture_plan(Mode::Attention, n, 2, 9, None).unwrap().heads.iter().map(|h| h.0).collect();
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
        let plan = capture_plan(Mode::Attention, 4, 4, 9, Some(&calibration)).unwrap();
        assert_eq!(plan.heads, [(0, 3), (2, 1)]);
    }

    #[test]
    fn the_paper_takes_all_heads_and_others_none() {
        assert_eq!(capture_plan(Mode::Paper, 3, 4, 9, None).unwrap().heads.len(), 12);
        for mode in [Mode::Bm25, Mode::Random { seed: 1 }, Mode::None] {
            assert_eq!(capture_plan(mode, 3, 4, 9, None), None);
        }
    }
}
