//! Logins of the admin console: limits of failed attempts, and devices on which a user has logged in before.
//!
//! An attempt from an unknown device counts for the user's name, for the address, and for both together. An
//! attempt from a known device counts for that device alone, so strangers cannot lock a user out. A login
//! code of the command line is the same for one login of a new device: it stands beside the password, not in
//! its place. Never: stores the value of a cookie or a code, only its hash. Always: an attempt counts as
//! failed before its password is checked, and until the password turns out to be right. A counter of a name
//! and one of an address never share a key.

use std::net::IpAddr;
use std::sync::Mutex as SyncMutex;
use std::sync::atomic::{AtomicI64, Ordering};

use baton_edge::network;
use serde_json::json;
use tokio::sync::Mutex;

use super::change::Change;
use super::db::args;
use super::users::user;
use super::{LoginError, Store, StoreError, now_ms, sql};
use crate::access::hashing::Hashing;
use crate::access::key::{SecretHash, hash_secret, random_token};
use crate::access::password::generate_password;
use crate::access::{Actor, check_name};

/// How long a failed login counts, in milliseconds.
const FAILURES_MS: i64 = 15 * 60 * 1000;
/// The most failed logins from unknown devices: from one address as one user, from one address, and as one
/// user from anywhere.
const STRANGER_MAX: [u64; 3] = [5, 30, 100];
/// The most failed logins on one known device.
const DEVICE_MAX: u64 = 5;
/// How long a device stays known after its last login, in milliseconds.
pub const DEVICE_MAX_MS: i64 = 180 * 24 * 3600 * 1000;
/// How long a login code is good, in milliseconds.
pub const LOGIN_CODE_MS: i64 = 10 * 60 * 1000;
/// The most known devices of one user. If there are more, the one that was used longest ago is forgotten.
const DEVICES_PER_USER: u32 = 50;
/// The most failed logins that one process writes to the audit log in each [`FAILURES_MS`]. The service's log
/// has all of them.
const AUDITED_MAX: u32 = 200;

/// Somebody who wants to log in.
#[derive(Clone, Copy, Default)]
pub struct LoginAttempt<'a> {
    /// The user's name, as it was typed.
    pub name: &'a str,
    /// The password.
    pub password: &'a str,
    /// The address that the attempt comes from; `None` if it is not known.
    pub address: Option<IpAddr>,
    /// The session cookie that the browser sent. A login ends that session, which prevents session fixation.
    pub session: Option<&'a str>,
    /// The cookie of a known device.
    pub device: Option<&'a str>,
    /// A login code, as it was typed.
    pub code: Option<&'a str>,
}

impl std::fmt::Debug for LoginAttempt<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoginAttempt").field("address", &self.address).finish_non_exhaustive()
    }
}

/// State that all logins of one process share.
#[derive(Debug, Default)]
pub(super) struct Logins {
    pub(super) hashing: Hashing,
    /// When the last attempt was counted. Locked while one is counted, so that simultaneous attempts are
    /// counted one after another.
    counting: Mutex<i64>,
    audited: SyncMutex<Audited>,
    /// When the last warning was logged that a session's use cannot be written; 0 if never.
    unseen_told_ms: AtomicI64,
}

#[derive(Debug, Default)]
struct Audited {
    since_ms: i64,
    rows: u32,
}

/// Why an attempt does not count as a stranger's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KnownBy {
    /// The user logged in on this device before.
    Device,
    /// Its login code, by the hash.
    Code(SecretHash),
}

/// Returns the hash of a login code. No cookie has a line break, so none can be a code.
fn code_hash(code: &str) -> SecretHash {
    hash_secret(&format!("login code\n{}", code.trim()))
}

/// The counters that an attempt increases, by key, with the limit of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AttemptLimits(Vec<(String, u64)>);

impl AttemptLimits {
    /// Returns the counters of an attempt from an unknown device.
    fn stranger(name: &str, address: Option<IpAddr>) -> AttemptLimits {
        let name: String = name.chars().take(64).collect();
        let address = address.map_or("unknown".to_owned(), |address| network(address).to_string());
        // No address contains a space, and each key begins with another word, so no two kinds of key can be
        // equal.
        let subjects =
            [format!("both {address} {name}"), format!("address {address}"), format!("name {name}")];
        AttemptLimits(subjects.into_iter().zip(STRANGER_MAX).collect())
    }

    fn device(hash: &SecretHash) -> AttemptLimits {
        AttemptLimits(vec![(format!("device {}", hex::encode(hash)), DEVICE_MAX)])
    }
}

/// An attempt that counts as failed until it is [forgiven](Change::forgive).
#[derive(Debug)]
pub(super) struct CountedAttempt {
    subjects: AttemptLimits,
    at_ms: i64,
}

impl Store {
    /// Returns the counters of an attempt. If its device or its code is known for this user and has not
    /// failed too often, also says which.
    pub(super) async fn subjects(
        &self,
        attempt: &LoginAttempt<'_>,
    ) -> Result<(AttemptLimits, Option<KnownBy>), StoreError> {
        let now = now_ms();
        let device = attempt.device.map(|device| (hash_secret(device), KnownBy::Device));
        let code = attempt.code.map(code_hash).map(|hash| (hash, KnownBy::Code(hash)));
        for (hash, known_by) in device.into_iter().chain(code) {
            if check_name("user", attempt.name).is_ok()
                && self.pool.row(&sql::DEVICE, args![&hash, attempt.name, now]).await?.is_some()
            {
                let subjects = AttemptLimits::device(&hash);
                if self.refused(&subjects, now).await?.is_none() {
                    return Ok((subjects, Some(known_by)));
                }
            }
        }
        Ok((AttemptLimits::stranger(attempt.name, attempt.address), None))
    }

    /// Makes a login code for a user. It is good for one login within [`LOGIN_CODE_MS`], with the password,
    /// however many logins have failed. Only its hash is stored.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if there is no such user, [`StoreError::State`] if it is disabled,
    /// [`StoreError::Query`] if the database does not answer.
    pub async fn add_login_code(&self, name: &str, by: &Actor) -> Result<String, StoreError> {
        let mut change = self.note(by).await?;
        let row = change.tx.row(&sql::USER, args![name]).await?;
        let user = row.as_ref().map(user).transpose()?;
        let user = user.ok_or_else(|| StoreError::Unknown { what: "user", id: name.to_owned() })?;
        if user.disabled {
            return Err(StoreError::State { what: "user", id: user.name, why: "is disabled" });
        }
        let code = generate_password();
        let hash = code_hash(&code);
        let now = change.at_ms;
        let values = args![&hash, &user.name, now, now + LOGIN_CODE_MS];
        change.tx.execute(&sql::DEVICE_PUT, values).await?;
        let detail = json!({ "expires_ms": now + LOGIN_CODE_MS });
        change.log("user.login_code", &format!("user/{}", user.name), &detail).await?;
        change.commit().await?;
        Ok(code)
    }

    /// Returns after how many seconds another attempt is allowed; `None` if it is allowed now.
    async fn refused(&self, subjects: &AttemptLimits, now: i64) -> Result<Option<u64>, StoreError> {
        for (subject, limit) in &subjects.0 {
            let row = self.pool.row(&sql::LOGIN_FAILURES, args![subject, now - FAILURES_MS, now]).await?;
            let Some(row) = row else { continue };
            if row.count("n")? >= *limit {
                let free_ms = (row.int("first_ms")? + FAILURES_MS - now).clamp(1, FAILURES_MS);
                return Ok(u64::try_from(free_ms).ok().map(|ms| ms.div_ceil(1000)));
            }
        }
        Ok(None)
    }

    /// Refuses an attempt over its limit, without writing anything.
    pub(super) async fn check_attempts(&self, subjects: &AttemptLimits) -> Result<(), LoginError> {
        let retry_after_s = self.refused(subjects, now_ms()).await?;
        retry_after_s.map_or(Ok(()), |retry_after_s| Err(LoginError::TooMany { retry_after_s }))
    }

    /// Counts an attempt as failed, or refuses it if it is over its limit.
    ///
    /// Replicas do not wait for each other. So each of them may let one attempt too many pass at the same
    /// moment.
    pub(super) async fn count_attempt(&self, subjects: AttemptLimits) -> Result<CountedAttempt, LoginError> {
        let mut last_ms = self.logins.counting.lock().await;
        let now = now_ms();
        self.check_attempts(&subjects).await?;
        // Each attempt gets its own time, which identifies it when it is forgiven.
        let at_ms = if (now..now + 1000).contains(&*last_ms) { *last_ms + 1 } else { now };
        let mut tx = self.pool.begin_write().await?;
        // Also deletes attempts in the future, which a clock that was a day ahead wrote. They would count
        // until that day.
        tx.execute(&sql::LOGIN_FORGET, args![now - FAILURES_MS, at_ms]).await?;
        for (subject, _) in &subjects.0 {
            tx.execute(&sql::LOGIN_FAILED, args![subject, at_ms]).await?;
        }
        tx.commit().await?;
        *last_ms = at_ms;
        Ok(CountedAttempt { subjects, at_ms })
    }

    /// Adds a failed login to the audit log, with the same work for every name. An unknown name is not
    /// written, because people sometimes type a password into that field.
    pub(super) async fn audit_failure(
        &self,
        user: Option<&str>,
        address: Option<IpAddr>,
    ) -> Result<(), StoreError> {
        if !self.logins.may_audit(now_ms()) {
            return Ok(());
        }
        let mut change = self.note(&Actor::service()).await?;
        let target = format!("user/{}", user.unwrap_or("unknown"));
        change.log("session.refused", &target, &json!({ "address": shown(address) })).await?;
        change.commit().await
    }
}

/// Formats an address for the audit log; empty if it is not known.
pub(super) fn shown(address: Option<IpAddr>) -> String {
    address.map(|address| address.to_canonical().to_string()).unwrap_or_default()
}

impl Logins {
    /// Returns whether to warn that a session's use cannot be written: once in each [`FAILURES_MS`].
    pub(super) fn may_tell_unseen(&self, now: i64) -> bool {
        let told_ms = self.unseen_told_ms.load(Ordering::Relaxed);
        if (told_ms..told_ms.saturating_add(FAILURES_MS)).contains(&now) {
            return false;
        }
        let told = &self.unseen_told_ms;
        told.compare_exchange(told_ms, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn may_audit(&self, now: i64) -> bool {
        let mut audited = self.audited.lock().expect("nothing panics while it counts");
        if !(audited.since_ms..audited.since_ms + FAILURES_MS).contains(&now) {
            *audited = Audited { since_ms: now, rows: 0 };
        }
        audited.rows += 1;
        audited.rows <= AUDITED_MAX
    }
}

impl Change {
    /// Removes an attempt whose password was right. Also removes earlier ones of the same user from the same
    /// address or device.
    pub(super) async fn forgive(&mut self, counted: &CountedAttempt) -> Result<(), StoreError> {
        for (at, (subject, _)) in counted.subjects.0.iter().enumerate() {
            if at == 0 {
                self.tx.execute(&sql::LOGIN_FORGIVE, args![subject]).await?;
            } else {
                self.tx.execute(&sql::LOGIN_UNDO, args![subject, counted.at_ms]).await?;
            }
        }
        Ok(())
    }

    /// Ends a login code, because a login uses it; returns whether it was still good.
    pub(super) async fn use_up(&mut self, code: &SecretHash) -> Result<bool, StoreError> {
        Ok(self.tx.execute(&sql::DEVICE_END, args![code]).await? > 0)
    }

    /// Makes the device known, or extends the time for which it is. Returns its cookie; a known device keeps
    /// the one it has.
    pub(super) async fn know_device(
        &mut self,
        user: &str,
        known: Option<&str>,
    ) -> Result<String, StoreError> {
        let now = self.at_ms;
        let token = known.map_or_else(random_token, str::to_owned);
        let hash = hash_secret(&token);
        self.tx.execute(&sql::DEVICE_PUT, args![&hash, user, now, now + DEVICE_MAX_MS]).await?;
        self.tx.execute(&sql::DEVICES_FORGET, args![user, now, DEVICES_PER_USER]).await?;
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_counted_as_an_address() {
        let of = |name: &str, address: &str| AttemptLimits::stranger(name, address.parse().ok()).0;
        let victim = of("ann", "10.0.0.1");
        for name in ["@10.0.0.1", "address 10.0.0.1", "10.0.0.1", "both 10.0.0.1 ann", "10.0.0.1 ann"] {
            let shared: Vec<_> = of(name, "6.6.6.6").into_iter().filter(|one| victim.contains(one)).collect();
            assert_eq!(shared, [], "{name}");
        }
        assert_eq!(of("ann", "6.6.6.6").iter().filter(|one| victim.contains(one)).count(), 1, "the name");
    }

    #[test]
    fn addresses_of_one_customer_are_one() {
        let address = |text: &str| AttemptLimits::stranger("x", text.parse().ok()).0[1].0.clone();
        assert_eq!(address("2001:db8::1"), address("2001:db8::ffff:1"));
        assert_ne!(address("2001:db8::1"), address("2001:db8:0:1::1"));
        assert_eq!(address("::ffff:10.0.0.1"), address("10.0.0.1"));
    }

    #[test]
    fn a_use_that_cannot_be_noted_is_told_once_in_a_while() {
        let logins = Logins::default();
        let told = |now: i64| (0..100).filter(|_| logins.may_tell_unseen(now)).count();
        assert_eq!((told(FAILURES_MS), told(FAILURES_MS + 1), told(2 * FAILURES_MS)), (1, 0, 1));
        assert_eq!(told(5), 1, "a clock that was set back");
    }

    #[test]
    fn the_audit_log_has_room_for_so_many_failures() {
        let logins = Logins::default();
        let count = |now: i64| (0..1000).filter(|_| logins.may_audit(now)).count();
        assert_eq!((count(1_000), count(2_000)), (AUDITED_MAX as usize, 0));
        assert_eq!(count(1_000 + FAILURES_MS), AUDITED_MAX as usize);
        assert_eq!(count(5), AUDITED_MAX as usize, "a clock that was set back");
    }
}
