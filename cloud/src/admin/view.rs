//! What the console shows and `/admin/api/v1` speaks: plain values, the same for both.
//!
//! Never: holds a secret that is not shown at this very moment (a key that was just made). Times are milliseconds
//! since 1970, revisions rise by one with every change and are what `ETag` and `If-Match` carry.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::problem::Problem;
use crate::scene::SceneSettings;

/// What a scene says and allows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The system message in front of the content, at most 65,536 bytes.
    pub system: String,
    /// What stands between the content and the question, at most 65,536 bytes.
    pub question_prefix: String,
    /// r, the share of the content that is kept; null: the optimizer answers.
    #[serde(default)]
    #[schema(minimum = 0.01, maximum = 1.0)]
    pub ratio: Option<f32>,
    /// xi, the smallest r; 1 forbids refinement.
    #[schema(minimum = 0.01, maximum = 1.0)]
    pub xi: f32,
    /// L, the tokens that the cloud writes; null: the optimizer answers.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 65536)]
    pub assist_tokens: Option<u32>,
    /// The smallest L, also under load.
    #[schema(minimum = 1, maximum = 65536)]
    pub assist_floor: u32,
    /// The largest L, whatever a request asks for.
    #[schema(minimum = 1, maximum = 65536)]
    pub assist_max: u32,
    /// tau, the largest tolerable gap between shown tokens, in milliseconds.
    #[schema(minimum = 1.0, maximum = 60000.0)]
    pub tau_ms: f32,
    /// Who is right where cloud and device disagree: `cloud` or `device`.
    pub corrector: String,
    /// Whether the content may be refined.
    pub refine: bool,
    /// How sentences are ranked: `attention`, `paper`, `tokens`, `gemfilter`, `chunk`, `bm25`, `streaming`, `random` or
    /// `none`.
    pub mode: String,
    /// What answers may lose against the full prompt, as a share of the score.
    #[schema(minimum = 0.0, maximum = 1.0)]
    pub tolerance: f32,
    /// The model that answers, at most 128 bytes; null: the service's default.
    #[serde(default)]
    pub model: Option<String>,
    /// The adapter of that model, at most 128 bytes; null: the model alone.
    #[serde(default)]
    pub adapter: Option<String>,
}

impl From<&SceneSettings> for Settings {
    fn from(settings: &SceneSettings) -> Settings {
        Settings {
            system: settings.system.clone(),
            question_prefix: settings.question_prefix.clone(),
            ratio: settings.ratio,
            xi: settings.xi,
            assist_tokens: settings.assist_tokens,
            assist_floor: settings.assist_floor,
            assist_max: settings.assist_max,
            tau_ms: settings.tau_ms,
            corrector: settings.corrector.as_str().to_owned(),
            refine: settings.refine,
            mode: settings.mode.to_string(),
            tolerance: settings.tolerance,
            model: settings.model.clone(),
            adapter: settings.adapter.clone(),
        }
    }
}

impl Settings {
    /// The checked settings.
    ///
    /// # Errors
    /// A [`Problem`] that names the field that is out of its bounds.
    pub fn check(&self) -> Result<SceneSettings, Problem> {
        let corrector = self.corrector.parse().map_err(|err| Problem::field("corrector", &err))?;
        let mode = self.mode.parse().map_err(|err| Problem::field("mode", &err))?;
        let settings = SceneSettings {
            system: self.system.clone(),
            question_prefix: self.question_prefix.clone(),
            ratio: self.ratio,
            xi: self.xi,
            assist_tokens: self.assist_tokens,
            assist_floor: self.assist_floor,
            assist_max: self.assist_max,
            tau_ms: self.tau_ms,
            corrector,
            refine: self.refine,
            mode,
            tolerance: self.tolerance,
            model: self.model.clone(),
            adapter: self.adapter.clone(),
        };
        settings.check().map_err(|err| Problem::of_scene(&err))?;
        Ok(settings)
    }
}

/// One setting that differs between two versions.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct FieldChange {
    /// The setting.
    pub field: String,
    /// Its value before; null: left to the optimizer, or no such scene.
    pub from: Value,
    /// Its value after.
    pub to: Value,
}

/// What differs between two settings.
#[must_use]
pub fn changes(from: &SceneSettings, to: &SceneSettings) -> Vec<FieldChange> {
    let changes = from.diff(to).into_iter();
    changes
        .map(|change| FieldChange { field: change.field.to_owned(), from: change.from, to: change.to })
        .collect()
}

/// A scene: which version is in force, and which one waits.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct SceneView {
    /// Its id.
    pub id: String,
    /// Rises with every change; the `ETag`.
    pub revision: u64,
    /// The version in force; null: never published.
    pub published_version: Option<u32>,
    /// The version that waits to be published; null: none.
    pub draft_version: Option<u32>,
    /// The newest version.
    pub newest_version: u32,
    /// Settings in force.
    pub published: Option<Settings>,
    /// Settings of the draft.
    pub draft: Option<Settings>,
    /// Why this replica would refuse requests: the model or adapter of the version in force, or of the draft, is not
    /// served here.
    pub warnings: Vec<String>,
}

impl SceneView {
    /// The draft's settings, else those in force.
    #[must_use]
    pub fn latest(&self) -> Option<&Settings> {
        self.draft.as_ref().or(self.published.as_ref())
    }
}

/// One version of a scene. It never changes.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct VersionView {
    /// Starts at 1.
    pub version: u32,
    /// What it says and allows.
    pub settings: Settings,
    /// When it was written.
    pub created_ms: i64,
    /// Who wrote it; empty: the command line, or a program before there were users.
    pub created_by: String,
    /// Why.
    pub note: String,
    /// The version it was made from.
    pub based_on: Option<u32>,
    /// `draft`, `published`, `superseded` or `discarded`.
    pub state: String,
    /// When it was last put in force.
    pub published_ms: Option<i64>,
    /// Who did that.
    pub published_by: Option<String>,
}

/// What differs between two versions.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct DiffView {
    /// The earlier version; 0: none, a scene with the defaults.
    pub from: u32,
    /// The later one.
    pub to: u32,
    /// What differs.
    pub changes: Vec<FieldChange>,
}

/// A class of devices.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ClassView {
    /// Its name in requests.
    pub id: String,
    /// Rises with every change; 0: known from reports only.
    pub revision: u64,
    /// For people.
    pub label: String,
    /// k_d in force, milliseconds for each prompt token.
    pub prefill_ms_per_token: f64,
    /// q_d in force, milliseconds for each squared prompt token.
    pub prefill_ms_per_token2: f64,
    /// TPOT_d in force, milliseconds for each token written.
    pub decode_ms: f64,
    /// Whether the figures were set by hand; else devices' reports count.
    pub fixed: bool,
    /// Reports behind the measured figures; 0: assumed.
    pub samples: u32,
}

/// What is set of a class of devices: all three figures, or none for those that devices report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassInput {
    /// For people, at most 200 bytes.
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

/// A tenant: whose keys share a quota.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct TenantView {
    /// Its id.
    pub id: String,
    /// Rises with every change.
    pub revision: u64,
    /// For people.
    pub label: String,
    /// Its share where tenants compete.
    pub weight: u32,
    /// Null: no limit.
    pub requests_per_minute: Option<u32>,
    /// Answers at the same time; null: no limit.
    pub concurrency_max: Option<u32>,
    /// Null: no limit.
    pub tokens_per_day: Option<u64>,
    /// Whether its keys are refused.
    pub disabled: bool,
}

/// What is set of a tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantInput {
    /// For people, at most 200 bytes.
    #[serde(default)]
    pub label: String,
    /// Its share where tenants compete, 1 to 1,000.
    #[schema(minimum = 1, maximum = 1000)]
    pub weight: u32,
    /// Null: no limit.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub requests_per_minute: Option<u32>,
    /// Answers at the same time; null: no limit.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub concurrency_max: Option<u32>,
    /// Null: no limit.
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
    /// Rises with every change.
    pub revision: u64,
    /// Whose it is.
    pub tenant: String,
    /// For people.
    pub label: String,
    /// What it may do.
    pub scopes: Vec<String>,
    /// When it was made.
    pub created_ms: i64,
    /// Who made it.
    pub created_by: String,
    /// From when on it is refused; null: never.
    pub expires_ms: Option<i64>,
    /// Since when it is refused; null: it is not.
    pub revoked_ms: Option<i64>,
    /// When it was last used, to the minute.
    pub last_used_ms: Option<i64>,
    /// The key that it replaces.
    pub rotated_from: Option<String>,
}

/// A key to be made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyInput {
    /// Whose it is.
    pub tenant: String,
    /// For people, at most 200 bytes.
    #[serde(default)]
    pub label: String,
    /// What it may do.
    pub scopes: Vec<String>,
    /// Days until it is refused, 1 to 3,650; null: never.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 3650)]
    pub days: Option<u32>,
}

/// A key that was just made; its secret is never shown again.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct NewKey {
    /// The key.
    pub key: KeyView,
    /// What a client sends as its bearer token.
    pub secret: String,
}

/// A user of the console.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct UserView {
    /// The name to log in with.
    pub name: String,
    /// Rises with every change.
    pub revision: u64,
    /// `viewer`, `editor` or `admin`.
    pub role: String,
    /// Whether it may not log in.
    pub disabled: bool,
    /// When it was made.
    pub created_ms: i64,
}

/// A user to be made.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserInput {
    /// The name to log in with, 1 to 64 letters, digits, `.`, `-`, `_` or `@`.
    pub name: String,
    /// `viewer`, `editor` or `admin`.
    pub role: String,
    /// At least 12 characters.
    pub password: String,
}

/// What of a user changes; what is left out stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserChange {
    /// `viewer`, `editor` or `admin`.
    #[serde(default)]
    pub role: Option<String>,
    /// Whether it may not log in.
    #[serde(default)]
    pub disabled: Option<bool>,
    /// At least 12 characters.
    #[serde(default)]
    pub password: Option<String>,
}

/// One row of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct AuditRow {
    /// Its place; rises by one.
    pub seq: u64,
    /// When.
    pub at_ms: i64,
    /// Who.
    pub actor: String,
    /// What was done.
    pub action: String,
    /// To what.
    pub target: String,
    /// How; JSON.
    pub detail: String,
    /// SHA-256 over all fields and the row before, in hex.
    pub hash: String,
}

/// Rows of the audit log, the newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct AuditPage {
    /// The rows.
    pub rows: Vec<AuditRow>,
    /// What to pass as `before` for older rows; null: these were all.
    pub next_before: Option<u64>,
}

/// Whether the audit log is whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct AuditState {
    /// Whether every row is as it was written, and none is missing.
    pub whole: bool,
    /// Rows that were checked.
    pub rows: u64,
    /// The first row that is not right.
    pub broken_at: Option<u64>,
    /// What is wrong with it.
    pub reason: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_go_to_views_and_back() {
        let settings =
            SceneSettings { ratio: Some(0.3), assist_tokens: Some(9), ..SceneSettings::with_system("s") };
        assert_eq!(Settings::from(&settings).check().unwrap(), settings);
        let json = serde_json::to_string(&Settings::from(&settings)).unwrap();
        assert!(json.contains("\"ratio\":0.3,"), "{json}");
    }

    #[test]
    fn a_setting_out_of_bounds_names_its_field() {
        #[track_caller]
        fn check(change: impl FnOnce(&mut Settings), want: &str) {
            let mut settings = Settings::from(&SceneSettings::with_system("s"));
            change(&mut settings);
            assert_eq!(settings.check().unwrap_err().field_name(), Some(want));
        }
        check(|s| s.xi = 0.0, "xi");
        check(|s| s.ratio = Some(0.1), "ratio");
        check(|s| s.assist_tokens = Some(1), "assist_tokens");
        check(|s| s.tau_ms = f32::NAN, "tau_ms");
        check(|s| s.corrector = "both".into(), "corrector");
        check(|s| s.mode = "best".into(), "mode");
        check(|s| s.mode = "perplexity".into(), "mode");
        check(|s| s.system = "x".repeat(65_537), "system");
        check(|s| s.question_prefix = "x".repeat(65_537), "question_prefix");
        check(|s| (s.refine, s.ratio) = (false, Some(0.5)), "ratio");
    }

    #[test]
    fn changes_name_what_differs() {
        let from = SceneSettings::with_system("s");
        let to = SceneSettings { ratio: Some(0.5), tau_ms: 80.0, ..from.clone() };
        let named: Vec<String> =
            changes(&from, &to).iter().map(|c| format!("{} {} {}", c.field, c.from, c.to)).collect();
        assert_eq!(named, ["ratio null 0.5", "tau_ms 100.0 80.0"]);
        assert!(changes(&to, &to).is_empty());
    }
}
