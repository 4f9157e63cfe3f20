//! The KV cache's table: which blocks hold which tokens of which sequence.
//!
//! Sequences grow token by token, fork (sharing blocks, copying the partial last one only when one of them
//! writes into it), are cut back and released. Full blocks stay findable by their content, so that a new
//! sequence with a known prefix need not compute it again. This module moves no numbers: it says which block
//! must be copied before a pass writes, and the backend does it.
//!
//! What always holds: an operation that fails has changed nothing; a block that two sequences share is never
//! written to; [`KvTable::reserve`] changes no length, [`KvTable::commit`] does.

use std::collections::HashMap;

use crate::tokenizer::TokenId;

pub(crate) mod chain;
pub(crate) mod pool;

use chain::ChainHash;
use pool::{BlockId, BlockPool};

/// Tokens of one block. The order in which attention sums keys follows blocks by absolute position, so this
/// number is part of the definition of a model's logits.
pub const BLOCK_TOKENS: usize = 32;

/// A sequence of one engine; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(u64);

/// What the cache refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// The sequence was released, or belongs to another engine.
    #[error("no sequence {}", .0.0)]
    UnknownSequence(SeqId),
    /// A fork or cut past the end of the sequence.
    #[error("sequence has {len} tokens, asked for the first {wanted}")]
    PastEnd {
        /// Tokens asked for.
        wanted: usize,
        /// Tokens that the sequence holds.
        len: usize,
    },
    /// Too little room for all the tokens of a pass.
    #[error("kv cache is full: {needed} tokens of blocks needed, {free} free")]
    KvFull {
        /// Tokens of the blocks that would have to be allocated.
        needed: usize,
        /// Tokens of the blocks that are free or evictable.
        free: usize,
    },
}

/// A copy that the backend makes before it writes into `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockCopy {
    pub(crate) from: BlockId,
    pub(crate) to: BlockId,
}

#[derive(Debug, Clone, Default)]
struct Sequence {
    ids: Vec<TokenId>,
    /// Covers `ids`, and more between reserve and commit.
    blocks: Vec<BlockId>,
    /// Of the full blocks.
    chain: Vec<ChainHash>,
}

/// Sequences and the blocks they hold.
#[derive(Debug)]
pub(crate) struct KvTable {
    pool: BlockPool,
    seqs: HashMap<SeqId, Sequence>,
    next: u64,
}

impl KvTable {
    /// A table over `n_blocks` blocks.
    pub(crate) fn new(n_blocks: u32) -> Self {
        Self { pool: BlockPool::new(n_blocks), seqs: HashMap::new(), next: 0 }
    }

    /// A new, empty sequence.
    pub(crate) fn create(&mut self) -> SeqId {
        self.insert(Sequence::default())
    }

    /// A new sequence that starts with the first `n_tokens` of `seq`; O(blocks), copies no keys or values.
    pub(crate) fn fork(&mut self, seq: SeqId, n_tokens: usize) -> Result<SeqId, KvError> {
        let parent = self.sequence(seq)?;
        check_within(n_tokens, parent)?;
        let child = Sequence {
            ids: parent.ids[..n_tokens].to_vec(),
            blocks: parent.blocks[..n_tokens.div_ceil(BLOCK_TOKENS)].to_vec(),
            chain: parent.chain[..n_tokens / BLOCK_TOKENS].to_vec(),
        };
        for block in &child.blocks {
            self.pool.retain(*block);
        }
        Ok(self.insert(child))
    }

    /// Cuts the sequence to its first `n_tokens`.
    pub(crate) fn truncate(&mut self, seq: SeqId, n_tokens: usize) -> Result<(), KvError> {
        let Self { pool, seqs, .. } = self;
        let sequence = seqs.get_mut(&seq).ok_or(KvError::UnknownSequence(seq))?;
        check_within(n_tokens, sequence)?;
        sequence.ids.truncate(n_tokens);
        sequence.chain.truncate(n_tokens / BLOCK_TOKENS);
        release_past(pool, sequence);
        Ok(())
    }

    /// Forgets the sequence; blocks whose content the index knows stay until their room is needed. Nothing
    /// happens where the sequence is unknown.
    pub(crate) fn release(&mut self, seq: SeqId) {
        if let Some(sequence) = self.seqs.remove(&seq) {
            // Last block first, so that a prefix outlives what follows it.
            for block in sequence.blocks.into_iter().rev() {
                self.pool.release(block);
            }
        }
    }

    /// Tokens of the sequence.
    pub(crate) fn len(&self, seq: SeqId) -> Result<usize, KvError> {
        Ok(self.sequence(seq)?.ids.len())
    }

    /// The token ids of the sequence.
    pub(crate) fn ids(&self, seq: SeqId) -> Result<&[TokenId], KvError> {
        Ok(&self.sequence(seq)?.ids)
    }

    /// The blocks of the sequence, in order of position.
    pub(crate) fn blocks(&self, seq: SeqId) -> Result<&[BlockId], KvError> {
        Ok(&self.sequence(seq)?.blocks)
    }

    /// Tokens of the blocks that are free or evictable.
    pub(crate) fn free_tokens(&self) -> usize {
        self.pool.available() * BLOCK_TOKENS
    }

    /// Appends the longest run of known blocks that hold the first of `ids`, but never all of `ids`; returns how
    /// many tokens the sequence gained. Nothing is gained where the sequence ends inside a block.
    pub(crate) fn reuse_prefix(&mut self, seq: SeqId, ids: &[TokenId]) -> usize {
        let Self { pool, seqs, .. } = self;
        let Some(sequence) = seqs.get_mut(&seq) else { return 0 };
        if !sequence.ids.len().is_multiple_of(BLOCK_TOKENS) {
            return 0;
        }
        let mut gained = 0;
        for block_ids in ids[..ids.len().saturating_sub(1)].chunks_exact(BLOCK_TOKENS) {
            let name = sequence.chain.last().unwrap_or(&ChainHash::ROOT).child(block_ids);
            let Some(block) = pool.find(&name) else { break };
            pool.retain(block);
            sequence.blocks.push(block);
            sequence.chain.push(name);
            sequence.ids.extend_from_slice(block_ids);
            gained += BLOCK_TOKENS;
        }
        gained
    }

    /// Makes room for `n` more tokens of every `(sequence, n)`, each sequence at most once: blocks for all of them, and own copies of
    /// shared blocks that will be written to. Lengths stay as they are.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`], [`KvError::KvFull`]; both before anything has changed.
    pub(crate) fn reserve(&mut self, wants: &[(SeqId, usize)]) -> Result<Vec<BlockCopy>, KvError> {
        let needed = self.blocks_needed(wants)?;
        if needed > self.pool.available() {
            return Err(KvError::KvFull { needed: needed * BLOCK_TOKENS, free: self.free_tokens() });
        }
        let Self { pool, seqs, .. } = self;
        let mut copies = Vec::new();
        for (seq, n) in wants {
            let sequence = seqs.get_mut(seq).expect("blocks_needed has found every sequence");
            let len = sequence.ids.len();
            if !len.is_multiple_of(BLOCK_TOKENS) && *n > 0 {
                let last = &mut sequence.blocks[len / BLOCK_TOKENS];
                if pool.refs(*last) > 1 {
                    let to = pool.allocate().expect("blocks_needed has counted the copies");
                    copies.push(BlockCopy { from: *last, to });
                    pool.release(*last);
                    *last = to;
                } else {
                    pool.forget(*last);
                }
            }
            while sequence.blocks.len() < (len + n).div_ceil(BLOCK_TOKENS) {
                sequence.blocks.push(pool.allocate().expect("blocks_needed has counted the new blocks"));
            }
        }
        Ok(copies)
    }

    /// Appends `ids`, whose keys and values have been written into the reserved blocks.
    pub(crate) fn commit(&mut self, seq: SeqId, ids: &[TokenId]) -> Result<(), KvError> {
        let Self { pool, seqs, .. } = self;
        let sequence = seqs.get_mut(&seq).ok_or(KvError::UnknownSequence(seq))?;
        sequence.ids.extend_from_slice(ids);
        assert!(sequence.ids.len() <= sequence.blocks.len() * BLOCK_TOKENS, "committed more than reserved");
        for at in sequence.chain.len()..sequence.ids.len() / BLOCK_TOKENS {
            let parent = sequence.chain.last().unwrap_or(&ChainHash::ROOT);
            let name = parent.child(&sequence.ids[at * BLOCK_TOKENS..(at + 1) * BLOCK_TOKENS]);
            sequence.chain.push(name);
            pool.publish(sequence.blocks[at], name);
        }
        Ok(())
    }

    /// Gives back what [`Self::reserve`] took for the sequence and no commit has used.
    pub(crate) fn cancel(&mut self, seq: SeqId) {
        if let Some(sequence) = self.seqs.get_mut(&seq) {
            release_past(&mut self.pool, sequence);
        }
    }

    fn insert(&mut self, sequence: Sequence) -> SeqId {
        let id = SeqId(self.next);
        self.next += 1;
        self.seqs.insert(id, sequence);
        id
    }

    fn sequence(&self, seq: SeqId) -> Result<&Sequence, KvError> {
        self.seqs.get(&seq).ok_or(KvError::UnknownSequence(seq))
    }

    fn blocks_needed(&self, wants: &[(SeqId, usize)]) -> Result<usize, KvError> {
        let mut needed = 0;
        // References that earlier sequences of this reservation give up by taking a copy.
        let mut left: HashMap<BlockId, u32> = HashMap::new();
        for (seq, n) in wants {
            let sequence = self.sequence(*seq)?;
            let len = sequence.ids.len();
            needed += (len + n).div_ceil(BLOCK_TOKENS).saturating_sub(sequence.blocks.len());
            if !len.is_multiple_of(BLOCK_TOKENS) && *n > 0 {
                let last = sequence.blocks[len / BLOCK_TOKENS];
                let gone = left.entry(last).or_default();
                if self.pool.refs(last) - *gone > 1 {
                    *gone += 1;
                    needed += 1;
                }
            }
        }
        Ok(needed)
    }
}

fn check_within(n_tokens: usize, sequence: &Sequence) -> Result<(), KvError> {
    let len = sequence.ids.len();
    if n_tokens > len { Err(KvError::PastEnd { wanted: n_tokens, len }) } else { Ok(()) }
}

fn release_past(pool: &mut BlockPool, sequence: &mut Sequence) {
    let keep = sequence.ids.len().div_ceil(BLOCK_TOKENS);
    for block in sequence.blocks.drain(keep..).rev() {
        pool.release(block);
    }
}

#[cfg(test)]
mod tests;
