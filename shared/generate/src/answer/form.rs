//! The form of an answer while it is written: what may come next, and the way back of a takeover.

use baton_engine::Sampler;
use baton_engine::tokenizer::TokenId;

use crate::hooks::{Constraint, ConstraintFault, Fault};

/// What is said if a constraint allows only tokens that the model cannot choose.
pub(super) const NO_TOKEN: &str = "the answer cannot go on as its schema demands: no token fits";

/// A constraint, and how many tokens it has taken.
pub(super) struct AnswerForm {
    constraint: Box<dyn Constraint>,
    taken: usize,
}

impl AnswerForm {
    pub(super) fn new(constraint: Box<dyn Constraint>) -> AnswerForm {
        AnswerForm { constraint, taken: 0 }
    }

    /// Chooses the token behind `answer` among those that are allowed. It is not taken yet.
    ///
    /// # Errors
    /// [`Fault::Constraint`] if none can be chosen.
    pub(super) fn choose(
        &mut self,
        sampler: &Sampler,
        logits: &[f32],
        answer: &[TokenId],
    ) -> Result<TokenId, Fault> {
        let allowed = self.constraint.allowed()?;
        let chosen = sampler.sample_among(logits, answer.len() as u64, answer, &allowed);
        chosen.ok_or_else(|| ConstraintFault(NO_TOKEN.to_owned()).into())
    }

    /// Takes a token; returns whether nothing may follow it.
    ///
    /// # Errors
    /// [`Fault::Constraint`] if it is not allowed.
    pub(super) fn take(&mut self, id: TokenId) -> Result<bool, Fault> {
        let complete = self.constraint.accept(id)?;
        self.taken += 1;
        Ok(complete)
    }

    /// Goes back to the state before the last `tokens` tokens.
    ///
    /// # Errors
    /// [`Fault::Constraint`] if the constraint cannot.
    pub(super) fn take_back(&mut self, tokens: usize) -> Result<(), Fault> {
        if tokens > 0 {
            self.constraint.take_back(tokens)?;
            self.taken -= tokens;
        }
        Ok(())
    }

    /// Goes back to the beginning.
    ///
    /// # Errors
    /// [`Fault::Constraint`] if the constraint cannot.
    pub(super) fn restart(&mut self) -> Result<(), Fault> {
        self.take_back(self.taken)
    }
}
