//! `baton conversations`: what `baton chat` has kept.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use baton_terminal::outln;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::conversations::{Conversations, FILE, Found, Listed};
use crate::settings::Settings;

/// Rows of a list.
const ROWS: usize = 50;

/// Options of the commands that read what is kept.
#[derive(Debug, Args)]
pub(super) struct KeptArgs {
    /// Folder for settings, which then holds conversations and records too [default: the platform's folders]
    #[arg(long, global = true, env = crate::settings::CONFIG_DIR_ENV, value_name = "DIR", hide_short_help = true)]
    config_dir: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub(super) json: bool,
}

impl KeptArgs {
    /// Opens what is kept.
    pub(super) async fn open(&self) -> anyhow::Result<Conversations> {
        let path = file(self.config_dir.as_deref()).context("no folder for data: pass --config-dir")?;
        Ok(Conversations::open(&path).await?)
    }

    /// Returns the folder for settings.
    pub(super) fn settings(&self) -> Settings {
        Settings::open(self.config_dir.clone())
    }
}

#[derive(Debug, Args)]
pub(super) struct ConversationsArgs {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    kept: KeptArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the conversations that were used last
    List,
    /// Find what was said
    Search {
        /// Words as they were written
        words: String,
    },
    /// Print a conversation as Markdown, or with --json as an object
    Show {
        /// Its number [default: the one that was used last]
        id: Option<i64>,
    },
    /// Forget a conversation
    Rm {
        /// Its number
        id: i64,
    },
}

/// Returns the file of the conversations: in the folder for settings if the user names one, else in the
/// platform's folder for data.
pub(super) fn file(config_dir: Option<&Path>) -> Option<PathBuf> {
    let folder = config_dir.map(Path::to_owned).or_else(crate::models::data_folder);
    folder.map(|folder| folder.join(FILE))
}

pub(super) async fn run(args: ConversationsArgs) -> anyhow::Result<()> {
    let (kept, json) = (args.kept.open().await?, args.kept.json);
    match args.command {
        Command::List => {
            let all = kept.list(ROWS).await?;
            if json {
                return Ok(outln!("{}", json!({ "conversations": all }))?);
            }
            for Listed { id, title, turns, .. } in &all {
                outln!("{id:>5}  {title}  ({turns} turns)")?;
            }
            if all.is_empty() {
                outln!("no conversation was kept yet; `baton chat` keeps them")?;
            }
        }
        Command::Search { words } => {
            let found = kept.search(&words, ROWS).await?;
            if json {
                return Ok(outln!("{}", json!({ "found": found }))?);
            }
            for Found { id, role, excerpt, .. } in &found {
                outln!("{id:>5}  {}: {excerpt}", if role == "user" { "question" } else { "answer" })?;
            }
            if found.is_empty() {
                outln!("nobody said `{words}`")?;
            }
        }
        Command::Show { id } => {
            let whole = kept.read(id).await?;
            match json {
                true => outln!("{}", serde_json::to_string(&whole)?)?,
                false => outln!("{}", whole.markdown().trim_end())?,
            }
        }
        Command::Rm { id } => {
            kept.remove(id).await?;
            match json {
                true => outln!("{}", json!({ "removed": id }))?,
                false => outln!("conversation {id} is forgotten")?,
            }
        }
    }
    Ok(())
}
