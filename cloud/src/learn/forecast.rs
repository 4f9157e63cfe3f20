//! Predicts how this service would plan requests of a scene: inputs of the optimizer, and its plan in words
//! and as JSON.
//!
//! For people who set scenes. The command line and the console both call this module, so they show the same
//! numbers. The service plans requests by the same [`baton_pacing::relay`] (see
//! [`crate::learn::planning`]), with the values of each device. Pure. Always: measured values are used
//! before assumed ones.

use baton_generate::speculation::K_MAX;
use baton_pacing::{
    BoundBy, CloudCost, DeviceClass, Goal, KeepsTau, NetworkClass, OptimizerInput, Plan, TableScene, Verdict,
    optimizer::ASSIST_MARGIN,
};
use baton_protocol::VerifyPolicy;
use serde_json::{Value, json};

use crate::learn::coefficients::{ALL, Coefficients, NETWORKS_ASSUMED};
use crate::learn::cost::{Costs, Measured};
use crate::learn::planning::{Wish, policy, unloaded};
use crate::scene::SceneSettings;

/// Bytes of ordinary text for each token. An estimate, since nothing is tokenized here.
const BYTES_PER_TOKEN: usize = 4;
/// The longest answer that a device may ask for.
const ANSWER_TOKENS_MAX: u32 = 65_536;
/// Tokens of a question, if the user does not say.
pub const QUESTION_TOKENS: u32 = 32;

/// Returns the measured costs of the cloud, or those assumed of a small model on two cores.
#[must_use]
pub fn cloud(known: &Coefficients) -> Measured {
    known.cloud.unwrap_or_else(|| Costs::new(None).current())
}

/// Returns the cloud's cost without network and queue.
#[must_use]
pub fn cloud_cost(cloud: &Measured) -> CloudCost {
    unloaded(cloud)
}

/// Returns the device classes that were measured. The class `all` is all devices together.
#[must_use]
pub fn device_classes(known: &Coefficients) -> Vec<DeviceClass> {
    let class = |class: &String| DeviceClass {
        name: if class == ALL { "all".to_owned() } else { class.clone() },
        cost: known.class(class),
    };
    known.devices.keys().map(class).collect()
}

/// Returns the device class to assume if none is known.
#[must_use]
pub fn assumed_class(known: &Coefficients) -> DeviceClass {
    DeviceClass { name: "assumed".to_owned(), cost: known.class(ALL) }
}

/// Returns the assumed and measured networks, by name. Measured ones replace assumed ones.
#[must_use]
pub fn network_classes(known: &Coefficients) -> Vec<NetworkClass> {
    let assumed = NETWORKS_ASSUMED.iter().map(|&(name, _)| name.to_owned());
    let measured = known.networks.keys().filter(|name| name.as_str() != ALL).cloned();
    let mut names: Vec<String> = assumed.chain(measured).collect();
    names.sort();
    names.dedup();
    let network = |name: String| NetworkClass { rtt_ms: known.network_ms(Some(&name)), name };
    names.into_iter().map(network).collect()
}

/// Returns a scene as the optimizer takes it. Texts are counted as one token for each four bytes.
#[must_use]
pub fn table_scene(id: &str, settings: &SceneSettings, question_tokens: u32) -> TableScene {
    let tokens = |text: &str| u32::try_from(text.len().div_ceil(BYTES_PER_TOKEN)).unwrap_or(u32::MAX);
    let prefix_tokens = tokens(&settings.system);
    let suffix_tokens = tokens(&settings.question_prefix).saturating_add(question_tokens);
    TableScene {
        name: id.to_owned(),
        policy: policy(settings, Wish::default(), ANSWER_TOKENS_MAX),
        fixed_tokens: prefix_tokens.saturating_add(suffix_tokens),
        prefix_tokens,
        draft_tokens: (settings.verify != VerifyPolicy::Off).then_some(K_MAX),
    }
}

/// Returns the word for a verdict in JSON.
#[must_use]
pub const fn verdict_word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Relay => "relay",
        Verdict::NoRefinement => "no_refinement",
        Verdict::DeviceAlone => "device_alone",
        Verdict::CloudAlone => "cloud_alone",
    }
}

/// Explains a plan in words: which bound decides L, and what would have been better from the start.
#[must_use]
pub fn reason(input: &OptimizerInput, plan: &Plan) -> String {
    let (tau, most) = (input.scene.tau_ms, plan.bounds.upper);
    let least = plan.bounds.lower.unwrap_or(0);
    let why = match (plan.verdict, plan.bound_by) {
        (Verdict::CloudAlone, _) => {
            "no L lets the device keep tau: the cloud writes the whole answer".to_owned()
        }
        (_, BoundBy::Tau) => {
            format!("tau: {least} tokens keep every gap within {tau} ms; L has a margin of {ASSIST_MARGIN}")
        }
        (_, BoundBy::CloudOccupancy) => format!(
            "cloud occupancy: {least} tokens keep tau, but the device is ready after {most}, so the margin is cut"
        ),
        (_, BoundBy::CloudDecode) => {
            format!(
                "TPOT_c: {least} tokens would keep tau, but until the device is ready the cloud writes {most}"
            )
        }
        (_, BoundBy::Floor) => format!("the scene's floor of {} tokens", input.scene.assist_floor),
        (_, BoundBy::Load) => "load: the cloud writes fewer tokens, at least the scene's floor".to_owned(),
        (_, BoundBy::Fixed) => "the scene fixes L".to_owned(),
        (_, BoundBy::AnswerLength) => "the answer may not be longer".to_owned(),
        (_, BoundBy::DeviceTooSlow) => {
            "the device: no L keeps tau, since each token takes longer to verify than the time that it covers"
                .to_owned()
        }
        (_, BoundBy::Verdict) => "none: the cloud's tokens are not needed".to_owned(),
    };
    let gaps = match plan.keeps_tau {
        KeepsTau::Yes => String::new(),
        KeepsTau::DecodeTooSlow { decode_ms } => {
            format!("; the device decodes a token in {} ms, over tau", digits(decode_ms))
        }
        KeepsTau::PrefillTooSlow { prefill_ms_per_token } => {
            format!("; one more token costs {} ms of prefill", digits(prefill_ms_per_token))
        }
        KeepsTau::AssistTooShort { gap_ms } => format!("; gaps of {gap_ms:.0} ms"),
    };
    format!("{why}{}{gaps}", advice(plan))
}

/// Says what would be better than the plan, or that the whole prompt is used. Empty for a relay that pays.
fn advice(plan: &Plan) -> String {
    match plan.verdict {
        Verdict::Relay | Verdict::CloudAlone => String::new(),
        Verdict::NoRefinement if plan.ratio < 1.0 => {
            "; refining saves nothing: the whole prompt from the start would be ready no later".to_owned()
        }
        Verdict::NoRefinement => "; the whole prompt, from the start".to_owned(),
        Verdict::DeviceAlone => format!(
            "; better without the cloud: the device alone has its first token after {:.0} ms, the cloud's comes after \
             {:.0} ms",
            plan.predicted.device_alone_ms, plan.predicted.ttft_c_ms
        ),
    }
}

/// Describes the goal of a change.
#[must_use]
pub fn goal_text(goal: Goal) -> String {
    match goal {
        Goal::KeepTau => "every gap would stay within tau".to_owned(),
        Goal::Relay => "the device would keep tau".to_owned(),
        Goal::Refine => "refining would pay".to_owned(),
        Goal::WholeMargin => "L would have its whole margin".to_owned(),
        Goal::FewerTokens { at_most } => format!("L would fall to {at_most} or fewer"),
        Goal::Free => "left to the optimizer".to_owned(),
    }
}

/// Formats a number with at most three significant digits.
#[must_use]
pub fn digits(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let places = (2 - value.abs().log10().floor() as i32).clamp(0, 12);
    let text = format!("{value:.*}", usize::try_from(places).expect("clamped to 0..=12"));
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Returns a plan as JSON.
#[must_use]
pub fn plan_value(plan: &Plan) -> Value {
    json!({
        "verdict": verdict_word(plan.verdict),
        "ratio": plan.ratio,
        "assist_tokens": plan.assist_tokens,
        "assist_bound_by": plan.bound_by.as_str(),
        "assist_tokens_least": plan.bounds.lower,
        "assist_tokens_most": plan.bounds.upper,
        "keeps_tau": plan.keeps_tau == KeepsTau::Yes,
        "predicted": {
            "ttft_c_ms": plan.predicted.ttft_c_ms,
            "ttft_d_ms": plan.predicted.ttft_d_ms,
            "takeover_ms": plan.predicted.takeover_ms,
            "gap_ms": plan.predicted.gap_ms,
            "device_alone_ms": plan.predicted.device_alone_ms,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_are_shown() {
        for (value, want) in
            [(0.0, "0"), (2.5, "2.5"), (1.964, "1.96"), (0.000_1, "0.0001"), (12_345.6, "12346")]
        {
            assert_eq!(digits(value), want);
        }
    }
}
