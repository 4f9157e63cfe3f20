//! Logging in, as the form and the API share it.
//!
//! Never: logs a password, or the name of an unknown user (people type passwords into that field). Always:
//! counts every attempt by its outcome, and logs each that fails with the request's id and address.

use std::net::{IpAddr, SocketAddr};

use axum::extract::ConnectInfo;
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, HeaderName};
use axum::response::AppendHeaders;
use axum_extra::extract::cookie::CookieJar;
use tracing::{info, warn};

use super::Admin;
use super::operations::LoggedIn;
use super::problem::{Kind, Problem};
use super::session::{COOKIE, DEVICE_COOKIE, Session, cookie, device_cookie};
use crate::http::request_id::request_id;
use crate::store::{LoginAttempt, LoginError};

/// Two `Set-Cookie` headers, in a fixed order.
pub(super) type SetCookies = AppendHeaders<[(HeaderName, String); 2]>;

/// The client that logs in, as the connection and the headers describe it.
pub(super) struct LoginClient<'a> {
    pub(super) peer: Option<ConnectInfo<SocketAddr>>,
    pub(super) headers: &'a HeaderMap,
    /// A login code, as it was typed; empty for none.
    pub(super) code: &'a str,
}

impl Admin {
    /// Logs a user in. Returns the cookies to set, the session's first, and the session.
    pub(super) async fn log_in(
        &self,
        client: &LoginClient<'_>,
        name: &str,
        password: &str,
    ) -> Result<(SetCookies, Session), Problem> {
        let sent = CookieJar::from_headers(client.headers);
        let address = self.address(client);
        let attempt = LoginAttempt {
            name,
            password,
            address,
            session: sent.get(COOKIE).map(|cookie| cookie.value()),
            device: sent.get(DEVICE_COOKIE).map(|cookie| cookie.value()),
            code: Some(client.code).filter(|code| !code.is_empty()),
        };
        let begun = self.operations.log_in(&attempt).await;
        let request = request_id(client.headers);
        let address = address.map(|address| address.to_string()).unwrap_or_default();
        self.service.metrics().admin_login(outcome(&begun));
        match begun {
            Ok(LoggedIn { token, device, session }) => {
                info!(request, user = session.user, address, "console session began");
                let cookies = [cookie(token, self.secure), device_cookie(device, self.secure)];
                // No cookie jar, since that has no order: some programs take the first cookie as the
                // session's.
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

    /// Returns the address that a request came from; `None` if the server does not know it.
    fn address(&self, client: &LoginClient<'_>) -> Option<IpAddr> {
        client.peer.map(|ConnectInfo(peer)| self.proxies.client(peer.ip(), client.headers))
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
