//! The workers that are measured in turn: Baton's engine, llama.cpp and ik_llama.cpp.

use std::process::Command;

use anyhow::{Context as _, Result};
use baton_engine::engine::KvFormat;
use serde_json::json;

use super::figure::Figure;
use super::peer::Peer;
use super::process::Worker;
use super::samples::Samples;
use super::worker::SHIPPED_KV;
use super::{Args, OURS, Subject};
use crate::report::Report;

/// The peers' default format of keys and values.
pub(super) const PEER_KV: &str = "f16";
/// The variants of llama.cpp: with weights as they are stored, and repacked.
pub(super) const LLAMA: [&str; 2] = ["llama.cpp repack 0", "llama.cpp repack 1"];
/// The same of ik_llama.cpp.
pub(super) const IK: [&str; 2] = ["ik repack 0", "ik repack 1"];

/// The workers that are measured in turn. A peer that fails is reported and not measured again.
pub(super) struct Programs {
    /// Baton first.
    pub running: Vec<Worker>,
    failed: Vec<(String, String)>,
}

impl Programs {
    /// Starts Baton and every variant of the peers.
    pub(super) fn start(
        args: &Args,
        subject: &Subject,
        peers: &[(&Peer, [&'static str; 2])],
        context_tokens: usize,
    ) -> Result<Self> {
        let mut programs = Self { running: vec![start_ours(args, subject, SHIPPED_KV)?], failed: Vec::new() };
        for (peer, names) in peers {
            let driver = peer.driver()?;
            for (name, repack) in names.iter().zip(["0", "1"]) {
                let mut command = Command::new(&driver);
                // Threads of OpenMP, which ik_llama.cpp uses; each on a CPU of its own.
                command.env("GOMP_CPU_AFFINITY", format!("0-{}", args.threads.get() - 1));
                command.arg(&subject.path);
                command.args([&args.threads.to_string(), repack, PEER_KV, &context_tokens.to_string()]);
                match Worker::start(name, &mut command) {
                    Ok(worker) => programs.running.push(worker),
                    Err(err) => programs.fail(name, &err),
                }
            }
        }
        Ok(programs)
    }

    fn fail(&mut self, name: &str, err: &anyhow::Error) {
        eprintln!("{name} failed, and is not measured any more: {err:#}");
        self.failed.push((name.to_owned(), format!("{err:#}")));
    }

    /// Measures one figure with every program. Each alternation starts with another program.
    pub(super) fn alternate(&mut self, figure: Figure, at: usize, samples: &mut Samples) -> Result<()> {
        let figure_name = figure.name();
        let count = self.running.len();
        let order: Vec<String> =
            (0..count).map(|turn| self.running[(at + turn) % count].name.clone()).collect();
        for name in order {
            let variants = [LLAMA, IK].into_iter().find(|variants| variants.contains(&name.as_str()));
            if variants.is_some_and(|all| at > 0 && samples.is_behind(&figure_name, &name, &all)) {
                continue;
            }
            let Some(idx) = self.running.iter().position(|program| program.name == name) else { continue };
            match self.running[idx].seconds(&figure.request()) {
                Ok(seconds) => samples.add(&figure_name, &name, at, figure.tokens() as f64 / seconds),
                Err(err) if variants.is_some() => {
                    self.running.remove(idx);
                    self.fail(&name, &err);
                }
                Err(err) => return Err(err),
            }
        }
        Ok(())
    }

    /// Reports failed variants. If all variants of a peer failed, ratios are NaN and their checks fail.
    pub(super) fn tell_failures(&self, subject: &Subject, report: &mut Report) {
        for (name, error) in &self.failed {
            report.note(format!("{name} failed on {}: {error}", subject.name));
        }
        report.data(&format!("{} failed peers", subject.name), json!(self.failed));
    }
}

/// Starts Baton's worker on the model, with the KV format `kv`.
pub(super) fn start_ours(args: &Args, subject: &Subject, kv: KvFormat) -> Result<Worker> {
    start_own(args, subject, kv, &[])
}

/// As [`start_ours`], with further options.
pub(super) fn start_own(args: &Args, subject: &Subject, kv: KvFormat, more: &[&str]) -> Result<Worker> {
    let mut command = own_command(args, subject, kv)?;
    command.args(more);
    Worker::start(OURS, &mut command)
}

/// Returns the command of Baton's worker.
pub(super) fn own_command(args: &Args, subject: &Subject, kv: KvFormat) -> Result<Command> {
    let own = std::env::current_exe().context("find the running program")?;
    let mut command = Command::new(own);
    command.arg("engine-worker").arg(&subject.path).args(["--kv", kv.name()]);
    command.args(["--threads", &args.threads.to_string(), "--context", &args.longest_tokens().to_string()]);
    Ok(command)
}
