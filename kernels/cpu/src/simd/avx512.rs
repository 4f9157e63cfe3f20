//! The lanes of [`Simd`] in one AVX-512 register, byte dot products by VNNI.

#![allow(
    clippy::needless_range_loop,
    reason = "one index names the same row in the source and in the transpose; see `simd` on closures"
)]

use std::arch::x86_64::*;

use super::amx::Tiles;
use super::{Kernel, Line, Simd};
use crate::dispatch::has_avx512_vnni;

/// Witness that the CPU has AVX-512 F, BW, VL, DQ and VNNI, and AVX2, FMA, F16C; perhaps with tiles.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512(Option<Tiles>);

impl Avx512 {
    /// Returns a witness if the CPU has the level.
    pub(super) fn detect() -> Option<Self> {
        has_avx512_vnni().then_some(Self(None))
    }

    /// As [`Self::detect`], with AMX.
    pub(super) fn detect_with_tiles() -> Option<Self> {
        Some(Self(Some(Tiles::detect()?)))
    }
}

/// Wraps one intrinsic that needs only the CPU's features.
macro_rules! checked {
    ($e:expr) => {{
        // SAFETY: a witness exists only if `has_avx512_vnni` found the features; a reference is valid memory.
        unsafe { $e }
    }};
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    const WIDE: bool = true;
    const RAISES_SIGNED: bool = true;
    const PAIRS: bool = false;

    #[inline(always)]
    fn enter<K: Kernel>(self, kernel: K) {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
        fn entered<K: Kernel>(s: Avx512, kernel: K) {
            kernel.run(s);
        }
        // SAFETY: `self` exists only if `has_avx512_vnni` found these features.
        unsafe { entered(self, kernel) }
    }

    #[inline(always)]
    fn tiles(self) -> Option<Tiles> {
        self.0
    }

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
    fn div(self, a: __m512, b: __m512) -> __m512 {
        checked!(_mm512_div_ps(a, b))
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
    fn add_int(self, a: __m512i, b: __m512i) -> __m512i {
        checked!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn mul_int(self, a: __m512i, b: __m512i) -> __m512i {
        checked!(_mm512_mullo_epi32(a, b))
    }
    #[inline(always)]
    fn shift_down<const N: u32>(self, v: __m512i) -> __m512i {
        checked!(_mm512_srai_epi32::<N>(v))
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        checked!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn load_units(self, line: &Line) -> __m512i {
        checked!(_mm512_loadu_si512(line.0.as_ptr().cast()))
    }
    #[inline(always)]
    fn store_units(self, v: __m512i, line: &mut Line) {
        checked!(_mm512_storeu_si512(line.0.as_mut_ptr().cast(), v));
    }
    #[inline(always)]
    fn dot_small(self, acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
        checked!(_mm512_dpbusd_epi32(acc, w, x))
    }
    #[inline(always)]
    fn dot_signed(self, acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
        self.dot_small(acc, w, x)
    }
    /// Pairs of products fit 16 bits (127 * 127 * 2 = 32,258).
    #[inline(always)]
    fn dot_scaled(self, acc: __m512i, w: __m512i, x: __m512i, scale: __m512i) -> __m512i {
        let pairs = checked!(_mm512_maddubs_epi16(w, x));
        self.dot_words(acc, pairs, scale)
    }
    #[inline(always)]
    fn dot_words(self, acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        checked!(_mm512_dpwssd_epi32(acc, a, b))
    }
    #[inline(always)]
    fn spread<const A: u8, const B: u8, const C: u8, const D: u8>(self, four: u32) -> __m512i {
        let four = self.splat_int(four as i32);
        let index = checked!(_mm512_loadu_si512(const { &high_bytes([A, B, C, D]) }.as_ptr().cast()));
        let high = checked!(_mm512_shuffle_epi8(four, index));
        checked!(_mm512_srai_epi16::<8>(high))
    }
    #[inline(always)]
    fn low_word(self, v: __m512i) -> __m512i {
        checked!(_mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(v)))
    }
    #[inline(always)]
    fn byte<const AT: u32>(self, v: __m512i) -> __m512i {
        let top = match AT {
            0 => checked!(_mm512_slli_epi32::<24>(v)),
            1 => checked!(_mm512_slli_epi32::<16>(v)),
            2 => checked!(_mm512_slli_epi32::<8>(v)),
            _ => v,
        };
        checked!(_mm512_srai_epi32::<24>(top))
    }
    #[inline(always)]
    fn even_bytes(self, v: __m512i) -> __m512i {
        checked!(_mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(v)))
    }
    #[inline(always)]
    fn odd_bytes(self, v: __m512i) -> __m512i {
        checked!(_mm512_srai_epi16::<8>(v))
    }
    #[inline(always)]
    fn reduce(self, rows: [__m512i; 16]) -> __m512i {
        let [low, high] = checked!(reduce_halves(rows));
        self.add_int(low, high)
    }
    #[inline(always)]
    fn quarter_sums(self, rows: [__m512i; 4]) -> __m512i {
        checked!(quarter_sums(rows))
    }
    #[inline(always)]
    fn quarter_firsts(self, rows: [__m512i; 4]) -> __m512i {
        checked!(quarter_firsts(rows))
    }
    #[inline(always)]
    fn transpose_quarters(self, rows: [__m512i; 4]) -> [__m512i; 4] {
        checked!(transpose_quarters(rows))
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
    fn quarters(self, from: [&[u8; 16]; 4]) -> __m512i {
        let mut part = [checked!(_mm_setzero_si128()); 4];
        for i in 0..4 {
            part[i] = checked!(_mm_loadu_si128(from[i].as_ptr().cast()));
        }
        checked!(quarters(part))
    }
    #[inline(always)]
    fn low_nibbles(self, v: __m512i) -> __m512i {
        checked!(_mm512_and_si512(v, _mm512_set1_epi8(15)))
    }
    #[inline(always)]
    fn high_nibbles(self, v: __m512i) -> __m512i {
        checked!(_mm512_and_si512(_mm512_srli_epi16::<4>(v), _mm512_set1_epi8(15)))
    }
    #[inline(always)]
    fn two_bits<const AT: u32>(self, v: __m512i) -> __m512i {
        let moved = match AT {
            0 => checked!(_mm512_slli_epi16::<4>(v)),
            2 => checked!(_mm512_slli_epi16::<2>(v)),
            4 => v,
            _ => checked!(_mm512_srli_epi16::<2>(v)),
        };
        checked!(_mm512_and_si512(moved, _mm512_set1_epi8(0x30)))
    }
    #[inline(always)]
    fn bit_pairs(self, bytes: &[u8; 32]) -> [__m512i; 2] {
        let bytes = checked!(_mm256_loadu_si256(bytes.as_ptr().cast()));
        checked!(bit_pairs(bytes))
    }
    #[inline(always)]
    fn nibble_pair(self, a: &[u8; 16], b: &[u8; 16]) -> __m512i {
        let a = checked!(_mm_loadu_si128(a.as_ptr().cast()));
        let b = checked!(_mm_loadu_si128(b.as_ptr().cast()));
        checked!(nibble_pair(a, b))
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 16], v: __m512i) -> __m512i {
        let table = checked!(_mm_loadu_si128(table.as_ptr().cast()));
        checked!(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), v))
    }
    #[inline(always)]
    fn fifth_bits(self, v: __m512i, bits: u64) -> __m512i {
        checked!(_mm512_mask_add_epi8(v, bits, v, _mm512_set1_epi8(16)))
    }
    #[inline(always)]
    fn fifth_bits_of<const AT: u8>(self, v: __m512i, heads: __m512i) -> __m512i {
        checked!(fifth_bits_of::<AT>(v, heads))
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
    fn floats_of(self, v: __m512i) -> __m512 {
        checked!(_mm512_castsi512_ps(v))
    }
    #[inline(always)]
    fn widen(self, halves: &[u16; 16]) -> __m512 {
        let halves = checked!(_mm256_loadu_si256(halves.as_ptr().cast()));
        checked!(_mm512_cvtph_ps(halves))
    }
    #[inline(always)]
    fn widen_low(self, v: __m512i) -> __m512 {
        checked!(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)))
    }
    #[inline(always)]
    fn widen_high(self, v: __m512i) -> __m512 {
        checked!(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(v))))
    }
    #[inline(always)]
    fn widen_bytes(self, bytes: &[u8; 16]) -> __m512 {
        let bytes = checked!(_mm_loadu_si128(bytes.as_ptr().cast()));
        checked!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)))
    }
    #[inline(always)]
    fn transpose(self, rows: [__m512i; 16]) -> [__m512i; 16] {
        checked!(transpose(rows))
    }
    #[inline(always)]
    fn transpose_four(self, rows: &[[u8; 16]; 16]) -> [__m512i; 4] {
        let quarters = rows.as_flattened().as_chunks::<64>().0;
        checked!(transpose_four([
            self.units(&quarters[0]),
            self.units(&quarters[1]),
            self.units(&quarters[2]),
            self.units(&quarters[3]),
        ]))
    }
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        checked!(_mm_prefetch::<_MM_HINT_T0>(at.cast()));
    }
    #[inline(always)]
    fn prefetch_far(self, at: *const u8) {
        checked!(_mm_prefetch::<_MM_HINT_T1>(at.cast()));
    }
}

/// Returns the shuffle indices that put byte `of[q]` of each lane into the high halves of the words of
/// quarter `q`.
const fn high_bytes(of: [u8; 4]) -> [u8; 64] {
    let mut index = [0x80; 64];
    let mut i = 1;
    while i < 64 {
        index[i] = of[i / 16];
        i += 2;
    }
    index
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
fn bit_pairs(bytes: __m256i) -> [__m512i; 2] {
    let both = _mm512_broadcast_i64x4(bytes);
    let mask = _mm512_set1_epi8(0x30);
    let low = _mm512_sllv_epi64(both, _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2));
    let high = _mm512_srlv_epi64(both, _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2));
    [_mm512_and_si512(low, mask), _mm512_and_si512(high, mask)]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn nibble_pair(a: __m128i, b: __m128i) -> __m512i {
    let both = join(_mm256_broadcastsi128_si256(a), _mm256_broadcastsi128_si256(b));
    let moved = _mm512_srlv_epi64(both, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
    _mm512_and_si512(moved, _mm512_set1_epi8(15))
}

/// Returns the sums of the two halves of sixteen registers, by pairs of lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn reduce_halves(r: [__m512i; 16]) -> [__m512i; 2] {
    let mut a = [r[0]; 8];
    for i in 0..8 {
        let (low, high) =
            (_mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]), _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]));
        a[i] = _mm512_add_epi32(low, high);
    }
    // Each quarter of `b[i]` now holds that quarter's sums of rows `4 i..4 i + 4`.
    let mut b = [a[0]; 4];
    for i in 0..4 {
        let (low, high) =
            (_mm512_unpacklo_epi64(a[2 * i], a[2 * i + 1]), _mm512_unpackhi_epi64(a[2 * i], a[2 * i + 1]));
        b[i] = _mm512_add_epi32(low, high);
    }
    let mut c = [b[0]; 2];
    for i in 0..2 {
        let even = _mm512_shuffle_i32x4::<0x88>(b[2 * i], b[2 * i + 1]);
        let odd = _mm512_shuffle_i32x4::<0xdd>(b[2 * i], b[2 * i + 1]);
        c[i] = _mm512_add_epi32(even, odd);
    }
    [_mm512_shuffle_i32x4::<0x88>(c[0], c[1]), _mm512_shuffle_i32x4::<0xdd>(c[0], c[1])]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn quarter_sums(r: [__m512i; 4]) -> __m512i {
    let mut a = [r[0]; 2];
    for i in 0..2 {
        let (low, high) =
            (_mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]), _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]));
        a[i] = _mm512_add_epi32(low, high);
    }
    _mm512_add_epi32(_mm512_unpacklo_epi64(a[0], a[1]), _mm512_unpackhi_epi64(a[0], a[1]))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn quarter_firsts(r: [__m512i; 4]) -> __m512i {
    _mm512_unpacklo_epi64(_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpacklo_epi32(r[2], r[3]))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn transpose_quarters(r: [__m512i; 4]) -> [__m512i; 4] {
    let even = [_mm512_shuffle_i32x4::<0x88>(r[0], r[1]), _mm512_shuffle_i32x4::<0x88>(r[2], r[3])];
    let odd = [_mm512_shuffle_i32x4::<0xdd>(r[0], r[1]), _mm512_shuffle_i32x4::<0xdd>(r[2], r[3])];
    [
        _mm512_shuffle_i32x4::<0x88>(even[0], even[1]),
        _mm512_shuffle_i32x4::<0x88>(odd[0], odd[1]),
        _mm512_shuffle_i32x4::<0xdd>(even[0], even[1]),
        _mm512_shuffle_i32x4::<0xdd>(odd[0], odd[1]),
    ]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn quarters(part: [__m128i; 4]) -> __m512i {
    let first = _mm512_zextsi128_si512(part[0]);
    let two = _mm512_mask_broadcast_i32x4(first, 0x00f0, part[1]);
    let three = _mm512_mask_broadcast_i32x4(two, 0x0f00, part[2]);
    _mm512_mask_broadcast_i32x4(three, 0xf000, part[3])
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn fifth_bits_of<const AT: u8>(v: __m512i, heads: __m512i) -> __m512i {
    let low = i64::from(AT) * 0x0101_0101_0101_0101;
    let index = _mm512_broadcast_i32x4(_mm_set_epi64x(low + 0x0101_0101_0101_0101, low));
    let bit = _mm512_set1_epi64(0x8040_2010_0804_0201_u64 as i64);
    let set = _mm512_test_epi8_mask(_mm512_shuffle_epi8(heads, index), bit);
    _mm512_mask_add_epi8(v, set, v, _mm512_set1_epi8(16))
}

/// Does a 16 x 16 transpose of 32-bit units in four rounds of shuffles.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(r: [__m512i; 16]) -> [__m512i; 16] {
    let mut a = r;
    for i in 0..8 {
        a[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    // After this round `b[4 q + c]` holds column `c` of each 128-bit lane for rows `4 q..4 q + 4`.
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

/// Transposes sixteen rows of four 32-bit units, four rows to a register, to four columns.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose_four(r: [__m512i; 4]) -> [__m512i; 4] {
    let index = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    // Quarter k of each register: column k of its four rows.
    let a = _mm512_permutexvar_epi32(index, r[0]);
    let b = _mm512_permutexvar_epi32(index, r[1]);
    let c = _mm512_permutexvar_epi32(index, r[2]);
    let d = _mm512_permutexvar_epi32(index, r[3]);
    let (ab, ab_odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
    let (cd, cd_odd) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
    [
        _mm512_shuffle_i32x4::<0x88>(ab, cd),
        _mm512_shuffle_i32x4::<0x88>(ab_odd, cd_odd),
        _mm512_shuffle_i32x4::<0xdd>(ab, cd),
        _mm512_shuffle_i32x4::<0xdd>(ab_odd, cd_odd),
    ]
}
