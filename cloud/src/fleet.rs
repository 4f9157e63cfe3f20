//! The models of devices: which pair of base and adapter each class should have, and the registry that has
//! them.
//!
//! The rules are those of [`baton_registry`]; here are their inputs. [`book`] holds the targets in memory and
//! [`catalog`] what the registry has. [`folder`] is a registry in a folder, [`source`] reads a registry
//! wherever it is, and [`publish`] adds a version. [`reports`] bounds what devices report, and says what of
//! it counts.

pub mod book;
pub mod bucket;
pub mod catalog;
pub mod folder;
pub mod publish;
pub mod reports;
pub mod source;

use baton_registry::layout::Location;
use baton_registry::rollout::{AGAIN_S, SETTLE_S, Target};
use baton_registry::sync::{ANY_SCENE, Lease, SyncReply, SyncRequest};

use self::book::TargetBook;
use self::catalog::Catalog;
use self::reports::ReportRates;
use self::source::RegistrySource;
use crate::access::{AccessError, check_name};

/// The target of a scene and a class, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelTarget {
    /// `SCENE/CLASS`.
    pub id: String,
    /// One more at every change.
    pub revision: u64,
    /// The scene, or [`ANY_SCENE`].
    pub scene: String,
    /// The class of devices.
    pub class: String,
    /// What is set.
    pub target: Target,
    /// When it was changed last, in milliseconds since 1970.
    pub updated_ms: i64,
    /// Who changed it.
    pub updated_by: String,
}

/// How many devices reported what, lately.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelReports {
    /// Devices by the pair that they answer with; the empty text stands for none.
    pub active: Vec<(String, u64)>,
    /// Devices by the pair that they last failed to load.
    pub failed: Vec<(String, u64)>,
}

impl ModelReports {
    /// Returns how many devices answer with a pair.
    #[must_use]
    pub fn active(&self, pair: &str) -> u64 {
        count(&self.active, pair)
    }

    /// Returns how many devices could not load a pair.
    #[must_use]
    pub fn failed(&self, pair: &str) -> u64 {
        count(&self.failed, pair)
    }
}

fn count(counts: &[(String, u64)], pair: &str) -> u64 {
    counts.iter().find(|(known, _)| known == pair).map_or(0, |(_, devices)| *devices)
}

/// Returns the id of the target of a scene and a class.
///
/// # Errors
/// [`AccessError::Name`] if one of the names cannot be one.
pub fn target_id(scene: &str, class: &str) -> Result<String, AccessError> {
    if scene != ANY_SCENE {
        check_name("scene", scene)?;
    }
    check_name("device class", class)?;
    Ok(format!("{scene}/{class}"))
}

/// What a service knows of devices' models. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    /// Which pair devices should have.
    pub targets: TargetBook,
    /// What the registry has.
    pub catalog: Catalog,
    /// Where the registry is; `None` if the service has none.
    pub registry: Option<RegistrySource>,
    /// Where devices find its bytes as well.
    pub mirrors: Vec<Location>,
    /// How often each key's devices may report.
    pub report_rates: ReportRates,
}

impl Fleet {
    /// Answers a device that asks which models it should have.
    #[must_use]
    pub fn answer(&self, request: &SyncRequest, now_s: u64) -> SyncReply {
        let none = SyncReply {
            wanted: None,
            leases: Vec::new(),
            models: Vec::new(),
            locations: Vec::new(),
            serves: false,
            again_s: AGAIN_S,
        };
        let Some(target) = self.targets.find(&request.scene, &request.class) else { return none };
        let active = request.active.as_ref();
        let mut wanted = target.wanted(&request.device, active, &request.failed, now_s);
        // A registry that was not read yet, or has lost the pair, must not send devices after it.
        let mut models = self.catalog.told(wanted);
        if models.is_none()
            && let Some(active) = active.filter(|active| target.allows(active, now_s))
        {
            (wanted, models) = (active, Some(Vec::new()));
        }
        let pairs = std::iter::once(wanted).chain(active.filter(|active| *active != wanted));
        let leases: Vec<Lease> = pairs.filter_map(|pair| target.lease(pair, now_s)).collect();
        let remote = match &self.registry {
            Some(RegistrySource::Remote(location)) => Some(location.clone()),
            _ => None,
        };
        let has_lease = active.is_some_and(|active| leases.iter().any(|lease| lease.pair == *active));
        SyncReply {
            wanted: Some(wanted.clone()),
            models: models.unwrap_or_default(),
            locations: self.mirrors.iter().cloned().chain(remote).collect(),
            serves: matches!(self.registry, Some(RegistrySource::Folder(_) | RegistrySource::Bucket(_))),
            again_s: if has_lease { AGAIN_S } else { SETTLE_S },
            leases,
        }
    }
}
