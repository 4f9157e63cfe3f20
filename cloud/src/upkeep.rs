//! Upkeep beside the answers: newer settings brought in, usage and telemetry written down.
//!
//! Never: stands in the way of an answer; nothing here is awaited by a request. Always: while the database is away the
//! last good settings stay, what was counted waits within its bounds (see [`crate::access::gate`] and
//! [`crate::traffic`]), and all goes on by itself when it is back.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::access::key::random_bytes;
use crate::access::{AccessBook, Gate};
use crate::service::CloudService;
use crate::store::{Snapshot, Store, StoreError, hex, now_ms};

/// How often replicas meet in the database to tell each other what tenants use.
pub const MEETING_PERIOD: Duration = Duration::from_secs(2);
/// How often uses of keys, and what was measured, are written down.
const SLOW_PERIOD: Duration = Duration::from_secs(60);
/// Old telemetry is summed up at each so many-th of these: every hour.
const COMPACT_EVERY: u32 = 60;

/// What is kept up.
#[derive(Debug, Clone)]
pub struct Upkeep {
    /// The database.
    pub store: Store,
    /// The service that answers.
    pub service: CloudService,
    /// Keys and tenants in force.
    pub book: AccessBook,
    /// What tenants use.
    pub gate: Gate,
}

/// Upkeep under way.
#[derive(Debug)]
pub struct RunningUpkeep {
    upkeep: Upkeep,
    replica: String,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Upkeep {
    /// Brings settings into force.
    pub fn apply(&self, snapshot: Snapshot) {
        let Snapshot { generation, scenes, tenants, keys, classes } = snapshot;
        debug!(generation, "settings are in force");
        self.service.scene_book().replace(scenes);
        self.service.set_classes(&classes);
        self.book.replace(tenants, keys);
    }

    /// Learns what tenants have used, and what other replicas run; before anybody may ask.
    ///
    /// # Errors
    /// [`StoreError::Query`] where the database does not answer.
    pub async fn learn_usage(&self) -> Result<(), StoreError> {
        // Nothing was counted or told here yet: it needs no name.
        self.share_usage("").await
    }

    /// Starts it; `generation`: of the settings that are in force.
    #[must_use]
    pub fn start(self, generation: u64) -> RunningUpkeep {
        // Before anybody asks: a figure that is missing looks like one that was forgotten.
        self.tell_health();
        let (stop, stopped) = watch::channel(false);
        // One name for each run: a replica that is started again does not count twice.
        let replica = hex(&random_bytes::<8>());
        let mut tasks = JoinSet::new();
        tasks.spawn(keep_settings(self.clone(), generation, stopped.clone()));
        tasks.spawn(keep_counts(self.clone(), replica.clone(), stopped.clone()));
        tasks.spawn(keep_slow(self.clone(), stopped));
        RunningUpkeep { upkeep: self, replica, stop, tasks }
    }

    fn tell_health(&self) {
        let health = self.store.health();
        self.service.metrics().database_up(health.away_since_ms.is_none());
        self.service.metrics().database_writable(health.not_writable_since_ms.is_none());
    }

    /// Meets other replicas once, and writes telemetry down.
    async fn meet(&self, replica: &str) -> Result<(), StoreError> {
        self.share_usage(replica).await?;
        let rows = self.service.unwritten_traffic();
        if !rows.is_empty() {
            self.timed("keep_traffic", self.store.keep_traffic(replica, &rows)).await?;
        }
        self.service.traffic_written(&rows);
        Ok(())
    }

    /// Tells what was used here, and hears what is used everywhere: also where nothing was used here.
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

    /// An operation of the database, and how long it took told to the metrics.
    async fn timed<T>(&self, operation: &'static str, work: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let done = work.await;
        self.service.metrics().db_operation(operation, started.elapsed());
        done
    }
}

impl RunningUpkeep {
    /// Ends it: what was counted is written down once more, where the database answers.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        let mut warned = Said::default();
        warned.say(&self.upkeep.meet(&self.replica).await, "usage is not kept");
        warned.say(&self.upkeep.write_slow().await, "what was measured is not kept");
    }
}

/// Says once that something fails, and once that it works again.
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

/// Takes newer settings over; while the database is away, the last good ones stay.
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
        }
    }
}

async fn keep_counts(upkeep: Upkeep, replica: String, mut stop: watch::Receiver<bool>) {
    let mut said = Said::default();
    while pause(&mut stop, MEETING_PERIOD).await {
        said.say(&upkeep.meet(&replica).await, "usage cannot be written down; it waits");
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

/// Waits; false where it is time to stop.
async fn pause(stop: &mut watch::Receiver<bool>, period: Duration) -> bool {
    tokio::select! {
        _ = stop.wait_for(|stop| *stop) => false,
        () = tokio::time::sleep(period) => true,
    }
}
