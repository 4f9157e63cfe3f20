//! Super-blocks with codebooks of magnitudes (IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S).
//!
//! Each group tries a few steps. It rounds weights to signs and magnitudes, then each vector of magnitudes to
//! the nearest one that has a code. The step that explains most of the group is fitted to its vectors.

use std::sync::LazyLock;

use super::nearest::{nearest_codes, number};
use super::{extreme, inverse};
use crate::blocks::{
    IQ2_S_GRID, IQ2_VALUES, IQ2_XS_GRID, IQ2_XXS_GRID, IQ3_S_GRID, IQ3_S_VALUES, IQ3_XXS_GRID,
    IQ3_XXS_VALUES, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, K_LEN, Long,
};
use crate::f16::{f16_to_f32, f32_to_f16};
use crate::format::Format;

/// A codebook of vectors of `M` magnitudes.
struct Book<const M: usize> {
    /// The magnitudes, lowest first.
    values: &'static [u8],
    vectors: &'static [[u8; M]],
    nearest: Vec<u16>,
    /// Whether an even number of eight weights is negative.
    even: bool,
}

static IQ2_XXS: LazyLock<Book<8>> = LazyLock::new(|| Book::new(&IQ2_VALUES, &IQ2_XXS_GRID, true));
static IQ2_XS: LazyLock<Book<8>> = LazyLock::new(|| Book::new(&IQ2_VALUES, &IQ2_XS_GRID, true));
static IQ2_S: LazyLock<Book<8>> = LazyLock::new(|| Book::new(&IQ2_VALUES, &IQ2_S_GRID, false));
static IQ3_XXS: LazyLock<Book<4>> = LazyLock::new(|| Book::new(&IQ3_XXS_VALUES, &IQ3_XXS_GRID, true));
static IQ3_S: LazyLock<Book<4>> = LazyLock::new(|| Book::new(&IQ3_S_VALUES, &IQ3_S_GRID, false));

/// Eight weights: one code if vectors have eight members, two if they have four; and a bit for each negative
/// weight.
#[derive(Debug, Clone, Copy)]
struct Octet {
    codes: [u16; 2],
    signs: u8,
}

impl<const M: usize> Book<M> {
    fn new(values: &'static [u8], vectors: &'static [[u8; M]], even: bool) -> Self {
        Self { values, vectors, nearest: nearest_codes(values, vectors), even }
    }

    /// Rounds eight weights, `inverse` times as large.
    fn octet(&self, x: &[f32; 8], inverse: f32) -> Octet {
        let mut signs = x.iter().rev().fold(0, |signs, v| signs << 1 | u8::from(*v < 0.0));
        if self.even && signs.count_ones() % 2 == 1 {
            let smallest = (1..8).fold(0, |least, i| if x[i].abs() < x[least].abs() { i } else { least });
            signs ^= 1 << smallest;
        }
        let mut codes = [0; 2];
        for (code, x) in codes.iter_mut().zip(x.as_chunks::<M>().0) {
            *code = self.nearest[number(self.values.len(), x.map(|v| self.place(v.abs() * inverse)))];
        }
        Octet { codes, signs }
    }

    /// Returns the place of the nearest magnitude: the number of midpoints below `v`.
    fn place(&self, v: f32) -> usize {
        self.values.windows(2).take_while(|pair| 2.0 * v > f32::from(pair[0] + pair[1])).count()
    }

    fn members(&self, octet: Octet) -> [f32; 8] {
        std::array::from_fn(|i| {
            let v = f32::from(self.vectors[usize::from(octet.codes[i / M])][i % M]);
            if octet.signs >> i & 1 == 1 { -v } else { v }
        })
    }

    /// Returns the step with the least squared error among a few, each fitted to the vectors it rounds to.
    fn fit_step(&self, x: &[[f32; 8]]) -> f32 {
        let highest = self.values.iter().fold(0.0f32, |most, &v| most.max(f32::from(v)));
        let longest = extreme(x.as_flattened()).abs() / highest;
        let (mut step, mut most) = (0.0, 0.0);
        // The largest weight falls on so many eighths of the highest magnitude.
        for eighths in 1..=10 {
            let inverse = inverse(longest) * eighths as f32 / 8.0;
            let (mut with_x, mut with_self) = (0.0f32, 0.0f32);
            for x in x {
                for (member, v) in self.members(self.octet(x, inverse)).iter().zip(x) {
                    with_x += member * v;
                    with_self += member * member;
                }
            }
            // By this much the squared error is below the signal's square.
            let explained = with_x.max(0.0) * (with_x / with_self);
            if explained > most {
                (step, most) = (with_x / with_self, explained);
            }
        }
        step
    }

    /// Returns the bits of `d`, `s` of each scale `2 s + 1`, and the octets of a super-block of format `B` in
    /// groups of `OCTETS`.
    fn fit<B: Long, const OCTETS: usize, const GROUPS: usize>(
        &self,
        x: &[f32; K_LEN],
    ) -> (u16, [u8; GROUPS], [Octet; 32]) {
        let groups = x.as_chunks::<8>().0.as_chunks::<OCTETS>().0;
        let steps: [f32; GROUPS] = std::array::from_fn(|j| self.fit_step(&groups[j]));
        let d = f32_to_f16(extreme(&steps) / (31.0 * B::UNIT));
        let unit = f16_to_f32(d) * B::UNIT;
        let scales = steps.map(|step| ((step * inverse(unit) - 1.0) / 2.0).round().clamp(0.0, 15.0) as u8);
        let octets = std::array::from_fn(|i| {
            let step = unit * f32::from(2 * scales[i / OCTETS] + 1);
            self.octet(&groups[i / OCTETS][i % OCTETS], inverse(step))
        });
        (d, scales, octets)
    }
}

/// Returns the words of IQ2_XXS and IQ3_XXS: four times seven signs, and a scale.
fn sign_words<'a>(scales: &'a [u8; 8], octets: &'a [Octet; 32]) -> impl Iterator<Item = [u8; 4]> + 'a {
    scales.iter().zip(octets.as_chunks::<4>().0).map(|(scale, four)| {
        let signs = four.iter().rev().fold(0, |word, octet| word << 7 | u32::from(octet.signs & 127));
        (signs | u32::from(*scale) << 28).to_le_bytes()
    })
}

/// Writes scales as nibbles, low nibbles first.
fn put_nibbles(scales: &[u8], out: &mut [u8]) {
    for (byte, two) in out.iter_mut().zip(scales.as_chunks::<2>().0) {
        *byte = two[0] | two[1] << 4;
    }
}

pub(super) fn iq2_xxs_block(x: &[f32; K_LEN]) -> [u8; Format::Iq2Xxs.block_bytes()] {
    let (d, scales, octets) = IQ2_XXS.fit::<Iq2Xxs, 4, 8>(x);
    let mut out = [0; Format::Iq2Xxs.block_bytes()];
    out[0..2].copy_from_slice(&d.to_le_bytes());
    for (j, word) in sign_words(&scales, &octets).enumerate() {
        let codes: [u8; 4] = std::array::from_fn(|i| octets[4 * j + i].codes[0] as u8);
        out[2 + 8 * j..6 + 8 * j].copy_from_slice(&codes);
        out[6 + 8 * j..10 + 8 * j].copy_from_slice(&word);
    }
    out
}

pub(super) fn iq2_xs_block(x: &[f32; K_LEN]) -> [u8; Format::Iq2Xs.block_bytes()] {
    let (d, scales, octets) = IQ2_XS.fit::<Iq2Xs, 2, 16>(x);
    let mut out = [0; Format::Iq2Xs.block_bytes()];
    out[0..2].copy_from_slice(&d.to_le_bytes());
    for (i, octet) in octets.iter().enumerate() {
        let packed = octet.codes[0] | u16::from(octet.signs & 127) << 9;
        out[2 + 2 * i..4 + 2 * i].copy_from_slice(&packed.to_le_bytes());
    }
    put_nibbles(&scales, &mut out[66..]);
    out
}

pub(super) fn iq2_s_block(x: &[f32; K_LEN]) -> [u8; Format::Iq2S.block_bytes()] {
    let (d, scales, octets) = IQ2_S.fit::<Iq2S, 2, 16>(x);
    let mut out = [0; Format::Iq2S.block_bytes()];
    out[0..2].copy_from_slice(&d.to_le_bytes());
    for (i, octet) in octets.iter().enumerate() {
        out[2 + i] = octet.codes[0] as u8;
        out[34 + i] = octet.signs;
        out[66 + i / 4] |= ((octet.codes[0] >> 8) as u8) << (2 * (i % 4));
    }
    put_nibbles(&scales, &mut out[74..]);
    out
}

pub(super) fn iq3_xxs_block(x: &[f32; K_LEN]) -> [u8; Format::Iq3Xxs.block_bytes()] {
    let (d, scales, octets) = IQ3_XXS.fit::<Iq3Xxs, 4, 8>(x);
    let mut out = [0; Format::Iq3Xxs.block_bytes()];
    out[0..2].copy_from_slice(&d.to_le_bytes());
    for (i, octet) in octets.iter().enumerate() {
        out[2 + 2 * i..4 + 2 * i].copy_from_slice(&octet.codes.map(|code| code as u8));
    }
    for (to, word) in out[66..].as_chunks_mut::<4>().0.iter_mut().zip(sign_words(&scales, &octets)) {
        *to = word;
    }
    out
}

pub(super) fn iq3_s_block(x: &[f32; K_LEN]) -> [u8; Format::Iq3S.block_bytes()] {
    let (d, scales, octets) = IQ3_S.fit::<Iq3S, 4, 8>(x);
    let mut out = [0; Format::Iq3S.block_bytes()];
    out[0..2].copy_from_slice(&d.to_le_bytes());
    for (i, octet) in octets.iter().enumerate() {
        out[2 + 2 * i..4 + 2 * i].copy_from_slice(&octet.codes.map(|code| code as u8));
        let ninths = octet.codes.map(|code| (code >> 8) as u8);
        out[66 + i / 4] |= (ninths[0] | ninths[1] << 1) << (2 * (i % 4));
        out[74 + i] = octet.signs;
    }
    put_nibbles(&scales, &mut out[106..]);
    out
}
