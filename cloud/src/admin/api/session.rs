//! `/admin/api/v1/session`: logs in, shows the session, logs out.

use std::net::SocketAddr;

use axum::Json;
use axum::extract::{ConnectInfo, Extension, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum_extra::extract::cookie::CookieJar;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::JsonBody;
use crate::admin::Admin;
use crate::admin::login::LoginClient;
use crate::admin::problem::{Problem, ProblemBody};
use crate::admin::session::{COOKIE, Session, cookie};

/// Name and password.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LogIn {
    /// The user's name.
    name: String,
    /// The user's password.
    password: String,
    /// A code that `baton-cloud users login-code` printed: the log-in then does not count as a stranger's.
    #[serde(default)]
    code: String,
}

/// A session.
#[derive(Serialize, ToSchema)]
pub(super) struct SessionView {
    /// Who has logged in.
    user: String,
    /// `viewer`, `editor` or `admin`.
    role: String,
    /// Send it as `x-csrf-token` with every request that is not a GET.
    csrf_token: String,
    /// When the session ends at the latest, in milliseconds since 1970.
    expires_ms: i64,
}

impl From<&Session> for SessionView {
    fn from(session: &Session) -> SessionView {
        SessionView {
            user: session.user.clone(),
            role: session.role.as_str().to_owned(),
            csrf_token: session.csrf.clone(),
            expires_ms: session.expires_ms,
        }
    }
}

/// Logs in. Sets a new session cookie each time.
#[utoipa::path(
    post, path = "/admin/api/v1/session", tag = "session", operation_id = "log_in", request_body = LogIn, security(()),
    responses(
        (status = 200, body = SessionView),
        (status = 401, description = "Name or password is wrong", body = ProblemBody, content_type = "application/problem+json"),
        (status = 429, description = "Too many log-ins failed, or wait: see Retry-After", body = ProblemBody, content_type = "application/problem+json"),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn log_in(
    State(admin): State<Admin>,
    peer: Option<Extension<ConnectInfo<SocketAddr>>>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<LogIn>,
) -> Result<Response, Problem> {
    let peer = peer.map(|Extension(peer)| peer);
    let client = LoginClient { peer, headers: &headers, code: &body.code };
    let (jar, session) = admin.log_in(&client, &body.name, &body.password).await?;
    Ok((jar, Json(SessionView::from(&session))).into_response())
}

/// Returns the session of the cookie.
#[utoipa::path(
    get, path = "/admin/api/v1/session", tag = "session", operation_id = "show_session",
    responses(
        (status = 200, body = SessionView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn show(session: Session) -> Json<SessionView> {
    Json(SessionView::from(&session))
}

/// Logs out. Ends the session and removes its cookie from the browser.
#[utoipa::path(
    delete, path = "/admin/api/v1/session", tag = "session", operation_id = "log_out",
    responses(
        (status = 204, description = "Logged out"),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn log_out(State(admin): State<Admin>, headers: HeaderMap) -> Result<Response, Problem> {
    let jar = CookieJar::from_headers(&headers);
    if let Some(known) = jar.get(COOKIE) {
        admin.operations.log_out(known.value()).await?;
    }
    Ok((jar.remove(cookie(String::new(), admin.secure)), StatusCode::NO_CONTENT).into_response())
}
