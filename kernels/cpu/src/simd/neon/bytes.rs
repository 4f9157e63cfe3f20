//! Products of bytes at the NEON levels: by widening multiplication, by `sdot`, and as 2 x 2 matrices by
//! `smmla`.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{IntFour, Neon};
use crate::dispatch::{has_neon, has_neon_dotprod, has_neon_i8mm};
use crate::simd::{Kernel, Line, Simd, in_steps};

/// The operations in which the NEON levels differ. A value proves that the CPU has the level.
pub(crate) trait Bytes: Copy {
    /// See [`Simd::PAIRS`].
    const PAIRS: bool;

    /// Returns a witness if the CPU has the level.
    fn detect() -> Option<Self>;

    /// See [`Simd::enter`].
    fn enter<K: Kernel>(s: Neon<Self>, kernel: K);

    /// Adds to lane `i` the dot product of bytes `4 i..4 i + 4`, signed; no byte of `x` is -128.
    fn dot(self, acc: int32x4_t, w: int32x4_t, x: int32x4_t) -> int32x4_t;

    /// See [`Simd::dot_pairs`].
    #[inline(always)]
    fn dot_pairs<const T: usize>(
        s: Neon<Self>,
        dot: [IntFour; T],
        w: &[Line],
        x: [&[u8]; T],
    ) -> [IntFour; T] {
        in_steps(s, dot, w, x)
    }
}

impl<M: Bytes> Neon<M> {
    /// Returns a witness if the CPU has the level.
    pub(crate) fn detect() -> Option<Self> {
        M::detect().map(Self)
    }
}

/// Byte dot products with instructions that every 64-bit ARM CPU has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Widening(());

/// Byte dot products by `sdot`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dotprod(());

/// As [`Dotprod`], with `smmla` for two activation rows at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct I8mm(Dotprod);

impl Bytes for Widening {
    const PAIRS: bool = false;

    fn detect() -> Option<Self> {
        has_neon().then_some(Self(()))
    }

    #[inline(always)]
    fn enter<K: Kernel>(s: Neon<Self>, kernel: K) {
        #[inline(never)]
        #[target_feature(enable = "neon")]
        fn entered<K: Kernel>(s: Neon<Widening>, kernel: K) {
            kernel.run(s);
        }
        // SAFETY: `s` exists only if `has_neon` found this feature.
        unsafe { entered(s, kernel) }
    }

    #[inline(always)]
    fn dot(self, acc: int32x4_t, w: int32x4_t, x: int32x4_t) -> int32x4_t {
        // SAFETY: a witness exists only if `has_neon` found the feature.
        unsafe { widening(acc, w, x) }
    }
}

impl Bytes for Dotprod {
    const PAIRS: bool = false;

    fn detect() -> Option<Self> {
        has_neon_dotprod().then_some(Self(()))
    }

    #[inline(always)]
    fn enter<K: Kernel>(s: Neon<Self>, kernel: K) {
        #[inline(never)]
        #[target_feature(enable = "neon,dotprod")]
        fn entered<K: Kernel>(s: Neon<Dotprod>, kernel: K) {
            kernel.run(s);
        }
        // SAFETY: `s` exists only if `has_neon_dotprod` found these features.
        unsafe { entered(s, kernel) }
    }

    #[inline(always)]
    fn dot(self, acc: int32x4_t, w: int32x4_t, x: int32x4_t) -> int32x4_t {
        // SAFETY: a witness exists only if `has_neon_dotprod` found the feature.
        unsafe { sdot(acc, w, x) }
    }
}

impl Bytes for I8mm {
    const PAIRS: bool = true;

    fn detect() -> Option<Self> {
        Dotprod::detect().filter(|_| has_neon_i8mm()).map(Self)
    }

    #[inline(always)]
    fn enter<K: Kernel>(s: Neon<Self>, kernel: K) {
        #[inline(never)]
        #[target_feature(enable = "neon,dotprod,i8mm")]
        fn entered<K: Kernel>(s: Neon<I8mm>, kernel: K) {
            kernel.run(s);
        }
        // SAFETY: `s` exists only if `has_neon_dotprod` and `has_neon_i8mm` found these features.
        unsafe { entered(s, kernel) }
    }

    #[inline(always)]
    fn dot(self, acc: int32x4_t, w: int32x4_t, x: int32x4_t) -> int32x4_t {
        self.0.dot(acc, w, x)
    }

    #[inline(always)]
    fn dot_pairs<const T: usize>(
        s: Neon<Self>,
        dot: [IntFour; T],
        w: &[Line],
        x: [&[u8]; T],
    ) -> [IntFour; T] {
        // SAFETY: a witness exists only if `has_neon_i8mm` found the feature.
        unsafe { dot_pairs(s, dot, w, x) }
    }
}

/// Adds byte dot products by widening multiplication. Sums of two products fit 16 bits (128 * 127 * 2 =
/// 32,512), since no activation is -128.
#[inline]
#[target_feature(enable = "neon")]
fn widening(acc: int32x4_t, w: int32x4_t, x: int32x4_t) -> int32x4_t {
    let (w, x) = (vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(x));
    let low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
    let high = vmull_high_s8(w, x);
    vpadalq_s16(acc, vpaddq_s16(low, high))
}

/// The `sdot` instruction; its intrinsic is not stable.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(acc: int32x4_t, w: int32x4_t, x: int32x4_t) -> int32x4_t {
    let mut sum = acc;
    // SAFETY: the instruction reads and writes only the named registers; this function requires the feature.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {w:v}.16b, {x:v}.16b",
            sum = inout(vreg) sum,
            w = in(vreg) w,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// The `smmla` instruction, whose intrinsic is not stable: adds to unit `2 i + j` the dot product of half `i`
/// of `w` and half `j` of `x`.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn smmla(acc: int32x4_t, w: int32x4_t, x: int32x4_t) -> int32x4_t {
    let mut sum = acc;
    // SAFETY: the instruction reads and writes only the named registers; this function requires the feature.
    unsafe {
        asm!(
            "smmla {sum:v}.4s, {w:v}.16b, {x:v}.16b",
            sum = inout(vreg) sum,
            w = in(vreg) w,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// Loads eight bytes of each of two activation rows.
#[inline]
#[target_feature(enable = "neon")]
fn two_rows(a: &[u8; 8], b: &[u8; 8]) -> int32x4_t {
    // SAFETY: the reference is valid for the eight bytes that are read.
    let a = unsafe { vld1_u8(a.as_ptr()) };
    // SAFETY: the reference is valid for the eight bytes that are read.
    let b = unsafe { vld1_u8(b.as_ptr()) };
    vreinterpretq_s32_u8(vcombine_u8(a, b))
}

/// [`Simd::dot_pairs`]: each product takes eight columns of two weight rows and of two activation rows.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn dot_pairs<const T: usize>(
    s: Neon<I8mm>,
    mut dot: [IntFour; T],
    w: &[Line],
    x: [&[u8]; T],
) -> [IntFour; T] {
    // `sums[j][i]` is for rows `2 i..2 i + 2` and activation rows `2 j..2 j + 2`; half of the outer array is
    // unused.
    let mut sums = [[vdupq_n_s32(0); 8]; T];
    let columns: [&[[u8; 8]]; T] = std::array::from_fn(|t| &x[t].as_chunks().0[..w.len() / 2]);
    for (k, steps) in w.as_chunks::<2>().0.iter().enumerate() {
        let (a, b) = (s.load_units(&steps[0]), s.load_units(&steps[1]));
        let mut rows = [a[0]; 8];
        for i in 0..4 {
            rows[2 * i] = vzip1q_s32(a[i], b[i]);
            rows[2 * i + 1] = vzip2q_s32(a[i], b[i]);
        }
        for j in 0..T / 2 {
            let x = two_rows(&columns[2 * j][k], &columns[2 * j + 1][k]);
            for i in 0..8 {
                sums[j][i] = smmla(sums[j][i], rows[i], x);
            }
        }
    }
    for j in 0..T / 2 {
        for i in 0..4 {
            let (low, high) = (sums[j][2 * i], sums[j][2 * i + 1]);
            dot[2 * j][i] = vaddq_s32(dot[2 * j][i], vuzp1q_s32(low, high));
            dot[2 * j + 1][i] = vaddq_s32(dot[2 * j + 1][i], vuzp2q_s32(low, high));
        }
    }
    dot
}
