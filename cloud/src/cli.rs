//! The command line of `baton-cloud`.

mod calibrate;
mod scenes;

use std::io::IsTerminal;

use anyhow::Context;
use clap::{Args, Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;

use crate::config::ServeOptions;
use crate::serve::serve;

pub use self::calibrate::CalibrateCommand;
pub use self::scenes::{SceneCommand, SceneSet};

/// The cloud half of Baton: prefills with the full model, says which sentences matter, writes the first tokens.
#[derive(Debug, Parser)]
#[command(name = "baton-cloud", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the program does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the assist protocol and the OpenAI chat API
    Serve(Box<ServeCommand>),
    /// Read and change what scenes allow: r, xi, L, tau, corrector
    Scenes(scenes::ScenesCommand),
    /// Find the heads of a model by which its sentences are ranked best
    Calibrate(CalibrateCommand),
}

/// `serve`.
#[derive(Debug, Args)]
pub struct ServeCommand {
    /// The settings.
    #[command(flatten)]
    pub options: ServeOptions,
    /// Print the bound address as one line of JSON
    #[arg(long)]
    pub json: bool,
    /// Form of the log on standard error
    #[arg(long, value_enum, default_value_t = LogForm::Text)]
    pub log: LogForm,
}

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogForm {
    /// One object a line.
    Json,
    /// For people.
    Text,
}

/// Runs one command to its end.
///
/// # Errors
/// Whatever a person must know, with its whole chain of causes.
pub async fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Serve(command) => {
            start_log(command.log)?;
            let config = command.options.check().context("check the settings")?;
            serve(config, command.json).await
        }
        Command::Scenes(command) => {
            start_log(LogForm::Text)?;
            scenes::run(command, &mut std::io::stdout().lock()).await
        }
        Command::Calibrate(command) => {
            start_log(LogForm::Text)?;
            calibrate::run(command).await
        }
    }
}

/// Logs go to standard error, by default from `info` on; `RUST_LOG` says otherwise.
fn start_log(form: LogForm) -> anyhow::Result<()> {
    let default = "info";
    let filter = EnvFilter::try_from_default_env().or_else(|_| EnvFilter::try_new(default));
    let filter = filter.context("read RUST_LOG")?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let started = match form {
        LogForm::Json => log.json().try_init(),
        LogForm::Text => log.try_init(),
    };
    started.map_err(|err| anyhow::anyhow!("start the log: {err}"))
}
