//! The GPUs of this device: what they are, how fast they are, and what a plan must know of one.

use baton_engine::GpuLoss;
use baton_gpu::{Device, Facts, HEADROOM_BYTES, Rates};
use baton_kernels_cpu::Format;
use baton_plan::cluster::ByFormat;
use baton_plan::{Gpu, GpuKind, Processor};
use baton_terminal::{chain, errln};
use serde::{Deserialize, Serialize};

/// Formats to measure if there is no model that says which.
pub const USUAL: [Format; 3] = [Format::Q4K, Format::Q8_0, Format::F16];

/// Tokens of the largest step that the engine sets memory aside for on a GPU.
const STEP_TOKENS: f64 = 512.0;
/// Numbers of a token's activations, in hidden states; feed-forward layers are about four times as wide.
const ACTIVATIONS: f64 = 24.0;
/// Rows of logits of one step.
const LOGIT_ROWS: f64 = 32.0;

/// A GPU, and its rates if they were measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuProfile {
    /// The name that its driver gives it.
    pub name: String,
    /// Interface and number, as `--gpu` takes them.
    pub place: String,
    /// Whether it is a program that runs on the CPU.
    pub is_software: bool,
    /// Whether it uses the computer's own memory.
    pub shares_memory: bool,
    /// Bytes of its memory, if the interface says.
    pub memory_bytes: Option<u64>,
    /// Bytes that this program could allocate, if it was opened and the interface or `--vram` says.
    pub free_bytes: Option<u64>,
    /// The rates, if it was measured.
    pub rates: Option<Rates>,
    /// Whether it loads weights while it computes, if it was opened.
    #[serde(default)]
    pub loads_beside: bool,
    /// Why it could not be opened or measured.
    pub problem: Option<String>,
}

impl GpuProfile {
    /// Describes a GPU that is not opened.
    pub fn of(facts: &Facts) -> Self {
        Self {
            name: facts.name.clone(),
            place: format!("{}:{}", facts.interface, facts.index),
            is_software: facts.is_software,
            shares_memory: facts.shares_memory,
            memory_bytes: facts.memory_bytes,
            free_bytes: None,
            rates: None,
            loads_beside: false,
            problem: None,
        }
    }

    /// Measures an open GPU with weights in these formats. A GPU that cannot be measured has a `problem`.
    pub fn measured(device: &dyn Device, formats: &[Format]) -> Self {
        let measured = baton_gpu::measure(device, formats, baton_gpu::TIME);
        let (free_bytes, loads_beside) = (device.free_bytes(), device.loads_beside_commands());
        let known = Self { free_bytes, loads_beside, ..Self::of(device.facts()) };
        match measured {
            Ok(rates) => Self { rates: Some(rates), ..known },
            Err(err) => Self { problem: Some(chain(&err)), ..known },
        }
    }

    /// Returns what a plan must know of it, or `None` if its rates or its free memory are not known.
    ///
    /// `buffer_bytes` are those of the model ([`buffer_bytes`]), or 0 if only the head of a ring knows it.
    pub fn described(&self, buffer_bytes: f64) -> Option<Gpu> {
        let (rates, free) = (self.rates.as_ref()?, self.free_bytes?);
        Some(Gpu {
            kind: if self.shares_memory { GpuKind::Shared } else { GpuKind::Cuda },
            processor: processor(rates),
            memory_bytes: (free - HEADROOM_BYTES.min(free / 4)) as f64,
            buffer_bytes,
            copy_s: rates.copies.round_trip_s,
            // Weights in a memory that it shares need no loading.
            load_bytes_per_s: (!self.shares_memory).then_some(rates.copies.to_device_bytes_per_s),
            loads_beside: self.loads_beside,
        })
    }
}

/// Returns the bytes that a GPU needs beside weights, keys and values.
///
/// `hidden` is the model's width of hidden states, `vocab` the number of tokens in its vocabulary, or 0 if
/// the GPU computes no logits.
pub fn buffer_bytes(hidden: usize, vocab: usize) -> f64 {
    4.0 * (STEP_TOKENS * ACTIVATIONS * hidden as f64 + LOGIT_ROWS * vocab as f64)
}

/// Says that an engine does without the GPU.
pub fn on_loss(loss: &GpuLoss) {
    errln!("note: {}", chain(loss));
}

/// Returns the formats with these names. A name that is no format has no kernels either.
pub fn formats<'a>(names: impl Iterator<Item = &'a String>) -> Vec<Format> {
    names.filter_map(|name| Format::ALL.into_iter().find(|format| format.name() == name)).collect()
}

/// Divides the measured time of a product between reading and arithmetic, which a plan adds up. Reading is as
/// fast as in the format that is read fastest. Arithmetic takes the rest of the time, but no less than in
/// products of many vectors. Keys and values are appended by a kernel with little to do.
fn processor(rates: &Rates) -> Processor {
    let read = rates.products.values().map(|product| product.vector_bytes_per_s).fold(0.0, f64::max);
    let flops = rates.products.iter().map(|(format, product)| {
        let reading_s = product.vector_bytes_per_s / product.vector_flops / read;
        let arithmetic_s = (1.0 / product.vector_flops - reading_s).max(1.0 / product.matrix_flops);
        (format.clone(), 1.0 / arithmetic_s)
    });
    Processor { flops: flops.collect::<ByFormat>(), read_bytes_per_s: read, kv_copy_s: rates.copies.launch_s }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::path::Path;

    use baton_gpu::{CopyRates, ProductRates};
    use baton_kernels_gpu::cases::HostDevice;

    use crate::machine::shape::shape_of;

    #[test]
    fn a_plan_adds_up_to_the_measured_time() {
        let slow = ProductRates { vector_bytes_per_s: 1e11, vector_flops: 4e11, matrix_flops: 1e13 };
        let fast = ProductRates { vector_bytes_per_s: 4e11, vector_flops: 4e11, matrix_flops: 2e13 };
        let products = [("Q4_K", slow), ("F16", fast)].map(|(name, rates)| (name.to_owned(), rates));
        let copies = CopyRates {
            to_device_bytes_per_s: 1e10,
            to_host_bytes_per_s: 1e10,
            round_trip_s: 2e-5,
            launch_s: 3e-6,
        };
        let processor = processor(&Rates { products: products.into(), copies });
        assert_eq!((processor.read_bytes_per_s, processor.kv_copy_s), (4e11, 3e-6));
        // A quarter of a byte for each operation in Q4_K: three quarters of its time are arithmetic.
        let seconds = 1.0 / processor.flops["Q4_K"] + 0.25 / processor.read_bytes_per_s;
        assert!((seconds * 4e11 - 1.0).abs() < 1e-9, "{seconds}");
        assert!((processor.flops["F16"] / 2e13 - 1.0).abs() < 1e-9, "{processor:?}");
    }

    #[test]
    fn a_measured_gpu_can_be_planned_with() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo-cloud.gguf");
        let model = shape_of(&path, Default::default()).unwrap();
        let formats = formats(model.layer_flops.keys());
        assert_eq!(formats.len(), model.layer_flops.len());
        let found = GpuProfile::measured(&HostDevice::new(Some(1 << 30)), &formats);
        assert_eq!((found.place.as_str(), &found.problem), ("vulkan:0", &None));
        let gpu = found.described(buffer_bytes(model.hidden, model.vocab)).unwrap();
        assert!(model.layer_flops.keys().all(|format| gpu.processor.flops[format] > 0.0), "{gpu:?}");
        assert!(gpu.memory_bytes > gpu.buffer_bytes && gpu.buffer_bytes > 0.0, "{gpu:?}");
        assert!(!gpu.loads_beside, "it does one thing after the other");
        let beside = GpuProfile { loads_beside: true, ..found };
        assert!(beside.described(0.0).is_some_and(|gpu| gpu.loads_beside));
        let device = baton_plan::Device {
            gpu: Some(gpu),
            ..crate::machine::profile::general(
                "here",
                std::num::NonZeroUsize::MIN,
                tempfile::tempdir().unwrap().path(),
                &mut |_| {},
            )
            .unwrap()
        };
        let network = baton_plan::Network { latency_s: 0.0, bytes_per_s: 1e9, edges: Vec::new() };
        let cluster = baton_plan::Cluster { note: String::new(), devices: vec![device], network, head: None };
        assert_eq!(cluster.check(), Ok(()));
    }

    #[test]
    fn a_gpu_that_cannot_be_measured_says_why_and_is_not_planned_with() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo-cloud.gguf");
        let model = shape_of(&path, Default::default()).unwrap();
        let found = GpuProfile::measured(&HostDevice::new(Some(1 << 20)), &USUAL);
        assert!(found.problem.as_ref().is_some_and(|words| words.contains("are free")), "{found:?}");
        assert_eq!(found.described(buffer_bytes(model.hidden, model.vocab)), None);
    }
}
