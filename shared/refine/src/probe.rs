//! Needle probes: find the heads that attend from a question to the sentences that answer it.
//!
//! Pure: it sums up attention that a caller captured. A head's gain is its attention on a needle minus that
//! on a random sentence. Both are shares of the head's attention on the content, as in the ranking. Source:
//! retrieval heads, Wu 2024. Sentinel (Zhang 2025) shows that a few such heads rank better than all heads.

use baton_protocol::{Segment, SentenceMap};

use crate::attention::masses;
use crate::calibration::WeightedHead;
use crate::content::{Content, ContentTokens};
use crate::refine::{RefineError, Scores};

/// Minimum number of heads that are kept, if enough heads have a positive gain.
const HEADS_MIN: usize = 8;
/// Maximum number of heads that are kept.
const HEADS_MAX: usize = 16;
/// Heads beyond the minimum number must have at least this share of the best head's gain.
const GAIN_SHARE_MIN: f64 = 0.25;
/// Weights are rounded to multiples of 1 over this number, so that a file has no meaningless digits.
const WEIGHT_PARTS: f64 = 1e6;

/// One question with a known answer, and the captured attention.
#[derive(Debug, Clone)]
pub struct Probe<'a> {
    /// The prompt.
    pub segments: &'a [Segment],
    /// The units of the prompt.
    pub map: &'a SentenceMap,
    /// The tokens of the refinable segments.
    pub content: &'a [ContentTokens<'a>],
    /// Tokens of the whole prompt.
    pub prompt_tokens: usize,
    /// The scores of all heads, in the same order as in the first probe.
    pub scores: Scores<'a>,
    /// Units that contain the answer, at least one.
    pub needles: &'a [usize],
    /// A unit that is irrelevant to the answer.
    pub other: usize,
}

/// The gain of each head over all probes so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeadGains {
    heads: Vec<(usize, usize)>,
    sums: Vec<f64>,
    probes: usize,
}

impl HeadGains {
    /// Adds one probe. If it has several needles, their mean counts, because a head must find all of them.
    ///
    /// # Errors
    /// [`RefineError`] if the parts do not match each other. [`RefineError::Unit`] if a unit has no tokens or
    /// there is no needle. [`RefineError::OtherHeads`] if the heads are not those of the first probe.
    pub fn add(&mut self, probe: &Probe<'_>) -> Result<(), RefineError> {
        let Probe { segments, map, scores, .. } = probe;
        let content = Content::new(segments, map, probe.content, probe.prompt_tokens)?;
        scores.check(&content)?;
        let units = probe.needles.iter().chain([&probe.other]);
        let missing =
            units.copied().find(|&unit| content.units.get(unit).is_none_or(|tokens| tokens.is_empty()));
        if let Some(unit) = missing.or(probe.needles.is_empty().then_some(map.len())) {
            return Err(RefineError::Unit { unit, units: map.len() });
        }
        if self.probes == 0 {
            self.heads = scores.heads.to_vec();
            self.sums = vec![0.0; scores.heads.len()];
        } else if self.heads != scores.heads {
            return Err(RefineError::OtherHeads);
        }
        for (sum, row) in self.sums.iter_mut().zip(scores.mean.chunks_exact(scores.keys)) {
            let masses: Vec<f64> = masses(&content, row).collect();
            let total: f64 = masses.iter().sum();
            if total > 0.0 {
                let share = |unit: usize| masses[content.units[unit].clone()].iter().sum::<f64>() / total;
                let needles: f64 = probe.needles.iter().map(|&unit| share(unit)).sum();
                *sum += needles / probe.needles.len() as f64 - share(probe.other);
            }
        }
        self.probes += 1;
        Ok(())
    }

    /// Returns the number of probes so far.
    pub fn probes(&self) -> usize {
        self.probes
    }

    /// Returns the mean gain of each head, from -1 to 1, in the order of the first probe.
    pub fn gains(&self) -> impl Iterator<Item = ((usize, usize), f64)> {
        let probes = self.probes.max(1) as f64;
        self.heads.iter().zip(&self.sums).map(move |(&head, sum)| (head, sum / probes))
    }

    /// Returns the 8 heads with the largest gains, and up to 8 more that have at least a quarter of the best
    /// gain. They are weighted by their gain, the best first. Heads without a positive gain are never
    /// included.
    pub fn best(&self) -> Vec<WeightedHead> {
        let mut gaining: Vec<_> = self.gains().filter(|&(_, gain)| gain > 0.0).collect();
        gaining.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let least = gaining.first().map_or(0.0, |&(_, gain)| GAIN_SHARE_MIN * gain);
        let count = gaining
            .iter()
            .take(HEADS_MAX)
            .enumerate()
            .take_while(|&(at, &(_, gain))| at < HEADS_MIN || gain >= least);
        gaining.truncate(count.count());
        let sum: f64 = gaining.iter().map(|&(_, gain)| gain).sum();
        let rounded = |weight: f64| (weight * WEIGHT_PARTS).round() / WEIGHT_PARTS;
        let heads = gaining.iter().map(|&((layer, head), gain)| WeightedHead {
            layer,
            head,
            weight: rounded(gain / sum),
        });
        let mut heads: Vec<WeightedHead> = heads.collect();
        let rest = 1.0 - heads.iter().map(|head| head.weight).sum::<f64>();
        if let Some(best) = heads.first_mut() {
            best.weight = rounded(best.weight + rest);
        }
        heads
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_protocol::Role;

    /// Adds a probe of four lines of four letters, with one token per letter from position 4 on. `rows`: for
    /// each head, the weight on the tokens of each line.
    fn add(
        gains: &mut HeadGains,
        rows: &[[f32; 4]],
        needles: &[usize],
        other: usize,
    ) -> Result<(), RefineError> {
        let text = "- aaaa\n- bbbb\n- cccc\n- dddd\n";
        let segments = [Segment::refinable(Role::User, text)];
        let map = SentenceMap::new(&segments);
        let letters = text.char_indices().filter(|(_, c)| c.is_ascii_alphabetic());
        let spans: Vec<_> = letters.map(|(at, _)| at..at + 1).collect();
        let heads: Vec<_> = (0..rows.len()).map(|head| (3, head)).collect();
        let mean: Vec<f32> = rows
            .iter()
            .flat_map(|hot| [0.25; 4].into_iter().chain(hot.iter().flat_map(|&weight| [weight; 4])))
            .collect();
        gains.add(&Probe {
            segments: &segments,
            map: &map,
            content: &[ContentTokens { segment: 0, first: 4, spans: &spans }],
            prompt_tokens: 30,
            scores: Scores { heads: &heads, keys: 20, mean: &mean, queries: 18..20 },
            needles,
            other,
        })
    }

    #[test]
    fn a_gain_is_the_share_on_the_needles_minus_that_on_another() {
        let mut gains = HeadGains::default();
        add(&mut gains, &[[0.0, 0.1, 0.0, 0.0], [0.1, 0.1, 0.1, 0.1], [0.3, 0.0, 0.1, 0.0]], &[1], 0)
            .unwrap();
        let got: Vec<f64> = gains.gains().map(|(_, gain)| gain).collect();
        let near = |got: &[f64], want: &[f64]| {
            assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6), "{got:?} {want:?}");
        };
        near(&got, &[1.0, 0.0, -0.75]);
        add(&mut gains, &[[0.0, 0.2, 0.2, 0.0], [0.0, 0.3, 0.1, 0.0], [0.0, 0.0, 0.0, 0.0]], &[1, 2], 3)
            .unwrap();
        near(&gains.gains().map(|(_, gain)| gain).collect::<Vec<_>>(), &[0.75, 0.25, -0.375]);
        assert_eq!(gains.probes(), 2);
        let best = gains.best();
        assert_eq!(best.iter().map(|head| (head.layer, head.head)).collect::<Vec<_>>(), [(3, 0), (3, 1)]);
        near(&best.iter().map(|head| head.weight).collect::<Vec<_>>(), &[0.75, 0.25]);
    }

    #[test]
    fn eight_heads_stay_and_more_only_where_they_gain_much() {
        let best = |gains: &[f64]| {
            let heads = (0..gains.len()).map(|head| (0, head)).collect();
            HeadGains { heads, sums: gains.to_vec(), probes: 1 }.best()
        };
        let few = best(&[0.8, 0.1, 0.05, 0.04, 0.03, 0.02, 0.01, 0.005, 0.004, -0.5]);
        assert_eq!(few.len(), 8);
        assert!((few.iter().map(|head| head.weight).sum::<f64>() - 1.0).abs() < 1e-9);
        assert_eq!(best(&[0.5; 30]).len(), 16);
        let ten: Vec<f64> = [vec![0.4; 9], vec![0.1, 0.09]].concat();
        assert_eq!(best(&ten).len(), 10);
        assert!(best(&[-0.1, 0.0]).is_empty() && HeadGains::default().best().is_empty());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut gains = HeadGains::default();
        let row = [[0.1; 4]];
        assert_eq!(add(&mut gains, &row, &[4], 0), Err(RefineError::Unit { unit: 4, units: 4 }));
        assert_eq!(add(&mut gains, &row, &[], 0), Err(RefineError::Unit { unit: 4, units: 4 }));
        add(&mut gains, &row, &[1], 0).unwrap();
        assert_eq!(add(&mut gains, &[[0.1; 4]; 2], &[1], 0), Err(RefineError::OtherHeads));
        let nan = [[f32::NAN; 4]];
        assert!(matches!(add(&mut gains, &nan, &[1], 0), Err(RefineError::NotFinite { .. })));
        assert_eq!(gains.probes(), 1);
    }
}
