//! The takeover equations, one small function each: the gap between tokens, and the bounds of `L`.
//!
//! The device verifies all cloud tokens in its last prefill chunk. All times are in milliseconds. `A` stands
//! for [`Takeover::remaining_ms`], the time from the mask's arrival until the device's own KV cache is
//! complete: `decompress + prefill_d(n_r)`. The paper's own equations are compared with these in
//! `benches/src/pacing`.

/// The quantities of one request that the equations use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Takeover {
    /// `TTFT_c`: from sending the request to receiving the first cloud token.
    pub ttft_c_ms: f64,
    /// `A = TTFT_d - TTFT_c`: from the first cloud token until the device's KV cache of its prompt is
    /// complete.
    pub remaining_ms: f64,
    /// Tokens in that cache, which is the position of the first cloud token to verify.
    pub prompt_tokens: f64,
    /// `k_d`.
    pub prefill_ms_per_token: f64,
    /// `q_d`.
    pub prefill_ms_per_token2: f64,
    /// `TPOT_d`.
    pub decode_ms: f64,
}

impl Takeover {
    /// Returns `TTFT_d`: from sending the request until the device's KV cache of its prompt is complete (Eq.
    /// 3).
    #[must_use]
    pub fn ttft_d_ms(&self) -> f64 {
        self.ttft_c_ms + self.remaining_ms
    }

    /// Returns the time to verify `tokens` cloud tokens after the prompt, in one pass.
    #[must_use]
    pub fn verify_ms(&self, tokens: f64) -> f64 {
        tokens
            * (self.prefill_ms_per_token + self.prefill_ms_per_token2 * (2.0 * self.prompt_tokens + tokens))
    }

    /// Returns the time from the first cloud token to the device's own token of index `L`. The last prefill
    /// chunk verifies all `L` cloud tokens, and its last position gives that token.
    #[must_use]
    pub fn takeover_ms(&self, assist_tokens: u32) -> f64 {
        self.remaining_ms + self.verify_ms(f64::from(assist_tokens))
    }
}

/// Returns `g = (decompress + prefill_d(n_r + L)) / L`. All known tokens go through the model at once, and
/// the `L` gaps between tokens 0 and `L` are equal.
#[must_use]
pub fn gap_ms(takeover: &Takeover, assist_tokens: u32) -> f64 {
    takeover.takeover_ms(assist_tokens) / f64::from(assist_tokens)
}

/// Returns the lower bound on `L`: the smallest integer `L >= 1` with `g <= tau`.
///
/// For `q_d = 0` it is `ceil(A / (tau - k_d))`; else the smaller root of
/// `q L^2 + (k + 2 q n - tau) L + A <= 0`, rounded up. `None` if no `L` keeps `tau`: either `tau <= k_d`, so
/// that verifying a cloud token takes at least the time it gains, or attention over the long prompt is too
/// slow.
#[must_use]
pub fn lower_bound(takeover: &Takeover, tau_ms: f64) -> Option<u32> {
    let quadratic = takeover.prefill_ms_per_token2;
    let slack_ms = tau_ms - takeover.prefill_ms_per_token - 2.0 * quadratic * takeover.prompt_tokens;
    let work_ms = takeover.remaining_ms.max(0.0);
    let discriminant = slack_ms * slack_ms - 4.0 * quadratic * work_ms;
    if slack_ms.is_nan() || slack_ms <= 0.0 || discriminant < 0.0 {
        return None;
    }
    let root = 2.0 * work_ms / (slack_ms + discriminant.sqrt());
    let count = as_count(root).max(1);
    // If the two roots are less than one apart, there may be no integer between them.
    keeps_tau(takeover, count, tau_ms).then_some(count)
}

/// Returns whether `g <= tau`, up to rounding errors.
fn keeps_tau(takeover: &Takeover, assist_tokens: u32, tau_ms: f64) -> bool {
    takeover.takeover_ms(assist_tokens) <= tau_ms * f64::from(assist_tokens) * (1.0 + 1e-9)
}

/// Returns the upper bound on `L`: the largest integer with `TTFT_c + (L - 1) TPOT_c <= TTFT_d`, so that the
/// cloud works only while the device prefills. At least 1.
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

/// Rounds `value` up to an integer. A value within rounding error of an integer gives that integer. Values
/// out of range saturate, and NaN gives 0.
#[must_use]
pub fn as_count(value: f64) -> u32 {
    let down = value.floor();
    let whole = if value - down <= 1e-9 * value.max(1.0) { down } else { value.ceil() };
    // A cast from float to integer saturates, and gives 0 for NaN.
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
    fn the_lower_bound_is_the_smallest_that_keeps_tau() {
        for quadratic in [0.0, 1e-5, 1e-3, 2e-2] {
            for work in [0.0, 3.0, 97.5, 2_500.0, 39_000.0] {
                for tau in [2.0, 20.0, 45.0, 100.0, 250.0] {
                    let one = Takeover { prefill_ms_per_token2: quadratic, ..takeover(work) };
                    let found = (1..20_000).find(|&count| keeps_tau(&one, count, tau));
                    assert_eq!(lower_bound(&one, tau), found, "q {quadratic} A {work} tau {tau}");
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
        assert_eq!(lower_bound(&takeover(100.0), 2.5), None);
    }

    #[test]
    fn gaps_share_prefill_and_verification() {
        assert!((gap_ms(&takeover(2_500.0), 25) - 102.5).abs() < 1e-9);
    }
}
