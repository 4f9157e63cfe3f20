//! The pages of experiments: the list, one experiment, and starting, stopping and promoting.

use askama::Template;
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect};

use super::access::{Refused, settled, status};
use super::{Choice, Frame, PageQuery, PageResult, Question, choices, page, revision, said_of, time, to};
use crate::admin::Admin;
use crate::admin::guard::Fields;
use crate::admin::problem::Problem;
use crate::admin::session::Session;
use crate::admin::view::{ExperimentPage, ExperimentView};
use crate::experiment::metric::{Metric, Scale};
use crate::experiment::plan::{Plan, PlanError, State as Stage};
use crate::experiment::report::{ArmReport, Finding, MetricReport};
use crate::experiment::text;
use crate::learn::forecast::digits;

const LIST: &str = "/admin/experiments";

struct Row {
    id: String,
    scene: String,
    state: &'static str,
    tone: &'static str,
    goal: &'static str,
    arms: String,
    since: String,
    by: String,
}

impl From<ExperimentView> for Row {
    fn from(view: ExperimentView) -> Row {
        let names: Vec<&str> = view.plan.arms.iter().map(|arm| arm.name.as_str()).collect();
        Row {
            arms: names.join(", "),
            state: view.state.as_str(),
            tone: tone(view.state),
            goal: view.plan.goal.as_str(),
            since: time(view.created_ms),
            by: view.updated_by,
            scene: view.plan.scene,
            id: view.id,
        }
    }
}

/// Returns the colour of a state.
fn tone(state: Stage) -> &'static str {
    match state {
        Stage::Draft => "warn",
        Stage::Running | Stage::Promoted => "good",
        Stage::Stopped => "bad",
    }
}

/// The form of a plan.
struct PlanForm {
    id: String,
    revision: u64,
    scenes: Vec<Choice>,
    goals: Vec<Choice>,
    arms: String,
    guards: String,
    problem: Option<String>,
}

impl PlanForm {
    fn new(scenes: Vec<Choice>) -> PlanForm {
        PlanForm {
            id: String::new(),
            revision: 0,
            scenes,
            goals: goals(Metric::TtftMs.as_str()),
            arms: "control 1\nshort 1 assist_tokens=8".to_owned(),
            guards: "failures 0.02".to_owned(),
            problem: None,
        }
    }

    fn of(view: &ExperimentView, scenes: Vec<Choice>) -> PlanForm {
        let plan = &view.plan;
        PlanForm {
            id: view.id.clone(),
            revision: view.revision,
            goals: goals(plan.goal.as_str()),
            arms: plan.arms.iter().map(text::arm_text).collect::<Vec<_>>().join("\n"),
            guards: plan.guards.iter().map(text::guard_text).collect::<Vec<_>>().join("\n"),
            ..PlanForm::new(scenes)
        }
    }

    fn refuse(&mut self, fields: &Fields, problem: &Problem) {
        self.id = fields.text("id");
        self.revision = fields.text("revision").parse().unwrap_or(0);
        self.goals = goals(&fields.text("goal"));
        self.arms = fields.get("arms").unwrap_or_default();
        self.guards = fields.get("guards").unwrap_or_default();
        self.problem = Some(said_of(problem));
    }
}

fn goals(chosen: &str) -> Vec<Choice> {
    choices(Metric::ALL.map(Metric::as_str), chosen)
}

/// Reads a plan from its form.
fn plan(fields: &Fields) -> Result<Plan, Problem> {
    let lines = |name: &str| fields.get(name).unwrap_or_default();
    let typed = |text: String| -> Vec<String> {
        text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
    };
    let refused = |err: PlanError| Problem::field(err.field(), &err);
    let arms = typed(lines("arms")).iter().map(|line| text::arm(line)).collect::<Result<_, _>>();
    let guards = typed(lines("guards")).iter().map(|line| text::guard(line)).collect::<Result<_, _>>();
    let goal = fields.text("goal").parse().map_err(|err| Problem::field("goal", &err))?;
    Ok(Plan {
        scene: fields.text("scene"),
        goal,
        arms: arms.map_err(refused)?,
        guards: guards.map_err(refused)?,
    })
}

/// Returns the ids of all scenes.
async fn scene_choices(admin: &Admin, chosen: &str) -> Result<Vec<Choice>, Problem> {
    let scenes = admin.operations.scenes().await?;
    Ok(choices(scenes.into_iter().map(|scene| scene.id), chosen))
}

#[derive(Template)]
#[template(path = "experiments.html")]
struct ListPage {
    frame: Frame,
    edits: bool,
    rows: Vec<Row>,
    form: PlanForm,
}

async fn list_page(
    admin: &Admin,
    session: &Session,
    asked: &PageQuery,
    refused: Option<Refused<'_>>,
) -> PageResult {
    let known = admin.operations.experiments().await?;
    let chosen = refused.map_or(String::new(), |refused| refused.fields.text("scene"));
    let mut form = PlanForm::new(scene_choices(admin, &chosen).await?);
    if let Some(Refused { fields, problem, .. }) = refused {
        form.refuse(fields, problem);
        if let Some(current) = known.iter().find(|view| view.id == form.id && form.revision > 0) {
            // The draft's newest revision, so that saving again is intended.
            form.revision = current.revision;
        }
    }
    let rows = known.into_iter().map(Row::from).collect();
    let frame = Frame::of(session, LIST, "Experiments").with_notice(asked);
    Ok(page(status(refused), &ListPage { frame, edits: session.edits(), rows, form }))
}

pub(super) async fn list(
    State(admin): State<Admin>,
    session: Session,
    Query(asked): Query<PageQuery>,
) -> PageResult {
    list_page(&admin, &session, &asked, None).await
}

pub(super) async fn save(
    State(admin): State<Admin>,
    session: Session,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    let id = fields.text("id");
    let saved = async {
        let plan = plan(&fields)?;
        admin.operations.save_experiment(&session.actor(), &id, &plan, revision(&fields)?).await
    };
    let again =
        async |refused: Refused<'_>| list_page(&admin, &session, &PageQuery::default(), Some(refused)).await;
    let done = |view: ExperimentView| to(&format!("{LIST}/{}", view.id), "saved");
    settled(saved.await, done, (&id, &fields), again).await
}

/// One metric of an arm.
struct MetricRow {
    title: &'static str,
    answers: u64,
    mean: String,
    change: String,
    low: String,
    high: String,
    finding: &'static str,
    tone: &'static str,
}

impl From<&MetricReport> for MetricRow {
    fn from(report: &MetricReport) -> MetricRow {
        let is_time = report.metric.scale() == Scale::Time;
        let change = |value: Option<f64>| match value {
            None => String::new(),
            Some(value) if is_time => format!("{:+.1} %", value * 100.0),
            Some(value) => format!("{:+.1} pt", value * 100.0),
        };
        let mean =
            report.mean.map(|mean| if is_time { digits(mean) } else { format!("{:.1} %", mean * 100.0) });
        MetricRow {
            title: report.metric.title(),
            answers: report.answers,
            mean: mean.unwrap_or_default(),
            change: change(report.change),
            low: change(report.low),
            high: change(report.high),
            finding: report.finding.as_str(),
            tone: match report.finding {
                Finding::Open => "",
                Finding::Better => "good",
                Finding::Worse => "bad",
            },
        }
    }
}

struct ArmPart {
    name: String,
    title: String,
    about: String,
    stopped: Option<String>,
    rows: Vec<MetricRow>,
    promotes: bool,
}

#[derive(Template)]
#[template(path = "experiment.html")]
struct OnePage {
    frame: Frame,
    edits: bool,
    id: String,
    revision: u64,
    scene: String,
    goal: &'static str,
    state: &'static str,
    tone: &'static str,
    is_draft: bool,
    stops: bool,
    promoted: Option<String>,
    verdict: String,
    ratio: String,
    guards: String,
    control: String,
    arms: Vec<ArmPart>,
    form: PlanForm,
}

fn arm_part(at: usize, report: &ArmReport, view: &ExperimentView, edits: bool) -> ArmPart {
    let arm = view.plan.arm(&report.name);
    let written = arm.map(text::arm_text).unwrap_or_default();
    let overrides = written.split_whitespace().skip(2).collect::<Vec<_>>().join(", ");
    let weight = arm.map_or(0, |arm| arm.weight);
    let settings = if at == 0 { "the scene's own settings".to_owned() } else { overrides };
    ArmPart {
        name: report.name.clone(),
        title: if at == 0 { format!("{}, the control", report.name) } else { report.name.clone() },
        about: format!("{settings}; weight {weight}; about {} devices", report.units),
        stopped: report.stopped.clone(),
        rows: report.metrics.iter().filter(|row| row.answers > 0).map(MetricRow::from).collect(),
        promotes: edits && at > 0 && report.stopped.is_none() && view.state == Stage::Running,
    }
}

pub(super) async fn show(
    State(admin): State<Admin>,
    session: Session,
    Path(id): Path<String>,
    Query(asked): Query<PageQuery>,
) -> PageResult {
    let ExperimentPage { experiment: view, report } = admin.operations.experiment(&id).await?;
    let edits = session.edits();
    let arms = report.arms.iter().enumerate().map(|(at, arm)| arm_part(at, arm, &view, edits)).collect();
    let form = PlanForm::of(&view, scene_choices(&admin, &view.plan.scene).await?);
    let shown = OnePage {
        frame: Frame::of(&session, LIST, view.id.clone()).with_notice(&asked),
        edits,
        revision: view.revision,
        goal: view.plan.goal.as_str(),
        state: view.state.as_str(),
        tone: tone(view.state),
        is_draft: view.state == Stage::Draft,
        stops: edits && view.state == Stage::Running,
        promoted: view.promoted.clone(),
        verdict: report.verdict,
        ratio: report.sample_ratio.text(),
        guards: view.plan.guards.iter().map(text::guard_text).collect::<Vec<_>>().join(", "),
        control: view.plan.arms.first().map(|arm| arm.name.clone()).unwrap_or_default(),
        arms,
        form,
        scene: view.plan.scene,
        id: view.id,
    };
    Ok(page(StatusCode::OK, &shown))
}

pub(super) async fn start(
    State(admin): State<Admin>,
    session: Session,
    Path(id): Path<String>,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    admin.operations.start_experiment(&session.actor(), &id, revision(&fields)?).await?;
    Ok(to(&format!("{LIST}/{id}"), "started"))
}

pub(super) async fn stop(
    State(admin): State<Admin>,
    session: Session,
    Path(id): Path<String>,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    let (action, back) = (format!("{LIST}/{id}/stop"), format!("{LIST}/{id}"));
    let text =
        "All devices get the scene's own settings again. A stopped experiment cannot be started again.";
    let (title, button) = ("Stop the experiment?", "Stop the experiment");
    let question = Question { title, text, action: &action, button, back: &back };
    if let Some(asked) = question.unless_confirmed(&session, &fields) {
        return Ok(asked);
    }
    let note = fields.text("note");
    admin.operations.stop_experiment(&session.actor(), &id, &note, revision(&fields)?).await?;
    Ok(to(&back, "stopped"))
}

pub(super) async fn promote(
    State(admin): State<Admin>,
    session: Session,
    Path(id): Path<String>,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    let arm = fields.text("arm");
    let (action, back) = (format!("{LIST}/{id}/promote"), format!("{LIST}/{id}"));
    let text =
        format!("The settings of arm {arm} become a new version of the scene, and the experiment ends.");
    let button = format!("Promote {arm}");
    let question =
        Question { title: "Promote the arm?", text: &text, action: &action, button: &button, back: &back };
    if let Some(asked) = question.unless_confirmed(&session, &fields) {
        return Ok(asked);
    }
    let expected = revision(&fields)?;
    let done = admin.operations.promote_experiment(&session.actor(), &id, &arm, "", expected).await?;
    Ok(Redirect::to(&format!("/admin/scenes/{}?done=published", done.plan.scene)).into_response())
}
