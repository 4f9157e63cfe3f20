//! The rankings and their names: the refiner's modes and the baselines.

use std::fmt;
use std::str::FromStr;

use baton_refine::Mode;

/// A ranking that the refiner does not offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Baseline {
    /// Sentences as in the P/D-Device paper: after max-pooling, every head votes for its top tokens.
    Paper,
    /// The tokens with the most votes, as in the paper. Sentences are ranked by their share of these tokens.
    Tokens,
    /// The tokens that one middle layer attends to most from the prompt's last token. Sentences are ranked by
    /// their share of these tokens.
    GemFilter,
    /// Chunks of ten tokens with the most attention. Sentences are ranked by their share of tokens in these
    /// chunks.
    Chunk,
    /// The start and the end of the content.
    Streaming,
    /// The sentences that a language model predicts worst.
    Perplexity,
    /// A random order of the sentences.
    Random {
        /// The same seed gives the same sentences.
        seed: u64,
    },
}

impl Baseline {
    /// Every baseline; the random one has seed 0.
    pub const ALL: [Self; 7] = [
        Self::Paper,
        Self::Tokens,
        Self::GemFilter,
        Self::Chunk,
        Self::Streaming,
        Self::Perplexity,
        Self::Random { seed: 0 },
    ];

    /// Returns the name without a seed.
    fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Tokens => "tokens",
            Self::GemFilter => "gemfilter",
            Self::Chunk => "chunk",
            Self::Streaming => "streaming",
            Self::Perplexity => "perplexity",
            Self::Random { .. } => "random",
        }
    }
}

impl fmt::Display for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random { seed } if *seed != 0 => write!(f, "random:{seed}"),
            baseline => f.write_str(baseline.name()),
        }
    }
}

/// How sentences are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ranking {
    /// A mode of the refiner.
    Mode(Mode),
    /// A baseline.
    Baseline(Baseline),
}

impl From<Mode> for Ranking {
    fn from(mode: Mode) -> Self {
        Self::Mode(mode)
    }
}

impl From<Baseline> for Ranking {
    fn from(baseline: Baseline) -> Self {
        Self::Baseline(baseline)
    }
}

impl fmt::Display for Ranking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mode(mode) => mode.fmt(f),
            Self::Baseline(baseline) => baseline.fmt(f),
        }
    }
}

/// The text is not the name of a ranking.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown ranking `{name}`, must be attention, bm25, none, paper, tokens, gemfilter, chunk, streaming, perplexity, \
     random or random:SEED"
)]
pub struct UnknownRanking {
    name: String,
}

impl FromStr for Ranking {
    type Err = UnknownRanking;

    /// Reads the name of a mode or of a baseline; `random` alone has seed 0.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(mode) = text.parse::<Mode>() {
            return Ok(Self::Mode(mode));
        }
        if let Some(baseline) = Baseline::ALL.into_iter().find(|baseline| baseline.name() == text) {
            return Ok(Self::Baseline(baseline));
        }
        let seed = text.strip_prefix("random:").and_then(|seed| seed.parse().ok());
        seed.map(|seed| Self::Baseline(Baseline::Random { seed }))
            .ok_or_else(|| UnknownRanking { name: text.chars().take(64).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rankings_have_names() {
        let modes = Mode::ALL.map(Ranking::Mode).into_iter();
        let baselines = Baseline::ALL.map(Ranking::Baseline).into_iter();
        let all: Vec<Ranking> = modes.chain(baselines).collect();
        for ranking in all.iter().copied().chain([Baseline::Random { seed: u64::MAX }.into()]) {
            assert_eq!(ranking.to_string().parse(), Ok(ranking));
        }
        for bad in ["", "Attention", "random:", "random:-1", "random:x", "none ", "snapkv"] {
            let said = bad.parse::<Ranking>().unwrap_err().to_string();
            assert!(all.iter().all(|ranking| said.contains(&ranking.to_string())), "{said}");
        }
    }
}
