//! Tokens that begin and end texts, whether they are added, and the chat templates.
//!
//! Sources: `tokenizer_config.json` names tokens by text, `config.json` by id. The post-processor of
//! `tokenizer.json` takes precedence over `tokenizer_config.json`. `generation_config.json` may name more
//! tokens that end an answer; they become the end-of-turn and end-of-message tokens.

use std::path::Path;

use baton_engine::gguf::GgufWriter;
use serde_json::Value;

use super::pieces::{AddedToken, Pieces};
use crate::error::ImportError;
use crate::hf_config::HfConfig;
use crate::json::{JsonFile, read_file};

/// The most bytes of a template's file.
const TEMPLATE_BYTES_MAX: u64 = 4 << 20;

/// Keys in the folder (before `_token` and `_token_id`) and in the file.
const IDS: &[(&str, &str)] = &[
    ("bos", "tokenizer.ggml.bos_token_id"),
    ("eos", "tokenizer.ggml.eos_token_id"),
    ("unk", "tokenizer.ggml.unknown_token_id"),
    ("pad", "tokenizer.ggml.padding_token_id"),
];
/// Keys for further ends of an answer, in the order in which they are used.
const ENDS: &[&str] = &["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// Special tokens and templates.
#[derive(Debug, Default)]
pub(super) struct Special {
    ids: Vec<(&'static str, u32)>,
    adds_bos: Option<bool>,
    adds_eos: Option<bool>,
    /// Keys and template sources.
    templates: Vec<(String, String)>,
}

impl Special {
    /// Reads all special tokens and templates of a folder.
    pub(super) fn read(
        dir: &Path,
        config: &HfConfig,
        json: Option<&JsonFile>,
        settings: Option<&JsonFile>,
        added: &[AddedToken],
    ) -> Result<Special, ImportError> {
        let mut special = Special::default();
        for &(name, key) in IDS {
            let text = settings.and_then(|settings| token_text(settings, &format!("{name}_token")));
            let by_text = text.and_then(|text| added.iter().find(|token| token.text == text));
            let by_text = by_text.and_then(|token| u32::try_from(token.id).ok());
            if let Some(id) = by_text.or_else(|| config.token_id(&format!("{name}_token_id"))) {
                special.ids.push((key, id));
            }
        }
        let ends = config.end_ids();
        let eos = special.id("tokenizer.ggml.eos_token_id");
        if let (None, Some(&first)) = (eos, ends.first()) {
            special.ids.push(("tokenizer.ggml.eos_token_id", first));
        }
        let eos = special.id("tokenizer.ggml.eos_token_id");
        let further = ends.iter().filter(|end| Some(**end) != eos);
        special.ids.extend(ENDS.iter().copied().zip(further.copied()));
        special.read_added(json, settings)?;
        special.templates = templates(dir, settings)?;
        Ok(special)
    }

    fn id(&self, key: &str) -> Option<u32> {
        self.ids.iter().find(|(found, _)| *found == key).map(|(_, id)| *id)
    }

    /// Reads whether texts get a token at their beginning and end.
    fn read_added(
        &mut self,
        json: Option<&JsonFile>,
        settings: Option<&JsonFile>,
    ) -> Result<(), ImportError> {
        let processor = json.and_then(|json| json.get("post_processor"));
        let steps =
            match processor.and_then(|processor| processor.get("processors")).and_then(Value::as_array) {
                Some(steps) => steps.iter().collect(),
                None => processor.into_iter().collect::<Vec<_>>(),
            };
        for step in steps {
            match step.get("type").and_then(Value::as_str) {
                Some("ByteLevel") => {
                    self.adds_bos.get_or_insert(false);
                    self.adds_eos.get_or_insert(false);
                }
                Some("TemplateProcessing") => {
                    let single = step.get("single").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                    let is_token =
                        |part: Option<&Value>| part.is_some_and(|part| part.get("SpecialToken").is_some());
                    self.adds_bos = Some(single.len() > 1 && is_token(single.first()));
                    self.adds_eos = Some(single.len() > 1 && is_token(single.last()));
                }
                _ => {}
            }
        }
        if let Some(settings) = settings {
            self.adds_bos = self.adds_bos.or(settings.opt_bool("add_bos_token")?);
            self.adds_eos = self.adds_eos.or(settings.opt_bool("add_eos_token")?);
        }
        Ok(())
    }

    /// Fails if an id has no token.
    pub(super) fn check(&self, pieces: &Pieces) -> Result<(), ImportError> {
        let len = pieces.texts.len();
        match self.ids.iter().find(|(_, id)| *id as usize >= len) {
            Some((key, id)) => {
                let what = format!("`{key}` is {id}, the vocabulary has {len} tokens");
                Err(ImportError::Tokenizer { path: "config.json".into(), what })
            }
            None => Ok(()),
        }
    }

    /// Writes the keys.
    pub(super) fn write(&self, writer: &mut GgufWriter<'_>) {
        for (key, id) in &self.ids {
            writer.set(key, *id);
        }
        for (key, adds) in
            [("tokenizer.ggml.add_bos_token", self.adds_bos), ("tokenizer.ggml.add_eos_token", self.adds_eos)]
        {
            if let Some(adds) = adds {
                writer.set(key, adds);
            }
        }
        for (key, source) in &self.templates {
            writer.set(key, source.as_str());
        }
        let named = self.templates.iter().filter_map(|(key, _)| key.strip_prefix("tokenizer.chat_template."));
        let named: Vec<String> = named.map(str::to_owned).collect();
        if !named.is_empty() {
            writer.set("tokenizer.chat_templates", named);
        }
    }
}

/// Returns a special token's text: given as a string, or in an object with flags.
fn token_text<'a>(settings: &'a JsonFile, key: &str) -> Option<&'a str> {
    let value = settings.get(key)?;
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// Returns keys and sources of the chat templates: from `tokenizer_config.json`, else from a file of their
/// own.
fn templates(dir: &Path, settings: Option<&JsonFile>) -> Result<Vec<(String, String)>, ImportError> {
    const KEY: &str = "tokenizer.chat_template";
    let in_settings =
        settings.and_then(|settings| settings.get("chat_template").map(|value| (settings, value)));
    if let Some((settings, value)) = in_settings {
        let named = |entry: &Value| {
            let name: &str = entry.get("name")?.as_str()?;
            let key = if name == "default" { KEY.to_owned() } else { format!("{KEY}.{name}") };
            Some((key, entry.get("template")?.as_str()?.to_owned()))
        };
        let read = match value {
            Value::String(source) => Some(vec![(KEY.to_owned(), source.clone())]),
            Value::Array(entries) => entries.iter().map(named).collect(),
            _ => None,
        };
        return read
            .ok_or_else(|| settings.unsupported("chat_template", "a template, or a list of named ones"));
    }
    let path = dir.join("chat_template.jinja");
    if let Some(bytes) = read_file(&path, TEMPLATE_BYTES_MAX)? {
        let what = "the chat template is not utf-8".to_owned();
        let source = String::from_utf8(bytes).map_err(|_| ImportError::Tokenizer { path, what })?;
        return Ok(vec![(KEY.to_owned(), source)]);
    }
    let json = JsonFile::open_if_there(dir.join("chat_template.json"))?;
    let source = json.as_ref().map(|json| json.opt_str("chat_template")).transpose()?.flatten();
    Ok(source.map(|source| (KEY.to_owned(), source.to_owned())).into_iter().collect())
}
