//! Sequences over one model, whoever computes them: this device's engine, or a ring of devices.
//!
//! What the relay, speculation and verification need of an engine, and nothing that only one of the two has. Whoever
//! implements it keeps the engine's law: a step that fails or is cancelled leaves every sequence with the length it
//! had.

use std::sync::Arc;
use std::time::Duration;

use baton_engine::sampling::NotFinite;
use baton_engine::tokenizer::TokenId;
use baton_engine::{
    Adapter, AdapterError, AdapterId, Engine, KvError, Model, SeqId, SeqOutput, StepControl, StepError,
    StepSeq,
};

/// Why something was not done with sequences.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SequenceError {
    /// The engine refuses, or was cancelled.
    #[error(transparent)]
    Step(#[from] StepError),
    /// What was computed is no answer.
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
    /// Whether somebody asked for it.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Step(StepError::Cancelled { .. }))
    }
}

/// An engine, as far as an answer needs one. Methods are those of [`Engine`].
pub trait Sequences: Send {
    /// The model.
    fn model(&self) -> &Arc<Model>;

    /// Takes an adapter in.
    ///
    /// # Errors
    /// [`SequenceError`] where it does not fit, or cannot be computed with.
    fn add_adapter(&mut self, adapter: Arc<Adapter>) -> Result<AdapterId, SequenceError>;

    /// A new, empty sequence.
    ///
    /// # Errors
    /// [`SequenceError`] for an adapter that is not known.
    fn create_with(&mut self, adapter: Option<AdapterId>) -> Result<SeqId, SequenceError>;

    /// A new sequence with the first `n_tokens` of `seq`.
    ///
    /// # Errors
    /// [`SequenceError`] for an unknown sequence or too many tokens.
    fn fork(&mut self, seq: SeqId, n_tokens: usize) -> Result<SeqId, SequenceError>;

    /// Cuts the sequence to its first `n_tokens`.
    ///
    /// # Errors
    /// [`SequenceError`] for an unknown sequence or too many tokens.
    fn truncate(&mut self, seq: SeqId, n_tokens: usize) -> Result<(), SequenceError>;

    /// Forgets the sequence.
    fn release(&mut self, seq: SeqId);

    /// Tokens of the sequence.
    ///
    /// # Errors
    /// [`SequenceError`] for an unknown sequence.
    fn len(&self, seq: SeqId) -> Result<usize, SequenceError>;

    /// Token ids of the sequence.
    ///
    /// # Errors
    /// [`SequenceError`] for an unknown sequence.
    fn ids(&self, seq: SeqId) -> Result<&[TokenId], SequenceError>;

    /// Takes the longest known prefix of `ids` over; returns how many tokens the sequence gained.
    fn reuse_prefix(&mut self, seq: SeqId, ids: &[TokenId]) -> usize;

    /// Runs the new tokens of every sequence through the model.
    ///
    /// # Errors
    /// [`SequenceError`]; every sequence then has the length it had.
    fn step(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, SequenceError>;

    /// Tokens of a prompt below which a step leaves devices idle.
    fn pass_tokens_min(&self) -> usize {
        1
    }

    /// Called where an answer begins and none is running: devices may join now.
    fn between_answers(&mut self) {}

    /// How often [`Self::idle`] is to be called while no answer is under way; none: never.
    fn idle_every(&self) -> Option<Duration> {
        None
    }

    /// Called now and then while no answer is under way: devices may join now, and are looked after.
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
