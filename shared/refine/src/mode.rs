//! How sentences are ranked.

use std::fmt;
use std::str::FromStr;

/// How sentences are ranked. What a mode must be given: [`crate::needs`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Attention of the question's last tokens, by calibrated heads where there are some. The default.
    #[default]
    Attention,
    /// The P/D-Device paper's sentences: all heads vote with their top tokens after max-pooling.
    Paper,
    /// The paper's tokens: those that most heads vote for. Sentences by their share of them.
    Tokens,
    /// Tokens that one middle layer sees from the prompt's last token. Sentences by their share of them.
    GemFilter,
    /// Chunks of ten tokens by the attention on them. Sentences by their share of the chunks.
    Chunk,
    /// BM25 of the sentence against the question; needs no model.
    Bm25,
    /// The start and the end of the content, whatever they say.
    Streaming,
    /// Sentences that a language model finds surprising.
    Perplexity,
    /// At random, for comparison.
    Random {
        /// Same seed, same mask.
        seed: u64,
    },
    /// Everything is kept.
    None,
}

impl Mode {
    /// Every mode; the random one with seed 0.
    pub const ALL: [Self; 10] = [
        Self::Attention,
        Self::Paper,
        Self::Tokens,
        Self::GemFilter,
        Self::Chunk,
        Self::Bm25,
        Self::Streaming,
        Self::Perplexity,
        Self::Random { seed: 0 },
        Self::None,
    ];
}

/// Not the name of a mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown refiner mode `{name}`, must be attention, paper, tokens, gemfilter, chunk, bm25, streaming, perplexity, \
     random, random:SEED or none"
)]
pub struct UnknownMode {
    name: String,
}

impl FromStr for Mode {
    type Err = UnknownMode;

    /// Reads a mode's name; `random` alone has seed 0.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(mode) = Self::ALL.into_iter().find(|mode| mode.name() == text) {
            return Ok(mode);
        }
        let seed = text.strip_prefix("random:").and_then(|seed| seed.parse().ok());
        seed.map(|seed| Self::Random { seed })
            .ok_or_else(|| UnknownMode { name: text.chars().take(64).collect() })
    }
}

impl Mode {
    /// The name without a seed.
    fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Paper => "paper",
            Self::Tokens => "tokens",
            Self::GemFilter => "gemfilter",
            Self::Chunk => "chunk",
            Self::Bm25 => "bm25",
            Self::Streaming => "streaming",
            Self::Perplexity => "perplexity",
            Self::Random { .. } => "random",
            Self::None => "none",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random { seed } if *seed != 0 => write!(f, "random:{seed}"),
            mode => f.write_str(mode.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_names() {
        for mode in Mode::ALL.into_iter().chain([Mode::Random { seed: u64::MAX }]) {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        for bad in ["", "Attention", "random:", "random:-1", "random:x", "none ", "snapkv"] {
            let said = bad.parse::<Mode>().unwrap_err().to_string();
            assert!(Mode::ALL.iter().all(|mode| said.contains(mode.name())), "{said}");
        }
    }
}
