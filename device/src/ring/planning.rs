//! The head's planner at work: plans for whoever is there, by the search of `baton-plan`, and remembers why.
//!
//! What a device can do it has measured itself; what lies between devices is measured by the head. A device that has
//! measured nothing (a relay) is left out. A plan that a person gave is used as long as all of its devices are there.

use std::sync::{Arc, Mutex, PoisonError};

use baton_plan::explain::{Explanation, explain};
use baton_plan::{
    Cluster, Costs, Device, ModelShape, Network, Plan, PlanError, Prediction, SearchOptions, Workload, search,
};
use serde::{Deserialize, Serialize};

/// What is planned for.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The model.
    pub model: ModelShape,
    /// What the ring is to carry.
    pub workload: Workload,
    /// What restricts the search.
    pub options: SearchOptions,
    /// A plan to be used as long as its devices are there.
    pub given: Option<Plan>,
}

/// The present plan, and what it stands on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Planned {
    /// The devices that were there.
    pub cluster: Cluster,
    /// The plan.
    pub plan: Plan,
    /// What a token should take; none where the devices' description does not cover a plan that was given.
    pub prediction: Option<Prediction>,
    /// Why; none for plans that were given.
    pub explanation: Option<Explanation>,
}

/// A view of the present plan for other threads.
#[derive(Debug, Clone, Default)]
pub struct PlanBoard(Arc<Mutex<Option<Planned>>>);

impl PlanBoard {
    /// The present plan; none before the first.
    pub fn planned(&self) -> Option<Planned> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn put(&self, planned: Planned) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(planned);
    }
}

/// Plans for a head and whatever workers are there.
#[derive(Debug, Clone)]
pub struct Planning {
    head: Device,
    network: Network,
    wanted: Wanted,
    board: PlanBoard,
}

impl Planning {
    /// For this head; `network` says what lies between devices.
    pub fn new(head: Device, network: Network, wanted: Wanted) -> Self {
        Self { head, network, wanted, board: PlanBoard::default() }
    }

    /// The present plan for other threads.
    pub fn board(&self) -> PlanBoard {
        self.board.clone()
    }

    /// A plan for the head and these workers.
    ///
    /// # Errors
    /// [`PlanError`] in the planner's words.
    pub fn plan(&self, workers: &[Device]) -> Result<Plan, PlanError> {
        let there = |name: &str| name == self.head.name || workers.iter().any(|worker| worker.name == name);
        let mut network = self.network.clone();
        network.edges.retain(|edge| there(&edge.from) && there(&edge.to));
        let cluster = Cluster {
            note: String::new(),
            devices: std::iter::once(&self.head).chain(workers).cloned().collect(),
            network,
            head: Some(self.head.name.clone()),
        };
        let Wanted { model, workload, options, given } = &self.wanted;
        let all = |plan: &&Plan| {
            plan.shares
                .iter()
                .all(|share| there(&share.device) && share.relays.iter().all(|name| there(name)))
        };
        let planned = match given.as_ref().filter(all) {
            Some(plan) => {
                let costs = Costs::new(&cluster, model, *workload)?;
                let prediction = costs.predict(plan).ok();
                Planned { plan: plan.clone(), prediction, explanation: None, cluster }
            }
            None => {
                let plan = search(&cluster, model, *workload, options)?;
                let explanation = explain(&cluster, model, *workload, options, &plan)?;
                let prediction = Some(explanation.prediction.clone());
                Planned { plan, prediction, explanation: Some(explanation), cluster }
            }
        };
        let plan = planned.plan.clone();
        self.board.put(planned);
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_plan::{Disk, Os, Processor};

    fn device(name: &str, memory_bytes: f64) -> Device {
        Device {
            name: name.to_owned(),
            os: Os::Linux,
            cpu: Processor {
                flops: [("Q8_0".to_owned(), 1e11)].into(),
                read_bytes_per_s: 2e10,
                kv_copy_s: 0.0,
            },
            gpu: None,
            memory_bytes,
            swap_bytes: 0.0,
            buffer_bytes: 0.0,
            disk: Disk { sequential_bytes_per_s: 1e9, random_bytes_per_s: 5e8 },
        }
    }

    fn planning(given: Option<Plan>) -> Planning {
        let flops = |flops: f64| [("Q8_0".to_owned(), flops)].into();
        let model = ModelShape {
            name: "m".to_owned(),
            layers: 16,
            hidden: 1024,
            vocab: 1000,
            layer_bytes: 1e8,
            input_bytes: 1e6,
            output_bytes: 1e6,
            kv_bytes: 4096.0,
            layer_flops: flops(2e8),
            output_flops: flops(2e6),
        };
        let network = Network { latency_s: 1e-3, bytes_per_s: 1e8, edges: Vec::new() };
        let workload = Workload { context: 256, sequences: 1 };
        let wanted = Wanted { model, workload, options: SearchOptions::default(), given };
        Planning::new(device("head", 1e9), network, wanted)
    }

    #[test]
    fn layers_go_where_memory_is_and_the_reason_is_kept() {
        let planning = planning(None);
        assert!(planning.board().planned().is_none());
        let alone = planning.plan(&[]).unwrap();
        assert_eq!(alone.shares.len(), 1);
        let slow = planning.board().planned().unwrap().prediction.unwrap().token_s;
        let both = planning.plan(&[device("desk", 2e9)]).unwrap();
        assert!(both.is_whole() && both.shares.len() == 2, "{both:?}");
        let planned = planning.board().planned().unwrap();
        assert!(
            planned.prediction.unwrap().token_s < slow / 2.0,
            "the second device's memory saves the disk"
        );
        let without = planned.explanation.unwrap().without;
        assert!(
            without.iter().any(|what| what.device == "desk" && what.token_s > Some(slow / 2.0)),
            "{without:?}"
        );
    }

    #[test]
    fn a_given_plan_holds_as_long_as_its_devices_are_there() {
        let share = |name: &str, layers| baton_plan::plan::Share {
            device: name.to_owned(),
            layers,
            gpu_layers: 0,
            prefetch_bytes: 0.0,
            relays: Vec::new(),
        };
        let given = Plan { layers: 16, rounds: 2, shares: vec![share("head", 4), share("desk", 12)] };
        let planning = planning(Some(given.clone()));
        assert_eq!(planning.plan(&[device("desk", 2e9)]).unwrap(), given);
        assert!(planning.board().planned().unwrap().explanation.is_none());
        assert_eq!(planning.plan(&[device("other", 2e9)]).unwrap().shares[0].device, "head");
        assert!(planning.plan(&[device("head", 1e9)]).is_err(), "two devices of one name");
    }
}
