//! The page of a scene: its form, the prediction for it, and its history.

use std::collections::BTreeSet;

use askama::Template;
use axum::extract::{Extension, Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use baton_pacing::DeviceClass;
use serde::Deserialize;

use super::form::{self, Control, Fieldset, SettingsForm, Suggested};
use super::{
    Changed, Choice, Frame, PageError, PageQuery, PageResult, changed, choices, page, revision, time,
};
use crate::admin::Admin;
use crate::admin::chart::{Chart, grouped};
use crate::admin::guard::Fields;
use crate::admin::predict::{self, PlanView, PredictFor, Prediction};
use crate::admin::problem::{Kind, Problem};
use crate::admin::session::Session;
use crate::admin::view::{SceneView, VersionView};
use crate::learn::forecast::digits;
use crate::scene::SceneSettings;

/// The device, network and prompt to predict for, before the form is sent.
#[derive(Debug, Default, Deserialize)]
pub(super) struct PredictQuery {
    device_class: Option<String>,
    network: Option<String>,
    prompt_tokens: Option<u32>,
}

/// A form as it was typed.
struct SceneForm {
    revision: String,
    settings: SettingsForm,
    note: String,
    device_class: String,
    network: String,
    prompt_tokens: String,
}

impl SceneForm {
    fn of(scene: &SceneView, settings: &SceneSettings, asked: PredictQuery) -> SceneForm {
        SceneForm {
            revision: scene.revision.to_string(),
            settings: SettingsForm::of(settings),
            note: String::new(),
            device_class: asked.device_class.unwrap_or_default(),
            network: asked.network.unwrap_or_else(|| predict::NETWORK.to_owned()),
            prompt_tokens: asked.prompt_tokens.unwrap_or(predict::PROMPT_TOKENS).to_string(),
        }
    }

    fn read(fields: &Fields) -> SceneForm {
        SceneForm {
            revision: fields.text("revision"),
            settings: SettingsForm::read(fields),
            note: fields.text("note"),
            device_class: fields.text("device_class"),
            network: fields.text("network"),
            prompt_tokens: fields.text("prompt_tokens"),
        }
    }

    fn asked(&self) -> Result<PredictFor, Problem> {
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let prompt_tokens = match self.prompt_tokens.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|_| {
                let text: String = text.chars().take(32).collect();
                Problem::field(
                    "prompt_tokens",
                    &format!("field `prompt_tokens` is `{text}`, must be a number"),
                )
            })?),
        };
        Ok(PredictFor { device_class: some(&self.device_class), network: some(&self.network), prompt_tokens })
    }
}

/// A row of the table over all classes.
struct Row {
    class: String,
    cells: Vec<Cell>,
}

struct Cell {
    plan: String,
    times: String,
    over: bool,
    now: bool,
}

#[derive(Template)]
#[template(path = "prediction.html")]
struct PredictionPiece<'a> {
    summary: String,
    problem: Option<String>,
    prediction: Option<&'a Prediction>,
    charts: Vec<Chart>,
    lengths: Vec<String>,
    rows: Vec<Row>,
}

impl PredictionPiece<'_> {
    fn of(predicted: &Result<Prediction, Problem>) -> PredictionPiece<'_> {
        match predicted {
            Ok(prediction) => {
                let (lengths, rows) = table(prediction);
                PredictionPiece {
                    summary: prediction.summary(),
                    problem: None,
                    prediction: Some(prediction),
                    charts: prediction.charts(),
                    lengths,
                    rows,
                }
            }
            Err(problem) => PredictionPiece {
                summary: format!("No prediction: {}.", problem.detail),
                problem: Some(problem.detail.clone()),
                prediction: None,
                charts: Vec::new(),
                lengths: Vec::new(),
                rows: Vec::new(),
            },
        }
    }

    /// Formats a number with three digits.
    fn short(&self, value: &f64) -> String {
        digits(*value)
    }

    /// Formats a clause as a sentence.
    fn sentence(&self, clause: &str) -> String {
        sentence(clause)
    }
}

/// Formats a clause as a sentence. Symbols keep their lower-case letters.
fn sentence(clause: &str) -> String {
    let first = clause.split_whitespace().next().unwrap_or_default();
    let symbol = first.starts_with("tau") || first.starts_with("TPOT");
    let mut chars = clause.chars();
    let first = chars.next().map(|c| if symbol { c.to_string() } else { c.to_uppercase().collect() });
    format!("{}{}.", first.unwrap_or_default(), chars.as_str())
}

fn table(prediction: &Prediction) -> (Vec<String>, Vec<Row>) {
    let mut lengths: Vec<u32> = prediction.table.iter().map(|cell| cell.prompt_tokens).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let mut rows: Vec<Row> = Vec::new();
    for cell in &prediction.table {
        let shown = Cell {
            plan: plan_text(&cell.plan),
            times: format!(
                "{} · {}",
                grouped(cell.plan.predicted.ttft_d_ms, 0),
                grouped(cell.plan.predicted.gap_ms, 0)
            ),
            over: !cell.plan.keeps_tau,
            now: cell.device_class == prediction.device_class
                && cell.prompt_tokens == prediction.prompt_tokens,
        };
        match rows.last_mut().filter(|row| row.class == cell.device_class) {
            Some(row) => row.cells.push(shown),
            None => rows.push(Row { class: cell.device_class.clone(), cells: vec![shown] }),
        }
    }
    (lengths.into_iter().map(|length| grouped(f64::from(length), 0)).collect(), rows)
}

fn plan_text(plan: &PlanView) -> String {
    let better = match plan.verdict.as_str() {
        "cloud_alone" => return "cloud".to_owned(),
        "device_alone" => " (alone)",
        "no_refinement" if plan.ratio < 1.0 => " (whole)",
        _ => "",
    };
    format!("{} · {}{better}", digits(plan.ratio), plan.assist_tokens)
}

/// One version in the history.
pub(super) struct Version {
    pub(super) version: u32,
    pub(super) state: String,
    pub(super) tone: &'static str,
    pub(super) when: String,
    pub(super) by: String,
    pub(super) note: String,
    pub(super) based_on: Option<u32>,
}

impl From<&VersionView> for Version {
    fn from(view: &VersionView) -> Version {
        let (at, by) = (
            view.published_ms.unwrap_or(view.created_ms),
            view.published_by.as_ref().unwrap_or(&view.created_by),
        );
        Version {
            version: view.version,
            state: if view.state == "published" { "in force".to_owned() } else { view.state.clone() },
            tone: match view.state.as_str() {
                "published" => "good",
                "draft" => "warn",
                _ => "",
            },
            when: time(at),
            by: by.strip_prefix("user:").unwrap_or(by).to_owned(),
            note: view.note.clone(),
            based_on: view.based_on,
        }
    }
}

/// A change that somebody else made meanwhile.
struct Conflict {
    text: String,
    changes: Vec<Changed>,
}

#[derive(Template)]
#[template(path = "scene.html")]
struct ScenePage {
    frame: Frame,
    scene: SceneView,
    fieldsets: Vec<Fieldset>,
    /// The name of this replica's default model.
    default_model: Option<String>,
    /// Why this replica would refuse requests for these settings.
    unserved: Option<String>,
    edits: bool,
    form: SceneForm,
    bad: Option<(String, String)>,
    problem: Option<String>,
    conflict: Option<Conflict>,
    classes: Vec<Choice>,
    networks: Vec<Choice>,
    summary: String,
    prediction: String,
    versions: Vec<Version>,
}

impl ScenePage {
    /// Returns the attributes that mark a field if it is wrong.
    fn invalid(&self, name: &str) -> String {
        form::invalid(self.bad.as_ref(), name)
    }

    /// Returns the error of a field.
    fn error(&self, name: &str) -> String {
        form::error(self.bad.as_ref(), name)
    }
}

/// The content of a scene's page.
struct Draft {
    form: SceneForm,
    /// The settings of the form, or why they are not valid.
    settings: Result<SceneSettings, Problem>,
    conflict: Option<Conflict>,
    status: StatusCode,
}

pub(super) async fn show(
    State(admin): State<Admin>,
    session: Session,
    Path(id): Path<String>,
    Query(asked): Query<PageQuery>,
    Query(predict_for): Query<PredictQuery>,
) -> PageResult {
    let (scene, versions) = admin.operations.history(&id).await?;
    let settings = scene.latest().cloned().unwrap_or_default();
    let form = SceneForm::of(&scene, &settings, predict_for);
    let draft = Draft { form, settings: Ok(settings), conflict: None, status: StatusCode::OK };
    let frame = Frame::of(&session, "/admin/scenes", scene.id.clone()).with_notice(&asked);
    render(&admin, &session, frame, scene, &versions, draft).await
}

/// Predicts the effect of the form. Renders the whole page, or only the prediction if the script asks for it.
pub(super) async fn preview(
    State(admin): State<Admin>,
    session: Session,
    Path(id): Path<String>,
    headers: HeaderMap,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    let form = SceneForm::read(&fields);
    let settings = form::settings(&fields);
    if headers.get("x-fragment").is_some_and(|value| value == "prediction") {
        let predicted = predicted(&admin, &id, &form, &settings).await;
        let status = predicted.as_ref().err().map_or(StatusCode::OK, |problem| problem.kind.status());
        return Ok(page(status, &PredictionPiece::of(&predicted)));
    }
    let (scene, versions) = admin.operations.history(&id).await?;
    let status = settings.as_ref().err().map_or(StatusCode::OK, |problem| problem.kind.status());
    let frame = Frame::of(&session, "/admin/scenes", id);
    let draft = Draft { form, settings, conflict: None, status };
    render(&admin, &session, frame, scene, &versions, draft).await
}

/// Saves the form as a draft. A form that is out of date or out of bounds is shown again.
pub(super) async fn save(
    State(admin): State<Admin>,
    session: Session,
    Path(id): Path<String>,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    let mut form = SceneForm::read(&fields);
    let settings = form::settings(&fields);
    let saved = match &settings {
        Ok(settings) => {
            let expected = revision(&fields)?;
            admin.operations.save_draft(&session.actor(), &id, settings, &form.note, expected).await.map(drop)
        }
        Err(problem) => Err(problem.clone()),
    };
    let problem = match saved {
        Ok(()) => return Ok(Redirect::to(&format!("/admin/scenes/{id}/review")).into_response()),
        Err(problem) if matches!(problem.kind, Kind::Invalid | Kind::Stale) => problem,
        Err(problem) => return Err(problem.into()),
    };
    let (scene, versions) = admin.operations.history(&id).await?;
    let mut conflict = None;
    if problem.kind == Kind::Stale {
        form.revision = scene.revision.to_string();
        conflict = Some(conflict_of(&scene, &versions, settings.as_ref().ok()));
    }
    let settings = if problem.kind == Kind::Invalid { Err(problem.clone()) } else { settings };
    let frame = Frame::of(&session, "/admin/scenes", id);
    let draft = Draft { form, settings, conflict, status: problem.kind.status() };
    render(&admin, &session, frame, scene, &versions, draft).await
}

/// Describes the change that was made meanwhile, and how these settings differ from it.
fn conflict_of(scene: &SceneView, versions: &[VersionView], yours: Option<&SceneSettings>) -> Conflict {
    let newest = scene.draft_version.or(scene.published_version);
    let theirs = versions.iter().find(|version| Some(version.version) == newest);
    let text = theirs.map_or("The scene was changed.".to_owned(), |theirs| {
        let shown = Version::from(theirs);
        let by = if shown.by.is_empty() { "Somebody" } else { &shown.by };
        let did = if theirs.state == "draft" { "saved draft" } else { "published" };
        format!("{by} {did} version {} meanwhile.", theirs.version)
    });
    let changes = match (theirs, yours) {
        (Some(theirs), Some(yours)) => changed(&theirs.settings.diff(yours)),
        _ => Vec::new(),
    };
    Conflict { text, changes }
}

async fn predicted(
    admin: &Admin,
    id: &str,
    form: &SceneForm,
    settings: &Result<SceneSettings, Problem>,
) -> Result<Prediction, Problem> {
    match settings {
        Ok(settings) => admin.predict(id, settings, &form.asked()?).await,
        Err(problem) => Err(problem.clone()),
    }
}

async fn render(
    admin: &Admin,
    session: &Session,
    frame: Frame,
    scene: SceneView,
    versions: &[VersionView],
    draft: Draft,
) -> Result<Response, PageError> {
    let Draft { form, settings, conflict, status } = draft;
    let known = admin.known().await?;
    let (devices, networks) = predict::classes(&known);
    let predicted = predicted(admin, &scene.id, &form, &settings).await;
    let checked = settings.as_ref().ok();
    let unserved = checked.and_then(|settings| admin.service.unserved(&scene.id, settings));
    let unserved = unserved.map(|refused| refused.to_string());
    let problem = settings.err().or_else(|| predicted.as_ref().err().cloned());
    let piece = PredictionPiece::of(&predicted);
    let prediction = piece.render().map_err(|err| Problem::new(Kind::Internal, err.to_string()))?;
    let device_class = predicted.as_ref().map_or(form.device_class.clone(), |p| p.device_class.clone());
    let bad =
        problem.as_ref().and_then(|problem| Some((problem.field_name()?.to_owned(), problem.detail.clone())));
    let adapters: BTreeSet<&String> = admin.service.models().flat_map(|model| model.adapters).collect();
    let suggested = Suggested {
        models: admin.service.models().map(|model| model.name.to_owned()).collect(),
        adapters: adapters.into_iter().cloned().collect(),
    };
    let shown = ScenePage {
        frame,
        fieldsets: form.settings.fieldsets(bad.as_ref(), &suggested).collect(),
        default_model: suggested.models.first().cloned(),
        unserved,
        edits: session.edits(),
        problem: problem.filter(|_| conflict.is_none()).map(|problem| problem.detail),
        bad,
        conflict,
        classes: choices(devices.into_iter().map(|DeviceClass { name, .. }| name), &device_class),
        networks: choices(networks.into_iter().map(|network| network.name), &form.network),
        summary: piece.summary,
        prediction,
        versions: versions.iter().map(Version::from).collect(),
        scene,
        form,
    };
    Ok(page(status, &shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clauses_become_sentences() {
        assert_eq!(sentence("the scene fixes L"), "The scene fixes L.");
        assert_eq!(sentence("tau: 20 tokens"), "tau: 20 tokens.");
        assert_eq!(sentence("TPOT_c: 9"), "TPOT_c: 9.");
    }
}
