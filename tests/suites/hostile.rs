//! A real cloud service under attack: a thousand idle sockets, slow senders, readers that never read,
//! inconsistent bodies, TLS handshakes that never end. All are cut off, memory stays bounded, and a
//! neighbour's requests all succeed.
//!
//! Timeouts are short, set by options of the service; no test checks a time. How much later the neighbour's
//! first tokens come is measured by `./x bench hostile`.

#[path = "hostile/cancel.rs"]
mod cancel;
#[path = "hostile/heads.rs"]
mod heads;
#[path = "hostile/logins.rs"]
mod logins;
#[path = "hostile/memory.rs"]
mod memory;
#[path = "hostile/quotas.rs"]
mod quotas;
#[path = "hostile/streams.rs"]
mod streams;
#[path = "hostile/tenants.rs"]
mod tenants;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_e2e::hostile::{Attack, neighbour};
use baton_e2e::process::{CloudProcess, models_folder};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Most growth of the service beyond its own requests: buffers of about a thousand connections, and bodies
/// that it reads before it refuses them.
const GROWTH_BYTES_MAX: u64 = 160 << 20;
/// Number of attackers of each kind.
const ATTACKERS: [(Attack, usize); 7] = [
    (Attack::Idle, 1000),
    (Attack::SlowHead, 50),
    (Attack::SlowBody, 50),
    (Attack::NeverReads, 16),
    (Attack::TwoLengths, 20),
    (Attack::EndlessBody, 8),
    (Attack::GzipBomb, 20),
];
/// Time between attackers, so that the service can accept each before the next thousand come.
const BETWEEN_ATTACKERS: Duration = Duration::from_millis(2);
/// Limits short enough for a test to wait for.
const OPTIONS: [&str; 12] = [
    "--header-timeout=2",
    "--idle-timeout=2",
    "--body-timeout=4",
    "--body-rate=4096",
    "--write-timeout=2",
    "--requests-per-connection=1000000",
    "--connections=2048",
    "--connections-per-ip=300",
    "--tls-handshake-timeout=1",
    "--threads=2",
    "--body-mib=4",
    "--bodies-mib=64",
];

async fn service(more: &[&str]) -> (CloudProcess, SocketAddr) {
    let options: Vec<OsString> = OPTIONS.iter().chain(more).map(OsString::from).collect();
    let cloud = CloudProcess::start(&models_folder().join("demo-cloud.gguf"), &options)
        .await
        .expect("the service starts");
    let address = cloud.address().parse().expect("an address");
    (cloud, address)
}

/// Asks again and again until told to stop; returns how often it was served.
async fn be_a_neighbour(address: SocketAddr, first: usize, stop: Arc<AtomicBool>) -> usize {
    let mut served = 0;
    while !stop.load(Ordering::Relaxed) {
        neighbour(address, first + served, 20).await.expect("a neighbour's request succeeds");
        served += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    served
}

#[tokio::test]
async fn every_attack_is_cut_off_and_neighbours_are_served() {
    let (cloud, address) = service(&[]).await;
    for turn in 0..8 {
        neighbour(address, turn, 20).await.expect("the service answers");
    }
    let before = cfg!(target_os = "linux").then(|| cloud.memory_bytes().expect("its memory"));
    let stop = Arc::new(AtomicBool::new(false));
    let neighbours: Vec<_> =
        (1..=2).map(|who| tokio::spawn(be_a_neighbour(address, who * 100_000, stop.clone()))).collect();

    let mut attacks = JoinSet::new();
    for (attack, count) in ATTACKERS {
        for at in 0..count {
            // The idle connections use four addresses, so that each stays below its limit of connections.
            let host = 2 + (at % 4) as u8 + if attack == Attack::Idle { 0 } else { 10 };
            attacks.spawn(async move { attack.run(address, host).await });
            // The system's queue of new connections is short; a connection that it drops never reaches the
            // service.
            tokio::time::sleep(BETWEEN_ATTACKERS).await;
        }
    }
    let mut growth = 0;
    while let Some(ended) = attacks.join_next().await {
        ended.expect("an attacker does not panic").unwrap_or_else(|err| panic!("{err:#}"));
        if let Some(before) = before {
            growth = growth.max(cloud.memory_bytes().expect("its memory").saturating_sub(before));
        }
    }
    stop.store(true, Ordering::Relaxed);
    for neighbour in neighbours {
        assert!(neighbour.await.expect("every request succeeded") > 0, "a neighbour was served meanwhile");
    }
    assert!(growth <= GROWTH_BYTES_MAX, "the service grew by {growth} bytes");
    println!("memory grew by {:.1} MiB", growth as f64 / f64::from(1 << 20));
}

#[tokio::test]
async fn an_address_cannot_take_all_connections() {
    let (_cloud, address) = service(&["--connections-per-ip=10", "--header-timeout=3600"]).await;
    let mut held = JoinSet::new();
    for _ in 0..30 {
        let mut stream = TcpStream::connect(address).await.expect("connect");
        // Ends when the service closes the connection; a reset counts as an end.
        held.spawn(async move { stream.read(&mut [0]).await.is_ok() });
    }
    let closed = async {
        for _ in 0..20 {
            held.join_next().await.expect("20 of 30 are closed").expect("no panic");
        }
    };
    tokio::time::timeout(Duration::from_secs(120), closed).await.expect("all but ten are closed");
    // The ten connections send no request. A client that asks is served, although its address is at its
    // limit.
    for turn in 0..3 {
        neighbour(address, turn, 20).await.expect("a neighbour at the same address is served");
    }
    assert!(held.len() <= 10, "{} are open", held.len());
}

#[tokio::test]
async fn a_handshake_that_never_ends_is_cut_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let (cert, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    std::fs::write(&cert, made.cert.pem()).expect("write it");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("write it");
    let files = [format!("--tls-cert={}", cert.display()), format!("--tls-key={}", key.display())];
    let (cloud, address) = service(&[&files[0], &files[1]]).await;
    let mut attacks = JoinSet::new();
    for at in 0..200 {
        // Half of them send nothing, the others the beginning of a hello that announces 512 bytes.
        let attack = async move {
            let mut stream = TcpStream::connect(address).await?;
            if at % 2 == 1 {
                tokio::io::AsyncWriteExt::write_all(&mut stream, &[22, 3, 1, 2, 0, 1]).await?;
            }
            let mut read = Vec::new();
            stream.read_to_end(&mut read).await.map(|_| ())
        };
        attacks.spawn(async move { tokio::time::timeout(Duration::from_secs(120), attack).await });
    }
    while let Some(ended) = attacks.join_next().await {
        // A reset counts as an end.
        let _ = ended.expect("no panic").expect("it is cut off");
    }
    assert!(cloud.pid().is_ok(), "the service still runs");
    assert!(TcpStream::connect(address).await.is_ok());
}
