//! The page of rollouts: which models devices have, and which the registry has.

use askama::Template;
use axum::extract::{Extension, Query, State};
use axum::response::Response;
use baton_terminal::size;

use super::access::{Refused, settled, status};
use super::{Frame, PageError, PageQuery, PageResult, Question, page, revision, said_of, time, to};
use crate::admin::Admin;
use crate::admin::guard::Fields;
use crate::admin::problem::Problem;
use crate::admin::session::Session;
use crate::admin::view::rollout::{RegistryModel, RolloutAction, RolloutChange, RolloutView};

const PATH: &str = "/admin/rollouts";

struct TargetPanel {
    key: usize,
    scene: String,
    class: String,
    revision: u64,
    stable: String,
    candidate: Option<String>,
    state: String,
    tone: &'static str,
    paused: bool,
    percent: String,
    whole: bool,
    /// Pairs, how many devices have them, and how many could not load them.
    pairs: Vec<(String, u64, u64)>,
    /// Pairs that were given up, and until when they are allowed.
    given_up: Vec<(String, String)>,
    goes_back_to: Option<String>,
    changed: String,
    problem: Option<String>,
}

struct ModelRow {
    model: String,
    kind: String,
    family: String,
    size: String,
    base: String,
    licence: String,
}

#[derive(Template)]
#[template(path = "rollouts.html")]
struct RolloutsPage {
    frame: Frame,
    edits: bool,
    has_registry: bool,
    panels: Vec<TargetPanel>,
    models: Vec<ModelRow>,
    /// Pairs that forms propose.
    bases: Vec<String>,
    typed: (String, String, String),
    problem: Option<String>,
}

fn panel(key: usize, view: RolloutView) -> TargetPanel {
    let (state, tone) = match view.percent {
        None => ("no rollout".to_owned(), "good"),
        Some(percent) if view.paused_by_guard => (format!("paused at {percent} %: it does not load"), "bad"),
        Some(percent) if view.paused => (format!("paused at {percent} %"), "warn"),
        Some(percent) => (format!("for {percent} %"), "good"),
    };
    let mut names: Vec<String> = view.devices.keys().chain(view.failed.keys()).cloned().collect();
    names.sort();
    names.dedup();
    let count =
        |counts: &std::collections::BTreeMap<String, u64>, name: &str| counts.get(name).copied().unwrap_or(0);
    let pairs = names.iter().map(|name| {
        let shown = if name.is_empty() { "none yet".to_owned() } else { name.clone() };
        (shown, count(&view.devices, name), count(&view.failed, name))
    });
    TargetPanel {
        key,
        pairs: pairs.collect(),
        given_up: view.given_up.iter().map(|old| (old.pair.clone(), time(old.allowed_until_ms))).collect(),
        goes_back_to: view.candidate.as_ref().map(|_| view.stable.clone()).or(view.last_good),
        percent: view.percent.map(|percent| percent.to_string()).unwrap_or_default(),
        whole: view.percent == Some(100.0),
        changed: format!("{} by {}", time(view.updated_ms), view.updated_by),
        scene: view.scene,
        class: view.class,
        revision: view.revision,
        stable: view.stable,
        candidate: view.candidate,
        paused: view.paused,
        state,
        tone,
        problem: None,
    }
}

fn model_row(model: RegistryModel) -> ModelRow {
    ModelRow {
        size: size(model.bytes),
        base: model.base.unwrap_or_default(),
        model: model.model,
        kind: model.kind,
        family: model.family,
        licence: model.licence,
    }
}

async fn rollouts_page(
    admin: &Admin,
    session: &Session,
    asked: &PageQuery,
    refused: Option<Refused<'_>>,
) -> Result<Response, PageError> {
    let views = admin.operations.rollouts().await?;
    let mut panels: Vec<TargetPanel> =
        views.into_iter().enumerate().map(|(key, view)| panel(key, view)).collect();
    let (mut typed, mut problem) = (Default::default(), None);
    if let Some(Refused { fields, problem: why, .. }) = refused {
        let (scene, class) = (fields.text("scene"), fields.text("class"));
        let changes = !fields.text("action").is_empty();
        match panels.iter_mut().find(|panel| changes && (&panel.scene, &panel.class) == (&scene, &class)) {
            Some(panel) => panel.problem = Some(said_of(why)),
            None => {
                typed = (scene, class, fields.text("pair"));
                problem = Some(said_of(why));
            }
        }
    }
    let fleet = admin.service.fleet();
    let models: Vec<RegistryModel> =
        fleet.catalog.all().iter().map(|entry| RegistryModel::from(&**entry)).collect();
    let pairs = models.iter().filter_map(|model| match (model.kind.as_str(), &model.base) {
        ("base", _) => Some(model.model.clone()),
        ("adapter", Some(base)) => Some(format!("{base}+{}", model.model)),
        _ => None,
    });
    let shown = RolloutsPage {
        frame: Frame::of(session, PATH, "Rollouts").with_notice(asked),
        edits: session.edits(),
        has_registry: fleet.registry.is_some(),
        bases: pairs.collect(),
        panels,
        models: models.into_iter().map(model_row).collect(),
        typed,
        problem,
    };
    Ok(page(status(refused), &shown))
}

pub(super) async fn list(
    State(admin): State<Admin>,
    session: Session,
    Query(asked): Query<PageQuery>,
) -> PageResult {
    rollouts_page(&admin, &session, &asked, None).await
}

/// Sets the first pair of a class, or changes a rollout if the form names an action.
pub(super) async fn change(
    State(admin): State<Admin>,
    session: Session,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    let (scene, class, action) = (fields.text("scene"), fields.text("class"), fields.text("action"));
    if action == "roll_back" {
        let text =
            format!("Devices of class {class} go back within five minutes, or as soon as they are online.");
        let question =
            Question { title: "Roll back?", text: &text, action: PATH, button: "Roll back", back: PATH };
        if let Some(asked) = question.unless_confirmed(&session, &fields) {
            return Ok(asked);
        }
    }
    let done = async {
        let (by, catalog) = (session.actor(), &admin.service.fleet().catalog);
        let of = (scene.as_str(), class.as_str());
        if action.is_empty() {
            return admin.operations.set_rollout(&by, of, &fields.text("pair"), catalog).await;
        }
        let change = RolloutChange {
            action: named(&action)?,
            pair: fields.get("pair"),
            percent: fields.number("percent")?,
            failed_max_percent: None,
            failed_least: None,
        };
        admin.operations.change_rollout(&by, of, &change, revision(&fields)?, catalog).await
    };
    let again = async |refused: Refused<'_>| {
        rollouts_page(&admin, &session, &PageQuery::default(), Some(refused)).await
    };
    settled(done.await, |_| to(PATH, "saved"), ("", &fields), again).await
}

/// Returns the action of this name.
fn named(action: &str) -> Result<RolloutAction, Problem> {
    let read = serde_json::from_value(serde_json::Value::from(action));
    read.map_err(|_| Problem::field("action", &"there is no such action"))
}
