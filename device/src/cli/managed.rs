//! `--managed` and `baton model sync`: the models that the cloud's registry has for this device.

use super::CommonArgs;
use super::interrupts::{Interrupts, Stopped};
use super::model::percent_report;
use super::values::AdapterFile;
use crate::client::CloudClient;
use crate::fleet::{Load, ManagedModels, ManagedOptions, PairFiles};
use crate::models::pull::Stop;
use crate::models::{PullError, Store};
use crate::settings::Settings;
use anyhow::{Context as _, bail};
use baton_engine::{Adapter, Model};
use baton_registry::sync::ANY_SCENE;
use baton_terminal::{clear_status, errln, outln};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

/// `baton model sync`.
#[derive(Debug, Args)]
pub(super) struct SyncArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    common: CommonArgs,
}

/// Opens a pair's files to see that they load.
struct Opens;

impl Load for Opens {
    async fn load(&mut self, files: PairFiles) -> anyhow::Result<()> {
        let open = move || -> anyhow::Result<()> {
            let what = || format!("load {}", files.pair);
            let model = Model::open(&files.base).with_context(what)?;
            if let Some((_, path)) = &files.adapter {
                Adapter::open(path, &model).with_context(what)?;
            }
            Ok(())
        };
        tokio::task::spawn_blocking(open).await.context("load the model")?
    }
}

/// Takes up the models of this device. If there are none yet, fetches them; else only asks the cloud with
/// which ones it may be asked, and goes on without an answer.
pub(super) async fn open(
    common: &CommonArgs,
    cloud: &CloudClient,
    settings: &Settings,
    interrupts: &Interrupts,
) -> anyhow::Result<(ManagedModels, PairFiles)> {
    let mut managed = ManagedModels::open(options(common, cloud, settings)?, percent_report());
    if managed.active().is_some() {
        if let Err(fault) = managed.sync().await {
            errln!("note: this device answers alone until the cloud says which models it allows: {fault}");
        }
    } else {
        settle(&mut managed, interrupts).await.context("get the models of this device")?;
    }
    let files = managed.active().with_context(|| {
        format!(
            "the cloud has no models for devices of class `{}`{}: pass --device-class, or --model in place of --managed",
            common.device_class,
            if common.models_of == ANY_SCENE { String::new() } else { format!(" and scene `{}`", common.models_of) }
        )
    })?;
    Ok((managed, files))
}

fn options(common: &CommonArgs, cloud: &CloudClient, settings: &Settings) -> anyhow::Result<ManagedOptions> {
    Ok(ManagedOptions {
        cloud: cloud.clone(),
        cloud_url: common.cloud.clone().unwrap_or_default(),
        cloud_key: common.secrets.cloud_key()?.map(str::to_owned),
        class: common.device_class.clone(),
        scene: common.models_of.clone(),
        peers: common.peer.clone(),
        peer_key: common.peer_key.clone(),
        trusted: common.registry_key.clone(),
        store: Store::open(common.models_dir.clone())?,
        settings: settings.clone(),
    })
}

/// Gets what the cloud wants; Ctrl-C stops it, and the next try goes on from there.
async fn settle(managed: &mut ManagedModels, interrupts: &Interrupts) -> anyhow::Result<()> {
    let work = async |stop: Stop| managed.settle(&mut Opens, &stop).await;
    let (done, signal) = interrupts.stopping(work).await;
    clear_status();
    match (done, signal) {
        (Err(err), Some(signal)) if matches!(err.downcast_ref(), Some(PullError::Stopped)) => {
            errln!("stopped: the same command goes on from there");
            bail!(Stopped(signal))
        }
        (done, _) => done,
    }
}

/// Returns the files in the form of `--model` and `--adapter`.
pub(super) fn files(files: PairFiles) -> (PathBuf, Vec<AdapterFile>) {
    let adapters = files.adapter.into_iter().map(|(name, path)| AdapterFile { name, path });
    (files.base, adapters.collect())
}

/// Gets the models that the cloud's registry has for this device, and says what it has then.
pub(super) async fn sync(mut args: SyncArgs, interrupts: &Interrupts) -> anyhow::Result<()> {
    args.common.managed = true;
    let common = &args.common;
    let settings = Settings::open(common.config_dir.clone());
    let Some(cloud) = super::open::cloud(common, &settings)? else {
        bail!("a registry is asked by the cloud: pass --cloud URL, and allow it by --yes");
    };
    if common.registry_key.is_empty() {
        bail!(
            "nothing says which versions are good: pass --registry-key KEY, as the registry's owner gives it"
        );
    }
    let mut managed = ManagedModels::open(options(common, &cloud, &settings)?, percent_report());
    settle(&mut managed, interrupts).await?;
    if !args.json {
        outln!("{}", said(&managed))?;
        return Ok(());
    }
    let active = managed.active();
    let path = |path: &PathBuf| path.to_string_lossy().into_owned();
    let line = json!({
        "active": active.as_ref().map(|files| files.pair.to_string()),
        "base": active.as_ref().map(|files| path(&files.base)),
        "adapter": active.as_ref().and_then(|files| files.adapter.as_ref()).map(|(_, file)| path(file)),
        "coming": managed.coming().map(|pair| pair.to_string()),
        "leased": managed.lease().pair().is_some(),
    });
    outln!("{line}")?;
    Ok(())
}

/// Says what came of a sync.
fn said(managed: &ManagedModels) -> String {
    match (managed.active(), managed.coming()) {
        (Some(files), None) => format!("{} is what this device should have", files.pair),
        (Some(files), Some(coming)) => format!("{} answers; {coming} is coming", files.pair),
        (None, Some(coming)) => format!("{coming} is coming"),
        (None, None) => "the cloud has no models for this class of devices".to_owned(),
    }
}
