//! How sentences are ranked.

use std::fmt;
use std::str::FromStr;

/// How sentences are ranked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Attention of the question's last tokens, by calibrated heads where there are some. The default.
    #[default]
    Attention,
    /// The P/D-Device paper's: all heads vote with their top tokens after max-pooling.
    Paper,
    /// BM25 of the sentence against the question; needs no model.
    Bm25,
    /// At random, for comparison.
    Random {
        /// Same seed, same mask.
        seed: u64,
    },
    /// Everything is kept.
    None,
}

/// Not the name of a mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown refiner mode `{name}`, must be attention, paper, bm25, random, random:SEED or none")]
pub struct UnknownMode {
    name: String,
}

impl FromStr for Mode {
    type Err = UnknownMode;

    /// Reads a mode's name; `random` alone has seed 0.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownMode { name: text.chars().take(64).collect() };
        match text {
            "attention" => Ok(Self::Attention),
            "paper" => Ok(Self::Paper),
            "bm25" => Ok(Self::Bm25),
            "random" => Ok(Self::Random { seed: 0 }),
            "none" => Ok(Self::None),
            _ => {
                let seed = text.strip_prefix("random:").and_then(|seed| seed.parse().ok());
                seed.map(|seed| Self::Random { seed }).ok_or_else(unknown)
            }
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attention => f.write_str("attention"),
            Self::Paper => f.write_str("paper"),
            Self::Bm25 => f.write_str("bm25"),
            Self::Random { seed: 0 } => f.write_str("random"),
            Self::Random { seed } => write!(f, "random:{seed}"),
            Self::None => f.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_names() {
        for mode in [
            Mode::Attention,
            Mode::Paper,
            Mode::Bm25,
            Mode::Random { seed: 0 },
            Mode::Random { seed: u64::MAX },
            Mode::None,
        ] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        for bad in ["", "Attention", "random:", "random:-1", "random:x", "none "] {
            assert!(bad.parse::<Mode>().is_err(), "{bad}");
        }
    }
}
