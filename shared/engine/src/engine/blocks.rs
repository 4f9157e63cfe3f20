//! Whole blocks of keys and values that leave the engine and come back, bit for bit.
//!
//! What computed them decides their bits, so they fit only an engine of the same [`Engine::block_kind`]
//! over the same model, for the same tokens behind the same prefix. That is for the caller to know. Always:
//! what is put into a sequence can be found by its prefix as if it had been computed.

use super::Engine;
use super::gpu::GpuLane;
use crate::kv::{BLOCK_TOKENS, KvError, SeqId};
use crate::tokenizer::TokenId;

/// Counts changes of the forward pass that change bits of keys and values.
const REVISION: u32 = 1;

/// Why blocks cannot leave or enter a sequence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The engine's blocks do not hold all that a sequence needs.
    #[error("blocks of this engine cannot be kept: {reason}")]
    Kind {
        /// What is missing.
        reason: &'static str,
    },
    /// The sequence has no such whole block with all its tokens.
    #[error("the sequence has no whole block {index}")]
    NoBlock {
        /// The index.
        index: usize,
    },
    /// The sequence ends inside a block, or its keys and values were evicted.
    #[error("a sequence of {tokens} tokens cannot take whole blocks")]
    Unaligned {
        /// Its tokens.
        tokens: usize,
    },
    /// There are as many bytes as no block of this engine has, or tokens for no whole block.
    #[error("{bytes} bytes for {tokens} tokens, must be {want} bytes for each {BLOCK_TOKENS}")]
    Bytes {
        /// Bytes of a block.
        bytes: usize,
        /// Tokens.
        tokens: usize,
        /// Bytes that a block of this engine has.
        want: usize,
    },
    /// There is no room, or no such sequence.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// The GPU failed.
    #[error("read keys and values from the GPU")]
    Gpu(#[from] baton_kernels_gpu::GpuError),
}

impl Engine {
    /// Returns what decides the bits of a block beside model, adapter and tokens.
    ///
    /// # Errors
    /// [`BlockError::Kind`] if blocks of this engine do not hold all that a sequence needs.
    pub fn block_kind(&self) -> Result<String, BlockError> {
        let config = self.model.config();
        let refused = |reason| Err(BlockError::Kind { reason });
        if config.recurrent.is_some() {
            return refused("the model has recurrent layers, whose states are not in them");
        }
        if self.layers.len() < config.n_layers {
            return refused("the engine computes only some of the layers");
        }
        let gpu = match &self.gpu {
            None => "none".to_owned(),
            Some(gpu) if !gpu.lane.kv.is_resident() => {
                return refused("keys and values of some layers are loaded to the GPU for each pass");
            }
            Some(gpu) => {
                let facts = gpu.lane.backend.device().facts();
                format!("{} {:?}", facts.name, self.gpu_layers())
            }
        };
        Ok(format!(
            "revision {REVISION} of {}; {} tokens of {} on {}; window {:?}; gpu {gpu}",
            env!("CARGO_PKG_VERSION"),
            BLOCK_TOKENS,
            self.host.kv.format(),
            std::env::consts::ARCH,
            self.window,
        ))
    }

    /// Returns the bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.host.kv.block_bytes() + self.gpu.as_ref().map_or(0, |gpu| gpu.lane.kv.block_bytes())
    }

    /// Returns the keys and values of the whole block at `index` of the sequence.
    ///
    /// # Errors
    /// [`BlockError`] if there is no such block, or blocks cannot be kept.
    pub fn block(&self, seq: SeqId, index: usize) -> Result<Vec<u8>, BlockError> {
        self.block_kind()?;
        let tokens = self.table.len(seq)?;
        let lost = self.first_lost(seq)?.unwrap_or(usize::MAX);
        let end = (index + 1) * BLOCK_TOKENS;
        if end > tokens || end > lost || self.table.is_evicted(seq)? || self.table.is_open(seq) {
            return Err(BlockError::NoBlock { index });
        }
        let id = self.table.blocks(seq)?[index];
        let mut bytes = Vec::with_capacity(self.block_bytes());
        self.host.kv.append_block(id, &mut bytes);
        if let Some(GpuLane { lane, .. }) = &self.gpu {
            lane.kv.append_block(&**lane.backend.device(), id, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// Appends tokens to the sequence whose keys and values are known: `blocks` as [`Self::block`] gave them,
    /// for [`BLOCK_TOKENS`] of `ids` each.
    ///
    /// # Errors
    /// [`BlockError`]; nothing has changed then.
    pub fn append_blocks(
        &mut self,
        seq: SeqId,
        ids: &[TokenId],
        blocks: &[Vec<u8>],
    ) -> Result<(), BlockError> {
        self.block_kind()?;
        let (tokens, want) = (self.table.len(seq)?, self.block_bytes());
        if !tokens.is_multiple_of(BLOCK_TOKENS) || self.table.is_evicted(seq)? {
            return Err(BlockError::Unaligned { tokens });
        }
        let wrong = blocks.iter().map(Vec::len).find(|bytes| *bytes != want);
        if wrong.is_some() || ids.len() != blocks.len() * BLOCK_TOKENS {
            return Err(BlockError::Bytes { bytes: wrong.unwrap_or(want), tokens: ids.len(), want });
        }
        // A sequence that ends with a whole block needs no copy.
        self.table.reserve(&[(seq, ids.len())])?;
        let first = tokens / BLOCK_TOKENS;
        let new = self.table.blocks(seq)?[first..].to_vec();
        for (id, bytes) in new.iter().zip(blocks) {
            let mut rest = &bytes[..];
            self.host.kv.take_block(*id, &mut rest);
            if let Some(GpuLane { lane, .. }) = &self.gpu {
                lane.kv.take_block(&**lane.backend.device(), *id, &mut rest);
            }
            self.found(*id);
        }
        self.table.commit(seq, ids)?;
        Ok(())
    }
}
