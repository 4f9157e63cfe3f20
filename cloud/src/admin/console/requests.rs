//! The page of the requests of this replica.

use askama::Template;
use axum::extract::{Extension, Query, State};
use axum::http::StatusCode;
use serde::Deserialize;

use super::{Frame, PageQuery, PageResult, Question, page, time, to};
use crate::admin::Admin;
use crate::admin::chart::grouped;
use crate::admin::guard::Fields;
use crate::admin::operations::requests::RequestFilter;
use crate::admin::problem::Problem;
use crate::admin::session::Session;
use crate::admin::view::request::{RequestView, RequestsView};

const PAGE: &str = "/admin/requests";
/// Requests of one kind on the page.
const SHOWN_MAX: u32 = 100;

/// The query of the page.
#[derive(Debug, Default, Deserialize)]
pub(super) struct RequestsAsked {
    done: Option<String>,
    id: Option<String>,
    tenant: Option<String>,
    scene: Option<String>,
    model: Option<String>,
}

struct RequestRow {
    id: String,
    tenant: String,
    scene: String,
    model: String,
    engine: Option<String>,
    arm: Option<String>,
    arrived: String,
    state: String,
    tone: &'static str,
    seconds: String,
    prompt_tokens: String,
    tokens: String,
    queue: String,
    prefill: String,
    decode: String,
}

impl From<RequestView> for RequestRow {
    fn from(view: RequestView) -> RequestRow {
        let ms = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |ms| grouped(ms, 0));
        let tone = match view.outcome.as_deref() {
            Some("stop" | "cap") => "good",
            Some("failed" | "expired" | "stopped") => "bad",
            Some(_) => "warn",
            None => "",
        };
        RequestRow {
            tenant: named(view.tenant, "none"),
            scene: named(view.scene.unwrap_or_default(), "none (chat)"),
            arrived: time(view.arrived_ms),
            state: view.outcome.unwrap_or(view.state),
            tone,
            seconds: grouped(view.elapsed_ms / 1e3, 1),
            prompt_tokens: grouped(view.prompt_tokens as f64, 0),
            tokens: format!("{} of {}", grouped(view.tokens as f64, 0), grouped(view.max_tokens as f64, 0)),
            queue: ms(view.queue_ms),
            prefill: ms(view.prefill_ms),
            decode: ms(view.decode_ms),
            id: view.id,
            model: view.model,
            engine: view.engine,
            arm: view.arm,
        }
    }
}

fn named(name: String, absent: &str) -> String {
    if name.is_empty() { absent.to_owned() } else { name }
}

#[derive(Template)]
#[template(path = "requests.html")]
struct RequestsPage {
    frame: Frame,
    typed: RequestsTyped,
    counts: (usize, usize, usize),
    running: Vec<RequestRow>,
    more_run: bool,
    ended: Vec<RequestRow>,
    more_ended: bool,
}

/// The fields of the search.
struct RequestsTyped {
    id: String,
    tenant: String,
    scene: String,
    model: String,
}

pub(super) async fn list(
    State(admin): State<Admin>,
    session: Session,
    Query(asked): Query<RequestsAsked>,
) -> PageResult {
    let find = |state: &str| -> Result<RequestsView, Problem> {
        let filter = RequestFilter {
            state: Some(state.to_owned()),
            id: asked.id.clone(),
            tenant: asked.tenant.clone(),
            scene: asked.scene.clone(),
            model: asked.model.clone(),
            limit: Some(SHOWN_MAX),
        };
        Ok(RequestsView::from(admin.service.requests(&filter.check()?)))
    };
    let (running, ended) = (find("running")?, find("ended")?);
    let rows = |view: Vec<RequestView>| view.into_iter().map(RequestRow::from).collect();
    let query = PageQuery { done: asked.done.clone(), ..PageQuery::default() };
    let shown = RequestsPage {
        frame: Frame::of(&session, PAGE, "Requests").with_notice(&query),
        counts: (running.running, ended.ended, ended.ended_max),
        more_run: running.has_more,
        running: rows(running.requests),
        more_ended: ended.has_more,
        ended: rows(ended.requests),
        typed: RequestsTyped {
            id: asked.id.unwrap_or_default(),
            tenant: asked.tenant.unwrap_or_default(),
            scene: asked.scene.unwrap_or_default(),
            model: asked.model.unwrap_or_default(),
        },
    };
    Ok(page(StatusCode::OK, &shown))
}

pub(super) async fn cancel(
    State(admin): State<Admin>,
    session: Session,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    let id = fields.text("id");
    let text = format!(
        "The answer of request {id} ends here. Its device goes on alone, and other clients get an error."
    );
    let (title, button) = ("End the answer?", "End the answer");
    let question = Question { title, text: &text, action: PAGE, button, back: PAGE };
    if let Some(asked) = question.unless_confirmed(&session, &fields) {
        return Ok(asked);
    }
    admin.operations.cancel_request(&session.actor(), &admin.service, &id).await?;
    Ok(to(PAGE, "cancelled"))
}
