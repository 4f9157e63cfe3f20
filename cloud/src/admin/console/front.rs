//! The pages of log-in, log-out and the overview.

use std::net::SocketAddr;

use askama::Template;
use axum::extract::{ConnectInfo, Extension, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum_extra::extract::cookie::CookieJar;

use super::{Frame, PageQuery, PageResult, is_own, page};
use crate::admin::chart::{Bars, Chart, grouped};
use crate::admin::guard::Fields;
use crate::admin::login::LoginClient;
use crate::admin::overview::{EngineNow, ModelNow};
use crate::admin::problem::Kind;
use crate::admin::session::{COOKIE, Session, cookie};
use crate::admin::{Admin, overview};

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage {
    frame: Frame,
    next: String,
    name: String,
    error: Option<String>,
    /// Whether too many log-ins have failed, so that a code helps.
    wants_code: bool,
}

pub(super) async fn login_page(Query(asked): Query<PageQuery>) -> Response {
    let next = asked.next.clone().filter(|next| is_own(next)).unwrap_or_default();
    let frame = Frame::bare("Log in").with_notice(&asked);
    page(StatusCode::OK, &LoginPage { frame, next, name: String::new(), error: None, wants_code: false })
}

pub(super) async fn log_in(
    State(admin): State<Admin>,
    peer: Option<Extension<ConnectInfo<SocketAddr>>>,
    headers: HeaderMap,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    let code = fields.text("code");
    let client = LoginClient { peer: peer.map(|Extension(peer)| peer), headers: &headers, code: &code };
    let (name, password) = (fields.text("name"), fields.get("password").unwrap_or_default());
    let next = fields.text("next");
    match admin.log_in(&client, &name, &password).await {
        Ok((jar, _)) => {
            let next = if is_own(&next) { next } else { "/admin".to_owned() };
            Ok((jar, Redirect::to(&next)).into_response())
        }
        Err(problem) if matches!(problem.kind, Kind::NotLoggedIn | Kind::TooMany) => {
            let error = Some(problem.detail.clone());
            let wants_code = matches!(problem.kind, Kind::TooMany) || !code.is_empty();
            let shown = LoginPage { frame: Frame::bare("Log in"), next, name, error, wants_code };
            let mut response = page(problem.kind.status(), &shown);
            problem.retry_header(&mut response);
            Ok(response)
        }
        Err(problem) => Err(problem.into()),
    }
}

pub(super) async fn log_out(State(admin): State<Admin>, headers: HeaderMap) -> PageResult {
    let jar = CookieJar::from_headers(&headers);
    if let Some(known) = jar.get(COOKIE) {
        admin.operations.log_out(known.value()).await?;
    }
    let jar = jar.remove(cookie(String::new(), admin.secure));
    Ok((jar, Redirect::to("/admin/login?done=logged-out")).into_response())
}

struct Figure {
    name: &'static str,
    value: String,
    unit: &'static str,
}

/// The row of a model.
struct ModelRow {
    name: String,
    slots_used: usize,
    queue_len: usize,
    backlog: String,
    kv: String,
}

impl From<&ModelNow> for ModelRow {
    fn from(model: &ModelNow) -> ModelRow {
        ModelRow {
            name: model.model.clone(),
            slots_used: model.slots_used,
            queue_len: model.queue_len,
            backlog: grouped(model.backlog_s, 1),
            kv: grouped(model.kv_used * 100.0, 0),
        }
    }
}

/// The row of an engine elsewhere.
struct EngineRow {
    model: String,
    url: String,
    what: String,
    common: String,
    /// Why no more is common, and what the engine does not have.
    notes: Vec<String>,
    in_flight: usize,
    open: bool,
}

impl From<&EngineNow> for EngineRow {
    fn from(engine: &EngineNow) -> EngineRow {
        let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "–".to_owned());
        let what = match (&engine.kind, &engine.engine_model) {
            (Some(kind), Some(model)) => format!("{kind}, {model}"),
            _ => "has not answered yet".to_owned(),
        };
        EngineRow {
            model: engine.model.clone(),
            url: engine.url.clone(),
            what,
            common: known(&engine.common),
            notes: [&engine.reason]
                .into_iter()
                .chain(&engine.lacks)
                .filter(|note| !note.is_empty())
                .cloned()
                .collect(),
            in_flight: engine.in_flight,
            open: engine.open,
        }
    }
}

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    models: Vec<ModelRow>,
    engines: Vec<EngineRow>,
    warnings: Vec<(&'static str, String)>,
    figures: Vec<Figure>,
    charts: Vec<Chart>,
    histograms: Vec<Bars>,
}

pub(super) async fn overview(
    State(admin): State<Admin>,
    session: Session,
    Query(asked): Query<PageQuery>,
) -> PageResult {
    let view = overview::read(&admin).await;
    let mut warnings = Vec::new();
    match view.state.as_str() {
        "failed" => warnings.push(("bad", "The engine has failed: restart this replica.".to_owned())),
        "draining" => {
            warnings.push(("warn", "This replica is stopping and accepts no new requests.".to_owned()))
        }
        _ => {}
    }
    for model in view.without_engine() {
        let why = format!(
            "No engine of model {model} takes requests: devices answer alone. See the log for what they said."
        );
        warnings.push(("bad", why));
    }
    if view.away_since_ms.is_some() || view.database_problem.is_some() {
        let why = "The database does not answer. Requests are answered with the last good settings; nothing can be changed.";
        warnings.push(("bad", why.to_owned()));
    } else if view.not_writable_since_ms.is_some() {
        let why = "The database answers and cannot write: its disk may be full. Requests are answered; nothing can be changed, and usage waits to be written down.";
        warnings.push(("bad", why.to_owned()));
    } else if warnings.is_empty() {
        warnings.push(("good", "Open for requests; the database answers.".to_owned()));
    }
    let figure = |(name, value, unit)| Figure { name, value, unit };
    let shown = OverviewPage {
        frame: Frame::of(&session, "/admin", "Overview").with_notice(&asked),
        models: view.models.iter().map(ModelRow::from).collect(),
        engines: view.engines.iter().map(EngineRow::from).collect(),
        warnings,
        figures: view.figures().into_iter().map(figure).collect(),
        charts: view.charts(),
        histograms: view.histograms(),
    };
    Ok(page(StatusCode::OK, &shown))
}
