//! The lanes of [`Simd`] in groups of four NEON registers. The levels are in [`bytes`]; they differ in their
//! byte products.

#![allow(
    clippy::needless_range_loop,
    reason = "one index names the same row in the source and in the transpose; see `simd` on closures"
)]

mod bytes;

use std::arch::aarch64::*;
use std::arch::asm;

use super::{Kernel, Line, Simd};
use bytes::Bytes;
pub(crate) use bytes::{Dotprod, I8mm, Widening};

/// Witness that the CPU has NEON and what `M` needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neon<M>(M);

/// Wraps one intrinsic, or one function of this module, that needs only NEON.
macro_rules! checked {
    ($e:expr) => {{
        // SAFETY: a witness exists only if `has_neon` found the feature; a reference is valid memory.
        unsafe { $e }
    }};
}

/// Repeats `$e` for registers 0..4; `$i` is the register's index in it.
macro_rules! four {
    ($i:ident => $e:expr) => {
        [
            four!(@ 0, $i => $e),
            four!(@ 1, $i => $e),
            four!(@ 2, $i => $e),
            four!(@ 3, $i => $e),
        ]
    };
    (@ $n:literal, $i:ident => $e:expr) => {{
        const $i: usize = $n;
        checked!($e)
    }};
}

/// Lanes 0..4, 4..8, 8..12 and 12..16.
type Four = [float32x4_t; 4];
type IntFour = [int32x4_t; 4];

impl<M: Bytes> Simd for Neon<M> {
    type F = Four;
    type I = IntFour;
    const WIDE: bool = false;
    const RAISES_SIGNED: bool = false;
    const PAIRS: bool = M::PAIRS;

    #[inline(always)]
    fn enter<K: Kernel>(self, kernel: K) {
        M::enter(self, kernel);
    }

    #[inline(always)]
    fn splat(self, v: f32) -> Four {
        [checked!(vdupq_n_f32(v)); 4]
    }
    #[inline(always)]
    fn load(self, v: &[f32; 16]) -> Four {
        let v = v.as_chunks::<4>().0;
        four!(I => vld1q_f32(v[I].as_ptr()))
    }
    #[inline(always)]
    fn load_line(self, v: &Line) -> Four {
        let v = v.0.as_chunks::<16>().0;
        four!(I => vld1q_f32(v[I].as_ptr().cast()))
    }
    #[inline(always)]
    fn store(self, v: Four, to: &mut [f32; 16]) {
        let to = to.as_chunks_mut::<4>().0;
        for i in 0..4 {
            checked!(vst1q_f32(to[i].as_mut_ptr(), v[i]));
        }
    }
    #[inline(always)]
    fn add(self, a: Four, b: Four) -> Four {
        four!(I => vaddq_f32(a[I], b[I]))
    }
    #[inline(always)]
    fn sub(self, a: Four, b: Four) -> Four {
        four!(I => vsubq_f32(a[I], b[I]))
    }
    #[inline(always)]
    fn mul(self, a: Four, b: Four) -> Four {
        four!(I => vmulq_f32(a[I], b[I]))
    }
    #[inline(always)]
    fn div(self, a: Four, b: Four) -> Four {
        four!(I => vdivq_f32(a[I], b[I]))
    }
    #[inline(always)]
    fn fma(self, a: Four, b: Four, c: Four) -> Four {
        four!(I => vfmaq_f32(c[I], a[I], b[I]))
    }
    #[inline(always)]
    fn tree_sum(self, v: Four) -> f32 {
        checked!(tree_sum(v))
    }
    #[inline(always)]
    fn larger(self, a: Four, b: Four) -> Four {
        four!(I => larger(a[I], b[I]))
    }
    #[inline(always)]
    fn tree_largest(self, v: Four) -> f32 {
        checked!(tree_largest(v))
    }
    #[inline(always)]
    fn keep(self, mask: u16, v: Four, other: Four) -> Four {
        four!(I => keep(mask >> (4 * I), v[I], other[I]))
    }
    #[inline(always)]
    fn where_less(self, a: Four, b: Four, then: Four, other: Four) -> Four {
        four!(I => where_less(a[I], b[I], then[I], other[I]))
    }
    #[inline(always)]
    fn power_of_two(self, shifted: Four) -> Four {
        four!(I => power_of_two(shifted[I]))
    }
    #[inline(always)]
    fn splat_int(self, v: i32) -> IntFour {
        [checked!(vdupq_n_s32(v)); 4]
    }
    #[inline(always)]
    fn to_float(self, v: IntFour) -> Four {
        four!(I => vcvtq_f32_s32(v[I]))
    }
    #[inline(always)]
    fn add_int(self, a: IntFour, b: IntFour) -> IntFour {
        four!(I => vaddq_s32(a[I], b[I]))
    }
    #[inline(always)]
    fn mul_int(self, a: IntFour, b: IntFour) -> IntFour {
        four!(I => vmulq_s32(a[I], b[I]))
    }
    #[inline(always)]
    fn shift_down<const N: u32>(self, v: IntFour) -> IntFour {
        four!(I => vshlq_s32(v[I], vdupq_n_s32(-(N as i32))))
    }
    #[inline(always)]
    fn or(self, a: IntFour, b: IntFour) -> IntFour {
        four!(I => vorrq_s32(a[I], b[I]))
    }
    #[inline(always)]
    fn load_units(self, line: &Line) -> IntFour {
        self.units(&line.0)
    }
    #[inline(always)]
    fn store_units(self, v: IntFour, line: &mut Line) {
        let to = line.0.as_chunks_mut::<16>().0;
        for i in 0..4 {
            checked!(vst1q_s32(to[i].as_mut_ptr().cast(), v[i]));
        }
    }
    #[inline(always)]
    fn dot_small(self, acc: IntFour, w: IntFour, x: IntFour) -> IntFour {
        self.dot_signed(acc, w, x)
    }
    #[inline(always)]
    fn dot_signed(self, acc: IntFour, w: IntFour, x: IntFour) -> IntFour {
        let mut sums = acc;
        for i in 0..4 {
            sums[i] = self.0.dot(acc[i], w[i], x[i]);
        }
        sums
    }
    #[inline(always)]
    fn dot_pairs<const T: usize>(self, dot: [IntFour; T], w: &[Line], x: [&[u8]; T]) -> [IntFour; T] {
        M::dot_pairs(self, dot, w, x)
    }
    #[inline(always)]
    fn dot_scaled(self, acc: IntFour, w: IntFour, x: IntFour, scale: IntFour) -> IntFour {
        let dot = self.dot_signed(self.splat_int(0), w, x);
        four!(I => vmlaq_s32(acc[I], dot[I], scale[I]))
    }
    #[inline(always)]
    fn dot_words(self, acc: IntFour, a: IntFour, b: IntFour) -> IntFour {
        four!(I => dot_words(acc[I], a[I], b[I]))
    }
    /// Both words of a lane are filled: the high word extends the sign, so a lane is its scale.
    #[inline(always)]
    fn spread<const A: u8, const B: u8, const C: u8, const D: u8>(self, four: u32) -> IntFour {
        let byte = |at: u8| i32::from(four.to_le_bytes()[usize::from(at)] as i8);
        let of = [byte(A), byte(B), byte(C), byte(D)];
        four!(I => vdupq_n_s32(of[I]))
    }
    #[inline(always)]
    fn low_word(self, v: IntFour) -> IntFour {
        four!(I => vshrq_n_s32::<16>(vshlq_n_s32::<16>(v[I])))
    }
    #[inline(always)]
    fn byte<const AT: u32>(self, v: IntFour) -> IntFour {
        let top = four!(I => vshlq_s32(v[I], vdupq_n_s32(24 - 8 * AT as i32)));
        self.shift_down::<24>(top)
    }
    #[inline(always)]
    fn even_bytes(self, v: IntFour) -> IntFour {
        four!(I => even_bytes(v[I]))
    }
    #[inline(always)]
    fn odd_bytes(self, v: IntFour) -> IntFour {
        four!(I => odd_bytes(v[I]))
    }
    #[inline(always)]
    fn reduce(self, rows: [IntFour; 16]) -> IntFour {
        let mut sums = [rows[0][0]; 16];
        for i in 0..16 {
            sums[i] = checked!(sum_four(rows[i]));
        }
        four!(I => sum_each([sums[4 * I], sums[4 * I + 1], sums[4 * I + 2], sums[4 * I + 3]]))
    }
    #[inline(always)]
    fn quarter_sums(self, rows: [IntFour; 4]) -> IntFour {
        four!(I => sum_each([rows[0][I], rows[1][I], rows[2][I], rows[3][I]]))
    }
    #[inline(always)]
    fn quarter_firsts(self, rows: [IntFour; 4]) -> IntFour {
        four!(I => firsts([rows[0][I], rows[1][I], rows[2][I], rows[3][I]]))
    }
    #[inline(always)]
    fn transpose_quarters(self, rows: [IntFour; 4]) -> [IntFour; 4] {
        let mut columns = rows;
        for i in 0..4 {
            for j in 0..4 {
                columns[j][i] = rows[i][j];
            }
        }
        columns
    }
    #[inline(always)]
    fn units(self, bytes: &[u8; 64]) -> IntFour {
        let bytes = bytes.as_chunks::<16>().0;
        four!(I => load_bytes(&bytes[I]))
    }
    #[inline(always)]
    fn joined(self, low: &[u8; 32], high: &[u8; 32]) -> IntFour {
        let (low, high) = (low.as_chunks::<16>().0, high.as_chunks::<16>().0);
        four!(I => load_bytes(if I < 2 { &low[I % 2] } else { &high[I % 2] }))
    }
    #[inline(always)]
    fn quarters(self, from: [&[u8; 16]; 4]) -> IntFour {
        four!(I => load_bytes(from[I]))
    }
    #[inline(always)]
    fn low_nibbles(self, v: IntFour) -> IntFour {
        four!(I => low_nibbles(v[I]))
    }
    #[inline(always)]
    fn high_nibbles(self, v: IntFour) -> IntFour {
        four!(I => high_nibbles(v[I]))
    }
    #[inline(always)]
    fn two_bits<const AT: u32>(self, v: IntFour) -> IntFour {
        four!(I => two_bits::<AT>(v[I]))
    }
    #[inline(always)]
    fn bit_pairs(self, bytes: &[u8; 32]) -> [IntFour; 2] {
        let bytes = bytes.as_chunks::<16>().0;
        let (low, high) = (checked!(load_bytes(&bytes[0])), checked!(load_bytes(&bytes[1])));
        checked!([
            [two_bits::<0>(low), two_bits::<0>(high), two_bits::<2>(low), two_bits::<2>(high)],
            [two_bits::<4>(low), two_bits::<4>(high), two_bits::<6>(low), two_bits::<6>(high)],
        ])
    }
    #[inline(always)]
    fn nibble_pair(self, a: &[u8; 16], b: &[u8; 16]) -> IntFour {
        let (a, b) = (checked!(load_bytes(a)), checked!(load_bytes(b)));
        checked!([low_nibbles(a), high_nibbles(a), low_nibbles(b), high_nibbles(b)])
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 16], v: IntFour) -> IntFour {
        let table = checked!(load_bytes(table));
        four!(I => look_up(table, v[I]))
    }
    #[inline(always)]
    fn fifth_bits(self, v: IntFour, bits: u64) -> IntFour {
        let bits = checked!(vreinterpretq_s32_u64(vdupq_n_u64(bits)));
        four!(I => fifth_bits(v[I], bits, 2 * I as u8))
    }
    #[inline(always)]
    fn fifth_bits_of<const AT: u8>(self, v: IntFour, heads: IntFour) -> IntFour {
        four!(I => fifth_bits(v[I], heads[I], AT))
    }
    #[inline(always)]
    fn raised(self, v: IntFour) -> IntFour {
        v
    }
    #[inline(always)]
    fn bits(self, v: Four) -> IntFour {
        four!(I => vreinterpretq_s32_f32(v[I]))
    }
    #[inline(always)]
    fn floats_of(self, v: IntFour) -> Four {
        four!(I => vreinterpretq_f32_s32(v[I]))
    }
    #[inline(always)]
    fn widen(self, halves: &[u16; 16]) -> Four {
        let halves = halves.as_chunks::<4>().0;
        four!(I => widen(&halves[I]))
    }
    #[inline(always)]
    fn widen_low(self, v: IntFour) -> Four {
        four!(I => widen_units(vreinterpretq_u32_s32(v[I])))
    }
    #[inline(always)]
    fn widen_high(self, v: IntFour) -> Four {
        four!(I => widen_units(vshrq_n_u32::<16>(vreinterpretq_u32_s32(v[I]))))
    }
    #[inline(always)]
    fn widen_bytes(self, bytes: &[u8; 16]) -> Four {
        let bytes = checked!(vld1q_s8(bytes.as_ptr().cast()));
        let (low, high) = (checked!(vmovl_s8(vget_low_s8(bytes))), checked!(vmovl_high_s8(bytes)));
        let quarters = [
            checked!(vmovl_s16(vget_low_s16(low))),
            checked!(vmovl_high_s16(low)),
            checked!(vmovl_s16(vget_low_s16(high))),
            checked!(vmovl_high_s16(high)),
        ];
        self.to_float(quarters)
    }
    #[inline(always)]
    fn transpose(self, rows: [IntFour; 16]) -> [IntFour; 16] {
        let mut columns = rows;
        for part in 0..4 {
            for group in 0..4 {
                let mut square = rows[0];
                for i in 0..4 {
                    square[i] = rows[4 * group + i][part];
                }
                let square = checked!(transpose(square));
                for i in 0..4 {
                    columns[4 * part + i][group] = square[i];
                }
            }
        }
        columns
    }
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a prefetch reads nothing and cannot fault, whatever the address.
        unsafe {
            asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(readonly, nostack, preserves_flags))
        }
    }
    #[inline(always)]
    fn prefetch_far(self, at: *const u8) {
        // SAFETY: a prefetch reads nothing and cannot fault, whatever the address.
        unsafe {
            asm!("prfm pldl2keep, [{at}]", at = in(reg) at, options(readonly, nostack, preserves_flags))
        }
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn load_bytes(bytes: &[u8; 16]) -> int32x4_t {
    // SAFETY: the reference is valid for the 16 bytes that are read.
    let bytes = unsafe { vld1q_u8(bytes.as_ptr()) };
    vreinterpretq_s32_u8(bytes)
}

#[inline]
#[target_feature(enable = "neon")]
fn tree_sum(v: Four) -> f32 {
    let four = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
    let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
}

/// `fmax` returns NaN if either is NaN, and it orders zeros. This returns the second, as the definition does.
#[inline]
#[target_feature(enable = "neon")]
fn larger(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(vcgtq_f32(a, b), a, b)
}

#[inline]
#[target_feature(enable = "neon")]
fn tree_largest(v: Four) -> f32 {
    let four = larger(larger(v[0], v[2]), larger(v[1], v[3]));
    let (low, high) = (vget_low_f32(four), vget_high_f32(four));
    let two = vbsl_f32(vcgt_f32(low, high), low, high);
    crate::rows::larger(vget_lane_f32::<0>(two), vget_lane_f32::<1>(two))
}

#[inline]
#[target_feature(enable = "neon")]
fn keep(mask: u16, v: float32x4_t, other: float32x4_t) -> float32x4_t {
    const BIT: [u32; 4] = [1, 2, 4, 8];
    // SAFETY: the array is valid for the four units that are read.
    let bit = unsafe { vld1q_u32(BIT.as_ptr()) };
    vbslq_f32(vtstq_u32(vdupq_n_u32(u32::from(mask)), bit), v, other)
}

#[inline]
#[target_feature(enable = "neon")]
fn where_less(a: float32x4_t, b: float32x4_t, then: float32x4_t, other: float32x4_t) -> float32x4_t {
    vbslq_f32(vcltq_f32(a, b), then, other)
}

#[inline]
#[target_feature(enable = "neon")]
fn power_of_two(shifted: float32x4_t) -> float32x4_t {
    let exponent = vshlq_n_s32::<23>(vreinterpretq_s32_f32(shifted));
    vreinterpretq_f32_s32(vaddq_s32(exponent, vdupq_n_s32(0x3f80_0000)))
}

#[inline]
#[target_feature(enable = "neon")]
fn low_nibbles(v: int32x4_t) -> int32x4_t {
    vandq_s32(v, vdupq_n_s32(0x0f0f_0f0f))
}

#[inline]
#[target_feature(enable = "neon")]
fn high_nibbles(v: int32x4_t) -> int32x4_t {
    vreinterpretq_s32_u8(vshrq_n_u8::<4>(vreinterpretq_u8_s32(v)))
}

#[inline]
#[target_feature(enable = "neon")]
fn two_bits<const AT: u32>(v: int32x4_t) -> int32x4_t {
    let v = vreinterpretq_u8_s32(v);
    let moved = match AT {
        0 => vshlq_n_u8::<4>(v),
        2 => vshlq_n_u8::<2>(v),
        4 => v,
        _ => vshrq_n_u8::<2>(v),
    };
    vreinterpretq_s32_u8(vandq_u8(moved, vdupq_n_u8(0x30)))
}

#[inline]
#[target_feature(enable = "neon")]
fn look_up(table: int32x4_t, v: int32x4_t) -> int32x4_t {
    vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(table), vreinterpretq_u8_s32(v)))
}

/// Adds 16 to the bytes whose bit is set. Each byte gets its byte of the mask, the first eight bytes that at
/// `first`, then tests its bit.
#[inline]
#[target_feature(enable = "neon")]
fn fifth_bits(v: int32x4_t, bits: int32x4_t, first: u8) -> int32x4_t {
    let mask = vreinterpretq_u8_s32(bits);
    let spread = vqtbl1q_u8(mask, vcombine_u8(vdup_n_u8(first), vdup_n_u8(first + 1)));
    let bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
    let sixteen = vandq_u8(vtstq_u8(spread, bit), vdupq_n_u8(16));
    vreinterpretq_s32_u8(vaddq_u8(vreinterpretq_u8_s32(v), sixteen))
}

#[inline]
#[target_feature(enable = "neon")]
fn even_bytes(v: int32x4_t) -> int32x4_t {
    vreinterpretq_s32_s16(vshrq_n_s16::<8>(vshlq_n_s16::<8>(vreinterpretq_s16_s32(v))))
}

#[inline]
#[target_feature(enable = "neon")]
fn odd_bytes(v: int32x4_t) -> int32x4_t {
    vreinterpretq_s32_s16(vshrq_n_s16::<8>(vreinterpretq_s16_s32(v)))
}

#[inline]
#[target_feature(enable = "neon")]
fn sum_four(v: IntFour) -> int32x4_t {
    vaddq_s32(vaddq_s32(v[0], v[1]), vaddq_s32(v[2], v[3]))
}

/// Sets lane `i` to the sum of the lanes of `v[i]`.
#[inline]
#[target_feature(enable = "neon")]
fn sum_each(v: [int32x4_t; 4]) -> int32x4_t {
    vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]))
}

/// Sets lane `i` to the first lane of `v[i]`.
#[inline]
#[target_feature(enable = "neon")]
fn firsts(v: [int32x4_t; 4]) -> int32x4_t {
    let (low, high) = (vzip1q_s32(v[0], v[1]), vzip1q_s32(v[2], v[3]));
    vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(low), vreinterpretq_s64_s32(high)))
}

#[inline]
#[target_feature(enable = "neon")]
fn dot_words(acc: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
    let (a, b) = (vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
    let low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
    vaddq_s32(acc, vpaddq_s32(low, vmull_high_s16(a, b)))
}

#[inline]
#[target_feature(enable = "neon")]
fn widen(halves: &[u16; 4]) -> float32x4_t {
    // SAFETY: the reference is valid for the four halves that are read.
    let halves = unsafe { vld1_u16(halves.as_ptr()) };
    vcvt_f32_f16(vreinterpret_f16_u16(halves))
}

/// Converts the binary16 values in the low halves of the lanes.
#[inline]
#[target_feature(enable = "neon")]
fn widen_units(v: uint32x4_t) -> float32x4_t {
    vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(v)))
}

/// Does a 4 x 4 transpose of 32-bit units.
#[inline]
#[target_feature(enable = "neon")]
fn transpose(r: IntFour) -> IntFour {
    let (even, odd) = (vtrn1q_s32(r[0], r[1]), vtrn2q_s32(r[0], r[1]));
    let (even_next, odd_next) = (vtrn1q_s32(r[2], r[3]), vtrn2q_s32(r[2], r[3]));
    let wide = |v| vreinterpretq_s64_s32(v);
    [
        vreinterpretq_s32_s64(vtrn1q_s64(wide(even), wide(even_next))),
        vreinterpretq_s32_s64(vtrn1q_s64(wide(odd), wide(odd_next))),
        vreinterpretq_s32_s64(vtrn2q_s64(wide(even), wide(even_next))),
        vreinterpretq_s32_s64(vtrn2q_s64(wide(odd), wide(odd_next))),
    ]
}
