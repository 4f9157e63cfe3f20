//! The fields of a Responses request, as OpenAI's clients send them.
//!
//! Only the types are checked here. A field that is not listed is taken and has no effect; [`crate::ignored`]
//! names it.

use serde::Deserialize;
use serde::de::MapAccess;
use serde::de::value::MapAccessDeserializer;
use serde_json::Value;
use utoipa::ToSchema;

use crate::wire::Content;
use crate::wire::text_or::{FromObject, TextOr};
use crate::wire::whole::whole;

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
    /// The most tokens of the answer. Below 0: as many as fit.
    #[serde(default, deserialize_with = "whole")]
    pub(super) max_output_tokens: Option<i64>,
    /// Sampling temperature; 0 always takes the most probable token.
    #[schema(minimum = 0, maximum = 2, default = 1.0)]
    pub(super) temperature: Option<f64>,
    /// Sample only from the most probable tokens whose probabilities add up to this value.
    #[schema(minimum = 0, maximum = 1)]
    pub(super) top_p: Option<f64>,
    /// Send the answer as it is written.
    pub(super) stream: Option<bool>,
    /// Tools that the model may call.
    #[schema(max_items = 512)]
    pub(super) tools: Option<Vec<ToolItem>>,
    /// Whether the model must call a function.
    pub(super) tool_choice: Option<FunctionChoice>,
    /// Whether an answer may contain several calls. Default: true, or false if a call is required.
    pub(super) parallel_tool_calls: Option<bool>,
    /// The form of the text.
    pub(super) text: Option<TextForm>,
    /// For the device agent: `auto` shortens a prompt that does not fit; `disabled` refuses it.
    pub(super) truncation: Option<String>,
    /// No effect: nothing is kept.
    pub(super) store: Option<bool>,
    /// Not supported, nothing is kept; must be null.
    pub(super) previous_response_id: Option<String>,
    /// Not supported, nothing is kept; must be null.
    #[schema(value_type = Option<Object>)]
    pub(super) conversation: Option<Value>,
    /// Not supported; must be null.
    #[schema(value_type = Option<Object>)]
    pub(super) prompt: Option<Value>,
    /// Describes the call; sent back if it has at most 64 KiB.
    #[schema(value_type = Option<Object>)]
    pub(super) metadata: Option<Value>,
    /// Describes the caller; sent back.
    pub(super) user: Option<String>,
}

/// A text, or items.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOr<Vec<Value>>")]
pub(super) enum Input {
    /// The text of one message of the user.
    Text(String),
    /// The items.
    #[schema(value_type = Vec<Item>)]
    Items(Vec<Value>),
}

/// An item of a type that is known. Which fields a type has is checked later.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct Item {
    /// `message` (the default), `reasoning`, `function_call`, `custom_tool_call`, or the output of a call.
    /// Outputs of other types are laid out as text; other items are left out.
    #[serde(rename = "type")]
    pub(super) _kind: Option<String>,
    /// Of a message: `user`, `assistant`, `system` or `developer`.
    pub(super) role: Option<String>,
    /// Of a message and of reasoning: its text, or its parts.
    pub(super) content: Option<Content>,
    /// Of reasoning: parts that sum it up, used if it has no content.
    pub(super) summary: Option<Content>,
    /// Of a call and its output.
    pub(super) call_id: Option<String>,
    /// Of a call: the function.
    pub(super) name: Option<String>,
    /// Of a call: the namespace of the function.
    pub(super) namespace: Option<String>,
    /// Of a call of a function: JSON as text. An object is taken too.
    #[schema(value_type = Option<String>)]
    pub(super) arguments: Option<Value>,
    /// Of a call of a custom tool: its text.
    pub(super) input: Option<String>,
    /// Of a call's output: a text, or its parts.
    pub(super) output: Option<Content>,
}

/// A tool.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct ToolItem {
    /// `function`, `custom` or `namespace`; tools of other types are left out.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// 1 to 128 letters, digits, `_`, `-`, `.`, `:` or `/`.
    #[schema(value_type = String, pattern = "^[A-Za-z0-9_.:/-]{1,128}$")]
    pub(super) name: Option<String>,
    /// What it does.
    pub(super) description: Option<String>,
    /// Of a function: JSON schema of its arguments, which are an object; without it there are none.
    #[schema(value_type = Option<Object>)]
    pub(super) parameters: Option<Value>,
    /// Whether arguments follow the schema even if the call is optional. Default: false.
    pub(super) strict: Option<bool>,
    /// Of a custom tool: the form of its text, of which the model is told.
    #[schema(value_type = Option<Object>)]
    pub(super) format: Option<Value>,
    /// Of a namespace: its functions.
    #[schema(value_type = Option<Vec<Object>>)]
    pub(super) tools: Option<Vec<ToolItem>>,
}

/// `auto`, `none`, `required`, one function, or a choice among some of the tools.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOr<ChosenFunction>")]
pub(super) enum FunctionChoice {
    /// `auto`, `none` or `required`.
    Word(String),
    /// Another choice.
    Object(ChosenFunction),
}

/// One function that must be called, or the tools that may be called.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct ChosenFunction {
    /// `function`, `custom`, `allowed_tools`, or one of the words above.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// Of `function` and `custom`: its name, as in `tools`.
    pub(super) name: Option<String>,
    /// Of `allowed_tools`: `auto` or `required`.
    pub(super) mode: Option<String>,
    /// Of `allowed_tools`: the functions, by their names.
    #[schema(value_type = Option<Vec<Object>>)]
    pub(super) tools: Option<Vec<ChosenFunction>>,
}

/// The form of the text.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct TextForm {
    /// The form that the answer must have.
    pub(super) format: Option<TextFormat>,
}

/// The form that the answer must have.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct TextFormat {
    /// `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// The schema's name, which is sent back.
    pub(super) name: Option<String>,
    /// The schema; only with the type `json_schema`.
    #[schema(value_type = Option<Object>)]
    pub(super) schema: Option<Value>,
}

impl From<TextOr<Vec<Value>>> for Input {
    fn from(read: TextOr<Vec<Value>>) -> Input {
        match read {
            TextOr::Text(text) => Input::Text(text),
            TextOr::Other(items) => Input::Items(items),
        }
    }
}

impl From<TextOr<ChosenFunction>> for FunctionChoice {
    fn from(read: TextOr<ChosenFunction>) -> FunctionChoice {
        match read {
            TextOr::Text(word) => FunctionChoice::Word(word),
            TextOr::Other(choice) => FunctionChoice::Object(choice),
        }
    }
}

impl<'de> FromObject<'de> for ChosenFunction {
    fn from_object<A: MapAccess<'de>>(fields: A) -> Result<ChosenFunction, A::Error> {
        ChosenFunction::deserialize(MapAccessDeserializer::new(fields))
    }
}
