//! The whole core of a head, with workers that are played by hand.

pub(in crate::core) mod fake;
mod faults;
mod home;
mod joining;
mod late;
mod requests;
mod sequences;

use std::time::Duration;

use baton_engine::engine::KvFormat;

use super::*;
use crate::core::Node;
use crate::wire::frame::Activations;

/// Returns the usual setup of a head for a model of so many layers and hidden states of one value.
pub(in crate::core) fn setup(name: &str, n_layers: usize) -> HeadSetup {
    let engine = CacheSetup { kv_tokens: 4096, kv_format: KvFormat::F32, prefix_percent: 0, window: None };
    HeadSetup {
        own: Node { device: DeviceId([0; 32]), address: "head".to_owned() },
        name: name.to_owned(),
        n_layers,
        width: 1,
        vocab: 1000,
        engine,
        activations: Activations::F32,
        reads_ahead: true,
        chunk_rows: (16, 128),
        heartbeat: Duration::from_millis(300),
        hop: Duration::from_secs(5),
        floor: Duration::from_secs(5),
        token: Duration::from_millis(500),
        patience: Duration::from_secs(10),
        health: Duration::from_secs(10),
        ways: Ways::default(),
    }
}
