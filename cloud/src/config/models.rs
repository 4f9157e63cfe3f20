//! Options of models and adapters: `--model`, `--adapter` and related ones.
//!
//! Never: opens a file; it only checks which files exist. Always: names are valid in scenes and requests. No
//! two models have the same name, and no two adapters of one model do.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use baton_protocol::is_model_name;
use clap::Args;

use super::ConfigError;
use crate::service::DEFAULT_MODEL;
use crate::service::upstream::EngineAddress;

/// Options about models, as written.
#[derive(Debug, Clone, Args)]
pub struct ModelOptions {
    /// GGUF file of a model, and its name in the API (else --model-name, or the file's name); may be given
    /// several times. The first model is the default. Each model has its own weights, KV cache of
    /// --kv-tokens, --slots and queue in memory. The models take turns to compute, so a request also waits
    /// for passes of other models
    #[arg(long, value_name = "[NAME=]FILE")]
    pub model: Vec<NamedFile>,
    /// GGUF file of a LoRA adapter that scenes may use (make one with `baton model adapter`), for the model
    /// MODEL or else the first one; may be given several times. It costs the memory of its file, and a few
    /// percent of the time of requests that use it
    #[arg(long, value_name = "NAME=FILE[@MODEL]")]
    pub adapter: Vec<String>,
    /// The most memory of all models together, as 12GB or 900MiB: files, copies and whole KV caches. A model
    /// is loaded when a request first needs it; the one that was not used for longest makes room. The
    /// default is no limit: all models are loaded at start
    #[arg(long, env = "BATON_MODELS_MEMORY", value_name = "SIZE")]
    pub models_memory: Option<MemoryLimit>,
    /// Load no model at start, not even the first one
    #[arg(long, env = "BATON_LAZY", value_parser = clap::builder::FalseyValueParser::new())]
    pub lazy: bool,
    /// Name of the first model in the API; the default is the file's name
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// Calibrated heads of the first model's refiner. The default, also for further models, is MODEL with
    /// .heads.json in place of .gguf, if that file exists
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
}

/// The most memory for models, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimit(pub u64);

/// Units of a size, and their bytes; longer names first.
const UNITS: [(&str, u64); 6] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("KB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

impl FromStr for MemoryLimit {
    type Err = String;

    /// Reads a number and a unit, as `12GB` or `1.5 GiB`.
    fn from_str(text: &str) -> Result<MemoryLimit, String> {
        let bytes = UNITS.iter().find_map(|(unit, factor)| {
            let number: f64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
            let bytes = number * *factor as f64;
            (bytes.is_finite() && (1.0..1e18).contains(&bytes)).then_some(bytes as u64)
        });
        bytes.map(MemoryLimit).ok_or_else(|| "it must be a size like 12GB or 900MiB".to_owned())
    }
}

/// A file, and a name for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFile {
    /// The name, if one is given.
    pub name: Option<String>,
    /// The file.
    pub path: PathBuf,
}

impl FromStr for NamedFile {
    type Err = String;

    /// Reads `NAME=FILE` or `FILE`. The text before `=` is a name if it contains no `/`.
    fn from_str(text: &str) -> Result<NamedFile, String> {
        let (name, path) = match text.split_once('=') {
            Some((name, path)) if !name.contains('/') => (Some(name.to_owned()), path),
            _ => (None, text),
        };
        if path.is_empty() {
            return Err("a file is missing".to_owned());
        }
        Ok(NamedFile { name, path: PathBuf::from(path) })
    }
}

/// A model to serve, as checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelConfig {
    /// Its name in the API.
    pub name: String,
    /// Its GGUF file.
    pub path: PathBuf,
    /// Calibrated heads of the refiner.
    pub calibration: Option<PathBuf>,
    /// Its adapters: names and files.
    pub adapters: Vec<(String, PathBuf)>,
    /// Engines that write its answers.
    pub engines: Vec<EngineAddress>,
}

impl ModelOptions {
    /// Checks the options. Returns at least one model, the default one first.
    pub(super) fn check(&self) -> Result<Vec<ModelConfig>, ConfigError> {
        if self.model.is_empty() {
            return Err(ConfigError::NoModel);
        }
        let mut models: Vec<ModelConfig> = Vec::with_capacity(self.model.len());
        for file in self.model.iter().cloned() {
            let first = models.is_empty();
            let name = match (file.name, &self.model_name) {
                (Some(name), Some(_)) if first => return Err(ConfigError::TwoNames(name)),
                (None, Some(name)) if first => name.clone(),
                (Some(name), _) => name,
                (None, _) => file.path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            };
            // `default` always means the first model.
            if !is_model_name(&name) || (!first && name == DEFAULT_MODEL) {
                return Err(ConfigError::ModelName(name));
            }
            if models.iter().any(|model| model.name == name) {
                return Err(ConfigError::DuplicateModel(name));
            }
            let beside = file.path.with_extension("heads.json");
            let beside = beside.is_file().then_some(beside);
            let named = self.calibration.clone().filter(|_| first);
            models.push(ModelConfig {
                name,
                path: file.path,
                calibration: named.or(beside),
                adapters: Vec::new(),
                engines: Vec::new(),
            });
        }
        for text in &self.adapter {
            add_adapter(&mut models, text)?;
        }
        Ok(models)
    }
}

/// Reads `NAME=FILE@MODEL`, or `NAME=FILE` for the first model. `@` is part of the file if no model follows
/// it.
fn add_adapter(models: &mut [ModelConfig], text: &str) -> Result<(), ConfigError> {
    let bad = || ConfigError::Adapter(text.chars().take(200).collect());
    let (name, rest) = text.split_once('=').ok_or_else(bad)?;
    let found = rest
        .rsplit_once('@')
        .and_then(|(file, model)| Some((file, models.iter().position(|known| known.name == model)?)));
    let (file, at) = match (found, rest.rsplit_once('@')) {
        (Some(found), _) => found,
        // Not the end of a path, so it is the name of an unknown model.
        (None, Some((_, model))) if !model.contains(['/', '.']) => {
            let models = models.iter().map(|model| model.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(ConfigError::AdapterModel {
                adapter: name.to_owned(),
                model: model.to_owned(),
                models,
            });
        }
        _ => (rest, 0),
    };
    if !is_model_name(name) || file.is_empty() {
        return Err(bad());
    }
    let model = &mut models[at];
    if model.adapters.iter().any(|(known, _)| known == name) {
        return Err(ConfigError::DuplicateAdapter { adapter: name.to_owned(), model: model.name.clone() });
    }
    model.adapters.push((name.to_owned(), Path::new(file).to_owned()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: ModelOptions,
    }

    fn checked(words: &[&str]) -> Result<Vec<ModelConfig>, String> {
        let line = Line::try_parse_from(["serve"].iter().chain(words)).map_err(|err| err.to_string())?;
        line.options.check().map_err(|err| err.to_string())
    }

    /// Name, file, and its adapters' names and files.
    type Wanted<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);

    #[track_caller]
    fn check(words: &[&str], want: &[Wanted<'_>]) {
        let models = checked(words).unwrap();
        let have: Vec<_> = models
            .iter()
            .map(|model| {
                let adapters: Vec<_> = model
                    .adapters
                    .iter()
                    .map(|(name, path)| (name.as_str(), path.to_str().unwrap()))
                    .collect();
                (model.name.as_str(), model.path.to_str().unwrap(), adapters)
            })
            .collect();
        let want: Vec<_> =
            want.iter().map(|(name, path, adapters)| (*name, *path, adapters.to_vec())).collect();
        assert_eq!(have, want, "{words:?}");
    }

    #[track_caller]
    fn refused(words: &[&str], want: &str) {
        let err = checked(words).unwrap_err();
        assert!(err.contains(want), "{words:?}: {err}");
    }

    #[test]
    fn models_and_adapters_have_names() {
        check(&["--model", "d/m.gguf"], &[("m", "d/m.gguf", &[])]);
        check(&["--model", "m.gguf", "--model-name", "x"], &[("x", "m.gguf", &[])]);
        check(&["--model", "./a=b.gguf"], &[("a=b", "./a=b.gguf", &[])]);
        check(
            &[
                "--model",
                "big=d/m.gguf",
                "--model",
                "n.gguf",
                "--adapter",
                "law=l.gguf@n",
                "--adapter",
                "law=k@2.gguf",
            ],
            &[("big", "d/m.gguf", &[("law", "k@2.gguf")]), ("n", "n.gguf", &[("law", "l.gguf")])],
        );
    }

    #[test]
    fn a_size_has_a_unit() {
        for (text, want) in [("12GB", 12_000_000_000), ("1.5 MiB", 3 << 19), ("900KiB", 900 << 10)] {
            assert_eq!(text.parse(), Ok(MemoryLimit(want)), "{text}");
        }
        for bad in ["", "12", "GB", "-1GB", "0GB", "NaNGB", "infGB", "2TB"] {
            assert!(bad.parse::<MemoryLimit>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_cannot_be_told_apart_is_refused() {
        refused(&["--model", "a=m.gguf", "--model-name", "x"], "`a` and --model-name");
        refused(&["--model", "m.gguf", "--model", "d/m.gguf"], "two models are named `m`");
        refused(&["--model", "m.gguf", "--model", "default=d/m.gguf"], "model name `default`");
        refused(&["--model", "a b=m.gguf"], "model name `a b`");
        refused(&["--model", "a="], "a file is missing");
        refused(&["--model", "m.gguf", "--adapter", "l.gguf"], "adapter `l.gguf` must be NAME=FILE");
        refused(&["--model", "m.gguf", "--adapter", "l="], "adapter `l=` must be NAME=FILE");
        refused(
            &["--model", "m.gguf", "--adapter", "l=l.gguf@n"],
            "adapter `l` is of model `n`; models are: m",
        );
        refused(
            &["--model", "m.gguf", "--adapter", "l=l.gguf", "--adapter", "l=k.gguf"],
            "model `m` has two adapters named `l`",
        );
    }
}
