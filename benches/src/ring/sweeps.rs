//! Measures how the speed of a ring of two devices changes with one parameter: context, latency, bandwidth,
//! other programs, concurrent requests, speculation. The speeds are only shown in a table. The checks require
//! that no parameter changes a token.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use baton_e2e::home::{Home, Planned, Seat, Task, model};
use baton_e2e::process::models_folder;
use baton_engine::engine::KvFormat;
use baton_synthetic::{Quant, SyntheticModel};
use serde_json::{Value, json};

use super::overhead::NAMES;
use super::{Bench, evenly, shape};
use crate::cgroup::{Cgroup, Limits};

const LAYERS: u32 = 4;
const CONTEXT: u32 = 33_000;
const CONTEXTS: [usize; 4] = [1024, 4096, 8192, 32_768];
const ROUND_TRIPS_MS: [u64; 5] = [1, 5, 20, 50, 200];
/// Bytes per second.
const BANDWIDTHS: [u64; 4] = [500_000, 2_000_000, 10_000_000, 100_000_000];
const SEQUENCES: [usize; 5] = [1, 2, 4, 8, 16];
/// The worker's memory in the test with another program, and the memory that this program takes.
const MEMORY: u64 = 800_000_000;
const TAKEN: &str = "450M";
const QUESTION: &str = "What do the models have in common?";

/// A process of another program, ended when dropped.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        // Errors are ignored, because the process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures all sweeps, and adds the table and the checks.
pub(super) fn measure(bench: &mut Bench<'_>) -> Result<()> {
    if !cfg!(target_os = "linux") {
        bench.skip("sweeps", "links lead over loopback addresses that only Linux has");
        return Ok(());
    }
    let path = bench.scratch.join("sweeps.gguf");
    write_model(&path)?;
    let home = two(bench, &path, Seat::new(NAMES[1]).on_cpu(1))?.with_links()?;
    let mut rows = Vec::new();
    contexts(bench, &home, &mut rows)?;
    distances(bench, &home, &mut rows)?;
    bandwidths(bench, &home, &mut rows)?;
    sequences(bench, &home, &mut rows)?;
    processor(bench, &home, &mut rows)?;
    drop(home);
    memory(bench, &mut rows)?;
    speculation(bench, &mut rows)?;
    let header = ["two devices, a thread each", "ms a step", "prompt, tokens/s", "tokens/s"];
    bench.report.table("sweeps", &header, &rows);
    Ok(())
}

fn write_model(path: &Path) -> Result<()> {
    let quant = Quant::find("Q4_K").context("no format Q4_K")?;
    let small = SyntheticModel::small("llama", quant, 6);
    let model = SyntheticModel { n_layers: LAYERS, context_len: CONTEXT, endless: true, ..small };
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    model.write_to(BufWriter::new(file), |_, _| {}).with_context(|| format!("write {}", path.display()))
}

fn two(bench: &Bench<'_>, path: &Path, worker: Seat) -> Result<Home> {
    let worker = worker.with("--threads").with("1").with("--model").with(path);
    let head = Seat::new(NAMES[0]).on_cpu(0);
    bench.wait(Home::below(&bench.scratch, path.to_owned(), head, &[worker]))
}

/// Runs one task and adds a row to the table. Returns the tokens that were written.
fn row(
    bench: &mut Bench<'_>,
    home: &Home,
    name: &str,
    task: &Task,
    rows: &mut Vec<Vec<String>>,
) -> Result<Value> {
    let given = Planned::shares(&evenly(&NAMES, LAYERS as usize), 1);
    let figure = bench.ring(home, task, &given).with_context(|| name.to_owned())?;
    let rate = 1e3 * task.sequences as f64 / figure.step_ms;
    eprintln!(
        "{name}: {:.2} ms a step, {:.0} tokens/s of the prompt",
        figure.step_ms, figure.prefill_tokens_per_s
    );
    rows.push(vec![
        name.to_owned(),
        format!("{:.2}", figure.step_ms),
        format!("{:.0}", figure.prefill_tokens_per_s),
        format!("{rate:.1}"),
    ]);
    bench.report.data(
        &format!("sweep {name}"),
        json!({ "step_ms": figure.step_ms, "prefill_tokens_per_s": figure.prefill_tokens_per_s }),
    );
    Ok(figure.answer["written"].clone())
}

fn contexts(bench: &mut Bench<'_>, home: &Home, rows: &mut Vec<Vec<String>>) -> Result<()> {
    for tokens in CONTEXTS {
        let task = Task { prompt: tokens, limit: Duration::from_secs(580), ..Task::of_tokens(8) };
        row(bench, home, &format!("context {tokens}"), &task, rows)?;
    }
    Ok(())
}

fn distances(bench: &mut Bench<'_>, home: &Home, rows: &mut Vec<Vec<String>>) -> Result<()> {
    let task = Task::of_tokens(8);
    let mut written = Vec::new();
    for ms in ROUND_TRIPS_MS {
        home.links.iter().for_each(|link| link.set(Duration::from_micros(500 * ms), None));
        written.push(row(bench, home, &format!("round trip {ms} ms"), &task, rows)?);
    }
    home.links.iter().for_each(|link| link.set(Duration::ZERO, None));
    equal(bench, "round trips", &written);
    Ok(())
}

fn bandwidths(bench: &mut Bench<'_>, home: &Home, rows: &mut Vec<Vec<String>>) -> Result<()> {
    let task = Task { prompt: 512, ..Task::of_tokens(8) };
    let mut written = Vec::new();
    for bytes_per_s in BANDWIDTHS {
        home.links.iter().for_each(|link| link.set(Duration::ZERO, Some(bytes_per_s)));
        let name = format!("bandwidth {:.1} MB/s", bytes_per_s as f64 / 1e6);
        written.push(row(bench, home, &name, &task, rows)?);
    }
    home.links.iter().for_each(|link| link.set(Duration::ZERO, None));
    equal(bench, "bandwidths", &written);
    Ok(())
}

fn sequences(bench: &mut Bench<'_>, home: &Home, rows: &mut Vec<Vec<String>>) -> Result<()> {
    let mut first = Vec::new();
    for sequences in SEQUENCES {
        let task = Task { prompt: 64, sequences, ..Task::of_tokens(16) };
        let written = row(bench, home, &format!("{sequences} requests at a time"), &task, rows)?;
        first.push(written[0].clone());
    }
    equal(bench, "requests at a time", &first);
    Ok(())
}

/// Measures with another program that computes on the worker's CPU.
fn processor(bench: &mut Bench<'_>, home: &Home, rows: &mut Vec<Vec<String>>) -> Result<()> {
    let task = Task::of_tokens(16);
    let alone = row(bench, home, "the worker's CPU for itself", &task, rows)?;
    let mut busy = Command::new("taskset");
    busy.args(["-c", "1", "sh", "-c", "while :; do :; done"]).stdin(Stdio::null());
    let other = Other(busy.spawn().context("start a program that computes")?);
    let shared = row(bench, home, "the worker's CPU shared", &task, rows)?;
    drop(other);
    equal(bench, "another program on the CPU", &[alone, shared]);
    Ok(())
}

/// Measures with another program that takes memory of the worker's group.
fn memory(bench: &mut Bench<'_>, rows: &mut Vec<Vec<String>>) -> Result<()> {
    let subject = bench.subject(&bench.args.model)?;
    let limits = Limits { memory: MEMORY, reads_per_s: None };
    let group = match Cgroup::new("baton-ring-desk", &limits, &subject.path) {
        Ok(group) => group,
        Err(err) => {
            bench.skip("another program taking memory", &format!("{err:#}"));
            return Ok(());
        }
    };
    let launcher = group.launcher().map(OsString::from).into();
    let home = two(bench, &subject.path, Seat { launcher, ..Seat::new(NAMES[1]) })?;
    let layers = shape(&subject)?.layers;
    let given = Planned::shares(&evenly(&NAMES, layers), 1);
    let task = Task { prompt: 32, ..Task::of_tokens(bench.args.tokens) };
    let before = bench.ring(&home, &task, &given)?;
    let taker = take(&group)?;
    let during = bench.ring(&home, &task, &given)?;
    drop(taker);
    for (name, figure) in
        [("the worker's memory for itself", &before), ("the worker's memory shared", &during)]
    {
        eprintln!("{name}: {:.2} ms", figure.step_ms);
        rows.push(vec![
            format!("{}: {name}", subject.name),
            format!("{:.2}", figure.step_ms),
            format!("{:.0}", figure.prefill_tokens_per_s),
            format!("{:.1}", 1e3 / figure.step_ms),
        ]);
    }
    bench.report.data("sweep memory", json!({ "before_ms": before.step_ms, "during_ms": during.step_ms }));
    let kills = group.kills()? + before.recoveries() + during.recoveries();
    bench.report.check_equal("sweeps: killed for memory, or lost", kills as f64, 0.0);
    equal(
        bench,
        "another program in memory",
        &[before.answer["written"].clone(), during.answer["written"].clone()],
    );
    Ok(())
}

/// Starts a program that holds memory until it is ended: its output buffer is never read completely.
fn take(group: &Cgroup) -> Result<Other> {
    let mut command = group.command(Path::new("dd"));
    command.args(["if=/dev/zero", "count=1", &format!("bs={TAKEN}")]);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("start a program that takes memory")?;
    let mut first = [0; 1];
    // When the first byte arrives, the whole buffer is filled.
    let out = child.stdout.as_mut().context("dd has no output")?;
    let read = out.read_exact(&mut first).context("wait for a program that takes memory");
    let other = Other(child);
    read.map(|()| other)
}

/// Compares the answers of the ring's agent with and without speculation, over links of 5 ms.
fn speculation(bench: &mut Bench<'_>, rows: &mut Vec<Vec<String>>) -> Result<()> {
    let path = bench.scratch.join("speculation.gguf");
    std::fs::copy(model(), &path).context("copy the demo's model")?;
    let home = two(bench, &path, Seat::new(NAMES[1]).on_cpu(1))?.with_links()?;
    home.links.iter().for_each(|link| link.set(Duration::from_millis(5), None));
    let given = Planned::shares(&evenly(&NAMES, shape_layers(&path)?), 1);
    let document = models_folder().join("README.md");
    let mut answers = Vec::new();
    let mut ms = Vec::new();
    for how in ["off", "lookup"] {
        let options = ["--max-tokens", "64", "--speculate", how];
        let report = bench.wait(home.ask(&document, QUESTION, &given, &options))?;
        let total_ms = report.total_ms.context("the report has no total_ms")?;
        let first_ms = report.ttft_user_ms.context("the report has no ttft_user_ms")?;
        let each = (total_ms - first_ms) / (report.tokens_from_device as f64 - 1.0).max(1.0);
        eprintln!("speculation {how}: {each:.2} ms a token");
        rows.push(vec![
            format!("speculation {how}, links of 5 ms"),
            format!("{each:.2}"),
            String::new(),
            format!("{:.1}", 1e3 / each),
        ]);
        answers.push(json!(report.answer));
        ms.push(each);
    }
    bench
        .report
        .data("sweep speculation", json!({ "off_ms": ms[0], "lookup_ms": ms[1], "gain": ms[0] / ms[1] }));
    equal(bench, "speculation", &answers);
    Ok(())
}

fn shape_layers(path: &Path) -> Result<usize> {
    Ok(baton_device::machine::shape::shape_of(path, KvFormat::default())
        .context("read the demo model's shape")?
        .layers)
}

/// Checks that all outputs equal the first one.
fn equal(bench: &mut Bench<'_>, what: &str, written: &[Value]) {
    let differ = written.iter().filter(|other| **other != written[0] || other.is_null()).count();
    bench.report.check_equal(format!("sweeps: {what}: runs whose tokens differ"), differ as f64, 0.0);
}
