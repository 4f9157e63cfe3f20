//! Passwords: argon2id. A check takes as long for an unknown user as for a known one.
//!
//! Slow on purpose (tens of milliseconds, 19 MiB). Never call it on a thread of the runtime.

use std::sync::LazyLock;

use argon2::{Algorithm, Argon2, Block, Params, PasswordHash, Version};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use subtle::ConstantTimeEq;

use super::key::{random_bytes, random_token};

/// The shortest password, in characters.
pub const PASSWORD_CHARS_MIN: usize = 12;
/// The longest password, in bytes: argon2 reads all of it.
pub const PASSWORD_BYTES_MAX: usize = 1024;

/// A password that is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PasswordError {
    /// Too short.
    #[error("the password has {0} characters, the least is {PASSWORD_CHARS_MIN}")]
    Short(usize),
    /// Too long.
    #[error("the password has {0} bytes, the limit is {PASSWORD_BYTES_MAX}")]
    Long(usize),
}

/// The most memory of a hash that is computed, in KiB. This program's own hashes take 19 MiB.
const MEMORY_KIB_MAX: u32 = 64 * 1024;

/// The hash that the password of an unknown user is checked against, so that the check takes as long as a
/// user's. No password matches it.
static NOBODY: LazyLock<String> = LazyLock::new(|| phc(&random_bytes::<16>(), &random_bytes::<32>()));

/// The memory in which hashes are computed, one after another. It is allocated once and kept. If each hash
/// allocated it on another thread, the system would get little of it back.
#[derive(Default)]
pub struct Workspace(Vec<Block>);

impl std::fmt::Debug for Workspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The content derives from a password, so only its length is shown.
        f.debug_struct("Workspace").field("blocks", &self.0.len()).finish()
    }
}

impl Workspace {
    /// Computes the argon2id hash of a password (19 MiB, 2 passes, as OWASP recommends), as a PHC string.
    ///
    /// # Errors
    /// [`PasswordError`] if it is too short or too long.
    pub fn hash(&mut self, password: &str) -> Result<String, PasswordError> {
        let chars = password.chars().count();
        if chars < PASSWORD_CHARS_MIN {
            return Err(PasswordError::Short(chars));
        }
        if password.len() > PASSWORD_BYTES_MAX {
            return Err(PasswordError::Long(password.len()));
        }
        let (salt, mut out) = (random_bytes::<16>(), [0; 32]);
        let done = self.compute(&Argon2::default(), password.as_bytes(), &salt, &mut out);
        assert!(done, "argon2's defaults take any password below 4 GiB and a salt of 16 bytes");
        Ok(phc(&salt, &out))
    }

    /// Returns whether this is the password of `hash`. If there is no hash (no such user), computes as much
    /// and returns false.
    #[must_use]
    pub fn verify(&mut self, password: &str, hash: Option<&str>) -> bool {
        let nobody = NOBODY.as_str();
        let (checked, known) = hash.map_or((nobody, false), |hash| (hash, true));
        let password = if password.len() > PASSWORD_BYTES_MAX { "" } else { password };
        self.is_of(password, checked) && known
    }

    fn is_of(&mut self, password: &str, hash: &str) -> bool {
        let Ok(hash) = PasswordHash::new(hash) else { return false };
        let (Some(salt), Some(want)) = (&hash.salt, &hash.hash) else { return false };
        let version = hash.version.map_or(Ok(Version::default()), Version::try_from);
        let (Ok(algorithm), Ok(version), Ok(params)) =
            (Algorithm::try_from(hash.algorithm.as_str()), version, Params::try_from(&hash))
        else {
            return false;
        };
        let mut out = vec![0; want.as_bytes().len()];
        let argon2 = Argon2::new(algorithm, version, params);
        self.compute(&argon2, password.as_bytes(), salt.as_ref(), &mut out)
            && bool::from(out.ct_eq(want.as_bytes()))
    }

    /// Computes a hash. Returns false if the parameters are out of bounds.
    fn compute(&mut self, argon2: &Argon2<'_>, password: &[u8], salt: &[u8], out: &mut [u8]) -> bool {
        if argon2.params().m_cost() > MEMORY_KIB_MAX {
            return false;
        }
        let blocks = argon2.params().block_count();
        if self.0.len() < blocks {
            self.0.resize_with(blocks, Block::new);
        }
        argon2.hash_password_into_with_memory(password, salt, out, &mut self.0[..blocks]).is_ok()
    }
}

/// Formats a hash with argon2id's default parameters as a PHC string.
fn phc(salt: &[u8], hash: &[u8]) -> String {
    let (m, t, p) = (Params::DEFAULT_M_COST, Params::DEFAULT_T_COST, Params::DEFAULT_P_COST);
    let (salt, hash) = (STANDARD_NO_PAD.encode(salt), STANDARD_NO_PAD.encode(hash));
    format!("$argon2id$v=19$m={m},t={t},p={p}${salt}${hash}")
}

/// Makes a password of 24 random characters (about 140 bits) that a person can copy.
#[must_use]
pub fn generate_password() -> String {
    random_token().replace(['-', '_'], "x").chars().take(24).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_password_is_taken() {
        let mut space = Workspace::default();
        let hash = space.hash("correct horse battery").unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        assert!(space.verify("correct horse battery", Some(&hash)));
        assert!(!space.verify("correct horse batterz", Some(&hash)));
        assert!(!space.verify("", Some(&hash)));
        assert!(!space.verify("correct horse battery", None));
        for bad in ["not a hash", "$argon2id$v=19$m=19456,t=2,p=1$", &hash.replace("m=19456", "m=9999999")] {
            assert!(!space.verify("correct horse battery", Some(bad)), "{bad}");
        }
        assert_ne!(hash, space.hash("correct horse battery").unwrap(), "salted");
        assert_eq!(space.hash("short"), Err(PasswordError::Short(5)));
        assert_eq!(space.hash(&"x".repeat(2000)), Err(PasswordError::Long(2000)));
        assert!(space.hash(&generate_password()).is_ok());
        assert_eq!(space.0.len(), 19_456, "the memory of one hash, for all of them");
    }

    #[test]
    fn hashes_are_those_of_the_library() {
        use argon2::{PasswordHasher, PasswordVerifier};

        let mut space = Workspace::default();
        let ours = space.hash("correct horse battery").unwrap();
        assert!(Argon2::default().verify_password(b"correct horse battery", ours.as_str()).is_ok());
        let theirs = Argon2::default().hash_password_with_salt(b"correct horse battery", &[7; 16]).unwrap();
        assert!(space.verify("correct horse battery", Some(&theirs.to_string())));
    }
}
