//! What is said about models, and requests about them.

use std::time::SystemTime;

use serde::Deserialize;
use serde_json::{Value, json};

use super::VERSION;
use super::request::plain_name;
use crate::clock::rfc3339;
use crate::error::FieldError;
use crate::request::parsed;

/// When a model that is never unloaded is unloaded. Ollama's own program shows such a time as "Forever".
const NEVER: &str = "9999-12-31T23:59:59Z";
/// How Ollama's users name the hub.
const HUBS: [&str; 2] = ["hf.co/", "huggingface.co/"];

/// What is known of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFacts {
    /// The name that requests take.
    pub name: String,
    /// The family, such as `llama`.
    pub family: Option<String>,
    /// The number format of most weights, such as `Q4_K`.
    pub format: Option<String>,
    /// Number of weights.
    pub weights: u64,
    /// Tokens of prompt and answer together.
    pub context_tokens: Option<u64>,
    /// Bytes of its files.
    pub bytes: u64,
    /// SHA-256 of its file in hexadecimal, if it is known.
    pub sha256: Option<String>,
    /// When its file was written.
    pub modified: SystemTime,
    /// Its licence, if it names one.
    pub licence: Option<String>,
    /// Whether its template knows thinking.
    pub thinks: bool,
    /// Whether its answers may call tools here.
    pub calls_tools: bool,
}

impl ModelFacts {
    fn details(&self) -> Value {
        let family = self.family.as_deref().unwrap_or_default();
        let families: Vec<&str> = self.family.iter().map(String::as_str).collect();
        json!({
            "parent_model": "", "format": "gguf", "family": family, "families": families,
            "parameter_size": size(self.weights),
            "quantization_level": self.format.as_deref().unwrap_or_default(),
        })
    }

    /// Makes the entry of a list.
    fn card(&self) -> Value {
        json!({
            "name": self.name, "model": self.name, "size": self.bytes,
            "digest": self.sha256.as_deref().unwrap_or_default(), "details": self.details(),
        })
    }
}

/// Returns the reply of `/api/version`.
pub fn version() -> Value {
    json!({ "version": VERSION, "baton": env!("CARGO_PKG_VERSION") })
}

/// Returns the reply of `/api/tags`: the models that may be asked.
pub fn tags(models: &[ModelFacts]) -> Value {
    let card = |model: &ModelFacts| {
        let mut card = model.card();
        card["modified_at"] = json!(rfc3339(model.modified));
        card
    };
    json!({ "models": models.iter().map(card).collect::<Vec<_>>() })
}

/// Returns the reply of `/api/ps`: the models that are loaded.
pub fn ps(models: &[ModelFacts]) -> Value {
    let card = |model: &ModelFacts| {
        let mut card = model.card();
        card["expires_at"] = json!(NEVER);
        card["context_length"] = json!(model.context_tokens);
        card
    };
    json!({ "models": models.iter().map(card).collect::<Vec<_>>() })
}

/// Returns the reply of `/api/show`.
pub fn show(model: &ModelFacts) -> Value {
    let mut info = json!({ "general.parameter_count": model.weights });
    if let Some(family) = &model.family {
        info["general.architecture"] = json!(family);
        if let Some(tokens) = model.context_tokens {
            info[format!("{family}.context_length")] = json!(tokens);
        }
    }
    let can = [("completion", true), ("thinking", model.thinks), ("tools", model.calls_tools)];
    let can: Vec<&str> = can.into_iter().filter_map(|(name, can)| can.then_some(name)).collect();
    json!({
        "license": model.licence.as_deref().unwrap_or_default(), "details": model.details(),
        "model_info": info, "capabilities": can, "modified_at": rfc3339(model.modified),
    })
}

/// A request about a model.
#[derive(Debug, Deserialize)]
struct ShowBody {
    model: Option<String>,
    /// The older name of `model`.
    name: Option<String>,
}

/// Reads a request of `/api/show`, and returns the model's name.
///
/// # Errors
/// [`FieldError`] with the name of the wrong field.
pub fn read_show(json: &[u8]) -> Result<String, FieldError> {
    let (body, _) = parsed::<ShowBody>(json)?;
    named(body.model, body.name).map(|name| plain_name(&name).to_owned())
}

/// A request to pull a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullRequest {
    /// Where it comes from: `hf:OWNER/REPO:WHICH` or `pypi:NAME==VERSION`.
    pub source: String,
    /// Whether progress is sent.
    pub stream: bool,
}

#[derive(Debug, Deserialize)]
struct PullBody {
    model: Option<String>,
    /// The older name of `model`.
    name: Option<String>,
    stream: Option<bool>,
    insecure: Option<bool>,
}

/// Reads a request of `/api/pull`. Models are named as Ollama names those of a hub
/// (`hf.co/OWNER/REPO:Q4_K_M`), or as `baton model pull` does.
///
/// # Errors
/// [`FieldError`] with the name of the wrong field.
pub fn read_pull(json: &[u8]) -> Result<PullRequest, FieldError> {
    let (body, _) = parsed::<PullBody>(json)?;
    if body.insecure == Some(true) {
        return Err(FieldError::new("insecure", "is not supported; connections are always checked"));
    }
    let stream = body.stream.unwrap_or(true);
    let name = named(body.model, body.name)?;
    let name = name.strip_prefix("https://").unwrap_or(&name);
    let source = match HUBS.iter().find_map(|hub| name.strip_prefix(hub)) {
        Some(rest) => format!("hf:{}", plain_name(rest)),
        None if name.starts_with("hf:") || name.starts_with("pypi:") => name.to_owned(),
        None => {
            let message = "Ollama's own library is not served; name a hub's repository \
                (`hf.co/OWNER/REPO:Q4_K_M`) or a package (`pypi:NAME==VERSION`)";
            return Err(FieldError::new("model", message));
        }
    };
    Ok(PullRequest { source, stream })
}

fn named(model: Option<String>, name: Option<String>) -> Result<String, FieldError> {
    let given = [model, name].into_iter().flatten().find(|name| !name.is_empty());
    given.ok_or_else(|| FieldError::new("model", "is missing"))
}

/// Returns one line of a pull's progress.
pub fn pull_status(status: &str, progress: Option<(u64, u64)>) -> String {
    let mut line = json!({ "status": status });
    if let Some((done, of)) = progress {
        (line["total"], line["completed"]) = (json!(of), json!(done));
    }
    format!("{line}\n")
}

/// Formats a number of weights, such as `134.5M`.
fn size(weights: u64) -> String {
    let (unit, letter) = match weights {
        1_000_000_000.. => (1e9, "B"),
        1_000_000.. => (1e6, "M"),
        1_000.. => (1e3, "K"),
        _ => return weights.to_string(),
    };
    format!("{:.1}{letter}", weights as f64 / unit)
}
