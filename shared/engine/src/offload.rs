//! Pipelined offloading: a GPU computes layers whose weights do not all fit into its memory.
//!
//! The scheme is PIPO's (sections 3.1 to 3.3), with smaller units ([`units`]). Some stay in the GPU's memory
//! ([`placement`]). The others are loaded for each pass into slots of memory ([`slots`]). Loads of the next
//! ones run while a unit is computed ([`window`]). A few threads, bound to no task, take blocks of a unit
//! ([`loader`]). They read the mapped file, or past the page cache if the model does not fit into the host's
//! memory either. Of a mixture only the chosen experts are loaded, and those used last stay.
//!
//! What always holds: no bit of a result depends on what stays, on the pipeline, on blocks or on threads.

mod loader;
mod placement;
mod slots;
mod units;
mod window;

use std::io;
use std::num::NonZeroUsize;
use std::time::Duration;

use baton_kernels_gpu::GpuError;

use crate::weights::WeightError;

pub(crate) use window::Offloaded;

/// Why layers cannot be offloaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OffloadError {
    /// There is no room for what weights are loaded into.
    #[error(
        "weights are loaded through {need} bytes of the GPU's memory, and {room} are free; lower the context"
    )]
    NoRoom { need: u64, room: u64 },
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
    /// Three matrices are on their way while one is used: about the memory of a layer.
    #[default]
    Performance,
    /// One is on its way while one is used.
    MemoryEfficient,
    /// Each is loaded when it is needed, for comparisons.
    Synchronous,
}

impl Pipeline {
    /// Returns how many matrices are in memory that are loaded for each pass.
    fn slots(self) -> usize {
        match self {
            Self::Performance => 4,
            Self::MemoryEfficient => 2,
            Self::Synchronous => 1,
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
}

impl Default for Offload {
    /// Three threads as in PIPO, section 3.2. Blocks of 8 MiB: each thread has one under way.
    fn default() -> Self {
        Self {
            pipeline: Pipeline::default(),
            threads: NonZeroUsize::new(3).expect("3 is not 0"),
            block_bytes: NonZeroUsize::new(8 << 20).expect("8 MiB are not 0"),
            resident_bytes: None,
        }
    }
}

/// What offloading did so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OffloadStats {
    /// Bytes of all weights of the GPU's layers, without experts.
    pub weight_bytes: u64,
    /// Bytes of those that stay.
    pub resident_bytes: u64,
    /// Bytes of the memory that the others are loaded into, with that of experts.
    pub slot_bytes: u64,
    /// Experts that stay at most.
    pub expert_slots: usize,
    /// Bytes that were loaded.
    pub loaded_bytes: u64,
    /// Bytes of experts among them.
    pub expert_bytes: u64,
    /// Experts that were needed, and were in memory already.
    pub expert_hits: u64,
    /// Experts that were loaded.
    pub expert_loads: u64,
    /// Time that passes waited until threads had handed their blocks over.
    pub waited: Duration,
}
