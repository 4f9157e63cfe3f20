//! Many seeds of both simulations, on all cores: this one, and the ring's own.
//!
//! Never: depends on how seeds are spread over threads. Always: what is found is told with the seed that
//! shows it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use baton_ring::sim as ring;

use super::{Bug, Options, run, shrink};

/// A simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Which {
    /// Cloud, network and devices.
    Relay,
    /// A ring of devices.
    Ring,
}

/// A bug of either simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnyBug {
    /// In the packages that write answers.
    Relay(Bug),
    /// In the ring's cores.
    Ring(ring::Bug),
}

/// One run of either simulation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// The check that does not hold.
    pub broken: Option<String>,
    /// Virtual time.
    pub time: Duration,
    /// Things that happened.
    pub events: u64,
    /// The hash of everything.
    pub trace: u64,
}

/// What came of many seeds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Seeds that ran.
    pub seeds: u64,
    /// Things that happened.
    pub events: u64,
    /// Virtual time.
    pub time: Duration,
    /// What does not hold, by seed.
    pub broken: BTreeMap<u64, String>,
}

impl Tally {
    /// Adds another tally.
    pub fn add(&mut self, other: Tally) {
        self.seeds += other.seeds;
        self.events += other.events;
        self.time += other.time;
        self.broken.extend(other.broken);
    }
}

impl AnyBug {
    /// Returns all bugs of both simulations.
    #[must_use]
    pub fn all() -> Vec<AnyBug> {
        let relay = Bug::ALL.into_iter().map(AnyBug::Relay);
        relay.chain(ring::Bug::ALL.into_iter().map(AnyBug::Ring)).collect()
    }

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            AnyBug::Relay(bug) => format!("{bug:?}"),
            AnyBug::Ring(bug) => format!("ring: {bug:?}"),
        }
    }

    /// Returns how many seeds, from 0 on, it takes to find it; none if `seeds` do not suffice.
    #[must_use]
    pub fn found_after(self, seeds: u64) -> Option<u64> {
        let first = Mutex::new(None::<u64>);
        let found = |seed: u64, broken: bool| {
            if broken {
                let mut first = first.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                *first = Some(first.map_or(seed, |known| known.min(seed)));
            }
            !broken
        };
        each(0..seeds, |seed| {
            let ran = match self {
                AnyBug::Relay(bug) => one_relay(seed, Some(bug)),
                AnyBug::Ring(bug) => one_ring(seed, Some(bug)),
            };
            found(seed, ran.broken.is_some())
        });
        first.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map(|seed| seed + 1)
    }
}

impl Which {
    /// Runs one seed.
    #[must_use]
    pub fn run(self, seed: u64) -> Ran {
        match self {
            Which::Relay => one_relay(seed, None),
            Which::Ring => one_ring(seed, None),
        }
    }

    /// Runs these seeds on all cores.
    #[must_use]
    pub fn sweep(self, seeds: Range<u64>) -> Tally {
        let tally = Mutex::new(Tally::default());
        each(seeds, |seed| {
            let ran = self.run(seed);
            let mut tally = tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            tally.seeds += 1;
            tally.events += ran.events;
            tally.time += ran.time;
            tally.broken.extend(ran.broken.map(|words| (seed, words)));
            true
        });
        tally.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Returns the shortest scenario of a seed that still breaks its check, as text.
    #[must_use]
    pub fn shortest(self, seed: u64) -> Option<String> {
        let shortest = catch_unwind(AssertUnwindSafe(|| match self {
            Which::Relay => shrink(seed, &Options::default()).map(|shrunk| shrunk.to_string()),
            Which::Ring => ring::shrink(seed, &ring::Options::default()).map(|shrunk| shrunk.to_string()),
        }));
        shortest.unwrap_or_else(|_| Some(format!("seed {seed} panics")))
    }
}

/// Calls `work` with each seed, on all cores, until it says that it is enough.
fn each(seeds: Range<u64>, work: impl Fn(u64) -> bool + Sync) {
    let next = AtomicU64::new(seeds.start);
    let enough = AtomicU64::new(seeds.end);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= enough.load(Ordering::Relaxed) {
                        return;
                    }
                    if !work(seed) {
                        enough.fetch_min(seed, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

fn one_relay(seed: u64, bug: Option<Bug>) -> Ran {
    let ran = catch_unwind(|| run(seed, &Options { bug, ..Options::default() }));
    ran.map_or_else(
        |_| panicked(),
        |ran| Ran { broken: ran.broken, time: ran.time, events: ran.events, trace: ran.trace },
    )
}

fn one_ring(seed: u64, bug: Option<ring::Bug>) -> Ran {
    let ran = catch_unwind(|| ring::run(seed, &ring::Options { bug, ..ring::Options::default() }));
    ran.map_or_else(
        |_| panicked(),
        |ran| Ran { broken: ran.broken, time: ran.time, events: ran.events, trace: ran.trace },
    )
}

fn panicked() -> Ran {
    Ran { broken: Some("panic".to_owned()), time: Duration::ZERO, events: 0, trace: 0 }
}
