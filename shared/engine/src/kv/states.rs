//! The recurrent states of a cache: which slot holds the state after which tokens of which sequence.
//!
//! A state has a fixed size and stands for all tokens before it, so unlike keys and values it cannot be cut.
//! A sequence holds its newest state and the one before its last step. Checkpoints, the states at the ends of
//! full blocks, belong to the blocks: forks, cuts and sequences with a known prefix find them there. If a
//! sequence is cut to a length without a state, its newest state is the nearest one before, and it is behind.
//! The next pass takes the tokens since then through the layers again, without writing their keys and values.
//! This module moves no numbers: it says which slots a pass reads and fills.
//!
//! Checkpoints are bounded. Half of them are those used last. Of the others the one that was used longest ago
//! goes first. One at a multiple of `2^n` blocks counts as used `2^n` times [`SPAN`] later, so older ones get
//! sparser.
//!
//! What always holds: a slot is written once, before anybody else can find it, and never changed until nobody
//! holds it. A state found for a sequence is that of its own first tokens, computed with its own adapter. A
//! sequence is never ahead of its tokens.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::pool::{BlockId, BlockPool, Place};
use super::{BLOCK_TOKENS, KvError, KvTable, PrefixScope, SeqId, Sequence};
use crate::tokenizer::TokenId;

/// A slot for one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StateId(pub(crate) u32);

/// What a pass does with the recurrent state of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StateMoves {
    /// The state before its first row; `None` if no token came before.
    pub(crate) from: Option<StateId>,
    /// The slots that it fills, each with the state after so many rows. Ascending; the last is after all.
    pub(crate) saves: Vec<(usize, StateId)>,
}

/// A state, and the number of tokens in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StateAt {
    tokens: usize,
    id: StateId,
}

/// The states that one sequence holds.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    /// `None` if no token is in it.
    newest: Option<StateAt>,
    /// As it was before the last step, which is often cut back by a few tokens.
    before: Option<StateAt>,
    open: Option<Open>,
}

/// The states that an open pass fills. It has a reference to each.
#[derive(Debug, Clone)]
struct Open {
    /// Tokens before its first row.
    start: usize,
    saves: Vec<(usize, StateId)>,
}

impl Held {
    /// Returns how many tokens are in the newest state.
    fn tokens(&self) -> usize {
        self.newest.map_or(0, |state| state.tokens)
    }
}

#[derive(Debug)]
struct Checkpoint {
    /// The node that it belongs to; the block may have become another one since.
    serial: u64,
    state: StateAt,
    used_at: u64,
}

/// By how many uses a checkpoint that ends an odd number of blocks counts as used later.
const SPAN: u64 = 4;

/// Returns when a checkpoint after so many tokens counts as used.
fn counts_until(tokens: usize, used_at: u64) -> u64 {
    const DOUBLINGS_MAX: u32 = 32;
    let doublings = (tokens / BLOCK_TOKENS).trailing_zeros().min(DOUBLINGS_MAX);
    used_at + (SPAN << doublings)
}

/// Returns those of `checkpoints` that stay if at most `max` may, without those that go first. Each is given
/// by the number of tokens in it and when it was used last, which differs for each.
fn staying<T>(mut checkpoints: Vec<(usize, u64, T)>, max: usize) -> Vec<T> {
    checkpoints.sort_by_key(|(_, used_at, _)| Reverse(*used_at));
    let newest = max.div_ceil(2).min(checkpoints.len());
    checkpoints[newest..].sort_by_key(|(tokens, used_at, _)| Reverse(counts_until(*tokens, *used_at)));
    checkpoints.truncate(max);
    checkpoints.into_iter().map(|(.., checkpoint)| checkpoint).collect()
}

/// The slots of one cache and its checkpoints.
#[derive(Debug)]
pub(super) struct StateTable {
    /// By slot.
    refs: Vec<u32>,
    /// A stack, so that memory used before is used again first.
    free: Vec<StateId>,
    checkpoints: BTreeMap<BlockId, Checkpoint>,
    checkpoints_max: usize,
    /// Counts uses of checkpoints.
    clock: u64,
}

impl StateTable {
    fn new(checkpoints_max: usize) -> Self {
        Self { refs: Vec::new(), free: Vec::new(), checkpoints: BTreeMap::new(), checkpoints_max, clock: 0 }
    }

    /// Returns a table without states, of the same bounds.
    pub(super) fn emptied(&self) -> Self {
        Self::new(self.checkpoints_max)
    }

    fn allocate(&mut self) -> StateId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.refs.push(0);
            StateId(self.refs.len() as u32 - 1)
        });
        self.retain(id);
        id
    }

    fn retain(&mut self, id: StateId) {
        self.refs[id.0 as usize] += 1;
    }

    fn release(&mut self, id: StateId) {
        let refs = &mut self.refs[id.0 as usize];
        *refs -= 1;
        if *refs == 0 {
            self.free.push(id);
        }
    }

    /// Makes these the states of the sequence instead of those it holds.
    fn hold(&mut self, held: &mut Held, newest: Option<StateAt>, before: Option<StateAt>) {
        for state in newest.iter().chain(&before) {
            self.retain(state.id);
        }
        for state in
            [std::mem::replace(&mut held.newest, newest), std::mem::replace(&mut held.before, before)]
        {
            state.into_iter().for_each(|state| self.release(state.id));
        }
    }

    /// Gives back everything that a sequence holds.
    pub(super) fn let_go(&mut self, held: &mut Held) {
        self.hold(held, None, None);
        self.cancel(held);
    }

    /// Returns the checkpoint at the end of this block.
    fn find(&mut self, pool: &BlockPool, block: BlockId) -> Option<StateAt> {
        let checkpoint = self.checkpoints.get_mut(&block)?;
        if pool.serial(block) != Some(checkpoint.serial) {
            return None;
        }
        self.clock += 1;
        checkpoint.used_at = self.clock;
        Some(checkpoint.state)
    }

    /// Returns the state with the most of the sequence's first `n_tokens` in it and nothing else.
    fn nearest(&mut self, pool: &BlockPool, sequence: &Sequence, n_tokens: usize) -> Option<StateAt> {
        let held = [sequence.held.newest, sequence.held.before].into_iter().flatten();
        let held = held.filter(|state| state.tokens <= n_tokens).max_by_key(|state| state.tokens);
        let least = held.map_or(0, |state| state.tokens / BLOCK_TOKENS);
        let blocks = sequence.blocks[..n_tokens / BLOCK_TOKENS].get(least..).unwrap_or_default();
        blocks.iter().rev().find_map(|block| self.find(pool, *block)).or(held)
    }

    /// Makes the states of `child` those that `parent` has for its first `n_tokens`.
    pub(super) fn fork(&mut self, pool: &BlockPool, parent: &Sequence, n_tokens: usize) -> Held {
        let mut held = Held::default();
        let nearest = self.nearest(pool, parent, n_tokens);
        self.hold(&mut held, nearest, None);
        held
    }

    /// Leaves the sequence no state with more than its first `n_tokens`.
    pub(super) fn cut(&mut self, pool: &BlockPool, sequence: &mut Sequence, n_tokens: usize) {
        if sequence.held.tokens() > n_tokens {
            let nearest = self.nearest(pool, sequence, n_tokens);
            self.hold(&mut sequence.held, nearest, None);
        }
    }

    /// Returns how many blocks of `ids`, known at `place` and after it, lead to the last checkpoint among
    /// them, and that block. `first` is the index of the first one in its sequence; if `in_use`, blocks that
    /// no sequence holds do not count.
    pub(super) fn known(
        &self,
        pool: &BlockPool,
        (mut place, first): (Place, usize),
        scope: PrefixScope,
        ids: &[TokenId],
        in_use: bool,
    ) -> Option<(usize, BlockId)> {
        let mut last = None;
        for (at, block_ids) in ids.chunks_exact(BLOCK_TOKENS).enumerate() {
            let found = pool.find(place, scope.owner_at(first + at), block_ids);
            let Some(block) = found.filter(|block| !in_use || pool.refs(*block) > 0) else { break };
            let checkpoint = self.checkpoints.get(&block);
            if checkpoint.is_some_and(|checkpoint| pool.serial(block) == Some(checkpoint.serial)) {
                last = Some((at + 1, block));
            }
            place = Place::Behind(block);
        }
        last
    }

    /// Makes the checkpoint of `block` the newest state of the sequence.
    pub(super) fn reuse(&mut self, pool: &BlockPool, sequence: &mut Sequence, block: BlockId) {
        let found = self.find(pool, block);
        self.hold(&mut sequence.held, found, None);
    }

    /// Allocates slots for a pass over the next `n_rows` tokens: for the state after them, before the
    /// sequence's new tokens, and at ends of blocks.
    fn open(&mut self, sequence: &mut Sequence, n_rows: usize) -> StateMoves {
        let (start, len) = (sequence.held.tokens(), sequence.ids.len());
        let end = start + n_rows;
        let (first, last) = (start / BLOCK_TOKENS + 1, end / BLOCK_TOKENS);
        // Those that would be left if all were kept one after the other.
        let borders = (first..=last).map(|border| border * BLOCK_TOKENS);
        let borders = borders.enumerate().map(|(at, tokens)| (tokens, at as u64, tokens)).collect();
        let mut ends = staying(borders, self.checkpoints_max);
        ends.extend([len, end].into_iter().filter(|tokens| (start + 1..=end).contains(tokens)));
        ends.sort_unstable();
        ends.dedup();
        let saves: Vec<_> = ends.into_iter().map(|tokens| (tokens - start, self.allocate())).collect();
        sequence.held.open = Some(Open { start, saves: saves.clone() });
        StateMoves { from: sequence.held.newest.map(|state| state.id), saves }
    }

    /// Takes over the states that a pass has filled. `len` is the number of tokens before a step, `None` if
    /// the pass was no step.
    pub(super) fn close(&mut self, pool: &BlockPool, sequence: &mut Sequence, len: Option<usize>) {
        let Some(Open { start, saves }) = sequence.held.open.take() else { return };
        let filled: Vec<StateAt> =
            saves.iter().map(|(rows, id)| StateAt { tokens: start + rows, id: *id }).collect();
        for state in filled.iter().filter(|state| state.tokens.is_multiple_of(BLOCK_TOKENS)) {
            self.keep(pool, sequence.blocks[state.tokens / BLOCK_TOKENS - 1], *state);
        }
        let before =
            filled.iter().copied().chain(sequence.held.newest).find(|state| Some(state.tokens) == len);
        self.hold(&mut sequence.held, filled.last().copied(), before);
        filled.iter().for_each(|state| self.release(state.id));
    }

    /// Gives back the slots of an open pass that has failed.
    pub(super) fn cancel(&mut self, held: &mut Held) {
        for (_, id) in held.open.take().map_or(Vec::new(), |open| open.saves) {
            self.release(id);
        }
    }

    fn keep(&mut self, pool: &BlockPool, block: BlockId, state: StateAt) {
        let Some(serial) = pool.serial(block) else { return };
        if self.find(pool, block).is_some() {
            return; // The same bits, computed by another sequence.
        }
        self.clock += 1;
        self.retain(state.id);
        let checkpoint = Checkpoint { serial, state, used_at: self.clock };
        if let Some(stale) = self.checkpoints.insert(block, checkpoint) {
            self.release(stale.state.id);
        }
        if self.checkpoints.len() > self.checkpoints_max {
            let known =
                self.checkpoints.iter().filter(|(block, one)| pool.serial(**block) == Some(one.serial));
            let known = known.map(|(block, one)| (one.state.tokens, one.used_at, *block)).collect();
            let stay: BTreeSet<BlockId> = staying(known, self.checkpoints_max).into_iter().collect();
            let gone: Vec<BlockId> =
                self.checkpoints.keys().copied().filter(|block| !stay.contains(block)).collect();
            for checkpoint in
                gone.iter().filter_map(|block| self.checkpoints.remove(block)).collect::<Vec<_>>()
            {
                self.release(checkpoint.state.id);
            }
        }
    }
}

impl KvTable {
    /// Returns a table that keeps recurrent states too, with up to so many checkpoints.
    pub(crate) fn with_states(self, checkpoints_max: usize) -> Self {
        Self { states: Some(StateTable::new(checkpoints_max)), ..self }
    }

    /// Returns the number of tokens at the end of the sequence that its newest state lacks; 0 without
    /// recurrent states.
    pub(crate) fn behind(&self, seq: SeqId) -> Result<usize, KvError> {
        let sequence = self.sequence(seq)?;
        Ok(if self.states.is_some() { sequence.ids.len() - sequence.held.tokens() } else { 0 })
    }

    /// Opens the states of each `(sequence, new tokens)` for a step, after [`Self::reserve`]: for the tokens
    /// that it is behind by, then the new ones. [`Self::commit`] or [`Self::cancel`] close them. Returns
    /// nothing without recurrent states.
    pub(crate) fn open_states(&mut self, wants: &[(SeqId, usize)]) -> Vec<StateMoves> {
        let Self { states: Some(states), seqs, .. } = self else { return Vec::new() };
        let mut moves = Vec::with_capacity(wants.len());
        for (seq, n) in wants {
            let sequence = seqs.get_mut(seq).expect("reserve has found every sequence");
            let behind = sequence.ids.len() - sequence.held.tokens();
            moves.push(states.open(sequence, behind + n));
        }
        moves
    }

    /// Opens the states of a sequence for a pass over the next `n` of the tokens that it is behind by.
    /// [`Self::caught_up`] closes them.
    pub(crate) fn open_behind(&mut self, seq: SeqId, n: usize) -> Result<Vec<StateMoves>, KvError> {
        self.closed(seq)?;
        let Self { states, seqs, .. } = self;
        let sequence = seqs.get_mut(&seq).ok_or(KvError::UnknownSequence(seq))?;
        Ok(states.iter_mut().map(|states| states.open(sequence, n)).collect())
    }

    /// Closes what [`Self::open_behind`] has opened; `done` says whether the pass filled the states.
    pub(crate) fn caught_up(&mut self, seq: SeqId, done: bool) {
        let Self { states, seqs, pool, .. } = self;
        if let (Some(states), Some(sequence)) = (states, seqs.get_mut(&seq)) {
            match done {
                true => states.close(pool, sequence, None),
                false => states.cancel(&mut sequence.held),
            }
        }
    }
}

#[cfg(test)]
mod tests;
