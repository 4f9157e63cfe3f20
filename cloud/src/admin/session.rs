//! Sessions of the console: the cookie, and who is behind it.
//!
//! Never: puts anything but a random token into the cookie. Always: HttpOnly, SameSite=Strict, for `/admin` only, and
//! Secure where the service speaks TLS or stands behind something that does.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum_extra::extract::cookie::{Cookie, SameSite};

use super::problem::{Kind, Problem};
use crate::access::{Actor, Role};

/// The cookie's name.
pub const COOKIE: &str = "baton_session";

/// Somebody who has logged in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The user's name.
    pub user: String,
    /// What they may do.
    pub role: Role,
    /// What every form must carry.
    pub csrf: String,
    /// When the session ends, in milliseconds since 1970.
    pub expires_ms: i64,
}

impl Session {
    /// The user, as the audit log names them.
    #[must_use]
    pub fn actor(&self) -> Actor {
        Actor::user(&self.user)
    }

    /// Whether scenes and device classes may be changed.
    #[must_use]
    pub fn edits(&self) -> bool {
        self.role >= Role::Editor
    }

    /// Whether keys, tenants and users may be changed.
    #[must_use]
    pub fn administers(&self) -> bool {
        self.role >= Role::Admin
    }
}

/// The session that the guard has found.
impl<S: Sync> FromRequestParts<S> for Session {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Session, Problem> {
        let missing = || Problem::new(Kind::NotLoggedIn, "log in first");
        parts.extensions.get::<Session>().cloned().ok_or_else(missing)
    }
}

/// The cookie that carries a token; it goes with the browser, the server forgets it earlier.
#[must_use]
pub fn cookie(token: String, secure: bool) -> Cookie<'static> {
    Cookie::build((COOKIE, token))
        .path("/admin")
        .http_only(true)
        .same_site(SameSite::Strict)
        .secure(secure)
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_kept_from_scripts_and_other_sites() {
        let plain = cookie("t".into(), false).to_string();
        assert_eq!(plain, "baton_session=t; HttpOnly; SameSite=Strict; Path=/admin");
        assert!(cookie("t".into(), true).to_string().contains("; Secure"));
    }
}
