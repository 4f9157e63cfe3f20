//! Explains why a plan has its `L`: which bound is active, and how far each input value would have to move to
//! change that.
//!
//! It calls the optimizer ([`relay`]) many times with one value moved, so that the explanation agrees with
//! what a service would answer. Never part of a request: it takes some thousand calls of the optimizer, about
//! a millisecond.

use crate::optimizer::{BoundBy, InputError, KeepsTau, OptimizerInput, Plan, Verdict, relay};

/// The search limit: a value moves to at most 16 times, or a sixteenth of, what it is now.
const FACTOR_MAX: f64 = 16.0;
/// The search first moves in steps of this factor, then by bisection.
const STEP: f64 = 1.02;
/// Significant digits of a moved value.
const DIGITS: i32 = 3;

/// The goal of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// Every gap is within `tau`.
    KeepTau,
    /// The device keeps `tau`, so that the cloud does not have to write the whole answer.
    Relay,
    /// Refining saves time, so that the device prefills less.
    Refine,
    /// `L` has its whole margin.
    WholeMargin,
    /// A quarter fewer cloud tokens.
    FewerTokens {
        /// The largest number of tokens that reaches the goal.
        at_most: u32,
    },
    /// The optimizer's own choice, without the setting that decided `L`.
    Free,
}

/// An input value that can be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knob {
    /// `tau`.
    Tau,
    /// `k_d`.
    DevicePrefill,
    /// `q_d`.
    DevicePrefill2,
    /// `TPOT_d`.
    DeviceDecode,
    /// `k_c`.
    CloudPrefill,
    /// `TPOT_c`.
    CloudDecode,
    /// The smallest `r`: the fixed one if there is one, else `xi`. Only an evaluation can tell whether
    /// quality allows a smaller one.
    Ratio,
    /// The fixed `L`.
    AssistTokens,
    /// The scene's minimum of `L`.
    AssistFloor,
    /// The maximum length of the answer.
    AnswerTokens,
    /// The cloud's load.
    Load,
}

impl Knob {
    /// Returns the paper's symbol or a word, for display.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tau => "tau",
            Self::DevicePrefill => "k_d",
            Self::DevicePrefill2 => "q_d",
            Self::DeviceDecode => "TPOT_d",
            Self::CloudPrefill => "k_c",
            Self::CloudDecode => "TPOT_c",
            Self::Ratio => "r",
            Self::AssistTokens => "L",
            Self::AssistFloor => "floor",
            Self::AnswerTokens => "answer",
            Self::Load => "load",
        }
    }

    /// Returns its unit; empty if it has none.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Tau | Self::DeviceDecode | Self::CloudDecode => "ms",
            Self::DevicePrefill | Self::CloudPrefill => "ms/token",
            Self::DevicePrefill2 => "ms/token^2",
            Self::AssistTokens | Self::AssistFloor | Self::AnswerTokens => "tokens",
            Self::Ratio | Self::Load => "",
        }
    }
}

/// One moved value, and the plan that the optimizer gives then.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Relaxation {
    /// The value that is moved.
    pub knob: Knob,
    /// The current value; for [`Knob::Load`], the current `L`.
    pub from: f64,
    /// The value nearest to `from` that reaches the goal; `None` if the setting is removed, so that the
    /// optimizer decides.
    pub to: Option<f64>,
    /// The plan with that value.
    pub plan: Plan,
}

/// The reasons for a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The plan.
    pub plan: Plan,
    /// The goal of a change; `None` if no change would help.
    pub goal: Option<Goal>,
    /// Every value that reaches the goal when it alone is moved.
    pub relaxations: Vec<Relaxation>,
}

/// Explains the optimizer's answer.
///
/// # Errors
/// As [`relay`].
pub fn explain(input: &OptimizerInput) -> Result<Explanation, InputError> {
    let plan = relay(input)?;
    let goal = goal_of(&plan);
    let relaxations = match goal {
        None => Vec::new(),
        Some(Goal::Free) => freed(input, &plan).into_iter().collect(),
        Some(goal) => KNOBS.iter().filter_map(|&(knob, way)| moved(input, goal, knob, way)).collect(),
    };
    Ok(Explanation { plan, goal, relaxations })
}

/// The direction in which a value is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

const KNOBS: [(Knob, Way); 8] = [
    (Knob::DevicePrefill, Way::Down),
    (Knob::DevicePrefill2, Way::Down),
    (Knob::DeviceDecode, Way::Down),
    (Knob::Tau, Way::Up),
    (Knob::CloudDecode, Way::Down),
    (Knob::CloudPrefill, Way::Down),
    (Knob::Ratio, Way::Down),
    (Knob::AssistTokens, Way::Up),
];

fn goal_of(plan: &Plan) -> Option<Goal> {
    match (plan.verdict, plan.bound_by) {
        (Verdict::DeviceAlone, _) => None,
        (Verdict::CloudAlone, _) => Some(Goal::Relay),
        // These three settings hide the other bounds, so the explanation first shows the plan without them.
        (_, BoundBy::Load | BoundBy::Floor | BoundBy::AnswerLength) => Some(Goal::Free),
        _ if plan.keeps_tau != KeepsTau::Yes => Some(Goal::KeepTau),
        (_, BoundBy::Fixed) => Some(Goal::Free),
        (Verdict::NoRefinement, _) => Some(Goal::Refine),
        (Verdict::Relay, BoundBy::CloudOccupancy) => Some(Goal::WholeMargin),
        (Verdict::Relay, _) => (plan.assist_tokens > 1)
            .then(|| Goal::FewerTokens { at_most: (plan.assist_tokens * 3 / 4).max(1) }),
    }
}

fn reaches(goal: Goal, plan: &Plan) -> bool {
    match goal {
        Goal::KeepTau => plan.keeps_tau == KeepsTau::Yes,
        Goal::Relay | Goal::Refine => plan.verdict == Verdict::Relay,
        Goal::WholeMargin => plan.bound_by == BoundBy::Tau,
        Goal::FewerTokens { at_most } => plan.verdict == Verdict::Relay && plan.assist_tokens <= at_most,
        Goal::Free => false,
    }
}

/// Plans again without the setting that decided `L`.
fn freed(input: &OptimizerInput, plan: &Plan) -> Option<Relaxation> {
    let mut free = *input;
    let (knob, from) = match plan.bound_by {
        BoundBy::Floor => {
            free.scene.assist_floor = 1;
            (Knob::AssistFloor, f64::from(input.scene.assist_floor))
        }
        BoundBy::Load => {
            free.load = 0.0;
            (Knob::Load, f64::from(plan.assist_tokens))
        }
        BoundBy::Fixed => {
            free.scene.assist_tokens = None;
            (Knob::AssistTokens, f64::from(plan.assist_tokens))
        }
        BoundBy::AnswerLength => {
            free.scene.answer_tokens_max = u32::MAX;
            (Knob::AnswerTokens, f64::from(plan.assist_tokens))
        }
        _ => return None,
    };
    let plan = relay(&free).ok()?;
    let counted = matches!(knob, Knob::AssistFloor | Knob::AnswerTokens);
    Some(Relaxation { knob, from, to: counted.then(|| f64::from(plan.assist_tokens)), plan })
}

/// Finds the value of `knob` nearest to its current one that reaches `goal`.
fn moved(input: &OptimizerInput, goal: Goal, knob: Knob, way: Way) -> Option<Relaxation> {
    let from = value(input, knob)?;
    let plan_at = |to: f64| relay(&with(input, knob, to)).ok();
    let reached = |to: f64| plan_at(to).is_some_and(|plan| reaches(goal, &plan));
    let factor = |step: i32| if way == Way::Up { STEP.powi(step) } else { STEP.powi(-step) };
    let steps = (FACTOR_MAX.ln() / STEP.ln()).ceil() as i32;
    let first = (1..=steps).find(|&step| reached(from * factor(step)))?;
    let (mut near, mut far) = (from * factor(first - 1), from * factor(first));
    for _ in 0..30 {
        let middle = f64::midpoint(near, far);
        if reached(middle) { far = middle } else { near = middle }
    }
    let round = rounded(far, way);
    let to = if reached(round) { round } else { far };
    Some(Relaxation { knob, from, to: Some(to), plan: plan_at(to)? })
}

/// Rounds to three significant digits, away from the value it started at.
fn rounded(value: f64, way: Way) -> f64 {
    let scale = 10_f64.powi(DIGITS - 1 - value.abs().log10().floor() as i32);
    match way {
        Way::Up => (value * scale).ceil() / scale,
        Way::Down => (value * scale).floor() / scale,
    }
}

/// Returns the current value of `knob`, or `None` if it cannot be moved.
fn value(input: &OptimizerInput, knob: Knob) -> Option<f64> {
    let value = match knob {
        Knob::Tau => input.scene.tau_ms,
        Knob::DevicePrefill => input.device.prefill_ms_per_token,
        Knob::DevicePrefill2 => input.device.prefill_ms_per_token2,
        Knob::DeviceDecode => input.device.decode_ms,
        Knob::CloudPrefill => input.cloud.prefill_ms_per_token,
        Knob::CloudDecode => input.cloud.decode_ms,
        Knob::Ratio => input.scene.ratio.unwrap_or(input.scene.xi),
        Knob::AssistTokens => f64::from(input.scene.assist_tokens?),
        Knob::AssistFloor | Knob::AnswerTokens | Knob::Load => return None,
    };
    (value > 0.0).then_some(value)
}

fn with(input: &OptimizerInput, knob: Knob, value: f64) -> OptimizerInput {
    let mut moved = *input;
    match knob {
        Knob::Tau => moved.scene.tau_ms = value,
        Knob::DevicePrefill => moved.device.prefill_ms_per_token = value,
        Knob::DevicePrefill2 => moved.device.prefill_ms_per_token2 = value,
        Knob::DeviceDecode => moved.device.decode_ms = value,
        Knob::CloudPrefill => moved.cloud.prefill_ms_per_token = value,
        Knob::CloudDecode => moved.cloud.decode_ms = value,
        Knob::Ratio => {
            moved.scene.xi = moved.scene.xi.min(value);
            moved.scene.ratio = moved.scene.ratio.map(|_| value);
        }
        Knob::AssistTokens => moved.scene.assist_tokens = Some(value.ceil() as u32),
        Knob::AssistFloor | Knob::AnswerTokens | Knob::Load => {}
    }
    moved
}

#[cfg(test)]
pub(crate) mod tests;
