//! What the ring asks of the machine that it runs on. The program that uses this package implements it.

use std::error::Error;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use baton_engine::engine::KvFormat;
use baton_engine::{GpuUse, Model};

/// Layers of a model that one engine is to compute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenShare {
    /// The layers whose weights this device's memory holds, in the order in which a token passes them: those
    /// that the CPU computes, or all if a GPU computes all.
    pub layers: Vec<usize>,
    /// Tokens of KV cache.
    pub kv_tokens: usize,
    /// The number format of keys and values.
    pub kv_format: KvFormat,
    /// Whether weights are read ahead of their use.
    pub reads_ahead: bool,
}

/// The machine: its memory, and how a model is opened within it.
pub trait Machine: Debug + Send + Sync {
    /// Returns the bytes that a model may take now, including what this program has taken itself. Returns
    /// `None` if the system does not say.
    fn model_bytes(&self) -> Option<u64>;

    /// Opens these layers of a file for one engine.
    ///
    /// # Errors
    /// If the file cannot be read, or the engine refuses it.
    fn open(&self, path: &Path, share: &OpenShare) -> Result<Arc<Model>, Box<dyn Error + Send + Sync>>;

    /// Returns the GPU that computes the layers which a plan gives it; `None` if there is none, or it has
    /// failed.
    fn gpu(&self) -> Option<GpuUse> {
        None
    }
}
