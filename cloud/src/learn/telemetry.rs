//! Telemetry: refits what devices report with each request into coefficients by class.
//!
//! Pure and bounded: keeps the last [`SAMPLES`] reports of at most [`CLASSES_MAX`] classes. For one more
//! class, the class that was reported longest ago is dropped. Never: keeps a request, a name of a device or a
//! prompt. Always: values are within the protocol's ranges, and a median of several reports does not follow a
//! single one. If several tenants report, none has more than [`TENANT_SAMPLES_MAX`] reports of a class. A
//! tenant that adds many classes displaces its own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use baton_pacing::refit::{DeviceReport, class_median, median};
use baton_protocol::DeviceInfo;

use crate::access::DeviceClass;
use crate::learn::coefficients::{ALL, Coefficients, Known, decided};
use crate::learn::cost::Measured;

/// Number of reports of one class that a median is taken over.
pub const SAMPLES: usize = 256;
/// The most classes of devices, and of networks, with their own median.
pub const CLASSES_MAX: usize = 64;
/// The most reports of one tenant in a median, if others report the same class.
pub const TENANT_SAMPLES_MAX: usize = SAMPLES / 8;
/// The most classes of one tenant that may displace those of others.
const TENANT_CLASSES_MAX: usize = CLASSES_MAX / 8;
/// The fewest reports for a class's median. With fewer, the value known at the start stays.
const SAMPLES_MIN: usize = 3;
/// Medians are computed at every report up to this number of them, and then at every multiple of it.
const REFIT_EVERY: usize = 16;

/// Keeps reports, and returns coefficients.
#[derive(Debug)]
pub struct Telemetry {
    devices: Places<DeviceReport>,
    networks: Places<f64>,
    known: Arc<Coefficients>,
}

impl Telemetry {
    /// Makes the telemetry, starting from what was known before.
    #[must_use]
    pub fn new(known: Coefficients) -> Telemetry {
        let devices = Places::with(known.devices.keys());
        let networks = Places::with(known.networks.keys());
        Telemetry { devices, networks, known: Arc::new(known) }
    }

    /// Records what a tenant's device reports about itself. Ignores figures that are missing or zero.
    pub fn record(&mut self, tenant: u128, device: &DeviceInfo) {
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
                if let Some(gone) = self.devices.place(tenant, name) {
                    Arc::make_mut(&mut self.known).devices.remove(&gone);
                }
                let Some(reports) = self.devices.push(tenant, name, report) else { continue };
                if let Some(value) = class_median(&reports) {
                    let known = Known { value, samples: samples(&reports) };
                    Arc::make_mut(&mut self.known).devices.insert(name.to_owned(), known);
                }
            }
        }
        if let Some(ms) = device.network_ms {
            for name in [ALL, device.network.as_deref().unwrap_or(ALL)] {
                if let Some(gone) = self.networks.place(tenant, name) {
                    Arc::make_mut(&mut self.known).networks.remove(&gone);
                }
                let reports = self.networks.push(tenant, name, ms).unwrap_or_default();
                if let Some(value) = median(reports.iter().copied()) {
                    let known = Known { value, samples: samples(&reports) };
                    Arc::make_mut(&mut self.known).networks.insert(name.to_owned(), known);
                }
                if device.network.is_none() {
                    break;
                }
            }
        }
    }

    /// Sets the costs that an administrator has set for device classes. They replace all that were set
    /// before.
    pub fn set_classes(&mut self, classes: &[DeviceClass]) {
        Arc::make_mut(&mut self.known).decided = decided(classes);
    }

    /// Returns the current costs of devices and networks.
    #[must_use]
    pub fn known(&self) -> Arc<Coefficients> {
        self.known.clone()
    }

    /// Returns the coefficients to keep for the next start, including the cloud's own cost.
    #[must_use]
    pub fn to_keep(&self, cloud: Measured) -> Coefficients {
        Coefficients { cloud: Some(cloud), ..(*self.known).clone() }
    }
}

/// Reports of each class, and of all classes together under [`ALL`].
#[derive(Debug)]
struct Places<T> {
    classes: BTreeMap<String, Newest<T>>,
    /// Number of reports so far.
    reports: u64,
}

/// The newest values of one class, the oldest first.
#[derive(Debug)]
struct Newest<T> {
    values: VecDeque<(u128, T)>,
    total: usize,
    /// The tenant that reported the class first; `None` if it was known at the start.
    brought_by: Option<u128>,
    /// Number of the report in which it was reported last.
    heard: u64,
}

impl<T> Newest<T> {
    fn new(brought_by: Option<u128>) -> Newest<T> {
        Newest { values: VecDeque::new(), total: 0, brought_by, heard: 0 }
    }

    /// Drops the oldest values: first those of tenants that have more than their share, then of all.
    fn trim(&mut self) {
        let mut counts: BTreeMap<u128, usize> = BTreeMap::new();
        for (tenant, _) in &self.values {
            *counts.entry(*tenant).or_default() += 1;
        }
        if counts.len() > 1 {
            self.values.retain(|(tenant, _)| {
                let count = counts.entry(*tenant).or_default();
                let keep = *count <= TENANT_SAMPLES_MAX;
                *count -= usize::from(!keep);
                keep
            });
        }
        while self.values.len() > SAMPLES {
            self.values.pop_front();
        }
    }
}

impl<T: Copy> Places<T> {
    /// Makes places for these classes, without any report.
    fn with<'n>(names: impl Iterator<Item = &'n String>) -> Places<T> {
        Places { classes: names.map(|name| (name.clone(), Newest::new(None))).collect(), reports: 0 }
    }

    /// Makes sure that the class has a place. Returns the class that was dropped for it, if any.
    fn place(&mut self, tenant: u128, name: &str) -> Option<String> {
        if self.classes.contains_key(name) {
            return None;
        }
        let apart = self.classes.iter().filter(|(name, _)| name.as_str() != ALL);
        let own = apart.clone().filter(move |(_, class)| class.brought_by == Some(tenant));
        let gone = if name == ALL || apart.clone().count() < CLASSES_MAX {
            None
        } else if own.clone().count() >= TENANT_CLASSES_MAX {
            longest_ago(own)
        } else {
            longest_ago(apart)
        };
        if let Some(gone) = &gone {
            self.classes.remove(gone);
        }
        self.classes.insert(name.to_owned(), Newest::new(Some(tenant)));
        gone
    }

    /// Keeps a value of a class that has a place. Returns the class's values if its median is due.
    fn push(&mut self, tenant: u128, name: &str, value: T) -> Option<Vec<T>> {
        self.reports += 1;
        let newest = self.classes.get_mut(name)?;
        newest.heard = self.reports;
        newest.values.push_back((tenant, value));
        newest.trim();
        newest.total += 1;
        let due = newest.total <= REFIT_EVERY || newest.total.is_multiple_of(REFIT_EVERY);
        let enough = newest.values.len() >= SAMPLES_MIN;
        (due && enough).then(|| newest.values.iter().map(|(_, value)| *value).collect())
    }
}

/// Returns the class that was reported longest ago.
fn longest_ago<'c, T: 'c>(classes: impl Iterator<Item = (&'c String, &'c Newest<T>)>) -> Option<String> {
    classes.min_by_key(|(_, class)| class.heard).map(|(name, _)| name.clone())
}

fn samples<T>(reports: &[T]) -> u32 {
    u32::try_from(reports.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(class: &str, prefill: f64, network_ms: Option<f64>) -> DeviceInfo {
        DeviceInfo {
            class: class.into(),
            model: "m".into(),
            pair: None,
            kv: None,
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
        telemetry.record(1, &device("phone", 9.0, None));
        telemetry.record(1, &device("phone", 2.0, None));
        assert_eq!(telemetry.known().class("phone").prefill_ms_per_token, 2.5, "two reports are no median");
        telemetry.record(1, &device("phone", 2.2, Some(18.0)));
        assert!((telemetry.known().class("phone").prefill_ms_per_token - 2.2).abs() < 1e-9);
        for _ in 0..2 * SAMPLES {
            telemetry.record(1, &device("phone", 4.0, Some(25.0)));
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
            telemetry.record(1, &device("phone", 0.0, None));
            telemetry.record(1, &DeviceInfo { prefill_ms_per_token: None, ..device("phone", 1.0, None) });
        }
        assert_eq!(*telemetry.known(), Coefficients::default());
    }

    #[test]
    fn names_cannot_fill_the_memory() {
        let mut telemetry = Telemetry::new(Coefficients::default());
        for index in 0..10 * CLASSES_MAX {
            for _ in 0..SAMPLES_MIN {
                telemetry.record(1, &device(&format!("class {index}"), 3.0, None));
            }
        }
        let known = telemetry.known();
        assert_eq!(known.devices.len(), CLASSES_MAX + 1);
        assert!(!known.devices.contains_key("class 5") && known.devices.contains_key("class 639"));
        // Classes without their own place still count among all.
        assert!((known.class("class 5").prefill_ms_per_token - 3.0).abs() < 1e-9);
    }

    #[test]
    fn what_was_known_stays_until_enough_is_measured() {
        let mut telemetry = Telemetry::new(Coefficients::default());
        for _ in 0..SAMPLES_MIN {
            telemetry.record(1, &device("phone", 3.0, None));
        }
        let cloud = Measured { base_ms: 0.0, prefill_ms_per_token: 0.1, decode_ms: 9.0, refine_ms: 1.0 };
        let kept = telemetry.to_keep(cloud);
        assert_eq!(kept.cloud, Some(cloud));
        let mut next = Telemetry::new(kept);
        next.record(1, &device("phone", 30.0, None));
        assert!((next.known().class("phone").prefill_ms_per_token - 3.0).abs() < 1e-9);
    }

    #[test]
    fn one_tenant_does_not_decide_for_the_others() {
        let mut telemetry = Telemetry::new(Coefficients::default());
        for _ in 0..2 * SAMPLES {
            telemetry.record(1, &device("phone", 9.0, Some(900.0)));
        }
        assert_eq!(telemetry.known().devices["phone"].samples as usize, SAMPLES, "alone it may");
        for _ in 0..TENANT_SAMPLES_MAX {
            for tenant in [2, 3] {
                telemetry.record(tenant, &device("phone", 3.0, Some(30.0)));
            }
            // It reports much more often.
            for _ in 0..20 {
                telemetry.record(1, &device("phone", 9.0, Some(900.0)));
            }
        }
        let known = telemetry.known();
        assert!((known.class("phone").prefill_ms_per_token - 3.0).abs() < 1e-9);
        assert!((known.network_ms(Some("wifi")) - 30.0).abs() < 1e-9);
        assert_eq!(known.devices["phone"].samples as usize, 3 * TENANT_SAMPLES_MAX);
    }

    #[test]
    fn one_tenant_does_not_take_the_places_of_the_others() {
        let mut telemetry = Telemetry::new(Coefficients::default());
        let report = |telemetry: &mut Telemetry, tenant: u128, class: &str| {
            for _ in 0..SAMPLES_MIN {
                telemetry.record(tenant, &device(class, 3.0, None));
            }
        };
        for index in 0..CLASSES_MAX {
            report(&mut telemetry, 2, &format!("phone {index}"));
        }
        for index in 0..10 * CLASSES_MAX {
            report(&mut telemetry, 1, &format!("junk {index}"));
        }
        let known = telemetry.known();
        let phones = known.devices.keys().filter(|name| name.starts_with("phone")).count();
        assert_eq!(phones, CLASSES_MAX - TENANT_CLASSES_MAX);
        // A tenant that was kept out before gets a place at once.
        report(&mut telemetry, 3, "tablet");
        assert!(telemetry.known().devices.contains_key("tablet"));
        assert_eq!(telemetry.known().devices.len(), CLASSES_MAX + 1);
    }

    #[test]
    fn classes_known_at_the_start_take_places_too() {
        let mut telemetry = Telemetry::new(Coefficients::default());
        for index in 0..CLASSES_MAX {
            for _ in 0..SAMPLES_MIN {
                telemetry.record(1, &device(&format!("old {index}"), 3.0, None));
            }
        }
        let mut next = Telemetry::new((*telemetry.known()).clone());
        for _ in 0..SAMPLES_MIN {
            next.record(1, &device("new", 3.0, None));
        }
        assert_eq!(next.known().devices.len(), CLASSES_MAX + 1);
        assert!(next.known().devices.contains_key("new"));
    }
}
