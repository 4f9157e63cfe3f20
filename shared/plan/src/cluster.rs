//! Input of a plan: the model's shape, the devices, the network between them, and the workload.
//!
//! The profiler writes these types, and a person can write them by hand to ask "what if". Everything is
//! checked once, by [`Cluster::check`] and [`ModelShape::check`]; the planners rely on it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The most devices of one cluster.
pub const DEVICES_MAX: usize = 64;
/// The most layers of a model.
pub const LAYERS_MAX: usize = 1024;

/// Rates or work by weight format, under ggml's names (`Q4_K`, `Q6_K`, `F16`, …).
pub type ByFormat = BTreeMap<String, f64>;

/// The costs of a model. All layers count as equal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelShape {
    /// Name for display.
    pub name: String,
    /// `L`.
    pub layers: usize,
    /// `e`, values of a hidden state.
    pub hidden: usize,
    /// `V`, rows of the embedding.
    pub vocab: usize,
    /// `b`, bytes of one layer's weights.
    pub layer_bytes: f64,
    /// Bytes of the experts among them; 0 if the model is no mixture.
    #[serde(default)]
    pub expert_bytes: f64,
    /// The share of a layer's experts that one token uses.
    #[serde(default)]
    pub expert_share: f64,
    /// `b_i`, bytes of the embedding.
    pub input_bytes: f64,
    /// `b_o`, bytes of the output head; for a tied embedding, those of the embedding.
    pub output_bytes: f64,
    /// `2 (h_k e_k + h_v e_v)` for f16: bytes that one token adds to one layer's KV cache.
    pub kv_bytes: f64,
    /// `f^q`: floating-point operations of one token in one layer, by format.
    pub layer_flops: ByFormat,
    /// `f_out^q`: floating-point operations of one token in the output head, by format.
    pub output_flops: ByFormat,
}

/// The operating system, which decides what happens to mapped pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Os {
    /// Drops mapped pages gradually.
    Linux,
    /// As Linux, but swaps out other programs' pages first.
    Android,
    /// As Linux on the CPU; with Metal, either all pages stay or all are dropped.
    Macos,
    /// As Linux: takes pages from the working set gradually.
    Windows,
}

/// A CPU or GPU, with the memory it reads weights from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// `s^q`: floating-point operations a second of a matrix-vector product, by format, when not limited by
    /// memory.
    pub flops: ByFormat,
    /// `T`: bytes of weights read from memory a second.
    pub read_bytes_per_s: f64,
    /// `t^kv_cpy`: seconds to append one token's keys and values to one layer's cache. On a GPU the start of
    /// a kernel is most of that.
    #[serde(default)]
    pub kv_copy_s: f64,
}

/// The interface of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuKind {
    /// It has its own memory; weights stay there.
    Cuda,
    /// It shares the device's memory as prima.cpp uses Metal: layers of the CPU count too, and if the memory
    /// is too small, the system drops all weights.
    Metal,
    /// It shares the device's memory. What it holds is kept there and leaves less for the CPU's layers.
    Shared,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Its interface.
    pub kind: GpuKind,
    /// Its speed.
    pub processor: Processor,
    /// `d_cuda^avail`, or Metal's recommended working set: bytes free for weights, KV and buffers. If the
    /// memory is shared, at most what the device has is used of them.
    pub memory_bytes: f64,
    /// `c^gpu`: bytes of its compute buffers.
    #[serde(default)]
    pub buffer_bytes: f64,
    /// `t^ram-vram + t^vram-ram`: seconds to copy one hidden state in and back out; 0 for shared memory.
    #[serde(default)]
    pub copy_s: f64,
    /// Bytes a second at which weights that do not fit into its memory are loaded for each token. `None`: it
    /// computes only layers that stay there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_bytes_per_s: Option<f64>,
    /// Whether it loads while it computes. If not, the two take turns.
    #[serde(default)]
    pub loads_beside: bool,
}

/// The disk that holds the model's file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Bytes a second of sequential reads.
    pub sequential_bytes_per_s: f64,
    /// Bytes a second of random reads, page by page.
    pub random_bytes_per_s: f64,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Name for display; unique in its cluster.
    pub name: String,
    /// Its operating system.
    pub os: Os,
    /// Its CPU.
    pub cpu: Processor,
    /// Its GPU, if there is one that the program can use.
    #[serde(default)]
    pub gpu: Option<Gpu>,
    /// `d^avail`: bytes of memory that weights, KV and buffers may take.
    pub memory_bytes: f64,
    /// `min(d^bytes_can_swap, d^swap_avail)`: bytes that Android frees beyond that; ignored on other systems.
    #[serde(default)]
    pub swap_bytes: f64,
    /// `c^cpu`: bytes of compute buffers.
    #[serde(default)]
    pub buffer_bytes: f64,
    /// Of these, the bytes of the buffers that streamed weights are read into. Reading ahead into them takes
    /// no memory from weights.
    #[serde(default)]
    pub stream_bytes: f64,
    /// The most bytes of weights that may stay in its memory, even if there is room for more; `None` if
    /// nobody set a limit. The exact search and every prediction respect it; Halda does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_bytes_max: Option<f64>,
    /// Its disk.
    pub disk: Disk,
}

/// A connection from one device to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    /// Name of a device.
    pub from: String,
    /// Name of another.
    pub to: String,
    /// Seconds until the first byte arrives; `None` if the two devices cannot reach each other.
    pub latency_s: Option<f64>,
    /// Bytes a second after that; `None` means the network's value.
    #[serde(default)]
    pub bytes_per_s: Option<f64>,
}

/// The network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Seconds until the first byte arrives, between devices that no edge names.
    pub latency_s: f64,
    /// Bytes a second after that.
    pub bytes_per_s: f64,
    /// Pairs with other values. An edge counts in both directions unless its opposite is given too.
    #[serde(default)]
    pub edges: Vec<Edge>,
}

/// Devices and the network between them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Where the numbers come from, for people.
    #[serde(default)]
    pub note: String,
    /// The devices.
    pub devices: Vec<Device>,
    /// The network.
    pub network: Network,
    /// Name of the device that keeps text, embedding and output; `None` lets the planner choose.
    #[serde(default)]
    pub head: Option<String>,
}

/// The load that the plan is made for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// `n_kv`: tokens in each sequence's KV cache.
    pub context: usize,
    /// Sequences that are decoded together, one token each per step.
    pub sequences: usize,
}

impl Default for Workload {
    fn default() -> Self {
        Self { context: 2048, sequences: 1 }
    }
}

/// Why a description cannot be planned with.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ClusterError {
    /// A number is out of its range.
    #[error("{place}: {field} is {value}, must be {want}")]
    Range {
        /// Device, edge or model.
        place: String,
        /// The field.
        field: &'static str,
        /// Its value.
        value: f64,
        /// The allowed range.
        want: &'static str,
    },
    /// There are too few or too many of something.
    #[error("{what}: {count}, must be 1 to {max}")]
    Count {
        /// What is counted.
        what: &'static str,
        /// How many.
        count: usize,
        /// The most.
        max: usize,
    },
    /// Two devices share a name.
    #[error("two devices are called `{0}`")]
    TwoNames(String),
    /// An edge or the head names an unknown device.
    #[error("{place} names `{name}`, which is not one of the devices {known}")]
    Unknown {
        /// `head` or `edge`.
        place: &'static str,
        /// The name.
        name: String,
        /// The known names.
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

/// The range of positive values in any unit; outside it, sums of costs would overflow or lose their meaning.
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
    /// [`ClusterError`] with the name of the field.
    pub fn check(&self) -> Result<(), ClusterError> {
        count("layers", self.layers, LAYERS_MAX)?;
        count("hidden values", self.hidden, usize::MAX)?;
        count("rows of the embedding", self.vocab, usize::MAX)?;
        positive(&self.name, "layer_bytes", self.layer_bytes)?;
        let (bytes, share) = (self.expert_bytes, self.expert_share);
        let within = (0.0..=self.layer_bytes).contains(&bytes);
        range(&self.name, "expert_bytes", bytes, within, "0 to layer_bytes")?;
        range(&self.name, "expert_share", share, (0.0..=1.0).contains(&share), "0 to 1")?;
        not_negative(&self.name, "input_bytes", self.input_bytes)?;
        not_negative(&self.name, "output_bytes", self.output_bytes)?;
        not_negative(&self.name, "kv_bytes", self.kv_bytes)?;
        let flops = self.layer_flops.values().chain(self.output_flops.values());
        flops.into_iter().try_for_each(|flops| not_negative(&self.name, "flops", *flops))
    }

    /// Returns the bytes that all devices hold together: weights without the embedding, of which a token
    /// reads one row, and the KV cache. With a long context, a model with many KV heads can need more than
    /// one with more weights.
    pub fn held_bytes(&self, workload: Workload) -> f64 {
        self.layers as f64 * self.layer_bytes + self.output_bytes + self.cache_bytes(workload)
    }

    /// Returns the bytes of the KV cache of all layers and sequences.
    pub fn cache_bytes(&self, workload: Workload) -> f64 {
        self.layers as f64 * self.kv_bytes * workload.context as f64 * workload.sequences as f64
    }

    /// Returns the bytes of one layer's weights that a step with one token of each sequence uses. Each token
    /// chooses its experts for itself.
    pub fn used_bytes(&self, workload: Workload) -> f64 {
        self.layer_bytes - self.expert_bytes * self.unused_share(workload)
    }

    /// Returns the share of a layer's experts that no token of such a step uses.
    pub(crate) fn unused_share(&self, workload: Workload) -> f64 {
        (1.0 - self.expert_share).powf(workload.sequences as f64)
    }

    /// Returns the bytes of one embedding row, which one token lookup reads.
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
        not_negative(&place, "copy_s", gpu.copy_s)?;
        gpu.load_bytes_per_s.map_or(Ok(()), |rate| positive(&place, "load_bytes_per_s", rate))
    }
}

impl Cluster {
    /// Checks all numbers and names.
    ///
    /// # Errors
    /// [`ClusterError`] with the place, the field and the allowed range.
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

    /// Returns the index of the device with this name.
    pub fn index(&self, name: &str) -> Option<usize> {
        self.devices.iter().position(|device| device.name == name)
    }

    /// Returns the cluster without one device. If that was the head, the planner chooses a new one.
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
