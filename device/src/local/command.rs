//! Commands from the relay to the local engine, and the engine's reports.

use super::evidence::CitingHeads;
use super::form::OnceForm;
use baton_engine::prompt::Prompt;
use baton_engine::sampling::SamplingParams;
use baton_engine::tokenizer::TokenId;
use baton_engine::{AdapterId, KvRows};
pub use baton_generate::answer::{Accepted, Keep, Verified};
use baton_protocol::{Segment, Tool, ToolUse};
use std::sync::Arc;

/// Id of one prompt of one answer; reports of an older prompt are out of date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PromptId(pub u64);

/// How much of the prompt to prefill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Only the leading segments, which no mask can change.
    Prefix,
    /// Everything but the last token, which goes through the model together with the cloud's tokens.
    Whole,
}

/// What the engine must know about one answer.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerSpec {
    /// The whole prompt as it was redacted.
    pub segments: Arc<[Segment]>,
    /// The adapter for prompt and answer; `None` for the model alone.
    pub adapter: Option<AdapterId>,
    /// Sampling parameters; random numbers depend only on the seed and the token index.
    pub sampling: SamplingParams,
    /// Most tokens of the answer.
    pub tokens_max: usize,
    /// Whether a prompt that is too long is shortened (BM25) instead of refused.
    pub shorten: bool,
    /// The tools that the answer may call.
    pub tools: Option<Arc<ToolUse>>,
    /// The form that the answer must have; `None` for any text.
    pub form: Option<OnceForm>,
    /// The prompt's ids in place of the segments, if it is a text that is continued as it is.
    pub own: Option<Arc<[TokenId]>>,
    /// The whole prompt as tokens, if it was tokenized already.
    pub whole: Option<Arc<Prompt>>,
    /// The most leading tokens that are taken from what this device has computed before; `None` for all.
    pub known_max: Option<usize>,
    /// The heads whose attention is recorded, if the answer cites sentences of the prompt.
    pub cites: Option<CitingHeads>,
}

impl AnswerSpec {
    /// Returns an answer of the model alone: any text, without tools, from all that this device has computed.
    pub fn plain(segments: Arc<[Segment]>, sampling: SamplingParams, tokens_max: usize) -> AnswerSpec {
        AnswerSpec {
            segments,
            adapter: None,
            sampling,
            tokens_max,
            shorten: false,
            tools: None,
            form: None,
            own: None,
            whole: None,
            known_max: None,
            cites: None,
        }
    }

    /// Returns the tools that the prompt describes.
    pub(super) fn offered(&self) -> &[Tool] {
        self.tools.as_ref().map_or(&[], |tools| &tools.tools)
    }
}

/// A command to the local engine.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineCommand {
    /// Begins the answer: the first command of each.
    Open {
        /// Id of the prompt.
        prompt: PromptId,
        /// The answer.
        spec: AnswerSpec,
        /// How much to prefill for now.
        scope: Scope,
    },
    /// Prefills this prompt of the same answer instead; what the KV cache shares with it is kept.
    Prefill {
        /// Id of the new prompt.
        prompt: PromptId,
        /// Its segments: refined, or all of the prompt.
        segments: Arc<[Segment]>,
        /// The units of the whole prompt that are in them, if they are refined.
        kept: Option<Arc<[bool]>>,
    },
    /// Goes on from keys and values of the whole prompt's chosen tokens, in place of the prefill. If they
    /// cannot be taken, the answer goes on with the prompt that it has ([`EngineReport::NotTaken`]).
    Take {
        /// Id of the new prompt.
        prompt: PromptId,
        /// The keys and values.
        rows: Arc<KvRows>,
    },
    /// The cloud's part is complete: runs it through the model in the last prefill pass.
    Verify {
        /// The prompt it belongs to.
        prompt: PromptId,
        /// The cloud's part, possibly empty.
        accepted: Accepted,
    },
    /// Continues the answer after the accepted part.
    Decode {
        /// The prompt it belongs to.
        prompt: PromptId,
        /// How much of the accepted part stays.
        keep: Keep,
        /// Answer index of the first token that the device writes.
        index: usize,
    },
    /// Drops what was written behind the prompt, and writes on behind these tokens of the answer.
    Draft {
        /// A new id: reports of what was written before are out of date.
        prompt: PromptId,
        /// The answer so far, in this model's ids.
        answer: Vec<TokenId>,
        /// Tokens to write behind it, at most.
        tokens_max: usize,
    },
    /// Drops the answer. What the KV cache holds of it may serve a later one.
    Stop,
}

/// Why the engine wrote no further token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineEnd {
    /// The model ended the answer.
    EndToken,
    /// The answer reached its token limit.
    TokensMax,
    /// The context or KV cache is full.
    ContextFull,
}

/// What the local engine reports. Any report except `Failed` may be ignored if its prompt was dropped.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineReport {
    /// The whole prompt was tokenized.
    Opened {
        /// The prompt.
        prompt: PromptId,
        /// Tokens of the whole prompt.
        tokens: usize,
        /// Number of leading tokens that no mask can change.
        prefix_tokens: usize,
    },
    /// Prefill of a prompt begins.
    Prompt {
        /// The prompt.
        prompt: PromptId,
        /// Number of its tokens.
        tokens: usize,
        /// Number of its tokens that the KV cache already holds.
        cached: usize,
        /// If the prompt was shortened to fit: tokens of the whole prompt, and the most tokens that fit.
        shortened: Option<(usize, usize)>,
    },
    /// One prefill pass is done; sent at least every 1/16 of the prompt or every 32 tokens.
    Progress {
        /// The prompt.
        prompt: PromptId,
        /// Number of tokens in the KV cache.
        done: usize,
        /// Number of tokens of the whole prompt.
        total: usize,
        /// Number of tokens of this pass.
        pass_tokens: usize,
    },
    /// All but the last prompt token is in the KV cache; the engine waits for [`EngineCommand::Verify`].
    Ready {
        /// The prompt.
        prompt: PromptId,
    },
    /// Keys and values cannot be taken: the prompt before stays in force.
    NotTaken {
        /// The prompt that they were for.
        prompt: PromptId,
        /// Why not.
        reason: String,
    },
    /// The verification pass is done; the engine waits for [`EngineCommand::Decode`].
    Verified {
        /// The prompt.
        prompt: PromptId,
        /// Its result.
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
        /// Text mode: the token's text after the accepted text, complete characters only.
        text: Option<String>,
    },
    /// The device's part is over.
    Ended {
        /// The prompt.
        prompt: PromptId,
        /// Why it ended.
        why: EngineEnd,
        /// Text mode: the rest of the text that the detokenizer held.
        text: String,
    },
    /// The prompt does not fit, and must not or cannot be shortened.
    TooLong {
        /// The prompt.
        prompt: PromptId,
        /// Number of its tokens.
        tokens: usize,
        /// Most tokens that this device takes.
        limit: usize,
    },
    /// The engine cannot go on with this prompt.
    Failed {
        /// The prompt.
        prompt: PromptId,
        /// The engine's error message.
        reason: String,
    },
}

impl EngineReport {
    /// Returns the prompt that the report is about.
    pub fn prompt(&self) -> PromptId {
        match self {
            Self::Opened { prompt, .. }
            | Self::Prompt { prompt, .. }
            | Self::Progress { prompt, .. }
            | Self::Ready { prompt }
            | Self::NotTaken { prompt, .. }
            | Self::Verified { prompt, .. }
            | Self::Token { prompt, .. }
            | Self::Ended { prompt, .. }
            | Self::TooLong { prompt, .. }
            | Self::Failed { prompt, .. } => *prompt,
        }
    }
}
