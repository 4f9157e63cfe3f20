//! A step's way through the layers: stretches on the CPU and on a GPU, and hidden states between them.
//!
//! Each stretch is a pass of its own ([`crate::forward`]) over the backend that computes its layers. Only the
//! hidden states of the rows go from one to the next. Embeddings and logits are computed where the first and
//! the last layer are.

use std::ops::Range;

use super::gpu::GpuLane;
use super::{StepControl, StepError};
use crate::backend::cpu::CpuBackend;
use crate::backend::{Backend, SeqSpan};
use crate::config::{ModelConfig, SlidingWindow};
use crate::forward::{Adapted, Pass, PassInput, logits};
use crate::kv::states::StateMoves;
use crate::kv::{BlockCopy, KvError};
use crate::model::Model;
use crate::sampling::Best;
use crate::scores::{AttentionScores, Capture};
use crate::tokenizer::TokenId;
use crate::weights::{WeightError, WeightSource};

/// A backend with its part of the KV cache.
#[derive(Debug)]
pub(super) struct Lane<B: Backend> {
    pub(super) backend: B,
    pub(super) kv: B::Kv,
}

impl<B: Backend> Lane<B> {
    /// Makes copies of blocks, and room for the blocks of `spans`.
    pub(super) fn prepare(&mut self, copies: &[BlockCopy], spans: &[SeqSpan]) {
        self.backend.prepare(&mut self.kv, copies, spans);
    }
}

/// What a pass reads, whatever computes it.
#[derive(Clone, Copy)]
pub(super) struct StepInput<'a> {
    pub(super) window: Option<SlidingWindow>,
    pub(super) spans: &'a [SeqSpan],
    pub(super) moves: &'a [StateMoves],
    pub(super) ids: &'a [TokenId],
    pub(super) captures: &'a [Option<&'a Capture>],
    pub(super) wanted: &'a [Range<usize>],
}

impl<'a> StepInput<'a> {
    fn with<B: Backend>(
        &self,
        backend: &'a B,
        config: &'a ModelConfig,
        source: &'a dyn WeightSource,
    ) -> PassInput<'a, B> {
        let Self { window, spans, moves, ids, captures, wanted } = *self;
        PassInput { backend, config, window, source, spans, moves, ids, captures, wanted }
    }
}

/// What a step ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Logits of the wanted rows.
    Logits,
    /// The most probable token of each wanted row, or logits if they cost nothing more.
    Best,
    /// Hidden states: of every row, or after the model's last layer of the wanted rows.
    Hidden,
}

/// The result of a run through some layers.
pub(super) struct Computed {
    /// Logits or hidden states, row by row; empty if `best` is not.
    pub(super) values: Vec<f32>,
    /// The most probable token of each wanted row, if they were asked for and found without logits.
    pub(super) best: Vec<Best>,
    pub(super) scores: Vec<Option<AttentionScores>>,
}

/// What computes a step's layers.
pub(super) struct Lanes<'e> {
    pub(super) model: &'e Model,
    pub(super) host: &'e mut Lane<CpuBackend>,
    pub(super) gpu: Option<&'e mut GpuLane>,
}

/// Makes the adapters of a pass, for each stretch anew.
pub(super) type MakeAdapted<'m, 'a> = &'m dyn Fn() -> Result<Adapted<'a>, KvError>;

impl Lanes<'_> {
    /// Runs `layers`, which are at least one. The hidden states before them are `x`; `None` begins with the
    /// embeddings of the ids.
    pub(super) fn run<'a>(
        &mut self,
        input: &StepInput<'a>,
        adapted: MakeAdapted<'_, 'a>,
        x: Option<Vec<f32>>,
        (layers, end): (Range<usize>, End),
        control: &mut dyn StepControl,
    ) -> Result<Computed, StepError> {
        let stretches = stretches(layers.clone(), |layer| self.is_on_gpu(layer));
        let (mut x, mut scores, mut best) = (x, Vec::new(), Vec::new());
        // Logits of the last stretch's backend, or of the CPU after it.
        let gpu_output = self.gpu.as_ref().is_some_and(|gpu| gpu.output);
        let apart = end != End::Hidden && stretches.last().is_some_and(|(on_gpu, _)| *on_gpu != gpu_output);
        for (on_gpu, own) in stretches {
            let is_last = own.end == layers.end && !apart;
            let stretch = Stretch { input, model: self.model, layers: own, end: is_last.then_some(end) };
            let adapted = adapted()?;
            let computed = match &mut self.gpu {
                Some(GpuLane { lane, offloaded, .. }) if on_gpu => {
                    let source: &dyn WeightSource = match offloaded {
                        Some(offloaded) => &**offloaded,
                        None => self.model.mapped_weights(),
                    };
                    stretch.run(lane, source, adapted, x.take(), control)?
                }
                _ => stretch.run(self.host, self.model.weights(), adapted, x.take(), control)?,
            };
            add_scores(&mut scores, computed.scores);
            (x, best) = (Some(computed.values), computed.best);
        }
        let mut values = x.unwrap_or_default();
        if apart {
            let n = input.wanted.iter().map(Range::len).sum();
            let from = (values, n);
            (values, best) = logits_of(self.model, self.host, self.gpu.as_deref(), from, end == End::Best)?;
        }
        Ok(Computed { values, best, scores })
    }

    fn is_on_gpu(&self, layer: usize) -> bool {
        self.gpu.as_ref().is_some_and(|gpu| gpu.holds(layer))
    }
}

/// Returns the logits of so many rows of hidden states after the last layer; or their most probable tokens,
/// if only those are needed and logits cost more.
pub(super) fn logits_of(
    model: &Model,
    host: &Lane<CpuBackend>,
    gpu: Option<&GpuLane>,
    hidden: (Vec<f32>, usize),
    best: bool,
) -> Result<(Vec<f32>, Vec<Best>), WeightError> {
    match gpu {
        Some(gpu) if gpu.output => logits_by(&gpu.lane.backend, model, model.mapped_weights(), hidden, best),
        _ => logits_by(&host.backend, model, model.weights(), hidden, best),
    }
}

fn logits_by<B: Backend>(
    backend: &B,
    model: &Model,
    source: &dyn WeightSource,
    (hidden, n): (Vec<f32>, usize),
    best: bool,
) -> Result<(Vec<f32>, Vec<Best>), WeightError> {
    let x = backend.write(hidden, model.config().d_model);
    logits(backend, model.config(), source, (x, n), best)
}

/// Consecutive layers of one backend.
struct Stretch<'s, 'a> {
    input: &'s StepInput<'a>,
    model: &'s Model,
    layers: Range<usize>,
    /// `None` if another stretch follows.
    end: Option<End>,
}

impl Stretch<'_, '_> {
    fn run<B: Backend>(
        &self,
        Lane { backend, kv }: &mut Lane<B>,
        source: &dyn WeightSource,
        adapted: Adapted<'_>,
        x: Option<Vec<f32>>,
        control: &mut dyn StepControl,
    ) -> Result<Computed, StepError> {
        let config = self.model.config();
        let input = self.input.with(&*backend, config, source);
        let mut pass = match x {
            None => Pass::begin(input, adapted, self.layers.end)?,
            Some(values) => {
                let x = backend.write(values, config.d_model);
                Pass::go_on(input, adapted, x, self.layers.end)
            }
        };
        for layer in self.layers.clone() {
            pass.layer(kv, layer)?;
            let (done, total) = (layer + 1, config.n_layers);
            if control.after_layer(done, total).is_break() {
                return Err(StepError::Cancelled { done, total });
            }
        }
        let (values, best, scores) = match self.end {
            Some(End::Logits) => pass.finish(false)?,
            Some(End::Best) => pass.finish(true)?,
            Some(End::Hidden) | None => pass.hidden()?,
        };
        Ok(Computed { values, best, scores })
    }
}

/// Cuts layers into stretches that are on the GPU, or not.
fn stretches(layers: Range<usize>, is_on_gpu: impl Fn(usize) -> bool) -> Vec<(bool, Range<usize>)> {
    let mut stretches: Vec<(bool, Range<usize>)> = Vec::new();
    for layer in layers {
        let on_gpu = is_on_gpu(layer);
        match stretches.last_mut() {
            Some((same, range)) if *same == on_gpu => range.end = layer + 1,
            _ => stretches.push((on_gpu, layer..layer + 1)),
        }
    }
    stretches
}

/// Adds scores of other layers. Each stretch has those of its own layers, and zeros.
fn add_scores(all: &mut Vec<Option<AttentionScores>>, more: Vec<Option<AttentionScores>>) {
    if all.is_empty() {
        *all = more;
        return;
    }
    for (all, more) in all.iter_mut().flatten().zip(more.into_iter().flatten()) {
        all.mean.iter_mut().zip(more.mean).for_each(|(sum, own)| *sum += own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_cover_the_layers_in_order() {
        let on_gpu = [false, true, true, false, true];
        let of = |layers: Range<usize>| stretches(layers, |layer| on_gpu[layer]);
        assert_eq!(of(0..5), [(false, 0..1), (true, 1..3), (false, 3..4), (true, 4..5)]);
        assert_eq!(of(1..3), [(true, 1..3)]);
        assert_eq!(of(2..2), []);
    }
}
