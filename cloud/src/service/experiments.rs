//! Lets requests take part in the experiments that run: chooses arms, and sums up what their answers took.
//!
//! Never: asks the database, or keeps a device's name; only its bucket. Always: whether a request is counted
//! depends on the request and on the plan, never on its arm, so that the arms stay comparable. Sums wait here
//! until they are written, at most 256 for each arm of a running experiment.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use arc_swap::{ArcSwap, ArcSwapOption};
use baton_protocol::{ArmEvent, AssistRequest, SceneInfo};
use tracing::debug;

use super::{CloudService, DEFAULT_MODEL, ServiceError, Terms};
use crate::experiment::assign::{Cell, Unit};
use crate::experiment::metric::Metric;
use crate::experiment::plan::{Arm, Experiment};
use crate::experiment::sums::BucketSums;
use crate::experiment::token::{Answer, TokenError};
use crate::learn::traffic::{DAY_MS, RequestFigures};
use crate::observe::metrics::Metrics;
use crate::scene::Scene;
use crate::store::{BucketRow, now_ms};

/// How long feedback is taken after a request, in milliseconds.
pub const FEEDBACK_MS: i64 = DAY_MS;

/// The experiments that run, and sums that the database does not have yet.
#[derive(Debug, Clone, Default)]
pub struct ExperimentBook(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// By scene.
    running: ArcSwap<BTreeMap<String, Arc<Experiment>>>,
    pending: Mutex<BTreeMap<(String, String, u8), BucketSums>>,
    /// Signs the names of answers.
    key: ArcSwapOption<[u8; 32]>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("running", &self.running).finish_non_exhaustive()
    }
}

/// A request that takes part in an experiment.
#[derive(Debug, Clone)]
pub(crate) struct Participant {
    experiment: Arc<Experiment>,
    arm: String,
    cell: Cell,
    is_counted: bool,
    book: ExperimentBook,
}

/// Why feedback is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FeedbackError {
    /// The name of the answer is not valid.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Its experiment, or its arm, was stopped.
    #[error("the experiment of the answer is over")]
    Over,
}

impl ExperimentBook {
    /// Replaces the running experiments by a newer read of the database.
    pub fn replace(&self, running: Vec<Experiment>) {
        let by_scene = running.into_iter().map(|one| (one.plan.scene.clone(), Arc::new(one)));
        self.0.running.store(Arc::new(by_scene.collect()));
    }

    /// Sets the key that all replicas share. Without one, answers have no names and get no feedback.
    pub fn set_key(&self, key: [u8; 32]) {
        self.0.key.store(Some(Arc::new(key)));
    }

    /// Returns whether the key is set.
    #[must_use]
    pub fn has_key(&self) -> bool {
        self.0.key.load().is_some()
    }

    /// Returns the running experiments.
    #[must_use]
    pub fn running(&self) -> Vec<Arc<Experiment>> {
        self.0.running.load().values().cloned().collect()
    }

    /// Takes the sums that the database does not have yet.
    #[must_use]
    pub fn take(&self) -> Vec<BucketRow> {
        let pending = std::mem::take(&mut *self.0.pending.lock().expect(POISONED));
        let row = |((experiment, arm, bucket), sums)| BucketRow { experiment, arm, bucket, sums };
        pending.into_iter().map(row).collect()
    }

    /// Gives back sums that could not be written.
    pub fn give_back(&self, rows: Vec<BucketRow>) {
        let mut pending = self.0.pending.lock().expect(POISONED);
        for BucketRow { experiment, arm, bucket, sums } in rows {
            pending.entry((experiment, arm, bucket)).or_default().merge(&sums);
        }
    }

    /// Reads the name of an answer that feedback is for.
    ///
    /// # Errors
    /// [`FeedbackError`] if it is not valid for this owner, or its experiment is over.
    pub fn answer(&self, token: &str, owner: u128) -> Result<Answer, FeedbackError> {
        let key = self.0.key.load_full().ok_or(TokenError::Unknown)?;
        let answer = Answer::read(token, &key, owner, now_ms())?;
        let running = self.0.running.load();
        let experiment = running.values().find(|running| running.id == answer.experiment);
        let takes_part = experiment.is_some_and(|experiment| !experiment.is_stopped(&answer.arm));
        if takes_part { Ok(answer) } else { Err(FeedbackError::Over) }
    }

    /// Returns the settings that a request of this unit gets, and its part in an experiment if it has one.
    fn settings(&self, scene: Arc<Scene>, unit: Unit) -> (Arc<Scene>, Option<Participant>) {
        let Some(experiment) = self.0.running.load().get(&scene.id).cloned() else { return (scene, None) };
        let arm = &experiment.plan.arms[unit.arm(&experiment.id, &experiment.plan.arms)];
        let cell = unit.cell(&experiment.id);
        let participant = |arm: &Arm| Participant {
            experiment: experiment.clone(),
            arm: arm.name.clone(),
            cell,
            is_counted: true,
            book: self.clone(),
        };
        if experiment.is_stopped(&arm.name) {
            return (scene, None);
        }
        match arm.settings(&scene.settings) {
            Ok(settings) => {
                let changed = Scene { id: scene.id.clone(), version: scene.version, settings };
                (Arc::new(changed), Some(participant(arm)))
            }
            // The scene was changed meanwhile. Its units are missing from the arm, which the sample-ratio
            // check shows.
            Err(err) => {
                debug!(
                    err = &err as &dyn std::error::Error,
                    experiment = experiment.id,
                    "an arm does not fit"
                );
                (scene, None)
            }
        }
    }

    fn add(&self, participant: &Participant, add: impl FnOnce(&mut BucketSums)) {
        let Participant { experiment, arm, cell, .. } = participant;
        let key = (experiment.id.clone(), arm.clone(), cell.bucket);
        let mut pending = self.0.pending.lock().expect(POISONED);
        let sums = pending.entry(key).or_default();
        sums.mark(*cell);
        add(sums);
    }
}

impl Participant {
    /// Returns the arm as the answer's first event names it.
    fn event(&self, request: &AssistRequest, owner: u128) -> ArmEvent {
        let key = self.book.0.key.load_full().filter(|_| self.is_counted);
        let feedback = key.map(|key| {
            let answer = Answer {
                request: request.request_id,
                experiment: self.experiment.id.clone(),
                arm: self.arm.clone(),
                bucket: self.cell.bucket,
                expires_ms: now_ms().saturating_add(FEEDBACK_MS),
            };
            answer.sign(&key, owner)
        });
        ArmEvent { id: self.experiment.id.clone(), arm: self.arm.clone(), feedback }
    }

    /// Counts an answer that is over.
    pub(crate) fn record(&self, figures: &RequestFigures, metrics: &Metrics) {
        metrics.experiment_answer(&self.experiment.id, &self.arm, figures.failed);
        if !self.is_counted {
            return;
        }
        self.book.add(self, |sums| {
            if let Some(ttft_ms) = figures.ttft_ms {
                sums.add(Metric::TtftMs, ttft_ms);
            }
            // A request that was refused had no slot.
            if !figures.failed || figures.slot_ms > 0 {
                sums.add(Metric::SlotMs, figures.slot_ms as f64);
            }
            sums.add(Metric::Failures, if figures.failed { 1.0 } else { 0.0 });
        });
    }
}

const POISONED: &str = "nothing panics while the sums are locked";

/// Returns whether a request sets itself what an arm would change. Then no arm can change it, so the request
/// takes no part.
fn decides_itself(request: &AssistRequest, experiment: &Experiment) -> bool {
    let sets = |name: &str| match name {
        "ratio" => request.refine.ratio.is_some(),
        "mode" => request.refine.mode.is_some(),
        "assist_tokens" => request.assist_tokens.is_some(),
        "model" => request.model != DEFAULT_MODEL,
        _ => false,
    };
    experiment.plan.arms.iter().any(|arm| arm.overrides.keys().any(|name| sets(name)))
}

impl CloudService {
    /// Returns the experiments that run here.
    pub fn experiments(&self) -> &ExperimentBook {
        &self.inner.experiments
    }

    /// Returns the current version of a scene as this device gets it: with the settings of its arm.
    ///
    /// # Errors
    /// [`ServiceError::Scene`] if there is no such scene.
    pub fn scene_for(&self, id: &str, owner: u128, device: &str) -> Result<SceneInfo, ServiceError> {
        let scene = self.inner.scenes.get(id, None)?;
        let (scene, _) = self.inner.experiments.settings(scene, Unit::device(owner, device));
        Ok(self.info(&scene))
    }

    /// Returns the settings of a request, its part in an experiment, and what its answer says of it.
    pub(super) fn take_part(
        &self,
        request: &AssistRequest,
        scene: Arc<Scene>,
        terms: &Terms,
    ) -> (Arc<Scene>, Option<(Participant, ArmEvent)>) {
        let book = &self.inner.experiments;
        let running = book.0.running.load();
        if running.get(&scene.id).is_none_or(|running| decides_itself(request, running)) {
            return (scene, None);
        }
        let unit = match &terms.device {
            Some(device) => Unit::device(terms.owner, device),
            None => Unit::request(terms.owner, request.request_id),
        };
        let (scene, participant) = book.settings(scene, unit);
        let participant = participant.map(|mut participant| {
            // The rest of an answer that went wrong says nothing about the arm that it began with.
            participant.is_counted = request.continue_from.is_none();
            let event = participant.event(request, terms.owner);
            (participant, event)
        });
        (scene, participant)
    }
}
