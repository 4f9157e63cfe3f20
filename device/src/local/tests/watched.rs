//! An engine whose every step a test sees; the test may change the output.

use super::*;
use baton_engine::{AdapterId, PrefixStats, SeqId, SeqOutput, SequenceError};

/// An engine, and the function that gets each step and its output.
pub(crate) struct Watched<F> {
    engine: Engine,
    after_step: F,
}

/// Makes such an engine, with room for 1,024 tokens.
pub(crate) fn watched<F>(model: Arc<Model>, after_step: F) -> Watched<F>
where
    F: FnMut(&StepSeq<'_>, &mut SeqOutput) + Send + 'static,
{
    let engine = Engine::new(model, options(1024)).unwrap();
    Watched { engine, after_step }
}

impl<F: FnMut(&StepSeq<'_>, &mut SeqOutput) + Send> Sequences for Watched<F> {
    fn model(&self) -> &Arc<Model> {
        Engine::model(&self.engine)
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
        Sequences::release(&mut self.engine, seq);
    }

    fn len(&self, seq: SeqId) -> Result<usize, SequenceError> {
        Sequences::len(&self.engine, seq)
    }

    fn ids(&self, seq: SeqId) -> Result<&[TokenId], SequenceError> {
        Sequences::ids(&self.engine, seq)
    }

    fn reuse_prefix(&mut self, seq: SeqId, ids: &[TokenId]) -> usize {
        Sequences::reuse_prefix(&mut self.engine, seq, ids)
    }

    fn held_prefix(&self, scope: PrefixScope, adapter: Option<AdapterId>, ids: &[TokenId]) -> usize {
        self.engine.held_prefix(scope, adapter, ids)
    }

    fn free_tokens(&self) -> usize {
        self.engine.free_tokens()
    }

    fn kv_tokens(&self) -> usize {
        self.engine.kv_tokens()
    }

    fn prefix_stats(&self) -> PrefixStats {
        self.engine.prefix_stats()
    }

    fn step(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, SequenceError> {
        let mut outputs = Sequences::step(&mut self.engine, batch, control)?;
        for (step, output) in batch.iter().zip(&mut outputs) {
            (self.after_step)(step, output);
        }
        Ok(outputs)
    }
}
