//! `scenes explain`: explains which bound decides L of one request, and which inputs would have to change.

use std::fmt::Write as _;

use anyhow::Context;
use baton_pacing::{
    CloudCost, Explanation, Goal, Knob, OptimizerInput, Plan, TableAxes, TablePlace, explain,
};
use clap::Args;
use serde_json::{Value, json};

use super::figures::Figures;
use crate::learn::coefficients::Coefficients;
use crate::learn::forecast::{digits, goal_text, plan_value, reason};
use crate::scene::Scene;

/// `scenes explain`.
#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// The scene's id
    pub id: String,
    /// Tokens of the whole prompt
    #[arg(long, default_value_t = 4096, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub tokens: u32,
    /// Device class: one that was measured, or one given by --device
    #[arg(long, value_name = "CLASS")]
    pub class: Option<String>,
    /// Network class: one that is known, or one given by --network
    #[arg(long, default_value = "wifi", value_name = "CLASS")]
    pub over: String,
    /// Coefficients to try.
    #[command(flatten)]
    pub figures: Figures,
}

/// The explanation of one request.
#[derive(Debug)]
pub(super) struct Explained {
    scene: Scene,
    device: String,
    network: String,
    tokens: u32,
    input: OptimizerInput,
    explanation: Explanation,
}

/// Explains what the optimizer chooses.
pub(super) fn explained(args: &ExplainArgs, scene: Scene, known: &Coefficients) -> anyhow::Result<Explained> {
    let figures = &args.figures;
    let mut devices = figures.device_classes(known);
    let names = |names: Vec<&str>| names.join("`, `");
    // A class given on the command line is the last one, and the default.
    let device = match &args.class {
        None => devices.len() - 1,
        Some(class) => devices.iter().rposition(|device| &device.name == class).with_context(|| {
            let all = names(devices.iter().map(|device| device.name.as_str()).collect());
            format!("device class `{class}` is not known, `{all}` are; --device {class}=K_D,TPOT_D gives one")
        })?,
    };
    let mut networks = figures.network_classes(known);
    let network = networks.iter().rposition(|network| network.name == args.over).with_context(|| {
        let all = names(networks.iter().map(|network| network.name.as_str()).collect());
        format!(
            "network class `{}` is not known, `{all}` are; --network {}=MS gives one",
            args.over, args.over
        )
    })?;
    let axes = TableAxes {
        scenes: vec![figures.scene(&scene)],
        devices: vec![devices.swap_remove(device)],
        lengths: vec![args.tokens],
        networks: vec![networks.swap_remove(network)],
        cloud: figures.cloud_cost(known),
    };
    let input = axes.input(TablePlace { scene: 0, device: 0, length: 0, network: 0 });
    Ok(Explained {
        scene,
        device: axes.devices[0].name.clone(),
        network: axes.networks[0].name.clone(),
        tokens: args.tokens,
        input,
        explanation: explain(&input).context("ask the optimizer")?,
    })
}

impl Explained {
    pub(super) fn value(&self) -> Value {
        let relaxations = self.explanation.relaxations.iter().map(|relaxation| {
            json!({
                "figure": relaxation.knob.as_str(),
                "unit": relaxation.knob.unit(),
                "from": relaxation.from,
                "to": relaxation.to,
                "plan": plan_value(&relaxation.plan),
            })
        });
        let relaxations: Vec<Value> = relaxations.collect();
        json!({
            "scene": self.scene.id,
            "scene_version": self.scene.version,
            "device_class": self.device,
            "network": self.network,
            "prompt_tokens": self.tokens,
            "plan": plan_value(&self.explanation.plan),
            "reason": reason(&self.input, &self.explanation.plan),
            "goal": self.explanation.goal.map(goal_text),
            "relaxations": relaxations,
        })
    }

    pub(super) fn text(&self) -> String {
        let (input, plan) = (&self.input, &self.explanation.plan);
        let CloudCost { prefill_ms_per_token, decode_ms, rtt_ms, .. } = input.cloud;
        let mut out = format!(
            "{} version {}, {} tokens, device {}, network {}\n",
            self.scene.id, self.scene.version, self.tokens, self.device, self.network
        );
        let mut line = |name: &str, text: String| writeln!(out, "{name:<10} {text}").expect(WRITES);
        line(
            "figures",
            format!(
                "k_d {}, q_d {}, TPOT_d {}; k_c {}, TPOT_c {}; network {} ms; tau {} ms",
                digits(input.device.prefill_ms_per_token),
                digits(input.device.prefill_ms_per_token2),
                digits(input.device.decode_ms),
                digits(prefill_ms_per_token),
                digits(decode_ms),
                digits(rtt_ms),
                input.scene.tau_ms
            ),
        );
        let least = plan.bounds.lower.map_or("none".to_owned(), |least| least.to_string());
        line(
            "plan",
            format!(
                "r {}, L {} (smallest that keeps tau {least}, largest {})",
                digits(plan.ratio),
                plan.assist_tokens,
                plan.bounds.upper
            ),
        );
        let predicted = &plan.predicted;
        line(
            "forecast",
            format!(
                "cloud's first token {:.0} ms, device ready {:.0} ms, takes over {:.0} ms, gaps {:.0} ms; device alone {:.0} ms",
                predicted.ttft_c_ms,
                predicted.ttft_d_ms,
                predicted.takeover_ms,
                predicted.gap_ms,
                predicted.device_alone_ms
            ),
        );
        line("bound", reason(input, plan));
        out.push_str(&self.relaxed());
        out
    }

    fn relaxed(&self) -> String {
        let Some(aim) = self.explanation.goal else { return String::new() };
        let relaxations = &self.explanation.relaxations;
        if relaxations.is_empty() {
            return format!("{}: no single input does that within a factor of 16\n", goal_text(aim));
        }
        let mut out =
            format!("{}{}\n", goal_text(aim), if aim == Goal::Free { ":" } else { " with any one of" });
        for relaxation in relaxations {
            let unit = relaxation.knob.unit();
            let to = match (relaxation.to, relaxation.knob) {
                (Some(to), _) => digits(to),
                (None, Knob::Load) => "none".to_owned(),
                (None, _) => "auto".to_owned(),
            };
            let from = digits(relaxation.from);
            let Plan { ratio, assist_tokens, .. } = relaxation.plan;
            writeln!(
                out,
                "  {:<8} {from:>9} -> {to:<9} {unit:<11} then r {}, L {assist_tokens}",
                relaxation.knob.as_str(),
                digits(ratio)
            )
            .expect(WRITES);
        }
        out
    }
}

const WRITES: &str = "writing to a String cannot fail";
