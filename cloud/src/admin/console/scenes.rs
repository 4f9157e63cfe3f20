//! The pages of scenes: the list, a new scene, and reviewing, publishing, discarding and rolling back
//! versions.

use askama::Template;
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use baton_protocol::SettingField;
use serde_json::Value;

use super::scene::Version;
use super::{
    Changed, Frame, PageQuery, PageResult, Question, changed, page, problem_page, revision, setting_text, to,
};
use crate::admin::Admin;
use crate::admin::guard::Fields;
use crate::admin::predict::PredictFor;
use crate::admin::problem::{Kind, Problem};
use crate::admin::session::Session;
use crate::admin::view::SceneView;
use crate::scene::SceneSettings;
use crate::store::Expected;

struct Row {
    id: String,
    published: String,
    draft: Option<u32>,
    ratio: String,
    xi: String,
    assist_tokens: String,
    assist_floor: String,
    tau_ms: String,
    corrector: &'static str,
    refiner: String,
}

impl From<SceneView> for Row {
    fn from(scene: SceneView) -> Row {
        // The list shows the settings in force. A scene that was never published shows its draft.
        let settings = scene.published.or(scene.draft).unwrap_or_default();
        let auto = |value: Option<String>| value.unwrap_or_else(|| "auto".to_owned());
        Row {
            published: scene.published_version.map_or("never".to_owned(), |version| version.to_string()),
            draft: scene.draft_version,
            ratio: auto(settings.ratio.map(|ratio| ratio.to_string())),
            xi: settings.xi.to_string(),
            assist_tokens: auto(settings.assist_tokens.map(|tokens| tokens.to_string())),
            assist_floor: settings.assist_floor.to_string(),
            tau_ms: settings.tau_ms.to_string(),
            corrector: settings.corrector.as_str(),
            refiner: if settings.refine { settings.mode } else { "forbidden".to_owned() },
            id: scene.id,
        }
    }
}

#[derive(Template)]
#[template(path = "scenes.html")]
struct ScenesPage {
    frame: Frame,
    edits: bool,
    rows: Vec<Row>,
}

pub(super) async fn list(
    State(admin): State<Admin>,
    session: Session,
    Query(asked): Query<PageQuery>,
) -> PageResult {
    let rows = admin.operations.scenes().await?.into_iter().map(Row::from).collect();
    let frame = Frame::of(&session, "/admin/scenes", "Scenes").with_notice(&asked);
    Ok(page(StatusCode::OK, &ScenesPage { frame, edits: session.edits(), rows }))
}

#[derive(Template)]
#[template(path = "new_scene.html")]
struct NewScenePage {
    frame: Frame,
    id: String,
    system: String,
    problem: Option<String>,
}

pub(super) async fn new_page(session: Session) -> Response {
    let frame = Frame::of(&session, "/admin/scenes", "New scene").narrow();
    let (id, system) = (String::new(), "You are a helpful assistant.".to_owned());
    page(StatusCode::OK, &NewScenePage { frame, id, system, problem: None })
}

pub(super) async fn create(
    State(admin): State<Admin>,
    session: Session,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    let (id, system) = (fields.text("id"), fields.get("system").unwrap_or_default());
    let settings = SceneSettings::with_system(system.clone());
    let made = admin.operations.save_draft(&session.actor(), &id, &settings, "", Expected::Absent).await;
    match made {
        Ok(_) => Ok(Redirect::to(&format!("/admin/scenes/{id}")).into_response()),
        Err(problem) if matches!(problem.kind, Kind::Invalid | Kind::Stale) => {
            let frame = Frame::of(&session, "/admin/scenes", "New scene").narrow();
            let status = problem.kind.status();
            Ok(page(status, &NewScenePage { frame, id, system, problem: Some(problem.detail) }))
        }
        Err(problem) => Err(problem.into()),
    }
}

pub(super) async fn discard(
    State(admin): State<Admin>,
    session: Session,
    Path(id): Path<String>,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    let (action, back) = (format!("/admin/scenes/{id}/discard"), format!("/admin/scenes/{id}"));
    let question = Question {
        title: "Discard the draft?",
        text: "The draft is discarded. Its version stays in the history.",
        action: &action,
        button: "Discard the draft",
        back: &back,
    };
    if let Some(asked) = question.unless_confirmed(&session, &fields) {
        return Ok(asked);
    }
    admin.operations.discard_draft(&session.actor(), &id, revision(&fields)?).await?;
    Ok(to(&back, "discarded"))
}

#[derive(Template)]
#[template(path = "review.html")]
struct ReviewPage {
    frame: Frame,
    id: String,
    draft: u32,
    revision: u64,
    note: String,
    changes: Vec<Changed>,
    from_text: String,
    to_text: String,
    before: String,
    after: String,
    asked: String,
    /// Why this replica would refuse requests for the draft.
    unserved: Option<String>,
}

pub(super) async fn review(
    State(admin): State<Admin>,
    session: Session,
    Path(id): Path<String>,
) -> PageResult {
    let (scene, versions) = admin.operations.history(&id).await?;
    let (Some(draft), Some(after)) = (scene.draft_version, &scene.draft) else {
        return Err(Problem::new(Kind::Conflict, format!("scene `{id}` has no draft to publish")).into());
    };
    let asked = PredictFor::default();
    let then = admin.predict(&id, after, &asked).await?;
    let now = match &scene.published {
        Some(before) => admin.predict(&id, before, &asked).await?.summary(),
        None => "nothing, requests for it are refused".to_owned(),
    };
    let note = versions.iter().find(|version| version.version == draft).map(|version| version.note.clone());
    let before = scene.published.clone().unwrap_or_default();
    let shown = ReviewPage {
        frame: Frame::of(&session, "/admin/scenes", format!("Publish {id}")),
        revision: scene.revision,
        draft,
        note: note.unwrap_or_default(),
        changes: changed(&before.diff(after)),
        from_text: scene
            .published_version
            .map_or("defaults".to_owned(), |version| format!("version {version}, in force")),
        to_text: format!("version {draft}, the draft"),
        before: now,
        after: then.summary(),
        unserved: admin.service.unserved(&id, after).map(|refused| refused.to_string()),
        asked: format!("{} over {}, {} prompt tokens", then.device_class, then.network, then.prompt_tokens),
        id,
    };
    Ok(page(StatusCode::OK, &shown))
}

pub(super) async fn publish(
    State(admin): State<Admin>,
    session: Session,
    Path(id): Path<String>,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    admin.operations.publish(&session.actor(), &id, &fields.text("note"), revision(&fields)?).await?;
    Ok(to(&format!("/admin/scenes/{id}"), "published"))
}

#[derive(Template)]
#[template(path = "version.html")]
struct VersionPage {
    frame: Frame,
    id: String,
    revision: u64,
    version: Version,
    changes: Vec<Changed>,
    from_text: String,
    to_text: String,
    fields: Vec<(&'static str, String)>,
    can_roll_back: bool,
}

pub(super) async fn version(
    State(admin): State<Admin>,
    session: Session,
    Path((id, version)): Path<(String, String)>,
) -> PageResult {
    let (scene, versions) = admin.operations.history(&id).await?;
    let number = version.parse::<u32>().ok();
    let Some(found) = versions.iter().find(|found| Some(found.version) == number) else {
        let version: String = version.chars().take(32).collect();
        let problem = Problem::new(Kind::NotFound, format!("scene `{id}` has no version `{version}`"));
        return Ok(problem_page(Some(&session), &problem));
    };
    let (version, settings) = (found.version, &found.settings);
    let against = scene.published.as_ref().unwrap_or(settings);
    let field = |(field, value): (&SettingField, Value)| (field.title, setting_text(field.name, &value));
    let in_force = scene.published_version == Some(version);
    let shown = VersionPage {
        frame: Frame::of(&session, "/admin/scenes", format!("{id} version {version}")),
        revision: scene.revision,
        version: Version::from(found),
        changes: changed(&against.diff(settings)),
        from_text: scene
            .published_version
            .map_or("in force".to_owned(), |now| format!("version {now}, in force")),
        to_text: format!("version {version}"),
        fields: settings.fields().map(field).collect(),
        can_roll_back: session.edits() && !in_force && found.state != "draft",
        id,
    };
    Ok(page(StatusCode::OK, &shown))
}

pub(super) async fn roll_back(
    State(admin): State<Admin>,
    session: Session,
    Path(id): Path<String>,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    let version: u32 = fields.needed("version")?;
    let (action, back) =
        (format!("/admin/scenes/{id}/rollback"), format!("/admin/scenes/{id}/versions/{version}"));
    let text = format!("Version {version} of {id} comes back into force, as a copy with a new number.");
    let button = format!("Roll back to version {version}");
    let title = "Roll back?";
    let question = Question { title, text: &text, action: &action, button: &button, back: &back };
    if let Some(asked) = question.unless_confirmed(&session, &fields) {
        return Ok(asked);
    }
    let note = format!("Back to version {version}");
    admin.operations.roll_back(&session.actor(), &id, version, &note, revision(&fields)?).await?;
    Ok(to(&format!("/admin/scenes/{id}"), "rolled-back"))
}
