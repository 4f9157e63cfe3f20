//! What a model file says about itself, for lists and for people.

use std::collections::BTreeMap;
use std::path::Path;

use baton_engine::gguf::{Gguf, GgufError};
use serde::{Deserialize, Serialize};

/// Most characters of a text from a file that are kept.
const TEXT_CHARS_MAX: usize = 200;

/// What a model file says about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The model's own name.
    pub title: Option<String>,
    /// The family: `general.architecture`.
    pub family: Option<String>,
    /// The number format of most of the weights' bytes.
    pub format: Option<String>,
    /// Number of weights.
    pub weights: u64,
    /// Tokens of the context that it was trained for.
    pub context: Option<u64>,
    /// Whether it has a chat template.
    pub has_template: bool,
    /// The licence that it names.
    pub licence: Option<String>,
}

impl About {
    /// Reads what the model at `path` says; for a split model that of its first file. Keys of other types
    /// than usual are not there.
    ///
    /// # Errors
    /// [`GgufError`] if it is no GGUF file.
    pub fn of(path: &Path) -> Result<Self, GgufError> {
        let gguf = Gguf::open(path)?;
        let metadata = gguf.metadata();
        let text = |key: &str| {
            let found = metadata.opt_str(key).ok().flatten().filter(|text| !text.is_empty())?;
            Some(found.chars().take(TEXT_CHARS_MAX).collect::<String>())
        };
        let family = text("general.architecture");
        let context = family
            .as_ref()
            .and_then(|family| metadata.opt_u64(&format!("{family}.context_length")).ok().flatten());
        let (mut bytes_of, mut weights) = (BTreeMap::<&str, u64>::new(), 0_u64);
        for tensor in gguf.tensors() {
            *bytes_of.entry(tensor.type_name()).or_default() += tensor.data_len() as u64;
            weights = weights.saturating_add(tensor.dims().iter().product());
        }
        let most = bytes_of.into_iter().max_by_key(|(_, bytes)| *bytes);
        Ok(Self {
            title: text("general.name"),
            format: most.map(|(name, _)| name.to_owned()),
            weights,
            context,
            has_template: text("tokenizer.chat_template").is_some(),
            licence: text("general.license"),
            family,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_kernels_cpu::Format;
    use baton_synthetic::SyntheticModel;

    #[test]
    fn a_model_says_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        let model = SyntheticModel::small("llama", Format::Q8_0, 1);
        std::fs::write(&path, model.to_gguf().unwrap()).unwrap();
        let about = About::of(&path).unwrap();
        assert_eq!(about.family.as_deref(), Some("llama"));
        assert_eq!((about.format.as_deref(), about.context), (Some("Q8_0"), Some(1024)));
        assert!(about.has_template && about.weights > 500_000, "{about:?}");
        assert!(About::of(&folder.path().join("none.gguf")).is_err());
    }
}
