//! Sequences over one model, computed by this device's engine or by a ring of devices.
//!
//! The trait holds what relay, speculation and verification need, and nothing that only one of the two has.
//! Every implementation follows the engine's rule: a step that fails or is cancelled leaves every sequence at
//! its former length.

use std::sync::Arc;
use std::time::Duration;

use baton_engine::sampling::NotFinite;
use baton_engine::tokenizer::TokenId;
use baton_engine::{
    Adapter, AdapterError, AdapterId, Engine, KvError, Model, SeqId, SeqOutput, StepControl, StepError,
    StepSeq,
};

/// Why an operation on sequences failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SequenceError {
    /// The engine refused the step, or it was cancelled.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The computed logits are not finite.
    #[error(transparent)]
    Logits(#[from] NotFinite),
    /// An adapter cannot be used.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// The ring of devices cannot do it.
    #[error("the ring of devices")]
    Ring(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<KvError> for SequenceError {
    fn from(err: KvError) -> Self {
        Self::Step(err.into())
    }
}

impl SequenceError {
    /// Returns whether the step was cancelled on request.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Step(StepError::Cancelled { .. }))
    }
}

/// The part of an engine that an answer needs. The methods are those of [`Engine`].
pub trait Sequences: Send {
    /// Returns the model.
    fn model(&self) -> &Arc<Model>;

    /// Adds an adapter.
    ///
    /// # Errors
    /// [`SequenceError`] if it does not fit the model, or cannot be used for computing.
    fn add_adapter(&mut self, adapter: Arc<Adapter>) -> Result<AdapterId, SequenceError>;

    /// Creates an empty sequence.
    ///
    /// # Errors
    /// [`SequenceError`] if the adapter is unknown.
    fn create_with(&mut self, adapter: Option<AdapterId>) -> Result<SeqId, SequenceError>;

    /// Creates a sequence with the first `n_tokens` of `seq`.
    ///
    /// # Errors
    /// [`SequenceError`] if the sequence is unknown or has fewer tokens.
    fn fork(&mut self, seq: SeqId, n_tokens: usize) -> Result<SeqId, SequenceError>;

    /// Cuts the sequence to its first `n_tokens`.
    ///
    /// # Errors
    /// [`SequenceError`] if the sequence is unknown or has fewer tokens.
    fn truncate(&mut self, seq: SeqId, n_tokens: usize) -> Result<(), SequenceError>;

    /// Removes the sequence.
    fn release(&mut self, seq: SeqId);

    /// Returns the number of tokens of the sequence.
    ///
    /// # Errors
    /// [`SequenceError`] if the sequence is unknown.
    fn len(&self, seq: SeqId) -> Result<usize, SequenceError>;

    /// Returns the token ids of the sequence.
    ///
    /// # Errors
    /// [`SequenceError`] if the sequence is unknown.
    fn ids(&self, seq: SeqId) -> Result<&[TokenId], SequenceError>;

    /// Reuses the longest prefix of `ids` that is in the cache; returns how many tokens the sequence gained.
    fn reuse_prefix(&mut self, seq: SeqId, ids: &[TokenId]) -> usize;

    /// Runs the new tokens of every sequence through the model.
    ///
    /// # Errors
    /// [`SequenceError`] if the step fails; every sequence then has its former length.
    fn step(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, SequenceError>;

    /// Returns the number of prompt tokens below which a step leaves devices idle.
    fn pass_tokens_min(&self) -> usize {
        1
    }

    /// Called when an answer begins and none is in progress; devices may join now.
    fn between_answers(&mut self) {}

    /// Returns how often to call [`Self::idle`] while no answer is in progress; `None` means never.
    fn idle_every(&self) -> Option<Duration> {
        None
    }

    /// Called regularly while no answer is in progress; devices may join now and are checked.
    fn idle(&mut self) {}
}

impl Sequences for Engine {
    fn model(&self) -> &Arc<Model> {
        Engine::model(self)
    }

    fn add_adapter(&mut self, adapter: Arc<Adapter>) -> Result<AdapterId, SequenceError> {
        Ok(Engine::add_adapter(self, adapter)?)
    }

    fn create_with(&mut self, adapter: Option<AdapterId>) -> Result<SeqId, SequenceError> {
        Ok(Engine::create_with(self, adapter)?)
    }

    fn fork(&mut self, seq: SeqId, n_tokens: usize) -> Result<SeqId, SequenceError> {
        Ok(Engine::fork(self, seq, n_tokens)?)
    }

    fn truncate(&mut self, seq: SeqId, n_tokens: usize) -> Result<(), SequenceError> {
        Ok(Engine::truncate(self, seq, n_tokens)?)
    }

    fn release(&mut self, seq: SeqId) {
        Engine::release(self, seq);
    }

    fn len(&self, seq: SeqId) -> Result<usize, SequenceError> {
        Ok(Engine::len(self, seq)?)
    }

    fn ids(&self, seq: SeqId) -> Result<&[TokenId], SequenceError> {
        Ok(Engine::ids(self, seq)?)
    }

    fn reuse_prefix(&mut self, seq: SeqId, ids: &[TokenId]) -> usize {
        Engine::reuse_prefix(self, seq, ids)
    }

    fn step(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, SequenceError> {
        Ok(Engine::step(self, batch, control)?)
    }
}
