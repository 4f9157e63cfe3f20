//! `baton ring status`: the ring as its head sees it, and the table that shows a ring wherever it is shown.

use baton_terminal::{chain, out, outln};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::Value;

use super::{StateArgs, print_line};
use crate::ring::peers::{Membership, Peers};
use crate::ring::planning::Planned;
use crate::ring::stats::RingStats;

/// How long the running agent may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Address of the running `baton serve --ring`
    #[arg(long, default_value = "127.0.0.1:8017", value_name = "HOST:PORT")]
    address: SocketAddr,
    /// Key of that agent, if it wants one
    #[arg(long, env = "BATON_KEY", value_name = "KEY", hide_env_values = true)]
    key: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    state: StateArgs,
}

pub(super) async fn run(args: &StatusArgs) -> anyhow::Result<()> {
    let folder = args.state.open()?;
    let Some(place) = Membership::load(&folder)? else {
        bail!("this device belongs to no ring; begin one with `baton ring init`, or `baton ring join` one");
    };
    let peers = Peers::load(&folder)?;
    let status = asked(args).await;
    if args.json {
        let names: Vec<&str> = peers.iter().map(|peer| peer.name.as_str()).collect();
        let running = status.as_ref().ok();
        return print_line(&serde_json::json!({
            "ring": place.ring, "role": place.role, "peers": names, "running": running,
        }));
    }
    outln!(
        "ring {}, this device is its {}",
        place.ring,
        if peers.is_empty() { "only member" } else { "member" }
    )?;
    for peer in peers.iter() {
        let addresses: Vec<String> = peer.addresses.iter().map(SocketAddr::to_string).collect();
        outln!("  {} ({}) {}", peer.name, peer.key.fingerprint(), addresses.join(", "))?;
    }
    match status {
        Ok(status) => {
            let stats: RingStats =
                serde_json::from_value(status["stats"].clone()).context("read the status")?;
            let planned: Option<Planned> = serde_json::from_value(status["planned"].clone()).unwrap_or(None);
            out!("{}", table(&stats, planned.as_ref()))?;
        }
        Err(err) => outln!("not running here: {} (start it with `baton serve --ring`)", chain(err.as_ref()))?,
    }
    Ok(())
}

/// What the running agent says of its ring.
async fn asked(args: &StatusArgs) -> anyhow::Result<Value> {
    // A second installation fails and changes nothing: the first provider stays.
    let _already_installed = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().timeout(ANSWER).build().context("make a client")?;
    let mut request = client.get(format!("http://{}/ring.json", args.address));
    if let Some(key) = &args.key {
        request = request.bearer_auth(key);
    }
    let response = request.send().await.with_context(|| format!("ask {}", args.address))?;
    let status = response.status();
    if !status.is_success() {
        bail!("{} says {status}", args.address);
    }
    Ok(response.json().await?)
}

/// The ring as a table: a line for each device.
pub(super) fn table(stats: &RingStats, planned: Option<&Planned>) -> String {
    let mut out = format!(
        "epoch {}, {} round{}, {} steps, {:.1} ms a step",
        stats.epoch,
        stats.rounds,
        if stats.rounds == 1 { "" } else { "s" },
        stats.epoch_steps,
        stats.step_ms
    );
    let predicted = planned.and_then(|planned| planned.prediction.as_ref());
    if let Some(prediction) = predicted {
        out += &format!(" ({:.1} predicted)", prediction.token_s * 1e3);
    }
    out += &format!(
        "\n{:<20} {:>8} {:>12} {:>9} {:>9} {:>10} {:>10}\n",
        "ms of a step", "layers", "computing", "waiting", "sending", "MB in", "MB out"
    );
    for device in &stats.devices {
        out += &format!(
            "{:<20} {:>8} {:>12.1} {:>9.1} {:>9.1} {:>10.2} {:>10.2}\n",
            device.name,
            device.layers.len(),
            device.compute_ms,
            device.wait_ms,
            device.send_ms,
            device.bytes_in as f64 / 1e6,
            device.bytes_out as f64 / 1e6
        );
    }
    for edge in planned.map_or(&[][..], |planned| &planned.cluster.network.edges) {
        let latency = edge.latency_s.map_or_else(|| "?".to_owned(), |s| format!("{:.2}", s * 1e3));
        let rate = edge.bytes_per_s.map_or_else(|| "?".to_owned(), |rate| format!("{:.1}", rate / 1e6));
        out += &format!("{} to {}: {latency} ms, {rate} MB/s\n", edge.from, edge.to);
    }
    for name in &stats.fetching {
        out += &format!("{name}: fetching its weights, takes part once it has them\n");
    }
    for lost in &stats.lost {
        out += &format!("lost: {} ({})\n", lost.name, lost.words);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::stats::{DeviceStats, LostDevice};

    #[test]
    fn a_ring_is_shown_with_each_device_and_what_was_lost() {
        let device = DeviceStats {
            name: "desk".to_owned(),
            place: 1,
            layers: vec![3, 4],
            compute_ms: 12.5,
            wait_ms: 3.0,
            send_ms: 0.25,
            bytes_in: 1_500_000,
            bytes_out: 0,
        };
        let lost = LostDevice { name: "phone".to_owned(), words: "silent".to_owned() };
        let fetching = vec!["tablet".to_owned()];
        let devices = vec![device];
        let stats =
            RingStats { epoch: 3, rounds: 2, devices, fetching, lost: vec![lost], ..Default::default() };
        let edge = baton_plan::Edge {
            from: "head".to_owned(),
            to: "desk".to_owned(),
            latency_s: Some(0.0015),
            bytes_per_s: Some(4.25e7),
        };
        let network = baton_plan::Network { latency_s: 0.0, bytes_per_s: 1e6, edges: vec![edge] };
        let cluster = baton_plan::Cluster { note: String::new(), devices: Vec::new(), network, head: None };
        let plan = baton_plan::Plan { layers: 2, rounds: 2, shares: Vec::new() };
        let planned = Planned { cluster, plan, prediction: None, explanation: None };
        let text = table(&stats, Some(&planned));
        assert!(text.contains("head to desk: 1.50 ms, 42.5 MB/s"), "{text}");
        for want in ["epoch 3, 2 rounds", "desk", "12.5", "1.50", "tablet: fetching", "lost: phone (silent)"]
        {
            assert!(text.contains(want), "{want}: {text}");
        }
    }
}
