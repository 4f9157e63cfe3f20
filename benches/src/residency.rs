//! `baton-bench residency`: measures a model that is larger than its memory limit, streamed and
//! memory-mapped.
//!
//! A model of 8 billion weights runs in a control group with a memory limit. The disk's rate is measured
//! before and after, because it varies over time. Parts of the streaming scheme are switched off in turn. It
//! needs Linux, root and 8 GB of disk; if something is missing, the bench is skipped with the reason.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use baton_device::machine::disk;
use baton_device::machine::residency::{BUFFER_BYTES, text_bytes};
use baton_device::machine::shape::shape_of;
use baton_engine::engine::KvFormat;
use serde_json::{Value, json};

use crate::cgroup::{Cgroup, Limits};
use crate::engine::{subject, target_folder};
use crate::report::Report;

pub(crate) mod worker;

const SHAPE: &str = "llama-8b";
/// Required disk space, for the model file and some room.
const DISK_BYTES: u64 = 8_000_000_000;
/// Share of a control group's memory that a device uses, by its rule for containers.
const USED_PERCENT: u64 = 98;
/// Maximum bytes read per token, as a multiple of the minimum possible.
const READ_MAX: f64 = 1.15;
/// Maximum time per token, as a multiple of the larger of the times to read and to compute.
const TIME_MAX: f64 = 1.2;
/// Maximum unreclaimable memory besides the KV cache, as a share of the limit.
const UNRECLAIMABLE_MAX: f64 = 0.06;

/// Options of `baton-bench residency`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Model: the name of a shape of `make-model` (made in Q4_K_M with random weights), or a GGUF file
    #[arg(long, default_value = SHAPE)]
    model: String,
    /// Memory limit in megabytes
    #[arg(long, default_value_t = 2600)]
    limit_mb: u64,
    /// Maximum disk read rate in megabytes per second; by default not limited
    #[arg(long)]
    throttle_mb: Option<u64>,
    /// Number of tokens that are measured
    #[arg(long, default_value_t = 12)]
    tokens: usize,
    /// Size of one read in bytes; by default that of the engine
    #[arg(long)]
    read_bytes: Option<usize>,
}

/// A configuration in which the model runs.
struct Way {
    name: &'static str,
    /// Whether it runs in the control group.
    limited: bool,
    options: Vec<String>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<Report> {
    let mut report = Report::new("residency");
    let target = target_folder()?;
    if let Some(reason) = lacks(args, &target) {
        report.note(format!("skipped: residency: {reason}"));
        report.data("skipped", reason);
        return Ok(report);
    }
    let kept = target.join("models").join(format!("{}-Q4_K_M.gguf", args.model)).is_file();
    let subject = subject(&args.model, &target)?;
    let measured = measure(args, &subject.path, &mut report);
    if !kept && !args.model.ends_with(".gguf") {
        std::fs::remove_file(&subject.path).with_context(|| format!("remove {}", subject.path.display()))?;
    }
    measured.map(|()| report)
}

/// Returns the reason why the bench cannot run here, or `None` if it can.
fn lacks(args: &Args, target: &Path) -> Option<String> {
    if !args.model.ends_with(".gguf") {
        match free_bytes(target) {
            Ok(free) if free < DISK_BYTES => {
                return Some(format!("{free} bytes are free on the disk, {DISK_BYTES} are needed"));
            }
            Ok(_) => {}
            Err(err) => return Some(format!("{err:#}")),
        }
    }
    Cgroup::new("baton-residency", &limits(args), target).err().map(|err| format!("{err:#}"))
}

fn limits(args: &Args) -> Limits {
    Limits { memory: args.limit_mb * 1_000_000, reads_per_s: args.throttle_mb.map(|mb| mb * 1_000_000) }
}

fn measure(args: &Args, path: &Path, report: &mut Report) -> Result<()> {
    let limit = args.limit_mb * 1_000_000;
    let vocab = shape_of(path, KvFormat::default())
        .with_context(|| format!("read the shape of {}", path.display()))?
        .vocab;
    let budget = (limit / 100 * USED_PERCENT).saturating_sub(BUFFER_BYTES + text_bytes(vocab));
    let with = |budget: u64, more: &[&str]| {
        let own = ["--budget".to_owned(), budget.to_string()];
        own.into_iter().chain(more.iter().map(|word| (*word).to_owned())).collect::<Vec<_>>()
    };
    let ways = [
        Way { name: "everything in memory", limited: false, options: Vec::new() },
        Way { name: "mapped", limited: true, options: Vec::new() },
        Way { name: "streamed", limited: true, options: with(budget, &[]) },
        Way { name: "without reading ahead", limited: true, options: with(budget, &["--no-read-ahead"]) },
        Way { name: "nothing stays", limited: true, options: with(0, &[]) },
    ];
    let before = rate(args, path)?;
    let mut figures = Vec::new();
    for way in &ways {
        let figure = run_way(args, path, way).with_context(|| format!("run the model: {}", way.name))?;
        eprintln!("{}: {:.0} ms a token", way.name, number(&figure, "/ms_per_token"));
        figures.push(figure);
    }
    let bytes_per_s = (before + rate(args, path)?) / 2.0;
    let weights = number(&figures[2], "/streamed/weight_bytes");
    let least = (weights - limit as f64).max(0.0);
    report.note(format!(
        "{}: {:.2} GB of weights, {:.2} GB of memory; the disk reads {:.2} GB/s{}",
        path.display(),
        weights / 1e9,
        limit as f64 / 1e9,
        bytes_per_s / 1e9,
        args.throttle_mb.map_or_else(String::new, |mb| format!(" (bounded to {mb} MB/s)")),
    ));
    table(&ways, &figures, least, report);
    checks(&figures, least, bytes_per_s, limit as f64, report);
    report.data("limit_bytes", limit);
    report.data("budget_bytes", budget);
    report.data("disk_bytes_per_s", bytes_per_s);
    report.data("least_bytes_per_token", least);
    let named = ways.iter().zip(figures).map(|(way, figure)| (way.name.to_owned(), figure));
    report.data("ways", Value::Object(named.collect()));
    Ok(())
}

/// Measures the disk's read rate in bytes per second, limited to the configured maximum.
fn rate(args: &Args, path: &Path) -> Result<f64> {
    let block = args.read_bytes.unwrap_or_else(disk::usual_block);
    let found = disk::sequential(path, block).context("measure the disk")?;
    Ok(args.throttle_mb.map_or(found, |mb| found.min(mb as f64 * 1e6)))
}

fn run_way(args: &Args, path: &Path, way: &Way) -> Result<Value> {
    let mut options = way.options.clone();
    options.extend(["--tokens".to_owned(), args.tokens.to_string()]);
    if let Some(bytes) = args.read_bytes.filter(|_| !way.options.is_empty()) {
        options.extend(["--read-bytes".to_owned(), bytes.to_string()]);
    }
    let limits = limits(args);
    run_worker(path, way.limited.then_some(&limits), &options)
}

/// Runs the worker on a model, with limits or without, and returns what it measured.
pub(crate) fn run_worker(path: &Path, limits: Option<&Limits>, options: &[String]) -> Result<Value> {
    let own = std::env::current_exe().context("find the running program")?;
    // Pages that are already cached would count for another group.
    forget(path)?;
    let group = limits.map(|limits| Cgroup::new("baton-residency", limits, path)).transpose()?;
    let mut command = group.as_ref().map_or_else(|| Command::new(&own), |group| group.command(&own));
    command.arg("residency-worker").arg(path).args(options);
    let out = command.stderr(std::process::Stdio::inherit()).output().context("start the worker")?;
    let text = String::from_utf8_lossy(&out.stdout);
    let mut figure: Value = serde_json::from_str(text.trim())
        .with_context(|| format!("the worker ended with {} and said `{}`", out.status, text.trim()))?;
    if let Some(group) = &group {
        figure["group_peak_bytes"] = json!(group.peak_bytes()?);
    }
    Ok(figure)
}

fn number(figure: &Value, pointer: &str) -> f64 {
    figure.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

fn table(ways: &[Way], figures: &[Value], least: f64, report: &mut Report) {
    let header = [
        "",
        "ms a token",
        "MB read a token",
        "of the least",
        "waited, ms",
        "faults",
        "unreclaimable, MB",
        "group's peak, MB",
    ];
    let row = |(way, figure): (&Way, &Value)| {
        let figure = |pointer: &str, per: f64, digits: usize| {
            let value = number(figure, pointer) / per;
            if value.is_nan() { String::new() } else { format!("{value:.digits$}") }
        };
        vec![
            way.name.to_owned(),
            figure("/ms_per_token", 1.0, 1),
            figure("/disk_bytes_per_token", 1e6, 1),
            if way.limited { figure("/disk_bytes_per_token", least, 3) } else { String::new() },
            figure("/streamed/waited_ms_per_token", 1.0, 1),
            figure("/streamed/major_faults_per_token", 1.0, 1),
            figure("/unreclaimable_bytes", 1e6, 1),
            figure("/group_peak_bytes", 1e6, 1),
        ]
    };
    let rows: Vec<_> = ways.iter().zip(figures).map(row).collect();
    report.table("decoding, one token at a time", &header, &rows);
}

fn checks(figures: &[Value], least: f64, bytes_per_s: f64, limit: f64, report: &mut Report) {
    let [memory, mapped, streamed, waiting, none] = figures else { return };
    let compute_ms = number(memory, "/ms_per_token");
    let read = number(streamed, "/disk_bytes_per_token");
    let bound_ms = compute_ms.max(number(streamed, "/streamed/bytes_per_token") / bytes_per_s * 1e3);
    let took_ms = number(streamed, "/ms_per_token");
    report.check_at_most("bytes read a token, of the least possible", read / least, READ_MAX);
    report.check_at_most(
        "time a token, of the larger of reading and computing",
        took_ms / bound_ms,
        TIME_MAX,
    );
    let beside = number(streamed, "/unreclaimable_bytes") - number(streamed, "/kv_bytes");
    report.check_at_most(
        "unreclaimable beside the KV cache, of the limit",
        beside / limit,
        UNRECLAIMABLE_MAX,
    );
    for (what, other) in [("mapped", mapped), ("without reading ahead", waiting), ("nothing stays", none)] {
        report.check_at_least(
            format!("times as fast as {what}"),
            number(other, "/ms_per_token") / took_ms,
            1.0,
        );
    }
    let digests: Vec<_> =
        figures.iter().map(|figure| figure["digest"].as_str().unwrap_or_default()).collect();
    let other = digests.iter().filter(|digest| **digest != digests[0] || digest.is_empty()).count();
    report.check_equal("ways whose logits differ", other as f64, 0.0);
}

/// Returns the free bytes on the disk with this folder.
#[cfg(target_os = "linux")]
pub(crate) fn free_bytes(folder: &Path) -> Result<u64> {
    let found = rustix::fs::statvfs(folder).with_context(|| format!("look at {}", folder.display()))?;
    Ok(found.f_bavail * found.f_frsize)
}

#[cfg(not(target_os = "linux"))]
pub fn free_bytes(_folder: &Path) -> Result<u64> {
    anyhow::bail!("memory can be limited on Linux only")
}

/// Drops the file from the page cache.
#[cfg(target_os = "linux")]
pub(crate) fn forget(path: &Path) -> Result<()> {
    let file = std::fs::File::open(path).with_context(|| format!("open {}", path.display()))?;
    file.sync_all().with_context(|| format!("write {} out", path.display()))?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).context("drop pages of the model")
}

#[cfg(not(target_os = "linux"))]
pub fn forget(_path: &Path) -> Result<()> {
    anyhow::bail!("pages can be dropped on Linux only")
}
