//! Sixteen lanes: the operations that fast kernels are written in, and the entry to a level.
//!
//! A kernel is generic over [`Simd`], so each is written once. A value of a type that implements it proves
//! that the CPU has the level: only `detect` returns one, and that makes the methods safe to call. Every
//! float operation is the IEEE operation of the same name per lane. Sums over lanes have the fixed order of
//! [`crate::rows::tree_sum`]. Nothing here may change a result.
//!
//! Kernels handle lanes in plain loops, not in closures (`array::from_fn`, `map`, `with_borrow_mut`). A
//! closure that is not inlined is compiled without the level's features, and every lane operation in it
//! becomes a call.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

use crate::dispatch::Dispatch;
use crate::exp::{HIGH, LN2_HIGH, LN2_LOW, LOG2_E, LOW, POLY, ROUND};

/// 64 bytes of packed weights, on one cache line: sixteen rows of four bytes.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Line(pub [u8; 64]);

/// Sixteen floats on one cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Floats(pub [f32; 16]);

/// Operations on sixteen lanes.
pub(crate) trait Simd: Copy {
    /// Sixteen floats.
    type F: Copy;
    /// Sixteen 32-bit units: integers, or sixteen rows of four bytes.
    type I: Copy;
    /// Whether there are 32 registers of sixteen lanes instead of 16 registers of fewer.
    const WIDE: bool;
    /// Whether signed weight bytes are packed plus 128, because the level multiplies unsigned by signed
    /// bytes.
    const RAISES_SIGNED: bool;

    /// Whether [`Simd::dot_pairs`] is faster than going step by step.
    const PAIRS: bool;

    /// Runs a kernel as a function of its own, compiled for the level. A kernel stays small by entering
    /// smaller ones: in a very large function the compiler stops inlining what must be inlined.
    fn enter<K: Kernel>(self, kernel: K);

    /// Returns the tile unit if the level has one.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn tiles(self) -> Option<amx::Tiles> {
        None
    }

    fn splat(self, v: f32) -> Self::F;
    fn load(self, v: &[f32; 16]) -> Self::F;
    fn load_line(self, v: &Line) -> Self::F;
    fn store(self, v: Self::F, to: &mut [f32; 16]);
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Returns the sum of the lanes in the order of [`crate::rows::tree_sum`].
    fn tree_sum(self, v: Self::F) -> f32;
    /// Applies [`crate::rows::larger`] per lane.
    fn larger(self, a: Self::F, b: Self::F) -> Self::F;
    /// Returns the largest lane, compared in the order of [`Simd::tree_sum`].
    fn tree_largest(self, v: Self::F) -> f32;
    /// Takes lane `i` from `v` if bit `i` of `mask` is set, else from `other`.
    fn keep(self, mask: u16, v: Self::F, other: Self::F) -> Self::F;
    /// Takes the lane from `then` if `a < b`, else from `other`.
    fn where_less(self, a: Self::F, b: Self::F, then: Self::F, other: Self::F) -> Self::F;
    /// Returns 2 to the power of the integer in the low bits of `shifted`, which is [`ROUND`] plus that
    /// integer.
    fn power_of_two(self, shifted: Self::F) -> Self::F;

    fn splat_int(self, v: i32) -> Self::I;
    fn to_float(self, v: Self::I) -> Self::F;
    fn add_int(self, a: Self::I, b: Self::I) -> Self::I;
    fn mul_int(self, a: Self::I, b: Self::I) -> Self::I;
    /// Divides lanes by two to the power of `N`, rounded down.
    fn shift_down<const N: u32>(self, v: Self::I) -> Self::I;
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    fn load_units(self, line: &Line) -> Self::I;
    fn store_units(self, v: Self::I, line: &mut Line);
    /// Adds to lane `i` the dot product of four bytes of `w`, unsigned up to 127, and four bytes of `x` in
    /// -127..=127.
    fn dot_small(self, acc: Self::I, w: Self::I, x: Self::I) -> Self::I;
    /// Adds to lane `i` the dot product of four signed bytes of `w` and four bytes of `x` in -127..=127. The
    /// bytes of `w` are packed as [`Simd::RAISES_SIGNED`] says; the caller subtracts the raise.
    fn dot_signed(self, acc: Self::I, w: Self::I, x: Self::I) -> Self::I;
    /// Adds to lane `i` of `dot[t]` the dot product of row `i` of `w` with `x[t]`, as [`Simd::dot_signed`]
    /// does. Each line of `w` is a step of four bytes. The number of steps and the number of activation rows
    /// are even.
    #[inline(always)]
    fn dot_pairs<const T: usize>(self, dot: [Self::I; T], w: &[Line], x: [&[u8]; T]) -> [Self::I; T] {
        in_steps(self, dot, w, x)
    }
    /// Adds to lane `i` the dot product of [`Simd::dot_small`] times the lane's scale, as [`Simd::spread`]
    /// returns it.
    fn dot_scaled(self, acc: Self::I, w: Self::I, x: Self::I, scale: Self::I) -> Self::I;
    /// Adds to lane `i` the dot product of two signed 16-bit words.
    fn dot_words(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// Spreads four signed bytes as words: byte `A` twice in each of lanes 0..4, `B` in 4..8, `C` in 8..12,
    /// `D` in 12..16.
    fn spread<const A: u8, const B: u8, const C: u8, const D: u8>(self, four: u32) -> Self::I;
    /// Returns the low word of each lane, sign-extended.
    fn low_word(self, v: Self::I) -> Self::I;
    /// Returns byte `AT` of each lane, sign-extended.
    fn byte<const AT: u32>(self, v: Self::I) -> Self::I;
    /// Returns bytes 0 and 2 of each lane as signed words.
    fn even_bytes(self, v: Self::I) -> Self::I;
    /// Returns bytes 1 and 3 of each lane as signed words.
    fn odd_bytes(self, v: Self::I) -> Self::I;
    /// Sets lane `i` to the sum of all lanes of `rows[i]`.
    fn reduce(self, rows: [Self::I; 16]) -> Self::I;
    /// Sets unit `i` of each quarter to the sum of that quarter of `rows[i]`.
    fn quarter_sums(self, rows: [Self::I; 4]) -> Self::I;
    /// Sets unit `i` of each quarter to the first unit of that quarter of `rows[i]`.
    fn quarter_firsts(self, rows: [Self::I; 4]) -> Self::I;
    /// Transposes quarters: quarter `i` of result `j` is quarter `j` of `rows[i]`.
    fn transpose_quarters(self, rows: [Self::I; 4]) -> [Self::I; 4];
    /// Loads sixteen 4-byte units.
    fn units(self, bytes: &[u8; 64]) -> Self::I;
    /// Loads sixteen 4-byte units from two places.
    fn joined(self, low: &[u8; 32], high: &[u8; 32]) -> Self::I;
    /// Loads sixteen 4-byte units from four places.
    fn quarters(self, from: [&[u8; 16]; 4]) -> Self::I;
    /// Returns the low half of every byte.
    fn low_nibbles(self, v: Self::I) -> Self::I;
    /// Returns the high half of every byte.
    fn high_nibbles(self, v: Self::I) -> Self::I;
    /// Moves bits `AT` and `AT + 1` of each byte to bits 4 and 5 (`AT` is 0, 2, 4 or 6).
    fn two_bits<const AT: u32>(self, v: Self::I) -> Self::I;
    /// Returns [`Simd::two_bits`] 0 of 32 bytes, then 2 of the same bytes; and 4, then 6.
    fn bit_pairs(self, bytes: &[u8; 32]) -> [Self::I; 2];
    /// Returns the low halves of 16 bytes, then their high halves; then the same of 16 others.
    fn nibble_pair(self, a: &[u8; 16], b: &[u8; 16]) -> Self::I;
    /// Returns byte `b` of the table for every byte `b`, below 16, of `v`.
    fn look_up(self, table: &[u8; 16], v: Self::I) -> Self::I;
    /// Adds 16 to every byte whose bit is set.
    fn fifth_bits(self, v: Self::I, bits: u64) -> Self::I;
    /// As [`Simd::fifth_bits`]; the bits of each quarter are bytes `AT` and `AT + 1` of that quarter of
    /// `heads`.
    fn fifth_bits_of<const AT: u8>(self, v: Self::I, heads: Self::I) -> Self::I;
    /// Converts signed bytes to the form that [`Simd::dot_signed`] takes.
    fn raised(self, v: Self::I) -> Self::I;
    /// Returns the bits of sixteen floats.
    fn bits(self, v: Self::F) -> Self::I;
    /// Returns the floats of sixteen 32-bit patterns.
    fn floats_of(self, v: Self::I) -> Self::F;
    /// Converts sixteen binary16 values to floats, exactly.
    fn widen(self, halves: &[u16; 16]) -> Self::F;
    /// Converts the binary16 value in the low half of each lane to a float, exactly.
    fn widen_low(self, v: Self::I) -> Self::F;
    /// Converts the binary16 value in the high half of each lane to a float, exactly.
    fn widen_high(self, v: Self::I) -> Self::F;
    /// Converts sixteen signed bytes to floats.
    fn widen_bytes(self, bytes: &[u8; 16]) -> Self::F;
    /// Transposes sixteen rows of sixteen units: unit `i` of result `j` is unit `j` of `rows[i]`.
    fn transpose(self, rows: [Self::I; 16]) -> [Self::I; 16];
    /// Transposes rows of four units: the first four columns of [`Simd::transpose`].
    #[inline(always)]
    fn transpose_four(self, rows: &[[u8; 16]; 16]) -> [Self::I; 4] {
        let mut units = [self.splat_int(0); 16];
        for (unit, row) in units.iter_mut().zip(rows) {
            let mut bytes = [0; 64];
            bytes[..16].copy_from_slice(row);
            *unit = self.units(&bytes);
        }
        let [a, b, c, d, ..] = self.transpose(units);
        [a, b, c, d]
    }
    /// Prefetches the cache line at an address, which need not be valid.
    fn prefetch(self, at: *const u8);
    /// As [`Simd::prefetch`], but only into the L2 cache.
    fn prefetch_far(self, at: *const u8);

    /// Computes [`crate::exp()`] per lane: the same operations in the same order.
    #[inline(always)]
    fn exp(self, x: Self::F) -> Self::F {
        let round = self.splat(ROUND);
        let shifted = self.fma(x, self.splat(LOG2_E), round);
        let n = self.sub(shifted, round);
        let r = self.fma(n, self.splat(-LN2_LOW), self.fma(n, self.splat(-LN2_HIGH), x));
        let mut p = self.splat(POLY[0]);
        for &c in &POLY[1..] {
            p = self.fma(p, r, self.splat(c));
        }
        let value = self.mul(p, self.power_of_two(shifted));
        let bounded = self.where_less(self.splat(HIGH), x, self.splat(f32::INFINITY), value);
        self.where_less(x, self.splat(LOW), self.splat(0.0), bounded)
    }

    /// Computes [`crate::exp::soft_cap`] per lane: the same operations in the same order.
    #[inline(always)]
    fn soft_cap(self, x: Self::F, cap: f32) -> Self::F {
        let (one, two, cap) = (self.splat(1.0), self.splat(2.0), self.splat(cap));
        let y = self.div(x, cap);
        let tanh = self.sub(one, self.div(two, self.add(one, self.exp(self.add(y, y)))));
        self.mul(cap, tanh)
    }
}

/// [`Simd::dot_pairs`], one step after another.
#[inline(always)]
fn in_steps<S: Simd, const T: usize>(s: S, mut dot: [S::I; T], w: &[Line], x: [&[u8]; T]) -> [S::I; T] {
    for (k, line) in w.iter().enumerate() {
        let w = s.load_units(line);
        for (dot, x) in dot.iter_mut().zip(x) {
            *dot = s.dot_signed(*dot, w, s.splat_int(i32::from_le_bytes(x.as_chunks().0[k])));
        }
    }
    dot
}

/// A computation that a level runs. `run` must be `#[inline(always)]` to be compiled for the level.
pub(crate) trait Kernel {
    /// Computes with the level that `s` stands for.
    fn run<S: Simd>(self, s: S);
}

/// Runs `kernel` at `level` if it is a vector level that the CPU has; else returns the kernel.
pub(crate) fn run<K: Kernel>(level: Dispatch, kernel: K) -> Result<(), K> {
    match level {
        #[cfg(target_arch = "x86_64")]
        Dispatch::Avx512Amx => match avx512::Avx512::detect_with_tiles() {
            Some(s) => s.enter(kernel),
            None => return Err(kernel),
        },
        #[cfg(target_arch = "x86_64")]
        Dispatch::Avx512Vnni => match avx512::Avx512::detect() {
            Some(s) => s.enter(kernel),
            None => return Err(kernel),
        },
        #[cfg(target_arch = "x86_64")]
        Dispatch::Avx2 => match avx2::Avx2::detect() {
            Some(s) => s.enter(kernel),
            None => return Err(kernel),
        },
        #[cfg(target_arch = "aarch64")]
        Dispatch::NeonI8mm => match neon::Neon::<neon::I8mm>::detect() {
            Some(s) => s.enter(kernel),
            None => return Err(kernel),
        },
        #[cfg(target_arch = "aarch64")]
        Dispatch::NeonDotprod => match neon::Neon::<neon::Dotprod>::detect() {
            Some(s) => s.enter(kernel),
            None => return Err(kernel),
        },
        #[cfg(target_arch = "aarch64")]
        Dispatch::Neon => match neon::Neon::<neon::Widening>::detect() {
            Some(s) => s.enter(kernel),
            None => return Err(kernel),
        },
        _ => return Err(kernel),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
