//! The lanes of [`Simd`] in one AVX-512 register, byte dot products by VNNI.

#![allow(
    clippy::needless_range_loop,
    reason = "one index names the same row in the source and in the transpose; see `simd` on closures"
)]

use std::arch::x86_64::*;

use super::{Kernel, Line, Simd};
use crate::dispatch::has_avx512_vnni;

/// Witness that the CPU has AVX-512 F, BW, VL, DQ and VNNI, and AVX2, FMA, F16C.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// A witness, where the CPU has the level.
    pub fn detect() -> Option<Self> {
        has_avx512_vnni().then_some(Self(()))
    }

    /// Runs a kernel compiled for the level.
    pub fn enter<K: Kernel>(self, kernel: K) {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
        fn entered<K: Kernel>(s: Avx512, kernel: K) {
            kernel.run(s);
        }
        // SAFETY: `self` exists only where `has_avx512_vnni` found these features.
        unsafe { entered(self, kernel) }
    }
}

/// Wraps one intrinsic whose only demand is the CPU's features.
macro_rules! checked {
    ($e:expr) => {{
        // SAFETY: a witness exists only where `has_avx512_vnni` found the features; a reference is valid memory.
        unsafe { $e }
    }};
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    const WIDE: bool = true;
    const RAISES_SIGNED: bool = true;

    #[inline(always)]
    fn splat(self, v: f32) -> __m512 {
        checked!(_mm512_set1_ps(v))
    }
    #[inline(always)]
    fn load(self, v: &[f32; 16]) -> __m512 {
        checked!(_mm512_loadu_ps(v.as_ptr()))
    }
    #[inline(always)]
    fn load_line(self, v: &Line) -> __m512 {
        checked!(_mm512_loadu_ps(v.0.as_ptr().cast()))
    }
    #[inline(always)]
    fn store(self, v: __m512, to: &mut [f32; 16]) {
        checked!(_mm512_storeu_ps(to.as_mut_ptr(), v));
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        checked!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        checked!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        checked!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        checked!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn tree_sum(self, v: __m512) -> f32 {
        checked!(tree_sum(v))
    }
    #[inline(always)]
    fn larger(self, a: __m512, b: __m512) -> __m512 {
        checked!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn tree_largest(self, v: __m512) -> f32 {
        checked!(tree_largest(v))
    }
    #[inline(always)]
    fn keep(self, mask: u16, v: __m512, other: __m512) -> __m512 {
        checked!(_mm512_mask_blend_ps(mask, other, v))
    }
    #[inline(always)]
    fn where_less(self, a: __m512, b: __m512, then: __m512, other: __m512) -> __m512 {
        let mask = checked!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b));
        self.keep(mask, then, other)
    }
    #[inline(always)]
    fn power_of_two(self, shifted: __m512) -> __m512 {
        checked!(power_of_two(shifted))
    }
    #[inline(always)]
    fn splat_int(self, v: i32) -> __m512i {
        checked!(_mm512_set1_epi32(v))
    }
    #[inline(always)]
    fn to_float(self, v: __m512i) -> __m512 {
        checked!(_mm512_cvtepi32_ps(v))
    }
    #[inline(always)]
    fn weights(self, line: &Line) -> __m512i {
        checked!(_mm512_loadu_si512(line.0.as_ptr().cast()))
    }
    #[inline(always)]
    fn dot_small(self, acc: __m512i, w: __m512i, x: i32) -> __m512i {
        let x = self.splat_int(x);
        checked!(_mm512_dpbusd_epi32(acc, w, x))
    }
    #[inline(always)]
    fn dot_signed(self, acc: __m512i, w: __m512i, x: i32) -> __m512i {
        self.dot_small(acc, w, x)
    }
    #[inline(always)]
    fn units(self, bytes: &[u8; 64]) -> __m512i {
        checked!(_mm512_loadu_si512(bytes.as_ptr().cast()))
    }
    #[inline(always)]
    fn joined(self, low: &[u8; 32], high: &[u8; 32]) -> __m512i {
        let low = checked!(_mm256_loadu_si256(low.as_ptr().cast()));
        let high = checked!(_mm256_loadu_si256(high.as_ptr().cast()));
        checked!(join(low, high))
    }
    #[inline(always)]
    fn nibbles(self, bytes: &[u8; 32]) -> __m512i {
        let bytes = checked!(_mm256_loadu_si256(bytes.as_ptr().cast()));
        checked!(nibbles(bytes))
    }
    #[inline(always)]
    fn raised(self, v: __m512i) -> __m512i {
        let raise = checked!(_mm512_set1_epi8(-128));
        checked!(_mm512_xor_si512(v, raise))
    }
    #[inline(always)]
    fn bits(self, v: __m512) -> __m512i {
        checked!(_mm512_castps_si512(v))
    }
    #[inline(always)]
    fn widen(self, halves: &[u16; 16]) -> __m512 {
        let halves = checked!(_mm256_loadu_si256(halves.as_ptr().cast()));
        checked!(_mm512_cvtph_ps(halves))
    }
    #[inline(always)]
    fn transpose(self, rows: [__m512i; 16], to: &mut [Line; 16]) {
        let columns = checked!(transpose(rows));
        for i in 0..16 {
            checked!(_mm512_storeu_si512(to[i].0.as_mut_ptr().cast(), columns[i]));
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn tree_sum(v: __m512) -> f32 {
    let eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn tree_largest(v: __m512) -> f32 {
    let eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
    let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn power_of_two(shifted: __m512) -> __m512 {
    let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
    _mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(0x3f80_0000)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn join(low: __m256i, high: __m256i) -> __m512i {
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn nibbles(bytes: __m256i) -> __m512i {
    let both = join(bytes, _mm256_srli_epi16::<4>(bytes));
    _mm512_and_si512(both, _mm512_set1_epi8(15))
}

/// A 16 x 16 transpose of 32-bit units in four rounds of shuffles.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(r: [__m512i; 16]) -> [__m512i; 16] {
    let mut a = r;
    for i in 0..8 {
        a[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    // After this round b[4 q + c] holds column c of each 128-bit lane for rows 4 q..4 q + 4.
    let mut b = a;
    for q in 0..4 {
        b[4 * q] = _mm512_unpacklo_epi64(a[4 * q], a[4 * q + 2]);
        b[4 * q + 1] = _mm512_unpackhi_epi64(a[4 * q], a[4 * q + 2]);
        b[4 * q + 2] = _mm512_unpacklo_epi64(a[4 * q + 1], a[4 * q + 3]);
        b[4 * q + 3] = _mm512_unpackhi_epi64(a[4 * q + 1], a[4 * q + 3]);
    }
    let mut out = b;
    for c in 0..4 {
        let low = _mm512_shuffle_i32x4::<0x88>(b[c], b[4 + c]);
        let low_odd = _mm512_shuffle_i32x4::<0xdd>(b[c], b[4 + c]);
        let high = _mm512_shuffle_i32x4::<0x88>(b[8 + c], b[12 + c]);
        let high_odd = _mm512_shuffle_i32x4::<0xdd>(b[8 + c], b[12 + c]);
        out[c] = _mm512_shuffle_i32x4::<0x88>(low, high);
        out[8 + c] = _mm512_shuffle_i32x4::<0xdd>(low, high);
        out[4 + c] = _mm512_shuffle_i32x4::<0x88>(low_odd, high_odd);
        out[12 + c] = _mm512_shuffle_i32x4::<0xdd>(low_odd, high_odd);
    }
    out
}
