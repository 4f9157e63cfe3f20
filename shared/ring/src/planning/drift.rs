//! Judges whether a plan still fits its devices, by comparing what they report with what was planned.
//!
//! Pure, without a clock of its own. A device deviates if a token takes it at least [`FACTOR`] times as
//! long as predicted, or at most that fraction of it. It also deviates if its memory has changed by
//! [`MEMORY_SHARE`]. A new plan is made only for a deviation that lasts for [`LASTING`], and only if it
//! saves [`GAIN`] of a token's time.
//!
//! After each look for a new plan the next one waits for [`HOLD`]. The wait is doubled as long as no new
//! plan is worth it, so that plans do not change back and forth.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::core::head::Shown;

/// A device deviates if it takes this many times the predicted time, or that fraction of it.
pub const FACTOR: f64 = 1.5;
/// A device deviates if its memory has changed by this share, and by `MEMORY_BYTES`.
pub const MEMORY_SHARE: f64 = 0.1;
const MEMORY_BYTES: f64 = 128e6;
/// How long a device must deviate before it counts.
pub const LASTING: Duration = Duration::from_secs(30);
/// Share of a token's time that a new plan must save.
pub const GAIN: f64 = 0.1;
/// Wait between two looks for a new plan; doubled while none is worth it, up to [`HOLD_MOST`].
pub const HOLD: Duration = Duration::from_secs(60);
const HOLD_MOST: Duration = Duration::from_secs(1920);
/// Greatest factor by which a device counts as slower or faster than its own measurements.
const FACTOR_MOST: f64 = 16.0;

/// What a device was planned with.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpectedDevice {
    /// Its name.
    pub name: String,
    /// Predicted seconds that a token takes on it.
    pub token_s: f64,
    /// Planned bytes that a model may use on it.
    pub memory_bytes: f64,
}

/// How a device differs from its own measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Correction {
    /// Factor by which it is slower in everything.
    pub slower: f64,
    /// Its memory in bytes, if that differs.
    pub memory_bytes: Option<f64>,
}

impl Default for Correction {
    fn default() -> Self {
        Self { slower: 1.0, memory_bytes: None }
    }
}

/// A device that deviates.
#[derive(Debug, Clone, Copy)]
struct Deviation {
    since: Duration,
    /// Factor by which it is slower than predicted, if its time deviates.
    slower: Option<f64>,
    memory_bytes: Option<f64>,
}

/// Finds lasting deviations of a plan's devices.
#[derive(Debug, Clone)]
pub struct DriftDetector {
    deviating: BTreeMap<String, Deviation>,
    /// No new plan is looked for before this moment.
    next: Duration,
    hold: Duration,
}

impl Default for DriftDetector {
    fn default() -> Self {
        Self { deviating: BTreeMap::new(), next: Duration::ZERO, hold: HOLD }
    }
}

/// Returns the factor by which a device is slower than predicted, if that deviates.
fn slower(shown: &Shown, expected: &ExpectedDevice) -> Option<f64> {
    let factor = shown.token_s? / expected.token_s.max(1e-9);
    (factor.is_finite() && factor > 0.0 && !(1.0 / FACTOR..=FACTOR).contains(&factor)).then_some(factor)
}

/// Returns the device's memory, if that deviates.
fn memory(shown: &Shown, expected: &ExpectedDevice) -> Option<f64> {
    let now = shown.memory_bytes?;
    let change = (now - expected.memory_bytes).abs();
    (change > expected.memory_bytes * MEMORY_SHARE && change > MEMORY_BYTES).then_some(now)
}

impl DriftDetector {
    /// Returns the corrections to plan anew with, or `None` if no new plan is due. Corrections of devices
    /// that have deviated long enough are multiplied by those of the present plan.
    pub fn look(
        &mut self,
        now: Duration,
        shown: &[Shown],
        expected: &[ExpectedDevice],
        present: &BTreeMap<String, Correction>,
    ) -> Option<BTreeMap<String, Correction>> {
        self.deviating.retain(|name, _| expected.iter().any(|device| device.name == *name));
        for expected in expected {
            let Some(shown) = shown.iter().find(|shown| shown.name == expected.name) else { continue };
            let known = self.deviating.get(&expected.name).copied();
            let time = match shown.token_s {
                Some(_) => slower(shown, expected),
                // It has computed nothing since the last look: the last value still holds.
                None => known.and_then(|known| known.slower),
            };
            let memory = memory(shown, expected);
            if time.is_none() && memory.is_none() {
                self.deviating.remove(&expected.name);
                continue;
            }
            let since = known.map_or(now, |known| known.since);
            let deviating = Deviation { since, slower: time, memory_bytes: memory };
            self.deviating.insert(expected.name.clone(), deviating);
        }
        let lasting = |known: &Deviation| now.saturating_sub(known.since) >= LASTING;
        if now < self.next || !self.deviating.values().any(lasting) {
            return None;
        }
        let mut corrections = present.clone();
        for (name, known) in self.deviating.iter().filter(|(_, known)| lasting(known)) {
            let correction = corrections.entry(name.clone()).or_default();
            let factor = correction.slower * known.slower.unwrap_or(1.0);
            correction.slower = factor.clamp(1.0 / FACTOR_MOST, FACTOR_MOST);
            correction.memory_bytes = known.memory_bytes.or(correction.memory_bytes);
        }
        Some(corrections)
    }

    /// Returns whether a plan with `best_s` seconds per token is worth a change. `present_s` is the time of
    /// the present plan, or `None` if that plan cannot be kept. Both times include the corrections of
    /// [`Self::look`].
    pub fn judge(&mut self, now: Duration, present_s: Option<f64>, best_s: f64) -> bool {
        let worth = present_s.is_none_or(|present_s| best_s <= present_s * (1.0 - GAIN));
        if worth {
            self.deviating.clear();
            self.hold = HOLD;
        } else {
            self.hold = (self.hold * 2).min(HOLD_MOST);
        }
        self.next = now + self.hold;
        worth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn shown(token_ms: Option<f64>, memory_gb: Option<f64>) -> Vec<Shown> {
        let token_s = token_ms.map(|ms| ms / 1e3);
        vec![Shown { name: "desk".to_owned(), token_s, memory_bytes: memory_gb.map(|gb| gb * 1e9) }]
    }

    /// 10 ms per token, 4 GB.
    fn expected() -> Vec<ExpectedDevice> {
        vec![ExpectedDevice { name: "desk".to_owned(), token_s: 0.01, memory_bytes: 4e9 }]
    }

    /// Returns the first second within two minutes in which a new plan is due, and the correction.
    fn first(show: impl Fn(u64) -> Vec<Shown>) -> Option<(u64, Correction)> {
        let mut detector = DriftDetector::default();
        (0..120).find_map(|second| {
            let found = detector.look(at(second), &show(second), &expected(), &BTreeMap::new())?;
            Some((second, found["desk"]))
        })
    }

    #[test]
    fn what_departs_for_long_enough_is_planned_for() {
        let slow = Correction { slower: 2.0, memory_bytes: None };
        assert_eq!(first(|_| shown(Some(20.0), Some(4.0))), Some((30, slow)));
        assert_eq!(
            first(|_| shown(Some(2.0), None)),
            Some((30, Correction { slower: 0.2, memory_bytes: None }))
        );
        let less = Correction { slower: 1.0, memory_bytes: Some(3e9) };
        assert_eq!(first(|_| shown(Some(10.0), Some(3.0))), Some((30, less)));
        assert_eq!(first(|_| shown(None, Some(5.0))).map(|found| found.0), Some(30));
        let worst = first(|_| shown(Some(1e6), None)).map(|found| found.1.slower);
        assert_eq!(worst, Some(FACTOR_MOST), "nobody counts as slower than that");
        // A device that has nothing to compute keeps deviating.
        assert_eq!(first(|second| shown((second == 0).then_some(20.0), None)), Some((30, slow)));
    }

    #[test]
    fn what_departs_little_or_now_and_then_is_not() {
        assert_eq!(first(|_| shown(Some(14.9), Some(4.3))), None);
        assert_eq!(first(|_| shown(Some(6.7), Some(3.7))), None);
        assert_eq!(first(|_| shown(None, None)), None);
        assert_eq!(first(|second| shown(Some(if second % 29 == 0 { 10.0 } else { 30.0 }), None)), None);
        // 10 % of a small memory are not worth a new plan.
        let mut detector = DriftDetector::default();
        let small = vec![ExpectedDevice { name: "desk".to_owned(), token_s: 0.01, memory_bytes: 5e8 }];
        let shown = shown(None, Some(0.4));
        assert!((0..120).all(|s| detector.look(at(s), &shown, &small, &BTreeMap::new()).is_none()));
    }

    #[test]
    fn corrections_multiply_and_are_of_devices_that_are_there() {
        let mut detector = DriftDetector::default();
        let present =
            BTreeMap::from([("desk".to_owned(), Correction { slower: 3.0, memory_bytes: Some(2e9) })]);
        detector.look(at(0), &shown(Some(20.0), None), &expected(), &present);
        let found = detector.look(at(30), &shown(Some(20.0), None), &expected(), &present).unwrap();
        assert_eq!(found["desk"], Correction { slower: 6.0, memory_bytes: Some(2e9) });
        assert!(detector.look(at(31), &[], &[], &present).is_none(), "it has left");
        assert!(
            detector.look(at(32), &shown(Some(20.0), None), &expected(), &present).is_none(),
            "and begins anew"
        );
    }

    #[test]
    fn a_plan_that_saves_a_tenth_is_worth_it_and_the_next_look_waits() {
        for (present, best, worth) in [
            (Some(0.100), 0.090, true),
            (Some(0.100), 0.091, false),
            (Some(0.100), 0.2, false),
            (None, 9.0, true),
        ] {
            assert_eq!(DriftDetector::default().judge(at(0), present, best), worth, "{present:?} {best}");
        }
        // For a device that always deviates, the looks become less and less frequent.
        let (mut detector, mut looks) = (DriftDetector::default(), Vec::new());
        for second in 0..2000 {
            let now = at(second);
            if detector.look(now, &shown(Some(20.0), None), &expected(), &BTreeMap::new()).is_some() {
                looks.push(second);
                assert!(!detector.judge(now, Some(0.1), 0.099));
            }
        }
        assert_eq!(looks, [30, 150, 390, 870, 1830]);
        // After a plan that is worth it, the wait is the usual one, and the device has to deviate anew.
        let mut detector = DriftDetector::default();
        let mut looks = Vec::new();
        for second in 0..300 {
            let now = at(second);
            if detector.look(now, &shown(Some(20.0), None), &expected(), &BTreeMap::new()).is_some() {
                looks.push(second);
                assert!(detector.judge(now, Some(0.1), 0.05));
            }
        }
        assert_eq!(looks, [30, 90, 150, 210, 270]);
    }
}
