//! A request that several test programs share: a phone and a long document.

use super::{CloudCost, DeviceCost, OptimizerInput, PromptShape, ScenePolicy, SlowDevice};

/// Returns a prompt of 4,100 tokens, a phone that prefills 400 tokens per second, and a cloud that is 25
/// times as fast.
pub(crate) fn phone() -> OptimizerInput {
    OptimizerInput {
        prompt: PromptShape { fixed_tokens: 100, content_tokens: 4_000, prefix_tokens: 60, cached_tokens: 0 },
        device: DeviceCost {
            prefill_ms_per_token: 2.5,
            prefill_ms_per_token2: 0.0,
            decode_ms: 45.0,
            decompress_ms: 2.0,
        },
        cloud: CloudCost {
            ttft_base_ms: 60.0,
            prefill_ms_per_token: 0.1,
            decode_ms: 30.0,
            rtt_ms: 20.0,
            queue_ms: 0.0,
            compress_ms: 1.0,
        },
        scene: ScenePolicy {
            xi: 0.25,
            ratio: None,
            assist_tokens: None,
            assist_floor: 4,
            tau_ms: 100.0,
            answer_tokens_max: 2_048,
            slow_device: SlowDevice::AcceptGap,
        },
        load: 0.0,
    }
}
