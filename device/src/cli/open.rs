//! Makes an agent from the options: consent, model, cloud client, scene.

use super::interrupts::Interrupts;
use super::load::Loading;
use super::managed;
use super::values::AdapterFile;
use super::{AnswerArgs, CommonArgs, ModeArg};
use crate::agent::{Agent, Question, RouteOptions};
use crate::api::RingView;
use crate::client::CloudClient;
use crate::conversations::Conversations;
use crate::fleet::{ManagedModels, PairLease};
use crate::models::{Store, store};
use crate::privacy::PrivateNames;
use crate::receipt::signing_key;
use crate::relay::{Note, RelayMode};
use crate::scene;
use crate::settings::Settings;
use anyhow::{Context, bail};
use baton_engine::pace_emulation::PassCost;
use baton_pacing::PaceMode;
use baton_protocol::{SceneInfo, Segment};
use baton_registry::envelope::SigningKey;
use baton_terminal::{chain, err, errln};
use reqwest::Url;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use tracing::warn;

/// The way from no model to one that commands take.
pub(super) const GET_MODEL: &str = "`baton model pull hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF` gets a small one (1.1 GB). Use it by --model NAME, or in \
     every command after `baton config set model NAME`. A GGUF file works too: --model PATH";

/// An agent, and what else a command needs.
pub(super) struct Opened {
    pub(super) agent: Agent,
    pub(super) settings: Settings,
    pub(super) cloud_url: String,
    pub(super) mode: RelayMode,
    /// The ring, if devices compute together.
    pub(super) ring: Option<RingView>,
    /// The models, if the cloud's registry rules them.
    pub(super) managed: Option<ManagedModels>,
}

/// How a command uses the agent.
pub(super) struct Use {
    /// Answers that the device computes at the same time.
    pub(super) answers: usize,
    /// Options of the relay are given, so it is what is wanted if no mode is.
    pub(super) relays: bool,
    /// More turns may follow, so the device reads conversations ahead.
    pub(super) reads_ahead: bool,
    /// Share of the turns whose route is audited.
    pub(super) audits: f64,
    /// The command, for records of its answers; `None` if it keeps none.
    pub(super) asked_by: Option<&'static str>,
    /// The command gets newer models of the cloud's registry while it runs.
    pub(super) replaces: bool,
}

/// Opens everything.
pub(super) async fn open(common: &CommonArgs, used: &Use, interrupts: &Interrupts) -> anyhow::Result<Opened> {
    let settings = Settings::open(common.config_dir.clone());
    let cloud = cloud(common, &settings)?;
    if !common.managed {
        let path = model_path(common.model.as_deref(), common.models_dir.clone())?;
        let files = (path, common.adapter.clone());
        return opened(common, used, (settings, cloud), files, None).await;
    }
    let Some(cloud) = cloud else {
        bail!("--managed needs the cloud: allow it by --yes, and pass neither --no-cloud nor --mode device");
    };
    let (managed, files) = managed::open(common, &cloud, &settings, interrupts).await?;
    let lease = managed.lease();
    let opened = opened(common, used, (settings, Some(cloud)), managed::files(files), Some(lease)).await?;
    if used.replaces {
        return Ok(Opened { managed: Some(managed), ..opened });
    }
    // Ends with the program.
    tokio::spawn(managed.renew());
    Ok(opened)
}

/// Opens everything with these models: a base and adapters.
pub(super) async fn opened(
    common: &CommonArgs,
    used: &Use,
    (settings, cloud): (Settings, Option<CloudClient>),
    files: (PathBuf, Vec<AdapterFile>),
    lease: Option<PairLease>,
) -> anyhow::Result<Opened> {
    let cloud_url = common.cloud.clone().unwrap_or_default();
    let mode = mode(common, cloud.is_some());
    let loading = Loading::new(common, files, used.answers, &settings)?;
    let load = move || loading.load();
    let (device, ring) = tokio::task::spawn_blocking(load).await.context("load the model")??;
    let tokenizer = device.model.tokenizer().clone();
    let mut agent = Agent::new(Some(device), tokenizer, cloud, common.device_class.clone())
        .with_network(common.network.clone())
        .with_names(PrivateNames::new(!common.no_names, &common.private_name));
    if let Some(lease) = lease {
        agent = agent.with_lease(lease);
    }
    if common.mode.unwrap_or(if used.relays { ModeArg::Relay } else { ModeArg::Auto }) == ModeArg::Auto {
        let options = RouteOptions { is_metered: common.metered, reads_ahead: used.reads_ahead };
        agent = agent.with_routes(options, &settings, &cloud_url);
        if used.audits > 0.0 {
            agent = agent.with_audits(used.audits);
        }
    }
    if let Some(asked_by) = used.asked_by.filter(|_| !common.no_record) {
        match records(common).await {
            Ok(kept) => {
                agent = agent.with_records(kept, asked_by, &cloud_url, receipt_key(common, &settings).await)
            }
            Err(err) => errln!("note: answers are not recorded: {}", chain(&*err)),
        }
    }
    Ok(Opened { agent, settings, cloud_url, mode, ring, managed: None })
}

async fn records(common: &CommonArgs) -> anyhow::Result<Conversations> {
    let path = super::conversations::file(common.config_dir.as_deref());
    let path = path.context("no folder for data: pass --config-dir, or --no-record")?;
    Ok(Conversations::open(&path).await?)
}

/// Returns the key that receipts are signed with. Without one there are records without receipts.
async fn receipt_key(common: &CommonArgs, settings: &Settings) -> Option<SigningKey> {
    let Some(keys) = common.secrets.keys(settings) else {
        errln!("note: answers have no receipts: no folder for the key that signs them; pass --config-dir");
        return None;
    };
    // A passphrase may come from a command.
    let key = tokio::task::spawn_blocking(move || signing_key(&keys)).await.ok()?;
    key.inspect_err(|err| errln!("note: answers have no receipts: {}", chain(err))).ok()
}

/// Returns who writes answers.
fn mode(common: &CommonArgs, has_cloud: bool) -> RelayMode {
    match common.mode {
        Some(ModeArg::Cloud) => RelayMode::CloudOnly,
        Some(ModeArg::Device) => RelayMode::DeviceOnly,
        Some(ModeArg::Relay | ModeArg::Auto) | None if has_cloud => RelayMode::Relay,
        Some(ModeArg::Relay | ModeArg::Auto) | None => RelayMode::DeviceOnly,
    }
}

/// Returns the cloud client if a cloud is wanted and allowed. Prints a note if it is wanted and not allowed.
pub(super) fn cloud(common: &CommonArgs, settings: &Settings) -> anyhow::Result<Option<CloudClient>> {
    let wanted = !common.no_cloud && common.mode != Some(ModeArg::Device);
    let Some(url) = common.cloud.as_deref().filter(|_| wanted) else {
        match common.mode {
            Some(ModeArg::Cloud) => bail!("mode `cloud` needs a cloud: pass --cloud URL and not --no-cloud"),
            Some(ModeArg::Relay) => errln!("note: mode `relay` without a cloud: this device answers alone"),
            Some(ModeArg::Device | ModeArg::Auto) | None => {}
        }
        return Ok(None);
    };
    let address = Url::parse(url).with_context(|| format!("read the address `{url}`"))?;
    if !common.yes && !consent(&address, settings)? {
        if common.mode == Some(ModeArg::Cloud) {
            bail!("mode `cloud` needs your consent to use {url}: pass --yes, which allows it for this run");
        }
        let kept = settings.consent_file().filter(|file| file.is_file());
        let again = kept.map(|file| format!(" (to be asked again, delete `{}`)", file.display()));
        let again = again.unwrap_or_default();
        errln!("note: {url} is not used, because that was not allowed; --yes allows it for this run{again}");
        return Ok(None);
    }
    let mut client = CloudClient::new(url, common.secrets.cloud_key()?)?;
    if let Some(id) = &common.device_id {
        client = client.with_device_id(id)?;
    }
    Ok(Some(if common.no_resume { client.without_resume() } else { client }))
}

/// Returns whether the user allowed this cloud; asks once for each cloud.
fn consent(cloud: &Url, settings: &Settings) -> anyhow::Result<bool> {
    if let Some(allowed) = settings.cloud_allowed(cloud) {
        return Ok(allowed);
    }
    let url = cloud.as_str().trim_end_matches('/');
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        bail!(
            "nobody was asked yet whether {url} may be used: pass --yes to allow it for this run, or --no-cloud"
        );
    }
    err!(
        "Questions and documents would be sent to {url}. Replaced before, where they are recognized: e-mail addresses,\n\
         phone, card, account and identity numbers, IP and MAC addresses, wallets, keys, passwords, user names in paths,\n\
         names of people, organisations and places. Some names are missed (--private-name adds yours).\n\
         Dates of birth and everything else would be sent as they are.\n\
         May this cloud be used, now and later? [y/N] "
    );
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("read from the terminal")?;
    let allowed = matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes");
    // If the answer cannot be stored, the user is asked again the next time.
    if let Err(err) = settings.allow_cloud(cloud, allowed) {
        errln!("note: whether this cloud may be used is not remembered: {}", chain(&err));
    }
    Ok(allowed)
}

/// Returns the model's file: a path, or a model of the store by its name. No model is taken by itself.
pub(super) fn model_path(given: Option<&Path>, models: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    if let Some(given) = given {
        return Ok(store::resolve(given, models)?);
    }
    let kept = Store::open(models).map_or_else(|_| Vec::new(), |store| store.list());
    let names: Vec<String> = kept.iter().map(|record| format!("`{}`", record.name)).collect();
    match &kept[..] {
        [] => bail!("no model is named: {GET_MODEL}"),
        [first, ..] => bail!(
            "no model is named: pass --model NAME, or keep one by `baton config set model {}`; there {} {}",
            first.name,
            if names.len() == 1 { "is" } else { "are" },
            names.join(", ")
        ),
    }
}

pub(super) fn emulation(common: &CommonArgs) -> anyhow::Result<PassCost> {
    let cost = PassCost {
        base_ms: common.emulate_prefill_base_ms.unwrap_or(0.0),
        prefill_ms_per_token: common.emulate_prefill_ms_per_token.unwrap_or(0.0),
        decode_ms: common.emulate_decode_ms.unwrap_or(0.0),
    };
    cost.check()?;
    if !cost.is_none() {
        warn!(
            base_ms = cost.base_ms,
            prefill_ms_per_token = cost.prefill_ms_per_token,
            decode_ms = cost.decode_ms,
            "EMULATION: passes are stretched to the speed of another device"
        );
    }
    Ok(cost)
}

/// Fetches the scene of this id.
pub(super) async fn scene_of(opened: &Opened, id: &str) -> anyhow::Result<(SceneInfo, Option<Note>)> {
    let found = scene::find(opened.agent.cloud(), &opened.cloud_url, Some(&opened.settings), id).await;
    found.with_context(|| format!("fetch scene `{id}`"))
}

/// Prints a note with the options that have no effect, if no cloud takes part.
pub(super) fn note_unused(args: &AnswerArgs, mode: RelayMode) {
    let unused = args.for_a_cloud();
    if mode == RelayMode::DeviceOnly && !unused.is_empty() {
        errln!("note: no cloud takes part, so these options change nothing: {}", unused.join(", "));
    }
}

pub(super) fn question(
    args: &AnswerArgs,
    mode: RelayMode,
    scene: SceneInfo,
    segments: Vec<Segment>,
) -> Question {
    Question {
        segments,
        scene,
        mode,
        pace: if args.instant { PaceMode::Instant } else { PaceMode::Paced },
        sampling: args.sampling(),
        tokens_max: usize::try_from(args.max_tokens).unwrap_or(usize::MAX),
        refine: args.refine(),
        assist_tokens: args.assist_tokens,
        shorten: true,
        corrector: args.corrector,
        tools: None,
        format: baton_protocol::AnswerFormat::Text,
        own: None,
        cites: args.citations,
    }
}
