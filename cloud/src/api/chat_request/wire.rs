//! The fields of a chat completion request, as OpenAI's clients send them.
//!
//! Fields that are here only to be refused by name, or taken without effect, say so.

use std::fmt;
use std::marker::PhantomData;

use baton_protocol::DeviceInfo;
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use utoipa::ToSchema;

/// A chat completion request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ChatCompletionRequest {
    /// Name of the model, or `default`.
    #[schema(example = "default")]
    pub(super) model: String,
    /// What was said so far.
    #[schema(min_items = 1)]
    pub(super) messages: Vec<ChatMessageBody>,
    /// The most tokens of the answer; the smaller one where both names are there.
    #[schema(minimum = 1)]
    pub(super) max_tokens: Option<u64>,
    /// The most tokens of the answer.
    #[schema(minimum = 1)]
    pub(super) max_completion_tokens: Option<u64>,
    /// 0: the likeliest token.
    #[schema(minimum = 0, maximum = 2, default = 1.0)]
    pub(super) temperature: Option<f64>,
    /// Sample from the most probable tokens of this mass only.
    #[schema(minimum = 0, maximum = 1)]
    pub(super) top_p: Option<f64>,
    /// Sample from this many most probable tokens only.
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub(super) top_k: Option<u32>,
    /// Sample only tokens of at least this share of the largest probability.
    #[schema(minimum = 0, maximum = 1)]
    pub(super) min_p: Option<f64>,
    /// Divides positive logits of tokens that the answer holds; 1 changes nothing.
    #[schema(minimum = 0.1, maximum = 10)]
    pub(super) repetition_penalty: Option<f64>,
    /// Taken off a token's logit for each time that the answer holds it.
    #[schema(minimum = -2, maximum = 2)]
    pub(super) frequency_penalty: Option<f64>,
    /// Taken off the logit of every token that the answer holds.
    #[schema(minimum = -2, maximum = 2)]
    pub(super) presence_penalty: Option<f64>,
    /// The same seed gives the same answer.
    pub(super) seed: Option<i64>,
    /// Where the answer ends, unseen: one string or up to 16.
    pub(super) stop: Option<Stop>,
    /// Send the answer as it is written.
    pub(super) stream: Option<bool>,
    /// Needs `stream`.
    pub(super) stream_options: Option<StreamOptions>,
    /// Must be 1.
    #[schema(minimum = 1, maximum = 1)]
    pub(super) n: Option<u64>,
    /// Send the log probability of each token.
    pub(super) logprobs: Option<bool>,
    /// Send so many likeliest tokens for each place; needs `logprobs`.
    #[schema(minimum = 0, maximum = 20)]
    pub(super) top_logprobs: Option<u64>,
    /// Not supported; must be empty.
    #[schema(value_type = Option<Object>)]
    pub(super) logit_bias: Option<Value>,
    /// What the answer must be.
    pub(super) response_format: Option<ResponseFormat>,
    /// Only `text`.
    pub(super) modalities: Option<Vec<String>>,
    /// Functions that the model may call.
    #[schema(max_items = 128)]
    pub(super) tools: Option<Vec<ToolBody>>,
    /// Whether it must call one.
    pub(super) tool_choice: Option<ToolChoiceBody>,
    /// Several calls may stand in one answer; where one is demanded, only with `true`.
    pub(super) parallel_tool_calls: Option<bool>,
    /// Replaced by `tools`; must be empty.
    pub(super) functions: Option<Vec<Value>>,
    /// Replaced by `tool_choice`; must be absent, `auto` or `none`.
    #[schema(value_type = Option<Object>)]
    pub(super) function_call: Option<Value>,
    /// Answers are never stored; must not be true.
    pub(super) store: Option<bool>,
    /// Baton's own field: assistance by a scene, up to L tokens.
    pub(super) baton: Option<BatonBody>,
    // These describe the caller or the scheduling elsewhere; they change nothing here.
    /// Describes the caller; no effect.
    #[serde(rename = "user")]
    pub(super) _user: Option<String>,
    /// Describes the call; no effect.
    #[schema(value_type = Option<Object>)]
    #[serde(rename = "metadata")]
    pub(super) _metadata: Option<Value>,
    /// No effect.
    #[serde(rename = "service_tier")]
    pub(super) _service_tier: Option<String>,
    /// Describes the caller; no effect.
    #[serde(rename = "safety_identifier")]
    pub(super) _safety_identifier: Option<String>,
    /// Prefixes are found by their tokens; no effect.
    #[serde(rename = "prompt_cache_key")]
    pub(super) _prompt_cache_key: Option<String>,
}

/// A message.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ChatMessageBody {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    pub(super) role: String,
    /// The text; may be absent beside calls of the assistant.
    pub(super) content: Option<Content>,
    /// Calls that the assistant made.
    pub(super) tool_calls: Option<Vec<PastCallBody>>,
    /// The call whose result a message of role `tool` is.
    pub(super) tool_call_id: Option<String>,
    /// Replaced by `tool_calls`; must be null.
    #[schema(value_type = Option<Object>)]
    pub(super) function_call: Option<Value>,
    // What comes back in an answer's message and means nothing in a question.
    /// Name of the speaker; no effect.
    #[serde(rename = "name")]
    pub(super) _name: Option<String>,
    /// No effect.
    #[serde(rename = "refusal")]
    pub(super) _refusal: Option<String>,
    /// No effect.
    #[serde(rename = "annotations")]
    pub(super) _annotations: Option<Vec<Value>>,
    /// Not supported; must be null.
    #[schema(value_type = Option<Object>)]
    pub(super) audio: Option<Value>,
}

/// A text, or parts of type `text`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOr<Vec<Part>>")]
pub(in super::super) enum Content {
    /// The text.
    Text(String),
    /// Its parts, put together as they are.
    Parts(Vec<Part>),
}

/// A part of a message.
#[derive(Debug, Deserialize, ToSchema)]
pub(in super::super) struct Part {
    /// Only `text`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// The text.
    pub(super) text: Option<String>,
    /// Prefixes are found by their tokens; no effect.
    #[schema(value_type = Option<Object>)]
    #[serde(rename = "cache_control")]
    pub(super) _cache_control: Option<Value>,
    /// Not known; must be null.
    #[serde(flatten)]
    #[schema(ignore)]
    pub(super) other: serde_json::Map<String, Value>,
}

/// One string or several.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOr<Vec<String>>")]
pub(in super::super) enum Stop {
    /// One string.
    One(String),
    /// Any of these.
    Many(Vec<String>),
}

/// Options of a stream.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct StreamOptions {
    /// A last chunk without choices says what the answer took.
    pub(super) include_usage: Option<bool>,
    /// Baton's own: chunks without choices say in `x_progress`, about every two seconds until the first token, how far the
    /// prompt is.
    pub(super) include_progress: Option<bool>,
    /// No effect.
    #[serde(rename = "include_obfuscation")]
    pub(super) _include_obfuscation: Option<bool>,
}

/// What the answer must be.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ResponseFormat {
    /// `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// With `json_schema`.
    pub(super) json_schema: Option<NamedSchema>,
}

/// A schema and its name.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct NamedSchema {
    /// Its name; no effect.
    #[serde(rename = "name")]
    pub(super) _name: Option<String>,
    /// What it is for; no effect.
    #[serde(rename = "description")]
    pub(super) _description: Option<String>,
    /// The JSON schema.
    #[schema(value_type = Option<Object>)]
    pub(super) schema: Option<Value>,
    /// The answer follows the schema, whatever this says.
    #[serde(rename = "strict")]
    pub(super) _strict: Option<bool>,
}

/// A function that the model may call.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ToolBody {
    /// Only `function`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// The function.
    pub(super) function: Option<FunctionBody>,
}

/// What the model is told of a function.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct FunctionBody {
    /// 1 to 64 letters, digits, `_` or `-`.
    #[schema(pattern = "^[A-Za-z0-9_-]{1,64}$")]
    pub(super) name: String,
    /// What it does.
    pub(super) description: Option<String>,
    /// JSON schema of its arguments, an object; none: it takes none.
    #[schema(value_type = Option<Object>)]
    pub(super) parameters: Option<Value>,
    /// Arguments follow the schema whenever it is called.
    pub(super) strict: Option<bool>,
}

/// `auto`, `none`, `required`, or one function.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOr<NamedChoice>")]
pub(in super::super) enum ToolChoiceBody {
    /// `auto`, `none` or `required`.
    Word(String),
    /// This function.
    Named(NamedChoice),
}

/// One function that must be called.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct NamedChoice {
    /// Only `function`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// Its name.
    pub(super) function: Option<FunctionName>,
}

/// The name of a function.
#[derive(Debug, Deserialize, ToSchema)]
pub(in super::super) struct FunctionName {
    /// As in `tools`.
    pub(super) name: String,
}

/// A call that the assistant made.
#[derive(Debug, Deserialize, ToSchema)]
pub(in super::super) struct PastCallBody {
    /// Its id.
    pub(super) id: String,
    /// Only `function`.
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    /// What was called.
    pub(super) function: PastFunction,
}

/// A function and the arguments of a call.
#[derive(Debug, Deserialize, ToSchema)]
pub(in super::super) struct PastFunction {
    /// Its name.
    pub(super) name: String,
    /// The arguments, JSON as text.
    pub(super) arguments: String,
}

/// Assistance by a scene: the cloud writes up to L tokens and says which sentences matter.
///
/// The reply's first chunk (or the whole reply) has a field `baton` with L, what it was bound by, and the mask; where L
/// is reached, `finish_reason` is `length` and the last chunk has `baton.handoff`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct BatonBody {
    /// The scene.
    pub(super) scene: String,
    /// Its version; none: the current one.
    pub(super) scene_version: Option<u32>,
    /// Places of messages whose sentences may be left out on the device.
    #[serde(default)]
    pub(super) refine: Vec<usize>,
    /// Share of these to keep (r); none: the scene's or the optimizer's.
    #[schema(minimum = 0.01, maximum = 1)]
    pub(super) ratio: Option<f32>,
    /// Tokens that the cloud writes (L); none: the scene's or the optimizer's. `max_tokens` lowers it and never raises it.
    #[schema(minimum = 1, maximum = 65536)]
    pub(super) assist_tokens: Option<u32>,
    /// The device, for the optimizer.
    #[schema(value_type = Option<crate::api::openapi::Device>)]
    pub(super) device: Option<DeviceInfo>,
}

/// A text or something else, read without the copies that an untagged enum makes of both.
enum TextOr<T> {
    Text(String),
    Other(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for TextOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TextOr<T>, D::Error> {
        deserializer.deserialize_any(TextOrVisitor(PhantomData))
    }
}

struct TextOrVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for TextOrVisitor<T> {
    type Value = TextOr<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a list or an object, as the API's description says")
    }

    fn visit_str<E>(self, text: &str) -> Result<TextOr<T>, E> {
        Ok(TextOr::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<TextOr<T>, A::Error> {
        T::deserialize(SeqAccessDeserializer::new(items)).map(TextOr::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<TextOr<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields)).map(TextOr::Other)
    }
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
