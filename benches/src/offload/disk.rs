//! Offloading to the disk: a model that is larger than its memory limit, in real time.
//!
//! The model runs in a control group. The disk's rate is measured before and after, with the threads and the
//! blocks of the engine. Each way of reading is compared with the default, and parts of the scheme are
//! switched off in turn. No second copy of a model is written whose tensors are merged. What that could bring
//! at most is measured by reads.

use std::path::Path;

use anyhow::{Context as _, Result};
use baton_device::machine::disk;
use baton_device::machine::residency::{BUFFER_BYTES, text_bytes};
use baton_device::machine::shape::shape_of;
use baton_engine::engine::KvFormat;
use baton_engine::gguf::Gguf;
use baton_engine::{Residency, STREAM_BYTES};
use baton_gpu::BlockRate;
use serde_json::{Value, json};

use super::Args;
use crate::cgroup::{Cgroup, Limits};
use crate::engine::peer::Peer;
use crate::engine::process::Worker;
use crate::engine::subject;
use crate::report::Report;
use crate::residency::{forget, free_bytes, run_worker};

/// Required disk space, for the files of both models and some room.
const DISK_BYTES: u64 = 9_000_000_000;
/// Share of a control group's memory that a device uses, by its rule for containers.
const USED_PERCENT: u64 = 98;
/// Least speed, of the disk's rate and the bytes that do not stay.
const OF_DISK_MIN: f64 = 0.8;
/// Least speed beside llama.cpp with the mapped file.
const BESIDE_PEER_MIN: f64 = 1.25;
/// Most bytes read for a token of a mixture, of those of the chosen experts that do not stay.
const MIXTURE_MAX: f64 = 1.2;
/// Least share of experts' bytes that are there when they are needed, of the share that fits.
const KEPT_MIN: f64 = 1.0;
const BATCHES: [usize; 4] = [4, 8, 16, 32];
const PROMPTS: [usize; 2] = [512, 2048];
/// Threads that compute.
const THREADS: usize = 2;
/// Tokens that llama.cpp decodes before and in the measurement.
const PEER_TOKENS: [usize; 2] = [1, 4];
/// Tokens of llama.cpp's context for decoding, and for prompts.
const PEER_CONTEXTS: [usize; 2] = [256, 2304];
/// Memory of the activations of a prompt's chunk, which a device does not set aside.
const CHUNK_BYTES: u64 = 200 << 20;
/// The way in which the system decides what stays.
const MAPPED: &str = "mapped by Baton";
/// Buffers if a matrix is read at once: one is computed with while one is read.
const WHOLE_BUFFERS: u64 = 2;
/// Tokens of a block of the cache.
const BLOCK: u64 = baton_engine::BLOCK_TOKENS as u64;

/// A configuration in which the model runs.
struct Way {
    name: String,
    batch: usize,
    limited: bool,
    options: Vec<String>,
}

impl Way {
    fn new(name: impl Into<String>, limited: bool, options: &[&str]) -> Self {
        let options = options.iter().map(|word| (*word).to_owned()).collect();
        Self { name: name.into(), batch: 1, limited, options }
    }

    /// Whether weights are read past the page cache.
    fn reads(&self) -> bool {
        self.options.iter().any(|option| option == "--budget")
    }

    fn of_batch(batch: usize, budget: u64) -> Self {
        let (budget, number) = (budget.to_string(), batch.to_string());
        let way = Self::new(format!("batch of {batch}"), true, &["--budget", &budget, "--batch", &number]);
        Self { batch, ..way }
    }
}

/// A model in its memory.
struct Setting<'a> {
    path: &'a Path,
    limits: Limits,
    /// Bytes for weights.
    budget: u64,
    kv_token_bytes: u64,
    /// How weights are read, in blocks of the size that is best for this disk.
    reads: Residency,
    /// The rates of all sizes.
    blocks: Vec<BlockRate>,
}

impl<'a> Setting<'a> {
    fn new(path: &'a Path, limit_mb: u64) -> Result<Self> {
        let shape = shape_of(path, KvFormat::default())
            .with_context(|| format!("read the shape of {}", path.display()))?;
        let limit = limit_mb * 1_000_000;
        let blocks = disk::measure(path).context("measure the disk")?.blocks;
        let block = disk::block_of(&blocks).unwrap_or_else(disk::usual_block);
        let budget = (limit / 100 * USED_PERCENT).saturating_sub(BUFFER_BYTES + text_bytes(shape.vocab));
        Ok(Self {
            path,
            limits: Limits { memory: limit, reads_per_s: None },
            budget,
            kv_token_bytes: (shape.kv_bytes * shape.layers as f64) as u64,
            reads: Residency::default().with_reads_of(block),
            blocks,
        })
    }

    /// Returns the budget that is left beside a cache of so many tokens.
    fn beside(&self, kv_tokens: u64) -> u64 {
        self.budget.saturating_sub(kv_tokens * self.kv_token_bytes)
    }

    fn run(&self, args: &Args, way: &Way) -> Result<Value> {
        let mut options = way.options.clone();
        options.extend(["--tokens".to_owned(), args.tokens.to_string()]);
        // A way that says nothing else reads as the program does.
        for (name, value) in [("--read-bytes", self.reads.read_bytes), ("--buffers", self.reads.buffers)] {
            if way.reads() && !options.iter().any(|option| option == name) {
                options.extend([name.to_owned(), value.to_string()]);
            }
        }
        let limits = way.limited.then_some(&self.limits);
        let figure = run_worker(self.path, limits, &options)
            .with_context(|| format!("run the model: {}", way.name))?;
        eprintln!("{}: {:.0} ms a step", way.name, number(&figure, "/ms_per_token"));
        Ok(figure)
    }

    fn disk(&self) -> Result<f64> {
        disk::sequential(self.path, self.reads.read_bytes).context("measure the disk")
    }
}

/// Returns the reason why this part cannot run here, or `None` if it can.
fn lacks(args: &Args, target: &Path) -> Option<String> {
    match free_bytes(target) {
        Ok(free) if free < DISK_BYTES && !args.model.ends_with(".gguf") => {
            return Some(format!("{free} bytes are free on the disk, {DISK_BYTES} are needed"));
        }
        Ok(_) => {}
        Err(err) => return Some(format!("{err:#}")),
    }
    let limits = Limits { memory: args.limit_mb * 1_000_000, reads_per_s: None };
    Cgroup::new("baton-offload", &limits, target).err().map(|err| format!("{err:#}"))
}

/// Measures the dense model and the mixture, one after the other.
pub(super) fn measure(args: &Args, target: &Path, report: &mut Report) -> Result<()> {
    if let Some(reason) = lacks(args, target) {
        report.note(format!("skipped: disk: {reason}"));
        report.data("disk_skipped", reason);
        return Ok(());
    }
    with_model(&args.model, target, |path| dense(args, target, path, report))?;
    with_model(&args.mixture, target, |path| mixture(args, path, report))
}

/// Runs something on a model's file, which is removed afterwards if it was not there before.
pub(super) fn with_model(model: &str, target: &Path, run: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let kept = target.join("models").join(format!("{model}-Q4_K_M.gguf")).is_file();
    let subject = subject(model, target)?;
    let done = run(&subject.path);
    if !kept && !model.ends_with(".gguf") {
        std::fs::remove_file(&subject.path).with_context(|| format!("remove {}", subject.path.display()))?;
    }
    done
}

fn ways(setting: &Setting<'_>) -> Result<Vec<Way>> {
    let budget = setting.budget.to_string();
    // A read for each part of a matrix that does not stay, and buffers that take some of the budget.
    let matrix = largest_matrix(setting.path)?;
    let beside = (WHOLE_BUFFERS * matrix).saturating_sub(STREAM_BYTES);
    let (less, matrix) = (setting.budget.saturating_sub(beside).to_string(), matrix.to_string());
    let whole = ["--budget", &less, "--read-bytes", &matrix, "--buffers", &WHOLE_BUFFERS.to_string()];
    let own = |name: &str, more: &[&str]| {
        let options: Vec<&str> = ["--budget", &budget].into_iter().chain(more.iter().copied()).collect();
        Way::new(name, true, &options)
    };
    let mut ways = vec![
        Way::new("everything in memory", false, &[]),
        own("performance (default)", &[]),
        own("memory-efficient: two buffers", &["--buffers", "2"]),
        own("synchronous: no reading ahead", &["--no-read-ahead"]),
        own("one reading thread", &["--reading-threads", "1"]),
        own("eight reading threads", &["--reading-threads", "8"]),
        Way::new("blockwise off: one read per matrix", true, &whole),
        own("reads of up to 8 MB, five buffers", &["--read-bytes", "8000000", "--buffers", "5"]),
        own("reads of up to 64 KiB, 640 buffers", &["--read-bytes", "65536", "--buffers", "640"]),
        Way::new(MAPPED, true, &[]),
    ];
    ways.extend(BATCHES.map(|batch| Way::of_batch(batch, setting.beside(batch as u64 * BLOCK))));
    Ok(ways)
}

/// Returns the bytes of the largest matrix of the layers.
fn largest_matrix(path: &Path) -> Result<u64> {
    let gguf = Gguf::open(path).with_context(|| format!("open {}", path.display()))?;
    let layers = gguf.tensors().filter(|tensor| tensor.name().starts_with("blk."));
    layers.map(|tensor| tensor.data_len() as u64).max().context("a model without layers")
}

fn dense(args: &Args, target: &Path, path: &Path, report: &mut Report) -> Result<()> {
    let setting = Setting::new(path, args.limit_mb)?;
    let ways = ways(&setting)?;
    let turns = Turns::run(args, &setting, &ways)?;
    let Turns { figures, rates, .. } = &turns;
    let prompts = first_tokens(args, &setting)?;
    let weights = number(&figures[1], "/streamed/weight_bytes");
    let streamed = weights - number(&figures[1], "/streamed/resident_bytes");
    let (slowest, fastest) = rates
        .iter()
        .fold((f64::INFINITY, 0.0f64), |(slowest, fastest), rate| (slowest.min(*rate), fastest.max(*rate)));
    report.note(format!(
        "\n{}: {:.2} GB of weights, a memory limit of {:.2} GB, {:.2} GB do not stay. The disk reads {:.2} to \
         {:.2} GB/s, measured before and after each run as the engine reads. Of each way the fastest of {} turns counts.",
        path.file_name().unwrap_or_default().to_string_lossy(),
        weights / 1e9,
        setting.limits.memory as f64 / 1e9,
        streamed / 1e9,
        slowest / 1e9,
        fastest / 1e9,
        args.turns,
    ));
    table(&ways, figures, report);
    block_table(&setting, report);
    checks(&ways, figures, report);
    turns.check("disk", report);
    merged(args, &setting, report)?;
    let own_rate = rate(&ways[1], &figures[1]);
    peer(args, target, &setting, (own_rate, &prompts), report);
    report.data("disk_bytes_per_s", json!(rates));
    report.data("limit_bytes", setting.limits.memory);
    let named = ways.into_iter().zip(turns.figures).map(|(way, figure)| (way.name, figure));
    report.data("disk", Value::Object(named.collect()));
    report.data("first_token_ms", prompts);
    Ok(())
}

/// What some ways gave in several turns.
struct Turns {
    /// The fastest figure of each way, each with the disk's rate at that time.
    figures: Vec<Value>,
    /// The disk's bytes per second before each run, and after the last one.
    rates: Vec<f64>,
    /// Runs whose logits differ from the first one's.
    differing: usize,
}

impl Turns {
    /// Runs all ways in turn, several times. In the first way everything is in memory.
    fn run(args: &Args, setting: &Setting<'_>, ways: &[Way]) -> Result<Self> {
        let mut best: Vec<Option<Value>> = vec![None; ways.len()];
        let (mut rates, mut differing, mut want) = (vec![setting.disk()?], 0, None);
        for _ in 0..args.turns.get() {
            for (best, way) in best.iter_mut().zip(ways) {
                let mut figure = setting.run(args, way)?;
                let (before, after) = (rates[rates.len() - 1], setting.disk()?);
                rates.push(after);
                figure["disk_bytes_per_s"] = json!((before + after) / 2.0);
                let digest = figure["digest"].as_str().context("the worker says no digest")?.to_owned();
                differing += usize::from(want.get_or_insert_with(|| digest.clone()) != &digest);
                let ms = |figure: &Value| number(figure, "/ms_per_token");
                if best.as_ref().is_none_or(|best| ms(&figure) < ms(best)) {
                    *best = Some(figure);
                }
            }
        }
        Ok(Self { figures: best.into_iter().flatten().collect(), rates, differing })
    }

    /// Checks that no bit of the logits depends on the way.
    fn check(&self, what: &str, report: &mut Report) {
        let name = format!("{what}: runs whose logits differ from everything in memory");
        report.check_equal(name, self.differing as f64, 0.0);
    }
}

/// Returns the tokens a second, of what the disk's rate at that time gives for the bytes that do not stay.
fn of_disk(way: &Way, figure: &Value) -> f64 {
    let streamed = number(figure, "/streamed/weight_bytes") - number(figure, "/streamed/resident_bytes");
    rate(way, figure) / way.batch as f64 * streamed / number(figure, "/disk_bytes_per_s")
}

/// Returns the tokens a second of all sequences.
fn rate(way: &Way, figure: &Value) -> f64 {
    way.batch as f64 * 1e3 / number(figure, "/ms_per_token")
}

fn number(figure: &Value, pointer: &str) -> f64 {
    figure.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

/// Measures the time to the first token after prompts, with less budget beside the longer cache.
fn first_tokens(args: &Args, setting: &Setting<'_>) -> Result<Value> {
    let longest = PROMPTS[PROMPTS.len() - 1] as u64;
    let budget = setting.beside(longest).saturating_sub(CHUNK_BYTES).to_string();
    let prompts = PROMPTS.map(|tokens| tokens.to_string()).join(",");
    let options = ["--budget", &budget, "--prompts", &prompts];
    let way = Way::new("prompts", true, &options);
    let figure = setting.run(&Args { tokens: 1, ..args.clone() }, &way)?;
    Ok(figure["first_token_ms"].clone())
}

fn table(ways: &[Way], figures: &[Value], report: &mut Report) {
    let default = rate(&ways[1], &figures[1]);
    let header = [
        "",
        "tokens/s",
        "beside default",
        "disk, GB/s",
        "of the disk's",
        "MB read a step",
        "waited, ms",
        "group's peak, MB",
    ];
    let row = |(way, figure): (&Way, &Value)| {
        let figure_of = |pointer: &str, per: f64, digits: usize| {
            let value = number(figure, pointer) / per;
            if value.is_nan() { String::new() } else { format!("{value:.digits$}") }
        };
        let rate = rate(way, figure);
        vec![
            way.name.clone(),
            format!("{rate:.3}"),
            format!("{:.2}", rate / default),
            figure_of("/disk_bytes_per_s", 1e9, 2),
            Some(of_disk(way, figure))
                .filter(|share| share.is_finite())
                .map_or_else(String::new, |share| format!("{share:.2}")),
            figure_of("/disk_bytes_per_token", 1e6, 0),
            figure_of("/streamed/waited_ms_per_token", 1.0, 0),
            figure_of("/group_peak_bytes", 1e6, 0),
        ]
    };
    let rows: Vec<_> = ways.iter().zip(figures).map(row).collect();
    report.table("from the disk: tokens a second of all sequences together", &header, &rows);
}

fn block_table(setting: &Setting<'_>, report: &mut Report) {
    let row = |rate: &BlockRate| {
        let size = rate.block_bytes as usize;
        let is_used = if size == setting.reads.read_bytes { "used" } else { "" };
        vec![format!("{} KiB", size >> 10), format!("{:.2}", rate.bytes_per_s / 1e9), is_used.to_owned()]
    };
    let rows: Vec<_> = setting.blocks.iter().map(row).collect();
    let title = format!("the disk, by {} threads at random positions: blocks of", setting.reads.threads);
    report.table(&title, &["", "GB/s", ""], &rows);
    report.data("disk_blocks", json!(setting.blocks));
}

/// Measures what a copy of the model could bring at most whose tensors are merged into extents. The bytes
/// that a token reads are read in one run of large blocks, beside the reads of the engine.
fn merged(args: &Args, setting: &Setting<'_>, report: &mut Report) -> Result<()> {
    let budget = setting.budget.to_string();
    let way = Way::new("the reads of a token alone", true, &["--budget", &budget, "--reads-alone"]);
    let figure = setting.run(&Args { tokens: 1, ..args.clone() }, &way)?;
    let found = &figure["reads_alone"];
    let row = |name: &str, reads: &str, bytes_per_s: &str| {
        let (reads, rate) = (number(found, reads), number(found, bytes_per_s));
        vec![name.to_owned(), format!("{reads:.0}"), format!("{:.2}", rate / 1e9)]
    };
    let rows = [
        row("reads of the engine", "/reads", "/bytes_per_s"),
        row("upper bound of merged extents: one run of large blocks", "/merged_reads", "/merged_bytes_per_s"),
    ];
    report.table("from the disk: the bytes of a token without computing", &["", "reads", "GB/s"], &rows);
    report.data("disk_reads_alone", found.clone());
    Ok(())
}

fn checks(ways: &[Way], figures: &[Value], report: &mut Report) {
    report.check_at_least(
        "disk: tokens/s, of the disk's rate by the bytes that do not stay",
        of_disk(&ways[1], &figures[1]),
        OF_DISK_MIN,
    );
    let default = rate(&ways[1], &figures[1]);
    for (way, figure) in ways.iter().zip(figures).filter(|(way, _)| way.name == MAPPED) {
        report.check_at_least(format!("disk: times as fast as `{MAPPED}`"), default / rate(way, figure), 1.0);
    }
    let least =
        number(&figures[1], "/streamed/weight_bytes") - number(&figures[1], "/streamed/resident_bytes");
    report.check_at_most(
        "disk: bytes read a token, of those that do not stay",
        number(&figures[1], "/disk_bytes_per_token") / least,
        MIXTURE_MAX,
    );
    for (way, figure) in ways.iter().zip(figures).filter(|(way, _)| way.batch > 1) {
        let least = number(figure, "/streamed/weight_bytes") - number(figure, "/streamed/resident_bytes");
        let name = format!("disk, {}: bytes read a step, of those that do not stay", way.name);
        report.check_at_most(name, number(figure, "/disk_bytes_per_token") / least, MIXTURE_MAX);
    }
}

/// What llama.cpp took.
struct PeerTimes {
    tokens_per_s: f64,
    first_token_ms: [f64; 2],
}

/// Runs llama.cpp with the mapped file in a group of the same size.
fn peer_times(args: &Args, target: &Path, setting: &Setting<'_>) -> Result<PeerTimes> {
    let driver = Peer::found(args.peer.as_deref(), target)?.driver()?;
    let start = |context: usize| -> Result<(Worker, Cgroup)> {
        forget(setting.path)?;
        let group = Cgroup::new("baton-offload", &setting.limits, setting.path)?;
        let mut command = group.command(&driver);
        let (threads, context) = (THREADS.to_string(), context.to_string());
        command.arg(setting.path).args([&*threads, "0", "f16", &*context]);
        Ok((Worker::start("llama.cpp", &mut command)?, group))
    };
    let (mut worker, group) = start(PEER_CONTEXTS[0])?;
    let [warm, tokens] = PEER_TOKENS;
    worker.seconds(&format!("decode 0 {warm}"))?;
    let seconds = worker.seconds(&format!("decode 0 {tokens}"))?;
    eprintln!("llama.cpp: {:.0} ms a token", seconds * 1e3 / tokens as f64);
    drop(worker);
    drop(group);
    let (mut worker, _group) = start(PEER_CONTEXTS[1])?;
    let mut first_token_ms = [f64::NAN; 2];
    for (ms, prompt) in first_token_ms.iter_mut().zip(PROMPTS) {
        *ms = worker.seconds(&format!("prefill {prompt}"))? * 1e3;
    }
    Ok(PeerTimes { tokens_per_s: tokens as f64 / seconds, first_token_ms })
}

fn peer(args: &Args, target: &Path, setting: &Setting<'_>, own: (f64, &Value), report: &mut Report) {
    let (rate, prompts) = own;
    let times = peer_times(args, target, setting);
    let mut rows: Vec<Vec<String>> = PROMPTS
        .iter()
        .enumerate()
        .map(|(at, tokens)| {
            let own = number(prompts, &format!("/{tokens}")) / 1e3;
            let peer = times.as_ref().map(|times| format!("{:.1}", times.first_token_ms[at] / 1e3));
            vec![format!("first token after {tokens}, s"), format!("{own:.1}"), peer.unwrap_or_default()]
        })
        .collect();
    let peer_rate = times.as_ref().map(|times| format!("{:.3}", times.tokens_per_s)).unwrap_or_default();
    rows.push(vec!["decoding, tokens/s".to_owned(), format!("{rate:.3}"), peer_rate]);
    report.table("from the disk, beside llama.cpp with the mapped file", &["", "baton", "llama.cpp"], &rows);
    match times {
        Ok(times) => {
            let name = "disk: times as fast as llama.cpp with the mapped file";
            report.check_at_least(name, rate / times.tokens_per_s, BESIDE_PEER_MIN);
            report.data(
                "llama_cpp",
                json!({ "tokens_per_s": times.tokens_per_s, "first_token_ms": times.first_token_ms }),
            );
        }
        Err(err) => {
            report.note(format!("skipped: llama.cpp: {err:#}"));
            report.data("llama_cpp_skipped", format!("{err:#}"));
        }
    }
}

/// A mixture: only chosen experts are read.
fn mixture(args: &Args, path: &Path, report: &mut Report) -> Result<()> {
    let setting = Setting::new(path, args.mixture_limit_mb)?;
    let budget = setting.budget.to_string();
    let ways = [
        Way::new("everything in memory", false, &[]),
        Way::new("performance (default)", true, &["--budget", &budget]),
        Way::new("synchronous: no reading ahead", true, &["--budget", &budget, "--no-read-ahead"]),
        Way::new(MAPPED, true, &[]),
    ];
    let turns = Turns::run(args, &setting, &ways)?;
    let figures = &turns.figures;
    let own = &figures[1];
    let weights = number(own, "/streamed/weight_bytes");
    let streamed = number(own, "/streamed/streamed_bytes");
    let missing = weights - number(own, "/streamed/resident_bytes");
    let read = number(own, "/streamed/expert_bytes_per_token");
    let least = streamed + read;
    let kept = number(own, "/streamed/kept_expert_bytes_per_token");
    let was_there = kept / (kept + read);
    let fits = number(own, "/streamed/kept_bytes") / number(own, "/streamed/all_expert_bytes");
    report.note(format!(
        "\n{}: {:.2} GB of weights, a memory limit of {:.2} GB, {:.2} GB do not stay; {} of {} experts a token.\n\
         Of the experts those used most stay: {:.1} % of what tokens needed was there, and {:.1} % of all \
         experts fit.",
        path.file_name().unwrap_or_default().to_string_lossy(),
        weights / 1e9,
        setting.limits.memory as f64 / 1e9,
        missing / 1e9,
        number(own, "/experts/used"),
        number(own, "/experts/count"),
        100.0 * was_there,
        100.0 * fits,
    ));
    let row = |(way, figure): (&Way, &Value)| {
        let read = number(figure, "/disk_bytes_per_token");
        let of = |bytes: f64| if way.limited { format!("{:.3}", read / bytes) } else { String::new() };
        vec![
            way.name.clone(),
            format!("{:.3}", rate(way, figure)),
            format!("{:.2}", rate(way, figure) / rate(&ways[1], own)),
            format!("{:.1}", read / 1e6),
            of(least),
            of(missing),
        ]
    };
    let rows: Vec<_> = ways.iter().zip(figures).map(row).collect();
    let header = [
        "",
        "tokens/s",
        "beside default",
        "MB read a token",
        "of the chosen experts'",
        "of all that is missing",
    ];
    report.table("a mixture from the disk", &header, &rows);
    report.check_at_most(
        "disk, mixture: bytes read a token, of the chosen experts' that do not stay",
        number(own, "/disk_bytes_per_token") / least,
        MIXTURE_MAX,
    );
    let name = "disk, mixture: experts that were there, of the share that fits";
    report.check_at_least(name, was_there / fits, KEPT_MIN);
    turns.check("disk, mixture", report);
    let named = ways.into_iter().zip(turns.figures).map(|(way, figure)| (way.name, figure));
    report.data("disk_mixture", Value::Object(named.collect()));
    Ok(())
}
