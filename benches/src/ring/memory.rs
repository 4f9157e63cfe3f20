//! Measures two devices whose layers need more memory than they have, each in its own control group. The
//! worker has its part of the model file. Bytes read and time per token are compared with the minimum
//! possible.
//!
//! The planner's plan runs first. Then rounds, reading ahead and resident weights are switched off in turn,
//! and last the files are only memory-mapped. If prima.cpp is given, it runs in the same groups. The disk's
//! rate is measured before and after each run, because it varies over time.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use baton_e2e::home::{Home, Planned, Seat, Task, answer};
use baton_pacing::refit::median;
use baton_plan::{ModelShape, Plan};
use serde_json::{Value, json};

use super::prima::{Prima, Run};
use super::sampler::{Sampler, Seen};
use super::{Bench, Figure, Prediction, disk_rate, on_one_disk, peers, shape};
use crate::cgroup::{Cgroup, Limits};
use crate::engine::Subject;
use crate::residency::{forget, free_bytes};

const NAMES: [&str; 2] = ["head", "desk"];
/// Required disk space, for the model file, the worker's part of it, and some room.
const DISK_BYTES: u64 = 9_000_000_000;
const TOKENS: usize = 14;
/// Tokens before the measurement, during which the resident weights are read.
const WARM: usize = 4;
/// Maximum time per token, as a multiple of the larger of the times to read and to compute.
const TIME_MAX: f64 = 1.2;
/// Maximum bytes read per token, as a multiple of the minimum possible.
const READ_MAX: f64 = 1.15;
/// Maximum unreclaimable memory besides the KV cache, as a share of the limit.
const UNRECLAIMABLE_MAX: f64 = 0.06;

/// Value of `--memory` for a device that always memory-maps its files.
const MAPPED: &str = "all";

/// A configuration in which the ring runs.
struct Way {
    name: String,
    memory: &'static str,
    reads_ahead: bool,
    plan: Plan,
}

impl Way {
    /// Returns whether the planner's cost model describes this configuration.
    fn is_planned_for(&self) -> bool {
        self.reads_ahead && self.memory != MAPPED
    }
}

/// The results of one configuration.
struct Outcome {
    figure: Figure,
    /// Read rate of the disk in bytes per second, averaged from before and after the run.
    disk: f64,
    /// Median milliseconds of a token, without the first tokens.
    token_ms: f64,
    /// Bytes read per token by each device.
    read: Vec<f64>,
    /// Unreclaimable bytes of each device, without the KV cache.
    beside: Vec<f64>,
    /// Number of processes that were killed for exceeding their memory.
    kills: u64,
}

/// The setting that all configurations share.
struct Setting<'a> {
    subject: &'a Subject,
    shape: ModelShape,
    limits: Limits,
    /// Folder with the worker's parts of models.
    parts: PathBuf,
    task: Task,
}

/// Measures all configurations, with the disk read rate limited to `reads_per_s` if given, and adds the table
/// and the checks.
pub(super) fn measure(bench: &mut Bench<'_>, reads_per_s: Option<u64>) -> Result<()> {
    let part = if reads_per_s.is_some() { "throttled" } else { "memory" };
    let limits = Limits { memory: bench.args.limit_mb * 1_000_000, reads_per_s };
    if let Some(reason) = lacks(bench, &limits) {
        bench.skip(part, &reason);
        return Ok(());
    }
    let subject = bench.subject(&bench.args.large_model)?;
    let parts = bench.scratch.join("parts");
    let task = Task { prompt: 32, limit: Duration::from_secs(600), ..Task::of_tokens(TOKENS) };
    let setting = Setting { shape: shape(&subject)?, subject: &subject, limits, parts, task };
    let measured = ways(bench, &setting, part);
    if setting.parts.is_dir() {
        std::fs::remove_dir_all(&setting.parts).context("remove the worker's part of the model")?;
    }
    measured
}

/// Returns the reason why this part cannot run here, or `None` if it can.
fn lacks(bench: &Bench<'_>, limits: &Limits) -> Option<String> {
    match free_bytes(&bench.scratch) {
        Ok(free) if free < DISK_BYTES => {
            return Some(format!("{free} bytes are free on the disk, {DISK_BYTES} are needed"));
        }
        Ok(_) => {}
        Err(err) => return Some(format!("{err:#}")),
    }
    Cgroup::new("baton-ring", limits, &bench.scratch).err().map(|err| format!("{err:#}"))
}

fn ways(bench: &mut Bench<'_>, setting: &Setting<'_>, part: &str) -> Result<()> {
    let mut last = disk_rate(&setting.subject.path)?;
    let mut around = || -> Result<f64> {
        let before = std::mem::replace(&mut last, disk_rate(&setting.subject.path)?);
        Ok((before + last) / 2.0)
    };
    let compute_ms = computing(bench, setting)?;
    let plan = planned(bench, setting)?;
    let ways = variants(&plan);
    let mut outcomes = Vec::new();
    // Measure again, because the steps above took some time.
    around()?;
    for way in &ways {
        let outcome = run(bench, setting, way).with_context(|| format!("run the ring: {}", way.name))?;
        let outcome = Outcome { disk: around()?, ..outcome };
        eprintln!(
            "{}: {:.0} ms a token, reads {:.0?} MB, the disk {:.2} GB/s",
            way.name,
            outcome.token_ms,
            outcome.read.iter().map(|read| read / 1e6).collect::<Vec<_>>(),
            outcome.disk / 1e9
        );
        outcomes.push(outcome);
    }
    let others = prima(bench, setting, &mut around)?;
    let bounds = Bounds { setting, plan: &plan, compute_ms };
    let throttled = |rate| format!(" ({} MB/s each at most)", rate / 1_000_000);
    bench.report.note(format!(
        "{part}: {}: plan {}; {:.2} GB of memory each, one disk for both{}; computing takes {:.0} ms",
        setting.subject.name,
        layers(&plan),
        setting.limits.memory as f64 / 1e9,
        setting.limits.reads_per_s.map_or_else(String::new, throttled),
        compute_ms,
    ));
    let limit = setting.limits.memory;
    let measured =
        Measured { part, limit, ways: &ways, outcomes: &outcomes, others: &others, bounds: &bounds };
    measured.table(bench, &setting.subject.name);
    measured.predict(bench);
    measured.checks(bench);
    let named = ways.iter().zip(&outcomes).map(|(way, outcome)| {
        let memory = &way.memory;
        json!({
            "way": way.name, "memory": memory, "plan": way.plan, "token_ms": outcome.token_ms,
            "disk_bytes_per_s": outcome.disk, "read_bytes_per_token": outcome.read, "unreclaimable_beside_kv": outcome.beside, "kills": outcome.kills,
            "steps_ms": outcome.figure.answer["steps_ms"],
        })
    });
    let named = Value::Array(named.collect());
    bench.report.data(
        part,
        json!({ "compute_ms": compute_ms, "least_bytes_per_token": bounds.least(), "ways": named,
                "prima_cpp": others }),
    );
    Ok(())
}

/// Measures the milliseconds of a token on one device that holds the whole model in memory, with one thread
/// like each device of the ring.
fn computing(bench: &mut Bench<'_>, setting: &Setting<'_>) -> Result<f64> {
    let worker = Seat::new(NAMES[1]).with("--relay");
    let head = Seat::new(NAMES[0]).with("--memory").with("all");
    let workers = [worker];
    let made = Home::below(&bench.scratch, setting.subject.path.clone(), head, &workers);
    let home = bench.wait(made)?;
    let figure = bench.alone(&home, &setting.task)?;
    Ok(figure.step_ms)
}

/// Returns the planner's plan for two devices with this memory. Afterwards the worker has its part of the
/// model.
fn planned(bench: &mut Bench<'_>, setting: &Setting<'_>) -> Result<Plan> {
    let (_groups, home) = home(bench, setting, "auto", true)?;
    let task = Task { tokens: 2, ..setting.task };
    let figure = bench.ring(&home, &task, &Planned::Searched)?;
    let planned = figure.predicted().context("the ring's bench printed no plan")?;
    Ok(planned.plan)
}

/// Returns the planned configuration, and those with one part of the scheme switched off.
fn variants(plan: &Plan) -> Vec<Way> {
    let way = |name: &str, memory, plan| Way { name: name.to_owned(), memory, reads_ahead: true, plan };
    let mut without = plan.clone();
    without.shares.iter_mut().for_each(|share| share.prefetch_bytes = 0.0);
    let rounds = if plan.rounds == 1 { 4 } else { 1 };
    let other = Plan { rounds, ..if rounds == 1 { without.clone() } else { plan.clone() } };
    let mut ways = vec![way("as planned", "auto", plan.clone())];
    ways.push(way(&format!("in {rounds} round{}", if rounds == 1 { "" } else { "s" }), "auto", other));
    if without != *plan {
        ways.push(way("nothing kept for reading ahead", "auto", without.clone()));
    }
    ways.push(Way { reads_ahead: false, ..way("without reading ahead", "auto", without.clone()) });
    ways.push(way("nothing stays in memory", "0MB", without.clone()));
    ways.push(way("mapped, in 1 round", MAPPED, Plan { rounds: 1, ..without }));
    ways
}

/// Starts both devices in their control groups.
fn home(
    bench: &Bench<'_>,
    setting: &Setting<'_>,
    memory: &str,
    reads_ahead: bool,
) -> Result<([Cgroup; 2], Home)> {
    let group =
        |name: &str| Cgroup::new(&format!("baton-ring-{name}"), &setting.limits, &setting.subject.path);
    let groups = [group(NAMES[0])?, group(NAMES[1])?];
    let seat = |at: usize| {
        let launcher = groups[at].launcher().map(OsString::from).into();
        Seat { launcher, ..Seat::new(NAMES[at]) }.with("--memory").with(memory)
    };
    let worker = seat(1).with("--threads").with("1").with("--weights").with(&setting.parts);
    let workers = [worker];
    let head = if reads_ahead { seat(0) } else { seat(0).with("--ring-no-read-ahead") };
    let made = Home::below(&bench.scratch, setting.subject.path.clone(), head, &workers);
    let home = bench.wait(made)?;
    Ok((groups, home))
}

fn run(bench: &Bench<'_>, setting: &Setting<'_>, way: &Way) -> Result<Outcome> {
    let (groups, mut home) = home(bench, setting, way.memory, way.reads_ahead)?;
    // Pages that are already cached would count for another group.
    forget(&setting.subject.path)?;
    for entry in std::fs::read_dir(&setting.parts).context("list the worker's parts of models")? {
        forget(&entry.context("list the worker's parts of models")?.path())?;
    }
    let worker = home.workers[0].child.id().context("the worker has ended")?;
    let given = Planned::Given(way.plan.clone());
    let begun = bench.wait(async { home.start(&setting.task, &given) });
    let mut head = begun.context("start the head")?;
    let sampler = Sampler::start(vec![head.id().context("the head has ended")?, worker])?;
    let said = bench.wait(answer(&mut head, setting.task.limit));
    let ended = Instant::now();
    let seen = sampler.finish()?;
    let kills = groups.iter().map(Cgroup::kills).sum::<Result<u64>>()?;
    let figure = Figure::of(said.with_context(|| format!("{kills} processes were killed for memory"))?)?;
    bench.wait(async { Ok(head.wait().await?) }).context("wait for the head")?;
    home.workers.clear();
    outcome(setting, way, figure, &seen, ended, kills)
}

fn outcome(
    setting: &Setting<'_>,
    way: &Way,
    figure: Figure,
    seen: &[Seen],
    ended: Instant,
    kills: u64,
) -> Result<Outcome> {
    let steps = figure.answer["steps_ms"].as_array().context("the bench printed no steps")?;
    let steps: Vec<f64> = steps.iter().filter_map(Value::as_f64).skip(WARM).collect();
    let token_ms = median(steps.iter().copied()).context("no token was measured")?;
    let lasted = Duration::from_secs_f64(steps.iter().sum::<f64>() / 1e3);
    let begun = ended.checked_sub(lasted).context("the tokens took longer than this machine runs")?;
    let read = seen.iter().map(|seen| seen.read_between(begun, ended) / steps.len() as f64).collect();
    let kv_tokens = ((setting.task.prompt + setting.task.tokens).next_multiple_of(32) + 32) as f64;
    let beside = seen.iter().zip(&way.plan.shares).map(|(seen, share)| {
        let kv = setting.shape.kv_bytes * share.layers as f64 * kv_tokens;
        (seen.unreclaimable() as f64 - kv).max(0.0)
    });
    Ok(Outcome { beside: beside.collect(), figure, disk: f64::NAN, token_ms, read, kills })
}

/// The results of another program in the same kind of groups.
#[derive(Debug, serde::Serialize)]
struct Other {
    name: String,
    token_ms: f64,
    /// Read rate of the disk in bytes per second, averaged from before and after the run.
    disk: f64,
}

/// Measures prima.cpp in one round and in four; returns an empty list if it is not given.
fn prima(
    bench: &mut Bench<'_>,
    setting: &Setting<'_>,
    around: &mut dyn FnMut() -> Result<f64>,
) -> Result<Vec<Other>> {
    let Some(prima) = peers::prima(bench) else { return Ok(Vec::new()) };
    let each = |rounds: usize| {
        let token_ms = prima_ms(bench, setting, &prima, rounds)?;
        let name = format!("prima.cpp in {rounds} round{}", if rounds == 1 { "" } else { "s" });
        let disk = around()?;
        eprintln!("{name}: {token_ms:.0} ms a token, the disk {:.2} GB/s", disk / 1e9);
        Ok(Other { name, token_ms, disk })
    };
    [1, 4].into_iter().map(each).collect()
}

fn prima_ms(bench: &Bench<'_>, setting: &Setting<'_>, prima: &Prima, rounds: usize) -> Result<f64> {
    let model = &setting.subject.path;
    let group = |name: &str| Cgroup::new(&format!("baton-ring-{name}"), &setting.limits, model);
    let groups = [group(NAMES[0])?, group(NAMES[1])?];
    forget(model)?;
    let launchers = [0, 1].map(|at: usize| groups[at].launcher().map(OsString::from).into());
    let window = setting.shape.layers / NAMES.len() / rounds;
    let run = Run { model, windows: [window; 2], tokens: TOKENS, launchers };
    let token_ms = bench.wait(prima.token_ms(&run));
    let kills = groups.iter().map(Cgroup::kills).sum::<Result<u64>>()?;
    token_ms.with_context(|| format!("prima.cpp in {rounds} rounds; {kills} of it were killed for memory"))
}

/// The lower bounds on reads and time.
struct Bounds<'a> {
    setting: &'a Setting<'a>,
    plan: &'a Plan,
    compute_ms: f64,
}

impl Bounds<'_> {
    /// Returns the minimum bytes that each device must read per token.
    fn least(&self) -> Vec<f64> {
        let shape = &self.setting.shape;
        let least = self.plan.shares.iter().enumerate().map(|(at, share)| {
            let output = if at == 0 { shape.output_bytes } else { 0.0 };
            (share.layers as f64 * shape.layer_bytes + output - self.setting.limits.memory as f64).max(0.0)
        });
        least.collect()
    }

    /// Returns the minimum milliseconds of a token for a disk of this rate. Both devices share the disk, and
    /// each may have its own limit.
    fn token_ms(&self, disk: f64) -> f64 {
        let least = self.least();
        let each = self.setting.limits.reads_per_s.map_or(disk, |rate| disk.min(rate as f64));
        let alone_s = least.iter().fold(0.0_f64, |most, bytes| most.max(bytes / each));
        let shared_s = least.iter().sum::<f64>() / disk;
        self.compute_ms.max(1e3 * alone_s.max(shared_s))
    }
}

fn layers(plan: &Plan) -> String {
    let each: Vec<String> =
        plan.shares.iter().map(|share| format!("{} {}", share.device, share.layers)).collect();
    let ahead: f64 = plan.shares.iter().map(|share| share.prefetch_bytes).sum();
    format!("{} in {} rounds, {:.0} MB for reading ahead", each.join(", "), plan.rounds, ahead / 1e6)
}

/// The measurements of one part.
struct Measured<'a> {
    part: &'a str,
    /// Memory of each device in bytes.
    limit: u64,
    ways: &'a [Way],
    outcomes: &'a [Outcome],
    others: &'a [Other],
    bounds: &'a Bounds<'a>,
}

impl Measured<'_> {
    fn table(&self, bench: &mut Bench<'_>, model: &str) {
        let least: f64 = self.bounds.least().iter().sum();
        let of_bound = |token_ms: f64, disk: f64| format!("{:.2}", token_ms / self.bounds.token_ms(disk));
        let row = |(way, outcome): (&Way, &Outcome)| {
            let read: f64 = outcome.read.iter().sum();
            let each = |values: &[f64]| {
                values.iter().map(|value| format!("{:.0}", value / 1e6)).collect::<Vec<_>>().join(" + ")
            };
            vec![
                way.name.clone(),
                format!("{:.0}", outcome.token_ms),
                format!("{:.2}", outcome.disk / 1e9),
                of_bound(outcome.token_ms, outcome.disk),
                each(&outcome.read),
                format!("{:.3}", read / least),
                each(&outcome.beside),
            ]
        };
        let other = |other: &Other| {
            let (ms, rate) = (format!("{:.0}", other.token_ms), format!("{:.2}", other.disk / 1e9));
            let none = String::new;
            vec![other.name.clone(), ms, rate, of_bound(other.token_ms, other.disk), none(), none(), none()]
        };
        let own = self.ways.iter().zip(self.outcomes).map(row);
        let rows: Vec<_> = own.chain(self.others.iter().map(other)).collect();
        let header = [
            "",
            "ms a token",
            "disk, GB/s",
            "of the bound",
            "MB read a token",
            "of the least",
            "unreclaimable beside KV, MB",
        ];
        let title = format!("{}: {model} on two devices of {} MB", self.part, self.limit / 1_000_000);
        bench.report.table(&title, &header, &rows);
    }

    fn checks(&self, bench: &mut Bench<'_>) {
        let Self { part, outcomes, others, bounds, .. } = self;
        let (Some(first), Some(mapped)) = (outcomes.first(), outcomes.last()) else { return };
        let report = &mut bench.report;
        let time = first.token_ms / bounds.token_ms(first.disk);
        report.check_at_most(
            format!("{part}: time a token, of the larger of reading and computing"),
            time,
            TIME_MAX,
        );
        let read = first.read.iter().sum::<f64>() / bounds.least().iter().sum::<f64>();
        report.check_at_most(format!("{part}: bytes read a token, of the least possible"), read, READ_MAX);
        let beside = first.beside.iter().copied().fold(0.0, f64::max) / self.limit as f64;
        let name = format!("{part}: unreclaimable beside the KV cache, of the limit");
        report.check_at_most(name, beside, UNRECLAIMABLE_MAX);
        let faster = mapped.token_ms / first.token_ms;
        report.check_at_least(format!("{part}: times as fast as mapped in 1 round"), faster, 1.0);
        for other in *others {
            let faster = other.token_ms / first.token_ms;
            report.check_at_least(format!("{part}: times as fast as {}", other.name), faster, 1.0);
        }
        let written = |outcome: &Outcome| outcome.figure.answer["written"].clone();
        let differ = outcomes.iter().filter(|outcome| written(outcome) != written(first)).count();
        report.check_equal(
            format!("{part}: ways of {} whose tokens differ", self.ways.len()),
            differ as f64,
            0.0,
        );
        let kills: u64 = outcomes.iter().map(|outcome| outcome.kills + outcome.figure.recoveries()).sum();
        report.check_equal(format!("{part}: processes killed and devices lost"), kills as f64, 0.0);
    }

    /// Adds the head's predictions for the configurations that its planner describes. Devices with a limited
    /// read rate do not compete for the disk.
    fn predict(&self, bench: &mut Bench<'_>) {
        let shares = self.bounds.setting.limits.reads_per_s.is_none();
        let known = self.ways.iter().zip(self.outcomes).filter(|(way, _)| way.is_planned_for());
        for (way, outcome) in known {
            let disk = if shares { outcome.disk } else { f64::INFINITY };
            let Some(predicted_ms) = on_one_disk(&outcome.figure, disk) else { continue };
            let of = format!("{}: {}", self.part, way.name);
            bench.predictions.push(Prediction { of, predicted_ms, measured_ms: outcome.token_ms });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_the_scheme_is_switched_off_once() {
        let Planned::Given(mut plan) = Planned::shares(&[("head", 16), ("desk", 16)], 4) else { return };
        plan.shares[1].prefetch_bytes = 1e8;
        let ways = variants(&plan);
        assert_eq!(ways.len(), 6);
        assert_eq!((ways[0].plan.clone(), ways[1].plan.rounds), (plan.clone(), 1));
        assert!(ways[2].plan.rounds == 4 && ways[2].plan.shares[1].prefetch_bytes == 0.0);
        assert_eq!((ways[4].memory, ways[5].memory, ways[5].plan.rounds), ("0MB", "all", 1));
        let known: Vec<bool> = ways.iter().map(Way::is_planned_for).collect();
        assert_eq!(known, [true, true, true, false, true, false]);
        plan.rounds = 1;
        plan.shares[1].prefetch_bytes = 0.0;
        let ways = variants(&plan);
        assert_eq!((ways.len(), ways[1].plan.rounds), (5, 4));
    }
}
