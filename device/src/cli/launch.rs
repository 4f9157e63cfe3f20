//! `baton launch`: starts an agent that asks a running `baton serve`.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use baton_terminal::outln;
use clap::Args;
use serde_json::Value;

use super::running::AddressArgs;
use crate::launch::{Agent, Launch, Served};
use crate::settings::{CONFIG_DIR_ENV, Settings, create_private, make_private_folder};

/// Text below the options.
pub(super) const HELP: &str = "\
What follows -- goes to the agent as it is. The agent gets variables and options, and pi a file in a folder of Baton's
settings. No file of the agent's own settings is written or changed by Baton.";

/// Tokens of prompt and answer that an agent is told of if the program does not say how many there are.
const CONTEXT_TOKENS: u64 = 32_768;

#[derive(Debug, Args)]
pub(super) struct LaunchArgs {
    /// The agent; its program must be installed
    #[arg(value_enum)]
    agent: Agent,
    /// Print what the agent would be told, as a command of a shell, and start nothing
    #[arg(long)]
    print: bool,
    #[command(flatten)]
    address: AddressArgs,
    /// Folder for settings [default: the platform's]
    #[arg(long, env = CONFIG_DIR_ENV, value_name = "DIR", hide_short_help = true)]
    config_dir: Option<PathBuf>,
    /// Arguments of the agent
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

/// Starts the agent, or prints how.
pub(super) async fn run(args: LaunchArgs) -> anyhow::Result<()> {
    let settings = Settings::open(args.config_dir);
    let folder = settings.folder().context("there is no folder for settings: pass --config-dir")?;
    let folder = folder.join("launch");
    let card = args.address.ask(|client, url| client.get(format!("{url}/v1/models/default"))).await?;
    let card: Value = card.json().await.context("read the reply")?;
    let AddressArgs { url, key } = args.address;
    let context_tokens = card["context_length"].as_u64().unwrap_or(CONTEXT_TOKENS);
    let mut launch = args.agent.launch(&Served { url, key, context_tokens }, &folder);
    launch.arguments.extend(args.arguments);
    if args.print {
        return Ok(outln!("{}", shell_command(&launch, &folder))?);
    }
    write_files(&launch, &folder).with_context(|| format!("write `{}`", folder.display()))?;
    let mut command = Command::new(launch.program);
    command.args(&launch.arguments).envs(launch.variables);
    start(command).with_context(|| format!("start `{}`: is it installed?", launch.program))
}

fn write_files(launch: &Launch, folder: &Path) -> std::io::Result<()> {
    if launch.files.is_empty() {
        return Ok(());
    }
    make_private_folder(folder)?;
    for (name, text) in &launch.files {
        let part = folder.join(format!("{name}.part"));
        create_private(&part)?.write_all(text.as_bytes())?;
        fs::rename(&part, folder.join(name))?;
    }
    Ok(())
}

/// Becomes the agent, so that it alone gets signals and its status is that of the command.
#[cfg(unix)]
fn start(mut command: Command) -> std::io::Result<()> {
    Err(std::os::unix::process::CommandExt::exec(&mut command))
}

/// Runs the agent, and ends with its status.
#[cfg(not(unix))]
fn start(mut command: Command) -> std::io::Result<()> {
    let status = command.status()?;
    std::process::exit(status.code().unwrap_or(1))
}

/// Returns the launch as a command of a shell; files are shown before it, as comments.
fn shell_command(launch: &Launch, folder: &Path) -> String {
    let mut text = String::new();
    for (name, content) in &launch.files {
        text.push_str(&format!("# {}:\n# {content}\n", folder.join(name).display()));
    }
    for (name, value) in &launch.variables {
        text.push_str(&format!("{name}={} \\\n", quoted(value)));
    }
    text.push_str(launch.program);
    for argument in &launch.arguments {
        text.push(' ');
        text.push_str(&quoted(argument));
    }
    text
}

/// Returns a text as one word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_one_command_of_a_shell() {
        let served =
            Served { url: "http://127.0.0.1:8017".into(), key: Some("it's".into()), context_tokens: 9 };
        let mut launch = Agent::Codex.launch(&served, Path::new("/own"));
        launch.arguments.push("say hi".to_owned());
        let text = shell_command(&launch, Path::new("/own"));
        assert!(text.starts_with("BATON_AGENT_KEY='it'\\''s' \\\ncodex -c 'model=\"baton\"' "), "{text}");
        assert!(text.ends_with(" 'say hi'") && text.contains("model_context_window=9"), "{text}");
        let pi = Agent::Pi.launch(&served, Path::new("/own"));
        assert!(shell_command(&pi, Path::new("/own")).starts_with("# /own/models.json:\n# {"));
    }

    #[test]
    fn files_are_for_the_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("launch");
        let served = Served { url: "http://127.0.0.1:8017".into(), key: None, context_tokens: 9 };
        for _ in 0..2 {
            write_files(&Agent::Pi.launch(&served, &own), &own).unwrap();
        }
        let names: Vec<_> = fs::read_dir(&own).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["models.json"]);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = fs::metadata(own.join("models.json")).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0);
        }
        let claude = folder.path().join("claude");
        write_files(&Agent::Claude.launch(&served, &claude), &claude).unwrap();
        assert!(!claude.exists());
    }
}
