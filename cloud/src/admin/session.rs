//! Sessions of the console: the cookies, and the user of a request.
//!
//! Never: puts anything but a random token into a cookie. Always: HttpOnly, SameSite=Strict, for `/admin`
//! only. Secure if the service speaks TLS itself or is behind a proxy that does.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum_extra::extract::cookie::{Cookie, SameSite};
use time::Duration;

use super::problem::{Kind, Problem};
use crate::access::{Actor, Role};
use crate::store::DEVICE_MAX_MS;

/// The name of a session's cookie.
pub const COOKIE: &str = "baton_session";
/// The name of the cookie that identifies a device on which a user has logged in before. It gives no access:
/// a login still needs the password. It only keeps strangers who guess passwords from locking the user out.
pub const DEVICE_COOKIE: &str = "baton_device";

/// The session of a user who has logged in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The user's name.
    pub user: String,
    /// What they may do.
    pub role: Role,
    /// The CSRF token that every form must carry.
    pub csrf: String,
    /// When the session ends, in milliseconds since 1970.
    pub expires_ms: i64,
}

impl Session {
    /// Returns the user as the audit log names them.
    #[must_use]
    pub fn actor(&self) -> Actor {
        Actor::user(&self.user)
    }

    /// Returns whether the user may change scenes and device classes.
    #[must_use]
    pub fn edits(&self) -> bool {
        self.role >= Role::Editor
    }

    /// Returns whether the user may change keys, tenants and users.
    #[must_use]
    pub fn administers(&self) -> bool {
        self.role >= Role::Admin
    }
}

/// Extracts the session that the guard has found.
impl<S: Sync> FromRequestParts<S> for Session {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Session, Problem> {
        let missing = || Problem::new(Kind::NotLoggedIn, "log in first");
        parts.extensions.get::<Session>().cloned().ok_or_else(missing)
    }
}

/// Makes the session's cookie. The browser drops it when it closes; the server may end the session earlier.
#[must_use]
pub fn cookie(token: String, secure: bool) -> Cookie<'static> {
    strict(COOKIE, token, secure)
}

/// Makes the device's cookie, which the browser keeps.
#[must_use]
pub fn device_cookie(token: String, secure: bool) -> Cookie<'static> {
    let mut cookie = strict(DEVICE_COOKIE, token, secure);
    cookie.set_max_age(Duration::milliseconds(DEVICE_MAX_MS));
    cookie
}

fn strict(name: &'static str, token: String, secure: bool) -> Cookie<'static> {
    let cookie = Cookie::build((name, token)).path("/admin").http_only(true);
    cookie.same_site(SameSite::Strict).secure(secure).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_kept_from_scripts_and_other_sites() {
        let plain = cookie("t".into(), false).to_string();
        assert_eq!(plain, "baton_session=t; HttpOnly; SameSite=Strict; Path=/admin");
        assert!(cookie("t".into(), true).to_string().contains("; Secure"));
        let device = device_cookie("t".into(), false).to_string();
        assert_eq!(device, "baton_device=t; HttpOnly; SameSite=Strict; Path=/admin; Max-Age=15552000");
    }
}
