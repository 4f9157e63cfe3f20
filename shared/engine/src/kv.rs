//! The KV cache's table: which blocks hold which tokens of which sequence.
//!
//! Sequences grow token by token, fork, are cut back and released. Forks share blocks; a partial last block
//! is copied only when one of them writes to it. Full blocks form a tree of prefixes, so that a new sequence
//! with a known prefix need not compute it again. Sequences that have computed the same prefix at the same
//! time share its blocks from then on. Sequences of different adapters share nothing; those of different
//! owners share only what [`PrefixScope`] allows. This module moves no numbers: it says which block must be
//! copied before a pass writes, and the backend copies it. [`states`] does the same for recurrent states.
//!
//! What always holds: an operation that fails changes nothing. A block that two sequences share is never
//! written. Every full block of a sequence is a node of the tree. [`KvTable::reserve`] changes no length;
//! [`KvTable::commit`] does.

use std::collections::HashMap;

use crate::tokenizer::TokenId;

mod pinned;
pub(crate) mod pool;
pub(crate) mod states;

use pool::{BlockId, BlockPool, Owner, Place, Root};
use states::{Held, StateTable};

/// Tokens of one block. Attention sums keys block by block in order of position, so this number is part of
/// the definition of a model's logits.
pub const BLOCK_TOKENS: usize = 32;

/// With fewer known tokens, a copy of the whole block costs more than it saves.
const PART_TOKENS_MIN: usize = 8;

/// A sequence of one engine; ids are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(u64);

/// Why the cache refuses a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// The adapter belongs to another engine.
    #[error("no adapter {0}")]
    UnknownAdapter(u32),
    /// The sequence was released, or belongs to another engine.
    #[error("no sequence {}", .0.0)]
    UnknownSequence(SeqId),
    /// The fork or cut is past the end of the sequence.
    #[error("sequence has {len} tokens, asked for the first {wanted}")]
    PastEnd {
        /// Tokens requested.
        wanted: usize,
        /// Tokens that the sequence holds.
        len: usize,
    },
    /// The fork or cut is among tokens of which only a part is in the cache.
    #[error("sequence cannot be cut to {wanted} tokens, keys and values of its first {least} were evicted")]
    Evicted {
        /// Tokens requested.
        wanted: usize,
        /// Tokens it had when keys and values were evicted.
        least: usize,
    },
    /// The sequence has a step open, which must be committed or cancelled first.
    #[error("sequence {} has an open step", .0.0)]
    StepOpen(SeqId),
    /// There is too little room for all the tokens of a pass.
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

/// What the prefix tree has saved since the engine started, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefixStats {
    /// Sequences whose beginning was looked up.
    pub queries: u64,
    /// Of these, sequences for which a prefix was found at once.
    pub hits: u64,
    /// Tokens of these lookups.
    pub query_tokens: u64,
    /// Tokens of whole blocks that were not computed, including those that sequences found later, between
    /// steps.
    pub hit_tokens: u64,
    /// Blocks evicted to make room.
    pub evicted_blocks: u64,
    /// Blocks that no sequence holds and the tree keeps.
    pub cached_blocks: usize,
}

/// Which other sequences of the same adapter may reuse what a sequence has computed.
///
/// A hit saves time and is counted, so it reveals that somebody else has sent the same tokens. If that must
/// stay secret, sequences have different owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PrefixScope {
    /// Only sequences of the same owner find its blocks. What owner 0 computes is not secret: all find it.
    pub owner: u128,
    /// Tokens at its beginning that are not secret: whole blocks of them are shared by all owners.
    pub shared_tokens: usize,
}

impl PrefixScope {
    /// Returns whose sequences may find the block at index `at`.
    fn owner_at(self, at: usize) -> Owner {
        let is_shared = self.owner == 0 || (at + 1) * BLOCK_TOKENS <= self.shared_tokens;
        if is_shared { Owner::All } else { Owner::One(self.owner) }
    }
}

#[derive(Debug, Clone, Default)]
struct Sequence {
    root: Root,
    scope: PrefixScope,
    ids: Vec<TokenId>,
    /// Cover `ids`, and more between reserve and commit. Blocks filled by `ids` are nodes of the tree.
    blocks: Vec<BlockId>,
    /// Whether its beginning was looked up.
    queried: bool,
    /// Whether room is reserved for a step that is neither committed nor cancelled.
    open: bool,
    /// Whether it has no claim to its full blocks (see [`pinned`]).
    unpinned: bool,
    /// How many of the first `ids` have no slot any more.
    evicted: usize,
    /// Its length when tokens were evicted, else 0. Up to that length, a slot is not a position. Blocks of
    /// such a sequence are never shared and never in the tree.
    evicted_at: usize,
    /// Its recurrent states, if the table keeps any.
    held: Held,
}

impl Sequence {
    /// Returns the number of tokens in the cache.
    fn cached(&self) -> usize {
        self.ids.len() - self.evicted
    }

    /// Returns the place of the block at index `at` in the tree, and its owner.
    fn place(&self, at: usize) -> (Place, Owner) {
        let place =
            at.checked_sub(1).map_or(Place::First(self.root), |before| Place::Behind(self.blocks[before]));
        (place, self.scope.owner_at(at))
    }
}

/// Sequences and the blocks they hold.
#[derive(Debug)]
pub(crate) struct KvTable {
    pool: BlockPool,
    seqs: HashMap<SeqId, Sequence>,
    next: u64,
    stats: PrefixStats,
    /// `None` if the model has no recurrent layers.
    states: Option<StateTable>,
}

impl KvTable {
    /// Returns a table for `n_blocks` blocks. At most `cached_max` of them keep content that no sequence
    /// holds.
    pub(crate) fn new(n_blocks: u32, cached_max: usize) -> Self {
        let pool = BlockPool::new(n_blocks, cached_max);
        Self { pool, seqs: HashMap::new(), next: 0, stats: PrefixStats::default(), states: None }
    }

    /// Removes the tokens of every sequence and the content of every block.
    pub(crate) fn clear(&mut self) {
        self.pool = self.pool.emptied();
        self.states = self.states.as_ref().map(StateTable::emptied);
        for seq in self.seqs.values_mut() {
            *seq = Sequence { root: seq.root, scope: seq.scope, ..Sequence::default() };
        }
    }

    /// Creates an empty sequence, which shares prefixes with those of its root as far as `scope` allows.
    pub(crate) fn create(&mut self, root: Root, scope: PrefixScope) -> SeqId {
        self.insert(Sequence { root, scope, ..Sequence::default() })
    }

    /// Returns the root that the sequence was created with.
    pub(crate) fn root(&self, seq: SeqId) -> Result<Root, KvError> {
        Ok(self.sequence(seq)?.root)
    }

    /// Creates a sequence that starts with the first `n_tokens` of `seq`; O(blocks), copies no keys or
    /// values.
    pub(crate) fn fork(&mut self, seq: SeqId, n_tokens: usize) -> Result<SeqId, KvError> {
        let Self { pool, seqs, states, .. } = self;
        let parent = seqs.get(&seq).ok_or(KvError::UnknownSequence(seq))?;
        check_within(n_tokens, parent)?;
        let child = Sequence {
            ids: parent.ids[..n_tokens].to_vec(),
            blocks: parent.blocks[..(n_tokens - parent.evicted).div_ceil(BLOCK_TOKENS)].to_vec(),
            queried: true,
            open: false,
            held: states.as_mut().map_or_else(Held::default, |states| states.fork(pool, parent, n_tokens)),
            ..*parent
        };
        for block in &child.blocks {
            pool.retain(*block);
        }
        Ok(self.insert(child))
    }

    /// Shortens the sequence to its first `n_tokens`.
    pub(crate) fn truncate(&mut self, seq: SeqId, n_tokens: usize) -> Result<(), KvError> {
        self.closed(seq)?;
        let Self { pool, seqs, states, .. } = self;
        let sequence = seqs.get_mut(&seq).ok_or(KvError::UnknownSequence(seq))?;
        check_within(n_tokens, sequence)?;
        if let Some(states) = states {
            states.cut(pool, sequence, n_tokens);
        }
        sequence.ids.truncate(n_tokens);
        release_past(pool, sequence);
        Ok(())
    }

    /// Creates a sequence of the same tokens, of which `kept` have slots. Its blocks are new; the backend
    /// fills them.
    pub(crate) fn evict(&mut self, seq: SeqId, kept: usize) -> Result<SeqId, KvError> {
        let parent = self.closed(seq)?;
        let (root, scope, ids) = (parent.root, parent.scope, parent.ids.clone());
        self.create_thin((root, scope), ids, kept)
    }

    /// Creates a sequence of these tokens, of which `kept` have slots. As [`Self::evict`] without a parent.
    pub(crate) fn create_thin(
        &mut self,
        (root, scope): (Root, PrefixScope),
        ids: Vec<TokenId>,
        kept: usize,
    ) -> Result<SeqId, KvError> {
        let needed = kept.div_ceil(BLOCK_TOKENS);
        if needed > self.pool.available() {
            return Err(KvError::KvFull { needed: needed * BLOCK_TOKENS, free: self.free_tokens() });
        }
        let room = "there is room for every block, counted above";
        let blocks = (0..needed).map(|_| self.pool.allocate().expect(room)).collect();
        let (evicted, evicted_at) = (ids.len() - kept, ids.len());
        Ok(self.insert(Sequence {
            root,
            scope,
            ids,
            blocks,
            queried: true,
            open: false,
            unpinned: false,
            evicted,
            evicted_at,
            held: Held::default(),
        }))
    }

    /// Returns whether keys and values of the sequence were evicted.
    pub(crate) fn is_evicted(&self, seq: SeqId) -> Result<bool, KvError> {
        Ok(self.sequence(seq)?.evicted_at > 0)
    }

    /// Returns the number of tokens that have no slot any more.
    pub(crate) fn evicted(&self, seq: SeqId) -> Result<usize, KvError> {
        Ok(self.sequence(seq)?.evicted)
    }

    /// Releases the sequence, if it is known. Blocks whose content the tree knows stay until their room is
    /// needed.
    pub(crate) fn release(&mut self, seq: SeqId) {
        if let Some(mut sequence) = self.seqs.remove(&seq) {
            if let Some(states) = &mut self.states {
                states.let_go(&mut sequence.held);
            }
            // Last block first, so that a prefix outlives what follows it.
            for block in sequence.blocks.into_iter().rev() {
                self.pool.release(block);
            }
        }
    }

    /// Returns the number of tokens of the sequence.
    pub(crate) fn len(&self, seq: SeqId) -> Result<usize, KvError> {
        Ok(self.sequence(seq)?.ids.len())
    }

    /// Returns the token ids of the sequence.
    pub(crate) fn ids(&self, seq: SeqId) -> Result<&[TokenId], KvError> {
        Ok(&self.sequence(seq)?.ids)
    }

    /// Returns the blocks of the sequence, in order of position.
    pub(crate) fn blocks(&self, seq: SeqId) -> Result<&[BlockId], KvError> {
        Ok(&self.sequence(seq)?.blocks)
    }

    /// Returns the tokens of all blocks that are free or evictable.
    pub(crate) fn free_tokens(&self) -> usize {
        self.pool.available() * BLOCK_TOKENS
    }

    /// Returns the tokens of all blocks.
    pub(crate) fn kv_tokens(&self) -> usize {
        self.pool.len() * BLOCK_TOKENS
    }

    /// Returns what the prefix tree has saved and holds.
    pub(crate) fn prefix_stats(&self) -> PrefixStats {
        PrefixStats { evicted_blocks: self.pool.evicted(), cached_blocks: self.pool.cached(), ..self.stats }
    }

    /// Returns how many tokens of `ids`, from the first on, are in blocks that live sequences of `root` hold
    /// and `scope` may see. A sequence that reuses them needs no room for them. With recurrent states, only
    /// tokens up to a checkpoint count.
    pub(crate) fn held_prefix(&self, root: Root, scope: PrefixScope, ids: &[TokenId]) -> usize {
        let mut place = Place::First(root);
        if let Some(states) = &self.states {
            let known = states.known(&self.pool, (place, 0), scope, ids, true);
            return known.map_or(0, |(blocks, _)| blocks * BLOCK_TOKENS);
        }
        let mut tokens = 0;
        for (at, block_ids) in ids.chunks_exact(BLOCK_TOKENS).enumerate() {
            let held = self
                .pool
                .find(place, scope.owner_at(at), block_ids)
                .filter(|block| self.pool.refs(*block) > 0);
            let Some(block) = held else { break };
            place = Place::Behind(block);
            tokens += BLOCK_TOKENS;
        }
        tokens
    }

    /// Appends the longest run of known blocks for the first of `ids`, then the known beginning of the next
    /// block, but never all of `ids`. Returns how many tokens the sequence gained, which is 0 if it ends
    /// inside a block. With recurrent states, the run ends at a checkpoint.
    pub(crate) fn reuse_prefix(&mut self, seq: SeqId, ids: &[TokenId]) -> usize {
        let Self { pool, seqs, stats, states, .. } = self;
        let Some(sequence) = seqs.get_mut(&seq) else { return 0 };
        let before = sequence.ids.len();
        if !before.is_multiple_of(BLOCK_TOKENS) || sequence.evicted_at > 0 || sequence.open {
            return 0;
        }
        let mut rest = &ids[..ids.len().saturating_sub(1)];
        if let Some(states) = states {
            let place = sequence.place(sequence.blocks.len()).0;
            let known = states.known(pool, (place, sequence.blocks.len()), sequence.scope, rest, false);
            rest = &rest[..known.map_or(0, |(blocks, _)| blocks * BLOCK_TOKENS)];
            if let Some((_, block)) = known {
                states.reuse(pool, sequence, block);
            }
        }
        while let Some((block_ids, after)) = rest.split_at_checked(BLOCK_TOKENS) {
            let (place, owner) = sequence.place(sequence.blocks.len());
            let Some(block) = pool.find(place, owner, block_ids) else { break };
            pool.retain(block);
            sequence.blocks.push(block);
            sequence.ids.extend_from_slice(block_ids);
            rest = after;
        }
        let (place, owner) = sequence.place(sequence.blocks.len());
        let part = pool.find_part(place, owner, rest);
        if let Some((block, n)) = part.filter(|(_, n)| *n >= PART_TOKENS_MIN) {
            // Shared until the sequence writes after these tokens; then `reserve` gives it a copy.
            pool.retain(block);
            sequence.blocks.push(block);
            sequence.ids.extend_from_slice(&rest[..n]);
        }
        let gained = sequence.ids.len() - before;
        // Only whole blocks are counted.
        stats.hit_tokens += (gained - gained % BLOCK_TOKENS) as u64;
        if !std::mem::replace(&mut sequence.queried, true) {
            stats.queries += 1;
            stats.hits += u64::from(gained > 0);
            stats.query_tokens += ids.len() as u64;
        }
        gained
    }

    /// Makes room for `n` more tokens of every `(sequence, n)`, each sequence at most once. Allocates blocks
    /// for all of them, and copies of shared blocks that will be written to. Lengths do not change.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`], [`KvError::StepOpen`], [`KvError::KvFull`]; nothing has changed then.
    pub(crate) fn reserve(&mut self, wants: &[(SeqId, usize)]) -> Result<Vec<BlockCopy>, KvError> {
        let needed = self.blocks_needed(wants)?;
        if needed > self.pool.available() {
            return Err(KvError::KvFull { needed: needed * BLOCK_TOKENS, free: self.free_tokens() });
        }
        // If there is room for one more block, a block that the tree knows is copied instead of being removed
        // from the tree.
        let keeps_nodes = needed < self.pool.available();
        let Self { pool, seqs, .. } = self;
        let mut copies = Vec::new();
        for (seq, n) in wants {
            let sequence = seqs.get_mut(seq).expect("blocks_needed has found every sequence");
            sequence.open = true;
            let len = sequence.cached();
            if !len.is_multiple_of(BLOCK_TOKENS) && *n > 0 {
                let last = &mut sequence.blocks[len / BLOCK_TOKENS];
                if pool.refs(*last) > 1 || (pool.is_node(*last) && keeps_nodes) {
                    let to = pool.allocate().expect("blocks_needed has counted the copies");
                    copies.push(BlockCopy { from: *last, to });
                    pool.release(*last);
                    *last = to;
                } else {
                    pool.unpublish(*last);
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
        let Self { pool, seqs, states, .. } = self;
        let sequence = seqs.get_mut(&seq).ok_or(KvError::UnknownSequence(seq))?;
        let (len, full) = (sequence.ids.len(), sequence.ids.len() / BLOCK_TOKENS);
        sequence.open = false;
        sequence.ids.extend_from_slice(ids);
        assert!(sequence.cached() <= sequence.blocks.len() * BLOCK_TOKENS, "committed more than reserved");
        if sequence.evicted_at > 0 {
            return Ok(());
        }
        for at in full..sequence.ids.len() / BLOCK_TOKENS {
            let block_ids = &sequence.ids[at * BLOCK_TOKENS..(at + 1) * BLOCK_TOKENS];
            let (place, owner) = sequence.place(at);
            sequence.blocks[at] = pool.publish(place, owner, block_ids, sequence.blocks[at]);
        }
        if let Some(states) = states {
            states.close(pool, sequence, Some(len));
        }
        Ok(())
    }

    /// Gives back the blocks that [`Self::reserve`] took for the sequence and no commit has used.
    pub(crate) fn cancel(&mut self, seq: SeqId) {
        if let Some(sequence) = self.seqs.get_mut(&seq) {
            sequence.open = false;
            if let Some(states) = &mut self.states {
                states.cancel(&mut sequence.held);
            }
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

    /// Whether room is reserved for a step of the sequence.
    pub(crate) fn is_open(&self, seq: SeqId) -> bool {
        self.seqs.get(&seq).is_some_and(|sequence| sequence.open)
    }

    fn closed(&self, seq: SeqId) -> Result<&Sequence, KvError> {
        let sequence = self.sequence(seq)?;
        if sequence.open { Err(KvError::StepOpen(seq)) } else { Ok(sequence) }
    }

    fn blocks_needed(&self, wants: &[(SeqId, usize)]) -> Result<usize, KvError> {
        let mut needed = 0;
        // References that earlier sequences of this reservation give up by taking a copy.
        let mut left: HashMap<BlockId, u32> = HashMap::new();
        for (seq, n) in wants {
            let sequence = self.closed(*seq)?;
            let len = sequence.cached();
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
    let (len, least) = (sequence.ids.len(), sequence.evicted_at);
    match n_tokens {
        _ if n_tokens > len => Err(KvError::PastEnd { wanted: n_tokens, len }),
        _ if n_tokens < least => Err(KvError::Evicted { wanted: n_tokens, least }),
        _ => Ok(()),
    }
}

fn release_past(pool: &mut BlockPool, sequence: &mut Sequence) {
    let keep = sequence.cached().div_ceil(BLOCK_TOKENS);
    for block in sequence.blocks.drain(keep..).rev() {
        pool.release(block);
    }
}

#[cfg(test)]
mod tests;
