//! Chooses r and L of one request: the request's own values, the scene's settings, or the optimizer's answer.
//!
//! Never: lets r fall below the scene's xi, or lets L exceed what the scene allows and the context holds.
//! Pure: all figures are passed in.

use baton_pacing::verify::with_first_check;
use baton_pacing::{
    CloudCost, DeviceCost, InputError, OptimizerInput, PromptShape, ScenePolicy, SlowDevice, relay,
};
use baton_protocol::DeviceInfo;

use crate::learn::coefficients::Coefficients;
use crate::learn::cost::Measured;
use crate::scene::SceneSettings;

/// The values that the request sets.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wish {
    pub(crate) ratio: Option<f32>,
    pub(crate) assist_tokens: Option<u32>,
}

/// What is known of the request's prompt, and of the cloud now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation<'a> {
    pub(crate) device: Option<&'a DeviceInfo>,
    /// The known costs of its class and its network.
    pub(crate) known: &'a Coefficients,
    pub(crate) cloud: Measured,
    /// Prompt tokens queued before this request.
    pub(crate) backlog_tokens: usize,
    /// Time that these take, in milliseconds, at the rate measured recently; 0 if that is not known.
    pub(crate) backlog_ms: f64,
    pub(crate) prompt_tokens: usize,
    pub(crate) content_tokens: usize,
    pub(crate) prefix_tokens: usize,
    /// Tokens that still fit into the context after the prompt.
    pub(crate) room_tokens: usize,
    /// Tokens of the device's first draft, if it shows nothing of its own before the cloud has checked it.
    pub(crate) draft_tokens: Option<usize>,
}

/// r and L of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Planned {
    pub(crate) ratio: f32,
    pub(crate) assist_tokens: u32,
    pub(crate) bound_by: &'static str,
    /// The lowest L under load.
    pub(crate) assist_floor: u32,
}

/// Why a request cannot be planned.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The requested ratio is below what the scene's quality allows.
    #[error("ratio {ratio} is below the scene's smallest, {xi}")]
    RatioBelowScene {
        /// The requested ratio.
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
    let xi = least_ratio(scene);
    if let Some(ratio) = wish.ratio.filter(|&ratio| ratio < xi) {
        return Err(PlanError::RatioBelowScene { ratio, xi });
    }
    let policy = policy(scene, wish, count(now.room_tokens));
    // The device waits for its mask, so relaying is the only plan, even if another one had been better from
    // the start.
    let plan = relay(&OptimizerInput {
        prompt: PromptShape {
            fixed_tokens: count(now.prompt_tokens - now.content_tokens),
            content_tokens: count(now.content_tokens),
            prefix_tokens: count(now.prefix_tokens.min(now.prompt_tokens - now.content_tokens)),
            cached_tokens: 0,
        },
        device: device_cost(&now),
        cloud: cloud_cost(&now),
        scene: policy,
        // What counts is the load when the request gets its slot, not now. The scheduler lowers L then.
        load: 0.0,
    })?;
    let assist_tokens = plan.assist_tokens.clamp(1, count(now.room_tokens).max(1));
    // An L in the request is the device's own plan: it is followed or, if the queue is full, refused.
    let floor = if wish.assist_tokens.is_some() { assist_tokens } else { scene.assist_floor };
    Ok(Planned {
        ratio: plan.ratio.clamp(f64::from(xi), 1.0) as f32,
        assist_tokens,
        bound_by: plan.bound_by.as_str(),
        assist_floor: floor.clamp(1, assist_tokens),
    })
}

/// Returns the smallest r. Scenes that forbid refinement behave as if xi were 1.
fn least_ratio(scene: &SceneSettings) -> f32 {
    if scene.refine { scene.xi } else { 1.0 }
}

/// Returns the scene's policy for the optimizer.
pub(crate) fn policy(scene: &SceneSettings, wish: Wish, answer_tokens_max: u32) -> ScenePolicy {
    let xi = least_ratio(scene);
    ScenePolicy {
        xi: f64::from(xi),
        ratio: wish.ratio.or(scene.ratio).map(|ratio| f64::from(ratio.max(xi))),
        assist_tokens: wish.assist_tokens.or(scene.assist_tokens),
        assist_floor: scene.assist_floor,
        tau_ms: f64::from(scene.tau_ms),
        answer_tokens_max: answer_tokens_max.min(scene.assist_max),
        slow_device: SlowDevice::AcceptGap,
    }
}

/// Returns the cost of the device. If its drafts are checked, its first token comes later, by the first draft
/// and its check.
fn device_cost(now: &Situation<'_>) -> DeviceCost {
    let cost = now.known.device(now.device);
    now.draft_tokens.map_or(cost, |drafted| with_first_check(cost, &cloud_cost(now), drafted))
}

fn cloud_cost(now: &Situation<'_>) -> CloudCost {
    let own_network_ms = now.device.and_then(|device| device.network_ms);
    let network = now.device.and_then(|device| device.network.as_deref());
    CloudCost {
        rtt_ms: own_network_ms.unwrap_or_else(|| now.known.network_ms(network)),
        queue_ms: now.backlog_ms.max(now.cloud.prefill_ms_per_token * now.backlog_tokens as f64),
        ..unloaded(&now.cloud)
    }
}

/// Returns the cost of the cloud as measured, without a queue and without a network.
pub(crate) fn unloaded(cloud: &Measured) -> CloudCost {
    CloudCost {
        ttft_base_ms: cloud.base_ms,
        prefill_ms_per_token: cloud.prefill_ms_per_token,
        decode_ms: cloud.decode_ms,
        rtt_ms: 0.0,
        queue_ms: 0.0,
        compress_ms: cloud.refine_ms,
    }
}

fn count(tokens: usize) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}
