//! The tile unit of AMX: exact sums of byte products, sixteen weight rows by up to 32 activation rows.
//!
//! A tile is a register of sixteen rows of 64 bytes. One instruction multiplies a tile of activations with a
//! tile of packed weights and adds to a tile of integers. They hold a row of bytes per token, a [`Line`] per
//! four columns, and a row of sixteen lanes per token. The intrinsics are not stable, so instructions are
//! written out. Between two calls no tile holds anything: only the shapes are state of the thread, see
//! [`Loaded`].
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18 (AMX).

use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::Line;
use crate::activations::{LONG_TILE, SHORT_TILE};
use crate::dispatch::has_avx512_vnni;

/// Witness that the CPU has AMX with bytes, AVX-512 and VNNI, and that this process may use them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tiles(());

/// Returns whether the CPU has AMX with bytes and the system lets this process use it. Asks once.
pub(crate) fn is_usable() -> bool {
    static USABLE: OnceLock<bool> = OnceLock::new();
    *USABLE.get_or_init(|| has_avx512_vnni() && has_instructions() && is_enabled() && is_permitted())
}

fn has_instructions() -> bool {
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    let features = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).edx } else { 0 };
    features & TILE != 0 && features & INT8 != 0
}

/// Returns whether the operating system saves tiles and their shapes.
fn is_enabled() -> bool {
    const TILE_STATE: u64 = 3 << 17;
    // SAFETY: the system saves AVX-512 registers, as the caller has found, and does so by XSAVE.
    unsafe { _xgetbv(0) & TILE_STATE == TILE_STATE }
}

/// Asks Linux for the tile registers, once for all threads of the process. Source: Linux,
/// `Documentation/arch/x86/xstate.rst`.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQ_XCOMP_PERM: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    let result: i64;
    // SAFETY: this call of the system reads and writes no memory of the process; it changes `rcx` and `r11`.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// The shapes of the eight tiles, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// Palette 1 has eight tiles of up to sixteen rows of 64 bytes.
    const fn new(tiles: [(u8, u16); 8]) -> Self {
        let (mut rows, mut row_bytes) = ([0; 16], [0; 16]);
        let mut i = 0;
        while i < tiles.len() {
            (rows[i], row_bytes[i]) = tiles[i];
            i += 1;
        }
        Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
    }
}

/// Which products the tiles are shaped for.
pub(crate) trait Shape {
    /// Rows of each tile, and bytes of a row.
    const TILES: [(u8, u16); 8];
}

/// Blocks of 32 weights, whose sums are needed one by one.
pub(crate) struct OfShort;
/// Super-blocks of 256 weights.
pub(crate) struct OfLong;

impl Shape for OfShort {
    /// Sums in tiles 0 to 3, activations in 4, weights in 5 and 6.
    const TILES: [(u8, u16); 8] = {
        let sums = (SHORT_TILE as u8, 64);
        [sums, sums, sums, sums, (SHORT_TILE as u8, 32), (8, 64), (8, 64), (0, 0)]
    };
}

impl Shape for OfLong {
    /// Sums in tiles 0 to 3, activations in 4 and 5, weights in 6 and 7.
    const TILES: [(u8, u16); 8] = [(16, 64); 8];
}

thread_local! {
    /// Whether this thread has a [`Loaded`].
    static IN_USE: Cell<bool> = const { Cell::new(false) };
}

/// The tiles of this thread in a shape, until it is dropped.
pub(crate) struct Loaded<K: Shape> {
    /// The shapes belong to the thread that has loaded them, so this is neither `Send` nor `Sync`.
    shape: PhantomData<(K, *const ())>,
}

impl Tiles {
    /// Returns a witness if the CPU has AMX and this process may use it.
    pub(super) fn detect() -> Option<Self> {
        is_usable().then_some(Self(()))
    }

    /// Shapes this thread's tiles.
    ///
    /// # Panics
    /// If this thread has another [`Loaded`].
    pub(crate) fn load<K: Shape>(self) -> Loaded<K> {
        assert!(!IN_USE.replace(true), "the tiles of a thread have one shape at a time");
        let shapes: *const Shapes = const { &Shapes::new(K::TILES) };
        // SAFETY: `self` exists only if the CPU has the instruction and the system allows it. The shapes are
        // 64 bytes of memory and valid for palette 1.
        unsafe { asm!("ldtilecfg [{}]", in(reg) shapes, options(nostack, readonly, preserves_flags)) }
        Loaded { shape: PhantomData }
    }

    /// Reads sixteen integer scales, as floats if `floats` is set, for [`Self::digits`].
    #[inline(always)]
    pub(crate) fn scales(self, line: &Line, floats: bool) -> Scales {
        // SAFETY: `self` exists only if the CPU has AVX-512 F and BW.
        Scales(unsafe { both_words(line, floats) })
    }

    /// Multiplies the weights of a line with the scales of their lanes and writes the products as two bytes.
    ///
    /// If `SIGNED`, `raise` is subtracted from the weights first. A product is `low + 256 high`, both signed.
    /// Else it is `low + 8 high`, both without a sign: scales are in 0..=63, and seven times a weight does
    /// not exceed 255.
    #[inline(always)]
    pub(crate) fn digits<const SIGNED: bool>(
        self,
        weights: &Line,
        raise: u8,
        scales: Scales,
        low: &mut Line,
        high: &mut Line,
    ) {
        let digits = if SIGNED {
            // SAFETY: `self` exists only if the CPU has AVX-512 F and BW.
            unsafe { signed_digits(weights, raise, scales) }
        } else {
            // SAFETY: as above.
            unsafe { small_digits(weights, scales) }
        };
        for (digits, to) in digits.into_iter().zip([low, high]) {
            // SAFETY: the reference is valid for the 64 bytes that are written.
            unsafe { _mm512_storeu_si512(to.0.as_mut_ptr().cast(), digits) }
        }
    }
}

/// Sixteen scales, each in both words of its lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scales(__m512i);

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn loaded(line: &Line) -> __m512i {
    // SAFETY: the reference is valid for the 64 bytes that are read.
    unsafe { _mm512_loadu_si512(line.0.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn both_words(line: &Line, floats: bool) -> __m512i {
    let mut lanes = loaded(line);
    if floats {
        lanes = _mm512_cvtps_epi32(_mm512_castsi512_ps(lanes));
    }
    _mm512_mask_mov_epi16(_mm512_slli_epi32::<16>(lanes), 0x5555_5555, lanes)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn small_digits(weights: &Line, scales: Scales) -> [__m512i; 2] {
    let (weights, low) = (loaded(weights), _mm512_and_si512(scales.0, _mm512_set1_epi16(7)));
    // No product of a byte carries into the next one, so words multiply two bytes at once.
    [_mm512_mullo_epi16(weights, low), _mm512_mullo_epi16(weights, _mm512_srli_epi16::<3>(scales.0))]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn signed_digits(weights: &Line, raise: u8, scales: Scales) -> [__m512i; 2] {
    const ODD: u64 = 0xaaaa_aaaa_aaaa_aaaa;
    let weights = _mm512_sub_epi8(loaded(weights), _mm512_set1_epi8(raise as i8));
    let even = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(weights));
    let even = _mm512_mullo_epi16(even, scales.0);
    let odd = _mm512_mullo_epi16(_mm512_srai_epi16::<8>(weights), scales.0);
    let low = _mm512_mask_mov_epi8(even, ODD, _mm512_slli_epi16::<8>(odd));
    // A low digit from 128 on stands for 256 less, so the high one is one more.
    let half = _mm512_set1_epi16(128);
    let (even, odd) = (_mm512_add_epi16(even, half), _mm512_add_epi16(odd, half));
    [low, _mm512_mask_mov_epi8(_mm512_srli_epi16::<8>(even), ODD, odd)]
}

impl<K: Shape> Drop for Loaded<K> {
    fn drop(&mut self) {
        // SAFETY: a `Loaded` exists only if the CPU has AMX. Tiles hold nothing between calls.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
        IN_USE.set(false);
    }
}

/// One block of 32 columns of activation rows, 32 bytes each.
pub(crate) type ShortRows = [Line; SHORT_TILE / 2];
/// Lane `i` of line `t` of part `p`: [`SUM_BITS`] plus the sum of row `i` of panel `p` and activation row
/// `t`.
pub(crate) type ShortSums = [[Line; SHORT_TILE]; 2];

/// Added to the sums of [`OfShort`]. The bits of a sum plus this, read as a float, are [`SUM_START`] plus the
/// sum, exactly.
pub(crate) const SUM_BITS: i32 = 0x4b40_0000;
/// The float of [`SUM_BITS`]: 1.5 times 2 to the power of 23. Sums are below a third of it.
pub(crate) const SUM_START: f32 = 12_582_912.0;

/// The sums before the first product.
static START: [Line; SHORT_TILE] = {
    let mut line = [0; 64];
    let mut i = 0;
    while i < 64 {
        line[i] = SUM_BITS.to_le_bytes()[i % 4];
        i += 1;
    }
    [Line(line); SHORT_TILE]
};

macro_rules! short_sums {
    ($x:ident, $w:ident, $a:tt, $b:tt) => {
        // SAFETY: this thread's tiles have the shapes of `OfShort` while `self` lives. By these, the
        // instructions read all of `x`, `w` and `START`, and no other memory.
        unsafe {
            asm!(
                "tileloadd tmm4, [{x} + {half}]",
                "tileloadd tmm5, [{a} + {line}]",
                concat!("tileloadd ", $a, ", [{start} + {line}]"),
                concat!("tdpbssd ", $a, ", tmm4, tmm5"),
                "tileloadd tmm6, [{b} + {line}]",
                concat!("tileloadd ", $b, ", [{start} + {line}]"),
                concat!("tdpbssd ", $b, ", tmm4, tmm6"),
                x = in(reg) $x,
                a = in(reg) $w[0],
                b = in(reg) $w[1],
                start = in(reg) &START,
                half = in(reg) 32_usize,
                line = in(reg) 64_usize,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out($a) _, out($b) _,
                options(nostack, readonly, preserves_flags),
            );
        }
    };
}

macro_rules! store_sums {
    ($sums:ident, $a:tt, $b:tt) => {
        // SAFETY: this thread's tiles have the shapes of `OfShort` while `self` lives. By these, the
        // instructions write all of `sums`, and no other memory.
        unsafe {
            asm!(
                concat!("tilestored [{sums} + {line}], ", $a),
                concat!("tilestored [{sums} + {line} + {second}], ", $b),
                sums = in(reg) $sums,
                line = in(reg) 64_usize,
                second = const 64 * SHORT_TILE,
                options(nostack, preserves_flags),
            );
        }
    };
}

impl Loaded<OfShort> {
    /// Multiplies signed bytes: a block of two panels by a block of activation rows. The sums stay in tiles
    /// of the unit until [`Self::store`] with the same `odd`.
    #[inline(always)]
    pub(crate) fn multiply(&self, odd: bool, x: &ShortRows, w: [&[Line; 8]; 2]) {
        if odd {
            short_sums!(x, w, "tmm2", "tmm3");
        } else {
            short_sums!(x, w, "tmm0", "tmm1");
        }
    }

    /// Writes the sums of the last [`Self::multiply`] with this `odd`. A store waits for its sums and holds
    /// up what follows, so another product should lie between the two.
    #[inline(always)]
    pub(crate) fn store(&self, odd: bool, sums: &mut ShortSums) {
        if odd {
            store_sums!(sums, "tmm2", "tmm3");
        } else {
            store_sums!(sums, "tmm0", "tmm1");
        }
    }
}

/// A super-block of activation rows: four parts of 64 columns, a line per row.
pub(crate) type LongRows = [[Line; LONG_TILE]; 4];
/// A super-block of sixteen weight rows times their integer scales: four parts of 64 columns, the low digits
/// and the high digits of each.
pub(crate) type Digits = [[[Line; 16]; 2]; 4];
/// The sums of low digits and of high digits, for each half of the activation rows.
pub(crate) type LongSums = [[[Line; 16]; 2]; 2];

macro_rules! long_sums {
    ($dot:literal, $x:ident, $w:ident, $both:ident) => {{
        // SAFETY: this thread's tiles have the shapes of `OfLong` while `self` lives: sixteen rows of 64
        // bytes, 64 bytes apart. The instructions read the first half of `x` and all of `w`.
        unsafe {
            asm!(
                "tileloadd tmm4, [{x} + {line}]",
                "tileloadd tmm6, [{w} + {line}]",
                concat!($dot, " tmm0, tmm4, tmm6"),
                "tileloadd tmm7, [{w} + {line} + 1024]",
                concat!($dot, " tmm1, tmm4, tmm7"),
                x = in(reg) $x,
                w = in(reg) $w,
                line = in(reg) 64_usize,
                out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly, preserves_flags),
            );
        }
        if $both {
            // SAFETY: as above; these read the second half of `x`.
            unsafe {
                asm!(
                    "tileloadd tmm5, [{x} + {line} + 1024]",
                    concat!($dot, " tmm2, tmm5, tmm6"),
                    concat!($dot, " tmm3, tmm5, tmm7"),
                    x = in(reg) $x,
                    line = in(reg) 64_usize,
                    out("tmm2") _, out("tmm3") _, out("tmm5") _,
                    options(nostack, readonly, preserves_flags),
                );
            }
        }
    }};
}

impl Loaded<OfLong> {
    /// Sets all sums to zero.
    #[inline(always)]
    pub(crate) fn clear(&self) {
        // SAFETY: this thread's tiles have the shapes of `OfLong` while `self` lives; no memory is touched.
        unsafe {
            asm!(
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nostack, nomem, preserves_flags),
            );
        }
    }

    /// Adds the products of 64 columns of signed bytes of `x` with bytes of `w`, signed if `SIGNED`. The
    /// second half of the activation rows is computed if `both` is set.
    #[inline(always)]
    pub(crate) fn multiply<const SIGNED: bool>(
        &self,
        x: &[Line; LONG_TILE],
        w: &[[Line; 16]; 2],
        both: bool,
    ) {
        if SIGNED {
            long_sums!("tdpbssd", x, w, both);
        } else {
            long_sums!("tdpbsud", x, w, both);
        }
    }

    /// Writes the sums. As [`Loaded::<OfShort>::store`], it should come some time after the last product.
    #[inline(always)]
    pub(crate) fn store(&self, sums: &mut LongSums) {
        // SAFETY: this thread's tiles have the shapes of `OfLong` while `self` lives. By these, the
        // instructions write all of `sums`, and no other memory.
        unsafe {
            asm!(
                "tilestored [{sums} + {line}], tmm0",
                "tilestored [{sums} + {line} + 1024], tmm1",
                "tilestored [{sums} + {line} + 2048], tmm2",
                "tilestored [{sums} + {line} + 3072], tmm3",
                sums = in(reg) sums,
                line = in(reg) 64_usize,
                options(nostack, preserves_flags),
            );
        }
    }
}
