//! Values that the console shows and `/admin/api/v1` sends and receives, the same for both.
//!
//! Never: holds a secret, except a key that was just made. Times are in milliseconds since 1970. A revision
//! grows by one with every change, and is what `ETag` and `If-Match` carry.

pub mod history;
pub mod playground;
pub mod request;
pub mod rollout;

use baton_protocol::SettingChange;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::experiment::plan::{Plan, State, StoppedArm};
use crate::experiment::report::Report;
use crate::scene::SceneSettings;
use crate::scene::schema::Settings;

/// One setting that differs between two versions.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct FieldChange {
    /// The setting.
    pub field: String,
    /// Its value before; null if the optimizer chose it, or it had no value.
    pub from: Value,
    /// Its value after.
    pub to: Value,
}

impl From<SettingChange> for FieldChange {
    fn from(change: SettingChange) -> FieldChange {
        FieldChange { field: change.field.name.to_owned(), from: change.from, to: change.to }
    }
}

/// A scene: the version in force and the draft.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct SceneView {
    /// Its id.
    pub id: String,
    /// Grows with every change; the `ETag`.
    pub revision: u64,
    /// The version in force; null if none was ever published.
    pub published_version: Option<u32>,
    /// The draft, which waits to be published; null if there is none.
    pub draft_version: Option<u32>,
    /// The newest version.
    pub newest_version: u32,
    /// Settings in force.
    #[schema(value_type = Option<Settings>)]
    pub published: Option<SceneSettings>,
    /// Settings of the draft.
    #[schema(value_type = Option<Settings>)]
    pub draft: Option<SceneSettings>,
    /// Why this replica would refuse requests: it does not serve the model or adapter of the version in
    /// force, or of the draft.
    pub warnings: Vec<String>,
}

impl SceneView {
    /// Returns the draft's settings, or else those in force.
    #[must_use]
    pub fn latest(&self) -> Option<&SceneSettings> {
        self.draft.as_ref().or(self.published.as_ref())
    }
}

/// One version of a scene. It never changes.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct VersionView {
    /// Starts at 1.
    pub version: u32,
    /// Its settings.
    #[schema(value_type = Settings)]
    pub settings: SceneSettings,
    /// When it was written, in milliseconds since 1970.
    pub created_ms: i64,
    /// Who wrote it; empty if it was written before there were users.
    pub created_by: String,
    /// The note of its author.
    pub note: String,
    /// The version it was made from.
    pub based_on: Option<u32>,
    /// `draft`, `published`, `superseded` or `discarded`.
    pub state: String,
    /// When it last came into force, in milliseconds since 1970; null if never.
    pub published_ms: Option<i64>,
    /// Who published it then.
    pub published_by: Option<String>,
}

/// The differences between two versions.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct DiffView {
    /// The earlier version; 0 for a scene with the defaults.
    pub from: u32,
    /// The later version.
    pub to: u32,
    /// The settings that differ.
    pub changes: Vec<FieldChange>,
}

/// An experiment.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ExperimentView {
    /// Its id.
    pub id: String,
    /// Grows with every change; the `ETag`.
    pub revision: u64,
    /// Its state.
    pub state: State,
    /// Its plan.
    pub plan: Plan,
    /// Arms that were stopped. Their devices get the scene's own settings.
    pub stopped_arms: Vec<StoppedArm>,
    /// The arm that was promoted; null if none was.
    pub promoted: Option<String>,
    /// When it was written first, in milliseconds since 1970.
    pub created_ms: i64,
    /// When it was changed last, in milliseconds since 1970.
    pub updated_ms: i64,
    /// Who changed it last.
    pub updated_by: String,
}

/// An experiment, with the comparison of its arms.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ExperimentPage {
    /// The experiment.
    #[serde(flatten)]
    pub experiment: ExperimentView,
    /// The comparison of its arms.
    pub report: Report,
}

/// A device class.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ClassView {
    /// Its name in requests.
    pub id: String,
    /// Grows with every change; 0 if the class is known from reports only.
    pub revision: u64,
    /// Its name for people.
    pub label: String,
    /// k_d in force, milliseconds for each prompt token.
    pub prefill_ms_per_token: f64,
    /// q_d in force, milliseconds for each squared prompt token.
    pub prefill_ms_per_token2: f64,
    /// TPOT_d in force, milliseconds for each token written.
    pub decode_ms: f64,
    /// Whether people set the costs; if not, they are those that devices report.
    pub fixed: bool,
    /// The number of reports that the measured costs come from; 0 if they are assumed.
    pub samples: u32,
}

/// Settings of a device class: all three costs, or none to use those that devices report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassInput {
    /// Its name for people, at most 1,024 bytes.
    #[serde(default)]
    pub label: String,
    /// k_d, milliseconds for each prompt token.
    #[serde(default)]
    pub prefill_ms_per_token: Option<f64>,
    /// q_d, milliseconds for each squared prompt token.
    #[serde(default)]
    pub prefill_ms_per_token2: Option<f64>,
    /// TPOT_d, milliseconds for each token written.
    #[serde(default)]
    pub decode_ms: Option<f64>,
}

/// A tenant, whose keys share a quota.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct TenantView {
    /// Its id.
    pub id: String,
    /// Grows with every change.
    pub revision: u64,
    /// Its name for people.
    pub label: String,
    /// Its share of slots if tenants compete.
    pub weight: u32,
    /// Requests in a minute; null for no limit.
    pub requests_per_minute: Option<u32>,
    /// Requests at the same time; null for no limit.
    pub concurrency_max: Option<u32>,
    /// Tokens in a day (UTC); null for no limit.
    pub tokens_per_day: Option<u64>,
    /// Whether its keys are refused.
    pub disabled: bool,
}

/// Settings of a tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantInput {
    /// Its name for people, at most 1,024 bytes.
    #[serde(default)]
    pub label: String,
    /// Its share of slots if tenants compete, 1 to 1,000.
    #[schema(minimum = 1, maximum = 1000)]
    pub weight: u32,
    /// Requests in a minute; null for no limit.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub requests_per_minute: Option<u32>,
    /// Requests at the same time; null for no limit.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub concurrency_max: Option<u32>,
    /// Tokens in a day (UTC); null for no limit.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub tokens_per_day: Option<u64>,
    /// Whether its keys are refused.
    #[serde(default)]
    pub disabled: bool,
}

/// An API key, without its secret.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct KeyView {
    /// Its public part.
    pub id: String,
    /// Grows with every change.
    pub revision: u64,
    /// The tenant that it belongs to.
    pub tenant: String,
    /// Its name for people.
    pub label: String,
    /// The scopes that it allows.
    pub scopes: Vec<String>,
    /// When it was created, in milliseconds since 1970.
    pub created_ms: i64,
    /// Who made it.
    pub created_by: String,
    /// When it expires, in milliseconds since 1970; null if never.
    pub expires_ms: Option<i64>,
    /// When it was revoked, in milliseconds since 1970; null if it was not.
    pub revoked_ms: Option<i64>,
    /// When it was last used, in milliseconds since 1970; about a minute late.
    pub last_used_ms: Option<i64>,
    /// The key that it replaces.
    pub rotated_from: Option<String>,
}

/// Settings of a key to create.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyInput {
    /// The tenant that it belongs to.
    pub tenant: String,
    /// Its name for people, at most 1,024 bytes.
    #[serde(default)]
    pub label: String,
    /// The scopes that it allows.
    pub scopes: Vec<String>,
    /// Days until it expires, 1 to 3,650; null for never.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 3650)]
    pub days: Option<u32>,
}

/// A key that was just created. Its secret is never shown again.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct NewKey {
    /// The key.
    pub key: KeyView,
    /// The secret, which a client sends as its bearer token.
    pub secret: String,
}

/// A user of the console.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct UserView {
    /// The name to log in with.
    pub name: String,
    /// Grows with every change.
    pub revision: u64,
    /// `viewer`, `editor` or `admin`.
    pub role: String,
    /// Whether the user may not log in.
    pub disabled: bool,
    /// When it was created, in milliseconds since 1970.
    pub created_ms: i64,
}

/// A user to add.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserInput {
    /// The name to log in with: 1 to 64 letters, digits, `.`, `-` or `_`.
    pub name: String,
    /// `viewer`, `editor` or `admin`.
    pub role: String,
    /// At least 12 characters.
    pub password: String,
}

/// Changes of a user. A field that is left out stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserChange {
    /// `viewer`, `editor` or `admin`.
    #[serde(default)]
    pub role: Option<String>,
    /// Whether the user may not log in.
    #[serde(default)]
    pub disabled: Option<bool>,
    /// At least 12 characters.
    #[serde(default)]
    pub password: Option<String>,
}

/// One row of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct AuditRow {
    /// Its number; the first row is 1.
    pub seq: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// Who: `user:NAME`, `cli` or `service`.
    pub actor: String,
    /// The action, for example `scene.publish`.
    pub action: String,
    /// What was changed, for example `scene/doc-qa`.
    pub target: String,
    /// The change as JSON.
    pub detail: String,
    /// SHA-256 over all fields and the hash of the row before, in hex.
    pub hash: String,
}

/// Rows of the audit log, the newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct AuditPage {
    /// The rows.
    pub rows: Vec<AuditRow>,
    /// Pass it as `before` to get older rows; null if there are none.
    pub next_before: Option<u64>,
}

/// The result of a check of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct AuditState {
    /// Whether no row was changed, and none is missing.
    pub whole: bool,
    /// Rows that were checked.
    pub rows: u64,
    /// The first row that is wrong; null if there is none.
    pub broken_at: Option<u64>,
    /// What is wrong with it; null if there is none.
    pub reason: Option<String>,
}
