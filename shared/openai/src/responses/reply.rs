//! The fields of a response.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::usage::Usage;

/// A response.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ResponseBody {
    /// Its id.
    pub(super) id: String,
    /// `response`.
    #[schema(value_type = String)]
    pub(super) object: &'static str,
    /// Seconds since 1970.
    pub(super) created_at: u64,
    /// `in_progress`, `completed`, `incomplete` or `failed`.
    #[schema(value_type = String)]
    pub(super) status: &'static str,
    /// Always false.
    pub(super) background: bool,
    /// Why it failed.
    pub(super) error: Option<ResponseError>,
    /// Why it is not complete.
    pub(super) incomplete_details: Option<IncompleteDetails>,
    /// The request's instructions.
    pub(super) instructions: Option<String>,
    /// The request's limit of tokens.
    pub(super) max_output_tokens: Option<u64>,
    /// Name of the model.
    pub(super) model: String,
    /// The items: `reasoning`, `message`, `function_call`.
    #[schema(value_type = Vec<Object>)]
    pub(super) output: Vec<Value>,
    /// Whether it may contain several calls.
    pub(super) parallel_tool_calls: bool,
    /// Always null.
    #[schema(value_type = Option<String>)]
    pub(super) previous_response_id: (),
    /// Always without effort and summary.
    pub(super) reasoning: NoReasoning,
    /// Always false: nothing is kept.
    pub(super) store: bool,
    /// The sampling temperature.
    pub(super) temperature: f64,
    /// The form of the text.
    #[schema(value_type = Object)]
    pub(super) text: Value,
    /// Whether a function had to be called.
    #[schema(value_type = Value)]
    pub(super) tool_choice: Value,
    /// The functions that could be called.
    #[schema(value_type = Vec<Object>)]
    pub(super) tools: Vec<Value>,
    /// The sampling's `top_p`.
    pub(super) top_p: f64,
    /// `auto` or `disabled`.
    #[schema(value_type = String)]
    pub(super) truncation: &'static str,
    /// Number of tokens; null until the end.
    pub(super) usage: Option<ResponseUsage>,
    /// The request's `user`.
    pub(super) user: Option<String>,
    /// The request's `metadata`.
    #[schema(value_type = Value)]
    pub(super) metadata: Value,
    /// Baton's own field: notes from a device agent, and who wrote the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub(super) baton: Option<Value>,
}

/// Why a response failed.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ResponseError {
    /// Code for programs to act on.
    pub(super) code: String,
    /// One sentence.
    pub(super) message: String,
}

/// Why a response is not complete.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct IncompleteDetails {
    /// `max_output_tokens`: also if the context was full.
    #[schema(value_type = String)]
    pub(super) reason: &'static str,
}

/// What was asked about the thinking: nothing.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct NoReasoning {
    /// Always null.
    #[schema(value_type = Option<String>)]
    effort: (),
    /// Always null.
    #[schema(value_type = Option<String>)]
    summary: (),
}

/// Number of tokens.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ResponseUsage {
    /// Tokens of the prompt.
    input_tokens: u64,
    /// Details of the prompt's tokens.
    input_tokens_details: InputDetails,
    /// Tokens of the answer, with its thinking.
    output_tokens: u64,
    /// Details of the answer's tokens.
    output_tokens_details: OutputDetails,
    /// All tokens.
    total_tokens: u64,
}

/// Details of the prompt's tokens.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct InputDetails {
    /// Tokens that were found in the prefix cache.
    cached_tokens: u64,
}

/// Details of the answer's tokens.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct OutputDetails {
    /// Always 0: tokens of the thinking are not counted by themselves.
    reasoning_tokens: u64,
}

impl From<Usage> for ResponseUsage {
    fn from(usage: Usage) -> ResponseUsage {
        ResponseUsage {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputDetails { cached_tokens: usage.cached() },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens: 0 },
            total_tokens: usage.total_tokens,
        }
    }
}
