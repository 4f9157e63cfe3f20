//! The models of a service: what is always known of each, and the model itself while it is in memory.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwapOption;
use baton_constrain::tools::ToolForm;
use baton_engine::{BLOCK_TOKENS, Model};
use baton_protocol::{Markup, limits};

use super::figures::Figures;
use super::served::ModelSetup;
use super::{KV_TOKENS_DEFAULT_MAX, Served, ServiceError, ServiceOptions};
use crate::learn::cost::Costs;
use crate::learn::telemetry::Telemetry;
use crate::observe::metrics::ModelUsage;

/// What is known of a model whether or not it is in memory.
#[derive(Debug, Clone)]
pub struct ModelFacts {
    /// Its name in the API.
    pub name: String,
    /// The most tokens of prompt and answer together, by the model's context and its KV cache.
    pub context_tokens: usize,
    /// The digest of its tokenizer.
    pub tokenizer_sha256: String,
    /// Names of its adapters, sorted.
    pub adapters: Vec<String>,
    /// How it writes calls.
    pub call_markup: Markup,
    /// The most bytes of text in a prompt: a context of the longest tokens.
    pub text_bytes_max: usize,
    /// Bytes of its full KV cache.
    pub kv_bytes: u64,
    /// Bytes of its files, adapters included, and of copies of its weights. Mapped files count in full.
    pub weight_bytes: u64,
}

impl ModelFacts {
    /// Returns the facts of an opened model, whose files and copies have `weight_bytes`.
    pub fn of(setup: &ModelSetup, options: &ServiceOptions, weight_bytes: u64) -> ModelFacts {
        let (model, config) = (&setup.model, setup.model.config());
        let kv_tokens = kv_tokens(model, options);
        let context_tokens = config.context_len.min(kv_tokens);
        let text_bytes = context_tokens.saturating_mul(model.tokenizer().token_bytes_max());
        ModelFacts {
            name: setup.name.clone(),
            context_tokens,
            tokenizer_sha256: model.tokenizer().digest_hex().to_owned(),
            adapters: setup.adapters.keys().cloned().collect(),
            call_markup: ToolForm::of(model.template()).markup,
            text_bytes_max: text_bytes.min(limits::TEXT_BYTES_MAX),
            kv_bytes: (kv_tokens as u64).saturating_mul(config.kv_token_bytes(options.kv) as u64),
            weight_bytes,
        }
    }

    /// Returns the most memory that the model takes, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.weight_bytes.saturating_add(self.kv_bytes)
    }

    /// Returns the names of its adapters as text for people.
    pub(super) fn adapters_text(&self) -> String {
        if self.adapters.is_empty() {
            return "it has none".to_owned();
        }
        format!("these are: {}", self.adapters.join(", "))
    }
}

/// Returns the tokens of a model's KV cache, in whole blocks.
pub(super) fn kv_tokens(model: &Model, options: &ServiceOptions) -> usize {
    let context = model.config().context_len;
    let default = context.saturating_mul(4).min(context.max(KV_TOKENS_DEFAULT_MAX));
    options.kv_tokens.map_or(default, NonZeroUsize::get).next_multiple_of(BLOCK_TOKENS)
}

/// Public facts about a model.
#[derive(Debug, Clone)]
pub struct ModelView<'a> {
    /// Its name in the API.
    pub name: &'a str,
    /// The digest of its tokenizer.
    pub tokenizer_sha256: &'a str,
    /// The most tokens of prompt and answer together: the model's context, or the KV cache if that is
    /// smaller.
    pub context_tokens: usize,
    /// Names of its adapters, sorted.
    pub adapters: &'a [String],
    /// The model, while it is in memory.
    pub model: Option<Arc<Model>>,
}

/// One model of the service.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) facts: ModelFacts,
    /// What it costs, and sums of its requests; kept while it is out of memory.
    pub(crate) figures: Arc<Figures>,
    served: ArcSwapOption<Served>,
    /// Counts of the times that it was in memory before.
    past: Mutex<ModelUsage>,
}

impl Place {
    pub(super) fn new(facts: ModelFacts, options: &ServiceOptions) -> Place {
        let telemetry = Telemetry::new(options.coefficients.clone());
        let figures = Arc::new(Figures::new(Costs::new(options.emulation), telemetry));
        Place { facts, figures, served: ArcSwapOption::empty(), past: Mutex::default() }
    }

    /// Puts the model in memory into its place.
    pub(super) fn put(&self, served: Served) {
        self.served.store(Some(Arc::new(served)));
    }

    /// Takes the model out of its place. Its counts stay.
    pub(super) fn take(&self) -> Option<Arc<Served>> {
        let served = self.served.swap(None)?;
        let mut past = self.past.lock().expect("no holder of this lock panics");
        *past = usage(&self.facts.name, Some(&served), &past);
        Some(served)
    }

    /// Returns the model, while it is in memory.
    pub(crate) fn in_memory(&self) -> Option<Arc<Served>> {
        self.served.load_full()
    }

    /// Returns the model.
    ///
    /// # Errors
    /// [`ServiceError::ModelAway`] if it is not in memory.
    pub(super) fn served(&self) -> Result<Arc<Served>, ServiceError> {
        self.in_memory().ok_or_else(|| ServiceError::ModelAway { model: self.facts.name.clone() })
    }

    /// Returns its current use.
    pub(super) fn usage(&self) -> ModelUsage {
        let past = self.past.lock().expect("no holder of this lock panics");
        usage(&self.facts.name, self.in_memory().as_deref(), &past)
    }

    pub(super) fn view(&self) -> ModelView<'_> {
        let served = self.in_memory();
        let context_tokens =
            served.as_ref().map_or(self.facts.context_tokens, |served| served.context_tokens());
        ModelView {
            name: &self.facts.name,
            tokenizer_sha256: &self.facts.tokenizer_sha256,
            context_tokens,
            adapters: &self.facts.adapters,
            model: served.map(|served| served.model.clone()),
        }
    }
}

/// Returns the use of a model; its counts go on from those of the `past`.
fn usage(name: &str, served: Option<&Served>, past: &ModelUsage) -> ModelUsage {
    let counts = ModelUsage {
        model: name.to_owned(),
        prefix_queries: past.prefix_queries,
        prefix_hits: past.prefix_hits,
        proposed: past.proposed,
        accepted: past.accepted,
        ..ModelUsage::default()
    };
    let Some(served) = served else { return counts };
    let (stats, kv) = (served.handle.stats(), served.handle.kv());
    let held = stats.kv_tokens.saturating_sub(kv.free_tokens);
    ModelUsage {
        is_loaded: true,
        running: served.upstream.as_ref().map_or(stats.running, |upstream| upstream.in_flight()),
        waiting: stats.waiting,
        backlog_tokens: stats.backlog_tokens,
        backlog_seconds: stats.backlog_ms / 1e3,
        kv_usage: held as f64 / stats.kv_tokens.max(1) as f64,
        open_kv_bytes: kv.kept_tokens * served.kv_token_bytes,
        prefix_queries: past.prefix_queries + kv.prefix.query_tokens,
        prefix_hits: past.prefix_hits + kv.prefix.hit_tokens,
        proposed: past.proposed + stats.proposed_total,
        accepted: past.accepted + stats.accepted_total,
        ..counts
    }
}
