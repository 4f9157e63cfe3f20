//! What operators do with the models of this replica. Each order is in the audit log before it is carried
//! out.

use serde::Serialize;
use utoipa::ToSchema;

use super::AdminService;
use crate::access::Actor;
use crate::admin::problem::{Kind, Problem};
use crate::service::{CloudService, ModelResidency, ServiceError};

/// What an operator wants of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModelOrder {
    /// Load it, and let it take requests.
    Load,
    /// Unload it once it is idle; the next request loads it again.
    Unload,
    /// Let it take no new requests, and unload it once it is idle.
    Drain,
}

impl ModelOrder {
    /// Every order.
    pub(crate) const ALL: [ModelOrder; 3] = [ModelOrder::Load, ModelOrder::Unload, ModelOrder::Drain];

    /// Returns its name.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            ModelOrder::Load => "load",
            ModelOrder::Unload => "unload",
            ModelOrder::Drain => "drain",
        }
    }

    fn action(self) -> &'static str {
        match self {
            ModelOrder::Load => "model.load",
            ModelOrder::Unload => "model.unload",
            ModelOrder::Drain => "model.drain",
        }
    }
}

/// A model of this replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ModelView {
    /// Its name.
    pub(crate) name: String,
    /// `unloaded`, `waiting`, `loading`, `loaded`, `retiring`, `unloading` or `failed`.
    pub(crate) state: String,
    /// Whether it takes no requests until it is loaded by an order.
    pub(crate) drained: bool,
    /// The most memory that it takes: its files and its whole KV cache, in bytes.
    pub(crate) memory_bytes: u64,
    /// Requests that hold it.
    pub(crate) requests: usize,
    /// Requests that wait for it to be loaded.
    pub(crate) waiting: usize,
    /// Why the last load failed; null once one succeeds.
    pub(crate) problem: Option<String>,
}

impl From<ModelResidency> for ModelView {
    fn from(model: ModelResidency) -> ModelView {
        ModelView {
            name: model.name,
            state: model.state.as_str().to_owned(),
            drained: model.is_drained,
            memory_bytes: model.memory_bytes,
            requests: model.holding,
            waiting: model.waiting,
            problem: model.problem,
        }
    }
}

/// The models of this replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ModelsView {
    /// The most memory that they may take together, in bytes; null if there is no limit.
    pub(crate) budget_bytes: Option<u64>,
    /// What is taken of it by models in memory, and by those that come and go.
    pub(crate) used_bytes: u64,
    /// The models, the default first.
    pub(crate) models: Vec<ModelView>,
}

impl ModelsView {
    /// Returns the models as they are now.
    pub(crate) fn of(service: &CloudService) -> ModelsView {
        let (budget_bytes, used_bytes) = service.models_memory();
        let models = service.residency().into_iter().map(ModelView::from).collect();
        ModelsView { budget_bytes, used_bytes, models }
    }
}

impl AdminService {
    /// Gives an order about a model. Returns before it is carried out.
    pub(crate) async fn order_model(
        &self,
        actor: &Actor,
        service: &CloudService,
        name: &str,
        order: ModelOrder,
    ) -> Result<(), Problem> {
        let name = service.model_named(name).map_err(refused)?.name;
        self.store.log_model(actor, order.action(), name).await?;
        match order {
            ModelOrder::Load => service.load_model(name),
            ModelOrder::Unload => service.unload_model(name, false),
            ModelOrder::Drain => service.unload_model(name, true),
        }
        .map_err(refused)
    }
}

fn refused(err: ServiceError) -> Problem {
    let kind = if matches!(err, ServiceError::UnknownModel { .. }) { Kind::NotFound } else { Kind::Conflict };
    Problem::new(kind, err.to_string())
}
