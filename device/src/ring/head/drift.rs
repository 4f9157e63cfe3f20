//! What the devices of the present epoch show of themselves, gathered for whoever judges whether the plan still fits.
//!
//! Times are those of steps with one row, which a plan predicts; what prompts took says nothing. A worker counts them in
//! its heartbeats, the head here. A device is spoken of once it has computed enough of them since the last look.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::super::drift::Shown;
use super::super::profile::{own_bytes, this_memory};
use super::{RingHead, Route};

/// Frames of one row that a time is taken over, at least.
const SINGLES_MIN: u64 = 16;

/// Between two looks at how much memory is free.
const MEMORY_LOOK: Duration = Duration::from_secs(5);

/// Counts of steps with one row, up to the last look.
#[derive(Debug, Default)]
pub(super) struct Singles {
    /// The head's own: steps, and microseconds of its part in them.
    own: (u64, u64),
    /// By device: count and microseconds.
    looked: BTreeMap<String, (u64, u64)>,
}

impl Singles {
    /// A step of which the head's part took so long.
    pub(super) fn add(&mut self, us: u64) {
        self.own = (self.own.0 + 1, self.own.1 + us);
    }

    /// Seconds of one count since the last look; none where there were too few, which then go on counting.
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

/// What a model may take on the head, what it has taken itself included, as workers say it of themselves.
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
    /// Asks whether the plan still fits; where it does not, the ring is formed by a new one.
    pub(super) fn check_drift(&mut self) {
        let (Some(reviser), Route::Ring(epoch)) = (&mut self.reviser, &self.route) else { return };
        let own = self.singles.own;
        let mut shown = vec![Shown {
            name: self.options.name.clone(),
            token_s: self.singles.since(&self.options.name, own),
            memory_bytes: self.own_memory.bytes(),
        }];
        for (place, member) in (1..).zip(&epoch.places) {
            let beat = member.state().beat;
            if beat.epoch != self.epoch {
                continue;
            }
            // A token is a frame for each round, whether or not the device has a window in it.
            let rounds = epoch.layout.windows.iter().map(|window| window.round + 1).max().unwrap_or(1);
            let windows = epoch.layout.windows.iter().filter(|window| window.place == place).count();
            let each = self.singles.since(member.name(), (beat.singles, beat.singles_us));
            shown.push(Shown {
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
        let mut singles = Singles::default();
        assert_eq!(singles.since("desk", (15, 15_000)), None);
        assert_eq!(singles.since("desk", (20, 40_000)), Some(0.002));
        assert_eq!(singles.since("desk", (30, 99_000)), None, "10 more");
        assert_eq!(singles.since("desk", (40, 140_000)), Some(0.005));
        assert_eq!(singles.since("phone", (16, 16_000)), Some(0.001));
        (0..3).for_each(|_| singles.add(500));
        assert_eq!(singles.own, (3, 1500));
    }
}
