//! The OpenAPI document of the public API, served at `/openapi.json`.
//!
//! Routes are documented at their handlers, and bodies of the chat API in `baton_openai`. This module has the
//! document's frame, and schemas of bodies that the protocol or plain JSON define elsewhere. These schemas
//! are never read or sent; a test compares them with the real bodies. Always: OpenAPI 3.1, with every public
//! route.

mod assist;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use baton_openai::ErrorReply;
use baton_openai::stream::ChatCompletionChunk;
use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{OpenApi, ToSchema};

pub(super) use self::assist::{AssistBody, SceneBody, SceneList, VerifyBody, VerifyReplyBody};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Baton",
        description = "The cloud half of Baton: the assist protocol for devices, and the OpenAI chat API.\n\nEvery error has \
                       the same body; every reply carries `x-request-id`, the client's own if it sent one.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    tags(
        (name = "assist", description = "devices: what a scene allows, and the first tokens of an answer"),
        (name = "chat", description = "programs: the OpenAI chat API"),
        (name = "service", description = "health and figures"),
    ),
    components(schemas(
        assist::ProgressBody,
        assist::MaskBody,
        assist::FirstBody,
        assist::TokenBody,
        assist::EndBody,
        ChatCompletionChunk,
        ErrorReply,
    )),
)]
struct Frame;

/// Returns the document without its routes.
pub(super) fn frame() -> utoipa::openapi::OpenApi {
    let mut document = Frame::openapi();
    let key = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("an API key; needed if the service has keys"))
        .build();
    let components = document.components.get_or_insert_with(Default::default);
    components.add_security_scheme("key", SecurityScheme::Http(key));
    document
}

/// The document, ready to be sent.
#[derive(Debug, Clone)]
pub(super) struct Document(Bytes);

impl Document {
    pub(super) fn new(document: &utoipa::openapi::OpenApi) -> Document {
        Document(Bytes::from(serde_json::to_string(document).expect("the document has string keys only")))
    }

    pub(super) fn reply(&self) -> Response {
        let mut response = self.0.clone().into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

/// State of the process.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Health {
    /// `ok` or `ready`.
    status: String,
}

/// Load of this cloud, and its measured cost. Times are in milliseconds.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Stats {
    /// Slots in use: answers that are being written.
    slots_used: u64,
    /// Number of slots.
    slots: u64,
    /// Requests in the queue.
    queue_len: u64,
    /// The most requests that may wait in the queue.
    queue_len_max: u64,
    /// Answers without a slot, because nobody reads them.
    parked: u64,
    /// Size of the KV cache, in tokens.
    kv_tokens: u64,
    /// Tokens of the KV cache that no running answer holds.
    kv_tokens_free: u64,
    /// Tokens kept for answers that devices go on with, at most: running answers may take their room.
    kv_tokens_kept: u64,
    /// Bytes of keys and values that are parked for devices.
    handoff_bytes: u64,
    /// Prompt tokens that wait for prefill.
    prefill_backlog_tokens: u64,
    /// Measured cost: `prefill_base_ms`, `prefill_ms_per_token`, `decode_ms` and `refine_ms`.
    #[schema(value_type = Object)]
    measured: Value,
    /// Counters of the prefix cache.
    #[schema(value_type = Object)]
    prefix_cache: Value,
    /// Models: `id`, `state`, `memory_bytes`, `requests` that hold it and `waiting` ones.
    #[schema(value_type = Vec<Object>)]
    models: Vec<Value>,
    /// Medians of each device class.
    #[schema(value_type = Vec<Object>)]
    device_classes: Vec<Value>,
    /// Medians of each network class.
    #[schema(value_type = Vec<Object>)]
    network_classes: Vec<Value>,
}
