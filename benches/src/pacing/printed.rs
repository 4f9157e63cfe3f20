//! The takeover equations as printed in the paper, and those of its Procedure 2, which verifies cloud tokens
//! one by one.
//!
//! For comparison only: in the optimizer's equations ([`baton_pacing::equations`]), the last prefill chunk
//! verifies all cloud tokens.

use baton_pacing::equations::{Takeover, as_count};

/// Returns the gap by Eq. (4) as printed: `TPOT_d + (prefill_d(rl) - TTFT_c) / (L - 1)`, `L > 1`.
///
/// It assumes that prefill starts at t = 0 (Eq. 1). But the refined prompt is known only when the mask
/// arrives, so there is a stall of `TTFT_c + TPOT_d` at the takeover.
pub(super) fn smooth_tpot(prefill_d_ms: f64, ttft_c_ms: f64, decode_ms: f64, assist_tokens: u32) -> f64 {
    decode_ms + (prefill_d_ms - ttft_c_ms) / (f64::from(assist_tokens) - 1.0)
}

/// Returns the gap by (4'): `TPOT_d + (TTFT_d - TTFT_c) / (L - 1)`, `L > 1`. With it, the cloud's tokens last
/// exactly until the takeover if the device decodes them one by one (Procedure 2).
pub(super) fn smooth_tpot_step_by_step(takeover: &Takeover, assist_tokens: u32) -> f64 {
    takeover.decode_ms + takeover.remaining_ms / (f64::from(assist_tokens) - 1.0)
}

/// Returns the lower bound on `L` by Eq. (6) as printed: `(prefill_d(rl) - TTFT_c) / (tau - TPOT_d) + 1`.
/// `None` if `tau <= TPOT_d`, so that no number of tokens is enough.
pub(super) fn lower_bound(prefill_d_ms: f64, ttft_c_ms: f64, decode_ms: f64, tau_ms: f64) -> Option<u32> {
    lower_bound_linear(prefill_d_ms - ttft_c_ms, decode_ms, tau_ms)
}

/// Returns the lower bound on `L` from (4'): `A / (tau - TPOT_d) + 1`, as an integer. `None` if
/// `tau <= TPOT_d`.
pub(super) fn lower_bound_step_by_step(takeover: &Takeover, tau_ms: f64) -> Option<u32> {
    lower_bound_linear(takeover.remaining_ms, takeover.decode_ms, tau_ms)
}

fn lower_bound_linear(to_amortize_ms: f64, decode_ms: f64, tau_ms: f64) -> Option<u32> {
    let slack_ms = tau_ms - decode_ms;
    // Eq. (4) needs `L > 1` only if there is work to spread over the gaps.
    if to_amortize_ms <= 0.0 {
        return Some(1);
    }
    (slack_ms > 0.0).then(|| as_count(to_amortize_ms / slack_ms).saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takeover(remaining_ms: f64) -> Takeover {
        Takeover {
            ttft_c_ms: 460.0,
            remaining_ms,
            prompt_tokens: 1_000.0,
            prefill_ms_per_token: 2.5,
            prefill_ms_per_token2: 0.0,
            decode_ms: 45.0,
        }
    }

    #[test]
    fn batched_verification_needs_fewer_tokens() {
        // k_d 2.5, TPOT_d 45, tau 100; refined prompts of 1,000, 1,041 and 2,000 tokens.
        for (work_ms, step, batched) in [(2_500.0, 47, 26), (2_602.0, 49, 27), (5_000.0, 92, 52)] {
            assert_eq!(lower_bound_step_by_step(&takeover(work_ms), 100.0), Some(step));
            let at_once = baton_pacing::equations::lower_bound(&takeover(work_ms), 100.0);
            assert_eq!(at_once, Some(batched));
        }
        // At TPOT_d 10 the gain is small.
        let fast = Takeover { decode_ms: 10.0, ..takeover(2_500.0) };
        assert_eq!(lower_bound_step_by_step(&fast, 100.0), Some(29));
    }

    #[test]
    fn nothing_keeps_tau_below_the_cost_of_a_token() {
        assert_eq!(lower_bound_step_by_step(&takeover(100.0), 45.0), None);
        assert_eq!(lower_bound_step_by_step(&takeover(0.0), 45.0), Some(1));
    }

    #[test]
    fn smooth_gap_of_each_equation() {
        assert!((smooth_tpot_step_by_step(&takeover(2_500.0), 51) - 95.0).abs() < 1e-9);
        assert!((smooth_tpot(2_500.0, 460.0, 45.0, 52) - 85.0).abs() < 1e-9);
    }
}
