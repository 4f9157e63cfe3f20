//! `scenes list|show|set|…`: manages scenes, and explains r and L.

mod explain;
mod figures;
mod fit;
mod settings;
mod table;
mod versions;

use std::io::Write;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::columns::{self, Side};
use super::{DatabaseArgs, UsageError, nothing_named};
use crate::access::Actor;
use crate::config::numbers;
use crate::scene::{self, Scene, SceneSettings};
use crate::store::{Store, StoreError};

pub(super) use self::explain::ExplainArgs;
pub(super) use self::fit::FitXi;
pub(super) use self::settings::SettingOptions;
pub(super) use self::table::TableArgs;
pub(super) use self::versions::{Diffing, Publishing};

/// `scenes`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    baton-cloud scenes draft doc-qa --xi 0.3 --tau-ms 80     requests do not see it yet\n  \
    baton-cloud scenes diff doc-qa                           compares the version in force with the draft\n  \
    baton-cloud scenes publish doc-qa --note \"tighter xi\"\n  \
    baton-cloud scenes rollback doc-qa --to 3\n  \
    baton-cloud scenes explain doc-qa                        why r and L are what they are")]
pub struct ScenesCommand {
    /// What to do.
    #[command(subcommand)]
    pub command: SceneCommand,
    /// The database.
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// The commands of `scenes`.
#[derive(Debug, Subcommand)]
pub enum SceneCommand {
    /// List the current version of every scene
    List,
    /// Show the current version of one scene
    Show {
        /// The scene's id
        id: String,
    },
    /// Add a version with these changes and bring it into force at once; a new id starts from the defaults
    Set(Box<SceneSet>),
    /// Write these changes as a draft, which requests do not see until it is published
    Draft(Box<SceneSet>),
    /// Publish the draft: every replica uses it within 5 s
    Publish(Publishing),
    /// Discard the draft
    Discard(Publishing),
    /// Bring an older version back into force, as a copy with a new number
    Rollback {
        /// The scene.
        #[command(flatten)]
        scene: Publishing,
        /// The version to go back to
        #[arg(
            long,
            value_name = "VERSION",
            value_parser = numbers::whole::<u32>,
            allow_negative_numbers = true
        )]
        to: u32,
    },
    /// Show the settings that differ between two versions
    Diff(Diffing),
    /// Show every version of a scene, and when each was in force
    History {
        /// The scene's id
        id: String,
    },
    /// Print r and L for every scene, device class, prompt length and network class
    Table(Box<TableArgs>),
    /// Explain which bound decides L of one request, and which change would relax it
    Explain(Box<ExplainArgs>),
    /// Add a version whose xi is the smallest r that an evaluation allows
    FitXi(Box<FitXi>),
}

/// Changes to a scene. Settings that are not named stay.
#[derive(Debug, Clone, Args)]
pub struct SceneSet {
    /// The scene's id
    pub id: String,
    /// The changes.
    #[command(flatten)]
    pub settings: SettingOptions,
    /// Fail if this is not the current version (0: the scene is new)
    #[arg(long, value_name = "VERSION", value_parser = numbers::whole::<u32>, allow_negative_numbers = true)]
    pub if_version: Option<u32>,
}

impl SceneSet {
    /// Applies the changes to settings, and checks the result.
    fn apply(self, settings: &SceneSettings) -> anyhow::Result<SceneSettings> {
        let settings = self.settings.apply(settings).context("take the settings that are named")?;
        scene::check(&settings).map_err(|err| UsageError(err.to_string()))?;
        Ok(settings)
    }
}

pub(super) async fn run(command: ScenesCommand, out: &mut impl Write) -> anyhow::Result<()> {
    let shown = command.database.with_store(async |store| perform(store, command.command).await).await?;
    if command.database.json {
        let value = match &shown {
            Output::One(scene) => value(scene),
            Output::All(scenes) => scenes.iter().map(value).collect(),
            Output::Computed { value, .. } => value.clone(),
        };
        writeln!(out, "{value}").context("print")?;
        return Ok(());
    }
    match &shown {
        Output::All(scenes) => print_scenes(scenes, out),
        Output::One(scene) => {
            print_scenes(std::slice::from_ref(scene), out).and_then(|()| print_settings(scene, out))
        }
        Output::Computed { text, .. } => write!(out, "{text}"),
    }
    .context("print")
}

enum Output {
    All(Vec<Scene>),
    One(Box<Scene>),
    Computed { value: Value, text: String },
}

async fn perform(store: &Store, command: SceneCommand) -> anyhow::Result<Output> {
    Ok(match command {
        SceneCommand::List => Output::All(current(store.scenes().await?)),
        SceneCommand::Show { id } => Output::One(Box::new(store.scene(&id).await?)),
        SceneCommand::Set(set) => Output::One(Box::new(change(store, *set).await?)),
        SceneCommand::Draft(set) => versions::draft(store, *set).await?,
        SceneCommand::Publish(args) => versions::publish(store, &args).await?,
        SceneCommand::Discard(args) => versions::discard(store, &args).await?,
        SceneCommand::Rollback { scene, to } => versions::roll_back(store, &scene, to).await?,
        SceneCommand::Diff(args) => versions::diff(store, &args).await?,
        SceneCommand::History { id } => versions::history(store, &id).await?,
        SceneCommand::Table(args) => {
            let mut scenes = current(store.scenes().await?);
            if let Some(unknown) = args.ids.iter().find(|id| scenes.iter().all(|scene| &scene.id != *id)) {
                return Err(StoreError::Unknown { what: "scene", id: unknown.clone() }.into());
            }
            scenes.retain(|scene| args.ids.is_empty() || args.ids.contains(&scene.id));
            let table = table::table(&args, &scenes, &store.coefficients().await?)?;
            Output::Computed { value: table.value(), text: table.text() }
        }
        SceneCommand::Explain(args) => {
            let scene = store.scene(&args.id).await?;
            let explained = explain::explained(&args, scene, &store.coefficients().await?)?;
            Output::Computed { value: explained.value(), text: explained.text() }
        }
        SceneCommand::FitXi(args) => {
            let fitted = fit::fit(store, &args).await?;
            Output::Computed { value: fitted.value(), text: fitted.text() }
        }
    })
}

async fn change(store: &Store, set: SceneSet) -> anyhow::Result<Scene> {
    let (id, expected) = (set.id.clone(), set.if_version);
    let settings = match store.scene(&id).await {
        Ok(_) if set.settings.is_empty() => return Err(nothing_named()),
        Ok(scene) => scene.settings,
        Err(StoreError::Unknown { .. }) => SceneSettings::default(),
        Err(err) => return Err(err.into()),
    };
    let settings = set.apply(&settings)?;
    Ok(store.set_scene(&id, &settings, "", expected.into(), &Actor::cli()).await?)
}

/// Keeps the last version of each scene. `scenes` are ordered by id and version.
fn current(scenes: Vec<Scene>) -> Vec<Scene> {
    let mut newest: Vec<Scene> = Vec::new();
    for scene in scenes {
        if newest.last().is_some_and(|last| last.id == scene.id) {
            newest.pop();
        }
        newest.push(scene);
    }
    newest
}

fn value(scene: &Scene) -> Value {
    let mut value = json!({ "id": scene.id, "version": scene.version });
    for (field, setting) in scene.settings.fields() {
        value[field.name] = setting;
    }
    value
}

fn print_scenes(scenes: &[Scene], out: &mut impl Write) -> std::io::Result<()> {
    let auto = |text: Option<String>| text.unwrap_or_else(|| "auto".to_owned());
    let columns = [
        ("scene", Side::Left),
        ("version", Side::Right),
        ("r", Side::Right),
        ("xi", Side::Right),
        ("L", Side::Right),
        ("floor", Side::Right),
        ("tau ms", Side::Right),
        ("corrector", Side::Left),
        ("refine", Side::Left),
        ("mode", Side::Left),
    ];
    let cells = |scene: &Scene| {
        let settings = &scene.settings;
        let refined = if settings.refine { "yes" } else { "no" };
        [
            scene.id.clone(),
            scene.version.to_string(),
            auto(settings.ratio.map(|ratio| ratio.to_string())),
            settings.xi.to_string(),
            auto(settings.assist_tokens.map(|tokens| tokens.to_string())),
            settings.assist_floor.to_string(),
            settings.tau_ms.to_string(),
            settings.corrector.as_str().to_owned(),
            refined.to_owned(),
            settings.mode.clone(),
        ]
    };
    columns::write(columns, scenes.iter().map(cells), out)
}

/// Prints every setting with its name.
fn print_settings(scene: &Scene, out: &mut impl Write) -> std::io::Result<()> {
    for (field, value) in scene.settings.fields() {
        let text = match field.absent {
            Some(absent) if value.is_null() => absent.word.to_owned(),
            _ => value.to_string(),
        };
        writeln!(out, "{:<16} {text}", field.name)?;
    }
    Ok(())
}
