//! Why a plan is as it is: what bounds a token, what each number of rounds would give, what a token would take without
//! a device, with one that was left out, or with a second one of a kind.
//!
//! Every figure is a plan of its own, searched under the changed description; nothing is estimated from the first.

use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, DEVICES_MAX, ModelShape, Workload};
use crate::cost::{Costs, DeviceTime, Prediction};
use crate::plan::{Plan, PlanError};
use crate::search::{ROUNDS_MAX, SearchOptions, search};

/// What takes most of a token.
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

/// A changed description, and what a token takes under it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WhatIf {
    /// The device that goes or comes.
    pub device: String,
    /// Seconds of a token; none: no plan.
    pub token_s: Option<f64>,
}

/// One number of rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rounds {
    /// `k`.
    pub rounds: usize,
    /// Seconds of a token under the best plan with that; none: no plan.
    pub token_s: Option<f64>,
}

/// Everything about one plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// What a token takes, device by device.
    pub prediction: Prediction,
    /// The device and the cause with the largest part of it.
    pub bound_by: (String, Cause),
    /// The best for each number of rounds, up to 8.
    pub rounds: Vec<Rounds>,
    /// Without each device of the ring.
    pub without: Vec<WhatIf>,
    /// With each device that was left out, made to take part.
    pub left_out: Vec<WhatIf>,
    /// With a second one of each device of the cluster.
    pub twice: Vec<WhatIf>,
}

/// Rounds that an explanation looks at.
const ROUNDS_SHOWN: usize = 8;

/// Explains `plan`, which [`search`] gave for this description and these options.
///
/// # Errors
/// [`PlanError`] where the plan is not one of this description.
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

/// The cluster with a second device like `name`, seen by others as the first is.
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
