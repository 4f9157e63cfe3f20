//! What a seed stands for: a home, the caller's script, and faults.

use std::time::Duration;

use baton_random::SplitMix64;

use super::faults::{self, Bad, Fault, What};
use super::script::{self, Ask};

/// The devices of a simulated home and the paths between them.
#[derive(Debug, Clone, PartialEq)]
pub struct Home {
    /// Workers; the head is one device more.
    pub workers: usize,
    /// Workers that the head knows from the beginning. The others may join later.
    pub first: usize,
    /// Layers of the model.
    pub n_layers: usize,
    /// Tokens of a device's cache.
    pub capacity: usize,
    /// Most rounds of a plan.
    pub rounds: usize,
    /// Workers without which there is no plan.
    pub needs: usize,
    /// Whether the worker only relays, by worker.
    pub relays: Vec<bool>,
    /// Which pieces of the model a worker has at the beginning, in hundredths; 100: the whole file.
    pub pieces: Vec<usize>,
    /// How long a device takes to look at what is on its disk, and to open the model.
    pub opens: Duration,
    /// Time that each device takes for a row and a layer; the head first.
    pub pace: Vec<Duration>,
    /// Time until a frame's first byte arrives.
    pub latency: Duration,
    /// Most that is added to it by chance.
    pub jitter: Duration,
    /// Nanoseconds for each byte of a frame.
    pub byte_ns: u64,
    /// Least and most rows of a chunk.
    pub chunk_rows: (usize, usize),
    /// Whether hidden states go round as f16.
    pub half: bool,
    /// Whether frames are encoded and decoded on their way.
    pub coded: bool,
    /// Time between two tokens that test the ring's health.
    pub health: Duration,
    /// Hundredths of judgements that a plan fits no more.
    pub replans: usize,
}

impl Home {
    fn of(random: &mut SplitMix64) -> Self {
        let workers = 1 + random.below(4);
        let pieces = |random: &mut SplitMix64| match random.below(10) {
            0..=6 => 100,
            7 => 0,
            _ => random.below(100),
        };
        let pace = |random: &mut SplitMix64| Duration::from_nanos(200 + random.below(20_000) as u64);
        Self {
            workers,
            first: 1 + random.below(workers),
            n_layers: 1 + workers + random.below(5),
            capacity: if random.percent(10) { 300 + random.below(600) } else { 1 << 20 },
            rounds: 1 + random.below(3),
            needs: usize::from(random.percent(8)),
            relays: (0..workers).map(|_| random.percent(8)).collect(),
            pieces: (0..workers).map(|_| pieces(random)).collect(),
            opens: Duration::from_millis(if random.percent(25) { random.below(900) as u64 } else { 2 }),
            pace: (0..=workers).map(|_| pace(random)).collect(),
            latency: Duration::from_micros(50 + random.below(4_000) as u64),
            jitter: Duration::from_micros(random.below(1_500) as u64),
            byte_ns: [5, 20, 100][random.below(3)],
            chunk_rows: [(1, 4), (4, 64), (16, 256)][random.below(3)],
            half: random.percent(30),
            coded: random.percent(15),
            health: Duration::from_millis([1_000, 3_000, 10_000][random.below(3)]),
            replans: if random.percent(20) { 30 } else { 0 },
        }
    }
}

/// Everything that happens from outside in one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// The seed; jitter and plans depend on it too.
    pub seed: u64,
    /// The devices.
    pub home: Home,
    /// What the caller asks, each request with its number in the whole script.
    pub script: Vec<(usize, Ask)>,
    /// What goes wrong, each fault with its number in the whole list.
    pub faults: Vec<(usize, Fault)>,
}

impl Scenario {
    /// The scenario of a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let mut home = Home::of(&mut random);
        let script = script::script(&mut SplitMix64::new(random.next_u64()), home.workers);
        let faults = faults::faults(&mut SplitMix64::new(random.next_u64()), home.workers);
        // Who forges pieces must be asked for some.
        for fault in &faults {
            let (What::Bad(bad) | What::Always(bad)) = fault.what else { continue };
            if matches!(bad, Bad::ForgedPiece | Bad::ShortPiece) {
                home.first = home.workers;
                let pieces = |device| if device == fault.device { 100 } else { 0 };
                home.pieces = (1..=home.workers).map(pieces).collect();
            }
        }
        Self {
            seed,
            home,
            script: script.into_iter().enumerate().collect(),
            faults: faults.into_iter().enumerate().collect(),
        }
    }

    /// The same scenario with only these requests and faults, named by their numbers in the whole lists.
    pub fn only(&self, requests: &[usize], faults: &[usize]) -> Self {
        let mut kept = self.clone();
        kept.script.retain(|(number, _)| requests.contains(number));
        kept.faults.retain(|(number, _)| faults.contains(number));
        kept
    }
}
