//! API keys: a public id and 256 random bits, of which only a hash is stored.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use super::Scopes;

/// The first characters of every key, so that scanners of logs and repositories find leaked ones.
pub const KEY_PREFIX: &str = "btk_";
/// Random bytes of the public id.
const ID_BYTES: usize = 6;
/// Random bytes of the secret.
const SECRET_BYTES: usize = 32;

/// SHA-256 of a secret.
pub type SecretHash = [u8; 32];

/// Returns the SHA-256 of a secret that a caller sent.
#[must_use]
pub fn hash_secret(text: &str) -> SecretHash {
    Sha256::digest(text.as_bytes()).into()
}

/// Returns `N` bytes of the system's random source.
///
/// # Panics
/// If the system has no random bytes: no key would be safe then.
#[must_use]
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    bytes
}

/// Returns 256 random bits as text, for sessions and CSRF tokens.
#[must_use]
pub fn random_token() -> String {
    URL_SAFE_NO_PAD.encode(random_bytes::<SECRET_BYTES>())
}

/// A new key, shown once. Afterwards only its hash is known. `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct KeySecret {
    id: String,
    text: String,
}

impl KeySecret {
    /// Makes a new random key.
    #[must_use]
    pub fn generate() -> KeySecret {
        let id: String = hex::encode(random_bytes::<ID_BYTES>());
        let text = format!("{KEY_PREFIX}{id}_{}", random_token());
        KeySecret { id, text }
    }

    /// Returns its public id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the key as a caller sends it. It cannot be read again later.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// Returns the hash that is stored.
    #[must_use]
    pub fn hash(&self) -> SecretHash {
        hash_secret(&self.text)
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySecret").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A key as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// Its public id, the part after `btk_`.
    pub id: String,
    /// Increased by 1 at every change.
    pub revision: u64,
    /// The tenant that it belongs to.
    pub tenant: String,
    /// Its name for people.
    pub label: String,
    /// SHA-256 of the whole key.
    pub hash: SecretHash,
    /// What it allows.
    pub scopes: Scopes,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: i64,
    /// Who made it.
    pub created_by: String,
    /// When it expires, in milliseconds since 1970; `None` if never.
    pub expires_ms: Option<i64>,
    /// When it was revoked, in milliseconds since 1970; `None` if it was not.
    pub revoked_ms: Option<i64>,
    /// When it was last used, in milliseconds since 1970; about a minute late.
    pub last_used_ms: Option<i64>,
    /// The key that this one replaces.
    pub rotated_from: Option<String>,
}

impl ApiKey {
    /// Returns whether it is valid at this time.
    #[must_use]
    pub fn is_good(&self, now_ms: i64) -> bool {
        self.revoked_ms.is_none_or(|at| now_ms < at) && self.expires_ms.is_none_or(|at| now_ms < at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_long_and_hidden() {
        let key = KeySecret::generate();
        let secret = key.reveal().strip_prefix(&format!("btk_{}_", key.id())).unwrap();
        assert_eq!((key.id().len(), secret.len()), (12, 43), "48 and 256 bits");
        assert_ne!(key, KeySecret::generate());
        assert!(!format!("{key:?}").contains(secret));
        assert_eq!(key.hash(), hash_secret(key.reveal()));
        assert_eq!(hash_secret("abc")[..4], [0xba, 0x78, 0x16, 0xbf], "SHA-256 of FIPS 180-2");
    }

    #[test]
    fn a_key_is_good_until_it_ends() {
        let mut key = ApiKey {
            id: "a".into(),
            revision: 1,
            tenant: "t".into(),
            label: String::new(),
            hash: [0; 32],
            scopes: Scopes::ALL,
            created_ms: 0,
            created_by: String::new(),
            expires_ms: None,
            revoked_ms: None,
            last_used_ms: None,
            rotated_from: None,
        };
        assert!(key.is_good(i64::MAX));
        key.expires_ms = Some(10);
        assert!(key.is_good(9) && !key.is_good(10));
        key.revoked_ms = Some(5);
        assert!(key.is_good(4) && !key.is_good(5));
    }
}
