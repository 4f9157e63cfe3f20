//! Sessions of the admin console: how they begin, and what a cookie stands for. What may fail is in [`super::logins`].
//!
//! Always: a new token at every login; an unknown user and a wrong password cost the same and say the same; a session
//! ends after a time without use and at the latest after a fixed time.

use serde_json::json;

use super::db::args;
use super::logins::{LoginAttempt, shown};
use super::users::user;
use super::{Store, StoreError, now_ms, sql};
use crate::access::hashing::Asker;
use crate::access::key::{hash_secret, random_token};
use crate::access::{Actor, User, check_name};

/// A session ends after so long at the latest, in milliseconds.
pub const SESSION_MAX_MS: i64 = 12 * 3600 * 1000;
/// A session ends after so long without use, in milliseconds.
pub const SESSION_IDLE_MS: i64 = 3600 * 1000;
/// How often the use of a session is written down.
const SEEN_EVERY_MS: i64 = 60 * 1000;
/// A session that began later than now, by more than this, ends: the clock was set back, and the session would last longer.
const CLOCK_LEEWAY_MS: i64 = 5 * 60 * 1000;
/// When to try again if too many want to log in.
const BUSY_S: u64 = 2;

/// A session that has just begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSession {
    /// The cookie's value; kept nowhere.
    pub token: String,
    /// What forms and unsafe requests must carry.
    pub csrf: String,
    /// The cookie by which this device is known for [`DEVICE_MAX_MS`](super::DEVICE_MAX_MS); its hash is kept.
    pub device: String,
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
    Wrong {
        /// The user of this name, if there is one: for the log of the service.
        known: Option<String>,
    },
    /// Too many want to log in at the same time.
    #[error("too many log-ins at the same time, try again in {retry_after_s} s")]
    Busy {
        /// When to try again.
        retry_after_s: u64,
    },
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
    /// Begins a session. Takes tens of milliseconds whatever the name, more if others want to log in.
    ///
    /// # Errors
    /// [`LoginError`].
    pub async fn log_in(&self, attempt: &LoginAttempt<'_>) -> Result<NewSession, LoginError> {
        let name = attempt.name;
        let (subjects, device) = self.subjects(attempt).await?;
        self.check_attempts(&subjects).await?;
        let asker = if device.is_some() { Asker::Known } else { Asker::Stranger };
        let place = self.logins.hashing.place(asker).ok_or(LoginError::Busy { retry_after_s: BUSY_S })?;
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
        let mut change = self.change(&Actor::user(name), false).await?;
        let now = change.at_ms;
        if let Some(old) = attempt.session {
            change.tx.execute(&sql::SESSION_END, args![&hash_secret(old)]).await?;
        }
        change.tx.execute(&sql::SESSIONS_FORGET, args![now, now - SESSION_IDLE_MS]).await?;
        change.forgive(&counted).await?;
        let session = NewSession {
            token: random_token(),
            csrf: random_token(),
            device: change.know_device(name, attempt.device.filter(|_| device.is_some())).await?,
            expires_ms: now + SESSION_MAX_MS,
            user,
        };
        let hash = hash_secret(&session.token);
        let values = args![&hash, name, &session.csrf, now, now, session.expires_ms];
        change.tx.execute(&sql::SESSION_ADD, values).await?;
        let detail = json!({ "address": shown(attempt.address), "known_device": device.is_some() });
        change.log("session.begin", &format!("user/{name}"), &detail).await?;
        change.commit().await?;
        Ok(session)
    }

    /// The session that a cookie stands for; none where it ended, or its user was disabled. It is good also where its use
    /// cannot be noted: without that, it ends an hour after its use was last noted.
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
        let ended = now >= session.expires_ms || now - seen_ms >= SESSION_IDLE_MS;
        if session.user.disabled || ended || session.begun_ms - now > CLOCK_LEEWAY_MS {
            return Ok(None);
        }
        if now - seen_ms >= SEEN_EVERY_MS
            && let Err(err) = self.pool.execute(&sql::SESSION_SEEN, args![&hash, now]).await
            && self.logins.may_tell_unseen(now)
        {
            // A full disk must not hide the page that says so.
            let err = &err as &dyn std::error::Error;
            tracing::warn!(err, "the use of a session cannot be noted; it may end before its time");
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
}
