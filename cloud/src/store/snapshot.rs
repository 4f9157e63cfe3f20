//! A snapshot of all settings that requests need, and the watch that loads newer ones.
//!
//! Every change increases a generation number in its own transaction. A replica compares that number at least
//! every [`POLL_POSTGRES`]. On PostgreSQL a notification (LISTEN/NOTIFY) makes it compare at once, and so
//! does a change in its own process. Always: a snapshot is one state of the database, and while the database
//! is away the last one stays in force.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sqlx::postgres::PgListener;
use tokio::sync::Notify;

use super::change::Recorded;
use super::db::{Db, Statement, Tx, args};
use super::scenes::scene;
use super::{Store, StoreError, now_ms, sql};
use crate::access::DeviceClass;
use crate::access::{ApiKey, Tenant};
use crate::experiment::plan::Experiment;
use crate::fleet::ModelTarget;
use crate::scene::Scene;

/// How often PostgreSQL is asked for its generation, in addition to notifications.
pub const POLL_POSTGRES: Duration = Duration::from_secs(2);
/// How often SQLite is asked for its generation, since another program may have changed it.
pub const POLL_SQLITE: Duration = Duration::from_secs(1);
/// The channel that triggers in the migrations notify.
const CHANNEL: &str = "baton_settings";

/// One state of all settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The generation number, which grows with every change.
    pub generation: u64,
    /// Every version of every scene that was ever in force.
    pub scenes: Vec<Scene>,
    /// Every tenant.
    pub tenants: Vec<Tenant>,
    /// Every key, revoked ones too.
    pub keys: Vec<ApiKey>,
    /// Every device class.
    pub classes: Vec<DeviceClass>,
    /// Every target of device models.
    pub targets: Vec<ModelTarget>,
    /// Every experiment that is running.
    pub experiments: Vec<Experiment>,
}

/// Whether the database answers, as last seen by the watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreHealth {
    /// Since when it has not answered, in milliseconds since 1970; `None` if it answers.
    pub away_since_ms: Option<i64>,
    /// When it last answered, in milliseconds since 1970.
    pub answered_ms: i64,
    /// Since when it answers but accepts no change, in milliseconds since 1970; for example, its disk is
    /// full.
    pub not_writable_since_ms: Option<i64>,
}

/// State that all clones of a store share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Milliseconds since 1970; 0 if it answers.
    away_since_ms: AtomicI64,
    answered_ms: AtomicI64,
    /// Notified after a change in this process.
    changed: Notify,
}

impl Default for Shared {
    fn default() -> Shared {
        Shared {
            away_since_ms: AtomicI64::new(0),
            answered_ms: AtomicI64::new(now_ms()),
            changed: Notify::new(),
        }
    }
}

impl Shared {
    pub(super) fn tell(&self) {
        self.changed.notify_one();
    }
}

impl Store {
    /// Reads all settings, as one state of the database.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer. [`StoreError::Row`], [`StoreError::Scene`] or
    /// [`StoreError::Access`] if a row is out of its bounds.
    pub async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        let mut tx = self.pool.begin_read().await?;
        let state = tx.row(&sql::STATE, args![]).await?;
        let generation = state.map(|row| row.count("generation")).transpose()?.unwrap_or(0);
        let scenes = tx.rows(&sql::SCENES_PUBLISHED, args![]).await?;
        let snapshot = Snapshot {
            generation,
            scenes: scenes.iter().map(scene).collect::<Result<_, _>>()?,
            tenants: all(&mut tx, &sql::TENANTS).await?,
            keys: all(&mut tx, &sql::KEYS).await?,
            classes: all(&mut tx, &sql::CLASSES).await?,
            targets: all(&mut tx, &sql::TARGETS).await?,
            experiments: all(&mut tx, &sql::EXPERIMENTS_RUNNING).await?,
        };
        tx.commit().await?;
        Ok(snapshot)
    }

    /// Reads the generation number of the newest settings.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
    pub async fn generation(&self) -> Result<u64, StoreError> {
        let state = self.pool.row(&sql::STATE, args![]).await?;
        Ok(state.map(|row| row.count("generation")).transpose()?.unwrap_or(0))
    }

    /// Returns whether the database answered the watch last time, and accepts changes.
    #[must_use]
    pub fn health(&self) -> StoreHealth {
        let away = self.shared.away_since_ms.load(Ordering::Relaxed);
        StoreHealth {
            away_since_ms: (away != 0).then_some(away),
            answered_ms: self.shared.answered_ms.load(Ordering::Relaxed),
            not_writable_since_ms: self.pool.not_writable_since_ms(),
        }
    }

    /// Begins and commits a transaction that changes nothing. It finds out that the disk has room again while
    /// nobody changes anything.
    async fn try_to_write(&self) -> Result<(), StoreError> {
        let mut tx = self.pool.begin_write().await?;
        tx.row(&sql::STATE_LOCK, args![0_i64]).await?;
        tx.commit().await
    }

    /// Returns a watch that waits for settings newer than `generation`.
    #[must_use]
    pub fn watch(&self, generation: u64) -> Watch {
        Watch { store: self.clone(), generation, listener: None }
    }

    fn note_health(&self, answers: bool) {
        let shared = &self.shared;
        if answers {
            shared.answered_ms.store(now_ms(), Ordering::Relaxed);
            shared.away_since_ms.store(0, Ordering::Relaxed);
        } else {
            let since = &shared.away_since_ms;
            let _ = since.compare_exchange(0, now_ms(), Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Loads newer settings, one snapshot after another.
pub struct Watch {
    store: Store,
    generation: u64,
    listener: Option<PgListener>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl Watch {
    /// Waits until something may have changed, at most [`POLL_POSTGRES`]. Returns the newer settings, or
    /// `None` if they are the same. Records for [`Store::health`] whether the database answers. Call it in a
    /// loop.
    ///
    /// # Errors
    /// As for [`Store::snapshot`]. The next call tries again.
    pub async fn next(&mut self) -> Result<Option<Snapshot>, StoreError> {
        self.pause().await;
        if self.store.pool.not_writable_since_ms().is_some() {
            // The pool itself records whether the write succeeds.
            let _ = self.store.try_to_write().await;
        }
        let newer = self.newer().await;
        let away = newer.as_ref().is_err_and(StoreError::is_unavailable);
        self.store.note_health(!away);
        if away {
            self.listener = None;
        }
        newer
    }

    async fn newer(&mut self) -> Result<Option<Snapshot>, StoreError> {
        // Listen before reading the generation, so that a change between the two is not missed.
        if let (Db::Postgres(pool), None) = (&self.store.pool.db, &self.listener) {
            let listen = async {
                let mut listener = PgListener::connect_with(pool).await?;
                listener.listen(CHANNEL).await?;
                Ok(listener)
            };
            let listener = tokio::time::timeout(super::db::STATEMENT_MAX, listen).await;
            let listener = listener.unwrap_or(Err(sqlx::Error::PoolTimedOut));
            self.listener =
                Some(listener.map_err(|err| StoreError::Query { doing: "listen for changes", err })?);
        }
        // Compares for equality, because a database that was restored from a backup has a smaller number.
        if self.store.generation().await? == self.generation {
            return Ok(None);
        }
        let snapshot = self.store.snapshot().await?;
        self.generation = snapshot.generation;
        Ok(Some(snapshot))
    }

    async fn pause(&mut self) {
        let changed = self.store.shared.changed.notified();
        match &mut self.listener {
            Some(listener) => {
                let lost = tokio::select! {
                    () = tokio::time::sleep(POLL_POSTGRES) => false,
                    () = changed => false,
                    told = listener.try_recv() => !matches!(told, Ok(Some(_))),
                };
                if lost {
                    // The connection is lost. Wait before the next try, since the server may be stopping.
                    self.listener = None;
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
            None => {
                tokio::select! {
                    () = tokio::time::sleep(POLL_SQLITE) => (),
                    () = changed => (),
                }
            }
        }
    }
}

/// Reads all records of one kind.
async fn all<T: Recorded>(tx: &mut Tx, statement: &Statement) -> Result<Vec<T>, StoreError> {
    tx.rows(statement, args![]).await?.iter().map(T::read).collect()
}

/// Makes the shared state of a newly opened database.
pub(super) fn shared() -> Arc<Shared> {
    Arc::default()
}
