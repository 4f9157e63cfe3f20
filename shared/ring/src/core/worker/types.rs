//! What a worker's core hears and what it says.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use crate::core::{DeviceId, Digest, DiskId, Epoch, Give, LinkEffect, LinkEvent, LinkId, Node, Note, WorkId};
use crate::wire::frame::{Configure, Hello, Step};

/// How a worker is set up.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerSetup {
    /// Where this device can be reached, and its key.
    pub own: Node,
    /// How it introduces itself. A worker without a profile only relays.
    pub hello: Hello,
    /// How long opening a link or an answer of another device may take.
    pub patience: Duration,
    /// How long a head may be silent before it counts as gone.
    pub silence: Duration,
}

/// Numbers that the host counts. Those of links are sums over the present part's ring links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meters {
    /// Bytes received from the device before.
    pub bytes_in: u64,
    /// Bytes sent to the next device.
    pub bytes_out: u64,
    /// Microseconds of sending.
    pub send_us: u64,
    /// Frames for the next device that wait, or are being sent.
    pub unsent: u64,
    /// Bytes that a model may use on this device; 0 if not known. The host looks every few seconds.
    pub memory_bytes: u64,
}

/// What happened to a worker.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Something happened to a link.
    Link(LinkEvent),
    /// One frame of a [`Give`] was sent over this link.
    Gave(LinkId),
    /// The engine has done a work.
    Computed {
        /// Its number.
        work: WorkId,
        /// The result.
        done: WorkerDone,
        /// How long the engine took.
        took: Duration,
    },
    /// The disk reports about a work.
    Disk(DiskId, DiskEvent),
    /// Time has passed: at the latest when [`Effect::WakeAt`] said.
    Tick(Meters),
    /// The program ends.
    End,
}

/// What a worker does.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Do this with a link.
    Link(LinkEffect),
    /// Send pieces over a link.
    Give(LinkId, Give),
    /// Let the engine work. At most one work is under way; [`Event::Computed`] of the same number follows,
    /// whatever happens.
    Compute(WorkId, WorkerWork),
    /// End the engine's work after its present layer, with [`WorkerDone::Stopped`]. It may still end
    /// otherwise.
    Interrupt,
    /// Let the disk work. Works are done one after the other. The last event of a work is not
    /// [`DiskEvent::Progress`], and it follows whatever happens.
    Disk(DiskId, DiskWork),
    /// End this work of the disk, with [`DiskEvent::Aborted`]. It may still end otherwise.
    Abort(DiskId),
    /// Tell people.
    Tell(WorkerNews),
    /// A remark for the log.
    Note(Note),
    /// A large frame that nobody wants: the host frees it after it has let go of the core.
    Discard(Box<Step>),
    /// Always last: when [`Event::Tick`] must come at the latest; none if nothing depends on time.
    WakeAt(Option<Duration>),
}

/// A work for the engine.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkerWork {
    /// Opens the model if needed, checks layers and width, sets the amount that is read ahead, and makes an
    /// engine without sequences.
    Begin {
        /// The model's file.
        file: PathBuf,
        /// The part.
        configure: Box<Configure>,
        /// The part's own layers, ascending.
        layers: Vec<usize>,
        /// Whether the model that is open is the right one, so that only the engine is made anew.
        same: bool,
    },
    /// Applies the step's operations, then runs these layers (none if empty) over its hidden states.
    Pass {
        /// The step.
        step: Box<Step>,
        /// Layers of this device.
        layers: Range<usize>,
    },
    /// Drops engine and model.
    Forget,
}

/// The result of a work of the engine. Texts are messages for people.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkerDone {
    /// [`WorkerWork::Begin`] is done.
    Begun,
    /// [`WorkerWork::Pass`] is done. The step has the new hidden states; its other fields are as they were.
    Passed(Box<Step>),
    /// [`WorkerWork::Forget`] is done.
    Forgotten,
    /// The work was interrupted.
    Stopped,
    /// A prefix has another number of tokens here than on the head.
    Gains {
        /// The head's number.
        want: u64,
        /// This device's number.
        found: u64,
    },
    /// The engine does not take an operation of the step, which the head's engine took.
    Refused(String),
    /// The engine failed.
    Engine(String),
    /// The engine's program code panicked. Engine and model were dropped.
    Panicked(String),
    /// The weights cannot be used.
    Weights(String),
}

/// A part of a model's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartOf {
    /// Names and positions of the tensors; it must be correct before layers can be found.
    Header,
    /// What these layers need.
    Layers(Vec<usize>),
}

/// A work for the disk. Pieces are of the model that was looked for last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskWork {
    /// Reads and hashes what is here of a part of a model. With [`PartOf::Header`], whole files of the
    /// model are looked at first; in these, the header and all of `layers` must hash right.
    Look {
        /// The model.
        model: Digest,
        /// The part.
        part: PartOf,
        /// All layers that are wanted in the end.
        layers: Vec<usize>,
    },
    /// Keeps the list of the model's pieces.
    Keep {
        /// The model that it must be of.
        model: Digest,
        /// Its bytes, as they came.
        list: Vec<u8>,
    },
    /// Checks a piece's hash and writes it.
    Put {
        /// Its number.
        index: u32,
        /// Its bytes.
        bytes: Vec<u8>,
        /// Bytes that are still missing, this piece included; for the message of a full disk.
        missing: u64,
    },
    /// Brings the pieces that were written last to the disk.
    Sync {
        /// Bytes that are still missing; for the message of a full disk.
        missing: u64,
    },
    /// Forgets which pieces were read and found correct in this run of the program.
    ForgetChecked,
}

/// What a work of the disk gives. Texts are messages for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskEvent {
    /// [`DiskWork::Look`] goes on reading and hashing.
    Progress {
        /// Bytes that are done.
        done: u64,
        /// All bytes of this work.
        total: u64,
    },
    /// [`DiskWork::Look`]: the list of the model's pieces is not here.
    NoList,
    /// [`DiskWork::Look`]: a whole file of the model is here, and everything that is wanted hashes right.
    Whole(PathBuf),
    /// [`DiskWork::Look`]: what the part lacks.
    Lacks {
        /// The pieces with their bytes, ascending.
        pieces: Vec<(u32, u64)>,
        /// The file that they belong to.
        path: PathBuf,
    },
    /// The work is done.
    Done,
    /// [`DiskWork::Put`]: this piece has other bytes than the list says.
    Forged(u32),
    /// The work failed: the disk, or with [`DiskWork::Keep`] a list of another model.
    Failed(String),
    /// The work was aborted.
    Aborted,
}

/// What people are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerNews {
    /// A head has connected.
    Head {
        /// The head.
        head: DeviceId,
    },
    /// Weights that are present are read and hashed before they are used.
    Checking {
        /// Bytes read so far.
        done: u64,
        /// Bytes to read.
        total: u64,
    },
    /// Missing weights are being fetched.
    Fetching {
        /// Bytes that have arrived.
        done: u64,
        /// Bytes that were missing.
        total: u64,
    },
    /// It serves this epoch.
    Ready {
        /// The epoch.
        epoch: Epoch,
        /// Its place in the ring.
        place: usize,
        /// Its layers.
        layers: Vec<usize>,
    },
    /// It cannot go on in this epoch, and waits for the next.
    Failed {
        /// The epoch.
        epoch: Epoch,
        /// The reason.
        words: String,
    },
    /// The head is gone.
    HeadGone {
        /// The head.
        head: DeviceId,
    },
}
