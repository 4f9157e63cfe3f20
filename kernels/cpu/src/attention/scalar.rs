//! The definition of attention in plain Rust: one query row at a time, one key at a time.

use super::{CHUNK, KvBlock, KvRows, Queries};
use crate::exp::exp;
use crate::f16::f16_to_f32;
use crate::matmul::FLOAT_BLOCK;
use crate::rows::{larger, tree_sum};

fn at(rows: KvRows<'_>, index: usize) -> f32 {
    match rows {
        KvRows::F32(rows) => rows[index],
        KvRows::F16(rows) => f16_to_f32(rows[index]),
    }
}

fn dot(q: &[f32], block: &KvBlock<'_>, key: usize) -> f32 {
    let mut sum = 0.0;
    for (b, q) in q.chunks(FLOAT_BLOCK).enumerate() {
        let mut part = 0.0f32;
        for (i, q) in q.iter().enumerate() {
            part = q.mul_add(at(block.k, key * block.stride + b * FLOAT_BLOCK + i), part);
        }
        sum += part;
    }
    sum
}

/// Scores of the keys `start..start + 32` of a block; hidden ones are -inf.
fn scores(q: &[f32], block: &KvBlock<'_>, start: usize, mask: u32, scale: f32) -> [f32; CHUNK] {
    std::array::from_fn(
        |i| {
            if mask >> i & 1 == 1 { dot(q, block, start + i) * scale } else { f32::NEG_INFINITY }
        },
    )
}

/// The largest score, found in the order of [`tree_sum`].
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
struct Online {
    top: f32,
    sum: f32,
}

impl Online {
    fn add(&mut self, block: &KvBlock<'_>, start: usize, scores: &[f32; CHUNK], mask: u32, out: &mut [f32]) {
        let top = larger(self.top, largest(scores));
        let c = exp(self.top - top);
        let w: [f32; CHUNK] =
            std::array::from_fn(|i| if mask >> i & 1 == 1 { exp(scores[i] - top) } else { 0.0 });
        self.sum = self.sum.mul_add(c, tree_sum(std::array::from_fn(|i| w[i] + w[i + 16])));
        self.top = top;
        for (j, out) in out.iter_mut().enumerate() {
            *out *= c;
            for i in (0..CHUNK).filter(|i| mask >> i & 1 == 1) {
                *out = w[i].mul_add(at(block.v, (start + i) * block.stride + j), *out);
            }
        }
    }

    fn finish(self, out: &mut [f32]) -> f32 {
        if self.sum == 0.0 {
            return f32::NEG_INFINITY;
        }
        for out in out {
            *out /= self.sum;
        }
        self.top + self.sum.ln()
    }
}

/// See [`super::attend_rows`].
pub(super) fn attend(queries: &Queries<'_>, blocks: &[KvBlock<'_>], out: &mut [f32], lse: &mut [f32]) {
    let rows = queries.rows;
    for token in 0..rows.tokens {
        for head in 0..rows.heads {
            let q = &queries.q[rows.at(token, head)];
            let out = &mut out[rows.at(token, head)];
            out.fill(0.0);
            let mut online = Online { top: f32::NEG_INFINITY, sum: 0.0 };
            for block in blocks {
                for start in (0..block.n).step_by(CHUNK) {
                    let mask = queries.visible.mask(token, block.first + start, (block.n - start).min(CHUNK));
                    if mask != 0 {
                        let scores = scores(q, block, start, mask, queries.scale);
                        online.add(block, start, &scores, mask, out);
                    }
                }
            }
            lse[token * rows.heads + head] = online.finish(out);
        }
    }
}

/// See [`super::score_rows`]; `keys` is the number of keys of all blocks.
pub(super) fn score(
    queries: &Queries<'_>,
    blocks: &[KvBlock<'_>],
    keys: usize,
    lse: &[f32],
    acc: &mut [f32],
) {
    let rows = queries.rows;
    for token in 0..rows.tokens {
        for head in 0..rows.heads {
            let q = &queries.q[rows.at(token, head)];
            let lse = lse[token * rows.heads + head];
            let mut acc = &mut acc[head * keys..(head + 1) * keys];
            for block in blocks {
                let (here, rest) = acc.split_at_mut(block.n);
                acc = rest;
                for start in (0..block.n).step_by(CHUNK) {
                    let mask = queries.visible.mask(token, block.first + start, (block.n - start).min(CHUNK));
                    let scores = scores(q, block, start, mask, queries.scale);
                    for i in (0..CHUNK).filter(|i| mask >> i & 1 == 1) {
                        here[start + i] += exp(scores[i] - lse);
                    }
                }
            }
        }
    }
}
