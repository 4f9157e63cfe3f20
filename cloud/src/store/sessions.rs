//! Sessions of the admin console: logging in, checking a cookie, logging out. [`super::logins`] limits failed
//! attempts.
//!
//! Always: every login makes a new token. An unknown user and a wrong password take the same time and give
//! the same error. A session ends after a time without use, and at the latest after a fixed time.

use serde_json::json;

use super::db::args;
use super::logins::{KnownBy, LoginAttempt, shown};
use super::users::user;
use super::{Store, StoreError, now_ms, sql};
use crate::access::hashing::Requester;
use crate::access::key::{hash_secret, random_token};
use crate::access::{Actor, User, check_name};

/// The longest time that a session lasts, in milliseconds.
pub const SESSION_MAX_MS: i64 = 12 * 3600 * 1000;
/// A session that is not used for this long ends, in milliseconds.
pub const SESSION_IDLE_MS: i64 = 3600 * 1000;
/// The shortest time between two writes of a session's last use, in milliseconds.
const SEEN_EVERY_MS: i64 = 60 * 1000;
/// A session that begins in the future by more than this ends. The clock was set back, so the session would
/// last too long.
const CLOCK_LEEWAY_MS: i64 = 5 * 60 * 1000;
/// When to try again if too many log in at the same time, in seconds.
const BUSY_S: u64 = 2;

/// A session that has just begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSession {
    /// The cookie's value. Only its hash is stored.
    pub token: String,
    /// The CSRF token that forms and unsafe requests must carry.
    pub csrf: String,
    /// The cookie that identifies this device for [`DEVICE_MAX_MS`](super::DEVICE_MAX_MS). Only its hash is
    /// stored.
    pub device: String,
    /// When it ends at the latest, in milliseconds since 1970.
    pub expires_ms: i64,
    /// The user.
    pub user: User,
}

/// A session in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The user, as stored now.
    pub user: User,
    /// The CSRF token that forms and unsafe requests must carry.
    pub csrf: String,
    /// When it began, in milliseconds since 1970.
    pub begun_ms: i64,
    /// When it ends at the latest, in milliseconds since 1970.
    pub expires_ms: i64,
}

/// Why a login fails.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// There is no such user, the password is wrong, or the user is disabled. The message does not say which.
    #[error("user name or password is wrong")]
    Wrong {
        /// The user of this name, if there is one; for the service's log.
        known: Option<String>,
    },
    /// Too many users log in at the same time.
    #[error("too many log-ins at the same time, try again in {retry_after_s} s")]
    Busy {
        /// When to try again, in seconds.
        retry_after_s: u64,
    },
    /// Too many failed logins.
    #[error(
        "too many failed logins, try again in {retry_after_s} s, or now with a code that \
         `baton-cloud users login-code` prints on the server"
    )]
    TooMany {
        /// When to try again, in seconds.
        retry_after_s: u64,
    },
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    /// Checks the password and begins a session. Takes tens of milliseconds whatever the name, more if others
    /// log in.
    ///
    /// # Errors
    /// [`LoginError`] if the attempt is refused or the database fails.
    pub async fn log_in(&self, attempt: &LoginAttempt<'_>) -> Result<NewSession, LoginError> {
        let name = attempt.name;
        let (subjects, known_by) = self.subjects(attempt).await?;
        self.check_attempts(&subjects).await?;
        let requester = if known_by.is_some() { Requester::Known } else { Requester::Stranger };
        let place = self.logins.hashing.place(requester).ok_or(LoginError::Busy { retry_after_s: BUSY_S })?;
        let counted = self.count_attempt(subjects).await?;
        let row = match check_name("user", name) {
            Ok(()) => self.pool.row(&sql::USER, args![name]).await?,
            Err(_) => None,
        };
        let found = row.as_ref().map(user).transpose()?;
        let hash = row.as_ref().map(|row| row.text("password_hash")).transpose()?;
        let password = attempt.password.to_owned();
        let right = place.compute(move |space| space.verify(&password, hash.as_deref())).await;
        let known = found.as_ref().map(|user| user.name.clone());
        let Some(user) = found.filter(|user| right && !user.disabled) else {
            self.audit_failure(known.as_deref(), attempt.address).await?;
            return Err(LoginError::Wrong { known });
        };
        let mut change = self.note(&Actor::user(name)).await?;
        let now = change.at_ms;
        if let Some(KnownBy::Code(code)) = &known_by
            && !change.use_up(code).await?
        {
            // Another login was faster.
            return Err(LoginError::Wrong { known });
        }
        if let Some(old) = attempt.session {
            change.tx.execute(&sql::SESSION_END, args![&hash_secret(old)]).await?;
        }
        change.tx.execute(&sql::SESSIONS_FORGET, args![now, now - SESSION_IDLE_MS]).await?;
        change.forgive(&counted).await?;
        let is_known_device = known_by == Some(KnownBy::Device);
        let session = NewSession {
            token: random_token(),
            csrf: random_token(),
            device: change.know_device(name, attempt.device.filter(|_| is_known_device)).await?,
            expires_ms: now + SESSION_MAX_MS,
            user,
        };
        let hash = hash_secret(&session.token);
        let values = args![&hash, name, &session.csrf, now, now, session.expires_ms];
        change.tx.execute(&sql::SESSION_ADD, values).await?;
        let by_code = matches!(known_by, Some(KnownBy::Code(_)));
        let address = shown(attempt.address);
        let detail = json!({ "address": address, "known_device": is_known_device, "login_code": by_code });
        change.log("session.begin", &format!("user/{name}"), &detail).await?;
        change.commit().await?;
        Ok(session)
    }

    /// Returns the session of a cookie, or `None` if it has ended or its user is disabled. If its use cannot
    /// be written, it stays valid, but ends an hour after the last use that was written.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
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
        let ended = now >= session.expires_ms || now - seen_ms >= SESSION_IDLE_MS;
        if session.user.disabled || ended || session.begun_ms - now > CLOCK_LEEWAY_MS {
            return Ok(None);
        }
        if now - seen_ms >= SEEN_EVERY_MS
            && let Err(err) = self.pool.execute(&sql::SESSION_SEEN, args![&hash, now]).await
            && self.logins.may_tell_unseen(now)
        {
            // If the disk is full, the page that says so must still be shown.
            let err = &err as &dyn std::error::Error;
            tracing::warn!(err, "the use of a session cannot be written; the session may end early");
        }
        Ok(Some(session))
    }

    /// Ends a session. Does nothing if there is none.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
    pub async fn log_out(&self, token: &str) -> Result<(), StoreError> {
        self.pool.execute(&sql::SESSION_END, args![&hash_secret(token)]).await.map(drop)
    }
}
