//! Telemetry: what devices say of themselves with each request, refitted into coefficients by class.
//!
//! Pure and bounded: the last [`SAMPLES`] reports of at most [`CLASSES_MAX`] classes; reports of further classes count
//! among all devices only. Never: keeps a request, a name of a device or a prompt. Always: values are within the
//! protocol's ranges, and no single report moves a median that rests on others.

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_pacing::refit::{DeviceReport, class_median, median};
use baton_protocol::DeviceInfo;

use crate::coefficients::{ALL, Coefficients, Known, decided};
use crate::cost::Measured;
use crate::store::DeviceClass;

/// Reports of one class that a median is taken over.
pub const SAMPLES: usize = 256;
/// Classes of devices, and of networks, that are kept apart.
pub const CLASSES_MAX: usize = 64;
/// A class's median counts from so many reports on; before, what was known at the start stays.
const SAMPLES_MIN: usize = 3;
/// Medians are taken anew at every report up to here, then at each so many-th.
const REFIT_EVERY: usize = 16;

/// Keeps reports and answers coefficients.
#[derive(Debug)]
pub struct Telemetry {
    devices: BTreeMap<String, Newest<DeviceReport>>,
    networks: BTreeMap<String, Newest<f64>>,
    known: Arc<Coefficients>,
}

impl Telemetry {
    /// Starts from what was known before.
    #[must_use]
    pub fn new(known: Coefficients) -> Telemetry {
        Telemetry { devices: BTreeMap::new(), networks: BTreeMap::new(), known: Arc::new(known) }
    }

    /// Takes a device's word about itself in. Figures it left out, or that are zero, say nothing.
    pub fn record(&mut self, device: &DeviceInfo) {
        if let (Some(prefill), Some(decode_ms)) = (device.prefill_ms_per_token, device.decode_ms)
            && prefill > 0.0
            && decode_ms > 0.0
        {
            let report = DeviceReport {
                prefill_ms_per_token: prefill,
                prefill_ms_per_token2: device.prefill_ms_per_token2,
                decode_ms,
            };
            for name in [ALL, &device.class] {
                let due = push(&mut self.devices, name, report);
                if let Some(value) = due.and_then(|newest| class_median(&newest.values)) {
                    let known = Known { value, samples: samples(&self.devices[name]) };
                    Arc::make_mut(&mut self.known).devices.insert(name.to_owned(), known);
                }
            }
        }
        if let Some(ms) = device.network_ms {
            for name in [ALL, device.network.as_deref().unwrap_or(ALL)] {
                let due = push(&mut self.networks, name, ms);
                if let Some(value) = due.and_then(|newest| median(newest.values.iter().copied())) {
                    let known = Known { value, samples: samples(&self.networks[name]) };
                    Arc::make_mut(&mut self.known).networks.insert(name.to_owned(), known);
                }
                if device.network.is_none() {
                    break;
                }
            }
        }
    }

    /// What somebody decided that devices of these classes cost; takes the place of what was decided before.
    pub fn set_classes(&mut self, classes: &[DeviceClass]) {
        Arc::make_mut(&mut self.known).decided = decided(classes);
    }

    /// What is known of devices and networks now.
    #[must_use]
    pub fn known(&self) -> Arc<Coefficients> {
        self.known.clone()
    }

    /// What is known, with the cloud's own figures: what is worth keeping for the next start.
    #[must_use]
    pub fn to_keep(&self, cloud: Measured) -> Coefficients {
        Coefficients { cloud: Some(cloud), ..(*self.known).clone() }
    }
}

/// The newest values of one class, the oldest overwritten.
#[derive(Debug)]
struct Newest<T> {
    values: Vec<T>,
    total: usize,
}

fn samples<T>(newest: &Newest<T>) -> u32 {
    u32::try_from(newest.values.len()).unwrap_or(u32::MAX)
}

/// Keeps a value; the class where its median is due.
fn push<'m, T>(classes: &'m mut BTreeMap<String, Newest<T>>, name: &str, value: T) -> Option<&'m Newest<T>> {
    if !classes.contains_key(name) {
        // One more than the classes: all together.
        if classes.len() > CLASSES_MAX {
            return None;
        }
        classes.insert(name.to_owned(), Newest { values: Vec::new(), total: 0 });
    }
    let newest = classes.get_mut(name)?;
    if newest.values.len() < SAMPLES {
        newest.values.push(value);
    } else {
        newest.values[newest.total % SAMPLES] = value;
    }
    newest.total += 1;
    let due = newest.total <= REFIT_EVERY || newest.total.is_multiple_of(REFIT_EVERY);
    (due && newest.values.len() >= SAMPLES_MIN).then_some(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(class: &str, prefill: f64, network_ms: Option<f64>) -> DeviceInfo {
        DeviceInfo {
            class: class.into(),
            model: "m".into(),
            prefill_ms_per_token: Some(prefill),
            prefill_ms_per_token2: 0.0,
            decode_ms: Some(40.0),
            network: network_ms.map(|_| "wifi".into()),
            network_ms,
        }
    }

    #[test]
    fn medians_follow_the_newest_reports() {
        let mut telemetry = Telemetry::new(Coefficients::default());
        telemetry.record(&device("phone", 9.0, None));
        telemetry.record(&device("phone", 2.0, None));
        assert_eq!(telemetry.known().class("phone").prefill_ms_per_token, 2.5, "two reports are no median");
        telemetry.record(&device("phone", 2.2, Some(18.0)));
        assert!((telemetry.known().class("phone").prefill_ms_per_token - 2.2).abs() < 1e-9);
        for _ in 0..2 * SAMPLES {
            telemetry.record(&device("phone", 4.0, Some(25.0)));
        }
        let known = telemetry.known();
        assert!((known.class("phone").prefill_ms_per_token - 4.0).abs() < 1e-9);
        assert_eq!(known.devices["phone"].samples as usize, SAMPLES);
        assert_eq!((known.network_ms(Some("wifi")), known.network_ms(None)), (25.0, 25.0));
    }

    #[test]
    fn what_says_nothing_is_not_counted() {
        let mut telemetry = Telemetry::new(Coefficients::default());
        for _ in 0..9 {
            telemetry.record(&device("phone", 0.0, None));
            telemetry.record(&DeviceInfo { prefill_ms_per_token: None, ..device("phone", 1.0, None) });
        }
        assert_eq!(*telemetry.known(), Coefficients::default());
    }

    #[test]
    fn names_cannot_fill_the_memory() {
        let mut telemetry = Telemetry::new(Coefficients::default());
        for index in 0..10 * CLASSES_MAX {
            for _ in 0..SAMPLES_MIN {
                telemetry.record(&device(&format!("class {index}"), 3.0, None));
            }
        }
        let known = telemetry.known();
        assert_eq!(known.devices.len(), CLASSES_MAX + 1);
        // Those that are not kept apart count among all.
        assert!((known.class("class 600").prefill_ms_per_token - 3.0).abs() < 1e-9);
    }

    #[test]
    fn what_was_known_stays_until_enough_is_measured() {
        let mut telemetry = Telemetry::new(Coefficients::default());
        for _ in 0..SAMPLES_MIN {
            telemetry.record(&device("phone", 3.0, None));
        }
        let cloud = Measured { base_ms: 0.0, prefill_ms_per_token: 0.1, decode_ms: 9.0, refine_ms: 1.0 };
        let kept = telemetry.to_keep(cloud);
        assert_eq!(kept.cloud, Some(cloud));
        let mut next = Telemetry::new(kept);
        next.record(&device("phone", 30.0, None));
        assert!((next.known().class("phone").prefill_ms_per_token - 3.0).abs() < 1e-9);
    }
}
