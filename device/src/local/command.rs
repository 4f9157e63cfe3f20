//! What the relay tells the local engine, and what it reports.

use baton_engine::AdapterId;
use baton_engine::sampling::SamplingParams;
use baton_engine::tokenizer::TokenId;
use baton_protocol::Segment;
use std::sync::Arc;

/// Names one prompt of one answer; reports of an older prompt are stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PromptId(pub u64);

/// How much of the prompt to prefill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The leading segments that no mask can change.
    Prefix,
    /// Everything but the last token, which goes through the model together with the cloud's tokens.
    Whole,
}

/// The cloud's part of the answer, as this device can use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepted {
    /// Token ids: both sides have the same tokenizer.
    Ids(Vec<TokenId>),
    /// Text: the tokenizers differ.
    Text(String),
}

impl Accepted {
    /// Whether the cloud wrote nothing.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Ids(ids) => ids.is_empty(),
            Self::Text(text) => text.is_empty(),
        }
    }
}

/// How much of the accepted part stays before the device goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// All of it.
    All,
    /// The first `n` ids; the device's own choice follows.
    Tokens(usize),
    /// The first `n` bytes of the text (a boundary reported in [`Verified::differs_at_bytes`]).
    Bytes(usize),
}

/// What one answer needs of the engine.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerSpec {
    /// The whole prompt as it was redacted.
    pub segments: Arc<[Segment]>,
    /// The adapter that prompt and answer are computed with; none: the model alone.
    pub adapter: Option<AdapterId>,
    /// Sampling, keyed by (seed, token index).
    pub sampling: SamplingParams,
    /// Most tokens of the answer.
    pub tokens_max: usize,
    /// Whether a prompt over the device's context is shortened (BM25) instead of refused.
    pub shorten: bool,
}

/// A command to the local engine.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineCommand {
    /// Begin an answer; ends any other.
    Open {
        /// Name of the prompt.
        prompt: PromptId,
        /// The answer.
        spec: AnswerSpec,
        /// How far to prefill for now.
        scope: Scope,
    },
    /// Prefill this prompt of the same answer instead; what the KV cache shares with it is kept.
    Prefill {
        /// Name of the new prompt.
        prompt: PromptId,
        /// Its segments: refined, or the whole ones.
        segments: Arc<[Segment]>,
    },
    /// The cloud's part is complete: send it through the model in the last prefill pass.
    Verify {
        /// The prompt it belongs to.
        prompt: PromptId,
        /// The cloud's part, possibly empty.
        accepted: Accepted,
    },
    /// Go on from the accepted part.
    Decode {
        /// The prompt it belongs to.
        prompt: PromptId,
        /// How much of the accepted part stays.
        keep: Keep,
        /// Answer index of the first token that the device writes.
        index: usize,
    },
    /// Drop the answer; the KV cache may be kept for the next one.
    Stop,
}

/// The result of the verification pass.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Verified {
    /// Ids mode: the device's own choice at every position, one more than the accepted ids. Text mode: empty.
    pub own: Vec<TokenId>,
    /// Positions compared.
    pub compared: usize,
    /// Positions where the device would have written the same.
    pub agreed: usize,
    /// Text mode: byte offsets in the accepted text where the device would have written something else.
    pub differs_at_bytes: Vec<usize>,
}

/// Why the engine wrote no further token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineEnd {
    /// The model ended the answer.
    EndToken,
    /// The answer's token limit.
    TokensMax,
    /// The context or KV cache is full.
    ContextFull,
}

/// What the local engine reports. Every report but `Failed` of a dropped prompt may be ignored.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineReport {
    /// The whole prompt was tokenized.
    Opened {
        /// The prompt.
        prompt: PromptId,
        /// Tokens of the whole prompt.
        tokens: usize,
        /// Of these, leading tokens that no mask can change.
        prefix_tokens: usize,
    },
    /// Prefill of a prompt begins.
    Prompt {
        /// The prompt.
        prompt: PromptId,
        /// Its tokens.
        tokens: usize,
        /// Tokens that the KV cache holds already.
        cached: usize,
        /// Set when the prompt was shortened to fit: (tokens of the whole prompt, what fits).
        shortened: Option<(usize, usize)>,
    },
    /// One prefill pass is done; at least every 1/16 of the prompt.
    Progress {
        /// The prompt.
        prompt: PromptId,
        /// Tokens in the KV cache.
        done: usize,
        /// Tokens to reach.
        total: usize,
        /// Tokens of this pass.
        pass_tokens: usize,
    },
    /// All but the last prompt token is in the KV cache; the engine waits for [`EngineCommand::Verify`].
    Ready {
        /// The prompt.
        prompt: PromptId,
    },
    /// The verification pass is done; the engine waits for [`EngineCommand::Decode`].
    Verified {
        /// The prompt.
        prompt: PromptId,
        /// What it found.
        verified: Verified,
    },
    /// The device wrote a token.
    Token {
        /// The prompt.
        prompt: PromptId,
        /// Answer index.
        index: usize,
        /// Its id in the device's vocabulary.
        id: TokenId,
        /// Text mode: the token's text (complete characters only) after the accepted text.
        text: Option<String>,
    },
    /// The device's part is over.
    Ended {
        /// The prompt.
        prompt: PromptId,
        /// Why.
        why: EngineEnd,
        /// Text mode: what the detokenizer still held.
        text: String,
    },
    /// The prompt does not fit, and is not to be shortened or cannot be.
    TooLong {
        /// The prompt.
        prompt: PromptId,
        /// Its tokens.
        tokens: usize,
        /// The most that this device takes.
        limit: usize,
    },
    /// The engine cannot go on with this prompt.
    Failed {
        /// The prompt.
        prompt: PromptId,
        /// Its words.
        reason: String,
    },
}

impl EngineReport {
    /// The prompt it is about.
    pub fn prompt(&self) -> PromptId {
        match self {
            Self::Opened { prompt, .. }
            | Self::Prompt { prompt, .. }
            | Self::Progress { prompt, .. }
            | Self::Ready { prompt }
            | Self::Verified { prompt, .. }
            | Self::Token { prompt, .. }
            | Self::Ended { prompt, .. }
            | Self::TooLong { prompt, .. }
            | Self::Failed { prompt, .. } => *prompt,
        }
    }
}
