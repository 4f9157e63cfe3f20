//! Measures how much 1,100 half-sent request heads delay another client, at the cloud service and at the
//! local API.
//!
//! Each attacker sends the beginning of a head and waits; when it is disconnected, it starts again. The other
//! client uses a new connection for each request, in turn with and without an attack. It runs on its own
//! thread.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use baton_e2e::hostile::neighbour;
use baton_e2e::process::{AgentProcess, CloudProcess, cpu_program, models_folder};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

use super::attackers_runtime;
use crate::engine::samples::percentile;
use crate::report::Report;

/// Maximum p95 under attack, as a multiple of the p95 without attack.
const GROWTH_MAX: f64 = 1.5;
const HEADS: usize = 1100;
/// Number of the other client's requests without attack, and as many under attack.
const REQUESTS: usize = 60;
const TURNS: usize = 4;
/// Pause of an attacker after it was disconnected.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Pause between new connections, so that the system's queue of new connections does not overflow.
const BETWEEN: Duration = Duration::from_millis(2);

/// The program that the other client calls.
#[derive(Debug, Clone, Copy)]
enum Asked {
    Cloud,
    LocalApi,
}

/// Measures both programs.
pub(super) async fn run(report: &mut Report, quick: bool) -> Result<()> {
    // The attackers' ends of the connections need open files, too.
    let own = baton_edge::HttpLimits { connections_max: HEADS, ..Default::default() }.within_open_files();
    ensure!(own.connections_max >= HEADS, "{HEADS} connections need as many open files");
    let cloud = CloudProcess::start(&models_folder().join("demo-cloud.gguf"), &[]).await?;
    let address = cloud.address().parse().context("read the service's address")?;
    let service = measure(Asked::Cloud, address, quick).await?;
    drop(cloud);
    let folder = tempfile::tempdir().context("make a folder for settings")?;
    let mut command = Command::from(cpu_program("baton")?);
    command.args(["serve", "--listen", "127.0.0.1:0", "--mode", "device", "--model"]);
    command.arg(models_folder().join("demo-device.gguf")).env("BATON_CONFIG_DIR", folder.path());
    let agent = AgentProcess::start(&mut command).await?;
    let address = agent.url().trim_start_matches("http://").parse().context("read its address")?;
    let local = measure(Asked::LocalApi, address, quick).await?;
    let mut rows = Vec::new();
    for (name, (quiet, attacked)) in [("baton-cloud serve", service), ("baton serve", local)] {
        let p95 = |ms: &[f64]| percentile(ms.to_vec(), 0.95).context("a request was measured");
        let (quiet, attacked) = (p95(&quiet)?, p95(&attacked)?);
        rows.push([name.to_owned(), format!("{quiet:.1}"), format!("{attacked:.1}")].to_vec());
        if !quick {
            let claim = format!("{name}: p95 beside {HEADS} half-sent heads, of that of quiet times");
            report.check_at_most(claim, attacked / quiet, GROWTH_MAX);
        }
    }
    report.table(
        &format!("another client's p95 beside {HEADS} half-sent heads, ms"),
        &["", "quiet", "beside them"],
        &rows,
    );
    Ok(())
}

/// Returns the milliseconds of each request, without and under attack.
async fn measure(asked: Asked, address: SocketAddr, quick: bool) -> Result<(Vec<f64>, Vec<f64>)> {
    let (requests, turns) = if quick { (5, 1) } else { (REQUESTS / TURNS, TURNS) };
    let elsewhere = attackers_runtime()?;
    let (mut quiet, mut attacked) = (Vec::new(), Vec::new());
    ask(asked, address, 0, 3).await?; // Warms up.
    for turn in 0..turns {
        quiet.extend(ask(asked, address, 1_000 * (2 * turn + 1), requests).await?);
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..HEADS {
            elsewhere.spawn(half_heads(address, stop.clone()));
            tokio::time::sleep(BETWEEN).await;
        }
        attacked.extend(ask(asked, address, 1_000 * (2 * turn + 2), requests).await?);
        stop.store(true, Ordering::Relaxed);
    }
    elsewhere.shutdown_background();
    Ok((quiet, attacked))
}

/// Sends the beginning of a head and waits, again and again until `stop` is set.
async fn half_heads(address: SocketAddr, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        if let Ok(mut stream) = TcpStream::connect(address).await
            && stream.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: loc").await.is_ok()
        {
            let _cut_off = stream.read_to_end(&mut Vec::new()).await;
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

async fn ask(asked: Asked, address: SocketAddr, first: usize, requests: usize) -> Result<Vec<f64>> {
    let thread = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.context("start the other client's runtime")?.block_on(async {
            let mut ms = Vec::new();
            for turn in first..first + requests {
                let begun = Instant::now();
                match asked {
                    Asked::Cloud => {
                        neighbour(address, turn, 20).await?;
                    }
                    Asked::LocalApi => chat(address, turn).await?,
                }
                ms.push(begun.elapsed().as_secs_f64() * 1e3);
            }
            Ok(ms)
        })
    };
    tokio::task::spawn_blocking(thread).await.context("the other client's thread")?
}

/// Requests a short answer from the local API on a new connection.
async fn chat(address: SocketAddr, turn: usize) -> Result<()> {
    let text = format!("Letter {turn}. {}", "The harbour keeps a list of all ships. ".repeat(20));
    let body = json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 2 });
    let url = format!("http://{address}/v1/chat/completions");
    let reply = baton_e2e::http::client().post(url).json(&body).send().await.context("ask the local API")?;
    ensure!(reply.status().is_success(), "the local API answers {}", reply.status());
    reply.bytes().await.context("read its answer")?;
    Ok(())
}
