//! Storage of keys and values: blocks of 32 tokens, laid out for the loops that read them.
//!
//! Keys lie in two halves of sixteen tokens, `[2, d]` lines of sixteen. The tokens are the lanes, so a score
//! is a sum inside its lane and reading needs no transpose. Values lie in rows, `[32, d]`.
//!
//! In the quantized formats each 32 dimensions of a token (a group) have their own scale, as in Q8_0 and
//! Q4_0. A line of byte keys holds four dimensions of sixteen tokens. With four bits a byte holds dimension
//! `i` of its group in its low half and dimension `i + 16` in its high half, both plus 8.

mod raw;
mod rows;

use super::memory::{KvMemory, Part};
use super::quants::{GroupBytes, NIBBLE_BYTES, to_bytes, to_nibbles};
use super::{CHUNK, PART};
use crate::blocks::SHORT_LEN;
use crate::f16::f32_to_f16;
use crate::simd::Line;

/// Tokens of half a block.
pub(super) const HALF: usize = CHUNK / 2;

/// The number format of stored keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvFormat {
    /// Floats as computed.
    F32,
    /// Rounded to half precision: half the memory.
    #[default]
    F16,
    /// Signed bytes with a binary16 scale for each 32 dimensions: a bit more than a quarter of the memory.
    Q8,
    /// Four bits with a binary16 scale for each 32 dimensions: a bit more than an eighth of the memory.
    Q4,
}

/// The text is not the name of a [`KvFormat`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a format of keys and values: use f32, f16, q8 or q4")]
pub struct UnknownKvFormat(String);

impl std::str::FromStr for KvFormat {
    type Err = UnknownKvFormat;

    fn from_str(name: &str) -> Result<Self, UnknownKvFormat> {
        let found = Self::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| UnknownKvFormat(name.chars().take(40).collect()))
    }
}

impl std::fmt::Display for KvFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl KvFormat {
    /// Every format, the most exact first.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Q8, Self::Q4];

    /// Returns its name, as options write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
        }
    }

    /// Returns the bytes of the keys and values of one token in one head of `d` dimensions.
    pub fn token_bytes(self, d: usize) -> usize {
        match self {
            Self::F32 => 4 * (d + d.next_multiple_of(HALF)),
            Self::F16 => 2 * (d + d.next_multiple_of(HALF)),
            Self::Q8 => 2 * d.div_ceil(SHORT_LEN) * (SHORT_LEN + 2),
            Self::Q4 => 2 * d.div_ceil(SHORT_LEN) * (NIBBLE_BYTES + 2),
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
    Q8(Quants),
    Q4(Quants),
}

/// Quantized keys and values.
#[derive(Debug)]
struct Quants {
    /// `[heads, 2, groups]` runs of lines: eight of bytes, four of half bytes.
    k: Part<Line>,
    /// `[heads, 2, groups]`.
    k_scale: Part<[u16; HALF]>,
    /// `[heads, 32, groups]` runs of bytes: 32, or 16 of two half bytes each.
    v: Part<u8>,
    /// `[heads, 32, groups]`.
    v_scale: Part<u16>,
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
    /// `[2, d / 8]` lines of half bytes, `[2, d / 32]` scales.
    Q4 { lines: &'a [Line], scale: &'a [[u16; HALF]] },
}

/// Values of one head: rows of `d` rounded up to whole lanes (for `Q8` and `Q4` to 32).
#[derive(Debug, Clone, Copy)]
pub(super) enum Values<'a> {
    F32(&'a [f32]),
    F16(&'a [u16]),
    /// With `[32, d / 32]` scales.
    Q8 {
        q: &'a [u8],
        scale: &'a [u16],
    },
    /// Half bytes, with `[32, d / 32]` scales.
    Q4 {
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
    /// Returns the number of the part of the keys that the block belongs to.
    pub(super) fn part(&self) -> usize {
        self.first / PART
    }

    /// Returns the address of its keys.
    pub(super) fn keys_at(&self) -> *const u8 {
        match self.k {
            Keys::F32(lines) | Keys::Q8 { lines, .. } | Keys::Q4 { lines, .. } => lines.as_ptr().cast(),
            Keys::F16(lines) => lines.as_ptr().cast(),
        }
    }

    /// Returns the addresses of the scales of its keys and of its values.
    pub(super) fn scales_at(&self) -> [*const u8; 2] {
        let k = match self.k {
            Keys::Q8 { scale, .. } | Keys::Q4 { scale, .. } => scale.as_ptr().cast(),
            Keys::F32(_) | Keys::F16(_) => self.keys_at(),
        };
        let v = match self.v {
            Values::Q8 { scale, .. } | Values::Q4 { scale, .. } => scale.as_ptr().cast(),
            Values::F32(_) | Values::F16(_) => self.values_at(),
        };
        [k, v]
    }

    /// Returns the address of its values.
    pub(super) fn values_at(&self) -> *const u8 {
        match self.v {
            Values::F32(rows) => rows.as_ptr().cast(),
            Values::F16(rows) => rows.as_ptr().cast(),
            Values::Q8 { q, .. } | Values::Q4 { q, .. } => q.as_ptr(),
        }
    }
}

impl Quants {
    /// Makes room for groups of `group_bytes` bytes, all zero.
    fn new(group_bytes: usize, d: usize, heads: usize, memory: &KvMemory) -> Self {
        let groups = d.div_ceil(SHORT_LEN);
        Self {
            k: memory.take(heads * 2 * groups * (group_bytes / 4)),
            k_scale: memory.take(heads * 2 * groups),
            v: memory.take(heads * CHUNK * groups * group_bytes),
            v_scale: memory.take(heads * CHUNK * groups),
        }
    }

    /// Stores one token, whose groups `quantized` makes of a row of `d` floats.
    fn write<const BYTES: usize>(
        &mut self,
        (head, slot): (usize, usize),
        (k, v): (&[f32], &[f32]),
        quantized: impl Fn(&[f32], usize) -> GroupBytes<BYTES>,
    ) {
        let (groups, half, lane) = (k.len().div_ceil(SHORT_LEN), slot / HALF, slot % HALF);
        for g in 0..groups {
            let (q, scale) = quantized(k, g);
            let at = (2 * head + half) * groups + g;
            self.k_scale[at][lane] = scale;
            let lines = &mut self.k[at * (BYTES / 4)..][..BYTES / 4];
            for (line, four) in lines.iter_mut().zip(q.as_chunks::<4>().0) {
                line.0.as_chunks_mut().0[lane] = *four;
            }
            let (q, scale) = quantized(v, g);
            let at = (head * CHUNK + slot) * groups + g;
            self.v_scale[at] = scale;
            self.v[at * BYTES..][..BYTES].copy_from_slice(&q);
        }
    }

    /// Copies one token of groups of `group_bytes` bytes.
    fn copy_token(
        &mut self,
        (head, slot): (usize, usize),
        from: &Self,
        from_slot: usize,
        groups: usize,
        group_bytes: usize,
    ) {
        let of = |slot: usize| (2 * head + slot / HALF) * groups;
        let n_lines = group_bytes / 4;
        copy_lane(&mut self.k[of(slot) * n_lines..], slot, &from.k[of(from_slot) * n_lines..], from_slot, {
            groups * n_lines
        });
        for g in 0..groups {
            self.k_scale[of(slot) + g][slot % HALF] = from.k_scale[of(from_slot) + g][from_slot % HALF];
        }
        let (to, of) = ((head * CHUNK + slot) * groups, (head * CHUNK + from_slot) * groups);
        self.v[to * group_bytes..][..groups * group_bytes]
            .copy_from_slice(&from.v[of * group_bytes..][..groups * group_bytes]);
        self.v_scale[to..][..groups].copy_from_slice(&from.v_scale[of..][..groups]);
    }

    fn copy_from(&mut self, other: &Self) {
        self.k.copy_from_slice(&other.k);
        self.k_scale.copy_from_slice(&other.k_scale);
        self.v.copy_from_slice(&other.v);
        self.v_scale.copy_from_slice(&other.v_scale);
    }
}

/// Copies the four bytes of one token's lane in each of the first `n` lines.
fn copy_lane(to: &mut [Line], slot: usize, from: &[Line], from_slot: usize, n: usize) {
    for (line, from) in to.iter_mut().zip(from).take(n) {
        line.0.as_chunks_mut::<4>().0[slot % HALF] = from.0.as_chunks::<4>().0[from_slot % HALF];
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
        let width = d.next_multiple_of(HALF);
        let data = match format {
            KvFormat::F32 => {
                Data::F32 { k: memory.take(heads * 2 * d), v: memory.take(heads * CHUNK * width) }
            }
            KvFormat::F16 => {
                Data::F16 { k: memory.take(heads * 2 * d), v: memory.take(heads * CHUNK * width) }
            }
            KvFormat::Q8 => Data::Q8(Quants::new(SHORT_LEN, d, heads, memory)),
            KvFormat::Q4 => Data::Q4(Quants::new(NIBBLE_BYTES, d, heads, memory)),
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
            Data::Q8(quants) => quants.write((head, slot), (k, v), to_bytes),
            Data::Q4(quants) => quants.write((head, slot), (k, v), to_nibbles),
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
        match (&mut self.data, &from.data) {
            (Data::F32 { k, v }, Data::F32 { k: from_k, v: from_v }) => {
                copy_lane(&mut k[to.0 * d..], slot, &from_k[of.0 * d..], from_slot, d);
                v[to_row * width..][..width].copy_from_slice(&from_v[of_row * width..][..width]);
            }
            (Data::F16 { k, v }, Data::F16 { k: from_k, v: from_v }) => {
                for (line, of_line) in k[to.0 * d..].iter_mut().zip(&from_k[of.0 * d..]).take(d) {
                    line[to.1] = of_line[of.1];
                }
                v[to_row * width..][..width].copy_from_slice(&from_v[of_row * width..][..width]);
            }
            (Data::Q8(to), Data::Q8(from)) => to.copy_token((head, slot), from, from_slot, groups, SHORT_LEN),
            (Data::Q4(to), Data::Q4(from)) => {
                to.copy_token((head, slot), from, from_slot, groups, NIBBLE_BYTES)
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
            Data::Q8(quants) => (
                Keys::Q8 {
                    lines: nth(&quants.k, head, 16 * groups),
                    scale: nth(&quants.k_scale, head, 2 * groups),
                },
                Values::Q8 {
                    q: nth(&quants.v, head, CHUNK * groups * SHORT_LEN),
                    scale: nth(&quants.v_scale, head, CHUNK * groups),
                },
            ),
            Data::Q4(quants) => (
                Keys::Q4 {
                    lines: nth(&quants.k, head, 8 * groups),
                    scale: nth(&quants.k_scale, head, 2 * groups),
                },
                Values::Q4 {
                    q: nth(&quants.v, head, CHUNK * groups * NIBBLE_BYTES),
                    scale: nth(&quants.v_scale, head, CHUNK * groups),
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
            (Data::Q8(to), Data::Q8(from)) | (Data::Q4(to), Data::Q4(from)) => to.copy_from(from),
            _ => panic!("stores of one cache have one format"),
        }
    }
}
