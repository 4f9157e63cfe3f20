//! The experts of a mixture that tokens were given, grouped by expert.
//!
//! The choice itself is [`baton_kernels_cpu::route`], row by row. Rows are grouped by expert, so that each
//! expert's matrices are used once for all of its rows. Experts are visited in the order of their ids, so a
//! row's sum does not depend on other rows.

use crate::config::Experts;

/// What experts are chosen by, beside the router's numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Router<'a> {
    pub(crate) experts: &'a Experts,
    /// Added to the factors when experts are chosen, `[experts]` or empty.
    pub(crate) choice_bias: &'a [f32],
    /// The factor of each expert's result, `[experts]` or empty.
    pub(crate) expert_factors: &'a [f32],
}

/// The rows of one expert.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ExpertRows {
    /// The expert.
    pub(crate) expert: usize,
    /// Its rows, ascending.
    pub(crate) rows: Vec<usize>,
    /// The factor of its result in each of them.
    pub(crate) factors: Vec<f32>,
}

/// Returns the experts that have rows, in the order of their ids, of `count` experts. For each row in order
/// there is a list of its experts and their factors.
pub(crate) fn by_expert<L>(count: usize, rows: impl IntoIterator<Item = L>) -> Vec<ExpertRows>
where
    L: IntoIterator<Item = (usize, f32)>,
{
    let new = |expert| ExpertRows { expert, ..ExpertRows::default() };
    let mut all: Vec<ExpertRows> = (0..count).map(new).collect();
    for (row, chosen) in rows.into_iter().enumerate() {
        for (expert, factor) in chosen {
            all[expert].rows.push(row);
            all[expert].factors.push(factor);
        }
    }
    all.retain(|expert| !expert.rows.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_to_their_experts_in_order() {
        let rows = [vec![(1, 0.25), (2, 0.75)], vec![(0, 1.0)], vec![(0, 0.5), (2, 0.5)]];
        let own = |expert, rows: &[usize], factors: &[f32]| ExpertRows {
            expert,
            rows: rows.to_vec(),
            factors: factors.to_vec(),
        };
        let want = [own(0, &[1, 2], &[1.0, 0.5]), own(1, &[0], &[0.25]), own(2, &[0, 2], &[0.75, 0.5])];
        assert_eq!(by_expert(4, rows), want);
        assert_eq!(by_expert(4, Vec::<Vec<(usize, f32)>>::new()), []);
    }
}
