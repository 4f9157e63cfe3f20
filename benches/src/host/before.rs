//! The programs of an earlier version and these, in turn. It runs one answer on a device, streams of the
//! cloud service, and short runs of other benches with each version's own `baton-bench`.
//!
//! Every figure is a time; the later version may take a little longer. Nothing is proposed, because earlier
//! versions of the service cannot.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use baton_pacing::refit::median;
use serde_json::{Value, json};

use super::clients::{Ask, Heard, Program, Until, program, tokens_per_s};
use super::{Bench, text};
use crate::engine::letters::Letters;
use crate::engine::samples::Samples;
use crate::engine::target_folder;
use crate::report::Report;

/// Maximum time, as a multiple of the earlier version's.
const TIME_MAX: f64 = 1.03;
/// Turns of a run that is not quick: fewer than those of the parts, because benches take long.
const TURNS_MAX: usize = 3;
const EARLIER: &str = "before";
const LATER: &str = "now";
const STREAMS: usize = 8;
const PROMPT: usize = 512;
const TOKENS: usize = 64;

/// How a figure becomes a time.
#[derive(Debug, Clone, Copy)]
enum Unit {
    Seconds,
    Milliseconds,
    /// So many a second.
    Rate,
}

/// What one bench needs to know of the model.
#[derive(Debug, Clone, Copy)]
enum Takes {
    Model,
    Nothing,
}

/// A short run of another bench, and the figures of its JSON object by their pointers. A figure that is a
/// list counts with its median.
struct Run {
    args: &'static [&'static str],
    takes: Takes,
    figures: &'static [(&'static str, &'static str, Unit)],
}

const RUNS: [Run; 4] = [
    Run {
        args: &[
            "cloud",
            "--prompts",
            "256",
            "--lengths",
            "20",
            "--slots",
            "4",
            "--alone",
            "2",
            "--rounds",
            "2",
        ],
        takes: Takes::Model,
        figures: &[
            ("cloud: slot time", "/256/cells/0/slot_s", Unit::Seconds),
            ("cloud: a request in a closed loop", "/256/cells/0/requests_per_s", Unit::Rate),
            ("engine: a step of 4 sequences", "/256/step_n_s", Unit::Seconds),
        ],
    },
    Run {
        args: &["prefix", "--quick", "--prefix", "256"],
        takes: Takes::Model,
        figures: &[
            ("prefix: first token with the cache", "/256/cached/ttft_p50_s", Unit::Seconds),
            ("prefix: first token without it", "/256/plain/ttft_p50_s", Unit::Seconds),
        ],
    },
    Run {
        args: &["hostile", "--only", "neighbour", "--requests", "60", "--turns", "1"],
        takes: Takes::Nothing,
        figures: &[("hostile: a neighbour's first token, quiet", "/ttft_ms/quiet", Unit::Milliseconds)],
    },
    Run {
        args: &["ring", "--only", "overhead,prefill", "--alternations", "1"],
        takes: Takes::Model,
        figures: &[
            ("ring: a token of a ring of one", "/overhead/one_ms", Unit::Milliseconds),
            ("ring: a token of two devices", "/overhead/two_ms/0", Unit::Milliseconds),
            ("ring: a prompt on two devices", "/prefill/two", Unit::Rate),
        ],
    },
];

/// One version of the programs.
struct Version {
    name: &'static str,
    device: Program,
    cloud: Program,
}

/// Measures both versions and adds the table and the checks.
pub(super) fn measure(bench: &Bench<'_>, folder: &Path, report: &mut Report) -> Result<()> {
    let turns = bench.alternations.min(TURNS_MAX);
    let earlier = linked(folder)?;
    let mut samples = Samples::default();
    let mut names: Vec<&'static str> = Vec::new();
    {
        let versions = [Version::start(EARLIER, Some(&earlier), bench)?, Version::start(LATER, None, bench)?];
        for at in 0..turns {
            for version in turned(&versions, at) {
                version.streams(at, &mut samples, &mut names)?;
            }
        }
    }
    let folders = [(EARLIER, Some(earlier.as_path())), (LATER, None)];
    for run in &RUNS {
        for at in 0..turns {
            for (name, folder) in turned(&folders, at) {
                run.measure(bench, name, *folder, at, &mut samples, &mut names)?;
            }
        }
    }
    add(bench, &names, &samples, report);
    Ok(())
}

/// Returns both, the first one alternating.
fn turned<T>(both: &[T; 2], at: usize) -> [&T; 2] {
    if at.is_multiple_of(2) { [&both[0], &both[1]] } else { [&both[1], &both[0]] }
}

/// Makes the earlier programs available in the build folder, where their benches keep their files.
fn linked(folder: &Path) -> Result<PathBuf> {
    let own = target_folder()?.join("before").join("programs");
    std::fs::create_dir_all(&own).with_context(|| format!("create {}", own.display()))?;
    for name in ["baton", "baton-cloud", "baton-bench"] {
        let (from, to) = (program(name, Some(folder))?, own.join(name));
        // A link of an earlier run.
        let _ = std::fs::remove_file(&to);
        let linked = std::fs::hard_link(&from, &to).or_else(|_| std::fs::copy(&from, &to).map(drop));
        linked.with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    }
    Ok(own)
}

impl Version {
    /// Starts the programs in `folder`, or those beside the running one.
    fn start(name: &'static str, folder: Option<&Path>, bench: &Bench<'_>) -> Result<Self> {
        let words = |options: &[(&str, String)]| -> Vec<String> {
            options.iter().flat_map(|(name, value)| [(*name).to_owned(), value.clone()]).collect()
        };
        let shared =
            [("--threads", bench.threads.to_string()), ("--kv-tokens", (STREAMS * 1024).to_string())];
        let mut device = words(&shared);
        device.extend(["--speculate", "off"].map(str::to_owned));
        let mut cloud = words(&shared);
        cloud.extend(words(&[("--slots", STREAMS.to_string()), ("--prefix-cache", "0".to_owned())]));
        if folder.is_none() {
            cloud.extend(["--speculate", "off"].map(str::to_owned));
        }
        let at = |name| program(name, folder);
        let device = Program::device(&at("baton")?, bench.model, &device)?;
        let cloud = Program::cloud(&at("baton-cloud")?, bench.model, &cloud)?;
        device.answers(&asks(1, 0))?; // Warms up.
        cloud.answers(&asks(1, 0))?;
        Ok(Self { name, device, cloud })
    }

    /// Measures one answer of each program, and several of the service.
    fn streams(&self, at: usize, samples: &mut Samples, names: &mut Vec<&'static str>) -> Result<()> {
        let mut add = |figure: &'static str, seconds: f64| {
            eprintln!("{} {}: {figure} {:.2} ms", self.name, at + 1, seconds * 1e3);
            keep(figure, self.name, at, seconds, samples, names);
        };
        let turn = 1 + at as u64;
        let one = self.device.answers(&asks(1, turn))?;
        add("device: first token", one[0].first_s());
        add("device: a token", token_s(&one)?);
        let one = self.cloud.answers(&asks(1, turn))?;
        add("cloud: first token of one stream", one[0].first_s());
        add("cloud: a token of one stream", token_s(&one)?);
        let begun = Instant::now();
        let all = self.cloud.answers(&asks(STREAMS, turn))?;
        add("cloud: 8 streams, whole", begun.elapsed().as_secs_f64());
        add(
            "cloud: 8 streams, first token (median)",
            median(all.iter().map(Heard::first_s)).context("no stream")?,
        );
        add("cloud: 8 streams, a token", token_s(&all)?);
        Ok(())
    }
}

/// Returns requests whose prompts differ in every turn.
fn asks(count: usize, turn: u64) -> Vec<Ask> {
    let mut letters = Letters::new(1000 * (1 + turn) + count as u64);
    let mut ask = || Ask { prompt: letters.prompt(PROMPT), tokens: TOKENS, temperature: 0.0, seed: 1 };
    (0..count).map(|_| ask()).collect()
}

/// Returns the seconds for one token of all answers together, from the moment at which each has its first
/// one. Answers to the first prompts may have ended by then, because prompts are computed one after another.
fn token_s(heard: &[Heard]) -> Result<f64> {
    Ok(1.0 / tokens_per_s(heard, Until::LastEnd).context("no token after the first ones")?)
}

fn keep(
    figure: &'static str,
    name: &str,
    at: usize,
    seconds: f64,
    samples: &mut Samples,
    names: &mut Vec<&'static str>,
) {
    if !names.contains(&figure) {
        names.push(figure);
    }
    samples.add(figure, name, at, seconds);
}

impl Run {
    /// Runs the bench with the programs in `folder`. Figures that it cannot measure here are left out.
    fn measure(
        &self,
        bench: &Bench<'_>,
        name: &str,
        folder: Option<&Path>,
        at: usize,
        samples: &mut Samples,
        names: &mut Vec<&'static str>,
    ) -> Result<()> {
        let mut command = Command::new(program("baton-bench", folder)?);
        command.args(self.args).arg("--json").stdin(Stdio::null()).stderr(Stdio::inherit());
        if matches!(self.takes, Takes::Model) {
            command.arg("--model").arg(bench.model);
        }
        eprintln!("{name} {}: {}", at + 1, self.args.join(" "));
        let output = command.output().with_context(|| format!("start {:?}", command.get_program()))?;
        // 1 says that a check fails, which a short run may.
        if !matches!(output.status.code(), Some(0 | 1)) {
            bail!("baton-bench {} ended with {}", self.args[0], output.status);
        }
        let told: Value =
            serde_json::from_slice(&output.stdout).context("read the JSON object of a bench")?;
        for (figure, pointer, unit) in self.figures {
            if let Some(seconds) = number(&told["data"], pointer).map(|value| unit.seconds(value)) {
                keep(figure, name, at, seconds, samples, names);
            }
        }
        Ok(())
    }
}

impl Unit {
    fn seconds(self, value: f64) -> f64 {
        match self {
            Self::Seconds => value,
            Self::Milliseconds => value / 1e3,
            Self::Rate => 1.0 / value,
        }
    }
}

/// Returns the number at `pointer`, or the median of the list there.
fn number(data: &Value, pointer: &str) -> Option<f64> {
    match data.pointer(pointer)? {
        Value::Array(list) => median(list.iter().filter_map(Value::as_f64)),
        value => value.as_f64(),
    }
}

fn add(bench: &Bench<'_>, names: &[&'static str], samples: &Samples, report: &mut Report) {
    let (mut rows, mut data) = (Vec::new(), Vec::new());
    for figure in names {
        let (earlier, later) = (samples.median(figure, EARLIER), samples.median(figure, LATER));
        let ratio = samples.ratio(figure, LATER, &[EARLIER]);
        let ms = |seconds: Option<f64>| text(seconds.map(|seconds| seconds * 1e3), 2);
        rows.push(vec![(*figure).to_owned(), ms(earlier), ms(later), text(ratio, 3)]);
        data.push(json!({ "figure": figure, "before_s": earlier, "now_s": later, "ratio": ratio }));
        if !bench.quick {
            report.check_at_most(format!("{figure}, of before"), ratio.unwrap_or(f64::NAN), TIME_MAX);
        }
    }
    let title = format!("{}: an earlier version and this one in turn, ms", bench.name);
    report.table(&title, &["", EARLIER, LATER, "ratio"], &rows);
    report.data("before", data);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_and_become_times() {
        let data = json!({ "256": { "cells": [{ "requests_per_s": 4.0 }] }, "ms": [1.0, 9.0, 2.0] });
        let rate = number(&data, "/256/cells/0/requests_per_s").map(|value| Unit::Rate.seconds(value));
        assert_eq!(rate, Some(0.25));
        assert_eq!(number(&data, "/ms").map(|value| Unit::Milliseconds.seconds(value)), Some(0.002));
        assert_eq!(number(&data, "/nothing"), None);
        assert_eq!(turned(&[1, 2], 3), [&2, &1]);
    }
}
