//! Draws random requests: devices, clouds, prompts and scenes, from wider ranges than real ones have.

use baton_pacing::{CloudCost, DeviceCost, OptimizerInput, PromptShape, ScenePolicy, SlowDevice};

use crate::random::Random;

/// Draws a request. `quadratic`: prefill has the quadratic term of attention.
pub(super) fn draw(random: &mut Random, quadratic: bool) -> OptimizerInput {
    let fixed_tokens = random.count((20, 400));
    let prefix_tokens = random.count((0, fixed_tokens));
    let cached_tokens = if random.chance(0.3) { random.count((0, prefix_tokens)) } else { 0 };
    OptimizerInput {
        prompt: PromptShape {
            fixed_tokens,
            content_tokens: random.log_uniform((200.0, 12_000.0)) as u32,
            prefix_tokens,
            cached_tokens,
        },
        device: DeviceCost {
            prefill_ms_per_token: random.log_uniform((0.2, 4.0)),
            prefill_ms_per_token2: if quadratic { random.log_uniform((1e-6, 1e-3)) } else { 0.0 },
            decode_ms: random.uniform((5.0, 60.0)),
            decompress_ms: random.uniform((0.0, 10.0)),
        },
        cloud: CloudCost {
            ttft_base_ms: random.uniform((0.0, 300.0)),
            prefill_ms_per_token: random.log_uniform((0.02, 0.3)),
            decode_ms: random.uniform((5.0, 150.0)),
            rtt_ms: random.uniform((0.2, 80.0)),
            queue_ms: random.uniform((0.0, 200.0)),
            compress_ms: random.uniform((0.0, 5.0)),
        },
        scene: ScenePolicy {
            xi: random.uniform((0.05, 0.95)),
            ratio: None,
            assist_tokens: None,
            assist_floor: 1,
            tau_ms: random.uniform((40.0, 200.0)),
            answer_tokens_max: u32::MAX,
            slow_device: SlowDevice::AcceptGap,
        },
        load: 0.0,
    }
}
