//! Keys and tenants in memory: a copy of the last successful read, so that requests are answered while the
//! database is away.
//!
//! Never: asks the database; stores a key. Always: a key is looked up by its SHA-256, so that the time does
//! not depend on how much of a guess was right.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use sha2::{Digest, Sha256};

use super::key::{SecretHash, hash_secret};
use super::{ApiKey, DEFAULT_TENANT, Scope, Scopes, Tenant, TenantSettings};
use baton_generate::scheduler::Share;

/// The longest key that is checked, in bytes.
const KEY_BYTES_MAX: usize = 512;

/// Whether requests need a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPolicy {
    /// Always.
    Required,
    /// As soon as there is any key. For a service on loopback with nothing configured.
    OnceThereIsOne,
}

/// The caller of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The tenant that its requests count for.
    pub tenant: Arc<Tenant>,
    /// The key's public id; `None` for the static key, or if no key was needed.
    pub key_id: Option<String>,
    /// What the key allows.
    pub scopes: Scopes,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The key is missing, unknown, expired or revoked. The message does not say which.
    #[error("the API key is missing or wrong")]
    Key,
    /// The key's tenant is disabled.
    #[error("the tenant of this API key is disabled")]
    TenantDisabled,
    /// The key does not allow this.
    #[error("this API key lacks the scope `{0}`")]
    Scope(Scope),
}

impl Caller {
    /// Returns how the caller's requests share slots with those of other tenants.
    #[must_use]
    pub fn share(&self) -> Share {
        let mut hasher = DefaultHasher::new();
        self.tenant.id.hash(&mut hasher);
        Share { tenant: hasher.finish(), weight: self.tenant.settings.weight.max(1) }
    }

    /// Returns the owner whose cached prefixes the caller's requests may use: its tenant.
    #[must_use]
    pub fn owner(&self) -> u128 {
        // Tenants may choose their names, so the hash must be one without collisions that can be constructed.
        let digest = Sha256::digest(self.tenant.id.as_bytes());
        u128::from_le_bytes(std::array::from_fn(|at| digest[at]))
    }

    /// Checks that the key has this scope.
    ///
    /// # Errors
    /// [`Denied::Scope`] if it does not.
    pub fn check(&self, scope: Scope) -> Result<(), Denied> {
        if self.scopes.allow(scope) { Ok(()) } else { Err(Denied::Scope(scope)) }
    }
}

/// Checks who may send requests.
#[derive(Debug, Clone)]
pub struct AccessBook {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    policy: KeyPolicy,
    static_key: Option<SecretHash>,
    rows: ArcSwap<Rows>,
    /// When keys were last used, by id, since the last [`AccessBook::take_uses`]. Bounded by the number of
    /// keys.
    uses: Mutex<HashMap<String, i64>>,
}

#[derive(Debug)]
struct Rows {
    keys: HashMap<SecretHash, ApiKey>,
    tenants: BTreeMap<String, Arc<Tenant>>,
    default_tenant: Arc<Tenant>,
}

impl Rows {
    fn new(tenants: Vec<Tenant>, keys: Vec<ApiKey>) -> Rows {
        let tenants: BTreeMap<String, Arc<Tenant>> =
            tenants.into_iter().map(|tenant| (tenant.id.clone(), Arc::new(tenant))).collect();
        let built_in = || {
            let settings = TenantSettings::default();
            let updated_by = String::new();
            let id = DEFAULT_TENANT.to_owned();
            Arc::new(Tenant { id, revision: 0, settings, created_ms: 0, updated_ms: 0, updated_by })
        };
        let default_tenant = tenants.get(DEFAULT_TENANT).cloned().unwrap_or_else(built_in);
        let keys = keys.into_iter().map(|key| (key.hash, key)).collect();
        Rows { keys, tenants, default_tenant }
    }
}

impl AccessBook {
    /// Makes a book without tenants and keys, except the static key.
    #[must_use]
    pub fn new(policy: KeyPolicy, static_key: Option<&str>) -> AccessBook {
        let inner = Inner {
            policy,
            static_key: static_key.map(hash_secret),
            rows: ArcSwap::from_pointee(Rows::new(Vec::new(), Vec::new())),
            uses: Mutex::default(),
        };
        AccessBook { inner: Arc::new(inner) }
    }

    /// Replaces all tenants and keys by a newer read of the database.
    pub fn replace(&self, tenants: Vec<Tenant>, keys: Vec<ApiKey>) {
        self.inner.rows.store(Arc::new(Rows::new(tenants, keys)));
    }

    /// Returns a tenant.
    #[must_use]
    pub fn tenant(&self, id: &str) -> Option<Arc<Tenant>> {
        self.inner.rows.load().tenants.get(id).cloned()
    }

    /// Returns the caller that sends this key at this time.
    ///
    /// # Errors
    /// [`Denied::Key`] if the key is missing or not valid, [`Denied::TenantDisabled`] if its tenant is
    /// disabled.
    pub fn authenticate(&self, key: Option<&str>, now_ms: i64) -> Result<Caller, Denied> {
        let rows = self.inner.rows.load();
        let caller = match key.filter(|key| key.len() <= KEY_BYTES_MAX).map(hash_secret) {
            Some(hash) if self.inner.static_key == Some(hash) => built_in(&rows),
            Some(hash) => match rows.keys.get(&hash) {
                Some(known) if known.is_good(now_ms) => {
                    let tenant = rows.tenants.get(&known.tenant).ok_or(Denied::Key)?;
                    self.note_use(&known.id, now_ms);
                    let key_id = Some(known.id.clone());
                    Caller { tenant: tenant.clone(), key_id, scopes: known.scopes }
                }
                _ => self.without_key(&rows)?,
            },
            None => self.without_key(&rows)?,
        };
        if caller.tenant.settings.disabled {
            return Err(Denied::TenantDisabled);
        }
        Ok(caller)
    }

    /// Returns when keys were last used, and forgets it.
    #[must_use]
    pub fn take_uses(&self) -> Vec<(String, i64)> {
        let uses = std::mem::take(&mut *self.inner.uses.lock().expect(POISONED));
        let mut uses: Vec<(String, i64)> = uses.into_iter().collect();
        uses.sort();
        uses
    }

    /// Puts back uses that could not be written to the database.
    pub fn return_uses(&self, uses: Vec<(String, i64)>) {
        for (id, at_ms) in uses {
            self.note_use(&id, at_ms);
        }
    }

    fn note_use(&self, id: &str, at_ms: i64) {
        let mut uses = self.inner.uses.lock().expect(POISONED);
        match uses.get_mut(id) {
            Some(last) => *last = at_ms.max(*last),
            None => drop(uses.insert(id.to_owned(), at_ms)),
        }
    }

    /// Returns whether requests are answered without a key.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open_with(&self.inner.rows.load())
    }

    fn is_open_with(&self, rows: &Rows) -> bool {
        self.inner.policy == KeyPolicy::OnceThereIsOne
            && self.inner.static_key.is_none()
            && rows.keys.is_empty()
    }

    /// Returns the default caller if no key is needed.
    fn without_key(&self, rows: &Rows) -> Result<Caller, Denied> {
        if self.is_open_with(rows) { Ok(built_in(rows)) } else { Err(Denied::Key) }
    }
}

/// Returns a caller of the default tenant, with every scope.
fn built_in(rows: &Rows) -> Caller {
    Caller { tenant: rows.default_tenant.clone(), key_id: None, scopes: Scopes::ALL }
}

const POISONED: &str = "nothing panics while the uses are locked";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::KeySecret;

    fn tenant(id: &str, disabled: bool) -> Tenant {
        let settings = TenantSettings { disabled, ..TenantSettings::default() };
        Tenant {
            id: id.into(),
            revision: 1,
            settings,
            created_ms: 0,
            updated_ms: 0,
            updated_by: String::new(),
        }
    }

    fn key(tenant: &str, expires_ms: Option<i64>) -> (ApiKey, KeySecret) {
        let secret = KeySecret::generate();
        let key = ApiKey {
            id: secret.id().into(),
            revision: 1,
            tenant: tenant.into(),
            label: String::new(),
            hash: secret.hash(),
            scopes: Scopes::device(),
            created_ms: 0,
            created_by: String::new(),
            expires_ms,
            revoked_ms: None,
            last_used_ms: None,
            rotated_from: None,
        };
        (key, secret)
    }

    #[test]
    fn nothing_configured_is_open_and_a_key_closes_it() {
        let book = AccessBook::new(KeyPolicy::OnceThereIsOne, None);
        let stranger = book.authenticate(None, 0).unwrap();
        assert_eq!((stranger.tenant.id.as_str(), stranger.scopes), (DEFAULT_TENANT, Scopes::ALL));
        assert!(book.authenticate(Some("anything"), 0).is_ok());
        let (row, secret) = key("a", None);
        book.replace(vec![tenant("a", false)], vec![row]);
        assert_eq!(book.authenticate(None, 0), Err(Denied::Key));
        assert_eq!(book.authenticate(Some("anything"), 0), Err(Denied::Key));
        assert_eq!(book.authenticate(Some(secret.reveal()), 0).unwrap().tenant.id, "a");
        let strict = AccessBook::new(KeyPolicy::Required, None);
        assert_eq!(strict.authenticate(None, 0), Err(Denied::Key));
    }

    #[test]
    fn a_static_key_is_the_built_in_tenant_s() {
        let book = AccessBook::new(KeyPolicy::OnceThereIsOne, Some("secret"));
        assert_eq!(book.authenticate(None, 0), Err(Denied::Key));
        assert_eq!(book.authenticate(Some("secre"), 0), Err(Denied::Key));
        assert_eq!(book.authenticate(Some("secrets"), 0), Err(Denied::Key));
        let caller = book.authenticate(Some("secret"), 0).unwrap();
        assert_eq!((caller.tenant.id.as_str(), caller.key_id), (DEFAULT_TENANT, None));
        assert_eq!(book.take_uses(), []);
    }

    #[test]
    fn keys_end_and_tenants_are_disabled() {
        let book = AccessBook::new(KeyPolicy::Required, None);
        let (good, good_secret) = key("a", None);
        let (ends, ends_secret) = key("a", Some(100));
        let (off, off_secret) = key("b", None);
        let (orphan, orphan_secret) = key("gone", None);
        let good_id = good.id.clone();
        book.replace(vec![tenant("a", false), tenant("b", true)], vec![good, ends, off, orphan]);
        let ask = |secret: &KeySecret, at| book.authenticate(Some(secret.reveal()), at);
        let caller = ask(&good_secret, 5).unwrap();
        assert_eq!(caller.check(Scope::Assist), Ok(()));
        assert_eq!(caller.check(Scope::Chat), Err(Denied::Scope(Scope::Chat)));
        assert!(ask(&ends_secret, 99).is_ok());
        assert_eq!(ask(&ends_secret, 100), Err(Denied::Key));
        assert_eq!(ask(&off_secret, 0), Err(Denied::TenantDisabled));
        assert_eq!(ask(&orphan_secret, 0), Err(Denied::Key));
        let uses = book.take_uses();
        assert!(uses.contains(&(good_id.clone(), 5)), "{uses:?}");
        book.return_uses(vec![(good_id.clone(), 5)]);
        ask(&good_secret, 3).unwrap();
        assert!(book.take_uses().contains(&(good_id, 5)), "the latest use counts");
    }
}
