//! Targets of device models, and what devices reported.

use baton_protocol::ModelPair;
use baton_registry::rollout::{Change as TargetChange, Rollout, Target};
use serde_json::json;

use super::change::{Expected, Fields, Recorded, fields};
use super::db::{Arg, Row, Statement, args};
use super::{Store, StoreError, sql};
use crate::access::Actor;
use crate::fleet::reports::{KeyReports, ROWS_OF_KEY_MAX, guarded};
use crate::fleet::{ModelReports, ModelTarget, target_id};

/// How long a device that reports nothing counts, in milliseconds: a day.
const REPORT_MS: i64 = 24 * 3600 * 1000;
/// How long its report is kept, in milliseconds: 30 days.
const FORGET_MS: i64 = 30 * REPORT_MS;

/// What a device reported.
#[derive(Debug, Clone)]
pub struct DeviceReport<'a> {
    /// SHA-256 of the tenant and the device's name.
    pub device_hash: [u8; 32],
    /// Id of the key that it reports with; empty without one.
    pub key: &'a str,
    /// The scene that its pair is for.
    pub scene: &'a str,
    /// Its class.
    pub class: &'a str,
    /// The pair that it answers with.
    pub active: Option<&'a ModelPair>,
    /// The pair that it last failed to load.
    pub failed: Option<&'a ModelPair>,
}

impl Store {
    /// Returns every target, by scene and class.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
    pub async fn model_targets(&self) -> Result<Vec<ModelTarget>, StoreError> {
        self.all(&sql::TARGETS).await
    }

    /// Returns the target of a scene and a class.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if there is none, or as for [`Store::model_targets`].
    pub async fn model_target(&self, scene: &str, class: &str) -> Result<ModelTarget, StoreError> {
        self.one(&target_id(scene, class)?).await
    }

    /// Sets the first pair of a scene and a class.
    ///
    /// # Errors
    /// [`StoreError::Access`] if a name cannot be one; [`StoreError::Conflict`] if there is a target: another
    /// pair gets in by a rollout.
    pub async fn set_model_target(
        &self,
        (scene, class): (&str, &str),
        stable: &ModelPair,
        by: &Actor,
    ) -> Result<ModelTarget, StoreError> {
        let id = target_id(scene, class)?;
        let mut change = self.change(by).await?;
        let old: Option<ModelTarget> = change.find(&id, Expected::Absent).await?;
        let new = ModelTarget {
            id,
            revision: 1,
            scene: scene.to_owned(),
            class: class.to_owned(),
            target: Target::new(stable.clone(), seconds(change.at_ms)),
            updated_ms: change.at_ms,
            updated_by: change.by.clone(),
        };
        change.put("set", old.as_ref(), new, json!({})).await
    }

    /// Changes a target.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if there is none; [`StoreError::Rollout`] if the change makes no sense now;
    /// [`StoreError::Conflict`] if it is at another revision.
    pub async fn change_model_target(
        &self,
        (scene, class): (&str, &str),
        asked: &TargetChange,
        expected: Expected,
        by: &Actor,
    ) -> Result<ModelTarget, StoreError> {
        let mut change = self.change(by).await?;
        let old: ModelTarget = change.known(&target_id(scene, class)?, expected).await?;
        let target = old.target.changed(asked, seconds(change.at_ms))?;
        let new = next(&old, target, change.at_ms, &change.by);
        change.put(verb(asked), Some(&old), new, json!({})).await
    }

    /// Pauses the rollouts that too many devices could not load. Returns those that it paused.
    ///
    /// # Errors
    /// As for [`Store::model_targets`].
    pub async fn guard_rollouts(&self, now_ms: i64) -> Result<Vec<ModelTarget>, StoreError> {
        let mut paused = Vec::new();
        for row in self.model_targets().await? {
            let Some(rollout) = row.target.rollout.as_ref().filter(|rollout| !rollout.is_paused) else {
                continue;
            };
            let keys = self.counted_reports(&row, rollout, now_ms).await?;
            if guarded(&row.target, &keys).is_none() {
                continue;
            }
            let mut change = self.change(&Actor::service()).await?;
            // Another replica may have been faster.
            let old: ModelTarget = change.known(&row.id, Expected::Any).await?;
            if let Some((target, KeyReports { has, failed })) = guarded(&old.target, &keys) {
                let new = next(&old, target, change.at_ms, &change.by);
                let why = json!({ "has": has, "failed": failed });
                paused.push(change.put("guard", Some(&old), new, why).await?);
            }
        }
        Ok(paused)
    }

    /// Removes a target: devices of the class keep what they have, and their pairs are not checked.
    ///
    /// # Errors
    /// As for [`Store::change_model_target`].
    pub async fn remove_model_target(
        &self,
        (scene, class): (&str, &str),
        expected: Expected,
        by: &Actor,
    ) -> Result<(), StoreError> {
        let id = target_id(scene, class)?;
        let mut change = self.change(by).await?;
        let old: ModelTarget = change.known(&id, expected).await?;
        change.tx.execute(&sql::TARGET_REMOVE, args![&id]).await?;
        change.record::<ModelTarget>("remove", &id, (Some(old.fields()), None), json!({})).await
    }

    /// Counts the devices that the guard of a rollout counts, by key.
    async fn counted_reports(
        &self,
        row: &ModelTarget,
        rollout: &Rollout,
        now_ms: i64,
    ) -> Result<Vec<KeyReports>, StoreError> {
        let candidate = rollout.candidate.to_string();
        let begun_ms = rollout.begun_s.saturating_mul(1000);
        let values = args![&row.scene, &row.class, now_ms - REPORT_MS, &candidate, begun_ms];
        let rows = self.pool.rows(&sql::REPORTS_COUNTED, values).await?;
        rows.iter()
            .map(|row| Ok(KeyReports { has: row.count("has")?, failed: row.count("failed")? }))
            .collect()
    }

    /// Notes what a device reported. If its key has as many rows as it may have, the one that was noted
    /// longest ago gives way.
    ///
    /// # Errors
    /// As for [`Store::model_targets`].
    pub async fn note_model_report(&self, report: &DeviceReport<'_>, now_ms: i64) -> Result<(), StoreError> {
        let text = |pair: Option<&ModelPair>| pair.map_or_else(String::new, ToString::to_string);
        let values = args![
            &report.device_hash,
            report.scene,
            report.class,
            text(report.active),
            text(report.failed),
            now_ms,
            report.key,
            ROWS_OF_KEY_MAX
        ];
        if self.pool.execute(&sql::REPORT_PUT, values).await? == 0 {
            self.pool.execute(&sql::REPORT_DROP_OLDEST, args![report.key]).await?;
            self.pool.execute(&sql::REPORT_PUT, values).await?;
        }
        Ok(())
    }

    /// Counts what devices of a class reported in the last day.
    ///
    /// # Errors
    /// As for [`Store::model_targets`].
    pub async fn model_reports(
        &self,
        scene: &str,
        class: &str,
        now_ms: i64,
    ) -> Result<ModelReports, StoreError> {
        let read = async |statement: &Statement| {
            let rows = self.pool.rows(statement, args![scene, class, now_ms - REPORT_MS]).await?;
            let counts = rows.iter().map(|row| Ok((row.text("pair")?, row.count("devices")?)));
            counts.collect::<Result<Vec<_>, StoreError>>()
        };
        Ok(ModelReports {
            active: read(&sql::REPORTS_ACTIVE).await?,
            failed: read(&sql::REPORTS_FAILED).await?,
        })
    }

    /// Forgets devices that have reported nothing for 30 days.
    ///
    /// # Errors
    /// As for [`Store::model_targets`].
    pub(super) async fn forget_model_reports(&self, now_ms: i64) -> Result<(), StoreError> {
        self.pool.execute(&sql::REPORTS_FORGET, args![now_ms - FORGET_MS]).await?;
        Ok(())
    }
}

fn seconds(ms: i64) -> u64 {
    u64::try_from(ms / 1000).unwrap_or(0)
}

fn next(old: &ModelTarget, target: Target, at_ms: i64, by: &str) -> ModelTarget {
    ModelTarget {
        revision: old.revision + 1,
        target,
        updated_ms: at_ms,
        updated_by: by.to_owned(),
        ..old.clone()
    }
}

/// Returns the name of a change in the audit log.
fn verb(change: &TargetChange) -> &'static str {
    match change {
        TargetChange::Start { .. } => "start",
        TargetChange::Share { .. } => "share",
        TargetChange::Pause => "pause",
        TargetChange::Resume => "resume",
        TargetChange::RollBack => "rollback",
        TargetChange::Finish => "finish",
        TargetChange::Revoke { .. } => "revoke",
    }
}

impl Recorded for ModelTarget {
    const NAME: &'static str = "target of models";
    const KIND: &'static str = "rollout";
    const READ: &'static Statement = &sql::TARGET;
    const ADD: &'static Statement = &sql::TARGET_ADD;
    const CHANGE: &'static Statement = &sql::TARGET_CHANGE;

    fn read(row: &Row) -> Result<ModelTarget, StoreError> {
        let text = row.text("target")?;
        let target = serde_json::from_str(&text).map_err(|err| row.bad("target", err.to_string()))?;
        let target = ModelTarget {
            id: row.text("id")?,
            revision: row.count("revision")?,
            scene: row.text("scene")?,
            class: row.text("class")?,
            target,
            updated_ms: row.int("updated_ms")?,
            updated_by: row.text("updated_by")?,
        };
        let fits = target_id(&target.scene, &target.class)? == target.id;
        fits.then_some(target).ok_or_else(|| row.bad("id", "another id than its scene and class".to_owned()))
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn revision(&self) -> u64 {
        self.revision
    }

    fn added(&self) -> Vec<Arg<'_>> {
        vec![
            (&self.id).into(),
            self.revision.into(),
            (&self.scene).into(),
            (&self.class).into(),
            serde_json::to_string(&self.target).unwrap_or_default().into(),
            self.updated_ms.into(),
            (&self.updated_by).into(),
        ]
    }

    fn fields(&self) -> Fields {
        let rollout = self.target.rollout.as_ref();
        let retired: Vec<String> =
            self.target.retired.iter().map(|retired| retired.pair.to_string()).collect();
        fields(json!({
            "stable": self.target.stable.to_string(),
            "candidate": rollout.map(|rollout| rollout.candidate.to_string()),
            "percent": rollout.map(|rollout| rollout.share.percent()),
            "paused": rollout.map(|rollout| rollout.is_paused),
            "given_up": retired,
        }))
    }
}
