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

/// Thousandths of a share.
pub(crate) const THOUSAND: f32 = 1000.0;

/// How sentences are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ranking {
    /// A mode of the refiner.
    Mode(Mode),
    /// A mode that leaves out sentences whose value is less than this share of the best one's, in
    /// thousandths. So r is only the largest share that is kept.
    AtLeast(Mode, u16),
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
            Self::AtLeast(mode, least) => write!(f, "{mode}:{}", f32::from(*least) / THOUSAND),
            Self::Baseline(baseline) => baseline.fmt(f),
        }
    }
}

/// The text is not the name of a ranking.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown ranking `{name}`, must be attention, bm25, none, paper, tokens, gemfilter, chunk, streaming, perplexity, \
     random, random:SEED or MODE:SHARE"
)]
pub struct UnknownRanking {
    name: String,
}

impl FromStr for Ranking {
    type Err = UnknownRanking;

    /// Reads the name of a mode or of a baseline; `random` alone has seed 0. A share, 0 to 1, may follow a
    /// mode.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(mode) = text.parse::<Mode>() {
            return Ok(Self::Mode(mode));
        }
        if let Some(baseline) = Baseline::ALL.into_iter().find(|baseline| baseline.name() == text) {
            return Ok(Self::Baseline(baseline));
        }
        if let Some((mode, share)) = text.split_once(':')
            && let (Ok(mode), Ok(share)) = (mode.parse::<Mode>(), share.parse::<f32>())
            && (0.0..=1.0).contains(&share)
        {
            return Ok(Self::AtLeast(mode, (share * THOUSAND).round() as u16));
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
        let with_share = [0, 5, 250, 1000].map(|share| Ranking::AtLeast(Mode::Attention, share));
        let others = with_share.into_iter().chain([Baseline::Random { seed: u64::MAX }.into()]);
        for ranking in all.iter().copied().chain(others) {
            assert_eq!(ranking.to_string().parse(), Ok(ranking));
        }
        for bad in [
            "",
            "Attention",
            "random:",
            "random:-1",
            "random:x",
            "none ",
            "snapkv",
            "attention:",
            "attention:1.1",
            "paper:0.5",
        ] {
            let said = bad.parse::<Ranking>().unwrap_err().to_string();
            assert!(all.iter().all(|ranking| said.contains(&ranking.to_string())), "{said}");
        }
    }
}
