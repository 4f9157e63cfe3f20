//! Invalid descriptions are refused with an error that names the fault; valid ones are read as written.

use super::*;
use crate::sample::{cluster, device, model};

#[test]
fn a_description_reads_back_as_it_was_written() {
    let described = cluster(vec![device("a", 4.0), device("b", 2.0)]);
    let json = serde_json::to_string(&described).unwrap();
    assert_eq!(serde_json::from_str::<Cluster>(&json).unwrap(), described);
    assert!(serde_json::from_str::<Cluster>(&json.replace("\"swap_bytes\"", "\"swab_bytes\"")).is_err());
}

#[track_caller]
fn refused(change: impl FnOnce(&mut Cluster), want: &str) {
    let mut described = cluster(vec![device("a", 4.0), device("b", 2.0)]);
    change(&mut described);
    let error = described.check().unwrap_err().to_string();
    assert!(error.contains(want), "{error}");
}

#[test]
fn what_is_wrong_is_named() {
    refused(|c| c.devices.clear(), "devices: 0, must be 1 to 64");
    refused(|c| c.devices[1].name = "a".to_owned(), "two devices are called `a`");
    refused(|c| c.head = Some("c".to_owned()), "head names `c`, which is not one of the devices `a`, `b`");
    refused(|c| c.devices[1].disk.random_bytes_per_s = 0.0, "device `b`: random_bytes_per_s is 0");
    refused(|c| c.devices[0].memory_bytes = f64::NAN, "memory_bytes is NaN");
    refused(|c| c.devices[0].cpu.read_bytes_per_s = f64::INFINITY, "read_bytes_per_s is inf");
    refused(|c| c.network.bytes_per_s = -1.0, "network: bytes_per_s is -1");
    let edge = Edge { from: "a".to_owned(), to: "z".to_owned(), latency_s: None, bytes_per_s: None };
    refused(move |c| c.network.edges.push(edge), "edge names `z`");
}

#[test]
fn models_are_checked_too() {
    let mut shape = model(4);
    assert_eq!(shape.check(), Ok(()));
    shape.layer_bytes = 0.0;
    assert!(shape.check().unwrap_err().to_string().contains("layer_bytes is 0"));
    shape = ModelShape { expert_bytes: 101e6, ..model(4) };
    assert!(shape.check().unwrap_err().to_string().contains("expert_bytes is 101000000"));
    shape = ModelShape { expert_share: 1.5, ..model(4) };
    assert!(shape.check().unwrap_err().to_string().contains("expert_share is 1.5"));
    shape = model(LAYERS_MAX + 1);
    assert!(shape.check().unwrap_err().to_string().contains("layers: 1025"));
}

#[test]
fn a_device_that_goes_takes_its_edges_along() {
    let mut described = cluster(vec![device("a", 4.0), device("b", 2.0)]);
    let edge = Edge { from: "a".to_owned(), to: "b".to_owned(), latency_s: None, bytes_per_s: None };
    described.network.edges.push(edge);
    let rest = described.without("a");
    assert_eq!((rest.devices.len(), rest.network.edges.len(), rest.head), (1, 0, None));
}
