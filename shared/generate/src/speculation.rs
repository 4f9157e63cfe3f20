//! Speculative decoding: proposed tokens go through the model in one pass, and the correct ones are kept.
//!
//! A pass over the last token and `k` proposals gives the model's logits at every position. The sampler,
//! keyed by (seed, token index), chooses from them exactly as it would one pass at a time. So the output
//! equals that of plain decoding token for token, greedy or sampled; a wrong proposal only wastes time.
//! How many tokens are worth proposing is the scheduler's decision. They come from a [`Proposer`]:
//! [`Lookups`] (each sequence's own earlier tokens; prompt lookup decoding, Saxena 2023) or [`Drafts`]
//! (a smaller model, Leviathan 2023, coupled by the shared sampler).
//!
//! Never: changes a token, or reads a clock. Always: proposals are a function of the tokens and the sampler.

mod drafts;
mod lookup;
mod option;
mod stats;

use baton_engine::tokenizer::TokenId;
use baton_engine::{StepControl, StepError};

pub use self::drafts::{DraftError, Drafts};
pub use self::lookup::Lookups;
pub use self::option::{ProposerWithLimits, Speculation, SpeculationError};
pub use self::stats::SpeculationStats;
pub use crate::answer::Writing;
use crate::scheduler::JobId;

/// The most tokens proposed to one answer in one pass.
pub const K_MAX: usize = 8;

/// When tokens are proposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// While it is faster than plain decoding, with a test from time to time.
    WhenItPays,
    /// In every pass that only decodes: at least 2 tokens for each answer, as far as the limits allow.
    Always,
}

/// Limits of proposing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpeculationLimits {
    /// When tokens are proposed.
    pub policy: Policy,
    /// The cost of one more proposed token until it is measured, as a share of a plain pass of one answer.
    pub slope: f64,
    /// Nothing is proposed if more answers than this decode.
    pub batch_max: usize,
    /// The most proposed tokens in one pass, over all answers.
    pub proposed_max: usize,
}

impl SpeculationLimits {
    /// Returns the limits for proposals from the sequences themselves. Checking them is limited by reading
    /// the weights. Beside more than four answers computing is the limit: with eight, on two cores, right
    /// proposals made answers slower (0.8 times the rate).
    pub fn lookup(policy: Policy) -> SpeculationLimits {
        SpeculationLimits { policy, slope: 0.1, batch_max: 4, proposed_max: 16 }
    }

    /// Returns the limits for proposals of a draft model of a quarter of the size.
    pub fn draft(policy: Policy) -> SpeculationLimits {
        SpeculationLimits { slope: 0.35, ..SpeculationLimits::lookup(policy) }
    }
}

/// An answer that wants proposals.
#[derive(Debug, Clone, Copy)]
pub struct Want<'a> {
    /// The answer's sequence.
    pub id: JobId,
    /// What is written.
    pub writing: Writing<'a>,
    /// The most tokens to propose.
    pub k: usize,
}

/// A source of proposals for several answers at once.
pub trait Proposer: Send {
    /// Returns up to `k` tokens for each answer that may come next, in the order of `wants`. Fewer, or none,
    /// are always right.
    ///
    /// # Errors
    /// [`StepError::Cancelled`] if `control` cancels it; no answer has changed then.
    fn propose(
        &mut self,
        wants: &[Want<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<Vec<TokenId>>, StepError>;

    /// Drops what is remembered of an answer that has ended.
    fn forget(&mut self, id: JobId);
}
