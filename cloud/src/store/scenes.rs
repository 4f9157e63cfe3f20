//! Scenes: immutable versions, which one is in force, and the draft that waits to be published.
//!
//! A version never changes. A draft is a version that was not published. Publishing, or rolling back to an
//! older version, only sets which version is in force. That is always the highest version that was ever
//! published: an older version is copied to a new number first. So clients see version numbers that only
//! grow.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::change::{Change, Expected, Fields, Recorded, fields, unknown};
use super::db::{Arg, Row, Statement, args};
use super::{Store, StoreError, sql};
use crate::access::{Actor, check_label};
use crate::scene::{self, Scene, SceneSettings, check_id};

/// The current state of a scene.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SceneHead {
    /// Its name in requests.
    pub id: String,
    /// Increased by 1 at every change. The ETag of the admin API.
    pub revision: u64,
    /// The highest version.
    pub newest_version: u32,
    /// The version in force; `None` if no version was ever published.
    pub published_version: Option<u32>,
    /// The draft, if there is one.
    pub draft_version: Option<u32>,
}

/// The current state of a scene, and the settings that it names.
#[derive(Debug, Clone, PartialEq)]
pub struct SceneState {
    /// The state itself.
    pub head: SceneHead,
    /// Settings of the version in force.
    pub published: Option<SceneSettings>,
    /// Settings of the draft.
    pub draft: Option<SceneSettings>,
}

/// The state of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionState {
    /// Waits to be published.
    Draft,
    /// In force.
    Published,
    /// Was in force.
    Superseded,
    /// A draft that was replaced or discarded.
    Discarded,
}

impl VersionState {
    /// Returns its name in the API.
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

/// One version of a scene, with its history.
#[derive(Debug, Clone, PartialEq)]
pub struct SceneVersion {
    /// The version itself.
    pub scene: Scene,
    /// Its state.
    pub state: VersionState,
    /// When it was written, in milliseconds since 1970 (whole seconds).
    pub created_ms: i64,
    /// Who did it.
    pub created_by: String,
    /// Their note.
    pub note: String,
    /// The version it was made from.
    pub based_on: Option<u32>,
}

/// A publication: a version came into force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// 1, 2, 3, … for each scene.
    pub seq: u64,
    /// The version.
    pub version: u32,
    /// When, in milliseconds since 1970.
    pub published_ms: i64,
    /// Who did it.
    pub published_by: String,
    /// Their note.
    pub note: String,
}

/// Everything about one scene.
#[derive(Debug, Clone, PartialEq)]
pub struct SceneHistory {
    /// Its current state.
    pub head: SceneHead,
    /// Every version, the oldest first.
    pub versions: Vec<SceneVersion>,
    /// Every publication, the oldest first.
    pub publications: Vec<Publication>,
}

/// The content of a new version.
struct NewVersion<'a> {
    settings: &'a SceneSettings,
    note: &'a str,
    based_on: Option<u32>,
}

/// The version that comes into force.
struct PublishedSettings<'a> {
    version: u32,
    settings: &'a SceneSettings,
    note: &'a str,
}

impl Store {
    /// Returns every version that was ever in force, by id and version. Requests may name any of them.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer, [`StoreError::Row`] or [`StoreError::Scene`] if
    /// a row is out of its bounds.
    pub async fn scenes(&self) -> Result<Vec<Scene>, StoreError> {
        self.pool.rows(&sql::SCENES_PUBLISHED, args![]).await?.iter().map(scene).collect()
    }

    /// Returns the version of a scene that is in force.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if there is none, or as for [`Store::scenes`].
    pub async fn scene(&self, id: &str) -> Result<Scene, StoreError> {
        let SceneState { head, published, .. } = self.scene_state(id).await?;
        let in_force = head.published_version.zip(published);
        let (version, settings) = in_force.ok_or_else(|| unknown::<SceneHead>(id))?;
        Ok(Scene { id: head.id, version, settings })
    }

    /// Returns the current state of every scene, by id, in one query. No other version is read.
    ///
    /// # Errors
    /// As for [`Store::scenes`].
    pub async fn scene_states(&self) -> Result<Vec<SceneState>, StoreError> {
        self.states("").await
    }

    /// Returns the current state of one scene.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if there is no such scene, or as for [`Store::scenes`].
    pub async fn scene_state(&self, id: &str) -> Result<SceneState, StoreError> {
        check_id(id).map_err(|_| unknown::<SceneHead>(id))?;
        self.states(id).await?.pop().ok_or_else(|| unknown::<SceneHead>(id))
    }

    /// Reads the state of the scene of this id, or of every scene if it is empty.
    async fn states(&self, id: &str) -> Result<Vec<SceneState>, StoreError> {
        let state = |row: &Row| {
            Ok(SceneState {
                head: SceneHead::read(row)?,
                published: opt_settings(row, "published_settings")?,
                draft: opt_settings(row, "draft_settings")?,
            })
        };
        self.pool.rows(&sql::SCENE_STATES, args![id]).await?.iter().map(state).collect()
    }

    /// Returns one version of a scene, published or not.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if there is none, or as for [`Store::scenes`].
    pub async fn scene_version(&self, id: &str, version: u32) -> Result<SceneVersion, StoreError> {
        let history = self.scene_history(id).await?;
        let found = history.versions.into_iter().find(|found| found.scene.version == version);
        found.ok_or_else(|| unknown_version(id, version))
    }

    /// Returns every version and publication of a scene.
    ///
    /// # Errors
    /// As for [`Store::scene_version`].
    pub async fn scene_history(&self, id: &str) -> Result<SceneHistory, StoreError> {
        let mut tx = self.pool.begin_read().await?;
        let row = tx.row(&sql::SCENE_HEAD, args![id]).await?;
        let head = row.as_ref().map(SceneHead::read).transpose()?;
        let head = head.ok_or_else(|| unknown::<SceneHead>(id))?;
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

    /// Writes a new draft, in place of the present one. A new id makes a new scene. Requests do not see
    /// drafts.
    ///
    /// # Errors
    /// [`StoreError::Scene`] if a setting is out of its bounds; [`StoreError::Conflict`] if the scene is at
    /// another revision; [`StoreError::Query`] if the database does not answer.
    pub async fn save_draft(
        &self,
        id: &str,
        settings: &SceneSettings,
        note: &str,
        expected: Expected,
        by: &Actor,
    ) -> Result<SceneHead, StoreError> {
        check(id, settings, note)?;
        let mut change = self.change(by).await?;
        let old: Option<SceneHead> = change.find(id, expected).await?;
        let mut head = SceneHead::next(old.as_ref(), id);
        let based_on = head.draft_version.or(head.published_version);
        let before = change.settings(id, based_on).await?;
        let version = change.add_version(&mut head, NewVersion { settings, note, based_on }).await?;
        head.draft_version = Some(version);
        change.write(old.as_ref(), &head).await?;
        let states = (before.as_ref().map(settings_fields), Some(settings_fields(settings)));
        let more = json!({ "version": version, "note": note });
        change.record::<SceneHead>("draft", id, states, more).await?;
        Ok(head)
    }

    /// Discards the draft. Its version stays in the history.
    ///
    /// # Errors
    /// [`StoreError::State`] if there is no draft, or as for [`Store::save_draft`].
    pub async fn discard_draft(
        &self,
        id: &str,
        expected: Expected,
        by: &Actor,
    ) -> Result<SceneHead, StoreError> {
        let mut change = self.change(by).await?;
        let old: SceneHead = change.known(id, expected).await?;
        let mut head = SceneHead::next(Some(&old), id);
        let draft = head.draft_version.take().ok_or_else(|| state(id, "has no draft"))?;
        change.put("discard", Some(&old), head, json!({ "version": draft })).await
    }

    /// Brings the draft into force.
    ///
    /// # Errors
    /// [`StoreError::State`] if there is no draft, or as for [`Store::save_draft`].
    pub async fn publish(
        &self,
        id: &str,
        note: &str,
        expected: Expected,
        by: &Actor,
    ) -> Result<SceneHead, StoreError> {
        check_label("note", note)?;
        let mut change = self.change(by).await?;
        let old: SceneHead = change.known(id, expected).await?;
        let mut head = SceneHead::next(Some(&old), id);
        let draft = head.draft_version.take().ok_or_else(|| state(id, "has no draft"))?;
        let settings = change.settings(id, Some(draft)).await?.ok_or_else(|| unknown_version(id, draft))?;
        let version = if head.published_version.is_some_and(|published| published > draft) {
            let copy = NewVersion { settings: &settings, note, based_on: Some(draft) };
            change.add_version(&mut head, copy).await?
        } else {
            draft
        };
        let new = PublishedSettings { version, settings: &settings, note };
        change.bring_into_force("publish", Some(&old), head, new).await
    }

    /// Brings an older version back, as a copy with a new number. A draft stays.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if there is no such version, or as for [`Store::save_draft`].
    pub async fn roll_back(
        &self,
        id: &str,
        version: u32,
        note: &str,
        expected: Expected,
        by: &Actor,
    ) -> Result<SceneHead, StoreError> {
        check_label("note", note)?;
        let mut change = self.change(by).await?;
        let old: SceneHead = change.known(id, expected).await?;
        let mut head = SceneHead::next(Some(&old), id);
        let settings =
            change.settings(id, Some(version)).await?.ok_or_else(|| unknown_version(id, version))?;
        let copy = NewVersion { settings: &settings, note, based_on: Some(version) };
        let version = change.add_version(&mut head, copy).await?;
        let new = PublishedSettings { version, settings: &settings, note };
        change.bring_into_force("rollback", Some(&old), head, new).await
    }

    /// Writes a version and brings it into force at once, as the command `scenes set` does. A draft stays.
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
        let mut change = self.change(by).await?;
        let old: Option<SceneHead> = change.find(id, expected).await?;
        let version = change.set("set", old.as_ref(), id, settings, note).await?;
        Ok(Scene { id: id.to_owned(), version, settings: settings.clone() })
    }
}

impl Change {
    /// Reads the settings of a version.
    pub(super) async fn settings(
        &mut self,
        id: &str,
        version: Option<u32>,
    ) -> Result<Option<SceneSettings>, StoreError> {
        let Some(version) = version else { return Ok(None) };
        let row = self.tx.row(&sql::SCENE_VERSION, args![id, version]).await?;
        Ok(row.as_ref().map(scene).transpose()?.map(|scene| scene.settings))
    }

    /// Ends a change by a new version of a known scene, which comes into force at once. A draft stays.
    pub(super) async fn publish_settings(
        mut self,
        id: &str,
        settings: &SceneSettings,
        note: &str,
    ) -> Result<u32, StoreError> {
        check(id, settings, note)?;
        let old: SceneHead = self.known(id, Expected::Any).await?;
        self.set("promote", Some(&old), id, settings, note).await
    }

    /// Adds a version, brings it into force, and commits. Returns its number.
    async fn set(
        mut self,
        verb: &str,
        old: Option<&SceneHead>,
        id: &str,
        settings: &SceneSettings,
        note: &str,
    ) -> Result<u32, StoreError> {
        let mut head = SceneHead::next(old, id);
        let based_on = head.published_version;
        let version = self.add_version(&mut head, NewVersion { settings, note, based_on }).await?;
        self.bring_into_force(verb, old, head, PublishedSettings { version, settings, note }).await?;
        Ok(version)
    }

    /// Adds the next version of a scene; returns its number.
    async fn add_version(&mut self, head: &mut SceneHead, new: NewVersion<'_>) -> Result<u32, StoreError> {
        head.newest_version += 1;
        let settings = serde_json::to_string(new.settings).expect("settings are texts, numbers and flags");
        let values = args![
            &head.id,
            head.newest_version,
            settings,
            self.at_ms / 1000,
            &self.by,
            new.note,
            new.based_on,
        ];
        self.tx.execute(&sql::SCENE_VERSION_ADD, values).await?;
        Ok(head.newest_version)
    }

    /// Brings a version into force, writes the audit row and commits. Every way to publish ends here.
    async fn bring_into_force(
        mut self,
        verb: &str,
        old: Option<&SceneHead>,
        mut head: SceneHead,
        new: PublishedSettings<'_>,
    ) -> Result<SceneHead, StoreError> {
        let PublishedSettings { version, settings, note } = new;
        let before = self.settings(&head.id, head.published_version).await?;
        let more = json!({ "version": version, "before": head.published_version, "note": note });
        head.published_version = Some(version);
        self.write(old, &head).await?;
        let values = args![&head.id, version, self.at_ms, &self.by, note];
        self.tx.execute(&sql::PUBLICATION_ADD, values).await?;
        let states = (before.as_ref().map(settings_fields), Some(settings_fields(settings)));
        self.record::<SceneHead>(verb, &head.id, states, more).await?;
        Ok(head)
    }
}

impl SceneHead {
    /// Returns the state that a change starts from, with its new revision. A new scene has no version yet.
    fn next(old: Option<&SceneHead>, id: &str) -> SceneHead {
        let new = SceneHead {
            id: id.to_owned(),
            revision: 0,
            newest_version: 0,
            published_version: None,
            draft_version: None,
        };
        let mut head = old.cloned().unwrap_or(new);
        head.revision += 1;
        head
    }
}

impl Recorded for SceneHead {
    const NAME: &'static str = "scene";
    const KIND: &'static str = "scene";
    const READ: &'static Statement = &sql::SCENE_HEAD;
    const ADD: &'static Statement = &sql::SCENE_ADD;
    const CHANGE: &'static Statement = &sql::SCENE_CHANGE;

    fn read(row: &Row) -> Result<SceneHead, StoreError> {
        Ok(SceneHead {
            id: row.text("id")?,
            revision: row.count("revision")?,
            newest_version: row.small("newest_version")?,
            published_version: row.opt_small("published_version")?,
            draft_version: row.opt_small("draft_version")?,
        })
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn revision(&self) -> u64 {
        self.revision
    }

    fn current(&self, expected: Expected) -> Option<u64> {
        match expected {
            Expected::Version(_) => self.published_version.map(u64::from),
            _ => Some(self.revision),
        }
    }

    fn added(&self) -> Vec<Arg<'_>> {
        vec![
            (&self.id).into(),
            self.revision.into(),
            self.newest_version.into(),
            self.published_version.into(),
            self.draft_version.into(),
        ]
    }

    fn fields(&self) -> Fields {
        fields(json!({
            "published_version": self.published_version,
            "draft_version": self.draft_version,
        }))
    }
}

/// Returns settings as the audit log shows them.
fn settings_fields(settings: &SceneSettings) -> Fields {
    settings.fields().map(|(field, value)| (field.name.to_owned(), value)).collect()
}

fn check(id: &str, settings: &SceneSettings, note: &str) -> Result<(), StoreError> {
    check_id(id)?;
    scene::check(settings)?;
    Ok(check_label("note", note)?)
}

fn unknown_version(id: &str, version: u32) -> StoreError {
    StoreError::Unknown { what: "scene version", id: format!("{id}/{version}") }
}

fn state(id: &str, why: &'static str) -> StoreError {
    StoreError::State { what: SceneHead::NAME, id: id.to_owned(), why }
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

/// Reads a version and checks it again, so that a row edited by hand cannot bring settings out of bounds.
pub(super) fn scene(row: &Row) -> Result<Scene, StoreError> {
    let settings = settings_of(row, "settings", &row.text("settings")?)?;
    Ok(Scene { id: row.text("id")?, version: row.small("version")?, settings })
}

fn opt_settings(row: &Row, column: &'static str) -> Result<Option<SceneSettings>, StoreError> {
    row.opt_text(column)?.map(|text| settings_of(row, column, &text)).transpose()
}

fn settings_of(row: &Row, column: &'static str, text: &str) -> Result<SceneSettings, StoreError> {
    let settings = read(text).map_err(|err| row.bad(column, format!("no settings: {err}")))?;
    scene::check(&settings)?;
    Ok(settings)
}

/// Reads settings as any version of this program wrote them.
fn read(text: &str) -> serde_json::Result<SceneSettings> {
    let mut written: Map<String, Value> = serde_json::from_str(text)?;
    // An earlier version of this program accepted NUL in texts. It is replaced here as in `Row::text`.
    for value in written.values_mut() {
        if let Value::String(text) = value
            && text.contains('\0')
        {
            *text = text.replace('\0', "\u{fffd}");
        }
    }
    SceneSettings::read(written)
}
