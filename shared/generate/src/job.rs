//! A job of the host: one answer, who reads it, and what it is told on the way.
//!
//! Never: decides when a job runs, or what it writes. Always: the events of a job come in the order in which
//! they happened, and its one end comes last.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use baton_engine::engine::KvFormat;
use baton_engine::tokenizer::TokenId;
use baton_engine::{AdapterId, AttentionScores, KvRows, PrefixScope};

use crate::answer::{Accepted, Answer, Keep, Verified, Written};
use crate::evidence::Evidence;
use crate::scheduler::{Closed, Goal, JobSpec};
use crate::unread::CancelFlag;

/// Everything that the host needs for one answer.
pub struct Job {
    /// What the scheduler knows of it.
    pub spec: JobSpec,
    /// The answer.
    pub answer: Answer,
    /// Which later jobs may reuse the cached prefix of its prompt.
    pub scope: PrefixScope,
    /// The adapter that the answer is computed with.
    pub adapter: Option<AdapterId>,
    /// Set by the reader if nobody wants the answer any more.
    pub cancel: CancelFlag,
    /// Gets the events.
    pub sink: Box<dyn Sink>,
}

/// What a job is told after it was submitted; applied between passes, in order.
#[derive(Debug)]
pub enum Order {
    /// Another prompt of the same answer; what the cache shares with it is kept.
    Prompt {
        /// Its ids, at least one.
        ids: Vec<TokenId>,
        /// Records what the answer attends to of it.
        evidence: Option<Evidence>,
        /// Answer tokens at most, at least 1.
        max_tokens: usize,
        /// How far it is to be computed for now.
        goal: Goal,
        /// Prompt tokens in one pass at most.
        pass_tokens: usize,
    },
    /// The other side's part is complete.
    Accept(Accepted),
    /// How much of the accepted part stays. The order waits until the part is verified.
    Decide {
        /// What stays.
        keep: Keep,
        /// The index of the first token that is written behind it.
        index: usize,
    },
    /// Of the accepted part, what the model would have written too stays. The order waits as
    /// [`Self::Decide`]. The answer ends with the first token of its own, or later for `at_least`.
    Agree {
        /// New tokens at least, those that stay included, unless the answer ends by itself.
        at_least: usize,
    },
    /// Keys and values that somebody else has computed, in place of the prefill. If they cannot be taken, the
    /// job goes on with the prompt that it has.
    Take(Take),
}

/// A prompt whose keys and values come from elsewhere: those of some tokens, at their own positions.
#[derive(Debug)]
pub struct Take {
    /// Ids of the whole prompt, at least two.
    pub ids: Vec<TokenId>,
    /// Keys and values of some of them, never of the last one.
    pub rows: Arc<KvRows>,
    /// Answer tokens at most, at least 1.
    pub max_tokens: usize,
    /// Prompt tokens in one pass at most.
    pub pass_tokens: usize,
}

/// Keys and values of a prompt that leave the engine while the answer goes on.
pub struct Export {
    /// The positions, ascending, all before the prompt's last token.
    pub positions: Vec<usize>,
    /// How they are written.
    pub format: KvFormat,
    /// What is given at a time: a layer, and some of `positions` by their index.
    pub parts: Vec<(usize, Range<usize>)>,
    /// Who gets them.
    pub taker: Box<dyn RowsTaker>,
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { positions, format, parts, .. } = self;
        write!(f, "Export({} positions, {format}, {} parts)", positions.len(), parts.len())
    }
}

/// Gets the rows of an export, on the host's thread, so it must not block. Dropped before the last part, it
/// knows that no more comes.
pub trait RowsTaker: Send + Sync {
    /// Returns whether anybody still wants them.
    fn wants(&self) -> bool;

    /// Takes the rows of the next part.
    fn take(&mut self, rows: &[u8]);
}

/// What a job found when it got its first slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// Prompt tokens that were in the cache.
    pub cached: usize,
    /// Answer tokens at most: as asked for, or fewer under load.
    pub max_tokens: usize,
}

/// What happened to a job.
#[derive(Debug)]
pub enum JobEvent {
    /// Prefill of a prompt begins; also after a preemption, if nothing is written.
    Begun {
        /// Tokens of the prompt.
        tokens: usize,
        /// Of these, tokens in the cache.
        cached: usize,
    },
    /// A pass has computed a part of the prompt, or of the accepted part behind it.
    Computed {
        /// Prompt tokens in the cache.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
        /// Tokens of this pass.
        tokens: usize,
        /// Tokens that were in the cache before it.
        held: usize,
    },
    /// A [`Goal::Hold`] is reached.
    Held,
    /// The scores of the answer's window.
    Scores(AttentionScores),
    /// The accepted part is verified.
    Verified(Verified),
    /// A token.
    Written(Written),
}

/// What an answer does for its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// It waits until its reader has read.
    Park,
    /// It goes on.
    Unpark,
}

/// The reading end of a job. It lives on the host's thread, so it must not block.
pub trait Sink: Send {
    /// The job got its first slot.
    fn opened(&mut self, opened: Opened);

    /// The next [`Order::Prompt`] was taken: the events from here on are about that prompt.
    fn another_prompt(&mut self) {}

    /// The next [`Order::Take`] was not carried out: the job goes on with the prompt that it has.
    fn not_taken(&mut self, _reason: String) {}

    /// Returns what is to leave the engine of a prompt. Asked after the events of the pass that has completed
    /// it.
    fn exports(&mut self) -> Option<Export> {
        None
    }

    /// A pass is about to compute the prompt up to here, and maybe own tokens behind it. This is what a
    /// reader that leaves during the pass has to pay for.
    fn computing(&mut self, _prompt_tokens: usize) {}

    /// Takes an event. Called inside the pass that it comes from, so the time that this takes counts for the
    /// pass.
    fn event(&mut self, event: JobEvent);

    /// The pass (or the order) is over at `now`: gives everything out, in one piece.
    fn flush(&mut self, now: Duration);

    /// Returns how many tokens may be given out before the reader has read some. It bounds proposals.
    fn room(&self) -> usize {
        usize::MAX
    }

    /// Returns whether the answer must begin or may end waiting for its reader.
    fn reading(&mut self) -> Option<Reading> {
        None
    }

    /// Returns whether another job is likely to go on behind this one. Its sequence is kept then, if there is
    /// room.
    fn is_continued(&self) -> bool {
        true
    }

    /// The one end, instead of a last flush. `answer` is given back for whoever wants its tokens.
    fn closed(self: Box<Self>, closed: &Closed, answer: Answer);
}
