//! The fields of a chat or text completion request, as OpenAI's clients send them.
//!
//! Only the types are checked here; [`crate::request`] checks the values. A field that is not listed is taken
//! and has no effect; [`crate::ignored`] names it.

mod text;
pub(crate) mod text_or;
pub(crate) mod whole;

use baton_protocol::DeviceInfo;
use serde::de::MapAccess;
use serde::de::value::MapAccessDeserializer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

pub use self::text::TextCompletionRequest;
pub(crate) use self::text::TextPrompt;
use self::text_or::{FromObject, TextOr};
use self::whole::whole;

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
    /// Below 0: as many as fit.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) max_tokens: Option<i64>,
    /// The most tokens of the answer.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) max_completion_tokens: Option<i64>,
    /// Sampling temperature; 0 always takes the most probable token.
    #[schema(minimum = 0, maximum = 2, default = 1.0)]
    pub(crate) temperature: Option<f64>,
    /// Sample only from the most probable tokens whose probabilities add up to this value.
    #[schema(minimum = 0, maximum = 1)]
    pub(crate) top_p: Option<f64>,
    /// Sample only from this many most probable tokens; from all of them if it is below 1.
    #[schema(maximum = 1_000_000)]
    #[serde(default, deserialize_with = "whole")]
    pub(crate) top_k: Option<i64>,
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
    #[serde(default, deserialize_with = "whole")]
    pub(crate) seed: Option<i64>,
    /// One string or up to 16; the answer ends before any of them.
    pub(crate) stop: Option<Stop>,
    /// Send the answer as it is written.
    pub(crate) stream: Option<bool>,
    /// Options of the stream.
    pub(crate) stream_options: Option<StreamOptions>,
    /// Number of answers; must be 1.
    #[schema(minimum = 1, maximum = 1)]
    pub(crate) n: Option<u64>,
    /// Send the log probability of each token.
    pub(crate) logprobs: Option<bool>,
    /// Number of most probable tokens to send at each position; no effect without `logprobs`.
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
    #[schema(max_items = 512)]
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
    /// No effect: answers are never stored.
    pub(crate) store: Option<bool>,
    /// Baton's own field, for the cloud service: assistance by a scene, up to L tokens.
    pub(crate) baton: Option<BatonBody>,
    /// The answer continues the last message, which is the assistant's. The reply has the continuation alone.
    pub(crate) continue_final_message: Option<bool>,
}

/// A message.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ChatMessageBody {
    /// `system`, `developer`, `user`, `assistant`, `tool`, or `function`, the older name of `tool`.
    pub(crate) role: String,
    /// The text. A message of the assistant may have none.
    pub(crate) content: Option<Content>,
    /// Calls that the assistant made.
    pub(crate) tool_calls: Option<Vec<PastCallBody>>,
    /// In a message of role `tool`: id of the call whose result this is.
    pub(crate) tool_call_id: Option<String>,
    /// The older form of one call in `tool_calls`.
    pub(crate) function_call: Option<PastFunction>,
    /// Cannot be read: refused in the last message; in earlier ones a short text stands for it.
    #[schema(value_type = Option<Object>)]
    pub(crate) audio: Option<Value>,
    /// Of the assistant: the thinking before the text.
    #[schema(value_type = Option<String>)]
    pub(crate) reasoning_content: Option<Value>,
    /// Another name of `reasoning_content`.
    #[schema(value_type = Option<String>)]
    pub(crate) reasoning: Option<Value>,
    /// The thinking in parts, each with its `text` or `summary`.
    #[schema(value_type = Option<Vec<Object>>)]
    pub(crate) reasoning_details: Option<Value>,
}

/// A text, or its parts.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOr<Vec<Value>>")]
pub(crate) enum Content {
    /// The text.
    Text(String),
    /// Its parts, joined by line breaks.
    #[schema(value_type = Vec<Part>)]
    Parts(Vec<Value>),
}

/// A part of a message.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Part {
    /// `text` (the default), `input_text` or `output_text`. A part of another type that has no text is
    /// refused in the last message; in earlier ones a short text stands for it.
    #[serde(rename = "type")]
    pub(crate) _kind: Option<String>,
    /// The text.
    pub(crate) text: Option<String>,
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
}

/// The form that the answer must have.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ResponseFormat {
    /// `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The schema; only with the type `json_schema`.
    pub(crate) json_schema: Option<NamedSchema>,
    /// The schema where other engines have it; also with the type `json_object`.
    #[schema(value_type = Option<Object>)]
    pub(crate) schema: Option<Value>,
}

/// A schema and its name.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct NamedSchema {
    /// The JSON schema.
    #[schema(value_type = Option<Object>)]
    pub(crate) schema: Option<Value>,
}

/// A function that the model may call.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ToolBody {
    /// `function`, the default; tools of other types are left out.
    #[serde(rename = "type", default = "function")]
    #[schema(value_type = Option<String>)]
    pub(crate) kind: String,
    /// The function.
    pub(crate) function: Option<FunctionBody>,
}

/// A function, as described to the model.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct FunctionBody {
    /// 1 to 128 letters, digits, `_`, `-`, `.`, `:` or `/`.
    #[schema(pattern = "^[A-Za-z0-9_.:/-]{1,128}$")]
    pub(crate) name: String,
    /// What it does.
    pub(crate) description: Option<String>,
    /// JSON schema of its arguments, which are an object; without it the function has no arguments.
    #[schema(value_type = Option<Object>)]
    pub(crate) parameters: Option<Value>,
    /// Whether arguments follow the schema even if the call is optional.
    pub(crate) strict: Option<bool>,
}

/// `auto`, `none`, `required`, one function, or a choice among some of the tools.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOr<ToolChoiceObject>")]
pub(crate) enum ToolChoiceBody {
    /// `auto`, `none` or `required`.
    Word(String),
    /// Another choice.
    Object(ToolChoiceObject),
}

/// One function that must be called, or the tools that may be called.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct ToolChoiceObject {
    /// `function`, `allowed_tools`, or one of the words above.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Of `function`: its name.
    pub(crate) function: Option<FunctionName>,
    /// Of `allowed_tools`.
    pub(crate) allowed_tools: Option<AllowedTools>,
}

/// The tools that may be called.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct AllowedTools {
    /// `auto` or `required`.
    pub(crate) mode: Option<String>,
    /// The functions, by their names.
    pub(crate) tools: Vec<AllowedTool>,
}

/// One of the tools that may be called.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct AllowedTool {
    /// Its name.
    pub(crate) function: Option<FunctionName>,
}

/// The name of a function.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct FunctionName {
    /// Its name, as in `tools`.
    pub(crate) name: String,
}

/// A call that the assistant made.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct PastCallBody {
    /// Its id; made if it is absent.
    pub(crate) id: Option<String>,
    /// `function`, the default.
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    /// The function that was called, and its arguments. A call without one is left out.
    pub(crate) function: Option<PastFunction>,
}

/// A function and the arguments of a call.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct PastFunction {
    /// Its name.
    pub(crate) name: String,
    /// The arguments, JSON as text. An object is taken too.
    #[schema(value_type = Option<String>)]
    pub(crate) arguments: Option<Value>,
}

/// Assistance by a scene: the cloud writes up to L tokens, and a mask of the sentences to keep.
///
/// The reply's first chunk (or the whole reply) has a field `baton` with L, the reason for L, and the mask.
/// If L is reached, `finish_reason` is `length` and the last chunk has `baton.handoff`.
#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
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

impl ResponseFormat {
    /// Makes the form of a dialect that has the schema beside the type.
    pub(crate) fn new(kind: String, schema: Option<Value>) -> ResponseFormat {
        match kind.as_str() {
            "json_schema" => ResponseFormat { kind, json_schema: Some(NamedSchema { schema }), schema: None },
            _ => ResponseFormat { kind, json_schema: None, schema },
        }
    }
}

impl From<TextOr<Vec<Value>>> for Content {
    fn from(read: TextOr<Vec<Value>>) -> Content {
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

impl From<TextOr<ToolChoiceObject>> for ToolChoiceBody {
    fn from(read: TextOr<ToolChoiceObject>) -> ToolChoiceBody {
        match read {
            TextOr::Text(word) => ToolChoiceBody::Word(word),
            TextOr::Other(choice) => ToolChoiceBody::Object(choice),
        }
    }
}

impl<'de> FromObject<'de> for ToolChoiceObject {
    fn from_object<A: MapAccess<'de>>(fields: A) -> Result<ToolChoiceObject, A::Error> {
        ToolChoiceObject::deserialize(MapAccessDeserializer::new(fields))
    }
}

/// The type of a tool that says none.
fn function() -> String {
    "function".to_owned()
}
