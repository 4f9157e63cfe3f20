//! Attention of [`super::HostDevice`]: the definition of `attention.rs` of `kernels/cpu`, step by step.

use baton_kernels_cpu::f16::f16_to_f32;
use baton_kernels_cpu::{PART, exp, soft_cap};

use super::super::words::{float, floats, index, put, put_floats, word};
use super::launches::{Args, slot_words};
use crate::kernel::ATTEND_VECTORS;

/// Keys of a block.
const CHUNK: usize = 32;
/// Words of an item.
const ITEM: usize = 8;

/// What all queries of a launch have in common.
struct Rules {
    kv_heads: usize,
    d: usize,
    scale: f32,
    cap: f32,
    window: usize,
    first_keys: usize,
}

/// The running softmax of one vector.
#[derive(Debug, Clone)]
struct State {
    top: f32,
    sum: f32,
    out: Vec<f32>,
}

fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Reduces 32 numbers: those sixteen apart, then eight, four, two and one.
fn tree(mut x: [f32; CHUNK], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = CHUNK / 2;
    while width > 0 {
        for i in 0..width {
            x[i] = join(x[i], x[i + width]);
        }
        width /= 2;
    }
    x[0]
}

impl Rules {
    /// Returns whether the query at a position sees a key.
    fn sees(&self, position: usize, key: usize) -> bool {
        key <= position && (key < self.first_keys || key + self.window > position)
    }

    /// Returns the score of a key in a slot.
    fn score(&self, q: &[f32], keys: &[u8], head: usize, slot: usize) -> f32 {
        let mut dot = 0.0;
        for (b, q) in q.chunks(CHUNK).enumerate() {
            let mut part = 0.0f32;
            for (i, q) in q.iter().enumerate() {
                part = q.mul_add(self.half(keys, 0, head, slot, b * CHUNK + i), part);
            }
            dot += part;
        }
        let mut score = [dot * self.scale];
        if self.cap != 0.0 {
            soft_cap(&mut score, self.cap);
        }
        score[0]
    }

    /// Returns dimension `c` of a slot's key (`which` is 0) or value (1).
    fn half(&self, bytes: &[u8], which: usize, head: usize, slot: usize, c: usize) -> f32 {
        let at = slot_words((self.kv_heads, self.d), head, slot, c)[which];
        f16_to_f32((word(bytes, at) >> (16 * (c % 2))) as u16)
    }
}

impl State {
    fn new(d: usize) -> Self {
        Self { top: f32::NEG_INFINITY, sum: 0.0, out: vec![0.0; d] }
    }

    /// Adds the state of the next part.
    fn join(&mut self, part: &Self) {
        if part.sum == 0.0 {
            return;
        }
        let top = larger(self.top, part.top);
        let (before, here) = (exp(self.top - top), exp(part.top - top));
        self.sum = part.sum.mul_add(here, self.sum * before);
        self.top = top;
        for (out, part) in self.out.iter_mut().zip(&part.out) {
            *out = part.mul_add(here, *out * before);
        }
    }

    /// Adds a sink; returns the output and the log-sum-exp.
    fn finish(mut self, sink: Option<f32>) -> (Vec<f32>, f32) {
        if let Some(sink) = sink {
            let top = larger(self.top, sink);
            let c = exp(self.top - top);
            self.sum = self.sum.mul_add(c, exp(sink - top));
            self.top = top;
            self.out.iter_mut().for_each(|out| *out *= c);
        }
        if self.sum == 0.0 {
            return (self.out, f32::NEG_INFINITY);
        }
        self.out.iter_mut().for_each(|out| *out /= self.sum);
        (self.out, self.top + self.sum.ln())
    }
}

/// A query vector of an item.
struct Vector {
    /// Its row of queries.
    row: usize,
    /// Its position in the sequence.
    position: usize,
    /// Its head among all query heads.
    head: usize,
    /// Its number within the item.
    number: usize,
    /// Where the sequence's blocks begin in the table.
    table_at: usize,
}

/// A launch of attention.
struct Attention {
    rules: Rules,
    items: usize,
    group: usize,
    has_sinks: bool,
    lse_width: usize,
}

/// The buffers of keys and values, and the table of blocks.
struct Cache<'a> {
    q: &'a [u8],
    keys: &'a [u8],
    values: &'a [u8],
    table: &'a [u8],
}

impl Attention {
    fn of(args: &Args<'_>) -> Self {
        let n = |i| args.number(i);
        let (scale, cap) = (args.float(4), args.float(5));
        let rules = Rules { kv_heads: n(1), d: n(3), scale, cap, window: n(6), first_keys: n(7) };
        let items = n(0).min(args.groups(0));
        Self { rules, items, group: n(2), has_sinks: n(8) != 0, lse_width: n(9) }
    }

    /// Calls `f` for each vector, with the numbers of its item and its key head.
    fn each_vector(&self, args: &Args<'_>, items: &[u8], mut f: impl FnMut(usize, usize, &Vector)) {
        for item in 0..self.items {
            let [row, rows, position, table_at, first, heads] =
                [0, 1, 2, 3, 4, 5].map(|n| index(items, ITEM * item + n));
            assert!(rows * heads <= ATTEND_VECTORS, "{rows} rows of {heads} heads in one item");
            for kv_head in 0..self.rules.kv_heads.min(args.groups(1)) {
                for number in 0..rows * heads {
                    let i = number / heads;
                    let head = kv_head * self.group + first + number % heads;
                    f(
                        item,
                        kv_head,
                        &Vector { row: row + i, position: position + i, head, number, table_at },
                    );
                }
            }
        }
    }

    /// Computes the state of a vector over part `p` of its keys.
    fn part(&self, cache: &Cache<'_>, vector: &Vector, kv_head: usize, p: usize) -> State {
        let rules = &self.rules;
        let at = (vector.row * rules.kv_heads * self.group + vector.head) * rules.d;
        let q = floats(cache.q, at..at + rules.d);
        let mut state = State::new(rules.d);
        for block in (p * PART..(p + 1) * PART).step_by(CHUNK) {
            let seen: [bool; CHUNK] = std::array::from_fn(|i| rules.sees(vector.position, block + i));
            if !seen.contains(&true) {
                continue;
            }
            let first_slot = CHUNK * index(cache.table, vector.table_at + block / CHUNK);
            let scores: [f32; CHUNK] = std::array::from_fn(|i| {
                if seen[i] { rules.score(&q, cache.keys, kv_head, first_slot + i) } else { f32::NEG_INFINITY }
            });
            let top = larger(state.top, tree(scores, larger));
            let c = exp(state.top - top);
            let weights: [f32; CHUNK] =
                std::array::from_fn(|i| if seen[i] { exp(scores[i] - top) } else { 0.0 });
            state.sum = state.sum.mul_add(c, tree(weights, |a, b| a + b));
            state.top = top;
            state.out.iter_mut().for_each(|out| *out *= c);
            for i in (0..CHUNK).filter(|i| seen[*i]) {
                for (j, out) in state.out.iter_mut().enumerate() {
                    *out = weights[i].mul_add(rules.half(cache.values, 1, kv_head, first_slot + i, j), *out);
                }
            }
        }
        state
    }

    /// Writes a vector's result.
    fn write(&self, vector: &Vector, state: State, sinks: &[u8], out: &mut [u8], lse: &mut [u8]) {
        let sink = self.has_sinks.then(|| float(sinks, vector.head));
        let (result, log) = state.finish(sink);
        let heads = self.rules.kv_heads * self.group;
        put_floats(out, (vector.row * heads + vector.head) * self.rules.d, &result);
        put_floats(lse, vector.row * self.lse_width + vector.head, &[log]);
    }
}

/// [`crate::Kernel::Attend`].
pub(super) fn attend(args: &Args<'_>) {
    let attention = Attention::of(args);
    let [q, keys, values, table, items, sinks] = [0, 1, 2, 3, 4, 5].map(|i| args.ro(i));
    let (mut out, mut lse) = (args.rw(6), args.rw(7));
    let cache = Cache { q: &q, keys: &keys, values: &values, table: &table };
    attention.each_vector(args, &items, |_, kv_head, vector| {
        let mut total = State::new(attention.rules.d);
        for p in 0..=vector.position / PART {
            total.join(&attention.part(&cache, vector, kv_head, p));
        }
        attention.write(vector, total, &sinks, &mut out, &mut lse);
    });
}

/// Returns the first word of a vector's state of part 0, and the words from a part to the next.
fn state_at(args: &Args<'_>, item: usize, kv_head: usize, number: usize) -> (usize, usize) {
    let (kv_heads, words, parts) = (args.number(1), 2 + args.number(3), args.number(10));
    let before = (item * kv_heads + kv_head) * parts * ATTEND_VECTORS;
    ((before + number) * words, ATTEND_VECTORS * words)
}

/// [`crate::Kernel::AttendPart`].
pub(super) fn attend_parts(args: &Args<'_>) {
    let attention = Attention::of(args);
    let [q, keys, values, table, items] = [0, 1, 2, 3, 4].map(|i| args.ro(i));
    let mut states = args.rw(5);
    let cache = Cache { q: &q, keys: &keys, values: &values, table: &table };
    attention.each_vector(args, &items, |item, kv_head, vector| {
        let (first, step) = state_at(args, item, kv_head, vector.number);
        for p in 0..args.number(10).min(args.groups(2)) {
            let state = attention.part(&cache, vector, kv_head, p);
            put_floats(&mut states, first + p * step, &[state.top, state.sum]);
            put_floats(&mut states, first + p * step + 2, &state.out);
        }
    });
}

/// [`crate::Kernel::AttendJoin`].
pub(super) fn join(args: &Args<'_>) {
    let attention = Attention::of(args);
    let [states, items, sinks] = [0, 1, 2].map(|i| args.ro(i));
    let (mut out, mut lse) = (args.rw(3), args.rw(4));
    attention.each_vector(args, &items, |item, kv_head, vector| {
        let (first, step) = state_at(args, item, kv_head, vector.number);
        let mut total = State::new(attention.rules.d);
        for p in 0..args.number(10) {
            let at = first + p * step;
            let out = floats(&states, at + 2..at + 2 + attention.rules.d);
            total.join(&State { top: float(&states, at), sum: float(&states, at + 1), out });
        }
        attention.write(vector, total, &sinks, &mut out, &mut lse);
    });
}

/// [`crate::Kernel::Score`] for `n` keys.
pub(super) fn score(args: &Args<'_>, n: usize) {
    let [q, keys, table, lse] = [0, 1, 2, 3].map(|i| args.ro(i));
    let mut to = args.rw(4);
    let [row, rows, position, q_width, head, lse_width, kv_heads, kv_head, d] =
        [1, 2, 3, 4, 5, 6, 7, 8, 9].map(|i| args.number(i));
    let (scale, cap) = (args.float(10), args.float(11));
    let rules = Rules { kv_heads, d, scale, cap, window: args.number(12), first_keys: args.number(13) };
    for key in 0..n {
        let mut sum = 0.0;
        for i in (0..rows).filter(|i| rules.sees(position + i, key)) {
            let at = (row + i) * q_width + head * d;
            let slot = CHUNK * index(&table, key / CHUNK) + key % CHUNK;
            let score = rules.score(&floats(&q, at..at + d), &keys, kv_head, slot);
            sum += exp(score - float(&lse, (row + i) * lse_width + head));
        }
        put(&mut to, key, sum.to_bits());
    }
}
