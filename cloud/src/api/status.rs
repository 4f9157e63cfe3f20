//! Health, figures, and the list of models.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use baton_engine::BLOCK_TOKENS;
use baton_openai::ErrorReply;
use baton_openai::models::{ModelCard, ModelList};
use baton_protocol::ErrorCode;
use serde_json::{Value, json};

use super::error::{ApiError, Dialect};
use super::openapi::{Health, Stats};
use super::{App, PathId, path_id};
use crate::learn::coefficients::{ALL, Known};
use crate::service::ModelView;
use crate::store::{Store, now_ms};

/// Reports whether the process works. If it does not, it must be restarted. The status is `degraded` while
/// the database is away or cannot write: answers use the last good settings, and changes must wait.
#[utoipa::path(
    get,
    path = "/healthz",
    tag = "service",
    responses(
        (status = 200, description = "it lives", body = Health),
        (status = "4XX", description = "refused", body = ErrorReply),
        (status = "5XX", description = "not now", body = ErrorReply),
    ),
)]
pub(super) async fn health(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    works(&app)?;
    let health = app.store.as_ref().map(Store::health);
    let since = |since: i64| (now_ms() - since).max(0) / 1000;
    let away_s = health.and_then(|health| health.away_since_ms).map(since);
    let not_writable_s = health.and_then(|health| health.not_writable_since_ms).map(since);
    Ok(Json(match (away_s, not_writable_s) {
        (None, None) => json!({ "status": "ok" }),
        (Some(s), _) => json!({ "status": "degraded", "database": "away", "database_away_s": s }),
        (None, Some(s)) => {
            json!({ "status": "degraded", "database": "not_writable", "database_not_writable_s": s })
        }
    }))
}

/// Fails if the service cannot answer any request until it is restarted.
fn works(app: &App) -> Result<(), ApiError> {
    app.service.failure().map_or(Ok(()), |why| Err(ApiError::new(ErrorCode::Unavailable, why)))
}

/// Reports whether new requests are accepted.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "service",
    responses(
        (status = 200, description = "it accepts requests", body = Health),
        (status = "4XX", description = "refused", body = ErrorReply),
        (status = "5XX", description = "not now", body = ErrorReply),
    ),
)]
pub(super) async fn ready(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    if !app.service.is_open() {
        return Err(ApiError::new(ErrorCode::Unavailable, "the service is stopping"));
    }
    works(&app)?;
    Ok(Json(json!({ "status": "ready" })))
}

/// Reports the load of this cloud, and its measured cost.
#[utoipa::path(
    get,
    path = "/v1/stats",
    tag = "service",
    responses(
        (status = 200, description = "the figures", body = Stats),
        (status = "4XX", description = "refused", body = ErrorReply),
        (status = "5XX", description = "not now", body = ErrorReply),
    ),
    security(("key" = [])),
)]
pub(super) async fn stats(State(app): State<App>) -> Json<Value> {
    let stats = app.service.stats();
    let measured = app.service.measured();
    let kv = app.service.kv();
    let coefficients = app.service.coefficients();
    Json(json!({
        "slots_used": stats.running,
        "slots": stats.slots,
        "queue_len": stats.waiting,
        "queue_len_max": stats.queue,
        "parked": stats.parked,
        "kv_tokens": stats.kv_tokens,
        "kv_tokens_free": kv.free_tokens,
        "kv_tokens_kept": kv.kept_tokens,
        "handoff_bytes": app.service.handoff_bytes(),
        "preemptions_total": stats.preemptions_total,
        "prefix_cache": {
            "queries_total": kv.prefix.queries,
            "hits_total": kv.prefix.hits,
            "query_tokens_total": kv.prefix.query_tokens,
            "hit_tokens_total": kv.prefix.hit_tokens,
            "evicted_blocks_total": kv.prefix.evicted_blocks,
            "cached_tokens": kv.prefix.cached_blocks * BLOCK_TOKENS,
        },
        "prefill_backlog_tokens": stats.backlog_tokens,
        "prefill_backlog_ms": stats.backlog_ms,
        "prefill_backlog_ms_max": stats.backlog_ms_max,
        "waiting_bytes": stats.waiting_bytes,
        "load": stats.load,
        "refused_total": stats.refused_total,
        "expired_total": stats.expired_total,
        "chunk_tokens": stats.chunk_tokens,
        "mixed_tokens": stats.mixed_tokens,
        "slot_ms_total": stats.slot_ms_total,
        "requests_ended_total": stats.closed_total,
        "measured": {
            "prefill_base_ms": measured.base_ms,
            "prefill_ms_per_token": measured.prefill_ms_per_token,
            "decode_ms": measured.decode_ms,
            "refine_ms": measured.refine_ms,
        },
        "models": app.service.residency().iter().map(|model| json!({
            "id": model.name,
            "state": model.state.as_str(),
            "memory_bytes": model.memory_bytes,
            "requests": model.holding,
            "waiting": model.waiting,
        })).collect::<Vec<_>>(),
        "device_classes": classes(&coefficients.devices, |device| json!({
            "prefill_ms_per_token": device.prefill_ms_per_token,
            "prefill_ms_per_token2": device.prefill_ms_per_token2,
            "decode_ms": device.decode_ms,
        })),
        "network_classes": classes(&coefficients.networks, |ms| json!({ "network_ms": ms })),
    }))
}

/// Lists the medians by class; `all` is for all classes together.
fn classes<T>(known: &BTreeMap<String, Known<T>>, figures: impl Fn(&T) -> Value) -> Value {
    let class = |(name, known): (&String, &Known<T>)| {
        let name = if name == ALL { "all" } else { name };
        json!({ "class": name, "samples": known.samples, "median": figures(&known.value) })
    };
    known.iter().map(class).collect()
}

/// Lists the models.
#[utoipa::path(
    get,
    path = "/v1/models",
    tag = "chat",
    responses(
        (status = 200, description = "the models", body = ModelList),
        (status = "4XX", description = "refused", body = ErrorReply),
        (status = "5XX", description = "not now", body = ErrorReply),
    ),
    security(("key" = [])),
)]
pub(super) async fn models(State(app): State<App>) -> Json<ModelList> {
    Json(ModelList::new(app.service.models().map(card)))
}

/// Shows a model.
#[utoipa::path(
    get,
    path = "/v1/models/{id}",
    tag = "chat",
    params(("id" = String, Path, description = "name of the model, or `default`")),
    responses(
        (status = 200, description = "the model", body = ModelCard),
        (status = "4XX", description = "refused", body = ErrorReply),
        (status = "5XX", description = "not now", body = ErrorReply),
    ),
    security(("key" = [])),
)]
pub(super) async fn model(State(app): State<App>, id: PathId) -> Result<Json<ModelCard>, ApiError> {
    let found = path_id(id).and_then(|id| Ok(app.service.model_named(&id)?));
    Ok(Json(card(found.map_err(|err| err.told_in(Dialect::OpenAi))?)))
}

fn card(view: ModelView<'_>) -> ModelCard {
    let adapters = view.adapters.iter().map(String::as_str);
    ModelCard::new(view.name, Some(view.context_tokens), view.tokenizer_sha256).with_adapters(adapters)
}

/// Shows this document.
#[utoipa::path(
    get,
    path = "/openapi.json",
    tag = "service",
    responses(
        (status = 200, description = "the document", content_type = "application/json", body = Object),
        (status = "4XX", description = "refused", body = ErrorReply),
    ),
)]
pub(super) async fn openapi(State(app): State<App>) -> Response {
    app.document.reply()
}
