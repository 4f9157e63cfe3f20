//! `baton-bench sim`: many seeds of the two simulations in virtual time, and how soon they find planted bugs.
//!
//! One simulation has cloud, network and devices; the other has a ring of devices (the modules `sim` of
//! `baton-e2e` and `baton-ring`). Every check must hold on every seed. A run can be stopped and resumed by
//! a state file.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use baton_e2e::sim::sweep::{AnyBug, Tally, Which};
use baton_terminal::err;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::report::Report;

/// Of so many seeds, one is of the relay, which takes longer; the others are of the ring.
const RELAY_SHARE: u64 = 5;
/// Seeds between two lines of progress, of both simulations together.
const STEP: u64 = 5_000;
/// Seeds within which each planted bug must be found.
const BUG_SEEDS: u64 = 2_000;

/// Options of `baton-bench sim`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Seeds of both simulations together; one in five is of the relay
    #[arg(long, default_value_t = 1_000_000)]
    seeds: u64,
    /// Keeps the state in this file, and goes on from it if it is there
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Leaves the planted bugs out
    #[arg(long)]
    no_bugs: bool,
}

/// What was done so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct State {
    relay: Part,
    ring: Part,
    /// Time that all of it took, in seconds.
    spent_s: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Part {
    /// The next seed.
    next: u64,
    events: u64,
    simulated_s: f64,
    /// Seeds on which a check does not hold, with the first words of each.
    broken: Vec<(u64, String)>,
}

impl Part {
    fn add(&mut self, tally: Tally) {
        self.next += tally.seeds;
        self.events += tally.events;
        self.simulated_s += tally.time.as_secs_f64();
        self.broken.extend(tally.broken);
    }
}

impl State {
    fn read(path: &Path) -> Result<State> {
        match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| format!("read {}", path.display())),
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(State::default()),
            Err(err) => Err(err).with_context(|| format!("read {}", path.display())),
        }
    }

    /// Writes the state beside the file first, so that a run that is killed leaves a whole one.
    fn write(&self, path: &Path) -> Result<()> {
        let beside = path.with_extension("new");
        std::fs::write(&beside, serde_json::to_vec(self)?)
            .and_then(|()| std::fs::rename(&beside, path))
            .with_context(|| format!("write {}", path.display()))
    }

    fn seeds(&self) -> u64 {
        self.relay.next + self.ring.next
    }

    fn step(&mut self, seeds: u64) {
        let begun = Instant::now();
        let relay = seeds / RELAY_SHARE;
        for (which, part, count) in
            [(Which::Relay, &mut self.relay, relay), (Which::Ring, &mut self.ring, seeds - relay)]
        {
            part.add(which.sweep(part.next..part.next + count));
        }
        self.spent_s += begun.elapsed().as_secs_f64();
    }
}

/// Runs the bench.
pub(crate) fn run(args: &Args) -> Result<Report> {
    if args.seeds < RELAY_SHARE {
        bail!("--seeds {} is less than {RELAY_SHARE}", args.seeds);
    }
    let mut state = args.resume.as_deref().map_or_else(|| Ok(State::default()), State::read)?;
    while state.seeds() < args.seeds {
        state.step(STEP.min(args.seeds - state.seeds()));
        if let Some(path) = &args.resume {
            state.write(path)?;
        }
        let broken = state.relay.broken.len() + state.ring.broken.len();
        let left = state.spent_s / state.seeds() as f64 * args.seeds.saturating_sub(state.seeds()) as f64;
        err!("\r{} of {} seeds, {broken} broken, {:.0} s left   ", state.seeds(), args.seeds, left);
    }
    err!("\n");
    let mut report = Report::new("sim");
    tell(&mut report, &state);
    if !args.no_bugs {
        tell_bugs(&mut report);
    }
    Ok(report)
}

fn tell(report: &mut Report, state: &State) {
    let mut rows = Vec::new();
    for (name, which, part) in [("relay", Which::Relay, &state.relay), ("ring", Which::Ring, &state.ring)] {
        rows.push(vec![
            name.to_owned(),
            part.next.to_string(),
            part.events.to_string(),
            format!("{:.1}", part.simulated_s / 3_600.0),
            part.broken.len().to_string(),
        ]);
        report.check_equal(
            format!("{name}: seeds on which a check does not hold"),
            part.broken.len() as f64,
            0.0,
        );
        if let Some((seed, words)) = part.broken.first() {
            report.note(format!("{name}, seed {seed}: {words}"));
            report.note(which.shortest(*seed).unwrap_or_default());
        }
    }
    report.table("seeds", &["simulation", "seeds", "events", "hours simulated", "broken"], &rows);
    let hours = (state.relay.simulated_s + state.ring.simulated_s) / 3_600.0;
    let spent = Duration::from_secs_f64(state.spent_s.max(1e-3)).as_secs_f64();
    report.note(format!("{:.2} hours simulated in a second, {spent:.0} s in all", hours / spent));
    report.data("simulated hours per second", json!(hours / spent));
    report.data("seeds", json!({ "relay": state.relay.next, "ring": state.ring.next }));
    report.data("hours simulated", json!(hours));
}

fn tell_bugs(report: &mut Report) {
    // Some of them end in a panic, which is as good as a check.
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let all = AnyBug::all();
    let mut found: Vec<(AnyBug, Option<u64>)> = Vec::new();
    for bug in &all {
        err!("\rplanted bug {} of {}: {}          ", found.len() + 1, all.len(), bug.name());
        found.push((*bug, bug.found_after(BUG_SEEDS)));
    }
    err!("\n");
    std::panic::set_hook(before);
    let seeds = |seeds: &Option<u64>| seeds.map_or_else(|| "not found".to_owned(), |seeds| seeds.to_string());
    let rows: Vec<Vec<String>> = found.iter().map(|(bug, after)| vec![bug.name(), seeds(after)]).collect();
    report.table("planted bugs", &["bug", "seeds needed"], &rows);
    let missed = found.iter().filter(|(_, seeds)| seeds.is_none()).count();
    report.check_equal(format!("planted bugs not found within {BUG_SEEDS} seeds"), missed as f64, 0.0);
    let needed: serde_json::Map<String, serde_json::Value> =
        found.iter().map(|(bug, seeds)| (bug.name(), json!(seeds))).collect();
    report.data("seeds needed", needed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_was_written_is_read_again() {
        let folder = tempfile::tempdir().expect("make a folder");
        let path = folder.path().join("state.json");
        assert_eq!(State::read(&path).expect("there is none yet"), State::default());
        let state = State {
            relay: Part { next: 7, events: 9, simulated_s: 1.5, broken: vec![(3, "I2".to_owned())] },
            ..State::default()
        };
        state.write(&path).expect("write it");
        assert_eq!(State::read(&path).expect("read it"), state);
    }
}
