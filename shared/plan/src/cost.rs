//! What a share of the layers costs a device, and how long a token takes under a plan.
//!
//! The cost accounts for overlap: it counts reads from disk only as far as computing does not hide them.
//!
//! * **Compute and memory.** A layer takes `max(sum_q f^q / s^q, b' / r) + t^kv_cpy` on its processor, since
//!   products prefetch their weights. `b'` is `b` plus the layer's KV cache, and `r` is the memory's rate
//!   (the paper's `T`). Of a mixture's `b` only the used experts count here. (prima.cpp, A.3, adds the two
//!   terms of the maximum.)
//! * **Loading.** What a GPU has no room for is in the device's memory: weights, keys and values of some
//!   layers. For each token the used weights are loaded, and the whole KV cache of these layers. Loads run
//!   while others are computed, if the GPU can do both, else in turn with that.
//! * **Residency.** Weights fill the memory that KV and buffers leave. A fixed set of weights stays there,
//!   and the overflow `D` is read for every token. Experts come last, and only used ones are read. With
//!   Metal, a device that is too small reads everything (A.3, case 2). Another GPU that shares the memory
//!   leaves less of it for the CPU's weights.
//! * **Reading ahead.** While others compute, a device fills its read buffers of `B` bytes. A part `P` of the
//!   memory may be kept to read ahead further, in the page cache. Then each token needs `D + P` bytes. Of
//!   these `k (B + P)` are read before windows begin, and `S = D - k B - (k - 1) P` inside them, while the
//!   device computes. All but the first half layer overlaps.
//! * A device is busy for `t = max(C, S / s) + fill`, with the disk's rate `s`. A token takes
//!   `T = sum t + k sum hops`, and no disk can read more than `D + P <= s T`. So `P`, and with it `t`,
//!   depends on `T`; the cost is the least `T`. `t` is convex in `T` and piecewise linear, so Newton's method
//!   from the left finds it exactly.
//!
//! With `k = 1`, memory kept for reading ahead gains nothing; `k` rounds cost `k` times the hops. Several `P`
//! may give the least `T`; a plan takes no more than that time needs.

use serde::{Deserialize, Serialize};

use crate::cluster::{
    ByFormat, Cluster, ClusterError, Device, Gpu, GpuKind, ModelShape, Os, Processor, Workload,
};
use crate::network::Hops;
use crate::plan::{Plan, PlanError};

/// A disk below this rate is slow, and its device never gets more layers than its memory holds. Bytes a
/// second; the value of prima.cpp's code.
pub const SLOW_DISK_BYTES_PER_S: f64 = 0.1e9;

/// Seconds on one processor, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct LayerTime {
    pub(crate) compute_s: f64,
    pub(crate) memory_s: f64,
}

impl LayerTime {
    pub(crate) fn total(self) -> f64 {
        self.compute_s + self.memory_s
    }
}

/// One way of holding a number of layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Holding {
    /// Layers that the GPU computes.
    pub(crate) gpu: usize,
    /// Those among them whose weights, keys and values are loaded for each token.
    pub(crate) loaded: usize,
    /// `C` without copies.
    pub(crate) busy_s: f64,
    /// `D` in bytes.
    pub(crate) overflow: f64,
    /// The largest `P` in bytes.
    pub(crate) room: f64,
    /// The disk's rate for the reads it needs, in bytes a second.
    pub(crate) disk: f64,
    /// `B` in bytes.
    pub(crate) stream: f64,
    /// Seconds that the first streamed half layer adds.
    pub(crate) fill_s: f64,
    /// `t^ram-vram + t^vram-ram`, for each window.
    pub(crate) copy_s: f64,
}

/// The part of one device in a token of `T` seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Own {
    /// `t`.
    pub(crate) seconds: f64,
    /// `P`.
    pub(crate) prefetch: f64,
    /// `-dt/dT`, from the right.
    pub(crate) slope: f64,
}

impl Holding {
    /// Returns the least seconds in which this device does its part of a token of `token_s` seconds in
    /// `rounds` rounds. Returns `None` if its disk cannot keep up.
    pub(crate) fn own(&self, rounds: usize, token_s: f64) -> Option<Own> {
        let busy = self.busy_s + rounds as f64 * self.copy_s;
        if self.overflow <= 0.0 {
            return Some(Own { seconds: busy, prefetch: 0.0, slope: 0.0 });
        }
        if self.reading_s() > token_s {
            return None;
        }
        let ahead = (rounds - 1) as f64;
        let buffered = self.buffered(rounds);
        let useful = if rounds == 1 { 0.0 } else { (buffered - self.disk * busy).max(0.0) / ahead };
        let readable = self.disk * token_s - self.overflow;
        let prefetch = useful.min(self.room).min(readable).max(0.0);
        let inside = (buffered - ahead * prefetch) / self.disk;
        let slope = if readable < useful.min(self.room) { ahead } else { 0.0 };
        Some(Own { seconds: busy.max(inside) + self.fill_s, prefetch, slope })
    }

    /// Returns the seconds its disk needs to read the overflow; no token takes less.
    pub(crate) fn reading_s(&self) -> f64 {
        if self.overflow > 0.0 { self.overflow / self.disk } else { 0.0 }
    }

    /// Returns the bytes still to be read inside the windows if every window begins with full buffers.
    fn buffered(&self, rounds: usize) -> f64 {
        (self.overflow - rounds as f64 * self.stream).max(0.0)
    }

    /// Returns the part with up to `slack_s` more seconds, so that less memory is kept for reading ahead.
    fn relaxed(&self, own: Own, rounds: usize, slack_s: f64) -> Own {
        if own.prefetch <= 0.0 || slack_s <= 0.0 {
            return own;
        }
        let without = self.buffered(rounds) / self.disk + self.fill_s;
        let seconds = (own.seconds + slack_s).min(without.max(own.seconds));
        let inside = (seconds - self.fill_s) * self.disk;
        let prefetch = (self.buffered(rounds) - inside).max(0.0) / (rounds - 1) as f64;
        Own { seconds, prefetch: prefetch.min(own.prefetch), ..own }
    }
}

/// Returns the bytes of memory that a device has for weights, keys, values and buffers.
fn budget(device: &Device) -> f64 {
    device.memory_bytes + if device.os == Os::Android { device.swap_bytes } else { 0.0 }
}

/// The costs of a model on a cluster, for every device and number of layers.
#[derive(Debug, Clone)]
pub struct Costs<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) model: &'a ModelShape,
    pub(crate) workload: Workload,
    pub(crate) hops: Hops,
    cpu: Vec<LayerTime>,
    gpu: Vec<Option<LayerTime>>,
    output: Vec<LayerTime>,
}

impl<'a> Costs<'a> {
    /// Checks the description and computes its costs.
    ///
    /// # Errors
    /// [`ClusterError`] if the description is wrong.
    pub fn new(
        cluster: &'a Cluster,
        model: &'a ModelShape,
        workload: Workload,
    ) -> Result<Self, ClusterError> {
        cluster.check()?;
        model.check()?;
        workload.check()?;
        let layer = |device: &Device, kind, processor: &Processor| {
            let copy = workload.sequences as f64 * processor.kv_copy_s;
            let bytes = model.used_bytes(workload) + kv_bytes(model, workload);
            let time = processor_time(model, &model.layer_flops, bytes, workload, device, kind, processor)?;
            Ok::<_, ClusterError>(LayerTime { memory_s: time.memory_s + copy, ..time })
        };
        let (mut cpu, mut gpu, mut output) = (Vec::new(), Vec::new(), Vec::new());
        for device in &cluster.devices {
            cpu.push(layer(device, "cpu", &device.cpu)?);
            gpu.push(device.gpu.as_ref().map(|gpu| layer(device, "gpu", &gpu.processor)).transpose()?);
            let head = &model.output_flops;
            output.push(processor_time(
                model,
                head,
                model.output_bytes,
                workload,
                device,
                "cpu",
                &device.cpu,
            )?);
        }
        let hops = Hops::new(cluster, model, &workload);
        Ok(Self { cluster, model, workload, hops, cpu, gpu, output })
    }

    /// Returns the bytes of one layer's KV cache.
    pub(crate) fn kv_bytes(&self) -> f64 {
        kv_bytes(self.model, self.workload)
    }

    pub(crate) fn cpu_layer(&self, device: usize) -> LayerTime {
        self.cpu[device]
    }

    pub(crate) fn gpu_layer(&self, device: usize) -> Option<LayerTime> {
        self.gpu[device]
    }

    /// Returns the time that the head spends on the output.
    pub(crate) fn output(&self, device: usize) -> LayerTime {
        self.output[device]
    }

    /// Returns the seconds the head needs to look its tokens up in the embedding on disk (`b_i / V`).
    pub(crate) fn lookup_s(&self, device: usize) -> f64 {
        let disk = &self.cluster.devices[device].disk;
        self.workload.sequences as f64 * self.model.lookup_bytes() / disk.random_bytes_per_s
    }

    /// Returns how many of at most `layers` layers fit the device's GPU.
    pub(crate) fn gpu_room(&self, device: usize, layers: usize, head: bool) -> usize {
        let Some(gpu) = &self.cluster.devices[device].gpu else { return 0 };
        let output = if head && gpu.kind == GpuKind::Metal { self.model.output_bytes } else { 0.0 };
        let each = self.model.layer_bytes + self.kv_bytes();
        let own = ((gpu.memory_bytes - gpu.buffer_bytes - output) / each).max(0.0);
        let room = if gpu.kind == GpuKind::Shared {
            let device = &self.cluster.devices[device];
            // Keys and values of the CPU's layers stay in the memory too; its weights may be read again.
            let rest =
                budget(device) - device.buffer_bytes - gpu.buffer_bytes - layers as f64 * self.kv_bytes();
            own.min((rest / self.model.layer_bytes).max(0.0))
        } else {
            own
        };
        (room as usize).min(layers)
    }

    /// Returns how many of `gpu` layers have to be loaded for each token; `None` if the GPU cannot compute so
    /// many.
    ///
    /// A GPU that loads computes all layers of its device. What is loaded goes through memory of about a
    /// layer.
    fn loaded(&self, at: usize, layers: usize, gpu: usize, head: bool) -> Option<usize> {
        let room = self.gpu_room(at, layers, head);
        if gpu <= room {
            return Some(0);
        }
        let loads = self.cluster.devices[at].gpu.as_ref().is_some_and(|gpu| gpu.load_bytes_per_s.is_some());
        (loads && gpu == layers && room > 0).then(|| gpu - (room - 1))
    }

    /// Returns the time of `gpu` layers on the GPU, of which `loaded` are loaded, with their keys and values.
    fn gpu_time(&self, at: usize, gpu: usize, loaded: usize) -> LayerTime {
        let each = self.gpu[at].unwrap_or_default();
        let (compute_s, memory_s) = (gpu as f64 * each.compute_s, gpu as f64 * each.memory_s);
        let gpu = self.cluster.devices[at].gpu.as_ref();
        let bytes = loaded as f64 * (self.model.used_bytes(self.workload) + self.kv_bytes());
        let loading_s = gpu.and_then(|gpu| gpu.load_bytes_per_s).map_or(0.0, |rate| bytes / rate);
        let beside = gpu.is_some_and(|gpu| gpu.loads_beside);
        let memory_s = if beside { memory_s.max(loading_s - compute_s) } else { memory_s + loading_s };
        LayerTime { compute_s, memory_s }
    }

    /// Returns the bytes that a token reads if there is no memory for `missing` bytes of the weights of these
    /// layers. Experts are the last that get memory.
    fn read_bytes(&self, layers: f64, missing: f64) -> f64 {
        let experts = missing.min(layers * self.model.expert_bytes);
        missing - experts * self.model.unused_share(self.workload)
    }

    /// Returns the most layers that fit a worker's GPU.
    pub fn gpu_layers_max(&self, device: usize) -> usize {
        self.gpu_room(device, self.model.layers, false)
    }

    /// Returns how a device holds `layers` with `gpu` of them on its GPU; `None` if it cannot.
    pub(crate) fn holding(&self, at: usize, layers: usize, gpu: usize, head: bool) -> Option<Holding> {
        let device = &self.cluster.devices[at];
        let loaded = self.loaded(at, layers, gpu, head)?;
        let cpu_layers = layers - gpu;
        let mut busy_s = cpu_layers as f64 * self.cpu[at].total() + self.gpu_time(at, gpu, loaded).total();
        // Weights that are loaded for each token come from the device's memory, or its disk.
        let in_memory = (cpu_layers + loaded) as f64;
        let mut weights = in_memory * self.model.layer_bytes;
        if head {
            busy_s += self.output[at].total() + self.lookup_s(at);
            weights += self.model.output_bytes + self.model.lookup_bytes();
        }
        let mut held = Holding {
            gpu,
            loaded,
            busy_s,
            overflow: 0.0,
            room: 0.0,
            disk: device.disk.sequential_bytes_per_s,
            stream: device.stream_bytes,
            fill_s: 0.0,
            copy_s: device.gpu.as_ref().filter(|_| gpu > 0).map_or(0.0, |gpu| gpu.copy_s),
        };
        match &device.gpu {
            Some(metal) if gpu > 0 && metal.kind == GpuKind::Metal => {
                weights += gpu as f64 * self.model.layer_bytes;
                let fixed = layers as f64 * self.kv_bytes() + device.buffer_bytes + metal.buffer_bytes;
                if fixed > metal.memory_bytes {
                    return None;
                }
                if weights + fixed > metal.memory_bytes {
                    held.overflow = weights;
                    held.disk = device.disk.random_bytes_per_s;
                }
            }
            shared if weights > 0.0 => {
                let shared = shared.as_ref().filter(|shared| gpu > 0 && shared.kind == GpuKind::Shared);
                let of_gpu = |shared: &Gpu| {
                    gpu as f64 * (self.model.layer_bytes + self.kv_bytes()) + shared.buffer_bytes
                };
                let taken = device.buffer_bytes + shared.map_or(0.0, of_gpu);
                held.room = budget(device) - taken - in_memory * self.kv_bytes();
                if held.room < 0.0 {
                    return None;
                }
                held.room = held.room.min(device.weight_bytes_max.unwrap_or(f64::INFINITY));
                held.overflow = self.read_bytes(in_memory, (weights - held.room).max(0.0));
            }
            _ => {}
        }
        if held.overflow > 0.0 {
            if held.disk < SLOW_DISK_BYTES_PER_S {
                return None;
            }
            let half = self.model.layer_bytes / 2.0;
            held.fill_s = (half / held.disk).min(self.cpu[at].total() / 2.0);
        }
        Some(held)
    }

    /// Returns the ways of holding `layers` that can be best. These are none on the GPU, as many as fit,
    /// or all, if it loads. If the GPU is slower than the CPU, or takes the CPU's memory, these are every
    /// number that fits.
    pub(crate) fn holdings(&self, at: usize, layers: usize, head: bool) -> Vec<Holding> {
        let most = self.gpu_room(at, layers, head);
        let slower = self.gpu[at].is_some_and(|gpu| gpu.total() > self.cpu[at].total());
        let gpu = &self.cluster.devices[at].gpu;
        let shares = gpu.as_ref().is_some_and(|gpu| gpu.kind == GpuKind::Shared);
        let mut counts: Vec<usize> = if slower || shares { (0..=most).collect() } else { vec![0, most] };
        counts.push(layers);
        counts.dedup();
        counts.into_iter().filter_map(|gpu| self.holding(at, layers, gpu, head)).collect()
    }

    /// Returns the least time of a token for these holdings, given the hops of one round; infinite if there
    /// is none.
    pub(crate) fn settle(holdings: &[Holding], rounds: usize, around_s: f64) -> f64 {
        let network = rounds as f64 * around_s;
        if !network.is_finite() {
            return f64::INFINITY;
        }
        let mut token_s = holdings.iter().map(Holding::reading_s).fold(0.0, f64::max);
        for _ in 0..100 {
            let own = holdings.iter().filter_map(|held| held.own(rounds, token_s));
            let (sum, slope) =
                own.fold((network, 0.0), |(sum, slope), own| (sum + own.seconds, slope + own.slope));
            if sum <= token_s {
                return token_s;
            }
            let next = token_s + (sum - token_s) / (1.0 + slope);
            if next <= token_s {
                break;
            }
            token_s = next;
        }
        token_s
    }

    /// Returns the part of each holding in a token of the [settled](Self::settle) time. No device keeps more
    /// memory for reading ahead than that time needs. Returns `None` if a disk cannot keep up.
    pub(crate) fn parts(
        holdings: &[Holding],
        rounds: usize,
        around_s: f64,
        token_s: f64,
    ) -> Option<Vec<Own>> {
        let own = |held: &Holding| held.own(rounds, token_s);
        let mut parts = holdings.iter().map(own).collect::<Option<Vec<Own>>>()?;
        let taken: f64 = parts.iter().map(|own| own.seconds).sum();
        let mut slack_s = token_s - rounds as f64 * around_s - taken;
        for (held, part) in holdings.iter().zip(&mut parts) {
            let relaxed = held.relaxed(*part, rounds, slack_s);
            slack_s -= relaxed.seconds - part.seconds;
            *part = relaxed;
        }
        Some(parts)
    }

    /// Returns the seconds of a token under `plan`, or `None` if a device cannot hold its share or a hop
    /// leads nowhere.
    pub fn token_s(&self, plan: &Plan) -> Option<f64> {
        let (ring, held) = self.places(plan).ok()?.into_iter().unzip::<_, _, Vec<usize>, Vec<Holding>>();
        let token_s = Self::settle(&held, rounds_of(plan), self.hops.around(&ring));
        token_s.is_finite().then_some(token_s)
    }

    /// Returns the devices and what they hold, in ring order.
    fn places(&self, plan: &Plan) -> Result<Vec<(usize, Holding)>, PlanError> {
        let place = |(at, share): (usize, &crate::plan::Share)| {
            let missing = || format!("the plan names `{}`, which is not in the cluster", share.device);
            let device = self.cluster.index(&share.device).ok_or_else(|| self.impossible(missing()))?;
            let held = self.holding(device, share.layers, share.gpu_layers, at == 0);
            let small = || format!("`{}` cannot hold {} layers", share.device, share.layers);
            Ok((device, held.ok_or_else(|| self.impossible(small()))?))
        };
        plan.shares.iter().enumerate().map(place).collect()
    }

    /// Predicts the time of a token under `plan`, device by device. `P` is not taken from the plan: the best
    /// for these layers is computed.
    ///
    /// # Errors
    /// [`PlanError::Impossible`] if a device cannot hold its share or a hop leads nowhere.
    pub fn predict(&self, plan: &Plan) -> Result<Prediction, PlanError> {
        let places = self.places(plan)?;
        let ring: Vec<usize> = places.iter().map(|(device, _)| *device).collect();
        let holdings: Vec<Holding> = places.iter().map(|(_, held)| *held).collect();
        let rounds = rounds_of(plan);
        let token_s = Self::settle(&holdings, rounds, self.hops.around(&ring));
        if !token_s.is_finite() {
            return Err(self.impossible("a hop of the ring leads nowhere".to_owned()));
        }
        let parts = Self::parts(&holdings, rounds, self.hops.around(&ring), token_s)
            .expect("a settled time is one that every disk keeps up with");
        let mut devices: Vec<DeviceTime> = Vec::new();
        for (place, ((device, held), own)) in places.iter().zip(parts).enumerate() {
            let share = &plan.shares[place];
            devices.push(self.device_time(*device, held, own, share.layers, place == 0, &ring, rounds));
        }
        let waits = token_s - devices.iter().map(DeviceTime::total_s).sum::<f64>();
        // If one disk alone sets the time of a token, the rest of that time counts as waiting for that disk.
        let slowest = (0..holdings.len())
            .filter(|at| holdings[*at].overflow > 0.0)
            .max_by(|a, b| holdings[*a].reading_s().total_cmp(&holdings[*b].reading_s()));
        if let Some(slowest) = slowest {
            devices[slowest].disk_s += waits.max(0.0);
        }
        Ok(Prediction { token_s, devices })
    }

    #[expect(clippy::too_many_arguments, reason = "one place of a ring, as its only caller knows it")]
    fn device_time(
        &self,
        at: usize,
        held: &Holding,
        own: Own,
        layers: usize,
        head: bool,
        ring: &[usize],
        rounds: usize,
    ) -> DeviceTime {
        let place = ring.iter().position(|device| *device == at).expect("the device is in the ring");
        let next = ring[(place + 1) % ring.len()];
        let cpu = (layers - held.gpu) as f64;
        let (on_cpu, on_gpu) = (self.cpu[at], self.gpu_time(at, held.gpu, held.loaded));
        let output = if head { self.output[at] } else { LayerTime::default() };
        let copies = rounds as f64 * held.copy_s;
        let lookup = if head { self.lookup_s(at) } else { 0.0 };
        let budget = held.room.max(0.0);
        DeviceTime {
            device: self.cluster.devices[at].name.clone(),
            loaded_layers: held.loaded,
            compute_s: cpu * on_cpu.compute_s + on_gpu.compute_s + output.compute_s,
            memory_s: cpu * on_cpu.memory_s + on_gpu.memory_s + output.memory_s + copies,
            disk_s: own.seconds - held.busy_s - copies + lookup,
            network_s: rounds as f64 * if ring.len() > 1 { self.hops.seconds(at, next) } else { 0.0 },
            read_bytes: held.overflow + own.prefetch,
            overflow_bytes: held.overflow,
            prefetch_bytes: own.prefetch,
            weight_budget_bytes: budget,
        }
    }

    pub(crate) fn impossible(&self, reason: String) -> PlanError {
        PlanError::Impossible { model: self.model.name.clone(), layers: self.model.layers, reason }
    }
}

/// The time one device adds to a token, in seconds by cause, and the bytes it reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceTime {
    /// Its name.
    pub device: String,
    /// Layers whose weights, keys and values are loaded to its GPU for each token.
    #[serde(default)]
    pub loaded_layers: usize,
    /// Arithmetic.
    pub compute_s: f64,
    /// Reading weights and KV from memory as far as arithmetic does not hide it, appending KV, and copies to
    /// and from a GPU. Also loading weights to it as far as its work does not hide that.
    pub memory_s: f64,
    /// Waiting for its disk.
    pub disk_s: f64,
    /// Passing hidden states on to the next device, in all rounds.
    pub network_s: f64,
    /// Bytes it reads from disk for each token.
    pub read_bytes: f64,
    /// The least it could read: the bytes a token uses that its memory does not hold.
    pub overflow_bytes: f64,
    /// `P`.
    pub prefetch_bytes: f64,
    /// Bytes of memory that KV and buffers leave for weights; 0 if it keeps no weights there.
    pub weight_budget_bytes: f64,
}

impl DeviceTime {
    /// Returns the sum of all causes.
    pub fn total_s(&self) -> f64 {
        self.compute_s + self.memory_s + self.disk_s + self.network_s
    }
}

/// The predicted time of a token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// TPOT in seconds: the sum over all devices and causes.
    pub token_s: f64,
    /// The ring, the head first.
    pub devices: Vec<DeviceTime>,
}

/// Returns the rounds that count; a single device has nobody to overlap with, so it has one.
fn rounds_of(plan: &Plan) -> usize {
    if plan.shares.len() == 1 { 1 } else { plan.rounds.max(1) }
}

/// Returns the bytes of one layer's KV cache of all sequences.
fn kv_bytes(model: &ModelShape, workload: Workload) -> f64 {
    model.kv_bytes * workload.context as f64 * workload.sequences as f64
}

fn processor_time(
    model: &ModelShape,
    work: &ByFormat,
    bytes: f64,
    workload: Workload,
    device: &Device,
    kind: &'static str,
    processor: &Processor,
) -> Result<LayerTime, ClusterError> {
    let mut compute_s = 0.0;
    for (format, flops) in work.iter().filter(|(_, flops)| **flops > 0.0) {
        let rate = processor.flops.get(format).ok_or_else(|| ClusterError::NoRate {
            device: device.name.clone(),
            processor: kind,
            format: format.clone(),
            model: model.name.clone(),
        })?;
        compute_s += workload.sequences as f64 * flops / rate;
    }
    let read_s = bytes / processor.read_bytes_per_s;
    Ok(LayerTime { compute_s, memory_s: (read_s - compute_s).max(0.0) })
}

#[cfg(test)]
mod tests;
