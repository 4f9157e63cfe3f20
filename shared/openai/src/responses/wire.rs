//! The fields of a Responses request, as OpenAI's clients send them.
//!
//! Only the types are checked here. Fields that have no effect say so. Always: a field that is not listed is
//! refused by name, at any depth, unless it is null.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::wire::text_or::TextOr;
use crate::wire::unknown::{MustBeNull, NoOther};

/// A request for a response.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ResponsesRequest {
    /// Name of the model, or `default`.
    #[schema(example = "default", value_type = String)]
    pub(super) model: Option<String>,
    /// A text, or the items of the conversation so far.
    pub(super) input: Input,
    /// Instructions for the model, before the input.
    pub(super) instructions: Option<String>,
    /// The most tokens of the answer.
    #[schema(minimum = 1)]
    pub(super) max_output_tokens: Option<u64>,
    /// Sampling temperature; 0 always takes the most probable token.
    #[schema(minimum = 0, maximum = 2, default = 1.0)]
    pub(super) temperature: Option<f64>,
    /// Sample only from the most probable tokens whose probabilities add up to this value.
    #[schema(minimum = 0, maximum = 1)]
    pub(super) top_p: Option<f64>,
    /// Send the answer as it is written.
    pub(super) stream: Option<bool>,
    /// Options of the stream; needs `stream`.
    pub(super) stream_options: Option<EventOptions>,
    /// Functions that the model may call.
    #[schema(max_items = 128)]
    pub(super) tools: Option<Vec<FunctionItem>>,
    /// Whether the model must call a function.
    pub(super) tool_choice: Option<FunctionChoice>,
    /// Whether an answer may contain several calls. Default: true, or false if a call is required.
    pub(super) parallel_tool_calls: Option<bool>,
    /// The form of the text.
    pub(super) text: Option<TextForm>,
    /// How the model thinks.
    pub(super) reasoning: Option<Reasoning>,
    /// For the device agent: `auto` shortens a prompt that does not fit; `disabled` refuses it.
    pub(super) truncation: Option<String>,
    /// Not supported, nothing is kept; must not be true.
    pub(super) store: Option<bool>,
    /// Not supported, nothing is kept; must be null.
    pub(super) previous_response_id: Option<String>,
    /// Not supported, nothing is kept; must be null.
    #[schema(value_type = Option<Object>)]
    pub(super) conversation: Option<Value>,
    /// Not supported; must not be true.
    pub(super) background: Option<bool>,
    /// Only `reasoning.encrypted_content`, which has no effect: thinking is not encrypted.
    pub(super) include: Option<Vec<String>>,
    /// Not supported; must be null.
    #[schema(value_type = Option<Object>)]
    pub(super) prompt: Option<Value>,
    /// Not supported; must be 0.
    pub(super) top_logprobs: Option<u64>,
    /// Not supported: only functions are called, and never by this service; must be null.
    pub(super) max_tool_calls: Option<u64>,
    /// Describes the call; sent back.
    #[schema(value_type = Option<Object>)]
    pub(super) metadata: Option<Value>,
    /// Describes the caller; sent back.
    pub(super) user: Option<String>,
    /// No effect.
    #[serde(rename = "service_tier")]
    pub(super) _service_tier: Option<String>,
    /// Describes the caller; no effect.
    #[serde(rename = "safety_identifier")]
    pub(super) _safety_identifier: Option<String>,
    /// No effect: the prefix cache finds prefixes by their tokens.
    #[serde(rename = "prompt_cache_key")]
    pub(super) _prompt_cache_key: Option<String>,
    /// No effect.
    #[serde(rename = "prompt_cache_retention")]
    pub(super) _prompt_cache_retention: Option<String>,
    // Other fields.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(super) _other: NoOther,
}

/// A text, or items.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOr<Vec<Item>>")]
pub(super) enum Input {
    /// The text of one message of the user.
    Text(String),
    /// The items.
    Items(Vec<Item>),
}

/// An item of any type. Which fields a type has is checked later.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct Item {
    /// `message` (the default), `function_call`, `function_call_output` or `reasoning`.
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    /// Of a message: `user`, `assistant`, `system` or `developer`.
    pub(super) role: Option<String>,
    /// Of a message: its text, or parts of type `input_text` or `output_text`.
    pub(super) content: Option<ItemText>,
    /// Of a call and its output.
    pub(super) call_id: Option<String>,
    /// Of a call: the function.
    pub(super) name: Option<String>,
    /// Of a call: JSON as text.
    pub(super) arguments: Option<String>,
    /// Of a call's output: a text, or parts of type `input_text`.
    pub(super) output: Option<ItemText>,
    /// No effect.
    #[serde(rename = "id")]
    pub(super) _id: Option<String>,
    /// No effect.
    #[serde(rename = "status")]
    pub(super) _status: Option<String>,
    /// Of thinking, which is left out of the prompt.
    #[schema(value_type = Option<Vec<Object>>)]
    #[serde(rename = "summary")]
    pub(super) _summary: Option<Vec<Value>>,
    /// Of thinking, which is left out of the prompt.
    #[serde(rename = "encrypted_content")]
    pub(super) _encrypted_content: Option<String>,
    /// Fields of other types. The check refuses the type first.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(super) other: Map<String, Value>,
}

/// A text, or its parts.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOr<Vec<ItemPart>>")]
pub(super) enum ItemText {
    /// The text.
    Text(String),
    /// Its parts, joined without anything between them.
    Parts(Vec<ItemPart>),
}

/// A part of a text.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct ItemPart {
    /// `input_text` or `output_text`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// The text.
    pub(super) text: Option<String>,
    /// No effect.
    #[schema(value_type = Option<Vec<Object>>)]
    #[serde(rename = "annotations")]
    pub(super) _annotations: Option<Vec<Value>>,
    /// No effect.
    #[schema(value_type = Option<Vec<Object>>)]
    #[serde(rename = "logprobs")]
    pub(super) _logprobs: Option<Vec<Value>>,
    /// Fields of other types. The check refuses the type first.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(super) other: Map<String, Value>,
}

/// Options of the stream of events.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct EventOptions {
    /// No effect.
    #[serde(rename = "include_obfuscation")]
    pub(super) _include_obfuscation: Option<bool>,
    // Other fields.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(super) _other: NoOther,
}

/// A tool.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct FunctionItem {
    /// Only `function` is supported.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// 1 to 64 letters, digits, `_` or `-`.
    #[schema(value_type = String, pattern = "^[A-Za-z0-9_-]{1,64}$")]
    pub(super) name: Option<String>,
    /// What it does.
    pub(super) description: Option<String>,
    /// JSON schema of its arguments, an object; without it the function has no arguments.
    #[schema(value_type = Option<Object>)]
    pub(super) parameters: Option<Value>,
    /// Whether arguments follow the schema even if the call is optional. Default: false.
    pub(super) strict: Option<bool>,
    /// Fields of other types. The check refuses the type first.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(super) other: Map<String, Value>,
}

/// `auto`, `none`, `required`, or one function.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOr<ChosenFunction>")]
pub(super) enum FunctionChoice {
    /// `auto`, `none` or `required`.
    Word(String),
    /// The model must call this function.
    Named(ChosenFunction),
}

/// One function that must be called.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct ChosenFunction {
    /// Only `function` is supported.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// Its name, as in `tools`.
    pub(super) name: Option<String>,
    /// Fields of other types. The check refuses the type first.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(super) other: Map<String, Value>,
}

/// The form of the text.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct TextForm {
    /// The form that the answer must have.
    pub(super) format: Option<TextFormat>,
    /// Only `medium`, the default.
    pub(super) verbosity: Option<String>,
    // Other fields.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(super) _other: NoOther,
}

/// The form that the answer must have.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct TextFormat {
    /// `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// The schema; only with the type `json_schema`.
    #[schema(value_type = Option<Object>)]
    pub(super) schema: Option<Value>,
    /// Its name; no effect.
    #[serde(rename = "name")]
    pub(super) _name: Option<String>,
    /// What it is for; no effect.
    #[serde(rename = "description")]
    pub(super) _description: Option<String>,
    /// No effect: the answer always follows the schema.
    #[serde(rename = "strict")]
    pub(super) _strict: Option<bool>,
    // Other fields.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(super) _other: NoOther,
}

/// How the model thinks.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct Reasoning {
    /// Only `medium`, the default.
    pub(super) effort: Option<String>,
    /// No effect: thinking is sent as it is, without a summary.
    #[serde(rename = "summary")]
    pub(super) _summary: Option<String>,
    // Other fields.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, MustBeNull>)]
    pub(super) _other: NoOther,
}

impl From<TextOr<Vec<Item>>> for Input {
    fn from(read: TextOr<Vec<Item>>) -> Input {
        match read {
            TextOr::Text(text) => Input::Text(text),
            TextOr::Other(items) => Input::Items(items),
        }
    }
}

impl From<TextOr<Vec<ItemPart>>> for ItemText {
    fn from(read: TextOr<Vec<ItemPart>>) -> ItemText {
        match read {
            TextOr::Text(text) => ItemText::Text(text),
            TextOr::Other(parts) => ItemText::Parts(parts),
        }
    }
}

impl From<TextOr<ChosenFunction>> for FunctionChoice {
    fn from(read: TextOr<ChosenFunction>) -> FunctionChoice {
        match read {
            TextOr::Text(word) => FunctionChoice::Word(word),
            TextOr::Other(named) => FunctionChoice::Named(named),
        }
    }
}
