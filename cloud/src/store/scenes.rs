//! Scenes: immutable versions, which of them is in force, and what waits to be published.
//!
//! A version never changes. A draft is a version that was not published; publishing, and rolling back to an older one,
//! only says which version is in force from now on. What is in force is always the highest version that was ever
//! published: an older draft or version is copied to a new number, so that numbers grow for those who ask.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::change::{Change, Expected};
use super::db::{Row, args};
use super::{Store, StoreError, sql};
use crate::access::{Actor, check_label};
use crate::scene::diff::changes_json;
use crate::scene::{ASSIST_MAX_DEFAULT, Scene, SceneSettings, check_id, decimal};

const SCENE: &str = "scene";

/// Where a scene stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SceneHead {
    /// Its name in requests.
    pub id: String,
    /// One more at every change: the ETag of an editor.
    pub revision: u64,
    /// The highest version.
    pub newest_version: u32,
    /// The version in force; none: never published.
    pub published_version: Option<u32>,
    /// The version that waits to be published.
    pub draft_version: Option<u32>,
}

/// What became of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionState {
    /// Waits to be published.
    Draft,
    /// In force.
    Published,
    /// Was in force.
    Superseded,
    /// A draft that another one took the place of, or that was given up.
    Discarded,
}

impl VersionState {
    /// As in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            VersionState::Draft => "draft",
            VersionState::Published => "published",
            VersionState::Superseded => "superseded",
            VersionState::Discarded => "discarded",
        }
    }
}

/// One version, with what is known of it.
#[derive(Debug, Clone, PartialEq)]
pub struct SceneVersion {
    /// The version itself.
    pub scene: Scene,
    /// What became of it.
    pub state: VersionState,
    /// When it was written, in milliseconds since 1970 (whole seconds).
    pub created_ms: i64,
    /// By whom.
    pub created_by: String,
    /// What they said of it.
    pub note: String,
    /// The version it was made from.
    pub based_on: Option<u32>,
}

/// One time that a version came into force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// 1, 2, 3, … for each scene.
    pub seq: u64,
    /// The version.
    pub version: u32,
    /// When, in milliseconds since 1970.
    pub published_ms: i64,
    /// By whom.
    pub published_by: String,
    /// What they said of it.
    pub note: String,
}

/// Everything about one scene.
#[derive(Debug, Clone, PartialEq)]
pub struct SceneHistory {
    /// Where it stands.
    pub head: SceneHead,
    /// Every version, the oldest first.
    pub versions: Vec<SceneVersion>,
    /// Every publication, the oldest first.
    pub publications: Vec<Publication>,
}

/// What a new version is written with.
struct NewVersion<'a> {
    settings: &'a SceneSettings,
    note: &'a str,
    based_on: Option<u32>,
}

impl Store {
    /// Every version that was ever in force, by id and version: what requests may name.
    ///
    /// # Errors
    /// [`StoreError::Query`] where the database does not answer, [`StoreError::Row`] or [`StoreError::Scene`] where a
    /// row is out of its bounds.
    pub async fn scenes(&self) -> Result<Vec<Scene>, StoreError> {
        self.pool.rows(&sql::SCENES_PUBLISHED, args![]).await?.iter().map(scene).collect()
    }

    /// The version of one scene that is in force.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] where there is none, or as for [`Store::scenes`].
    pub async fn scene(&self, id: &str) -> Result<Scene, StoreError> {
        let head = self.scene_head(id).await?;
        let version = head.published_version.ok_or_else(|| unknown(id))?;
        Ok(self.scene_version(id, version).await?.scene)
    }

    /// Where every scene stands, by id.
    ///
    /// # Errors
    /// [`StoreError::Query`] where the database does not answer.
    pub async fn scene_heads(&self) -> Result<Vec<SceneHead>, StoreError> {
        self.pool.rows(&sql::SCENE_HEADS, args![]).await?.iter().map(head).collect()
    }

    /// Where one scene stands.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], or as for [`Store::scene_heads`].
    pub async fn scene_head(&self, id: &str) -> Result<SceneHead, StoreError> {
        let row = self.pool.row(&sql::SCENE_HEAD, args![id]).await?;
        row.as_ref().map(head).transpose()?.ok_or_else(|| unknown(id))
    }

    /// One version of a scene, published or not.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] where there is none, or as for [`Store::scenes`].
    pub async fn scene_version(&self, id: &str, version: u32) -> Result<SceneVersion, StoreError> {
        let history = self.scene_history(id).await?;
        let found = history.versions.into_iter().find(|found| found.scene.version == version);
        found.ok_or_else(|| unknown_version(id, version))
    }

    /// Every version and publication of a scene.
    ///
    /// # Errors
    /// As for [`Store::scene_version`].
    pub async fn scene_history(&self, id: &str) -> Result<SceneHistory, StoreError> {
        let mut tx = self.pool.begin_read().await?;
        let row = tx.row(&sql::SCENE_HEAD, args![id]).await?;
        let head = row.as_ref().map(head).transpose()?.ok_or_else(|| unknown(id))?;
        let publications: Vec<Publication> = tx
            .rows(&sql::PUBLICATIONS, args![id])
            .await?
            .iter()
            .map(publication)
            .collect::<Result<_, _>>()?;
        let ever: BTreeSet<u32> = publications.iter().map(|publication| publication.version).collect();
        let rows = tx.rows(&sql::SCENE_VERSIONS, args![id]).await?;
        let version = |row: &Row| {
            let scene = scene(row)?;
            let state = if head.published_version == Some(scene.version) {
                VersionState::Published
            } else if ever.contains(&scene.version) {
                VersionState::Superseded
            } else if head.draft_version == Some(scene.version) {
                VersionState::Draft
            } else {
                VersionState::Discarded
            };
            Ok(SceneVersion {
                scene,
                state,
                created_ms: row.int("created_unix_s")?.saturating_mul(1000),
                created_by: row.text("created_by")?,
                note: row.text("note")?,
                based_on: row.opt_small("based_on")?,
            })
        };
        let versions = rows.iter().map(version).collect::<Result<_, StoreError>>()?;
        Ok(SceneHistory { head, versions, publications })
    }

    /// Writes a new draft, in place of the one that waits; a new id is a new scene. Requests do not see it.
    ///
    /// # Errors
    /// [`StoreError::Scene`] where a setting is out of its bounds; [`StoreError::Conflict`] where the scene is at
    /// another revision; [`StoreError::Query`] where the database does not answer.
    pub async fn save_draft(
        &self,
        id: &str,
        settings: &SceneSettings,
        note: &str,
        expected: Expected,
        by: &Actor,
    ) -> Result<SceneHead, StoreError> {
        check(id, settings, note)?;
        let mut change = self.change(by, true).await?;
        let old = change.scene(id, expected).await?;
        let based_on = old.as_ref().and_then(|head| head.draft_version.or(head.published_version));
        let before = change.settings(id, based_on).await?;
        let (mut head, _) = change.write(id, old, NewVersion { settings, note, based_on }).await?;
        head.draft_version = Some(head.newest_version);
        change.keep(&head).await?;
        let detail = json!({ "version": head.newest_version, "note": note,
            "changes": changes_of(before.as_ref(), settings) });
        change.log("scene.draft", &target(id), &detail).await?;
        change.commit().await?;
        Ok(head)
    }

    /// Gives the draft up; its version stays in the history.
    ///
    /// # Errors
    /// [`StoreError::State`] where there is none, or as for [`Store::save_draft`].
    pub async fn discard_draft(
        &self,
        id: &str,
        expected: Expected,
        by: &Actor,
    ) -> Result<SceneHead, StoreError> {
        let mut change = self.change(by, true).await?;
        let mut head = change.scene(id, expected).await?.ok_or_else(|| unknown(id))?;
        let draft = head.draft_version.take().ok_or_else(|| state(id, "has no draft"))?;
        head.revision += 1;
        change.keep(&head).await?;
        change.log("scene.discard", &target(id), &json!({ "version": draft })).await?;
        change.commit().await?;
        Ok(head)
    }

    /// Brings the draft into force.
    ///
    /// # Errors
    /// [`StoreError::State`] where there is none, or as for [`Store::save_draft`].
    pub async fn publish(
        &self,
        id: &str,
        note: &str,
        expected: Expected,
        by: &Actor,
    ) -> Result<SceneHead, StoreError> {
        check_label("note", note)?;
        let mut change = self.change(by, true).await?;
        let mut head = change.scene(id, expected).await?.ok_or_else(|| unknown(id))?;
        let draft = head.draft_version.take().ok_or_else(|| state(id, "has no draft"))?;
        let settings = change.settings(id, Some(draft)).await?.ok_or_else(|| unknown_version(id, draft))?;
        let version = if head.published_version.is_some_and(|published| published > draft) {
            let copy = NewVersion { settings: &settings, note, based_on: Some(draft) };
            let (moved, copied) = change.write(id, Some(head), copy).await?;
            head = moved;
            copied
        } else {
            head.revision += 1;
            draft
        };
        change.bring_into_force(head, version, &settings, note, "scene.publish").await
    }

    /// Brings an older version back, as a copy with a new number. A draft stays.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] where there is no such version, or as for [`Store::save_draft`].
    pub async fn roll_back(
        &self,
        id: &str,
        version: u32,
        note: &str,
        expected: Expected,
        by: &Actor,
    ) -> Result<SceneHead, StoreError> {
        check_label("note", note)?;
        let mut change = self.change(by, true).await?;
        let head = change.scene(id, expected).await?.ok_or_else(|| unknown(id))?;
        let settings =
            change.settings(id, Some(version)).await?.ok_or_else(|| unknown_version(id, version))?;
        let copy = NewVersion { settings: &settings, note, based_on: Some(version) };
        let (head, newest) = change.write(id, Some(head), copy).await?;
        change.bring_into_force(head, newest, &settings, note, "scene.rollback").await
    }

    /// Writes a version and brings it into force at once: what the command line's `scenes set` does. A draft stays.
    ///
    /// # Errors
    /// As for [`Store::save_draft`].
    pub async fn set_scene(
        &self,
        id: &str,
        settings: &SceneSettings,
        note: &str,
        expected: Expected,
        by: &Actor,
    ) -> Result<Scene, StoreError> {
        check(id, settings, note)?;
        let mut change = self.change(by, true).await?;
        let old = change.scene(id, expected).await?;
        let based_on = old.as_ref().and_then(|head| head.published_version);
        let (head, version) = change.write(id, old, NewVersion { settings, note, based_on }).await?;
        change.bring_into_force(head, version, settings, note, "scene.set").await?;
        Ok(Scene { id: id.to_owned(), version, settings: settings.clone() })
    }
}

impl Change {
    /// The scene as it is now, where that is what was expected.
    async fn scene(&mut self, id: &str, expected: Expected) -> Result<Option<SceneHead>, StoreError> {
        let row = self.tx.row(&sql::SCENE_HEAD, args![id]).await?;
        let found = row.as_ref().map(head).transpose()?;
        let current = match expected {
            Expected::Version(_) => found.as_ref().and_then(|head| head.published_version).map(u64::from),
            _ => found.as_ref().map(|head| head.revision),
        };
        expected.check(SCENE, id, current)?;
        Ok(found)
    }

    /// The settings of a version.
    async fn settings(
        &mut self,
        id: &str,
        version: Option<u32>,
    ) -> Result<Option<SceneSettings>, StoreError> {
        let Some(version) = version else { return Ok(None) };
        let row = self.tx.row(&sql::SCENE_VERSION, args![id, version]).await?;
        Ok(row.as_ref().map(scene).transpose()?.map(|scene| scene.settings))
    }

    /// Adds the next version, and the scene where it is new; the scene's revision is one more.
    async fn write(
        &mut self,
        id: &str,
        old: Option<SceneHead>,
        new: NewVersion<'_>,
    ) -> Result<(SceneHead, u32), StoreError> {
        let head = match old {
            Some(mut head) => {
                head.revision += 1;
                head.newest_version += 1;
                head
            }
            None => {
                let head = SceneHead {
                    id: id.to_owned(),
                    revision: 1,
                    newest_version: 1,
                    published_version: None,
                    draft_version: None,
                };
                let none: Option<u32> = None;
                self.tx.execute(&sql::SCENE_NEW, args![id, 1_u32, 1_u32, none, none]).await?;
                head
            }
        };
        let settings = new.settings;
        let corrector = settings.corrector.as_str();
        let mode = settings.mode.to_string();
        let values = args![
            id,
            head.newest_version,
            &settings.system,
            &settings.question_prefix,
            settings.ratio.map(decimal),
            decimal(settings.xi),
            settings.assist_tokens,
            settings.assist_floor,
            decimal(settings.tau_ms),
            corrector,
            settings.refine,
            &mode,
            decimal(settings.tolerance),
            settings.model.as_deref(),
            settings.adapter.as_deref(),
            settings.assist_max,
            self.at_ms / 1000,
            &self.by,
            new.note,
            new.based_on,
        ];
        self.tx.execute(&sql::SCENE_VERSION_ADD, values).await?;
        let version = head.newest_version;
        Ok((head, version))
    }

    /// Writes down where the scene stands; its revision is one more than in the database, or 1 where it is new.
    async fn keep(&mut self, head: &SceneHead) -> Result<(), StoreError> {
        let old_revision = if head.revision == 1 { 1 } else { head.revision - 1 };
        let values = args![
            &head.id,
            head.revision,
            head.newest_version,
            head.published_version,
            head.draft_version,
            old_revision
        ];
        match self.tx.execute(&sql::SCENE_MOVE, values).await? {
            1 => Ok(()),
            _ => Err(StoreError::Conflict {
                what: SCENE,
                id: head.id.clone(),
                expected: old_revision,
                current: head.revision,
            }),
        }
    }

    /// The end of every way to publish.
    async fn bring_into_force(
        mut self,
        mut head: SceneHead,
        version: u32,
        settings: &SceneSettings,
        note: &str,
        action: &str,
    ) -> Result<SceneHead, StoreError> {
        let before = self.settings(&head.id, head.published_version).await?;
        let detail = json!({ "version": version, "before": head.published_version, "note": note,
            "changes": changes_of(before.as_ref(), settings) });
        head.published_version = Some(version);
        self.keep(&head).await?;
        let values = args![&head.id, version, self.at_ms, &self.by, note];
        self.tx.execute(&sql::PUBLICATION_ADD, values).await?;
        self.log(action, &target(&head.id), &detail).await?;
        self.commit().await?;
        Ok(head)
    }
}

fn check(id: &str, settings: &SceneSettings, note: &str) -> Result<(), StoreError> {
    check_id(id)?;
    settings.check()?;
    Ok(check_label("note", note)?)
}

/// What the audit log says of a change; every setting where the scene is new.
fn changes_of(before: Option<&SceneSettings>, after: &SceneSettings) -> Value {
    match before {
        Some(before) => changes_json(&before.diff(after)),
        None => Value::Object(
            after
                .fields()
                .map(|(name, value)| (name.to_owned(), json!({ "to": value })))
                .into_iter()
                .collect(),
        ),
    }
}

fn target(id: &str) -> String {
    format!("scene/{id}")
}

fn unknown(id: &str) -> StoreError {
    StoreError::Unknown { what: SCENE, id: id.chars().take(64).collect() }
}

fn unknown_version(id: &str, version: u32) -> StoreError {
    StoreError::Unknown { what: "scene version", id: format!("{id}/{version}") }
}

fn state(id: &str, why: &'static str) -> StoreError {
    StoreError::State { what: SCENE, id: id.to_owned(), why }
}

fn head(row: &Row) -> Result<SceneHead, StoreError> {
    Ok(SceneHead {
        id: row.text("id")?,
        revision: row.count("revision")?,
        newest_version: row.small("newest_version")?,
        published_version: row.opt_small("published_version")?,
        draft_version: row.opt_small("draft_version")?,
    })
}

fn publication(row: &Row) -> Result<Publication, StoreError> {
    Ok(Publication {
        seq: row.count("seq")?,
        version: row.small("version")?,
        published_ms: row.int("published_ms")?,
        published_by: row.text("published_by")?,
        note: row.text("note")?,
    })
}

/// A version, checked again: a row that was written by hand cannot bring settings out of bounds.
pub(super) fn scene(row: &Row) -> Result<Scene, StoreError> {
    let (assist_tokens, assist_floor) = (row.opt_small("assist_tokens")?, row.small("assist_floor")?);
    let before = ASSIST_MAX_DEFAULT.max(assist_tokens.unwrap_or(0)).max(assist_floor);
    let settings = SceneSettings {
        system: row.text("system")?,
        question_prefix: row.text("question_prefix")?,
        ratio: row.opt_real("ratio")?.map(|ratio| ratio as f32),
        xi: row.real("xi")? as f32,
        assist_tokens,
        assist_floor,
        assist_max: row.opt_small("assist_max")?.unwrap_or(before),
        tau_ms: row.real("tau_ms")? as f32,
        corrector: row.parsed("corrector")?,
        refine: row.flag("refine")?,
        mode: row.parsed("refine_mode")?,
        tolerance: row.real("tolerance")? as f32,
        model: row.opt_text("model")?,
        adapter: row.opt_text("adapter")?,
    };
    settings.check()?;
    Ok(Scene { id: row.text("id")?, version: row.small("version")?, settings })
}
