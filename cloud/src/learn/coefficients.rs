//! Coefficients of the optimizer: the usual cost of this cloud, of each device class and of each network
//! class.
//!
//! Pure. Holds the last known medians of measurements (see [`crate::learn::telemetry`]), and assumptions
//! for what was never measured. Never: overrides the values that a request carries for its own device.

use std::collections::BTreeMap;

use baton_pacing::DeviceCost;
use baton_pacing::refit::DeviceReport;
use baton_protocol::DeviceInfo;

use crate::access::DeviceClass;
use crate::learn::cost::Measured;

/// The class that stands for all devices, or all networks, together.
pub const ALL: &str = "";
/// Milliseconds from the mask's arrival to the rebuilt prompt on an ordinary device.
pub const DECOMPRESS_MS: f64 = 5.0;
/// The assumed cost of an unknown device: a mid-range phone.
pub const DEVICE_ASSUMED: DeviceReport =
    DeviceReport { prefill_ms_per_token: 2.5, prefill_ms_per_token2: 0.0, decode_ms: 45.0 };
/// Assumed round trips of networks without measurements, in milliseconds, by class. The last one is for every
/// other class.
pub const NETWORKS_ASSUMED: [(&str, f64); 5] =
    [("loopback", 0.2), ("ethernet", 5.0), ("5g", 30.0), ("lte", 60.0), ("wifi", 20.0)];

/// A figure, and the number of its measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Known<T> {
    /// The figure.
    pub value: T,
    /// Number of measurements.
    pub samples: u32,
}

/// The current coefficients.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Coefficients {
    /// This cloud's cost, or `None` if no service has written any.
    pub cloud: Option<Measured>,
    /// Device costs by class; [`ALL`] is for all together.
    pub devices: BTreeMap<String, Known<DeviceReport>>,
    /// Device costs that an administrator has set, by class. They replace medians.
    pub decided: BTreeMap<String, DeviceReport>,
    /// Milliseconds that networks add to the time to the first token (round trip, upload, unpacking), by
    /// class; [`ALL`] is for all together.
    pub networks: BTreeMap<String, Known<f64>>,
}

impl Coefficients {
    /// Returns the usual cost of a device of this class: the value set for the class, else the class's
    /// median, else the median of all devices, else the assumption.
    #[must_use]
    pub fn class(&self, class: &str) -> DeviceCost {
        if let Some(decided) = self.decided.get(class) {
            return cost(*decided);
        }
        let known = self.devices.get(class).or_else(|| self.devices.get(ALL));
        cost(known.map_or(DEVICE_ASSUMED, |known| known.value))
    }

    /// Returns the cost of this device: its own values if it sent them, and its class's values for the rest.
    #[must_use]
    pub fn device(&self, device: Option<&DeviceInfo>) -> DeviceCost {
        let mut known = self.class(device.map_or(ALL, |device| &device.class));
        let Some(device) = device else { return known };
        if let Some(own) = device.prefill_ms_per_token {
            known.prefill_ms_per_token = own;
            known.prefill_ms_per_token2 = device.prefill_ms_per_token2;
        }
        known.decode_ms = device.decode_ms.unwrap_or(known.decode_ms);
        known
    }

    /// Returns the milliseconds that a network of this class adds. This is the class's median, else the
    /// assumption for the class, else the median of all networks, else the assumption for any other class.
    #[must_use]
    pub fn network_ms(&self, class: Option<&str>) -> f64 {
        let class = class.unwrap_or(ALL);
        let assumed =
            |name: &str| NETWORKS_ASSUMED.iter().find(|(known, _)| *known == name).map(|&(_, ms)| ms);
        let any_name = NETWORKS_ASSUMED[NETWORKS_ASSUMED.len() - 1].1;
        let measured = |name: &str| self.networks.get(name).map(|known| known.value);
        let spelled = if matches!(class, "4g" | "cellular") { "lte" } else { class };
        measured(class).or_else(|| assumed(spelled)).or_else(|| measured(ALL)).unwrap_or(any_name)
    }
}

/// Returns the costs that were set, by class.
#[must_use]
pub fn decided(classes: &[DeviceClass]) -> BTreeMap<String, DeviceReport> {
    let report = |class: &DeviceClass| {
        let cost = class.settings.cost?;
        let report = DeviceReport {
            prefill_ms_per_token: cost.prefill_ms_per_token,
            prefill_ms_per_token2: cost.prefill_ms_per_token2,
            decode_ms: cost.decode_ms,
        };
        Some((class.id.clone(), report))
    };
    classes.iter().filter_map(report).collect()
}

fn cost(report: DeviceReport) -> DeviceCost {
    DeviceCost {
        prefill_ms_per_token: report.prefill_ms_per_token,
        prefill_ms_per_token2: report.prefill_ms_per_token2,
        decode_ms: report.decode_ms,
        decompress_ms: DECOMPRESS_MS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{ClassCost, DeviceClassSettings};

    fn known() -> Coefficients {
        let report =
            |k| DeviceReport { prefill_ms_per_token: k, prefill_ms_per_token2: 1e-4, decode_ms: 30.0 };
        Coefficients {
            cloud: None,
            devices: [("tablet", 1.0), (ALL, 2.0)]
                .map(|(name, k)| (name.to_owned(), Known { value: report(k), samples: 9 }))
                .into(),
            networks: [("wifi", 12.0), (ALL, 33.0)]
                .map(|(name, value)| (name.to_owned(), Known { value, samples: 9 }))
                .into(),
            decided: BTreeMap::new(),
        }
    }

    #[test]
    fn a_request_s_own_values_win() {
        let mut device = DeviceInfo {
            class: "tablet".into(),
            model: "m".into(),
            pair: None,
            kv: None,
            prefill_ms_per_token: Some(7.0),
            prefill_ms_per_token2: 0.0,
            decode_ms: None,
            network: None,
            network_ms: None,
        };
        let cost = known().device(Some(&device));
        assert_eq!((cost.prefill_ms_per_token, cost.prefill_ms_per_token2, cost.decode_ms), (7.0, 0.0, 30.0));
        device.prefill_ms_per_token = None;
        let cost = known().device(Some(&device));
        assert_eq!((cost.prefill_ms_per_token, cost.prefill_ms_per_token2), (1.0, 1e-4));
        assert_eq!(known().device(None).prefill_ms_per_token, 2.0);
        assert_eq!(known().class("watch").prefill_ms_per_token, 2.0);
        assert_eq!(Coefficients::default().class("watch").prefill_ms_per_token, 2.5);
    }

    #[test]
    fn what_was_decided_counts_in_place_of_medians() {
        let cost = ClassCost { prefill_ms_per_token: 9.0, prefill_ms_per_token2: 0.0, decode_ms: 70.0 };
        let class = |id: &str, cost| DeviceClass {
            id: id.into(),
            revision: 1,
            settings: DeviceClassSettings { label: String::new(), cost },
            updated_ms: 0,
            updated_by: String::new(),
        };
        let decided = decided(&[class("tablet", Some(cost)), class("phone", None)]);
        let known = Coefficients { decided, ..known() };
        assert_eq!(
            (known.class("tablet").prefill_ms_per_token, known.class("tablet").decode_ms),
            (9.0, 70.0)
        );
        assert_eq!(known.class("phone").prefill_ms_per_token, 2.0, "only named: all devices' median");
    }

    #[test]
    fn networks_are_measured_then_assumed() {
        let check = |class, measured, assumed| {
            assert_eq!(known().network_ms(class), measured, "{class:?}");
            assert_eq!(Coefficients::default().network_ms(class), assumed, "{class:?}");
        };
        check(Some("wifi"), 12.0, 20.0);
        check(Some("cellular"), 60.0, 60.0);
        check(Some("satellite"), 33.0, 20.0);
        check(None, 33.0, 20.0);
    }
}
