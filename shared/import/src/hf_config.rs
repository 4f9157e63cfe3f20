//! `config.json` of a model folder, and `generation_config.json` next to it.

use std::path::Path;

use crate::error::ImportError;
use crate::json::{JsonFile, as_count};

/// A model folder's settings.
#[derive(Debug)]
pub(crate) struct HfConfig {
    /// `config.json`.
    pub(crate) json: JsonFile,
    /// `generation_config.json`, if there is one.
    generation: Option<JsonFile>,
}

impl HfConfig {
    /// Reads the files of a folder.
    pub(crate) fn open(dir: &Path) -> Result<HfConfig, ImportError> {
        let json = JsonFile::open(dir.join("config.json"))?;
        if json.get("quantization_config").is_some() {
            return Err(json.unsupported("quantization_config", "none: weights in F32, F16 or BF16"));
        }
        let generation = JsonFile::open_if_there(dir.join("generation_config.json"))?;
        Ok(HfConfig { json, generation })
    }

    /// Returns the model's class, the first of `architectures`.
    pub(crate) fn class(&self) -> Result<&str, ImportError> {
        let classes = self.json.get("architectures").and_then(|value| value.as_array());
        let class = classes.and_then(|classes| classes.first()?.as_str());
        class.ok_or_else(|| self.json.unsupported("architectures", "a list of class names"))
    }

    /// Returns the width of a head: the key `head_dim`, else the model's width divided by the number of
    /// heads.
    pub(crate) fn d_head(&self) -> Result<u32, ImportError> {
        if let Some(d_head) = self.json.opt_count("head_dim")? {
            return Ok(d_head);
        }
        let (e, h) = (self.json.count("hidden_size")?, self.json.count("num_attention_heads")?);
        if e.is_multiple_of(h) {
            return Ok(e / h);
        }
        Err(self.json.unsupported("hidden_size", format!("a multiple of the {h} attention heads")))
    }

    /// Returns the number of key and value heads; as many as query heads if the file does not say.
    pub(crate) fn n_kv_heads(&self) -> Result<u32, ImportError> {
        let heads = self.json.count("num_attention_heads")?;
        Ok(self.json.opt_count("num_key_value_heads")?.unwrap_or(heads))
    }

    /// Returns the ids that end an answer: those of `generation_config.json`, else those of `config.json`.
    pub(crate) fn end_ids(&self) -> Vec<u32> {
        let ids = |json: &JsonFile| {
            let value = json.get("eos_token_id")?;
            let one_or_many = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
            // Id 0 is a valid token.
            Some(one_or_many.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect())
        };
        self.generation.as_ref().and_then(ids).or_else(|| ids(&self.json)).unwrap_or_default()
    }

    /// Returns a special token's id by its key in `config.json`, if that is one number.
    pub(crate) fn token_id(&self, key: &str) -> Option<u32> {
        let value = self.json.get(key)?;
        if value.as_u64() == Some(0) { Some(0) } else { as_count(value) }
    }

    /// Fails if a key has another value than `want`, which the engine does not compute with.
    pub(crate) fn require_f64(&self, key: &str, want: f64) -> Result<(), ImportError> {
        match self.json.opt_f64(key)? {
            Some(found) if found != want => Err(self.json.unsupported(key, want.to_string())),
            _ => Ok(()),
        }
    }
}
