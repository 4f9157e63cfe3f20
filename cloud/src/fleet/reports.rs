//! What devices report of their models: how much of it is noted, and what counts when a rollout pauses by
//! itself.
//!
//! Devices choose their names, so whoever has a key can invent any number of them, and without keys
//! everybody can. Always: what one key notes is bounded in rate and rows. Without a key nothing counts, and
//! of a rollout only devices that had asked before it began. One key alone pauses no rollout of others'
//! devices.

use std::num::NonZeroU32;
use std::sync::Arc;

use baton_registry::rollout::Target;
use governor::clock::DefaultClock;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};

/// The most rows that one key has, each for a device and a scene. The oldest gives way to a new one.
pub const ROWS_OF_KEY_MAX: u32 = 10_000;
/// The name of the key that is no row of the database (`--api-key`).
pub const STATIC_KEY: &str = "api-key";

/// Reports that are noted of one key: in a second on average, and at once.
const RATE: NonZeroU32 = NonZeroU32::new(20).expect("it is no zero");
const BURST: NonZeroU32 = NonZeroU32::new(100).expect("it is no zero");

/// How often the devices of each key may report. Clones share it.
#[derive(Clone)]
pub struct ReportRates(Arc<RateLimiter<String, HashMapStateStore<String>, DefaultClock>>);

impl Default for ReportRates {
    fn default() -> ReportRates {
        ReportRates(Arc::new(RateLimiter::hashmap(Quota::per_second(RATE).allow_burst(BURST))))
    }
}

impl std::fmt::Debug for ReportRates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ReportRates").field(&self.0.len()).finish()
    }
}

impl ReportRates {
    /// Returns whether a report of this key is noted now; the empty key stands for callers without one. The
    /// number of keys is bounded by those that the service gave out.
    #[must_use]
    pub fn admits(&self, key: &str) -> bool {
        self.0.check_key(&key.to_owned()).is_ok()
    }
}

/// The devices of one key that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyReports {
    /// Those that answer with the candidate.
    pub has: u64,
    /// Those that could not load it.
    pub failed: u64,
}

/// Returns the change that the guard of a rollout makes, if the devices of all keys together ask for one.
/// They must do so without the key that reports most failures too, unless it has half of all devices.
#[must_use]
pub fn guarded(target: &Target, keys: &[KeyReports]) -> Option<(Target, KeyReports)> {
    let sum = |key: fn(&KeyReports) -> u64| keys.iter().map(key).sum::<u64>();
    let all = KeyReports { has: sum(|key| key.has), failed: sum(|key| key.failed) };
    let paused = target.guarded(all.has, all.failed)?;
    let worst = keys.iter().max_by_key(|key| key.failed)?;
    let is_half = (worst.has + worst.failed) * 2 >= all.has + all.failed;
    let agrees = || target.guarded(all.has - worst.has, all.failed - worst.failed).is_some();
    (is_half || agrees()).then_some((paused, all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_registry::rollout::{Change, Guard, Share};

    #[track_caller]
    fn check(keys: &[(u64, u64)], want: bool) {
        let start =
            Change::Start { candidate: "m@2".parse().unwrap(), share: Share::ALL, guard: Guard::default() };
        let target = Target::new("m@1".parse().unwrap(), 0).changed(&start, 0).unwrap();
        let keys: Vec<KeyReports> = keys.iter().map(|&(has, failed)| KeyReports { has, failed }).collect();
        let paused = guarded(&target, &keys);
        assert_eq!(paused.is_some(), want, "{keys:?}");
        if let Some((target, _)) = paused {
            assert!(target.rollout.is_some_and(|rollout| rollout.paused_by_guard));
        }
    }

    #[test]
    fn one_key_pauses_no_rollout_of_others() {
        check(&[], false);
        check(&[(10, 2)], false);
        check(&[(10, 3)], true);
        // Half of all devices.
        check(&[(7, 3), (10, 0)], true);
        // A smaller key alone, however much fails there.
        check(&[(0, 40), (100, 0)], false);
        check(&[(0, 40), (50, 2)], false);
        // Others see it too.
        check(&[(0, 40), (50, 3)], true);
        check(&[(10, 3), (10, 3), (10, 3)], true);
    }

    #[test]
    fn each_key_has_a_rate_of_its_own() {
        let rates = ReportRates::default();
        let admitted = (0..1500).filter(|_| rates.admits("one")).count();
        // The rest is what comes in while this runs.
        assert!((100..400).contains(&admitted), "{admitted}");
        assert!(rates.clone().admits("other") && rates.admits(""));
    }
}
