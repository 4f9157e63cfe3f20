//! `scenes list|show|set|…`: what each kind of question may cost, and why.

mod explain;
mod figures;
mod fit;
mod table;
mod versions;

use std::io::Write;

use anyhow::Context;
use baton_protocol::Corrector;
use baton_refine::Mode;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::columns::{self, Side};
use super::{DatabaseArgs, UsageError, nothing_named};
use crate::access::Actor;
use crate::config::numbers;
use crate::scene::{Scene, SceneSettings};
use crate::service::DEFAULT_MODEL;
use crate::store::{Store, StoreError};

pub use self::explain::ExplainArgs;
pub use self::fit::FitXi;
pub use self::table::TableArgs;
pub use self::versions::{Diffing, Publishing};

/// `scenes`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    baton-cloud scenes draft doc-qa --xi 0.3 --tau-ms 80     nobody sees it yet\n  \
    baton-cloud scenes diff doc-qa                           in force against draft\n  \
    baton-cloud scenes publish doc-qa --note \"tighter xi\"\n  \
    baton-cloud scenes rollback doc-qa --to 3\n  \
    baton-cloud scenes explain doc-qa                        why r and L are what they are")]
pub struct ScenesCommand {
    /// What to do with them.
    #[command(subcommand)]
    pub command: SceneCommand,
    /// The database.
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// What to do with scenes.
#[derive(Debug, Subcommand)]
pub enum SceneCommand {
    /// The current version of every scene
    List,
    /// The current version of one scene
    Show {
        /// Its id
        id: String,
    },
    /// Add a version with these changes and bring it into force at once; a new id starts from the defaults
    Set(Box<SceneSet>),
    /// Write these changes as a draft, which no request sees before it is published
    Draft(Box<SceneSet>),
    /// Bring the draft into force, on every replica within 5 s
    Publish(Publishing),
    /// Give the draft up
    Discard(Publishing),
    /// Bring an older version back, as a copy with a new number
    Rollback {
        /// Which scene.
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
    /// What differs between two versions, field by field
    Diff(Diffing),
    /// Every version of a scene, and when which was in force
    History {
        /// Its id
        id: String,
    },
    /// r and L for every scene, class of devices, length of prompt and class of networks
    Table(Box<TableArgs>),
    /// Which bound decides L of one request, and what would relax it
    Explain(Box<ExplainArgs>),
    /// Add a version whose xi is the smallest r that an evaluation allows
    FitXi(Box<FitXi>),
}

/// Changes to a scene; what is not named stays.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub struct SceneSet {
    /// Its id
    pub id: String,
    /// Share r of the content that is kept, from xi to 1, or `auto`
    #[arg(long, value_name = "R|auto", allow_negative_numbers = true)]
    pub ratio: Option<Auto<f32>>,
    /// Smallest r that the scene's quality allows; 1 forbids refinement
    #[arg(long, value_parser = numbers::number::<f32>, allow_negative_numbers = true)]
    pub xi: Option<f32>,
    /// Tokens L that the cloud writes, or `auto`
    #[arg(long, value_name = "L|auto", allow_negative_numbers = true)]
    pub assist_tokens: Option<Auto<u32>>,
    /// Smallest L, also under load
    #[arg(long, value_parser = numbers::whole::<u32>, allow_negative_numbers = true)]
    pub assist_floor: Option<u32>,
    /// Largest L, whatever a request asks for
    #[arg(long, value_parser = numbers::whole::<u32>, allow_negative_numbers = true)]
    pub assist_max: Option<u32>,
    /// Largest tolerable gap between shown tokens, in milliseconds
    #[arg(long, value_parser = numbers::number::<f32>, allow_negative_numbers = true)]
    pub tau_ms: Option<f32>,
    /// What answers may lose against the full prompt, as a share of the score (for fit-xi)
    #[arg(long, value_name = "SHARE", value_parser = numbers::number::<f32>, allow_negative_numbers = true)]
    pub tolerance: Option<f32>,
    /// Who is right where cloud and device disagree: cloud or device
    #[arg(long)]
    pub corrector: Option<Corrector>,
    /// Whether the content may be refined
    #[arg(long)]
    pub refine: Option<bool>,
    /// How sentences are ranked: attention, paper, tokens, gemfilter, chunk, bm25, streaming, random or none
    #[arg(long)]
    pub mode: Option<Mode>,
    /// Model that answers, by its name in the API, or `default`
    #[arg(long, value_name = "NAME|default")]
    pub model: Option<String>,
    /// Adapter of that model, or `none`
    #[arg(long, value_name = "NAME|none")]
    pub adapter: Option<String>,
    /// The system message in front of the content
    #[arg(long)]
    pub system: Option<String>,
    /// What stands between the content and the question
    #[arg(long)]
    pub question_prefix: Option<String>,
    /// Only if this is the current version (0: the scene is new)
    #[arg(long, value_name = "VERSION", value_parser = numbers::whole::<u32>, allow_negative_numbers = true)]
    pub if_version: Option<u32>,
}

/// A value, or the optimizer's choice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Auto<T> {
    /// The optimizer answers.
    Auto,
    /// A fixed value.
    Fixed(T),
}

impl<T: std::str::FromStr> std::str::FromStr for Auto<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Auto<T>, String> {
        let fixed = || text.parse::<T>().map_err(|_| "it must be a number, or `auto`".to_owned());
        if text == "auto" { Ok(Auto::Auto) } else { fixed().map(Auto::Fixed) }
    }
}

impl<T> Auto<T> {
    fn fixed(self) -> Option<T> {
        match self {
            Auto::Auto => None,
            Auto::Fixed(value) => Some(value),
        }
    }
}

impl SceneSet {
    /// Whether no change is named.
    fn is_empty(&self) -> bool {
        let id = self.id.clone();
        *self == SceneSet { id, if_version: self.if_version, ..SceneSet::default() }
    }

    /// The settings with the changes made.
    pub fn apply(self, mut settings: SceneSettings) -> SceneSettings {
        fn put<T>(place: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *place = value;
            }
        }
        put(&mut settings.ratio, self.ratio.map(Auto::fixed));
        put(&mut settings.xi, self.xi);
        put(&mut settings.assist_tokens, self.assist_tokens.map(Auto::fixed));
        put(&mut settings.assist_floor, self.assist_floor);
        put(&mut settings.assist_max, self.assist_max);
        put(&mut settings.tau_ms, self.tau_ms);
        put(&mut settings.tolerance, self.tolerance);
        put(&mut settings.corrector, self.corrector);
        put(&mut settings.refine, self.refine);
        put(&mut settings.mode, self.mode);
        put(&mut settings.model, self.model.map(|name| Some(name).filter(|name| name != DEFAULT_MODEL)));
        put(&mut settings.adapter, self.adapter.map(|name| Some(name).filter(|name| name != "none")));
        put(&mut settings.system, self.system);
        put(&mut settings.question_prefix, self.question_prefix);
        settings
    }
}

pub(super) async fn run(command: ScenesCommand, out: &mut impl Write) -> anyhow::Result<()> {
    let store = command.database.open().await?;
    let done = perform(&store, command.command).await;
    store.close().await;
    let shown = done?;
    if command.database.json {
        let value = match &shown {
            Shown::One(scene) => value(scene),
            Shown::All(scenes) => scenes.iter().map(value).collect(),
            Shown::Computed { value, .. } => value.clone(),
        };
        writeln!(out, "{value}").context("print")?;
        return Ok(());
    }
    match &shown {
        Shown::All(scenes) => print_scenes(scenes, out),
        Shown::One(scene) => print_scenes(std::slice::from_ref(scene), out).and_then(|()| texts(scene, out)),
        Shown::Computed { text, .. } => write!(out, "{text}"),
    }
    .context("print")
}

enum Shown {
    All(Vec<Scene>),
    One(Box<Scene>),
    Computed { value: Value, text: String },
}

async fn perform(store: &Store, command: SceneCommand) -> anyhow::Result<Shown> {
    Ok(match command {
        SceneCommand::List => Shown::All(current(store.scenes().await?)),
        SceneCommand::Show { id } => Shown::One(Box::new(store.scene(&id).await?)),
        SceneCommand::Set(set) => Shown::One(Box::new(change(store, *set).await?)),
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
            Shown::Computed { value: table.value(), text: table.text() }
        }
        SceneCommand::Explain(args) => {
            let scene = store.scene(&args.id).await?;
            let explained = explain::explained(&args, scene, &store.coefficients().await?)?;
            Shown::Computed { value: explained.value(), text: explained.text() }
        }
        SceneCommand::FitXi(args) => {
            let fitted = fit::fit(store, &args).await?;
            Shown::Computed { value: fitted.value(), text: fitted.text() }
        }
    })
}

async fn change(store: &Store, set: SceneSet) -> anyhow::Result<Scene> {
    let (id, expected) = (set.id.clone(), set.if_version);
    let settings = match store.scene(&id).await {
        Ok(_) if set.is_empty() => return Err(nothing_named()),
        Ok(scene) => scene.settings,
        Err(StoreError::Unknown { .. }) => SceneSettings::with_system(""),
        Err(err) => return Err(err.into()),
    };
    let settings = set.apply(settings);
    settings.check().map_err(|err| UsageError(err.to_string()))?;
    Ok(store.set_scene(&id, &settings, "", expected.into(), &Actor::cli()).await?)
}

/// The last version of each scene, of all versions in order.
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
    for (name, setting) in scene.settings.fields() {
        value[name] = setting;
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
            settings.mode.to_string(),
        ]
    };
    columns::write(columns, scenes.iter().map(cells), out)
}

fn texts(scene: &Scene, out: &mut impl Write) -> std::io::Result<()> {
    writeln!(out, "system           {:?}", scene.settings.system)?;
    writeln!(out, "question prefix  {:?}", scene.settings.question_prefix)?;
    writeln!(out, "largest L        {}", scene.settings.assist_max)?;
    writeln!(out, "tolerance        {}", scene.settings.tolerance)?;
    writeln!(out, "model            {}", scene.settings.model.as_deref().unwrap_or(DEFAULT_MODEL))?;
    writeln!(out, "adapter          {}", scene.settings.adapter.as_deref().unwrap_or("none"))
}
