//! Passwords: argon2id, and the same work for a user that there is not.
//!
//! Slow on purpose (tens of milliseconds, 19 MiB): never on a thread of the runtime.

use std::sync::LazyLock;

use argon2::{Argon2, PasswordHasher, PasswordVerifier};

use super::key::{random_bytes, random_token};

/// The shortest password, in characters.
pub const PASSWORD_CHARS_MIN: usize = 12;
/// The longest, in bytes: argon2 reads all of it.
pub const PASSWORD_BYTES_MAX: usize = 1024;

/// A password that is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PasswordError {
    /// Too short.
    #[error("the password has {0} characters, the least is {PASSWORD_CHARS_MIN}")]
    Short(usize),
    /// Too long.
    #[error("the password has {0} bytes, the limit is {PASSWORD_BYTES_MAX}")]
    Long(usize),
}

/// What a stranger's password is checked against, so that it takes as long as a user's.
static NOBODY: LazyLock<String> = LazyLock::new(|| argon2id(&random_token()));

/// argon2id of a password (19 MiB, 2 passes, as OWASP has it), as a PHC string.
///
/// # Errors
/// [`PasswordError`] where it is too short or too long.
pub fn hash_password(password: &str) -> Result<String, PasswordError> {
    let chars = password.chars().count();
    if chars < PASSWORD_CHARS_MIN {
        return Err(PasswordError::Short(chars));
    }
    if password.len() > PASSWORD_BYTES_MAX {
        return Err(PasswordError::Long(password.len()));
    }
    Ok(argon2id(password))
}

/// Whether this is the password of `hash`; for no hash (no such user) it computes as much and says no.
#[must_use]
pub fn verify_password(password: &str, hash: Option<&str>) -> bool {
    // Made whoever asks first, so that the first stranger does not wait longer.
    let nobody = NOBODY.as_str();
    let (checked, known) = hash.map_or((nobody, false), |hash| (hash, true));
    let password = if password.len() > PASSWORD_BYTES_MAX { "" } else { password };
    let right = Argon2::default().verify_password(password.as_bytes(), checked).is_ok();
    right && known
}

/// A password of 120 random bits that a person can copy.
#[must_use]
pub fn generate_password() -> String {
    random_token().replace(['-', '_'], "x").chars().take(24).collect()
}

fn argon2id(password: &str) -> String {
    Argon2::default()
        .hash_password_with_salt(password.as_bytes(), &random_bytes::<16>())
        .expect("argon2's defaults take any password below 4 GiB and a salt of 16 bytes")
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_password_is_taken() {
        let hash = hash_password("correct horse battery").unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        assert!(verify_password("correct horse battery", Some(&hash)));
        assert!(!verify_password("correct horse batterz", Some(&hash)));
        assert!(!verify_password("", Some(&hash)));
        assert!(!verify_password("correct horse battery", None));
        assert!(!verify_password("correct horse battery", Some("not a hash")));
        assert_ne!(hash, hash_password("correct horse battery").unwrap(), "salted");
        assert_eq!(hash_password("short"), Err(PasswordError::Short(5)));
        assert_eq!(hash_password(&"x".repeat(2000)), Err(PasswordError::Long(2000)));
        assert!(hash_password(&generate_password()).is_ok());
    }
}
