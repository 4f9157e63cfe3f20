//! What a plan must know: the model's shape, the devices, the network between them, and the work.
//!
//! The same types are what the profiler writes and what a person writes by hand to ask "what if". Everything is
//! checked once, by [`Cluster::check`] and [`ModelShape::check`]; the planners rely on it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The most devices of one cluster.
pub const DEVICES_MAX: usize = 64;
/// The most layers of a model.
pub const LAYERS_MAX: usize = 1024;

/// Rates or work by weight format, under ggml's names (`Q4_K`, `Q6_K`, `F16`, …).
pub type ByFormat = BTreeMap<String, f64>;

/// A model, as far as its cost goes. All layers count as alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelShape {
    /// What people call it.
    pub name: String,
    /// `L`.
    pub layers: usize,
    /// `e`, values of a hidden state.
    pub hidden: usize,
    /// `V`, rows of the embedding.
    pub vocab: usize,
    /// `b`, bytes of one layer's weights.
    pub layer_bytes: f64,
    /// `b_i`, bytes of the embedding.
    pub input_bytes: f64,
    /// `b_o`, bytes of the output head (with a tied embedding, those of the embedding).
    pub output_bytes: f64,
    /// `2 (h_k e_k + h_v e_v)` for f16: bytes that one token adds to one layer's KV cache.
    pub kv_bytes: f64,
    /// `f^q`: floating-point operations of one token in one layer, by format.
    pub layer_flops: ByFormat,
    /// `f_out^q`: those of the output head.
    pub output_flops: ByFormat,
}

/// The operating system, as far as it decides what happens to mapped pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Os {
    /// Gives back mapped pages bit by bit.
    Linux,
    /// As Linux, and swaps out other programs' pages first.
    Android,
    /// As Linux on the CPU; with Metal, all or nothing.
    Macos,
}

/// What computes with weights in the memory beside it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// `s^q`: floating-point operations a second of a product with one vector, weights at hand, by format.
    pub flops: ByFormat,
    /// `T`: bytes of weights read from memory a second.
    pub read_bytes_per_s: f64,
    /// `t^kv_cpy`: seconds to append one token's keys and values to one layer's cache.
    #[serde(default)]
    pub kv_copy_s: f64,
}

/// How a GPU is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuKind {
    /// Memory of its own; weights in it stay.
    Cuda,
    /// The device's memory; if it is too small, the system gives all weights back.
    Metal,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// How it is spoken to.
    pub kind: GpuKind,
    /// Its speed.
    pub processor: Processor,
    /// `d_cuda^avail`, or Metal's recommended working set: bytes free for weights, KV and buffers.
    pub memory_bytes: f64,
    /// `c^gpu`: bytes of its compute buffers.
    #[serde(default)]
    pub buffer_bytes: f64,
    /// `t^ram-vram + t^vram-ram`: seconds to bring one hidden state in and back out; 0 for shared memory.
    #[serde(default)]
    pub copy_s: f64,
}

/// A disk, as the model's file lies on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Bytes a second, read in order.
    pub sequential_bytes_per_s: f64,
    /// Bytes a second, read page by page here and there.
    pub random_bytes_per_s: f64,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// What people call it; unique in its cluster.
    pub name: String,
    /// Its operating system.
    pub os: Os,
    /// Its CPU.
    pub cpu: Processor,
    /// Its GPU, if the program can use one there.
    #[serde(default)]
    pub gpu: Option<Gpu>,
    /// `d^avail`: bytes of memory that weights, KV and buffers may take.
    pub memory_bytes: f64,
    /// `min(d^bytes_can_swap, d^swap_avail)`: what Android frees beyond that; ignored elsewhere.
    #[serde(default)]
    pub swap_bytes: f64,
    /// `c^cpu`: bytes of compute buffers.
    #[serde(default)]
    pub buffer_bytes: f64,
    /// Of these, the bytes that streamed weights are read into: what is read ahead without taking anything from weights.
    #[serde(default)]
    pub stream_bytes: f64,
    /// Most bytes of weights that may stay in its memory, whatever that has room for; none where nobody set a limit. The
    /// exact search and every prediction go by it; Halda knows no such limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_bytes_max: Option<f64>,
    /// Its disk.
    pub disk: Disk,
}

/// One way from a device to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    /// Name of a device.
    pub from: String,
    /// Name of another.
    pub to: String,
    /// Seconds until the first byte is there; none: the two do not see each other.
    pub latency_s: Option<f64>,
    /// Bytes a second behind it; none: as the network's.
    #[serde(default)]
    pub bytes_per_s: Option<f64>,
}

/// The network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Seconds until the first byte, between any two devices that no edge names.
    pub latency_s: f64,
    /// Bytes a second behind it.
    pub bytes_per_s: f64,
    /// Pairs that differ. An edge counts in both directions unless its opposite is given too.
    #[serde(default)]
    pub edges: Vec<Edge>,
}

/// Devices and what lies between them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// What the numbers stand on, for people.
    #[serde(default)]
    pub note: String,
    /// The devices.
    pub devices: Vec<Device>,
    /// The network.
    pub network: Network,
    /// Name of the device that keeps text, embedding and output; none: the planner chooses.
    #[serde(default)]
    pub head: Option<String>,
}

/// What the ring is to carry.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// `n_kv`: tokens in each sequence's KV cache.
    pub context: usize,
    /// Sequences that are decoded together, one token each a step.
    pub sequences: usize,
}

impl Default for Workload {
    fn default() -> Self {
        Self { context: 2048, sequences: 1 }
    }
}

/// A description that cannot be planned with.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ClusterError {
    /// A number out of its range.
    #[error("{place}: {field} is {value}, must be {want}")]
    Range {
        /// Device, edge or model.
        place: String,
        /// The field.
        field: &'static str,
        /// What it says.
        value: f64,
        /// What it may say.
        want: &'static str,
    },
    /// Too few or too many.
    #[error("{what}: {count}, must be 1 to {max}")]
    Count {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// The most.
        max: usize,
    },
    /// Two devices share a name.
    #[error("two devices are called `{0}`")]
    TwoNames(String),
    /// An edge or the head names a device that is not there.
    #[error("{place} names `{name}`, which is not one of the devices {known}")]
    Unknown {
        /// `head` or `edge`.
        place: &'static str,
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A device has no rate for a format of the model.
    #[error("device `{device}`: {processor} has no rate for {format}, which `{model}` has weights in")]
    NoRate {
        /// The device.
        device: String,
        /// `cpu` or `gpu`.
        processor: &'static str,
        /// The format.
        format: String,
        /// The model.
        model: String,
    },
}

/// The range of what must not be 0, in any unit: beyond it sums of costs would be no numbers.
const LEAST: f64 = 1e-9;
const MOST: f64 = 1e18;

fn positive(place: &str, field: &'static str, value: f64) -> Result<(), ClusterError> {
    range(place, field, value, (LEAST..=MOST).contains(&value), "1e-9 to 1e18")
}

fn not_negative(place: &str, field: &'static str, value: f64) -> Result<(), ClusterError> {
    range(place, field, value, (0.0..=MOST).contains(&value), "0 to 1e18")
}

fn range(
    place: &str,
    field: &'static str,
    value: f64,
    holds: bool,
    want: &'static str,
) -> Result<(), ClusterError> {
    if holds { Ok(()) } else { Err(ClusterError::Range { place: place.to_owned(), field, value, want }) }
}

fn count(what: &'static str, count: usize, max: usize) -> Result<(), ClusterError> {
    if (1..=max).contains(&count) { Ok(()) } else { Err(ClusterError::Count { what, count, max }) }
}

impl ModelShape {
    /// Checks all numbers.
    ///
    /// # Errors
    /// [`ClusterError`] naming the field.
    pub fn check(&self) -> Result<(), ClusterError> {
        count("layers", self.layers, LAYERS_MAX)?;
        count("hidden values", self.hidden, usize::MAX)?;
        count("rows of the embedding", self.vocab, usize::MAX)?;
        positive(&self.name, "layer_bytes", self.layer_bytes)?;
        not_negative(&self.name, "input_bytes", self.input_bytes)?;
        not_negative(&self.name, "output_bytes", self.output_bytes)?;
        not_negative(&self.name, "kv_bytes", self.kv_bytes)?;
        let flops = self.layer_flops.values().chain(self.output_flops.values());
        flops.into_iter().try_for_each(|flops| not_negative(&self.name, "flops", *flops))
    }

    /// Bytes that all devices together hold of it: weights without the embedding, of which a token reads one row, and the
    /// KV cache. With a long context a model with many KV heads can be larger than one with more weights.
    pub fn held_bytes(&self, workload: Workload) -> f64 {
        self.layers as f64 * self.layer_bytes + self.output_bytes + self.cache_bytes(workload)
    }

    /// Bytes of the KV cache of all layers and sequences.
    pub fn cache_bytes(&self, workload: Workload) -> f64 {
        self.layers as f64 * self.kv_bytes * workload.context as f64 * workload.sequences as f64
    }

    /// Bytes of one embedding row: what looking a token up reads.
    pub fn lookup_bytes(&self) -> f64 {
        self.input_bytes / self.vocab as f64
    }
}

impl Processor {
    fn check(&self, place: &str) -> Result<(), ClusterError> {
        positive(place, "read_bytes_per_s", self.read_bytes_per_s)?;
        not_negative(place, "kv_copy_s", self.kv_copy_s)?;
        self.flops.values().try_for_each(|flops| positive(place, "flops", *flops))
    }
}

impl Device {
    fn check(&self) -> Result<(), ClusterError> {
        let place = format!("device `{}`", self.name);
        self.cpu.check(&place)?;
        not_negative(&place, "memory_bytes", self.memory_bytes)?;
        not_negative(&place, "swap_bytes", self.swap_bytes)?;
        not_negative(&place, "stream_bytes", self.stream_bytes)?;
        not_negative(&place, "buffer_bytes", self.buffer_bytes)?;
        not_negative(&place, "weight_bytes_max", self.weight_bytes_max.unwrap_or(0.0))?;
        positive(&place, "sequential_bytes_per_s", self.disk.sequential_bytes_per_s)?;
        positive(&place, "random_bytes_per_s", self.disk.random_bytes_per_s)?;
        let Some(gpu) = &self.gpu else { return Ok(()) };
        let place = format!("gpu of {place}");
        gpu.processor.check(&place)?;
        not_negative(&place, "memory_bytes", gpu.memory_bytes)?;
        not_negative(&place, "buffer_bytes", gpu.buffer_bytes)?;
        not_negative(&place, "copy_s", gpu.copy_s)
    }
}

impl Cluster {
    /// Checks all numbers and names.
    ///
    /// # Errors
    /// [`ClusterError`] naming the place, the field and what it may be.
    pub fn check(&self) -> Result<(), ClusterError> {
        count("devices", self.devices.len(), DEVICES_MAX)?;
        let mut names = BTreeSet::new();
        for device in &self.devices {
            if !names.insert(device.name.as_str()) {
                return Err(ClusterError::TwoNames(device.name.clone()));
            }
            device.check()?;
        }
        let known = || format!("`{}`", names.iter().copied().collect::<Vec<_>>().join("`, `"));
        let named = |place: &'static str, name: &str| {
            let unknown = || ClusterError::Unknown { place, name: name.to_owned(), known: known() };
            if names.contains(name) { Ok(()) } else { Err(unknown()) }
        };
        if let Some(head) = &self.head {
            named("head", head)?;
        }
        not_negative("network", "latency_s", self.network.latency_s)?;
        positive("network", "bytes_per_s", self.network.bytes_per_s)?;
        for edge in &self.network.edges {
            named("edge", &edge.from)?;
            named("edge", &edge.to)?;
            let place = format!("edge `{}` to `{}`", edge.from, edge.to);
            not_negative(&place, "latency_s", edge.latency_s.unwrap_or(0.0))?;
            edge.bytes_per_s.map_or(Ok(()), |bytes| positive(&place, "bytes_per_s", bytes))?;
        }
        Ok(())
    }

    /// Where the device of this name stands.
    pub fn index(&self, name: &str) -> Option<usize> {
        self.devices.iter().position(|device| device.name == name)
    }

    /// The same cluster without one device. A head that goes leaves the choice to the planner.
    #[must_use]
    pub fn without(&self, name: &str) -> Self {
        let mut rest = self.clone();
        rest.devices.retain(|device| device.name != name);
        rest.network.edges.retain(|edge| edge.from != name && edge.to != name);
        rest.head.take_if(|head| head == name);
        rest
    }
}

impl Workload {
    /// Checks the counts.
    ///
    /// # Errors
    /// [`ClusterError::Count`].
    pub fn check(&self) -> Result<(), ClusterError> {
        count("sequences", self.sequences, 4096)?;
        count("context tokens", self.context, 1 << 24)
    }
}

#[cfg(test)]
mod tests;
