//! The migrations, compiled into the program: the same steps for both databases.

use std::time::Duration;

use sqlx::SqlSafeStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};

use super::StoreError;
use super::db::{Db, Pool};

/// How often to retry if another program migrates the same SQLite file.
const TRIES: u32 = 20;
const TRY_AGAIN: Duration = Duration::from_millis(100);

macro_rules! migrations {
    ($($version:literal $name:literal $file:literal;)*) => {
        const SQLITE: &[(i64, &str, &str)] =
            &[$(($version, $name, include_str!(concat!("../../../migrations/sqlite/", $file)))),*];
        const POSTGRES: &[(i64, &str, &str)] =
            &[$(($version, $name, include_str!(concat!("../../../migrations/postgres/", $file)))),*];
    };
}

migrations! {
    1 "scenes" "0001_scenes.sql";
    2 "seed scenes" "0002_seed_scenes.sql";
    3 "scene refine mode" "0003_scene_refine_mode.sql";
    4 "scene tolerance" "0004_scene_tolerance.sql";
    5 "coefficients" "0005_coefficients.sql";
    6 "scene states" "0006_scene_states.sql";
    7 "access" "0007_access.sql";
    8 "usage" "0008_usage.sql";
    9 "scene model" "0009_scene_model.sql";
    10 "reserved tokens" "0010_reserved_tokens.sql";
    11 "known devices" "0011_known_devices.sql";
    12 "scene assist max" "0012_scene_assist_max.sql";
    13 "scene settings" "0013_scene_settings.sql";
    14 "experiments" "0014_experiments.sql";
    15 "model targets" "0015_model_targets.sql";
    16 "counted reports" "0016_counted_reports.sql";
}

/// Brings the schema up to date.
///
/// On PostgreSQL an advisory lock lets one program migrate at a time. A schema that is newer than this
/// program is used as it is, so that replicas can be replaced one by one; there, migrations only add. On
/// SQLite each step is a transaction. If another program was faster, this one tries again and finds the step
/// done.
///
/// # Errors
/// [`StoreError::Migrate`] if a step fails or its text was changed, or if a newer program made the SQLite
/// file.
pub(super) async fn run(pool: &Pool) -> Result<(), StoreError> {
    run_to(pool, i64::MAX).await
}

/// Applies the steps up to `last`, as an older program would.
///
/// # Errors
/// As for [`run`].
pub(super) async fn run_to(pool: &Pool, last: i64) -> Result<(), StoreError> {
    match &pool.db {
        Db::Postgres(pool) => {
            let mut migrator = migrator(POSTGRES, last);
            migrator.set_ignore_missing(true);
            migrator.run(pool).await.map_err(StoreError::Migrate)
        }
        Db::Sqlite(pool) => {
            let migrator = migrator(SQLITE, last);
            let mut tried = 1;
            loop {
                match migrator.run(pool).await {
                    Err(
                        sqlx::migrate::MigrateError::Execute(_)
                        | sqlx::migrate::MigrateError::ExecuteMigration(..),
                    ) if tried < TRIES => {
                        tried += 1;
                        tokio::time::sleep(TRY_AGAIN).await;
                    }
                    done => return done.map_err(StoreError::Migrate),
                }
            }
        }
    }
}

fn migrator(steps: &[(i64, &'static str, &'static str)], last: i64) -> Migrator {
    let migrations = steps.iter().filter(|(version, ..)| *version <= last).map(|&(version, name, sql)| {
        Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
    });
    Migrator::with_migrations(migrations.collect())
}
