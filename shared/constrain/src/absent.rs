//! Stands in for constraints in a build without the feature `llguidance`.

use baton_engine::TokenSet;
use baton_engine::tokenizer::{TokenId, Tokenizer};

use super::{ConstraintCost, ConstraintError, Grammar};

/// Would compile grammars for one vocabulary.
#[derive(Debug)]
pub struct Grammars;

impl Grammars {
    /// Needs nothing of the vocabulary.
    ///
    /// # Errors
    /// None.
    pub fn new(_tokenizer: &Tokenizer) -> Result<Grammars, ConstraintError> {
        Ok(Grammars)
    }

    /// Refuses every grammar.
    ///
    /// # Errors
    /// [`ConstraintError::NotBuilt`].
    pub fn compile(
        &self,
        _grammar: &Grammar,
        _thought_tokens: Option<usize>,
    ) -> Result<Constraint, ConstraintError> {
        Err(ConstraintError::NotBuilt)
    }
}

/// The state of one answer in its grammar. Nothing can be one in this build.
#[derive(Debug)]
pub enum Constraint {}

impl Constraint {
    /// Returns the tokens that may come next.
    ///
    /// # Errors
    /// None: it cannot be called.
    pub fn allowed(&mut self) -> Result<TokenSet, ConstraintError> {
        match *self {}
    }

    /// Takes the token that came.
    ///
    /// # Errors
    /// None: it cannot be called.
    pub fn accept(&mut self, _id: TokenId) -> Result<bool, ConstraintError> {
        match *self {}
    }

    /// Goes back.
    ///
    /// # Errors
    /// None: it cannot be called.
    pub fn take_back(&mut self, _tokens: usize) -> Result<(), ConstraintError> {
        match *self {}
    }

    /// Returns the time spent so far.
    pub fn cost(&self) -> ConstraintCost {
        match *self {}
    }
}
