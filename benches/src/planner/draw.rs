//! Draws random clusters: Linux, Android and macOS, with and without GPUs, with too little, just enough or
//! plenty of memory, fast and slow disks, short and long latencies. In a third of them several rounds are
//! likely to win: the devices are similar, with little memory, fast disks and short latencies.

use baton_plan::{Cluster, Device, Disk, Edge, Gpu, GpuKind, ModelShape, Network, Os, Processor, Workload};

use crate::random::Random;

/// The input of one plan.
#[derive(Debug)]
pub(super) struct Problem {
    pub cluster: Cluster,
    pub model: ModelShape,
    pub workload: Workload,
}

impl Problem {
    /// Draws one to four devices and 2 to 32 layers. More devices have fewer layers, so that brute force can
    /// try all plans.
    pub(super) fn small(seed: u64, index: u64) -> Self {
        let mut random = Random::new(seed, 7, index);
        let devices = random.count((1, 4)) as usize;
        let most = [32, 32, 20, 12][devices - 1];
        let layers = random.count((2, most)) as usize;
        Self::of(seed, index, devices, layers)
    }

    /// Draws a problem with the given numbers of devices and layers.
    pub(super) fn of(seed: u64, index: u64, devices: usize, layers: usize) -> Self {
        let mut random = Random::new(seed, 8, index);
        let rounds_win = index.is_multiple_of(3);
        let model = model(&mut random, layers);
        let share = layers as f64 / devices as f64 * model.layer_bytes;
        let scarcity = if rounds_win { (0.3, 0.9) } else { (0.2, 3.0) };
        let mean = share * random.log_uniform(scarcity);
        let names: Vec<String> = (0..devices).map(|at| format!("d{at}")).collect();
        let all = names.iter().map(|name| device(&mut random, name, mean, &model, rounds_win)).collect();
        let latency = if rounds_win { (2e-5, 1e-3) } else { (2e-5, 2e-2) };
        let mut network = Network {
            latency_s: random.log_uniform(latency),
            bytes_per_s: random.log_uniform((5e6, 1e9)),
            edges: Vec::new(),
        };
        for from in &names {
            for to in &names {
                if from != to && random.unit() < if rounds_win { 0.0 } else { 0.25 } {
                    let seen = random.unit() < 0.95;
                    let latency_s = Some(random.log_uniform((2e-5, 5e-2))).filter(|_| seen);
                    network.edges.push(Edge {
                        from: from.clone(),
                        to: to.clone(),
                        latency_s,
                        bytes_per_s: None,
                    });
                }
            }
        }
        let cluster = Cluster { note: String::new(), devices: all, network, head: names.first().cloned() };
        let workload =
            Workload { context: random.count((16, 8192)) as usize, sequences: random.count((1, 4)) as usize };
        Self { cluster, model, workload }
    }
}

fn model(random: &mut Random, layers: usize) -> ModelShape {
    let layer_bytes = random.log_uniform((3e7, 6e8));
    let flops = 2.0 * layer_bytes * 8.0 / 4.8;
    ModelShape {
        name: "random".to_owned(),
        layers,
        hidden: random.count((1024, 8192)) as usize,
        vocab: 100_000,
        layer_bytes,
        expert_bytes: 0.0,
        expert_share: 0.0,
        input_bytes: layer_bytes,
        output_bytes: layer_bytes * random.uniform((0.5, 2.0)),
        kv_bytes: random.log_uniform((1e3, 2e4)),
        layer_flops: [("Q4_K".to_owned(), flops * 0.8), ("Q6_K".to_owned(), flops * 0.2)].into(),
        output_flops: [("Q6_K".to_owned(), flops)].into(),
    }
}

fn processor(random: &mut Random, rate: f64) -> Processor {
    let flops = rate * random.uniform((2.0, 8.0));
    Processor {
        flops: [("Q4_K".to_owned(), flops), ("Q6_K".to_owned(), flops * 0.8)].into(),
        read_bytes_per_s: rate,
        kv_copy_s: random.log_uniform((1e-7, 1e-5)),
    }
}

fn device(random: &mut Random, name: &str, mean_bytes: f64, model: &ModelShape, rounds_win: bool) -> Device {
    let os = [Os::Linux, Os::Linux, Os::Android, Os::Macos][random.count((0, 3)) as usize];
    let rate = random.log_uniform(if rounds_win { (2e10, 4e10) } else { (4e9, 8e10) });
    let disk = random.log_uniform(if rounds_win { (1e9, 2e10) } else { (3e7, 8e9) });
    let gpu = (random.unit() < if rounds_win { 0.1 } else { 0.4 }).then(|| {
        let kind = if os == Os::Macos { GpuKind::Metal } else { GpuKind::Cuda };
        let rate = random.log_uniform((1e10, 8e11));
        Gpu {
            kind,
            processor: processor(random, rate),
            memory_bytes: mean_bytes * random.log_uniform((0.1, 2.0)),
            buffer_bytes: 1e6,
            copy_s: if kind == GpuKind::Cuda { 2e-5 } else { 0.0 },
            load_bytes_per_s: None,
            loads_beside: false,
        }
    });
    Device {
        name: name.to_owned(),
        os,
        cpu: processor(random, rate),
        gpu,
        memory_bytes: mean_bytes * random.log_uniform((0.4, 2.0)) + model.output_bytes,
        swap_bytes: model.layer_bytes * random.uniform((0.0, 2.0)),
        buffer_bytes: 1e6,
        stream_bytes: if random.unit() < 0.5 { 0.0 } else { model.layer_bytes * random.uniform((0.0, 0.5)) },
        weight_bytes_max: None,
        disk: Disk { sequential_bytes_per_s: disk, random_bytes_per_s: disk * random.uniform((0.2, 1.0)) },
    }
}
