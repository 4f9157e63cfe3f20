//! The vectors `a`, `b`, `c`, the constant `kappa` and the memory bounds of A.3.

use crate::cluster::{Device, GpuKind, Os, Processor};
use crate::cost::Costs;

/// The case of A.3 that applies to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Set {
    /// macOS without Metal, too little memory.
    M1,
    /// macOS with Metal, too little memory.
    M2,
    /// Linux, Android or Windows, too little memory.
    M3,
    /// Enough memory, a slow disk, or forced.
    M4,
}

/// Returns the rate at which mapped pages are read again: random on macOS, else sequential.
pub(super) fn disk(device: &Device) -> f64 {
    match device.os {
        Os::Linux | Os::Android | Os::Windows => device.disk.sequential_bytes_per_s,
        Os::Macos => device.disk.random_bytes_per_s,
    }
}

/// Returns `b'`.
pub(super) fn layer_bytes(costs: &Costs<'_>) -> f64 {
    costs.model.layer_bytes + costs.kv_bytes()
}

/// Returns `b_i / V + b_o` on the head, else 0.
fn output_bytes(costs: &Costs<'_>, place: usize) -> f64 {
    if place == 0 { costs.model.lookup_bytes() + costs.model.output_bytes } else { 0.0 }
}

/// Returns the memory of a device that is left for layers: the right sides of (27) to (32), times `b' L / W`.
pub(super) fn room(costs: &Costs<'_>, ring: &[usize], place: usize) -> f64 {
    let device = &costs.cluster.devices[ring[place]];
    let fixed = output_bytes(costs, place) + device.buffer_bytes;
    match (&device.gpu, device.os) {
        (Some(gpu), Os::Macos) if gpu.kind == GpuKind::Metal => gpu.memory_bytes - fixed - gpu.buffer_bytes,
        (Some(gpu), os) if gpu.kind == GpuKind::Shared => {
            let swap = if os == Os::Android { device.swap_bytes } else { 0.0 };
            device.memory_bytes + swap - fixed - gpu.buffer_bytes
        }
        (_, Os::Android) => device.memory_bytes + device.swap_bytes - fixed,
        _ => device.memory_bytes - fixed,
    }
}

/// Whether the device has a GPU whose layers take the memory of the CPU's.
pub(super) fn shares_memory(device: &Device) -> bool {
    device.gpu.as_ref().is_some_and(|gpu| gpu.kind == GpuKind::Shared)
}

/// Whether the layers of a GPU count in [`room`].
pub(super) fn counts_gpu_layers(device: &Device) -> bool {
    device.os == Os::Macos || shares_memory(device)
}

/// Returns the most GPU layers of a window: (34) to (36).
pub(super) fn gpu_layers(costs: &Costs<'_>, ring: &[usize], place: usize, k: usize) -> usize {
    costs.gpu_room(ring[place], costs.model.layers, place == 0) / k
}

/// The coefficients of the objective.
#[derive(Debug, Clone)]
pub(super) struct Coefficients {
    pub(super) a: Vec<f64>,
    pub(super) b: Vec<f64>,
    pub(super) c: Vec<f64>,
    pub(super) kappa: f64,
}

impl Coefficients {
    pub(super) fn new(costs: &Costs<'_>, ring: &[usize], sets: &[Set]) -> Self {
        let each = layer_bytes(costs);
        let mut all =
            Self { a: Vec::new(), b: Vec::new(), c: Vec::new(), kappa: kappa(costs, ring[0], sets[0]) };
        for (place, (at, set)) in ring.iter().zip(sets).enumerate() {
            let device = &costs.cluster.devices[*at];
            let alpha = layer_s(costs, costs.cpu_layer(*at).compute_s, &device.cpu);
            let on_gpu = device.gpu.as_ref().zip(costs.gpu_layer(*at));
            let beta =
                on_gpu.map_or(0.0, |(gpu, time)| layer_s(costs, time.compute_s, &gpu.processor) - alpha);
            let rate = disk(device);
            let (a, b) = match set {
                // Layers of a GPU that shares the memory are not read again, but others are in their stead.
                Set::M1 | Set::M3 if shares_memory(device) => (alpha + each / rate, beta),
                Set::M1 => (alpha + each / rate, 0.0),
                Set::M2 => (alpha + costs.model.layer_bytes / rate, beta),
                Set::M3 => (alpha + each / rate, beta - each / rate),
                Set::M4 => (alpha, beta),
            };
            if matches!(set, Set::M1 | Set::M3) {
                let swap = if device.os == Os::Android { device.swap_bytes } else { 0.0 };
                let of_gpu = device.gpu.as_ref().filter(|gpu| gpu.kind == GpuKind::Shared);
                let buffers = device.buffer_bytes + of_gpu.map_or(0.0, |gpu| gpu.buffer_bytes);
                all.kappa += (buffers - device.memory_bytes - swap) / rate;
            }
            let next = ring[(place + 1) % ring.len()];
            let hop = if ring.len() > 1 { costs.hops.seconds(*at, next) } else { 0.0 };
            all.a.push(a);
            all.b.push(b);
            all.c.push(hop + device.gpu.as_ref().map_or(0.0, |gpu| gpu.copy_s));
        }
        all
    }
}

/// Returns `alpha`: the seconds to compute, append and load a layer, one after the other.
fn layer_s(costs: &Costs<'_>, compute_s: f64, processor: &Processor) -> f64 {
    let append = costs.workload.sequences as f64 * processor.kv_copy_s;
    compute_s + append + layer_bytes(costs) / processor.read_bytes_per_s
}

/// Returns the head's part of `kappa`.
fn kappa(costs: &Costs<'_>, head: usize, set: Set) -> f64 {
    let device = &costs.cluster.devices[head];
    let (lookup, output) = (costs.model.lookup_bytes(), costs.model.output_bytes);
    let reload = if set == Set::M4 { 0.0 } else { output / disk(device) };
    let load = (lookup + output) / device.cpu.read_bytes_per_s;
    costs.output(head).compute_s + load + lookup / disk(device) + reload
}
