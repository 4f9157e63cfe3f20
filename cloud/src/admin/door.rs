//! Logging in and out: what the form and the API have in common.
//!
//! Never: logs a password, or a name that is no user's (people type passwords into that field). Always: every attempt is
//! counted by its outcome, and each that fails is logged with the request's name and address.

use std::net::{IpAddr, SocketAddr};

use axum::extract::ConnectInfo;
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, HeaderName};
use axum::response::AppendHeaders;
use axum_extra::extract::cookie::CookieJar;
use tracing::{info, warn};

use super::Admin;
use super::office::LoggedIn;
use super::problem::{Kind, Problem};
use super::session::{COOKIE, DEVICE_COOKIE, Session, cookie, device_cookie};
use crate::http::request_id::request_id;
use crate::store::{LoginAttempt, LoginError};

/// Cookies in their order.
pub(super) type SetCookies = AppendHeaders<[(HeaderName, String); 2]>;

/// Who asks, as far as the connection and the headers say.
pub(super) struct Visitor<'a> {
    pub(super) peer: Option<ConnectInfo<SocketAddr>>,
    pub(super) headers: &'a HeaderMap,
}

impl Admin {
    /// Logs somebody in: the cookies to set, the session's first, and the session.
    pub(super) async fn log_in(
        &self,
        visitor: &Visitor<'_>,
        name: &str,
        password: &str,
    ) -> Result<(SetCookies, Session), Problem> {
        let sent = CookieJar::from_headers(visitor.headers);
        let address = self.address(visitor);
        let attempt = LoginAttempt {
            name,
            password,
            address,
            session: sent.get(COOKIE).map(|cookie| cookie.value()),
            device: sent.get(DEVICE_COOKIE).map(|cookie| cookie.value()),
        };
        let begun = self.office.log_in(&attempt).await;
        let request = request_id(visitor.headers);
        let address = address.map(|address| address.to_string()).unwrap_or_default();
        self.service.metrics().admin_login(outcome(&begun));
        match begun {
            Ok(LoggedIn { token, device, session }) => {
                info!(request, user = session.user, address, "console session began");
                let cookies = [cookie(token, self.secure), device_cookie(device, self.secure)];
                // Not a jar, which has no order: programs take the first cookie for the session's.
                Ok((AppendHeaders(cookies.map(|cookie| (SET_COOKIE, cookie.to_string()))), session))
            }
            Err(err) => {
                let user = match &err {
                    LoginError::Wrong { known } => known.as_deref().unwrap_or("unknown"),
                    _ => "not looked up",
                };
                warn!(request, user, address, err = &err as &dyn std::error::Error, "console log-in failed");
                Err(problem(err))
            }
        }
    }

    /// Where a request came from; none if the server does not tell.
    fn address(&self, visitor: &Visitor<'_>) -> Option<IpAddr> {
        visitor.peer.map(|ConnectInfo(peer)| self.proxies.client(peer.ip(), visitor.headers))
    }
}

fn outcome(begun: &Result<LoggedIn, LoginError>) -> &'static str {
    match begun {
        Ok(_) => "begun",
        Err(LoginError::Wrong { .. }) => "wrong",
        Err(LoginError::TooMany { .. }) => "limited",
        Err(LoginError::Busy { .. }) => "busy",
        Err(LoginError::Store(_)) => "failed",
    }
}

fn problem(err: LoginError) -> Problem {
    match err {
        LoginError::Wrong { .. } => Problem::new(Kind::NotLoggedIn, err.to_string()),
        LoginError::TooMany { retry_after_s } | LoginError::Busy { retry_after_s } => {
            Problem::new(Kind::TooMany, err.to_string()).retry_after_s(retry_after_s)
        }
        LoginError::Store(err) => err.into(),
    }
}
