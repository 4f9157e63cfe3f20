//! An opened model: configuration, weights, tokenizer and chat template of one GGUF file or of a split one.
//!
//! Everything is checked when the file is opened; afterwards a [`Model`] is read-only and shared by engines.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use sha2::{Digest, Sha256};

use crate::config::{ConfigError, ModelConfig};
use crate::gguf::{Gguf, GgufError};
use crate::template::{ChatTemplate, TemplateError};
use crate::tokenizer::{TokenId, Tokenizer, TokenizerError};
use crate::turns::{template_without, turn_end};
use crate::weights::{
    self, MappedWeights, Residency, ResidencyError, StreamedWeights, TensorError, WeightSource,
};

/// Why a file is not a model that the engine can run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The file cannot be read as GGUF.
    #[error("open model file")]
    Gguf(#[from] GgufError),
    /// Its metadata is incomplete, out of range or not supported.
    #[error("model configuration")]
    Config(#[from] ConfigError),
    /// Its tensors do not fit its metadata.
    #[error("model tensors")]
    Tensors(#[from] TensorError),
    /// Its vocabulary cannot be used.
    #[error("model tokenizer")]
    Tokenizer(#[from] TokenizerError),
    /// Its chat template cannot be used.
    #[error("model chat template")]
    Template(#[from] TemplateError),
    /// Its weights cannot be streamed.
    #[error("model residency")]
    Residency(#[from] ResidencyError),
    /// The tokenizer and the embedding table do not belong together.
    #[error("tokenizer has {tokens} tokens, the embedding table has {rows} rows: must be as many")]
    VocabularyLen {
        /// The tokenizer's tokens.
        tokens: usize,
        /// The table's rows.
        rows: usize,
    },
}

/// The storage of a model's weights.
enum Weights {
    Mapped(Box<MappedWeights>),
    Streamed(Box<StreamedWeights>),
}

/// How to keep a model's weights when it is opened.
enum Keep<'a> {
    /// Mapped, with repacked copies of up to this many bytes.
    Repacked(u64),
    /// Partly in memory; the rest is read for every token.
    Within(&'a Residency),
}

/// A model, ready to run.
pub struct Model {
    gguf: Arc<Gguf>,
    config: ModelConfig,
    weights: Weights,
    /// `None` if only some layers are computed, since a vocabulary takes tens of megabytes.
    text: Option<Text>,
    name: String,
    sha256: OnceLock<String>,
}

/// The tokenizer and the chat template.
struct Text {
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    /// Whether the file has no template of its own.
    template_missing: bool,
    /// The text that ends a turn, if no token does.
    turn_end: Option<String>,
}

impl Text {
    fn read(gguf: &Gguf, rows: usize) -> Result<Self, ModelError> {
        let tokenizer = Arc::new(Tokenizer::from_gguf(gguf)?);
        let tokens = tokenizer.vocab_len();
        if tokens != rows {
            return Err(ModelError::VocabularyLen { tokens, rows });
        }
        let (template, template_missing) = template(gguf, &tokenizer)?;
        let turn_end = turn_end(&tokenizer, &template);
        Ok(Self { tokenizer, template, template_missing, turn_end })
    }
}

impl Model {
    /// Opens and checks a GGUF file; if it is the first of a split model, also the files after it.
    ///
    /// # Errors
    /// [`ModelError`] if the file is not a valid model.
    pub fn open(path: &Path) -> Result<Arc<Self>, ModelError> {
        Self::open_repacked(path, 0)
    }

    /// As [`Self::open`], with up to `budget` bytes of memory for copies of weights in an order that is read
    /// faster. No logit depends on it. The copies stay in memory, while mapped weights can be dropped and
    /// read again.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_repacked(path: &Path, budget: u64) -> Result<Arc<Self>, ModelError> {
        Self::read(Gguf::open(path)?, &Keep::Repacked(budget))
    }

    /// As [`Self::open`], for a device whose memory cannot hold all weights it computes with. As many as
    /// `residency` allows stay in memory; the others are read from the disk for every token. No logit depends
    /// on it. Layers that are not listed are not read and cannot be run. Without its ends, a model has no
    /// text either.
    ///
    /// # Errors
    /// As [`Self::open`], and [`ModelError::Residency`].
    pub fn open_within(path: &Path, residency: &Residency) -> Result<Arc<Self>, ModelError> {
        Self::read(Gguf::open(path)?, &Keep::Within(residency))
    }

    /// Makes a model from an opened file, which may be bytes in memory.
    ///
    /// # Errors
    /// [`ModelError`] if the file is not a valid model.
    pub fn from_gguf(gguf: Gguf) -> Result<Arc<Self>, ModelError> {
        Self::read(gguf, &Keep::Repacked(0))
    }

    fn read(gguf: Gguf, keep: &Keep<'_>) -> Result<Arc<Self>, ModelError> {
        let gguf = Arc::new(gguf);
        if let Keep::Within(_) = keep {
            // Before norms are read, which lie between large matrices.
            gguf.read_only_what_is_touched();
        }
        let mut config = ModelConfig::from_gguf(&gguf, weights::vocab_len(&gguf)?)?;
        config.rope.freq_divisors = weights::rope_divisors(&gguf, &config)?;
        let mut weights = MappedWeights::new(Arc::clone(&gguf), &config)?;
        let weights = match keep {
            Keep::Repacked(budget) => {
                weights.repack(*budget);
                Weights::Mapped(Box::new(weights))
            }
            Keep::Within(residency) => Weights::Streamed(Box::new(StreamedWeights::new(weights, residency)?)),
        };
        let has_ends = !matches!(keep, Keep::Within(residency) if !residency.ends);
        let text = has_ends.then(|| Text::read(&gguf, config.vocab_len)).transpose()?;
        let name = name(&gguf)?;
        gguf.intact()?;
        Ok(Arc::new(Self { gguf, config, weights, text, name, sha256: OnceLock::new() }))
    }

    /// Returns the model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the source of its weights.
    pub fn weights(&self) -> &dyn WeightSource {
        match &self.weights {
            Weights::Mapped(weights) => &**weights,
            Weights::Streamed(weights) => &**weights,
        }
    }

    /// Returns the weights as the file has them, which a GPU copies to its memory.
    pub(crate) fn mapped_weights(&self) -> &MappedWeights {
        match &self.weights {
            Weights::Mapped(weights) => weights,
            Weights::Streamed(weights) => weights.mapped(),
        }
    }

    /// Returns the stored bytes of the matrices of all layers, experts included.
    pub fn layer_weight_bytes(&self) -> u64 {
        let weights = self.mapped_weights();
        (0..self.config().n_layers).map(|layer| weights.layer_bytes(layer)).sum()
    }

    /// Returns the streamed weights, to query and change what stays in memory, if it was opened by
    /// [`Self::open_within`].
    pub fn streamed(&self) -> Option<&StreamedWeights> {
        match &self.weights {
            Weights::Mapped(_) => None,
            Weights::Streamed(weights) => Some(weights),
        }
    }

    /// Returns its tokenizer.
    ///
    /// # Panics
    /// If it was opened without its ends ([`Residency::ends`]), since layers alone need no text.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.text().tokenizer
    }

    /// Returns its chat template. A file without one gets ChatML if its vocabulary has the marks, else a
    /// template that lets the model continue a text.
    ///
    /// # Panics
    /// As [`Self::tokenizer`].
    pub fn template(&self) -> &ChatTemplate {
        &self.text().template
    }

    /// Whether its file has no chat template. Most such models were trained to continue text, not to answer.
    ///
    /// # Panics
    /// As [`Self::tokenizer`].
    pub fn template_is_missing(&self) -> bool {
        self.text().template_missing
    }

    /// Returns texts that end a turn in its template, if no token does: an answer ends before one of them.
    ///
    /// # Panics
    /// As [`Self::tokenizer`].
    pub fn turn_ends(&self) -> Vec<String> {
        self.text().turn_end.iter().cloned().collect()
    }

    fn text(&self) -> &Text {
        self.text.as_ref().expect("only a model with its ends is given text")
    }

    /// Returns the name in its metadata, else the file's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of the file (of the first one of a split model), if it was opened by path.
    pub fn path(&self) -> Option<&Path> {
        self.gguf.path()
    }

    /// Checks that its file was complete as far as it was read. On failure, results computed since the last
    /// check must be discarded.
    ///
    /// # Errors
    /// [`GgufError::CutShort`], permanently.
    pub fn intact(&self) -> Result<(), GgufError> {
        self.gguf.intact()
    }

    /// Advice: its weights are not needed for now. The system may drop what it has mapped of the file, and
    /// reads it again when it is needed.
    pub fn let_go(&self) {
        for (index, part) in self.gguf.parts().enumerate() {
            self.gguf.let_go(index, 0..part.len());
        }
    }

    /// Returns a digest that tells the model from others ([`Gguf::fingerprint`]), without reading every byte.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.gguf.fingerprint()
    }

    /// Returns the SHA-256 of the file in lower-case hex; for a split model, of its parts one after the other
    /// (`cat NAME-*.gguf | sha256sum`). Reads every byte on the first call and is free afterwards.
    pub fn file_sha256(&self) -> &str {
        self.sha256.get_or_init(|| {
            let mut digest = Sha256::new();
            self.gguf.parts().for_each(|part| digest.update(part));
            hex::encode(digest.finalize())
        })
    }
}

/// Prints the shape only: the rest is as large as the file.
impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("name", &self.name)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

fn name(gguf: &Gguf) -> Result<String, GgufError> {
    let from_path = || gguf.path().map(PathBuf::from)?.file_stem()?.to_str().map(str::to_owned);
    Ok(match gguf.metadata().opt_str("general.name")?.filter(|name| !name.is_empty()) {
        Some(name) => name.to_owned(),
        None => from_path().unwrap_or_else(|| "unnamed".to_owned()),
    })
}

/// Returns the template, and whether the file has none of its own.
fn template(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<(ChatTemplate, bool), ModelError> {
    let given = gguf.metadata().opt_str("tokenizer.chat_template")?;
    let source = given.unwrap_or_else(|| template_without(tokenizer));
    let text = |id: Option<TokenId>| {
        id.map_or_else(String::new, |id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned())
    };
    Ok((ChatTemplate::new(source, &text(tokenizer.bos()), &text(tokenizer.eos()))?, given.is_none()))
}

#[cfg(test)]
mod tests {
    use baton_kernels_cpu::Format;
    use baton_synthetic::{ExtraValue, SyntheticModel};

    use super::*;
    use crate::rope::RopeScaling;

    fn open(bytes: Vec<u8>) -> Result<Arc<Model>, ModelError> {
        Model::from_gguf(Gguf::from_bytes(bytes)?)
    }

    #[test]
    fn a_stretch_without_a_kind_is_linear() {
        let scaling = |extra: &[(&'static str, ExtraValue)]| {
            let model =
                SyntheticModel { extra: extra.to_vec(), ..SyntheticModel::small("llama", Format::F32, 1) };
            open(model.to_gguf().unwrap()).unwrap().config().rope.scaling
        };
        let factor = |name| (name, ExtraValue::F32(4.0));
        let linear = RopeScaling::Linear { factor: 4.0 };
        assert_eq!(scaling(&[factor("rope.scaling.factor")]), linear);
        assert_eq!(scaling(&[factor("rope.scale_linear")]), linear);
        assert_eq!(
            scaling(&[("rope.scale_linear", ExtraValue::F32(2.0)), factor("rope.scaling.factor")]),
            linear
        );
        assert_eq!(scaling(&[("rope.scaling.factor", ExtraValue::F32(0.0))]), RopeScaling::None);
        assert_eq!(scaling(&[]), RopeScaling::None);
    }

    #[test]
    fn a_model_without_a_template_continues_a_text_to_a_blank_line() {
        let bytes = SyntheticModel::small("llama", Format::F32, 7).to_gguf().unwrap();
        let own = open(bytes.clone()).unwrap();
        assert!(!own.template_is_missing());
        // The same file with its template under an unknown key.
        let (name, other) = (b"tokenizer.chat_template", b"tokenizer.chat_templaTE");
        let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
        let bytes = [&bytes[..at], other, &bytes[at + name.len()..]].concat();
        let base = open(bytes).unwrap();
        assert!(base.template_is_missing());
        assert_eq!(base.turn_ends(), ["\n\n"]);
    }
}
