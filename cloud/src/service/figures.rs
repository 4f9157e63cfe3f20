//! Figures of one model: what its passes cost, what devices report, and sums of its requests.
//!
//! Never: holds the lock while anything is computed or waits.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use baton_generate::host::{PassSample, PassWatch};
use baton_protocol::DeviceInfo;

use crate::access::DeviceClass;
use crate::learn::coefficients::Coefficients;
use crate::learn::cost::{self, Costs, Measured};
use crate::learn::telemetry::Telemetry;
use crate::learn::traffic::Traffic;

/// Shared by every request of a model and by its host's thread.
#[derive(Debug)]
pub(crate) struct Figures(Mutex<State>);

#[derive(Debug)]
struct State {
    costs: Costs,
    telemetry: Telemetry,
    traffic: Traffic,
}

impl Figures {
    pub(crate) fn new(costs: Costs, telemetry: Telemetry) -> Figures {
        Figures(Mutex::new(State { costs, telemetry, traffic: Traffic::default() }))
    }

    pub(crate) fn measured(&self) -> Measured {
        self.lock().costs.current()
    }

    /// Records what a device of this tenant reports about itself.
    pub(crate) fn hear(&self, tenant: u128, device: &DeviceInfo) {
        self.lock().telemetry.record(tenant, device);
    }

    /// Returns the known costs of devices and networks.
    pub(crate) fn known(&self) -> Arc<Coefficients> {
        self.lock().telemetry.known()
    }

    /// Sets the costs of these device classes, which replace what the devices report.
    pub(crate) fn set_classes(&self, classes: &[DeviceClass]) {
        self.lock().telemetry.set_classes(classes);
    }

    pub(crate) fn traffic<T>(&self, work: impl FnOnce(&mut Traffic) -> T) -> T {
        work(&mut self.lock().traffic)
    }

    /// Returns the coefficients to keep for the next start.
    pub(crate) fn coefficients(&self) -> Coefficients {
        let state = self.lock();
        state.telemetry.to_keep(state.costs.current())
    }

    /// Records how long the refiner took.
    pub(crate) fn refined(&self, elapsed: Duration) {
        self.lock().costs.record_refine(elapsed);
    }

    /// Records what a pass cost, of this program's engine or of another one.
    pub(crate) fn record_pass(&self, pass: cost::PassSample) {
        self.lock().costs.record_pass(pass);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while the figures are locked")
    }
}

/// Records what passes cost.
pub(crate) struct CostWatch(pub(crate) Arc<Figures>);

impl PassWatch for CostWatch {
    fn pass(&mut self, sample: &PassSample) {
        // A pass with proposals says nothing about the time of a plain one.
        if sample.proposed == 0 {
            self.0.record_pass(cost::PassSample {
                prefill_tokens: sample.prefill_tokens,
                decode_rows: sample.decode_rows,
                elapsed: sample.elapsed,
            });
        }
    }
}
