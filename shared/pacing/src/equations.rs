//! The takeover equations, one small function each: what the paper prints, what holds, and ours.
//!
//! They differ in what the device still has to do when its prompt is prefilled, and in when prefill
//! starts. All times in milliseconds; `A` stands for [`Takeover::remaining_ms`], the work between the
//! mask's arrival and the device's own KV cache: `decompress + prefill_d(n_r)`.

/// What the equations need to know of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Takeover {
    /// `TTFT_c`: request sent -> first cloud token received.
    pub ttft_c_ms: f64,
    /// `A = TTFT_d - TTFT_c`: first cloud token -> the device's KV cache of its prompt is complete.
    pub remaining_ms: f64,
    /// Tokens in that cache: the position at which the cloud's tokens are verified.
    pub prompt_tokens: f64,
    /// `k_d`.
    pub prefill_ms_per_token: f64,
    /// `q_d`.
    pub prefill_ms_per_token2: f64,
    /// `TPOT_d`.
    pub decode_ms: f64,
}

impl Takeover {
    /// `TTFT_d`: request sent -> the device has its own KV cache of its prompt (Eq. 3).
    #[must_use]
    pub fn ttft_d_ms(&self) -> f64 {
        self.ttft_c_ms + self.remaining_ms
    }

    /// Verification of `tokens` cloud tokens behind the prompt, in one pass.
    #[must_use]
    pub fn verify_ms(&self, tokens: f64) -> f64 {
        tokens
            * (self.prefill_ms_per_token + self.prefill_ms_per_token2 * (2.0 * self.prompt_tokens + tokens))
    }

    /// First cloud token -> the device's own token of index `L`, all `L` cloud tokens verified in the
    /// last prefill chunk, whose last position gives that token.
    #[must_use]
    pub fn takeover_ms(&self, assist_tokens: u32) -> f64 {
        self.remaining_ms + self.verify_ms(f64::from(assist_tokens))
    }
}

/// Eq. (4) as printed: `TPOT_d + (prefill_d(rl) - TTFT_c) / (L - 1)`, `L > 1`.
///
/// Kept for comparison: it takes prefill as if it had started at t = 0 (Eq. 1), though a refined prompt
/// is there only once the mask is, and so ends in a stall of `TTFT_c + TPOT_d` at the takeover.
#[must_use]
pub fn smooth_tpot_as_printed(prefill_d_ms: f64, ttft_c_ms: f64, decode_ms: f64, assist_tokens: u32) -> f64 {
    decode_ms + (prefill_d_ms - ttft_c_ms) / (f64::from(assist_tokens) - 1.0)
}

/// (4'): `TPOT_d + (TTFT_d - TTFT_c) / (L - 1)`, `L > 1`: the gap that reaches the takeover exactly on
/// time when the device decodes through the cloud's tokens one by one (Procedure 2).
#[must_use]
pub fn smooth_tpot_step_by_step(takeover: &Takeover, assist_tokens: u32) -> f64 {
    takeover.decode_ms + takeover.remaining_ms / (f64::from(assist_tokens) - 1.0)
}

/// Ours: `g = (decompress + prefill_d(n_r + L)) / L`: all known tokens go through the model at once, and
/// the `L` gaps between tokens 0 and `L` are equal.
#[must_use]
pub fn gap_batched(takeover: &Takeover, assist_tokens: u32) -> f64 {
    takeover.takeover_ms(assist_tokens) / f64::from(assist_tokens)
}

/// Lower bound on `L` by Eq. (6) as printed: `(prefill_d(rl) - TTFT_c) / (tau - TPOT_d) + 1`.
/// `None` when `tau <= TPOT_d`: no number of tokens is enough.
#[must_use]
pub fn lower_bound_as_printed(prefill_d_ms: f64, ttft_c_ms: f64, decode_ms: f64, tau_ms: f64) -> Option<u32> {
    lower_bound_linear(prefill_d_ms - ttft_c_ms, decode_ms, tau_ms)
}

/// Lower bound on `L` from (4'): `A / (tau - TPOT_d) + 1`, as an integer. `None` when `tau <= TPOT_d`.
#[must_use]
pub fn lower_bound_step_by_step(takeover: &Takeover, tau_ms: f64) -> Option<u32> {
    lower_bound_linear(takeover.remaining_ms, takeover.decode_ms, tau_ms)
}

fn lower_bound_linear(to_amortize_ms: f64, decode_ms: f64, tau_ms: f64) -> Option<u32> {
    let slack_ms = tau_ms - decode_ms;
    // `L > 1` in Eq. (4) when there is anything to amortize; nothing is amortized over zero gaps.
    if to_amortize_ms <= 0.0 {
        return Some(1);
    }
    (slack_ms > 0.0).then(|| as_count(to_amortize_ms / slack_ms).saturating_add(1))
}

/// Lower bound on `L`, batched: the smallest integer `L >= 1` with `g <= tau`.
///
/// For `q_d = 0` it is `ceil(A / (tau - k_d))`; else the smaller root of
/// `q L^2 + (k + 2 q n - tau) L + A <= 0`. `None` when no `L` keeps `tau`: `tau <= k_d` (each cloud token
/// costs more to verify than it buys), or attention over so long a prompt does not leave enough.
#[must_use]
pub fn lower_bound_batched(takeover: &Takeover, tau_ms: f64) -> Option<u32> {
    let quadratic = takeover.prefill_ms_per_token2;
    let slack_ms = tau_ms - takeover.prefill_ms_per_token - 2.0 * quadratic * takeover.prompt_tokens;
    let work_ms = takeover.remaining_ms.max(0.0);
    let discriminant = slack_ms * slack_ms - 4.0 * quadratic * work_ms;
    if slack_ms.is_nan() || slack_ms <= 0.0 || discriminant < 0.0 {
        return None;
    }
    let root = 2.0 * work_ms / (slack_ms + discriminant.sqrt());
    let count = as_count(root).max(1);
    // Between two roots less than one apart there may be no integer.
    keeps_tau(takeover, count, tau_ms).then_some(count)
}

/// Whether `g <= tau`, up to rounding.
fn keeps_tau(takeover: &Takeover, assist_tokens: u32, tau_ms: f64) -> bool {
    takeover.takeover_ms(assist_tokens) <= tau_ms * f64::from(assist_tokens) * (1.0 + 1e-9)
}

/// Upper bound on `L`: the largest integer with `TTFT_c + (L - 1) TPOT_c <= TTFT_d`, so that the cloud is
/// held only for as long as the device prefills. At least 1.
#[must_use]
pub fn upper_bound(remaining_ms: f64, cloud_decode_ms: f64) -> u32 {
    if remaining_ms <= 0.0 {
        return 1;
    }
    if cloud_decode_ms <= 0.0 {
        return u32::MAX;
    }
    let gaps = (remaining_ms / cloud_decode_ms * (1.0 + 1e-12)).floor();
    (gaps.min(f64::from(u32::MAX - 1)) as u32).saturating_add(1)
}

/// `ceil`, but a value within rounding of an integer is that integer; saturating.
fn as_count(value: f64) -> u32 {
    let down = value.floor();
    let whole = if value - down <= 1e-9 * value.max(1.0) { down } else { value.ceil() };
    // A float to integer cast saturates, and is 0 for NaN.
    whole.max(0.0) as u32
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
        // k_d 2.5, TPOT_d 45, tau 100; refined prompts of 1,000 and 2,000 tokens.
        for (work_ms, step, batched) in [(2_500.0, 47, 26), (5_000.0, 92, 52)] {
            assert_eq!(lower_bound_step_by_step(&takeover(work_ms), 100.0), Some(step));
            assert_eq!(lower_bound_batched(&takeover(work_ms), 100.0), Some(batched));
        }
        // At TPOT_d 10 the gain is small: 8 %.
        let fast = Takeover { decode_ms: 10.0, ..takeover(2_500.0) };
        assert_eq!(lower_bound_step_by_step(&fast, 100.0), Some(29));
    }

    #[test]
    fn batched_lower_bound_is_the_smallest_that_keeps_tau() {
        for quadratic in [0.0, 1e-5, 1e-3, 2e-2] {
            for work in [0.0, 3.0, 97.5, 2_500.0, 39_000.0] {
                for tau in [2.0, 20.0, 45.0, 100.0, 250.0] {
                    let one = Takeover { prefill_ms_per_token2: quadratic, ..takeover(work) };
                    let found = (1..20_000).find(|&count| keeps_tau(&one, count, tau));
                    assert_eq!(lower_bound_batched(&one, tau), found, "q {quadratic} A {work} tau {tau}");
                }
            }
        }
    }

    #[test]
    fn upper_bound_holds_the_cloud_no_longer_than_prefill() {
        for (work, decode, want) in [(0.0, 30.0, 1), (29.0, 30.0, 1), (30.0, 30.0, 2), (100.0, 30.0, 4)] {
            assert_eq!(upper_bound(work, decode), want, "A {work} TPOT_c {decode}");
        }
        assert_eq!(upper_bound(100.0, 0.0), u32::MAX);
    }

    #[test]
    fn nothing_keeps_tau_below_the_cost_of_a_token() {
        assert_eq!(lower_bound_batched(&takeover(100.0), 2.5), None);
        assert_eq!(lower_bound_step_by_step(&takeover(100.0), 45.0), None);
        assert_eq!(lower_bound_step_by_step(&takeover(0.0), 45.0), Some(1));
    }

    #[test]
    fn smooth_gap_of_each_equation() {
        let one = takeover(2_500.0);
        assert!((smooth_tpot_step_by_step(&one, 51) - 95.0).abs() < 1e-9);
        assert!((smooth_tpot_as_printed(2_500.0, 460.0, 45.0, 52) - 85.0).abs() < 1e-9);
        assert!((gap_batched(&one, 25) - 102.5).abs() < 1e-9);
    }
}
