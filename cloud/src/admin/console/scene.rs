//! One scene: its form, what the optimizer would answer for it, and its history.

use std::collections::BTreeSet;

use askama::Template;
use axum::extract::{Extension, Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use baton_pacing::DeviceClass;
use baton_refine::Mode;
use serde::Deserialize;

use super::{Asked, Changed, Choice, Failed, Frame, Shown, changed, choices, page, revision, time};
use crate::admin::Admin;
use crate::admin::chart::{Chart, escape, grouped};
use crate::admin::guard::Fields;
use crate::admin::predict::{self, PlanView, PredictFor, Prediction};
use crate::admin::problem::{Kind, Problem};
use crate::admin::session::Session;
use crate::admin::view::{SceneView, Settings, VersionView, changes};
use crate::forecast::digits;
use crate::scene::{SceneSettings, check_mode};

/// For which device the page predicts, where nobody has chosen yet.
#[derive(Debug, Default, Deserialize)]
pub(super) struct For {
    device_class: Option<String>,
    network: Option<String>,
    prompt_tokens: Option<u32>,
}

/// A form as it was typed.
struct SceneForm {
    revision: String,
    ratio_auto: bool,
    ratio: String,
    assist_auto: bool,
    assist_tokens: String,
    xi: String,
    assist_floor: String,
    assist_max: String,
    tau_ms: String,
    tolerance: String,
    model: String,
    adapter: String,
    refine: bool,
    mode: String,
    corrector: String,
    system: String,
    question_prefix: String,
    note: String,
    device_class: String,
    network: String,
    prompt_tokens: String,
}

impl SceneForm {
    fn of(scene: &SceneView, settings: &Settings, asked: For) -> SceneForm {
        SceneForm {
            revision: scene.revision.to_string(),
            ratio_auto: settings.ratio.is_none(),
            ratio: settings.ratio.map(|ratio| ratio.to_string()).unwrap_or_default(),
            assist_auto: settings.assist_tokens.is_none(),
            assist_tokens: settings.assist_tokens.map(|tokens| tokens.to_string()).unwrap_or_default(),
            xi: settings.xi.to_string(),
            assist_floor: settings.assist_floor.to_string(),
            assist_max: settings.assist_max.to_string(),
            tau_ms: settings.tau_ms.to_string(),
            tolerance: settings.tolerance.to_string(),
            model: settings.model.clone().unwrap_or_default(),
            adapter: settings.adapter.clone().unwrap_or_default(),
            refine: settings.refine,
            mode: settings.mode.clone(),
            corrector: settings.corrector.clone(),
            system: settings.system.clone(),
            question_prefix: settings.question_prefix.clone(),
            note: String::new(),
            device_class: asked.device_class.unwrap_or_default(),
            network: asked.network.unwrap_or_else(|| predict::NETWORK.to_owned()),
            prompt_tokens: asked.prompt_tokens.unwrap_or(predict::PROMPT_TOKENS).to_string(),
        }
    }

    fn read(fields: &Fields) -> SceneForm {
        SceneForm {
            revision: fields.text("revision"),
            ratio_auto: fields.text("ratio_mode") != "manual",
            ratio: fields.text("ratio"),
            assist_auto: fields.text("assist_mode") != "manual",
            assist_tokens: fields.text("assist_tokens"),
            xi: fields.text("xi"),
            assist_floor: fields.text("assist_floor"),
            assist_max: fields.text("assist_max"),
            tau_ms: fields.text("tau_ms"),
            tolerance: fields.text("tolerance"),
            model: fields.text("model"),
            adapter: fields.text("adapter"),
            refine: fields.text("refine") == "yes",
            mode: fields.text("mode"),
            corrector: fields.text("corrector"),
            // Blanks and line ends of these count.
            system: fields.get("system").unwrap_or_default(),
            question_prefix: fields.get("question_prefix").unwrap_or_default(),
            note: fields.text("note"),
            device_class: fields.text("device_class"),
            network: fields.text("network"),
            prompt_tokens: fields.text("prompt_tokens"),
        }
    }

    /// The settings, checked.
    fn settings(&self, fields: &Fields) -> Result<SceneSettings, Problem> {
        let settings = Settings {
            system: self.system.clone(),
            question_prefix: self.question_prefix.clone(),
            ratio: if self.ratio_auto { None } else { Some(fields.needed("ratio")?) },
            xi: fields.needed("xi")?,
            assist_tokens: if self.assist_auto { None } else { Some(fields.needed("assist_tokens")?) },
            assist_floor: fields.needed("assist_floor")?,
            assist_max: fields.needed("assist_max")?,
            tau_ms: fields.needed("tau_ms")?,
            corrector: self.corrector.clone(),
            refine: self.refine,
            mode: self.mode.clone(),
            tolerance: fields.needed("tolerance")?,
            model: named(&self.model),
            adapter: named(&self.adapter),
        };
        settings.check()
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

/// A name that may be left out.
fn named(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
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

    /// A figure with three digits.
    fn short(&self, value: &f64) -> String {
        digits(*value)
    }

    /// A clause as a sentence of its own.
    fn sentence(&self, clause: &str) -> String {
        sentence(clause)
    }
}

/// A clause as a sentence of its own; symbols keep their letters.
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

/// Somebody else changed the scene meanwhile.
struct Conflict {
    text: String,
    changes: Vec<Changed>,
}

#[derive(Template)]
#[template(path = "scene.html")]
struct ScenePage {
    frame: Frame,
    scene: SceneView,
    /// Names of this replica's models, the default first.
    models: Vec<String>,
    /// Names of their adapters.
    adapters: BTreeSet<String>,
    /// Why this replica would refuse requests for these settings.
    unserved: Option<String>,
    edits: bool,
    form: SceneForm,
    bad: Option<(String, String)>,
    problem: Option<String>,
    conflict: Option<Conflict>,
    modes: Vec<Choice>,
    correctors: Vec<Choice>,
    classes: Vec<Choice>,
    networks: Vec<Choice>,
    summary: String,
    prediction: String,
    versions: Vec<Version>,
}

impl ScenePage {
    /// Marks a field that is at fault.
    fn invalid(&self, name: &str) -> String {
        match &self.bad {
            Some((field, _)) if field == name => {
                format!(" aria-invalid=\"true\" aria-describedby=\"error-{name}\"")
            }
            _ => String::new(),
        }
    }

    /// What is wrong with a field.
    fn error(&self, name: &str) -> String {
        match &self.bad {
            Some((field, text)) if field == name => {
                format!("<p class=\"error\" id=\"error-{name}\">{}</p>", escape(text))
            }
            _ => String::new(),
        }
    }
}

/// What a page of a scene is made of.
struct Draft {
    form: SceneForm,
    /// The settings of the form, or why they are none.
    settings: Result<SceneSettings, Problem>,
    conflict: Option<Conflict>,
    status: StatusCode,
}

pub(super) async fn show(
    State(admin): State<Admin>,
    session: Session,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
    Query(predict_for): Query<For>,
) -> Shown {
    let (scene, versions) = admin.office.history(&id).await?;
    let default = Settings::from(&SceneSettings::with_system(""));
    let settings = scene.latest().unwrap_or(&default).clone();
    let form = SceneForm::of(&scene, &settings, predict_for);
    let draft = Draft { form, settings: settings.check(), conflict: None, status: StatusCode::OK };
    let frame = Frame::of(&session, "/admin/scenes", scene.id.clone()).with_notice(&asked);
    render(&admin, &session, frame, scene, &versions, draft).await
}

/// What the form would do: the whole page again, or the piece of it that a script asks for.
pub(super) async fn preview(
    State(admin): State<Admin>,
    session: Session,
    Path(id): Path<String>,
    headers: HeaderMap,
    Extension(fields): Extension<Fields>,
) -> Shown {
    let form = SceneForm::read(&fields);
    let settings = form.settings(&fields);
    if headers.get("x-fragment").is_some_and(|value| value == "prediction") {
        let predicted = predicted(&admin, &id, &form, &settings).await;
        let status = predicted.as_ref().err().map_or(StatusCode::OK, |problem| problem.kind.status());
        return Ok(page(status, &PredictionPiece::of(&predicted)));
    }
    let (scene, versions) = admin.office.history(&id).await?;
    let status = settings.as_ref().err().map_or(StatusCode::OK, |problem| problem.kind.status());
    let frame = Frame::of(&session, "/admin/scenes", id);
    let draft = Draft { form, settings, conflict: None, status };
    render(&admin, &session, frame, scene, &versions, draft).await
}

/// Saves the form as a draft; a form that is out of date or out of bounds comes back.
pub(super) async fn save(
    State(admin): State<Admin>,
    session: Session,
    Path(id): Path<String>,
    Extension(fields): Extension<Fields>,
) -> Shown {
    let mut form = SceneForm::read(&fields);
    let settings = form.settings(&fields);
    let saved = match &settings {
        Ok(settings) => {
            let expected = revision(&fields)?;
            admin.office.save_draft(&session.actor(), &id, settings, &form.note, expected).await.map(drop)
        }
        Err(problem) => Err(problem.clone()),
    };
    let problem = match saved {
        Ok(()) => return Ok(Redirect::to(&format!("/admin/scenes/{id}/review")).into_response()),
        Err(problem) if matches!(problem.kind, Kind::Invalid | Kind::Stale) => problem,
        Err(problem) => return Err(problem.into()),
    };
    let (scene, versions) = admin.office.history(&id).await?;
    let mut conflict = None;
    if problem.kind == Kind::Stale {
        form.revision = scene.revision.to_string();
        conflict = Some(conflict_of(&scene, &versions, settings.as_ref().ok())?);
    }
    let settings = if problem.kind == Kind::Invalid { Err(problem.clone()) } else { settings };
    let frame = Frame::of(&session, "/admin/scenes", id);
    let draft = Draft { form, settings, conflict, status: problem.kind.status() };
    render(&admin, &session, frame, scene, &versions, draft).await
}

/// Who was faster, and what differs from theirs.
fn conflict_of(
    scene: &SceneView,
    versions: &[VersionView],
    yours: Option<&SceneSettings>,
) -> Result<Conflict, Problem> {
    let newest = scene.draft_version.or(scene.published_version);
    let theirs = versions.iter().find(|version| Some(version.version) == newest);
    let text = theirs.map_or("The scene was changed.".to_owned(), |theirs| {
        let shown = Version::from(theirs);
        let by = if shown.by.is_empty() { "Somebody" } else { &shown.by };
        let did = if theirs.state == "draft" { "saved draft" } else { "published" };
        format!("{by} {did} version {} meanwhile.", theirs.version)
    });
    let changes = match (theirs, yours) {
        (Some(theirs), Some(yours)) => changed(&changes(&theirs.settings.check()?, yours)),
        _ => Vec::new(),
    };
    Ok(Conflict { text, changes })
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
) -> Result<Response, Failed> {
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
    let modes = Mode::ALL.into_iter().filter(|&mode| check_mode(mode).is_ok());
    let bad =
        problem.as_ref().and_then(|problem| Some((problem.field_name()?.to_owned(), problem.detail.clone())));
    let shown = ScenePage {
        frame,
        models: admin.service.models().map(|model| model.name.to_owned()).collect(),
        adapters: admin.service.models().flat_map(|model| model.adapters()).map(str::to_owned).collect(),
        unserved,
        edits: session.edits(),
        problem: problem.filter(|_| conflict.is_none()).map(|problem| problem.detail),
        bad,
        conflict,
        modes: choices(modes, &form.mode),
        correctors: choices(["cloud", "device"], &form.corrector),
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

    fn fields(pairs: &[(&str, &str)]) -> Fields {
        let base = [
            ("revision", "3"),
            ("ratio_mode", "manual"),
            ("ratio", " 0.5 "),
            ("assist_mode", "auto"),
            ("assist_tokens", "12"),
            ("xi", "0.25"),
            ("assist_floor", "4"),
            ("assist_max", "4096"),
            ("tau_ms", "100"),
            ("tolerance", "0.02"),
            ("refine", "yes"),
            ("mode", "attention"),
            ("corrector", "cloud"),
            ("model", ""),
            ("adapter", " law "),
            ("system", "You answer. "),
            ("question_prefix", "\r\n\r\nQuestion: "),
        ];
        let kept = base.iter().filter(|(name, _)| pairs.iter().all(|(other, _)| other != name));
        Fields(kept.chain(pairs).map(|&(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    #[test]
    fn a_form_becomes_settings() {
        let fields = fields(&[]);
        let settings = SceneForm::read(&fields).settings(&fields).unwrap();
        // An L that stands behind `automatic` does not count; blanks of texts do.
        assert_eq!((settings.ratio, settings.assist_tokens), (Some(0.5), None));
        assert_eq!((settings.model, settings.adapter.as_deref()), (None, Some("law")));
        assert_eq!(
            (settings.system.as_str(), settings.question_prefix.as_str()),
            ("You answer. ", "\n\nQuestion: ")
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let field = |pairs: &[(&str, &str)]| {
            let fields = fields(pairs);
            SceneForm::read(&fields).settings(&fields).unwrap_err().field_name().map(str::to_owned).unwrap()
        };
        assert_eq!(field(&[("ratio", "")]), "ratio");
        assert_eq!(field(&[("ratio", "0.1")]), "ratio");
        assert_eq!(field(&[("assist_mode", "manual"), ("assist_tokens", "1.5")]), "assist_tokens");
        assert_eq!(field(&[("tau_ms", "soon")]), "tau_ms");
        assert_eq!(field(&[("mode", "best")]), "mode");
        assert_eq!(field(&[("adapter", "a b")]), "adapter");
    }

    #[test]
    fn clauses_become_sentences() {
        assert_eq!(sentence("the scene fixes L"), "The scene fixes L.");
        assert_eq!(sentence("tau: 20 tokens"), "tau: 20 tokens.");
        assert_eq!(sentence("TPOT_c: 9"), "TPOT_c: 9.");
    }
}
