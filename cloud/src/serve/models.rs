//! Opens the files of models, at the start and whenever one is needed.
//!
//! At the start every model is opened once, so that a wrong file is refused by name, and its facts are known.
//! One that is needed at once stays open until its first load.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::Context as _;
use baton_engine::gguf::Gguf;
use baton_engine::{Adapter, Engine, EngineError, EngineOptions, Model};
use baton_generate::speculation::Speculation;
use baton_refine::{Calibration, QualityCurves};
use tracing::{info, warn};

use super::console::read_curves;
use super::gpu::Engines;
use crate::config::{Config, ModelConfig};
use crate::service::{CloudService, LoadError, ModelFacts, ModelLoader, ModelSetup, ServiceOptions};

/// The models as they were opened at the start.
pub(super) struct Opened {
    /// Each of them, the default first.
    setups: Vec<ModelSetup>,
    /// Quality curves of the default model, if they are configured and fit.
    pub(super) curves: Option<QualityCurves>,
    /// Opens them again.
    loader: Loader,
}

/// Opens models by their configuration.
pub(super) struct Loader {
    models: Vec<Configured>,
    engines: Mutex<Engines>,
    repack_bytes: u64,
}

struct Configured {
    config: ModelConfig,
    /// For the first load, if it was to stay open.
    first: Mutex<Option<ModelSetup>>,
    /// Heads that were found to fit the file with this fingerprint. To check them, the whole file is read.
    checked: Mutex<Option<([u8; 32], Option<Calibration>)>>,
}

/// Whether a model is loaded before the service listens.
fn is_needed_at_once(config: &Config, at: usize) -> bool {
    !config.lazy && (at == 0 || config.models_memory.is_none())
}

/// Opens every model and its adapters.
///
/// # Errors
/// Why a file cannot be used.
pub(super) fn open(config: &Config) -> anyhow::Result<Opened> {
    let repack_bytes = u64::from(config.repack_mib) << 20;
    let configured = |config: &ModelConfig| Configured {
        config: config.clone(),
        first: Mutex::default(),
        checked: Mutex::default(),
    };
    let models = config.models.iter().map(configured).collect();
    let loader = Loader { models, engines: Mutex::new(Engines::open(config)?), repack_bytes };
    let (mut setups, mut curves) = (Vec::new(), None);
    for at in 0..config.models.len() {
        let setup = loader.setup(at, if is_needed_at_once(config, at) { repack_bytes } else { 0 })?;
        if let (0, Some(path)) = (at, &config.admin.quality_curves) {
            curves = read_curves(path, &setup.model)?;
        }
        setups.push(setup);
    }
    Ok(Opened { setups, curves, loader })
}

impl Opened {
    /// Returns what is known of each model, and what loads them. Only those stay open that are needed now.
    ///
    /// # Errors
    /// If the size of a file cannot be read.
    pub(super) fn facts(
        self,
        config: &Config,
        options: &ServiceOptions,
    ) -> anyhow::Result<(Vec<ModelFacts>, Loader)> {
        let loader = self.loader;
        let mut facts = Vec::with_capacity(self.setups.len());
        for (at, setup) in self.setups.into_iter().enumerate() {
            facts.push(ModelFacts::of(&setup, options, loader.weight_bytes(at, &config.speculation)?));
            if is_needed_at_once(config, at) {
                *loader.models[at].first.lock().expect("no holder of this lock panics") = Some(setup);
            }
        }
        Ok((facts, loader))
    }
}

/// Loads the models that are needed before the service listens.
///
/// # Errors
/// Why one cannot be loaded.
pub(super) async fn load_first(config: &Config, service: &CloudService) -> anyhow::Result<()> {
    for (at, name) in service.model_names().into_iter().enumerate() {
        if !is_needed_at_once(config, at) {
            continue;
        }
        if let Err(err) = service.hold(name, None).await {
            let known = service.residency().into_iter().find(|model| model.name == name);
            let problem = known.and_then(|model| model.problem);
            return Err(err).with_context(|| problem.unwrap_or_else(|| format!("load model `{name}`")));
        }
    }
    Ok(())
}

impl Loader {
    fn setup(&self, at: usize, repack_bytes: u64) -> anyhow::Result<ModelSetup> {
        let Configured { config, checked, .. } = &self.models[at];
        let ModelConfig { name, path, calibration, adapters, engines } = config;
        info!(model = name, path = %path.display(), "opening");
        let model = Model::open_repacked(path, repack_bytes)
            .with_context(|| format!("open model `{}`", path.display()))?;
        let mut known = checked.lock().expect("no holder of this lock panics");
        let calibration = match &*known {
            Some((fingerprint, calibration)) if *fingerprint == model.fingerprint() => calibration.clone(),
            _ => calibration.as_deref().map(|path| read_calibration(path, &model)).transpose()?.flatten(),
        };
        *known = Some((model.fingerprint(), calibration.clone()));
        drop(known);
        let mut opened = BTreeMap::new();
        for (adapter, path) in adapters {
            let file = Adapter::open(path, &model)
                .with_context(|| format!("open adapter `{}` for model `{name}`", path.display()))?;
            info!(model = name, adapter, matrices = file.matrices(), rank = file.rank_max(), "adapter");
            opened.insert(adapter.clone(), file);
        }
        let engines = engines.clone();
        Ok(ModelSetup { name: name.clone(), model, calibration, adapters: opened, engines })
    }

    /// Returns the bytes of a model's files, adapters and draft included, and of copies of its weights.
    fn weight_bytes(&self, at: usize, draft: &Speculation) -> anyhow::Result<u64> {
        let ModelConfig { path, adapters, .. } = &self.models[at].config;
        let draft = if let Speculation::Draft(path) = draft { Some(path) } else { None };
        let mut bytes = self.repack_bytes;
        for path in std::iter::once(path).chain(adapters.iter().map(|(_, path)| path)).chain(draft) {
            let file = Gguf::open(path).with_context(|| format!("open `{}`", path.display()))?;
            bytes += file.parts().map(|part| part.len() as u64).sum::<u64>();
        }
        Ok(bytes)
    }
}

impl ModelLoader for Loader {
    fn open(&self, at: usize) -> Result<ModelSetup, LoadError> {
        let first = self.models[at].first.lock().expect("no holder of this lock panics").take();
        match first {
            Some(setup) => Ok(setup),
            None => Ok(self.setup(at, self.repack_bytes)?),
        }
    }

    fn engine(&self, at: usize, model: Arc<Model>, options: EngineOptions) -> Result<Engine, EngineError> {
        self.engines.lock().expect("no holder of this lock panics").make(at == 0, model, options)
    }
}

/// Reads the heads of the refiner; returns `None`, with a warning, if they are for another model.
fn read_calibration(path: &Path, model: &Model) -> anyhow::Result<Option<Calibration>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("read calibration `{}`", path.display()))?;
    let calibration =
        Calibration::from_json(&text).with_context(|| format!("read calibration `{}`", path.display()))?;
    if calibration.model_sha256() != model.file_sha256() {
        warn!(path = %path.display(), "the calibration is of another model file and is not used");
        return Ok(None);
    }
    let shape = model.config();
    calibration.check_model(shape.n_layers, shape.n_heads).context("fit the calibration to the model")?;
    Ok(Some(calibration))
}
