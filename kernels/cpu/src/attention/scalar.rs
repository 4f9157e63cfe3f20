//! The definition of attention in plain Rust: one query row at a time, one key at a time.

use super::parts::{PartState, width};
use super::store::{HALF, Keys, KvBlock, Values};
use super::{CHUNK, Queries, quants};
use crate::activations::quantize_block;
use crate::blocks::SHORT_LEN;
use crate::exp::{exp, soft_cap};
use crate::f16::f16_to_f32;
use crate::matmul::FLOAT_BLOCK;
use crate::rows::{larger, tree_sum};

/// Returns the product of a query with key `key`.
fn dot(q: &[f32], block: &KvBlock<'_>, key: usize) -> f32 {
    let (half, lane) = (key / HALF, key % HALF);
    match block.k {
        Keys::F32(lines) => {
            float_dot(q, |c| f32::from_ne_bytes(lines[half * block.d + c].0.as_chunks().0[lane]))
        }
        Keys::F16(lines) => float_dot(q, |c| f16_to_f32(lines[half * block.d + c][lane])),
        Keys::Q8 { lines, scale } => {
            quant_dot(q, block.d, scale, key, |at, c| lines[8 * at + c / 4].0[4 * lane + c % 4] as i8)
        }
        Keys::Q4 { lines, scale } => quant_dot(q, block.d, scale, key, |at, c| {
            quants::half(lines[4 * at + c % 16 / 4].0[4 * lane + c % 4], c >= 16)
        }),
    }
}

/// Returns the product of a query with quantized key `key`; `value(at, c)` is dimension `c` of the group `at`
/// of the block.
fn quant_dot(
    q: &[f32],
    d: usize,
    scale: &[[u16; HALF]],
    key: usize,
    value: impl Fn(usize, usize) -> i8,
) -> f32 {
    let (groups, half, lane) = (d.div_ceil(SHORT_LEN), key / HALF, key % HALF);
    let mut sum = 0.0f32;
    for (g, part) in q.chunks(SHORT_LEN).enumerate() {
        let mut x = [0.0; SHORT_LEN];
        x[..part.len()].copy_from_slice(part);
        let mut bytes = [0; SHORT_LEN];
        let dq = quantize_block(&x, &mut bytes);
        let at = half * groups + g;
        let dot: i32 = (0..SHORT_LEN).map(|c| i32::from(value(at, c)) * i32::from(bytes[c] as i8)).sum();
        let z = dot as f32 * f16_to_f32(scale[at][lane]);
        sum = z.mul_add(dq, sum);
    }
    sum
}

fn float_dot(q: &[f32], key: impl Fn(usize) -> f32) -> f32 {
    let mut sum = 0.0;
    for (b, q) in q.chunks(FLOAT_BLOCK).enumerate() {
        let mut part = 0.0f32;
        for (i, q) in q.iter().enumerate() {
            part = q.mul_add(key(b * FLOAT_BLOCK + i), part);
        }
        sum += part;
    }
    sum
}

/// Returns dimension `j` of the value of key `key`.
fn value(block: &KvBlock<'_>, key: usize, j: usize) -> f32 {
    let width = block.d.next_multiple_of(HALF);
    match block.v {
        Values::F32(rows) => rows[key * width + j],
        Values::F16(rows) => f16_to_f32(rows[key * width + j]),
        Values::Q8 { q, scale } => {
            let at = key * block.d.next_multiple_of(SHORT_LEN) + j;
            f32::from(q[at] as i8) * f16_to_f32(scale[at / SHORT_LEN])
        }
        Values::Q4 { q, scale } => {
            let group = key * block.d.div_ceil(SHORT_LEN) + j / SHORT_LEN;
            let byte = q[group * quants::NIBBLE_BYTES + j % quants::NIBBLE_BYTES];
            let value = quants::half(byte, j % SHORT_LEN >= quants::NIBBLE_BYTES);
            f32::from(value) * f16_to_f32(scale[group])
        }
    }
}

/// Returns the scores of the keys of a block; hidden keys have -inf.
fn scores(q: &[f32], block: &KvBlock<'_>, mask: u32, queries: &Queries<'_>) -> [f32; CHUNK] {
    let capped = |score: f32| queries.cap.map_or(score, |cap| soft_cap(score, cap));
    let score = |i| capped(dot(q, block, i) * queries.scale);
    std::array::from_fn(|i| if mask >> i & 1 == 1 { score(i) } else { f32::NEG_INFINITY })
}

/// Returns the largest score, compared in the order of [`tree_sum`].
fn largest(s: &[f32; CHUNK]) -> f32 {
    let mut lanes: [f32; 16] = std::array::from_fn(|i| larger(s[i], s[i + 16]));
    let mut width = 8;
    while width > 0 {
        for i in 0..width {
            lanes[i] = larger(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// The running softmax of one query row.
struct Online<'a> {
    top: &'a mut f32,
    sum: &'a mut f32,
    out: &'a mut [f32],
}

impl Online<'_> {
    fn add(&mut self, block: &KvBlock<'_>, scores: &[f32; CHUNK], mask: u32) {
        let top = larger(*self.top, largest(scores));
        let c = exp(*self.top - top);
        let w: [f32; CHUNK] =
            std::array::from_fn(|i| if mask >> i & 1 == 1 { exp(scores[i] - top) } else { 0.0 });
        *self.sum = self.sum.mul_add(c, tree_sum(std::array::from_fn(|i| w[i] + w[i + 16])));
        *self.top = top;
        for (j, out) in self.out.iter_mut().enumerate() {
            *out *= c;
            for i in (0..CHUNK).filter(|i| mask >> i & 1 == 1) {
                *out = w[i].mul_add(value(block, i, j), *out);
            }
        }
    }
}

/// Attends to the blocks of one part, see [`super::attend_part`].
pub(super) fn attend(queries: &Queries<'_>, blocks: &[KvBlock<'_>], part: &mut PartState) {
    let rows = queries.rows;
    part.reset(rows);
    let PartState { top, sum, acc } = part;
    let states = top.iter_mut().zip(sum).zip(acc.chunks_exact_mut(width(rows)));
    for (r, ((top, sum), acc)) in states.enumerate() {
        let (token, head) = (r / rows.heads, r % rows.heads);
        let q = &queries.q[rows.at(token, head)];
        let mut online = Online { top, sum, out: &mut acc[..rows.d] };
        for block in blocks {
            let mask = queries.visible.mask(token, block.first, block.n);
            if mask != 0 {
                online.add(block, &scores(q, block, mask, queries), mask);
            }
        }
    }
}

/// See [`super::score_rows`].
pub(super) fn score(queries: &Queries<'_>, blocks: &[KvBlock<'_>], lse: &[f32], acc: &mut [f32]) {
    let rows = queries.rows;
    for token in 0..rows.tokens {
        for head in 0..rows.heads {
            let q = &queries.q[rows.at(token, head)];
            let lse = lse[token * rows.heads + head];
            let mut acc = &mut *acc;
            for block in blocks {
                let (here, rest) = acc.split_at_mut(block.n);
                acc = rest;
                let mask = queries.visible.mask(token, block.first, block.n);
                let scores = scores(q, block, mask, queries);
                for i in (0..CHUNK).filter(|i| mask >> i & 1 == 1) {
                    here[i] += exp(scores[i] - lse);
                }
            }
        }
    }
}
