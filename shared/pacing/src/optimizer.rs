//! The optimizer: the closed form of the paper's problem P for one request.
//!
//! `min TTFT_d` over real `r` with `xi <= r <= r_max` and integer `L` within its bounds. `TTFT_d` rises with
//! `r`, so the answer is the smallest `r` for which an integer `L` fits. If none fits at `xi`, the only other
//! candidate is the next `r` at which the upper bound on `L` grows by one. No search, no solver: well under a
//! microsecond. The tests compare it with brute force over `L` and a grid of `r`.
//!
//! What always holds: `1 <= L <= answer_tokens_max` and `0 < r <= 1`. If the device or the cloud cannot keep
//! `tau`, [`Plan::keeps_tau`] and [`Plan::bound_by`] say so.

use crate::cost::{CloudCost, DeviceCost};
use crate::equations::{Takeover, gap_ms, lower_bound, upper_bound};

/// `L` is its lower bound times this factor, because estimates are inexact.
pub const ASSIST_MARGIN: f64 = 1.3;

/// The prompt, counted in tokens of the device's tokenizer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PromptShape {
    /// `p`: everything that is never refined (prefix, suffix, roles).
    pub fixed_tokens: u32,
    /// `c`: refinable content.
    pub content_tokens: u32,
    /// Fixed tokens before the first refinable one; at most `fixed_tokens`. The device prefills them while it
    /// waits for the mask.
    pub prefix_tokens: u32,
    /// Leading tokens that are already in the device's KV cache.
    pub cached_tokens: u32,
}

impl PromptShape {
    /// Returns the length of the prompt, `l = p + c`.
    #[must_use]
    pub fn tokens(&self) -> f64 {
        f64::from(self.fixed_tokens) + f64::from(self.content_tokens)
    }
}

/// The behaviour that a scene wants if the device cannot keep `tau` with any `L`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SlowDevice {
    /// Relay anyway, with the gaps that the device can reach.
    #[default]
    AcceptGap,
    /// Let the cloud write the whole answer, if the cloud keeps `tau`.
    UseCloud,
}

/// A scene's settings, combined with those of the request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScenePolicy {
    /// `xi`: the smallest `r` that quality allows; 1 forbids refinement.
    pub xi: f64,
    /// A fixed `r` (the request's, else the scene's); raised to `xi` if it is smaller.
    pub ratio: Option<f64>,
    /// A fixed `L` (the request's, else the scene's).
    pub assist_tokens: Option<u32>,
    /// The minimum number of cloud tokens in this scene.
    pub assist_floor: u32,
    /// `tau`, in milliseconds.
    pub tau_ms: f64,
    /// The maximum number of tokens in the answer. If the cloud writes the whole answer, `L` is this number.
    pub answer_tokens_max: u32,
    /// What to do if the device cannot keep `tau`.
    pub slow_device: SlowDevice,
}

/// The input of the optimizer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimizerInput {
    /// The prompt.
    pub prompt: PromptShape,
    /// The device's current costs.
    pub device: DeviceCost,
    /// The cloud's costs at its current load.
    pub cloud: CloudCost,
    /// The scene.
    pub scene: ScenePolicy,
    /// Load of the cloud from 0 (none) to 1: the share of `L` above the scene's minimum that the cloud does
    /// not write.
    pub load: f64,
}

/// A number that is not allowed in a request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InputError {
    /// A number is outside its range.
    #[error("`{name}` is {value}, must be in {min}..={max}")]
    OutOfRange {
        /// The name of the number in the request or in the scene.
        name: &'static str,
        /// The given value.
        value: f64,
        /// The smallest accepted value.
        min: f64,
        /// The largest accepted value.
        max: f64,
    },
    /// There are more leading tokens than the prompt has.
    #[error("`{name}` is {value}, the prompt allows at most {limit}")]
    MoreThanPrompt {
        /// The name of the number.
        name: &'static str,
        /// The given value.
        value: u32,
        /// The tokens of the prompt.
        limit: u32,
    },
}

/// Which side answers, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Relay with a refined prompt: prefill on the device starts when the mask arrives.
    Relay,
    /// Relay with the whole prompt: prefill on the device starts at t = 0.
    NoRefinement,
    /// The device's own first token is ready no later than the cloud's, so a relay brings no benefit.
    DeviceAlone,
    /// The device cannot keep `tau` and the scene prefers the cloud.
    CloudAlone,
}

/// What decided `L`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoundBy {
    /// The largest tolerable gap: `L` is the lower bound with its margin.
    Tau,
    /// The cloud works only while the device prefills: the upper bound cuts the margin.
    CloudOccupancy,
    /// The cloud is too slow for `tau`: the upper bound is below the lower bound.
    CloudDecode,
    /// The scene's minimum.
    Floor,
    /// The cloud is loaded: `L` is lowered towards the scene's minimum.
    Load,
    /// The request or the scene sets `L`.
    Fixed,
    /// The maximum length of the answer.
    AnswerLength,
    /// The device cannot keep `tau` with any `L`: `L` is the upper bound.
    DeviceTooSlow,
    /// There is no relay: one side writes the whole answer.
    Verdict,
}

impl BoundBy {
    /// Returns the word used on the wire (`assist_bound_by`).
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tau => "tau",
            Self::CloudOccupancy => "cloud_occupancy",
            Self::CloudDecode => "tpot_c",
            Self::Floor => "floor",
            Self::Load => "load",
            Self::Fixed => "fixed",
            Self::AnswerLength => "answer_length",
            Self::DeviceTooSlow => "device_too_slow",
            Self::Verdict => "verdict",
        }
    }
}

/// Whether gaps stay within `tau`, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KeepsTau {
    /// Every gap stays within `tau`, if the estimates are right.
    Yes,
    /// The device's own decoding is too slow: `tau <= TPOT_d`.
    DecodeTooSlow {
        /// `TPOT_d`.
        decode_ms: f64,
    },
    /// No `L` keeps `tau`. Verifying one cloud token takes at least `tau`, or it slows with every token, so
    /// that no `L` makes up for the remaining prefill.
    PrefillTooSlow {
        /// The time to prefill one more token after the prompt.
        prefill_ms_per_token: f64,
    },
    /// The chosen `L` is too small for `tau` (because of the upper bound, the load, or a fixed `L`).
    AssistTooShort {
        /// The resulting gap.
        gap_ms: f64,
    },
}

/// The bounds of `L` at the chosen `r`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssistBounds {
    /// The smallest `L` with every gap within `tau`; `None` if there is none.
    pub lower: Option<u32>,
    /// The largest `L` that the cloud finishes before the device's prefill ends.
    pub upper: u32,
}

/// The forecast if the estimates are right, in milliseconds since the request was sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Predicted {
    /// `TTFT_c`: the first token that the user sees.
    pub ttft_c_ms: f64,
    /// `TTFT_d`: the device's KV cache of its prompt is complete.
    pub ttft_d_ms: f64,
    /// The device's own first token, of index `L`.
    pub takeover_ms: f64,
    /// The gap between tokens up to the takeover, if all gaps are equal.
    pub gap_ms: f64,
    /// The first token if the device works alone on the whole prompt.
    pub device_alone_ms: f64,
}

/// The optimizer's result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// `r`.
    pub ratio: f64,
    /// `L`. With [`Verdict::CloudAlone`], the maximum length of the answer; with [`Verdict::DeviceAlone`],
    /// the `L` that a relay would use.
    pub assist_tokens: u32,
    /// What decided `L`.
    pub bound_by: BoundBy,
    /// Which side answers.
    pub verdict: Verdict,
    /// Whether gaps stay within `tau`.
    pub keeps_tau: KeepsTau,
    /// The bounds of `L`.
    pub bounds: AssistBounds,
    /// The forecast.
    pub predicted: Predicted,
}

/// Solves P for one request.
///
/// # Errors
/// [`InputError`] if a number is not possible: negative, not finite, `xi` or `r` outside (0, 1], or more
/// cached tokens than the prompt has.
pub fn optimize(input: &OptimizerInput) -> Result<Plan, InputError> {
    input.check()?;
    let (ratio, verdict) = choose_ratio(input);
    Ok(plan_at(input, ratio, verdict))
}

/// Returns the best relay for a device that waits for its mask: the plan that a service sends. The device has
/// prefilled only the prefix, so it can no longer prefill the whole prompt from `t = 0`. The time it has
/// already waited changes neither `r` nor `L`.
///
/// The verdict is that of [`optimize`], which would have been best from the start; `r`, `L`, what decided it
/// and the forecast are always those of the relay. If the scene or the request forbids refinement, the device
/// knew that at `t = 0`, and `r` is 1.
///
/// # Errors
/// As for [`optimize`].
pub fn relay(input: &OptimizerInput) -> Result<Plan, InputError> {
    input.check()?;
    let is_whole = input.least_ratio() >= 1.0 || input.prompt.content_tokens == 0;
    let ratio = if is_whole { 1.0 } else { relay_ratio(input, 1.0) };
    let plan = plan_at(input, ratio, Verdict::Relay);
    let verdict = if plan.verdict == Verdict::Relay { choose_ratio(input).1 } else { plan.verdict };
    Ok(Plan { verdict, ..plan })
}

/// Makes the plan at a chosen `r`.
fn plan_at(input: &OptimizerInput, ratio: f64, verdict: Verdict) -> Plan {
    let takeover = input.takeover(ratio);
    let bounds = input.bounds(&takeover);
    let (mut assist_tokens, mut bound_by) = choose_assist(input, bounds);
    let mut verdict = verdict;
    if input.prefers_cloud(bounds) && verdict != Verdict::DeviceAlone {
        verdict = Verdict::CloudAlone;
        assist_tokens = input.scene.answer_tokens_max.max(1);
    }
    if matches!(verdict, Verdict::DeviceAlone | Verdict::CloudAlone) {
        bound_by = BoundBy::Verdict;
    }
    let gap_ms = match verdict {
        Verdict::CloudAlone => input.cloud.decode_ms,
        _ => gap_ms(&takeover, assist_tokens),
    };
    let takeover_ms = takeover.takeover_ms(assist_tokens);
    Plan {
        ratio,
        assist_tokens,
        bound_by,
        verdict,
        keeps_tau: input.keeps_tau(&takeover, bounds, gap_ms),
        bounds,
        predicted: Predicted {
            ttft_c_ms: takeover.ttft_c_ms,
            ttft_d_ms: takeover.ttft_d_ms(),
            takeover_ms: takeover.ttft_c_ms + takeover_ms,
            gap_ms,
            device_alone_ms: input.device_alone_ms(),
        },
    }
}

/// Chooses the smallest allowed `r` for which an integer `L` fits, or the whole prompt.
fn choose_ratio(input: &OptimizerInput) -> (f64, Verdict) {
    let least = input.least_ratio();
    match input.ratio_max() {
        Some(most) if least < 1.0 && input.prompt.content_tokens > 0 && least <= most => {
            (relay_ratio(input, most), Verdict::Relay)
        }
        // No `r` satisfies constraint (5): refining costs more time than it saves.
        _ => {
            let alone = input.device_alone_ms() <= input.ttft_c_ms();
            (1.0, if alone { Verdict::DeviceAlone } else { Verdict::NoRefinement })
        }
    }
}

/// Returns the smallest allowed `r`, or, if no integer `L` fits there, a larger one up to `most` for which
/// one fits.
fn relay_ratio(input: &OptimizerInput, most: f64) -> f64 {
    let least = input.least_ratio();
    if input.scene.ratio.is_some() || input.scene.assist_tokens.is_some() || input.fits(least) {
        return least;
    }
    // The upper bound is below the lower one. It grows by one at each r whose A(r) is a multiple of TPOT_c.
    // After that the lower bound grows faster, so only the first such r can help.
    let step = input.next_step_of_upper_bound(least);
    step.filter(|&ratio| ratio <= most && ratio < 1.0 && input.fits(ratio)).unwrap_or(least)
}

/// Chooses `L` within its bounds, and returns what decided it.
fn choose_assist(input: &OptimizerInput, bounds: AssistBounds) -> (u32, BoundBy) {
    let scene = &input.scene;
    let cap = scene.answer_tokens_max.max(1);
    let (mut tokens, mut by) = match (scene.assist_tokens, bounds.lower) {
        (Some(fixed), _) => (fixed.max(1), BoundBy::Fixed),
        (None, None) => (bounds.upper, BoundBy::DeviceTooSlow),
        (None, Some(lower)) if bounds.upper < lower => (bounds.upper, BoundBy::CloudDecode),
        (None, Some(lower)) => {
            let wanted = with_margin(lower);
            if wanted <= bounds.upper {
                (wanted, BoundBy::Tau)
            } else {
                (bounds.upper, BoundBy::CloudOccupancy)
            }
        }
    };
    let floor = scene.assist_floor.max(1);
    if scene.assist_tokens.is_none() && tokens < floor {
        (tokens, by) = (floor, BoundBy::Floor);
    }
    let kept = under_load(tokens, floor, input.load);
    if kept < tokens {
        (tokens, by) = (kept, BoundBy::Load);
    }
    if tokens > cap { (cap, BoundBy::AnswerLength) } else { (tokens, by) }
}

/// Returns how many of `tokens` a loaded cloud writes: the minimum `floor`, plus the share `1 - load` of the
/// rest, rounded up.
///
/// The result is at most `tokens`, and at least `floor` if `tokens` is.
#[must_use]
pub fn under_load(tokens: u32, floor: u32, load: f64) -> u32 {
    let above = tokens.saturating_sub(floor);
    let kept = (f64::from(above) * (1.0 - load.clamp(0.0, 1.0))).ceil() as u32;
    tokens - above + kept.min(above)
}

/// Returns `ceil(1.3 x lower)`.
fn with_margin(lower: u32) -> u32 {
    // Computed in integers, because 1.3 x 10 in floats could be rounded up to 14.
    let tenths = (ASSIST_MARGIN * 10.0).round() as u64;
    u32::try_from((u64::from(lower) * tenths).div_ceil(10)).unwrap_or(u32::MAX)
}

impl OptimizerInput {
    /// Checks every number against its range.
    ///
    /// # Errors
    /// [`InputError`] for the first number outside its range.
    pub fn check(&self) -> Result<(), InputError> {
        const TIME_MAX_MS: f64 = 1e9;
        let times = [
            ("prefill_ms_per_token", self.device.prefill_ms_per_token),
            ("prefill_ms_per_token2", self.device.prefill_ms_per_token2),
            ("decode_ms", self.device.decode_ms),
            ("decompress_ms", self.device.decompress_ms),
            ("cloud.ttft_base_ms", self.cloud.ttft_base_ms),
            ("cloud.prefill_ms_per_token", self.cloud.prefill_ms_per_token),
            ("cloud.decode_ms", self.cloud.decode_ms),
            ("cloud.rtt_ms", self.cloud.rtt_ms),
            ("cloud.queue_ms", self.cloud.queue_ms),
            ("cloud.compress_ms", self.cloud.compress_ms),
            ("tau_ms", self.scene.tau_ms),
        ];
        for (name, value) in times {
            in_range(name, value, 0.0, TIME_MAX_MS)?;
        }
        in_range("load", self.load, 0.0, 1.0)?;
        in_range("xi", self.scene.xi, f64::MIN_POSITIVE, 1.0)?;
        if let Some(ratio) = self.scene.ratio {
            in_range("ratio", ratio, f64::MIN_POSITIVE, 1.0)?;
        }
        let prompt = &self.prompt;
        let whole = prompt.fixed_tokens.saturating_add(prompt.content_tokens);
        for (name, value, limit) in [
            ("prefix_tokens", prompt.prefix_tokens, prompt.fixed_tokens),
            ("cached_tokens", prompt.cached_tokens, whole),
        ] {
            if value > limit {
                return Err(InputError::MoreThanPrompt { name, value, limit });
            }
        }
        Ok(())
    }

    /// Returns the fixed `r`, or the smallest one that quality allows.
    fn least_ratio(&self) -> f64 {
        self.scene.ratio.unwrap_or(self.scene.xi).max(self.scene.xi)
    }

    /// Returns `TTFT_c`.
    fn ttft_c_ms(&self) -> f64 {
        self.cloud.ttft_ms(self.prompt.tokens())
    }

    /// Returns `prefill_d(l)` without the cached tokens: the time of the device alone, from t = 0.
    fn device_alone_ms(&self) -> f64 {
        let cached = f64::from(self.prompt.cached_tokens);
        self.device.prefill_ms(cached, self.prompt.tokens() - cached)
    }

    /// Returns the tokens in the KV cache when the mask arrives: the cached ones, and as much of the prefix
    /// as the device could prefill meanwhile. Only leading fixed tokens count, because later tokens depend on
    /// the mask.
    fn held_tokens(&self) -> f64 {
        let prefix = f64::from(self.prompt.prefix_tokens);
        let cached = f64::from(self.prompt.cached_tokens).min(prefix);
        prefix.min(cached + self.device.tokens_within(cached, self.ttft_c_ms()))
    }

    /// Returns the quantities of the request at one `r`. At `r = 1` prefill starts with the request, else
    /// with the mask.
    pub(crate) fn takeover(&self, ratio: f64) -> Takeover {
        let ttft_c_ms = self.ttft_c_ms();
        let prompt_tokens =
            f64::from(self.prompt.fixed_tokens) + ratio * f64::from(self.prompt.content_tokens);
        let remaining_ms = if ratio >= 1.0 {
            (self.device_alone_ms() - ttft_c_ms).max(0.0)
        } else {
            let held = self.held_tokens();
            self.device.decompress_ms + self.device.prefill_ms(held, prompt_tokens - held)
        };
        Takeover {
            ttft_c_ms,
            remaining_ms,
            prompt_tokens,
            prefill_ms_per_token: self.device.prefill_ms_per_token,
            prefill_ms_per_token2: self.device.prefill_ms_per_token2,
            decode_ms: self.device.decode_ms,
        }
    }

    pub(crate) fn bounds(&self, takeover: &Takeover) -> AssistBounds {
        let lower = lower_bound(takeover, self.scene.tau_ms);
        AssistBounds { lower, upper: upper_bound(takeover.remaining_ms, self.cloud.decode_ms) }
    }

    /// Returns whether an integer `L` lies within its bounds at `ratio`. Also true if no `L` keeps `tau`,
    /// because a larger `r` would not help.
    fn fits(&self, ratio: f64) -> bool {
        let bounds = self.bounds(&self.takeover(ratio));
        bounds.lower.is_none_or(|lower| lower <= bounds.upper)
    }

    /// Returns `r_max`: the largest `r` at which `TTFT_d` is no worse than prefilling everything from t = 0.
    /// This is constraint (5) with the cached prefix and attention's quadratic term. `None` if not even
    /// `r = 0` satisfies it.
    pub(crate) fn ratio_max(&self) -> Option<f64> {
        let budget_ms = self.device_alone_ms() - self.ttft_c_ms() - self.device.decompress_ms;
        if budget_ms < 0.0 {
            return None;
        }
        self.ratio_for(budget_ms).map(|ratio| ratio.min(1.0))
    }

    /// Returns the `r` whose remaining prompt takes `prefill_ms` to prefill.
    fn ratio_for(&self, prefill_ms: f64) -> Option<f64> {
        let held = self.held_tokens();
        let tokens = held + self.device.tokens_within(held, prefill_ms);
        let ratio = (tokens - f64::from(self.prompt.fixed_tokens)) / f64::from(self.prompt.content_tokens);
        (ratio >= 0.0).then_some(ratio)
    }

    /// Returns the smallest `r` above `ratio` at which the upper bound on `L` is larger by one.
    fn next_step_of_upper_bound(&self, ratio: f64) -> Option<f64> {
        let gaps = f64::from(self.bounds(&self.takeover(ratio)).upper);
        let prefill_ms = gaps * self.cloud.decode_ms - self.device.decompress_ms;
        // Slightly more, so that rounding does not end just below the step.
        self.ratio_for(prefill_ms * (1.0 + 1e-12) + 1e-9).filter(|&next| next > ratio)
    }

    fn keeps_tau(&self, takeover: &Takeover, bounds: AssistBounds, gap_ms: f64) -> KeepsTau {
        let tau_ms = self.scene.tau_ms;
        if self.device.decode_ms >= tau_ms {
            return KeepsTau::DecodeTooSlow { decode_ms: self.device.decode_ms };
        }
        if bounds.lower.is_none() {
            let prefill_ms_per_token = takeover.verify_ms(1.0);
            return KeepsTau::PrefillTooSlow { prefill_ms_per_token };
        }
        if gap_ms > tau_ms * (1.0 + 1e-9) { KeepsTau::AssistTooShort { gap_ms } } else { KeepsTau::Yes }
    }

    /// Returns whether the cloud writes the whole answer: the device cannot keep `tau`, the cloud can, and
    /// the scene asks for it.
    fn prefers_cloud(&self, bounds: AssistBounds) -> bool {
        let device_cannot = bounds.lower.is_none() || self.device.decode_ms >= self.scene.tau_ms;
        self.scene.slow_device == SlowDevice::UseCloud
            && device_cannot
            && self.cloud.decode_ms < self.scene.tau_ms
    }
}

fn in_range(name: &'static str, value: f64, min: f64, max: f64) -> Result<(), InputError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(InputError::OutOfRange { name, value, min, max }) }
}
