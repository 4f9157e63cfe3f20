//! The batching scheduler: decides which sequences run in the next engine pass, which wait, and which are
//! refused.
//!
//! Continuous batching with chunked prefill under a token budget ([`StepBudget`]). Every pass carries one
//! token of each decoding sequence. Chunks of prompts, oldest first, fill the rest of the budget, so a long
//! prompt never delays a running answer for long. A sequence frees its slot in the pass in which it reaches
//! its cap, ends, or is cancelled.
//!
//! A request is admitted when its prompt fits into the KV cache beside what runs; its answer takes blocks as
//! it grows. If no blocks are left, the latest arrival is preempted: it frees its blocks and waits at the
//! head of the queue, with what it has written. Later, prompt and answer are computed again, except for what
//! the prefix tree still has. Its tokens stay the same, because the engine's logits and the sampler do not
//! depend on how a prefix came into the cache.
//!
//! A sequence may also stop on the way ([`Goal`]). It holds its prompt until another machine has written a
//! part of the answer. Then it computes the logits of that part, and waits for the decision what of it
//! stays. It keeps slot and blocks meanwhile, but adds nothing to a pass.
//!
//! If nothing but answers are computed, a pass may hold proposed tokens ([`SpeculationLimits`]). The
//! scheduler plans how many at most; which ones is not its business.
//!
//! A sequence whose reader does not read is parked: it frees its slot and its blocks like a preempted one,
//! but waits for its reader. Then it waits for a slot like a new request of its tenant.
//!
//! The queue is bounded by the time that its prompts will take ([`BacklogBound`]). A request whose deadline
//! cannot be met is refused at once. A request whose deadline passes before it gets its first slot is ended.
//! When a request gets its first slot, its L is lowered towards its floor by the load behind it ([`load`]).
//! So slots become free earlier if that shortens waits.
//!
//! Never: reads a clock, touches the engine, a channel or a random source, or allocates KV (it only counts
//! blocks). Always: a pass fits into the room that the engine has, no more sequences run than there are
//! slots, and each accepted sequence gets one `Close`. Tenants are served by their weights, and each tenant's
//! requests in order of arrival. So no request starves, and the oldest running one is never preempted. The
//! last chunk of a prompt contains its whole scoring window. Proposed tokens never make a sequence give way.

mod admission;
mod budget;
mod core;
mod fair;
mod orders;
mod passes;
mod plan;
mod request;
mod slot;
mod speculate;

use std::time::Duration;

pub use self::admission::{BacklogBound, QueueLimit, load};
pub use self::budget::{MIXED_TOKENS_MIN, MIXED_TOKENS_UNMEASURED, MixedTokens, StepBudget};
pub use self::core::SchedulerCore;
pub use self::plan::{PrefillEnd, StepPlan, StepRow};
pub use crate::answer::{AnswerEnd, Outcome};
use crate::speculation::{SpeculationLimits, SpeculationStats};

/// Id of one sequence, unique in the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// The tenant of a sequence, and its share of the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Id of the tenant.
    pub tenant: u64,
    /// Its weight, at least 1.
    pub weight: u32,
}

impl Default for Share {
    /// One tenant for all.
    fn default() -> Share {
        Share { tenant: 0, weight: 1 }
    }
}

/// How far a sequence is to go for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// Computes the prompt and writes the answer.
    Write,
    /// Computes the beginning of the prompt, then waits for [`Event::Prompt`] or [`Event::Accept`].
    Hold {
        /// Tokens of the prompt to compute.
        upto: usize,
    },
    /// Computes the prompt and a given part of the answer with logits, then waits for [`Event::Decided`].
    Verify {
        /// Tokens of that part.
        accepted: usize,
    },
}

/// Limits of the scheduler.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// The most sequences that run at the same time.
    pub slots: usize,
    /// The most sequences that wait; the next one is refused.
    pub queue: usize,
    /// Limits on the time and the memory of waiting sequences.
    pub backlog: BacklogBound,
    /// Tokens of the whole KV cache.
    pub kv_tokens: usize,
    /// Tokens of one KV block.
    pub kv_block: usize,
    /// The most prompt tokens in one pass.
    pub budget: StepBudget,
    /// Answer tokens that must have room beside the prompt when a request is admitted; at least 1.
    pub admit_tokens: usize,
    /// The most rows with logits of one sequence in one pass; at least 1.
    pub logit_rows: usize,
    /// How many tokens may be proposed; `None` if none.
    pub speculation: Option<SpeculationLimits>,
}

/// The free room of the KV cache, as reported by the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Tokens of the blocks that are free, or that keep a prefix which no running sequence uses.
    pub free_tokens: usize,
    /// Tokens in whole blocks at the beginning of the request that [`SchedulerCore::next_waiting`] returns,
    /// which running sequences hold already. They need no room.
    pub next_held_tokens: usize,
    /// The fewest tokens that a pass of prompts should have; at least 1.
    pub pass_tokens_min: usize,
    /// Whether a waiting request may get a slot now.
    pub admits: bool,
}

impl Default for Room {
    /// No room.
    fn default() -> Room {
        Room { free_tokens: 0, next_held_tokens: 0, pass_tokens_min: 1, admits: true }
    }
}

/// What the scheduler knows about one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobSpec {
    /// The sequence.
    pub id: JobId,
    /// Tokens of its prompt, at least 1.
    pub prompt_tokens: usize,
    /// The most tokens that it may write (the paper's L), at least 1.
    pub max_tokens: usize,
    /// The lowest cap under load, at least 1; equal to `max_tokens` if it must not be lowered.
    pub floor_tokens: usize,
    /// Tokens at the end of the prompt, or of what is held of it, that one pass must contain together: the
    /// scoring window and what follows it. At least 1, but with [`Goal::Hold`] it may be 0.
    pub tail_tokens: usize,
    /// The most prompt tokens of this sequence in one pass, at least 1; `usize::MAX` if only the budget
    /// counts. [`Room::pass_tokens_min`] is kept all the same.
    pub pass_tokens: usize,
    /// Bytes of memory that it holds while it waits.
    pub bytes: usize,
    /// Time after which its first token is of no use; `None` if there is none.
    pub deadline: Option<Duration>,
    /// Its tenant and weight.
    pub share: Share,
    /// How far it is to go first.
    pub goal: Goal,
}

/// An input of the scheduler.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A new sequence is requested.
    Submit(JobSpec),
    /// Between passes: the sequence gets another prompt before it has written anything.
    Prompt {
        /// The sequence.
        id: JobId,
        /// Tokens of the new prompt, at least 1.
        prompt_tokens: usize,
        /// The most tokens that it may write behind it, at least 1.
        max_tokens: usize,
        /// As [`JobSpec::pass_tokens`].
        pass_tokens: usize,
        /// Tokens of the new prompt that are in its cache; 0 if it has no slot.
        kept: usize,
        /// How far it is to go.
        goal: Goal,
    },
    /// Between passes: a part of its answer is given, to be computed with logits.
    Accept {
        /// The sequence.
        id: JobId,
        /// Tokens of that part.
        accepted: usize,
    },
    /// Between passes: it is decided how much of that part stays, and the first token behind it is written.
    Decided {
        /// The sequence.
        id: JobId,
        /// Answer tokens that are still in its cache, if it has one.
        kept: usize,
        /// Answer tokens written in all; one more than are kept, if the answer goes on.
        tokens: usize,
        /// Why the answer ends with them.
        end: Option<AnswerEnd>,
    },
    /// Its reader does not read: it frees its slot until [`Event::Unpark`]. Ignored while a pass runs, and
    /// before it has written something.
    Park(JobId),
    /// Its reader reads again.
    Unpark(JobId),
    /// Its reader disconnected or asked to stop. Unknown ids are ignored: the sequence may have just ended.
    Cancel(JobId),
    /// The service stops before this sequence has ended. Unknown ids are ignored.
    Abort(JobId),
    /// The engine failed on this sequence alone.
    Fail(JobId),
    /// The engine is idle: admit and plan.
    Turn(Room),
    /// The sequence exists in the engine; `cached` tokens came from the prefix tree.
    Opened {
        /// The sequence.
        id: JobId,
        /// Tokens already in its KV cache.
        cached: usize,
        /// The free room in the KV cache.
        room: Room,
    },
    /// Between passes, a sequence found more of its prompt in the prefix tree, computed by others.
    Reused {
        /// The sequence.
        id: JobId,
        /// Tokens that it found in addition.
        tokens: usize,
    },
    /// The planned pass has run.
    StepDone {
        /// One outcome for every row that samples a token. Others may have one that ends the answer.
        outcomes: Vec<(JobId, Outcome)>,
        /// Time before the pass in which other models had the machine.
        waited: Duration,
    },
    /// The planned pass was cancelled: every sequence is as it was before.
    StepUndone,
    /// The planned pass did not fit into the KV cache: every sequence is as it was before.
    StepTooLarge,
}

/// An action that the driver must perform.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Tell the caller that the sequence was not accepted.
    Refuse(JobId, Refusal),
    /// Create the sequence in the engine, look it up in the prefix tree, and answer with [`Event::Opened`].
    Open(JobId),
    /// Release the sequence in the engine, but keep its request and what it wrote. Then pass a new
    /// [`Event::Turn`]. The sequence waits for another [`Effect::Open`].
    Preempt(JobId),
    /// Run this pass, then answer with [`Event::StepDone`], [`Event::StepUndone`] or [`Event::StepTooLarge`].
    Run(StepPlan),
    /// The sequence is over: release it in the engine, send its terminal event.
    Close(Closed),
    /// What is to be held was in the cache already. If a pass reaches it, its row says [`PrefillEnd::Held`].
    Held(JobId),
}

/// Why a sequence was not accepted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Refusal {
    /// The queue is full.
    Full {
        /// The bound that is reached.
        limit: QueueLimit,
        /// Sequences that wait.
        waiting: usize,
        /// Prompt tokens that must be computed before a new one would start.
        backlog_tokens: usize,
        /// Estimated time for that, as far as it is known.
        backlog: Duration,
        /// Time after which there is likely to be room.
        retry_after: Duration,
    },
    /// Its first token would come after its deadline.
    Late {
        /// The least time to its first token.
        first: Duration,
        /// Time left until its deadline.
        left: Duration,
        /// Time after which the queue is likely to be short enough.
        retry_after: Duration,
    },
    /// It can never fit into the KV cache.
    TooLarge {
        /// The most KV tokens that it may need.
        need: usize,
        /// KV tokens of the whole cache.
        limit: usize,
    },
}

/// How a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// End of text or a stop string.
    Stop,
    /// It wrote all tokens that it may write.
    Cap,
    /// Its reader disconnected or asked to stop.
    Cancelled,
    /// Its deadline passed before it got a slot.
    Expired,
    /// The service stopped.
    Stopped,
    /// The engine failed on this sequence.
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
    /// Times of its phases.
    pub times: SlotTimes,
    /// What came of its proposed tokens; `None` if none may be proposed.
    pub speculation: Option<SpeculationStats>,
}

/// Times of the phases of one sequence, in milliseconds. The time between a preemption and the next slot
/// counts for the phase that it interrupts, but not as slot time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SlotTimes {
    /// From submit to its first slot.
    pub queue_ms: f64,
    /// From its slot to its first token.
    pub prefill_ms: f64,
    /// From its first token to its end.
    pub decode_ms: f64,
    /// Total time in slots.
    pub slot_ms: f64,
}

/// Progress of a sequence that has no token yet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Whether it has a slot.
    pub running: bool,
    /// Tokens computed so far.
    pub computed: usize,
    /// Tokens to compute for its goal: those of its prompt, if it writes.
    pub total: usize,
    /// Estimated time from now to its first token, in milliseconds; `None` before the first pass.
    pub eta_ms: Option<f64>,
}

/// Current use and totals of the scheduler.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SchedulerStats {
    /// Slots in use.
    pub running: usize,
    /// All slots.
    pub slots: usize,
    /// Sequences that wait.
    pub waiting: usize,
    /// The most sequences that may wait.
    pub queue: usize,
    /// Parked sequences: without a slot because nobody reads them.
    pub parked: usize,
    /// Of those in slots, the ones that wait for what to do next.
    pub held: usize,
    /// KV tokens of the blocks that running sequences hold; a shared block counts for each.
    pub kv_held_tokens: usize,
    /// KV tokens in all.
    pub kv_tokens: usize,
    /// Prompt tokens accepted but not computed yet.
    pub backlog_tokens: usize,
    /// Time that they will take, in milliseconds, at the rate measured recently; 0 before the first pass.
    pub backlog_ms: f64,
    /// The most time that waiting prompts may take, in milliseconds.
    pub backlog_ms_max: f64,
    /// Bytes of waiting requests.
    pub waiting_bytes: usize,
    /// How much L is lowered: 0 is not at all, 1 is to every scene's floor.
    pub load: f64,
    /// The most prompt tokens in a pass while no sequence decodes.
    pub chunk_tokens: usize,
    /// The most prompt tokens in a pass together with the answers that run now.
    pub mixed_tokens: usize,
    /// Slot time of all sequences that have ended, in milliseconds.
    pub slot_ms_total: f64,
    /// Sequences that have ended.
    pub closed_total: u64,
    /// Number of preemptions.
    pub preemptions_total: u64,
    /// Requests refused because there was no room or no time.
    pub refused_total: u64,
    /// Requests whose deadline passed while they waited.
    pub expired_total: u64,
    /// Tokens proposed.
    pub proposed_total: u64,
    /// Of these, tokens that the model confirmed.
    pub accepted_total: u64,
}

impl SchedulerStats {
    /// Returns the sum of both. Times and shares are the larger ones; sizes of passes are those of `self`.
    #[must_use]
    pub fn beside(self, other: SchedulerStats) -> SchedulerStats {
        SchedulerStats {
            running: self.running + other.running,
            slots: self.slots + other.slots,
            waiting: self.waiting + other.waiting,
            queue: self.queue + other.queue,
            parked: self.parked + other.parked,
            held: self.held + other.held,
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
            proposed_total: self.proposed_total + other.proposed_total,
            accepted_total: self.accepted_total + other.accepted_total,
        }
    }
}
