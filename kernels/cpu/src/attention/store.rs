//! Storage of keys and values: blocks of 32 tokens, laid out for the loops that read them.
//!
//! Keys lie in two halves of sixteen tokens, `[2, d]` lines of sixteen. The tokens are the lanes, so a score
//! is a sum inside its lane and reading needs no transpose. Values lie in rows, `[32, d]`. In the byte format
//! each 32 dimensions of a token have their own scale, as in Q8_0. A line of keys then holds four dimensions
//! of sixteen tokens.

use super::CHUNK;
use super::memory::{KvMemory, Part};
use crate::activations::quantize_block;
use crate::blocks::SHORT_LEN;
use crate::exp::ROUND;
use crate::f16::{f16_to_f32, f32_to_f16};
use crate::simd::Line;

/// Tokens of half a block.
pub(super) const HALF: usize = CHUNK / 2;

/// The number format of stored keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvFormat {
    /// Floats as computed.
    #[default]
    F32,
    /// Rounded to half precision: half the memory.
    F16,
    /// Signed bytes with a binary16 scale for each 32 dimensions: a bit more than a quarter of the memory.
    Q8,
}

impl KvFormat {
    /// Returns the bytes of the keys and values of one token in one head of `d` dimensions.
    pub fn token_bytes(self, d: usize) -> usize {
        match self {
            Self::F32 => 4 * (d + d.next_multiple_of(HALF)),
            Self::F16 => 2 * (d + d.next_multiple_of(HALF)),
            Self::Q8 => 2 * (d.next_multiple_of(SHORT_LEN) + 2 * d.div_ceil(SHORT_LEN)),
        }
    }
}

/// The keys and values of up to 32 tokens in a number of heads.
#[derive(Debug)]
pub struct KvStore {
    d: usize,
    data: Data,
}

#[derive(Debug)]
enum Data {
    F32 { k: Part<Line>, v: Part<f32> },
    F16 { k: Part<[u16; HALF]>, v: Part<u16> },
    Q8 { k: Part<Line>, k_scale: Part<[u16; HALF]>, v: Part<u8>, v_scale: Part<u16> },
}

/// Keys of one head, as [`KvStore`] lays them out.
#[derive(Debug, Clone, Copy)]
pub(super) enum Keys<'a> {
    /// `[2, d]` lines of floats.
    F32(&'a [Line]),
    /// `[2, d]` lines of binary16.
    F16(&'a [[u16; HALF]]),
    /// `[2, d / 4]` lines of bytes, `[2, d / 32]` scales.
    Q8 { lines: &'a [Line], scale: &'a [[u16; HALF]] },
}

/// Values of one head: rows of `d` rounded up to whole lanes (for `Q8` to 32).
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
    /// Returns the address of its keys.
    pub(super) fn keys_at(&self) -> *const u8 {
        match self.k {
            Keys::F32(lines) | Keys::Q8 { lines, .. } => lines.as_ptr().cast(),
            Keys::F16(lines) => lines.as_ptr().cast(),
        }
    }

    /// Returns the addresses of the scales of its keys and of its values.
    pub(super) fn scales_at(&self) -> [*const u8; 2] {
        let k = if let Keys::Q8 { scale, .. } = self.k { scale.as_ptr().cast() } else { self.keys_at() };
        let v = if let Values::Q8 { scale, .. } = self.v { scale.as_ptr().cast() } else { self.values_at() };
        [k, v]
    }

    /// Returns the address of its values.
    pub(super) fn values_at(&self) -> *const u8 {
        match self.v {
            Values::F32(rows) => rows.as_ptr().cast(),
            Values::F16(rows) => rows.as_ptr().cast(),
            Values::Q8 { q, .. } => q.as_ptr(),
        }
    }
}

/// Returns the `i`-th run of `len` items.
fn nth<T>(all: &[T], i: usize, len: usize) -> &[T] {
    &all[i * len..(i + 1) * len]
}

impl KvStore {
    /// Makes room for 32 tokens in `heads` heads of `d` dimensions, all zero.
    ///
    /// # Panics
    /// If `d` is 0.
    pub fn new(format: KvFormat, d: usize, heads: usize, memory: &KvMemory) -> Self {
        assert!(d > 0, "heads of 0 dimensions");
        let (width, padded) = (d.next_multiple_of(HALF), d.next_multiple_of(SHORT_LEN));
        let groups = padded / SHORT_LEN;
        let data = match format {
            KvFormat::F32 => {
                Data::F32 { k: memory.take(heads * 2 * d), v: memory.take(heads * CHUNK * width) }
            }
            KvFormat::F16 => {
                Data::F16 { k: memory.take(heads * 2 * d), v: memory.take(heads * CHUNK * width) }
            }
            KvFormat::Q8 => Data::Q8 {
                k: memory.take(heads * padded / 2),
                k_scale: memory.take(heads * 2 * groups),
                v: memory.take(heads * CHUNK * padded),
                v_scale: memory.take(heads * CHUNK * groups),
            },
        };
        Self { d, data }
    }

    /// Stores the key and the value of one token in one head.
    ///
    /// Shapes: `k, v: [d]`.
    ///
    /// # Panics
    /// If `head` or `slot` is outside the store, or a row is not `d` long.
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

    /// Copies the key and the value that another store holds in `from_slot` of the same head, bit for bit.
    ///
    /// # Panics
    /// If `head` or a slot is outside the stores, or the other has another shape or format.
    pub fn copy_token(&mut self, head: usize, slot: usize, from: &Self, from_slot: usize) {
        let d = self.d;
        assert!(slot < CHUNK && from_slot < CHUNK, "slots {slot} and {from_slot} of {CHUNK}");
        assert_eq!(d, from.d, "stores of one cache have one shape");
        let (width, groups) = (d.next_multiple_of(HALF), d.div_ceil(SHORT_LEN));
        let (to, of) =
            ((2 * head + slot / HALF, slot % HALF), (2 * head + from_slot / HALF, from_slot % HALF));
        let (to_row, of_row) = (head * CHUNK + slot, head * CHUNK + from_slot);
        let lines = |to: &mut [Line], of_lines: &[Line], n: usize| {
            for (line, of_line) in to.iter_mut().zip(of_lines).take(n) {
                line.0.as_chunks_mut::<4>().0[slot % HALF] = of_line.0.as_chunks::<4>().0[from_slot % HALF];
            }
        };
        match (&mut self.data, &from.data) {
            (Data::F32 { k, v }, Data::F32 { k: from_k, v: from_v }) => {
                lines(&mut k[to.0 * d..], &from_k[of.0 * d..], d);
                v[to_row * width..][..width].copy_from_slice(&from_v[of_row * width..][..width]);
            }
            (Data::F16 { k, v }, Data::F16 { k: from_k, v: from_v }) => {
                for (line, of_line) in k[to.0 * d..].iter_mut().zip(&from_k[of.0 * d..]).take(d) {
                    line[to.1] = of_line[of.1];
                }
                v[to_row * width..][..width].copy_from_slice(&from_v[of_row * width..][..width]);
            }
            (
                Data::Q8 { k, k_scale, v, v_scale },
                Data::Q8 { k: from_k, k_scale: from_k_scale, v: from_v, v_scale: from_v_scale },
            ) => {
                lines(&mut k[to.0 * groups * 8..], &from_k[of.0 * groups * 8..], groups * 8);
                for g in 0..groups {
                    k_scale[to.0 * groups + g][to.1] = from_k_scale[of.0 * groups + g][of.1];
                }
                let row = groups * SHORT_LEN;
                v[to_row * row..][..row].copy_from_slice(&from_v[of_row * row..][..row]);
                v_scale[to_row * groups..][..groups]
                    .copy_from_slice(&from_v_scale[of_row * groups..][..groups]);
            }
            _ => panic!("stores of one cache have one format"),
        }
    }

    /// Returns the first `n` keys and values of one head; `first` is the sequence position of the first one.
    ///
    /// # Panics
    /// If `head` is outside the store or `n` is above 32.
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

    /// Copies the contents of another store.
    ///
    /// # Panics
    /// If the other has another shape or format.
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
            (
                Data::Q8 { k, k_scale, v, v_scale },
                Data::Q8 { k: from_k, k_scale: from_k_scale, v: from_v, v_scale: from_v_scale },
            ) => {
                k.copy_from_slice(from_k);
                k_scale.copy_from_slice(from_k_scale);
                v.copy_from_slice(from_v);
                v_scale.copy_from_slice(from_v_scale);
            }
            _ => panic!("stores of one cache have one format"),
        }
    }
}

/// Returns group `g` of a row as signed bytes, zero past the row's end, and their scale as binary16 bits.
fn quantized(row: &[f32], g: usize) -> ([u8; SHORT_LEN], u16) {
    let part = &row[g * SHORT_LEN..row.len().min((g + 1) * SHORT_LEN)];
    let mut x = [0.0; SHORT_LEN];
    x[..part.len()].copy_from_slice(part);
    let mut q = [0; SHORT_LEN];
    let scale = quantize_block(&x, &mut q);
    let kept = f32_to_f16(scale);
    // Values are rounded in steps of the scale as it is kept. A group with a fault or of zeros already has
    // its bytes.
    let inverse = 1.0 / f16_to_f32(kept);
    if inverse.is_finite() {
        for (q, v) in q.iter_mut().zip(&x) {
            // The nearest integer; the low byte of `ROUND` is 0.
            *q = ((v * inverse).clamp(-127.0, 127.0) + ROUND).to_bits() as u8;
        }
    } else if scale.is_finite() {
        q = [0; SHORT_LEN];
    }
    (q, kept)
}
