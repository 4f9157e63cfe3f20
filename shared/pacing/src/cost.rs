//! Time costs of one device and one cloud, in milliseconds.

/// The costs of a device, from its own measurements or from those of its class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceCost {
    /// `k_d`: prefill, milliseconds per token.
    pub prefill_ms_per_token: f64,
    /// `q_d`: prefill, milliseconds per token squared (attention).
    pub prefill_ms_per_token2: f64,
    /// `TPOT_d`: milliseconds per decoded token.
    pub decode_ms: f64,
    /// Milliseconds from the mask's arrival to the rebuilt, tokenized prompt.
    pub decompress_ms: f64,
}

impl DeviceCost {
    /// Returns the time to prefill `tokens` tokens after `held` tokens that are already in the KV cache:
    /// `k_d n + q_d ((h + n)^2 - h^2)`, which for `held = 0` is the paper's `k_d n + q_d n^2`.
    #[must_use]
    pub fn prefill_ms(&self, held: f64, tokens: f64) -> f64 {
        tokens * (self.prefill_ms_per_token + self.prefill_ms_per_token2 * (2.0 * held + tokens))
    }

    /// Returns how many tokens after `held` the device prefills in `ms`: the inverse of [`Self::prefill_ms`].
    /// Zero if `ms` is not positive; infinite if prefill costs nothing.
    #[must_use]
    pub fn tokens_within(&self, held: f64, ms: f64) -> f64 {
        if ms.is_nan() || ms <= 0.0 {
            return 0.0;
        }
        let linear = self.prefill_ms_per_token + 2.0 * self.prefill_ms_per_token2 * held;
        // The citardauq form of the root stays exact as the quadratic coefficient goes to zero.
        2.0 * ms / (linear + (linear * linear + 4.0 * self.prefill_ms_per_token2 * ms).sqrt())
    }
}

/// The costs of the cloud for this device. All times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CloudCost {
    /// Fixed part of the time to the first token.
    pub ttft_base_ms: f64,
    /// `k_c`: prefill, milliseconds per token.
    pub prefill_ms_per_token: f64,
    /// `TPOT_c`: milliseconds per decoded token, at the current batch size.
    pub decode_ms: f64,
    /// Round-trip time of the network class.
    pub rtt_ms: f64,
    /// Queueing time before prefill starts.
    pub queue_ms: f64,
    /// Time to score sentences, split the prompt into sentences, and encode the mask.
    pub compress_ms: f64,
}

impl CloudCost {
    /// Returns `TTFT_c` for a prompt of `tokens` tokens: the time from sending the request to receiving the
    /// first token (Eq. 2, with the queue).
    #[must_use]
    pub fn ttft_ms(&self, tokens: f64) -> f64 {
        self.prefill_ms_per_token * tokens + self.delta_ms()
    }

    /// Returns `delta`: all of `TTFT_c` except prefill (queue, compression, round trip and the fixed part).
    #[must_use]
    pub fn delta_ms(&self) -> f64 {
        self.ttft_base_ms + self.queue_ms + self.compress_ms + self.rtt_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_within_inverts_prefill() {
        for (k, q) in [(2.5, 0.0), (2.5, 1e-3), (0.0, 1e-3), (0.5, 1e-6)] {
            let cost = DeviceCost {
                prefill_ms_per_token: k,
                prefill_ms_per_token2: q,
                decode_ms: 45.0,
                decompress_ms: 0.0,
            };
            for held in [0.0, 3.0, 700.0] {
                for tokens in [1.0, 64.0, 4_096.0] {
                    let back = cost.tokens_within(held, cost.prefill_ms(held, tokens));
                    assert!(
                        (back - tokens).abs() < 1e-6 * tokens,
                        "k {k} q {q} held {held}: {back} {tokens}"
                    );
                }
            }
            assert_eq!(cost.tokens_within(10.0, -1.0), 0.0);
        }
    }

    #[test]
    fn prefill_in_parts_costs_what_it_costs_at_once() {
        let cost = DeviceCost {
            prefill_ms_per_token: 2.5,
            prefill_ms_per_token2: 1e-4,
            decode_ms: 45.0,
            decompress_ms: 0.0,
        };
        let parts = cost.prefill_ms(0.0, 300.0) + cost.prefill_ms(300.0, 700.0);
        assert!((parts - cost.prefill_ms(0.0, 1_000.0)).abs() < 1e-9);
    }
}
