//! The choice of experts for a token of a mixture, and their factors.
//!
//! Decides from the numbers of one token's router alone. Source: Shazeer 2017, section 2; Jiang 2024
//! (Mixtral), section 2.1. Groups and the bias of the choice: DeepSeek-AI 2024, DeepSeek-V3, section 2.1.2.

use crate::recurrent::sigmoid;
use crate::rows::{larger, softmax};

/// How a router's numbers become the factors of the chosen experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gating {
    /// The softmax over all experts.
    Softmax,
    /// The sigmoid of each number.
    Sigmoid,
    /// The softmax over the chosen experts alone.
    ChosenSoftmax,
}

/// Groups of experts: a token uses experts of a few groups only. Source: DeepSeek-AI 2024, DeepSeek-V3,
/// section 2.1.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Groups of a layer; divides the experts.
    pub count: usize,
    /// Groups per token, 1 to `count`.
    pub used: usize,
}

/// How experts are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Routing {
    /// Experts per token, at least 1.
    pub used: usize,
    /// How the router's numbers become factors.
    pub gating: Gating,
    /// Whether the chosen experts' factors are divided by their sum.
    pub normalized: bool,
    /// The factor of the chosen experts' factors.
    pub scale: f32,
    /// Groups of two experts or more, if a token uses only some of them. Those have `used` experts at least.
    pub groups: Option<ExpertGroups>,
}

/// The least divisor of factors: the smallest normal number of half precision, as in llama.cpp.
pub const FACTOR_SUM_MIN: f32 = 6.103_515_6e-5;

/// Returns the experts of one token, ascending, and their factors. `numbers` are those of the router, one for
/// each expert, and undefined afterwards. `choice_bias` is added when experts are chosen; each factor is
/// multiplied by the expert's own of `expert_factors`. Both have a number for each expert, or are empty.
///
/// NaN is the greatest number of all, so that a fault of the numbers reaches the result.
pub fn route(
    numbers: &mut [f32],
    routing: &Routing,
    choice_bias: &[f32],
    expert_factors: &[f32],
) -> Vec<(usize, f32)> {
    match routing.gating {
        Gating::Softmax => softmax(numbers),
        Gating::Sigmoid => numbers.iter_mut().for_each(|x| *x = sigmoid(*x)),
        Gating::ChosenSoftmax => {}
    }
    let ranked = chosen(numbers, routing, choice_bias);
    let mut own: Vec<f32> = ranked.iter().map(|expert| numbers[*expert]).collect();
    if routing.gating == Gating::ChosenSoftmax {
        softmax(&mut own);
    }
    let sum = || own.iter().copied().reduce(|sum, factor| sum + factor).unwrap_or(0.0);
    let divisor = if routing.normalized { larger(sum(), FACTOR_SUM_MIN) } else { 1.0 };
    let factor = |(expert, own): (usize, f32)| {
        let factor = own / divisor * routing.scale;
        (expert, expert_factors.get(expert).map_or(factor, |expert_factor| factor * expert_factor))
    };
    let mut routes: Vec<(usize, f32)> = ranked.into_iter().zip(own).map(factor).collect();
    routes.sort_by_key(|(expert, _)| *expert);
    routes
}

/// Returns a number that orders as `x` does: the same for both zeros, the greatest for NaN.
fn order(x: f32) -> u32 {
    let bits = if x == 0.0 { 0 } else { x.to_bits() };
    if x.is_nan() {
        u32::MAX
    } else if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    }
}

/// Returns the experts of one token, the best first.
fn chosen(factors: &[f32], routing: &Routing, choice_bias: &[f32]) -> Vec<usize> {
    let bias = |expert: usize| choice_bias.get(expert).copied().unwrap_or(0.0);
    let rank: Vec<f32> = factors.iter().enumerate().map(|(expert, factor)| factor + bias(expert)).collect();
    let mut ranked: Vec<usize> = match routing.groups {
        None => (0..factors.len()).collect(),
        Some(groups) => {
            let each = factors.len() / groups.count;
            let best = best_groups(&rank, each, groups.used);
            best.into_iter().flat_map(|group| group * each..(group + 1) * each).collect()
        }
    };
    // The sort is stable: of equal numbers the lower id comes first.
    ranked.sort_by_key(|expert| std::cmp::Reverse(order(rank[*expert])));
    ranked.truncate(routing.used);
    ranked
}

/// Returns the groups of `each` experts whose two best numbers have the largest sums, in the order of their
/// ids.
fn best_groups(rank: &[f32], each: usize, used: usize) -> Vec<usize> {
    let two_best = |group: &[f32]| {
        let mut group = group.to_vec();
        group.sort_by_key(|x| std::cmp::Reverse(order(*x)));
        group[0] + group[1]
    };
    let sums: Vec<f32> = rank.chunks_exact(each).map(two_best).collect();
    let mut groups: Vec<usize> = (0..sums.len()).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(order(sums[*group])));
    groups.truncate(used);
    groups.sort_unstable();
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(used: usize, normalized: bool) -> Routing {
        Routing { used, gating: Gating::Softmax, normalized, scale: 1.0, groups: None }
    }

    /// Checks the experts and factors of one token.
    #[track_caller]
    fn check(numbers: &[f32], routing: &Routing, bias: &[f32], want: &[(usize, f32)]) {
        let routes = route(&mut numbers.to_vec(), routing, bias, &[]);
        assert_eq!(routes.len(), want.len(), "{routes:?}");
        for ((expert, factor), want) in routes.iter().zip(want) {
            assert_eq!(*expert, want.0, "{routes:?}");
            assert!((factor - want.1).abs() < 1e-6, "{routes:?}");
        }
    }

    #[test]
    fn gating_decides_the_factors_and_a_bias_only_the_choice() {
        let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
        let numbers = [0.5, 1.5, 1.0];
        let gated = Routing { gating: Gating::Sigmoid, scale: 2.5, ..of(2, false) };
        check(&numbers, &gated, &[], &[(1, 2.5 * sigmoid(1.5)), (2, 2.5 * sigmoid(1.0))]);
        check(&numbers, &gated, &[1.0, 0.0, 0.0], &[(0, 2.5 * sigmoid(0.5)), (1, 2.5 * sigmoid(1.5))]);
        let own = Routing { gating: Gating::ChosenSoftmax, ..of(2, false) };
        check(&numbers, &own, &[], &[(1, sigmoid(0.5)), (2, sigmoid(-0.5))]);
        let scaled = route(&mut numbers.to_vec(), &gated, &[], &[9.0, 2.0, 4.0]);
        let plain = route(&mut numbers.to_vec(), &gated, &[], &[]);
        assert_eq!(scaled, [(1, plain[0].1 * 2.0), (2, plain[1].1 * 4.0)]);
    }

    #[test]
    fn a_token_uses_experts_of_its_best_groups_only() {
        // The sums of each group's two best are 0.9, 0.8 and 1.1 (before the sigmoid's monotone change).
        let numbers = [0.8, 0.1, 0.0, 0.4, 0.4, 0.4, 0.5, 0.6, 0.0];
        let of = |used| Routing { groups: Some(ExpertGroups { count: 3, used }), ..of(2, true) };
        let exp = |x: f32| x.exp();
        let one = exp(0.5) + exp(0.6);
        check(&numbers, &of(1), &[], &[(6, exp(0.5) / one), (7, exp(0.6) / one)]);
        let two = exp(0.8) + exp(0.6);
        check(&numbers, &of(2), &[], &[(0, exp(0.8) / two), (7, exp(0.6) / two)]);
    }

    #[test]
    fn of_equal_numbers_the_lower_id_is_chosen() {
        let ln = |p: f32| p.ln();
        check(&[ln(0.1), ln(0.2), ln(0.7)], &of(2, true), &[], &[(1, 0.2 / 0.9), (2, 0.7 / 0.9)]);
        check(&[ln(0.5), ln(0.25), ln(0.25)], &of(2, true), &[], &[(0, 0.5 / 0.75), (1, 0.25 / 0.75)]);
        check(&[1.0; 4], &of(1, false), &[], &[(0, 0.25)]);
        let raw = Routing { gating: Gating::ChosenSoftmax, ..of(1, false) };
        check(&[-0.0, 0.0], &raw, &[], &[(0, 1.0)]);
    }

    #[test]
    fn faults_in_the_numbers_reach_the_result() {
        for gating in [Gating::Softmax, Gating::Sigmoid, Gating::ChosenSoftmax] {
            for fault in [f32::NAN, -f32::NAN] {
                let routing = Routing { gating, ..of(1, true) };
                let routes = route(&mut [5.0, fault, 3.0], &routing, &[], &[]);
                assert!(routes[0].1.is_nan(), "{gating:?}: {routes:?}");
            }
        }
        let routes = route(&mut [f32::INFINITY, 0.0], &of(2, true), &[], &[]);
        assert_eq!(routes.iter().map(|(expert, _)| *expert).collect::<Vec<_>>(), [0, 1]);
    }
}
