//! What is known of one engine: its kind, its model, and whether it makes the same prompt of a conversation
//! as this service.

use std::collections::BTreeSet;
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

/// A part of a request that an engine was found to refuse or to ignore, though engines of its kind have it.
/// Each has another form that says the same, or can be left out without changing the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lack {
    /// Token ids in the reply.
    AnswerIds,
    /// Prompts as token ids.
    PromptIds,
    /// Salts that keep the prefixes of tenants apart.
    Salt,
    /// Counts of tokens in a stream.
    Usage,
    /// Seeds. Without one, what is sampled cannot be repeated.
    Seed,
    /// The limit of tokens under its older name.
    MaxTokens,
}

impl Lack {
    /// Every lack.
    pub const ALL: [Lack; 6] =
        [Lack::AnswerIds, Lack::PromptIds, Lack::Salt, Lack::Usage, Lack::Seed, Lack::MaxTokens];

    /// Returns the word for it in figures, in logs and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Lack::AnswerIds => "answer_ids",
            Lack::PromptIds => "prompt_ids",
            Lack::Salt => "cache_salt",
            Lack::Usage => "stream_options",
            Lack::Seed => "seed",
            Lack::MaxTokens => "max_tokens",
        }
    }

    /// Returns a sentence for people: what the engine does not have, and what is done instead.
    pub fn instead(self) -> &'static str {
        match self {
            Lack::AnswerIds => {
                "sends no token ids: its text is used; tools and continued answers are refused"
            }
            Lack::PromptIds => {
                "takes no token ids: it gets messages; tools and continued answers are refused"
            }
            Lack::Salt => {
                "takes no cache_salt: if there are tenants, a mark of the tenant keeps prompts apart"
            }
            Lack::Usage => "takes no stream_options: its tokens are not counted",
            Lack::Seed => "takes no seed: sampled answers cannot be repeated",
            Lack::MaxTokens => "takes no max_tokens: it gets max_completion_tokens",
        }
    }

    /// Returns whether the request is the same without this part. If not, it has another form.
    pub(super) fn can_be_left_out(self) -> bool {
        !matches!(self, Lack::PromptIds | Lack::MaxTokens)
    }

    /// Returns whether the body of a refusal is about this part.
    pub(super) fn is_named_in(self, body: &str) -> bool {
        let names = |word: &str| {
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            body.match_indices(word).any(|(at, _)| {
                !body[..at].ends_with(is_word) && !body[at + word.len()..].starts_with(is_word)
            })
        };
        match self {
            Lack::AnswerIds => names("return_token_ids") || names("return_tokens"),
            Lack::PromptIds => names("prompt") && body.contains("string"),
            Lack::Salt => names("cache_salt"),
            Lack::Usage => names("stream_options") || names("include_usage"),
            Lack::Seed => names("seed"),
            Lack::MaxTokens => names("max_completion_tokens"),
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
    /// Why that is not more; empty for [`Common::Prompts`].
    pub reason: String,
    /// What it was found not to have. Remembered until the engine is away.
    pub lacks: BTreeSet<Lack>,
    /// The most tokens of prompt and answer, if it says so.
    pub context_tokens: Option<usize>,
}

impl Facts {
    /// Returns whether the engine was found not to have this.
    pub(crate) fn lack(&self, lack: Lack) -> bool {
        self.lacks.contains(&lack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_what_it_is_about() {
        let named = |body: &str| -> Vec<Lack> {
            Lack::ALL.into_iter().filter(|lack| lack.is_named_in(body)).collect()
        };
        let vllm = r#"{"error":{"message":"[{'type':'extra_forbidden','loc':('body','cache_salt')}]"}}"#;
        assert_eq!(named(vllm), [Lack::Salt]);
        let openai = r#"{"error":{"message":"Unrecognized request argument supplied: cache_salt"}}"#;
        assert_eq!(named(openai), [Lack::Salt]);
        assert_eq!(named(r#"{"detail":[{"loc":["body","return_token_ids"]}]}"#), [Lack::AnswerIds]);
        let both = r#"unknown fields: "return_token_ids", "cache_salt""#;
        assert_eq!(named(both), [Lack::AnswerIds, Lack::Salt]);
        let text = r#"{"detail":[{"loc":["body","prompt"],"msg":"Input should be a valid string"}]}"#;
        assert_eq!(named(text), [Lack::PromptIds]);
        let newer = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.";
        assert_eq!(named(newer), [Lack::MaxTokens]);
        assert_eq!(named("my_cache_salt, seeds and prompts of a long context"), []);
        assert_eq!(named("\u{e9}seed\u{e9}"), [Lack::Seed]);
    }
}
