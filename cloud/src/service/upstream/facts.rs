//! What is known of one engine: its kind, its model, and whether it makes the same prompt of a conversation
//! as this service.

use std::fmt;

/// Which program an engine is. It decides what may be asked of it, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// vLLM: token ids in and out, salts for its prefix cache.
    Vllm,
    /// llama.cpp's server: token ids by `/completion`.
    LlamaCpp,
    /// Anything else that speaks OpenAI's chat API: text alone.
    #[default]
    OpenAi,
}

impl Kind {
    /// Returns the kind as in figures and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Vllm => "vllm",
            Kind::LlamaCpp => "llamacpp",
            Kind::OpenAi => "openai",
        }
    }

    /// Tells the kind by the owner that the engine names for its models.
    pub(crate) fn of_owner(owner: &str) -> Kind {
        match owner {
            "vllm" => Kind::Vllm,
            "llamacpp" => Kind::LlamaCpp,
            _ => Kind::OpenAi,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How an engine gets its prompts, from what it has in common with this service's scorer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord)]
pub enum Common {
    /// Nothing that is known: the engine gets messages, and its answer is text.
    #[default]
    Text,
    /// The tokenizer: the engine gets messages, and its token ids are valid here.
    Tokens,
    /// Tokenizer and chat template: the engine gets token ids.
    Prompts,
}

impl Common {
    /// Returns the word for it in figures and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Common::Text => "text",
            Common::Tokens => "tokens",
            Common::Prompts => "prompts",
        }
    }
}

/// What is known of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Which program it is.
    pub kind: Kind,
    /// The name of its model there.
    pub model: String,
    /// What it has in common with the scorer.
    pub common: Common,
    /// The most tokens of prompt and answer, if it says so.
    pub context_tokens: Option<usize>,
}
