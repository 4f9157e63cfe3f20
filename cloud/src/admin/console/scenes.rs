//! Scenes: the list, a new one, and what happens to versions: review, publish, discard, roll back.

use askama::Template;
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};

use super::scene::Version;
use super::{
    Asked, Changed, Frame, Question, Shown, changed, label, page, problem_page, revision, setting_text, to,
};
use crate::admin::Admin;
use crate::admin::guard::Fields;
use crate::admin::predict::PredictFor;
use crate::admin::problem::{Kind, Problem};
use crate::admin::session::Session;
use crate::admin::view::{SceneView, Settings, changes};
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
    corrector: String,
    refiner: String,
}

impl From<SceneView> for Row {
    fn from(scene: SceneView) -> Row {
        let default = Settings::from(&SceneSettings::with_system(""));
        // What is in force stands in the list; a scene that never was shows its draft.
        let settings = scene.published.as_ref().or(scene.draft.as_ref()).unwrap_or(&default);
        let auto = |value: Option<String>| value.unwrap_or_else(|| "auto".to_owned());
        Row {
            published: scene.published_version.map_or("never".to_owned(), |version| version.to_string()),
            draft: scene.draft_version,
            ratio: auto(settings.ratio.map(|ratio| ratio.to_string())),
            xi: settings.xi.to_string(),
            assist_tokens: auto(settings.assist_tokens.map(|tokens| tokens.to_string())),
            assist_floor: settings.assist_floor.to_string(),
            tau_ms: settings.tau_ms.to_string(),
            corrector: settings.corrector.clone(),
            refiner: if settings.refine { settings.mode.clone() } else { "forbidden".to_owned() },
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

pub(super) async fn list(State(admin): State<Admin>, session: Session, Query(asked): Query<Asked>) -> Shown {
    let rows = admin.office.scenes().await?.into_iter().map(Row::from).collect();
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
) -> Shown {
    let (id, system) = (fields.text("id"), fields.get("system").unwrap_or_default());
    let settings = SceneSettings::with_system(system.clone());
    let made = admin.office.save_draft(&session.actor(), &id, &settings, "", Expected::Absent).await;
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
) -> Shown {
    let (action, back) = (format!("/admin/scenes/{id}/discard"), format!("/admin/scenes/{id}"));
    let question = Question {
        title: "Discard the draft?",
        text: "The draft is given up. Its version stays in the history.",
        action: &action,
        button: "Discard the draft",
        back: &back,
    };
    if let Some(asked) = question.unless_confirmed(&session, &fields) {
        return Ok(asked);
    }
    admin.office.discard_draft(&session.actor(), &id, revision(&fields)?).await?;
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

pub(super) async fn review(State(admin): State<Admin>, session: Session, Path(id): Path<String>) -> Shown {
    let (scene, versions) = admin.office.history(&id).await?;
    let (Some(draft), Some(after)) = (scene.draft_version, &scene.draft) else {
        return Err(Problem::new(Kind::Conflict, format!("scene `{id}` has no draft to publish")).into());
    };
    let after = after.check()?;
    let before = scene.published.as_ref().map(Settings::check).transpose()?;
    let asked = PredictFor::default();
    let then = admin.predict(&id, &after, &asked).await?;
    let now = match &before {
        Some(before) => admin.predict(&id, before, &asked).await?.summary(),
        None => "nothing, requests for it are refused".to_owned(),
    };
    let note = versions.iter().find(|version| version.version == draft).map(|version| version.note.clone());
    let shown = ReviewPage {
        frame: Frame::of(&session, "/admin/scenes", format!("Publish {id}")),
        revision: scene.revision,
        draft,
        note: note.unwrap_or_default(),
        changes: changed(&changes(before.as_ref().unwrap_or(&SceneSettings::with_system("")), &after)),
        from_text: scene
            .published_version
            .map_or("defaults".to_owned(), |version| format!("version {version}, in force")),
        to_text: format!("version {draft}, the draft"),
        before: now,
        after: then.summary(),
        unserved: admin.service.unserved(&id, &after).map(|refused| refused.to_string()),
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
) -> Shown {
    admin.office.publish(&session.actor(), &id, &fields.text("note"), revision(&fields)?).await?;
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
    fields: Vec<(String, String)>,
    can_roll_back: bool,
}

pub(super) async fn version(
    State(admin): State<Admin>,
    session: Session,
    Path((id, version)): Path<(String, String)>,
) -> Shown {
    let (scene, versions) = admin.office.history(&id).await?;
    let number = version.parse::<u32>().ok();
    let Some(found) = versions.iter().find(|found| Some(found.version) == number) else {
        let version: String = version.chars().take(32).collect();
        let problem = Problem::new(Kind::NotFound, format!("scene `{id}` has no version `{version}`"));
        return Ok(problem_page(Some(&session), &problem));
    };
    let version = found.version;
    let settings = found.settings.check()?;
    let published = scene.published.as_ref().map(Settings::check).transpose()?;
    let against = published.as_ref().unwrap_or(&settings);
    let field =
        |(name, value): (&str, serde_json::Value)| (label(name).to_owned(), setting_text(name, &value));
    let in_force = scene.published_version == Some(version);
    let shown = VersionPage {
        frame: Frame::of(&session, "/admin/scenes", format!("{id} version {version}")),
        revision: scene.revision,
        version: Version::from(found),
        changes: changed(&changes(against, &settings)),
        from_text: scene
            .published_version
            .map_or("in force".to_owned(), |now| format!("version {now}, in force")),
        to_text: format!("version {version}"),
        fields: settings.fields().into_iter().map(field).collect(),
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
) -> Shown {
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
    admin.office.roll_back(&session.actor(), &id, version, &note, revision(&fields)?).await?;
    Ok(to(&format!("/admin/scenes/{id}"), "rolled-back"))
}
