//! The option that says where proposed tokens come from.
//!
//! Opens the draft model's file if one is named; nothing else.

use std::path::PathBuf;
use std::str::FromStr;

use baton_engine::{EngineOptions, Model, ModelError};

use super::{DraftError, Drafts, Lookups, Policy, Proposer, SpeculationLimits};

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

/// A source of proposals, and how many are worth asking for.
pub type ProposerWithLimits = (Box<dyn Proposer>, SpeculationLimits);

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
    /// Makes the source of proposals for `model`, with its limits; a draft model gets an engine of its own
    /// with `options`.
    ///
    /// # Errors
    /// [`SpeculationError`] if the draft model cannot be used.
    pub fn proposer(
        &self,
        model: &Model,
        options: EngineOptions,
    ) -> Result<Option<ProposerWithLimits>, SpeculationError> {
        let lookups = |policy| -> Option<ProposerWithLimits> {
            Some((Box::new(Lookups::default()), SpeculationLimits::lookup(policy)))
        };
        match self {
            Self::Off => Ok(None),
            Self::Auto => Ok(lookups(Policy::WhenItPays)),
            Self::Lookup => Ok(lookups(Policy::Always)),
            Self::Draft(path) => {
                let draft = Model::open(path)
                    .map_err(|err| SpeculationError::Open { path: path.clone(), err: Box::new(err) })?;
                let drafts = Drafts::new(model, draft, options)
                    .map_err(|err| SpeculationError::Draft { path: path.clone(), err })?;
                Ok(Some((Box::new(drafts), SpeculationLimits::draft(Policy::WhenItPays))))
            }
        }
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
