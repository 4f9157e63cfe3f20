//! An engine whose steps a test replaces, to see them, to change their output or to let them fail.
//!
//! Everything else is the engine's own.

use std::sync::Arc;

use baton_engine::tokenizer::TokenId;
use baton_engine::{
    Adapter, AdapterId, Engine, PrefixScope, SeqId, SeqOutput, SequenceError, Sequences, StepControl, StepSeq,
};

/// An engine, and the function that is called in place of [`Sequences::step`]. The function may call that of
/// the engine.
#[derive(Debug)]
pub struct Stepped<F> {
    engine: Engine,
    step: F,
}

impl<F> Stepped<F>
where
    F: FnMut(&mut Engine, &[StepSeq<'_>], &mut dyn StepControl) -> Result<Vec<SeqOutput>, SequenceError>,
{
    /// Makes such an engine.
    pub fn new(engine: Engine, step: F) -> Self {
        Self { engine, step }
    }
}

impl<F> Sequences for Stepped<F>
where
    F: FnMut(&mut Engine, &[StepSeq<'_>], &mut dyn StepControl) -> Result<Vec<SeqOutput>, SequenceError>,
    F: Send,
{
    baton_engine::ask_engine!();

    fn captures(&self) -> bool {
        self.engine.captures()
    }

    fn add_adapter(&mut self, adapter: Arc<Adapter>) -> Result<AdapterId, SequenceError> {
        Sequences::add_adapter(&mut self.engine, adapter)
    }

    fn create_in(&mut self, scope: PrefixScope, adapter: Option<AdapterId>) -> Result<SeqId, SequenceError> {
        Sequences::create_in(&mut self.engine, scope, adapter)
    }

    fn fork(&mut self, seq: SeqId, n_tokens: usize) -> Result<SeqId, SequenceError> {
        Sequences::fork(&mut self.engine, seq, n_tokens)
    }

    fn truncate(&mut self, seq: SeqId, n_tokens: usize) -> Result<(), SequenceError> {
        Sequences::truncate(&mut self.engine, seq, n_tokens)
    }

    fn release(&mut self, seq: SeqId) {
        self.engine.release(seq);
    }

    fn unpin(&mut self, seq: SeqId) {
        Sequences::unpin(&mut self.engine, seq);
    }

    fn pin(&mut self, seq: SeqId) -> Result<usize, SequenceError> {
        Sequences::pin(&mut self.engine, seq)
    }

    fn reuse_prefix(&mut self, seq: SeqId, ids: &[TokenId]) -> usize {
        self.engine.reuse_prefix(seq, ids)
    }

    fn step(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, SequenceError> {
        (self.step)(&mut self.engine, batch, control)
    }
}
