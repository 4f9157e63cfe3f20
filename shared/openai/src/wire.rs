//! The fields of a chat or text completion request, as OpenAI's clients send them.
//!
//! Only the types are checked here; [`crate::request`] checks the values. Fields that have no effect say so.
//! Always: a field that is not listed is refused by name, at any depth, unless it is null.

mod text;
pub(crate) mod text_or;
pub(crate) mod unknown;

use baton_protocol::DeviceInfo;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

pub use self::text::TextCompletionRequest;
pub(crate) use self::text::TextPrompt;
use self::text_or::TextOr;
use self::unknown::{MustBeNull, NoOther};

/// A chat completion request.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct ChatCompletionRequest {
    /// Name of the model, or `default`.
    #[schema(example = "default", value_type = String)]
    pub(crate) model: Option<String>,
    /// The conversation so far.
    #[schema(min_items = 1)]
    pub(crate) messages: Vec<ChatMessageBody>,
    /// The most tokens of the answer. If `max_completion_tokens` is set too, the smaller value counts.
    #[schema(minimum = 1)]
    pub(crate) max_tokens: Option<u64>,
    /// The most tokens of the answer.
    #[schema(minimum = 1)]
    pub(crate) max_completion_tokens: Option<u64>,
    /// Sampling temperature; 0 always takes the most probable token.
    #[schema(minimum = 0, maximum = 2, default = 1.0)]
    pub(crate) temperature: Option<f64>,
    /// Sample only from the most probable tokens whose probabilities add up to this value.
    #[schema(minimum = 0, maximum = 1)]
    pub(crate) top_p: Option<f64>,
    /// Sample only from this many most probable tokens.
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub(crate) top_k: Option<u32>,
    /// Sample only tokens whose probability is at least this share of the largest one.
    #[schema(minimum = 0, maximum = 1)]
    pub(crate) min_p: Option<f64>,
    /// Penalty for tokens that the answer already contains: divides positive logits; 1 changes nothing.
    #[schema(minimum = 0.1, maximum = 10)]
    pub(crate) repetition_penalty: Option<f64>,
    /// Subtracted from a token's logit once for each time that the answer contains it.
    #[schema(minimum = -2, maximum = 2)]
    pub(crate) frequency_penalty: Option<f64>,
    /// Subtracted from the logit of every token that the answer contains.
    #[schema(minimum = -2, maximum = 2)]
    pub(crate) presence_penalty: Option<f64>,
    /// Seed of the sampling: the same request with the same seed gives the same answer.
    pub(crate) seed: Option<i64>,
    /// One string or up to 16; the answer ends before any of them.
    pub(crate) stop: Option<Stop>,
    /// Send the answer as it is written.
    pub(crate) stream: Option<bool>,
    /// Options of the stream; needs `stream`.
    pub(crate) stream_options: Option<StreamOptions>,
    /// Number of answers; must be 1.
    #[schema(minimum = 1, maximum = 1)]
    pub(crate) n: Option<u64>,
    /// Send the log probability of each token.
    pub(crate) logprobs: Option<bool>,
    /// Number of most probable tokens to send at each position; needs `logprobs`.
    #[schema(minimum = 0, maximum = 20)]
    pub(crate) top_logprobs: Option<u64>,
    /// Not supported; must be empty.
    #[schema(value_type = Option<Object>)]
    pub(crate) logit_bias: Option<Map<String, Value>>,
    /// The form that the answer must have.
    pub(crate) response_format: Option<ResponseFormat>,
    /// Only `text` is supported.
    pub(crate) modalities: Option<Vec<String>>,
    /// Functions that the model may call.
    #[schema(max_items = 128)]
    pub(crate) tools: Option<Vec<ToolBody>>,
    /// Whether the model must call a function.
    pub(crate) tool_choice: Option<ToolChoiceBody>,
    /// Whether an answer may contain several calls. Default: true, or false if a call is required.
    pub(crate) parallel_tool_calls: Option<bool>,
    /// Not supported, use `tools`; must be empty.
    pub(crate) functions: Option<Vec<Value>>,
    /// Not supported, use `tool_choice`; must be absent, `auto` or `none`.
    #[schema(value_type = Option<Object>)]
    pub(crate) function_call: Option<Value>,
    /// Baton's own field, for the device agent: `auto` shortens a prompt that does not fit; `disabled` (the
    /// default) refuses it.
    pub(crate) truncation: Option<String>,
    /// Baton's own field: the end of the answer names the sentences of the messages that it stands on, as
    /// `citations` in the field `baton`. Not with the field `baton`, tools, or engines elsewhere.
    pub(crate) citations: Option<bool>,
    /// Not supported, answers are never stored; must not be true.
    pub(crate) store: Option<bool>,
    /// Baton's own field, for the cloud service: assistance by a scene, up to L tokens.
    pub(crate) baton: Option<BatonBody>,
    // These fields describe the caller or OpenAI's scheduling; they have no effect here.
    /// Describes the caller; no effect.
    #[serde(rename = "user")]
    pub(crate) _user: Option<String>,
    /// Describes the call; no effect.
    #[schema(value_type = Option<Object>)]
    #[serde(rename = "metadata")]
    pub(crate) _metadata: Option<Value>,
    /// No effect.
    #[serde(rename = "service_tier")]
    pub(crate) _service_tier: Option<String>,
    /// Describes the caller; no effect.
    #[serde(rename = "safety_identifier")]
    pub(crate) _safety_identifier: Option<String>,
    /// No effect: the prefix cache finds prefixes by their tokens.
    #[serde(rename = "prompt_cache_key")]
    pub(crate) _prompt_cache_key: Option<String>,
    // What clients of vLLM send.
    /// No effect: an answer ends where the model ends it.
    #[serde(rename = "ignore_eos")]
    pub(crate) _ignore_eos: Option<bool>,
    /// No effect: an answer ends where the model ends it.
    #[serde(rename = "min_tokens")]
    pub(crate) _min_tokens: Option<u64>,
    /// No effect: control tokens are never part of an answer's text.
    #[serde(rename = "skip_special_tokens")]
    pub(crate) _skip_special_tokens: Option<bool>,
    /// No effect: templates get no variables of a request.
    #[schema(value_type = Option<Object>)]
    #[serde(rename = "chat_template_kwargs")]
    pub(crate) _chat_template_kwargs: Option<Value>,
    /// Not supported; must not be true.
    pub(crate) continue_final_message: Option<bool>,
    // Other fields.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(crate) _other: NoOther,
}

/// A message.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ChatMessageBody {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    pub(crate) role: String,
    /// The text. A message of the assistant may have none.
    pub(crate) content: Option<Content>,
    /// Calls that the assistant made.
    pub(crate) tool_calls: Option<Vec<PastCallBody>>,
    /// In a message of role `tool`: id of the call whose result this is.
    pub(crate) tool_call_id: Option<String>,
    /// Not supported, use `tool_calls`; must be null.
    #[schema(value_type = Option<Object>)]
    pub(crate) function_call: Option<Value>,
    // Fields of an answer's message that have no meaning in a request.
    /// Name of the speaker; no effect.
    #[serde(rename = "name")]
    pub(crate) _name: Option<String>,
    /// No effect.
    #[serde(rename = "refusal")]
    pub(crate) _refusal: Option<String>,
    /// No effect.
    #[serde(rename = "annotations")]
    pub(crate) _annotations: Option<Vec<Value>>,
    /// Not supported; must be null.
    #[schema(value_type = Option<Object>)]
    pub(crate) audio: Option<Value>,
    // Other fields.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(crate) _other: NoOther,
}

/// A text, or parts of type `text`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOr<Vec<Part>>")]
pub(crate) enum Content {
    /// The text.
    Text(String),
    /// Its parts, joined without anything between them.
    Parts(Vec<Part>),
}

/// A part of a message.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Part {
    /// Only `text` is supported.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The text.
    pub(crate) text: Option<String>,
    /// No effect: the prefix cache finds prefixes by their tokens.
    #[schema(value_type = Option<Object>)]
    #[serde(rename = "cache_control")]
    pub(crate) _cache_control: Option<Value>,
    // Fields of parts of other types. The check refuses the type first.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(crate) other: Map<String, Value>,
}

/// One string or several.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOr<Vec<String>>")]
pub(crate) enum Stop {
    /// One string.
    One(String),
    /// Any of these.
    Many(Vec<String>),
}

/// Options of a stream.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct StreamOptions {
    /// Send a last chunk without choices that has the token counts.
    pub(crate) include_usage: Option<bool>,
    /// Baton's own field: until the first token, send the progress of the prompt about every two seconds, in
    /// `x_progress` of chunks without choices.
    pub(crate) include_progress: Option<bool>,
    /// No effect.
    #[serde(rename = "include_obfuscation")]
    pub(crate) _include_obfuscation: Option<bool>,
    /// No effect: the counts come once, at the end.
    #[serde(rename = "continuous_usage_stats")]
    pub(crate) _continuous_usage_stats: Option<bool>,
    // Other fields.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(crate) _other: NoOther,
}

/// The form that the answer must have.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ResponseFormat {
    /// `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The schema; only with the type `json_schema`.
    pub(crate) json_schema: Option<NamedSchema>,
    // Other fields.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(crate) _other: NoOther,
}

/// A schema and its name.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct NamedSchema {
    /// Its name; no effect.
    #[serde(rename = "name")]
    pub(crate) _name: Option<String>,
    /// What it is for; no effect.
    #[serde(rename = "description")]
    pub(crate) _description: Option<String>,
    /// The JSON schema.
    #[schema(value_type = Option<Object>)]
    pub(crate) schema: Option<Value>,
    /// No effect: the answer always follows the schema.
    #[serde(rename = "strict")]
    pub(crate) _strict: Option<bool>,
    // Other fields.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(crate) _other: NoOther,
}

/// A function that the model may call.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ToolBody {
    /// Only `function` is supported.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The function.
    pub(crate) function: Option<FunctionBody>,
    // Other fields.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(crate) _other: NoOther,
}

/// A function, as described to the model.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct FunctionBody {
    /// 1 to 64 letters, digits, `_` or `-`.
    #[schema(pattern = "^[A-Za-z0-9_-]{1,64}$")]
    pub(crate) name: String,
    /// What it does.
    pub(crate) description: Option<String>,
    /// JSON schema of its arguments, an object; without it the function has no arguments.
    #[schema(value_type = Option<Object>)]
    pub(crate) parameters: Option<Value>,
    /// Whether arguments follow the schema even if the call is optional.
    pub(crate) strict: Option<bool>,
    // Other fields.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(crate) _other: NoOther,
}

/// `auto`, `none`, `required`, or one function.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOr<NamedChoice>")]
pub(crate) enum ToolChoiceBody {
    /// `auto`, `none` or `required`.
    Word(String),
    /// The model must call this function.
    Named(NamedChoice),
}

/// One function that must be called.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct NamedChoice {
    /// Only `function` is supported.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Its name.
    pub(crate) function: Option<FunctionName>,
    // Other fields.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(crate) _other: NoOther,
}

/// The name of a function.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct FunctionName {
    /// Its name, as in `tools`.
    pub(crate) name: String,
    // Other fields.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(crate) _other: NoOther,
}

/// A call that the assistant made.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct PastCallBody {
    /// Its id.
    pub(crate) id: String,
    /// Only `function` is supported.
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    /// The function that was called, and its arguments.
    pub(crate) function: PastFunction,
    /// No effect: its index among the calls of a stream.
    #[serde(rename = "index")]
    pub(crate) _index: Option<u64>,
    // Other fields.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(crate) _other: NoOther,
}

/// A function and the arguments of a call.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct PastFunction {
    /// Its name.
    pub(crate) name: String,
    /// The arguments, JSON as text.
    pub(crate) arguments: String,
    // Other fields.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(crate) _other: NoOther,
}

/// Assistance by a scene: the cloud writes up to L tokens, and a mask of the sentences to keep.
///
/// The reply's first chunk (or the whole reply) has a field `baton` with L, the reason for L, and the mask.
/// If L is reached, `finish_reason` is `length` and the last chunk has `baton.handoff`.
#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
pub struct BatonBody {
    /// Id of the scene.
    pub scene: String,
    /// Version of the scene; the current one if absent.
    pub scene_version: Option<u32>,
    /// Indexes, from 0, of the messages whose sentences may be left out on the device.
    #[serde(default)]
    pub refine: Vec<usize>,
    /// Share of this content to keep (r); if absent, the scene or the optimizer sets it.
    #[schema(minimum = 0.01, maximum = 1)]
    pub ratio: Option<f32>,
    /// Tokens that the cloud writes (L); if absent, the scene or the optimizer sets it. `max_tokens` can
    /// lower L, but never raise it.
    #[schema(minimum = 1, maximum = 65536)]
    pub assist_tokens: Option<u32>,
    /// The device, for the optimizer.
    #[schema(value_type = Option<Device>)]
    pub device: Option<DeviceInfo>,
    // Other fields.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(crate) _other: NoOther,
}

/// The device's description of itself, for the optimizer. Times are in milliseconds.
///
/// Describes the JSON of [`DeviceInfo`] for the API document, because the protocol's package does not depend
/// on utoipa. It is never read or sent.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Kind of device, e.g. `phone`.
    #[schema(min_length = 1, max_length = 128)]
    class: String,
    /// Model on the device.
    #[schema(min_length = 1, max_length = 128)]
    model: String,
    /// Versions of the model and its adapter, if the device has them from the service's registry. A pair that
    /// the registry does not allow is refused.
    pair: Option<DevicePair>,
    /// Name of the model whose keys and values the device can take in place of a prefill.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    kv: Option<String>,
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
    /// Time that the network added to recent times to first token.
    #[schema(minimum = 0, maximum = 60000)]
    network_ms: Option<f64>,
}

/// A base and, if the scene has one, an adapter of it. Each is `NAME@VERSION`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DevicePair {
    /// The base.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,63}@[1-9][0-9]{0,9}$")]
    base: String,
    /// The adapter.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,63}@[1-9][0-9]{0,9}$")]
    adapter: Option<String>,
}

impl From<TextOr<Vec<Part>>> for Content {
    fn from(read: TextOr<Vec<Part>>) -> Content {
        match read {
            TextOr::Text(text) => Content::Text(text),
            TextOr::Other(parts) => Content::Parts(parts),
        }
    }
}

impl From<TextOr<Vec<String>>> for Stop {
    fn from(read: TextOr<Vec<String>>) -> Stop {
        match read {
            TextOr::Text(stop) => Stop::One(stop),
            TextOr::Other(stops) => Stop::Many(stops),
        }
    }
}

impl From<TextOr<NamedChoice>> for ToolChoiceBody {
    fn from(read: TextOr<NamedChoice>) -> ToolChoiceBody {
        match read {
            TextOr::Text(word) => ToolChoiceBody::Word(word),
            TextOr::Other(named) => ToolChoiceBody::Named(named),
        }
    }
}
