//! Sequences over one model, computed by one engine or by a ring of devices.
//!
//! The trait holds what whoever writes answers needs, and nothing that only one of the two has. Every
//! implementation follows the engine's rule: a step that fails or is cancelled leaves every sequence at its
//! former length.

use std::sync::Arc;
use std::time::Duration;

use crate::adapter::{Adapter, AdapterError};
use crate::engine::{AdapterId, Engine, KvFormat, SeqOutput, StepControl, StepError, StepSeq};
use crate::kv::{KvError, PrefixScope, PrefixStats, SeqId};
use crate::model::Model;
use crate::rows::{KvRows, KvWidth, RowsError};
use crate::sampling::NotFinite;
use crate::tokenizer::TokenId;

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

/// Why a ring moves no keys and values.
const NOT_ONE_ENGINE: &str = "they are on several devices";

/// The part of an engine that an answer needs. The methods are those of [`Engine`], and some that only a
/// ring of devices answers in another way.
pub trait Sequences: Send {
    /// Returns the model.
    fn model(&self) -> &Arc<Model>;

    /// Adds an adapter.
    ///
    /// # Errors
    /// [`SequenceError`] if it does not fit the model, or cannot be used for computing.
    fn add_adapter(&mut self, adapter: Arc<Adapter>) -> Result<AdapterId, SequenceError>;

    /// Creates an empty sequence, which shares prefixes as `scope` allows.
    ///
    /// # Errors
    /// [`SequenceError`] if the adapter is unknown, or if a ring gets a scope of its own.
    fn create_in(&mut self, scope: PrefixScope, adapter: Option<AdapterId>) -> Result<SeqId, SequenceError>;

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

    /// Lets the full blocks of a sequence that waits be evicted in their turn, if that is possible here.
    /// Until [`Self::pin`], only its ids may be read, and it may be released.
    fn unpin(&mut self, _seq: SeqId) {}

    /// Takes the blocks of an unpinned sequence again; returns its tokens, fewer if some blocks are gone.
    ///
    /// # Errors
    /// [`SequenceError`] if the sequence is unknown.
    fn pin(&mut self, seq: SeqId) -> Result<usize, SequenceError> {
        self.len(seq)
    }

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

    /// Returns how many tokens of `ids`, from the first on, are in blocks of live sequences with this scope
    /// and adapter: they need no room.
    fn held_prefix(&self, scope: PrefixScope, adapter: Option<AdapterId>, ids: &[TokenId]) -> usize;

    /// Returns how many tokens the cache has room for, in whole blocks. Kept prefixes of no live sequence
    /// count as free.
    fn free_tokens(&self) -> usize;

    /// Returns the tokens of the whole cache, in whole blocks.
    fn kv_tokens(&self) -> usize;

    /// Returns how much shared prefixes have saved, and how much is kept of them.
    fn prefix_stats(&self) -> PrefixStats;

    /// Runs the new tokens of every sequence through the model.
    ///
    /// # Errors
    /// [`SequenceError`] if the step fails; every sequence then has its former length.
    fn step(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, SequenceError>;

    /// Returns whether steps capture attention scores.
    fn captures(&self) -> bool {
        true
    }

    /// Returns the widths of the layers whose keys and values leave and enter sequences.
    ///
    /// # Errors
    /// [`RowsError::Kind`] if none do; a ring's never do.
    fn kv_widths(&self) -> Result<Vec<KvWidth>, RowsError> {
        Err(RowsError::Kind { reason: NOT_ONE_ENGINE })
    }

    /// Appends the keys and values of these positions of a layer to `out`.
    ///
    /// # Errors
    /// [`RowsError`]; `out` may have got a part then.
    fn export_rows(
        &self,
        _seq: SeqId,
        _layer: usize,
        _positions: &[usize],
        _format: KvFormat,
        _out: &mut Vec<u8>,
    ) -> Result<(), RowsError> {
        Err(RowsError::Kind { reason: NOT_ONE_ENGINE })
    }

    /// Creates a sequence of `ids` of which only these rows are in the cache.
    ///
    /// # Errors
    /// [`RowsError`]; nothing has changed then.
    fn import_rows(
        &mut self,
        _scope: PrefixScope,
        _adapter: Option<AdapterId>,
        _ids: &[TokenId],
        _rows: &KvRows,
    ) -> Result<SeqId, RowsError> {
        Err(RowsError::Kind { reason: NOT_ONE_ENGINE })
    }

    /// Returns the number of prompt tokens below which a step leaves devices idle.
    fn pass_tokens_min(&self) -> usize {
        1
    }

    /// Called when an answer begins and none is in progress; devices may join now.
    fn between_answers(&mut self) {}

    /// Returns whether devices wait for a moment without an answer. No new answer should begin then until
    /// [`Self::between_answers`] was called.
    fn wants_pause(&self) -> bool {
        false
    }

    /// Returns how often to call [`Self::idle`] while no answer is in progress; `None` means never.
    fn idle_every(&self) -> Option<Duration> {
        None
    }

    /// Called regularly while no answer is in progress; devices may join now and are checked.
    fn idle(&mut self) {}
}

/// Writes the methods of an `impl` of [`Sequences`] that ask the engine in the field `engine`, and change
/// nothing.
#[macro_export]
macro_rules! ask_engine {
    () => {
        fn model(&self) -> &::std::sync::Arc<$crate::Model> {
            $crate::Sequences::model(&self.engine)
        }

        fn len(&self, seq: $crate::SeqId) -> ::std::result::Result<usize, $crate::SequenceError> {
            $crate::Sequences::len(&self.engine, seq)
        }

        fn ids(
            &self,
            seq: $crate::SeqId,
        ) -> ::std::result::Result<&[$crate::tokenizer::TokenId], $crate::SequenceError> {
            $crate::Sequences::ids(&self.engine, seq)
        }

        fn held_prefix(
            &self,
            scope: $crate::PrefixScope,
            adapter: ::std::option::Option<$crate::AdapterId>,
            ids: &[$crate::tokenizer::TokenId],
        ) -> usize {
            $crate::Sequences::held_prefix(&self.engine, scope, adapter, ids)
        }

        fn free_tokens(&self) -> usize {
            $crate::Sequences::free_tokens(&self.engine)
        }

        fn kv_tokens(&self) -> usize {
            $crate::Sequences::kv_tokens(&self.engine)
        }

        fn prefix_stats(&self) -> $crate::PrefixStats {
            $crate::Sequences::prefix_stats(&self.engine)
        }
    };
}

impl Sequences for Engine {
    fn model(&self) -> &Arc<Model> {
        Engine::model(self)
    }

    fn add_adapter(&mut self, adapter: Arc<Adapter>) -> Result<AdapterId, SequenceError> {
        Ok(Engine::add_adapter(self, adapter)?)
    }

    fn create_in(&mut self, scope: PrefixScope, adapter: Option<AdapterId>) -> Result<SeqId, SequenceError> {
        Ok(Engine::create_in(self, scope, adapter)?)
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

    fn unpin(&mut self, seq: SeqId) {
        Engine::unpin(self, seq);
    }

    fn pin(&mut self, seq: SeqId) -> Result<usize, SequenceError> {
        Ok(Engine::pin(self, seq)?)
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

    fn held_prefix(&self, scope: PrefixScope, adapter: Option<AdapterId>, ids: &[TokenId]) -> usize {
        Engine::held_prefix(self, scope, adapter, ids)
    }

    fn free_tokens(&self) -> usize {
        Engine::free_tokens(self)
    }

    fn kv_tokens(&self) -> usize {
        Engine::kv_tokens(self)
    }

    fn prefix_stats(&self) -> PrefixStats {
        Engine::prefix_stats(self)
    }

    fn step(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, SequenceError> {
        Ok(Engine::step(self, batch, control)?)
    }

    fn kv_widths(&self) -> Result<Vec<KvWidth>, RowsError> {
        Engine::kv_widths(self)
    }

    fn export_rows(
        &self,
        seq: SeqId,
        layer: usize,
        positions: &[usize],
        format: KvFormat,
        out: &mut Vec<u8>,
    ) -> Result<(), RowsError> {
        Engine::export_rows(self, seq, layer, positions, format, out)
    }

    fn import_rows(
        &mut self,
        scope: PrefixScope,
        adapter: Option<AdapterId>,
        ids: &[TokenId],
        rows: &KvRows,
    ) -> Result<SeqId, RowsError> {
        Engine::import_rows(self, scope, adapter, ids, rows)
    }
}

impl<S: Sequences + ?Sized> Sequences for Box<S> {
    fn model(&self) -> &Arc<Model> {
        (**self).model()
    }

    fn add_adapter(&mut self, adapter: Arc<Adapter>) -> Result<AdapterId, SequenceError> {
        (**self).add_adapter(adapter)
    }

    fn create_in(&mut self, scope: PrefixScope, adapter: Option<AdapterId>) -> Result<SeqId, SequenceError> {
        (**self).create_in(scope, adapter)
    }

    fn fork(&mut self, seq: SeqId, n_tokens: usize) -> Result<SeqId, SequenceError> {
        (**self).fork(seq, n_tokens)
    }

    fn truncate(&mut self, seq: SeqId, n_tokens: usize) -> Result<(), SequenceError> {
        (**self).truncate(seq, n_tokens)
    }

    fn release(&mut self, seq: SeqId) {
        (**self).release(seq);
    }

    fn unpin(&mut self, seq: SeqId) {
        (**self).unpin(seq);
    }

    fn pin(&mut self, seq: SeqId) -> Result<usize, SequenceError> {
        (**self).pin(seq)
    }

    fn len(&self, seq: SeqId) -> Result<usize, SequenceError> {
        (**self).len(seq)
    }

    fn ids(&self, seq: SeqId) -> Result<&[TokenId], SequenceError> {
        (**self).ids(seq)
    }

    fn reuse_prefix(&mut self, seq: SeqId, ids: &[TokenId]) -> usize {
        (**self).reuse_prefix(seq, ids)
    }

    fn held_prefix(&self, scope: PrefixScope, adapter: Option<AdapterId>, ids: &[TokenId]) -> usize {
        (**self).held_prefix(scope, adapter, ids)
    }

    fn free_tokens(&self) -> usize {
        (**self).free_tokens()
    }

    fn kv_tokens(&self) -> usize {
        (**self).kv_tokens()
    }

    fn prefix_stats(&self) -> PrefixStats {
        (**self).prefix_stats()
    }

    fn step(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, SequenceError> {
        (**self).step(batch, control)
    }

    fn captures(&self) -> bool {
        (**self).captures()
    }

    fn kv_widths(&self) -> Result<Vec<KvWidth>, RowsError> {
        (**self).kv_widths()
    }

    fn export_rows(
        &self,
        seq: SeqId,
        layer: usize,
        positions: &[usize],
        format: KvFormat,
        out: &mut Vec<u8>,
    ) -> Result<(), RowsError> {
        (**self).export_rows(seq, layer, positions, format, out)
    }

    fn import_rows(
        &mut self,
        scope: PrefixScope,
        adapter: Option<AdapterId>,
        ids: &[TokenId],
        rows: &KvRows,
    ) -> Result<SeqId, RowsError> {
        (**self).import_rows(scope, adapter, ids, rows)
    }

    fn pass_tokens_min(&self) -> usize {
        (**self).pass_tokens_min()
    }

    fn between_answers(&mut self) {
        (**self).between_answers();
    }

    fn wants_pause(&self) -> bool {
        (**self).wants_pause()
    }

    fn idle_every(&self) -> Option<Duration> {
        (**self).idle_every()
    }

    fn idle(&mut self) {
        (**self).idle();
    }
}
