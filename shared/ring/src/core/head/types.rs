//! What the head's core is told, and what it asks for.
//!
//! Only data. Nothing here names an engine, a socket or a clock; [`super::HeadCore`] says what the values
//! mean in time.

use std::ops::Range;
use std::time::Duration;

use baton_engine::engine::KvFormat;
use baton_engine::tokenizer::TokenId;
use baton_engine::{SlidingWindow, Wanted};

use crate::core::layout::LayoutError;
use crate::core::ledger::LedgerError;
use crate::core::ways::Ways;
use crate::core::{Digest, Give, LinkEffect, LinkEvent, LinkId, Node, Note, SeqNo, States, StepNo, WorkId};
use crate::wire::frame::{Activations, Hello, Operation, Step};

/// What the devices' caches have in common. `Configure` carries it to the workers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheSetup {
    /// Tokens of the KV cache.
    pub kv_tokens: usize,
    /// The format of keys and values.
    pub kv_format: KvFormat,
    /// Percent of the cache for prefixes that no present sequence uses.
    pub prefix_percent: u8,
    /// Sliding-window attention in place of the model's own.
    pub window: Option<SlidingWindow>,
}

/// What a head's core must know from the beginning.
#[derive(Debug, Clone)]
pub struct HeadSetup {
    /// This device's key and address.
    pub own: Node,
    /// Its name in plans.
    pub name: String,
    /// Layers of the model.
    pub n_layers: usize,
    /// Values of a hidden state.
    pub width: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// The cache of every device.
    pub engine: CacheSetup,
    /// The format of hidden states between devices.
    pub activations: Activations,
    /// Whether the other devices read weights ahead of computing with them.
    pub reads_ahead: bool,
    /// Least and most rows of a chunk.
    pub chunk_rows: (usize, usize),
    /// Time between heartbeats; a device that misses three is lost.
    pub heartbeat: Duration,
    /// How long a frame may take to the next device.
    pub hop: Duration,
    /// How long the ring may make no progress within a step, in addition to what the plan predicts.
    pub floor: Duration,
    /// Least time that a token of one sequence counts as, whatever is predicted.
    pub token: Duration,
    /// How long devices may take to connect, without the time for fetching weights.
    pub patience: Duration,
    /// Time between two tokens that test whether every device computes, while no answer runs.
    pub health: Duration,
    /// What is known of the network paths between devices.
    pub ways: Ways,
}

/// What the core has to know of the model's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelFacts {
    /// SHA-256 of the list of its pieces.
    pub digest: Digest,
    /// Bytes of the file.
    pub file_len: u64,
    /// Bytes of its header.
    pub header_bytes: u64,
}

/// The sequences of a step, each at most once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    /// In the order of the caller's slice.
    pub seqs: Vec<BatchSeq>,
}

/// One sequence's part of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchSeq {
    /// The sequence.
    pub seq: SeqNo,
    /// Its new tokens.
    pub ids: Vec<TokenId>,
    /// For which of them logits are wanted.
    pub wanted: Wanted,
}

/// What the head's own device has left.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Own {
    /// Tokens for which the engine's cache has free blocks.
    pub free_tokens: usize,
    /// Bytes that a model may use, including what it uses already; `None` if they are not known.
    pub memory_bytes: Option<f64>,
}

/// What a plan is made for. The head is not among the workers.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanFor {
    /// The devices in the order in which they came.
    pub workers: Vec<Hello>,
    /// What is known of the paths between all devices, by name.
    pub network: baton_plan::Network,
}

/// How long computing by a plan should take. Zero: not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pace {
    /// A token of one sequence.
    pub token: Duration,
    /// Reading a device's weights for the first time, on the device that takes longest.
    pub first: Duration,
}

/// A plan, and how fast it should be.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// The plan.
    pub plan: baton_plan::Plan,
    /// Its times.
    pub pace: Pace,
}

/// What a device of the ring has shown of itself, for the host's judgement whether the plan still fits.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown {
    /// Its name.
    pub name: String,
    /// Seconds that a token took on it lately; `None` if it computed too few.
    pub token_s: Option<f64>,
    /// Bytes that a model may use on it now; `None` if it does not report them.
    pub memory_bytes: Option<f64>,
}

/// Something happened.
#[derive(Debug)]
pub enum Event {
    /// The caller: reach these devices and form the first ring.
    Connect(Vec<Node>),
    /// The caller: run a step.
    Step(Batch),
    /// The caller: change a sequence.
    Sequence(SeqAsk),
    /// The caller: an answer is about to begin.
    Between(Own),
    /// The caller: nothing is to be answered.
    Idle(Own),
    /// The caller: close all links. No `Done` follows, and no later event is looked at.
    End,
    /// The caller does not want its step any more. May come at any time; ignored if no step is under way.
    Cancel,
    /// The engine has done the work of this number.
    Computed {
        /// The number.
        work: WorkId,
        /// Its outcome.
        done: HeadDone,
        /// How long the engine itself took.
        took: Duration,
    },
    /// The answer to [`Effect::Plan`]. The error says why there is no plan.
    Planned(Result<Planned, String>),
    /// The answer to [`Effect::Draft`].
    Drafted(Result<baton_plan::Plan, String>),
    /// The answer to [`Effect::Judge`]: whether to plan anew.
    Judged(bool),
    /// A link.
    Link(LinkEvent),
    /// One piece, or one answer, of an [`Effect::Give`] was sent.
    Gave(LinkId),
    /// Another thread: a device may take part.
    Join(Node),
    /// Time has passed.
    Tick,
}

/// What a caller wants of the sequences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeqAsk {
    /// Take an adapter in. Only a head alone may; from then on it stays alone. -> [`Outputs::None`]
    AddAdapter,
    /// Create an empty sequence, with an adapter or without. -> [`Outputs::Seq`]
    Create {
        /// Whether it has an adapter.
        adapter: bool,
    },
    /// Create a sequence with the first tokens of another. -> [`Outputs::Seq`]
    Fork {
        /// The other one.
        from: SeqNo,
        /// How many tokens.
        tokens: usize,
    },
    /// Shorten a sequence. -> [`Outputs::None`]
    Truncate {
        /// The sequence.
        seq: SeqNo,
        /// Tokens that stay.
        tokens: usize,
    },
    /// Release a sequence; one that is not known is ignored. -> [`Outputs::None`]
    Release(SeqNo),
    /// Add a known prefix. -> [`Outputs::Gained`]
    Reuse {
        /// The sequence.
        seq: SeqNo,
        /// The tokens that shall follow its present ones.
        ids: Vec<TokenId>,
    },
}

/// Something to be done. Effects are carried out in order.
#[derive(Debug)]
pub enum Effect {
    /// On a link.
    Link(LinkEffect),
    /// The host answers on this link by itself; [`Event::Gave`] follows each frame.
    Give(LinkId, Give),
    /// Work of the engine, on the caller's thread. At most one is under way. [`Event::Computed`] of the same
    /// number follows, whatever happens.
    Compute(WorkId, HeadWork),
    /// Make a plan that will be run.
    Plan(PlanFor),
    /// Make a plan that is not run yet.
    Draft(PlanFor),
    /// Judge whether the plan still fits these devices; the head is the first of them.
    Judge(Vec<Shown>),
    /// What is known of the paths has changed: keep it ([`super::HeadCore::ways`]).
    KeepWays,
    /// A large frame that nobody wants. The host frees it after it has let go of the lock.
    Discard(Box<Step>),
    /// For people.
    Note(Note),
    /// The request is done. No engine work is under way; no other effect of this request follows.
    Done(Result<Outputs, RingFault>),
    /// Always last: when `Tick` must come at the latest; `None` if nothing depends on time.
    WakeAt(Option<Duration>),
}

/// What a request gives. Logits are not here: the host has kept them since the last `Open` or `Whole`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outputs {
    /// Nothing.
    None,
    /// A new sequence.
    Seq(SeqNo),
    /// Tokens that a prefix gave.
    Gained(usize),
}

/// Work of the head's engine.
#[derive(Debug)]
pub enum HeadWork {
    /// Lists the pieces of the model's file. -> `Model` or `Failed`
    ReadModel,
    /// `Create`, `Fork`, `Truncate`, `Release` or `Reuse`; the sequence of a `Create` has the adapter of the
    /// caller's present request, if that names one. -> `Gained` for `Reuse`, `Done` for the others, or
    /// `Refused`
    Sequence(Operation),
    /// Takes the caller's adapter in. -> `Done` or `Refused`
    AddAdapter,
    /// A whole step: the caller's own batch, or one of the core's. Forgets kept logits and keeps those of
    /// this step. -> `Done`, `Refused` or `Cancelled`
    Whole {
        /// The core's own sequence; `None`: the caller's batch.
        replay: Option<BatchSeq>,
    },
    /// Opens a step of this number and forgets kept logits. -> `Done` or `Refused`
    Open {
        /// The number.
        step: StepNo,
        /// The core's own sequence (replay, probe or audit); `None`: the caller's batch.
        replay: Option<BatchSeq>,
    },
    /// Embeds rows of the open step, as they arrive over the ring (`Activations::carried`). -> `States` or
    /// `Refused`
    Embed {
        /// The rows.
        rows: Range<usize>,
    },
    /// Runs layers on rows of the open step. -> `States` (`Done` if logits are kept), `Cancelled` or
    /// `Refused`
    Rows {
        /// The rows.
        rows: Range<usize>,
        /// What enters the first layer.
        from: From,
        /// The layers; may be none.
        layers: Range<usize>,
        /// Whether to compute logits behind them, and to keep those.
        logits: bool,
    },
    /// Runs one layer on rows of a new sequence, in an engine of its own; the result as it arrives over the
    /// ring. -> `States` or `Refused`
    Layer {
        /// The layer.
        layer: usize,
        /// The sequence's tokens, one for each row.
        ids: Vec<TokenId>,
        /// What enters the layer.
        begins: States,
    },
    /// Ends the open step. -> `Done`
    Close {
        /// Whether its tokens are appended; else they are dropped.
        commit: bool,
    },
    /// Changes to these layers (`None`: all). All sequences stay and lose their tokens. -> `Done` or `Failed`
    Reset {
        /// The layers, ascending.
        layers: Option<Vec<usize>>,
        /// Those of them that the head's GPU computes, if it has one; `None`: as many as fit.
        gpu_layers: Option<Vec<usize>>,
        /// Bytes of memory for weights that are read ahead.
        prefetch_bytes: u64,
    },
    /// Reads header, tables and these layers of the model's file, and compares them with the list of its
    /// pieces. -> `Done` or `Rotten`
    CheckFile {
        /// The layers.
        layers: Vec<usize>,
        /// Whether to read also what was found right lately.
        anew: bool,
    },
}

/// What enters the first layer of [`HeadWork::Rows`].
#[derive(Debug)]
pub enum From {
    /// The embedding of the rows' tokens.
    Tokens,
    /// These.
    States(States),
}

/// How work of the head's engine ended.
#[derive(Debug)]
pub enum HeadDone {
    /// It is done.
    Done,
    /// So many tokens were found.
    Gained(usize),
    /// Hidden states.
    States(States),
    /// What was read of the model's file.
    Model(ModelFacts),
    /// The engine refused it; the host has the error.
    Refused,
    /// The caller's control ended it.
    Cancelled,
    /// The model's file has changed.
    Rotten(String),
    /// The head's GPU failed, and what it held is lost. From now on the CPU computes its layers.
    Lost(String),
    /// It failed; the host has the error.
    Failed,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RingFault {
    /// The engine refused the request itself; the host has the error.
    #[error("the engine refuses the request")]
    Refused,
    /// The caller cancelled its step.
    #[error("the step was cancelled")]
    Cancelled,
    /// The engine refused to compute a live sequence again; the host has the error.
    #[error("compute sequences again")]
    Replay,
    /// The head's engine, its weights or its file failed; the host has the error.
    #[error("the head's own engine or file failed")]
    Host,
    /// The sequences are not as the request says.
    #[error(transparent)]
    Sequence(#[from] LedgerError),
    /// Adapters need the whole model on the head.
    #[error("a ring of several devices computes no adapters")]
    Adapters,
    /// The head's own weights are damaged.
    #[error("the head's own model cannot be computed with: {words}")]
    Damaged {
        /// What is wrong.
        words: String,
    },
    /// There is no plan for the remaining devices.
    #[error("no plan for {devices}: {words}")]
    NoPlan {
        /// Their names.
        devices: String,
        /// The reason.
        words: String,
    },
    /// The plan cannot be run.
    #[error("the plan cannot be run")]
    Layout(#[from] LayoutError),
    /// Two devices have the same name.
    #[error("two devices of the ring are called `{name}`")]
    TwoNames {
        /// The name.
        name: String,
    },
    /// The ring broke too often within one step.
    #[error("the ring broke {times} times within one step, the last time: {words}")]
    GaveUp {
        /// How often.
        times: usize,
        /// The last fault.
        words: String,
    },
    /// The ring cannot go on without devices that were lost.
    #[error("the ring lacks {lost}; start what is missing again, the ring takes it in by itself")]
    Missing {
        /// Which devices were lost, and how.
        lost: String,
        /// Why the ring cannot go on without them.
        #[source]
        err: Box<RingFault>,
    },
}
