//! `baton config`: options that the user keeps in a file, and that commands then take.
//!
//! A kept option is one of the command line's own, by its long name. So it has the same values, checks and
//! help. What is on the line or in the environment counts before what is kept. Of two options that exclude
//! each other, the one on the line counts.

use super::Cli;
use crate::models::{MODELS_DIR_ENV, store};
use crate::settings::{CONFIG_DIR_ENV, Settings, SettingsError};
use anyhow::{Context as _, bail};
use baton_terminal::outln;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, CommandFactory as _, Subcommand};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Text below the options.
pub(super) const HELP: &str = "\
baton config set model NAME             every command uses this model, if the line names no other
baton config set cloud https://assist.example.org
baton config set instant true           an option without a value is true or false
baton config set stop END STOP          an option that may be given several times takes several values
baton config list --all                 every option that can be kept";

/// Commands that take kept options.
const COMMANDS: [&str; 7] = ["ask", "chat", "serve", "profile", "doctor", "passphrase", "receipt"];

/// Options that are not kept, and why.
const NOT_KEPT: &[(&str, &str)] = &[
    ("cloud-key", "keys are not kept in plain text; keep cloud-key-command, or set BATON_CLOUD_KEY"),
    ("key", "keys are not kept in plain text; set BATON_KEY"),
    ("device-key", "keys are not kept in plain text; set BATON_DEVICE_KEY"),
    ("peer-key", "keys are not kept in plain text; set BATON_PEER_KEY"),
    ("config-dir", "it says where kept options are; set BATON_CONFIG_DIR"),
    ("yes", "consent is kept for each cloud when you are asked"),
    ("json", "it is for one run"),
    ("report", "it is for one run"),
    ("trace", "it is for one run"),
    ("again", "it is for one run"),
    ("offload", "it is for one run"),
    ("name", "it is for one run"),
    ("remove", "it is for one run"),
    ("url", "it is for one run"),
    ("deep", "it is for one run"),
];

/// Beginnings of options that are not kept: of one ring, and for measurements.
const NOT_KEPT_BEGINNINGS: &[(&str, &str)] =
    &[("ring", "a ring is chosen for each run"), ("emulate-", "it is for measurements")];

#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// List what is kept
    List {
        /// List every option that can be kept, and what it does
        #[arg(long)]
        all: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        folder: FolderArgs,
    },
    /// Print the value of an option; the exit status is 1 if none is kept
    Get {
        /// The option's long name, without dashes
        name: String,
        #[command(flatten)]
        folder: FolderArgs,
    },
    /// Keep an option
    Set {
        /// The option's long name, without dashes
        name: String,
        /// Its value, or several if it may be given several times
        #[arg(required = true, allow_hyphen_values = true)]
        values: Vec<String>,
        #[command(flatten)]
        folder: FolderArgs,
    },
    /// Keep an option no longer
    Unset {
        /// The option's long name, without dashes
        name: String,
        #[command(flatten)]
        folder: FolderArgs,
    },
    /// Print the path of the file
    Path {
        #[command(flatten)]
        folder: FolderArgs,
    },
}

#[derive(Debug, Args)]
struct FolderArgs {
    /// Folder for settings [default: the platform's]
    #[arg(long, env = CONFIG_DIR_ENV, value_name = "DIR")]
    config_dir: Option<PathBuf>,
}

impl FolderArgs {
    fn open(self) -> Settings {
        Settings::open(self.config_dir)
    }
}

pub(super) fn run(args: ConfigArgs) -> anyhow::Result<()> {
    match args.command {
        ConfigCommand::List { all, json, folder } => list(all, json, &folder.open()),
        ConfigCommand::Get { name, folder } => {
            let name = plain(&name);
            known(&name)?;
            let config = folder.open().config()?;
            let Some(value) = config.get(&name) else { bail!("no value of `{name}` is kept") };
            outln!("{}", words(value).join("\n"))?;
            Ok(())
        }
        ConfigCommand::Set { name, values, folder } => set(&plain(&name), &values, &folder.open()),
        ConfigCommand::Unset { name, folder } => {
            let (name, settings) = (plain(&name), folder.open());
            let mut config = settings.config()?;
            if config.remove(&name).is_none() {
                bail!("no value of `{name}` is kept");
            }
            Ok(settings.remember_config(&config)?)
        }
        ConfigCommand::Path { folder } => {
            let Some(path) = folder.open().config_file() else { return Err(SettingsError::NoFolder.into()) };
            outln!("{}", path.display())?;
            Ok(())
        }
    }
}

/// People also write the dashes.
fn plain(name: &str) -> String {
    name.trim_start_matches('-').to_owned()
}

fn list(all: bool, is_json: bool, settings: &Settings) -> anyhow::Result<()> {
    let config = settings.config()?;
    let file = settings.config_file().map(|path| path.display().to_string());
    if is_json {
        let options: Vec<Value> = if all {
            let one = |(name, about): (&String, &String)| json!({ "name": name, "about": about });
            all_options().iter().map(one).collect()
        } else {
            Vec::new()
        };
        let mut printed = json!({ "file": file, "config": config });
        if all {
            printed["options"] = options.into();
        }
        outln!("{printed}")?;
        return Ok(());
    }
    if all {
        for (name, about) in all_options() {
            let value = config.get(&name).map(|value| format!(" = {}", words(value).join(" ")));
            outln!("{name}{}\n    {about}", value.unwrap_or_default())?;
        }
        return Ok(());
    }
    if config.is_empty() {
        outln!("nothing is kept; `baton config set model NAME` keeps a default model")?;
    }
    for (name, value) in &config {
        outln!("{name} = {}", words(value).join(" "))?;
    }
    Ok(())
}

/// Every option that can be kept, with the first line of its help.
fn all_options() -> BTreeMap<String, String> {
    let mut options = BTreeMap::new();
    for command in Cli::command().get_subcommands().filter(|one| COMMANDS.contains(&one.get_name())) {
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let Some(name) = arg.get_long().filter(|name| not_kept(name).is_none()) else { continue };
            let about = arg.get_help().map(ToString::to_string).unwrap_or_default();
            options.entry(name.to_owned()).or_insert(about);
        }
    }
    options
}

/// Why an option is not kept.
fn not_kept(name: &str) -> Option<&'static str> {
    let whole = NOT_KEPT.iter().find(|(not, _)| *not == name);
    let beginning = || NOT_KEPT_BEGINNINGS.iter().find(|(not, _)| name.starts_with(not));
    whole.or_else(beginning).map(|(_, why)| *why)
}

/// Refuses a name that is no option, or one that is not kept.
fn known(name: &str) -> anyhow::Result<()> {
    if let Some(why) = not_kept(name) {
        bail!("`{name}` is not kept: {why}");
    }
    if !all_options().contains_key(name) {
        bail!("there is no option `--{name}`; `baton config list --all` lists all");
    }
    Ok(())
}

/// The words of a value, as they would stand on the line.
fn words(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(values) => values.iter().flat_map(words).collect(),
        other => vec![other.to_string()],
    }
}

/// Keeps an option, if every command that has it takes the value.
fn set(name: &str, values: &[String], settings: &Settings) -> anyhow::Result<()> {
    known(name)?;
    let mut config = settings.config()?;
    let value = match values {
        [one] if one == "true" || one == "false" => Value::from(one == "true"),
        [one] => Value::from(one.as_str()),
        several => Value::from(several),
    };
    let value = BTreeMap::from([(name.to_owned(), value)]);
    let all = Cli::command();
    for command in all.get_subcommands().filter(|one| COMMANDS.contains(&one.get_name())) {
        let Some(arg) = command.get_arguments().find(|arg| arg.get_long() == Some(name)) else { continue };
        let added = added(arg, &value[name]).map_err(|why| anyhow::anyhow!("`{name}` {why}"))?;
        let line = ["baton", command.get_name()].map(OsString::from);
        let tried = Cli::command().try_get_matches_from(line.into_iter().chain(added));
        if let Err(err) = tried
            && matches!(err.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation)
        {
            bail!("{}", err.to_string().trim_start_matches("error: ").lines().next().unwrap_or_default());
        }
    }
    let value = match value[name].as_str() {
        Some(model) if name == "model" => BTreeMap::from([(name.to_owned(), model_there(model, &config)?)]),
        _ => value,
    };
    config.extend(value);
    Ok(settings.remember_config(&config)?)
}

/// Returns the value that is kept for a model: its name, or the whole path of its file, so that commands in
/// other folders find it.
///
/// # Errors
/// There is no such model or file.
fn model_there(model: &str, config: &BTreeMap<String, Value>) -> anyhow::Result<Value> {
    let folder = std::env::var_os(MODELS_DIR_ENV).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let kept = config.get("models-dir").and_then(Value::as_str).map(PathBuf::from);
    let path = store::resolve(Path::new(model), folder.or(kept))?;
    std::fs::File::open(&path).with_context(|| format!("open `{}`", path.display()))?;
    if path != Path::new(model) {
        return Ok(model.into());
    }
    let whole = std::path::absolute(&path).with_context(|| format!("find `{}`", path.display()))?;
    Ok(whole.to_string_lossy().into())
}

/// The words by which an option gets this value on the line.
fn added(arg: &Arg, value: &Value) -> Result<Vec<OsString>, String> {
    let name = arg.get_long().unwrap_or_default();
    let words = words(value);
    match arg.get_action() {
        ArgAction::SetTrue => match value {
            Value::Bool(true) => Ok(vec![format!("--{name}").into()]),
            Value::Bool(false) => Ok(Vec::new()),
            _ => Err("has no value: it is true or false".to_owned()),
        },
        ArgAction::Append => Ok(words.iter().map(|word| format!("--{name}={word}").into()).collect()),
        _ => match &words[..] {
            [word] => Ok(vec![format!("--{name}={word}").into()]),
            _ => Err(format!("has one value, and {} are given", words.len())),
        },
    }
}

/// The kept options that a line takes.
#[derive(Debug, Default)]
pub(super) struct Kept {
    words: Vec<OsString>,
    /// The file that they stand in.
    file: Option<PathBuf>,
}

impl Kept {
    /// Returns the line with them. They stand behind the name of the command.
    pub(super) fn with(&self, line: &[OsString]) -> Vec<OsString> {
        let (before, after) = line.split_at(line.len().min(2));
        before.iter().chain(&self.words).chain(after).cloned().collect()
    }

    /// Says where options come from that are not on the line, if the line is refused.
    pub(super) fn explain(&self, err: clap::Error) -> clap::Error {
        let Some(file) = self.file.as_ref().filter(|_| !self.words.is_empty() && err.use_stderr()) else {
            return err;
        };
        let words: Vec<_> = self.words.iter().map(|word| word.to_string_lossy()).collect();
        let text = err.to_string();
        let text = text.trim_start_matches("error: ").trim_end();
        let kind = err.kind();
        clap::Error::raw(kind, format!("{text}\n\nkept in `{}`: {}\n", file.display(), words.join(" ")))
    }
}

/// Returns the kept options that this line takes.
///
/// # Errors
/// The file is there and cannot be read.
pub(super) fn kept(command: &Command, line: &[OsString]) -> Result<Kept, SettingsError> {
    let name = line.get(1).and_then(|name| name.to_str()).filter(|name| COMMANDS.contains(name));
    let Some(name) = name else { return Ok(Kept::default()) };
    // What is wrong with the line is told when all of it is read.
    let given = command.clone().ignore_errors(true).try_get_matches_from(line);
    let Some((_, given)) = given.as_ref().ok().and_then(ArgMatches::subcommand) else {
        return Ok(Kept::default());
    };
    let folder = given.try_get_one::<PathBuf>("config_dir").ok().flatten().cloned();
    let folder = folder
        .or_else(|| std::env::var_os(CONFIG_DIR_ENV).filter(|folder| !folder.is_empty()).map(PathBuf::from));
    let settings = Settings::open(folder);
    let config = settings.config()?;
    let Some(command) = command.find_subcommand(name) else { return Ok(Kept::default()) };
    Ok(Kept { words: taken(command, given, &config), file: settings.config_file() })
}

/// The words of the kept options that a command has, and that the line neither has nor excludes.
fn taken(command: &Command, given: &ArgMatches, config: &BTreeMap<String, Value>) -> Vec<OsString> {
    let is_given = |arg: &Arg| {
        let source = given.value_source(arg.get_id().as_str());
        matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
    };
    let args: Vec<&Arg> = command.get_arguments().collect();
    let excluded = |arg: &Arg| {
        let given = args.iter().filter(|other| other.get_id() != arg.get_id() && is_given(other));
        given.into_iter().any(|other| {
            let excludes = |one: &Arg, two: &Arg| {
                command.get_arg_conflicts_with(one).iter().any(|not| not.get_id() == two.get_id())
            };
            excludes(arg, other) || excludes(other, arg)
        })
    };
    let mut words = Vec::new();
    for arg in &args {
        let Some(value) =
            arg.get_long().filter(|name| not_kept(name).is_none()).and_then(|name| config.get(name))
        else {
            continue;
        };
        if !is_given(arg) && !excluded(arg) {
            // A value of another kind, written by hand, is refused with the option's own words.
            let raw = || vec![format!("--{}={value}", arg.get_long().unwrap_or_default()).into()];
            words.extend(added(arg, value).unwrap_or_else(|_| raw()));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken_by(line: &[&str], config: &Value) -> Vec<String> {
        let command = Cli::command();
        let line: Vec<OsString> = ["baton"].iter().chain(line).map(OsString::from).collect();
        let given = command.clone().ignore_errors(true).try_get_matches_from(&line).unwrap();
        let (name, given) = given.subcommand().unwrap();
        let config: BTreeMap<String, Value> = serde_json::from_value(config.clone()).unwrap();
        let words = taken(command.find_subcommand(name).unwrap(), given, &config);
        words.iter().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn kept_options_stand_behind_those_of_the_line() {
        let config = json!({ "models-dir": "/m", "threads": 2, "instant": true, "listen": "127.0.0.1:1", "stop": ["a", "-b"] });
        let ask = taken_by(&["ask", "d", "q"], &config);
        let mut sorted = ask.clone();
        sorted.sort();
        assert_eq!(
            sorted,
            ["--instant", "--models-dir=/m", "--stop=-b", "--stop=a", "--threads=2"],
            "{ask:?}"
        );
        let given = taken_by(&["ask", "d", "q", "--threads", "4", "--pace", "--stop", "x"], &config);
        assert_eq!(given, ["--models-dir=/m"], "the line counts, and --pace excludes --instant");
        let serve = taken_by(&["serve"], &config);
        assert!(
            serve.contains(&"--listen=127.0.0.1:1".to_owned()) && !serve.contains(&"--instant".to_owned())
        );
        let wrong =
            taken_by(&["ask", "d", "q"], &json!({ "instant": "often", "key": "secret", "nothing": 1 }));
        assert_eq!(wrong, ["--instant=\"often\""], "a wrong value is refused by the option itself");
    }

    #[test]
    fn what_is_set_is_checked_kept_and_taken() {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings::open(Some(dir.path().to_owned()));
        let set = |name: &str, values: &[&str]| {
            let values: Vec<String> = values.iter().map(|&value| value.to_owned()).collect();
            set(name, &values, &settings).map_err(|err| err.to_string())
        };
        set("models-dir", &["/m"]).unwrap();
        set("temperature", &["0.5"]).unwrap();
        set("pace", &["true"]).unwrap();
        set("stop", &["a", "b"]).unwrap();
        for (name, values, want) in [
            ("temperature", &["hot"][..], "must be 0 to 10"),
            ("temperature", &["1", "2"], "has one value, and 2 are given"),
            ("pace", &["often"], "it is true or false"),
            ("modle", &["x"], "there is no option `--modle`"),
            ("cloud-key", &["x"], "set BATON_CLOUD_KEY"),
            ("device-key", &["x"], "set BATON_DEVICE_KEY"),
            ("peer-key", &["x"], "set BATON_PEER_KEY"),
            ("ring-plan", &["x"], "chosen for each run"),
            ("threads", &["0"], "whole number from 1"),
        ] {
            let said = set(name, values).unwrap_err();
            assert!(said.contains(want), "{name}: {said}");
        }
        let config = settings.config().unwrap();
        assert_eq!(config["pace"], Value::from(true));
        assert_eq!(config["stop"], json!(["a", "b"]));
        assert_eq!(config.len(), 4);
        let dir = dir.path().to_str().unwrap();
        let cli = Cli::of(["baton", "ask", "d", "q", "--config-dir", dir]).unwrap();
        let super::super::Command::Ask(args) = cli.command else { panic!("it is ask") };
        assert_eq!((args.answer.temperature, args.answer.pace), (0.5, true));
        assert_eq!(args.answer.stop, ["a", "b"]);
        let line = ["baton", "ask", "d", "q", "--config-dir", dir, "--temperature", "0", "--instant"];
        let super::super::Command::Ask(args) = Cli::of(line).unwrap().command else { panic!("it is ask") };
        assert_eq!((args.answer.temperature, args.answer.pace, args.answer.instant), (0.0, false, true));
    }

    #[test]
    fn a_refused_line_says_what_is_kept_and_a_broken_file_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings::open(Some(dir.path().to_owned()));
        let line = ["baton", "ask", "d", "q", "--config-dir", dir.path().to_str().unwrap()];
        settings.remember_config(&BTreeMap::from([("threads".to_owned(), Value::from("none"))])).unwrap();
        let said = Cli::of(line).unwrap_err().to_string();
        assert!(
            said.contains("--threads") && said.contains("kept in `") && said.contains("config.json"),
            "{said}"
        );
        std::fs::write(settings.config_file().unwrap(), "{").unwrap();
        let said = Cli::of(line).unwrap_err().to_string();
        assert!(said.contains("config.json") && said.contains("mend the file"), "{said}");
        assert!(Cli::of(["baton", "model", "list"]).is_ok(), "commands that take nothing do not read it");
    }

    #[test]
    fn every_option_that_is_not_kept_is_one() {
        let all: Vec<String> = Cli::command()
            .get_subcommands()
            .filter(|one| COMMANDS.contains(&one.get_name()))
            .flat_map(|one| {
                one.get_arguments().filter_map(Arg::get_long).map(str::to_owned).collect::<Vec<_>>()
            })
            .collect();
        for (name, _) in NOT_KEPT {
            assert!(all.iter().any(|option| option == name), "{name}");
        }
        for (beginning, _) in NOT_KEPT_BEGINNINGS {
            assert!(all.iter().any(|option| option.starts_with(beginning)), "{beginning}");
        }
        for name in ["model", "cloud", "mode", "memory", "gpu", "listen", "scene", "max-tokens"] {
            assert!(all_options().contains_key(name), "{name}");
        }
    }
}
