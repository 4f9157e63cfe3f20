//! One model with its adapters, its queue and its figures.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use baton_constrain::tools::ToolForm;
use baton_constrain::{ConstraintError, Grammars};
use baton_engine::rows::kv_identity;
use baton_engine::{
    Adapter, AdapterId, BLOCK_TOKENS, EngineError, EngineOptions, Model, SequenceError, Sequences, StepSize,
};
use baton_generate::clock::Clock;
use baton_generate::host::{Host, HostHandle, HostOptions, PassWatch, Turns};
use baton_generate::scheduler::Limits;
use baton_generate::speculation::{K_MAX, SpeculationError};
use baton_protocol::{Markup, limits};
use baton_refine::Calibration;

use super::ServiceOptions;
use super::handoff::KvModel;
use super::places::kv_tokens;
use super::prefixes::ScenePrefixes;
use super::upstream::{ClientError, EngineAddress, Upstream};
use super::verify::{KEPT, SEQUENCES_MAX};
use crate::observe::metrics::Metrics;
use crate::observe::trace::Traces;
use crate::service::figures::{CostWatch, Figures};

/// A model to serve.
#[derive(Debug, Clone)]
pub struct ModelSetup {
    /// Its name in the API; no other model of the service has it.
    pub name: String,
    /// The model.
    pub model: Arc<Model>,
    /// Calibrated heads of the refiner.
    pub calibration: Option<Calibration>,
    /// Its adapters, by the names that scenes use.
    pub adapters: BTreeMap<String, Arc<Adapter>>,
    /// Engines that write this model's answers. The model itself then makes masks alone. If there are none,
    /// it writes.
    pub engines: Vec<EngineAddress>,
}

impl ModelSetup {
    /// Makes a setup without calibrated heads and adapters.
    pub fn named(name: impl Into<String>, model: Arc<Model>) -> ModelSetup {
        ModelSetup {
            name: name.into(),
            model,
            calibration: None,
            adapters: BTreeMap::new(),
            engines: Vec::new(),
        }
    }
}

/// Why a service cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// There is nothing to serve.
    #[error("a service needs a model")]
    NoModel,
    /// Two models have one name.
    #[error("two models are named `{0}`")]
    DuplicateModel(String),
    /// A model does not fit into the budget.
    #[error(
        "model `{model}` needs {} MiB with its KV cache, which is more than --models-memory ({} MiB)",
        bytes.div_ceil(1 << 20),
        budget >> 20
    )]
    OverBudget {
        /// The model.
        model: String,
        /// The most memory that it takes, in bytes.
        bytes: u64,
        /// The budget, in bytes.
        budget: u64,
    },
    /// An engine cannot be made.
    #[error("set up the engine of model `{model}`")]
    Engine {
        /// The model.
        model: String,
        /// The cause.
        #[source]
        err: Box<EngineError>,
    },
    /// An adapter does not fit its model.
    #[error("take in adapter `{name}` of model `{model}`")]
    Adapter {
        /// The model.
        model: String,
        /// The adapter.
        name: String,
        /// The cause.
        #[source]
        err: Box<SequenceError>,
    },
    /// An engine of a model cannot be asked.
    #[error("ask the engines of model `{model}`")]
    Upstream {
        /// The model.
        model: String,
        /// The cause.
        #[source]
        err: Box<ClientError>,
    },
    /// The draft model cannot be used.
    #[error("propose tokens for model `{model}`")]
    Speculation {
        /// The model.
        model: String,
        /// The cause.
        #[source]
        err: Box<SpeculationError>,
    },
}

/// One model that is served.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) model: Arc<Model>,
    pub(crate) name: String,
    pub(crate) calibration: Option<Arc<Calibration>>,
    /// The most bytes of text in a prompt: a context of the longest tokens. More is refused before it is
    /// tokenized.
    pub(crate) text_bytes_max: usize,
    adapters: BTreeMap<String, AdapterId>,
    pub(crate) handle: HostHandle,
    pub(crate) figures: Arc<Figures>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) traces: Option<Traces>,
    /// The engines that write the answers, if this model makes masks alone.
    pub(crate) upstream: Option<Arc<Upstream>>,
    /// What its keys and values are like, if they can be given to devices.
    pub(crate) kv: Option<Arc<KvModel>>,
    /// Beginnings that all tenants' prompts of a scene share.
    pub(crate) scene_prefixes: ScenePrefixes,
    /// Bytes of the keys and values of one token.
    pub(crate) kv_token_bytes: usize,
    /// The vocabulary in the form for constrained answers; made when the first one is requested.
    grammars: OnceLock<Result<Grammars, ConstraintError>>,
}

impl Served {
    /// Sets up a model, and the host over its engine.
    pub(super) fn open<S: Sequences>(
        setup: ModelSetup,
        options: &ServiceOptions,
        turns: Option<Arc<Turns>>,
        figures: Arc<Figures>,
        engine: impl FnOnce(Arc<Model>, EngineOptions) -> Result<S, EngineError>,
    ) -> Result<(Served, Host<S>), SetupError> {
        let ModelSetup { name, model, calibration, adapters: files, engines } = setup;
        let upstream = upstream(&name, &model, engines, options)?;
        let context = model.config().context_len;
        let kv_tokens = kv_tokens(&model, options);
        let engine_options = EngineOptions {
            threads: options.threads,
            kv_tokens,
            kv_format: options.kv,
            prefix_cache_percent: options.prefix_cache_percent,
            largest_step: StepSize {
                tokens: options.budget.chunk_tokens + options.slots * (K_MAX + 1),
                logit_rows: options.slots * (K_MAX + 1),
            },
            ..EngineOptions::default()
        };
        let mut engine = engine(model.clone(), engine_options.clone())
            .map_err(|err| SetupError::Engine { model: name.clone(), err: Box::new(err) })?;
        let adapters = take_in(&mut engine, &name, files)?;
        let kv = engine.kv_widths().ok().filter(|_| upstream.is_none());
        let window = model.config().largest_window();
        let kv = kv.map(|widths| Arc::new(KvModel { identity: kv_identity(&model), widths, window }));
        let proposer = options
            .proposer(&model, engine_options)
            .map_err(|err| SetupError::Speculation { model: name.clone(), err: Box::new(err) })?;
        let (proposer, speculation) = proposer.unzip();
        let host = Host::new(
            engine,
            HostOptions {
                limits: Limits {
                    slots: options.slots,
                    queue: options.queue,
                    backlog: options.backlog,
                    kv_tokens,
                    kv_block: BLOCK_TOKENS,
                    budget: options.budget,
                    admit_tokens: 1,
                    // The cloud verifies its own proposals only.
                    logit_rows: K_MAX + 1,
                    speculation,
                },
                clock: options.clock.clone(),
                emulation: options.emulation,
                turns,
                proposer,
                idle_sequences: SEQUENCES_MAX,
                idle_for: Some(KEPT),
                watch: watch(&figures, upstream.is_some()),
            },
        );
        let kv_token_bytes = model.config().kv_token_bytes(options.kv);
        let text_bytes_max = context.min(kv_tokens).saturating_mul(model.tokenizer().token_bytes_max());
        let served = Served {
            text_bytes_max: text_bytes_max.min(limits::TEXT_BYTES_MAX),
            model,
            name,
            calibration: calibration.map(Arc::new),
            adapters,
            handle: host.handle(),
            figures,
            clock: options.clock.clone(),
            metrics: options.metrics.clone(),
            traces: options.traces.clone(),
            upstream,
            kv,
            scene_prefixes: ScenePrefixes::default(),
            kv_token_bytes,
            grammars: OnceLock::new(),
        };
        Ok((served, host))
    }

    /// Returns the adapter of this name, if there is one.
    pub(super) fn adapter(&self, name: &str) -> Option<AdapterId> {
        self.adapters.get(name).copied()
    }

    /// Returns the most tokens of prompt and answer together.
    pub(crate) fn context_tokens(&self) -> usize {
        let engines = self.upstream.as_ref().and_then(|upstream| upstream.context_tokens());
        let own = self.model.config().context_len.min(self.handle.stats().kv_tokens);
        engines.map_or(own, |engines| engines.min(own))
    }

    /// Returns how this model writes calls.
    pub(crate) fn call_markup(&self) -> Markup {
        ToolForm::of(self.model.template()).markup
    }

    /// Returns the compiler of constraints for this model.
    pub(crate) fn grammars(&self) -> Result<&Grammars, ConstraintError> {
        self.grammars.get_or_init(|| Grammars::new(self.model.tokenizer())).as_ref().map_err(Clone::clone)
    }
}

/// Gives the engine a model's adapters.
fn take_in<S: Sequences>(
    engine: &mut S,
    model: &str,
    files: BTreeMap<String, Arc<Adapter>>,
) -> Result<BTreeMap<String, AdapterId>, SetupError> {
    let taken = files.into_iter().map(|(name, file)| match engine.add_adapter(file) {
        Ok(id) => Ok((name, id)),
        Err(err) => Err(SetupError::Adapter { model: model.to_owned(), name, err: Box::new(err) }),
    });
    taken.collect()
}

/// Returns what learns from the passes. What a scorer's passes cost says nothing about those of other
/// engines.
fn watch(figures: &Arc<Figures>, is_scorer: bool) -> Option<Box<dyn PassWatch>> {
    (!is_scorer).then(|| Box::new(CostWatch(figures.clone())) as Box<dyn PassWatch>)
}

/// Makes the clients of a model's engines, if it has some.
fn upstream(
    name: &str,
    model: &Arc<Model>,
    engines: Vec<EngineAddress>,
    options: &ServiceOptions,
) -> Result<Option<Arc<Upstream>>, SetupError> {
    if engines.is_empty() {
        return Ok(None);
    }
    let own = (options.clock.clone(), options.metrics.clone());
    let made = Upstream::new((name, model.clone()), engines, options.upstream.clone(), own);
    let made = made.map_err(|err| SetupError::Upstream { model: name.to_owned(), err: Box::new(err) })?;
    Ok(Some(Arc::new(made)))
}
