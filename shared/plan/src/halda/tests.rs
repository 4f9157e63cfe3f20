//! Halda's programmes compared with all windows, and its answer with remarks of the paper.

use super::*;
use crate::cluster::Workload;
use crate::sample::{cluster, device, drawn, model};

/// Returns the least objective of (6) to (10) over all windows and GPU layers.
fn brute(search: &RingSearch<'_>, coefficients: &Coefficients, sets: &[Set], k: usize) -> Option<f64> {
    let window = search.costs.model.layers / k;
    let each = k as f64 * coefficients::layer_bytes(search.costs);
    let mut sums: Vec<Option<f64>> = vec![None; window + 1];
    sums[0] = Some(0.0);
    for (place, set) in sets.iter().enumerate() {
        let bound = coefficients::room(search.costs, search.ring, place) / each;
        let most = coefficients::gpu_layers(search.costs, search.ring, place, k);
        let mut next: Vec<Option<f64>> = vec![None; window + 1];
        for w in 1..=window {
            for n in 0..=w.min(most) {
                let whole = coefficients::counts_gpu_layers(search.device(place));
                let counted = if whole { w } else { w - n } as f64;
                let allowed = if *set == Set::M4 { counted < bound } else { counted > bound };
                if !allowed {
                    continue;
                }
                let cost = coefficients.a[place] * w as f64
                    + coefficients.b[place] * n as f64
                    + coefficients.c[place];
                for before in 0..=window - w {
                    let Some(sum) = sums[before] else { continue };
                    let better = next[before + w].is_none_or(|found: f64| sum + cost < found);
                    if better {
                        next[before + w] = Some(sum + cost);
                    }
                }
            }
        }
        sums = next;
    }
    sums[window].map(|sum| k as f64 * sum + coefficients.kappa)
}

#[test]
fn its_programmes_are_solved_to_the_optimum() {
    let (mut solved, mut infeasible) = (0, 0);
    for seed in 0..60 {
        let (cluster, model, workload) = drawn(seed, 3, 12);
        let costs = Costs::new(&cluster, &model, workload).unwrap();
        if !costs.hops.around(&[0, 1, 2]).is_finite() {
            continue;
        }
        let ring = [0, 1, 2];
        let mut search = RingSearch { costs: &costs, ring: &ring, programmes: 0 };
        let start = Solution { w: vec![4, 4, 4], n: vec![0; 3], k: 1, objective_s: f64::INFINITY };
        let sets: Vec<Set> = (0..3).map(|place| search.set(place, &start, &BTreeSet::new())).collect();
        let coefficients = Coefficients::new(&costs, &ring, &sets);
        for k in [1, 2, 3, 4] {
            let found = search.solve(&coefficients, &sets, k).unwrap();
            match (found, brute(&search, &coefficients, &sets, k)) {
                (Some(found), Some(least)) => {
                    assert!(
                        (found.objective_s - least).abs() <= 1e-6 * least.abs(),
                        "{seed} {k}: {found:?} {least}"
                    );
                    solved += 1;
                }
                (None, None) => infeasible += 1,
                (found, least) => panic!("{seed} {k}: {found:?}, by hand {least:?}, {sets:?}"),
            }
        }
    }
    assert!(solved > 20 && infeasible > 5, "{solved} solved, {infeasible} infeasible");
}

#[test]
fn it_never_prefers_several_rounds_and_ends_on_any_cluster() {
    let mut planned = 0;
    for seed in 0..40 {
        let (cluster, model, workload) = drawn(seed, 4, 24);
        let costs = Costs::new(&cluster, &model, workload).unwrap();
        match halda(&costs) {
            Ok(answer) => {
                assert!(answer.plan.is_whole() && answer.programmes > 0);
                assert_eq!(answer.plan.rounds, 1, "{seed}");
                planned += 1;
            }
            Err(error) => {
                assert!(matches!(error, PlanError::NoSolution | PlanError::Solver { .. }), "{seed}: {error}")
            }
        }
    }
    assert!(planned > 10, "{planned}");
}

#[test]
fn a_device_that_gets_one_layer_is_removed() {
    let mut weak = device("weak", 3.0);
    weak.cpu.read_bytes_per_s = 1e9;
    let described = cluster(vec![device("head", 20.0), weak]);
    let shape = model(8);
    let costs = Costs::new(&described, &shape, Workload { context: 16, sequences: 1 }).unwrap();
    let answer = halda(&costs).unwrap();
    assert_eq!(answer.plan.shares.len(), 1, "{answer:?}");
}
