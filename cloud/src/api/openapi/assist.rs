//! Schemas of the assist protocol. They are here because `baton-protocol` does not depend on utoipa.

use baton_openai::wire::Device;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

pub(in super::super) use crate::scene::schema::SceneBody;

/// The request of a device.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct AssistBody {
    /// Must be 1.
    #[schema(minimum = 1, maximum = 1)]
    protocol: u32,
    /// Id of this request. The same request sent again within 10 minutes is charged once; it may be sent 4
    /// times.
    request_id: Uuid,
    /// Scene id.
    #[schema(min_length = 1, max_length = 128)]
    scene: String,
    /// Version of the scene that the device has; the current one if absent.
    scene_version: Option<u32>,
    /// Model name, or `default`.
    #[schema(min_length = 1, max_length = 128)]
    model: String,
    /// SHA-256 digest of the device's tokenizer, in hexadecimal.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    tokenizer_sha256: Option<String>,
    /// The prompt, in order.
    #[schema(min_items = 1, max_items = 1024)]
    segments: Vec<SegmentBody>,
    /// Functions that the answer may call, and whether it must.
    tools: Option<ToolsBody>,
    /// The form that the answer must have: `text` (any), `json_object`, or `{"json_schema": …}` with a
    /// schema.
    #[schema(value_type = Option<Object>)]
    format: Option<Value>,
    /// Text of this answer that was already accepted; the cloud continues after it.
    continue_from: Option<String>,
    /// The device as it is now.
    device: Option<Device>,
    /// How the answer is sampled.
    #[schema(value_type = Option<SamplingBody>, nullable = false)]
    sampling: Option<SamplingBody>,
    /// How the content is refined.
    #[schema(value_type = Option<RefineBody>, nullable = false)]
    refine: Option<RefineBody>,
    /// Tokens for the cloud to write (L); if absent, the scene or the optimizer sets it.
    #[schema(minimum = 1, maximum = 65536)]
    assist_tokens: Option<u32>,
    /// Whether the stream is kept, so that it can be resumed after a disconnect.
    #[schema(nullable = false)]
    resume: Option<bool>,
    /// Whether the device goes on behind L and has its drafts checked, if the scene's `verify` allows it.
    #[schema(nullable = false)]
    verify: Option<bool>,
}

/// A draft of the device.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct VerifyBody {
    /// Index of the first drafted token: the number of answer tokens before it.
    #[schema(minimum = 1)]
    from: u32,
    /// SHA-256 digest of these tokens' ids as 32-bit little-endian numbers, in hexadecimal.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    digest: String,
    /// Ids of the drafted tokens.
    #[schema(max_items = 32)]
    draft: Vec<u32>,
    /// How many tokens the reply must bring, drafted ones included, unless the answer ends.
    #[schema(minimum = 1, maximum = 64)]
    at_least: u32,
}

/// What the cloud would have written.
#[derive(Debug, Serialize, ToSchema)]
pub(in super::super) struct VerifyReplyBody {
    /// The request's `from`.
    from: u32,
    /// How many of the drafted tokens the cloud would have written, from the first on.
    accepted: u32,
    /// Ids of the tokens that the cloud writes behind them.
    next: Vec<u32>,
    /// Whether the answer ends behind these.
    ended: bool,
    /// Digest of the whole answer then.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    digest: String,
    /// `queue_ms`, `slot_ms`, and the `passes` of the model.
    #[schema(value_type = Object)]
    timing: Value,
}

/// One part of the prompt.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SegmentBody {
    /// `system`, `user`, `assistant` or `tool`.
    #[schema(pattern = "^(system|user|assistant|tool)$")]
    role: String,
    /// The text.
    text: String,
    /// Whether sentences of it may be left out.
    #[schema(nullable = false)]
    refine: Option<bool>,
    /// Calls that the model made at the end of this message.
    #[schema(max_items = 128, nullable = false)]
    calls: Option<Vec<CallBody>>,
    /// Id of the call whose result this message is.
    #[schema(min_length = 1, max_length = 128)]
    call_id: Option<String>,
}

/// A call that the model made earlier.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CallBody {
    /// Id of the call.
    #[schema(min_length = 1, max_length = 128)]
    id: String,
    /// Name of the function.
    #[schema(min_length = 1, max_length = 128)]
    name: String,
    /// Its arguments, as text.
    arguments: String,
}

/// Functions that the answer may call.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ToolsBody {
    /// The functions.
    #[schema(min_items = 1, max_items = 128)]
    functions: Vec<ToolBody>,
    /// `auto` (the model decides), `required` (at least one call), or `{"named": …}` with a function's
    /// name.
    #[schema(value_type = Option<Object>)]
    choice: Option<Value>,
    /// Whether an answer may contain several calls.
    #[schema(nullable = false)]
    parallel: Option<bool>,
}

/// A function.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ToolBody {
    /// Its name.
    #[schema(pattern = "^[A-Za-z0-9_-]{1,64}$")]
    name: String,
    /// What it does.
    description: Option<String>,
    /// JSON schema of its arguments.
    #[schema(value_type = Object)]
    parameters: Value,
    /// Whether the arguments must match the schema even if the call is optional.
    #[schema(nullable = false)]
    strict: Option<bool>,
}

/// How the answer is sampled.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SamplingBody {
    /// Sampling temperature; 0 always takes the most probable token.
    #[schema(minimum = 0, maximum = 10, nullable = false)]
    temperature: Option<f64>,
    /// Sample only from this many most probable tokens.
    #[schema(minimum = 1, maximum = 1_000_000)]
    top_k: Option<u32>,
    /// Sample only from the most probable tokens whose probabilities add up to this value.
    #[schema(minimum = 0, maximum = 1)]
    top_p: Option<f64>,
    /// Sample only tokens whose probability is at least this share of the largest one.
    #[schema(minimum = 0, maximum = 1)]
    min_p: Option<f64>,
    /// Penalty for tokens that the answer already contains; 1 changes nothing.
    #[schema(minimum = 0.1, maximum = 10, nullable = false)]
    repetition_penalty: Option<f64>,
    /// Seed of the randomness.
    #[schema(nullable = false)]
    seed: Option<u64>,
    /// Strings at which the answer ends.
    #[schema(max_items = 16, nullable = false)]
    stop: Option<Vec<String>>,
}

/// How the content is refined.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RefineBody {
    /// Share of the refinable content to keep (r).
    #[schema(minimum = 0.01, maximum = 1)]
    ratio: Option<f64>,
    /// Name of the refiner's mode, e.g. `attention`.
    #[schema(min_length = 1, max_length = 128)]
    mode: Option<String>,
}

/// `event: progress`: progress of the prompt before the first token.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ProgressBody {
    /// `queue` (it waits for its turn) or `prefill`.
    stage: String,
    /// Prompt tokens computed so far.
    computed: u64,
    /// Prompt tokens in all.
    total: u64,
    /// Estimated time from now to the first token, in milliseconds, if it is known.
    eta_ms: Option<f64>,
    /// Running checksum of the reply, eight hex digits; `POST /v1/assist` describes it.
    #[schema(pattern = "^[0-9a-f]{8}$")]
    crc: Option<String>,
}

/// `event: mask`: which sentences to keep. If there is no such event, keep all.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct MaskBody {
    /// Kind of the units: `sentence`.
    unit: String,
    /// Name of the segmenter that found the units.
    segmenter: String,
    /// Number of units.
    count: u64,
    /// How many of them are kept.
    kept: u64,
    /// The mask's bytes in base64.
    data: String,
    /// SHA-256 digest of the refinable segments, in hexadecimal.
    content_sha256: String,
    /// Share of the refinable tokens that is kept (r).
    ratio: f64,
    /// Share of the whole prompt's tokens that is kept.
    prompt_ratio: f64,
    /// Running checksum of the reply, eight hex digits; `POST /v1/assist` describes it.
    #[schema(pattern = "^[0-9a-f]{8}$")]
    crc: Option<String>,
}

/// `event: first`: the first token, and facts about the stream. The event's `id` is the token's index.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FirstBody {
    /// Protocol version of the stream.
    protocol: u32,
    /// Version of the scene that was used.
    scene_version: u32,
    /// Token index.
    index: u32,
    /// Token id in the cloud's vocabulary.
    id: u32,
    /// Its text; empty while a character is incomplete.
    text: String,
    /// Tokens that the cloud writes in all (L).
    assist_tokens: u32,
    /// What limited L, e.g. `tau`, or `quota` for the rest of the tenant's daily quota.
    assist_bound_by: String,
    /// Largest tolerable gap between shown tokens, in milliseconds.
    tau_ms: f64,
    /// Whose token counts if cloud and device differ: `cloud` or `device`.
    corrector: String,
    /// Model that answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    /// Adapter of that model, if the scene has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter: Option<String>,
    /// SHA-256 digest of the cloud's tokenizer, in hexadecimal.
    tokenizer_sha256: Option<String>,
    /// Time that each part of the request took, in milliseconds.
    #[schema(value_type = Object)]
    timing: Value,
    /// Experiment (`id`) and `arm` of the answer, and the `feedback` token for `POST /v1/feedback`; absent if
    /// the answer takes part in no experiment.
    #[schema(value_type = Option<Object>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    experiment: Option<Value>,
    /// That drafts of the device are checked by `POST /v1/assist/{id}/verify`. One pass checks `draft_max`
    /// tokens. The answer is forgotten after `kept_ms` without a request. A pass is expected to take
    /// `pass_ms`, and `row_ms` for each further token.
    #[schema(value_type = Option<Object>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    verify: Option<Value>,
    /// Keys and values of the kept sentences, if the device asked for them (`device.kv`) and there are some:
    /// `GET /v1/assist/{id}/kv` gives them.
    #[serde(skip_serializing_if = "Option::is_none")]
    kv: Option<TicketBody>,
    /// Running checksum of the reply, eight hex digits; `POST /v1/assist` describes it.
    #[schema(pattern = "^[0-9a-f]{8}$")]
    crc: Option<String>,
}

/// Keys and values that a device of the same model can take in place of a prefill.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TicketBody {
    /// Bytes of all frames.
    bytes: u64,
    /// How they are written: `f32`, `f16`, `q8` or `q4`.
    format: String,
    /// Prompt tokens whose keys and values there are.
    tokens: u32,
    /// Name of the whole prompt's ids, 64 hex digits.
    prompt_sha256: String,
    /// Name of the model that computed them, 64 hex digits.
    model: String,
}

/// `event: token`: a later token. The event's `id` is the token's index.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TokenBody {
    /// Token index; there is one event for each index.
    index: u32,
    /// Token id in the cloud's vocabulary.
    id: u32,
    /// Its text; empty while a character is incomplete.
    text: String,
    /// Running checksum of the reply, eight hex digits; `POST /v1/assist` describes it.
    #[schema(pattern = "^[0-9a-f]{8}$")]
    crc: Option<String>,
}

/// `event: end`: the last event of a successful stream. A failed stream ends with `event: error`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EndBody {
    /// `stop`, `cap` (L tokens were written) or `cancelled`.
    reason: String,
    /// Number of tokens that the answer used.
    #[schema(value_type = Object)]
    usage: Value,
    /// How long the answer waited and held a slot, in milliseconds.
    #[schema(value_type = Option<Object>)]
    timing: Option<Value>,
    /// Running checksum of the reply, eight hex digits; `POST /v1/assist` describes it.
    #[schema(pattern = "^[0-9a-f]{8}$")]
    crc: Option<String>,
}

/// The scenes.
#[derive(Debug, Serialize, ToSchema)]
pub(in super::super) struct SceneList {
    /// `list`.
    object: String,
    /// The current version of each.
    data: Vec<SceneBody>,
}

#[cfg(test)]
mod tests;
