//! Everything that people do in the console and over its API, as operations on the store. No other part of
//! [`crate::admin`] uses the store.
//!
//! Never: makes a change without the revision that it is based on, or without the user who makes it. Always:
//! reports a failure of the database, and logs it with its whole chain of causes.

mod experiments;
pub(crate) mod history;
pub(crate) mod models;
mod problems;
pub(crate) mod requests;
mod rollouts;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use baton_refine::QualityCurves;

use super::problem::{Kind, Problem};
use super::session::Session;
use super::view::{
    AuditPage, AuditRow, AuditState, ClassInput, ClassView, DiffView, FieldChange, KeyInput, KeyView, NewKey,
    SceneView, TenantInput, TenantView, UserChange, UserInput, UserView, VersionView,
};
use crate::access::{
    AccessError, Actor, ApiKey, ClassCost, DeviceClass, DeviceClassSettings, KEY_DAYS_MAX, KeySecret, Scope,
    Scopes, Tenant, TenantSettings, User,
};
use crate::learn::coefficients::{ALL, Coefficients, Known};
use crate::learn::traffic::{DAY_MS, TrafficRow};
use crate::scene::SceneSettings;
use crate::store::{
    self, AuditCheck, AuditEnd, AuditQuery, Expected, LoginAttempt, LoginError, SceneHistory, SceneState,
    Store, StoreError, StoreHealth,
};

/// Rows of the audit log on one page.
pub const AUDIT_PAGE: u32 = 50;
/// How long a rotated key stays valid beside its successor, in milliseconds.
const ROTATION_GRACE_MS: i64 = DAY_MS;

/// The operations of the console, over the store.
#[derive(Debug, Clone)]
pub struct AdminService {
    store: Store,
    quality: Option<Arc<QualityCurves>>,
    /// Whether there is an administrator. Once true, it stays true.
    opened: Arc<AtomicBool>,
    /// The end of the audit log at the last check that found it intact. The next check continues from there.
    looked_at: Arc<Mutex<Option<AuditEnd>>>,
}

/// A session that has just begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedIn {
    /// The value of the session's cookie.
    pub token: String,
    /// The value of the device's cookie.
    pub device: String,
    /// The session itself.
    pub session: Session,
}

impl AdminService {
    /// Makes the operations over this store. `quality` are curves of an evaluation, shown beside predictions.
    #[must_use]
    pub fn new(store: Store, quality: Option<Arc<QualityCurves>>) -> AdminService {
        AdminService { store, quality, opened: Arc::default(), looked_at: Arc::default() }
    }

    /// Returns the curves of an evaluation, if there are any.
    #[must_use]
    pub fn quality(&self) -> Option<Arc<QualityCurves>> {
        self.quality.clone()
    }

    /// Returns whether there is an administrator.
    pub(super) async fn has_admin(&self) -> Result<bool, Problem> {
        if self.opened.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let there = self.store.has_admin().await?;
        self.opened.fetch_or(there, Ordering::Relaxed);
        Ok(there)
    }

    /// Returns whether the database answers and accepts changes.
    pub(super) fn health(&self) -> StoreHealth {
        self.store.health()
    }

    pub(super) async fn log_in(&self, attempt: &LoginAttempt<'_>) -> Result<LoggedIn, LoginError> {
        let new = self.store.log_in(attempt).await?;
        let session =
            Session { user: new.user.name, role: new.user.role, csrf: new.csrf, expires_ms: new.expires_ms };
        Ok(LoggedIn { token: new.token, device: new.device, session })
    }

    pub(super) async fn session(&self, token: &str) -> Result<Option<Session>, Problem> {
        let found = self.store.session(token).await?;
        Ok(found.map(|found| Session {
            user: found.user.name,
            role: found.user.role,
            csrf: found.csrf,
            expires_ms: found.expires_ms,
        }))
    }

    pub(super) async fn log_out(&self, token: &str) -> Result<(), Problem> {
        Ok(self.store.log_out(token).await?)
    }

    pub(super) async fn scenes(&self) -> Result<Vec<SceneView>, Problem> {
        Ok(self.store.scene_states().await?.into_iter().map(scene_view).collect())
    }

    pub(super) async fn scene(&self, id: &str) -> Result<SceneView, Problem> {
        Ok(scene_view(self.store.scene_state(id).await?))
    }

    /// Returns a scene and its versions, the newest first.
    pub(super) async fn history(&self, id: &str) -> Result<(SceneView, Vec<VersionView>), Problem> {
        let history = self.store.scene_history(id).await?;
        let versions = history.versions.iter().rev().map(|version| version_view(&history, version)).collect();
        let settings = |version: Option<u32>| {
            let found = history.versions.iter().find(|found| Some(found.scene.version) == version);
            found.map(|found| found.scene.settings.clone())
        };
        let published = settings(history.head.published_version);
        let draft = settings(history.head.draft_version);
        Ok((scene_view(SceneState { head: history.head, published, draft }), versions))
    }

    pub(super) async fn version(&self, id: &str, version: u32) -> Result<VersionView, Problem> {
        let (_, versions) = self.history(id).await?;
        let found = versions.into_iter().find(|found| found.version == version);
        found.ok_or_else(|| Problem::new(Kind::NotFound, format!("scene `{id}` has no version {version}")))
    }

    /// Returns the differences between two versions. Version 0 is the defaults.
    pub(super) async fn diff(&self, id: &str, from: u32, to: u32) -> Result<DiffView, Problem> {
        let (before, after) = (self.settings(id, from).await?, self.settings(id, to).await?);
        let changes = before.diff(&after).into_iter().map(FieldChange::from).collect();
        Ok(DiffView { from, to, changes })
    }

    async fn settings(&self, id: &str, version: u32) -> Result<SceneSettings, Problem> {
        match version {
            0 => Ok(SceneSettings::default()),
            version => Ok(self.store.scene_version(id, version).await?.scene.settings),
        }
    }

    pub(super) async fn save_draft(
        &self,
        by: &Actor,
        id: &str,
        settings: &SceneSettings,
        note: &str,
        expected: Expected,
    ) -> Result<SceneView, Problem> {
        let head = self.store.save_draft(id, settings, note, expected, by).await?;
        self.scene(&head.id).await
    }

    pub(super) async fn discard_draft(
        &self,
        by: &Actor,
        id: &str,
        expected: Expected,
    ) -> Result<SceneView, Problem> {
        let head = self.store.discard_draft(id, expected, by).await?;
        self.scene(&head.id).await
    }

    pub(super) async fn publish(
        &self,
        by: &Actor,
        id: &str,
        note: &str,
        expected: Expected,
    ) -> Result<SceneView, Problem> {
        let head = self.store.publish(id, note, expected, by).await?;
        self.scene(&head.id).await
    }

    pub(super) async fn roll_back(
        &self,
        by: &Actor,
        id: &str,
        version: u32,
        note: &str,
        expected: Expected,
    ) -> Result<SceneView, Problem> {
        let head = self.store.roll_back(id, version, note, expected, by).await?;
        self.scene(&head.id).await
    }

    /// Returns the device classes that are set or were reported, with the costs in use.
    pub(super) async fn classes(&self, measured: &Coefficients) -> Result<Vec<ClassView>, Problem> {
        let set = self.store.device_classes().await?;
        let mut views: Vec<ClassView> = set.iter().map(|class| class_view(class, measured)).collect();
        for (name, known) in measured.devices.iter().filter(|(name, _)| name.as_str() != ALL) {
            if set.iter().all(|class| &class.id != name) {
                views.push(ClassView {
                    id: name.clone(),
                    revision: 0,
                    label: String::new(),
                    prefill_ms_per_token: known.value.prefill_ms_per_token,
                    prefill_ms_per_token2: known.value.prefill_ms_per_token2,
                    decode_ms: known.value.decode_ms,
                    fixed: false,
                    samples: known.samples,
                });
            }
        }
        views.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(views)
    }

    /// Returns the measured coefficients, with the costs that people have set in place of measured ones.
    pub(super) async fn known(&self, measured: Coefficients) -> Result<Coefficients, Problem> {
        let mut known = measured;
        for class in self.store.device_classes().await? {
            if let Some(cost) = class.settings.cost {
                let value = baton_pacing::refit::DeviceReport {
                    prefill_ms_per_token: cost.prefill_ms_per_token,
                    prefill_ms_per_token2: cost.prefill_ms_per_token2,
                    decode_ms: cost.decode_ms,
                };
                let samples = known.devices.get(&class.id).map_or(0, |known| known.samples);
                known.devices.insert(class.id, Known { value, samples });
            }
        }
        Ok(known)
    }

    pub(super) async fn set_class(
        &self,
        by: &Actor,
        id: &str,
        input: &ClassInput,
        expected: Expected,
    ) -> Result<DeviceClass, Problem> {
        let cost = match (input.prefill_ms_per_token, input.prefill_ms_per_token2, input.decode_ms) {
            (None, None, None) => None,
            (Some(prefill_ms_per_token), prefill_ms_per_token2, Some(decode_ms)) => Some(ClassCost {
                prefill_ms_per_token,
                prefill_ms_per_token2: prefill_ms_per_token2.unwrap_or(0.0),
                decode_ms,
            }),
            (None, ..) => return Err(missing_figure("prefill_ms_per_token")),
            (Some(_), _, None) => return Err(missing_figure("decode_ms")),
        };
        let settings = DeviceClassSettings { label: input.label.clone(), cost };
        Ok(self.store.set_device_class(id, &settings, expected, by).await?)
    }

    pub(super) async fn remove_class(&self, by: &Actor, id: &str, expected: Expected) -> Result<(), Problem> {
        Ok(self.store.remove_device_class(id, expected, by).await?)
    }

    pub(super) async fn tenants(&self) -> Result<Vec<TenantView>, Problem> {
        Ok(self.store.tenants().await?.iter().map(tenant_view).collect())
    }

    pub(super) async fn tenant(&self, id: &str) -> Result<TenantView, Problem> {
        Ok(tenant_view(&self.store.tenant(id).await?))
    }

    pub(super) async fn set_tenant(
        &self,
        by: &Actor,
        id: &str,
        input: &TenantInput,
        expected: Expected,
    ) -> Result<TenantView, Problem> {
        let settings = TenantSettings {
            label: input.label.clone(),
            weight: input.weight,
            requests_per_minute: input.requests_per_minute,
            concurrency_max: input.concurrency_max,
            tokens_per_day: input.tokens_per_day,
            disabled: input.disabled,
        };
        Ok(tenant_view(&self.store.set_tenant(id, &settings, expected, by).await?))
    }

    pub(super) async fn keys(&self) -> Result<Vec<KeyView>, Problem> {
        Ok(self.store.keys().await?.iter().map(key_view).collect())
    }

    pub(super) async fn key(&self, id: &str) -> Result<KeyView, Problem> {
        Ok(key_view(&self.store.key(id).await?))
    }

    pub(super) async fn create_key(
        &self,
        by: &Actor,
        input: &KeyInput,
        now_ms: i64,
    ) -> Result<NewKey, Problem> {
        let scopes =
            input.scopes.iter().map(|scope| scope.parse()).collect::<Result<Vec<Scope>, AccessError>>();
        let scopes = scopes.and_then(Scopes::new).map_err(|err| Problem::from(&err))?;
        if let Some(days) = input.days.filter(|days| !(1..=KEY_DAYS_MAX).contains(days)) {
            let why = format!("field `days` is {days}, must be 1 to {KEY_DAYS_MAX}");
            return Err(Problem::field("days", &why));
        }
        let new = store::NewKey {
            tenant: input.tenant.clone(),
            label: input.label.clone(),
            scopes,
            expires_ms: input.days.map(|days| now_ms + i64::from(days) * DAY_MS),
        };
        match self.store.create_key(&new, by).await {
            Ok(made) => Ok(new_key(made)),
            Err(err @ StoreError::Unknown { .. }) => Err(Problem::field("tenant", &err)),
            Err(err) => Err(err.into()),
        }
    }

    pub(super) async fn revoke_key(
        &self,
        by: &Actor,
        id: &str,
        expected: Expected,
    ) -> Result<KeyView, Problem> {
        Ok(key_view(&self.store.revoke_key(id, expected, by).await?))
    }

    pub(super) async fn rotate_key(
        &self,
        by: &Actor,
        id: &str,
        expected: Expected,
    ) -> Result<NewKey, Problem> {
        Ok(new_key(self.store.rotate_key(id, ROTATION_GRACE_MS, expected, by).await?))
    }

    pub(super) async fn users(&self) -> Result<Vec<UserView>, Problem> {
        Ok(self.store.users().await?.iter().map(user_view).collect())
    }

    pub(super) async fn user(&self, name: &str) -> Result<UserView, Problem> {
        Ok(user_view(&self.store.user(name).await?))
    }

    pub(super) async fn add_user(&self, by: &Actor, input: &UserInput) -> Result<UserView, Problem> {
        let role = input.role.parse().map_err(|err| Problem::from(&err))?;
        Ok(user_view(&self.store.add_user(&input.name, role, &input.password, by).await?))
    }

    pub(super) async fn change_user(
        &self,
        by: &Actor,
        name: &str,
        change: &UserChange,
        expected: Expected,
    ) -> Result<UserView, Problem> {
        let role = change.role.as_deref().map(str::parse).transpose().map_err(|err| Problem::from(&err))?;
        let to = store::UserChange { role, password: change.password.clone(), disabled: change.disabled };
        Ok(user_view(&self.store.change_user(name, &to, expected, by).await?))
    }

    /// Returns rows before `before`, or else the newest rows. The newest row comes first.
    pub(super) async fn audit(&self, before: Option<u64>, limit: u32) -> Result<AuditPage, Problem> {
        let limit = limit.clamp(1, 500);
        Ok(audit_page(&self.audit_rows(before, limit).await?, limit))
    }

    async fn audit_rows(&self, before: Option<u64>, limit: u32) -> Result<Vec<store::AuditRow>, Problem> {
        Ok(self.store.audit(&AuditQuery { before, limit, ..AuditQuery::default() }).await?)
    }

    /// Returns one page of rows, and the result of a check of the log. Rows that an earlier check of this
    /// process found intact are not checked again, except those of the page. If a row of the page is wrong,
    /// the whole log is checked.
    pub(super) async fn audit_and_state(
        &self,
        before: Option<u64>,
        limit: u32,
    ) -> Result<(AuditPage, AuditState), Problem> {
        let rows = self.audit_rows(before, limit).await?;
        let looked_at = *self.looked_at.lock().expect(POISONED);
        let check = match looked_at.filter(|_| store::page_is_whole(&rows)) {
            Some(end) => self.store.verify_audit_after(end).await?,
            None => self.store.verify_audit(None).await?,
        };
        *self.looked_at.lock().expect(POISONED) = match &check {
            AuditCheck::Whole(end) => Some(*end),
            AuditCheck::Broken { .. } => None,
        };
        Ok((audit_page(&rows, limit), audit_state(check)))
    }

    /// Checks the whole log.
    pub(super) async fn verify_audit(&self) -> Result<AuditState, Problem> {
        Ok(audit_state(self.store.verify_audit(None).await?))
    }

    /// Returns the sums of each period from `from_ms` up to but not including `to_ms`.
    pub(super) async fn traffic(
        &self,
        period_ms: i64,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<TrafficRow>, Problem> {
        Ok(self.store.traffic(period_ms, from_ms, to_ms).await?)
    }
}

const POISONED: &str = "no holder of this lock panics";

fn audit_page(rows: &[store::AuditRow], limit: u32) -> AuditPage {
    let rows: Vec<AuditRow> = rows.iter().map(audit_row).collect();
    let full = rows.len() == limit as usize;
    let next_before = rows.last().map(|row| row.seq).filter(|&seq| full && seq > 1);
    AuditPage { rows, next_before }
}

fn audit_state(check: AuditCheck) -> AuditState {
    match check {
        AuditCheck::Whole(end) => AuditState { whole: true, rows: end.seq, broken_at: None, reason: None },
        AuditCheck::Broken { seq, fault } => AuditState {
            whole: false,
            rows: seq.saturating_sub(1),
            broken_at: Some(seq),
            reason: Some(fault.to_string()),
        },
    }
}

fn missing_figure(field: &str) -> Problem {
    Problem::field(field, &format!("field `{field}` is empty, set all figures of a class or none"))
}

fn scene_view(state: SceneState) -> SceneView {
    let SceneState { head, published, draft } = state;
    SceneView {
        id: head.id,
        revision: head.revision,
        published_version: head.published_version,
        draft_version: head.draft_version,
        newest_version: head.newest_version,
        published,
        draft,
        // The callers that know the service fill these in.
        warnings: Vec::new(),
    }
}

fn version_view(history: &SceneHistory, version: &store::SceneVersion) -> VersionView {
    let number = version.scene.version;
    let published = history.publications.iter().rev().find(|publication| publication.version == number);
    VersionView {
        version: number,
        settings: version.scene.settings.clone(),
        created_ms: version.created_ms,
        created_by: version.created_by.clone(),
        note: published
            .map(|p| p.note.clone())
            .filter(|note| !note.is_empty())
            .unwrap_or(version.note.clone()),
        based_on: version.based_on,
        state: version.state.as_str().to_owned(),
        published_ms: published.map(|publication| publication.published_ms),
        published_by: published.map(|publication| publication.published_by.clone()),
    }
}

fn class_view(class: &DeviceClass, measured: &Coefficients) -> ClassView {
    let reported = measured.class(&class.id);
    let cost = class.settings.cost.unwrap_or(ClassCost {
        prefill_ms_per_token: reported.prefill_ms_per_token,
        prefill_ms_per_token2: reported.prefill_ms_per_token2,
        decode_ms: reported.decode_ms,
    });
    ClassView {
        id: class.id.clone(),
        revision: class.revision,
        label: class.settings.label.clone(),
        prefill_ms_per_token: cost.prefill_ms_per_token,
        prefill_ms_per_token2: cost.prefill_ms_per_token2,
        decode_ms: cost.decode_ms,
        fixed: class.settings.cost.is_some(),
        samples: measured.devices.get(&class.id).map_or(0, |known| known.samples),
    }
}

fn tenant_view(tenant: &Tenant) -> TenantView {
    let settings = &tenant.settings;
    TenantView {
        id: tenant.id.clone(),
        revision: tenant.revision,
        label: settings.label.clone(),
        weight: settings.weight,
        requests_per_minute: settings.requests_per_minute,
        concurrency_max: settings.concurrency_max,
        tokens_per_day: settings.tokens_per_day,
        disabled: settings.disabled,
    }
}

fn key_view(key: &ApiKey) -> KeyView {
    KeyView {
        id: key.id.clone(),
        revision: key.revision,
        tenant: key.tenant.clone(),
        label: key.label.clone(),
        scopes: key.scopes.iter().map(|scope| scope.to_string()).collect(),
        created_ms: key.created_ms,
        created_by: key.created_by.clone(),
        expires_ms: key.expires_ms,
        revoked_ms: key.revoked_ms,
        last_used_ms: key.last_used_ms,
        rotated_from: key.rotated_from.clone(),
    }
}

fn new_key((key, secret): (ApiKey, KeySecret)) -> NewKey {
    NewKey { key: key_view(&key), secret: secret.reveal().to_owned() }
}

fn user_view(user: &User) -> UserView {
    UserView {
        name: user.name.clone(),
        revision: user.revision,
        role: user.role.as_str().to_owned(),
        disabled: user.disabled,
        created_ms: user.created_ms,
    }
}

fn audit_row(row: &store::AuditRow) -> AuditRow {
    AuditRow {
        seq: row.seq,
        at_ms: row.at_ms,
        actor: row.actor.clone(),
        action: row.action.clone(),
        target: row.target.clone(),
        detail: row.detail.clone(),
        hash: hex::encode(row.hash),
    }
}
