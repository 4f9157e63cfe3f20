//! Engines on the chosen GPU.
//!
//! What always holds: with a GPU that the program chose itself, an engine is made whatever that GPU can
//! compute. With a GPU that the user named, an engine that the GPU cannot compute is refused.

use std::fmt;
use std::sync::Arc;

use baton_engine::engine::KvFormat;
use baton_engine::{
    Engine, EngineError, EngineOptions, GpuLayers, GpuLoss, GpuUse, Model, ModelConfig, Offload,
};
use baton_terminal::size;

use crate::devices::{OpenedGpu, label};

/// What a GPU computes of a model. `Display` says it in words, without the model's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuPart {
    /// The program has no GPU.
    None,
    /// Some of the layers, or all of them.
    Layers {
        /// The GPU.
        gpu: String,
        /// Layers that it computes.
        layers: usize,
        /// Layers of the model.
        of: usize,
        /// Whether it computes the logits too.
        logits: bool,
    },
    /// All layers. Some of the weights are loaded for each pass.
    Offloaded {
        /// The GPU.
        gpu: String,
        /// Bytes that are loaded for each pass, without experts.
        loaded_bytes: u64,
        /// Bytes of the layers' weights, without experts.
        weight_bytes: u64,
        /// Bytes of keys and values that are loaded too if the whole context is used.
        kv_bytes: u64,
        /// Experts of a mixture that are kept at most.
        experts: usize,
        /// Whether it computes the logits too.
        logits: bool,
    },
    /// Nothing, since not one layer fits into its memory.
    NoRoom {
        /// The GPU.
        gpu: String,
    },
    /// Nothing, since it has no kernels for the model or the settings, or has failed.
    Refused {
        /// The GPU.
        gpu: String,
        /// Why.
        reason: String,
    },
}

/// Says who computes the logits if the GPU does not.
fn without(logits: bool) -> &'static str {
    if logits { "" } else { ", the CPU the logits" }
}

impl fmt::Display for GpuPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("the CPU computes all layers"),
            Self::Layers { gpu, layers, of, logits } if layers == of => {
                write!(f, "{gpu} computes all {of} layers{}", without(*logits))
            }
            Self::Layers { gpu, layers, of, logits } => {
                write!(f, "{gpu} computes the last {layers} of {of} layers, the CPU the others")?;
                if *logits { Ok(()) } else { f.write_str(" and the logits") }
            }
            Self::Offloaded { gpu, loaded_bytes, weight_bytes, kv_bytes, experts, logits } => {
                let (loaded, all) = (size(*loaded_bytes), size(*weight_bytes));
                write!(f, "{gpu} computes all layers{}: ", without(*logits))?;
                write!(f, "{loaded} of {all} are loaded to it for each token")?;
                if *kv_bytes > 0 {
                    write!(f, ", and up to {} of keys and values", size(*kv_bytes))?;
                }
                if *experts > 0 {
                    write!(f, ", and experts that are not among the {experts} it keeps")?;
                }
                Ok(())
            }
            Self::NoRoom { gpu } => {
                write!(f, "the CPU computes all layers: not one fits into the memory of {gpu}")
            }
            Self::Refused { gpu, reason } => {
                write!(f, "the CPU computes all layers, not {gpu}: {reason}")
            }
        }
    }
}

impl OpenedGpu {
    /// Returns the GPU for engines that are told which layers it computes, as those of a ring; `None` if it
    /// has failed. As for [`Self::engine`], `on_loss` is called if it fails later.
    pub fn part(&self, on_loss: fn(&GpuLoss)) -> Option<GpuUse> {
        let device = self.device.as_ref().filter(|device| device.fault().is_none())?;
        Some(GpuUse { device: Arc::clone(device), layers: GpuLayers::Fit, on_loss })
    }

    /// Returns why this GPU gets no layers of a ring's model, whatever the plan; `None` if it can compute
    /// such layers, with keys and values in this format.
    ///
    /// # Errors
    /// [`EngineError`] with the reason if the user named the GPU.
    pub fn refused(&self, model: &ModelConfig, format: KvFormat) -> Result<Option<GpuPart>, EngineError> {
        let Some(device) = &self.device else { return Ok(None) };
        let fault = device.fault().map_or(Ok(()), |fault| Err(EngineError::from(fault)));
        let Err(err) = fault.and_then(|()| GpuUse::check(model, format, &GpuLayers::Fit)) else {
            return Ok(None);
        };
        if self.is_named {
            return Err(err);
        }
        Ok(Some(GpuPart::Refused { gpu: label(device.facts()), reason: err.to_string() }))
    }

    /// Returns it with all layers on the GPU, whether they fit into its memory or not, if there are options
    /// for that. Without a GPU there is a notice then.
    pub fn offloading(mut self, offload: Option<Offload>) -> Self {
        if offload.is_some() && self.device.is_none() {
            self.notices.push("--gpu-offload has no effect, because no GPU computes".to_owned());
        }
        self.offload = offload;
        self
    }

    /// Makes an engine of which the GPU computes as many layers as fit into its memory, or all. Says what it
    /// computes. `on_loss` is called if the GPU fails later; the CPU then goes on.
    ///
    /// `options` are those of an engine without a GPU.
    ///
    /// # Errors
    /// Those of [`Engine::new`]. That the GPU cannot compute the model, or that not one layer fits into its
    /// memory, is an error only if the user named the GPU.
    pub fn engine(
        &self,
        model: Arc<Model>,
        options: EngineOptions,
        on_loss: fn(&GpuLoss),
    ) -> Result<(Engine, GpuPart), EngineError> {
        let Some(device) = &self.device else { return Ok((Engine::new(model, options)?, GpuPart::None)) };
        let gpu = label(device.facts());
        let layers = self.offload.clone().map_or(GpuLayers::Fit, GpuLayers::Offloaded);
        let part = GpuUse { device: Arc::clone(device), layers, on_loss };
        match Engine::new(Arc::clone(&model), EngineOptions { gpu: Some(part), ..options.clone() }) {
            Ok(engine) => {
                let (layers, of) = (engine.gpu_layers().len(), model.config().n_layers);
                if layers == 0 && self.is_named {
                    let free = device
                        .free_bytes()
                        .map_or_else(String::new, |free| format!(", of which {} are free", size(free)));
                    let reason = format!(
                        "not one layer fits into the memory of {gpu}{free}; lower the context, or name no GPU"
                    );
                    return Err(EngineError::GpuRefused { reason });
                }
                if layers > 0 {
                    engine.share_weights().expect("an engine has only layers of its model, each once");
                }
                let (stats, logits) = (engine.offload_stats(), engine.gpu_has_output());
                if let Some(stats) = stats.filter(|stats| stats.slot_bytes + stats.kv_slot_bytes > 0) {
                    let part = GpuPart::Offloaded {
                        gpu,
                        loaded_bytes: stats.weight_bytes - stats.resident_bytes,
                        weight_bytes: stats.weight_bytes,
                        kv_bytes: stats.kv_host_bytes,
                        experts: stats.expert_slots,
                        logits,
                    };
                    return Ok((engine, part));
                }
                let part = if layers == 0 {
                    GpuPart::NoRoom { gpu }
                } else {
                    GpuPart::Layers { gpu, layers, of, logits }
                };
                Ok((engine, part))
            }
            Err(err @ (EngineError::GpuRefused { .. } | EngineError::Gpu(_))) if !self.is_named => {
                let part = GpuPart::Refused { gpu, reason: err.to_string() };
                Ok((Engine::new(model, options)?, part))
            }
            Err(err) => Err(err),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use baton_engine::engine::KvFormat;
    use baton_engine::{StepSeq, Wanted};
    use baton_kernels_cpu::Format;
    use baton_kernels_gpu::GpuError;
    use baton_kernels_gpu::cases::HostDevice;
    use baton_synthetic::SyntheticModel;

    fn model(family: &'static str) -> Arc<Model> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, SyntheticModel::small(family, Format::Q8_0, 3).to_gguf().unwrap()).unwrap();
        Model::open(file.path()).unwrap()
    }

    fn gpu(budget: Option<u64>, is_named: bool) -> OpenedGpu {
        let device = Some(Arc::new(HostDevice::new(budget)) as _);
        OpenedGpu { device, is_named, ..OpenedGpu::default() }
    }

    fn options(kv_format: KvFormat) -> EngineOptions {
        EngineOptions { kv_tokens: 64, kv_format, ..EngineOptions::default() }
    }

    fn logits(mut engine: Engine) -> Vec<f32> {
        let seq = engine.create();
        let step = StepSeq { seq, ids: &[5, 6, 7], logits: Wanted::Last, capture: None };
        engine.step(&[step], &mut ()).unwrap().remove(0).logits
    }

    fn never(loss: &GpuLoss) {
        panic!("{loss}")
    }

    #[test]
    fn a_gpu_computes_what_fits_and_says_so() {
        let model = model("llama");
        let options = || options(KvFormat::F16);
        let make = |gpu: OpenedGpu| gpu.engine(Arc::clone(&model), options(), never).unwrap();
        let (engine, part) = make(OpenedGpu::default());
        assert_eq!((&part, part.to_string().as_str()), (&GpuPart::None, "the CPU computes all layers"));
        let alone = logits(engine);
        let (engine, part) = make(gpu(None, false));
        assert!(matches!(part, GpuPart::Layers { layers: 2, of: 2, logits: true, .. }), "{part:?}");
        assert_eq!(part.to_string(), "host memory (vulkan:0, a program on the CPU) computes all 2 layers");
        let there = logits(engine);
        let is_near = alone.iter().zip(&there).all(|(a, b)| (a - b).abs() <= 1e-3);
        assert!(is_near && alone.len() == there.len(), "{alone:?} {there:?}");
        let (engine, part) = make(gpu(Some(4096), false));
        assert!(matches!(part, GpuPart::NoRoom { .. }), "{part:?}");
        assert!(engine.gpu_layers().is_empty());
        let err = gpu(Some(4096), true).engine(Arc::clone(&model), options(), never).unwrap_err();
        assert!(matches!(err, EngineError::GpuRefused { .. }), "{err}");
        let said = err.to_string();
        assert!(said.contains("not one layer fits") && said.contains("lower the context"), "{said}");
        let said =
            |layers, logits| GpuPart::Layers { gpu: "a GPU".to_owned(), layers, of: 2, logits }.to_string();
        assert_eq!(said(1, true), "a GPU computes the last 1 of 2 layers, the CPU the others");
        assert_eq!(
            said(1, false),
            "a GPU computes the last 1 of 2 layers, the CPU the others and the logits"
        );
        assert_eq!(said(2, false), "a GPU computes all 2 layers, the CPU the logits");
    }

    #[test]
    fn a_gpu_that_loads_weights_says_how_much() {
        let model = model("llama");
        let all = gpu(None, true).offloading(Some(Offload::default()));
        let (engine, part) = all.engine(Arc::clone(&model), options(KvFormat::F16), never).unwrap();
        assert!(matches!(part, GpuPart::Layers { layers: 2, of: 2, logits: true, .. }), "{part:?}");
        let want = logits(engine);
        // The least memory that is enough, to a kilobyte.
        let works = |budget: u64| {
            let gpu = gpu(Some(budget), true).offloading(Some(Offload::default()));
            gpu.engine(Arc::clone(&model), options(KvFormat::F16), never).ok()
        };
        let (mut low, mut high) = (0, 1 << 30);
        while high - low > 1024 {
            let middle = (low + high) / 2;
            if works(middle).is_some() { high = middle } else { low = middle }
        }
        let (engine, part) = works(high).unwrap();
        let GpuPart::Offloaded { loaded_bytes, weight_bytes, experts: 0, logits: has_logits, .. } = part
        else {
            panic!("{part:?}")
        };
        // So little memory has no room for the projection.
        assert!(
            !has_logits && part.to_string().contains("computes all layers, the CPU the logits: "),
            "{part}"
        );
        assert!(loaded_bytes > 0 && loaded_bytes <= weight_bytes);
        assert!(part.to_string().contains("are loaded to it for each token"), "{part}");
        assert_eq!(logits(engine), want);
    }

    #[test]
    fn only_a_named_gpu_must_compute_the_model() {
        for (family, kv) in [("llama", KvFormat::Q8), ("qwen35", KvFormat::F16)] {
            let model = model(family);
            let make = |named| gpu(None, named).engine(Arc::clone(&model), options(kv), never);
            let err = make(true).unwrap_err();
            assert!(matches!(err, EngineError::GpuRefused { .. }), "{family}: {err}");
            let (engine, part) = make(false).unwrap();
            assert!(engine.gpu_layers().is_empty());
            let said = part.to_string();
            assert!(said.starts_with("the CPU computes all layers, not host memory"), "{family}: {said}");
        }
    }

    #[test]
    fn with_offloading_keys_and_values_may_have_fewer_bits() {
        let model = model("llama");
        let make = |kv| {
            let gpu = gpu(None, true).offloading(Some(Offload::default()));
            gpu.engine(Arc::clone(&model), options(kv), never)
        };
        for kv in [KvFormat::Q8, KvFormat::Q4] {
            let (engine, part) = make(kv).unwrap();
            assert!(matches!(part, GpuPart::Layers { layers: 2, of: 2, logits: true, .. }), "{kv}: {part:?}");
            assert_eq!(engine.gpu_layers(), [0, 1], "{kv}");
        }
        let err = make(KvFormat::F32).unwrap_err();
        assert!(matches!(err, EngineError::GpuRefused { .. }), "{err}");
    }

    #[test]
    fn a_ring_is_told_before_its_plan_what_a_gpu_cannot_compute() {
        let (llama, recurrent) = (model("llama"), model("qwen35"));
        let refused = |gpu: &OpenedGpu, model: &Model, kv| gpu.refused(model.config(), kv);
        for named in [true, false] {
            let gpu = gpu(Some(0), named);
            assert_eq!(refused(&gpu, &llama, KvFormat::F16).unwrap(), None, "whatever fits");
            for (model, kv) in [(&llama, KvFormat::Q8), (&recurrent, KvFormat::F16)] {
                match refused(&gpu, model, kv) {
                    Err(EngineError::GpuRefused { .. }) => assert!(named),
                    Ok(Some(GpuPart::Refused { .. })) => assert!(!named),
                    other => panic!("{kv}: {other:?}"),
                }
            }
        }
        assert_eq!(refused(&OpenedGpu::default(), &recurrent, KvFormat::Q8).unwrap(), None);
        let device = HostDevice::new(None);
        device.fail(GpuError::Lost("unplugged".to_owned()));
        let lost = OpenedGpu { device: Some(Arc::new(device)), ..OpenedGpu::default() };
        let said = refused(&lost, &llama, KvFormat::F16).unwrap().unwrap().to_string();
        assert!(said.contains("unplugged"), "{said}");
    }

    #[test]
    fn other_errors_of_the_options_stay() {
        let none = EngineOptions { kv_tokens: 0, ..EngineOptions::default() };
        let err = gpu(None, false).engine(model("llama"), none, never).unwrap_err();
        assert!(matches!(err, EngineError::KvTokens { .. }), "{err}");
    }
}
