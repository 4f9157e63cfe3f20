//! The batching scheduler: which sequences run in the next engine pass, who waits, who is refused.
//!
//! Continuous batching with chunked prefill under a token budget: every pass carries one token of each decoding
//! sequence, then chunks of prompts, oldest first, as many tokens as the budget leaves ([`StepBudget`]), so that a
//! long prompt never holds up a running answer for long. A sequence gives its slot back in the pass in which it
//! reaches its cap, ends, or is cancelled.
//!
//! Requests are let in when their prompt fits beside what runs; their answers take KV blocks as they grow. Where the
//! blocks run out, the latest arrival is preempted: it gives its blocks back, waits at the head of the queue with
//! what it has written, and later computes prompt and answer again (what the prefix tree still knows excepted). The
//! engine's logits and the sampler do not depend on how a prefix came into the cache, so its tokens stay the same.
//!
//! A sequence whose reader does not read is parked: it gives its slot and its blocks up as a preempted one does, but waits
//! for its reader; then it waits for a slot as a new request of its tenant does.
//!
//! What may wait is bounded by the time that its prompts take ([`BacklogBound`]); a request whose deadline cannot be met
//! is refused at once, one whose deadline passes before it gets its first slot ends there. What a
//! request may write is lowered towards its floor by what waits behind it at the moment when it gets its first slot
//! ([`load`]), so that slots are free earlier where that shortens waits.
//!
//! Never: reads a clock, touches the engine, a channel or a random source; allocates KV (it only counts blocks).
//! Always: a pass fits into the room that the engine has, running sequences <= the slots, one `Close` per accepted
//! sequence, tenants served by their weights and first come first served within each (so nobody starves, and of those
//! that run the oldest is never preempted), and the last chunk of a prompt holds its whole scoring window.

mod admission;
mod budget;
mod core;
mod fair;
mod plan;
mod request;

use std::time::Duration;

pub use self::admission::{BacklogBound, QueueLimit, load};
pub use self::budget::{MIXED_TOKENS_MIN, MIXED_TOKENS_UNMEASURED, MixedTokens, StepBudget};
pub use self::core::SchedulerCore;
pub use self::plan::{StepPlan, StepRow};

/// Names one sequence for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// Whose a sequence is, and how much of the slots that is worth beside others that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Names the tenant.
    pub tenant: u64,
    /// Its weight, at least 1.
    pub weight: u32,
}

impl Default for Share {
    /// Everybody together.
    fn default() -> Share {
        Share { tenant: 0, weight: 1 }
    }
}

/// What the scheduler may use at most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Sequences that run at the same time.
    pub slots: usize,
    /// Sequences that may wait behind them; the next one is refused.
    pub queue: usize,
    /// What they may amount to.
    pub backlog: BacklogBound,
    /// Tokens of the whole KV cache.
    pub kv_tokens: usize,
    /// Tokens of one KV block.
    pub kv_block: usize,
    /// Prompt tokens in one pass.
    pub budget: StepBudget,
}

/// What the KV cache can still take, as the engine knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvRoom {
    /// Tokens of the blocks that are free, or that keep a prefix of no running sequence.
    pub free_tokens: usize,
    /// Tokens of whole blocks that begin the request named by [`SchedulerCore::next_waiting`] and that running
    /// sequences hold: they need no room.
    pub next_held_tokens: usize,
}

/// What the scheduler must know about one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobSpec {
    /// The sequence.
    pub id: JobId,
    /// Tokens of its prompt, at least 1.
    pub prompt_tokens: usize,
    /// Tokens that it may write at most (the paper's L), at least 1.
    pub max_tokens: usize,
    /// How far that may be lowered under load, at least 1; the same where it must stay.
    pub floor_tokens: usize,
    /// Trailing prompt tokens that one pass must hold together, at least 1: the scoring window and what follows it.
    pub tail_tokens: usize,
    /// Bytes that it holds while it waits.
    pub bytes: usize,
    /// When its first token is no longer of use; none: never.
    pub deadline: Option<Duration>,
    /// Whose it is.
    pub share: Share,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Somebody asks for a sequence.
    Submit(JobSpec),
    /// Its reader does not read: it gives its slot up until [`Event::Unpark`]. Nothing happens in the pass of another or
    /// where it waits for its first slot.
    Park(JobId),
    /// Its reader reads again.
    Unpark(JobId),
    /// Its reader is gone or asked to stop. Unknown ids are ignored: the sequence may have just ended.
    Cancel(JobId),
    /// The service goes down before this sequence has ended. Unknown ids are ignored.
    Abort(JobId),
    /// The engine failed on this sequence alone.
    Fail(JobId),
    /// The engine is idle: admit and plan.
    Turn(KvRoom),
    /// The sequence exists in the engine; `cached` tokens came from the prefix tree.
    Opened {
        /// The sequence.
        id: JobId,
        /// Tokens already in its KV cache.
        cached: usize,
        /// The room that is left.
        room: KvRoom,
    },
    /// Between passes, a sequence found more of its prompt in the prefix tree: others have computed it.
    Reused {
        /// The sequence.
        id: JobId,
        /// Tokens that it gained.
        tokens: usize,
    },
    /// The planned pass ran; one outcome for every row that wanted one.
    StepDone(Vec<(JobId, Outcome)>),
    /// The planned pass was broken off: every sequence is as it was before.
    StepUndone,
    /// The planned pass did not fit into the KV cache: every sequence is as it was before.
    StepTooLarge,
}

/// What sampling gave for one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A token; more may follow.
    Token,
    /// A token that completes a stop string: nothing follows.
    LastToken,
    /// End of text: nothing was written.
    EndOfText,
    /// No token could be chosen (logits that are not numbers).
    Failed,
}

/// What the driver must do.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Tell the caller that the sequence was not accepted.
    Refuse(JobId, Refusal),
    /// Create the sequence in the engine, look into the prefix tree, answer [`Event::Opened`].
    Open(JobId),
    /// Release the sequence in the engine but keep its request and what it wrote, then give a new [`Event::Turn`]:
    /// it waits for another [`Effect::Open`].
    Preempt(JobId),
    /// Run this pass, then answer [`Event::StepDone`] or [`Event::StepUndone`].
    Run(StepPlan),
    /// The sequence is over: release it in the engine, send its terminal event.
    Close(Closed),
}

/// Why a sequence was not accepted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Refusal {
    /// The queue is full.
    Full {
        /// By which bound.
        limit: QueueLimit,
        /// Sequences that wait.
        waiting: usize,
        /// Prompt tokens that must be computed before a new one would start.
        backlog_tokens: usize,
        /// How long that takes, as far as it is known.
        backlog: Duration,
        /// When there is likely to be room.
        retry_after: Duration,
    },
    /// Its first token would come after its deadline.
    Late {
        /// How long its first token would take at least.
        first: Duration,
        /// How long its deadline leaves.
        left: Duration,
        /// When the queue is likely to be shorter by what is missing.
        retry_after: Duration,
    },
    /// It can never fit into the KV cache.
    TooLarge {
        /// KV tokens that it needs at its longest.
        need: usize,
        /// The whole cache.
        limit: usize,
    },
}

/// How a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// End of text or a stop string.
    Stop,
    /// It wrote all the tokens it may write.
    Cap,
    /// Its reader went away or asked to stop.
    Cancelled,
    /// Its deadline passed before it got a slot.
    Expired,
    /// The service went down.
    Stopped,
    /// The engine failed on it.
    Failed,
}

/// The end of one sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Closed {
    /// The sequence.
    pub id: JobId,
    /// Why it ended.
    pub reason: CloseReason,
    /// Tokens it wrote.
    pub tokens: usize,
    /// Where its time went.
    pub times: SlotTimes,
}

/// Where the time of one sequence went, in milliseconds. Time between a preemption and the next slot counts to the
/// phase that it interrupts, but not as slot time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SlotTimes {
    /// From submit to its first slot.
    pub queue_ms: f64,
    /// From its slot to its first token.
    pub prefill_ms: f64,
    /// From its first token to its end.
    pub decode_ms: f64,
    /// The whole time it held a slot.
    pub slot_ms: f64,
}

/// How far a sequence is that has no token yet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// It has a slot.
    pub running: bool,
    /// Tokens of its prompt that are computed.
    pub computed: usize,
    /// Tokens of its prompt.
    pub total: usize,
    /// How long its first token will take from now, in milliseconds; none before the first pass.
    pub eta_ms: Option<f64>,
}

/// What is in use now.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SchedulerStats {
    /// Slots in use.
    pub running: usize,
    /// All slots.
    pub slots: usize,
    /// Sequences that wait.
    pub waiting: usize,
    /// Sequences that may wait.
    pub queue: usize,
    /// Sequences that have no slot because nobody reads them.
    pub parked: usize,
    /// KV tokens of the blocks that running sequences hold; shared ones count for each.
    pub kv_held_tokens: usize,
    /// KV tokens in all.
    pub kv_tokens: usize,
    /// Prompt tokens accepted but not computed yet.
    pub backlog_tokens: usize,
    /// How long they take, in milliseconds, by the rate of late; 0 before the first pass.
    pub backlog_ms: f64,
    /// How long what waits may take, in milliseconds.
    pub backlog_ms_max: f64,
    /// Bytes of the requests that wait.
    pub waiting_bytes: usize,
    /// How hard the queue presses on L: 0 not at all, 1 to every scene's floor.
    pub load: f64,
    /// Prompt tokens that a pass holds at most while nobody decodes.
    pub chunk_tokens: usize,
    /// The same beside the answers that run now.
    pub mixed_tokens: usize,
    /// Slot time of all sequences that have ended, in milliseconds.
    pub slot_ms_total: f64,
    /// Sequences that have ended.
    pub closed_total: u64,
    /// Times that a sequence gave way for want of KV room.
    pub preemptions_total: u64,
    /// Requests refused for want of room or time.
    pub refused_total: u64,
    /// Requests whose deadline passed while they waited.
    pub expired_total: u64,
}

impl SchedulerStats {
    /// What is in use in both together; times and shares are those of the one under more load, sizes of passes the
    /// first one's.
    #[must_use]
    pub fn beside(self, other: SchedulerStats) -> SchedulerStats {
        SchedulerStats {
            running: self.running + other.running,
            slots: self.slots + other.slots,
            waiting: self.waiting + other.waiting,
            queue: self.queue + other.queue,
            parked: self.parked + other.parked,
            kv_held_tokens: self.kv_held_tokens + other.kv_held_tokens,
            kv_tokens: self.kv_tokens + other.kv_tokens,
            backlog_tokens: self.backlog_tokens + other.backlog_tokens,
            backlog_ms: self.backlog_ms.max(other.backlog_ms),
            backlog_ms_max: self.backlog_ms_max.max(other.backlog_ms_max),
            waiting_bytes: self.waiting_bytes + other.waiting_bytes,
            load: self.load.max(other.load),
            chunk_tokens: self.chunk_tokens,
            mixed_tokens: self.mixed_tokens,
            slot_ms_total: self.slot_ms_total + other.slot_ms_total,
            closed_total: self.closed_total + other.closed_total,
            preemptions_total: self.preemptions_total + other.preemptions_total,
            refused_total: self.refused_total + other.refused_total,
            expired_total: self.expired_total + other.expired_total,
        }
    }
}
