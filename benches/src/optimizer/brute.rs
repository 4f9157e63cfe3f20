//! Brute force: tries every breakpoint of `r` and every `L`, and checks each constraint directly.
//!
//! Inverses are found by bisection, and bounds by trial. Values of `r` between breakpoints are not tried.
//! There, the largest `L` that the cloud may write is constant and the work on the device grows, so the left
//! end is best.

use baton_pacing::OptimizerInput;

/// Tolerance of the constraints for rounding errors.
const ROUNDING: f64 = 1.0 + 1e-9;
const HALVINGS: usize = 80;

/// The solution of P.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Best {
    /// Even with `r = xi`, prefill ends later than for the whole prompt from t = 0.
    NoInterval,
    /// No `L` fits for any `r`.
    Infeasible,
    /// The smallest `r` for which an `L` fits.
    At {
        /// `r`.
        ratio: f64,
        /// The smallest `L` that fits.
        least: u32,
        /// The largest `L` that fits.
        most: u32,
        /// `TTFT_d`.
        ttft_d_ms: f64,
    },
}

struct Problem<'a> {
    input: &'a OptimizerInput,
    ttft_c_ms: f64,
    held: f64,
    alone_ms: f64,
}

/// Solves P.
pub(super) fn solve(input: &OptimizerInput) -> Best {
    let problem = Problem::new(input);
    let xi = input.scene.xi;
    let in_time = |ratio: f64| problem.ttft_c_ms + problem.work_ms(ratio) <= problem.alone_ms;
    if !in_time(xi) {
        return Best::NoInterval;
    }
    let mut most_ratio = 1.0;
    if !in_time(most_ratio) {
        most_ratio = bisect(xi, 1.0, |ratio| !in_time(ratio));
    }
    let mut ratio = xi;
    loop {
        if let Some((least, most)) = problem.fitting(ratio) {
            return Best::At { ratio, least, most, ttft_d_ms: problem.ttft_c_ms + problem.work_ms(ratio) };
        }
        // The next r at which the cloud may write one more token.
        let gaps = (problem.work_ms(ratio) * ROUNDING / input.cloud.decode_ms).floor() + 1.0;
        let enough = |ratio: f64| problem.work_ms(ratio) >= gaps * input.cloud.decode_ms;
        if !enough(most_ratio) {
            return Best::Infeasible;
        }
        ratio = bisect(ratio, most_ratio, enough);
    }
}

/// Returns the smallest value in `low..=high` for which `reached` is true. It must be false below some value
/// and true above it.
fn bisect(mut low: f64, mut high: f64, reached: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if reached(middle) { high = middle } else { low = middle }
    }
    high
}

impl<'a> Problem<'a> {
    fn new(input: &'a OptimizerInput) -> Self {
        let (cloud, prompt) = (&input.cloud, &input.prompt);
        let whole = f64::from(prompt.fixed_tokens + prompt.content_tokens);
        let delta_ms = cloud.ttft_base_ms + cloud.queue_ms + cloud.rtt_ms + cloud.compress_ms;
        let ttft_c_ms = cloud.prefill_ms_per_token * whole + delta_ms;
        let mut problem = Self { input, ttft_c_ms, held: 0.0, alone_ms: 0.0 };
        problem.alone_ms = problem.full_ms(whole) - problem.full_ms(f64::from(prompt.cached_tokens));
        let (cached, prefix) = (f64::from(prompt.cached_tokens), f64::from(prompt.prefix_tokens));
        let too_long = |tokens: f64| problem.full_ms(tokens) - problem.full_ms(cached) > ttft_c_ms;
        let held = if too_long(prefix) { bisect(cached, prefix, too_long) } else { prefix };
        problem.held = held;
        problem
    }

    /// Returns the time to prefill `tokens` tokens with an empty cache.
    fn full_ms(&self, tokens: f64) -> f64 {
        let device = &self.input.device;
        device.prefill_ms_per_token * tokens + device.prefill_ms_per_token2 * tokens * tokens
    }

    fn kept(&self, ratio: f64) -> f64 {
        f64::from(self.input.prompt.fixed_tokens) + ratio * f64::from(self.input.prompt.content_tokens)
    }

    /// Returns the time from the mask's arrival until the KV cache of the refined prompt is complete.
    fn work_ms(&self, ratio: f64) -> f64 {
        self.input.device.decompress_ms + self.full_ms(self.kept(ratio)) - self.full_ms(self.held)
    }

    /// Returns the smallest `L` that keeps tau and the largest `L` that the cloud may write, or `None` if no
    /// such `L` keeps tau.
    fn fitting(&self, ratio: f64) -> Option<(u32, u32)> {
        let (work_ms, kept) = (self.work_ms(ratio), self.kept(ratio));
        let cloud_done = |count: u32| f64::from(count - 1) * self.input.cloud.decode_ms <= work_ms * ROUNDING;
        let keeps_tau = |count: u32| {
            let verify_ms = self.full_ms(kept + f64::from(count)) - self.full_ms(kept);
            work_ms + verify_ms <= self.input.scene.tau_ms * f64::from(count) * ROUNDING
        };
        let allowed = (1..).take_while(|&count| cloud_done(count));
        let (mut least, mut most) = (None, 1);
        for count in allowed {
            most = count;
            if least.is_none() && keeps_tau(count) {
                least = Some(count);
            }
        }
        least.map(|least| (least, most))
    }
}
