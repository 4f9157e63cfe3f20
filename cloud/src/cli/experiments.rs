//! `experiments list|show|create|start|stop|promote`: manages experiments by the console's operations.

use std::io::Write;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::json;

use super::columns::{self, Side};
use super::{DatabaseArgs, moment};
use crate::access::Actor;
use crate::admin::operations::AdminService;
use crate::admin::view::{ExperimentPage, ExperimentView};
use crate::config::numbers;
use crate::experiment::metric::{Metric, Scale};
use crate::experiment::plan::{Arm, Guard, Plan};
use crate::experiment::report::MetricReport;
use crate::experiment::text;
use crate::store::{Expected, Store};

/// `experiments`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    baton-cloud experiments create shorter --scene doc-qa --arm \"control 1\" --arm \"short 1 assist_tokens=8\" \\\n      \
    --guard \"ttft_ms 0.1\" --guard \"failures 0.02\"\n  \
    baton-cloud experiments start shorter\n  \
    baton-cloud experiments show shorter                     compares the arms; look whenever you like\n  \
    baton-cloud experiments promote shorter --arm short\n\n\
    Metrics: ttft_ms, shown_ttft_ms, gap_ms, slot_ms, agreement, rating, failures.")]
pub struct ExperimentsCommand {
    /// What to do.
    #[command(subcommand)]
    pub command: ExperimentCommand,
    /// The database.
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// The commands of `experiments`.
#[derive(Debug, Subcommand)]
pub enum ExperimentCommand {
    /// List every experiment, the newest first
    List,
    /// Compare the arms of an experiment
    Show {
        /// The experiment's id
        id: String,
    },
    /// Write the draft of an experiment, in place of an earlier draft
    Create(ExperimentPlan),
    /// Start a draft: requests of its scene take part within 5 s, and its plan cannot change any more
    Start(Starting),
    /// Stop a running experiment: its scene is as before
    Stop(Ending),
    /// Publish the settings of an arm as a new version of the scene, and end the experiment
    Promote {
        /// The experiment.
        #[command(flatten)]
        ending: Ending,
        /// The arm
        #[arg(long)]
        arm: String,
    },
}

/// The plan of an experiment.
#[derive(Debug, Clone, Args)]
pub struct ExperimentPlan {
    /// The experiment's id
    pub id: String,
    /// The scene whose requests take part
    #[arg(long)]
    pub scene: String,
    /// Metric that decides which arm wins
    #[arg(long, default_value = "ttft_ms", value_name = "METRIC")]
    pub goal: Metric,
    /// An arm: its name, its weight, and settings in place of the scene's (ratio, assist_tokens, mode, model,
    /// adapter). Once for each arm, the control first
    #[arg(long = "arm", required = true, value_name = "NAME WEIGHT [SETTING=VALUE ...]", value_parser = text::arm)]
    pub arms: Vec<Arm>,
    /// A guard rail: an arm that is shown to be worse than this is stopped. A share for times (0.1: 10 %
    /// more), a difference for shares (0.02: 2 points)
    #[arg(long = "guard", value_name = "METRIC WORST", value_parser = text::guard)]
    pub guards: Vec<Guard>,
}

/// An experiment, and the revision that the change is based on.
#[derive(Debug, Clone, Args)]
pub struct Starting {
    /// The experiment's id
    pub id: String,
    /// Fail if the experiment is not at this revision (`experiments list` shows it)
    #[arg(long, value_name = "REVISION", value_parser = numbers::whole::<u64>, allow_negative_numbers = true)]
    pub if_revision: Option<u64>,
}

/// An experiment that ends, the revision that the change is based on, and a note.
#[derive(Debug, Clone, Args)]
pub struct Ending {
    /// The experiment.
    #[command(flatten)]
    pub experiment: Starting,
    /// Note for the audit log
    #[arg(long, default_value = "")]
    pub note: String,
}

impl Starting {
    fn expected(&self) -> Expected {
        self.if_revision.map_or(Expected::Any, Expected::Revision)
    }
}

enum Output {
    All(Vec<ExperimentView>),
    One(Box<ExperimentPage>),
}

pub(super) async fn run(command: ExperimentsCommand, out: &mut impl Write) -> anyhow::Result<()> {
    let shown = command.database.with_store(async |store| perform(store, command.command).await).await?;
    if command.database.json {
        let value = match &shown {
            Output::All(experiments) => json!(experiments),
            Output::One(experiment) => json!(experiment),
        };
        return writeln!(out, "{value}").context("print");
    }
    match &shown {
        Output::All(experiments) => print_list(experiments, out),
        Output::One(experiment) => print_one(experiment, out),
    }
    .context("print")
}

async fn perform(store: &Store, command: ExperimentCommand) -> anyhow::Result<Output> {
    let (operations, by) = (AdminService::new(store.clone(), None), Actor::cli());
    let changed = match command {
        ExperimentCommand::List => return Ok(Output::All(operations.experiments().await?)),
        ExperimentCommand::Show { id } => {
            return Ok(Output::One(Box::new(operations.experiment(&id).await?)));
        }
        ExperimentCommand::Create(ExperimentPlan { id, scene, goal, arms, guards }) => {
            let plan = Plan { scene, goal, arms, guards };
            operations.save_experiment(&by, &id, &plan, Expected::Any).await?
        }
        ExperimentCommand::Start(args) => operations.start_experiment(&by, &args.id, args.expected()).await?,
        ExperimentCommand::Stop(Ending { experiment: args, note }) => {
            operations.stop_experiment(&by, &args.id, &note, args.expected()).await?
        }
        ExperimentCommand::Promote { ending: Ending { experiment: args, note }, arm } => {
            operations.promote_experiment(&by, &args.id, &arm, &note, args.expected()).await?
        }
    };
    Ok(Output::All(vec![changed]))
}

fn print_list(experiments: &[ExperimentView], out: &mut impl Write) -> std::io::Result<()> {
    let columns = [
        ("experiment", Side::Left),
        ("revision", Side::Right),
        ("scene", Side::Left),
        ("state", Side::Left),
        ("goal", Side::Left),
        ("changed", Side::Left),
        ("arms", Side::Left),
    ];
    let cells = |view: &ExperimentView| {
        let arms: Vec<String> = view.plan.arms.iter().map(text::arm_text).collect();
        [
            view.id.clone(),
            view.revision.to_string(),
            view.plan.scene.clone(),
            view.state.as_str().to_owned(),
            view.plan.goal.as_str().to_owned(),
            moment(view.updated_ms),
            arms.join("; "),
        ]
    };
    columns::write(columns, experiments.iter().map(cells), out)
}

fn print_one(shown: &ExperimentPage, out: &mut impl Write) -> std::io::Result<()> {
    let ExperimentPage { experiment, report } = shown;
    print_list(std::slice::from_ref(experiment), out)?;
    let columns = [
        ("arm", Side::Left),
        ("metric", Side::Left),
        ("answers", Side::Right),
        ("mean", Side::Right),
        ("change", Side::Right),
        ("from", Side::Right),
        ("to", Side::Right),
        ("shown", Side::Left),
    ];
    let rows = report.arms.iter().flat_map(|arm| {
        let rows = arm.metrics.iter().filter(|row| row.answers > 0);
        rows.map(|row| cells(&arm.name, row))
    });
    columns::write(columns, rows, out)?;
    for arm in &report.arms {
        if let Some(reason) = &arm.stopped {
            writeln!(out, "{} is stopped: {reason}", arm.name)?;
        }
    }
    writeln!(out, "{}", report.sample_ratio.text())?;
    writeln!(out, "{}", report.verdict)
}

fn cells(arm: &str, row: &MetricReport) -> [String; 8] {
    let is_time = row.metric.scale() == Scale::Time;
    let unit = if is_time { "%" } else { "pt" };
    let change =
        |value: Option<f64>| value.map_or(String::new(), |value| format!("{:+.1} {unit}", value * 100.0));
    let mean =
        row.mean.map(|mean| if is_time { format!("{mean:.1}") } else { format!("{:.1} %", mean * 100.0) });
    [
        arm.to_owned(),
        row.metric.as_str().to_owned(),
        row.answers.to_string(),
        mean.unwrap_or_default(),
        change(row.change),
        change(row.low),
        change(row.high),
        row.finding.as_str().to_owned(),
    ]
}
