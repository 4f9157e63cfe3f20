//! What of its prompt an answer attends to while it is written.
//!
//! Pure: sums of softmax weights over groups of keys, which its caller names. Never: knows sentences or
//! ranks anything. Always: a token's sums are those of the row that it was chosen from, whichever pass
//! computed it, and however many tokens that pass had. Tokens are recorded by their index alone.

use std::ops::Range;

use baton_engine::{AttentionScores, Capture, HeadId, MeanOver};

/// One of so many tokens of an answer is recorded, from the first on. Neighbours attend to much the same, and
/// a token that is not recorded costs nothing.
const EVERY: usize = 2;

/// A prompt's tokens by the group that each belongs to, and the heads whose attention counts.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyGroups {
    /// The heads, each at most once.
    pub heads: Vec<HeadId>,
    /// For each position of the prompt, the group that it belongs to, if it counts.
    pub of_key: Vec<Option<u32>>,
    /// Number of groups; all that `of_key` names are smaller.
    pub count: usize,
}

/// The attention of one answer's tokens, by groups of its prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Evidence {
    groups: KeyGroups,
    /// By the answer's own tokens, from the first behind the prompt: `[groups]`, empty if not recorded.
    rows: Vec<Vec<f32>>,
}

impl Evidence {
    /// Makes the record of an answer behind this prompt.
    pub fn new(groups: KeyGroups) -> Evidence {
        Evidence { groups, rows: Vec::new() }
    }

    /// Returns the groups.
    pub fn groups(&self) -> &KeyGroups {
        &self.groups
    }

    /// Returns the sums of each token, from the first behind the prompt on: `[groups]`, or empty if the
    /// token is not recorded or its row was not seen.
    pub fn rows(&self) -> &[Vec<f32>] {
        &self.rows
    }

    /// Returns what a pass must capture: each query of this window, if one of them is recorded. `first` is
    /// the index of the token that the window's first query chooses.
    pub(crate) fn capture(&self, first: usize, window: Range<usize>) -> Option<Capture> {
        let has_recorded = (first..first + window.len()).any(is_recorded);
        let is_wanted = !self.groups.heads.is_empty() && self.groups.count > 0 && has_recorded;
        let heads = || self.groups.heads.clone();
        is_wanted.then(|| Capture { window, heads: heads(), over: MeanOver::Heads })
    }

    /// Takes the weights of rows that the tokens from `first` on were, or will be, chosen from.
    pub(crate) fn take(&mut self, first: usize, scores: &AttentionScores) {
        for (query, weights) in scores.mean.chunks_exact(scores.keys).enumerate() {
            let at = first + query;
            if !is_recorded(at) {
                continue;
            }
            if self.rows.len() <= at {
                self.rows.resize(at + 1, Vec::new());
            }
            self.rows[at] = self.groups.sums(weights);
        }
    }

    /// Forgets tokens that the answer does not have; those that it has and that were not seen are not known.
    pub(crate) fn cut(&mut self, tokens: usize) {
        self.rows.resize(tokens, Vec::new());
    }
}

/// Returns whether the token of this index is recorded.
fn is_recorded(token: usize) -> bool {
    token.is_multiple_of(EVERY)
}

impl KeyGroups {
    /// Sums the weights of one query, `[keys]`, over the keys of each group.
    fn sums(&self, weights: &[f32]) -> Vec<f32> {
        let mut sums = vec![0.0; self.count];
        for (weight, group) in weights.iter().zip(&self.of_key) {
            if let Some(group) = group {
                sums[*group as usize] += weight;
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(count: usize) -> Vec<HeadId> {
        (0..count).map(|head| HeadId { layer: 1, head }).collect()
    }

    fn evidence() -> Evidence {
        let of_key = vec![None, Some(0), Some(0), None, Some(1)];
        Evidence::new(KeyGroups { heads: heads(2), of_key, count: 2 })
    }

    /// Scores of queries over six keys; the last is the answer's own.
    fn scores(queries: &[[f32; 6]]) -> AttentionScores {
        AttentionScores { heads: heads(2), keys: 6, mean: queries.concat() }
    }

    #[test]
    fn sums_are_over_the_keys_of_a_group() {
        let mut evidence = evidence();
        evidence.take(0, &scores(&[[9.0, 4.5, 1.0, 9.0, 10.0, 9.0]]));
        assert_eq!(evidence.rows(), [vec![5.5, 10.0]]);
    }

    #[test]
    fn a_row_that_is_computed_again_counts_once_and_unknown_ones_are_empty() {
        let mut evidence = evidence();
        evidence.take(2, &scores(&[[1.0; 6], [3.0; 6], [2.0; 6]]));
        evidence.take(4, &scores(&[[4.0; 6]]));
        assert_eq!(evidence.rows(), [vec![], vec![], vec![2.0, 1.0], vec![], vec![8.0, 4.0]]);
        evidence.cut(3);
        assert_eq!(evidence.rows(), [vec![], vec![], vec![2.0, 1.0]]);
        evidence.cut(4);
        assert_eq!(evidence.rows(), [vec![], vec![], vec![2.0, 1.0], vec![]]);
    }

    #[test]
    fn a_pass_is_captured_if_one_of_its_tokens_is_recorded() {
        let window = |first, window| {
            let capture = evidence().capture(first, window)?;
            (capture.over == MeanOver::Heads).then_some(capture.window)
        };
        assert_eq!(window(0, 3..4), Some(3..4));
        assert_eq!(window(1, 0..1), None);
        assert_eq!(window(1, 0..2), Some(0..2));
        assert_eq!(window(0, 1..1), None);
    }

    #[test]
    fn nothing_is_captured_without_groups_or_heads() {
        let empty = |heads, count| Evidence::new(KeyGroups { heads, of_key: vec![None], count });
        assert_eq!(empty(heads(1), 0).capture(0, 0..1), None);
        assert_eq!(empty(Vec::new(), 1).capture(0, 0..1), None);
    }
}
