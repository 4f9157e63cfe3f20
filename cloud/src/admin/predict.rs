//! Predicts how this service would plan requests of a scene: plan, reason, curves, and the table over all
//! classes.
//!
//! Pure: a few milliseconds of arithmetic. Never: computes numbers of its own; all come from `baton_pacing`
//! through [`crate::learn::forecast`], as those of the command line. Always: the chosen point lies on the
//! curves that are drawn.

mod charts;
mod quality;

use baton_pacing::verify::{Acceptance, PassCosts, checks_ms};
use baton_pacing::{
    DeviceClass, KeepsTau, NetworkClass, OptimizerInput, Plan, TableAxes, TablePlace, explain, relay,
    table::LENGTHS,
};
use baton_refine::QualityCurves;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use self::quality::{QualityPoint, QualityView};
use super::problem::{Kind, Problem};
use crate::learn::coefficients::Coefficients;
use crate::learn::forecast;
use crate::scene::SceneSettings;

/// Tokens of the prompt, if nobody says.
pub const PROMPT_TOKENS: u32 = 4096;
/// The network, if nobody says.
pub const NETWORK: &str = "wifi";
/// Longest prompt that is predicted.
const PROMPT_TOKENS_MAX: u32 = 10_000_000;
/// Points of a curve over L.
const ASSIST_POINTS: u32 = 64;
/// Tokens of the answer whose time in slots is drawn.
const ANSWER_TOKENS: u32 = 256;
/// The most device classes whose curves are drawn; the table has all.
const CURVES_MAX: usize = 3;

/// Device, network and prompt of a prediction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PredictFor {
    /// Class of the device; null for the first one that is known.
    #[serde(default)]
    pub device_class: Option<String>,
    /// Class of the network; null for `wifi`.
    #[serde(default)]
    pub network: Option<String>,
    /// Tokens of the whole prompt, 1 to 10,000,000; null for 4,096.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 10_000_000)]
    pub prompt_tokens: Option<u32>,
}

/// A prediction of what the optimizer would choose.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Prediction {
    /// The scene.
    pub scene: String,
    /// Class of the device.
    pub device_class: String,
    /// Class of the network.
    pub network: String,
    /// Tokens of the whole prompt.
    pub prompt_tokens: u32,
    /// The inputs of the optimizer.
    pub figures: Figures,
    /// The plan.
    pub plan: PlanView,
    /// Which bound decides L, in words.
    pub reason: String,
    /// What a change would improve; null if nothing can be improved.
    pub goal: Option<String>,
    /// Every input that reaches the goal if it alone is changed.
    pub relaxations: Vec<RelaxationView>,
    /// TTFT_d in milliseconds over r. The requested class comes first.
    pub ttft_d_over_ratio: Vec<Curve>,
    /// The allowed range of r; null if refining saves nothing.
    pub ratio_feasible: Option<Interval>,
    /// The gap in milliseconds over L at the chosen r. The requested class comes first.
    pub gap_over_assist: Vec<Curve>,
    /// The allowed range of L; null if no L keeps tau.
    pub assist_feasible: Option<Interval>,
    /// Time in the cloud's slots over L, if the scene verifies answers.
    pub slot_over_assist: Option<SlotCurves>,
    /// The plan for every class and length of prompt over this network.
    pub table: Vec<Cell>,
    /// Scores over r, if there is an evaluation of this mode. The metric with the most questions comes first.
    /// In it the curve over all questions comes first, then those that lose most at the chosen r.
    pub quality: Vec<QualityView>,
}

/// Inputs of the optimizer, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct Figures {
    /// k_d, for each prompt token on the device.
    pub prefill_ms_per_token: f64,
    /// q_d, for each squared prompt token on the device.
    pub prefill_ms_per_token2: f64,
    /// TPOT_d, for each token that the device writes.
    pub decode_ms: f64,
    /// k_c, for each prompt token in the cloud.
    pub cloud_prefill_ms_per_token: f64,
    /// TPOT_c, for each token that the cloud writes.
    pub cloud_decode_ms: f64,
    /// The round trip of the network.
    pub network_ms: f64,
    /// tau, the largest tolerable gap.
    pub tau_ms: f64,
}

/// A plan, as `baton-cloud scenes explain --json` prints it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct PlanView {
    /// What would be best from the start: `relay`, `no_refinement`, `device_alone` or `cloud_alone`. A device
    /// that asks gets this r and L in any case.
    pub verdict: String,
    /// r.
    pub ratio: f64,
    /// L.
    pub assist_tokens: u32,
    /// The bound that decided L.
    pub assist_bound_by: String,
    /// The smallest L that keeps tau; null if none does.
    pub assist_tokens_least: Option<u32>,
    /// The largest L that the cloud can write until the device is ready.
    pub assist_tokens_most: u32,
    /// Whether every gap stays within tau.
    pub keeps_tau: bool,
    /// The predicted times.
    pub predicted: PredictedView,
}

/// Predicted times, in milliseconds since the request was sent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct PredictedView {
    /// When the cloud's first token arrives.
    pub ttft_c_ms: f64,
    /// When the device has its own KV cache.
    pub ttft_d_ms: f64,
    /// When the device has its own first token.
    pub takeover_ms: f64,
    /// The gap between shown tokens until then.
    pub gap_ms: f64,
    /// When the device alone would have its first token, on the whole prompt.
    pub device_alone_ms: f64,
}

/// A change of one input, and the plan with it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RelaxationView {
    /// The name of the input.
    pub figure: String,
    /// Its unit.
    pub unit: String,
    /// Its value now.
    pub from: f64,
    /// The nearest value that reaches the goal; null to leave it to the optimizer.
    pub to: Option<f64>,
    /// The plan with that value.
    pub plan: PlanView,
}

/// A curve of one device class.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Curve {
    /// The class.
    pub device_class: String,
    /// Points, by rising x.
    pub points: Vec<Point>,
}

/// Time in the cloud's slots for the tokens of an answer, without its prompt. A forecast.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct SlotCurves {
    /// Tokens of the answer.
    pub answer_tokens: u32,
    /// The share of drafted tokens that the cloud would have written too: assumed, not measured.
    pub acceptance: f64,
    /// If the device writes on alone behind L.
    pub released: Vec<Point>,
    /// If the cloud checks what the device writes behind L.
    pub verified: Vec<Point>,
    /// If the cloud writes the whole answer, in milliseconds.
    pub whole_ms: f64,
}

/// A point of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct Point {
    /// r or L.
    pub x: f64,
    /// Milliseconds.
    pub y: f64,
}

/// A range.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct Interval {
    /// The least.
    pub from: f64,
    /// The largest.
    pub to: f64,
}

/// One cell of the table.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Cell {
    /// Class of the device.
    pub device_class: String,
    /// Tokens of the whole prompt.
    pub prompt_tokens: u32,
    /// The plan.
    pub plan: PlanView,
}

impl From<&Plan> for PlanView {
    fn from(plan: &Plan) -> PlanView {
        let predicted = &plan.predicted;
        PlanView {
            verdict: forecast::verdict_word(plan.verdict).to_owned(),
            ratio: plan.ratio,
            assist_tokens: plan.assist_tokens,
            assist_bound_by: plan.bound_by.as_str().to_owned(),
            assist_tokens_least: plan.bounds.lower,
            assist_tokens_most: plan.bounds.upper,
            keeps_tau: plan.keeps_tau == KeepsTau::Yes,
            predicted: PredictedView {
                ttft_c_ms: predicted.ttft_c_ms,
                ttft_d_ms: predicted.ttft_d_ms,
                takeover_ms: predicted.takeover_ms,
                gap_ms: predicted.gap_ms,
                device_alone_ms: predicted.device_alone_ms,
            },
        }
    }
}

/// Returns the classes of devices and networks that can be requested.
#[must_use]
pub fn classes(known: &Coefficients) -> (Vec<DeviceClass>, Vec<NetworkClass>) {
    let mut devices = forecast::device_classes(known);
    if devices.is_empty() {
        devices.push(forecast::assumed_class(known));
    }
    (devices, forecast::network_classes(known))
}

/// Predicts for these settings.
///
/// # Errors
/// A [`Problem`] that names the class, network or length that is not valid.
pub fn predict(
    id: &str,
    settings: &SceneSettings,
    known: &Coefficients,
    asked: &PredictFor,
    quality: Option<&QualityCurves>,
) -> Result<Prediction, Problem> {
    let (mut devices, networks) = classes(known);
    if let Some(class) = &asked.device_class {
        let found = devices.iter().position(|device| &device.name == class);
        let found = found.ok_or_else(|| unknown("device_class", class))?;
        devices[..=found].rotate_right(1);
    }
    let network = asked.network.as_deref().unwrap_or(NETWORK);
    let network = networks
        .into_iter()
        .find(|known| known.name == network)
        .ok_or_else(|| unknown("network", network))?;
    let prompt_tokens = asked.prompt_tokens.unwrap_or(PROMPT_TOKENS);
    if !(1..=PROMPT_TOKENS_MAX).contains(&prompt_tokens) {
        let detail = format!("field `prompt_tokens` is {prompt_tokens}, must be 1 to {PROMPT_TOKENS_MAX}");
        return Err(Problem::field("prompt_tokens", &detail));
    }
    let mut lengths = LENGTHS.to_vec();
    lengths.push(prompt_tokens);
    lengths.sort_unstable();
    lengths.dedup();
    let axes = TableAxes {
        scenes: vec![forecast::table_scene(id, settings, forecast::QUESTION_TOKENS)],
        devices,
        lengths,
        networks: vec![network],
        cloud: forecast::cloud_cost(&forecast::cloud(known)),
    };
    let scores = |plan: &Plan| quality.map(|curves| quality::scores(curves, settings, plan));
    computed(id, &axes, prompt_tokens, |plan| scores(plan).unwrap_or_default())
}

fn unknown(field: &str, name: &str) -> Problem {
    let name: String = name.chars().take(64).collect();
    Problem::field(field, &format!("field `{field}` is `{name}`, which is not known"))
}

fn computed(
    id: &str,
    axes: &TableAxes,
    prompt_tokens: u32,
    quality: impl Fn(&Plan) -> Vec<QualityView>,
) -> Result<Prediction, Problem> {
    let failed = |err: baton_pacing::InputError| Problem::new(Kind::Invalid, err.to_string());
    let length = axes.lengths.iter().position(|&tokens| tokens == prompt_tokens).expect("it was put in");
    let inputs: Vec<OptimizerInput> = (0..axes.devices.len())
        .map(|device| axes.input(TablePlace { scene: 0, device, length, network: 0 }))
        .collect();
    let input = &inputs[0];
    let explanation = explain(input).map_err(failed)?;
    let plan = explanation.plan;
    let mut table = Vec::new();
    for place in axes.places() {
        let plan = relay(&axes.input(place)).map_err(failed)?;
        table.push(Cell {
            device_class: axes.devices[place.device].name.clone(),
            prompt_tokens: axes.lengths[place.length],
            plan: PlanView::from(&plan),
        });
    }
    let relaxations = explanation.relaxations.iter().map(|relaxation| RelaxationView {
        figure: relaxation.knob.as_str().to_owned(),
        unit: relaxation.knob.unit().to_owned(),
        from: relaxation.from,
        to: relaxation.to,
        plan: PlanView::from(&relaxation.plan),
    });
    let drawn = || axes.devices.iter().zip(&inputs).take(CURVES_MAX);
    let curve = |class: &DeviceClass, points: Vec<Point>| Curve { device_class: class.name.clone(), points };
    let assist = assist_points(&plan);
    Ok(Prediction {
        scene: id.to_owned(),
        device_class: axes.devices[0].name.clone(),
        network: axes.networks[0].name.clone(),
        prompt_tokens,
        figures: figures(input),
        plan: PlanView::from(&plan),
        reason: forecast::reason(input, &plan),
        goal: explanation.goal.map(forecast::goal_text),
        relaxations: relaxations.collect(),
        ttft_d_over_ratio: drawn()
            .map(|(class, input)| curve(class, over_ratio(input, plan.ratio)))
            .collect(),
        ratio_feasible: input.ratio_interval().map(|ratio| Interval { from: ratio.least, to: ratio.most }),
        gap_over_assist: drawn()
            .map(|(class, input)| curve(class, over_assist(input, plan.ratio, &assist)))
            .collect(),
        assist_feasible: assist_feasible(input, &plan),
        slot_over_assist: axes.scenes[0].draft_tokens.map(|drafted| slot_curves(input, &plan, drafted)),
        table,
        quality: quality(&plan),
    })
}

fn figures(input: &OptimizerInput) -> Figures {
    Figures {
        prefill_ms_per_token: input.device.prefill_ms_per_token,
        prefill_ms_per_token2: input.device.prefill_ms_per_token2,
        decode_ms: input.device.decode_ms,
        cloud_prefill_ms_per_token: input.cloud.prefill_ms_per_token,
        cloud_decode_ms: input.cloud.decode_ms,
        network_ms: input.cloud.rtt_ms,
        tau_ms: input.scene.tau_ms,
    }
}

/// Returns TTFT_d at steps of r below 1, and at the chosen r. The curve ends below 1, because there the whole
/// prompt starts at t = 0.
fn over_ratio(input: &OptimizerInput, chosen: f64) -> Vec<Point> {
    let mut ratios: Vec<f64> = (1..=39).map(|step| f64::from(step) * 0.025).chain([0.99]).collect();
    ratios.push(chosen);
    ratios.sort_by(f64::total_cmp);
    ratios.dedup_by(|a, b| (*a - *b).abs() < 1e-9);
    ratios.into_iter().map(|x| Point { x, y: input.ttft_d_ms(x) }).collect()
}

/// Returns the values of L that the chart shows: from 1 to well over the chosen L, which is one of them.
fn assist_points(plan: &Plan) -> Vec<u32> {
    let least = plan.bounds.lower.unwrap_or(0);
    let most = plan.assist_tokens.saturating_mul(3).max(least.saturating_mul(2)).clamp(16, 65_536);
    let step = most.div_ceil(ASSIST_POINTS).max(1);
    let mut points: Vec<u32> = (0..=most / step).map(|index| (index * step).max(1)).collect();
    points.extend([plan.assist_tokens.min(most), least.clamp(1, most)]);
    points.sort_unstable();
    points.dedup();
    points
}

fn over_assist(input: &OptimizerInput, ratio: f64, tokens: &[u32]) -> Vec<Point> {
    tokens.iter().map(|&tokens| Point { x: f64::from(tokens), y: input.gap_at_ms(ratio, tokens) }).collect()
}

/// Returns the time in the cloud's slots over L up to a whole answer. The chosen L is one of the points.
fn slot_curves(input: &OptimizerInput, plan: &Plan, drafted: usize) -> SlotCurves {
    let answer = ANSWER_TOKENS.max(plan.assist_tokens);
    let step = answer.div_ceil(ASSIST_POINTS).max(1);
    let mut lengths: Vec<u32> = (0..=answer / step).map(|index| (index * step).max(1)).collect();
    lengths.extend([plan.assist_tokens.max(1), answer]);
    lengths.sort_unstable();
    lengths.dedup();
    let cloud = &input.cloud;
    let costs = PassCosts { pass_ms: cloud.decode_ms, row_ms: cloud.prefill_ms_per_token };
    let acceptance = Acceptance::default().share();
    let released = |tokens: u32| f64::from(tokens) * cloud.decode_ms;
    let verified =
        |tokens: u32| released(tokens) + checks_ms(f64::from(answer - tokens), acceptance, costs, drafted);
    let curve = |slot_ms: &dyn Fn(u32) -> f64| {
        lengths.iter().map(|&tokens| Point { x: f64::from(tokens), y: slot_ms(tokens) }).collect()
    };
    SlotCurves {
        answer_tokens: answer,
        acceptance,
        released: curve(&released),
        verified: curve(&verified),
        whole_ms: released(answer),
    }
}

/// Returns the range of L: from the smallest that keeps tau (at least the floor) to the largest that the
/// cloud can write in time.
fn assist_feasible(input: &OptimizerInput, plan: &Plan) -> Option<Interval> {
    let least = plan.bounds.lower?.max(input.scene.assist_floor);
    let most = plan.bounds.upper.min(input.scene.answer_tokens_max);
    (least <= most).then(|| Interval { from: f64::from(least), to: f64::from(most) })
}

#[cfg(test)]
mod tests;
