//! A seeded simulation of the whole relay in virtual time: devices, the network, and the cloud.
//!
//! The service, the host, the gate, the store, the relay core, the local answers and the ring's cores are the
//! real ones. Engines, networks and time are simulated. A run depends on its seed alone and can be repeated
//! exactly ([`run`]). The first check that does not hold ends it, and [`shrink()`] finds a short list of
//! questions and faults that still shows it. What always holds, by the numbers of the design:
//!
//! - I1: shown text only grows, and is what the outcome says.
//! - I2: no token is shown twice, none is skipped; each is the one that a plain loop writes.
//! - I3: every answer ends once, in bounded virtual time.
//! - I4: a slot is held for at most L tokens, and is free within one pass of a cancel.
//! - I5: a private value of the prompt is in no request.
//! - I8: queues are bounded; nothing is held for an answer that has ended.
//! - I9: what a device writes is its own continuation of the accepted tokens.
//! - I10: what is verified is what the cloud alone writes.
//! - I11: keys and values that a device takes are those of its prompt.
//! - quota: one request is charged once, for its longest answer; no tenant passes its day.
//! - mask: each mask belongs to its own request.

use std::time::Duration;

mod accounts;
mod answer;
mod check;
mod cloud;
mod device;
mod drafts;
pub mod engine;
mod handoff;
mod network;
mod relay;
mod scenario;
mod shrink;
pub mod sweep;
mod trace;
mod world;

pub use baton_generate::planted::Bug;
use baton_generate::planted::with;
pub use scenario::{CheckFault, CloudShape, DeviceShape, Fault, KvFault, LineFault, Question, Scenario};
pub use shrink::{Shrunk, shrink};

/// How a seed is run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// A bug that is planted.
    pub bug: Option<Bug>,
    /// A bug that is planted in the rings of devices.
    pub ring_bug: Option<baton_ring::sim::Bug>,
    /// Whether everything that happens is printed.
    pub tells: bool,
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The check that does not hold, in words that begin with its name; none if all hold.
    pub broken: Option<String>,
    /// Virtual time that passed.
    pub time: Duration,
    /// Things that happened.
    pub events: u64,
    /// Answers that ended.
    pub answers: u64,
    /// A hash of everything that happened.
    pub trace: u64,
}

impl Outcome {
    /// Returns the name of the check that does not hold.
    #[must_use]
    pub fn check(&self) -> Option<&str> {
        self.broken.as_deref().map(|words| words.split([':', ' ']).next().unwrap_or(words))
    }
}

/// Runs a seed.
#[must_use]
pub fn run(seed: u64, options: &Options) -> Outcome {
    play(Scenario::of(seed), options)
}

/// Runs a scenario.
#[must_use]
pub fn play(scenario: Scenario, options: &Options) -> Outcome {
    with(options.bug, || {
        let mut world = world::World::new(scenario, *options);
        world.run();
        world.outcome()
    })
}
