//! The folder of models: each model has a folder of its name, with its files and a record.
//!
//! A model is whole or absent. It is made under `.partial/NAME` and renamed into place when every byte is
//! durable and the record is written. A crash at any point leaves either the model or what goes on with the
//! next pull. Names hold no folder, so nothing outside the store is touched.

use super::about::About;
use super::lock::Lock;
use super::part;
use baton_engine::gguf::Gguf;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

/// Environment variable that names the folder.
pub const MODELS_DIR_ENV: &str = "BATON_MODELS";
/// Where models are made.
const PARTIAL: &str = ".partial";
/// A model's record.
const RECORD: &str = "model.json";
/// A record with more bytes is none.
const RECORD_BYTES_MAX: u64 = 4 << 20;
/// The version of the record's form.
const RECORD_VERSION: u32 = 1;
/// Longest name of a model, in bytes.
const NAME_BYTES_MAX: usize = 128;
/// What names of files end with while they are downloaded.
const PART: &str = ".part";

/// Why the store cannot be used, or has not what was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no home folder, and no folder was given.
    #[error("no folder for models: pass --models-dir or set {MODELS_DIR_ENV}")]
    NoFolder,
    /// The name cannot be one.
    #[error("`{0}` cannot name a model: want letters, digits and `-_.`, at most {NAME_BYTES_MAX}")]
    BadName(String),
    /// No model has the name.
    #[error("no file and no model is called `{name}`: {there}")]
    NoModel {
        /// The name.
        name: String,
        /// The models that are there.
        there: String,
    },
    /// Another program pulls or removes the model.
    #[error("another program is at work on `{0}`: try again when it has ended")]
    Busy(String),
    /// A file or folder cannot be used.
    #[error("{what} `{}`", path.display())]
    File {
        /// What was done with it.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        #[source]
        err: io::Error,
    },
}

impl StoreError {
    fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |err| Self::File { what, path, err }
    }
}

/// One file of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptFile {
    /// The file's name in the model's folder.
    pub file: String,
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256 in lower-case hex.
    pub sha256: String,
}

/// What the store knows of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    version: u32,
    /// The name that options take.
    pub name: String,
    /// Where it came from, in the form that `pull` takes.
    pub source: String,
    /// Its files in order; more than one if it is split.
    pub files: Vec<KeptFile>,
    /// What it says about itself.
    pub about: About,
}

impl Record {
    /// Makes the record of a model.
    pub(super) fn new(name: String, source: String, files: Vec<KeptFile>, about: About) -> Self {
        Self { version: RECORD_VERSION, name, source, files, about }
    }

    /// Returns the bytes of all files together.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// A model that was begun and is not whole yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Begun {
    /// The name that it will have.
    pub name: String,
    /// Bytes that are there.
    pub bytes: u64,
    /// Bytes that it will have, as far as they are known.
    pub of: Option<u64>,
}

/// The folder of models.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

/// Returns the platform's folder for models, from its usual environment variables.
fn platform_folder() -> Option<PathBuf> {
    data_folder().map(|data| data.join("models"))
}

/// Returns the platform's folder for data, from its usual environment variables.
pub(crate) fn data_folder() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let data = if cfg!(target_os = "macos") {
        var("HOME").map(|home| home.join("Library/Application Support"))
    } else {
        var("XDG_DATA_HOME").or_else(|| var("HOME").map(|home| home.join(".local/share")))
    };
    data.map(|data| data.join("baton"))
}

/// Returns whether this can name a model: it is also a plain file name, and not hidden.
fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let begins = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    begins && name.len() <= NAME_BYTES_MAX && name.bytes().all(plain)
}

/// Returns the name of a model whose file has this name: lower case, other characters replaced.
pub(super) fn name_of(file: &str) -> String {
    let stem = file.strip_suffix(".gguf").unwrap_or(file);
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '.' | '_') { c.to_ascii_lowercase() } else { '-' }
    };
    let name: String = stem.chars().map(plain).take(NAME_BYTES_MAX).collect();
    let name = name.trim_start_matches(['-', '.', '_']);
    if name.is_empty() { "model".to_owned() } else { name.to_owned() }
}

/// Returns the name in the form of the store.
///
/// # Errors
/// [`StoreError::BadName`].
pub(super) fn checked_name(name: &str) -> Result<String, StoreError> {
    is_name(name).then(|| name.to_ascii_lowercase()).ok_or_else(|| StoreError::BadName(name.to_owned()))
}

impl Store {
    /// Uses the given folder, or else the platform's. It is made when something is pulled.
    ///
    /// # Errors
    /// [`StoreError::NoFolder`] if the platform has none.
    pub fn open(folder: Option<PathBuf>) -> Result<Self, StoreError> {
        folder.or_else(platform_folder).map(|folder| Self { folder }).ok_or(StoreError::NoFolder)
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the record of the model of this name, if it is there.
    pub fn find(&self, name: &str) -> Option<Record> {
        let name = checked_name(name).ok()?;
        read_record(&self.folder.join(&name)).filter(|record| record.name == name)
    }

    /// Returns the path of a model's file, the first one of a split model.
    ///
    /// # Errors
    /// [`StoreError::NoModel`] naming those that are there.
    pub fn path(&self, name: &str) -> Result<PathBuf, StoreError> {
        let record = self.find(name).ok_or_else(|| self.missing(name))?;
        let first = record.files.first().ok_or_else(|| self.missing(name))?;
        Ok(self.folder.join(&record.name).join(&first.file))
    }

    /// Reads the files of a model whole; returns the first one that is not what was pulled.
    ///
    /// # Errors
    /// [`StoreError::File`] if a file cannot be read.
    pub fn damaged(&self, record: &Record) -> Result<Option<String>, StoreError> {
        for kept in &record.files {
            let path = self.folder.join(&record.name).join(&kept.file);
            let digest = digest_of(&path);
            let digest = digest.map_err(|err| StoreError::File { what: "read", path, err })?;
            if digest != kept.sha256 {
                return Ok(Some(kept.file.clone()));
            }
        }
        Ok(None)
    }

    /// Returns the error of a model that is not there.
    fn missing(&self, name: &str) -> StoreError {
        let names: Vec<String> = self.list().into_iter().map(|record| format!("`{}`", record.name)).collect();
        let there = match names.is_empty() {
            true => format!("none is in `{}`; `baton model pull` gets one", self.folder.display()),
            false => format!("there are {}", names.join(", ")),
        };
        StoreError::NoModel { name: name.to_owned(), there }
    }

    /// Returns the models by name. What is no model of this store is left out.
    pub fn list(&self) -> Vec<Record> {
        let names = names_in(&self.folder);
        names.iter().filter_map(|name| self.find(name)).collect()
    }

    /// Returns the models that were begun and are not whole, by name.
    pub fn begun(&self) -> Vec<Begun> {
        let partial = self.folder.join(PARTIAL);
        let begun = |name: String| {
            let folder = partial.join(&name);
            let parts: Vec<(u64, Option<u64>)> = names_in(&folder)
                .iter()
                .filter(|file| file.ends_with(PART))
                .filter_map(|file| part::progress(&folder.join(file)))
                .collect();
            let of = parts.iter().map(|(_, of)| *of).sum();
            (!parts.is_empty()).then(|| Begun { name, bytes: parts.iter().map(|(bytes, _)| bytes).sum(), of })
        };
        names_in(&partial).into_iter().filter(|name| is_name(name)).filter_map(begun).collect()
    }

    /// Takes the lock of a name, unless another program has it.
    pub(super) fn try_lock(&self, name: &str) -> Result<Option<Lock>, StoreError> {
        let partial = self.folder.join(PARTIAL);
        fs::create_dir_all(&partial).map_err(StoreError::file("make", &partial))?;
        let path = partial.join(format!(".{name}.lock"));
        Lock::try_take(&path).map_err(StoreError::file("lock", &path))
    }

    /// Makes the folder in which a model of this name is made, and returns it. A model that was whole when a
    /// crash kept it from its place gets there now. The caller holds the lock.
    pub(super) fn staging(&self, name: &str) -> Result<PathBuf, StoreError> {
        let folder = self.folder.join(PARTIAL).join(name);
        if let Some(record) = read_record(&folder) {
            self.put(&record)?;
        }
        fs::create_dir_all(&folder).map_err(StoreError::file("make", &folder))?;
        Ok(folder)
    }

    /// Puts a model into its place: its files are whole in its staging folder. The caller holds the lock.
    pub(super) fn install(&self, record: &Record) -> Result<(), StoreError> {
        let folder = self.folder.join(PARTIAL).join(&record.name);
        let path = folder.join(RECORD);
        let json = serde_json::to_vec_pretty(record).map_err(io::Error::from);
        // From here on the model is whole: a crash leaves it to the next `staging`.
        json.and_then(|json| write_whole(&path, &json)).map_err(StoreError::file("write", &path))?;
        self.put(record)
    }

    fn put(&self, record: &Record) -> Result<(), StoreError> {
        let folder = self.folder.join(PARTIAL).join(&record.name);
        let wanted = |file: &String| file == RECORD || record.files.iter().any(|kept| kept.file == *file);
        for file in names_in(&folder).iter().filter(|file| !wanted(file)) {
            let path = folder.join(file);
            fs::remove_file(&path).map_err(StoreError::file("remove", &path))?;
        }
        sync_folder(&folder).map_err(StoreError::file("write", &folder))?;
        let place = self.folder.join(&record.name);
        let old = self.folder.join(PARTIAL).join(format!(".{}.old", record.name));
        remove_folder(&old)?;
        if place.exists() {
            fs::rename(&place, &old).map_err(StoreError::file("replace", &place))?;
        }
        fs::rename(&folder, &place).map_err(StoreError::file("make", &place))?;
        sync_folder(&self.folder).map_err(StoreError::file("write", &self.folder))?;
        remove_folder(&old)
    }

    /// Removes a model, or what was begun of it. Returns the bytes that it had.
    ///
    /// # Errors
    /// [`StoreError`] if there is none, it is being pulled, or it cannot be removed.
    pub fn remove(&self, name: &str) -> Result<u64, StoreError> {
        let name = checked_name(name)?;
        let begun = self.begun().into_iter().find(|begun| begun.name == name);
        let whole = self.find(&name);
        if begun.is_none() && whole.is_none() {
            return Err(self.missing(&name));
        }
        let Some(_lock) = self.try_lock(&name)? else { return Err(StoreError::Busy(name)) };
        // Renamed first: a model without some of its files is never in its place.
        let (place, gone) = (self.folder.join(&name), self.folder.join(PARTIAL).join(format!(".{name}.old")));
        remove_folder(&gone)?;
        if place.exists() {
            fs::rename(&place, &gone).map_err(StoreError::file("remove", &place))?;
        }
        remove_folder(&gone)?;
        remove_folder(&self.folder.join(PARTIAL).join(&name))?;
        Ok(whole.map_or(0, |record| record.bytes()) + begun.map_or(0, |begun| begun.bytes))
    }
}

/// Returns the path of the file that becomes `file` when it is whole.
pub(super) fn part_path(staging: &Path, file: &str) -> PathBuf {
    staging.join(format!("{file}{PART}"))
}

/// Renames the downloaded files to their own names, and returns the path of the first one.
pub(super) fn name_files(staging: &Path, files: &[KeptFile]) -> Result<PathBuf, StoreError> {
    for KeptFile { file, .. } in files {
        let (from, to) = (part_path(staging, file), staging.join(file));
        fs::rename(&from, &to).map_err(StoreError::file("name", &to))?;
    }
    Ok(staging.join(files.first().map_or("", |first| &first.file)))
}

/// Gives files their names while they are downloaded: a crash may have left them with their own.
pub(super) fn unname_files<'a>(
    staging: &Path,
    files: impl IntoIterator<Item = &'a str>,
) -> Result<(), StoreError> {
    for file in files {
        let (from, to) = (staging.join(file), part_path(staging, file));
        if from.exists() && !to.exists() {
            fs::rename(&from, &to).map_err(StoreError::file("name", &to))?;
        }
    }
    Ok(())
}

/// Returns the model file that an option means: a file, or a model of the store by its name.
///
/// # Errors
/// [`StoreError`] if it is neither.
pub fn resolve(given: &Path, folder: Option<PathBuf>) -> Result<PathBuf, StoreError> {
    let name = given.to_str().filter(|name| is_name(name));
    match name {
        Some(name) if !given.exists() => Store::open(folder)?.path(name),
        // What is no name is a path; if it is not there, opening it says so.
        _ => Ok(given.to_owned()),
    }
}

/// Returns the paths of a model's files: all parts of a split one.
pub(crate) fn files_of(path: &Path) -> Result<Vec<PathBuf>, baton_engine::gguf::GgufError> {
    let gguf = Gguf::open(path)?;
    let paths = gguf.part_paths().into_iter().flatten().map(Path::to_owned).collect();
    Ok(paths)
}

fn read_record(folder: &Path) -> Option<Record> {
    let path = folder.join(RECORD);
    if fs::metadata(&path).ok()?.len() > RECORD_BYTES_MAX {
        return None;
    }
    let record: Record = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
    // A record may come from elsewhere: its files are plain names in this folder, and are there.
    let is_there = |file: &KeptFile| {
        let plain = Path::new(&file.file).file_name().is_some_and(|name| name == file.file.as_str());
        plain && fs::metadata(folder.join(&file.file)).is_ok_and(|found| found.len() == file.bytes)
    };
    let whole = record.version == RECORD_VERSION && is_name(&record.name) && !record.files.is_empty();
    (whole && record.files.iter().all(is_there)).then_some(record)
}

/// Returns the names in a folder, sorted; none if it is not there.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn remove_folder(folder: &Path) -> Result<(), StoreError> {
    match fs::remove_dir_all(folder) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => Err(StoreError::file("remove", folder)(err)),
        _ => Ok(()),
    }
}

/// Returns the SHA-256 of a file in lower-case hex.
fn digest_of(path: &Path) -> io::Result<String> {
    let (mut file, mut digest, mut part) = (File::open(path)?, Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut part)? {
            0 => return Ok(hex::encode(digest.finalize())),
            read => digest.update(&part[..read]),
        }
    }
}

/// Writes a file, whole or not at all, also if the machine stops.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.and_then(|()| fs::rename(&new, path))
}

/// Makes the names in a folder durable.
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests;
