//! The dialects that the programs speak, and how each tells an error.

use serde_json::{Value, json};

use crate::error::ErrorReply;

/// An API whose clients are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's chat completions, text completions and responses.
    OpenAi,
    /// Anthropic's messages.
    Anthropic,
    /// Ollama's API.
    Ollama,
}

impl Dialect {
    /// Returns the dialect of a path.
    pub fn of_path(path: &str) -> Dialect {
        let is_below = |folder: &str| {
            path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if is_below("/v1/messages") {
            Dialect::Anthropic
        } else if is_below("/api") {
            Dialect::Ollama
        } else {
            Dialect::OpenAi
        }
    }

    /// Returns the HTTP status and the body of an error that has this status for OpenAI's clients.
    pub fn error(self, status: u16, reply: &ErrorReply) -> (u16, Value) {
        match self {
            Dialect::OpenAi => (status, json!(reply)),
            Dialect::Anthropic => crate::anthropic::error(status, reply),
            Dialect::Ollama => (status, crate::ollama::error(reply)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_dialect() {
        for (path, want) in [
            ("/v1/messages", Dialect::Anthropic),
            ("/v1/messages/count_tokens", Dialect::Anthropic),
            ("/v1/messagesx", Dialect::OpenAi),
            ("/api/chat", Dialect::Ollama),
            ("/api", Dialect::Ollama),
            ("/apix", Dialect::OpenAi),
            ("/v1/responses", Dialect::OpenAi),
            ("/", Dialect::OpenAi),
        ] {
            assert_eq!(Dialect::of_path(path), want, "{path}");
        }
    }
}
