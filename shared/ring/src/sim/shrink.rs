//! Finds a short scenario that breaks the same check as a long one.

use super::scenario::Scenario;
use super::{Options, play};

/// Most runs that are spent on one seed.
const RUNS_MAX: usize = 400;

/// A scenario that cannot be made shorter by leaving a request or a fault out.
#[derive(Debug, Clone, PartialEq)]
pub struct Shrunk {
    /// The scenario.
    pub scenario: Scenario,
    /// The check that it breaks, in words.
    pub broken: String,
}

impl Shrunk {
    /// The numbers of the requests that are left.
    pub fn requests(&self) -> Vec<usize> {
        self.scenario.script.iter().map(|(number, _)| *number).collect()
    }

    /// The numbers of the faults that are left.
    pub fn faults(&self) -> Vec<usize> {
        self.scenario.faults.iter().map(|(number, _)| *number).collect()
    }
}

impl std::fmt::Display for Shrunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |numbers: Vec<usize>| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        writeln!(f, "seed {}: {}", self.scenario.seed, self.broken)?;
        writeln!(f, "{:?}", self.scenario.home)?;
        for (number, ask) in &self.scenario.script {
            writeln!(f, "  request {number}: {ask:?}")?;
        }
        for (number, fault) in &self.scenario.faults {
            writeln!(f, "  fault {number}: {fault:?}")?;
        }
        let (requests, faults) = (list(self.requests()), list(self.faults()));
        let seed = self.scenario.seed;
        write!(
            f,
            "again: SIM_SEED={seed} SIM_REQUESTS={requests} SIM_FAULTS={faults} cargo test -p baton-ring replay"
        )
    }
}

fn check_of(broken: &str) -> &str {
    broken.split(':').next().unwrap_or_default()
}

/// Shrinks a seed; `None` if it breaks no check.
pub fn shrink(seed: u64, options: &Options) -> Option<Shrunk> {
    let mut shrunk = {
        let scenario = Scenario::of(seed);
        let broken = play(scenario.clone(), options).broken?;
        Shrunk { scenario, broken }
    };
    let mut runs = 0;
    loop {
        let before = (shrunk.scenario.script.len(), shrunk.scenario.faults.len());
        for faults in [true, false] {
            let mut part = count(&shrunk.scenario, faults).div_ceil(2).max(1);
            loop {
                shrunk = without_parts(shrunk, part, faults, options, &mut runs);
                if part == 1 || runs >= RUNS_MAX {
                    break;
                }
                part /= 2;
            }
        }
        let after = (shrunk.scenario.script.len(), shrunk.scenario.faults.len());
        if after == before || runs >= RUNS_MAX {
            return Some(shrunk);
        }
    }
}

fn count(scenario: &Scenario, faults: bool) -> usize {
    if faults { scenario.faults.len() } else { scenario.script.len() }
}

/// Leaves out every run of so many requests (or faults) that the broken check does not need.
fn without_parts(
    mut shrunk: Shrunk,
    part: usize,
    faults: bool,
    options: &Options,
    runs: &mut usize,
) -> Shrunk {
    let mut at = 0;
    while at < count(&shrunk.scenario, faults) && *runs < RUNS_MAX {
        let mut shorter = shrunk.scenario.clone();
        if faults {
            let end = (at + part).min(shorter.faults.len());
            shorter.faults.drain(at..end);
        } else {
            let end = (at + part).min(shorter.script.len());
            shorter.script.drain(at..end);
        }
        *runs += 1;
        match play(shorter.clone(), options).broken {
            Some(broken) if check_of(&broken) == check_of(&shrunk.broken) => {
                shrunk = Shrunk { scenario: shorter, broken };
            }
            _ => at += part,
        }
    }
    shrunk
}
