//! The batching scheduler: which sequences run in the next engine pass, who waits, who is refused.
//!
//! Continuous batching with chunked prefill: every pass carries one token of each decoding sequence plus at most
//! one chunk of prompt tokens, so that a long prompt never holds up a running answer by more than one chunk. A
//! sequence gives its slot and its KV reservation back in the pass in which it reaches its cap, ends, or is cancelled.
//!
//! Never: reads a clock, touches the engine, a channel or a random source; allocates KV (it only counts tokens).
//! Always: reserved KV <= the budget, running sequences <= the slots, one `Close` per accepted sequence, first come
//! first served at admission (so nobody starves), and the last chunk of a prompt holds its whole scoring window.

mod core;
mod plan;

pub use self::core::SchedulerCore;
pub use self::plan::{StepPlan, StepRow};

/// Names one sequence for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// What the scheduler may use at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Sequences that run at the same time.
    pub slots: usize,
    /// Sequences that may wait behind them; the next one is refused.
    pub queue: usize,
    /// KV tokens that all running sequences may reserve together.
    pub kv_tokens: usize,
    /// Tokens of one KV block: reservations are whole blocks.
    pub kv_block: usize,
    /// Prompt tokens in one pass, over all sequences.
    pub chunk_tokens: usize,
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
    /// Trailing prompt tokens that one pass must hold together, at least 1: the scoring window and what follows it.
    pub tail_tokens: usize,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Somebody asks for a sequence.
    Submit(JobSpec),
    /// Its reader is gone or asked to stop. Unknown ids are ignored: the sequence may have just ended.
    Cancel(JobId),
    /// The engine failed on this sequence alone.
    Fail(JobId),
    /// The engine is idle: admit and plan.
    Turn,
    /// The sequence exists in the engine; `cached` prompt tokens came from the prefix index.
    Opened {
        /// The sequence.
        id: JobId,
        /// Prompt tokens already in its KV cache.
        cached: usize,
    },
    /// The planned pass ran; one outcome for every row that wanted one.
    StepDone(Vec<(JobId, Outcome)>),
    /// The planned pass was broken off: every sequence is as it was before.
    StepUndone,
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
    /// Create the sequence in the engine, look into the prefix index, answer [`Event::Opened`].
    Open(JobId),
    /// Run this pass, then answer [`Event::StepDone`] or [`Event::StepUndone`].
    Run(StepPlan),
    /// The sequence is over: release it in the engine, send its terminal event.
    Close(Closed),
}

/// Why a sequence was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Slots and queue are full.
    Full {
        /// Sequences that wait.
        waiting: usize,
        /// Prompt tokens that must be computed before a new one would start.
        backlog_tokens: usize,
    },
    /// It can never fit into the KV budget.
    TooLarge {
        /// KV tokens that it would reserve.
        need: usize,
        /// The whole budget.
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

/// Where the time of one sequence went, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SlotTimes {
    /// From submit to its slot.
    pub queue_ms: f64,
    /// From its slot to its first token.
    pub prefill_ms: f64,
    /// From its first token to its end.
    pub decode_ms: f64,
    /// The whole time it held a slot.
    pub slot_ms: f64,
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
    /// KV tokens reserved by running sequences.
    pub kv_reserved_tokens: usize,
    /// KV tokens in all.
    pub kv_tokens: usize,
    /// Prompt tokens accepted but not computed yet.
    pub backlog_tokens: usize,
    /// Slot time of all sequences that have ended, in milliseconds.
    pub slot_ms_total: f64,
    /// Sequences that have ended.
    pub closed_total: u64,
}
