//! Chooses the experts of a mixture for each token, and their factors.
//!
//! Pure: decides from the router's numbers alone, row by row. Rows are grouped by expert, so that each
//! expert's matrices are used once for all of its rows. Invariant: a row's experts and factors depend only on
//! that row's numbers. Experts are visited in the order of their ids, so a row's sum does not depend on other
//! rows. Source: Shazeer 2017, section 2; Jiang 2024 (Mixtral), section 2.1. Groups and the bias of the
//! choice: DeepSeek-AI 2024, DeepSeek-V3, section 2.1.2.

use baton_kernels_cpu::softmax;

use crate::config::Experts;
use crate::family::Gating;

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

/// The least divisor of probabilities: the smallest normal number of half precision, as in llama.cpp.
const SUM_MIN: f32 = 6.103_515_6e-5;

/// Returns the experts that have rows, in the order of their ids. `logits` is `[t, experts.count]`;
/// `choice_bias` is added when experts are chosen, `[experts.count]` or empty.
pub(crate) fn route(mut logits: Vec<f32>, experts: &Experts, choice_bias: &[f32]) -> Vec<ExpertRows> {
    let mut by_expert: Vec<ExpertRows> =
        (0..experts.count).map(|expert| ExpertRows { expert, ..ExpertRows::default() }).collect();
    for (row, factors) in logits.chunks_exact_mut(experts.count).enumerate() {
        match experts.gating {
            Gating::Softmax => softmax(factors),
            Gating::Sigmoid => sigmoid(factors),
            Gating::ChosenSoftmax => {}
        }
        let ranked = chosen(factors, experts, choice_bias);
        let mut own: Vec<f32> = ranked.iter().map(|expert| factors[*expert]).collect();
        if experts.gating == Gating::ChosenSoftmax {
            softmax(&mut own);
        }
        let divisor = if experts.normalized { own.iter().sum::<f32>().max(SUM_MIN) } else { 1.0 };
        for (expert, factor) in ranked.into_iter().zip(own) {
            by_expert[expert].rows.push(row);
            by_expert[expert].factors.push(factor / divisor * experts.scale);
        }
    }
    by_expert.retain(|expert| !expert.rows.is_empty());
    by_expert
}

/// Returns the experts of one row, the best first.
fn chosen(factors: &[f32], experts: &Experts, choice_bias: &[f32]) -> Vec<usize> {
    let bias = |expert: usize| choice_bias.get(expert).copied().unwrap_or(0.0);
    let rank: Vec<f32> = factors.iter().enumerate().map(|(expert, factor)| factor + bias(expert)).collect();
    let mut ranked: Vec<usize> = match experts.groups {
        None => (0..experts.count).collect(),
        Some(groups) => {
            let each = experts.count / groups.count;
            let best = best_groups(&rank, each, groups.used);
            best.into_iter().flat_map(|group| group * each..(group + 1) * each).collect()
        }
    };
    // The sort is stable: of equal numbers the lower id comes first.
    ranked.sort_by(|a, b| rank[*b].total_cmp(&rank[*a]));
    ranked.truncate(experts.used);
    ranked
}

/// Returns the groups of `each` experts whose two best numbers have the largest sums, in the order of their
/// ids.
fn best_groups(rank: &[f32], each: usize, used: usize) -> Vec<usize> {
    let two_best = |group: &[f32]| {
        let mut group = group.to_vec();
        group.sort_by(|a, b| b.total_cmp(a));
        group.iter().take(2).sum::<f32>()
    };
    let sums: Vec<f32> = rank.chunks_exact(each).map(two_best).collect();
    let mut groups: Vec<usize> = (0..sums.len()).collect();
    groups.sort_by(|a, b| sums[*b].total_cmp(&sums[*a]));
    groups.truncate(used);
    groups.sort_unstable();
    groups
}

/// Sets every number to `1 / (1 + e^-x)`.
pub(crate) fn sigmoid(numbers: &mut [f32]) {
    for x in numbers {
        *x = 1.0 / (1.0 + baton_kernels_cpu::exp(-*x));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ExpertGroups;

    fn experts(count: usize, used: usize, normalized: bool) -> Experts {
        Experts {
            count,
            used,
            d_ff: 1,
            shared_d_ff: None,
            gating: Gating::Softmax,
            normalized,
            scale: 1.0,
            groups: None,
            first_layer: 0,
        }
    }

    /// Checks the experts and factors of one row.
    #[track_caller]
    fn check(logits: &[f32], experts: &Experts, bias: &[f32], want: &[(usize, f32)]) {
        let routes = route(logits.to_vec(), experts, bias);
        assert_eq!(routes.len(), want.len(), "{routes:?}");
        for (route, (expert, factor)) in routes.iter().zip(want) {
            assert_eq!((route.expert, route.rows.as_slice()), (*expert, &[0][..]), "{routes:?}");
            assert!((route.factors[0] - factor).abs() < 1e-6, "{routes:?}");
        }
    }

    #[test]
    fn gating_decides_the_factors_and_a_bias_only_the_choice() {
        let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
        let two = experts(3, 2, false);
        let logits = [0.5, 1.5, 1.0];
        let gated = Experts { gating: Gating::Sigmoid, scale: 2.5, ..two };
        check(&logits, &gated, &[], &[(1, 2.5 * sigmoid(1.5)), (2, 2.5 * sigmoid(1.0))]);
        check(&logits, &gated, &[1.0, 0.0, 0.0], &[(0, 2.5 * sigmoid(0.5)), (1, 2.5 * sigmoid(1.5))]);
        let own = Experts { gating: Gating::ChosenSoftmax, ..two };
        check(&logits, &own, &[], &[(1, sigmoid(0.5)), (2, sigmoid(-0.5))]);
    }

    #[test]
    fn a_token_uses_experts_of_its_best_groups_only() {
        // The sums of each group's two best are 0.9, 0.8 and 1.1 (before the sigmoid's monotone change).
        let logits = [0.8, 0.1, 0.0, 0.4, 0.4, 0.4, 0.5, 0.6, 0.0];
        let groups = |used| Some(ExpertGroups { count: 3, used });
        let of = |used| Experts { groups: groups(used), normalized: true, ..experts(9, 2, true) };
        let exp = |x: f32| x.exp();
        let one = exp(0.5) + exp(0.6);
        check(&logits, &of(1), &[], &[(6, exp(0.5) / one), (7, exp(0.6) / one)]);
        let two = exp(0.8) + exp(0.6);
        check(&logits, &of(2), &[], &[(0, exp(0.8) / two), (7, exp(0.6) / two)]);
    }

    #[test]
    fn rows_go_to_their_likeliest_experts_ties_to_the_lower_id() {
        let ln = |p: f32| p.ln();
        let logits = vec![ln(0.1), ln(0.2), ln(0.7), ln(0.4), ln(0.2), ln(0.4), ln(0.5), ln(0.25), ln(0.25)];
        let routes = route(logits, &experts(3, 2, true), &[]);
        let rows: Vec<_> = routes.iter().map(|one| (one.expert, one.rows.as_slice())).collect();
        assert_eq!(rows, [(0, &[1, 2][..]), (1, &[0, 2]), (2, &[0, 1])]);
        for (have, want) in routes[2].factors.iter().zip([0.7 / 0.9, 0.5]) {
            assert!((have - want).abs() < 1e-6, "{have} for {want}");
        }
    }

    #[test]
    fn factors_are_probabilities_where_they_are_not_normalized() {
        let routes = route(vec![1.0, 1.0, 1.0, 1.0], &experts(4, 1, false), &[]);
        assert_eq!(routes, [ExpertRows { expert: 0, rows: vec![0], factors: vec![0.25] }]);
    }

    #[test]
    fn faults_in_the_numbers_reach_some_expert_and_no_panic() {
        let routes = route(vec![f32::NAN, 1.0, f32::INFINITY, 0.0], &experts(2, 1, true), &[]);
        assert_eq!(routes.iter().map(|one| one.rows.len()).sum::<usize>(), 2);
        assert_eq!(route(Vec::new(), &experts(2, 1, true), &[]), []);
    }

    #[test]
    fn the_sigmoid_is_a_half_at_zero() {
        let mut numbers = [0.0, 100.0, -100.0];
        sigmoid(&mut numbers);
        assert_eq!(numbers, [0.5, 1.0, 0.0]);
    }
}
