//! What the caller of a simulated ring does: a list of requests from a seed.
//!
//! Requests name sequences by a number that is taken modulo the live ones, so that any part of a script is a
//! script too. It never looks at the ring.

use std::time::Duration;

use baton_engine::Wanted;
use baton_random::SplitMix64;

/// When a step is no longer wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancel {
    /// After this time.
    After(Duration),
    /// When so many events have been delivered to the head.
    Events(u64),
}

/// New tokens of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Which sequence, modulo the live ones.
    pub slot: usize,
    /// How many tokens, at least one.
    pub tokens: usize,
    /// Which of them have outputs.
    pub wanted: Wanted,
}

/// One request of the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// A new sequence.
    Create,
    /// A copy of a sequence: a share of its tokens, in hundredths.
    Fork(usize, usize),
    /// Keeps a share of a sequence's tokens, in hundredths.
    Truncate(usize, usize),
    /// Ends a sequence.
    Release(usize),
    /// Lets a sequence take what is known of another's tokens.
    Reuse(usize, usize),
    /// Computes new tokens of some sequences.
    Step(Vec<Part>, Option<Cancel>),
    /// Computes so many tokens of a sequence, each the output of the one before.
    Greedy(usize, usize, Option<Cancel>),
    /// Truncates a sequence that was never there, or forks more tokens than there are: must be refused.
    Invalid(usize),
    /// Lets the ring look after itself, after an answer.
    Between,
    /// Lets the ring look after itself, while nothing is asked.
    Idle,
    /// A device has appeared.
    Join(usize),
    /// Asks nothing for this time.
    Pause(Duration),
}

fn wanted(random: &mut SplitMix64) -> Wanted {
    [Wanted::None, Wanted::Last, Wanted::Last, Wanted::All][random.below(4)]
}

fn tokens(random: &mut SplitMix64) -> usize {
    match random.below(10) {
        0 => 1 + random.below(600),
        1..=3 => 1 + random.below(60),
        _ => 1 + random.below(8),
    }
}

fn cancel(random: &mut SplitMix64) -> Option<Cancel> {
    match random.below(12) {
        0 | 1 => Some(Cancel::After(Duration::from_micros(random.below(80_000) as u64))),
        2 => Some(Cancel::Events(random.below(24) as u64)),
        3 | 4 => Some(Cancel::After(Duration::from_millis(150 + random.below(300) as u64))),
        5 => Some(Cancel::After(Duration::from_millis(random.below(4_000) as u64))),
        _ => None,
    }
}

fn step(random: &mut SplitMix64) -> Ask {
    let count = if random.percent(70) { 1 } else { 2 + random.below(2) };
    let first = random.below(8);
    let part =
        |random: &mut SplitMix64, i| Part { slot: first + i, tokens: tokens(random), wanted: wanted(random) };
    let parts = (0..count).map(|i| part(random, i)).collect();
    Ask::Step(parts, cancel(random))
}

fn ask(random: &mut SplitMix64, workers: usize) -> Ask {
    match random.below(40) {
        0..=3 => Ask::Create,
        4 | 5 => Ask::Fork(random.below(8), random.below(101)),
        6 | 7 => Ask::Truncate(random.below(8), random.below(101)),
        8 | 9 => Ask::Release(random.below(8)),
        10..=12 => Ask::Reuse(random.below(8), random.below(8)),
        13 => Ask::Invalid(random.below(3)),
        14..=23 => step(random),
        24..=30 => Ask::Greedy(random.below(8), 1 + random.below(20), cancel(random)),
        31..=33 => Ask::Between,
        34 | 35 => Ask::Idle,
        36 | 37 => Ask::Join(random.below(workers)),
        38 => Ask::Pause(Duration::from_millis(random.below(300) as u64)),
        _ => Ask::Pause(Duration::from_millis(random.below(6_000) as u64)),
    }
}

/// The script of a seed for a home of so many workers.
pub(super) fn script(random: &mut SplitMix64, workers: usize) -> Vec<Ask> {
    let count = 10 + random.below(31);
    let mut script = vec![Ask::Create];
    script.extend((0..count).map(|_| ask(random, workers)));
    script
}
