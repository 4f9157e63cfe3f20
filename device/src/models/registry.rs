//! Fetches a version of a model from a registry: its signed manifest, then its files, chunk by chunk, from
//! the places that have them, one after another.
//!
//! Always: every byte is as a trusted key has signed it before the model is in the store. A place that sends
//! other bytes costs a chunk; one that hangs or dribbles costs seconds. Then the next place is asked. The one
//! that failed is asked only after all others.

use super::fetch::Remote;
use super::http::{Http, shown};
use super::part::Want;
use super::pull::{Pulled, Report, Stop, Work, blocking, no_look, plain_file};
use super::store::{KeptFile, Record, Store};
use super::{PullError, StoreError, fit};
use baton_protocol::ModelVersion;
use baton_registry::envelope::{ENVELOPE_BYTES_MAX, Envelope, PublicKey};
use baton_registry::layout::Location;
use baton_registry::manifest::{CHUNK_BYTES, FileEntry, Kind, Manifest};
use baton_registry::sync::SyncModel;
use reqwest::Url;
use std::sync::Arc;

/// What records of versions from a registry begin with, before `NAME@VERSION`.
const SOURCE: &str = "registry:";

/// Where the bytes of a registry are, and what is sent with a request for them.
#[derive(Debug, Clone)]
pub struct Place {
    location: Location,
    http: Http,
}

impl Place {
    /// Makes a place. `token` is sent to its origin alone.
    ///
    /// # Errors
    /// [`PullError`] if the address or the token cannot be used.
    pub fn new(location: Location, token: Option<String>) -> Result<Self, PullError> {
        let base = match &location {
            Location::Web(base) => base.clone(),
            Location::Oci { origin, .. } => origin.clone(),
        };
        Ok(Self { location, http: Http::new(&base, token)? })
    }
}

/// Places in the order in which they are asked: first those that have not failed.
struct Sources<'a> {
    order: Vec<&'a Place>,
    /// How many at the end have failed.
    failed: usize,
}

impl<'a> Sources<'a> {
    /// Returns the next place, and its client. Only the one place that may be right is waited for long.
    fn next(&self) -> Option<(&'a Place, Http)> {
        let place = *self.order.first()?;
        let is_alone = self.order.len() - self.failed == 1 || self.order.len() == 1;
        Some((place, if is_alone { place.http.clone() } else { place.http.hasty() }))
    }

    /// The place was in vain: it is asked last from now on.
    fn in_vain(&mut self) {
        self.order.rotate_left(1);
        self.failed = (self.failed + 1).min(self.order.len());
    }
}

/// What to fetch, and whom to trust.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The version.
    pub model: SyncModel,
    /// Where its bytes are, in the order in which the places are asked.
    pub places: Vec<Place>,
    /// Keys that may have signed it.
    pub trusted: Vec<PublicKey>,
}

/// Returns the name of a version in the store.
pub fn name_in_store(model: &ModelVersion) -> String {
    format!("{}.v{}", model.name(), model.version())
}

/// Returns the version that a record of the store is of, if it came from a registry.
pub fn version_of(record: &Record) -> Option<ModelVersion> {
    record.source.strip_prefix(SOURCE)?.parse().ok()
}

/// Fetches a version into the store, unless it is there.
///
/// # Errors
/// [`PullError`] naming the cause. What was downloaded stays for the next try, if it is right.
pub async fn fetch_version(
    store: &Store,
    wanted: &Wanted,
    report: Report,
    stop: Stop,
) -> Result<Pulled, PullError> {
    let mut places = Sources { order: wanted.places.iter().collect(), failed: 0 };
    let manifest = manifest(wanted, &mut places, &stop).await?;
    let (name, source) = (name_in_store(&manifest.model), format!("{SOURCE}{}", manifest.model));
    let mut work = Work::begin(store, false, &name, source, manifest.bytes(), report, stop).await?;
    let same = |(kept, listed): (&KeptFile, &FileEntry)| {
        (&kept.file, kept.bytes, &kept.sha256) == (&listed.name, listed.bytes, &listed.digest.hex())
    };
    let is_there = |record: &Record| {
        record.files.len() == manifest.files.len() && record.files.iter().zip(&manifest.files).all(same)
    };
    if let Some(pulled) = work.is_there(store, is_there)? {
        return Ok(pulled);
    }
    if manifest.kind != Kind::Adapter {
        work.allow(fit::check_length(manifest.bytes()))?;
    }
    manifest.files.iter().try_for_each(|file| plain_file(&file.name))?;
    work.check_space(manifest.files.iter().map(|file| (file.name.as_str(), Some(file.bytes))))?;
    let mut kept = Vec::new();
    for file in &manifest.files {
        kept.push(from_any(&mut work, &mut places, file).await?);
    }
    match manifest.kind {
        Kind::Adapter => work.finish_adapter(store, kept).await,
        Kind::Base | Kind::Scorer => work.finish(store, kept).await,
    }
}

/// Fetches a file from the first place that has it whole. A place that fails is asked last from then on.
async fn from_any(
    work: &mut Work,
    places: &mut Sources<'_>,
    file: &FileEntry,
) -> Result<KeptFile, PullError> {
    let mut failed = None;
    for _ in 0..places.order.len() {
        let Some((place, http)) = places.next() else { break };
        let url = url(place, &place.location.blob_url(&file.digest))?;
        let chunks = (file.chunk_bytes == CHUNK_BYTES).then(|| Arc::from(file.chunks.as_slice()));
        // Bytes of one digest are the same everywhere, so a download goes on at another place. The address
        // says whose entity tag is known.
        let want =
            Want { url: shown(&url), bytes: Some(file.bytes), sha256: Some(file.digest.hex()), chunks };
        let remote = Remote { url, file: file.name.clone(), repo: None };
        match work.download(&http, &remote, want, no_look()).await {
            Ok(kept) => return Ok(kept),
            Err(err) if is_of_place(&err) => {
                work.note(format!("{}: {}", place.location, baton_terminal::chain(&err)));
                failed = Some(err);
            }
            Err(err) => return Err(err),
        }
        places.in_vain();
    }
    Err(failed.unwrap_or_else(no_place))
}

/// Reads the signed manifest from the first place that has it. A place that fails is asked last from then on.
async fn manifest(wanted: &Wanted, places: &mut Sources<'_>, stop: &Stop) -> Result<Manifest, PullError> {
    let mut failed = None;
    for _ in 0..places.order.len() {
        let Some((place, http)) = places.next() else { break };
        match stop.or(manifest_at(wanted, place, &http)).await? {
            Ok(manifest) => return Ok(manifest),
            Err(err) if is_of_place(&err) => failed = Some(err),
            Err(err) => return Err(err),
        }
        places.in_vain();
    }
    Err(failed.unwrap_or_else(no_place))
}

async fn manifest_at(wanted: &Wanted, place: &Place, http: &Http) -> Result<Manifest, PullError> {
    let SyncModel { model, envelope, .. } = &wanted.model;
    let url = url(place, &place.location.blob_url(envelope))?;
    let bytes = http.small(&url, ENVELOPE_BYTES_MAX).await?;
    let found = baton_registry::digest::Digest::of(&bytes);
    if found != *envelope {
        let (want, found) = (envelope.to_string(), found.to_string());
        return Err(PullError::Checksum { file: format!("the manifest of {model}"), want, found });
    }
    let refused = |reason: String| PullError::Manifest { model: model.to_string(), reason };
    let manifest = Envelope::parse(&bytes).and_then(|envelope| envelope.verify(&wanted.trusted));
    let manifest = manifest.map_err(|err| refused(err.to_string()))?;
    match manifest.model == *model {
        true => Ok(manifest),
        false => Err(refused(format!("it is signed as {}", manifest.model))),
    }
}

/// Whether another place may do better.
fn is_of_place(err: &PullError) -> bool {
    matches!(
        err,
        PullError::Offline { .. }
            | PullError::Cut { .. }
            | PullError::Reply { .. }
            | PullError::Token { .. }
            | PullError::Checksum { .. }
    )
}

fn url(place: &Place, text: &str) -> Result<Url, PullError> {
    Url::parse(text).map_err(|_| PullError::Invalid(format!("`{}` is no address", place.location)))
}

fn no_place() -> PullError {
    PullError::Invalid("the cloud names no place that has the model".to_owned())
}

/// Returns the versions of a registry that are in the store.
pub fn versions_in(store: &Store) -> Vec<ModelVersion> {
    store.list().iter().filter_map(version_of).collect()
}

/// Removes a version from the store.
///
/// # Errors
/// [`StoreError`] if it cannot be removed.
pub async fn remove_version(store: &Store, model: &ModelVersion) -> Result<(), PullError> {
    let (store, name) = (store.clone(), name_in_store(model));
    blocking(move || match store.remove(&name) {
        Ok(_) | Err(StoreError::NoModel { .. }) => Ok(()),
        Err(err) => Err(err.into()),
    })
    .await
}
