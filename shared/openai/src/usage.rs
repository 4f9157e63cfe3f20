//! Number of tokens that an answer used.

use serde::Serialize;
use utoipa::ToSchema;

/// Number of tokens that an answer used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct Usage {
    /// Tokens of the prompt.
    pub(crate) prompt_tokens: u64,
    /// Tokens of the answer.
    pub(crate) completion_tokens: u64,
    /// Tokens of prompt and answer together.
    pub(crate) total_tokens: u64,
    /// Details of the prompt's tokens.
    pub(crate) prompt_tokens_details: PromptDetails,
}

/// Details of the prompt's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct PromptDetails {
    /// Prompt tokens that were found in the prefix cache.
    pub(crate) cached_tokens: u64,
}

impl Usage {
    /// Returns the tokens of the prompt that were found in the prefix cache.
    pub(crate) fn cached(&self) -> u64 {
        self.prompt_tokens_details.cached_tokens
    }
}

impl From<baton_protocol::Usage> for Usage {
    fn from(usage: baton_protocol::Usage) -> Usage {
        Usage {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.prompt_tokens.saturating_add(usage.completion_tokens),
            prompt_tokens_details: PromptDetails { cached_tokens: usage.cached_prefix_tokens },
        }
    }
}
