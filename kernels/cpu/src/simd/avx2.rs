//! The lanes of [`Simd`] in pairs of AVX2 registers, byte dot products by `maddubs`.

use std::arch::x86_64::*;

use super::{Kernel, Line, Simd};
use crate::dispatch::has_avx2;

/// Witness that the CPU has AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// A witness, where the CPU has the level.
    pub fn detect() -> Option<Self> {
        has_avx2().then_some(Self(()))
    }

    /// Runs a kernel compiled for the level.
    pub fn enter<K: Kernel>(self, kernel: K) {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn entered<K: Kernel>(s: Avx2, kernel: K) {
            kernel.run(s);
        }
        // SAFETY: `self` exists only where `has_avx2` found these features.
        unsafe { entered(self, kernel) }
    }
}

/// Wraps one intrinsic whose only demand is the CPU's features.
macro_rules! checked {
    ($e:expr) => {{
        // SAFETY: a witness exists only where `has_avx2` found the features; a reference is valid memory.
        unsafe { $e }
    }};
}

/// Lanes 0..8 and 8..16.
type Pair = [__m256; 2];
type IntPair = [__m256i; 2];

#[inline(always)]
fn halves<T>(v: &[T]) -> [&[T]; 2] {
    let (low, high) = v.split_at(v.len() / 2);
    [low, high]
}

impl Simd for Avx2 {
    type F = Pair;
    type I = IntPair;
    const WIDE: bool = false;
    const RAISES_SIGNED: bool = false;

    #[inline(always)]
    fn splat(self, v: f32) -> Pair {
        [checked!(_mm256_set1_ps(v)); 2]
    }
    #[inline(always)]
    fn load(self, v: &[f32; 16]) -> Pair {
        halves(v).map(|half| checked!(_mm256_loadu_ps(half.as_ptr())))
    }
    #[inline(always)]
    fn load_line(self, v: &Line) -> Pair {
        halves(&v.0).map(|half| checked!(_mm256_loadu_ps(half.as_ptr().cast())))
    }
    #[inline(always)]
    fn store(self, v: Pair, to: &mut [f32; 16]) {
        let (low, high) = to.split_at_mut(8);
        checked!(_mm256_storeu_ps(low.as_mut_ptr(), v[0]));
        checked!(_mm256_storeu_ps(high.as_mut_ptr(), v[1]));
    }
    #[inline(always)]
    fn add(self, a: Pair, b: Pair) -> Pair {
        [0, 1].map(|i| checked!(_mm256_add_ps(a[i], b[i])))
    }
    #[inline(always)]
    fn sub(self, a: Pair, b: Pair) -> Pair {
        [0, 1].map(|i| checked!(_mm256_sub_ps(a[i], b[i])))
    }
    #[inline(always)]
    fn mul(self, a: Pair, b: Pair) -> Pair {
        [0, 1].map(|i| checked!(_mm256_mul_ps(a[i], b[i])))
    }
    #[inline(always)]
    fn fma(self, a: Pair, b: Pair, c: Pair) -> Pair {
        [0, 1].map(|i| checked!(_mm256_fmadd_ps(a[i], b[i], c[i])))
    }
    #[inline(always)]
    fn tree_sum(self, v: Pair) -> f32 {
        checked!(tree_sum(v))
    }
    #[inline(always)]
    fn larger(self, a: Pair, b: Pair) -> Pair {
        [0, 1].map(|i| checked!(_mm256_max_ps(a[i], b[i])))
    }
    #[inline(always)]
    fn tree_largest(self, v: Pair) -> f32 {
        checked!(tree_largest(v))
    }
    #[inline(always)]
    fn keep(self, mask: u16, v: Pair, other: Pair) -> Pair {
        [0, 1].map(|i| checked!(keep(mask >> (8 * i), v[i], other[i])))
    }
    #[inline(always)]
    fn where_less(self, a: Pair, b: Pair, then: Pair, other: Pair) -> Pair {
        [0, 1].map(|i| {
            let less = checked!(_mm256_cmp_ps::<_CMP_LT_OQ>(a[i], b[i]));
            checked!(_mm256_blendv_ps(other[i], then[i], less))
        })
    }
    #[inline(always)]
    fn power_of_two(self, shifted: Pair) -> Pair {
        shifted.map(|half| checked!(power_of_two(half)))
    }
    #[inline(always)]
    fn splat_int(self, v: i32) -> IntPair {
        [checked!(_mm256_set1_epi32(v)); 2]
    }
    #[inline(always)]
    fn to_float(self, v: IntPair) -> Pair {
        v.map(|half| checked!(_mm256_cvtepi32_ps(half)))
    }
    #[inline(always)]
    fn weights(self, line: &Line) -> IntPair {
        self.units(&line.0)
    }
    #[inline(always)]
    fn dot_small(self, acc: IntPair, w: IntPair, x: i32) -> IntPair {
        let x = checked!(_mm256_set1_epi32(x));
        [0, 1].map(|i| checked!(dot_unsigned(acc[i], w[i], x)))
    }
    #[inline(always)]
    fn dot_signed(self, acc: IntPair, w: IntPair, x: i32) -> IntPair {
        let x = checked!(_mm256_set1_epi32(x));
        [0, 1].map(|i| checked!(dot_signed(acc[i], w[i], x)))
    }
    #[inline(always)]
    fn units(self, bytes: &[u8; 64]) -> IntPair {
        halves(bytes).map(|half| checked!(_mm256_loadu_si256(half.as_ptr().cast())))
    }
    #[inline(always)]
    fn float_units(self, v: &[f32; 16]) -> IntPair {
        halves(v).map(|half| checked!(_mm256_loadu_si256(half.as_ptr().cast())))
    }
    #[inline(always)]
    fn transpose(self, rows: [IntPair; 16], to: &mut [Line; 16]) {
        for units in 0..2 {
            let top = checked!(transpose(std::array::from_fn(|i| rows[i][units])));
            let bottom = checked!(transpose(std::array::from_fn(|i| rows[8 + i][units])));
            for (j, to) in to[8 * units..8 * units + 8].iter_mut().enumerate() {
                let (low, high) = to.0.split_at_mut(32);
                checked!(_mm256_storeu_si256(low.as_mut_ptr().cast(), top[j]));
                checked!(_mm256_storeu_si256(high.as_mut_ptr().cast(), bottom[j]));
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn tree_sum(v: Pair) -> f32 {
    let eight = _mm256_add_ps(v[0], v[1]);
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn tree_largest(v: Pair) -> f32 {
    let eight = _mm256_max_ps(v[0], v[1]);
    let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn keep(mask: u16, v: __m256, other: __m256) -> __m256 {
    let bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    let set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(i32::from(mask)), bit), bit);
    _mm256_blendv_ps(other, v, _mm256_castsi256_ps(set))
}

#[inline]
#[target_feature(enable = "avx2")]
fn power_of_two(shifted: __m256) -> __m256 {
    let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
    _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(0x3f80_0000)))
}

/// Pairs of products fit 16 bits (63 * 127 * 2 = 16,002), so that `maddubs` never saturates.
#[inline]
#[target_feature(enable = "avx2")]
fn dot_unsigned(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
    let pairs = _mm256_maddubs_epi16(w, x);
    _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}

/// `|w| * (x with the sign of w)`: pairs reach 128 * 127 * 2 = 32,512 and fit 16 bits since no activation is -128.
#[inline]
#[target_feature(enable = "avx2")]
fn dot_signed(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
    dot_unsigned(acc, _mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
}

/// An 8 x 8 transpose of 32-bit units.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(r: [__m256i; 8]) -> [__m256i; 8] {
    let mut a = r;
    for i in 0..4 {
        a[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    let mut b = a;
    for q in 0..2 {
        b[4 * q] = _mm256_unpacklo_epi64(a[4 * q], a[4 * q + 2]);
        b[4 * q + 1] = _mm256_unpackhi_epi64(a[4 * q], a[4 * q + 2]);
        b[4 * q + 2] = _mm256_unpacklo_epi64(a[4 * q + 1], a[4 * q + 3]);
        b[4 * q + 3] = _mm256_unpackhi_epi64(a[4 * q + 1], a[4 * q + 3]);
    }
    let mut out = b;
    for c in 0..4 {
        out[c] = _mm256_permute2x128_si256::<0x20>(b[c], b[4 + c]);
        out[4 + c] = _mm256_permute2x128_si256::<0x31>(b[c], b[4 + c]);
    }
    out
}
