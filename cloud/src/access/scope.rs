//! Scopes: the calls that an API key allows.

use std::fmt;
use std::str::FromStr;

use super::AccessError;

/// One kind of call that a key may allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// `POST /v1/assist`, the calls that continue an answer, and `/v1/registry`: what a device needs.
    Assist,
    /// `POST /v1/chat/completions` and `POST /v1/completions`.
    Chat,
    /// `GET /v1/scenes`.
    ScenesRead,
    /// `GET /v1/stats`.
    Stats,
}

impl Scope {
    /// Every scope that exists.
    pub const ALL: [Scope; 4] = [Scope::Assist, Scope::Chat, Scope::ScenesRead, Scope::Stats];

    /// Returns its name in the database and on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Assist => "assist",
            Scope::Chat => "chat",
            Scope::ScenesRead => "scenes:read",
            Scope::Stats => "stats",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = AccessError;

    fn from_str(text: &str) -> Result<Scope, AccessError> {
        let known = Scope::ALL.into_iter().find(|scope| scope.as_str() == text);
        known.ok_or_else(|| AccessError::Scope(text.chars().take(64).collect()))
    }
}

/// A set of scopes, never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    /// Every scope.
    pub const ALL: Scopes = Scopes(0b1111);

    /// Returns what a device needs: `assist` and `scenes:read`.
    #[must_use]
    pub fn device() -> Scopes {
        Scopes(bit(Scope::Assist) | bit(Scope::ScenesRead))
    }

    /// Makes a set of these scopes.
    ///
    /// # Errors
    /// [`AccessError::NoScope`] if there are none.
    pub fn new(scopes: impl IntoIterator<Item = Scope>) -> Result<Scopes, AccessError> {
        match scopes.into_iter().fold(0, |set, scope| set | bit(scope)) {
            0 => Err(AccessError::NoScope),
            set => Ok(Scopes(set)),
        }
    }

    /// Returns whether the set contains this scope.
    #[must_use]
    pub fn allow(self, scope: Scope) -> bool {
        self.0 & bit(scope) != 0
    }

    /// Returns its scopes, in a fixed order.
    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |&scope| self.allow(scope))
    }
}

fn bit(scope: Scope) -> u8 {
    1 << scope as u8
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, scope) in self.iter().enumerate() {
            write!(f, "{}{scope}", if index == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

impl FromStr for Scopes {
    type Err = AccessError;

    /// Parses names that are separated by spaces or commas; `all` is every scope.
    fn from_str(text: &str) -> Result<Scopes, AccessError> {
        if text.trim() == "all" {
            return Ok(Scopes::ALL);
        }
        let names = text.split([' ', ',']).filter(|name| !name.is_empty());
        Scopes::new(names.map(str::parse).collect::<Result<Vec<Scope>, AccessError>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_print_and_parse() {
        let check = |text: &str, want: &str| {
            assert_eq!(text.parse::<Scopes>().unwrap().to_string(), want, "{text}");
        };
        check("chat,assist", "assist chat");
        check("assist", "assist");
        check("stats scenes:read stats", "scenes:read stats");
        check("all", "assist chat scenes:read stats");
        assert_eq!("".parse::<Scopes>(), Err(AccessError::NoScope));
        assert_eq!("admin".parse::<Scopes>(), Err(AccessError::Scope("admin".into())));
        let device = Scopes::device();
        assert!(device.allow(Scope::Assist) && device.allow(Scope::ScenesRead));
        assert!(!device.allow(Scope::Chat) && !device.allow(Scope::Stats));
    }
}
