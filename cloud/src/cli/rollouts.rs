//! `rollouts list|set|start|share|pause|resume|rollback|finish|revoke|remove`: which models devices have.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use baton_protocol::ModelPair;
use baton_registry::envelope::PublicKey;
use baton_registry::rollout::{Change, Guard, Share};
use baton_registry::sync::ANY_SCENE;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::columns::{self, Side};
use super::registry::catalog;
use super::{DatabaseArgs, moment};
use crate::access::Actor;
use crate::config::secret_in;
use crate::fleet::source::RegistrySource;
use crate::fleet::{ModelReports, ModelTarget};
use crate::store::{Expected, Store, now_ms};

/// `rollouts`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    baton-cloud rollouts set --class phone small@1             the first pair of a class\n  \
    baton-cloud rollouts start --class phone small@2 --share 1   1 % of the phones get small@2\n  \
    baton-cloud rollouts share --class phone 10\n  \
    baton-cloud rollouts rollback --class phone                 all go back to small@1\n  \
    baton-cloud rollouts share --class phone 100 && baton-cloud rollouts finish --class phone\n  \
    baton-cloud rollouts start --class laptop --scene law small@2+law@3 --share 5\n\n\
    A pair is BASE@VERSION or BASE@VERSION+ADAPTER@VERSION. Devices learn of a change within 5 minutes. A pair that was\n\
    given up is allowed for 15 minutes more, so that no device is refused on its way; `revoke` refuses it at once.\n\
    A rollout pauses by itself if 3 devices, and 2 % of those that got the candidate, cannot load it. Only devices count\n\
    that had reported before it began, with an API key.")]
pub struct RolloutsCommand {
    /// What to do.
    #[command(subcommand)]
    pub command: RolloutAction,
    /// The registry.
    #[command(flatten)]
    pub registry: KnownArgs,
    /// The database.
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// With which registry a new pair is compared, so that no device is told of one that does not exist.
#[derive(Debug, Clone, Args)]
pub struct KnownArgs {
    /// `set` and `start` take only pairs that this registry has: a folder, https://HOST/PATH,
    /// s3://BUCKET/PATH or oci://HOST/NAME
    #[arg(long, global = true, value_name = "FOLDER|URL", env = "BATON_REGISTRY")]
    pub registry: Option<RegistrySource>,
    /// Public key that signs its versions; may be given several times
    #[arg(long, global = true, value_name = "KEY", env = "BATON_REGISTRY_KEY", value_delimiter = ' ')]
    pub registry_key: Vec<PublicKey>,
    /// File with a bearer token for it
    #[arg(long, global = true, value_name = "FILE", env = "BATON_REGISTRY_TOKEN_FILE")]
    pub registry_token_file: Option<PathBuf>,
}

impl KnownArgs {
    /// Checks that the registry has a pair, if one is given.
    async fn check(self, pair: &ModelPair) -> anyhow::Result<()> {
        let Some(source) = self.registry else { return Ok(()) };
        ensure!(
            !self.registry_key.is_empty(),
            "--registry needs --registry-key: the key that signs its versions"
        );
        let token = self.registry_token_file.as_deref();
        let token = token.map(|path| secret_in("--registry-token-file", path)).transpose()?;
        Ok(catalog(source, self.registry_key, token).await?.check(pair)?)
    }
}

/// Which devices.
#[derive(Debug, Clone, Args)]
pub struct Of {
    /// Class of the devices, as they report it
    #[arg(long)]
    pub class: String,
    /// Scene that the models are for; `*` is every scene without a target of its own
    #[arg(long, default_value = ANY_SCENE)]
    pub scene: String,
}

/// The commands of `rollouts`.
#[derive(Debug, Subcommand)]
pub enum RolloutAction {
    /// List every target: what is stable, what is rolled out, how many devices have what
    List,
    /// Set the first pair of a class
    Set {
        /// Which devices.
        #[command(flatten)]
        of: Of,
        /// The pair
        pair: ModelPair,
    },
    /// Begin to give another pair to a share of the devices
    Start {
        /// Which devices.
        #[command(flatten)]
        of: Of,
        /// The pair
        pair: ModelPair,
        /// How many of them, in percent
        #[arg(long, default_value = "1", value_name = "PERCENT")]
        share: Share,
        /// Pause if more of those that got it cannot load it, in percent
        #[arg(long, default_value = "2", value_name = "PERCENT")]
        failed_max: Share,
        /// Fewest devices that must have failed before it pauses
        #[arg(long, default_value = "3", value_name = "N")]
        failed_least: u32,
    },
    /// Give it to another share of the devices
    Share {
        /// Which devices.
        #[command(flatten)]
        of: Of,
        /// How many of them, in percent
        share: Share,
    },
    /// Give it to no more devices
    Pause(Of),
    /// Go on after a pause
    Resume(Of),
    /// Take it back; without a rollout, go back to the pair that was stable before
    Rollback(Of),
    /// Make it the stable pair; it must be for 100 % of the devices
    Finish(Of),
    /// Refuse a pair at once that was given up
    Revoke {
        /// Which devices.
        #[command(flatten)]
        of: Of,
        /// The pair
        pair: ModelPair,
    },
    /// Remove the target: devices keep what they have, and their pairs are not checked
    Remove(Of),
}

pub(super) async fn run(command: RolloutsCommand, out: &mut impl Write) -> anyhow::Result<()> {
    let json = command.database.json;
    if let RolloutAction::Set { pair, .. } | RolloutAction::Start { pair, .. } = &command.command {
        command.registry.check(pair).await?;
    }
    let rows = command.database.with_store(async |store| perform(store, command.command).await).await?;
    if json {
        let list: Vec<Value> = rows.iter().map(|(target, reports)| target_json(target, reports)).collect();
        return writeln!(out, "{}", Value::Array(list)).context("print");
    }
    list(&rows, out).context("print")
}

type Shown = (ModelTarget, ModelReports);

async fn perform(store: &Store, action: RolloutAction) -> anyhow::Result<Vec<Shown>> {
    let by = Actor::cli();
    let (of, change) = match action {
        RolloutAction::List => return all(store).await,
        RolloutAction::Set { of, pair } => {
            let target = store.set_model_target((&of.scene, &of.class), &pair, &by).await?;
            return shown(store, target).await;
        }
        RolloutAction::Remove(of) => {
            store.remove_model_target((&of.scene, &of.class), Expected::Any, &by).await?;
            return all(store).await;
        }
        RolloutAction::Start { of, pair, share, failed_max, failed_least } => {
            (of, Change::Start { candidate: pair, share, guard: Guard { failed_max, failed_least } })
        }
        RolloutAction::Share { of, share } => (of, Change::Share { share }),
        RolloutAction::Pause(of) => (of, Change::Pause),
        RolloutAction::Resume(of) => (of, Change::Resume),
        RolloutAction::Rollback(of) => (of, Change::RollBack),
        RolloutAction::Finish(of) => (of, Change::Finish),
        RolloutAction::Revoke { of, pair } => (of, Change::Revoke { pair }),
    };
    let changed = store.change_model_target((&of.scene, &of.class), &change, Expected::Any, &by).await?;
    shown(store, changed).await
}

async fn all(store: &Store) -> anyhow::Result<Vec<Shown>> {
    let mut rows = Vec::new();
    for target in store.model_targets().await? {
        rows.extend(shown(store, target).await?);
    }
    Ok(rows)
}

async fn shown(store: &Store, target: ModelTarget) -> anyhow::Result<Vec<Shown>> {
    let reports = store.model_reports(&target.scene, &target.class, now_ms()).await?;
    Ok(vec![(target, reports)])
}

/// Returns a target as the command line prints it.
fn target_json(row: &ModelTarget, reports: &ModelReports) -> Value {
    let counts = |counts: &[(String, u64)]| {
        counts.iter().map(|(pair, devices)| (pair.clone(), json!(devices))).collect::<Value>()
    };
    let mut json = json!(row.target);
    json["scene"] = json!(row.scene);
    json["class"] = json!(row.class);
    json["revision"] = json!(row.revision);
    json["devices"] = counts(&reports.active);
    json["failed"] = counts(&reports.failed);
    json
}

fn list(rows: &[Shown], out: &mut impl Write) -> std::io::Result<()> {
    let cells = |(row, reports): &Shown| {
        let stable = row.target.stable.to_string();
        let rollout = row.target.rollout.as_ref();
        let candidate = rollout.map_or(String::new(), |rollout| rollout.candidate.to_string());
        let state = match rollout {
            None => "stable".to_owned(),
            Some(rollout) if rollout.paused_by_guard => format!("{}, paused by guard", rollout.share),
            Some(rollout) if rollout.is_paused => format!("{}, paused", rollout.share),
            Some(rollout) => rollout.share.to_string(),
        };
        [
            row.scene.clone(),
            row.class.clone(),
            reports.active(&stable).to_string(),
            stable,
            state,
            reports.active(&candidate).to_string(),
            reports.failed(&candidate).to_string(),
            candidate,
            moment(row.updated_ms),
        ]
    };
    let titles =
        ["scene", "class", "have it", "stable", "rollout", "have it", "failed", "candidate", "changed"];
    columns::write(titles.map(|title| (title, Side::Left)), rows.iter().map(cells), out)
}
