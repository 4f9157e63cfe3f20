//! Ollama's API: requests as the one request of all dialects, replies, streams of lines, lists of models.
//!
//! | module | holds |
//! |---|---|
//! | `wire` | the fields of requests for answers, as clients send them |
//! | `request` | these requests, checked and translated |
//! | `options` | the field `options` |
//! | `writer` | the answer, in one piece and as lines |
//! | [`models`] | what is said about models, and requests about them |
//!
//! Always: what cannot be translated is refused by name. Options that say how a model is loaded have no
//! effect, because it is loaded already.

pub mod models;
mod options;
mod request;
mod wire;
mod writer;

use serde_json::{Value, json};

pub use self::request::{read_chat, read_generate};
use crate::error::ErrorReply;

/// The version of Ollama whose API is served. Clients look at it to find out what they may ask.
pub const VERSION: &str = "0.12.6";

/// Returns the body of an error.
pub(crate) fn error(reply: &ErrorReply) -> Value {
    let mut body = json!({ "error": reply.error.message });
    if let Some(written) = &reply.error.written {
        body["written"] = json!(written);
    }
    body
}

/// Returns the name that a field of the translated request has in a request of this API.
fn field(name: &str) -> String {
    let top = name.split(['.', '[']).next().unwrap_or_default();
    let own = match top {
        "temperature" | "top_k" | "top_p" | "min_p" | "seed" | "stop" | "presence_penalty"
        | "frequency_penalty" => {
            return format!("options.{name}");
        }
        "repetition_penalty" => "options.repeat_penalty",
        "max_tokens" => "options.num_predict",
        "response_format" => return "format".to_owned(),
        _ => return name.to_owned(),
    };
    name.replacen(top, own, 1)
}

#[cfg(test)]
mod tests;
