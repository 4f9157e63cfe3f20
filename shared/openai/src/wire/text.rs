//! The fields of a text completion request: OpenAI's older API, which continues a text as it is.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::text_or::TextOr;
use super::whole::whole;
use super::{ChatCompletionRequest, Stop, StreamOptions};

/// A text completion request.
#[derive(Debug, Deserialize, ToSchema)]
pub struct TextCompletionRequest {
    /// Name of the model, or `default`.
    #[schema(example = "default", value_type = String)]
    model: Option<String>,
    /// The text to continue, used as it is: no chat template is applied. Control tokens that are written as
    /// text are read as such.
    pub(crate) prompt: TextPrompt,
    /// Send the prompt before its continuation. Not together with `logprobs`.
    #[schema(default = false)]
    pub(crate) echo: Option<bool>,
    /// The most tokens of the continuation.
    #[schema(default = 16)]
    #[serde(default, deserialize_with = "whole")]
    max_tokens: Option<i64>,
    /// Sampling temperature; 0 always takes the most probable token.
    #[schema(minimum = 0, maximum = 2, default = 1.0)]
    temperature: Option<f64>,
    /// Sample only from the most probable tokens whose probabilities add up to this value.
    #[schema(minimum = 0, maximum = 1)]
    top_p: Option<f64>,
    /// Sample only from this many most probable tokens; from all of them if it is below 1.
    #[schema(maximum = 1_000_000)]
    #[serde(default, deserialize_with = "whole")]
    top_k: Option<i64>,
    /// Sample only tokens whose probability is at least this share of the largest one.
    #[schema(minimum = 0, maximum = 1)]
    min_p: Option<f64>,
    /// Penalty for tokens that the continuation already contains: divides positive logits; 1 changes nothing.
    #[schema(minimum = 0.1, maximum = 10)]
    repetition_penalty: Option<f64>,
    /// Subtracted from a token's logit once for each time that the continuation contains it.
    #[schema(minimum = -2, maximum = 2)]
    frequency_penalty: Option<f64>,
    /// Subtracted from the logit of every token that the continuation contains.
    #[schema(minimum = -2, maximum = 2)]
    presence_penalty: Option<f64>,
    /// Seed of the sampling: the same request with the same seed gives the same continuation.
    #[serde(default, deserialize_with = "whole")]
    seed: Option<i64>,
    /// One string or up to 16; the continuation ends before any of them.
    stop: Option<Stop>,
    /// Send the continuation as it is written.
    stream: Option<bool>,
    /// Options of the stream.
    stream_options: Option<StreamOptions>,
    /// Send the log probability of each token, and of this many most probable tokens at its position.
    #[schema(minimum = 0, maximum = 20)]
    pub(crate) logprobs: Option<u64>,
    /// Number of continuations; must be 1.
    #[schema(minimum = 1, maximum = 1)]
    n: Option<u64>,
    /// Number of continuations to choose from; must be 1.
    #[schema(minimum = 1, maximum = 1)]
    pub(crate) best_of: Option<u64>,
    /// What follows the continuation, for models whose vocabulary has tokens for it.
    pub(crate) suffix: Option<String>,
    /// Not supported; must be empty.
    #[schema(value_type = Option<Object>)]
    logit_bias: Option<Map<String, Value>>,
}

/// One text, or a list with one text.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOr<Vec<Value>>")]
pub(crate) enum TextPrompt {
    /// The text.
    Text(String),
    /// A list with one text. Token ids, and several texts, are not supported.
    #[schema(value_type = Vec<String>)]
    Many(Vec<Value>),
}

impl From<TextOr<Vec<Value>>> for TextPrompt {
    fn from(prompt: TextOr<Vec<Value>>) -> TextPrompt {
        match prompt {
            TextOr::Text(text) => TextPrompt::Text(text),
            TextOr::Other(items) => TextPrompt::Many(items),
        }
    }
}

impl TextCompletionRequest {
    /// Splits the request into its prompt and the fields that a chat request has too.
    pub(crate) fn into_parts(self) -> (TextPrompt, ChatCompletionRequest) {
        let common = ChatCompletionRequest {
            model: self.model,
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            seed: self.seed,
            stop: self.stop,
            stream: self.stream,
            stream_options: self.stream_options,
            n: self.n,
            logprobs: self.logprobs.map(|_| true),
            top_logprobs: self.logprobs,
            logit_bias: self.logit_bias,
            ..ChatCompletionRequest::default()
        };
        (self.prompt, common)
    }
}
