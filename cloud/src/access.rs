//! Who may do what: tenants and their API keys, users and their roles.
//!
//! Checked types that the store, the API and the console share. Pure, except for the counters of
//! [`crate::gate`] and the queues of [`hashing`]. Never: stores a key, a password or a session's token;
//! only hashes leave this module. Always: a secret is looked up by its SHA-256, so that the time does not
//! depend on how much of a guess was right.

pub mod book;
pub mod class;
pub mod hashing;
pub mod key;
pub mod password;
pub mod scope;
pub mod tenant;
pub mod user;

pub use self::book::{AccessBook, Caller, Denied};
pub use self::class::{ClassCost, DeviceClass, DeviceClassSettings};
pub use self::key::{ApiKey, KeySecret};
pub use self::password::PasswordError;
pub use self::scope::{Scope, Scopes};
pub use self::tenant::{Tenant, TenantSettings};
pub use self::user::{Role, User};

/// The tenant of the static key, and of a service on loopback that needs no key. A migration creates it.
pub const DEFAULT_TENANT: &str = "default";
/// The longest time until a key expires, in days.
pub const KEY_DAYS_MAX: u32 = 3650;
/// The longest label or note, in bytes.
pub const LABEL_BYTES_MAX: usize = 1024;

/// A value that is not valid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AccessError {
    /// A name that cannot be part of a path.
    #[error("{what} `{name}` must be 1 to 64 letters, digits, `-`, `_` or `.`")]
    Name {
        /// What it names.
        what: &'static str,
        /// The name, at most 64 characters of it.
        name: String,
    },
    /// A text is too long.
    #[error("{what} has {bytes} bytes, the limit is {LABEL_BYTES_MAX}")]
    Label {
        /// Which text.
        what: &'static str,
        /// Its length in bytes.
        bytes: usize,
    },
    /// A text holds NUL.
    #[error("{what} must not hold the character U+0000")]
    Nul {
        /// Which text.
        what: &'static str,
    },
    /// A number is out of its bounds.
    #[error("field `{field}` is {value}, must be {want}")]
    Number {
        /// Which field.
        field: &'static str,
        /// The value.
        value: String,
        /// The bounds.
        want: &'static str,
    },
    /// An unknown scope.
    #[error("unknown scope `{0}`, must be one of assist, chat, scenes:read, stats")]
    Scope(String),
    /// No scope at all.
    #[error("a key needs at least one scope of assist, chat, scenes:read, stats")]
    NoScope,
    /// An unknown role.
    #[error("unknown role `{0}`, must be `viewer`, `editor` or `admin`")]
    Role(String),
    /// A password that is not valid.
    #[error(transparent)]
    Password(#[from] PasswordError),
}

/// Checks the name of a tenant, a class or a user.
///
/// # Errors
/// [`AccessError::Name`] if it is empty, too long, or holds anything but ASCII letters, digits, `-`, `_` and
/// `.`.
pub fn check_name(what: &'static str, name: &str) -> Result<(), AccessError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if (1..=64).contains(&name.len()) && name.bytes().all(plain) && name != "." && name != ".." {
        return Ok(());
    }
    Err(AccessError::Name { what, name: name.chars().take(64).collect() })
}

/// Checks a label or a note before it is stored.
///
/// # Errors
/// [`AccessError::Label`] if it is too long, [`AccessError::Nul`] if it holds NUL, which PostgreSQL cannot
/// store.
pub fn check_label(what: &'static str, text: &str) -> Result<(), AccessError> {
    if text.len() > LABEL_BYTES_MAX {
        return Err(AccessError::Label { what, bytes: text.len() });
    }
    if text.contains('\0') {
        return Err(AccessError::Nul { what });
    }
    Ok(())
}

/// Who makes a change, as the audit log shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor(String);

impl Actor {
    /// A user who has logged in.
    #[must_use]
    pub fn user(name: &str) -> Actor {
        Actor(format!("user:{name}"))
    }

    /// The command line of this program.
    #[must_use]
    pub fn cli() -> Actor {
        Actor("cli".to_owned())
    }

    /// The program itself.
    #[must_use]
    pub fn service() -> Actor {
        Actor("service".to_owned())
    }

    /// Returns the actor as the audit log shows it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_into_a_path() {
        for name in ["a", "team-1", "A.b_c", &"x".repeat(64)] {
            assert_eq!(check_name("tenant", name), Ok(()), "{name}");
        }
        for name in ["", ".", "..", "a/b", "a b", "ü", "a\n", &"x".repeat(65)] {
            assert!(check_name("tenant", name).is_err(), "{name}");
        }
        let err = check_name("tenant", "a/b").unwrap_err().to_string();
        assert_eq!(err, "tenant `a/b` must be 1 to 64 letters, digits, `-`, `_` or `.`");
        assert!(check_label("note", &"x".repeat(1024)).is_ok());
        let err = check_label("note", &"x".repeat(1025)).unwrap_err().to_string();
        assert_eq!(err, "note has 1025 bytes, the limit is 1024");
        let err = check_label("note", "a\0b").unwrap_err().to_string();
        assert_eq!(err, "note must not hold the character U+0000");
    }
}
