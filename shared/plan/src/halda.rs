//! Halda, the planner of prima.cpp (Algorithm 1, with the model of Appendix A.3). HiGHS solves its integer
//! programmes.
//!
//! Follows the paper: compute and memory time add up. Four sets of devices have their own coefficients and
//! memory constraints. There is one programme for each factor `k < L` of `L`. Calibration forces the device
//! with the slowest disk out of the overloaded sets; devices that got one layer are removed. The objective
//! depends only on the totals `k w_m` plus `k` times the hops, so it never prefers `k > 1`.
//!
//! The paper leaves some cases open. Here the loop has a limit, and it ends if a set assignment repeats (it
//! can alternate between two). The best solution by its own objective is returned, and no solution is an
//! error. Devices keep the cluster's order. The head is the named device, or the first.

use std::collections::BTreeSet;

use crate::baselines::proportional;
use crate::cluster::{Device, GpuKind, Os};
use crate::cost::{Costs, SLOW_DISK_BYTES_PER_S};
use crate::plan::{Plan, PlanError, Share};

mod coefficients;
mod programme;

use coefficients::{Coefficients, Set};

/// The most iterations of the outer loop.
const TURNS_MAX: usize = 64;

/// The result of Halda.
#[derive(Debug, Clone, PartialEq)]
pub struct Halda {
    /// Its plan.
    pub plan: Plan,
    /// The time of a token by Halda's own objective, in seconds.
    pub objective_s: f64,
    /// How many integer programmes were solved.
    pub programmes: usize,
}

/// A solution: windows `w`, GPU layers `n`, rounds `k`.
#[derive(Debug, Clone, PartialEq)]
struct Solution {
    w: Vec<usize>,
    n: Vec<usize>,
    k: usize,
    objective_s: f64,
}

/// Plans with Halda.
///
/// # Errors
/// [`PlanError::NoSolution`] if the first assignment of devices to sets has no solution;
/// [`PlanError::Solver`] if HiGHS fails; [`PlanError::NoSolver`] if it is not built in (feature `halda`).
pub fn halda(costs: &Costs<'_>) -> Result<Halda, PlanError> {
    let head = costs.cluster.head.as_deref().and_then(|name| costs.cluster.index(name)).unwrap_or(0);
    let mut ring: Vec<usize> = vec![head];
    ring.extend((0..costs.cluster.devices.len()).filter(|at| *at != head));
    let mut programmes = 0;
    loop {
        let mut ring_search = RingSearch { costs, ring: &ring, programmes: 0 };
        let solution = ring_search.run()?;
        programmes += ring_search.programmes;
        let layers = |place: usize| solution.k * solution.w[place];
        let kept: Vec<usize> = (0..ring.len())
            .filter(|place| *place == 0 || layers(*place) > 1)
            .map(|place| ring[place])
            .collect();
        if kept.len() == ring.len() {
            return Ok(Halda {
                plan: plan(costs, &ring, &solution),
                objective_s: solution.objective_s,
                programmes,
            });
        }
        ring = kept;
    }
}

fn plan(costs: &Costs<'_>, ring: &[usize], solution: &Solution) -> Plan {
    let name = |device: usize| costs.cluster.devices[device].name.clone();
    let share = |place: usize| Share {
        device: name(ring[place]),
        layers: solution.k * solution.w[place],
        gpu_layers: solution.k * solution.n[place],
        prefetch_bytes: 0.0,
        relays: costs
            .hops
            .relays(ring[place], ring[(place + 1) % ring.len()])
            .into_iter()
            .map(name)
            .collect(),
    };
    let rounds = if ring.len() == 1 { 1 } else { solution.k };
    Plan { layers: costs.model.layers, rounds, shares: (0..ring.len()).map(share).collect() }
}

/// Algorithm 1 on a given ring.
struct RingSearch<'a> {
    costs: &'a Costs<'a>,
    ring: &'a [usize],
    programmes: usize,
}

impl RingSearch<'_> {
    fn device(&self, place: usize) -> &Device {
        &self.costs.cluster.devices[self.ring[place]]
    }

    fn run(&mut self) -> Result<Solution, PlanError> {
        let layers = self.costs.model.layers;
        let memory: Vec<f64> = (0..self.ring.len()).map(|place| budget(self.device(place))).collect();
        // Line 1 of Algorithm 1.
        let mut now = Solution {
            w: proportional(layers, &memory),
            n: vec![0; self.ring.len()],
            k: 1,
            objective_s: f64::INFINITY,
        };
        let (mut forced, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut best: Option<Solution> = None;
        for _ in 0..TURNS_MAX {
            // Lines 5 to 8.
            let sets: Vec<Set> = (0..self.ring.len()).map(|place| self.set(place, &now, &forced)).collect();
            if !seen.insert(sets.clone()) {
                break;
            }
            // Lines 9 to 12.
            let coefficients = Coefficients::new(self.costs, self.ring, &sets);
            let mut found: Option<Solution> = None;
            for k in (1..layers.max(2)).filter(|k| layers.is_multiple_of(*k)) {
                if let Some(solution) = self.solve(&coefficients, &sets, k)?
                    && found.as_ref().is_none_or(|found| solution.objective_s < found.objective_s)
                {
                    found = Some(solution);
                }
            }
            let Some(found) = found else { break };
            if best.as_ref().is_none_or(|best| found.objective_s < best.objective_s) {
                best = Some(found.clone());
            }
            // Lines 13 to 15.
            if let Some(slowest) = self.to_calibrate(&found, &sets) {
                forced.insert(slowest);
                continue;
            }
            now = found;
        }
        best.ok_or(PlanError::NoSolution)
    }

    /// Returns the set of a device: cases 1 to 4 of A.3.
    fn set(&self, place: usize, now: &Solution, forced: &BTreeSet<usize>) -> Set {
        let device = self.device(place);
        let disk = coefficients::disk(device);
        let share = (now.k * now.w[place], now.k * now.n[place]);
        if forced.contains(&place) || disk < SLOW_DISK_BYTES_PER_S {
            return Set::M4;
        }
        let counted = if coefficients::counts_gpu_layers(device) { share.0 } else { share.0 - share.1 };
        let over = coefficients::room(self.costs, self.ring, place);
        let each = coefficients::layer_bytes(self.costs);
        match (device.os, metal(device)) {
            (Os::Macos, false) if share.0 as f64 * each > over => Set::M1,
            (Os::Macos, true) if share.0 as f64 * each > over => Set::M2,
            (Os::Linux | Os::Android | Os::Windows, _) if counted as f64 * each > over => Set::M3,
            _ => Set::M4,
        }
    }

    /// Returns the place to force into M4: the overloaded one with the slowest disk, if a GPU has free memory
    /// while another device has too little.
    fn to_calibrate(&self, found: &Solution, sets: &[Set]) -> Option<usize> {
        let places = 0..self.ring.len();
        let room = |place: usize| coefficients::gpu_layers(self.costs, self.ring, place, found.k);
        let free = |place: usize| found.n[place] < room(place).min(found.w[place]);
        let overloaded = |place: usize| {
            sets[place] != Set::M4 || (room(place) > 0 && !free(place) && found.w[place] > found.n[place])
        };
        let one_free = places
            .clone()
            .any(|place| free(place) && places.clone().any(|other| other != place && overloaded(other)));
        if !one_free {
            return None;
        }
        let rate = |place: &usize| coefficients::disk(self.device(*place));
        places.filter(|place| sets[*place] != Set::M4).min_by(|a, b| rate(a).total_cmp(&rate(b)))
    }
}

fn metal(device: &Device) -> bool {
    device.gpu.as_ref().is_some_and(|gpu| gpu.kind == GpuKind::Metal)
}

/// Returns the memory to which the first windows are proportional (the paper's footnote 6).
fn budget(device: &Device) -> f64 {
    match (&device.gpu, device.os) {
        (Some(gpu), Os::Macos) if gpu.kind == GpuKind::Metal => gpu.memory_bytes,
        (_, Os::Android) => device.memory_bytes + device.swap_bytes,
        _ => device.memory_bytes,
    }
}

#[cfg(all(test, feature = "halda"))]
mod tests;
