//! What an answer calls while it is written, and why it may fail.
//!
//! Never: sees a token that was only proposed. Always: is called in the order of the answer's tokens, once
//! for each of them.

use baton_engine::sampling::{NotFinite, Sampler};
use baton_engine::token_set::TokenSet;
use baton_engine::tokenizer::TokenId;

/// The form that an answer must have.
///
/// It is asked in the order of the answer's tokens and takes chosen tokens only, so proposals need no way
/// back. Only a takeover does: it decides late how much of the other side's part stays.
pub trait Constraint: Send {
    /// Returns the tokens that may come next.
    ///
    /// # Errors
    /// [`ConstraintFault`] if the answer cannot go on.
    fn allowed(&mut self) -> Result<TokenSet, ConstraintFault>;

    /// Takes the token that was chosen; returns whether nothing may follow it.
    ///
    /// # Errors
    /// [`ConstraintFault`] if the answer cannot go on.
    fn accept(&mut self, id: TokenId) -> Result<bool, ConstraintFault>;

    /// Goes back to the state before the last `tokens` tokens that it took.
    ///
    /// # Errors
    /// [`ConstraintFault`] if it took fewer.
    fn take_back(&mut self, tokens: usize) -> Result<(), ConstraintFault>;
}

/// Why an answer cannot have its form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConstraintFault(pub String);

/// Where the log probabilities of an answer's tokens go.
pub trait LogprobSink: Send {
    /// Takes one token that was chosen from `logits: [v]`. It is called before the token is given out.
    fn record(&mut self, sampler: &Sampler, logits: &[f32], id: TokenId);
}

/// Why an answer cannot go on.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Fault {
    /// No token can be chosen from these logits.
    #[error(transparent)]
    Logits(#[from] NotFinite),
    /// The answer cannot have the form that was asked for.
    #[error(transparent)]
    Constraint(#[from] ConstraintFault),
    /// The accepted part cannot be used: it has tokens that the model lacks, or there is no room for it.
    #[error("{0}")]
    Accepted(String),
    /// The engine failed: its error with all causes.
    #[error("{0}")]
    Engine(String),
}
