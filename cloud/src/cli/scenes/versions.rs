//! `scenes draft|publish|discard|rollback|diff|history`: manages drafts and versions.

use std::fmt::Write as _;

use baton_protocol::SettingChange;
use clap::Args;
use serde_json::{Value, json};

use super::{Output, SceneSet, value};
use crate::access::Actor;
use crate::cli::columns::one_line;
use crate::cli::moment;
use crate::config::numbers;
use crate::scene::SceneSettings;
use crate::store::{Expected, SceneHead, SceneHistory, SceneVersion, Store, StoreError};

/// A scene, the revision that the change is based on, and a note.
#[derive(Debug, Clone, Args)]
pub struct Publishing {
    /// The scene's id
    pub id: String,
    /// Note for the history
    #[arg(long, default_value = "")]
    pub note: String,
    /// Fail if the scene is not at this revision (`scenes history` shows it)
    #[arg(long, value_name = "REVISION", value_parser = numbers::whole::<u64>, allow_negative_numbers = true)]
    pub if_revision: Option<u64>,
}

/// Two versions of a scene.
#[derive(Debug, Clone, Args)]
pub struct Diffing {
    /// The scene's id
    pub id: String,
    /// The older version; the default is the one in force
    #[arg(long, value_name = "VERSION", value_parser = numbers::whole::<u32>, allow_negative_numbers = true)]
    pub from: Option<u32>,
    /// The newer version; the default is the draft, or else the newest version
    #[arg(long, value_name = "VERSION", value_parser = numbers::whole::<u32>, allow_negative_numbers = true)]
    pub to: Option<u32>,
}

impl Publishing {
    fn expected(&self) -> Expected {
        self.if_revision.map_or(Expected::Any, Expected::Revision)
    }
}

/// Writes a draft: the changes on top of the present draft, or else of the version in force.
pub(super) async fn draft(store: &Store, set: SceneSet) -> anyhow::Result<Output> {
    let id = set.id.clone();
    let (settings, expected) = match store.scene_history(&id).await {
        Ok(SceneHistory { head, versions, .. }) => {
            let base = head.draft_version.or(head.published_version).unwrap_or(head.newest_version);
            if let Some(expected) = set.if_version.filter(|&version| version != base) {
                let (expected, current) = (expected.into(), base.into());
                return Err(StoreError::Conflict { what: "scene", id, expected, current }.into());
            }
            let found = versions.into_iter().find(|version| version.scene.version == base);
            let settings = found.map(|version| version.scene.settings).unwrap_or_default();
            (settings, Expected::Revision(head.revision))
        }
        Err(StoreError::Unknown { .. }) => (SceneSettings::default(), Expected::Absent),
        Err(err) => return Err(err.into()),
    };
    let settings = set.apply(&settings)?;
    let head = store.save_draft(&id, &settings, "", expected, &Actor::cli()).await?;
    Ok(shown_head(store, &head).await?)
}

pub(super) async fn publish(store: &Store, args: &Publishing) -> Result<Output, StoreError> {
    let head = store.publish(&args.id, &args.note, args.expected(), &Actor::cli()).await?;
    shown_head(store, &head).await
}

pub(super) async fn discard(store: &Store, args: &Publishing) -> Result<Output, StoreError> {
    let head = store.discard_draft(&args.id, args.expected(), &Actor::cli()).await?;
    shown_head(store, &head).await
}

pub(super) async fn roll_back(store: &Store, args: &Publishing, version: u32) -> Result<Output, StoreError> {
    let head = store.roll_back(&args.id, version, &args.note, args.expected(), &Actor::cli()).await?;
    shown_head(store, &head).await
}

/// Shows the settings that differ between two versions.
pub(super) async fn diff(store: &Store, args: &Diffing) -> Result<Output, StoreError> {
    let history = store.scene_history(&args.id).await?;
    let head = &history.head;
    let from = args.from.or(head.published_version).unwrap_or(head.newest_version);
    let to = args.to.or(head.draft_version).unwrap_or(head.newest_version);
    let find = |version: u32| {
        let found = history.versions.iter().find(|found| found.scene.version == version);
        let id = format!("{}/{version}", args.id);
        found.map(|found| &found.scene.settings).ok_or(StoreError::Unknown { what: "scene version", id })
    };
    let changes = find(from)?.diff(find(to)?);
    let mut text = format!("{}: version {from} to {to}\n", args.id);
    put_changes(&changes, &mut text);
    let value = json!({ "id": args.id, "from": from, "to": to, "changes": changes_json(&changes) });
    Ok(Output::Computed { value, text })
}

/// Returns changes as JSON: `{"xi": {"from": 0.25, "to": 0.5}}`.
fn changes_json(changes: &[SettingChange]) -> Value {
    let change = |change: &SettingChange| {
        (change.field.name.to_owned(), json!({ "from": change.from, "to": change.to }))
    };
    Value::Object(changes.iter().map(change).collect())
}

fn put_changes(changes: &[SettingChange], text: &mut String) {
    if changes.is_empty() {
        text.push_str("  nothing differs\n");
    }
    for change in changes {
        writeln!(text, "  {:<16} {} -> {}", change.field.name, change.from, change.to)
            .expect("writing to a string cannot fail");
    }
}

/// Shows every version and publication.
pub(super) async fn history(store: &Store, id: &str) -> Result<Output, StoreError> {
    let SceneHistory { head, versions, publications } = store.scene_history(id).await?;
    let mut text = format!("{}: revision {}\n", head.id, head.revision);
    text.push_str("version state      made (UTC)        by                   note\n");
    for version in &versions {
        writeln!(
            text,
            "{:>7} {:<10} {:<17} {:<20} {}{}",
            version.scene.version,
            version.state.as_str(),
            moment(version.created_ms),
            version.created_by,
            version.based_on.map_or(String::new(), |base| format!("(from {base}) ")),
            one_line(version.note.clone())
        )
        .expect("writing to a string cannot fail");
    }
    text.push_str("in force since (UTC) version by                   note\n");
    for publication in &publications {
        writeln!(
            text,
            "{:<20} {:>7} {:<20} {}",
            moment(publication.published_ms),
            publication.version,
            publication.published_by,
            one_line(publication.note.clone())
        )
        .expect("writing to a string cannot fail");
    }
    let publications: Vec<Value> = publications
        .iter()
        .map(|publication| {
            json!({ "seq": publication.seq, "version": publication.version, "note": publication.note,
                "published_ms": publication.published_ms, "published_by": publication.published_by })
        })
        .collect();
    let versions: Vec<Value> = versions.iter().map(version_json).collect();
    let value = json!({ "head": head_json(&head), "versions": versions, "publications": publications });
    Ok(Output::Computed { value, text })
}

async fn shown_head(store: &Store, head: &SceneHead) -> Result<Output, StoreError> {
    let newest = head.draft_version.or(head.published_version).unwrap_or(head.newest_version);
    let version = store.scene_version(&head.id, newest).await?;
    let number = |version: Option<u32>| version.map_or("none".to_owned(), |version| version.to_string());
    let text = format!(
        "{}: revision {}, in force {}, draft {}\n",
        head.id,
        head.revision,
        number(head.published_version),
        number(head.draft_version)
    );
    let mut shown = head_json(head);
    shown["version"] = version_json(&version);
    Ok(Output::Computed { value: shown, text })
}

fn head_json(head: &SceneHead) -> Value {
    json!({
        "id": head.id,
        "revision": head.revision,
        "newest_version": head.newest_version,
        "published_version": head.published_version,
        "draft_version": head.draft_version,
    })
}

fn version_json(version: &SceneVersion) -> Value {
    let mut shown = value(&version.scene);
    shown["state"] = json!(version.state.as_str());
    shown["created_ms"] = json!(version.created_ms);
    shown["created_by"] = json!(version.created_by);
    shown["note"] = json!(version.note);
    shown["based_on"] = json!(version.based_on);
    shown
}
