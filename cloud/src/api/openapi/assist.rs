//! The assist protocol's shapes, as `baton-protocol` defines them: that package depends on nothing but serde.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

/// What a device asks.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct AssistBody {
    /// Must be 1.
    #[schema(minimum = 1, maximum = 1)]
    protocol: u32,
    /// Names this request. Sent again within 10 minutes with the same content, it is charged once; it may be sent 4 times.
    request_id: Uuid,
    /// Scene id.
    #[schema(min_length = 1, max_length = 128)]
    scene: String,
    /// Scene version the device has; none: the current one.
    scene_version: Option<u32>,
    /// Model name, or `default`.
    #[schema(min_length = 1, max_length = 128)]
    model: String,
    /// Digest of the device's tokenizer.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    tokenizer_sha256: Option<String>,
    /// The prompt, in order.
    #[schema(min_items = 1, max_items = 1024)]
    segments: Vec<SegmentBody>,
    /// Text of this answer that was already accepted, where the cloud is to go on.
    continue_from: Option<String>,
    /// The device as it is now.
    device: Option<Device>,
    /// How the answer is sampled.
    #[schema(value_type = Option<SamplingBody>, nullable = false)]
    sampling: Option<SamplingBody>,
    /// How the content is refined.
    #[schema(value_type = Option<RefineBody>, nullable = false)]
    refine: Option<RefineBody>,
    /// Tokens the cloud shall write (L); none: the scene's or the optimizer's.
    #[schema(minimum = 1, maximum = 65536)]
    assist_tokens: Option<u32>,
    /// The stream may be taken up again after a disconnect.
    #[schema(nullable = false)]
    resume: Option<bool>,
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
    /// Sentences of it may be left out.
    #[schema(nullable = false)]
    refine: Option<bool>,
}

/// What the device says of itself, for the optimizer. Times in milliseconds.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Device {
    /// Kind of device, e.g. `phone`.
    #[schema(min_length = 1, max_length = 128)]
    class: String,
    /// Model on the device.
    #[schema(min_length = 1, max_length = 128)]
    model: String,
    /// Prefill time per token (k_d).
    #[schema(minimum = 0, maximum = 10000)]
    prefill_ms_per_token: Option<f64>,
    /// Prefill time per squared token (q_d).
    #[schema(minimum = 0, maximum = 10, nullable = false)]
    prefill_ms_per_token2: Option<f64>,
    /// Time per output token (TPOT_d).
    #[schema(minimum = 0, maximum = 60000)]
    decode_ms: Option<f64>,
    /// Kind of network, e.g. `wifi`.
    #[schema(min_length = 1, max_length = 128)]
    network: Option<String>,
    /// What the network added to its last times to first token.
    #[schema(minimum = 0, maximum = 60000)]
    network_ms: Option<f64>,
}

/// How the answer is sampled.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SamplingBody {
    /// 0: greedy.
    #[schema(minimum = 0, maximum = 10, nullable = false)]
    temperature: Option<f64>,
    /// Sample from this many most probable tokens only.
    #[schema(minimum = 1, maximum = 1_000_000)]
    top_k: Option<u32>,
    /// Sample from the most probable tokens of this mass only.
    #[schema(minimum = 0, maximum = 1)]
    top_p: Option<f64>,
    /// Sample only tokens of at least this share of the largest probability.
    #[schema(minimum = 0, maximum = 1)]
    min_p: Option<f64>,
    /// Penalty on tokens that the answer already holds; 1: none.
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

/// `event: progress`: how far the prompt is, while there is no token yet.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ProgressBody {
    /// `queue` (it waits for its turn) or `prefill`.
    stage: String,
    /// Prompt tokens that are computed.
    computed: u64,
    /// Prompt tokens in all.
    total: u64,
    /// How long the first token will take from now, in milliseconds, if that can be said.
    eta_ms: Option<f64>,
    /// Running checksum of the reply, eight hex digits; `POST /v1/assist` says of what.
    #[schema(pattern = "^[0-9a-f]{8}$")]
    crc: Option<String>,
}

/// `event: mask`: which sentences to keep. Without it, all.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct MaskBody {
    /// `sentence`.
    unit: String,
    /// Segmenter that found the units.
    segmenter: String,
    /// Number of units.
    count: u64,
    /// How many of them are kept.
    kept: u64,
    /// The mask's bytes in base64.
    data: String,
    /// Digest of the refinable segments.
    content_sha256: String,
    /// Share of the refinable tokens that is kept (r).
    ratio: f64,
    /// Share of the whole prompt's tokens that is kept.
    prompt_ratio: f64,
    /// Running checksum of the reply, eight hex digits; `POST /v1/assist` says of what.
    #[schema(pattern = "^[0-9a-f]{8}$")]
    crc: Option<String>,
}

/// `event: first`: the first token, with what the stream will hold. The event's `id` is its index.
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
    /// What L was bound by, e.g. `tau`; `quota`: by what the tenant's day had left.
    assist_bound_by: String,
    /// Largest tolerable gap between shown tokens, in milliseconds.
    tau_ms: f64,
    /// `cloud` or `device`: whose token counts where they differ.
    corrector: String,
    /// Model that answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    /// Adapter of that model, if the scene has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter: Option<String>,
    /// Digest of the cloud's tokenizer.
    tokenizer_sha256: Option<String>,
    /// Where the time went.
    #[schema(value_type = Object)]
    timing: Value,
    /// Anything for the application.
    #[schema(value_type = Option<Object>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    guide: Option<Value>,
    /// Running checksum of the reply, eight hex digits; `POST /v1/assist` says of what.
    #[schema(pattern = "^[0-9a-f]{8}$")]
    crc: Option<String>,
}

/// `event: token`: a later token. The event's `id` is its index.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TokenBody {
    /// Token index; one event an index.
    index: u32,
    /// Token id in the cloud's vocabulary.
    id: u32,
    /// Its text; empty while a character is incomplete.
    text: String,
    /// Running checksum of the reply, eight hex digits; `POST /v1/assist` says of what.
    #[schema(pattern = "^[0-9a-f]{8}$")]
    crc: Option<String>,
}

/// `event: end`: the last event of a stream that went well. One that did not ends with `event: error`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EndBody {
    /// `stop`, `cap` (L tokens were written) or `cancelled`.
    reason: String,
    /// What it took, in tokens.
    #[schema(value_type = Object)]
    usage: Value,
    /// How long it held the cloud.
    #[schema(value_type = Option<Object>)]
    timing: Option<Value>,
    /// Running checksum of the reply, eight hex digits; `POST /v1/assist` says of what.
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

/// One version of a scene's settings.
#[derive(Debug, Serialize, ToSchema)]
pub(in super::super) struct SceneBody {
    /// Scene id.
    id: String,
    /// Version; a change is a new version.
    version: u32,
    /// System text, the fixed prefix of every prompt.
    system: String,
    /// What stands between the content and the question.
    question_prefix: String,
    /// Share of the content to keep (r); none: the optimizer decides.
    ratio: Option<f64>,
    /// Smallest share that the scene's quality allows (xi); 1 forbids refinement.
    xi: f64,
    /// Tokens the cloud writes (L); none: the optimizer decides.
    assist_tokens: Option<u32>,
    /// Fewest tokens the cloud writes, also under load.
    assist_floor: u32,
    /// Most tokens the cloud writes, whatever a request asks for.
    assist_max: u32,
    /// Largest tolerable gap between shown tokens, in milliseconds.
    tau_ms: f64,
    /// `cloud` or `device`.
    corrector: String,
    /// Refinement is allowed.
    refine: bool,
    /// Model that serves the scene.
    model: String,
    /// Adapter on that model, if the scene has one.
    adapter: Option<String>,
    /// Digest of the cloud model's tokenizer.
    tokenizer_sha256: Option<String>,
    /// Most tokens of a prompt that the cloud takes.
    prompt_tokens_max: Option<u32>,
}

#[cfg(test)]
mod tests;
