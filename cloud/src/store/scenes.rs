//! Reading and adding versions of scenes.

use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::{Store, StoreError};
use crate::scene::{Scene, SceneSettings, check_id, decimal};

const COLUMNS: &str = "id, version, system, question_prefix, ratio, xi, assist_tokens, assist_floor, tau_ms, \
                       corrector, refine, refine_mode, tolerance";

impl Store {
    /// Every version of every scene, by id and version.
    ///
    /// # Errors
    /// [`StoreError::Query`] where the database does not answer, [`StoreError::Row`] or [`StoreError::Scene`] where a
    /// row is out of its bounds.
    pub async fn scenes(&self) -> Result<Vec<Scene>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM scene_versions ORDER BY id, version");
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .fetch_all(&self.pool)
            .await
            .map_err(|err| StoreError::Query { doing: "read scenes", err })?;
        rows.iter().map(scene).collect()
    }

    /// The current version of one scene.
    ///
    /// # Errors
    /// [`StoreError::UnknownScene`], or as for [`Store::scenes`].
    pub async fn scene(&self, id: &str) -> Result<Scene, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM scene_versions WHERE id = ? ORDER BY version DESC LIMIT 1");
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(id)
            .fetch_optional(&self.pool)
            .await
            .map_err(|err| StoreError::Query { doing: "read scene", err })?;
        row.as_ref().map(scene).transpose()?.ok_or_else(|| StoreError::UnknownScene(id.to_owned()))
    }

    /// Adds the next version of a scene (the first, where there is none) and returns it.
    ///
    /// With `expected`, only where that is the current version (0: there is none).
    ///
    /// # Errors
    /// [`StoreError::Scene`] where a setting is out of its bounds; [`StoreError::VersionConflict`] where somebody else
    /// was faster; [`StoreError::Query`] where the database does not answer.
    pub async fn add_scene_version(
        &self,
        id: &str,
        settings: SceneSettings,
        expected: Option<u32>,
    ) -> Result<Scene, StoreError> {
        check_id(id)?;
        settings.check()?;
        let current: i64 =
            sqlx::query_scalar("SELECT COALESCE(MAX(version), 0) FROM scene_versions WHERE id = ?")
                .bind(id)
                .fetch_one(&self.pool)
                .await
                .map_err(|err| StoreError::Query { doing: "read scene version", err })?;
        let current = u32::try_from(current).unwrap_or(0);
        let conflict =
            |expected, current| StoreError::VersionConflict { id: id.to_owned(), expected, current };
        if let Some(expected) = expected.filter(|&expected| expected != current) {
            return Err(conflict(expected, current));
        }
        let version = current + 1;
        let sql =
            format!("INSERT INTO scene_versions ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
        let done = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(id)
            .bind(i64::from(version))
            .bind(&settings.system)
            .bind(&settings.question_prefix)
            .bind(settings.ratio.map(decimal))
            .bind(decimal(settings.xi))
            .bind(settings.assist_tokens.map(i64::from))
            .bind(i64::from(settings.assist_floor))
            .bind(decimal(settings.tau_ms))
            .bind(settings.corrector.as_str())
            .bind(i64::from(settings.refine))
            .bind(settings.mode.to_string())
            .bind(decimal(settings.tolerance))
            .execute(&self.pool)
            .await;
        match done {
            Ok(_) => Ok(Scene { id: id.to_owned(), version, settings }),
            // The primary key decides between two writers: the slower one learns that there is a newer version.
            Err(sqlx::Error::Database(err)) if err.is_unique_violation() => Err(conflict(current, version)),
            Err(err) => Err(StoreError::Query { doing: "add scene version", err }),
        }
    }
}

fn scene(row: &SqliteRow) -> Result<Scene, StoreError> {
    let query = |err| StoreError::Query { doing: "decode scene", err };
    let id: String = row.try_get("id").map_err(query)?;
    let version: i64 = row.try_get("version").map_err(query)?;
    let bad =
        |column: &'static str, value: String| StoreError::Row { id: id.clone(), version, column, value };
    let count =
        |column: &'static str, value: i64| u32::try_from(value).map_err(|_| bad(column, value.to_string()));

    let assist_tokens: Option<i64> = row.try_get("assist_tokens").map_err(query)?;
    let assist_floor: i64 = row.try_get("assist_floor").map_err(query)?;
    let corrector: String = row.try_get("corrector").map_err(query)?;
    let mode: String = row.try_get("refine_mode").map_err(query)?;
    let settings = SceneSettings {
        system: row.try_get("system").map_err(query)?,
        question_prefix: row.try_get("question_prefix").map_err(query)?,
        ratio: row.try_get::<Option<f64>, _>("ratio").map_err(query)?.map(|ratio| ratio as f32),
        xi: row.try_get::<f64, _>("xi").map_err(query)? as f32,
        assist_tokens: assist_tokens.map(|tokens| count("assist_tokens", tokens)).transpose()?,
        assist_floor: count("assist_floor", assist_floor)?,
        tau_ms: row.try_get::<f64, _>("tau_ms").map_err(query)? as f32,
        corrector: corrector.parse().map_err(|_| bad("corrector", corrector))?,
        refine: row.try_get::<i64, _>("refine").map_err(query)? != 0,
        mode: mode.parse().map_err(|_| bad("refine_mode", mode))?,
        tolerance: row.try_get::<f64, _>("tolerance").map_err(query)? as f32,
    };
    settings.check()?;
    let version = u32::try_from(version).map_err(|_| bad("version", version.to_string()))?;
    Ok(Scene { id, version, settings })
}
