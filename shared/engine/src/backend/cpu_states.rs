//! Recurrent states in main memory, and the layers that compute them.
//!
//! A slot holds the state of every recurrent layer, one after the other. First come the inputs of the layer's
//! convolution for the newest tokens, oldest first, then a matrix `[d, d]` for each value head. A state is
//! never changed in place: a pass reads one slot and fills others. What always holds: tokens are taken in one
//! by one, in order, so no bit of a state depends on chunks, batch or threads.

use std::ops::Range;

use baton_kernels_cpu::{
    DeltaToken, Pool, causal_conv, delta_step, exp, l2_norm_heads, mul_assign, sigmoid, silu, softplus,
};

use super::cpu::CpuRows;
use super::{DeltaInput, Recurrence, SeqSpan};
use crate::config::Recurrent;
use crate::kv::states::StateMoves;

/// The states of one engine.
#[derive(Debug, Default)]
pub(crate) struct CpuStates {
    /// For every layer of the model, its numbers in a state; empty if it has none.
    places: Vec<Range<usize>>,
    /// Numbers of a state.
    len: usize,
    /// By slot; empty if it was never filled.
    slots: Vec<Vec<f32>>,
}

/// The state of one layer, for one span of a pass.
struct SpanState<'a> {
    /// Before the first row; `None` if it is zero.
    before: Option<&'a [f32]>,
    /// To be filled: after so many rows.
    saves: Vec<(usize, &'a mut [f32])>,
}

impl CpuStates {
    /// Returns memory for states of this shape, without any slot.
    pub(crate) fn new(recurrent: &Recurrent) -> Self {
        let mut len = 0;
        let place = |has: &bool| {
            let start = len;
            len += if *has { recurrent.layer_len() } else { 0 };
            start..len
        };
        Self { places: recurrent.layers.iter().map(place).collect(), len, slots: Vec::new() }
    }

    /// Returns memory for states of the same shape, without any slot.
    pub(crate) fn emptied(&self) -> Self {
        Self { places: self.places.clone(), len: self.len, slots: Vec::new() }
    }

    /// Allocates memory for slots that have none.
    pub(crate) fn prepare(&mut self, moves: &[StateMoves]) {
        for (_, id) in moves.iter().flat_map(|moves| &moves.saves) {
            let at = id.0 as usize;
            if self.slots.len() <= at {
                self.slots.resize_with(at + 1, Vec::new);
            }
            if self.slots[at].is_empty() {
                self.slots[at] = vec![0.0; self.len];
            }
        }
    }

    /// Calls `f` with the states of one layer, one of each span.
    fn with_layer(&mut self, of: &Recurrence<'_>, f: impl FnOnce(Vec<SpanState<'_>>)) {
        let place = &self.places[of.layer];
        let mut filled: Vec<(usize, Vec<f32>)> = Vec::new();
        for (_, id) in of.moves.iter().flat_map(|moves| &moves.saves) {
            let at = id.0 as usize;
            filled.push((at, std::mem::take(&mut self.slots[at])));
        }
        let mut rest = filled.iter_mut();
        let slots = &self.slots;
        let states = of.moves.iter().map(|moves| SpanState {
            before: moves.from.map(|id| &slots[id.0 as usize][place.clone()]),
            saves: (moves.saves.iter().zip(&mut rest))
                .map(|((rows, _), (_, slot))| (*rows, &mut slot[place.clone()]))
                .collect(),
        });
        f(states.collect());
        for (at, slot) in filled {
            self.slots[at] = slot;
        }
    }

    /// As [`super::Backend::short_conv`].
    pub(crate) fn short_conv(&mut self, pool: &Pool, of: &Recurrence<'_>, bcx: &CpuRows, out: &mut CpuRows) {
        let width = out.width;
        let mut inputs = CpuRows { data: vec![0.0; out.data.len()], width };
        inputs.for_each(pool, |row, numbers| {
            let (b, x) = (&bcx.row(row)[..width], &bcx.row(row)[2 * width..]);
            numbers.copy_from_slice(b);
            mul_assign(numbers, x);
        });
        self.with_layer(of, |mut states| {
            let gate = |row: usize, numbers: &mut [f32]| mul_assign(numbers, &bcx.row(row)[width..2 * width]);
            convolve(pool, of, &mut states, &inputs, out, gate);
        });
    }

    /// As [`super::Backend::delta_net`].
    pub(crate) fn delta_net(
        &mut self,
        pool: &Pool,
        of: &Recurrence<'_>,
        input: &DeltaInput<'_, CpuRows>,
        out: &mut CpuRows,
    ) {
        let (net, width) = (input.net, input.qkv.width);
        let scale = (1.0 / (net.d_head as f64).sqrt()) as f32;
        let mut mixed = CpuRows { data: vec![0.0; input.qkv.data.len()], width };
        let finish = |_: usize, numbers: &mut [f32]| {
            silu(numbers);
            let (queries, rest) = numbers.split_at_mut(net.d_keys());
            l2_norm_heads(queries, net.d_head, input.eps, scale);
            l2_norm_heads(&mut rest[..net.d_keys()], net.d_head, input.eps, 1.0);
        };
        self.with_layer(of, |mut states| {
            let conv_len = convolve(pool, of, &mut states, input.qkv, &mut mixed, finish);
            let heads = heads(of.spans, states, conv_len, input);
            let parts = heads.iter().map(|head| (head.rows.clone(), head.head)).collect::<Vec<_>>();
            let mut results: Vec<Vec<f32>> = vec![Vec::new(); heads.len()];
            pool.for_each(heads.into_iter().zip(&mut results), |(head, result)| {
                *result = head.run(input, &mixed);
            });
            for ((rows, head), result) in parts.into_iter().zip(results) {
                for (row, numbers) in rows.zip(result.chunks_exact(net.d_head)) {
                    let at = row * out.width + head * net.d_head;
                    out.data[at..at + net.d_head].copy_from_slice(numbers);
                }
            }
        });
    }
}

/// Sets each row of `out` to the convolution of `inputs` up to that row and calls `finish` with it, and fills
/// the convolution's part of the states. Returns the length of that part.
fn convolve(
    pool: &Pool,
    of: &Recurrence<'_>,
    states: &mut [SpanState<'_>],
    inputs: &CpuRows,
    out: &mut CpuRows,
    finish: impl Fn(usize, &mut [f32]) + Sync,
) -> usize {
    let width = inputs.width;
    let n = of.taps.len() / width;
    let zeros = vec![0.0; width];
    // Of each span, the rows before its first one that a window reaches, then its own.
    let histories: Vec<Vec<&[f32]>> = (of.spans.iter().zip(states.iter()))
        .map(|(span, state)| {
            let earlier =
                |at: usize| state.before.map_or(&zeros[..], |before| &before[at * width..][..width]);
            (0..n - 1).map(earlier).chain(span.rows.clone().map(|row| inputs.row(row))).collect()
        })
        .collect();
    let windows: Vec<&[&[f32]]> = histories.iter().flat_map(|history| history.windows(n)).collect();
    out.for_each(pool, |row, numbers| {
        causal_conv(windows[row], of.taps, numbers);
        finish(row, numbers);
    });
    for (state, history) in states.iter_mut().zip(&histories) {
        for (rows, slot) in &mut state.saves {
            for (to, from) in slot.chunks_exact_mut(width).zip(&history[*rows..*rows + n - 1]) {
                to.copy_from_slice(from);
            }
        }
    }
    (n - 1) * width
}

/// One value head of one span.
struct Head<'a> {
    head: usize,
    rows: Range<usize>,
    before: Option<&'a [f32]>,
    /// To be filled: after so many rows.
    saves: Vec<(usize, &'a mut [f32])>,
}

/// Splits the states of a layer's spans into those of their value heads.
fn heads<'a>(
    spans: &[SeqSpan],
    states: Vec<SpanState<'a>>,
    conv_len: usize,
    input: &DeltaInput<'_, CpuRows>,
) -> Vec<Head<'a>> {
    let square = input.net.d_head * input.net.d_head;
    let mut heads = Vec::with_capacity(spans.len() * input.net.value_heads);
    for (span, state) in spans.iter().zip(states) {
        let mut saves: Vec<_> = state
            .saves
            .into_iter()
            .map(|(rows, slot)| (rows, slot[conv_len..].chunks_exact_mut(square)))
            .collect();
        for head in 0..input.net.value_heads {
            let own = |before: &'a [f32]| &before[conv_len + head * square..][..square];
            heads.push(Head {
                head,
                rows: span.rows.clone(),
                before: state.before.map(own),
                saves: (saves.iter_mut())
                    .filter_map(|(rows, slots)| slots.next().map(|slot| (*rows, slot)))
                    .collect(),
            });
        }
    }
    heads
}

impl Head<'_> {
    /// Takes in the rows one after the other and fills the states; returns the output, `[rows, d]`. `mixed`
    /// is what the convolution has made of queries, keys and values.
    fn run(self, input: &DeltaInput<'_, CpuRows>, mixed: &CpuRows) -> Vec<f32> {
        let (net, head, d) = (input.net, self.head, input.net.d_head);
        let (key, keys) = (net.key_head(head) * d, net.d_keys());
        let mut out = vec![0.0; self.rows.len() * d];
        let mut scratch = vec![0.0; d];
        let (mut done, mut last) = (0, self.before);
        for (end, state) in self.saves {
            match last {
                Some(last) => state.copy_from_slice(last),
                None => state.fill(0.0),
            }
            for at in done..end {
                let row = self.rows.start + at;
                let numbers = mixed.row(row);
                let fading = softplus(input.alpha.row(row)[head] + input.alpha_bias[head]);
                let token = DeltaToken {
                    q: &numbers[key..key + d],
                    k: &numbers[keys + key..keys + key + d],
                    v: &numbers[2 * keys + head * d..][..d],
                    decay: exp(input.decay[head] * fading),
                    beta: sigmoid(input.beta.row(row)[head]),
                };
                delta_step(state, &token, &mut scratch, &mut out[at * d..(at + 1) * d]);
            }
            done = end;
            last = Some(state);
        }
        out
    }
}
