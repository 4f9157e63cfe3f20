//! Products with many activation rows, by the tile unit of AMX.
//!
//! The unit sums products of bytes, exactly; the float operations that follow are, lane by lane, the
//! definition of [`super`]. Short blocks need the sum of each block of 32: each has a scale in floats.
//! The scales inside a super-block are integers. So weights are packed times their scale, as two digits of a
//! byte each, and the unit sums a whole super-block at once: `Σ scale w q = Σ low q + base Σ high q`.
//!
//! The unit leaves the vector units one port for float operations, so these are few. For short blocks the
//! sum is read as a float with an offset `o`, and `fma(o + sum, d, -o d)` is `sum * d` rounded once: `o d` is
//! exact, since `d` is a binary16. Only the sign of a zero may differ. No later sum shows that, since none is
//! -0 unless something underflowed. Infinite scales and such small activations are computed as defined.
//!
//! While the vector units take the sums of one tile, the tile unit makes the next ones.

#![allow(
    clippy::needless_range_loop,
    reason = "one index names the same row, panel or group in several arrays"
)]

use std::marker::PhantomData;
use std::ops::Range;

use super::panel::{Panel, ROWS};
use super::strip::Strip;
use super::tasks::UNIT;
use super::tile::words;
use super::{Product, Rectangle};
use crate::activations::{LONG_TILE, SHORT_TILE, TileRows};
use crate::blocks::{K_LEN, Long, Short};
use crate::format::Format;
use crate::simd::amx::{
    Digits, Loaded, LongRows, LongSums, OfLong, OfShort, SUM_BITS, SUM_START, ShortRows, ShortSums, Tiles,
};
use crate::simd::{Floats, Kernel, Line, Simd};

/// Short blocks of a row that are packed at a time; two panels of them fit the L1 cache beside activations.
const SHORT_BLOCKS: usize = 16;

/// Partial sums of activation rows with two panels.
type Sums = [[Floats; 2]];

const LINE: Line = Line([0; 64]);
const NO_SUMS: [Floats; 2] = [Floats([0.0; ROWS]); 2];

/// What the steps of one rectangle share.
struct Part<'a> {
    product: &'a Product<'a>,
    tokens: Range<usize>,
    x: &'a TileRows,
    /// Blocks of a row.
    blocks: usize,
    /// The first row of the first panel.
    first: usize,
    /// Panels with rows of the matrix: 1 or 2.
    panels: usize,
}

impl Part<'_> {
    /// Writes the elements of panel `p` and an activation row.
    #[inline(always)]
    fn write<S: Simd>(&self, s: S, token: usize, p: usize, y: S::F) {
        if token < self.tokens.end && p < self.panels {
            self.product.write(s, token, self.first + p * ROWS, y);
        }
    }

    /// Prefetches the lines that [`Self::write`] will write. Unlike loads, stores to lines far away fill the
    /// store buffer and stall what follows.
    #[inline(always)]
    fn prefetch<S: Simd>(&self, s: S, tokens: Range<usize>, p: usize) {
        for token in tokens.start..tokens.end.min(self.tokens.end) {
            s.prefetch(self.product.out.address(token, self.first + p * ROWS));
        }
    }
}

/// Computes a rectangle of short blocks.
#[inline(always)]
pub(super) fn short<S: Simd, B: Short>(s: S, tiles: Tiles, work: Rectangle<'_>) {
    let Rectangle { product, rows, tokens, scratch } = work;
    let (x, blocks, unit) = (product.x.short_tiles(), product.w.blocks(), tiles.load::<OfShort>());
    let groups = tokens.start / SHORT_TILE..tokens.end.div_ceil(SHORT_TILE);
    for first in rows.clone().step_by(UNIT) {
        let panels = if first + ROWS < rows.end { 2 } else { 1 };
        let part = Part { product, tokens: tokens.clone(), x, blocks, first, panels };
        scratch.sums.clear();
        scratch.sums.resize(groups.len() * SHORT_TILE, NO_SUMS);
        for start in (0..blocks).step_by(SHORT_BLOCKS) {
            let range = start..blocks.min(start + SHORT_BLOCKS);
            for (p, panel) in scratch.panels.iter_mut().enumerate() {
                let rows = Strip::new(product.w, first + p * ROWS);
                s.enter(ShortPack::<B> { panel, rows, blocks: range.clone(), kind: PhantomData });
            }
            let mut scales = scratch.panels.iter().flat_map(|panel| &panel.d).flat_map(|d| d.0);
            let is_plain = x.is_plain && scales.all(f32::is_finite);
            for (group, sums) in groups.clone().zip(scratch.sums.as_chunks_mut().0) {
                let (blocks, panels) = (range.clone(), &scratch.panels);
                let step = ShortStep { part: &part, unit: &unit, panels, group, blocks, sums };
                if is_plain {
                    s.enter(ShortTask::<B, true> { step, kind: PhantomData });
                } else {
                    s.enter(ShortTask::<B, false> { step, kind: PhantomData });
                }
            }
        }
    }
}

/// Packs blocks of sixteen rows as signed bytes.
struct ShortPack<'a, B> {
    panel: &'a mut Panel,
    rows: Strip<'a>,
    blocks: Range<usize>,
    kind: PhantomData<B>,
}

impl<B: Short> Kernel for ShortPack<'_, B> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.panel.pack_short::<S, B>(s, &self.rows, self.blocks);
        if B::RAISE > 0 {
            for line in &mut self.panel.weights {
                for byte in &mut line.0 {
                    *byte = byte.wrapping_sub(B::RAISE);
                }
            }
        }
    }
}

/// A group of activation rows and the packed blocks.
struct ShortStep<'a> {
    part: &'a Part<'a>,
    unit: &'a Loaded<OfShort>,
    panels: &'a [Panel; 2],
    group: usize,
    blocks: Range<usize>,
    sums: &'a mut [[Floats; 2]; SHORT_TILE],
}

/// Adds the products of a step; if `PLAIN`, all scales are finite and no sum underflows.
struct ShortTask<'a, B, const PLAIN: bool> {
    step: ShortStep<'a>,
    kind: PhantomData<B>,
}

impl<B: Short, const PLAIN: bool> Kernel for ShortTask<'_, B, PLAIN> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let ShortStep { part, unit, panels, group, blocks, sums } = self.step;
        let own = group * part.blocks + blocks.start..group * part.blocks + blocks.end;
        let q: &[ShortRows] = &part.x.q.as_chunks().0[own.clone()];
        let scale: &[[f32; SHORT_TILE]] = &part.x.scale.as_chunks().0[own.clone()];
        let sum: &[[f32; SHORT_TILE]] = &part.x.sum.as_chunks().0[own];
        let n = q.len();
        let (a, b) = (&panels[0].weights.as_chunks().0[..n], &panels[1].weights.as_chunks().0[..n]);
        let (da, db) = (&panels[0].d[..n], &panels[1].d[..n]);
        let (ma, mb) = (&panels[0].m[..n], &panels[1].m[..n]);
        let is_done = blocks.end == part.blocks;
        let token = group * SHORT_TILE;
        if is_done {
            for p in 0..part.panels {
                part.prefetch(s, token..token + SHORT_TILE, p);
            }
        }
        let mut y = [[s.splat(0.0); 2]; SHORT_TILE];
        for t in 0..SHORT_TILE {
            for p in 0..2 {
                y[t][p] = s.load(&sums[t][p].0);
            }
        }
        let mut dots: [ShortSums; 2] = [[[LINE; SHORT_TILE]; 2]; 2];
        unit.multiply(false, &q[0], [&a[0], &b[0]]);
        if n > 1 {
            unit.multiply(true, &q[1], [&a[1], &b[1]]);
        }
        unit.store(false, &mut dots[0]);
        for i in 0..n {
            if i + 2 < n {
                unit.multiply(i % 2 == 1, &q[i + 2], [&a[i + 2], &b[i + 2]]);
            }
            if i + 1 < n {
                unit.store(i % 2 == 0, &mut dots[(i + 1) % 2]);
            }
            let (dots, d) = (&dots[i % 2], [s.load(&da[i].0), s.load(&db[i].0)]);
            let start = s.splat(-SUM_START);
            let offset = [s.mul(d[0], start), s.mul(d[1], start)];
            for t in 0..SHORT_TILE {
                let dx = s.splat(scale[i][t]);
                for p in 0..2 {
                    let dot = s.load_units(&dots[p][t]);
                    let mut z = if PLAIN {
                        s.fma(s.floats_of(dot), d[p], offset[p])
                    } else {
                        s.mul(s.to_float(s.add_int(dot, s.splat_int(-SUM_BITS))), d[p])
                    };
                    if B::MINIMUM {
                        let m = if p == 0 { &ma[i] } else { &mb[i] };
                        z = s.fma(s.splat(sum[i][t]), s.load(&m.0), z);
                    }
                    y[t][p] = s.fma(z, dx, y[t][p]);
                }
            }
        }
        for t in 0..SHORT_TILE {
            for p in 0..2 {
                s.store(y[t][p], &mut sums[t][p].0);
            }
        }
        if is_done {
            for t in 0..SHORT_TILE {
                for p in 0..2 {
                    part.write(s, token + t, p, s.load(&sums[t][p].0));
                }
            }
        }
    }
}

/// Whether the products of weights and scales are digits without a sign, see [`Tiles::digits`].
const fn is_small<B: Long>() -> bool {
    matches!(B::FORMAT, Format::Q4K | Format::Q5K)
}

/// Computes a rectangle of super-blocks.
#[inline(always)]
pub(super) fn long<S: Simd, B: Long>(s: S, tiles: Tiles, work: Rectangle<'_>) {
    let Rectangle { product, rows, tokens, scratch } = work;
    let (x, blocks, unit) = (product.x.long_tiles(), product.w.blocks(), tiles.load::<OfLong>());
    let groups = tokens.start / LONG_TILE..tokens.end.div_ceil(LONG_TILE);
    for first in rows.clone().step_by(UNIT) {
        let panels = if first + ROWS < rows.end { 2 } else { 1 };
        let part = Part { product, tokens: tokens.clone(), x, blocks, first, panels };
        scratch.sums.clear();
        scratch.sums.resize(groups.len() * LONG_TILE, NO_SUMS);
        for block in 0..blocks {
            for (p, panel) in scratch.panels.iter_mut().enumerate().take(panels) {
                let rows = Strip::new(product.w, first + p * ROWS);
                s.enter(LongPack::<B> { tiles, panel, rows, block, kind: PhantomData });
            }
            s.enter(LongTask::<B> {
                part: &part,
                unit: &unit,
                panels: &scratch.panels,
                groups: groups.clone(),
                block,
                sums: &mut scratch.sums,
                kind: PhantomData,
            });
        }
    }
}

/// Packs a super-block of sixteen rows times its scales.
struct LongPack<'a, B> {
    tiles: Tiles,
    panel: &'a mut Panel,
    rows: Strip<'a>,
    block: usize,
    kind: PhantomData<B>,
}

impl<B: Long> Kernel for LongPack<'_, B> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { tiles, panel, rows, block, .. } = self;
        panel.pack_long::<S, B>(s, &rows, block..block + 1);
        panel.digits.resize(4, [[LINE; 16]; 2]);
        let lines = B::GROUP / 4;
        for g in 0..K_LEN / B::GROUP {
            let scales = tiles.scales(&panel.scales[g], B::FLOAT_PARTS > 0);
            for line in g * lines..(g + 1) * lines {
                let [low, high] = &mut panel.digits[line / 16];
                let (from, low, high) = (&panel.weights[line], &mut low[line % 16], &mut high[line % 16]);
                if is_small::<B>() {
                    tiles.digits::<false>(from, B::RAISE, scales, low, high);
                } else {
                    tiles.digits::<true>(from, B::RAISE, scales, low, high);
                }
            }
        }
    }
}

/// Adds the products of groups of activation rows with a packed super-block.
struct LongTask<'a, B> {
    part: &'a Part<'a>,
    unit: &'a Loaded<OfLong>,
    panels: &'a [Panel; 2],
    groups: Range<usize>,
    block: usize,
    sums: &'a mut Sums,
    kind: PhantomData<B>,
}

impl<B: Long> Kernel for LongTask<'_, B> {
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let mut dots: LongSums = [[[LINE; 16]; 2]; 2];
        let count = self.groups.len() * self.part.panels;
        for i in 0..=count {
            self.unit.clear();
            // The tile unit makes the sums of a step while the vector units take those of the step before.
            for quarter in 0..4 {
                if i < count {
                    self.multiply(i, quarter);
                }
                if i > 0 {
                    self.add(s, i - 1, quarter, &dots);
                }
            }
            self.unit.store(&mut dots);
        }
    }
}

impl<B: Long> LongTask<'_, B> {
    /// Returns the group and the panel of step `i`, and whether the group has rows in its second half.
    #[inline(always)]
    fn step(&self, i: usize) -> (usize, usize, bool) {
        let two = self.part.panels - 1;
        let (group, p) = (self.groups.start + (i >> two), i & two);
        (group, p, self.part.tokens.end - group * LONG_TILE > LONG_TILE / 2)
    }

    /// Sums the products of a quarter of the columns for step `i`.
    #[inline(always)]
    fn multiply(&self, i: usize, quarter: usize) {
        let (group, p, both) = self.step(i);
        let blocks: &[LongRows] = self.part.x.q.as_chunks().0.as_chunks().0;
        let x = &blocks[group * self.part.blocks + self.block][quarter];
        let w: &Digits = self.panels[p].digits.first_chunk().expect("a super-block has four parts");
        if is_small::<B>() {
            self.unit.multiply::<false>(x, &w[quarter], both);
        } else {
            self.unit.multiply::<true>(x, &w[quarter], both);
        }
    }

    /// Adds the products of a quarter of the activation rows of step `i`, given its sums.
    #[inline(always)]
    fn add<S: Simd>(&mut self, s: S, i: usize, quarter: usize, dots: &LongSums) {
        let (group, p, both) = self.step(i);
        let (part, panel) = (self.part, &self.panels[p]);
        let is_done = self.block + 1 == part.blocks;
        let (own, token) = (group * part.blocks + self.block, group * LONG_TILE);
        let n = if both { LONG_TILE / 4 } else { LONG_TILE / 8 };
        let rows = quarter * n..(quarter + 1) * n;
        if is_done {
            part.prefetch(s, token + rows.start..token + rows.end, p);
        }
        let scale: &[f32; LONG_TILE] = &part.x.scale.as_chunks().0[own];
        let words_of: &[_; LONG_TILE] = &part.x.words.as_chunks().0[own];
        let sums = &mut self.sums.as_chunks_mut::<LONG_TILE>().0[group - self.groups.start];
        let (d, m) = (s.load(&panel.d[0].0), s.load(&panel.m[0].0));
        let pairs = if B::MINIMA { K_LEN / B::GROUP / 2 } else { 0 };
        let mut minima = [s.splat_int(0); 8];
        for pair in 0..pairs {
            minima[pair] = s.load_units(&panel.minima[pair]);
        }
        for t in rows {
            let [low, high] = &dots[t / 16];
            let (low, high) = (s.load_units(&low[t % 16]), s.load_units(&high[t % 16]));
            let total = if is_small::<B>() {
                let two = s.add_int(high, high);
                let four = s.add_int(two, two);
                s.to_float(s.add_int(s.add_int(four, four), low))
            } else {
                // Both sums are below 2^24, so this rounds once, as the conversion of their whole sum would.
                s.fma(s.to_float(high), s.splat(256.0), s.to_float(low))
            };
            let mut z = s.mul(total, d);
            if B::MINIMA {
                let mut total = s.splat_int(0);
                let sums = words::<B>(&words_of[t]);
                for pair in 0..pairs {
                    total = s.dot_words(total, minima[pair], s.splat_int(sums[pair]));
                }
                z = s.fma(s.to_float(total), m, z);
            }
            let y = s.fma(z, s.splat(scale[t]), s.load(&sums[t][p].0));
            s.store(y, &mut sums[t][p].0);
            if is_done {
                part.write(s, token + t, p, y);
            }
        }
    }
}
