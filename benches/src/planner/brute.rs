//! Brute force: tries all numbers of layers, GPU layers and rounds, in the cluster's order.
//!
//! It uses only the planner's cost function.

use baton_plan::search::ROUNDS_MAX;
use baton_plan::{Cluster, Costs, ModelShape, Plan, Share};

/// Returns the smallest time of a token in seconds over all plans, or infinity if there is no plan.
pub(super) fn least(costs: &Costs<'_>, cluster: &Cluster, model: &ModelShape) -> f64 {
    let mut layers = vec![0; cluster.devices.len()];
    let mut best = f64::INFINITY;
    shares(costs, cluster, model.layers, 0, &mut layers, &mut best);
    best
}

/// Tries all ways to give the layers that are `left` to the devices from `at` on.
fn shares(
    costs: &Costs<'_>,
    cluster: &Cluster,
    left: usize,
    at: usize,
    layers: &mut Vec<usize>,
    best: &mut f64,
) {
    if at + 1 == layers.len() {
        layers[at] = left;
        let least = layers.iter().copied().filter(|count| *count > 0).min().unwrap_or(1);
        let alone = layers.iter().skip(1).all(|count| *count == 0);
        let rounds = if alone { 1 } else { least.min(ROUNDS_MAX) };
        for rounds in 1..=rounds {
            let mut gpu = vec![0; layers.len()];
            splits(costs, cluster, layers, rounds, 0, &mut gpu, best);
        }
        return;
    }
    for own in 0..=left {
        layers[at] = own;
        shares(costs, cluster, left - own, at + 1, layers, best);
    }
}

/// Tries all ways to split each device's layers between its CPU and its GPU.
fn splits(
    costs: &Costs<'_>,
    cluster: &Cluster,
    layers: &[usize],
    rounds: usize,
    at: usize,
    gpu: &mut Vec<usize>,
    best: &mut f64,
) {
    if at == layers.len() {
        let share = |at: usize| Share {
            device: cluster.devices[at].name.clone(),
            layers: layers[at],
            gpu_layers: gpu[at],
            prefetch_bytes: 0.0,
            relays: Vec::new(),
        };
        let ring = (0..layers.len()).filter(|at| *at == 0 || layers[*at] > 0);
        let plan = Plan { layers: layers.iter().sum(), rounds, shares: ring.map(share).collect() };
        if let Some(token_s) = costs.token_s(&plan) {
            *best = best.min(token_s);
        }
        return;
    }
    let most = if cluster.devices[at].gpu.is_some() { layers[at] } else { 0 };
    for own in 0..=most {
        gpu[at] = own;
        splits(costs, cluster, layers, rounds, at + 1, gpu, best);
    }
    gpu[at] = 0;
}
