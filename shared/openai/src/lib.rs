//! The APIs of both programs: requests, refusals, tools, replies, streams, errors, models. OpenAI's chat
//! completions, text completions and responses, Anthropic's messages, and Ollama's API.
//!
//! A dialect is a translation of one request ([`ChatRequest`]) and one kind of answer ([`writer`]).
//!
//! | module | holds |
//! |---|---|
//! | [`wire`] | the fields of a request, as clients send them |
//! | [`capabilities`] | which parts of the API a program offers |
//! | [`request`] | the checked request, and the one function that reads it |
//! | [`assist`] | a request with the field `baton`, as a request of the assist protocol |
//! | [`tools`], [`tool_calls`] | tools and messages; calls found in the text of an answer |
//! | [`reply`], [`logprobs`], [`usage`] | an answer in one piece, and its parts |
//! | [`text_reply`] | the same for a text completion |
//! | [`writer`], [`dialect`] | what all dialects have in common |
//! | [`stream`] | an answer as server-sent events, by OpenAI's chat and text completion API |
//! | [`responses`], [`anthropic`], [`ollama`] | the other dialects |
//! | [`thinking`] | the thinking at the beginning of an answer |
//! | [`ignored`] | fields that are taken and have no effect |
//! | [`embeddings`] | the refusal of embeddings |
//! | [`error`] | refusals and the body of an error |
//! | [`models`] | the list of models |
//!
//! Never: does I/O, or depends on an HTTP server, an engine or a tokenizer. Reads the clock only for the
//! time in a reply. Always: both programs accept and refuse the same requests with the same messages,
//! except for differences in their [`Capabilities`]. The chunks of a stream, put together, give the same
//! reply as an answer in one piece.

pub mod anthropic;
pub mod assist;
pub mod capabilities;
mod clock;
pub mod dialect;
pub mod embeddings;
pub mod error;
pub mod ignored;
pub mod logprobs;
pub mod models;
pub mod ollama;
pub mod reply;
pub mod request;
pub mod responses;
mod sse;
pub mod stream;
pub mod text_reply;
pub mod thinking;
pub mod tool_calls;
pub mod tools;
pub mod usage;
pub mod wire;
pub mod writer;

pub use self::capabilities::Capabilities;
pub use self::error::{ErrorReply, FieldError};
pub use self::request::{AnswerFormat, ChatRequest, Penalties, Prompt, parse, parse_text};
pub use self::tools::{ChatMessage, PastCall, Tool, ToolChoice, ToolUse};

#[cfg(test)]
mod tests;
