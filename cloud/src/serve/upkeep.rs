//! Background tasks: apply newer settings, and write usage and telemetry to the database.
//!
//! Never: delays an answer; no request waits for anything here. Always: while the database is away, the last
//! good settings stay. Counts wait within their bounds (see [`crate::gate`] and [`crate::learn::traffic`]).
//! Everything continues by itself when the database is back.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::access::key::random_bytes;
use crate::access::{AccessBook, Actor, DEFAULT_TENANT};
use crate::experiment::report;
use crate::gate::Gate;
use crate::service::CloudService;
use crate::store::{Expected, Snapshot, Store, StoreError, now_ms};

/// How often replicas exchange usage of tenants through the database.
pub const MEETING_PERIOD: Duration = Duration::from_secs(2);
/// How often experiments are looked through for harm.
const GUARD_PERIOD: Duration = Duration::from_secs(10);
/// How often uses of keys, and measurements, are written to the database.
const SLOW_PERIOD: Duration = Duration::from_secs(60);
/// Number of these periods after which old telemetry is summed up: one hour.
const COMPACT_EVERY: u32 = 60;

/// What the background tasks work on.
#[derive(Debug, Clone)]
pub struct Upkeep {
    /// The database.
    pub store: Store,
    /// The service that answers.
    pub service: CloudService,
    /// The current keys and tenants.
    pub book: AccessBook,
    /// Counts what tenants use.
    pub gate: Gate,
}

/// The running background tasks.
#[derive(Debug)]
pub struct RunningUpkeep {
    upkeep: Upkeep,
    replica: String,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Upkeep {
    /// Applies settings.
    pub fn apply(&self, snapshot: Snapshot) {
        let Snapshot { generation, scenes, tenants, keys, classes, targets, experiments } = snapshot;
        debug!(generation, "settings are in force");
        self.service.scene_book().replace(scenes);
        self.service.set_classes(&classes);
        self.service.fleet().targets.replace(targets);
        self.service.experiments().replace(experiments);
        self.service.set_has_tenants(tenants.iter().any(|tenant| tenant.id != DEFAULT_TENANT));
        self.book.replace(tenants, keys);
    }

    /// Reads what tenants have used, and what other replicas run. Called before requests are accepted.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
    pub async fn learn_usage(&self) -> Result<(), StoreError> {
        // Nothing was counted or written here yet, so no replica name is needed.
        self.share_usage("").await
    }

    /// Starts the tasks. `generation` is that of the current settings.
    #[must_use]
    pub fn start(self, generation: u64) -> RunningUpkeep {
        // Set before metrics are read: a missing metric would look like a forgotten one.
        self.tell_health();
        let (stop, stopped) = watch::channel(false);
        // A new name for each run, so that a restarted replica is not counted twice.
        let replica = hex::encode(random_bytes::<8>());
        let mut tasks = JoinSet::new();
        tasks.spawn(keep_settings(self.clone(), generation, stopped.clone()));
        tasks.spawn(keep_counts(self.clone(), replica.clone(), stopped.clone()));
        tasks.spawn(keep_guards(self.clone(), stopped.clone()));
        tasks.spawn(keep_slow(self.clone(), stopped));
        RunningUpkeep { upkeep: self, replica, stop, tasks }
    }

    fn tell_health(&self) {
        let health = self.store.health();
        self.service.metrics().database_up(health.away_since_ms.is_none());
        self.service.metrics().database_writable(health.not_writable_since_ms.is_none());
    }

    /// Exchanges usage with other replicas once, and writes telemetry.
    async fn meet(&self, replica: &str) -> Result<(), StoreError> {
        self.share_usage(replica).await?;
        let rows = self.service.unwritten_traffic();
        if !rows.is_empty() {
            self.timed("keep_traffic", self.store.keep_traffic(replica, &rows)).await?;
        }
        self.service.traffic_written(&rows);
        self.keep_experiments().await
    }

    /// Writes the sums of experiments, and reads the key of their answers' names if it is not known yet.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer; the sums wait.
    pub async fn keep_experiments(&self) -> Result<(), StoreError> {
        let book = self.service.experiments();
        if !book.has_key() && !book.running().is_empty() {
            book.set_key(self.timed("feedback_key", self.store.feedback_key()).await?);
        }
        let rows = book.take();
        if rows.is_empty() {
            return Ok(());
        }
        let added = self.timed("add_experiment_sums", self.store.add_experiment_sums(&rows)).await;
        if added.is_err() {
            book.give_back(rows);
        }
        added
    }

    /// Stops the arms of running experiments that are shown to be worse than their guard rails allow. Every
    /// replica looks; the first one that finds harm stops the arm.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
    pub async fn watch_guards(&self) -> Result<(), StoreError> {
        for experiment in self.service.experiments().running() {
            if experiment.plan.guards.is_empty() {
                continue;
            }
            let sums = self.timed("experiment_sums", self.store.experiment_sums(&experiment.id)).await?;
            for harm in report::harm(&experiment, &sums) {
                let arm = harm.stopped();
                warn!(experiment = experiment.id, arm = arm.name, why = arm.reason, "an arm is stopped");
                match self.store.stop_arm(&experiment.id, arm, Expected::Any, &Actor::service()).await {
                    // Somebody stopped the experiment meanwhile.
                    Ok(_) | Err(StoreError::State { .. }) => (),
                    Err(err) => return Err(err),
                }
            }
        }
        Ok(())
    }

    /// Writes what was used here, and reads what is used everywhere, even if nothing was used here.
    async fn share_usage(&self, replica: &str) -> Result<(), StoreError> {
        let deltas = self.gate.deltas();
        let meeting = self.store.exchange_usage(replica, &deltas, now_ms());
        let shared = self.timed("exchange_usage", meeting).await?;
        self.gate.exchanged(&deltas, &shared);
        Ok(())
    }

    async fn write_slow(&self) -> Result<(), StoreError> {
        let uses = self.book.take_uses();
        if let Err(err) = self.timed("note_key_uses", self.store.note_key_uses(&uses)).await {
            self.book.return_uses(uses);
            return Err(err);
        }
        let known = self.service.coefficients();
        self.timed("keep_coefficients", self.store.keep_coefficients(&known)).await
    }

    /// Runs an operation of the database, and records its time in the metrics.
    async fn timed<T>(&self, operation: &'static str, work: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let done = work.await;
        self.service.metrics().db_operation(operation, started.elapsed());
        done
    }
}

impl RunningUpkeep {
    /// Stops the tasks. Counts are written once more, if the database answers.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        let mut warned = Said::default();
        warned.say(&self.upkeep.meet(&self.replica).await, "usage is not kept");
        warned.say(&self.upkeep.write_slow().await, "what was measured is not kept");
    }
}

/// Logs once that something fails, and once that it works again.
#[derive(Debug, Default)]
struct Said {
    failing: bool,
}

impl Said {
    fn say<T>(&mut self, done: &Result<T, StoreError>, what: &str) {
        match done {
            Err(err) if !self.failing => {
                warn!(err = err as &dyn std::error::Error, "{what}; trying again");
            }
            Ok(_) if self.failing => info!("the database answers again"),
            _ => (),
        }
        self.failing = done.is_err();
    }
}

/// Applies newer settings. While the database is away, the last good ones stay.
async fn keep_settings(upkeep: Upkeep, generation: u64, mut stop: watch::Receiver<bool>) {
    let mut settings = upkeep.store.watch(generation);
    let mut said = Said::default();
    loop {
        let newer = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            newer = settings.next() => newer,
        };
        upkeep.tell_health();
        said.say(&newer, "settings cannot be read; the last good ones stay");
        if let Ok(Some(snapshot)) = newer {
            info!(generation = snapshot.generation, "settings changed");
            upkeep.apply(snapshot);
            said.say(&upkeep.keep_experiments().await, "experiments cannot be prepared");
        }
    }
}

async fn keep_counts(upkeep: Upkeep, replica: String, mut stop: watch::Receiver<bool>) {
    let mut said = Said::default();
    while pause(&mut stop, MEETING_PERIOD).await {
        upkeep.service.forget_old_answers();
        said.say(&upkeep.meet(&replica).await, "usage cannot be written down; it waits");
    }
}

async fn keep_guards(upkeep: Upkeep, mut stop: watch::Receiver<bool>) {
    let mut said = Said::default();
    while pause(&mut stop, GUARD_PERIOD).await {
        said.say(&upkeep.watch_guards().await, "experiments cannot be looked through");
    }
}

async fn keep_slow(upkeep: Upkeep, mut stop: watch::Receiver<bool>) {
    let mut said = Said::default();
    let mut rounds = 0_u32;
    while pause(&mut stop, SLOW_PERIOD).await {
        let mut done = upkeep.write_slow().await;
        if done.is_ok() && rounds.is_multiple_of(COMPACT_EVERY) {
            done = upkeep.store.compact(now_ms()).await;
        }
        rounds = rounds.wrapping_add(1);
        said.say(&done, "what was measured cannot be kept; it waits");
    }
}

/// Waits for the period; returns false if it is time to stop.
async fn pause(stop: &mut watch::Receiver<bool>, period: Duration) -> bool {
    tokio::select! {
        _ = stop.wait_for(|stop| *stop) => false,
        () = tokio::time::sleep(period) => true,
    }
}
