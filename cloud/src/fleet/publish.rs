//! Publishes a version of a model: copies its files into a registry's folder, signs its manifest, and adds it
//! to the index.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use baton_engine::Model;
use baton_engine::gguf::Gguf;
use baton_protocol::ModelVersion;
use baton_registry::envelope::SigningKey;
use baton_registry::layout::{DOCUMENT_BYTES_MAX, Index, OciManifest};
use baton_registry::manifest::{FileDigests, FileEntry, Kind, Manifest, SCHEMA};

use super::folder::{RegistryFolder, settle};

/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// What to publish.
#[derive(Debug, Clone)]
pub struct Publication {
    /// Which version it becomes.
    pub model: ModelVersion,
    /// What it is for.
    pub kind: Kind,
    /// Its GGUF file, the first one of a split model.
    pub path: PathBuf,
    /// The licence.
    pub licence: String,
    /// The base of an adapter.
    pub base: Option<ModelVersion>,
}

/// Publishes a version. `progress` is told the bytes that were copied, and of how many.
///
/// # Errors
/// Fails if the version exists with other bytes, a file cannot be read or written, or the manifest would be
/// wrong. The registry then stays as it was.
pub fn publish(
    folder: &RegistryFolder,
    key: &SigningKey,
    publication: &Publication,
    progress: &mut dyn FnMut(u64, u64) -> anyhow::Result<()>,
) -> anyhow::Result<Manifest> {
    let Publication { model, kind, path, licence, base } = publication;
    let gguf = Gguf::open(path).with_context(|| format!("read `{}`", path.display()))?;
    let family = gguf.metadata().opt_str("general.architecture")?.unwrap_or("unknown").to_owned();
    let tokenizer_sha256 = match kind {
        Kind::Adapter => None,
        Kind::Base | Kind::Scorer => {
            let opened = Model::open(path).with_context(|| format!("open model `{}`", path.display()))?;
            Some(opened.tokenizer().digest_hex().to_owned())
        }
    };
    let paths: Vec<PathBuf> = gguf.part_paths().into_iter().flatten().map(Path::to_owned).collect();
    drop(gguf);
    let root = || format!("write registry `{}`", folder.root().display());
    folder.make().with_context(root)?;
    let files = copy_all(folder, &paths, progress)?;
    let lock = folder.lock().with_context(root)?;
    let mut index = read_index(folder)?;
    let (licence, base) = (licence.clone(), base.clone());
    let model = model.clone();
    let manifest =
        Manifest { schema: SCHEMA, model, kind: *kind, family, tokenizer_sha256, licence, base, files };
    manifest.check()?;
    refuse_other(folder, &index, &manifest)?;
    let envelope = key.sign(&manifest).to_json();
    folder.write(&envelope).with_context(root)?;
    let oci = OciManifest::new(&envelope, &manifest.files).to_json();
    folder.write(&oci).with_context(root)?;
    index.add(&manifest.model, &oci);
    folder.write_index(&index.to_json()).with_context(root)?;
    drop(lock);
    Ok(manifest)
}

/// Reads the index of a folder; an empty one if there is none.
fn read_index(folder: &RegistryFolder) -> anyhow::Result<Index> {
    let what = || format!("read the index of registry `{}`", folder.root().display());
    let json = folder.index(DOCUMENT_BYTES_MAX).with_context(what)?;
    json.map_or(Ok(Index::default()), |json| Index::parse(&json)).with_context(what)
}

/// Fails if the version is there with other files: a version never changes.
fn refuse_other(folder: &RegistryFolder, index: &Index, new: &Manifest) -> anyhow::Result<()> {
    let Some((_, found)) = index.versions().find(|(model, _)| *model == new.model) else { return Ok(()) };
    let oci = folder.read(&found.digest, DOCUMENT_BYTES_MAX).context("read the version that is there")?;
    let same = OciManifest::parse(&oci)?.has_layers(&new.files);
    if !same {
        bail!(
            "{} is in the registry with other files: a version never changes, take the next number",
            new.model
        );
    }
    Ok(())
}

/// Copies files under their digests.
fn copy_all(
    folder: &RegistryFolder,
    paths: &[PathBuf],
    progress: &mut dyn FnMut(u64, u64) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<FileEntry>> {
    let mut whole = 0;
    for path in paths {
        whole += std::fs::metadata(path).with_context(|| format!("read `{}`", path.display()))?.len();
    }
    let mut done = 0;
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.with_context(|| format!("the name of `{}` is not UTF-8", path.display()))?;
        let mut told = |bytes: u64| {
            done += bytes;
            progress(done, whole)
        };
        let entry = copy(folder, path, name.to_owned(), &mut told);
        files.push(entry.with_context(|| format!("copy `{}` into the registry", path.display()))?);
    }
    Ok(files)
}

fn copy(
    folder: &RegistryFolder,
    path: &Path,
    name: String,
    told: &mut dyn FnMut(u64) -> anyhow::Result<()>,
) -> anyhow::Result<FileEntry> {
    let mut from = File::open(path)?;
    let mut to = tempfile::NamedTempFile::new_in(folder.root())?;
    let (mut digests, mut buffer) = (FileDigests::default(), vec![0; COPY_BYTES]);
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            Err(err) => return Err(err.into()),
        };
        digests.update(&buffer[..read]);
        to.write_all(&buffer[..read])?;
        told(read as u64)?;
    }
    let entry = digests.finish(name);
    let path = folder.blob(&entry.digest);
    if !path.exists() {
        settle(to, &path)?;
    }
    Ok(entry)
}
