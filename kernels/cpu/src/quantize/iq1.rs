//! Ternary super-blocks (IQ1_S, IQ1_M).
//!
//! Each group tries a few steps. It rounds to vectors of -1, 0 and 1, then each vector to the nearest one
//! that has a code. The step with the least error is then fitted to its vectors once more.

use std::sync::LazyLock;

use super::nearest::{nearest_codes, number};
use super::{extreme, inverse};
use crate::blocks::{K_LEN, TERNARY_GRID, TERNARY_VALUES};
use crate::f16::{f16_to_f32, f32_to_f16};
use crate::format::Format;

/// Added to each member, or subtracted from it.
const DELTA: f32 = 0.125;

/// The code nearest to each vector.
static NEAREST: LazyLock<Vec<u16>> = LazyLock::new(|| nearest_codes(&TERNARY_VALUES, &TERNARY_GRID));

/// A code, and whether [`DELTA`] is subtracted from its members.
#[derive(Debug, Clone, Copy, Default)]
struct Octet {
    code: u16,
    negative: bool,
}

impl Octet {
    fn nearest(x: &[f32; 8], inverse: f32, negative: bool) -> Self {
        let delta = if negative { -DELTA } else { DELTA };
        let places = x.map(|v| ((v * inverse - delta).round().clamp(-1.0, 1.0) + 1.0) as usize);
        Self { code: NEAREST[number(TERNARY_VALUES.len(), places)], negative }
    }

    fn members(self) -> [f32; 8] {
        let above = if self.negative { -1.0 - DELTA } else { DELTA - 1.0 };
        TERNARY_GRID[usize::from(self.code)].map(|member| f32::from(member) + above)
    }

    fn error(self, x: &[f32; 8], step: f32) -> f32 {
        self.members().iter().zip(x).map(|(member, v)| (v - step * member) * (v - step * member)).sum()
    }
}

/// Returns the codes of a group at a given step, and their squared error. `same_sign` octets in a row share
/// their sign.
fn round_group<const OCTETS: usize>(
    x: &[[f32; 8]; OCTETS],
    step: f32,
    same_sign: usize,
) -> ([Octet; OCTETS], f32) {
    let inverse = inverse(step);
    let mut octets = [Octet::default(); OCTETS];
    let mut total = 0.0;
    for (octets, x) in octets.chunks_mut(same_sign).zip(x.chunks(same_sign)) {
        let mut best = f32::INFINITY;
        for negative in [false, true] {
            let error = x.iter().map(|x| Octet::nearest(x, inverse, negative).error(x, step)).sum();
            if error < best {
                best = error;
                for (octet, x) in octets.iter_mut().zip(x) {
                    *octet = Octet::nearest(x, inverse, negative);
                }
            }
        }
        total += best;
    }
    (octets, total)
}

/// Returns the step with the least squared error among a few, fitted to the vectors it rounds to.
fn fit_step<const OCTETS: usize>(x: &[[f32; 8]; OCTETS], same_sign: usize) -> f32 {
    let longest = extreme(x.as_flattened()).abs() / (1.0 + DELTA);
    let (mut step, mut least) = (0.0, f32::INFINITY);
    for eighths in 2..=8 {
        let tried = longest * eighths as f32 / 8.0;
        let (octets, error) = round_group(x, tried, same_sign);
        if error < least {
            least = error;
            let pairs = || octets.iter().zip(x).flat_map(|(octet, x)| octet.members().into_iter().zip(x));
            let with_x: f32 = pairs().map(|(member, v)| member * v).sum();
            let with_self: f32 = pairs().map(|(member, _)| member * member).sum();
            step = (with_x / with_self).max(0.0);
        }
    }
    step
}

/// Returns the unit, `s` of each odd scale `2 s + 1`, and the octets of a super-block in groups of `OCTETS`.
fn fit_block<const OCTETS: usize, const GROUPS: usize>(
    x: &[f32; K_LEN],
    same_sign: usize,
) -> (u16, [u8; GROUPS], [[Octet; OCTETS]; GROUPS]) {
    let groups = x.as_chunks::<8>().0.as_chunks::<OCTETS>().0;
    let steps: [f32; GROUPS] = std::array::from_fn(|j| fit_step(&groups[j], same_sign));
    let d = f32_to_f16(extreme(&steps) / 15.0);
    let unit = f16_to_f32(d);
    let scales = steps.map(|step| ((step * inverse(unit) - 1.0) / 2.0).round().clamp(0.0, 7.0) as u8);
    let octets = std::array::from_fn(|j| {
        let step = unit * f32::from(2 * scales[j] + 1);
        round_group(&groups[j], step, same_sign).0
    });
    (d, scales, octets)
}

pub(super) fn iq1_s_block(x: &[f32; K_LEN]) -> [u8; Format::Iq1S.block_bytes()] {
    let (d, scales, groups) = fit_block::<4, 8>(x, 4);
    let mut out = [0; Format::Iq1S.block_bytes()];
    out[0..2].copy_from_slice(&d.to_le_bytes());
    for (j, (scale, octets)) in scales.iter().zip(groups).enumerate() {
        let mut high = u16::from(*scale) << 12 | u16::from(octets[0].negative) << 15;
        for (i, octet) in octets.iter().enumerate() {
            out[2 + 4 * j + i] = octet.code as u8;
            high |= octet.code >> 8 << (3 * i);
        }
        out[34 + 2 * j..36 + 2 * j].copy_from_slice(&high.to_le_bytes());
    }
    out
}

pub(super) fn iq1_m_block(x: &[f32; K_LEN]) -> [u8; Format::Iq1M.block_bytes()] {
    let (d, scales, groups) = fit_block::<2, 16>(x, 1);
    let mut out = [0; Format::Iq1M.block_bytes()];
    for (i, octet) in groups.as_flattened().iter().enumerate() {
        out[i] = octet.code as u8;
        out[32 + i / 2] |= ((octet.code >> 8) as u8 | u8::from(octet.negative) << 3) << (4 * (i % 2));
    }
    for (i, four) in scales.as_chunks::<4>().0.iter().enumerate() {
        let nibble = d >> (4 * i) & 15;
        let packed = four.iter().rev().fold(nibble, |packed, s| packed << 3 | u16::from(*s));
        out[48 + 2 * i..50 + 2 * i].copy_from_slice(&packed.to_le_bytes());
    }
    out
}
