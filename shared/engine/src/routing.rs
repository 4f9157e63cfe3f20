//! Chooses the experts of a mixture for each token, and their factors.
//!
//! Pure: decides from the router's numbers alone, row by row. Rows are grouped by expert, so that each
//! expert's matrices are used once for all of its rows. Invariant: a row's experts and factors depend only on
//! that row's numbers. Experts are visited in the order of their ids, so a row's sum does not depend on other
//! rows. Source: Shazeer 2017, section 2; Jiang 2024 (Mixtral), section 2.1.

use baton_kernels_cpu::softmax;

use crate::config::Experts;

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

/// Returns the experts that have rows, in the order of their ids. `logits` is `[t, experts.count]`.
pub(crate) fn route(mut logits: Vec<f32>, experts: &Experts) -> Vec<ExpertRows> {
    let mut by_expert: Vec<ExpertRows> =
        (0..experts.count).map(|expert| ExpertRows { expert, ..ExpertRows::default() }).collect();
    for (row, probabilities) in logits.chunks_exact_mut(experts.count).enumerate() {
        softmax(probabilities);
        let mut ranked: Vec<usize> = (0..experts.count).collect();
        // The sort is stable: of equal probabilities the lower id comes first.
        ranked.sort_by(|a, b| probabilities[*b].total_cmp(&probabilities[*a]));
        ranked.truncate(experts.used);
        let sum: f32 = ranked.iter().map(|expert| probabilities[*expert]).sum();
        let divisor = if experts.normalized { sum.max(SUM_MIN) } else { 1.0 };
        for expert in ranked {
            by_expert[expert].rows.push(row);
            by_expert[expert].factors.push(probabilities[expert] / divisor);
        }
    }
    by_expert.retain(|expert| !expert.rows.is_empty());
    by_expert
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

    fn experts(count: usize, used: usize, normalized: bool) -> Experts {
        Experts { count, used, d_ff: 1, shared_d_ff: None, normalized }
    }

    #[test]
    fn rows_go_to_their_likeliest_experts_ties_to_the_lower_id() {
        let ln = |p: f32| p.ln();
        let logits = vec![ln(0.1), ln(0.2), ln(0.7), ln(0.4), ln(0.2), ln(0.4), ln(0.5), ln(0.25), ln(0.25)];
        let routes = route(logits, &experts(3, 2, true));
        let rows: Vec<_> = routes.iter().map(|one| (one.expert, one.rows.as_slice())).collect();
        assert_eq!(rows, [(0, &[1, 2][..]), (1, &[0, 2]), (2, &[0, 1])]);
        for (have, want) in routes[2].factors.iter().zip([0.7 / 0.9, 0.5]) {
            assert!((have - want).abs() < 1e-6, "{have} for {want}");
        }
    }

    #[test]
    fn factors_are_probabilities_where_they_are_not_normalized() {
        let routes = route(vec![1.0, 1.0, 1.0, 1.0], &experts(4, 1, false));
        assert_eq!(routes, [ExpertRows { expert: 0, rows: vec![0], factors: vec![0.25] }]);
    }

    #[test]
    fn faults_in_the_numbers_reach_some_expert_and_no_panic() {
        let routes = route(vec![f32::NAN, 1.0, f32::INFINITY, 0.0], &experts(2, 1, true));
        assert_eq!(routes.iter().map(|one| one.rows.len()).sum::<usize>(), 2);
        assert_eq!(route(Vec::new(), &experts(2, 1, true)), []);
    }

    #[test]
    fn the_sigmoid_is_a_half_at_zero() {
        let mut numbers = [0.0, 100.0, -100.0];
        sigmoid(&mut numbers);
        assert_eq!(numbers, [0.5, 1.0, 0.0]);
    }
}
