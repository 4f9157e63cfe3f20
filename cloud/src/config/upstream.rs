//! Options of engines that write the answers of models: `--upstream` and related ones.
//!
//! Never: asks an engine.

use std::path::PathBuf;
use std::time::Duration;

use baton_protocol::is_model_name;
use clap::Args;

use super::{ConfigError, ModelConfig, numbers, secret_in};
use crate::service::upstream::{EngineAddress, UpstreamOptions};

/// Longest time that an option here may say.
const MS_MAX: u64 = 3_600_000;

/// Options about engines, as written.
#[derive(Debug, Clone, Args)]
pub struct UpstreamArgs {
    /// An engine that writes the answers of model NAME: vLLM, SGLang, TGI, llama-server, or any other with
    /// OpenAI's API; may be given several times. The file of --model NAME=FILE is then the scorer: it makes
    /// the masks and lays prompts out, and a small model is enough. With the engine's own tokenizer and chat
    /// template, prompts and answers go as token ids, tools included. ENGINE_MODEL is the engine's name for
    /// its model, if it has several
    #[arg(long, value_name = "NAME=URL[#ENGINE_MODEL]", env = "BATON_UPSTREAM", value_delimiter = ' ')]
    pub upstream: Vec<String>,
    /// File with the key of the engines, sent to them as a bearer token
    #[arg(long, value_name = "FILE", env = "BATON_UPSTREAM_KEY_FILE")]
    pub upstream_key_file: Option<PathBuf>,
    /// Longest time to an engine's first token. Another engine is asked if one fails before
    #[arg(long, default_value = "60000", value_name = "MS", value_parser = numbers::whole::<u64>)]
    pub upstream_first_token_ms: u64,
    /// Longest time between two events of an engine's answer
    #[arg(long, default_value = "15000", value_name = "MS", value_parser = numbers::whole::<u64>)]
    pub upstream_silence_ms: u64,
    /// Ask a second engine too if the first token takes longer than this; 0 for never
    #[arg(long, default_value = "0", value_name = "MS", value_parser = numbers::whole::<u64>)]
    pub upstream_hedge_ms: u64,
    /// Longest time that a first token waits for the scorer's mask. Without a mask the device reads the whole
    /// prompt
    #[arg(long, default_value = "1000", value_name = "MS", value_parser = numbers::whole::<u64>)]
    pub upstream_mask_ms: u64,
    /// The most requests that one engine has from this service at the same time
    #[arg(long, default_value = "256", value_name = "N", value_parser = numbers::whole::<usize>)]
    pub upstream_places: usize,
    /// Header for a gateway before the engines: equal for prompts that begin alike
    #[arg(long, value_name = "HEADER")]
    pub upstream_affinity_header: Option<String>,
}

impl UpstreamArgs {
    /// Checks the options, and gives each model its engines.
    pub(super) fn check(&self, models: &mut [ModelConfig]) -> Result<UpstreamOptions, ConfigError> {
        for text in &self.upstream {
            let (name, engine) = engine(text)?;
            let Some(model) = models.iter_mut().find(|model| model.name == name) else {
                let models = models.iter().map(|model| model.name.as_str()).collect::<Vec<_>>().join(", ");
                return Err(ConfigError::UpstreamModel { engine: engine.url, model: name, models });
            };
            if !model.adapters.is_empty() {
                return Err(ConfigError::UpstreamAdapter(name));
            }
            if model.engines.contains(&engine) {
                return Err(ConfigError::DuplicateUpstream(format!("engine `{name}={}`", engine.url)));
            }
            model.engines.push(engine);
        }
        let ms = |option, value: u64, min: u64| match value {
            _ if (min..=MS_MAX).contains(&value) => Ok(Duration::from_millis(value)),
            _ => Err(ConfigError::Number {
                option,
                value: value.to_string(),
                want: "milliseconds, at most one hour",
            }),
        };
        let hedge = ms("--upstream-hedge-ms", self.upstream_hedge_ms, 0)?;
        let places = self.upstream_places;
        if !(1..=65_536).contains(&places) {
            let value = places.to_string();
            return Err(ConfigError::Number { option: "--upstream-places", value, want: "from 1 to 65536" });
        }
        Ok(UpstreamOptions {
            key: self
                .upstream_key_file
                .as_deref()
                .map(|path| secret_in("--upstream-key-file", path))
                .transpose()?,
            first_token: ms("--upstream-first-token-ms", self.upstream_first_token_ms, 1)?,
            silence: ms("--upstream-silence-ms", self.upstream_silence_ms, 1)?,
            hedge: (!hedge.is_zero()).then_some(hedge),
            mask_wait: ms("--upstream-mask-ms", self.upstream_mask_ms, 0)?,
            places,
            affinity_header: self.upstream_affinity_header.clone(),
        })
    }
}

/// Reads `NAME=URL` or `NAME=URL#ENGINE_MODEL`.
fn engine(text: &str) -> Result<(String, EngineAddress), ConfigError> {
    let bad = || ConfigError::Upstream(text.chars().take(200).collect());
    let (name, url) = text.split_once('=').ok_or_else(bad)?;
    let (url, model) = match url.split_once('#') {
        Some((url, model)) if !model.is_empty() => (url, Some(model.to_owned())),
        Some(_) => return Err(bad()),
        None => (url, None),
    };
    let is_http = url.starts_with("http://") || url.starts_with("https://");
    // A password would stand in the log and the console; keys have a file.
    if !is_model_name(name) || !is_http || url.contains('@') {
        return Err(bad());
    }
    Ok((name.to_owned(), EngineAddress { url: url.trim_end_matches('/').to_owned(), model }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: UpstreamArgs,
    }

    fn models() -> Vec<ModelConfig> {
        let model = |name: &str| ModelConfig {
            name: name.into(),
            path: "m.gguf".into(),
            calibration: None,
            adapters: Vec::new(),
            engines: Vec::new(),
        };
        vec![model("chat"), ModelConfig { adapters: vec![("law".into(), "l.gguf".into())], ..model("law") }]
    }

    fn check(words: &[&str]) -> Result<(UpstreamOptions, Vec<ModelConfig>), String> {
        let line = Line::try_parse_from([&["x"], words].concat()).map_err(|err| err.to_string())?;
        let mut models = models();
        let options = line.options.check(&mut models).map_err(|err| err.to_string())?;
        Ok((options, models))
    }

    #[test]
    fn engines_belong_to_models() {
        let words = ["--upstream", "chat=http://a:8000/", "--upstream", "chat=https://b/v1#big"];
        let (options, models) = check(&words).unwrap();
        let engine =
            |url: &str, model: Option<&str>| EngineAddress { url: url.into(), model: model.map(Into::into) };
        assert_eq!(models[0].engines, [engine("http://a:8000", None), engine("https://b/v1", Some("big"))]);
        assert_eq!(options, UpstreamOptions::default(), "the defaults are the same in both places");
        assert_eq!(check(&["--upstream-hedge-ms", "300"]).unwrap().0.hedge, Some(Duration::from_millis(300)));
    }

    #[test]
    fn what_is_wrong_is_told() {
        let refused = |words: &[&str], want: &str| {
            let why = check(words).map(|_| ()).unwrap_err();
            assert!(why.contains(want), "{why}");
        };
        refused(&["--upstream", "http://a"], "must be NAME=URL");
        refused(&["--upstream", "chat=a:8000"], "must be NAME=URL");
        refused(&["--upstream", "chat=http://a#"], "must be NAME=URL");
        refused(&["--upstream", "chat=http://me:secret@a"], "must be NAME=URL");
        refused(&["--upstream", "other=http://a"], "models are: chat, law");
        refused(&["--upstream", "law=http://a"], "`law` has adapters");
        refused(&["--upstream", "chat=http://a", "--upstream", "chat=http://a/"], "twice");
        refused(&["--upstream-silence-ms", "0"], "--upstream-silence-ms is 0");
        refused(&["--upstream-places", "0"], "--upstream-places is 0");
        refused(&["--upstream-key-file", "/nonexistent/key"], "`/nonexistent/key`");
    }
}
