//! r and L of one request: its own wish, the scene's setting, or the optimizer's answer.
//!
//! Never: lets r fall below the scene's xi or L exceed what the context holds. Pure: all figures are passed in.

use baton_pacing::{
    CloudCost, DeviceCost, InputError, OptimizerInput, PromptShape, ScenePolicy, SlowDevice, Verification,
    optimize,
};
use baton_protocol::DeviceInfo;

use crate::cost::Measured;
use crate::scene::SceneSettings;

/// Milliseconds from the mask's arrival to the rebuilt prompt on an ordinary device.
const DECOMPRESS_MS: f64 = 5.0;
/// A device that does not say how fast it is: a phone of the middle class.
const DEVICE_DEFAULT: DeviceCost = DeviceCost {
    prefill_ms_per_token: 2.5,
    prefill_ms_per_token2: 0.0,
    decode_ms: 45.0,
    decompress_ms: DECOMPRESS_MS,
};

/// What the request fixes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wish {
    pub(crate) ratio: Option<f32>,
    pub(crate) assist_tokens: Option<u32>,
}

/// What is known of the request's prompt and of the cloud now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation<'a> {
    pub(crate) device: Option<&'a DeviceInfo>,
    pub(crate) cloud: Measured,
    /// Prompt tokens queued before this request.
    pub(crate) backlog_tokens: usize,
    /// More than half of the queue is taken.
    pub(crate) loaded: bool,
    pub(crate) prompt_tokens: usize,
    pub(crate) content_tokens: usize,
    pub(crate) prefix_tokens: usize,
    /// Tokens that still fit into the context after the prompt.
    pub(crate) room_tokens: usize,
}

/// r and L of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Planned {
    pub(crate) ratio: f32,
    pub(crate) assist_tokens: u32,
    pub(crate) bound_by: &'static str,
}

/// A wish or a figure that cannot be followed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The wished ratio is below what the scene's quality allows.
    #[error("ratio {ratio} is below the scene's smallest, {xi}")]
    RatioBelowScene {
        /// The ratio asked for.
        ratio: f32,
        /// The scene's xi.
        xi: f32,
    },
    /// A number that no device can have.
    #[error(transparent)]
    Input(#[from] InputError),
}

/// Chooses r and L.
///
/// # Errors
/// [`PlanError`] for a ratio below the scene's xi and for figures out of their bounds.
pub(crate) fn plan(scene: &SceneSettings, wish: Wish, now: Situation<'_>) -> Result<Planned, PlanError> {
    // Scenes that forbid refinement behave as xi = 1.
    let xi = if scene.refine { scene.xi } else { 1.0 };
    if let Some(ratio) = wish.ratio.filter(|&ratio| ratio < xi) {
        return Err(PlanError::RatioBelowScene { ratio, xi });
    }
    let fixed_ratio = wish.ratio.or(scene.ratio).map(|ratio| ratio.max(xi));
    let plan = optimize(&OptimizerInput {
        prompt: PromptShape {
            fixed_tokens: count(now.prompt_tokens - now.content_tokens),
            content_tokens: count(now.content_tokens),
            prefix_tokens: count(now.prefix_tokens.min(now.prompt_tokens - now.content_tokens)),
            cached_tokens: 0,
        },
        device: now.device.map_or(DEVICE_DEFAULT, device_cost),
        cloud: cloud_cost(&now),
        scene: ScenePolicy {
            xi: f64::from(xi),
            ratio: fixed_ratio.map(f64::from),
            assist_tokens: wish.assist_tokens.or(scene.assist_tokens),
            assist_floor: scene.assist_floor,
            tau_ms: f64::from(scene.tau_ms),
            answer_tokens_max: count(now.room_tokens),
            slow_device: SlowDevice::AcceptGap,
        },
        verification: Verification::Batched,
        shed_load: now.loaded && wish.assist_tokens.is_none(),
    })?;
    Ok(Planned {
        // A published or wished ratio holds; only a free one is the optimizer's.
        ratio: fixed_ratio.unwrap_or(plan.ratio as f32).clamp(xi, 1.0),
        assist_tokens: plan.assist_tokens.clamp(1, count(now.room_tokens).max(1)),
        bound_by: plan.bound_by.as_str(),
    })
}

fn device_cost(device: &DeviceInfo) -> DeviceCost {
    DeviceCost {
        prefill_ms_per_token: device.prefill_ms_per_token,
        prefill_ms_per_token2: device.prefill_ms_per_token2,
        decode_ms: device.decode_ms,
        decompress_ms: DECOMPRESS_MS,
    }
}

fn cloud_cost(now: &Situation<'_>) -> CloudCost {
    CloudCost {
        ttft_base_ms: now.cloud.base_ms,
        prefill_ms_per_token: now.cloud.prefill_ms_per_token,
        decode_ms: now.cloud.decode_ms,
        rtt_ms: rtt_ms(now.device.and_then(|device| device.network.as_deref())),
        queue_ms: now.cloud.prefill_ms_per_token * now.backlog_tokens as f64,
        compress_ms: now.cloud.refine_ms,
    }
}

/// Round trips by network class, in milliseconds.
fn rtt_ms(network: Option<&str>) -> f64 {
    match network {
        Some("loopback") => 0.2,
        Some("ethernet") => 5.0,
        Some("5g") => 30.0,
        Some("lte" | "4g" | "cellular") => 60.0,
        _ => 20.0,
    }
}

fn count(tokens: usize) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}
