//! Speculative decoding on this device: the option, and the tokens that one decoding pass proposes.

use super::{Job, LocalEngine, Stage};
use baton_engine::speculation::{
    Draft, DraftError, Lookup, Policy, Proposer, SpeculationStats, Speculator, Writing,
};
use baton_engine::tokenizer::TokenId;
use baton_engine::{EngineOptions, Model, ModelError, StepControl, StepError};
use std::path::PathBuf;
use std::str::FromStr;

/// Where proposed tokens come from. The choice never changes the answer, only its speed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Speculation {
    /// From earlier tokens of prompt and answer, while that is faster.
    #[default]
    Auto,
    /// No tokens are proposed.
    Off,
    /// From earlier tokens, always.
    Lookup,
    /// From a smaller model with the same tokenizer, while that is faster.
    Draft(PathBuf),
}

/// Why the option cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpeculationError {
    /// The option's value is not known.
    #[error("`{0}` is not a way to propose tokens: want auto, off, lookup or draft=FILE")]
    Unknown(String),
    /// The draft model's file cannot be used.
    #[error("open draft model `{path}`")]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        err: Box<ModelError>,
    },
    /// The draft model does not fit the model.
    #[error("use draft model `{path}`")]
    Draft {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        err: DraftError,
    },
}

impl FromStr for Speculation {
    type Err = SpeculationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.strip_prefix("draft=")) {
            ("auto", _) => Ok(Self::Auto),
            ("off", _) => Ok(Self::Off),
            ("lookup", _) => Ok(Self::Lookup),
            (_, Some(path)) if !path.is_empty() => Ok(Self::Draft(path.into())),
            _ => Err(SpeculationError::Unknown(text.to_owned())),
        }
    }
}

impl Speculation {
    /// Makes the speculator for `model`; a draft model gets an engine of its own with `options`.
    ///
    /// # Errors
    /// [`SpeculationError`] if the draft model cannot be used.
    pub fn speculator(
        &self,
        model: &Model,
        options: EngineOptions,
    ) -> Result<Option<Speculator>, SpeculationError> {
        let lookup = |policy| Speculator::new(Proposer::Lookup(Lookup::default()), policy);
        match self {
            Self::Off => Ok(None),
            Self::Auto => Ok(Some(lookup(Policy::WhenItPays))),
            Self::Lookup => Ok(Some(lookup(Policy::Always))),
            Self::Draft(path) => {
                let draft = Model::open(path)
                    .map_err(|err| SpeculationError::Open { path: path.clone(), err: Box::new(err) })?;
                let draft = Draft::new(model, draft, options)
                    .map_err(|err| SpeculationError::Draft { path: path.clone(), err })?;
                Ok(Some(Speculator::new(Proposer::Draft(Box::new(draft)), Policy::WhenItPays)))
            }
        }
    }
}

/// What one decoding pass did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decoded {
    /// Number of proposed tokens that it checked.
    pub proposed: usize,
    /// Number of tokens that it wrote, at least 1.
    pub written: usize,
}

impl LocalEngine {
    /// Uses `speculator` to propose tokens from now on.
    #[must_use]
    pub fn with_speculation(mut self, speculator: Option<Speculator>) -> Self {
        self.speculator = speculator;
        self
    }

    /// Returns the results of speculation so far; `None` if no tokens are proposed.
    pub fn speculation(&self) -> Option<SpeculationStats> {
        self.speculator.as_ref().map(Speculator::stats)
    }

    /// Records how long a decoding pass took, in milliseconds. How many tokens are worth proposing depends on
    /// it.
    pub fn took(&mut self, decoded: Decoded, ms: f64) {
        if let Some(speculator) = &mut self.speculator {
            speculator.took(decoded.proposed, decoded.written, ms);
        }
    }

    /// Proposes tokens that may follow the answer so far, at most as many as answer and cache have room for.
    pub(super) fn proposed(
        &mut self,
        job: &Job,
        control: &mut dyn StepControl,
    ) -> Result<Vec<TokenId>, StepError> {
        let (Some(speculator), Stage::Decode(decoder)) = (&mut self.speculator, &job.stage) else {
            return Ok(Vec::new());
        };
        if decoder.is_healing() {
            return Ok(Vec::new());
        }
        let of_answer = job.spec.tokens_max.saturating_sub(decoder.index + 1);
        let of_cache = self.capacity.saturating_sub(job.ids.len() + decoder.ids.len());
        let writing = Writing { prompt: &job.ids, answer: &decoder.ids, sampler: &job.sampler };
        speculator.propose(writing, of_answer.min(of_cache), control)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_read_or_refused() {
        for (text, want) in [
            ("auto", Speculation::Auto),
            ("off", Speculation::Off),
            ("lookup", Speculation::Lookup),
            ("draft=a b.gguf", Speculation::Draft("a b.gguf".into())),
        ] {
            assert_eq!(text.parse::<Speculation>().unwrap(), want);
        }
        for bad in ["", "on", "draft", "draft=", "Auto"] {
            let err = bad.parse::<Speculation>().unwrap_err();
            assert!(err.to_string().contains("want auto, off, lookup or draft=FILE"), "{err}");
        }
    }
}
