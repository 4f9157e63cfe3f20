//! Compares this ring with those of llama.cpp and prima.cpp: two devices with one thread each and enough
//! memory.
//!
//! llama.cpp is downloaded and built as in the bench `engine`. prima.cpp is measured if a folder with a build
//! of it is given.

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use baton_e2e::home::{Planned, Task};
use baton_pacing::refit::median;
use serde_json::{Value, json};

use super::overhead::{NAMES, home};
use super::prima::{Prima, Run};
use super::{Bench, evenly, median_ms, shape};
use crate::engine::peer::Peer;
use crate::engine::{Subject, target_folder};

/// Maximum time until llama.cpp's server listens: a hang guard.
const START: Duration = Duration::from_secs(60);

/// A process that is killed when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Errors are ignored, because the process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Another program's milliseconds of a token in each turn.
struct Peered {
    name: &'static str,
    token_ms: Vec<f64>,
}

/// Measures decoding on two devices, and adds the table and the checks.
pub(super) fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let llama = Peer::ready(bench.args.peer.as_deref(), &target_folder()?).and_then(|peer| peer.ring());
    let llama = or_skipped(bench, "llama.cpp", llama);
    let prima = prima(bench);
    let subject = bench.subject(&bench.args.model)?;
    let layers = shape(&subject)?.layers;
    let home = home(bench, &subject)?;
    let tokens = bench.args.tokens;
    let task = Task { prompt: 32, ..Task::of_tokens(tokens) };
    let given = Planned::shares(&evenly(&NAMES, layers), 1);
    let mut ours = Vec::new();
    let mut theirs: Vec<Peered> = Vec::new();
    for turn in 1..=bench.args.alternations {
        ours.push(bench.ring(&home, &task, &given)?);
        let mut seen = Vec::new();
        if let Some(programs) = &llama {
            seen.push(("llama.cpp's rpc", bench.wait(llama_ms(programs, &subject, layers, tokens))?));
        }
        if let Some(prima) = &prima {
            let windows = [layers - layers / 2, layers / 2];
            let launchers = [0, 1].map(|cpu| ["taskset", "-c", &cpu.to_string()].map(OsString::from).into());
            let run = Run { model: &subject.path, windows, tokens, launchers };
            seen.push(("prima.cpp", bench.wait(prima.token_ms(&run))?));
        }
        eprintln!("{turn}/{}: {:.2} ms, {seen:?}", bench.args.alternations, ours[turn - 1].step_ms);
        for (name, token_ms) in seen {
            match theirs.iter_mut().find(|peer| peer.name == name) {
                Some(peer) => peer.token_ms.push(token_ms),
                None => theirs.push(Peered { name, token_ms: vec![token_ms] }),
            }
        }
    }
    report(bench, &subject.name, median_ms(&ours), &theirs);
    Ok(())
}

/// Returns what was found; if it is missing, reports the part as skipped and returns `None`.
fn or_skipped<T>(bench: &mut Bench<'_>, name: &str, found: Result<T>) -> Option<T> {
    found.map_err(|err| bench.skip(name, &format!("{err:#}"))).ok()
}

/// Returns prima.cpp if a folder with a build of it is given.
pub(super) fn prima(bench: &mut Bench<'_>) -> Option<Prima> {
    let folder = bench.args.prima.clone();
    let folder = folder.context("no --prima DIR with a build of it (make llama-cli; needs ZeroMQ)");
    let found = folder.and_then(|folder: PathBuf| Prima::ready(&folder));
    or_skipped(bench, "prima.cpp", found)
}

fn report(bench: &mut Bench<'_>, model: &str, own_ms: f64, theirs: &[Peered]) {
    let mut rows = vec![vec!["baton".to_owned(), format!("{own_ms:.2}"), String::new()]];
    let mut data = vec![json!({ "name": "baton", "token_ms": own_ms })];
    for peer in theirs {
        let ms = median(peer.token_ms.iter().copied()).unwrap_or(f64::NAN);
        rows.push(vec![peer.name.to_owned(), format!("{ms:.2}"), format!("{:.2}", ms / own_ms)]);
        data.push(json!({ "name": peer.name, "token_ms": ms }));
        bench.report.check_at_least(format!("peers: times as fast as {}", peer.name), ms / own_ms, 1.0);
    }
    let title = format!("{model}: two devices, a thread each, one token at a time");
    bench.report.table(&title, &["", "ms a token", "of baton's"], &rows);
    bench.report.data("peers", Value::Array(data));
}

/// Measures the milliseconds of a token of llama.cpp with half of the layers on a separate server.
async fn llama_ms(
    (llama_bench, server): &(PathBuf, PathBuf),
    subject: &Subject,
    layers: usize,
    tokens: usize,
) -> Result<f64> {
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr().context("find a free port")?;
    let mut command = Command::new("taskset");
    command.args(["-c", "1"]).arg(server);
    command.args(["--host", "127.0.0.1", "--threads", "1", "--port", &address.port().to_string()]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let _server = Server(child.context("start llama.cpp's server")?);
    let begun = Instant::now();
    while TcpStream::connect(address).is_err() {
        if begun.elapsed() > START {
            bail!("llama.cpp's server does not listen on {address}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut command = tokio::process::Command::new("taskset");
    command.args(["-c", "0"]).arg(llama_bench).arg("-m").arg(&subject.path);
    command.args(["--rpc", &address.to_string(), "-t", "1", "-p", "0", "-r", "1", "-o", "json"]);
    command.args(["-ngl", &(layers / 2).to_string(), "-n", &tokens.to_string()]);
    let out = command.stdin(Stdio::null()).kill_on_drop(true).output().await.context("start llama-bench")?;
    if !out.status.success() {
        bail!("llama-bench ended with {}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    }
    let runs: Value = serde_json::from_slice(&out.stdout).context("read what llama-bench printed")?;
    let rate = runs[0]["avg_ts"].as_f64().context("llama-bench printed no avg_ts")?;
    Ok(1e3 / rate)
}
