//! Plans by the exact search, from what the devices have measured of themselves.

use baton_plan::{Cluster, Device, ModelShape, Network, SearchOptions, Workload, search};

use super::Planner;
use crate::ring::frame::Hello;

/// A planner for the head's own profile, the model and the network between the devices; devices without a profile of their
/// own get no layers.
pub fn searched(head: Device, model: ModelShape, workload: Workload, network: Network) -> Planner {
    Box::new(move |workers: &[Hello]| {
        let measured = workers.iter().filter_map(|hello| {
            let device = hello.device.clone()?;
            Some(Device { name: hello.name.clone(), ..device })
        });
        let devices: Vec<Device> = std::iter::once(head.clone()).chain(measured).collect();
        let there = |name: &String| devices.iter().any(|device| device.name == *name);
        let mut network = network.clone();
        network.edges.retain(|edge| there(&edge.from) && there(&edge.to));
        let cluster = Cluster { note: String::new(), devices, network, head: Some(head.name.clone()) };
        search(&cluster, &model, workload, &SearchOptions::default()).map_err(|err| err.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_plan::{Disk, Edge, Os, Processor};

    fn device(name: &str, layers_in_memory: f64) -> Device {
        Device {
            name: name.to_owned(),
            os: Os::Macos,
            cpu: Processor {
                flops: [("F32".to_owned(), 1e10)].into(),
                read_bytes_per_s: 1e10,
                kv_copy_s: 0.0,
            },
            gpu: None,
            memory_bytes: 1e8 * layers_in_memory + 2e7,
            swap_bytes: 0.0,
            buffer_bytes: 0.0,
            disk: Disk { sequential_bytes_per_s: 1e8, random_bytes_per_s: 1e7 },
        }
    }

    #[test]
    fn devices_that_are_measured_share_the_layers_and_others_get_none() {
        let model = ModelShape {
            name: "m".into(),
            layers: 8,
            hidden: 64,
            vocab: 100,
            layer_bytes: 1e8,
            input_bytes: 1e6,
            output_bytes: 1e6,
            kv_bytes: 256.0,
            layer_flops: [("F32".to_owned(), 5e7)].into(),
            output_flops: [("F32".to_owned(), 1e4)].into(),
        };
        let edge = Edge { from: "gone".into(), to: "desk".into(), latency_s: Some(1.0), bytes_per_s: None };
        let network = Network { latency_s: 1e-3, bytes_per_s: 1e8, edges: vec![edge] };
        let mut plan = searched(device("desk", 4.5), model, Workload { context: 128, sequences: 1 }, network);
        let hello = |name: &str, device| Hello { name: name.to_owned(), device };
        // It is planned under the name that it goes by in this ring.
        let two = plan(&[hello("phone", Some(device("telephone", 4.5))), hello("tv", None)]).unwrap();
        let names: Vec<&str> = two.shares.iter().map(|share| share.device.as_str()).collect();
        assert_eq!(names, ["desk", "phone"]);
        assert!(two.shares.iter().all(|share| share.layers >= 3), "{two:?}");
        let one = plan(&[hello("tv", None)]).unwrap();
        assert_eq!((one.shares.len(), one.shares[0].layers), (1, 8));
    }
}
