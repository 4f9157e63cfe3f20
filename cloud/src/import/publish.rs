//! The folder that a job writes into, its manifest, and the moment in which it becomes the published model.
//!
//! Always: the folder has another name until it is whole. One job for a name runs at a time. What an earlier
//! job has left under that other name is removed.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Figures, ImportJob, JobControl, JobError, Step, stop_asked};

/// The manifest's file, in the published folder.
const MANIFEST: &str = "manifest.json";
/// The most bytes of a model card that are read.
const CARD_BYTES_MAX: u64 = 64 << 10;
/// Bytes that are hashed at a time.
const HASHED_BYTES: usize = 1 << 20;

/// Why files cannot be written or published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// A file or folder cannot be used.
    #[error("{what} `{}`", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        #[source]
        err: io::Error,
    },
    /// A model of this name is published.
    #[error("`{}` is published already: --replace replaces it", path.display())]
    Exists {
        /// Its folder.
        path: PathBuf,
    },
    /// Another job imports a model of this name.
    #[error("another job imports to `{}`", path.display())]
    Busy {
        /// The folder that it will publish.
        path: PathBuf,
    },
}

/// A file of a published model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileMark {
    /// Its name in the folder.
    pub name: String,
    /// What it is: `model`, `adapter` or `heads`.
    pub kind: String,
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256 in lower-case hex.
    pub sha256: String,
}

/// What a published model is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Its name.
    pub name: String,
    /// `general.architecture` of its file.
    pub family: String,
    /// The formats of its weights.
    pub quantization: String,
    /// The digest of its tokenizer.
    pub tokenizer_sha256: String,
    /// Its licence, if it is known.
    pub licence: Option<String>,
    /// Its files, the model first.
    pub files: Vec<FileMark>,
    /// What was measured before it was published.
    pub gate: Figures,
}

/// What a manifest is made of, beside the files.
pub(super) struct Facts<'a> {
    pub(super) job: &'a ImportJob,
    pub(super) family: &'a str,
    pub(super) tokenizer_sha256: &'a str,
    pub(super) figures: Figures,
    /// Names of the adapters' files.
    pub(super) adapters: &'a [String],
    pub(super) has_heads: bool,
}

/// A folder that is not published yet. Dropped, it is removed.
pub(super) struct Staging {
    folder: PathBuf,
    target: PathBuf,
    /// Held until the job is over.
    _lock: File,
}

impl Staging {
    /// Begins an empty folder beside the published ones.
    pub(super) fn begin(into: &Path, name: &str, replace: bool) -> Result<Staging, PublishError> {
        let target = into.join(name);
        fs::create_dir_all(into).map_err(failed("make the folder", into))?;
        let lock_path = into.join(format!(".{name}.lock"));
        let lock = File::create(&lock_path).map_err(failed("make the file", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(PublishError::Busy { path: target }),
            Err(TryLockError::Error(err)) => return Err(failed("lock", &lock_path)(err)),
        }
        if target.exists() && !replace {
            return Err(PublishError::Exists { path: target });
        }
        let folder = into.join(format!(".{name}.importing"));
        clear(&folder).map_err(failed("remove what an earlier job has left in", &folder))?;
        fs::create_dir(&folder).map_err(failed("make the folder", &folder))?;
        Ok(Staging { folder, target, _lock: lock })
    }

    /// Returns the place of a file that will be published.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the place of a file that will not be published.
    pub(super) fn scratch(&self, name: &str) -> PathBuf {
        self.folder.join(format!(".{name}"))
    }

    /// Removes a file.
    pub(super) fn forget(&self, path: &Path) -> Result<(), PublishError> {
        fs::remove_file(path).map_err(failed("remove", path))
    }

    /// Writes a file.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), PublishError> {
        let path = self.path(name);
        fs::write(&path, text).map_err(failed("write", &path))
    }

    /// Gives the folder its name, in place of a published one if there is one.
    pub(super) fn publish(self) -> Result<(), PublishError> {
        for entry in fs::read_dir(&self.folder).map_err(failed("read", &self.folder))? {
            let path = entry.map_err(failed("read", &self.folder))?.path();
            File::open(&path).and_then(|file| file.sync_all()).map_err(failed("save", &path))?;
        }
        if self.target.exists() {
            swap(&self.folder, &self.target).map_err(failed("replace", &self.target))?;
        } else {
            fs::rename(&self.folder, &self.target).map_err(failed("name", &self.target))?;
        }
        let parent = self.target.parent().unwrap_or(Path::new("."));
        File::open(parent).and_then(|folder| folder.sync_all()).map_err(failed("save", parent))
    }
}

impl Drop for Staging {
    /// Removes what was not published, or what was replaced.
    fn drop(&mut self) {
        if let Err(err) = clear(&self.folder) {
            tracing::warn!(folder = %self.folder.display(), err = &err as &dyn std::error::Error, "is left");
        }
    }
}

/// Exchanges two folders in one step.
#[cfg(target_os = "linux")]
fn swap(one: &Path, other: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).map_err(io::Error::from)
}

/// Exchanges two folders. For a moment there is none.
#[cfg(not(target_os = "linux"))]
fn swap(one: &Path, other: &Path) -> io::Result<()> {
    let aside = one.with_extension("replaced");
    clear(&aside)?;
    fs::rename(other, &aside)?;
    fs::rename(one, other)?;
    fs::rename(&aside, one)
}

fn clear(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PublishError {
    let path = path.to_owned();
    move |err| PublishError::File { what, path, err }
}

/// Hashes the files and writes the manifest into the folder.
pub(super) fn manifest(
    staging: &Staging,
    facts: &Facts<'_>,
    control: &mut dyn JobControl,
) -> Result<Manifest, JobError> {
    let Facts { job, adapters, .. } = facts;
    let model = format!("{}.gguf", job.name);
    let licence = job.licence.clone().or_else(|| licence(&job.dir));
    let mut names = vec![(model, "model")];
    names.extend(adapters.iter().map(|name| (name.clone(), "adapter")));
    names.extend(facts.has_heads.then(|| (format!("{}.heads.json", job.name), "heads")));
    let mut files = Vec::new();
    for (at, (name, kind)) in names.iter().enumerate() {
        control.progress(Step::Publish, at as u64, names.len() as u64);
        let (bytes, sha256) = hashed(&staging.path(name), control)?;
        files.push(FileMark { name: name.clone(), kind: (*kind).to_owned(), bytes, sha256 });
    }
    let manifest = Manifest {
        name: job.name.clone(),
        family: facts.family.to_owned(),
        quantization: job.quantization.to_string(),
        tokenizer_sha256: facts.tokenizer_sha256.to_owned(),
        licence,
        files,
        gate: facts.figures,
    };
    let text = serde_json::to_string_pretty(&manifest).expect("a manifest has string keys only");
    staging.write(MANIFEST, &format!("{text}\n"))?;
    Ok(manifest)
}

/// Returns the licence that the folder's model card names.
fn licence(dir: &Path) -> Option<String> {
    let mut card = String::new();
    File::open(dir.join("README.md")).ok()?.take(CARD_BYTES_MAX).read_to_string(&mut card).ok()?;
    licence_in(&card)
}

/// Returns the value of `license` in the header of a model card.
fn licence_in(card: &str) -> Option<String> {
    let mut lines = card.lines();
    lines.next().filter(|line| line.trim_end() == "---")?;
    let header = lines.take_while(|line| line.trim_end() != "---");
    let named = header.filter_map(|line| line.strip_prefix("license:")).next()?;
    let name = named.trim().trim_matches(['"', '\'']);
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._+".contains(&byte);
    (!name.is_empty() && name.len() <= 64 && name.bytes().all(is_name)).then(|| name.to_owned())
}

fn hashed(path: &Path, control: &dyn JobControl) -> Result<(u64, String), JobError> {
    let mut file = File::open(path).map_err(failed("read", path))?;
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    let mut part = vec![0; HASHED_BYTES];
    loop {
        stop_asked(control)?;
        match file.read(&mut part).map_err(failed("read", path))? {
            0 => return Ok((bytes, hex::encode(hash.finalize()))),
            read => {
                hash.update(&part[..read]);
                bytes += read as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_card_names_the_licence() {
        let check = |card: &str, want: Option<&str>| assert_eq!(licence_in(card).as_deref(), want, "{card}");
        check("---\nlanguage: en\nlicense: apache-2.0\n---\n# Model\n", Some("apache-2.0"));
        check("---\nlicense: \"mit\"\n---\n", Some("mit"));
        check("---\nlanguage: en\n---\nlicense: mit\n", None);
        check("# Model\nlicense: mit\n", None);
        check("---\nlicense: a b\n---\n", None);
        check("", None);
    }

    #[test]
    fn a_folder_is_published_as_a_whole_or_removed() {
        let home = tempfile::tempdir().unwrap();
        let names = || {
            let entries = fs::read_dir(home.path()).unwrap();
            let mut names: Vec<String> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.retain(|name| name != ".m.lock");
            names.sort();
            names
        };
        let write = |staging: &Staging, text: &str| staging.write("file", text).unwrap();
        let begun = |replace| Staging::begin(home.path(), "m", replace);
        let first = begun(false).unwrap();
        write(&first, "one");
        assert!(matches!(begun(false).err(), Some(PublishError::Busy { .. })));
        assert_eq!(names(), [".m.importing"]);
        drop(first);
        assert_eq!(names(), Vec::<String>::new(), "nothing is left");
        fs::create_dir(home.path().join(".m.importing")).unwrap();
        fs::write(home.path().join(".m.importing/half"), "of a killed job").unwrap();
        let second = begun(false).unwrap();
        assert!(!second.path("half").exists());
        write(&second, "two");
        second.publish().unwrap();
        assert_eq!(names(), ["m"]);
        assert!(matches!(begun(false).err(), Some(PublishError::Exists { .. })));
        let third = begun(true).unwrap();
        write(&third, "three");
        assert_eq!(fs::read_to_string(home.path().join("m/file")).unwrap(), "two", "until it is replaced");
        third.publish().unwrap();
        assert_eq!(fs::read_to_string(home.path().join("m/file")).unwrap(), "three");
        assert_eq!(names(), ["m"], "the old one is removed");
    }
}
