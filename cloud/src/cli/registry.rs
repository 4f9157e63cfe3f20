//! `registry key|publish|list|verify`: the registry of models for devices.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, bail};
use baton_protocol::ModelVersion;
use baton_registry::envelope::{PublicKey, SigningKey};
use baton_registry::manifest::{FileDigests, Kind, Manifest};
use baton_terminal::size;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::columns::{self, Side};
use crate::config::secret_in;
use crate::fleet::catalog::Catalog;
use crate::fleet::folder::RegistryFolder;
use crate::fleet::publish::{Publication, publish};
use crate::fleet::source::{RegistryReader, RegistrySource};

/// Bytes after which the progress is shown again.
const STATUS_BYTES: u64 = 32 << 20;

/// `registry`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    baton-cloud registry key registry.key                        make a key; prints its public part\n  \
    baton-cloud registry publish small.gguf --as small@1 --licence Apache-2.0 --key registry.key --to /srv/models\n  \
    baton-cloud registry publish law.gguf --as law@1 --kind adapter --base small@1 --licence MIT --key registry.key \
    --to /srv/models\n  \
    baton-cloud registry list --from /srv/models --trust PUBLIC-KEY\n  \
    baton-cloud serve --registry /srv/models --registry-key PUBLIC-KEY\n  \
    baton-cloud rollouts set --class phone small@1\n\n\
    The folder is an OCI image layout: copy it to a bucket or a web server as it is, or to an OCI registry by \
    `oras cp --from-oci-layout`. A version never changes.")]
pub struct RegistryCommand {
    /// What to do.
    #[command(subcommand)]
    pub command: RegistryAction,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// The commands of `registry`.
#[derive(Debug, Subcommand)]
pub enum RegistryAction {
    /// Make a key that signs versions, or print the public part of one
    Key {
        /// The file of the key; keep it secret
        file: PathBuf,
    },
    /// Add a version of a model to a registry's folder
    Publish(PublishArgs),
    /// List the versions that a trusted key has signed
    List(ReadArgs),
    /// Read every byte of a registry's folder and compare the digests
    Verify(ReadArgs),
}

/// `registry publish`.
#[derive(Debug, Args)]
pub struct PublishArgs {
    /// GGUF file, the first one of a split model
    pub file: PathBuf,
    /// Name and version that it gets
    #[arg(long = "as", value_name = "NAME@VERSION")]
    pub model: ModelVersion,
    /// What it is for
    #[arg(long, value_enum, default_value_t = KindArg::Base)]
    pub kind: KindArg,
    /// The base that an adapter is for
    #[arg(long, value_name = "NAME@VERSION")]
    pub base: Option<ModelVersion>,
    /// Its licence, an SPDX expression or LicenseRef-NAME
    #[arg(long, value_name = "LICENCE")]
    pub licence: String,
    /// File of the key that signs
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// The registry's folder
    #[arg(long, value_name = "FOLDER")]
    pub to: PathBuf,
}

/// Which registry to read.
#[derive(Debug, Args)]
pub struct ReadArgs {
    /// The registry: a folder, https://HOST/PATH, s3://BUCKET/PATH or oci://HOST/NAME
    #[arg(long, value_name = "FOLDER|URL", env = "BATON_REGISTRY")]
    pub from: RegistrySource,
    /// Public key that is trusted; may be given several times
    #[arg(long, value_name = "KEY", required = true, env = "BATON_REGISTRY_KEY", value_delimiter = ' ')]
    pub trust: Vec<PublicKey>,
    /// File with a bearer token for the registry
    #[arg(long, value_name = "FILE", env = "BATON_REGISTRY_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
}

/// What a version is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KindArg {
    /// A model that writes answers.
    Base,
    /// A LoRA adapter of a base.
    Adapter,
    /// A model that makes masks beside engines that write.
    Scorer,
}

impl From<KindArg> for Kind {
    fn from(kind: KindArg) -> Kind {
        match kind {
            KindArg::Base => Kind::Base,
            KindArg::Adapter => Kind::Adapter,
            KindArg::Scorer => Kind::Scorer,
        }
    }
}

pub(super) async fn run(command: RegistryCommand, out: &mut impl Write) -> anyhow::Result<()> {
    let json = command.json;
    match command.command {
        RegistryAction::Key { file } => {
            let key = key(&file)?;
            let (id, public) = (key.id(), key.to_string());
            match json {
                true => writeln!(out, "{}", json!({ "id": id, "public_key": public })),
                false => writeln!(out, "{public}"),
            }
            .context("print")
        }
        RegistryAction::Publish(args) => {
            let manifest = published(args).await?;
            print(&[manifest], json, out)
        }
        RegistryAction::List(args) => print(&read(args).await?, json, out),
        RegistryAction::Verify(args) => {
            let RegistrySource::Folder(folder) = args.from.clone() else {
                bail!("only a folder can be verified: devices check what they fetch from a server");
            };
            let manifests = read(args).await?;
            for manifest in &manifests {
                verify(&folder, manifest)?;
            }
            print(&manifests, json, out)
        }
    }
}

/// Returns the public part of the key in a file, which is made if it is not there.
fn key(file: &Path) -> anyhow::Result<PublicKey> {
    if file.exists() {
        return Ok(signing_key(file)?.public());
    }
    let (key, secret) = SigningKey::generate()?;
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let write = options.open(file).and_then(|mut to| to.write_all(&secret).and_then(|()| to.sync_all()));
    write.with_context(|| format!("write key `{}`", file.display()))?;
    Ok(key.public())
}

pub(super) fn signing_key(file: &Path) -> anyhow::Result<SigningKey> {
    let secret = fs::read(file).with_context(|| format!("read key `{}`", file.display()))?;
    SigningKey::from_pkcs8(&secret).with_context(|| format!("read key `{}`", file.display()))
}

/// Publishes a version and shows the progress on a terminal. `stop` ends it, and the registry stays as it
/// was.
pub(super) fn publish_shown(
    folder: &RegistryFolder,
    key: &SigningKey,
    publication: &Publication,
    stop: &AtomicBool,
) -> anyhow::Result<Manifest> {
    let mut told = 0;
    let mut progress = |done: u64, of: u64| {
        if stop.load(Ordering::Relaxed) {
            bail!("stopped; the registry is as it was");
        }
        if done - told >= STATUS_BYTES && baton_terminal::stderr_is_terminal() {
            told = done;
            baton_terminal::status(&format!("{}: {} of {}", publication.model, size(done), size(of)));
        }
        Ok(())
    };
    let done = publish(folder, key, publication, &mut progress);
    baton_terminal::clear_status();
    done
}

/// Publishes a version; Ctrl-C stops it and leaves nothing behind.
async fn published(args: PublishArgs) -> anyhow::Result<Manifest> {
    let PublishArgs { file, model, kind, base, licence, key, to } = args;
    let key = signing_key(&key)?;
    let publication = Publication { model, kind: kind.into(), path: file, licence, base };
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let mut work = tokio::task::spawn_blocking(move || {
        publish_shown(&RegistryFolder::new(to), &key, &publication, &flag)
    });
    let done = tokio::select! {
        done = &mut work => done,
        signal = tokio::signal::ctrl_c() => {
            signal.context("listen for Ctrl-C")?;
            stop.store(true, Ordering::Relaxed);
            work.await
        }
    };
    done.context("publish")?
}

async fn read(args: ReadArgs) -> anyhow::Result<Vec<Manifest>> {
    let token = args.token_file.as_deref().map(|path| secret_in("--token-file", path)).transpose()?;
    let catalog = catalog(args.from, args.trust, token).await?;
    Ok(catalog.all().into_iter().map(|entry| entry.manifest.clone()).collect())
}

/// Reads what a registry has.
pub(super) async fn catalog(
    source: RegistrySource,
    trusted: Vec<PublicKey>,
    token: Option<String>,
) -> anyhow::Result<Catalog> {
    let catalog = Catalog::default();
    RegistryReader::new(source, trusted, token)?.read(&catalog).await.context("read the registry")?;
    Ok(catalog)
}

/// Fails if a file of a version is damaged or missing.
fn verify(folder: &RegistryFolder, manifest: &Manifest) -> anyhow::Result<()> {
    for file in &manifest.files {
        let path = folder.blob(&file.digest);
        let what = || format!("{}: `{}`", manifest.model, path.display());
        let mut from = fs::File::open(&path).with_context(what)?;
        let mut digests = FileDigests::default();
        let mut buffer = vec![0; 1 << 20];
        loop {
            let read = std::io::Read::read(&mut from, &mut buffer).with_context(what)?;
            if read == 0 {
                break;
            }
            digests.update(&buffer[..read]);
        }
        let found = digests.finish(file.name.clone());
        if found.digest != file.digest {
            bail!("{}: `{}` is damaged: publish the version again", manifest.model, path.display());
        }
    }
    Ok(())
}

fn print(manifests: &[Manifest], json: bool, out: &mut impl Write) -> anyhow::Result<()> {
    if json {
        let list: Vec<Value> = manifests.iter().map(manifest_json).collect();
        return writeln!(out, "{}", Value::Array(list)).context("print");
    }
    let cells = |manifest: &Manifest| {
        [
            manifest.model.to_string(),
            manifest.kind.as_str().to_owned(),
            manifest.family.clone(),
            size(manifest.bytes()),
            manifest.base.as_ref().map_or(String::new(), ToString::to_string),
            manifest.licence.clone(),
        ]
    };
    let titles = ["version", "kind", "family", "size", "base", "licence"];
    columns::write(titles.map(|title| (title, Side::Left)), manifests.iter().map(cells), out).context("print")
}

fn manifest_json(manifest: &Manifest) -> Value {
    let files = manifest.files.iter().map(|file| {
        json!({ "name": file.name, "bytes": file.bytes, "digest": file.digest, "chunks": file.chunks.len() })
    });
    json!({
        "model": manifest.model,
        "kind": manifest.kind,
        "family": manifest.family,
        "bytes": manifest.bytes(),
        "base": manifest.base,
        "licence": manifest.licence,
        "tokenizer_sha256": manifest.tokenizer_sha256,
        "files": files.collect::<Vec<Value>>(),
    })
}
