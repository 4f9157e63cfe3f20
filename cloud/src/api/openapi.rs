//! The OpenAPI document of the public API, served at `/openapi.json`.
//!
//! Routes are documented where their handlers stand; here are the document's frame, and the shapes of bodies that the
//! protocol or plain JSON define elsewhere. These shapes are only written down, never read or sent: a test holds them to
//! what is. Always: OpenAPI 3.1, every public route in it.

mod assist;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{OpenApi, ToSchema};

pub(super) use self::assist::{AssistBody, Device, SceneBody, SceneList};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Baton",
        description = "The cloud half of Baton: the assist protocol for devices, and the OpenAI chat API.\n\nEvery error has \
                       the same body; every reply carries `x-request-id`, the client's own where it sent one.",
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

/// The document without its routes.
pub(super) fn frame() -> utoipa::openapi::OpenApi {
    let mut document = Frame::openapi();
    let key = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("an API key; needed where the service was given one"))
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

/// An error.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ErrorReply {
    /// What went wrong.
    error: ErrorBody,
}

/// What went wrong, for a program (`code`) and a person (`message`).
#[derive(Debug, Serialize, ToSchema)]
struct ErrorBody {
    /// What a program acts on, e.g. `invalid_request`, `unknown_model`, `overloaded`.
    code: String,
    /// One sentence; never holds text of the request's messages.
    message: String,
    /// OpenAI's class of the error.
    #[serde(rename = "type")]
    kind: String,
    /// The field that is to blame, if it is one.
    param: Option<String>,
    /// How long to wait before asking again.
    retry_after_ms: Option<u64>,
}

/// A whole answer.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ChatCompletion {
    /// The same in every part of one answer.
    id: String,
    /// `chat.completion`.
    object: String,
    /// Seconds since 1970.
    created: u64,
    /// Name of the model.
    model: String,
    /// One.
    choices: Vec<Choice>,
    /// What it took.
    usage: UsageBody,
    /// What the assist protocol says, where `baton` was sent.
    #[schema(value_type = Option<Object>)]
    baton: Option<Value>,
}

/// A part of a streamed answer: the `data:` of an event.
#[derive(Debug, Serialize, ToSchema)]
struct ChatCompletionChunk {
    /// The same in every part of one answer.
    id: String,
    /// `chat.completion.chunk`.
    object: String,
    /// Seconds since 1970.
    created: u64,
    /// Name of the model.
    model: String,
    /// One; none in the chunk that says what the answer took.
    choices: Vec<ChunkChoice>,
    /// In the last chunk, where it was asked for.
    usage: Option<UsageBody>,
    /// In the first chunk and where L is reached, where `baton` was sent.
    #[schema(value_type = Option<Object>)]
    baton: Option<Value>,
    /// How far the prompt is, where `stream_options.include_progress` was sent: `stage` (`queue` or `prefill`), `computed` and
    /// `total` prompt tokens, and `eta_ms` if that can be said.
    #[schema(value_type = Option<Object>)]
    x_progress: Option<Value>,
}

/// The answer.
#[derive(Debug, Serialize, ToSchema)]
struct Choice {
    /// 0.
    index: u32,
    /// The message.
    message: AnswerMessage,
    /// Where they were asked for.
    logprobs: Option<LogprobsBody>,
    /// `stop`, `length` or `tool_calls`.
    finish_reason: String,
}

/// A part of the answer.
#[derive(Debug, Serialize, ToSchema)]
struct ChunkChoice {
    /// 0.
    index: u32,
    /// What is added: `role`, `content` or `tool_calls`.
    #[schema(value_type = Object)]
    delta: Value,
    /// Where they were asked for.
    logprobs: Option<LogprobsBody>,
    /// In the last part: `stop`, `length` or `tool_calls`.
    finish_reason: Option<String>,
}

/// What the model says.
#[derive(Debug, Serialize, ToSchema)]
struct AnswerMessage {
    /// `assistant`.
    role: String,
    /// The text; null beside calls without text.
    content: Option<String>,
    /// Always null.
    refusal: Option<String>,
    /// What it calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Vec<CallBody>>,
}

/// A call of a function.
#[derive(Debug, Serialize, ToSchema)]
struct CallBody {
    /// Names the call.
    id: String,
    /// `function`.
    #[serde(rename = "type")]
    kind: String,
    /// What is called.
    function: CalledFunction,
}

/// A function and its arguments.
#[derive(Debug, Serialize, ToSchema)]
struct CalledFunction {
    /// Its name.
    name: String,
    /// The arguments, JSON as text.
    arguments: String,
}

/// Log probabilities of the answer's tokens.
#[derive(Debug, Serialize, ToSchema)]
struct LogprobsBody {
    /// One entry for each token.
    content: Vec<PlaceBody>,
    /// Always null.
    refusal: Option<String>,
}

/// A token, and those that might have come instead.
#[derive(Debug, Serialize, ToSchema)]
struct PlaceBody {
    /// Its text; incomplete characters as U+FFFD.
    token: String,
    /// Natural logarithm of its probability; -9999 where it had none.
    logprob: f64,
    /// Its bytes.
    bytes: Vec<u8>,
    /// The likeliest ones.
    #[schema(value_type = Vec<Object>)]
    top_logprobs: Vec<Value>,
}

/// What an answer took, in tokens.
#[derive(Debug, Serialize, ToSchema)]
struct UsageBody {
    /// Of the prompt.
    prompt_tokens: u64,
    /// Of the answer.
    completion_tokens: u64,
    /// Of both.
    total_tokens: u64,
    /// More of the prompt.
    prompt_tokens_details: PromptDetails,
}

/// More of the prompt's tokens.
#[derive(Debug, Serialize, ToSchema)]
struct PromptDetails {
    /// Those that were in the prefix cache.
    cached_tokens: u64,
}

/// The models.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ModelList {
    /// `list`.
    object: String,
    /// The models.
    data: Vec<ModelCard>,
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ModelCard {
    /// Its name.
    id: String,
    /// `model`.
    object: String,
    /// 0.
    created: u64,
    /// `baton`.
    owned_by: String,
    /// Tokens of prompt and answer together.
    context_length: u64,
    /// Digest of its tokenizer.
    tokenizer_sha256: String,
    /// Adapters of it that scenes may name.
    adapters: Vec<String>,
}

/// How the process is.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Health {
    /// `ok` or `ready`.
    status: String,
}

/// What is in use, and what this cloud costs. Times in milliseconds.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Stats {
    /// Answers that are written.
    slots_used: u64,
    /// How many may be.
    slots: u64,
    /// Requests that wait.
    queue_len: u64,
    /// How many may.
    queue_len_max: u64,
    /// Answers that have no slot because nobody reads them.
    parked: u64,
    /// Size of the KV cache, in tokens.
    kv_tokens: u64,
    /// Tokens of it that no running answer holds.
    kv_tokens_free: u64,
    /// Prompt tokens that wait.
    prefill_backlog_tokens: u64,
    /// What cost is measured.
    #[schema(value_type = Object)]
    measured: Value,
    /// What shared prefixes have saved.
    #[schema(value_type = Object)]
    prefix_cache: Value,
    /// What is known of devices.
    #[schema(value_type = Vec<Object>)]
    device_classes: Vec<Value>,
    /// What is known of networks.
    #[schema(value_type = Vec<Object>)]
    network_classes: Vec<Value>,
}
