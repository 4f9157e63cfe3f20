//! KV eviction on a device: it reads the whole prompt, then keeps only a share of its keys and values.
//!
//! The policies are those of the literature, per KV head, with the weights of a group's query heads summed
//! up. They do not save prefill time as the relay does, because the device has to read the whole prompt
//! first. The first token comes from the full cache, as in the original implementations.

use std::num::NonZeroUsize;
use std::sync::Arc;

use baton_engine::{
    Capture, Engine, EngineError, EvictError, HeadId, Kept, MeanOver, Model, SeqId, StepControl, StepSeq,
    TokenId, Wanted,
};
use baton_protocol::Segment;

use crate::arm::Eviction;
use crate::cloud::{RunError, assembled, engine_options};
use crate::device::DeviceAnswer;
use crate::predict::{Known, Predicted, ReadPrompt, predict};
use crate::writer::{Begun, CHUNK_TOKENS, prefill, text_of, write};

/// Number of last positions whose queries SnapKV uses, and that it always keeps.
const WINDOW: usize = 32;
/// Positions on either side that its max-pooling covers: a kernel of 7.
const POOL_REACH: usize = 3;
/// Number of first tokens that `streaming` always keeps.
const SINKS: usize = 4;

/// A device that evicts.
#[derive(Debug)]
pub struct EvictingDevice {
    engine: Engine,
}

/// The input of a policy: for each KV head of each layer, one weight per token.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    /// `[l g][t]`.
    heads: Vec<Vec<f64>>,
}

impl EvictingDevice {
    /// Makes a device with this model.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn new(model: Arc<Model>, threads: NonZeroUsize) -> Result<Self, EngineError> {
        let options = engine_options(&model, threads);
        Ok(Self { engine: Engine::new(model, options)? })
    }

    /// Reads the whole prompt, keeps a share `ratio` of its keys and values by `policy`, predicts what is
    /// known, and answers.
    ///
    /// # Errors
    /// [`RunError`]; [`RunError::Device`] for models with a sliding window.
    pub fn answer(
        &mut self,
        segments: &[Segment],
        (policy, ratio): (Eviction, f32),
        max_tokens: usize,
        known: Known<'_>,
        control: &mut dyn StepControl,
    ) -> Result<(DeviceAnswer, Predicted), RunError> {
        let model = self.engine.model().clone();
        let ids = assembled(&model, segments)?.ids;
        let limit = model.config().context_len.saturating_sub(max_tokens + 1);
        if ids.len() > limit {
            return Err(RunError::TooLong { tokens: ids.len(), limit });
        }
        let budget = ((f64::from(ratio) * ids.len() as f64) as usize).max(1);
        let seq = self.engine.create();
        let result = self.read(seq, &ids, policy, control).and_then(|(logits, weights)| {
            let kept = kept(policy, &weights, ids.len(), budget);
            let kept = Kept::new(&kept).and_then(|kept| self.engine.evict(seq, &kept));
            let thin = kept.map_err(|err: EvictError| RunError::Device(err.to_string()))?;
            let read = ReadPrompt { seq: thin, last: ids[ids.len() - 1], logits: &logits };
            let begun = Begun { seq: thin, prompt: &ids, logits: &logits };
            let done = predict(&mut self.engine, read, known, control)
                .and_then(|predicted| Ok((write(&mut self.engine, begun, max_tokens, control)?, predicted)));
            self.engine.release(thin);
            done
        });
        self.engine.release(seq);
        let (written, predicted) = result?;
        let answer = DeviceAnswer {
            text: text_of(model.tokenizer(), &written.ids),
            tokens: written.ids.len(),
            prompt_tokens: ids.len(),
            agreement: Vec::new(),
            ended: written.ended,
        };
        Ok((answer, predicted))
    }

    /// Reads the whole prompt into the cache. Returns the last logits, and the weights for the policy.
    fn read(
        &mut self,
        seq: SeqId,
        ids: &[TokenId],
        policy: Eviction,
        control: &mut dyn StepControl,
    ) -> Result<(Vec<f32>, Weights), RunError> {
        let config = self.engine.model().config();
        let (n_layers, n_heads, n_kv_heads) = (config.n_layers, config.n_heads, config.n_kv_heads);
        let heads: Vec<HeadId> =
            (0..n_layers).flat_map(|layer| (0..n_heads).map(move |head| HeadId { layer, head })).collect();
        let mut weights = Weights { heads: vec![vec![0.0; ids.len()]; n_layers * n_kv_heads] };
        let group = n_heads / n_kv_heads;
        let mut add = |mean: &[f32], keys: usize, queries: usize| {
            for (id, mean) in heads.iter().zip(mean.chunks_exact(keys)) {
                let sums = &mut weights.heads[id.layer * n_kv_heads + id.head / group];
                for (sum, mean) in sums.iter_mut().zip(mean) {
                    *sum += f64::from(*mean) * queries as f64;
                }
            }
        };
        if policy == Eviction::HeavyHitters {
            let mut logits = Vec::new();
            for chunk in ids.chunks(CHUNK_TOKENS) {
                let capture =
                    Capture { window: 0..chunk.len(), heads: heads.clone(), over: MeanOver::Queries };
                let step = StepSeq { seq, ids: chunk, logits: Wanted::Last, capture: Some(&capture) };
                let output = self.engine.step(&[step], control)?.remove(0);
                let scores = output.scores.expect("a step with a capture gives scores");
                add(&scores.mean, scores.keys, chunk.len());
                logits = output.logits;
            }
            return Ok((logits, weights));
        }
        let start = ids.len() - WINDOW.min(ids.len());
        let held = self.engine.reuse_prefix(seq, &ids[..start]);
        let capture = Capture { window: 0..ids.len() - start, heads: heads.clone(), over: MeanOver::Queries };
        let (logits, scores) =
            prefill(&mut self.engine, seq, &ids[held..], start - held, Some(&capture), control)?;
        let scores = scores.expect("a step with a capture gives scores");
        add(&scores.mean, scores.keys, ids.len() - start);
        Ok((logits, weights))
    }
}

/// Returns the positions that each head keeps: `budget` of `tokens`, in ascending order.
fn kept(policy: Eviction, weights: &Weights, tokens: usize, budget: usize) -> Vec<Vec<usize>> {
    let budget = budget.min(tokens);
    let one = |weights: &Vec<f64>| match policy {
        Eviction::Streaming => {
            let sinks = SINKS.min(budget);
            (0..sinks).chain(tokens - (budget - sinks)..tokens).collect()
        }
        Eviction::SnapKv => {
            let newest = WINDOW.min(budget);
            let pooled: Vec<f64> = (0..tokens)
                .map(|at| {
                    let reach = at.saturating_sub(POOL_REACH)..(at + POOL_REACH + 1).min(tokens);
                    weights[reach].iter().copied().fold(0.0, f64::max)
                })
                .collect();
            best_and_newest(&pooled, budget - newest, newest)
        }
        Eviction::HeavyHitters => best_and_newest(weights, budget / 2, budget - budget / 2),
    };
    weights.heads.iter().map(one).collect()
}

/// Returns the `newest` last positions, and the `best` positions before them with the largest weights (ties:
/// the earlier).
fn best_and_newest(weights: &[f64], best: usize, newest: usize) -> Vec<usize> {
    let before = weights.len() - newest;
    let mut order: Vec<usize> = (0..before).collect();
    order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]).then(a.cmp(&b)));
    order.truncate(best);
    order.extend(before..weights.len());
    order.sort_unstable();
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(policy: Eviction, budget: usize, want: &[usize]) {
        let mut weights = vec![0.0; 100];
        weights[10] = 9.0;
        weights[50] = 5.0;
        weights[51] = 4.0;
        let weights = Weights { heads: vec![weights] };
        assert_eq!(kept(policy, &weights, 100, budget), [want], "{policy:?}, {budget} kept");
    }

    #[test]
    fn policies_keep_what_they_say() {
        check(Eviction::Streaming, 6, &[0, 1, 2, 3, 98, 99]);
        check(Eviction::Streaming, 3, &[0, 1, 2]);
        check(Eviction::HeavyHitters, 5, &[10, 50, 97, 98, 99]);
        check(Eviction::HeavyHitters, 6, &[10, 50, 51, 97, 98, 99]);
        // Pooling raises the neighbours of the largest weight.
        let window: Vec<usize> = (68..100).collect();
        check(Eviction::SnapKv, 32 + 7, &[(7..14).collect::<Vec<_>>(), window.clone()].concat());
        check(Eviction::SnapKv, 32 + 8, &[(7..14).collect::<Vec<_>>(), vec![47], window].concat());
        check(Eviction::SnapKv, 2, &[98, 99]);
        check(Eviction::SnapKv, 500, &(0..100).collect::<Vec<_>>());
    }
}
