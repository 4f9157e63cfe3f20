//! Half-sent request heads against both programs: more than a program has connections, from the addresses of
//! its other clients and from others. Other clients are served all the time, and in the end every half-sent
//! head is cut off.

use std::net::SocketAddr;
use std::time::Duration;

use baton_e2e::hostile::neighbour;
use baton_e2e::process::{AgentProcess, cpu_program, models_folder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinSet;

use super::{BETWEEN_ATTACKERS, service};

/// Number of half-sent heads: more than the 2,048 connections of both programs.
const HEADS: usize = 2400;
/// Requests of a well-behaved client, spread over the attack.
const REQUESTS: usize = 12;
/// A guard against hangs.
const HANG: Duration = Duration::from_secs(120);

/// Sends the beginning of a head and waits until the connection ends; a reset counts as an end.
async fn half_a_head(address: SocketAddr) {
    let Ok(mut stream) = TcpStream::connect(address).await else { return };
    if stream.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: loc").await.is_ok() {
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
}

/// Attacks `address`. `ask` makes one request of another client, which must succeed; its argument is the
/// request's number.
async fn attack(address: SocketAddr, ask: impl AsyncFn(usize)) {
    // The sockets of this side are open files too.
    let own = baton_edge::HttpLimits { connections_max: HEADS, ..Default::default() }.within_open_files();
    assert!(own.connections_max >= HEADS, "this test needs {HEADS} open files, it may have {own:?}");
    let mut heads = JoinSet::new();
    for at in 0..HEADS {
        heads.spawn(half_a_head(address));
        tokio::time::sleep(BETWEEN_ATTACKERS).await;
        if at % (HEADS / REQUESTS) == 0 {
            tokio::time::timeout(HANG, ask(at)).await.expect("a request beside half-sent heads is answered");
        }
    }
    tokio::time::timeout(HANG, ask(HEADS)).await.expect("a request beside all half-sent heads is answered");
    let cut_off = async { while heads.join_next().await.is_some() {} };
    tokio::time::timeout(HANG, cut_off).await.expect("every half-sent head is cut off");
}

#[tokio::test]
async fn half_sent_heads_cost_nobody_the_cloud() {
    let (_cloud, address) = service(&["--connections-per-ip=2048"]).await;
    attack(address, async |turn| {
        neighbour(address, turn, 20).await.expect("a neighbour's request succeeds");
    })
    .await;
}

#[tokio::test]
async fn half_sent_heads_cost_nobody_the_local_api() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::from(cpu_program("baton").expect("the program is built"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--mode", "device", "--threads", "1", "--model"]);
    command.arg(models_folder().join("demo-device.gguf")).env("BATON_CONFIG_DIR", folder.path());
    let agent = AgentProcess::start(&mut command).await.expect("baton serve starts");
    let url = agent.url().to_owned();
    let address = url.strip_prefix("http://").expect("an http address").parse().expect("an address");
    attack(address, async |turn| {
        // A new connection each time, as from a new program.
        let client = baton_e2e::http::client();
        let body = serde_json::json!({
            "messages": [{ "role": "user", "content": format!("Letter {turn}.") }], "max_tokens": 2,
        });
        let sent = client.post(format!("{url}/v1/chat/completions")).json(&body).send().await;
        assert_eq!(sent.expect("a request succeeds").status().as_u16(), 200);
    })
    .await;
}
