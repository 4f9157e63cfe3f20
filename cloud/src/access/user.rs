//! Users: people who may see or change settings.

use std::fmt;
use std::str::FromStr;

use super::AccessError;

/// What a user may do. Each role includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// See settings.
    Viewer,
    /// Change scenes and device classes.
    Editor,
    /// Change tenants, keys and users.
    Admin,
}

impl Role {
    /// Every role, the least first.
    pub const ALL: [Role; 3] = [Role::Viewer, Role::Editor, Role::Admin];

    /// Returns its name in the database and on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Editor => "editor",
            Role::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = AccessError;

    fn from_str(text: &str) -> Result<Role, AccessError> {
        let known = Role::ALL.into_iter().find(|role| role.as_str() == text);
        known.ok_or_else(|| AccessError::Role(text.chars().take(64).collect()))
    }
}

/// A user, without the password's hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The name to log in with.
    pub name: String,
    /// Increased by 1 at every change.
    pub revision: u64,
    /// What they may do.
    pub role: Role,
    /// Whether the user may not log in.
    pub disabled: bool,
    /// When they were added, in milliseconds since 1970.
    pub created_ms: i64,
    /// When they were last changed, in milliseconds since 1970.
    pub updated_ms: i64,
    /// Who changed them last.
    pub updated_by: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_ordered() {
        assert!(Role::Viewer < Role::Editor && Role::Editor < Role::Admin);
        for role in Role::ALL {
            assert_eq!(role.to_string().parse(), Ok(role));
        }
        assert_eq!("root".parse::<Role>(), Err(AccessError::Role("root".into())));
    }
}
