//! Explains a plan: what bounds a token, and what other plans would give. These are plans with another number
//! of rounds, without a device, with one that was left out, or with a second one of a kind.
//!
//! Every figure comes from a search under the changed description; nothing is estimated from the first plan.

use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, DEVICES_MAX, ModelShape, Workload};
use crate::cost::{Costs, DeviceTime, Prediction};
use crate::plan::{Plan, PlanError};
use crate::search::{ROUNDS_MAX, SearchOptions, search};

/// The cause of the largest part of a token's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Arithmetic.
    Compute,
    /// Reading weights and KV from memory.
    Memory,
    /// Waiting for a disk.
    Disk,
    /// Hops.
    Network,
}

/// A changed description, and the time of a token under it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WhatIf {
    /// The device that is removed or added.
    pub device: String,
    /// Seconds of a token; `None` if there is no plan.
    pub token_s: Option<f64>,
}

/// The best time for one number of rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rounds {
    /// `k`.
    pub rounds: usize,
    /// Seconds of a token under the best plan with that; `None` if there is no plan.
    pub token_s: Option<f64>,
}

/// The explanation of one plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The time of a token, device by device.
    pub prediction: Prediction,
    /// The device and the cause that take the largest part of it.
    pub bound_by: (String, Cause),
    /// The best time for each number of rounds, up to 8.
    pub rounds: Vec<Rounds>,
    /// The time without each device of the ring.
    pub without: Vec<WhatIf>,
    /// The time with each device that was left out, if it must take part.
    pub left_out: Vec<WhatIf>,
    /// The time with a second one of each device of the cluster.
    pub twice: Vec<WhatIf>,
}

/// The most rounds that an explanation lists.
const ROUNDS_SHOWN: usize = 8;

/// Explains `plan`, which [`search`] returned for this description and these options.
///
/// # Errors
/// [`PlanError`] if the plan does not belong to this description.
pub fn explain(
    cluster: &Cluster,
    model: &ModelShape,
    workload: Workload,
    options: &SearchOptions,
    plan: &Plan,
) -> Result<Explanation, PlanError> {
    let prediction = Costs::new(cluster, model, workload)?.predict(plan)?;
    let token_s = |cluster: &Cluster, options: &SearchOptions| {
        let plan = search(cluster, model, workload, options).ok()?;
        Some(Costs::new(cluster, model, workload).ok()?.predict(&plan).ok()?.token_s)
    };
    let in_ring = |name: &str| plan.shares.iter().any(|share| share.device == name);
    let names = || cluster.devices.iter().map(|device| device.name.clone());
    let what_if = |device: String, token_s| WhatIf { device, token_s };
    let without = |name: String| {
        let rest = cluster.without(&name);
        let token_s = if rest.devices.is_empty() { None } else { token_s(&rest, options) };
        what_if(name, token_s)
    };
    let forced = |name: String| {
        let options = SearchOptions { with: Some(name.clone()), ..options.clone() };
        what_if(name, token_s(cluster, &options))
    };
    let twice = |name: String| {
        let grown = with_a_second(cluster, &name);
        what_if(name, token_s(&grown, options))
    };
    let rounds = |rounds| {
        let options = SearchOptions { rounds: Some(rounds), ..options.clone() };
        Rounds { rounds, token_s: token_s(cluster, &options) }
    };
    let room = cluster.devices.len() < DEVICES_MAX;
    Ok(Explanation {
        bound_by: bound_by(&prediction),
        rounds: (1..=ROUNDS_SHOWN.min(ROUNDS_MAX)).map(rounds).collect(),
        without: names().filter(|name| in_ring(name)).map(without).collect(),
        left_out: names().filter(|name| !in_ring(name)).map(forced).collect(),
        twice: names().filter(|_| room).map(twice).collect(),
        prediction,
    })
}

fn bound_by(prediction: &Prediction) -> (String, Cause) {
    let causes = |time: &DeviceTime| {
        [
            (Cause::Compute, time.compute_s),
            (Cause::Memory, time.memory_s),
            (Cause::Disk, time.disk_s),
            (Cause::Network, time.network_s),
        ]
    };
    let all = prediction
        .devices
        .iter()
        .flat_map(|time| causes(time).map(|(cause, s)| (time.device.clone(), cause, s)));
    let most = all.max_by(|a, b| a.2.total_cmp(&b.2));
    most.map_or_else(|| (String::new(), Cause::Compute), |(device, cause, _)| (device, cause))
}

/// Returns the cluster with a second device like `name`, with the same connections to others.
fn with_a_second(cluster: &Cluster, name: &str) -> Cluster {
    let mut grown = cluster.clone();
    let mut second = format!("a second {name}");
    while cluster.index(&second).is_some() {
        second.push('\'');
    }
    if let Some(at) = cluster.index(name) {
        let mut device = cluster.devices[at].clone();
        device.name.clone_from(&second);
        grown.devices.push(device);
    }
    for edge in &cluster.network.edges {
        let mut copy = edge.clone();
        if edge.from == name {
            copy.from.clone_from(&second);
        } else if edge.to == name {
            copy.to.clone_from(&second);
        } else {
            continue;
        }
        grown.network.edges.push(copy);
    }
    grown
}

#[cfg(test)]
mod tests;
