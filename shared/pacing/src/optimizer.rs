//! The optimizer: the closed form of the paper's problem P for one request.
//!
//! `min TTFT_d` over real `r` with `xi <= r <= r_max` and integer `L` within its bounds. `TTFT_d` rises with
//! `r`, so the answer is the smallest `r` for which an integer `L` fits; where none fits at `xi`, the only
//! other candidates are the few `r` at which the upper bound on `L` steps up. No search, no solver:
//! well under a microsecond. Brute force over `L` and a grid of `r` is the check in the tests.
//!
//! What always holds: `1 <= L <= answer_tokens_max`, `0 < r <= 1`, and whatever the device or the cloud
//! cannot keep is said in [`Plan::keeps_tau`] and [`Plan::bound_by`], never hidden.

use crate::cost::{CloudCost, DeviceCost};
use crate::equations::{
    Takeover, lower_bound_batched, lower_bound_step_by_step, smooth_tpot_step_by_step, upper_bound,
};

/// Estimates are wrong in practice, so `L` is this much over its lower bound.
pub const ASSIST_MARGIN: f64 = 1.3;

/// The prompt in tokens of the device's tokenizer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PromptShape {
    /// `p`: everything that is never refined (prefix, suffix, roles).
    pub fixed_tokens: u32,
    /// `c`: refinable content.
    pub content_tokens: u32,
    /// Leading fixed tokens, before the first refinable one; at most `fixed_tokens`. The device prefills
    /// them while it waits for the mask.
    pub prefix_tokens: u32,
    /// Leading tokens that the device's KV cache holds already.
    pub cached_tokens: u32,
}

impl PromptShape {
    /// `l = p + c`.
    #[must_use]
    pub fn tokens(&self) -> f64 {
        f64::from(self.fixed_tokens) + f64::from(self.content_tokens)
    }
}

/// How the device takes the cloud's tokens in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verification {
    /// All `L` in the last prefill chunk.
    #[default]
    Batched,
    /// One decoding step each, as Procedure 2 has it; for comparison.
    StepByStep,
}

/// What a scene wants where the device cannot keep `tau` at all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SlowDevice {
    /// Relay all the same: the gaps are the device's.
    #[default]
    AcceptGap,
    /// Let the cloud write the whole answer, where it keeps `tau` itself.
    UseCloud,
}

/// A scene's settings, and what the request fixes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScenePolicy {
    /// `xi`: the smallest `r` that quality allows; 1 forbids refinement.
    pub xi: f64,
    /// A fixed `r` (the request's, else the scene's); never taken below `xi`.
    pub ratio: Option<f64>,
    /// A fixed `L` (the request's, else the scene's).
    pub assist_tokens: Option<u32>,
    /// The fewest cloud tokens the scene accepts.
    pub assist_floor: u32,
    /// `tau`, in milliseconds.
    pub tau_ms: f64,
    /// The most tokens the answer may have; "all" for the cloud alone.
    pub answer_tokens_max: u32,
    /// What to do where the device cannot keep `tau`.
    pub slow_device: SlowDevice,
}

/// Everything the optimizer looks at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimizerInput {
    /// The prompt.
    pub prompt: PromptShape,
    /// The device's own current values.
    pub device: DeviceCost,
    /// The cloud's, at its present load.
    pub cloud: CloudCost,
    /// The scene.
    pub scene: ScenePolicy,
    /// How cloud tokens are verified.
    pub verification: Verification,
    /// How hard the cloud is pressed, from 0 (not at all) to 1: the part of `L` above the scene's floor that it
    /// keeps back.
    pub load: f64,
}

/// A number that no request may have.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InputError {
    /// A cost or a limit outside its range.
    #[error("`{name}` is {value}, must be in {min}..={max}")]
    OutOfRange {
        /// Its name in the request or in the scene.
        name: &'static str,
        /// What was given.
        value: f64,
        /// The least accepted.
        min: f64,
        /// The most accepted.
        max: f64,
    },
    /// More leading tokens than there are.
    #[error("`{name}` is {value}, the prompt allows at most {limit}")]
    MoreThanPrompt {
        /// Its name.
        name: &'static str,
        /// What was given.
        value: u32,
        /// The tokens there are.
        limit: u32,
    },
}

/// Who answers, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Refined prompt; prefill on the device starts with the mask.
    Relay,
    /// Cloud tokens, but the whole prompt: prefill on the device starts at t = 0.
    NoRefinement,
    /// The device's own first token is there no later than the cloud's: no benefit from the relay.
    DeviceAlone,
    /// The device cannot keep `tau` and the scene prefers the cloud.
    CloudAlone,
}

/// What decided `L`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoundBy {
    /// The largest tolerable gap: the lower bound with its margin.
    Tau,
    /// The cloud is held only while the device prefills: the upper bound cut the margin.
    CloudOccupancy,
    /// The cloud itself is too slow for `tau`: the upper bound is under the lower one.
    CloudDecode,
    /// The scene's floor.
    Floor,
    /// The cloud is loaded: lowered towards the scene's floor.
    Load,
    /// The request or the scene fixed it.
    Fixed,
    /// The answer may not be longer.
    AnswerLength,
    /// The device keeps `tau` for no `L`: the upper bound is taken.
    DeviceTooSlow,
    /// Nobody relays.
    Verdict,
}

impl BoundBy {
    /// The word on the wire (`assist_bound_by`).
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

/// Whether gaps can stay within `tau`, and if not, why not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KeepsTau {
    /// They can, if the estimates are right.
    Yes,
    /// `tau <= TPOT_d`: the device's own decoding is slower.
    DecodeTooSlow {
        /// `TPOT_d`.
        decode_ms: f64,
    },
    /// No `L` keeps it: `tau <= k_d` (or what attention makes of `k_d` on so long a prompt), as every cloud
    /// token costs more to verify than it buys.
    PrefillTooSlow {
        /// The cost of one more token behind the prompt.
        prefill_ms_per_token: f64,
    },
    /// The chosen `L` is too small for it (upper bound, floor under load, or a fixed `L`).
    AssistTooShort {
        /// The gap that comes of it.
        gap_ms: f64,
    },
}

/// The bounds of `L` at the chosen `r`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssistBounds {
    /// The smallest `L` with every gap within `tau`; `None` where no `L` is.
    pub lower: Option<u32>,
    /// The largest `L` for which the cloud is done when the device's prefill is.
    pub upper: u32,
}

/// What should happen if the estimates are right; milliseconds since the request was sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Predicted {
    /// `TTFT_c`: the first token a person sees.
    pub ttft_c_ms: f64,
    /// `TTFT_d`: the device has its own KV cache of its prompt.
    pub ttft_d_ms: f64,
    /// The device's own first token, of index `L`.
    pub takeover_ms: f64,
    /// The gap between tokens up to the takeover, when all are equal.
    pub gap_ms: f64,
    /// The first token of the device alone, on the whole prompt.
    pub device_alone_ms: f64,
}

/// The optimizer's answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// `r`.
    pub ratio: f64,
    /// `L`. With [`Verdict::CloudAlone`] all the answer may have; with [`Verdict::DeviceAlone`] what a relay
    /// would take if it were wanted all the same.
    pub assist_tokens: u32,
    /// What decided `L`.
    pub bound_by: BoundBy,
    /// Who answers.
    pub verdict: Verdict,
    /// Whether `tau` holds.
    pub keeps_tau: KeepsTau,
    /// The bounds of `L`.
    pub bounds: AssistBounds,
    /// The forecast.
    pub predicted: Predicted,
}

/// Solves P for one request.
///
/// # Errors
/// [`InputError`] for numbers that no device, cloud or scene can have (negative, not finite, `xi` or `r`
/// outside (0, 1], a cached prefix longer than the prompt).
pub fn optimize(input: &OptimizerInput) -> Result<Plan, InputError> {
    input.check()?;
    let (ratio, verdict) = choose_ratio(input);
    Ok(plan_at(input, ratio, verdict))
}

/// What a service that is asked gives: the best relay for a device that waits for its mask. It has begun nothing but the
/// prefix, so that to prefill the whole prompt from `t = 0` is not to be had any more, and what it has waited already
/// changes neither `r` nor `L`.
///
/// The verdict says what would have been best from the start ([`optimize`]'s); `r`, `L` and the forecast are those of the
/// relay all the same. If the scene or the request forbids refinement, the device knew that at `t = 0`, and this is
/// [`optimize`].
///
/// # Errors
/// As for [`optimize`].
pub fn relay(input: &OptimizerInput) -> Result<Plan, InputError> {
    if input.least_ratio() >= 1.0 || input.prompt.content_tokens == 0 {
        return optimize(input);
    }
    input.check()?;
    let plan = plan_at(input, relay_ratio(input, 1.0), Verdict::Relay);
    let verdict = if plan.verdict == Verdict::Relay { choose_ratio(input).1 } else { plan.verdict };
    Ok(Plan { verdict, ..plan })
}

/// The plan at a chosen `r`.
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
        _ => input.gap_ms(&takeover, assist_tokens),
    };
    let takeover_ms = match input.verification {
        Verification::Batched => takeover.takeover_ms(assist_tokens),
        Verification::StepByStep => takeover.remaining_ms + takeover.decode_ms * f64::from(assist_tokens),
    };
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

/// The smallest allowed `r` for which an integer `L` fits, or the whole prompt.
fn choose_ratio(input: &OptimizerInput) -> (f64, Verdict) {
    let least = input.least_ratio();
    match input.ratio_max() {
        Some(most) if least < 1.0 && input.prompt.content_tokens > 0 && least <= most => {
            (relay_ratio(input, most), Verdict::Relay)
        }
        // Constraint (5) leaves no interval: refining loses more than it saves.
        _ => {
            let alone = input.device_alone_ms() <= input.ttft_c_ms();
            (1.0, if alone { Verdict::DeviceAlone } else { Verdict::NoRefinement })
        }
    }
}

/// The smallest allowed `r`, or one up to `most` for which an integer `L` fits where none does there.
fn relay_ratio(input: &OptimizerInput, most: f64) -> f64 {
    let least = input.least_ratio();
    if input.scene.ratio.is_some() || input.scene.assist_tokens.is_some() || input.fits(least) {
        return least;
    }
    // The upper bound is under the lower one. It steps up where A(r) is a multiple of TPOT_c, and the lower
    // bound outgrows it from there on, so that the first step is the only one that can help.
    let step = input.next_step_of_upper_bound(least);
    step.filter(|&ratio| ratio <= most && ratio < 1.0 && input.fits(ratio)).unwrap_or(least)
}

/// `L` within its bounds, and what decided it.
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

/// What a loaded cloud writes of `tokens`: the floor, and of what is above it the share `1 - load`, rounded up.
///
/// Never above `tokens`, and never below the floor where `tokens` is not.
#[must_use]
pub fn under_load(tokens: u32, floor: u32, load: f64) -> u32 {
    let above = tokens.saturating_sub(floor);
    let kept = (f64::from(above) * (1.0 - load.clamp(0.0, 1.0))).ceil() as u32;
    tokens - above + kept.min(above)
}

/// `ceil(1.3 x lower)`.
fn with_margin(lower: u32) -> u32 {
    // In integers: 1.3 x 10 is 13, and not the 14 that rounding of the product could make of it.
    let tenths = (ASSIST_MARGIN * 10.0).round() as u64;
    u32::try_from((u64::from(lower) * tenths).div_ceil(10)).unwrap_or(u32::MAX)
}

impl OptimizerInput {
    /// Checks every number against its range.
    ///
    /// # Errors
    /// [`InputError`] naming the first that is outside.
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

    /// The fixed `r`, or the smallest that quality allows.
    fn least_ratio(&self) -> f64 {
        self.scene.ratio.unwrap_or(self.scene.xi).max(self.scene.xi)
    }

    /// `TTFT_c`.
    fn ttft_c_ms(&self) -> f64 {
        self.cloud.ttft_ms(self.prompt.tokens())
    }

    /// `prefill_d(l)`, of what is not cached: the device alone, from t = 0.
    fn device_alone_ms(&self) -> f64 {
        let cached = f64::from(self.prompt.cached_tokens);
        self.device.prefill_ms(cached, self.prompt.tokens() - cached)
    }

    /// Tokens the KV cache holds when the mask arrives: kept ones, or as much of the prefix as could be
    /// prefilled meanwhile. Only leading fixed tokens count, as what follows depends on the mask.
    fn held_tokens(&self) -> f64 {
        let prefix = f64::from(self.prompt.prefix_tokens);
        let cached = f64::from(self.prompt.cached_tokens).min(prefix);
        prefix.min(cached + self.device.tokens_within(cached, self.ttft_c_ms()))
    }

    /// The request at one `r`; at `r = 1` prefill starts with the request, else with the mask.
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
        let lower = match self.verification {
            Verification::Batched => lower_bound_batched(takeover, self.scene.tau_ms),
            Verification::StepByStep => lower_bound_step_by_step(takeover, self.scene.tau_ms),
        };
        AssistBounds { lower, upper: upper_bound(takeover.remaining_ms, self.cloud.decode_ms) }
    }

    /// Whether an integer `L` lies within its bounds at `ratio`. Where no `L` keeps `tau` at all, a larger
    /// `r` would not help: that counts as fitting.
    fn fits(&self, ratio: f64) -> bool {
        let bounds = self.bounds(&self.takeover(ratio));
        bounds.lower.is_none_or(|lower| lower <= bounds.upper)
    }

    /// `r_max`: the largest `r` at which `TTFT_d` is no worse than prefilling everything from t = 0,
    /// constraint (5) with the held prefix and attention's quadratic term. `None`: not even `r = 0` is.
    pub(crate) fn ratio_max(&self) -> Option<f64> {
        let budget_ms = self.device_alone_ms() - self.ttft_c_ms() - self.device.decompress_ms;
        if budget_ms < 0.0 {
            return None;
        }
        self.ratio_for(budget_ms).map(|ratio| ratio.min(1.0))
    }

    /// The `r` whose remaining prompt takes `prefill_ms` to prefill.
    fn ratio_for(&self, prefill_ms: f64) -> Option<f64> {
        let held = self.held_tokens();
        let tokens = held + self.device.tokens_within(held, prefill_ms);
        let ratio = (tokens - f64::from(self.prompt.fixed_tokens)) / f64::from(self.prompt.content_tokens);
        (ratio >= 0.0).then_some(ratio)
    }

    /// The smallest `r` above `ratio` at which the upper bound on `L` is one more.
    fn next_step_of_upper_bound(&self, ratio: f64) -> Option<f64> {
        let gaps = f64::from(self.bounds(&self.takeover(ratio)).upper);
        let prefill_ms = gaps * self.cloud.decode_ms - self.device.decompress_ms;
        // A hair more, so that rounding does not leave it just under the step.
        self.ratio_for(prefill_ms * (1.0 + 1e-12) + 1e-9).filter(|&next| next > ratio)
    }

    pub(crate) fn gap_ms(&self, takeover: &Takeover, assist_tokens: u32) -> f64 {
        match self.verification {
            Verification::Batched => takeover.takeover_ms(assist_tokens) / f64::from(assist_tokens),
            Verification::StepByStep if assist_tokens > 1 => {
                smooth_tpot_step_by_step(takeover, assist_tokens)
            }
            // One token, then silence until the device has written its second.
            Verification::StepByStep => takeover.remaining_ms + takeover.decode_ms,
        }
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

    /// Whether the whole answer is the cloud's: the device cannot keep `tau`, the cloud can, and the scene
    /// wants it so.
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
