//! Runs a model of 32 billion weights on four devices whose total memory is smaller than the model. It must
//! answer, and no process may be killed for exceeding its memory.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use baton_e2e::home::{Home, Planned, Seat, Task};
use serde_json::json;

use super::{Bench, Prediction, disk_rate, on_one_disk};
use crate::cgroup::{Cgroup, Limits};
use crate::engine::Subject;
use crate::residency::free_bytes;

const SHAPE: &str = "llama-30b";
const NAMES: [&str; 4] = ["head", "desk", "phone", "tablet"];
/// Memory of each device in bytes.
const MEMORY: u64 = 3_000_000_000;
/// Required disk space, for the model file, the workers' parts of it, and some room.
const DISK_BYTES: u64 = 42_000_000_000;
const TOKENS: usize = 5;

/// Runs the model and adds the table and the checks. Each worker fetches its layers from the head and reads
/// its own file.
pub(super) fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let limits = Limits { memory: MEMORY, reads_per_s: None };
    let kept = bench.models.join(format!("{SHAPE}-Q4_K_M.gguf")).is_file();
    match free_bytes(&bench.scratch) {
        // The model file needs little more than half of this space.
        Ok(free) if free < if kept { DISK_BYTES / 2 } else { DISK_BYTES } => {
            bench.skip("large", &format!("{free} bytes are free on the disk, {DISK_BYTES} are needed"));
            return Ok(());
        }
        Ok(_) => {}
        Err(err) => {
            bench.skip("large", &format!("{err:#}"));
            return Ok(());
        }
    }
    if let Err(err) = Cgroup::new("baton-ring", &limits, &bench.scratch) {
        bench.skip("large", &format!("{err:#}"));
        return Ok(());
    }
    let subject = bench.subject(SHAPE)?;
    let parts = bench.scratch.join("parts");
    let measured = run(bench, &subject, &limits, &parts);
    if parts.is_dir() {
        std::fs::remove_dir_all(&parts).context("remove the workers' parts of the model")?;
    }
    if !kept {
        std::fs::remove_file(&subject.path).with_context(|| format!("remove {}", subject.path.display()))?;
    }
    measured
}

fn run(bench: &mut Bench<'_>, subject: &Subject, limits: &Limits, parts: &Path) -> Result<()> {
    let group = |name: &&str| Cgroup::new(&format!("baton-ring-{name}"), limits, &subject.path);
    let groups = NAMES.iter().map(group).collect::<Result<Vec<_>>>()?;
    let seat = |at: usize| {
        let launcher = groups[at].launcher().map(OsString::from).into();
        Seat { launcher, ..Seat::new(NAMES[at]) }.with("--memory").with("auto")
    };
    let worker =
        |at: usize| seat(at).with("--threads").with("1").with("--weights").with(parts.join(NAMES[at]));
    let workers: Vec<Seat> = (1..NAMES.len()).map(worker).collect();
    let home = bench.wait(Home::below(&bench.scratch, subject.path.clone(), seat(0), &workers))?;
    let task = Task { prompt: 8, limit: Duration::from_secs(900), ..Task::of_tokens(TOKENS) };
    let before = disk_rate(&subject.path)?;
    let figure = bench.ring(&home, &task, &Planned::Searched);
    let disk = (before + disk_rate(&subject.path)?) / 2.0;
    let kills = groups.iter().map(Cgroup::kills).sum::<Result<u64>>()?;
    let figure = figure.with_context(|| format!("{kills} processes were killed for memory"))?;
    let peaks = groups.iter().map(Cgroup::peak_bytes).collect::<Result<Vec<_>>>()?;
    let predicted = figure.predicted().context("the ring's bench printed no plan")?;
    let layers = |name: &str| {
        let share = predicted.plan.shares.iter().find(|share| share.device == name);
        share.map_or(0, |share| share.layers)
    };
    let row = |(name, peak): (&&str, &u64)| {
        vec![(*name).to_owned(), layers(name).to_string(), format!("{:.2}", *peak as f64 / 1e9)]
    };
    let rows: Vec<_> = NAMES.iter().zip(&peaks).map(row).collect();
    let title = format!(
        "{SHAPE} on four devices of {:.0} GB, {} rounds: {:.0} ms a token",
        MEMORY as f64 / 1e9,
        predicted.plan.rounds,
        figure.step_ms
    );
    bench.report.table(&title, &["", "layers", "group's peak, GB"], &rows);
    let written = figure.answer["written"][0].as_array().map_or(0, Vec::len);
    bench.report.check_equal("large: tokens written", written as f64, TOKENS as f64);
    bench.report.check_equal("large: processes killed for memory", kills as f64, 0.0);
    bench.report.check_equal("large: devices lost", figure.recoveries() as f64, 0.0);
    if let Some(predicted_ms) = on_one_disk(&figure, disk) {
        let measured_ms = figure.step_ms;
        bench.predictions.push(Prediction { of: "large".to_owned(), predicted_ms, measured_ms });
    }
    bench.report.data(
        "large",
        json!({ "step_ms": figure.step_ms, "disk_bytes_per_s": disk, "plan": predicted.plan, "group_peak_bytes": peaks, "kills": kills }),
    );
    Ok(())
}
