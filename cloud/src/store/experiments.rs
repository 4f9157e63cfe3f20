//! Experiments, their sums over all replicas, and which answers have had their feedback.
//!
//! Always: a scene has at most one running experiment. A plan changes only in a draft. Promoting publishes a
//! version of the scene in the same transaction. Sums are counts and not changes, so they have no audit rows.

use std::collections::BTreeMap;

use serde_json::json;
use sha2::{Digest, Sha256};

use super::change::{Change, Expected, Fields, Recorded, fields, unknown};
use super::db::{Arg, Row, Statement, Tx, args};
use super::{SceneHead, Store, StoreError, sql};
use crate::access::key::random_bytes;
use crate::access::{Actor, check_label};
use crate::experiment::plan::{Experiment, Plan, State, StoppedArm};
use crate::experiment::report::Sums;
use crate::experiment::sums::{ArmSums, BucketSums, METRICS, Sum};
use crate::scene::{SceneSettings, check_id};

/// The purpose of the key that signs the names of answers.
const FEEDBACK_KEY: &str = "feedback";

/// Sums of one bucket that a replica adds.
#[derive(Debug, Clone, PartialEq)]
pub struct BucketRow {
    /// The experiment.
    pub experiment: String,
    /// The arm.
    pub arm: String,
    /// The bucket.
    pub bucket: u8,
    /// What is added.
    pub sums: BucketSums,
}

/// The name of an answer, which may have feedback once.
#[derive(Debug, Clone, Copy)]
pub struct FeedbackName<'a> {
    /// The name.
    pub name: &'a str,
    /// Until when it may be used, in milliseconds since 1970. The name is forgotten then.
    pub expires_ms: i64,
}

/// The columns of one metric.
struct Columns {
    count: &'static str,
    total: &'static str,
}

/// The columns of each metric, in the order of `Metric::ALL`.
const COLUMNS: [Columns; METRICS] = [
    Columns { count: "ttft_ms_count", total: "ttft_ms_total" },
    Columns { count: "shown_ttft_ms_count", total: "shown_ttft_ms_total" },
    Columns { count: "gap_ms_count", total: "gap_ms_total" },
    Columns { count: "slot_ms_count", total: "slot_ms_total" },
    Columns { count: "agreement_count", total: "agreement_total" },
    Columns { count: "rating_count", total: "rating_total" },
    Columns { count: "failures_count", total: "failures_total" },
];

impl Store {
    /// Returns every experiment, the newest first.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer, [`StoreError::Row`] if a row cannot be read.
    pub async fn experiments(&self) -> Result<Vec<Experiment>, StoreError> {
        self.all(&sql::EXPERIMENTS).await
    }

    /// Returns one experiment.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if there is none, or as for [`Store::experiments`].
    pub async fn experiment(&self, id: &str) -> Result<Experiment, StoreError> {
        self.one(id).await
    }

    /// Writes the plan of a new experiment, or of a draft.
    ///
    /// # Errors
    /// [`StoreError::Experiment`] if the plan is not valid for the scene in force. [`StoreError::Unknown`] if
    /// there is no such scene. [`StoreError::State`] if the experiment has been started.
    /// [`StoreError::Conflict`] if it is at another revision.
    pub async fn save_experiment(
        &self,
        id: &str,
        plan: &Plan,
        expected: Expected,
        by: &Actor,
    ) -> Result<Experiment, StoreError> {
        check_id(id)?;
        plan.check()?;
        let mut change = self.change(by).await?;
        let old: Option<Experiment> = change.find(id, expected).await?;
        if old.as_ref().is_some_and(|old| old.state != State::Draft) {
            return Err(state(id, "has been started, so its plan cannot change"));
        }
        plan.check_for(&change.in_force(&plan.scene).await?)?;
        let new = Experiment {
            id: id.to_owned(),
            revision: old.as_ref().map_or(0, |old| old.revision) + 1,
            plan: plan.clone(),
            state: State::Draft,
            stopped_arms: Vec::new(),
            promoted: None,
            created_ms: old.as_ref().map_or(change.at_ms, |old| old.created_ms),
            updated_ms: change.at_ms,
            updated_by: change.by.clone(),
        };
        change.put("draft", old.as_ref(), new, json!({})).await
    }

    /// Starts a draft: replicas let requests of its scene take part.
    ///
    /// # Errors
    /// [`StoreError::State`] if it is not a draft, or another experiment of its scene is running. Else as for
    /// [`Store::save_experiment`].
    pub async fn start_experiment(
        &self,
        id: &str,
        expected: Expected,
        by: &Actor,
    ) -> Result<Experiment, StoreError> {
        let mut change = self.change(by).await?;
        let old: Experiment = change.known(id, expected).await?;
        if old.state != State::Draft {
            return Err(state(id, "has been started before"));
        }
        let running = change.tx.rows(&sql::EXPERIMENTS_RUNNING, args![]).await?;
        for row in &running {
            if row.text("scene")? == old.plan.scene {
                return Err(state(id, "cannot start while another experiment of its scene is running"));
            }
        }
        old.plan.check_for(&change.in_force(&old.plan.scene).await?)?;
        let new = change.next(&old, State::Running);
        change.put("start", Some(&old), new, json!({})).await
    }

    /// Stops a running experiment: its scene is as before.
    ///
    /// # Errors
    /// [`StoreError::State`] if it is not running, or as for [`Store::save_experiment`].
    pub async fn stop_experiment(
        &self,
        id: &str,
        note: &str,
        expected: Expected,
        by: &Actor,
    ) -> Result<Experiment, StoreError> {
        check_label("note", note)?;
        let mut change = self.change(by).await?;
        let old = change.running(id, expected).await?;
        let new = change.next(&old, State::Stopped);
        change.put("stop", Some(&old), new, json!({ "note": note })).await
    }

    /// Stops one arm of a running experiment: its devices get the control's settings. Several replicas may
    /// find the same harm, so an arm that was stopped before stays as it is.
    ///
    /// # Errors
    /// [`StoreError::State`] if the experiment is not running or has no such arm, or the arm is the control.
    pub async fn stop_arm(
        &self,
        id: &str,
        arm: StoppedArm,
        expected: Expected,
        by: &Actor,
    ) -> Result<Experiment, StoreError> {
        check_label("reason", &arm.reason)?;
        let mut change = self.change(by).await?;
        let old = change.running(id, expected).await?;
        if !old.plan.arms.iter().skip(1).any(|known| known.name == arm.name) {
            return Err(state(id, "has no arm of this name that could be stopped"));
        }
        if old.is_stopped(&arm.name) {
            return Ok(old);
        }
        let mut new = change.next(&old, State::Running);
        let more = json!({ "arm": &arm.name, "reason": &arm.reason });
        new.stopped_arms.push(arm);
        change.put("stop_arm", Some(&old), new, more).await
    }

    /// Ends a running experiment, and brings the settings of an arm into force as a new version of its scene.
    /// Both are one transaction.
    ///
    /// # Errors
    /// [`StoreError::State`] if the experiment is not running, has no such arm, or the arm is the control.
    /// [`StoreError::Experiment`] if the arm does not fit the scene in force any more.
    pub async fn promote_experiment(
        &self,
        id: &str,
        arm: &str,
        note: &str,
        expected: Expected,
        by: &Actor,
    ) -> Result<Experiment, StoreError> {
        check_label("note", note)?;
        let mut change = self.change(by).await?;
        let old = change.running(id, expected).await?;
        let chosen = old.plan.arms.iter().skip(1).find(|known| known.name == arm);
        let chosen = chosen.ok_or_else(|| state(id, "has no arm of this name that could be promoted"))?;
        let settings = chosen.settings(&change.in_force(&old.plan.scene).await?)?;
        let new = Experiment { promoted: Some(arm.to_owned()), ..change.next(&old, State::Promoted) };
        change.write(Some(&old), &new).await?;
        let target = format!("{}/{id}", Experiment::KIND);
        let detail = json!({ "arm": arm, "scene": &old.plan.scene, "note": note });
        change.log("experiment.promote", &target, &detail).await?;
        let note = format!("experiment {id}, arm {arm}");
        change.publish_settings(&old.plan.scene, &settings, &note).await?;
        Ok(new)
    }

    /// Returns the sums of an experiment over all replicas.
    ///
    /// # Errors
    /// As for [`Store::experiments`].
    pub async fn experiment_sums(&self, id: &str) -> Result<Sums, StoreError> {
        let mut sums: Sums = BTreeMap::new();
        for row in self.pool.rows(&sql::EXPERIMENT_SUMS, args![id]).await? {
            let bucket = row.small("bucket")?;
            let bucket = u8::try_from(bucket).map_err(|_| row.bad("bucket", bucket.to_string()))?;
            let arm: &mut ArmSums = sums.entry(row.text("arm")?).or_default();
            *arm.bucket(bucket) = bucket_sums(&row)?;
        }
        Ok(sums)
    }

    /// Adds the sums of a replica, all of them or none.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
    pub async fn add_experiment_sums(&self, rows: &[BucketRow]) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        let mut tx = self.pool.begin_write().await?;
        let mut rows: Vec<&BucketRow> = rows.iter().collect();
        // All replicas lock rows in the same order, so that they cannot deadlock.
        rows.sort_by(|a, b| (&a.experiment, &a.arm, a.bucket).cmp(&(&b.experiment, &b.arm, b.bucket)));
        for row in rows {
            add(&mut tx, row).await?;
        }
        tx.commit().await
    }

    /// Adds the feedback of an answer. Returns false, and adds nothing, if the answer has had its feedback.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
    pub async fn add_feedback(&self, answer: FeedbackName<'_>, row: &BucketRow) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin_write().await?;
        let hash: [u8; 32] = Sha256::digest(answer.name).into();
        if tx.row(&sql::FEEDBACK_ADD, args![&hash, answer.expires_ms]).await?.is_none() {
            return Ok(false);
        }
        add(&mut tx, row).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Returns the key that signs the names of answers, the same on all replicas. Makes it at first.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer or cannot be written.
    pub async fn feedback_key(&self) -> Result<[u8; 32], StoreError> {
        if let Some(row) = self.pool.row(&sql::SERVICE_KEY, args![FEEDBACK_KEY]).await? {
            return row.hash("secret");
        }
        let mut tx = self.pool.begin_write().await?;
        let new = random_bytes::<32>();
        tx.execute(&sql::SERVICE_KEY_ADD, args![FEEDBACK_KEY, &new]).await?;
        let row = tx.row(&sql::SERVICE_KEY, args![FEEDBACK_KEY]).await?;
        tx.commit().await?;
        row.map_or(Ok(new), |row| row.hash("secret"))
    }
}

impl Change {
    /// Returns the settings of a scene that are in force.
    async fn in_force(&mut self, scene: &str) -> Result<SceneSettings, StoreError> {
        let head: SceneHead = self.known(scene, Expected::Any).await?;
        let settings = self.settings(scene, head.published_version).await?;
        settings.ok_or_else(|| unknown::<SceneHead>(scene))
    }

    /// Reads an experiment that is running.
    async fn running(&mut self, id: &str, expected: Expected) -> Result<Experiment, StoreError> {
        let old: Experiment = self.known(id, expected).await?;
        if old.state == State::Running { Ok(old) } else { Err(state(id, "is not running")) }
    }

    /// Returns the next revision of an experiment.
    fn next(&self, old: &Experiment, state: State) -> Experiment {
        Experiment {
            revision: old.revision + 1,
            state,
            updated_ms: self.at_ms,
            updated_by: self.by.clone(),
            ..old.clone()
        }
    }
}

impl Recorded for Experiment {
    const NAME: &'static str = "experiment";
    const KIND: &'static str = "experiment";
    const READ: &'static Statement = &sql::EXPERIMENT;
    const ADD: &'static Statement = &sql::EXPERIMENT_ADD;
    const CHANGE: &'static Statement = &sql::EXPERIMENT_CHANGE;

    fn read(row: &Row) -> Result<Experiment, StoreError> {
        let plan = row.text("plan")?;
        let plan: Plan = serde_json::from_str(&plan).map_err(|err| row.bad("plan", err.to_string()))?;
        plan.check()?;
        let stopped = row.text("stopped_arms")?;
        let stopped = serde_json::from_str(&stopped);
        Ok(Experiment {
            id: row.text("id")?,
            revision: row.count("revision")?,
            plan,
            state: row.parsed("state")?,
            stopped_arms: stopped.map_err(|err| row.bad("stopped_arms", err.to_string()))?,
            promoted: row.opt_text("promoted")?,
            created_ms: row.int("created_ms")?,
            updated_ms: row.int("updated_ms")?,
            updated_by: row.text("updated_by")?,
        })
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
            (&self.plan.scene).into(),
            json!(self.plan).to_string().into(),
            self.state.as_str().into(),
            json!(self.stopped_arms).to_string().into(),
            self.promoted.as_deref().into(),
            self.created_ms.into(),
            self.updated_ms.into(),
            (&self.updated_by).into(),
        ]
    }

    fn fields(&self) -> Fields {
        fields(json!({
            "plan": self.plan,
            "state": self.state,
            "stopped_arms": self.stopped_arms,
            "promoted": self.promoted,
        }))
    }
}

async fn add(tx: &mut Tx, row: &BucketRow) -> Result<(), StoreError> {
    let BucketSums { marks, sampled_marks, metrics } = row.sums;
    let mut values: Vec<Arg<'_>> = vec![
        (&row.experiment).into(),
        (&row.arm).into(),
        u32::from(row.bucket).into(),
        marks.into(),
        sampled_marks.into(),
    ];
    for Sum { count, total } in metrics {
        values.extend([Arg::from(count), Arg::from(total)]);
    }
    tx.execute(&sql::EXPERIMENT_SUMS_ADD, &values).await.map(drop)
}

fn bucket_sums(row: &Row) -> Result<BucketSums, StoreError> {
    let mut metrics = [Sum::default(); METRICS];
    for (sum, columns) in metrics.iter_mut().zip(COLUMNS) {
        *sum = Sum { count: row.count(columns.count)?, total: row.real(columns.total)? };
    }
    Ok(BucketSums { marks: row.count("marks")?, sampled_marks: row.count("sampled_marks")?, metrics })
}

fn state(id: &str, why: &'static str) -> StoreError {
    StoreError::State { what: Experiment::NAME, id: id.to_owned(), why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::metric::Metric;

    #[test]
    fn columns_have_the_names_of_their_metrics() {
        for (metric, columns) in Metric::ALL.into_iter().zip(COLUMNS) {
            assert_eq!(columns.count, format!("{}_count", metric.as_str()));
            assert_eq!(columns.total, format!("{}_total", metric.as_str()));
        }
    }
}
