//! Speculative decoding: proposed tokens go through the model in one step, and those it would have written stay.
//!
//! A step over the last token and `k` proposals gives the model's logits at every position. The sampler, keyed by
//! (seed, token index), chooses from them as it would have done one step at a time, so what is written is token for
//! token what plain decoding writes, greedy or sampled: proposals can only be right or wasted. Whether they pay is
//! measured: [`Controller`] weighs the acceptance against the time of a longer step, and switches off where plain
//! decoding is faster. Proposals come from [`Lookup`] (the sequence's own earlier tokens, as in prompt lookup
//! decoding, Saxena 2023) or from [`Draft`] (a smaller model, Leviathan 2023; coupled by the shared sampler).
//!
//! Never: changes a token, reads a clock (durations come in). Always: proposals are a function of the tokens, the
//! sampler and what was observed.

mod controller;
mod draft;
mod lookup;

pub use controller::{Controller, K_MAX, Policy, SpeculationStats};
pub use draft::{Draft, DraftError};
pub use lookup::Lookup;

use crate::engine::{StepControl, StepError};
use crate::sampling::Sampler;
use crate::tokenizer::TokenId;

/// A sequence whose next token is wanted.
#[derive(Debug, Clone, Copy)]
pub struct Writing<'a> {
    /// The prompt.
    pub prompt: &'a [TokenId],
    /// What follows it so far; the index of the next token is its length.
    pub answer: &'a [TokenId],
    /// How the next tokens are chosen.
    pub sampler: &'a Sampler,
}

/// Where proposals come from.
#[derive(Debug)]
pub enum Proposer {
    /// Earlier tokens of the sequence itself.
    Lookup(Lookup),
    /// A smaller model.
    Draft(Box<Draft>),
}

/// Proposes tokens, and learns from what became of them.
#[derive(Debug)]
pub struct Speculator {
    proposer: Proposer,
    controller: Controller,
}

impl Speculator {
    /// Proposals from this source, under this policy.
    pub fn new(proposer: Proposer, policy: Policy) -> Self {
        let slope = match proposer {
            Proposer::Lookup(_) => controller::LOOKUP_SLOPE,
            Proposer::Draft(_) => controller::DRAFT_SLOPE,
        };
        Self { proposer, controller: Controller::new(policy, slope) }
    }

    /// Up to `room` tokens that may come next; none where none are known or they would not pay.
    ///
    /// # Errors
    /// [`StepError::Cancelled`] where `control` breaks the draft model off; nothing has changed then. Where the draft
    /// model fails otherwise there are no proposals.
    pub fn propose(
        &mut self,
        writing: Writing<'_>,
        room: usize,
        control: &mut dyn StepControl,
    ) -> Result<Vec<TokenId>, StepError> {
        let k = self.controller.proposals().min(room);
        if k == 0 {
            return Ok(Vec::new());
        }
        match &mut self.proposer {
            Proposer::Lookup(lookup) => Ok(lookup.propose(writing, k)),
            Proposer::Draft(draft) => draft.propose(writing, k, control),
        }
    }

    /// A decoding step ran with `proposed` tokens behind the last one, of which the model confirmed the first
    /// `accepted`; it wrote `written` tokens.
    pub fn observe(&mut self, proposed: usize, accepted: usize, written: usize) {
        self.controller.observe(proposed, accepted, written);
    }

    /// How long such a step took, proposing included, in milliseconds.
    pub fn took(&mut self, proposed: usize, written: usize, ms: f64) {
        self.controller.took(proposed, written, ms);
    }

    /// What came of it so far.
    pub fn stats(&self) -> SpeculationStats {
        self.controller.stats()
    }
}
