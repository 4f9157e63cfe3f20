//! Whether a plan still fits its devices: what they show of themselves against what was planned with.
//!
//! Pure, without a clock of its own. A device departs where a token takes it [`FACTOR`] times as long as predicted, or as
//! little, or where its memory has changed by [`MEMORY_SHARE`]; it must do so for [`LASTING`] before anybody plans anew
//! for it, and a new plan must promise [`GAIN`] less time for a token. After a new plan, or one that was not worth it,
//! the next is not looked for at once ([`HOLD`]), ever later as long as none is worth it: plans do not flutter.

use std::collections::BTreeMap;
use std::time::Duration;

/// Times as long as predicted, or as short, for a device to depart.
pub const FACTOR: f64 = 1.5;
/// Share of its memory by which a device's memory must have changed, and bytes.
pub const MEMORY_SHARE: f64 = 0.1;
const MEMORY_BYTES: f64 = 128e6;
/// How long a device departs before it counts.
pub const LASTING: Duration = Duration::from_secs(30);
/// Share of a token's time that a new plan must save.
pub const GAIN: f64 = 0.1;
/// How long after one look for a new plan the next one is; doubled while none is worth it, up to [`HOLD_MOST`].
pub const HOLD: Duration = Duration::from_secs(60);
const HOLD_MOST: Duration = Duration::from_secs(1920);
/// The most that a device counts as slower or faster than it measured itself.
const FACTOR_MOST: f64 = 16.0;

/// What a device shows of itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown {
    /// Its name.
    pub name: String,
    /// Seconds of a token on it, lately; none where it computed too few.
    pub token_s: Option<f64>,
    /// Bytes that a model may take on it now; none where it does not say.
    pub memory_bytes: Option<f64>,
}

/// What a device was planned with.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    /// Its name.
    pub name: String,
    /// Seconds of a token on it, as predicted.
    pub token_s: f64,
    /// Bytes that a model may take on it, as planned.
    pub memory_bytes: f64,
}

/// How a device differs from what it measured of itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Correction {
    /// Times as slow in everything.
    pub slower: f64,
    /// Its memory.
    pub memory_bytes: Option<f64>,
}

impl Default for Correction {
    fn default() -> Self {
        Self { slower: 1.0, memory_bytes: None }
    }
}

/// A device that departs.
#[derive(Debug, Clone, Copy)]
struct Departing {
    since: Duration,
    /// Times as slow as predicted, where its time departs.
    slower: Option<f64>,
    memory_bytes: Option<f64>,
}

/// Looks at a plan's devices again and again.
#[derive(Debug, Clone)]
pub struct Watch {
    departing: BTreeMap<String, Departing>,
    /// Not before this moment again.
    next: Duration,
    hold: Duration,
}

impl Default for Watch {
    fn default() -> Self {
        Self { departing: BTreeMap::new(), next: Duration::ZERO, hold: HOLD }
    }
}

/// Times as slow as predicted, where that departs.
fn slower(shown: &Shown, expected: &Expected) -> Option<f64> {
    let factor = shown.token_s? / expected.token_s.max(1e-9);
    (factor.is_finite() && factor > 0.0 && !(1.0 / FACTOR..=FACTOR).contains(&factor)).then_some(factor)
}

/// Its memory, where that departs.
fn memory(shown: &Shown, expected: &Expected) -> Option<f64> {
    let now = shown.memory_bytes?;
    let change = (now - expected.memory_bytes).abs();
    (change > expected.memory_bytes * MEMORY_SHARE && change > MEMORY_BYTES).then_some(now)
}

impl Watch {
    /// Corrections of the devices that have departed for long enough, times the corrections that the present plan
    /// stands on; none where nothing is to be planned anew for now.
    pub fn look(
        &mut self,
        now: Duration,
        shown: &[Shown],
        expected: &[Expected],
        present: &BTreeMap<String, Correction>,
    ) -> Option<BTreeMap<String, Correction>> {
        self.departing.retain(|name, _| expected.iter().any(|device| device.name == *name));
        for expected in expected {
            let Some(shown) = shown.iter().find(|shown| shown.name == expected.name) else { continue };
            let known = self.departing.get(&expected.name).copied();
            let time = match shown.token_s {
                Some(_) => slower(shown, expected),
                // It has computed nothing since: what was seen last holds.
                None => known.and_then(|known| known.slower),
            };
            let memory = memory(shown, expected);
            if time.is_none() && memory.is_none() {
                self.departing.remove(&expected.name);
                continue;
            }
            let since = known.map_or(now, |known| known.since);
            let departing = Departing { since, slower: time, memory_bytes: memory };
            self.departing.insert(expected.name.clone(), departing);
        }
        let lasting = |known: &Departing| now.saturating_sub(known.since) >= LASTING;
        if now < self.next || !self.departing.values().any(lasting) {
            return None;
        }
        let mut corrections = present.clone();
        for (name, known) in self.departing.iter().filter(|(_, known)| lasting(known)) {
            let correction = corrections.entry(name.clone()).or_default();
            let factor = correction.slower * known.slower.unwrap_or(1.0);
            correction.slower = factor.clamp(1.0 / FACTOR_MOST, FACTOR_MOST);
            correction.memory_bytes = known.memory_bytes.or(correction.memory_bytes);
        }
        Some(corrections)
    }

    /// Whether a plan that takes `best_s` for a token is worth leaving one that takes `present_s`, none where that one
    /// cannot be kept; both under the corrections of [`Self::look`].
    pub fn judge(&mut self, now: Duration, present_s: Option<f64>, best_s: f64) -> bool {
        let worth = present_s.is_none_or(|present_s| best_s <= present_s * (1.0 - GAIN));
        if worth {
            self.departing.clear();
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

    /// 10 ms a token, 4 GB.
    fn expected() -> Vec<Expected> {
        vec![Expected { name: "desk".to_owned(), token_s: 0.01, memory_bytes: 4e9 }]
    }

    /// Seconds at which somebody would plan anew within two minutes, once, and with what.
    fn first(show: impl Fn(u64) -> Vec<Shown>) -> Option<(u64, Correction)> {
        let mut watch = Watch::default();
        (0..120).find_map(|second| {
            let found = watch.look(at(second), &show(second), &expected(), &BTreeMap::new())?;
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
        // A device that has nothing to compute goes on departing.
        assert_eq!(first(|second| shown((second == 0).then_some(20.0), None)), Some((30, slow)));
    }

    #[test]
    fn what_departs_little_or_now_and_then_is_not() {
        assert_eq!(first(|_| shown(Some(14.9), Some(4.3))), None);
        assert_eq!(first(|_| shown(Some(6.7), Some(3.7))), None);
        assert_eq!(first(|_| shown(None, None)), None);
        assert_eq!(first(|second| shown(Some(if second % 29 == 0 { 10.0 } else { 30.0 }), None)), None);
        // 10 % of little memory are not worth a plan.
        let mut watch = Watch::default();
        let small = vec![Expected { name: "desk".to_owned(), token_s: 0.01, memory_bytes: 5e8 }];
        let shown = shown(None, Some(0.4));
        assert!((0..120).all(|s| watch.look(at(s), &shown, &small, &BTreeMap::new()).is_none()));
    }

    #[test]
    fn corrections_multiply_and_are_of_devices_that_are_there() {
        let mut watch = Watch::default();
        let present =
            BTreeMap::from([("desk".to_owned(), Correction { slower: 3.0, memory_bytes: Some(2e9) })]);
        watch.look(at(0), &shown(Some(20.0), None), &expected(), &present);
        let found = watch.look(at(30), &shown(Some(20.0), None), &expected(), &present).unwrap();
        assert_eq!(found["desk"], Correction { slower: 6.0, memory_bytes: Some(2e9) });
        assert!(watch.look(at(31), &[], &[], &present).is_none(), "it has left");
        assert!(
            watch.look(at(32), &shown(Some(20.0), None), &expected(), &present).is_none(),
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
            assert_eq!(Watch::default().judge(at(0), present, best), worth, "{present:?} {best}");
        }
        // Whoever departs all the time is looked at ever more seldom.
        let (mut watch, mut looks) = (Watch::default(), Vec::new());
        for second in 0..2000 {
            let now = at(second);
            if watch.look(now, &shown(Some(20.0), None), &expected(), &BTreeMap::new()).is_some() {
                looks.push(second);
                assert!(!watch.judge(now, Some(0.1), 0.099));
            }
        }
        assert_eq!(looks, [30, 150, 390, 870, 1830]);
        // One that is worth it begins with the usual wait, and the device has to depart anew.
        let mut watch = Watch::default();
        let mut looks = Vec::new();
        for second in 0..300 {
            let now = at(second);
            if watch.look(now, &shown(Some(20.0), None), &expected(), &BTreeMap::new()).is_some() {
                looks.push(second);
                assert!(watch.judge(now, Some(0.1), 0.05));
            }
        }
        assert_eq!(looks, [30, 90, 150, 210, 270]);
    }
}
