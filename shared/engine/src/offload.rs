//! Pipelined offloading: a GPU computes layers whose weights do not all fit into its memory.
//!
//! The scheme is PIPO's (sections 3.1 to 3.3), with smaller units ([`units`]). Some stay in the GPU's memory
//! ([`placement`]). The others are loaded for each pass into slots of memory ([`slots`]). Loads of the next
//! ones run while a unit is computed ([`window`]). A few threads, bound to no task ([`loader`]), take blocks
//! of a unit ([`blocks`]). They read the mapped file, or past the page cache if the model does not fit into
//! the host's memory either. Of a mixture only the chosen experts are loaded, and those used most stay. Keys
//! and values of some layers may be in the host's memory ([`kv`]), also packed to fewer bits ([`opened`]).
//!
//! What always holds: no bit of a result depends on what stays, on the pipeline, on blocks or on threads.

mod blocks;
#[cfg(test)]
mod faults;
mod kv;
mod loader;
mod opened;
mod placement;
mod slots;
mod units;
mod window;

use std::io;
use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use baton_kernels_gpu::GpuError;

use crate::weights::WeightError;

pub(crate) use kv::{HostKv, HostKvOptions, HostLayer};
pub(crate) use loader::Loader;
pub(crate) use placement::{KvSizes, Placement};
pub(crate) use window::{Offloaded, Planned};

/// Why layers cannot be offloaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OffloadError {
    /// There is no room for what weights are loaded into.
    #[error(
        "weights, keys and values need {need} bytes of the GPU's memory at least, and {room} are free; lower the \
         context"
    )]
    NoRoom { need: u64, room: u64 },
    /// The host has no memory for keys and values.
    #[error(
        "keys and values need {bytes} bytes of memory: {err}; lower the context, or keep them on the GPU"
    )]
    HostMemory {
        bytes: usize,
        #[source]
        err: io::Error,
    },
    /// The model's file cannot be opened again.
    #[error("the model's file cannot be opened for reading past the page cache: {0}")]
    Open(#[source] io::Error),
    /// The system cannot start threads.
    #[error("threads that load weights cannot be started: {0}")]
    Threads(#[source] io::Error),
    /// The model's parts cannot be listed.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// The GPU failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

/// How loads and computation follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pipeline {
    /// [`Self::Performance`] if its slots fit into the GPU's memory, else [`Self::MemoryEfficient`] (PIPO,
    /// Eq. 1).
    #[default]
    Automatic,
    /// The matrices of about a layer are on their way, or used.
    Performance,
    /// One is on its way while one is used.
    MemoryEfficient,
    /// Each is loaded when it is needed, for comparisons.
    Synchronous,
}

impl Pipeline {
    /// The pipelines that a user may want.
    pub const WANTED: [Self; 3] = [Self::Automatic, Self::Performance, Self::MemoryEfficient];

    /// Returns its name, as options write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Automatic => "auto",
            Self::Performance => "performance",
            Self::MemoryEfficient => "memory-efficient",
            Self::Synchronous => "synchronous",
        }
    }

    /// Returns how many matrices are in memory that are loaded for each pass: in slots for any, and in slots
    /// for small ones. Keys of a few heads are small, for example. In slots for any matrix they would be a
    /// small part of the bytes that are to be on their way.
    const fn slots(self, has_small: bool) -> [u64; 2] {
        match self {
            Self::Automatic | Self::Performance if has_small => [3, 4],
            Self::Automatic | Self::Performance => [4, 0],
            Self::MemoryEfficient => [2, 0],
            Self::Synchronous => [1, 0],
        }
    }

    /// Returns of how many layers keys and values are in the GPU's memory that are loaded for each pass: one
    /// is used while one is loaded and one is saved. With two slots a load waits for the save before it.
    fn kv_slots(self) -> u64 {
        match self {
            Self::Automatic | Self::Performance => 3,
            Self::MemoryEfficient => 2,
            Self::Synchronous => 1,
        }
    }

    /// Returns how many of those layers are used, or loaded to be used.
    fn kv_wanted(self) -> usize {
        match self {
            Self::Automatic | Self::Performance | Self::MemoryEfficient => 2,
            Self::Synchronous => 1,
        }
    }
}

/// Where the keys and values of layers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvHome {
    /// In the GPU's memory, or in the host's for so many layers that fewer bytes move.
    #[default]
    Automatic,
    /// In the GPU's memory.
    Gpu,
    /// In the host's memory. They are loaded for each pass, one layer ahead, and new ones are saved.
    Host,
}

impl KvHome {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Automatic, Self::Gpu, Self::Host];

    /// Returns its name, as options write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Automatic => "auto",
            Self::Gpu => "gpu",
            Self::Host => "memory",
        }
    }
}

/// How layers are offloaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offload {
    /// How loads and computation follow each other.
    pub pipeline: Pipeline,
    /// Threads that load.
    pub threads: NonZeroUsize,
    /// Bytes of a block, which one thread loads at once.
    pub block_bytes: NonZeroUsize,
    /// The most bytes of weights that stay in the GPU's memory; `None` means all that fit.
    pub resident_bytes: Option<u64>,
    /// Where keys and values are.
    pub kv: KvHome,
    /// Measured rates, by which the fastest placement is chosen. Without them it is the one that moves the
    /// fewest bytes.
    pub rates: Option<MoveRates>,
}

/// Measured rates in bytes per second, and what the GPU does at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveRates {
    /// Copies from the host's memory to the GPU's.
    pub to_gpu: NonZeroU64,
    /// Reads of weights by the GPU's products.
    pub gpu: NonZeroU64,
    /// Reads of weights by the CPU's products.
    pub cpu: NonZeroU64,
    /// Reads from the disk.
    pub disk: NonZeroU64,
    /// Whether the GPU copies while it computes; if not, it does the two in turn.
    pub loads_beside: bool,
}

impl Default for Offload {
    /// Three threads as in PIPO, section 3.2. Blocks of 8 MiB: each thread has one under way.
    fn default() -> Self {
        Self {
            pipeline: Pipeline::default(),
            threads: NonZeroUsize::new(3).expect("3 is not 0"),
            block_bytes: NonZeroUsize::new(8 << 20).expect("8 MiB are not 0"),
            resident_bytes: None,
            kv: KvHome::default(),
            rates: None,
        }
    }
}

/// What offloading did so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OffloadStats {
    /// The pipeline; never [`Pipeline::Automatic`].
    pub pipeline: Pipeline,
    /// Bytes of all weights of the GPU's layers, without experts.
    pub weight_bytes: u64,
    /// Bytes of those that stay.
    pub resident_bytes: u64,
    /// Bytes of the memory that the others are loaded into, with that of experts.
    pub slot_bytes: u64,
    /// Experts that stay at most.
    pub expert_slots: usize,
    /// Bytes of the memory of one of them.
    pub expert_slot_bytes: u64,
    /// Bytes that were loaded.
    pub loaded_bytes: u64,
    /// Bytes among them that were read from the disk.
    pub read_bytes: u64,
    /// Bytes of experts among them.
    pub expert_bytes: u64,
    /// Experts that were needed, and were in memory already.
    pub expert_hits: u64,
    /// Experts that were loaded.
    pub expert_loads: u64,
    /// Bytes of keys and values that stay in the GPU's memory.
    pub kv_resident_bytes: u64,
    /// Bytes of keys and values in the host's memory, if the whole context is used.
    pub kv_host_bytes: u64,
    /// Bytes of the GPU's memory that those are loaded into, and opened in if they are packed.
    pub kv_slot_bytes: u64,
    /// Bytes of keys and values that were loaded.
    pub kv_loaded_bytes: u64,
    /// Bytes of keys and values that were saved.
    pub kv_saved_bytes: u64,
    /// Time that passes waited until threads had handed their blocks over.
    pub waited: Duration,
}
