//! Plans by simple rules of other systems, to compare with.
//!
//! All have one round and as many GPU layers as fit. They ignore disks and networks.

use crate::cost::Costs;
use crate::plan::{Plan, PlanError, Share};

/// A rule for planning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Baseline {
    /// Layers in proportion to memory (exo; prima.cpp without Halda).
    MemSched,
    /// Layers in proportion to computing power. Layers that do not fit move to devices with free memory; the
    /// rest goes to CPUs in proportion to their power (Galaxy, as prima.cpp's A.10 describes it).
    PerfSched,
    /// Fills the fastest GPU first, then the next, then the memory of the fastest CPU; the rest goes to the
    /// fastest disk.
    FillFastestGpusFirst,
}

impl Baseline {
    /// All rules.
    pub const ALL: [Self; 3] = [Self::MemSched, Self::PerfSched, Self::FillFastestGpusFirst];

    /// Returns the name for printing.
    pub fn name(self) -> &'static str {
        match self {
            Self::MemSched => "MemSched",
            Self::PerfSched => "PerfSched",
            Self::FillFastestGpusFirst => "Fill-Fastest-GPUs-First",
        }
    }

    /// Returns the plan of this rule: devices in the order of the cluster, the head first.
    ///
    /// # Errors
    /// [`PlanError::Impossible`] if a device cannot even hold the KV cache of its share.
    pub fn plan(self, costs: &Costs<'_>) -> Result<Plan, PlanError> {
        let layers = match self {
            Self::MemSched => proportional(costs.model.layers, &memories(costs)),
            Self::PerfSched => by_power(costs),
            Self::FillFastestGpusFirst => filled(costs),
        };
        shares(costs, &layers)
    }
}

fn head(costs: &Costs<'_>) -> usize {
    costs.cluster.head.as_deref().and_then(|name| costs.cluster.index(name)).unwrap_or(0)
}

/// Splits `total` in proportion to `weights` into whole parts: rounded down, then one more for the largest
/// remainders.
pub(crate) fn proportional(total: usize, weights: &[f64]) -> Vec<usize> {
    let sum: f64 = weights.iter().sum();
    if sum <= 0.0 {
        let mut parts = vec![0; weights.len()];
        parts[0] = total;
        return parts;
    }
    let exact: Vec<f64> = weights.iter().map(|weight| weight / sum * total as f64).collect();
    let mut parts: Vec<usize> = exact.iter().map(|part| *part as usize).collect();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by(|a, b| exact[*b].fract().total_cmp(&exact[*a].fract()));
    let left = total.saturating_sub(parts.iter().sum());
    order.iter().cycle().take(left).for_each(|at| parts[*at] += 1);
    parts
}

fn memories(costs: &Costs<'_>) -> Vec<f64> {
    let own = |device: &crate::cluster::Device| {
        use crate::cluster::GpuKind::{Cuda, Metal};
        match &device.gpu {
            Some(gpu) if gpu.kind == Cuda => device.memory_bytes + gpu.memory_bytes,
            Some(gpu) if gpu.kind == Metal => gpu.memory_bytes,
            _ => device.memory_bytes,
        }
    };
    costs.cluster.devices.iter().map(own).collect()
}

/// Returns how many layers a device's GPU and memory hold without reading from disk.
fn fits(costs: &Costs<'_>, device: usize) -> usize {
    let is_head = device == head(costs);
    let without_disk = |count: &usize| {
        let gpu = costs.gpu_room(device, *count, is_head);
        costs.holding(device, *count, gpu, is_head).is_some_and(|held| held.overflow <= 0.0)
    };
    (0..=costs.model.layers).rev().find(without_disk).unwrap_or(0)
}

fn by_power(costs: &Costs<'_>) -> Vec<usize> {
    let devices = 0..costs.cluster.devices.len();
    let cpu_power = |at: usize| 1.0 / costs.cpu_layer(at).total();
    let power = |at: usize| costs.gpu_layer(at).map_or(cpu_power(at), |gpu| 1.0 / gpu.total());
    let mut layers = proportional(costs.model.layers, &devices.clone().map(power).collect::<Vec<_>>());
    let room: Vec<usize> = devices.clone().map(|at| fits(costs, at)).collect();
    let mut homeless = 0;
    for at in devices.clone() {
        homeless += layers[at].saturating_sub(room[at]);
        layers[at] = layers[at].min(room[at]);
    }
    let mut by_power: Vec<usize> = devices.clone().collect();
    by_power.sort_by(|a, b| power(*b).total_cmp(&power(*a)));
    for at in by_power {
        let moved = homeless.min(room[at] - layers[at]);
        layers[at] += moved;
        homeless -= moved;
    }
    let rest = proportional(homeless, &devices.map(cpu_power).collect::<Vec<_>>());
    layers.iter().zip(rest).map(|(own, more)| own + more).collect()
}

fn filled(costs: &Costs<'_>) -> Vec<usize> {
    let is_head = |at: usize| at == head(costs);
    let mut layers = vec![0; costs.cluster.devices.len()];
    let mut left = costs.model.layers;
    let mut fill = |at: usize, room: usize, layers: &mut Vec<usize>| {
        let more = left.min(room.saturating_sub(layers[at]));
        layers[at] += more;
        left -= more;
        left
    };
    let sorted = |key: &dyn Fn(usize) -> f64| {
        let mut order: Vec<usize> = (0..costs.cluster.devices.len()).collect();
        order.sort_by(|a, b| key(*a).total_cmp(&key(*b)));
        order
    };
    for at in sorted(&|at| costs.gpu_layer(at).map_or(f64::INFINITY, |gpu| gpu.total())) {
        fill(at, costs.gpu_room(at, costs.model.layers, is_head(at)), &mut layers);
    }
    for at in sorted(&|at| costs.cpu_layer(at).total()) {
        fill(at, fits(costs, at), &mut layers);
    }
    for at in sorted(&|at| -costs.cluster.devices[at].disk.sequential_bytes_per_s) {
        let most = |at: usize| {
            (0..=costs.model.layers).rev().find(|count| !costs.holdings(at, *count, is_head(at)).is_empty())
        };
        fill(at, most(at).unwrap_or(0), &mut layers);
    }
    layers
}

/// Returns a plan of one round, given the layers of each device.
fn shares(costs: &Costs<'_>, layers: &[usize]) -> Result<Plan, PlanError> {
    let head = head(costs);
    let others = (0..layers.len()).filter(|at| *at != head && layers[*at] > 0);
    let ring: Vec<usize> = std::iter::once(head).chain(others).collect();
    let share = |place: usize| {
        let at = ring[place];
        let name = |device: usize| costs.cluster.devices[device].name.clone();
        let relays = costs.hops.relays(at, ring[(place + 1) % ring.len()]);
        Share {
            device: name(at),
            layers: layers[at],
            gpu_layers: costs.gpu_room(at, layers[at], at == head),
            prefetch_bytes: 0.0,
            relays: relays.into_iter().map(name).collect(),
        }
    };
    let placed: usize = layers.iter().sum();
    if placed != costs.model.layers {
        return Err(costs.impossible(format!("only {placed} of them have a place")));
    }
    Ok(Plan { layers: placed, rounds: 1, shares: (0..ring.len()).map(share).collect() })
}

#[cfg(test)]
mod tests;
