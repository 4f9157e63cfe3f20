//! What an engine does if its GPU fails, or has too little room: it goes on with fewer layers, or without it.

use baton_kernels_gpu::GpuError;

use super::making::Making;
use super::{GpuLayers, GpuLoss};
use crate::adapter::Adapter;
use crate::backend::SeqSpan;
use crate::engine::segments::{End, Lanes, StepInput};
use crate::engine::{Engine, EngineError, StepControl, StepError, StepSeq, adapted, files_are_intact};
use crate::kv::pool::BlockId;
use crate::kv::{BLOCK_TOKENS, KvError, SeqId};

/// Tokens that are computed again in one pass.
const PASS_TOKENS: usize = 256;

impl Engine {
    /// Makes the lane of the GPU anew, and empties the host's cache. The old lane's memory is given back
    /// before. After an error the CPU computes all layers.
    fn make_lane(&mut self) -> Result<(), EngineError> {
        self.gpu = None;
        let mut made = Ok(None);
        if let Some(gpu) = &self.gpu_use {
            let making = Making {
                model: &self.model,
                gpu,
                layers: &self.layers,
                format: self.host.kv.format(),
                kv: self.host.kv.of_model(),
                window: self.window,
                n_blocks: self.table.kv_tokens() / BLOCK_TOKENS,
                step: self.largest_step,
                adapters: &self.adapters,
            };
            made = making.lane(&mut self.gpu_limits);
        }
        let result = made.map(|lane| self.gpu = lane);
        self.host.kv = self.host.kv.emptied(&self.host_layers());
        result
    }

    /// Shares the layers out anew: the GPU computes these. If it fails at that or refuses them, the CPU takes
    /// all.
    pub(in crate::engine) fn share_out(&mut self, gpu_layers: GpuLayers) {
        if let Some(gpu) = &mut self.gpu_use {
            gpu.layers = gpu_layers;
        }
        self.gpu_limits.begin();
        if let Err(err) = self.make_lane() {
            self.tell(&match err {
                EngineError::Gpu(fault) if !fault.is_full() => GpuLoss::Failed(fault),
                err => GpuLoss::Refused { reason: err.to_string() },
            });
        }
        self.lost.clear();
    }

    /// Tells the engine's owner; after a failure the GPU is not used any more.
    fn tell(&mut self, loss: &GpuLoss) {
        if let Some(gpu) = &self.gpu_use {
            (gpu.on_loss)(loss);
        }
        if matches!(loss, GpuLoss::Failed(_)) {
            self.gpu_use = None;
        }
    }

    /// Counts every block as lost, and tells weights that do not fit into memory who computes what.
    fn lose_blocks(&mut self) {
        self.lost = vec![true; self.table.kv_tokens() / BLOCK_TOKENS];
        let shared = self.share_weights();
        debug_assert!(shared.is_ok(), "an engine has only layers of its model, each once");
    }

    /// Goes on if `err` is a fault of the GPU: with fewer layers on it if it had no room, else without it.
    /// Every block is lost. Returns whether it was.
    pub(in crate::engine) fn leave_gpu(&mut self, err: &StepError) -> bool {
        let Some(fault) = err.gpu_fault().filter(|_| self.gpu.is_some()) else { return false };
        let layers = self.gpu_layers().len();
        let loss = if self.has_less(fault, layers) {
            GpuLoss::Full { fault: fault.clone(), layers: self.gpu_layers().len() }
        } else {
            self.gpu = None;
            self.host.kv = self.host.kv.emptied(&self.layers);
            GpuLoss::Failed(fault.clone())
        };
        self.lose_blocks();
        self.tell(&loss);
        true
    }

    /// Gives the GPU less to keep than with so many layers it had no room for. Returns whether it has
    /// something.
    fn has_less(&mut self, fault: &GpuError, layers: usize) -> bool {
        // The memory is given back before the fault is forgotten.
        self.gpu = None;
        let recovers = fault.is_full() && self.gpu_use.as_ref().is_some_and(|gpu| gpu.device.recover());
        recovers && self.gpu_limits.learn(fault, layers) && self.make_lane().is_ok() && self.gpu.is_some()
    }

    /// Sets memory of the GPU aside for an adapter that was just added. If there is too little, the GPU gets
    /// fewer layers.
    pub(in crate::engine) fn make_room_for(&mut self, adapter: &Adapter) {
        let bytes = self.gpu_layers().into_iter().map(|layer| adapter.layer_bytes(layer)).sum();
        let Some(left) = self.gpu.as_mut().and_then(|gpu| gpu.left.as_mut()) else { return };
        if let Some(rest) = left.checked_sub(bytes) {
            *left = rest;
            return;
        }
        let loss = match self.make_lane() {
            Ok(()) => GpuLoss::Adapters { layers: self.gpu_layers().len() },
            Err(err) => GpuLoss::Refused { reason: err.to_string() },
        };
        self.lose_blocks();
        self.tell(&loss);
    }

    fn is_lost(&self, block: BlockId) -> bool {
        self.lost.get(block.0 as usize).copied().unwrap_or(false)
    }

    /// Counts a block as written.
    pub(in crate::engine) fn found(&mut self, block: BlockId) {
        if let Some(lost) = self.lost.get_mut(block.0 as usize) {
            *lost = false;
        }
    }

    /// Returns the first token of the sequence whose keys and values are lost.
    pub(in crate::engine) fn first_lost(&self, seq: SeqId) -> Result<Option<usize>, KvError> {
        let at = self.table.blocks(seq)?.iter().position(|block| self.is_lost(*block));
        Ok(at.map(|at| at * BLOCK_TOKENS))
    }

    /// Computes lost keys and values of the batch's sequences again.
    pub(in crate::engine) fn restore(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<(), StepError> {
        if self.lost.is_empty() {
            return Ok(());
        }
        for entry in batch {
            let len = self.table.len(entry.seq)?;
            while let Some(start) = self.first_lost(entry.seq)?.filter(|start| *start < len) {
                if self.table.evicted(entry.seq)? > 0 {
                    return Err(StepError::Lost(entry.seq));
                }
                let n = PASS_TOKENS.min(len - start);
                self.compute_again(entry.seq, start, n, control)?;
                let blocks = self.table.blocks(entry.seq)?.to_vec();
                for block in &blocks[start / BLOCK_TOKENS..(start + n).div_ceil(BLOCK_TOKENS)] {
                    self.found(*block);
                }
            }
        }
        Ok(())
    }

    fn compute_again(
        &mut self,
        seq: SeqId,
        start: usize,
        n: usize,
        control: &mut dyn StepControl,
    ) -> Result<(), StepError> {
        let Self { model, host, gpu, window, table, adapters, .. } = self;
        let blocks = table.blocks(seq)?.to_vec();
        let spans = [SeqSpan { rows: 0..n, start, evicted: 0, cached: 0, blocks }];
        host.prepare(&[], &spans);
        if let Some(gpu) = gpu {
            gpu.lane.prepare(&[], &spans);
        }
        let input = StepInput {
            window: *window,
            spans: &spans,
            moves: &[],
            ids: &table.ids(seq)?[start..start + n],
            captures: &[None],
            wanted: &std::array::from_fn::<_, 1, _>(|_| n..n),
        };
        let own = || adapted(table, adapters, std::iter::once((seq, 0..n)));
        let layers = (0..model.config().n_layers, End::Logits);
        Lanes { model, host, gpu: gpu.as_mut() }.run(&input, &own, None, layers, &mut Again(control))?;
        files_are_intact(model, adapters)?;
        Ok(())
    }
}

/// Hears cancellation, and reports no layer as done.
pub(in crate::engine) struct Again<'a>(pub(in crate::engine) &'a mut dyn StepControl);

impl StepControl for Again<'_> {
    fn after_layer(&mut self, _done: usize, total: usize) -> std::ops::ControlFlow<()> {
        self.0.after_layer(0, total)
    }
}
