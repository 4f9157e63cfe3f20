//! The lanes of [`Simd`] in pairs of AVX2 registers, byte dot products by `maddubs`.

#![allow(
    clippy::needless_range_loop,
    reason = "one index names the same row in the source and in the transpose; see `simd` on closures"
)]

use std::arch::x86_64::*;

use super::{Kernel, Line, Simd};
use crate::dispatch::has_avx2;

/// Witness that the CPU has AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// Returns a witness if the CPU has the level.
    pub(super) fn detect() -> Option<Self> {
        has_avx2().then_some(Self(()))
    }
}

/// Wraps one intrinsic that needs only the CPU's features.
macro_rules! checked {
    ($e:expr) => {{
        // SAFETY: a witness exists only if `has_avx2` found the features; a reference is valid memory.
        unsafe { $e }
    }};
}

/// Lanes 0..8 and 8..16.
type Pair = [__m256; 2];
type IntPair = [__m256i; 2];

impl Simd for Avx2 {
    type F = Pair;
    type I = IntPair;
    const WIDE: bool = false;
    const RAISES_SIGNED: bool = false;
    const PAIRS: bool = false;

    #[inline(always)]
    fn enter<K: Kernel>(self, kernel: K) {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn entered<K: Kernel>(s: Avx2, kernel: K) {
            kernel.run(s);
        }
        // SAFETY: `self` exists only if `has_avx2` found these features.
        unsafe { entered(self, kernel) }
    }

    #[inline(always)]
    fn splat(self, v: f32) -> Pair {
        [checked!(_mm256_set1_ps(v)); 2]
    }
    #[inline(always)]
    fn load(self, v: &[f32; 16]) -> Pair {
        let (low, high) = v.split_at(v.len() / 2);
        [checked!(_mm256_loadu_ps(low.as_ptr())), checked!(_mm256_loadu_ps(high.as_ptr()))]
    }
    #[inline(always)]
    fn load_line(self, v: &Line) -> Pair {
        let (low, high) = v.0.split_at(v.0.len() / 2);
        [checked!(_mm256_loadu_ps(low.as_ptr().cast())), checked!(_mm256_loadu_ps(high.as_ptr().cast()))]
    }
    #[inline(always)]
    fn store(self, v: Pair, to: &mut [f32; 16]) {
        let (low, high) = to.split_at_mut(8);
        checked!(_mm256_storeu_ps(low.as_mut_ptr(), v[0]));
        checked!(_mm256_storeu_ps(high.as_mut_ptr(), v[1]));
    }
    #[inline(always)]
    fn add(self, a: Pair, b: Pair) -> Pair {
        [checked!(_mm256_add_ps(a[0], b[0])), checked!(_mm256_add_ps(a[1], b[1]))]
    }
    #[inline(always)]
    fn sub(self, a: Pair, b: Pair) -> Pair {
        [checked!(_mm256_sub_ps(a[0], b[0])), checked!(_mm256_sub_ps(a[1], b[1]))]
    }
    #[inline(always)]
    fn mul(self, a: Pair, b: Pair) -> Pair {
        [checked!(_mm256_mul_ps(a[0], b[0])), checked!(_mm256_mul_ps(a[1], b[1]))]
    }
    #[inline(always)]
    fn div(self, a: Pair, b: Pair) -> Pair {
        [checked!(_mm256_div_ps(a[0], b[0])), checked!(_mm256_div_ps(a[1], b[1]))]
    }
    #[inline(always)]
    fn fma(self, a: Pair, b: Pair, c: Pair) -> Pair {
        [checked!(_mm256_fmadd_ps(a[0], b[0], c[0])), checked!(_mm256_fmadd_ps(a[1], b[1], c[1]))]
    }
    #[inline(always)]
    fn tree_sum(self, v: Pair) -> f32 {
        checked!(tree_sum(v))
    }
    #[inline(always)]
    fn larger(self, a: Pair, b: Pair) -> Pair {
        [checked!(_mm256_max_ps(a[0], b[0])), checked!(_mm256_max_ps(a[1], b[1]))]
    }
    #[inline(always)]
    fn tree_largest(self, v: Pair) -> f32 {
        checked!(tree_largest(v))
    }
    #[inline(always)]
    fn keep(self, mask: u16, v: Pair, other: Pair) -> Pair {
        [checked!(keep(mask, v[0], other[0])), checked!(keep(mask >> 8, v[1], other[1]))]
    }
    #[inline(always)]
    fn where_less(self, a: Pair, b: Pair, then: Pair, other: Pair) -> Pair {
        let low = checked!(_mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0]));
        let high = checked!(_mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1]));
        [
            checked!(_mm256_blendv_ps(other[0], then[0], low)),
            checked!(_mm256_blendv_ps(other[1], then[1], high)),
        ]
    }
    #[inline(always)]
    fn power_of_two(self, shifted: Pair) -> Pair {
        [checked!(power_of_two(shifted[0])), checked!(power_of_two(shifted[1]))]
    }
    #[inline(always)]
    fn splat_int(self, v: i32) -> IntPair {
        [checked!(_mm256_set1_epi32(v)); 2]
    }
    #[inline(always)]
    fn to_float(self, v: IntPair) -> Pair {
        [checked!(_mm256_cvtepi32_ps(v[0])), checked!(_mm256_cvtepi32_ps(v[1]))]
    }
    #[inline(always)]
    fn add_int(self, a: IntPair, b: IntPair) -> IntPair {
        [checked!(_mm256_add_epi32(a[0], b[0])), checked!(_mm256_add_epi32(a[1], b[1]))]
    }
    #[inline(always)]
    fn mul_int(self, a: IntPair, b: IntPair) -> IntPair {
        [checked!(_mm256_mullo_epi32(a[0], b[0])), checked!(_mm256_mullo_epi32(a[1], b[1]))]
    }
    #[inline(always)]
    fn shift_down<const N: u32>(self, v: IntPair) -> IntPair {
        let by = checked!(_mm_cvtsi32_si128(N as i32));
        [checked!(_mm256_sra_epi32(v[0], by)), checked!(_mm256_sra_epi32(v[1], by))]
    }
    #[inline(always)]
    fn or(self, a: IntPair, b: IntPair) -> IntPair {
        [checked!(_mm256_or_si256(a[0], b[0])), checked!(_mm256_or_si256(a[1], b[1]))]
    }
    #[inline(always)]
    fn load_units(self, line: &Line) -> IntPair {
        self.units(&line.0)
    }
    #[inline(always)]
    fn store_units(self, v: IntPair, line: &mut Line) {
        let (low, high) = line.0.split_at_mut(32);
        checked!(_mm256_storeu_si256(low.as_mut_ptr().cast(), v[0]));
        checked!(_mm256_storeu_si256(high.as_mut_ptr().cast(), v[1]));
    }
    #[inline(always)]
    fn dot_small(self, acc: IntPair, w: IntPair, x: IntPair) -> IntPair {
        [checked!(dot_unsigned(acc[0], w[0], x[0])), checked!(dot_unsigned(acc[1], w[1], x[1]))]
    }
    #[inline(always)]
    fn dot_signed(self, acc: IntPair, w: IntPair, x: IntPair) -> IntPair {
        [checked!(dot_signed(acc[0], w[0], x[0])), checked!(dot_signed(acc[1], w[1], x[1]))]
    }
    #[inline(always)]
    fn dot_scaled(self, acc: IntPair, w: IntPair, x: IntPair, scale: IntPair) -> IntPair {
        [
            checked!(dot_scaled(acc[0], w[0], x[0], scale[0])),
            checked!(dot_scaled(acc[1], w[1], x[1], scale[1])),
        ]
    }
    #[inline(always)]
    fn dot_words(self, acc: IntPair, a: IntPair, b: IntPair) -> IntPair {
        [
            checked!(_mm256_add_epi32(acc[0], _mm256_madd_epi16(a[0], b[0]))),
            checked!(_mm256_add_epi32(acc[1], _mm256_madd_epi16(a[1], b[1]))),
        ]
    }
    #[inline(always)]
    fn spread<const A: u8, const B: u8, const C: u8, const D: u8>(self, four: u32) -> IntPair {
        let four = checked!(_mm256_set1_epi32(four as i32));
        let low = checked!(_mm256_loadu_si256(const { &high_bytes([A, B]) }.as_ptr().cast()));
        let high = checked!(_mm256_loadu_si256(const { &high_bytes([C, D]) }.as_ptr().cast()));
        [
            checked!(_mm256_srai_epi16::<8>(_mm256_shuffle_epi8(four, low))),
            checked!(_mm256_srai_epi16::<8>(_mm256_shuffle_epi8(four, high))),
        ]
    }
    #[inline(always)]
    fn low_word(self, v: IntPair) -> IntPair {
        [
            checked!(_mm256_srai_epi32::<16>(_mm256_slli_epi32::<16>(v[0]))),
            checked!(_mm256_srai_epi32::<16>(_mm256_slli_epi32::<16>(v[1]))),
        ]
    }
    #[inline(always)]
    fn byte<const AT: u32>(self, v: IntPair) -> IntPair {
        let up = checked!(_mm_cvtsi32_si128(24 - 8 * AT as i32));
        let top = [checked!(_mm256_sll_epi32(v[0], up)), checked!(_mm256_sll_epi32(v[1], up))];
        self.shift_down::<24>(top)
    }
    #[inline(always)]
    fn even_bytes(self, v: IntPair) -> IntPair {
        [
            checked!(_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(v[0]))),
            checked!(_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(v[1]))),
        ]
    }
    #[inline(always)]
    fn odd_bytes(self, v: IntPair) -> IntPair {
        [checked!(_mm256_srai_epi16::<8>(v[0])), checked!(_mm256_srai_epi16::<8>(v[1]))]
    }
    #[inline(always)]
    fn reduce(self, rows: [IntPair; 16]) -> IntPair {
        checked!(reduce(&rows))
    }
    #[inline(always)]
    fn quarter_sums(self, rows: [IntPair; 4]) -> IntPair {
        checked!([quarter_sums(&rows, 0), quarter_sums(&rows, 1)])
    }
    #[inline(always)]
    fn quarter_firsts(self, rows: [IntPair; 4]) -> IntPair {
        checked!([quarter_firsts(&rows, 0), quarter_firsts(&rows, 1)])
    }
    #[inline(always)]
    fn transpose_quarters(self, rows: [IntPair; 4]) -> [IntPair; 4] {
        checked!(transpose_quarters(rows))
    }
    #[inline(always)]
    fn units(self, bytes: &[u8; 64]) -> IntPair {
        let (low, high) = bytes.split_at(32);
        [
            checked!(_mm256_loadu_si256(low.as_ptr().cast())),
            checked!(_mm256_loadu_si256(high.as_ptr().cast())),
        ]
    }
    #[inline(always)]
    fn joined(self, low: &[u8; 32], high: &[u8; 32]) -> IntPair {
        let low = checked!(_mm256_loadu_si256(low.as_ptr().cast()));
        let high = checked!(_mm256_loadu_si256(high.as_ptr().cast()));
        [low, high]
    }
    #[inline(always)]
    fn quarters(self, from: [&[u8; 16]; 4]) -> IntPair {
        let mut part = [checked!(_mm_setzero_si128()); 4];
        for i in 0..4 {
            part[i] = checked!(_mm_loadu_si128(from[i].as_ptr().cast()));
        }
        [checked!(_mm256_set_m128i(part[1], part[0])), checked!(_mm256_set_m128i(part[3], part[2]))]
    }
    #[inline(always)]
    fn low_nibbles(self, v: IntPair) -> IntPair {
        let mask = checked!(_mm256_set1_epi8(15));
        [checked!(_mm256_and_si256(v[0], mask)), checked!(_mm256_and_si256(v[1], mask))]
    }
    #[inline(always)]
    fn high_nibbles(self, v: IntPair) -> IntPair {
        let moved = [checked!(_mm256_srli_epi16::<4>(v[0])), checked!(_mm256_srli_epi16::<4>(v[1]))];
        self.low_nibbles(moved)
    }
    #[inline(always)]
    fn two_bits<const AT: u32>(self, v: IntPair) -> IntPair {
        [checked!(two_bits::<AT>(v[0])), checked!(two_bits::<AT>(v[1]))]
    }
    #[inline(always)]
    fn bit_pairs(self, bytes: &[u8; 32]) -> [IntPair; 2] {
        let v = checked!(_mm256_loadu_si256(bytes.as_ptr().cast()));
        [
            [checked!(two_bits::<0>(v)), checked!(two_bits::<2>(v))],
            [checked!(two_bits::<4>(v)), checked!(two_bits::<6>(v))],
        ]
    }
    #[inline(always)]
    fn nibble_pair(self, a: &[u8; 16], b: &[u8; 16]) -> IntPair {
        let a = checked!(_mm_loadu_si128(a.as_ptr().cast()));
        let b = checked!(_mm_loadu_si128(b.as_ptr().cast()));
        [checked!(nibbles(a)), checked!(nibbles(b))]
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 16], v: IntPair) -> IntPair {
        let table = checked!(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())));
        [checked!(_mm256_shuffle_epi8(table, v[0])), checked!(_mm256_shuffle_epi8(table, v[1]))]
    }
    #[inline(always)]
    fn fifth_bits(self, v: IntPair, bits: u64) -> IntPair {
        [checked!(fifth_bits(v[0], bits as u32)), checked!(fifth_bits(v[1], (bits >> 32) as u32))]
    }
    #[inline(always)]
    fn fifth_bits_of<const AT: u8>(self, v: IntPair, heads: IntPair) -> IntPair {
        [checked!(fifth_bits_of::<AT>(v[0], heads[0])), checked!(fifth_bits_of::<AT>(v[1], heads[1]))]
    }
    #[inline(always)]
    fn raised(self, v: IntPair) -> IntPair {
        v
    }
    #[inline(always)]
    fn bits(self, v: Pair) -> IntPair {
        [checked!(_mm256_castps_si256(v[0])), checked!(_mm256_castps_si256(v[1]))]
    }
    #[inline(always)]
    fn floats_of(self, v: IntPair) -> Pair {
        [checked!(_mm256_castsi256_ps(v[0])), checked!(_mm256_castsi256_ps(v[1]))]
    }
    #[inline(always)]
    fn widen(self, halves: &[u16; 16]) -> Pair {
        let (low, high) = halves.split_at(8);
        let low = checked!(_mm_loadu_si128(low.as_ptr().cast()));
        let high = checked!(_mm_loadu_si128(high.as_ptr().cast()));
        [checked!(_mm256_cvtph_ps(low)), checked!(_mm256_cvtph_ps(high))]
    }
    #[inline(always)]
    fn widen_low(self, v: IntPair) -> Pair {
        let low = checked!(_mm256_set1_epi32(0xffff));
        let masked = [checked!(_mm256_and_si256(v[0], low)), checked!(_mm256_and_si256(v[1], low))];
        checked!(widen_units(masked))
    }
    #[inline(always)]
    fn widen_high(self, v: IntPair) -> Pair {
        let moved = [checked!(_mm256_srli_epi32::<16>(v[0])), checked!(_mm256_srli_epi32::<16>(v[1]))];
        checked!(widen_units(moved))
    }
    #[inline(always)]
    fn widen_bytes(self, bytes: &[u8; 16]) -> Pair {
        let bytes = checked!(_mm_loadu_si128(bytes.as_ptr().cast()));
        let high = checked!(_mm_unpackhi_epi64(bytes, bytes));
        self.to_float([checked!(_mm256_cvtepi8_epi32(bytes)), checked!(_mm256_cvtepi8_epi32(high))])
    }
    #[inline(always)]
    fn transpose(self, rows: [IntPair; 16]) -> [IntPair; 16] {
        let mut columns = rows;
        for part in 0..2 {
            let (mut top, mut bottom) = ([rows[0][0]; 8], [rows[0][0]; 8]);
            for i in 0..8 {
                top[i] = rows[i][part];
                bottom[i] = rows[8 + i][part];
            }
            let (top, bottom) = (checked!(transpose(top)), checked!(transpose(bottom)));
            for i in 0..8 {
                columns[8 * part + i] = [top[i], bottom[i]];
            }
        }
        columns
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

/// Returns the shuffle indices that put byte `of[h]` of each lane into the high halves of the words of half
/// `h`.
const fn high_bytes(of: [u8; 2]) -> [u8; 32] {
    let mut index = [0x80; 32];
    let mut i = 1;
    while i < 32 {
        index[i] = of[i / 16];
        i += 2;
    }
    index
}

#[inline]
#[target_feature(enable = "avx2")]
fn nibbles(bytes: __m128i) -> __m256i {
    let both = _mm256_broadcastsi128_si256(bytes);
    let moved = _mm256_srlv_epi64(both, _mm256_setr_epi64x(0, 0, 4, 4));
    _mm256_and_si256(moved, _mm256_set1_epi8(15))
}

#[inline]
#[target_feature(enable = "avx2")]
fn two_bits<const AT: u32>(v: __m256i) -> __m256i {
    let moved = match AT {
        0 => _mm256_slli_epi16::<4>(v),
        2 => _mm256_slli_epi16::<2>(v),
        4 => v,
        _ => _mm256_srli_epi16::<2>(v),
    };
    _mm256_and_si256(moved, _mm256_set1_epi8(0x30))
}

/// Adds 16 to byte `i` if bit `i` of `bits` is set: each byte gets its byte of the mask, then tests its bit.
#[inline]
#[target_feature(enable = "avx2")]
fn fifth_bits(v: __m256i, bits: u32) -> __m256i {
    let index = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    add_set_bits(v, _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), index))
}

/// As [`fifth_bits`]; the bits of each half are bytes `AT` and `AT + 1` of that half of `heads`.
#[inline]
#[target_feature(enable = "avx2")]
fn fifth_bits_of<const AT: u8>(v: __m256i, heads: __m256i) -> __m256i {
    let low = i64::from(AT) * 0x0101_0101_0101_0101;
    let high = low + 0x0101_0101_0101_0101;
    add_set_bits(v, _mm256_shuffle_epi8(heads, _mm256_setr_epi64x(low, high, low, high)))
}

/// Adds 16 to byte `i` of each eight if bit `i` of that byte of `spread` is set.
#[inline]
#[target_feature(enable = "avx2")]
fn add_set_bits(v: __m256i, spread: __m256i) -> __m256i {
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
    _mm256_add_epi8(v, _mm256_and_si256(set, _mm256_set1_epi8(16)))
}

/// Returns the sums of the quarters in half `part` of four pairs of registers.
#[inline]
#[target_feature(enable = "avx2")]
fn quarter_sums(rows: &[IntPair], part: usize) -> __m256i {
    let low = _mm256_hadd_epi32(rows[0][part], rows[1][part]);
    let high = _mm256_hadd_epi32(rows[2][part], rows[3][part]);
    _mm256_hadd_epi32(low, high)
}

/// Returns the first units of the quarters in half `part` of four pairs of registers.
#[inline]
#[target_feature(enable = "avx2")]
fn quarter_firsts(rows: &[IntPair; 4], part: usize) -> __m256i {
    let low = _mm256_unpacklo_epi32(rows[0][part], rows[1][part]);
    let high = _mm256_unpacklo_epi32(rows[2][part], rows[3][part]);
    _mm256_unpacklo_epi64(low, high)
}

#[inline]
#[target_feature(enable = "avx2")]
fn transpose_quarters(r: [IntPair; 4]) -> [IntPair; 4] {
    let mut columns = r;
    for part in 0..2 {
        for half in 0..2 {
            let (a, b) = (r[2 * half][part], r[2 * half + 1][part]);
            columns[2 * part][half] = _mm256_permute2x128_si256::<0x20>(a, b);
            columns[2 * part + 1][half] = _mm256_permute2x128_si256::<0x31>(a, b);
        }
    }
    columns
}

/// Sums sixteen pairs of registers.
#[inline]
#[target_feature(enable = "avx2")]
fn reduce(rows: &[IntPair; 16]) -> IntPair {
    let mut quads = [rows[0]; 4];
    for i in 0..4 {
        let four = &rows[4 * i..4 * i + 4];
        quads[i] = [quarter_sums(four, 0), quarter_sums(four, 1)];
    }
    let [a, b, c, d] = transpose_quarters(quads);
    let mut sums = a;
    for part in 0..2 {
        sums[part] = _mm256_add_epi32(_mm256_add_epi32(a[part], b[part]), _mm256_add_epi32(c[part], d[part]));
    }
    sums
}

/// Converts binary16 values in the low halves of the lanes, above which is nothing.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widen_units(v: IntPair) -> Pair {
    // Packing takes units of each half of both registers in turn.
    let packed = _mm256_permute4x64_epi64::<0xd8>(_mm256_packus_epi32(v[0], v[1]));
    let (low, high) = (_mm256_castsi256_si128(packed), _mm256_extracti128_si256::<1>(packed));
    [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
}

/// As [`dot_unsigned`], with each pair of products times its word of `scale`.
#[inline]
#[target_feature(enable = "avx2")]
fn dot_scaled(acc: __m256i, w: __m256i, x: __m256i, scale: __m256i) -> __m256i {
    _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), scale))
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

/// Adds dot products of unsigned and signed bytes. Pairs of products fit 16 bits (127 * 127 * 2 = 32,258), so
/// `maddubs` never saturates.
#[inline]
#[target_feature(enable = "avx2")]
fn dot_unsigned(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
    let pairs = _mm256_maddubs_epi16(w, x);
    _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}

/// Adds dot products of signed bytes as `|w| * (x with the sign of w)`. Pairs reach 128 * 127 * 2 = 32,512,
/// which fits 16 bits since no activation is -128.
#[inline]
#[target_feature(enable = "avx2")]
fn dot_signed(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
    dot_unsigned(acc, _mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
}

/// Does an 8 x 8 transpose of 32-bit units.
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
