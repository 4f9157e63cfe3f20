//! Options of a service, and where its proposed tokens come from.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use baton_engine::engine::KvFormat;
use baton_engine::pace_emulation::PassCost;
use baton_engine::{EngineOptions, Model};
use baton_generate::clock::Clock;
use baton_generate::scheduler::{BacklogBound, StepBudget};
use baton_generate::speculation::{ProposerWithLimits, Speculation, SpeculationError};

use super::upstream::UpstreamOptions;
use crate::fleet::Fleet;
use crate::learn::coefficients::Coefficients;
use crate::observe::metrics::Metrics;
use crate::observe::trace::Traces;

/// Options of a service.
#[derive(Debug, Clone)]
pub struct ServiceOptions {
    /// Threads of each engine, or `None` for one per core. Passes of several models take turns.
    pub threads: Option<NonZeroUsize>,
    /// KV cache of each model in tokens. `None` means four whole contexts, but at most
    /// [`super::KV_TOKENS_DEFAULT_MAX`] unless one context needs more.
    pub kv_tokens: Option<NonZeroUsize>,
    /// Number format of keys and values.
    pub kv: KvFormat,
    /// The most sequences of one model that run at the same time.
    pub slots: usize,
    /// The most requests that may wait for one model.
    pub queue: usize,
    /// Limits on the time and the memory of waiting requests.
    pub backlog: BacklogBound,
    /// Deadline of the first token for requests that set none; `None` for no deadline.
    pub deadline: Option<Duration>,
    /// The most prompt tokens in one pass.
    pub budget: StepBudget,
    /// Percent of the KV cache that may keep prefixes that no running sequence uses.
    pub prefix_cache_percent: u8,
    /// Emulated speed, if any.
    pub emulation: Option<PassCost>,
    /// Coefficients that were known before the start.
    pub coefficients: Coefficients,
    /// The clock.
    pub clock: Clock,
    /// Where proposed tokens come from. [`Speculation::Auto`] means off while a slower machine is emulated.
    pub speculation: Speculation,
    /// Metrics of requests.
    pub metrics: Arc<Metrics>,
    /// Receives traces, if they are sent anywhere.
    pub traces: Option<Traces>,
    /// How engines are asked that write the answers of models.
    pub upstream: UpstreamOptions,
    /// The models of devices.
    pub fleet: Fleet,
}

impl Default for ServiceOptions {
    fn default() -> ServiceOptions {
        ServiceOptions {
            threads: None,
            kv_tokens: None,
            kv: KvFormat::default(),
            slots: 8,
            queue: 256,
            backlog: BacklogBound::default(),
            deadline: None,
            budget: StepBudget::default(),
            prefix_cache_percent: 100,
            emulation: None,
            coefficients: Coefficients::default(),
            clock: Clock::monotonic(),
            speculation: Speculation::default(),
            metrics: Arc::default(),
            traces: None,
            upstream: UpstreamOptions::default(),
            fleet: Fleet::default(),
        }
    }
}

impl ServiceOptions {
    /// Returns the source of proposed tokens for a model, and how many are worth asking for.
    pub(super) fn proposer(
        &self,
        model: &Model,
        engine: EngineOptions,
    ) -> Result<Option<ProposerWithLimits>, SpeculationError> {
        // An emulated pass takes its time whatever the proposals are, so they could only cost.
        if self.emulation.is_some() && self.speculation == Speculation::Auto {
            return Ok(None);
        }
        self.speculation.proposer(model, engine)
    }
}
