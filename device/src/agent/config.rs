//! What the relay and the engine are told of a question.

use super::{FIRST_TIMEOUT_MS, IDLE_TIMEOUT_MS, NO_DEVICE, Question};
use crate::local::PromptId;
use crate::relay::{RelayConfig, RelayMode};
use baton_engine::sampling::SamplingParams;
use baton_protocol::{Corrector, Sampling, Segment, VerifyPolicy};

/// Returns the settings that follow from a question and its redacted prompt, for an answer that the cloud and
/// a device without cost may write.
pub(super) fn relay_config(question: &Question, segments: &[Segment]) -> RelayConfig {
    let refinable = segments.iter().any(|s| s.refine && !s.text.is_empty());
    let scene = &question.scene.settings;
    let ratio = question.refine.ratio.or(scene.ratio).unwrap_or(0.0).max(scene.xi);
    let refines = question.refine.mode.as_deref() != Some("none") && ratio < 1.0;
    RelayConfig {
        mode: question.mode,
        has_device: true,
        pace: question.pace,
        tau_ms: f64::from(scene.tau_ms),
        refine: scene.refine && refinable && refines,
        corrector: scene.corrector,
        corrector_override: question.corrector,
        verify: if question.is_verified() { scene.verify } else { VerifyPolicy::Off },
        cost: NO_DEVICE,
        hedge_after_ms: FIRST_TIMEOUT_MS,
        first_timeout_ms: FIRST_TIMEOUT_MS,
        idle_timeout_ms: IDLE_TIMEOUT_MS,
        may_continue: true,
        kv: None,
        first_prompt: PromptId::default(),
    }
}

impl Question {
    /// Returns whether the cloud is to check what this device writes.
    pub(super) fn is_verified(&self) -> bool {
        let is_plain = self.tools.is_none() && self.format.is_text() && self.own.is_none();
        let is_wanted = self.scene.settings.verify != VerifyPolicy::Off && self.mode == RelayMode::Relay;
        is_wanted && is_plain && self.corrector != Some(Corrector::Device)
    }
}

/// Returns the engine's parameters of a question's sampling.
pub(super) fn sampling_params(sampling: &Sampling) -> SamplingParams {
    SamplingParams {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        seed: sampling.seed,
        ..SamplingParams::default()
    }
}
