//! Sequences that are kept after their answers, for the next answer of the same conversation.
//!
//! The prefix tree keeps whole blocks of what was computed; a kept sequence also has the last, partial one.
//! It claims no other: its blocks are evicted in their turn, so it takes the room of nobody else's prefixes.
//! Never: keeps more sequences than allowed, or for longer. Always: a kept sequence is given up before a
//! running one lacks room, that of the owner with the most first.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use baton_engine::tokenizer::TokenId;
use baton_engine::{AdapterId, BLOCK_TOKENS, PrefixScope, SeqId, SequenceError, Sequences};

use crate::planted::{self, Bug};

/// Kept sequences, the oldest first.
#[derive(Debug)]
pub(super) struct IdleSequences {
    max: usize,
    /// How long one is kept; `None` until its room is needed.
    lasts: Option<Duration>,
    kept: VecDeque<Idle>,
}

/// A sequence of no job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Idle {
    pub(super) seq: SeqId,
    pub(super) scope: PrefixScope,
    pub(super) adapter: Option<AdapterId>,
    /// When its answer ended, by the host's clock.
    pub(super) since: Duration,
}

impl IdleSequences {
    pub(super) fn new(max: usize, lasts: Option<Duration>) -> IdleSequences {
        IdleSequences { max, lasts, kept: VecDeque::new() }
    }

    /// Keeps a sequence whose answer is over.
    pub(super) fn keep(&mut self, engine: &mut impl Sequences, idle: Idle) {
        if self.max == 0 || engine.len(idle.seq).unwrap_or(0) == 0 {
            engine.release(idle.seq);
            return;
        }
        engine.unpin(idle.seq);
        self.kept.push_back(idle);
        while self.kept.len() > self.max {
            self.give_up(engine);
        }
    }

    /// Releases the oldest sequence of the owner with the most; returns whether there was one.
    pub(super) fn give_up(&mut self, engine: &mut impl Sequences) -> bool {
        let mut counts = BTreeMap::<u128, usize>::new();
        for idle in &self.kept {
            *counts.entry(idle.scope.owner).or_default() += 1;
        }
        let most = counts.values().copied().max();
        let oldest = self.kept.iter().position(|idle| counts.get(&idle.scope.owner).copied() == most);
        let given_up = oldest.and_then(|at| self.kept.remove(at));
        if let Some(idle) = given_up {
            engine.release(idle.seq);
        }
        given_up.is_some()
    }

    /// Releases the sequences that were kept for as long as they may be.
    pub(super) fn expire(&mut self, engine: &mut impl Sequences, now: Duration) {
        while self.expire_in(now).is_some_and(|left| left.is_zero())
            && let Some(idle) = self.kept.pop_front()
        {
            engine.release(idle.seq);
        }
    }

    /// Returns the time until a sequence must be released.
    pub(super) fn expire_in(&self, now: Duration) -> Option<Duration> {
        let oldest = self.kept.front()?;
        Some((oldest.since + self.lasts?).saturating_sub(now))
    }

    /// Returns the tokens of all kept sequences; some may have been evicted.
    pub(super) fn tokens(&self, engine: &impl Sequences) -> usize {
        self.kept.iter().map(|idle| engine.len(idle.seq).unwrap_or(0)).sum()
    }

    /// Returns a sequence that begins with as many of `ids` as are known, and how many these are: at most
    /// `reusable`. The engine's prefix tree never gives the last of `ids`.
    ///
    /// # Errors
    /// [`SequenceError`] if no sequence can be created.
    pub(super) fn open(
        &mut self,
        engine: &mut impl Sequences,
        (scope, adapter): (PrefixScope, Option<AdapterId>),
        ids: &[TokenId],
        reusable: usize,
    ) -> Result<(SeqId, usize), SequenceError> {
        let alike = |idle: &Idle| idle.scope == scope && idle.adapter == adapter;
        let candidates = self.kept.iter().enumerate().filter(|(_, idle)| alike(idle));
        let wanted = &ids[..reusable.min(ids.len())];
        let lengths = candidates.map(|(at, idle)| (common(engine.ids(idle.seq).unwrap_or(&[]), wanted), at));
        let Some((common, at)) = lengths.max().filter(|(common, _)| *common > 0) else {
            let seq = engine.create_in(scope, adapter)?;
            return Ok((seq, engine.reuse_prefix(seq, ids)));
        };
        let kept = self.kept[at].seq;
        // The rest of it was evicted.
        let left = engine.pin(kept)?;
        let common = common.min(left);
        if common > 0 && common + BLOCK_TOKENS > reusable {
            return self.take(engine, at, common);
        }
        let seq = match engine.create_in(scope, adapter) {
            Ok(seq) => seq,
            Err(err) => {
                engine.unpin(kept);
                return Err(err);
            }
        };
        let gained = engine.reuse_prefix(seq, ids);
        if common > gained {
            engine.release(seq);
            return self.take(engine, at, common);
        }
        if left == common {
            // The new sequence begins with all that is left of it.
            self.kept.remove(at);
            engine.release(kept);
        } else {
            engine.unpin(kept);
        }
        Ok((seq, gained))
    }

    /// Makes sure that a sequence which ends inside a block can grow: such a block may have to be copied, so
    /// one more must be free. Returns how many tokens the sequence has then.
    ///
    /// # Errors
    /// [`SequenceError`] if the sequence is unknown.
    pub(super) fn settle(
        &mut self,
        engine: &mut impl Sequences,
        seq: SeqId,
        tokens: usize,
    ) -> Result<usize, SequenceError> {
        let part = tokens % BLOCK_TOKENS;
        while part > 0 && engine.free_tokens() == 0 {
            if !self.give_up(engine) {
                engine.truncate(seq, tokens - part)?;
                return Ok(tokens - part);
            }
        }
        Ok(tokens)
    }

    /// Takes a kept sequence, cut to its first tokens.
    fn take(
        &mut self,
        engine: &mut impl Sequences,
        at: usize,
        tokens: usize,
    ) -> Result<(SeqId, usize), SequenceError> {
        let Idle { seq, .. } = self.kept[at];
        if !planted::is(Bug::IdleUncut) {
            engine.truncate(seq, tokens)?;
        }
        self.kept.remove(at);
        Ok((seq, tokens))
    }
}

/// Returns how many ids both begin with.
pub(super) fn common(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
