//! Speculative decoding: proposed tokens go through the model in one step, and the correct ones are kept.
//!
//! A step over the last token and `k` proposals gives the model's logits at every position. The sampler,
//! keyed by (seed, token index), chooses from them exactly as it would one step at a time. So the output
//! equals that of plain decoding token for token, greedy or sampled; a wrong proposal only wastes time.
//! Whether proposals pay off is measured: [`Controller`] weighs the acceptance rate against the time of a
//! longer step, and switches off when plain decoding is faster. Proposals come from [`Lookup`] (the
//! sequence's own earlier tokens, as in prompt lookup decoding, Saxena 2023) or from [`Draft`] (a smaller
//! model, Leviathan 2023, coupled by the shared sampler).
//!
//! Never: changes a token, or reads a clock (durations are passed in). Always: proposals are a function of
//! the tokens, the sampler and the observations.

mod controller;
mod draft;
mod lookup;

pub use controller::{Controller, K_MAX, Policy, SpeculationStats};
pub use draft::{Draft, DraftError};
pub use lookup::Lookup;

use crate::engine::{StepControl, StepError};
use crate::sampling::Sampler;
use crate::tokenizer::TokenId;

/// A sequence that is being continued.
#[derive(Debug, Clone, Copy)]
pub struct Writing<'a> {
    /// The prompt.
    pub prompt: &'a [TokenId],
    /// The answer so far; the index of the next token is its length.
    pub answer: &'a [TokenId],
    /// Chooses the next tokens.
    pub sampler: &'a Sampler,
}

/// The source of proposals.
#[derive(Debug)]
pub enum Proposer {
    /// Earlier tokens of the sequence itself.
    Lookup(Lookup),
    /// A smaller model.
    Draft(Box<Draft>),
}

/// Proposes tokens, and learns from their acceptance.
#[derive(Debug)]
pub struct Speculator {
    proposer: Proposer,
    controller: Controller,
}

impl Speculator {
    /// Returns a speculator with this source and policy.
    pub fn new(proposer: Proposer, policy: Policy) -> Self {
        let slope = match proposer {
            Proposer::Lookup(_) => controller::LOOKUP_SLOPE,
            Proposer::Draft(_) => controller::DRAFT_SLOPE,
        };
        Self { proposer, controller: Controller::new(policy, slope) }
    }

    /// Returns up to `room` tokens that may come next; empty if none are known or they would not pay off.
    ///
    /// # Errors
    /// [`StepError::Cancelled`] if `control` cancels the draft model; nothing has changed then. If the draft
    /// model fails in another way, there are no proposals.
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

    /// Records a decoding step with `proposed` tokens after the last one. The model confirmed the first
    /// `accepted` of them and wrote `written` tokens.
    pub fn observe(&mut self, proposed: usize, accepted: usize, written: usize) {
        self.controller.observe(proposed, accepted, written);
    }

    /// Records the duration of such a step in milliseconds, including the time to propose.
    pub fn took(&mut self, proposed: usize, written: usize, ms: f64) {
        self.controller.took(proposed, written, ms);
    }

    /// Returns the statistics so far.
    pub fn stats(&self) -> SpeculationStats {
        self.controller.stats()
    }
}
