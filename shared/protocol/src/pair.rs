//! Which model a device has, by name and version: a base and, for some scenes, an adapter of it.
//!
//! Pure. Versions are those of the model registry; a device without a registry sends none.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest name of a model in a registry, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// One version of a model, an adapter or a scorer, written `NAME@VERSION`. A version never changes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ModelVersion {
    name: String,
    version: u32,
}

/// A text that is no `NAME@VERSION`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no version of a model: want NAME@VERSION, a name of lower-case letters, digits and `-_.` (at most \
     {NAME_BYTES_MAX}) that begins with a letter or digit, and a version from 1"
)]
pub struct BadModelVersion(String);

impl ModelVersion {
    /// Makes a version of a model.
    ///
    /// # Errors
    /// [`BadModelVersion`] if the name cannot be one, or the version is 0.
    pub fn new(name: &str, version: u32) -> Result<Self, BadModelVersion> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
        let begins = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let fits = begins && name.len() <= NAME_BYTES_MAX && name.bytes().all(plain) && version > 0;
        if fits {
            return Ok(Self { name: name.to_owned(), version });
        }
        let name: String = name.chars().filter(|c| !c.is_control()).take(2 * NAME_BYTES_MAX).collect();
        Err(BadModelVersion(format!("{name}@{version}")))
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the version, from 1.
    pub fn version(&self) -> u32 {
        self.version
    }
}

impl fmt::Display for ModelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.version)
    }
}

impl FromStr for ModelVersion {
    type Err = BadModelVersion;

    fn from_str(text: &str) -> Result<Self, BadModelVersion> {
        let bad =
            || BadModelVersion(text.chars().filter(|c| !c.is_control()).take(2 * NAME_BYTES_MAX).collect());
        let (name, version) = text.split_once('@').ok_or_else(bad)?;
        // `+1` and `01` would be other texts for the same version.
        if version.starts_with(['0', '+']) {
            return Err(bad());
        }
        Self::new(name, version.parse().map_err(|_| bad())?).map_err(|_| bad())
    }
}

impl TryFrom<String> for ModelVersion {
    type Error = BadModelVersion;

    fn try_from(text: String) -> Result<Self, BadModelVersion> {
        text.parse()
    }
}

impl From<ModelVersion> for String {
    fn from(version: ModelVersion) -> Self {
        version.to_string()
    }
}

/// What a device answers with: a base and, if the scene has one, an adapter of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelPair {
    /// The base.
    pub base: ModelVersion,
    /// The adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<ModelVersion>,
}

impl ModelPair {
    /// Returns the base and the adapter.
    pub fn models(&self) -> impl Iterator<Item = &ModelVersion> {
        std::iter::once(&self.base).chain(&self.adapter)
    }
}

impl fmt::Display for ModelPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.adapter {
            Some(adapter) => write!(f, "{}+{adapter}", self.base),
            None => self.base.fmt(f),
        }
    }
}

impl FromStr for ModelPair {
    type Err = BadModelVersion;

    /// Reads `BASE@VERSION` or `BASE@VERSION+ADAPTER@VERSION`.
    fn from_str(text: &str) -> Result<Self, BadModelVersion> {
        let (base, adapter) = match text.split_once('+') {
            Some((base, adapter)) => (base, Some(adapter.parse()?)),
            None => (text, None),
        };
        Ok(Self { base: base.parse()?, adapter })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_pairs_read_back() {
        for text in ["smollm2-360m@1", "a@4294967295", "7b.q4_k@12"] {
            let version: ModelVersion = text.parse().unwrap();
            assert_eq!(version.to_string(), text);
            let json = serde_json::to_string(&version).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<ModelVersion>(&json).unwrap(), version);
        }
        for text in ["m@1", "m@2+law@7"] {
            let pair: ModelPair = text.parse().unwrap();
            assert_eq!(pair.to_string(), text);
            let json = serde_json::to_string(&pair).unwrap();
            assert_eq!(serde_json::from_str::<ModelPair>(&json).unwrap(), pair);
        }
        let pair: ModelPair = "m@2+law@7".parse().unwrap();
        let names: Vec<&str> = pair.models().map(ModelVersion::name).collect();
        assert_eq!(names, ["m", "law"]);
    }

    #[test]
    fn what_is_no_version_is_refused() {
        let long = format!("{}@1", "a".repeat(65));
        for bad in [
            "",
            "m",
            "m@",
            "@1",
            "m@0",
            "m@01",
            "m@+1",
            "m@-1",
            "m@1.0",
            "m@4294967296",
            "M@1",
            "a b@1",
            "a/b@1",
            "../m@1",
            ".m@1",
            "m@1@2",
            "é@1",
            long.as_str(),
        ] {
            assert!(bad.parse::<ModelVersion>().is_err(), "{bad}");
        }
        for bad in ["m@1+", "+a@1", "m@1+a@1+b@1", "m@1 + a@1"] {
            assert!(bad.parse::<ModelPair>().is_err(), "{bad}");
        }
        let told = "m\u{1b}[31m@1".parse::<ModelVersion>().unwrap_err().to_string();
        assert!(!told.contains('\u{1b}'), "{told}");
    }
}
