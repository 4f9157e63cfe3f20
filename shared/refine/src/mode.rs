//! How sentences are ranked.

use std::fmt;
use std::str::FromStr;

/// How sentences are ranked. [`crate::capture_plan`] returns the attention to capture for a mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Attention of the question's last tokens (of calibrated heads if there are any), with words. The
    /// default.
    #[default]
    Attention,
    /// BM25 of the sentence against the question; needs no model.
    Bm25,
    /// Keeps everything.
    None,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::Attention, Self::Bm25, Self::None];

    /// Returns its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Bm25 => "bm25",
            Self::None => "none",
        }
    }
}

/// The text is not the name of a mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown refiner mode `{name}`, must be attention, bm25 or none")]
pub struct UnknownMode {
    name: String,
}

impl FromStr for Mode {
    type Err = UnknownMode;

    /// Reads a mode's name.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|mode| mode.as_str() == text);
        found.ok_or_else(|| UnknownMode { name: text.chars().take(64).collect() })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_names() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        for bad in ["", "Attention", "none ", "snapkv", "paper", "random:1"] {
            let said = bad.parse::<Mode>().unwrap_err().to_string();
            assert!(Mode::ALL.iter().all(|mode| said.contains(mode.as_str())), "{said}");
        }
    }
}
