//! What a registry has: every version that a trusted key has signed.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use baton_protocol::{ModelPair, ModelVersion};
use baton_registry::digest::Digest;
use baton_registry::manifest::{Kind, Manifest};
use baton_registry::sync::SyncModel;

/// One version of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogEntry {
    /// What it is.
    pub manifest: Manifest,
    /// Digest of its signed manifest.
    pub envelope: Digest,
}

/// Every version, as last read from the registry. While the registry is away, the last read stays.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    entries: Arc<RwLock<BTreeMap<ModelVersion, Arc<CatalogEntry>>>>,
}

/// Why a pair cannot be given to devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PairProblem {
    /// The registry does not have it.
    #[error("the registry has no {0}; `baton-cloud registry publish` adds one")]
    Missing(ModelVersion),
    /// It is not for that.
    #[error("{model} is no {want}, it is a {kind}")]
    Kind {
        /// The version.
        model: ModelVersion,
        /// What it would have to be.
        want: &'static str,
        /// What it is.
        kind: &'static str,
    },
    /// The adapter is of another base.
    #[error("adapter {adapter} is of {of}, not of {base}")]
    Base {
        /// The adapter.
        adapter: ModelVersion,
        /// The base that it is of.
        of: String,
        /// The base of the pair.
        base: ModelVersion,
    },
}

impl Catalog {
    /// Replaces all entries by a newer read.
    pub fn replace(&self, entries: BTreeMap<ModelVersion, Arc<CatalogEntry>>) {
        *self.entries.write().unwrap_or_else(PoisonError::into_inner) = entries;
    }

    /// Returns every version, by name and number.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<CatalogEntry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Returns one version.
    #[must_use]
    pub fn find(&self, model: &ModelVersion) -> Option<Arc<CatalogEntry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).get(model).cloned()
    }

    /// Returns what a device is told of a pair; `None` if the registry does not have all of it.
    #[must_use]
    pub fn told(&self, pair: &ModelPair) -> Option<Vec<SyncModel>> {
        let told = pair.models().map(|model| {
            let entry = self.find(model)?;
            Some(SyncModel { model: model.clone(), envelope: entry.envelope, bytes: entry.manifest.bytes() })
        });
        told.collect()
    }

    /// Checks that a pair can be given to devices.
    ///
    /// # Errors
    /// [`PairProblem`].
    pub fn check(&self, pair: &ModelPair) -> Result<(), PairProblem> {
        let find = |model: &ModelVersion, want: Kind| {
            let entry = self.find(model).ok_or_else(|| PairProblem::Missing(model.clone()))?;
            let kind = entry.manifest.kind;
            let wrong =
                || PairProblem::Kind { model: model.clone(), want: want.as_str(), kind: kind.as_str() };
            (kind == want).then_some(entry).ok_or_else(wrong)
        };
        find(&pair.base, Kind::Base)?;
        let Some(adapter) = &pair.adapter else { return Ok(()) };
        let entry = find(adapter, Kind::Adapter)?;
        if entry.manifest.base.as_ref() == Some(&pair.base) {
            return Ok(());
        }
        let of = entry.manifest.base.as_ref().map_or("none".to_owned(), ToString::to_string);
        Err(PairProblem::Base { adapter: adapter.clone(), of, base: pair.base.clone() })
    }
}
