//! Where a registry is, and how what it has is read: from a folder, a web server, a bucket or an OCI
//! registry.

use std::collections::{BTreeMap, HashMap};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use baton_protocol::ModelVersion;
use baton_registry::digest::Digest;
use baton_registry::envelope::{ENVELOPE_BYTES_MAX, Envelope, EnvelopeError, PublicKey};
use baton_registry::layout::{
    BadLocation, DOCUMENT_BYTES_MAX, INDEX_FILE, Index, LayoutError, Location, OCI_MANIFEST_TYPE,
    OciManifest, of_tag,
};
use serde::Deserialize;
use tracing::warn;

use super::bucket::{BucketError, S3Registry};
use super::catalog::{Catalog, CatalogEntry};
use super::folder::RegistryFolder;

/// The longest that a registry may take for a document.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Most tags that are read of an OCI registry.
const TAGS_MAX: usize = 10_000;

/// Where a registry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistrySource {
    /// In a folder; this program serves its bytes to devices.
    Folder(RegistryFolder),
    /// On a server.
    Remote(Location),
    /// In a private bucket; this program signs addresses for devices.
    Bucket(Box<S3Registry>),
}

/// A text that names no registry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSource {
    /// It is no address.
    #[error(transparent)]
    Location(#[from] BadLocation),
    /// The bucket cannot be used.
    #[error(transparent)]
    Bucket(#[from] BucketError),
}

impl FromStr for RegistrySource {
    type Err = BadSource;

    fn from_str(text: &str) -> Result<RegistrySource, BadSource> {
        if text.starts_with("s3://") {
            let bucket = S3Registry::new(text, |name| std::env::var(name).ok())?;
            return Ok(RegistrySource::Bucket(Box::new(bucket)));
        }
        if text.contains("://") {
            return Ok(RegistrySource::Remote(text.parse::<Location>()?));
        }
        Ok(RegistrySource::Folder(RegistryFolder::new(text.into())))
    }
}

impl std::fmt::Display for RegistrySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RegistrySource::Folder(folder) => folder.root().display().fmt(f),
            RegistrySource::Remote(location) => location.fmt(f),
            RegistrySource::Bucket(bucket) => bucket.fmt(f),
        }
    }
}

/// Why a registry or a version of it cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A file of the folder cannot be read.
    #[error("read {what}")]
    Folder {
        /// What was read.
        what: String,
        /// Why not.
        #[source]
        err: std::io::Error,
    },
    /// The server does not answer.
    #[error("ask `{url}`")]
    Http {
        /// The address.
        url: String,
        /// Why not.
        #[source]
        err: reqwest::Error,
    },
    /// What the server sent cannot be used.
    #[error("`{url}` {why}")]
    Reply {
        /// The address.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// A document cannot be read.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A signed manifest is refused.
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    /// A version is signed as another one.
    #[error("it is signed as {0}")]
    OtherModel(ModelVersion),
}

/// Reads a registry again and again. What was read once is not read again, because it never changes.
#[derive(Debug)]
pub struct RegistryReader {
    source: RegistrySource,
    trusted: Vec<PublicKey>,
    http: reqwest::Client,
    token: Option<String>,
    /// By the digest of the OCI manifest; `None` for a version that was refused.
    seen: HashMap<Digest, Option<Arc<CatalogEntry>>>,
}

impl RegistryReader {
    /// Makes a reader. `token`: a bearer token for a server.
    ///
    /// # Errors
    /// The HTTP client's error if it cannot be made.
    pub fn new(
        source: RegistrySource,
        trusted: Vec<PublicKey>,
        token: Option<String>,
    ) -> Result<RegistryReader, reqwest::Error> {
        // A second installation fails and leaves the first provider in place.
        let _already_installed = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .user_agent(concat!("baton-cloud/", env!("CARGO_PKG_VERSION")));
        let is_plain = match &source {
            RegistrySource::Folder(_) => true,
            RegistrySource::Remote(Location::Web(base)) => base.starts_with("http://"),
            RegistrySource::Remote(Location::Oci { origin, .. }) => origin.starts_with("http://"),
            RegistrySource::Bucket(bucket) => bucket.is_plain(),
        };
        if is_plain {
            builder = builder.tls_certs_only([]);
        }
        let http = builder.build()?;
        Ok(RegistryReader { source, trusted, http, token, seen: HashMap::new() })
    }

    /// Reads what the registry has into a catalog. A version that cannot be read is left out, with a warning.
    ///
    /// # Errors
    /// [`SourceError`] if the list of versions cannot be read; the catalog then stays.
    pub async fn read(&mut self, catalog: &Catalog) -> Result<(), SourceError> {
        let mut entries = BTreeMap::new();
        for (model, found) in self.versions().await? {
            if let Some(entry) = self.entry(&model, found).await? {
                entries.insert(model, entry);
            }
        }
        catalog.replace(entries);
        Ok(())
    }

    /// Returns an entry; `None` if it was refused.
    async fn entry(
        &mut self,
        model: &ModelVersion,
        found: Found,
    ) -> Result<Option<Arc<CatalogEntry>>, SourceError> {
        if let Found::Digest(digest) = &found
            && let Some(seen) = self.seen.get(digest)
        {
            return Ok(seen.clone());
        }
        let (digest, read) = match self.oci_manifest(&found).await {
            Ok(oci) => {
                let digest = Digest::of(&oci);
                if let Some(seen) = self.seen.get(&digest) {
                    return Ok(seen.clone());
                }
                (digest, self.signed(model, &oci).await)
            }
            Err(err) => return Err(err),
        };
        let entry = match read {
            Ok(entry) => Some(Arc::new(entry)),
            // The server may be away: then it is read again later.
            Err(err @ (SourceError::Http { .. } | SourceError::Folder { .. })) => return Err(err),
            Err(err) => {
                warn!(%model, err = &err as &dyn std::error::Error, "a version of the registry is refused");
                None
            }
        };
        self.seen.insert(digest, entry.clone());
        Ok(entry)
    }

    async fn signed(&self, model: &ModelVersion, oci: &[u8]) -> Result<CatalogEntry, SourceError> {
        let config = OciManifest::parse(oci)?.config;
        let envelope = self.blob(&config.digest, ENVELOPE_BYTES_MAX).await?;
        let manifest = Envelope::parse(&envelope)?.verify(&self.trusted)?;
        if manifest.model != *model {
            return Err(SourceError::OtherModel(manifest.model));
        }
        Ok(CatalogEntry { manifest, envelope: config.digest })
    }

    /// Lists the versions.
    async fn versions(&self) -> Result<Vec<(ModelVersion, Found)>, SourceError> {
        let index = match &self.source {
            RegistrySource::Folder(folder) => {
                let what = || format!("the index of registry `{}`", self.source);
                let read = folder.index(DOCUMENT_BYTES_MAX);
                read.map_err(|err| SourceError::Folder { what: what(), err })?
            }
            RegistrySource::Remote(Location::Web(base)) => {
                Some(self.get(&format!("{base}/{INDEX_FILE}"), DOCUMENT_BYTES_MAX).await?)
            }
            RegistrySource::Bucket(bucket) => {
                Some(self.get(bucket.index_url().as_str(), DOCUMENT_BYTES_MAX).await?)
            }
            RegistrySource::Remote(Location::Oci { origin, name }) => {
                return self.tags(&format!("{origin}/v2/{name}/tags/list?n={TAGS_MAX}")).await;
            }
        };
        let Some(index) = index else { return Ok(Vec::new()) };
        let index = Index::parse(&index)?;
        Ok(index.versions().map(|(model, found)| (model, Found::Digest(found.digest))).collect())
    }

    async fn tags(&self, url: &str) -> Result<Vec<(ModelVersion, Found)>, SourceError> {
        #[derive(Deserialize)]
        struct Tags {
            #[serde(default)]
            tags: Option<Vec<String>>,
        }
        let bytes = self.get(url, DOCUMENT_BYTES_MAX).await?;
        let tags: Tags = serde_json::from_slice(&bytes).map_err(|err| LayoutError::Json(err.to_string()))?;
        let tags = tags.tags.unwrap_or_default().into_iter().take(TAGS_MAX);
        Ok(tags.filter_map(|tag| Some((of_tag(&tag)?, Found::Tag(tag)))).collect())
    }

    async fn oci_manifest(&self, found: &Found) -> Result<Vec<u8>, SourceError> {
        match (found, &self.source) {
            (Found::Tag(tag), RegistrySource::Remote(Location::Oci { origin, name })) => {
                self.get(&format!("{origin}/v2/{name}/manifests/{tag}"), DOCUMENT_BYTES_MAX).await
            }
            (Found::Digest(digest), _) => self.blob(digest, DOCUMENT_BYTES_MAX).await,
            // Only OCI registries have tags.
            (Found::Tag(_), _) => Ok(Vec::new()),
        }
    }

    /// Reads bytes and checks their digest.
    async fn blob(&self, digest: &Digest, max: usize) -> Result<Vec<u8>, SourceError> {
        let url = match &self.source {
            RegistrySource::Folder(folder) => {
                let read = folder.read(digest, max);
                return read.map_err(|err| SourceError::Folder { what: digest.to_string(), err });
            }
            RegistrySource::Remote(location) => location.blob_url(digest),
            RegistrySource::Bucket(bucket) => bucket.blob_url(digest).into(),
        };
        let bytes = self.get(&url, max).await?;
        if Digest::of(&bytes) != *digest {
            let url = unsigned(&url).to_owned();
            return Err(SourceError::Reply { url, why: "sent bytes of another digest".to_owned() });
        }
        Ok(bytes)
    }

    async fn get(&self, url: &str, max: usize) -> Result<Vec<u8>, SourceError> {
        let failed =
            |err: reqwest::Error| SourceError::Http { url: unsigned(url).to_owned(), err: err.without_url() };
        let mut request = self.http.get(url).header("accept", format!("{OCI_MANIFEST_TYPE}, */*"));
        // A signed address has its key in it, and stores refuse a second one.
        if let Some(token) = self.token.as_ref().filter(|_| !matches!(self.source, RegistrySource::Bucket(_)))
        {
            request = request.bearer_auth(token);
        }
        let mut reply = request.send().await.and_then(reqwest::Response::error_for_status).map_err(failed)?;
        let mut bytes = Vec::new();
        while let Some(part) = reply.chunk().await.map_err(failed)? {
            bytes.extend_from_slice(&part);
            if bytes.len() > max {
                return Err(SourceError::Reply {
                    url: unsigned(url).to_owned(),
                    why: format!("sent more than {max} bytes"),
                });
            }
        }
        Ok(bytes)
    }
}

/// Returns an address without its signature, which must not be in a log.
fn unsigned(url: &str) -> &str {
    url.split('?').next().unwrap_or(url)
}

/// How a version is named in a list.
#[derive(Debug, Clone)]
enum Found {
    Digest(Digest),
    Tag(String),
}
