//! Makes a scenario that breaks a check as short as it gets.

use std::fmt;

use super::{Options, Scenario, play};

/// The shortest scenario found that still breaks the check.
#[derive(Debug, Clone, PartialEq)]
pub struct Shrunk {
    /// The scenario.
    pub scenario: Scenario,
    /// What does not hold.
    pub broken: String,
    /// Runs that this took.
    pub runs: usize,
}

/// Leaves out faults and questions one by one, as long as the same check still does not hold. Returns
/// `None` if all checks hold for the seed.
#[must_use]
pub fn shrink(seed: u64, options: &Options) -> Option<Shrunk> {
    let quiet = Options { tells: false, ..*options };
    let first = play(Scenario::of(seed), &quiet);
    let check = first.check()?.to_owned();
    let mut found = Shrunk { scenario: Scenario::of(seed), broken: first.broken.clone()?, runs: 1 };
    loop {
        let (questions, faults) = (found.scenario.questions.len(), found.scenario.faults.len());
        let without = |len: usize, left_out: usize| (0..len).filter(|at| *at != left_out).collect::<Vec<_>>();
        let all = |len: usize| (0..len).collect::<Vec<_>>();
        let fewer_faults = (0..faults).map(|at| (all(questions), without(faults, at)));
        let fewer_questions = (0..questions).map(|at| (without(questions, at), all(faults)));
        let tries: Vec<_> = fewer_faults.chain(fewer_questions).collect();
        let shorter = tries.into_iter().find_map(|(questions, faults)| {
            found.runs += 1;
            let scenario = found.scenario.only(&questions, &faults);
            let outcome = play(scenario.clone(), &quiet);
            (outcome.check() == Some(&check)).then(|| (scenario, outcome.broken.unwrap_or_default()))
        });
        match shorter {
            Some((scenario, broken)) => (found.scenario, found.broken) = (scenario, broken),
            None => return Some(found),
        }
    }
}

impl fmt::Display for Shrunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, after {} runs: {}", self.scenario.seed, self.runs, self.broken)?;
        writeln!(f, "  {:?}", self.scenario.cloud)?;
        for question in &self.scenario.questions {
            writeln!(f, "  {:?}", self.scenario.devices[question.device])?;
            writeln!(f, "  {question:?}")?;
        }
        for fault in &self.scenario.faults {
            writeln!(f, "  {fault:?}")?;
        }
        Ok(())
    }
}
