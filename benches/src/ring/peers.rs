//! llama.cpp's ring beside this one, where a build of it is given; prima.cpp is named as not measured.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use baton_e2e::home::{Planned, Task};
use serde_json::{Value, json};

use super::overhead::{NAMES, home};
use super::{Bench, evenly, median_ms, shape};
use crate::engine::Subject;
use crate::engine::samples::median;

/// How long llama.cpp's server may take to listen: a hang guard.
const START: Duration = Duration::from_secs(60);

/// A process that is killed when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures one token at a time on two devices and adds the table.
pub(super) fn measure(bench: &mut Bench<'_>) -> Result<()> {
    bench.skip("prima.cpp", "it needs ZeroMQ and HiGHS as system libraries, which this bench does not build");
    let programs = ["rpc-server", "llama-bench"];
    let found = bench.args.peer.as_ref().map(|folder| folder.join("build/bin"));
    let Some(bin) = found.filter(|bin| programs.iter().all(|program| bin.join(program).is_file())) else {
        bench.skip(
            "llama.cpp",
            "no --peer DIR with build/bin/rpc-server and llama-bench (cmake -DGGML_RPC=ON)",
        );
        return Ok(());
    };
    let subject = bench.subject(&bench.args.model)?;
    let layers = shape(&subject)?.layers;
    let home = home(bench, &subject)?;
    let task = Task { prompt: 32, ..Task::of_tokens(bench.args.tokens) };
    let given = Planned::shares(&evenly(&NAMES, layers), 1);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for turn in 1..=bench.args.alternations {
        ours.push(bench.ring(&home, &task, &given)?);
        theirs.push(bench.wait(llama(&bin, &subject, bench.args.tokens))?);
        eprintln!(
            "{turn}/{}: {:.2}, llama.cpp {:.2} ms",
            bench.args.alternations,
            ours[turn - 1].step_ms,
            theirs[turn - 1]
        );
    }
    let (own, other) = (median_ms(&ours), median(theirs.iter().copied()).unwrap_or(f64::NAN));
    let rows = [
        vec!["baton".to_owned(), format!("{own:.2}")],
        vec!["llama.cpp's rpc".to_owned(), format!("{other:.2}")],
    ];
    bench.report.table(
        &format!("{}: two devices, one token at a time", subject.name),
        &["", "ms a token"],
        &rows,
    );
    bench.report.data("peers", json!({ "baton_ms": own, "llama_cpp_ms": other }));
    Ok(())
}

/// Milliseconds of a token of llama.cpp with half of the layers on a server of its own.
async fn llama(bin: &Path, subject: &Subject, tokens: usize) -> Result<f64> {
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr().context("find a free port")?;
    let mut server = Command::new("taskset");
    server.args(["-c", "1"]).arg(bin.join("rpc-server"));
    server.args(["--host", "127.0.0.1", "--threads", "1", "--port", &address.port().to_string()]);
    let server = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let _server = Server(server.context("start rpc-server")?);
    let begun = Instant::now();
    while TcpStream::connect(address).is_err() {
        if begun.elapsed() > START {
            bail!("rpc-server does not listen on {address}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(bin.join("llama-bench")).arg("-m").arg(&subject.path);
    command.args(["--rpc", &address.to_string(), "-t", "1", "-p", "0", "-r", "1", "-o", "json"]);
    command.args(["-ngl", "8", "-n", &tokens.to_string()]);
    let mut command = tokio::process::Command::from(command);
    let out = command.stdin(Stdio::null()).kill_on_drop(true).output().await.context("start llama-bench")?;
    if !out.status.success() {
        bail!("llama-bench ended with {}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    }
    let runs: Value = serde_json::from_slice(&out.stdout).context("read what llama-bench printed")?;
    let rate = runs[0]["avg_ts"].as_f64().context("llama-bench printed no avg_ts")?;
    Ok(1e3 / rate)
}
