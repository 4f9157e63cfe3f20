//! Sessions of the admin console: logins, their limits, and what a cookie stands for.
//!
//! Always: a new token at every login; an unknown user and a wrong password cost the same and say the same; a session
//! ends after a time without use and at the latest after a fixed time.

use serde_json::json;

use super::db::args;
use super::users::user;
use super::{Store, StoreError, now_ms, sql};
use crate::access::key::{hash_secret, random_token};
use crate::access::password::verify_password;
use crate::access::{Actor, User, check_name};

/// A session ends after so long at the latest, in milliseconds.
pub const SESSION_MAX_MS: i64 = 12 * 3600 * 1000;
/// A session ends after so long without use, in milliseconds.
pub const SESSION_IDLE_MS: i64 = 3600 * 1000;
/// How often the use of a session is written down.
const SEEN_EVERY_MS: i64 = 60 * 1000;
/// Failed logins count for so long.
const FAILURES_MS: i64 = 15 * 60 * 1000;
/// Failed logins from one address as one user, from one address, and as one user from anywhere.
const FAILURES_MAX: [u64; 3] = [5, 30, 100];

/// A session that has just begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSession {
    /// The cookie's value; kept nowhere.
    pub token: String,
    /// What forms and unsafe requests must carry.
    pub csrf: String,
    /// When it ends at the latest, in milliseconds since 1970.
    pub expires_ms: i64,
    /// Whose it is.
    pub user: User,
}

/// A session in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Whose it is, as they are now.
    pub user: User,
    /// What forms and unsafe requests must carry.
    pub csrf: String,
    /// When it began, in milliseconds since 1970.
    pub begun_ms: i64,
    /// When it ends at the latest.
    pub expires_ms: i64,
}

/// Why a login fails.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// No such user, a wrong password, or a disabled user: which one is not told.
    #[error("user name or password is wrong")]
    Wrong,
    /// Too many failed logins.
    #[error("too many failed logins, try again in {retry_after_s} s")]
    TooMany {
        /// When the next one is looked at.
        retry_after_s: u64,
    },
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    /// Begins a session. `old_token`: the cookie that the browser sent, which ends (no fixation). Takes tens of
    /// milliseconds whatever the name.
    ///
    /// # Errors
    /// [`LoginError`].
    pub async fn log_in(
        &self,
        name: &str,
        password: &str,
        address: &str,
        old_token: Option<&str>,
    ) -> Result<NewSession, LoginError> {
        let now = now_ms();
        let known_name = check_name("user", name).is_ok();
        let name_key: String = name.chars().take(64).collect();
        let subjects = [format!("{name_key}@{address}"), format!("@{address}"), name_key];
        self.check_failures(&subjects, now).await?;
        let row = if known_name { self.pool.row(&sql::USER, args![name]).await? } else { None };
        let found = row.as_ref().map(user).transpose()?;
        let hash = row.as_ref().map(|row| row.text("password_hash")).transpose()?;
        let password = password.to_owned();
        let right = tokio::task::spawn_blocking(move || verify_password(&password, hash.as_deref())).await;
        let right = right.expect("checking a password does not panic");
        let Some(user) = found.filter(|user| right && !user.disabled) else {
            for subject in &subjects {
                self.pool.execute(&sql::LOGIN_FAILED, args![subject, now]).await?;
            }
            return Err(LoginError::Wrong);
        };
        let session = NewSession {
            token: random_token(),
            csrf: random_token(),
            expires_ms: now + SESSION_MAX_MS,
            user,
        };
        let mut change = self.change(&Actor::user(name), false).await?;
        if let Some(old) = old_token {
            change.tx.execute(&sql::SESSION_END, args![&hash_secret(old)]).await?;
        }
        change.tx.execute(&sql::SESSIONS_FORGET, args![now, now - SESSION_IDLE_MS]).await?;
        change.tx.execute(&sql::LOGIN_FORGET, args![now - FAILURES_MS]).await?;
        change.tx.execute(&sql::LOGIN_FORGIVE, args![&subjects[0]]).await?;
        let hash = hash_secret(&session.token);
        let values = args![&hash, name, &session.csrf, now, now, session.expires_ms];
        change.tx.execute(&sql::SESSION_ADD, values).await?;
        change.log("session.begin", &format!("user/{name}"), &json!({ "address": address })).await?;
        change.commit().await?;
        Ok(session)
    }

    /// The session that a cookie stands for; none where it ended, or its user was disabled.
    ///
    /// # Errors
    /// [`StoreError::Query`] where the database does not answer.
    pub async fn session(&self, token: &str) -> Result<Option<Session>, StoreError> {
        let (now, hash) = (now_ms(), hash_secret(token));
        let Some(row) = self.pool.row(&sql::SESSION, args![&hash]).await? else { return Ok(None) };
        let session = Session {
            user: user(&row)?,
            csrf: row.text("csrf")?,
            begun_ms: row.int("begun_ms")?,
            expires_ms: row.int("expires_ms")?,
        };
        let seen_ms = row.int("seen_ms")?;
        if session.user.disabled || now >= session.expires_ms || now - seen_ms >= SESSION_IDLE_MS {
            return Ok(None);
        }
        if now - seen_ms >= SEEN_EVERY_MS {
            self.pool.execute(&sql::SESSION_SEEN, args![&hash, now]).await?;
        }
        Ok(Some(session))
    }

    /// Ends a session; nothing happens where there is none.
    ///
    /// # Errors
    /// [`StoreError::Query`] where the database does not answer.
    pub async fn log_out(&self, token: &str) -> Result<(), StoreError> {
        self.pool.execute(&sql::SESSION_END, args![&hash_secret(token)]).await.map(drop)
    }

    async fn check_failures(&self, subjects: &[String; 3], now: i64) -> Result<(), LoginError> {
        for (subject, limit) in subjects.iter().zip(FAILURES_MAX) {
            let since = now - FAILURES_MS;
            let Some(row) = self.pool.row(&sql::LOGIN_FAILURES, args![subject, since]).await? else {
                continue;
            };
            if row.count("n")? >= limit {
                let free_ms = row.int("first_ms")? + FAILURES_MS - now;
                let retry_after_s = u64::try_from(free_ms).unwrap_or(0).div_ceil(1000).max(1);
                return Err(LoginError::TooMany { retry_after_s });
            }
        }
        Ok(())
    }
}
