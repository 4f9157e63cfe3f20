//! Collects what the devices of the present epoch report, for the reviser, which judges whether the plan
//! still fits.
//!
//! Times are those of steps with one row, which a plan predicts; the times of prompts are not comparable. A
//! worker counts them in its heartbeats, the head counts its own here. A device's time is given once it has
//! computed enough of them since the last look.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::super::drift::ObservedDevice;
use super::super::profile::{own_bytes, this_memory};
use super::{RingHead, Route};

/// Least number of one-row frames that a time is averaged over.
const SINGLES_MIN: u64 = 16;

/// Time between two looks at the free memory.
const MEMORY_LOOK: Duration = Duration::from_secs(5);

/// Counts of steps with one row, up to the last look.
#[derive(Debug, Default)]
pub(super) struct SingleRowTimes {
    /// The head's own: steps, and microseconds of its part in them.
    own: (u64, u64),
    /// By device: count and microseconds at the last look.
    looked: BTreeMap<String, (u64, u64)>,
}

impl SingleRowTimes {
    /// Counts a step in which the head's part took `us` microseconds.
    pub(super) fn add(&mut self, us: u64) {
        self.own = (self.own.0 + 1, self.own.1 + us);
    }

    /// Returns the seconds per step since the last look, or `None` if there were too few steps; these count
    /// in the next look.
    fn since(&mut self, name: &str, (count, us): (u64, u64)) -> Option<f64> {
        let last = self.looked.entry(name.to_owned()).or_default();
        let more = count.saturating_sub(last.0);
        if more < SINGLES_MIN {
            return None;
        }
        let each = us.saturating_sub(last.1) as f64 / 1e6 / more as f64;
        *last = (count, us);
        Some(each)
    }
}

/// Bytes that a model may use on the head, including what it uses already; workers report the same of
/// themselves.
#[derive(Debug, Default)]
pub(super) struct OwnMemory {
    looked: Option<(Instant, Option<f64>)>,
}

impl OwnMemory {
    fn bytes(&mut self) -> Option<f64> {
        match self.looked {
            Some((at, bytes)) if at.elapsed() < MEMORY_LOOK => bytes,
            _ => {
                let found = this_memory().ok();
                let bytes = found.map(|(_, memory)| (memory.available_bytes + own_bytes()) as f64);
                self.looked = Some((Instant::now(), bytes));
                bytes
            }
        }
    }
}

impl RingHead {
    /// Asks the reviser whether the plan still fits. If not, the ring is formed again with a new plan.
    pub(super) fn check_drift(&mut self) {
        let (Some(reviser), Route::Ring(epoch)) = (&mut self.reviser, &self.route) else { return };
        let own = self.singles.own;
        let mut shown = vec![ObservedDevice {
            name: self.options.name.clone(),
            token_s: self.singles.since(&self.options.name, own),
            memory_bytes: self.own_memory.bytes(),
        }];
        for (place, member) in (1..).zip(&epoch.places) {
            let beat = member.state().beat;
            if beat.epoch != self.epoch {
                continue;
            }
            // A token passes the device as one frame per round, whether or not the device has a window in
            // that round.
            let rounds = epoch.layout.windows.iter().map(|window| window.round + 1).max().unwrap_or(1);
            let windows = epoch.layout.windows.iter().filter(|window| window.place == place).count();
            let each = self.singles.since(member.name(), (beat.singles, beat.singles_us));
            shown.push(ObservedDevice {
                name: member.name().to_owned(),
                token_s: each.filter(|_| windows > 0).map(|each| each * rounds as f64),
                memory_bytes: (beat.memory_bytes > 0).then_some(beat.memory_bytes as f64),
            });
        }
        if reviser(&shown) {
            tracing::info!("the ring is planned anew: devices are not as they were");
            self.recover_or_warn();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_of_what_came_since_the_last_look_and_of_enough() {
        let mut singles = SingleRowTimes::default();
        assert_eq!(singles.since("desk", (15, 15_000)), None);
        assert_eq!(singles.since("desk", (20, 40_000)), Some(0.002));
        assert_eq!(singles.since("desk", (30, 99_000)), None, "10 more");
        assert_eq!(singles.since("desk", (40, 140_000)), Some(0.005));
        assert_eq!(singles.since("phone", (16, 16_000)), Some(0.001));
        (0..3).for_each(|_| singles.add(500));
        assert_eq!(singles.own, (3, 1500));
    }
}
