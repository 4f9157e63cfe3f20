//! How keys and values are kept: blocks of 32 tokens, laid out for the loops that read them.
//!
//! Keys lie in two halves of sixteen tokens, `[2, d]` lines of sixteen: the tokens are the lanes, so that a score is a sum
//! inside its lane and nothing is transposed when it is read. Values lie in rows, `[32, d]`. In the byte format each 32
//! dimensions of a token have a scale of their own, as in Q8_0; a line of keys then has four dimensions of
//! sixteen tokens.

use super::CHUNK;
use crate::activations::quantize_block;
use crate::blocks::SHORT_LEN;
use crate::f16::{f16_to_f32, f32_to_f16};
use crate::simd::Line;

/// Tokens of half a block.
pub(super) const HALF: usize = CHUNK / 2;

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvFormat {
    /// As computed.
    #[default]
    F32,
    /// Rounded to half precision: half the memory.
    F16,
    /// Signed bytes with a binary16 scale for each 32 dimensions: a bit more than a quarter of the memory.
    Q8,
}

impl KvFormat {
    /// Bytes of the keys and values of one token in one head of `d` dimensions.
    pub fn token_bytes(self, d: usize) -> usize {
        match self {
            Self::F32 => 4 * (d + d.next_multiple_of(HALF)),
            Self::F16 => 2 * (d + d.next_multiple_of(HALF)),
            Self::Q8 => 2 * (d.next_multiple_of(SHORT_LEN) + 2 * d.div_ceil(SHORT_LEN)),
        }
    }
}

/// The keys and values of up to 32 tokens in a number of heads.
#[derive(Debug, Clone)]
pub struct KvStore {
    d: usize,
    data: Data,
}

#[derive(Debug, Clone)]
enum Data {
    F32 { k: Box<[Line]>, v: Box<[f32]> },
    F16 { k: Box<[[u16; HALF]]>, v: Box<[u16]> },
    Q8 { k: Box<[Line]>, k_scale: Box<[[u16; HALF]]>, v: Box<[u8]>, v_scale: Box<[u16]> },
}

/// Keys of one head, as [`KvStore`] lays them out.
#[derive(Debug, Clone, Copy)]
pub(super) enum Keys<'a> {
    /// `[2, d]` lines of floats.
    F32(&'a [Line]),
    /// `[2, d]` lines of halves.
    F16(&'a [[u16; HALF]]),
    /// `[2, d / 4]` lines of bytes, `[2, d / 32]` scales.
    Q8 { lines: &'a [Line], scale: &'a [[u16; HALF]] },
}

/// Values of one head: rows of `d` rounded up to whole lanes (Q8: to 32).
#[derive(Debug, Clone, Copy)]
pub(super) enum Values<'a> {
    F32(&'a [f32]),
    F16(&'a [u16]),
    /// With `[32, d / 32]` scales.
    Q8 {
        q: &'a [u8],
        scale: &'a [u16],
    },
}

/// The keys and values of one head at consecutive positions.
#[derive(Debug, Clone, Copy)]
pub struct KvBlock<'a> {
    pub(super) k: Keys<'a>,
    pub(super) v: Values<'a>,
    pub(super) d: usize,
    /// Keys held.
    pub(super) n: usize,
    /// Position of the first key in its sequence.
    pub(super) first: usize,
}

impl KvBlock<'_> {
    /// Where its keys, values and scales lie: address and length in bytes of each.
    pub(super) fn places(&self) -> [(*const u8, usize); 4] {
        fn place<T>(part: &[T]) -> (*const u8, usize) {
            (part.as_ptr().cast(), size_of_val(part))
        }
        let none = place::<u8>(&[]);
        let (k, k_scale) = match self.k {
            Keys::F32(lines) => (place(lines), none),
            Keys::F16(lines) => (place(lines), none),
            Keys::Q8 { lines, scale } => (place(lines), place(scale)),
        };
        let (v, v_scale) = match self.v {
            Values::F32(rows) => (place(rows), none),
            Values::F16(rows) => (place(rows), none),
            Values::Q8 { q, scale } => (place(q), place(scale)),
        };
        [k, v, k_scale, v_scale]
    }
}

/// Part `i` of `parts` equal ones.
fn nth<T>(all: &[T], i: usize, len: usize) -> &[T] {
    &all[i * len..(i + 1) * len]
}

impl KvStore {
    /// Room for 32 tokens in `heads` heads of `d` dimensions, all zero.
    ///
    /// # Panics
    /// Where `d` is 0.
    pub fn new(format: KvFormat, d: usize, heads: usize) -> Self {
        assert!(d > 0, "heads of 0 dimensions");
        let (width, padded) = (d.next_multiple_of(HALF), d.next_multiple_of(SHORT_LEN));
        let groups = padded / SHORT_LEN;
        let line = Line([0; 64]);
        let data = match format {
            KvFormat::F32 => {
                Data::F32 { k: vec![line; heads * 2 * d].into(), v: vec![0.0; heads * CHUNK * width].into() }
            }
            KvFormat::F16 => Data::F16 {
                k: vec![[0; HALF]; heads * 2 * d].into(),
                v: vec![0; heads * CHUNK * width].into(),
            },
            KvFormat::Q8 => Data::Q8 {
                k: vec![line; heads * padded / 2].into(),
                k_scale: vec![[0; HALF]; heads * 2 * groups].into(),
                v: vec![0; heads * CHUNK * padded].into(),
                v_scale: vec![0; heads * CHUNK * groups].into(),
            },
        };
        Self { d, data }
    }

    /// Keeps the key and the value of one token in one head.
    ///
    /// Shapes: `k, v: [d]`.
    ///
    /// # Panics
    /// Where `head` or `slot` is outside the store, or a row is not `d` long.
    pub fn write(&mut self, head: usize, slot: usize, k: &[f32], v: &[f32]) {
        let d = self.d;
        assert!(slot < CHUNK, "slot {slot} of {CHUNK}");
        assert_eq!((k.len(), v.len()), (d, d), "dimensions of a key and a value");
        let (width, half, lane) = (d.next_multiple_of(HALF), slot / HALF, slot % HALF);
        match &mut self.data {
            Data::F32 { k: to_k, v: to_v } => {
                for (line, k) in to_k[(2 * head + half) * d..][..d].iter_mut().zip(k) {
                    line.0.as_chunks_mut().0[lane] = k.to_ne_bytes();
                }
                to_v[(head * CHUNK + slot) * width..][..d].copy_from_slice(v);
            }
            Data::F16 { k: to_k, v: to_v } => {
                for (line, k) in to_k[(2 * head + half) * d..][..d].iter_mut().zip(k) {
                    line[lane] = f32_to_f16(*k);
                }
                for (to, v) in to_v[(head * CHUNK + slot) * width..][..d].iter_mut().zip(v) {
                    *to = f32_to_f16(*v);
                }
            }
            Data::Q8 { k: to_k, k_scale, v: to_v, v_scale } => {
                let groups = d.div_ceil(SHORT_LEN);
                for g in 0..groups {
                    let (q, scale) = quantized(k, g);
                    k_scale[(2 * head + half) * groups + g][lane] = scale;
                    let lines = &mut to_k[((2 * head + half) * groups + g) * 8..][..8];
                    for (line, four) in lines.iter_mut().zip(q.as_chunks::<4>().0) {
                        line.0.as_chunks_mut().0[lane] = *four;
                    }
                    let (q, scale) = quantized(v, g);
                    let row = (head * CHUNK + slot) * groups + g;
                    v_scale[row] = scale;
                    to_v[row * SHORT_LEN..][..SHORT_LEN].copy_from_slice(&q);
                }
            }
        }
    }

    /// The first `n` keys and values of one head, whose first position in the sequence is `first`.
    ///
    /// # Panics
    /// Where `head` is outside the store or `n` is above 32.
    pub fn block(&self, head: usize, n: usize, first: usize) -> KvBlock<'_> {
        assert!(n <= CHUNK, "{n} keys of {CHUNK}");
        let d = self.d;
        let (width, groups) = (d.next_multiple_of(HALF), d.div_ceil(SHORT_LEN));
        let (k, v) = match &self.data {
            Data::F32 { k, v } => (Keys::F32(nth(k, head, 2 * d)), Values::F32(nth(v, head, CHUNK * width))),
            Data::F16 { k, v } => (Keys::F16(nth(k, head, 2 * d)), Values::F16(nth(v, head, CHUNK * width))),
            Data::Q8 { k, k_scale, v, v_scale } => (
                Keys::Q8 { lines: nth(k, head, 16 * groups), scale: nth(k_scale, head, 2 * groups) },
                Values::Q8 {
                    q: nth(v, head, CHUNK * groups * SHORT_LEN),
                    scale: nth(v_scale, head, CHUNK * groups),
                },
            ),
        };
        KvBlock { k, v, d, n, first }
    }

    /// Takes over the contents of another store.
    ///
    /// # Panics
    /// Where the other has another shape or format.
    pub fn copy_from(&mut self, other: &Self) {
        match (&mut self.data, &other.data) {
            (Data::F32 { k, v }, Data::F32 { k: from_k, v: from_v }) => {
                k.copy_from_slice(from_k);
                v.copy_from_slice(from_v);
            }
            (Data::F16 { k, v }, Data::F16 { k: from_k, v: from_v }) => {
                k.copy_from_slice(from_k);
                v.copy_from_slice(from_v);
            }
            (Data::Q8 { .. }, Data::Q8 { .. }) => self.data.clone_from(&other.data),
            _ => panic!("stores of one cache have one format"),
        }
    }
}

/// Group `g` of a row as signed bytes, zeros past its end, and their scale.
fn quantized(row: &[f32], g: usize) -> ([u8; SHORT_LEN], u16) {
    let part = &row[g * SHORT_LEN..row.len().min((g + 1) * SHORT_LEN)];
    let mut x = [0.0; SHORT_LEN];
    x[..part.len()].copy_from_slice(part);
    let mut q = [0; SHORT_LEN];
    let scale = quantize_block(&x, &mut q);
    let kept = f32_to_f16(scale);
    // Steps of the scale that is kept; a fault or a group of zeros has its bytes and scale already.
    let inverse = 1.0 / f16_to_f32(kept);
    if inverse.is_finite() {
        for (q, v) in q.iter_mut().zip(&x) {
            *q = (v * inverse).round_ties_even().clamp(-127.0, 127.0) as i8 as u8;
        }
    } else if scale.is_finite() {
        q = [0; SHORT_LEN];
    }
    (q, kept)
}
