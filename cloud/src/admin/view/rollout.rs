//! Which models devices have, as the console shows it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What is set for one scene and one class of devices.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RolloutView {
    /// The scene; `*` is every scene without a target of its own.
    pub scene: String,
    /// The class of devices.
    pub class: String,
    /// Grows with every change; the `ETag`.
    pub revision: u64,
    /// The pair that devices have: `BASE@VERSION` or `BASE@VERSION+ADAPTER@VERSION`.
    pub stable: String,
    /// The pair that was stable before.
    pub last_good: Option<String>,
    /// The pair that is rolled out.
    pub candidate: Option<String>,
    /// To how many devices, in percent.
    pub percent: Option<f64>,
    /// Whether no more devices get it.
    pub paused: bool,
    /// Whether it paused because too many devices could not load it.
    pub paused_by_guard: bool,
    /// Pairs that were given up and are allowed for a while yet.
    pub given_up: Vec<GivenUp>,
    /// Devices of the last day by the pair that they answer with; the empty text stands for none.
    pub devices: BTreeMap<String, u64>,
    /// Devices of the last day by the pair that they last failed to load.
    pub failed: BTreeMap<String, u64>,
    /// When it was changed last.
    pub updated_ms: i64,
    /// Who changed it.
    pub updated_by: String,
}

/// A pair that was given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct GivenUp {
    /// The pair.
    pub pair: String,
    /// Until when devices may ask with it.
    pub allowed_until_ms: i64,
}

/// The first pair of a scene and a class.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RolloutInput {
    /// `BASE@VERSION` or `BASE@VERSION+ADAPTER@VERSION`; the registry must have it.
    pub pair: String,
}

/// What to do with a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RolloutAction {
    /// Give a pair to a share of the devices. Needs `pair` and `percent`.
    Start,
    /// Give it to another share of them. Needs `percent`.
    Share,
    /// Give it to no more devices.
    Pause,
    /// Go on after a pause.
    Resume,
    /// Take it back; without a rollout, go back to the pair that was stable before.
    RollBack,
    /// Make it the stable pair; it must be for 100 percent.
    Finish,
    /// Refuse a pair at once that was given up. Needs `pair`.
    Revoke,
}

/// A change of a rollout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RolloutChange {
    /// What to do.
    pub action: RolloutAction,
    /// The pair.
    #[serde(default)]
    pub pair: Option<String>,
    /// The share of the devices in percent, with two decimals at most.
    #[serde(default)]
    #[schema(minimum = 0.01, maximum = 100)]
    pub percent: Option<f64>,
    /// A started rollout pauses if more than this share of those that got it cannot load it; 2 if absent.
    #[serde(default)]
    #[schema(minimum = 0.01, maximum = 100)]
    pub failed_max_percent: Option<f64>,
    /// Fewest devices that must have failed before it pauses; 3 if absent.
    #[serde(default)]
    pub failed_least: Option<u32>,
}

/// A version of a model in the registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct RegistryModel {
    /// `NAME@VERSION`.
    pub model: String,
    /// `base`, `adapter` or `scorer`.
    pub kind: String,
    /// The model family.
    pub family: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// The base of an adapter.
    pub base: Option<String>,
    /// The licence.
    pub licence: String,
}

impl From<&crate::fleet::catalog::CatalogEntry> for RegistryModel {
    fn from(entry: &crate::fleet::catalog::CatalogEntry) -> RegistryModel {
        let manifest = &entry.manifest;
        RegistryModel {
            model: manifest.model.to_string(),
            kind: manifest.kind.as_str().to_owned(),
            family: manifest.family.clone(),
            bytes: manifest.bytes(),
            base: manifest.base.as_ref().map(ToString::to_string),
            licence: manifest.licence.clone(),
        }
    }
}
