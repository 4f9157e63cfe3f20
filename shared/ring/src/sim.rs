//! A ring in a simulated home: the real cores over a network, engines, disks, a caller and faults from a
//! seed.
//!
//! A run depends on its seed alone and can be repeated to the last effect ([`run`]). While it runs, these
//! things are checked; the first that does not hold ends the run, and [`shrink()`] finds a short script that
//! still shows it:
//!
//! - C1: every output equals that of one engine without a ring.
//! - C2: every worker holds the head's sequences, as they were after the operations that it has applied.
//! - C3: each request has one answer, and nothing is done without a request; epochs grow.
//! - C4: queues are bounded.
//! - C5: each request ends in bounded time.
//! - C6: no device is blamed that no fault has touched.
//! - C7: a request that fails changes no sequence.
//! - C8: after the last fault the ring is whole again.
//! - C9: effects are in order: one work at a time, nothing over a closed link, no waking in the past.
//! - C10: two runs of a seed are the same.
//! - C11: at the end nothing is left of what the core did for itself.
//!
//! It uses no clock, thread or socket. It is compiled for tests and with the feature `sim` only.

use std::time::Duration;

pub use crate::core::Bug;

mod caller;
mod check;
mod compute;
mod disk;
mod engine;
mod faults;
pub mod home;
mod network;
mod outside;
mod scenario;
mod script;
mod setup;
mod shrink;
mod trace;
mod world;

pub use faults::{Bad, Fault, What, When};
pub use outside::{Outside, RingOver};
pub use scenario::{Home, Scenario};
pub use script::{Ask, Cancel, Part};
pub use shrink::{Shrunk, shrink};

/// How a seed is run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// A bug that is planted in the cores.
    pub bug: Option<Bug>,
    /// Whether it is told in words what happens.
    pub tells: bool,
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The check that does not hold, in words that begin with its name; `None` if all hold.
    pub broken: Option<String>,
    /// Time that passed in the home.
    pub time: Duration,
    /// Events that were delivered.
    pub events: u64,
    /// Steps of the caller that were computed.
    pub steps: u64,
    /// A hash of all effects of all devices.
    pub trace: u64,
    /// What happened, in words, if that was asked for.
    pub told: Vec<String>,
}

/// Runs a seed.
pub fn run(seed: u64, options: &Options) -> Outcome {
    play(Scenario::of(seed), options)
}

/// Runs a seed with a bug planted in the cores.
pub fn with_bug(bug: Bug, seed: u64) -> Outcome {
    run(seed, &Options { bug: Some(bug), ..Options::default() })
}

/// Runs a scenario.
pub fn play(scenario: Scenario, options: &Options) -> Outcome {
    let mut world = world::World::new(scenario, *options);
    world.run();
    world.outcome()
}

#[cfg(test)]
mod tests;
