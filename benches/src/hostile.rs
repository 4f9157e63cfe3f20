//! `baton-bench hostile`: measures how much an attack on the cloud service delays another client, the
//! neighbour.
//!
//! It runs the real service with the demo model as a process. The neighbour asks about one document after
//! another from its own thread, in turn with and without an attack. An attacker that is disconnected starts
//! again, so that the attack lasts for the whole measurement. In reality, attackers run on other machines;
//! here their threads have the lowest priority. The test suite `hostile` checks that all attackers are
//! disconnected and that memory stays bounded.
//!
//! Other sections measure:
//!
//! - what a tenant can learn about another tenant from response times;
//! - the cost of streams whose readers went away, and of many wrong passwords;
//! - how long the cloud is busy with answers whose devices have ended;
//! - the delay by half-sent request heads, in both programs;
//! - the memory that request bodies take;
//! - concurrent requests against a daily quota;
//! - what greedy tenants and invented devices cost others;
//! - documents that break the libraries of the agent that read them.

mod abandoned;
mod cancel;
mod documents;
mod heads;
mod logins;
mod probe;

mod memory;
mod quota;
mod tenants;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use baton_e2e::hostile::{Attack, neighbour};
use baton_e2e::process::{CloudProcess, models_folder};
use baton_pacing::refit::median;
use serde_json::json;
use tokio::task::JoinSet;

use crate::engine::samples::percentile;
use crate::report::Report;

/// Maximum p95 under attack, as a multiple of the p95 without attack.
const GROWTH_MAX: f64 = 1.2;
/// Number of concurrent attackers of each kind.
const ATTACKERS: [(Attack, usize); 7] = [
    (Attack::Idle, 1000),
    (Attack::SlowHead, 20),
    (Attack::SlowBody, 20),
    (Attack::NeverReads, 4),
    (Attack::TwoLengths, 2),
    (Attack::EndlessBody, 1),
    (Attack::GzipBomb, 1),
];
/// Pause of an attacker after it was rejected. It keeps the attackers' own CPU time out of the measurement.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Number of sentences in the neighbour's document.
const SENTENCES: usize = 160;

/// Options of `baton-bench hostile`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of the neighbour's requests without attack, and as many under attack
    #[arg(long, default_value_t = 200)]
    requests: usize,
    /// Number of turns, each without and with an attack, over which these requests are spread
    #[arg(long, default_value_t = 4)]
    turns: usize,
    /// A short run with few requests; some checks are left out
    #[arg(long)]
    quick: bool,
    /// Measure only this section
    #[arg(long, value_enum)]
    only: Option<Section>,
}

/// A section of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Section {
    /// A neighbour's time to the first token, without and under attack
    Neighbour,
    /// A tenant that tries to learn another tenant's prompts from response times
    Probe,
    /// Streams whose readers disconnected
    Abandoned,
    /// Devices that end in the middle of an answer
    Cancel,
    /// Half-sent request heads to the service and to the local API
    Heads,
    /// Memory that request bodies of every kind take (Linux only)
    Memory,
    /// Concurrent requests against a daily token quota
    Quota,
    /// Many wrong passwords at the console at once
    Logins,
    /// Greedy tenants, invented devices, and keys and values that nobody fetches
    Tenants,
    /// Documents that break the libraries which read them, given to the agent (Linux only)
    Documents,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<Report> {
    let runtime = tokio::runtime::Runtime::new().context("start the clients' runtime")?;
    let mut report = Report::new("hostile");
    let wanted = |section| args.only.is_none_or(|only| only == section);
    if wanted(Section::Neighbour) {
        time_of_neighbours(args, &runtime, &mut report)?;
    }
    if wanted(Section::Probe) {
        runtime.block_on(probe::run(&mut report, args.quick))?;
    }
    if wanted(Section::Abandoned) {
        runtime.block_on(abandoned::run(&mut report))?;
    }
    if wanted(Section::Cancel) {
        runtime.block_on(cancel::run(&mut report, args.quick))?;
    }
    if wanted(Section::Heads) {
        runtime.block_on(heads::run(&mut report, args.quick))?;
    }
    if wanted(Section::Memory) && cfg!(target_os = "linux") {
        runtime.block_on(memory::run(&mut report))?;
    }
    if wanted(Section::Quota) {
        runtime.block_on(quota::run(&mut report))?;
    }
    if wanted(Section::Logins) {
        runtime.block_on(logins::run(&mut report))?;
    }
    if wanted(Section::Tenants) {
        runtime.block_on(tenants::run(&mut report))?;
    }
    if wanted(Section::Documents) && cfg!(target_os = "linux") {
        runtime.block_on(documents::run(&mut report))?;
    }
    Ok(report)
}

fn time_of_neighbours(args: &Args, runtime: &tokio::runtime::Runtime, report: &mut Report) -> Result<()> {
    let (requests, turns) = if args.quick { (20, 1) } else { (args.requests, args.turns.max(1)) };
    let (quiet, attacked) = runtime.block_on(measure(requests.div_ceil(turns), turns))?;
    let row = |name: &str, ms: &[f64]| -> Result<(Vec<String>, f64)> {
        let p50 = median(ms.iter().copied()).context("a request was measured")?;
        let p95 = percentile(ms.to_vec(), 0.95).context("a request was measured")?;
        Ok((vec![name.to_owned(), ms.len().to_string(), format!("{p50:.1}"), format!("{p95:.1}")], p95))
    };
    let ((first, quiet_p95), (second, attacked_p95)) =
        (row("quiet", &quiet)?, row("under attack", &attacked)?);
    report.table(
        "a neighbour's time to the first token, ms",
        &["", "requests", "p50", "p95"],
        &[first, second],
    );
    report.data("ttft_ms", json!({ "quiet": quiet, "attacked": attacked }));
    report.data("attackers", ATTACKERS.iter().map(|(_, count)| count).sum::<usize>());
    if !args.quick {
        let growth = attacked_p95 / quiet_p95;
        report.check_at_most("neighbour's TTFT p95 under attack, of that of quiet times", growth, GROWTH_MAX);
    }
    Ok(())
}

/// Returns the times to the first token in milliseconds, without and under attack.
async fn measure(requests: usize, turns: usize) -> Result<(Vec<f64>, Vec<f64>)> {
    let options: Vec<OsString> = [
        "--header-timeout=2",
        "--idle-timeout=2",
        "--body-timeout=4",
        "--body-rate=4096",
        "--write-timeout=2",
    ]
    .map(OsString::from)
    .to_vec();
    let cloud = CloudProcess::start(&models_folder().join("demo-cloud.gguf"), &options).await?;
    let server: SocketAddr = cloud.address().parse().context("read the service's address")?;
    let elsewhere = attackers_runtime()?;
    let (mut quiet, mut attacked, mut asked) = (Vec::new(), Vec::new(), 0);
    ask(server, 5, &mut asked).await?; // Warms up.
    for turn in 0..turns {
        quiet.extend(ask(server, requests, &mut asked).await?);
        let stop = Arc::new(AtomicBool::new(false));
        let mut attackers = JoinSet::new();
        for (attack, count) in ATTACKERS {
            for at in 0..count {
                let host = 2 + (at % 4) as u8 + if attack == Attack::Idle { 0 } else { 10 };
                attackers.spawn_on(keep_on(attack, server, host, stop.clone()), elsewhere.handle());
                // A short pause, because the system's queue of new connections is short.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        // Wait until all of them are connected.
        tokio::time::sleep(Duration::from_secs(1)).await;
        attacked.extend(ask(server, requests, &mut asked).await?);
        stop.store(true, Ordering::Relaxed);
        while let Some(ended) = attackers.join_next().await {
            ended.map_err(|err| anyhow!("an attacker's task: {err}"))??;
        }
        eprintln!("turn {}/{turns}", turn + 1);
    }
    elsewhere.shutdown_background();
    Ok((quiet, attacked))
}

/// Makes a runtime with one thread of the lowest priority.
fn attackers_runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().on_thread_start(|| {
        #[cfg(target_os = "linux")]
        if let Err(err) = rustix::process::nice(19) {
            eprintln!("attackers compute at the priority of all others: {err}");
        }
    });
    builder.build().context("start the attackers' runtime")
}

/// Sends the neighbour's requests on its own thread, so that the attackers' own work does not delay them.
async fn ask(server: SocketAddr, requests: usize, asked: &mut usize) -> Result<Vec<f64>> {
    let first = *asked + 1;
    *asked += requests;
    let thread = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.context("start the neighbour's runtime")?.block_on(async {
            let mut ms = Vec::new();
            for turn in first..first + requests {
                ms.push(neighbour(server, turn, SENTENCES).await?.ttft.as_secs_f64() * 1e3);
            }
            Ok(ms)
        })
    };
    tokio::task::spawn_blocking(thread).await.context("the neighbour's thread")?
}

async fn keep_on(attack: Attack, server: SocketAddr, host: u8, stop: Arc<AtomicBool>) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        attack.run(server, host).await?;
        tokio::time::sleep(AGAIN_AFTER).await;
    }
    Ok(())
}
