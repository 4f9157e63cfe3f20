//! What an engine does for models with recurrent layers: their caches, and sequences that are behind.
//!
//! A sequence that was cut or forked may have no state for its length ([`crate::kv::states`]). Its next step
//! takes the tokens since the nearest state through the layers again: a few of them together with the step's
//! own, more of them in passes before it. Callers notice nothing but the time. Attention reads and does not
//! write the keys and values of these tokens.

use baton_kernels_cpu::KvFormat;

use super::gpu::Again;
use super::segments::{End, Lanes, StepInput};
use super::{Engine, StepControl, StepError, StepSeq, adapted, files_are_intact};
use crate::backend::cpu_kv::{CpuKv, LayerKv};
use crate::backend::cpu_states::CpuStates;
use crate::backend::{Backend, SeqSpan};
use crate::config::{Heads, ModelConfig, Recurrent};
use crate::kv::states::StateMoves;
use crate::kv::{KvTable, SeqId};

/// The most tokens that a step takes through the layers again, for each sequence.
const WITH_STEP_MAX: usize = 64;
/// The most tokens of a pass before a step.
const PASS_TOKENS: usize = 256;
/// Bounds of the number of checkpoints.
const CHECKPOINTS: std::ops::RangeInclusive<usize> = 4..=4096;

/// Returns the caches of an engine that computes these layers. Checkpoints of recurrent states take the room
/// that keys and values of the recurrent layers would take. So a model needs no more memory than one of
/// attention alone. A step may fill as many again before older ones go. Besides, each sequence may have two
/// states of its own, and three during a step.
pub(super) fn caches(
    config: &ModelConfig,
    layers: &[usize],
    format: KvFormat,
    table: KvTable,
) -> (KvTable, CpuKv) {
    let own: Vec<usize> = layers.iter().copied().filter(|layer| config.has_attention(*layer)).collect();
    let of_layer = |layer| {
        let Heads { kv, width, .. } = config.heads_at(layer);
        LayerKv { n_kv_heads: kv, d_head: width, source: config.kv_layer(layer) }
    };
    let mut kv = CpuKv::new(format, (0..config.n_layers).map(of_layer).collect(), &own);
    let Some(recurrent) = &config.recurrent else { return (table, kv) };
    kv.states = CpuStates::new(recurrent);
    let token_bytes = config.n_kv_heads * format.token_bytes(config.d_head);
    let max = checkpoints_max(recurrent, token_bytes, table.kv_tokens());
    (table.with_states(max), kv)
}

/// `token_bytes`: of the keys and values of one token in one layer.
fn checkpoints_max(recurrent: &Recurrent, token_bytes: usize, tokens: usize) -> usize {
    let room = token_bytes.saturating_mul(recurrent.count()).saturating_mul(tokens);
    (room / (size_of::<f32>() * recurrent.state_len())).clamp(*CHECKPOINTS.start(), *CHECKPOINTS.end())
}

impl Engine {
    /// Takes sequences that are far behind through the layers again, until a step can take the rest.
    pub(super) fn catch_up(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<(), StepError> {
        for entry in batch {
            while let Some(far @ 1..) = self.table.behind(entry.seq)?.checked_sub(WITH_STEP_MAX) {
                let n = far.min(PASS_TOKENS);
                let moves = self.table.open_behind(entry.seq, n)?;
                let result = self.repeat(entry.seq, n, &moves, control);
                self.table.caught_up(entry.seq, result.is_ok());
                result?;
            }
        }
        Ok(())
    }

    /// Fills the states after the next `n` tokens that the sequence is behind by.
    fn repeat(
        &mut self,
        seq: SeqId,
        n: usize,
        moves: &[StateMoves],
        control: &mut dyn StepControl,
    ) -> Result<(), StepError> {
        let start = self.table.len(seq)? - self.table.behind(seq)?;
        let Self { model, host, gpu, window, table, adapters, .. } = self;
        let blocks = table.blocks(seq)?.to_vec();
        let spans = [SeqSpan { rows: 0..n, start, evicted: 0, cached: n, blocks }];
        host.backend.prepare_states(&mut host.kv, moves);
        let input = StepInput {
            window: *window,
            spans: &spans,
            moves,
            ids: &table.ids(seq)?[start..start + n],
            captures: &[None],
            wanted: &std::array::from_fn::<_, 1, _>(|_| n..n),
        };
        let own = || adapted(table, adapters, std::iter::once((seq, 0..n)));
        let layers = (0..model.config().n_layers, End::Logits);
        let mut again = Again(control);
        Lanes { model, host, gpu: gpu.as_mut() }.run(&input, &own, None, layers, &mut again)?;
        files_are_intact(model, adapters)?;
        Ok(())
    }
}
