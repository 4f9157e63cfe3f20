//! Clusters for tests, drawn from a seed, so that a failing one can be drawn again.

use baton_random::SplitMix64;

use crate::cluster::{
    Cluster, Device, Disk, Edge, Gpu, GpuKind, ModelShape, Network, Os, Processor, Workload,
};

/// Draws of a seed.
pub(crate) struct Draw(SplitMix64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub(crate) fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    pub(crate) fn within(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.unit())
    }

    pub(crate) fn count(&mut self, low: usize, high: usize) -> usize {
        low + (self.unit() * (high - low + 1) as f64) as usize
    }

    pub(crate) fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }
}

/// Returns a model of `layers` layers of 100 MB with an output of 80 MB, all in Q4_K.
pub(crate) fn model(layers: usize) -> ModelShape {
    let flops = |flops: f64| [("Q4_K".to_owned(), flops)].into();
    ModelShape {
        name: "sample".to_owned(),
        layers,
        hidden: 4096,
        vocab: 32_000,
        layer_bytes: 100e6,
        expert_bytes: 0.0,
        expert_share: 0.0,
        input_bytes: 80e6,
        output_bytes: 80e6,
        kv_bytes: 4096.0,
        layer_flops: flops(350e6),
        output_flops: flops(280e6),
    }
}

fn processor(rate: f64) -> Processor {
    Processor { flops: [("Q4_K".to_owned(), rate * 4.0)].into(), read_bytes_per_s: rate, kv_copy_s: 1e-6 }
}

/// Returns a Linux device with memory for `layers` layers of [`model`] and a disk of 1 GB/s.
pub(crate) fn device(name: &str, layers: f64) -> Device {
    Device {
        name: name.to_owned(),
        os: Os::Linux,
        cpu: processor(20e9),
        gpu: None,
        memory_bytes: layers * 109e6,
        swap_bytes: 0.0,
        buffer_bytes: 0.0,
        stream_bytes: 0.0,
        weight_bytes_max: None,
        disk: Disk { sequential_bytes_per_s: 1e9, random_bytes_per_s: 0.4e9 },
    }
}

/// Returns a cluster of these devices, 5 ms apart, with the first one as head.
pub(crate) fn cluster(devices: Vec<Device>) -> Cluster {
    let head = devices.first().map(|device| device.name.clone());
    Cluster {
        note: String::new(),
        devices,
        network: Network { latency_s: 5e-3, bytes_per_s: 50e6, edges: Vec::new() },
        head,
    }
}

/// Returns a cluster of random devices with too little, just enough or plenty of memory for `layers` layers.
pub(crate) fn drawn(seed: u64, devices: usize, layers: usize) -> (Cluster, ModelShape, Workload) {
    let mut draw = Draw::new(seed);
    let model = model(layers);
    let mean = layers as f64 / devices as f64 * draw.within(0.2, 2.5);
    let names: Vec<String> = (0..devices).map(|at| format!("d{at}")).collect();
    let mut all: Vec<Device> = Vec::new();
    for name in &names {
        let mut own = device(name, mean * draw.within(0.3, 2.0) + 1.0);
        own.cpu = processor(draw.within(5e9, 60e9));
        own.os = [Os::Linux, Os::Linux, Os::Android, Os::Macos][draw.count(0, 3)];
        own.swap_bytes = draw.within(1e7, 3e8);
        own.stream_bytes = if draw.chance(0.5) { 0.0 } else { draw.within(1e6, 5e7) };
        let disk = draw.within(0.05e9, 6e9);
        own.disk = Disk { sequential_bytes_per_s: disk, random_bytes_per_s: disk * 0.4 };
        if draw.chance(0.4) {
            let kind = match own.os {
                Os::Macos => GpuKind::Metal,
                Os::Linux if seed % 2 == 1 => GpuKind::Shared,
                _ => GpuKind::Cuda,
            };
            own.gpu = Some(Gpu {
                kind,
                processor: processor(draw.within(10e9, 600e9)),
                memory_bytes: draw.within(1e8, mean * 2e8 + 2e8),
                buffer_bytes: 1e6,
                copy_s: if kind == GpuKind::Metal { 0.0 } else { 20e-6 },
                load_bytes_per_s: (kind == GpuKind::Cuda && draw.chance(0.5)).then(|| draw.within(1e9, 60e9)),
                loads_beside: !seed.is_multiple_of(3),
            });
        }
        all.push(own);
    }
    let mut cluster = cluster(all);
    cluster.network.latency_s = draw.within(1e-5, 20e-3);
    for from in &names {
        for to in &names {
            if from != to && draw.chance(0.3) {
                let latency_s = if draw.chance(0.1) { None } else { Some(draw.within(1e-5, 50e-3)) };
                cluster.network.edges.push(Edge {
                    from: from.clone(),
                    to: to.clone(),
                    latency_s,
                    bytes_per_s: None,
                });
            }
        }
    }
    (cluster, model, Workload { context: draw.count(16, 4096), sequences: draw.count(1, 3) })
}
