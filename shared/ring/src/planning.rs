//! The head's planner: makes plans for the present devices by the search of `baton-plan`, and keeps the
//! explanation.
//!
//! Devices measure themselves, and the network paths between them. A device without measurements (a relay)
//! is left out of the plan. A plan that a person gave is used as long as all of its devices are present. If
//! devices differ from their own measurements ([`Planning::revise`]), plans use corrected figures for them
//! until they leave.

pub mod drift;
pub mod explained;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_plan::explain::{Explanation, explain};
use baton_plan::{
    Cluster, Costs, Device, ModelShape, Network, Plan, PlanError, Prediction, SearchOptions, Share, Workload,
    search,
};
use serde::{Deserialize, Serialize};

use crate::core::head::{Pace, Shown};
use crate::planning::drift::{Correction, DriftDetector, ExpectedDevice};

/// The longest predicted times that the head waits for, because predictions depend on what devices report
/// about themselves.
const TOKEN_S_MAX: f64 = 60.0;
const FIRST_S_MAX: f64 = 600.0;

/// What to plan for.
#[derive(Debug, Clone)]
pub struct PlanRequest {
    /// The model.
    pub model: ModelShape,
    /// The ring's workload.
    pub workload: Workload,
    /// Restrictions of the search.
    pub options: SearchOptions,
    /// A plan that is used as long as its devices are present.
    pub given: Option<Plan>,
}

/// The present plan and its basis.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Planned {
    /// The devices that were present.
    pub cluster: Cluster,
    /// The plan.
    pub plan: Plan,
    /// The predicted time of a token; `None` if a given plan is not covered by the devices' descriptions.
    pub prediction: Option<Prediction>,
    /// The explanation; `None` for a plan that was given.
    pub explanation: Option<Explanation>,
}

/// The present plan, for other threads.
#[derive(Debug, Clone, Default)]
pub struct CurrentPlan(Arc<Mutex<Option<Planned>>>);

impl CurrentPlan {
    /// Returns the present plan, or `None` before the first.
    pub fn planned(&self) -> Option<Planned> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn put(&self, planned: Planned) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(planned);
    }
}

/// Makes plans for a head and the present workers.
#[derive(Debug, Clone)]
pub struct Planning {
    head: Device,
    request: PlanRequest,
    current_plan: CurrentPlan,
    drift: Arc<Mutex<Drift>>,
}

/// How devices differ from their measurements.
#[derive(Debug, Default)]
struct Drift {
    detector: DriftDetector,
    corrections: BTreeMap<String, Correction>,
    /// The devices of the present plan, as they measured themselves.
    measured: Vec<Device>,
}

/// Converts seconds to a duration of at most `most` seconds; values that are not positive become 0.
fn time_of(seconds: f64, most: f64) -> Duration {
    if seconds > 0.0 { Duration::from_secs_f64(seconds.min(most)) } else { Duration::ZERO }
}

/// Returns the devices of a plan that are neither the head nor among these workers.
fn missing<'a>(plan: &'a Plan, head: &str, workers: &[Device]) -> Vec<&'a str> {
    let there = |name: &str| name == head || workers.iter().any(|worker| worker.name == name);
    let names = plan.shares.iter().flat_map(|share| std::iter::once(&share.device).chain(&share.relays));
    names.map(String::as_str).filter(|name| !there(name)).collect()
}

/// Returns a device with its corrections applied.
fn corrected(device: &Device, corrections: &BTreeMap<String, Correction>) -> Device {
    let mut device = device.clone();
    let Some(correction) = corrections.get(&device.name) else { return device };
    let slower = correction.slower;
    device.cpu.flops.values_mut().for_each(|rate| *rate /= slower);
    device.cpu.read_bytes_per_s /= slower;
    device.cpu.kv_copy_s *= slower;
    device.disk.sequential_bytes_per_s /= slower;
    device.disk.random_bytes_per_s /= slower;
    device.memory_bytes = correction.memory_bytes.unwrap_or(device.memory_bytes);
    device
}

impl Planning {
    /// Makes plans for this head.
    pub fn new(head: Device, request: PlanRequest) -> Self {
        Self { head, request, current_plan: CurrentPlan::default(), drift: Arc::default() }
    }

    /// Returns access to the present plan for other threads.
    pub fn current_plan(&self) -> CurrentPlan {
        self.current_plan.clone()
    }

    /// Makes a plan for the head and these workers, whose paths are those of `network`.
    ///
    /// # Errors
    /// [`PlanError`] in the planner's words.
    pub fn plan(&self, workers: &[Device], network: &Network) -> Result<Plan, PlanError> {
        let workers = &self.usable(workers, network);
        let there = |name: &str| name == self.head.name || workers.iter().any(|worker| worker.name == name);
        let cluster = {
            let mut drift = self.drift.lock().unwrap_or_else(PoisonError::into_inner);
            // A device that comes back has measured itself anew.
            drift.corrections.retain(|name, _| there(name));
            drift.measured = std::iter::once(&self.head).chain(workers).cloned().collect();
            self.cluster(&drift.measured, &drift.corrections, network)
        };
        let PlanRequest { model, workload, options, .. } = &self.request;
        let planned = match self.given(workers) {
            Some(plan) => {
                let costs = Costs::new(&cluster, model, *workload)?;
                let prediction = costs.predict(plan).ok();
                Planned { plan: plan.clone(), prediction, explanation: None, cluster }
            }
            None => {
                if let Some(given) = &self.request.given {
                    let missing = missing(given, &self.head.name, workers).join(", ");
                    tracing::warn!(
                        missing,
                        "the plan that was given is not used, as devices of it are not there"
                    );
                }
                let plan = search(&cluster, model, *workload, options)?;
                let explanation = explain(&cluster, model, *workload, options, &plan)?;
                let prediction = Some(explanation.prediction.clone());
                Planned { plan, prediction, explanation: Some(explanation), cluster }
            }
        };
        let plan = planned.plan.clone();
        self.current_plan.put(planned);
        Ok(plan)
    }

    /// Drafts a plan that nobody runs yet: the present plan is not replaced.
    ///
    /// # Errors
    /// The errors of [`Self::plan`].
    pub fn draft(&self, workers: &[Device], network: &Network) -> Result<Plan, PlanError> {
        let workers = &self.usable(workers, network);
        if let Some(plan) = self.given(workers) {
            return Ok(plan.clone());
        }
        let measured: Vec<Device> = std::iter::once(&self.head).chain(workers).cloned().collect();
        let corrections = {
            let drift = self.drift.lock().unwrap_or_else(PoisonError::into_inner);
            drift.corrections.clone()
        };
        let PlanRequest { model, workload, options, .. } = &self.request;
        search(&self.cluster(&measured, &corrections, network), model, *workload, options)
    }

    /// Returns the workers that can be planned with: a worker with an invalid profile must not cost the
    /// others the ring.
    fn usable(&self, workers: &[Device], network: &Network) -> Vec<Device> {
        let PlanRequest { model, workload, .. } = &self.request;
        let fits = |worker: &&Device| {
            let pair = self.cluster(&[self.head.clone(), (*worker).clone()], &BTreeMap::new(), network);
            let costs = Costs::new(&pair, model, *workload);
            if let Err(err) = &costs {
                tracing::warn!(device = worker.name, %err, "a device is not planned with");
            }
            costs.is_ok()
        };
        workers.iter().filter(fits).cloned().collect()
    }

    /// Returns the plan that a person gave, if all of its devices are present.
    fn given(&self, workers: &[Device]) -> Option<&Plan> {
        self.request.given.as_ref().filter(|plan| missing(plan, &self.head.name, workers).is_empty())
    }

    /// Returns the predicted times of the present plan. Returns `None` before the first plan and if there
    /// is no prediction.
    pub fn predicted_times(&self) -> Option<Pace> {
        let current_plan = self.current_plan.0.lock().unwrap_or_else(PoisonError::into_inner);
        let planned = current_plan.as_ref()?;
        let token_s = planned.prediction.as_ref()?.token_s;
        let first_s = |share: &Share| {
            let device = planned.cluster.devices.iter().find(|device| device.name == share.device)?;
            let bytes = share.layers as f64 * self.request.model.layer_bytes;
            Some(bytes / device.disk.sequential_bytes_per_s)
        };
        let first_s = planned.plan.shares.iter().filter_map(first_s).fold(0.0, f64::max);
        Some(Pace { token: time_of(token_s, TOKEN_S_MAX), first: time_of(first_s, FIRST_S_MAX) })
    }

    /// Returns these devices with their corrections, and the network paths between them.
    fn cluster(
        &self,
        measured: &[Device],
        corrections: &BTreeMap<String, Correction>,
        network: &Network,
    ) -> Cluster {
        let there = |name: &str| measured.iter().any(|device| device.name == name);
        let mut network = network.clone();
        network.edges.retain(|edge| there(&edge.from) && there(&edge.to));
        let devices = measured.iter().map(|device| corrected(device, corrections)).collect();
        Cluster { note: String::new(), devices, network, head: Some(self.head.name.clone()) }
    }

    /// Returns whether a new plan is worth it at `now` (a time from any beginning), given what devices
    /// report. If so, the next plan uses corrected figures. A plan that a person gave stays.
    pub fn revise(&self, now: Duration, shown: &[Shown]) -> bool {
        let Some(planned) = self.current_plan.planned() else { return false };
        let (Some(prediction), Some(_)) = (&planned.prediction, &planned.explanation) else { return false };
        let expected = prediction.devices.iter().filter_map(|time| {
            let device = planned.cluster.devices.iter().find(|device| device.name == time.device)?;
            let token_s = time.compute_s + time.memory_s + time.disk_s;
            Some(ExpectedDevice { name: time.device.clone(), token_s, memory_bytes: device.memory_bytes })
        });
        let expected: Vec<ExpectedDevice> = expected.collect();
        let mut drift = self.drift.lock().unwrap_or_else(PoisonError::into_inner);
        let Drift { detector, corrections: present, measured } = &mut *drift;
        let Some(corrections) = detector.look(now, shown, &expected, present) else { return false };
        let devices = measured.iter().map(|device| corrected(device, &corrections)).collect();
        let cluster = Cluster { devices, ..planned.cluster };
        let PlanRequest { model, workload, options, .. } = &self.request;
        let seconds = |plan: &Plan| {
            let predicted = Costs::new(&cluster, model, *workload)?.predict(plan)?;
            Ok::<f64, PlanError>(predicted.token_s)
        };
        let best_s = search(&cluster, model, *workload, options).and_then(|plan| seconds(&plan));
        let worth = match best_s {
            Ok(best_s) => detector.judge(now, seconds(&planned.plan).ok(), best_s),
            // Without another plan the present one stays, and the next look is later.
            Err(_) => detector.judge(now, Some(0.0), f64::INFINITY),
        };
        if worth {
            *present = corrections;
        }
        worth
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
            stream_bytes: 0.0,
            weight_bytes_max: None,
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
            expert_bytes: 0.0,
            expert_share: 0.0,
            input_bytes: 1e6,
            output_bytes: 1e6,
            kv_bytes: 4096.0,
            layer_flops: flops(2e8),
            output_flops: flops(2e6),
        };
        let workload = Workload { context: 256, sequences: 1 };
        let request = PlanRequest { model, workload, options: SearchOptions::default(), given };
        Planning::new(device("head", 1e9), request)
    }

    /// Returns a network of which nothing is known.
    fn network() -> Network {
        crate::core::ways::Ways::default().network(&[])
    }

    #[test]
    fn layers_go_where_memory_is_and_the_reason_is_kept() {
        let planning = planning(None);
        assert!(planning.current_plan().planned().is_none());
        let alone = planning.plan(&[], &network()).unwrap();
        assert_eq!(alone.shares.len(), 1);
        let slow = planning.current_plan().planned().unwrap().prediction.unwrap().token_s;
        let both = planning.plan(&[device("desk", 2e9)], &network()).unwrap();
        assert!(both.is_whole() && both.shares.len() == 2, "{both:?}");
        let planned = planning.current_plan().planned().unwrap();
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
    fn a_draft_is_the_plan_that_would_come_and_leaves_the_present_one() {
        let planning = planning(None);
        let alone = planning.plan(&[], &network()).unwrap();
        let desk = [device("desk", 2e9)];
        let draft = planning.draft(&desk, &network()).unwrap();
        assert_eq!(planning.current_plan().planned().unwrap().plan, alone);
        assert_eq!(planning.plan(&desk, &network()).unwrap(), draft);
        let given = super::tests::planning(Some(draft.clone()));
        assert_eq!(given.draft(&desk, &network()).unwrap(), draft);
        assert_eq!(given.draft(&[], &network()).unwrap(), alone, "without a device of the given plan");
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
        assert_eq!(planning.plan(&[device("desk", 2e9)], &network()).unwrap(), given);
        assert_eq!(missing(&given, "head", &[device("other", 2e9)]), ["desk"]);
        assert!(planning.current_plan().planned().unwrap().explanation.is_none());
        assert_eq!(planning.plan(&[device("other", 2e9)], &network()).unwrap().shares[0].device, "head");
        assert!(
            planning.plan(&[device("desk", 1e9), device("desk", 1e9)], &network()).is_err(),
            "two of one name"
        );
    }

    #[test]
    fn a_ring_is_paced_by_what_its_plan_predicts() {
        let planning = planning(None);
        assert_eq!(planning.predicted_times(), None, "before the first plan");
        let plan = planning.plan(&[device("desk", 2e9)], &network()).unwrap();
        let predicted_times = planning.predicted_times().unwrap();
        let token_s = planning.current_plan().planned().unwrap().prediction.unwrap().token_s;
        assert_eq!(predicted_times.token, Duration::from_secs_f64(token_s));
        // 100 MB per layer from disks of 1 GB/s.
        let most = plan.shares.iter().map(|share| share.layers).max().unwrap();
        assert!(
            (predicted_times.first.as_secs_f64() - most as f64 * 0.1).abs() < 1e-6,
            "{predicted_times:?}"
        );
        assert_eq!(time_of(f64::NAN, 60.0), Duration::ZERO);
        assert_eq!(time_of(f64::INFINITY, 60.0), Duration::from_secs(60));
    }

    #[test]
    fn a_device_whose_profile_makes_no_sense_costs_nobody_else_the_ring() {
        type Change = fn(&mut Device);
        let changes: [Change; 7] = [
            |device| device.memory_bytes = f64::NAN,
            |device| device.memory_bytes = f64::INFINITY,
            |device| device.disk.sequential_bytes_per_s = 0.0,
            |device| device.cpu.read_bytes_per_s = -1.0,
            |device| device.cpu.read_bytes_per_s = 1e-300,
            |device| device.cpu.flops.clear(),
            |device| device.name = "head".to_owned(),
        ];
        let planning = planning(None);
        let desk = device("desk", 2e9);
        let want = planning.plan(std::slice::from_ref(&desk), &network()).unwrap();
        for (number, change) in changes.into_iter().enumerate() {
            let mut other = device("other", 2e9);
            change(&mut other);
            let workers = [other, desk.clone()];
            assert_eq!(planning.draft(&workers, &network()).unwrap(), want, "change {number}");
            assert_eq!(planning.plan(&workers, &network()).unwrap(), want, "change {number}");
        }
    }

    /// Returns the report of a device that takes so many times as long as the present plan predicts.
    fn slower(planning: &Planning, name: &str, times: f64) -> Vec<Shown> {
        let planned = planning.current_plan().planned().unwrap();
        let prediction = planned.prediction.unwrap();
        let time = prediction.devices.iter().find(|time| time.device == name).unwrap();
        let token_s = Some((time.compute_s + time.memory_s + time.disk_s) * times);
        vec![Shown { name: name.to_owned(), token_s, memory_bytes: None }]
    }

    fn layers(plan: &Plan, name: &str) -> usize {
        plan.shares.iter().find(|share| share.device == name).map_or(0, |share| share.layers)
    }

    #[test]
    fn a_device_that_turns_out_slow_gets_less_until_it_comes_back() {
        let planning = planning(None);
        let desk = [device("desk", 4e9)];
        let before = planning.plan(&desk, &network()).unwrap();
        assert!(layers(&before, "desk") > 4, "{before:?}");
        let shown = slower(&planning, "desk", 12.0);
        let at = Duration::from_secs;
        assert!(!planning.revise(at(0), &shown) && !planning.revise(at(29), &shown), "not at once");
        assert!(planning.revise(at(30), &shown));
        let after = planning.plan(&desk, &network()).unwrap();
        assert!(layers(&after, "desk") < layers(&before, "desk"), "{after:?}");
        // The times now equal the new plan's prediction: no device deviates any more.
        if layers(&after, "desk") > 0 {
            let shown = slower(&planning, "desk", 1.0);
            assert!((31..200).all(|second| !planning.revise(at(second), &shown)));
        }
        planning.plan(&[], &network()).unwrap();
        assert_eq!(planning.plan(&desk, &network()).unwrap(), before, "it has measured itself anew");
    }

    #[test]
    fn memory_that_is_gone_is_planned_for_and_given_plans_stay() {
        let planning = planning(None);
        let desk = [device("desk", 4e9)];
        let before = planning.plan(&desk, &network()).unwrap();
        let shown = vec![Shown { name: "desk".to_owned(), token_s: None, memory_bytes: Some(3e8) }];
        assert!(!planning.revise(Duration::ZERO, &shown));
        assert!(planning.revise(Duration::from_secs(30), &shown));
        let after = planning.plan(&desk, &network()).unwrap();
        assert!(layers(&after, "desk") < layers(&before, "desk"), "{after:?}");
        let given = super::tests::planning(Some(before));
        given.plan(&desk, &network()).unwrap();
        assert!((0..100).all(|second| !given.revise(Duration::from_secs(second), &shown)));
    }
}
