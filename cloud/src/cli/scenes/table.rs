//! `scenes table`: prints r and L for every scene, device class, prompt length and network class.

use std::fmt::Write as _;

use anyhow::Context;
use baton_pacing::{BoundBy, KeepsTau, Plan, TableAxes, TablePlace, Verdict, table::LENGTHS};
use clap::Args;
use serde_json::{Value, json};

use super::figures::Figures;
use crate::learn::coefficients::Coefficients;
use crate::learn::forecast::{digits, plan_value};
use crate::scene::Scene;

/// `scenes table`.
#[derive(Debug, Clone, Args)]
pub struct TableArgs {
    /// Only these scenes
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// Tokens of whole prompts, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub lengths: Vec<u32>,
    /// Coefficients to try.
    #[command(flatten)]
    pub figures: Figures,
}

/// The computed table.
#[derive(Debug)]
pub(super) struct Table {
    axes: TableAxes,
    plans: Vec<(TablePlace, Plan)>,
}

/// Computes the table for `scenes`.
pub(super) fn table(args: &TableArgs, scenes: &[Scene], known: &Coefficients) -> anyhow::Result<Table> {
    let figures = &args.figures;
    let axes = TableAxes {
        scenes: scenes.iter().map(|scene| figures.scene(scene)).collect(),
        devices: figures.device_classes(known),
        lengths: if args.lengths.is_empty() { LENGTHS.to_vec() } else { args.lengths.clone() },
        networks: figures.network_classes(known),
        cloud: figures.cloud_cost(known),
    };
    let plans = axes.plans().context("compute the table")?;
    let plans = axes.places().zip(plans).collect();
    Ok(Table { axes, plans })
}

impl Table {
    pub(super) fn value(&self) -> Value {
        let axes = &self.axes;
        let cell = |(place, plan): &(TablePlace, Plan)| {
            let mut cell = plan_value(plan);
            cell["scene"] = json!(axes.scenes[place.scene].name);
            cell["device_class"] = json!(axes.devices[place.device].name);
            cell["prompt_tokens"] = json!(axes.lengths[place.length]);
            cell["network"] = json!(axes.networks[place.network].name);
            cell
        };
        self.plans.iter().map(cell).collect()
    }

    /// Formats one block for each scene and device, with a row for each network and a column for each length.
    pub(super) fn text(&self) -> String {
        let (axes, columns) = (&self.axes, self.axes.lengths.len());
        let mut out = String::new();
        for row in self.plans.chunks(columns) {
            let place = row[0].0;
            let (scene, device) = (&axes.scenes[place.scene], &axes.devices[place.device]);
            let line = if place.network == 0 {
                let cost = &device.cost;
                let mut head = format!(
                    "{} on {}: k_d {} ms, q_d {} ms, TPOT_d {} ms, tau {} ms\n{:<12}",
                    scene.name,
                    device.name,
                    digits(cost.prefill_ms_per_token),
                    digits(cost.prefill_ms_per_token2),
                    digits(cost.decode_ms),
                    scene.policy.tau_ms,
                    "tokens"
                );
                for tokens in &axes.lengths {
                    write!(head, " {tokens:>11}").expect(WRITES);
                }
                if out.is_empty() { head } else { format!("\n{head}") }
            } else {
                String::new()
            };
            if !line.is_empty() {
                writeln!(out, "{line}").expect(WRITES);
            }
            write!(out, "{:<12}", axes.networks[place.network].name).expect(WRITES);
            for (_, plan) in row {
                write!(out, " {:>11}", cell(plan)).expect(WRITES);
            }
            out.push('\n');
        }
        out.push_str(
            "\nr and L, bound by: t tau, o cloud occupancy, c TPOT_c, f floor, x fixed, l longest answer, d device too slow;\n\
             ! gaps over tau; w refining saves nothing; a the device alone is no later than the cloud; cloud = the cloud\n\
             writes everything\n",
        );
        out
    }
}

const WRITES: &str = "writing to a String cannot fail";

fn cell(plan: &Plan) -> String {
    let bound = match plan.bound_by {
        BoundBy::Tau => "t",
        BoundBy::CloudOccupancy => "o",
        BoundBy::CloudDecode => "c",
        BoundBy::Floor => "f",
        BoundBy::Load => "q",
        BoundBy::Fixed => "x",
        BoundBy::AnswerLength => "l",
        BoundBy::DeviceTooSlow => "d",
        BoundBy::Verdict => "",
    };
    let over = if plan.keeps_tau == KeepsTau::Yes { "" } else { "!" };
    let better = match plan.verdict {
        Verdict::CloudAlone => return "cloud".to_owned(),
        Verdict::DeviceAlone => "a",
        Verdict::NoRefinement => "w",
        Verdict::Relay => "",
    };
    format!("{:.2} {}{bound}{over}{better}", plan.ratio, plan.assist_tokens)
}
