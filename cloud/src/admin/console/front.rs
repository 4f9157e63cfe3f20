//! Log-in, log-out, and the overview.

use std::net::SocketAddr;

use askama::Template;
use axum::extract::{ConnectInfo, Extension, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum_extra::extract::cookie::CookieJar;

use super::{Asked, Frame, Shown, is_own, page};
use crate::admin::chart::{Bars, Chart};
use crate::admin::guard::Fields;
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
}

pub(super) async fn login_page(Query(asked): Query<Asked>) -> Response {
    let next = asked.next.clone().filter(|next| is_own(next)).unwrap_or_default();
    let frame = Frame::bare("Log in").with_notice(&asked);
    page(StatusCode::OK, &LoginPage { frame, next, name: String::new(), error: None })
}

/// The address that a request came from; none where the server does not tell.
pub(in crate::admin) fn address(peer: Option<&ConnectInfo<SocketAddr>>) -> String {
    peer.map(|ConnectInfo(peer)| peer.ip().to_canonical().to_string()).unwrap_or_default()
}

pub(super) async fn log_in(
    State(admin): State<Admin>,
    peer: Option<Extension<ConnectInfo<SocketAddr>>>,
    headers: HeaderMap,
    Extension(fields): Extension<Fields>,
) -> Shown {
    let jar = CookieJar::from_headers(&headers);
    let old = jar.get(COOKIE).map(|cookie| cookie.value().to_owned());
    let (name, password) = (fields.text("name"), fields.get("password").unwrap_or_default());
    let next = fields.text("next");
    let address = address(peer.as_ref().map(|Extension(peer)| peer));
    match admin.office.log_in(&name, &password, &address, old.as_deref()).await {
        Ok(begun) => {
            let next = if is_own(&next) { next } else { "/admin".to_owned() };
            let jar = CookieJar::new().add(cookie(begun.token, admin.secure));
            Ok((jar, Redirect::to(&next)).into_response())
        }
        Err(problem) if matches!(problem.kind, Kind::NotLoggedIn | Kind::TooMany) => {
            let error = Some(problem.detail.clone());
            let shown = LoginPage { frame: Frame::bare("Log in"), next, name, error };
            let mut response = page(problem.kind.status(), &shown);
            problem.retry_header(&mut response);
            Ok(response)
        }
        Err(problem) => Err(problem.into()),
    }
}

pub(super) async fn log_out(State(admin): State<Admin>, headers: HeaderMap) -> Shown {
    let jar = CookieJar::from_headers(&headers);
    if let Some(known) = jar.get(COOKIE) {
        admin.office.log_out(known.value()).await?;
    }
    let jar = jar.remove(cookie(String::new(), admin.secure));
    Ok((jar, Redirect::to("/admin/login?done=logged-out")).into_response())
}

struct Figure {
    name: &'static str,
    value: String,
    unit: &'static str,
}

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    model: String,
    warnings: Vec<(&'static str, String)>,
    figures: Vec<Figure>,
    charts: Vec<Chart>,
    histograms: Vec<Bars>,
}

pub(super) async fn overview(
    State(admin): State<Admin>,
    session: Session,
    Query(asked): Query<Asked>,
) -> Shown {
    let view = overview::read(&admin).await;
    let mut warnings = Vec::new();
    match view.state.as_str() {
        "failed" => {
            warnings.push(("bad", "The engine has failed: this replica must be started again.".to_owned()))
        }
        "draining" => {
            warnings.push(("warn", "This replica is stopping and takes no further request.".to_owned()))
        }
        _ => {}
    }
    if view.away_since_ms.is_some() || view.database_problem.is_some() {
        let why = "The database does not answer. Requests are answered with the last good settings; nothing can be changed.";
        warnings.push(("bad", why.to_owned()));
    } else if warnings.is_empty() {
        warnings.push(("good", "Open for requests; the database answers.".to_owned()));
    }
    let figure = |(name, value, unit)| Figure { name, value, unit };
    let shown = OverviewPage {
        frame: Frame::of(&session, "/admin", "Overview").with_notice(&asked),
        model: view.model.clone(),
        warnings,
        figures: view.figures().into_iter().map(figure).collect(),
        charts: view.charts(),
        histograms: view.histograms(),
    };
    Ok(page(StatusCode::OK, &shown))
}
