//! What the cores of a simulated home are told at the beginning.

use std::time::Duration;

use baton_engine::engine::KvFormat;
use baton_plan::{Device, Disk, Os, Processor};
use baton_random::mix;

use crate::core::head::{CacheSetup, HeadCore, HeadSetup};
use crate::core::ways::Ways;
use crate::core::worker::{WorkerCore, WorkerSetup};
use crate::core::{Bug, Planted};
use crate::wire::frame::{Activations, Hello, LinkSpeed};

use super::caller::VOCAB;
use super::engine::WIDTH;
use super::scenario::Home;
use super::world::{id, node};

/// Time between heartbeats.
const HEARTBEAT: Duration = Duration::from_millis(300);
/// How long a link may take to open, and a device to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// How long the ring may make no progress.
pub(super) const FLOOR: Duration = Duration::from_secs(1);
/// What a token counts as at least.
const TOKEN: Duration = Duration::from_millis(100);
/// How long a worker waits for a head that says nothing.
const SILENCE: Duration = Duration::from_secs(3);

fn planted(bug: Option<Bug>) -> Planted {
    bug.map_or_else(Planted::default, Planted::bug)
}

/// The head's core.
pub(super) fn head(home: &Home, seed: u64, bug: Option<Bug>) -> HeadCore {
    let mut ways = Ways::default();
    // Half of all homes have been measured before.
    if mix(seed, 5).is_multiple_of(2) {
        for a in 0..=home.workers {
            (0..a).for_each(|b| ways.put(id(a), id(b), speed(home)));
        }
    }
    let setup = HeadSetup {
        own: node(0),
        name: "head".to_owned(),
        n_layers: home.n_layers,
        width: WIDTH,
        vocab: VOCAB as usize,
        engine: CacheSetup {
            kv_tokens: home.capacity,
            kv_format: KvFormat::F32,
            prefix_percent: 50,
            window: None,
        },
        activations: if home.half { Activations::F16 } else { Activations::F32 },
        reads_ahead: false,
        chunk_rows: home.chunk_rows,
        heartbeat: HEARTBEAT,
        hop: Duration::from_secs(1),
        floor: FLOOR,
        token: TOKEN,
        patience: PATIENCE,
        health: home.health,
        ways,
    };
    HeadCore::with_bug(setup, planted(bug), Duration::ZERO)
}

fn speed(home: &Home) -> LinkSpeed {
    let bytes_per_s = 1e9 / home.byte_ns as f64;
    LinkSpeed {
        latency_s: home.latency.as_secs_f64(),
        there_bytes_per_s: bytes_per_s,
        back_bytes_per_s: bytes_per_s,
    }
}

/// The core of a worker.
pub(super) fn worker(home: &Home, device: usize, bug: Option<Bug>, now: Duration) -> WorkerCore {
    let name = format!("w{device}");
    let measured = Device {
        name: name.clone(),
        os: Os::Linux,
        cpu: Processor { flops: [("F32".to_owned(), 1e9)].into(), read_bytes_per_s: 1e9, kv_copy_s: 0.0 },
        gpu: None,
        memory_bytes: 4e9,
        swap_bytes: 0.0,
        buffer_bytes: 0.0,
        stream_bytes: 0.0,
        weight_bytes_max: None,
        disk: Disk { sequential_bytes_per_s: 1e9, random_bytes_per_s: 1e8 },
    };
    let relays = home.relays[device - 1];
    let setup = WorkerSetup {
        own: node(device),
        hello: Hello { name, device: (!relays).then_some(measured) },
        patience: PATIENCE,
        silence: SILENCE,
    };
    WorkerCore::new(setup, now).planted(planted(bug))
}
