//! The command line of `baton-cloud`.

mod calibrate;
mod scenes;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;

use anyhow::Context;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;

use crate::config::{Config, ServeOptions, file};
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
    #[command(args_override_self = true)]
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
    #[arg(long, alias = "log", value_enum, default_value_t = LogForm::Text)]
    pub log_format: LogForm,
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
pub async fn run(line: Vec<OsString>) -> anyhow::Result<()> {
    match parse(&line)?.command {
        Command::Serve(command) => {
            start_log(command.log_format)?;
            let config = command.options.check().context("check the settings")?;
            serve(config, command.json, move || settings_again(&line)).await
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

/// The command line, with the settings file's words in it where one is named.
///
/// Ends the program where clap has something to say: help, a version, or what is wrong with a word.
fn parse(line: &[OsString]) -> anyhow::Result<Cli> {
    let cli = Cli::try_parse_from(line).unwrap_or_else(|err| err.exit());
    let Command::Serve(command) = &cli.command else { return Ok(cli) };
    let Some(path) = &command.options.config else { return Ok(cli) };
    let whole = with_file(line, path)?;
    Ok(Cli::try_parse_from(whole).unwrap_or_else(|err| err.exit()))
}

fn with_file(line: &[OsString], path: &Path) -> anyhow::Result<Vec<OsString>> {
    let program = Cli::command();
    let serve = program.find_subcommand("serve").context("find the command `serve`")?;
    let in_environment = |name: &str| {
        let option = serve.get_arguments().find(|option| option.get_long() == Some(name));
        option.and_then(|option| option.get_env()).is_some_and(|name| std::env::var_os(name).is_some())
    };
    let words = file::words(path, in_environment).context("read the settings file")?;
    Ok(file::with_words(line, "serve", words))
}

/// The settings as they are now; what is wrong with them is an error, not the end of the program.
fn settings_again(line: &[OsString]) -> anyhow::Result<Config> {
    let plain = |err: clap::Error| anyhow::anyhow!("{}", err.to_string().lines().next().unwrap_or_default());
    let mut cli = Cli::try_parse_from(line).map_err(plain)?;
    if let Command::Serve(command) = &cli.command
        && let Some(path) = &command.options.config
    {
        cli = Cli::try_parse_from(with_file(line, path)?).map_err(plain)?;
    }
    let Command::Serve(command) = cli.command else { anyhow::bail!("the command is not `serve`") };
    command.options.check().context("check the settings")
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
