//! The command line of `baton-cloud`.

mod audit;
mod bootstrap;
mod calibrate;
mod columns;
mod experiments;
mod history;
mod keys;
mod models;
mod registry;
mod rollouts;
mod scenes;
mod tenants;
mod usage;
mod users;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;

use anyhow::Context;
use clap::{Arg, ArgAction, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;

use crate::config::file::{FileError, Taken};
use crate::config::{Config, ConfigError, ServeOptions, file};
use crate::serve::serve;
use crate::store::{Database, Store};

pub use self::audit::{AuditAction, AuditCommand};
pub use self::bootstrap::{BootstrapCommand, PasswordArgs};
pub use self::calibrate::CalibrateCommand;
pub use self::experiments::{Ending, ExperimentCommand, ExperimentPlan, ExperimentsCommand, Starting};
pub use self::history::HistoryCommand;
pub use self::keys::{KeyCommand, KeysCommand};
pub use self::models::{ImportCommand, ModelsAction, ModelsCommand};
pub use self::registry::{KindArg, PublishArgs, ReadArgs, RegistryAction, RegistryCommand};
pub use self::rollouts::{RolloutAction, RolloutsCommand};
pub use self::scenes::{SceneCommand, SceneSet};
pub use self::tenants::{TenantCommand, TenantSet, TenantsCommand};
pub use self::usage::UsageCommand;
pub use self::users::{UserCommand, UsersCommand};

/// The cloud half of Baton: prefills with the full model, chooses which sentences matter, writes the first
/// tokens.
#[derive(Debug, Parser)]
#[command(name = "baton-cloud", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the assist protocol and the OpenAI chat API
    #[command(args_override_self = true)]
    Serve(Box<ServeCommand>),
    /// Read and change scenes: the settings r, xi, L, tau, corrector and others
    Scenes(scenes::ScenesCommand),
    /// Compare settings of a scene on devices: write, start, show, stop and promote experiments
    Experiments(experiments::ExperimentsCommand),
    /// Make the first admin of the console; fails if there is one
    Bootstrap(bootstrap::BootstrapCommand),
    /// Make, list, rotate and revoke API keys
    Keys(keys::KeysCommand),
    /// List tenants and set their weights and limits
    Tenants(tenants::TenantsCommand),
    /// Keep models for devices by version: make a key, publish, list, verify
    Registry(RegistryCommand),
    /// Say which models the devices of a class have: set, start a rollout, pause it, roll it back
    Rollouts(RolloutsCommand),
    /// List, add and change users of the admin console
    Users(users::UsersCommand),
    /// Show who changed what, and check that the audit log was not altered
    Audit(audit::AuditCommand),
    /// Sum requests of all replicas over a time: counts, tokens, slot time, TTFT
    History(HistoryCommand),
    /// List what tenants used, by day
    Usage(UsageCommand),
    /// Migrate the database to the newest schema, and check that every statement fits it
    Migrate(MigrateCommand),
    /// Find the attention heads of a model that rank sentences best
    Calibrate(CalibrateCommand),
    /// Import models: convert, quantize, calibrate, measure and publish
    Models(ModelsCommand),
}

/// The database.
#[derive(Debug, Clone, Args)]
pub struct DatabaseArgs {
    /// Database of the settings: a file, sqlite://FILE, :memory: or postgres://USER@HOST/NAME
    #[arg(
        long,
        global = true,
        default_value = "./baton-cloud.db",
        value_name = "DATABASE",
        env = "BATON_DATABASE",
        hide_env_values = true
    )]
    pub database: String,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

impl DatabaseArgs {
    async fn open(&self) -> anyhow::Result<Store> {
        let database: Database = self.database.parse()?;
        Ok(Store::open(&database).await?)
    }

    /// Opens the database, does some work with it and closes it, whatever comes of the work.
    async fn with_store<T>(&self, work: impl AsyncFnOnce(&Store) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let store = self.open().await?;
        let done = work(&store).await;
        store.close().await;
        done
    }
}

/// `migrate`.
#[derive(Debug, Args)]
pub struct MigrateCommand {
    /// The database.
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// `serve`.
#[derive(Debug, Args)]
pub struct ServeCommand {
    /// Print the bound address as one line of JSON
    #[arg(long)]
    pub json: bool,
    /// Format of the log on standard error
    #[arg(long, alias = "log", value_enum, default_value_t = LogForm::Text)]
    pub log_format: LogForm,
    // Last, because options that follow would be listed under its last heading.
    /// The settings.
    #[command(flatten)]
    pub options: ServeOptions,
}

/// Format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogForm {
    /// One JSON object for each line.
    Json,
    /// Text for people.
    Text,
}

/// A wrong argument that clap itself does not find.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Returns whether the command line or the settings file is wrong. The program then ends with the status for
/// wrong usage.
#[must_use]
pub fn is_usage(err: &anyhow::Error) -> bool {
    err.chain().any(|cause| match cause.downcast_ref::<FileError>() {
        Some(err) => !matches!(err, FileError::Read { .. }),
        None => cause.is::<UsageError>() || cause.is::<ConfigError>(),
    })
}

/// Runs one command to its end.
///
/// # Errors
/// Whatever makes the command fail, with its whole chain of causes.
///
/// Not `async`, so that this crate compiles the whole command, and programs and tests that call it do not
/// compile it again.
#[inline(never)]
pub fn run(runtime: &tokio::runtime::Runtime, line: Vec<OsString>) -> anyhow::Result<()> {
    runtime.block_on(command_run(line))
}

async fn command_run(line: Vec<OsString>) -> anyhow::Result<()> {
    match parse(&line)?.command {
        Command::Serve(command) => {
            start_log(command.log_format)?;
            let config = checked(command.options)?;
            serve(config, command.json, move || settings_again(&line)).await
        }
        Command::Scenes(command) => {
            start_log(LogForm::Text)?;
            scenes::run(command, &mut baton_terminal::stdout()).await
        }
        Command::Experiments(command) => {
            start_log(LogForm::Text)?;
            experiments::run(command, &mut baton_terminal::stdout()).await
        }
        Command::Bootstrap(command) => {
            start_log(LogForm::Text)?;
            bootstrap::run(command, &mut baton_terminal::stdout()).await
        }
        Command::Keys(command) => {
            start_log(LogForm::Text)?;
            keys::run(command, &mut baton_terminal::stdout()).await
        }
        Command::Tenants(command) => {
            start_log(LogForm::Text)?;
            tenants::run(command, &mut baton_terminal::stdout()).await
        }
        Command::Registry(command) => {
            start_log(LogForm::Text)?;
            registry::run(command, &mut baton_terminal::stdout()).await
        }
        Command::Rollouts(command) => {
            start_log(LogForm::Text)?;
            rollouts::run(command, &mut baton_terminal::stdout()).await
        }
        Command::Users(command) => {
            start_log(LogForm::Text)?;
            users::run(command, &mut baton_terminal::stdout()).await
        }
        Command::Audit(command) => {
            start_log(LogForm::Text)?;
            audit::run(command, &mut baton_terminal::stdout()).await
        }
        Command::History(command) => {
            start_log(LogForm::Text)?;
            history::run(command, &mut baton_terminal::stdout()).await
        }
        Command::Usage(command) => {
            start_log(LogForm::Text)?;
            usage::run(command, &mut baton_terminal::stdout()).await
        }
        Command::Migrate(command) => {
            start_log(LogForm::Text)?;
            migrate(&command.database).await
        }
        Command::Calibrate(command) => {
            start_log(LogForm::Text)?;
            calibrate::run(command).await
        }
        Command::Models(command) => {
            start_log(LogForm::Text)?;
            models::run(command).await
        }
    }
}

/// Parses the command line, with the words of the settings file if it names one.
///
/// Ends the program if clap prints help, a version or an error.
fn parse(line: &[OsString]) -> anyhow::Result<Cli> {
    let cli = Cli::try_parse_from(line).unwrap_or_else(|err| err.exit());
    with_settings(line, cli)
}

/// Adds the words of the settings file if the command line names one.
fn with_settings(line: &[OsString], cli: Cli) -> anyhow::Result<Cli> {
    let Command::Serve(command) = &cli.command else { return Ok(cli) };
    let Some(path) = &command.options.config else { return Ok(cli) };
    let read = Cli::try_parse_from(with_file(line, path)?);
    // The command line alone is valid, so the file is wrong.
    read.map_err(|err| UsageError(format!("settings file `{}`: {}", path.display(), first_line(&err))).into())
}

/// Returns the first line of clap's error, without the help that follows.
fn first_line(err: &clap::Error) -> String {
    let text = err.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

/// Checks the settings.
fn checked(options: ServeOptions) -> anyhow::Result<Config> {
    let file = options.config.clone();
    options.check().with_context(|| match file {
        Some(path) => format!("check the settings, also those of `{}`", path.display()),
        None => "check the settings".to_owned(),
    })
}

fn with_file(line: &[OsString], path: &Path) -> anyhow::Result<Vec<OsString>> {
    let program = Cli::command();
    let serve = program.find_subcommand("serve").context("find the command `serve`")?;
    let taken = |name: &str| {
        let is_named = |option: &&Arg| {
            let aliases = option.get_all_aliases().unwrap_or_default();
            option.get_long() == Some(name) || aliases.contains(&name)
        };
        let option = serve.get_arguments().find(is_named);
        if option.is_none() || name == "config" {
            return Taken::Unknown;
        }
        let in_environment =
            option.and_then(|option| option.get_env()).is_some_and(|name| std::env::var_os(name).is_some());
        // If an option may be repeated, the command line does not override the file by itself.
        let repeats = option.is_some_and(|option| matches!(option.get_action(), ArgAction::Append));
        match repeats {
            _ if in_environment => Taken::Left,
            true if is_on(line, name) => Taken::Left,
            true => Taken::Many,
            false => Taken::One,
        }
    };
    let words = file::words(path, taken).context("read the settings file")?;
    Ok(file::with_words(line, "serve", words))
}

/// Returns whether the command line has this option.
fn is_on(line: &[OsString], name: &str) -> bool {
    let option = format!("--{name}");
    line.iter()
        .filter_map(|word| word.to_str()?.strip_prefix(&option))
        .any(|rest| rest.is_empty() || rest.starts_with('='))
}

/// Reads the settings again. If they are wrong, returns an error and does not end the program.
fn settings_again(line: &[OsString]) -> anyhow::Result<Config> {
    let cli = Cli::try_parse_from(line).map_err(|err| UsageError(first_line(&err)))?;
    let Command::Serve(command) = with_settings(line, cli)?.command else {
        anyhow::bail!("the command is not `serve`")
    };
    checked(command.options)
}

/// Returns the error for `set` without a change.
fn nothing_named() -> anyhow::Error {
    UsageError("nothing to change: name an option".to_owned()).into()
}

/// Formats a time in UTC, to the minute.
pub(crate) fn moment(ms: i64) -> String {
    let moment = jiff::Timestamp::from_millisecond(ms);
    moment.map_or_else(|_| ms.to_string(), |moment| moment.strftime("%Y-%m-%d %H:%M").to_string())
}

/// Migrates by opening the database. Concurrent starts wait for each other.
async fn migrate(args: &DatabaseArgs) -> anyhow::Result<()> {
    let check = async |store: &Store| store.check_statements().await.context("check the schema");
    let statements = args.with_store(check).await?;
    let line = if args.json {
        serde_json::json!({ "migrated": true, "statements": statements }).to_string()
    } else {
        format!("the schema is up to date; {statements} statements fit it")
    };
    baton_terminal::outln!("{line}").context("print")
}

/// Starts the log on standard error, by default from level `info`; `RUST_LOG` overrides that.
fn start_log(form: LogForm) -> anyhow::Result<()> {
    // The database driver logs every notice of the server at `info`.
    let default = "info,sqlx=warn";
    let filter = EnvFilter::try_from_default_env().or_else(|_| EnvFilter::try_new(default));
    let filter = filter.context("read RUST_LOG")?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // By default it prints an error if it cannot write, and panics if that fails too, for example on a
        // full disk.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    let started = match form {
        LogForm::Json => log.json().try_init(),
        LogForm::Text => log.try_init(),
    };
    started.map_err(|err| anyhow::anyhow!("start the log: {err}"))
}
