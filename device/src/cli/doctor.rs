//! `baton doctor`: looks at everything that an answer needs, and says what is wrong and what to do.
//!
//! Sends no text of anybody: a cloud is asked for the settings of a scene, and only if it was allowed.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::bail;
use baton_kernels_cpu::Dispatch;
use baton_pacing::refit::median;
use baton_terminal::{chain, outln, size};
use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::{CommonArgs, cloud_address, conversations, open};
use crate::client::{CloudClient, SceneReply};
use crate::context::Held;
use crate::conversations::Conversations;
use crate::machine::power::Power;
use crate::machine::profile::{KeptProfiles, ProfileOptions, kept_drift, this_memory};
use crate::machine::shape::shape_of;
use crate::models::{Store, disk_free_bytes, http_client};
use crate::privacy::PublicName;
use crate::relay::CloudFault;
use crate::secrets::{KEY_FILES, KeyFile};
use crate::settings::Settings;

/// Less free disk space than this is a warning.
const DISK_BYTES_LOW: u64 = 1 << 30;
/// How often the cloud is asked, for the time of a round trip.
const ROUNDS: usize = 3;

/// Text below the options.
pub(super) const HELP: &str = "\
Each line is `ok`, `warning`, `failed` or `unknown`; a line below says what to do. The exit status is 1 if something failed.
It takes the options of `baton ask`, so it looks at what that would use. A ring has its own: `baton ring doctor`.";

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Address of a running `baton serve` to look for
    #[arg(long, default_value = "http://127.0.0.1:8017", value_name = "URL", value_parser = cloud_address)]
    url: String,
    /// Also compare the digest of the model's files (reads all of them), and its speed with the kept profile
    #[arg(long)]
    deep: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    common: CommonArgs,
}

/// What a check has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Warning,
    Failed,
    /// It cannot be known here.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    check: &'static str,
    state: State,
    message: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

/// Tells findings as they come, and keeps them.
struct Findings {
    json: bool,
    all: Vec<Finding>,
}

impl Findings {
    fn add(&mut self, check: &'static str, state: State, message: String, fix: &str) -> anyhow::Result<()> {
        let word = match state {
            State::Ok => "ok",
            State::Warning => "warning",
            State::Failed => "failed",
            State::Unknown => "unknown",
        };
        if !self.json {
            outln!("{word:<8} {check}: {message}")?;
            if !fix.is_empty() {
                outln!("         {fix}")?;
            }
        }
        let fix = Some(fix.to_owned()).filter(|fix| !fix.is_empty());
        self.all.push(Finding { check, state, message, fix });
        Ok(())
    }

    fn ok(&mut self, check: &'static str, message: String) -> anyhow::Result<()> {
        self.add(check, State::Ok, message, "")
    }
}

pub(super) async fn run(args: DoctorArgs) -> anyhow::Result<()> {
    let mut findings = Findings { json: args.json, all: Vec::new() };
    let settings = Settings::open(args.common.config_dir.clone());
    folders(&args.common, &settings, &mut findings).await?;
    let common = args.common;
    let deep = args.deep;
    let of_machine = settings.clone();
    let blocking = move || -> anyhow::Result<(Findings, CommonArgs)> {
        machine(&common, &mut findings)?;
        model(&common, &of_machine, deep, &mut findings)?;
        Ok((findings, common))
    };
    let (mut findings, common) = tokio::task::spawn_blocking(blocking).await??;
    cloud(&common, &settings, &mut findings).await?;
    serving(&args.url, &mut findings).await?;
    let failed = findings.all.iter().filter(|finding| finding.state == State::Failed).count();
    if args.json {
        outln!("{}", json!({ "ok": failed == 0, "checks": findings.all }))?;
    }
    match failed {
        0 => Ok(()),
        1 => bail!("one check failed"),
        more => bail!("{more} checks failed"),
    }
}

async fn folders(common: &CommonArgs, settings: &Settings, findings: &mut Findings) -> anyhow::Result<()> {
    match (settings.folder(), settings.config()) {
        (None, _) => {
            let fix = "pass --config-dir DIR, or set BATON_CONFIG_DIR";
            findings.add("settings", State::Failed, "there is no folder for settings".to_owned(), fix)?;
        }
        (Some(folder), Err(err)) => {
            let why = format!("{}: {}", folder.display(), chain(&err));
            findings.add("settings", State::Failed, why, "`baton config path` names the file")?;
        }
        (Some(folder), Ok(kept)) if is_open_to_others(folder) => {
            let why = format!("{} ({} options): other users can read it", folder.display(), kept.len());
            findings.add("settings", State::Warning, why, &format!("chmod 700 {}", folder.display()))?;
        }
        (Some(folder), Ok(kept)) => {
            findings.ok("settings", format!("{}, {} options kept", folder.display(), kept.len()))?;
        }
    }
    keys(common, settings, findings)?;
    let Some(file) = conversations::file(common.config_dir.as_deref()) else {
        let why = "there is no folder for data".to_owned();
        return findings.add("records", State::Warning, why, "pass --config-dir DIR");
    };
    match Conversations::open(&file).await {
        Ok(_) => findings.ok("records", format!("conversations and records in {}", file.display()))?,
        Err(err) => findings.add("records", State::Failed, chain(&err), "move the file away")?,
    }
    let folder = file.parent().unwrap_or(Path::new("/"));
    match disk_free_bytes(folder) {
        Ok(free) if free < DISK_BYTES_LOW => {
            let why = format!("{} free below {}", size(free), folder.display());
            findings.add("disk", State::Warning, why, "free some space: prefixes and downloads need it")
        }
        Ok(free) => findings.ok("disk", format!("{} free below {}", size(free), folder.display())),
        Err(err) => findings.add("disk", State::Unknown, chain(&err), ""),
    }
}

fn keys(common: &CommonArgs, settings: &Settings, findings: &mut Findings) -> anyhow::Result<()> {
    let Some(keys) = common.secrets.keys(settings) else { return Ok(()) };
    for name in KEY_FILES {
        match keys.look(name) {
            Ok(KeyFile::Missing) => {}
            Ok(KeyFile::Plain) => {
                findings.ok(
                    "keys",
                    format!("{name} is a plain file of this user alone; see --passphrase-command"),
                )?;
            }
            Ok(KeyFile::Sealed) => match keys.get(name) {
                Ok(_) => findings.ok("keys", format!("{name} is encrypted, and the passphrase opens it"))?,
                Err(err) => {
                    let fix = "pass the --passphrase-command or --passphrase-file that it was encrypted with";
                    findings.add("keys", State::Failed, chain(&err), fix)?;
                }
            },
            Err(err) => findings.add("keys", State::Failed, chain(&err), "")?,
        }
    }
    Ok(())
}

#[cfg(unix)]
fn is_open_to_others(folder: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(folder).is_ok_and(|about| about.permissions().mode() & 0o077 != 0)
}

#[cfg(not(unix))]
fn is_open_to_others(_folder: &Path) -> bool {
    false
}

fn machine(common: &CommonArgs, findings: &mut Findings) -> anyhow::Result<()> {
    let threads = threads(common);
    findings.ok("processor", format!("{threads} threads, kernels `{}`", Dispatch::current().name()))?;
    let power = Power::read(Path::new("/"));
    match this_memory() {
        Ok((_, memory)) if power.memory_short == Some(true) => {
            let why = format!("{} available, and programs wait for memory", size(memory.available_bytes));
            findings.add("memory", State::Warning, why, "close programs, or set --memory")?;
        }
        Ok((_, memory)) => findings.ok(
            "memory",
            format!("{} available, limited by {}", size(memory.available_bytes), memory.bound_by),
        )?,
        Err(err) => findings.add("memory", State::Unknown, chain(&err), "")?,
    }
    match (power.on_battery, power.hot) {
        (None, None) => {
            findings.add("power", State::Unknown, "the system says nothing of it".to_owned(), "")?;
        }
        _ if power.spares() => {
            let why = "the battery is low, or the device is hot".to_owned();
            findings.add("power", State::Warning, why, "with --mode auto the cloud is asked more often")?;
        }
        (on_battery, _) => {
            let from = if on_battery == Some(true) { "on its battery" } else { "not on a battery" };
            findings.ok("power", format!("{from}, not hot as far as it is known"))?;
        }
    }
    match common.gpu.found() {
        Ok(gpu) => {
            let told = gpu.notices.join("; ");
            match &gpu.device {
                Some(device) => findings.ok("gpu", format!("{} {told}", baton_gpu::label(device.facts()))),
                None if told.is_empty() => findings.ok("gpu", "none: the CPU computes".to_owned()),
                None => findings.add("gpu", State::Warning, told, "the CPU computes; --gpu off says so"),
            }
        }
        Err(err) => findings.add("gpu", State::Failed, chain(&*err), "--gpu auto takes another one"),
    }
}

fn threads(common: &CommonArgs) -> NonZeroUsize {
    let all = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    common.threads.unwrap_or_else(all)
}

fn model(
    common: &CommonArgs,
    settings: &Settings,
    deep: bool,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let path = match open::model_path(common.model.as_deref(), common.models_dir.clone()) {
        Ok(path) => path,
        Err(err) => {
            let fix =
                "get one by `baton model pull`, and make it the default by `baton config set model NAME`";
            return findings.add("model", State::Failed, chain(&*err), fix);
        }
    };
    let held = Held::of(&path, common.memory, common.kv, common.kv_tokens);
    let (shape, held) = match (shape_of(&path, common.kv), held) {
        (Ok(shape), Ok(held)) => (shape, held),
        (Err(err), _) | (_, Err(err)) => {
            let fix = "pull it again (`baton model rm`, then `baton model pull`)";
            return findings.add("model", State::Failed, format!("{}: {}", path.display(), chain(&err)), fix);
        }
    };
    let weights = (shape.layer_bytes * shape.layers as f64 + shape.output_bytes) as u64;
    let about = format!(
        "{}, {} of weights, {} tokens of context ({})",
        path.display(),
        size(weights),
        held.tokens,
        held.by
    );
    let available = this_memory().map_or(u64::MAX, |(_, memory)| memory.available_bytes);
    if weights > available {
        let fix =
            "it runs, but reads weights for every token: take a smaller quantization or a smaller model";
        findings.add("model", State::Warning, format!("{about}: more than the memory"), fix)?;
    } else {
        findings.ok("model", about)?;
    }
    if deep {
        digest(common, &path, findings)?;
        speed(common, settings, path, findings)?;
    }
    Ok(())
}

/// Compares the files of a kept model with their digests.
fn digest(common: &CommonArgs, path: &Path, findings: &mut Findings) -> anyhow::Result<()> {
    let store = Store::open(common.models_dir.clone()).ok();
    let name = common.model.as_deref().and_then(Path::to_str);
    let record = store.as_ref().and_then(|store| Some((store, store.find(name?)?)));
    let Some((store, record)) = record else {
        let why = format!("no digest of {} is known; it was not pulled", path.display());
        return findings.add("digest", State::Unknown, why, "");
    };
    let wrong = store.damaged(&record)?;
    match wrong {
        None => findings.ok("digest", format!("the {} files are what was pulled", record.files.len())),
        Some(file) => {
            let fix = format!(
                "baton model rm {0}, then baton model pull {1} --name {0}",
                record.name, record.source
            );
            findings.add("digest", State::Failed, format!("{file} is not what was pulled"), &fix)
        }
    }
}

/// Compares the device's speed with what was measured before.
fn speed(
    common: &CommonArgs,
    settings: &Settings,
    model: PathBuf,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let options = ProfileOptions { model, threads: threads(common), name: String::new(), gpu: None };
    let fix = "baton profile --model FILE measures it";
    if KeptProfiles::of(&options.model, settings).is_empty() {
        return findings.add("speed", State::Unknown, "it was not measured with this model".to_owned(), fix);
    }
    match kept_drift(&options, settings) {
        Ok(None) => findings.ok("speed", "as when it was measured, within a quarter".to_owned()),
        Ok(Some(drift)) => findings.add("speed", State::Warning, drift, fix),
        Err(err) => findings.add("speed", State::Unknown, chain(&err), fix),
    }
}

async fn cloud(common: &CommonArgs, settings: &Settings, findings: &mut Findings) -> anyhow::Result<()> {
    let Some(url) = common.cloud.as_deref().filter(|_| !common.no_cloud) else {
        return findings.ok("cloud", "none is set: this device answers alone".to_owned());
    };
    let address = match reqwest::Url::parse(url) {
        Ok(address) => address,
        Err(err) => return findings.add("cloud", State::Failed, format!("{url}: {err}"), "mend --cloud"),
    };
    match settings.cloud_allowed(&address) {
        _ if common.yes => {}
        Some(true) => {}
        Some(false) => {
            let fix = "delete it in consent.json in the settings' folder to be asked again, or pass --yes";
            return findings.add("cloud", State::Warning, format!("{url} was not allowed"), fix);
        }
        None => {
            let fix = "ask something on a terminal and say yes, or pass --yes";
            return findings.add("cloud", State::Unknown, format!("nobody allowed {url} yet"), fix);
        }
    }
    let key = match common.secrets.cloud_key() {
        Ok(key) => key,
        Err(err) => return findings.add("cloud", State::Failed, chain(&*err), "mend --cloud-key-command"),
    };
    let client = match CloudClient::new(url, key) {
        Ok(client) => client,
        Err(err) => return findings.add("cloud", State::Failed, chain(&err), "mend --cloud"),
    };
    let scene = PublicName::new("scene", "chat")?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        match client.scene(&scene, None).await {
            Ok(SceneReply::Scene { .. } | SceneReply::NotModified)
            | Err(CloudFault::Refused { status: 404, .. }) => {
                times.push(begun.elapsed().as_secs_f64() * 1e3);
            }
            Err(fault) => {
                let fix = match fault {
                    CloudFault::SignIn { .. } => "check --cloud-key, or ask the operator for a key",
                    CloudFault::Overloaded { .. } => "try again later; this device answers alone meanwhile",
                    _ => "check the address and the network; this device answers alone meanwhile",
                };
                return findings.add("cloud", State::Failed, format!("{url}: {fault}"), fix);
            }
        }
    }
    let ms = median(times).unwrap_or(f64::NAN);
    findings.ok("cloud", format!("{url} takes the key and answers in {ms:.0} ms (median of {ROUNDS})"))
}

async fn serving(url: &str, findings: &mut Findings) -> anyhow::Result<()> {
    let client = http_client(url.starts_with("https:"))?;
    match client.get(format!("{url}/healthz")).send().await {
        Ok(reply) if reply.status().is_success() => {
            findings.ok("serve", format!("a program answers at {url}; `baton ps` says what it holds"))
        }
        Ok(reply) => {
            let why = format!("{url} answers {}", reply.status());
            findings.add("serve", State::Warning, why, "another program may have the port: pass --url")
        }
        Err(_) => findings.ok("serve", format!("no `baton serve` runs at {url}")),
    }
}
