//! `baton ring status`: shows the ring as its head sees it. The table is also used by other commands.

use baton_terminal::{chain, out, outln};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use reqwest::StatusCode;
use serde_json::Value;

use super::{StateArgs, print_line};
use crate::cli::values;
use baton_ring::core::stats::RingStats;
use baton_ring::home::peers::{Membership, Peers, Role};
use baton_ring::planning::Planned;

/// Longest time for the running agent to answer.
const ANSWER: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Address of the running `baton serve --ring`
    #[arg(long, default_value = "127.0.0.1:8017", value_name = "HOST:PORT", value_parser = values::address)]
    address: SocketAddr,
    /// Key of that agent, if it needs one
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
    let status = asked(args.address, args.key.as_deref()).await;
    if args.json {
        let names: Vec<&str> = peers.iter().map(|peer| peer.name.as_str()).collect();
        let error = status.as_ref().err().map(|err| chain(err.as_ref()));
        let running = status.as_ref().ok();
        return print_line(&serde_json::json!({
            "ring": place.ring, "role": place.role, "peers": names, "running": running, "error": error,
        }));
    }
    outln!("ring {}: {}", place.ring, role(&place, &peers))?;
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
        Err(err) => outln!("no figures: {}", chain(err.as_ref()))?,
    }
    Ok(())
}

/// Describes who heads the ring, and whether it has other members.
fn role(place: &Membership, peers: &Peers) -> String {
    match place.role {
        Role::Head if peers.is_empty() => "this device heads it, and is its only member".to_owned(),
        Role::Head => "this device heads it".to_owned(),
        Role::Worker => match peers.by_key(&place.head) {
            Some(head) => format!("this device works for `{}`, which shows the figures", head.name),
            None => format!("this device works for {}, which shows the figures", place.head.fingerprint()),
        },
    }
}

/// Asks the agent at this address for the state of its ring.
async fn asked(address: SocketAddr, key: Option<&str>) -> anyhow::Result<Value> {
    // A second installation fails and leaves the first provider in place.
    let _already_installed = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().timeout(ANSWER).build().context("make a client")?;
    let mut request = client.get(format!("http://{address}/ring.json"));
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    let sent = request.send().await;
    let response =
        sent.with_context(|| format!("nothing answers at {address}: start `baton serve --ring` there"))?;
    let other = || format!("what answers at {address} is no `baton serve`");
    match response.status() {
        StatusCode::UNAUTHORIZED => bail!("the agent at {address} wants a key: pass --key or set BATON_KEY"),
        StatusCode::OK => {}
        status => bail!("{}: it says {status}", other()),
    }
    let status: Value = response.json().await.with_context(other)?;
    match status.get("stats") {
        Some(Value::Null) => bail!("`baton serve` runs at {address} without --ring"),
        Some(_) => Ok(status),
        None => bail!("{}", other()),
    }
}

/// Formats the ring as a table with a line for each device.
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
    use baton_ring::core::stats::{DeviceStats, LostDevice};
    use baton_ring::home::identity::{PublicKey, RingId};

    /// Starts an agent that answers one status request with this.
    fn agent(head: &'static str, body: &'static str) -> SocketAddr {
        use std::io::{Read as _, Write as _};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _asked = stream.read(&mut [0; 4096]).unwrap();
            let length = body.len();
            write!(stream, "HTTP/1.1 {head}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
                .unwrap();
        });
        address
    }

    #[tokio::test]
    async fn whatever_answers_in_place_of_a_ring_is_named() {
        for (head, body, want) in [
            ("401 Unauthorized", "{}", "wants a key: pass --key or set BATON_KEY"),
            ("200 OK", r#"{"stats":null,"planned":null}"#, "without --ring"),
            ("200 OK", "<html>", "is no `baton serve`"),
            ("200 OK", "{}", "is no `baton serve`"),
            ("404 Not Found", "{}", "is no `baton serve`: it says 404 Not Found"),
        ] {
            let said = chain(asked(agent(head, body), None).await.unwrap_err().as_ref());
            assert!(said.contains(want), "{head} {body}: {said}");
        }
        let ring = agent("200 OK", r#"{"stats":{"epoch":1},"planned":null}"#);
        assert_eq!(asked(ring, Some("key")).await.unwrap()["stats"]["epoch"], 1);
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let said = asked(nobody, None).await.unwrap_err().to_string();
        assert!(said.starts_with("nothing answers at 127.0.0.1:"), "{said}");
    }

    #[test]
    fn a_device_knows_who_heads_its_ring() {
        let (own, other) = (PublicKey([1; 32]), PublicKey([2; 32]));
        let mut peers = Peers::default();
        let place = |role, head| Membership::new(RingId([7; 8]), role, head);
        assert_eq!(role(&place(Role::Head, own), &peers), "this device heads it, and is its only member");
        let unknown = role(&place(Role::Worker, other), &peers);
        assert!(unknown.contains(&other.fingerprint().to_string()), "{unknown}");
        peers.pin(other, &"desk".parse().unwrap(), SocketAddr::from(([10, 0, 0, 1], 1))).unwrap();
        assert_eq!(role(&place(Role::Head, own), &peers), "this device heads it");
        assert!(role(&place(Role::Worker, other), &peers).contains("works for `desk`"));
    }

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
