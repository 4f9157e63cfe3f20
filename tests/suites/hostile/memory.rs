//! The memory that bodies of every kind take, alone and four at once, in the real process.

use std::net::SocketAddr;

use baton_e2e::hostile::bodies::{BULKS, PeakMemory, packed, reply};
use baton_e2e::hostile::neighbour;
use tokio::task::JoinSet;

use crate::service;

/// Most memory of one request beyond its KV; then of four at once.
const ALONE_BYTES_MAX: u64 = 64 << 20;
const FOUR_BYTES_MAX: u64 = 160 << 20;
/// Lengths of bodies that are read whole: one whose schema is compiled, and one below the limit of values.
/// The last could be a prompt of the model with every character escaped.
const LENGTHS: [usize; 3] = [60 << 10, 160 << 10, 1 << 20];
/// Longest body that the service is told to read.
const BODY_BYTES: usize = 24 << 20;

/// Checks for the status of a refusal, a cut-off or an answer.
fn is_expected(status: u16) -> bool {
    matches!(status, 0 | 200 | 400 | 413 | 429)
}

/// Sends a body plain and compressed; returns the growth of the service.
async fn grown(address: SocketAddr, memory: &mut PeakMemory, name: &str, path: &str, body: &[u8]) -> u64 {
    let mut growth = 0;
    for gzip in [false, true] {
        memory.forget().expect("the service runs");
        let told = if gzip {
            reply(address, path, &packed(body), true).await
        } else {
            reply(address, path, body, false).await
        };
        let status = told.expect("a reply").status;
        assert!(is_expected(status), "{name}: {status}");
        growth = growth.max(memory.growth().expect("the service runs"));
    }
    growth
}

#[tokio::test]
async fn a_request_takes_bounded_memory_whatever_it_holds() {
    if !cfg!(target_os = "linux") {
        return;
    }
    let (cloud, address) = service(&["--body-mib=24", "--bodies-mib=128"]).await;
    neighbour(address, 1, 20).await.expect("the service answers");
    let pid = cloud.pid().expect("it runs");
    let (all, mut memory) =
        (PeakMemory::of(pid).expect("its memory"), PeakMemory::of(pid).expect("its memory"));
    let lengths = |at: usize| LENGTHS.into_iter().chain((at == 0).then_some(BODY_BYTES));
    for (at, bulk) in BULKS.iter().enumerate() {
        for bytes in lengths(at) {
            let growth = grown(address, &mut memory, bulk.name, bulk.path, &bulk.body(bytes)).await;
            println!("{}, {bytes} bytes: {:.1} MiB", bulk.name, growth as f64 / f64::from(1 << 20));
            assert!(growth <= ALONE_BYTES_MAX, "{}: {growth} bytes", bulk.name);
        }
    }
    for (at, bulk) in BULKS.iter().enumerate() {
        let length = LENGTHS[at % LENGTHS.len()];
        memory.forget().expect("the service runs");
        let mut four = JoinSet::new();
        for _ in 0..4 {
            let (path, body) = (bulk.path, packed(&bulk.body(length)));
            four.spawn(async move { reply(address, path, &body, true).await });
        }
        while let Some(told) = four.join_next().await {
            let status = told.expect("no panic").expect("a reply").status;
            assert!(is_expected(status), "{}: {status}", bulk.name);
        }
        let growth = memory.growth().expect("the service runs");
        assert!(growth <= FOUR_BYTES_MAX, "four times {}: {growth} bytes", bulk.name);
    }
    // This is what the allocator keeps after all of these.
    let kept = all.growth().expect("the service runs");
    assert!(kept <= FOUR_BYTES_MAX, "the service has kept {kept} bytes");
    neighbour(address, 2, 20).await.expect("the service still answers");
}
