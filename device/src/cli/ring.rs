//! `baton ring`: running one model over several devices of a home. So far: planning.

mod plan;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(super) struct RingArgs {
    #[command(subcommand)]
    command: RingCommand,
}

#[derive(Debug, Subcommand)]
enum RingCommand {
    /// Who would compute which layers, and what a token would take: from a description of devices alone
    #[command(after_help = plan::HELP)]
    Plan(plan::PlanArgs),
}

pub(super) fn run(args: RingArgs) -> anyhow::Result<()> {
    match args.command {
        RingCommand::Plan(args) => plan::run(&args),
    }
}
