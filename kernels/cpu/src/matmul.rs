//! Matrix products of stored weights and activation rows: `out[t, r] = Σ_c w[r, c] x[t, c]`.
//!
//! The definition of one output element, the same for every number of tokens, threads and dispatch level
//! (`fma` rounds once; integers are exact):
//!
//! - Float weights, activations in `f32`: per 32 columns `s = fma(w, x, s)` from 0 in order, then `y += s`.
//! - Blocks of 32, activations in bytes with a scale `dx` per 32: per block `z = (Σ w q) * d`; with a minimum
//!   `m` then `z = fma(Σ q, m, z)`; at last `y = fma(z, dx, y)`.
//! - Super-blocks, activations in bytes with a scale `dx` per 256: per super-block, with sums over its
//!   groups, `z = (Σ scale Σ w q) * d`; with minima then `z = fma(Σ min Σ q, -dmin, z)`; at last
//!   `y = fma(z, dx, y)`.
//!
//! `scalar` is this definition in code. Sums of integers are exact, so only the order of blocks is fixed. The
//! vector levels compute it in several ways, all with sixteen rows in the lanes of a register. `panel` and
//! `tile` pack rows side by side (many tokens). `along` reads blocks as they are stored (up to three tokens).
//! `across` transposes them in registers (three to eight tokens, for the formats that most files have). `amx`
//! multiplies packed rows in a tile unit (prompts).

mod across;
mod along;
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(feature = "free-order")]
mod free;
mod heads;
mod output;
mod panel;
mod quants;
mod scalar;
mod steps;
mod strip;
mod tasks;
pub(crate) mod tile;

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

use crate::activations::{Activations, LONG_TILE, SHORT_TILE};
use crate::blocks::{K_LEN, Long, SHORT_LEN, Short, Visitor, visit};
use crate::dispatch::Dispatch;
#[cfg(feature = "free-order")]
use crate::format::Format;
use crate::format::Matrix;
use crate::pool::Pool;
use crate::simd::{Floats, Kernel, Simd, run};

use output::Output;
use panel::{Panel, ROWS};
pub(crate) use scalar::FLOAT_BLOCK;
use steps::{PackTask, StripTask, TileTask};
use strip::Strip;
use tasks::{Tasks, UNIT};

/// Activation rows from which on a tile unit is faster than the lanes for every format.
const TILE_TOKENS_MIN: usize = 32;

/// Multiplies every activation row by every weight row, at [`Dispatch::current`].
///
/// Shapes: `w: [rows, cols]`, `x: [t, cols]`, `out: [t, rows]`. Cost: `O(t rows cols)`, parallel over ranges
/// of rows.
///
/// # Panics
/// If `w` and `x` differ in columns, or `out` is not `t * rows` long.
pub fn matmul(pool: &Pool, w: &Matrix<'_>, x: &Activations<'_>, out: &mut [f32]) {
    matmul_at(Dispatch::current(), pool, w, x, out);
}

/// A product of activations with some rows of a matrix `[rows, cols]`, and the output for the whole matrix.
#[derive(Debug)]
pub struct RowsInto<'a> {
    /// `[t, cols]`.
    pub x: &'a Activations<'a>,
    /// Rows `first..first + w.rows()`.
    pub w: Matrix<'a>,
    /// Index of the first of them in the whole matrix.
    pub first: usize,
    /// Rows of the whole matrix.
    pub rows: usize,
    /// `[t, rows]`; only columns `first..first + w.rows()` are written.
    pub out: &'a mut [f32],
}

/// As [`matmul`], for several products as one job. Each product may have only some rows of its matrix: its
/// elements are the same bits as in a product with all rows.
///
/// # Panics
/// If a matrix and its activations differ in columns, or its rows do not lie in an output of `t * rows`
/// numbers.
pub fn matmul_rows(pool: &Pool, products: Vec<RowsInto<'_>>) {
    matmuls_at(Dispatch::current(), pool, products, false);
}

/// [`matmul`] at a given level. If the CPU lacks that level, the scalar definition runs.
///
/// # Panics
/// As [`matmul`].
pub fn matmul_at(level: Dispatch, pool: &Pool, w: &Matrix<'_>, x: &Activations<'_>, out: &mut [f32]) {
    matmuls_at(level, pool, vec![RowsInto { x, w: *w, first: 0, rows: w.rows(), out }], false);
}

#[cfg(feature = "free-order")]
pub use free::matmul_free_at;

#[cfg_attr(
    not(feature = "free-order"),
    expect(unused_variables, reason = "only that feature has another order")
)]
fn matmuls_at(level: Dispatch, pool: &Pool, mut products: Vec<RowsInto<'_>>, free: bool) {
    let total = products.iter().map(|of| Tasks::cost(of.w.rows(), of.w.cols(), of.x.rows())).sum();
    let mut jobs = Vec::with_capacity(products.len());
    let mut first = 0;
    for RowsInto { x, w, first: first_row, rows, out } in &mut products {
        assert_eq!(w.cols(), x.cols(), "columns of the weights and of the activations");
        assert_eq!(out.len(), x.rows() * *rows, "length of the output of a matrix product");
        assert!(
            first_row.checked_add(w.rows()).is_some_and(|end| end <= *rows),
            "rows from {first_row} on, {} of them, in an output of {rows}",
            w.rows()
        );
        if out.is_empty() || w.rows() == 0 {
            continue;
        }
        // All threads together make the byte form before the work is split.
        let (block_len, tiles) = (w.format().block_len(), tile_rows(level, w, x.rows()));
        x.prepare(pool, block_len, tiles.is_some());
        let shape = (w.rows(), w.cols(), x.rows());
        let tasks = Tasks::split(pool.threads(), shape, total, tiles.unwrap_or(1));
        let out = Output::new(out, *rows, *first_row);
        let product = Product {
            level,
            in_tiles: tiles.is_some(),
            #[cfg(feature = "free-order")]
            free,
            w: &*w,
            x,
            out,
        };
        jobs.push((product, tasks, first));
        first += tasks.count();
    }
    pool.run(first, |i| {
        let (product, tasks, first) = jobs.iter().rfind(|job| job.2 <= i).expect("the first job begins at 0");
        let (rows, tokens) = tasks.get(i - first);
        product.compute(rows, tokens);
    });
}

/// Returns how many activation rows a tile unit multiplies together, if the level has such a unit and it is
/// faster than the other ways.
fn tile_rows(level: Dispatch, w: &Matrix<'_>, tokens: usize) -> Option<usize> {
    if level != Dispatch::Avx512Amx || tokens < TILE_TOKENS_MIN || !level.is_available() {
        return None;
    }
    match w.format().block_len() {
        SHORT_LEN => Some(SHORT_TILE),
        K_LEN => Some(LONG_TILE),
        _ => None,
    }
}

/// One matrix product and its output.
struct Product<'a> {
    level: Dispatch,
    /// Whether [`tile_rows`] chose the tile unit.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has a tile unit"))]
    in_tiles: bool,
    /// Whether [`free`] computes it.
    #[cfg(feature = "free-order")]
    free: bool,
    w: &'a Matrix<'a>,
    x: &'a Activations<'a>,
    out: Output<'a>,
}

thread_local! {
    /// Buffers for the products of this thread, reused from product to product.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The two panels of a pair, and the partial sums of every token with them.
#[derive(Default)]
struct Scratch {
    panels: [Panel; 2],
    sums: Vec<[Floats; 2]>,
}

impl Product<'_> {
    /// Computes a rectangle of the output. Calls that run at the same time must have disjoint rectangles.
    fn compute(&self, rows: Range<usize>, tokens: Range<usize>) {
        let vectors = SCRATCH.with_borrow_mut(|scratch| {
            let rectangle = Rectangle { product: self, rows: rows.clone(), tokens: tokens.clone(), scratch };
            run(self.level, rectangle).is_ok()
        });
        if !vectors {
            for t in tokens {
                for row in rows.clone() {
                    self.out.write(t, row, &[scalar::element(self.w, row, self.x, t)]);
                }
            }
        }
    }
}

/// The work of one task.
struct Rectangle<'a> {
    product: &'a Product<'a>,
    rows: Range<usize>,
    tokens: Range<usize>,
    scratch: &'a mut Scratch,
}

impl Kernel for Rectangle<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        visit(self.product.w.format(), AtLevel { s, work: self });
    }
}

/// A rectangle at a level.
struct AtLevel<'a, S> {
    s: S,
    work: Rectangle<'a>,
}

impl<S: Simd> Visitor for AtLevel<'_, S> {
    type Output = ();

    #[inline(always)]
    fn f32(self) {
        self.packed::<F32Rows>();
    }

    #[inline(always)]
    fn f16(self) {
        #[cfg(feature = "free-order")]
        if self.work.product.free {
            return self.packed::<free::F16Rows>();
        }
        self.packed::<F16Rows>();
    }

    #[inline(always)]
    fn bf16(self) {
        self.packed::<Bf16Rows>();
    }

    #[inline(always)]
    fn short<B: Short>(self) {
        #[cfg(target_arch = "x86_64")]
        if let Some(tiles) = self.s.tiles().filter(|_| self.work.product.in_tiles) {
            return amx::short::<S, B>(self.s, tiles, self.work);
        }
        #[cfg(feature = "free-order")]
        if self.work.product.free && matches!(B::FORMAT, Format::Q8_0) {
            return self.along_tokens::<ShortRows<B, { free::SUMS }>, 1>();
        }
        if self.work.tokens.len() <= along::TOKENS_MAX {
            self.along::<ShortRows<B>>();
        } else {
            self.packed::<ShortRows<B>>();
        }
    }

    #[inline(always)]
    fn long<B: Long>(self) {
        #[cfg(target_arch = "x86_64")]
        if let Some(tiles) = self.s.tiles().filter(|_| self.work.product.in_tiles) {
            return amx::long::<S, B>(self.s, tiles, self.work);
        }
        #[cfg(feature = "free-order")]
        if self.work.product.free && matches!(B::FORMAT, Format::Q4K) {
            return self.along_tokens::<LongRows<B, { free::SUMS }>, 1>();
        }
        let tokens = self.work.tokens.len();
        if S::WIDE && across::is_made_for(B::FORMAT) && across::TOKENS.contains(&tokens) {
            self.across::<AcrossRows<B>>();
        } else if tokens <= along::TOKENS_MAX {
            self.along::<LongRows<B>>();
        } else {
            self.packed::<LongRows<B>>();
        }
    }
}

/// How rows of a kind of format are packed and multiplied.
trait Packed {
    /// Columns packed at a time; two panels of them fit the L1 cache.
    const COLS: usize;

    fn pack<S: Simd>(s: S, panel: &mut Panel, rows: &Strip<'_>, cols: Range<usize>);

    /// Adds the products of the packed columns with rows `t..t + T` of the activations to the sums of panels
    /// from `side` on.
    fn tile<S: Simd, const P: usize, const T: usize>(
        s: S,
        panels: [&Panel; P],
        x: &Activations<'_>,
        t: usize,
        cols: Range<usize>,
        side: usize,
        sums: &mut tile::Sums<T>,
    );
}

/// How rows of a kind of format are multiplied as they are stored.
trait Along {
    fn elements<S: Simd, const T: usize>(
        s: S,
        rows: &Strip<'_>,
        x: &Activations<'_>,
        first: usize,
    ) -> [S::F; T];
}

struct F32Rows;
struct F16Rows;
struct Bf16Rows;
/// `SUMS` is as in [`along::short`]: one, or more to compare orders.
struct ShortRows<B, const SUMS: usize = 1>(PhantomData<B>);
struct LongRows<B, const SUMS: usize = 1>(PhantomData<B>);
/// Super-blocks that are transposed as they are read, see [`across`].
struct AcrossRows<B>(PhantomData<B>);

/// Returns columns `cols` of activation rows `t..t + T`.
#[inline(always)]
fn float_columns<'a, const T: usize>(x: &Activations<'a>, t: usize, cols: Range<usize>) -> [&'a [f32]; T] {
    let mut rows: [&[f32]; T] = [&[]; T];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = &x.as_slice()[(t + i) * x.cols() + cols.start..(t + i) * x.cols() + cols.end];
    }
    rows
}

macro_rules! float_rows {
    ($rows:ident, $pack:ident) => {
        impl Packed for $rows {
            const COLS: usize = 256;

            #[inline(always)]
            fn pack<S: Simd>(s: S, panel: &mut Panel, rows: &Strip<'_>, cols: Range<usize>) {
                panel.$pack(s, rows, cols);
            }

            #[inline(always)]
            fn tile<S: Simd, const P: usize, const T: usize>(
                s: S,
                panels: [&Panel; P],
                x: &Activations<'_>,
                t: usize,
                cols: Range<usize>,
                side: usize,
                sums: &mut tile::Sums<T>,
            ) {
                tile::float_rows(s, panels, float_columns(x, t, cols), side, sums);
            }
        }
    };
}

float_rows!(F32Rows, pack_f32);
float_rows!(F16Rows, pack_f16);
float_rows!(Bf16Rows, pack_bf16);

macro_rules! block_rows {
    ($rows:ident, $blocks:ident, $len:ident, $form:ident, $pack:ident) => {
        impl<B: $blocks> Packed for $rows<B> {
            const COLS: usize = 1024;

            #[inline(always)]
            fn pack<S: Simd>(s: S, panel: &mut Panel, rows: &Strip<'_>, cols: Range<usize>) {
                panel.$pack::<S, B>(s, rows, cols.start / $len..cols.end / $len);
            }

            #[inline(always)]
            fn tile<S: Simd, const P: usize, const T: usize>(
                s: S,
                panels: [&Panel; P],
                x: &Activations<'_>,
                t: usize,
                cols: Range<usize>,
                side: usize,
                sums: &mut tile::Sums<T>,
            ) {
                tile::$form::<S, B, P, T>(
                    s,
                    panels,
                    x.$form(),
                    (t, x.cols() / $len, cols.start / $len),
                    side,
                    sums,
                );
            }
        }

        impl<B: $blocks, const SUMS: usize> Along for $rows<B, SUMS> {
            #[inline(always)]
            fn elements<S: Simd, const T: usize>(
                s: S,
                rows: &Strip<'_>,
                x: &Activations<'_>,
                first: usize,
            ) -> [S::F; T] {
                along::$form::<S, B, T, SUMS>(s, rows, x.$form(), first)
            }
        }
    };
}

block_rows!(ShortRows, Short, SHORT_LEN, short, pack_short);
block_rows!(LongRows, Long, K_LEN, long, pack_long);

impl<B: Long> Along for AcrossRows<B> {
    #[inline(always)]
    fn elements<S: Simd, const T: usize>(
        s: S,
        rows: &Strip<'_>,
        x: &Activations<'_>,
        first: usize,
    ) -> [S::F; T] {
        across::long::<S, B, T>(s, rows, x.long(), first)
    }
}

impl<S: Simd> AtLevel<'_, S> {
    #[inline(always)]
    fn along<K: Along>(self) {
        match self.work.tokens.len() {
            1 => self.along_tokens::<K, 1>(),
            2 => self.along_tokens::<K, 2>(),
            _ => self.along_tokens::<K, 3>(),
        }
    }

    #[inline(always)]
    fn across<K: Along>(self) {
        match self.work.tokens.len() {
            3 => self.along_tokens::<K, 3>(),
            4 => self.along_tokens::<K, 4>(),
            5 => self.along_tokens::<K, 5>(),
            6 => self.along_tokens::<K, 6>(),
            7 => self.along_tokens::<K, 7>(),
            _ => self.along_tokens::<K, 8>(),
        }
    }

    #[inline(always)]
    fn along_tokens<K: Along, const T: usize>(self) {
        let Rectangle { product, rows, tokens, .. } = &self.work;
        for first in rows.clone().step_by(ROWS) {
            self.s.enter(StripTask::<K, T> { product, first, token: tokens.start, kind: PhantomData });
        }
    }

    #[inline(always)]
    fn packed<K: Packed>(mut self) {
        let product = self.work.product;
        let (rows, cols) = (self.work.rows.clone(), product.x.cols());
        for first in rows.clone().step_by(UNIT) {
            let pair = first + ROWS < rows.end;
            self.work.scratch.sums.clear();
            self.work.scratch.sums.resize(self.work.tokens.len(), [Floats([0.0; ROWS]); 2]);
            for start in (0..cols).step_by(K::COLS) {
                let cols = start..cols.min(start + K::COLS);
                let low = Strip::new(product.w, first);
                let high = Strip::new(product.w, first + ROWS);
                let [a, b] = &mut self.work.scratch.panels;
                self.s.enter(PackTask::<K> { panel: a, rows: low, cols: cols.clone(), kind: PhantomData });
                if pair {
                    self.s.enter(PackTask::<K> {
                        panel: b,
                        rows: high,
                        cols: cols.clone(),
                        kind: PhantomData,
                    });
                }
                // With the last columns the elements are complete.
                let done = (cols.end == product.x.cols()).then_some(first);
                if pair && S::WIDE {
                    self.tokens::<K, 2>(0, cols, done);
                } else {
                    self.tokens::<K, 1>(0, cols.clone(), done);
                    if pair {
                        self.tokens::<K, 1>(1, cols, done);
                    }
                }
            }
        }
    }

    /// Computes the products of `P` panels from `side` on with all tokens, as many tokens at a time as the
    /// registers hold. If `done` is set, elements are complete and are written to rows from there on. Writing
    /// between tiles hides the stores behind products.
    #[inline(always)]
    fn tokens<K: Packed, const P: usize>(&mut self, side: usize, cols: Range<usize>, done: Option<usize>) {
        let n = self.work.tokens.len();
        let mut t = 0;
        if S::WIDE {
            while t + 6 <= n && n - t != 8 {
                self.tile::<K, P, 6>(side, t, cols.clone(), done);
                t += 6;
            }
        }
        if S::WIDE || S::PAIRS {
            while t + 4 <= n {
                self.tile::<K, P, 4>(side, t, cols.clone(), done);
                t += 4;
            }
        } else {
            while t + 3 <= n {
                self.tile::<K, P, 3>(side, t, cols.clone(), done);
                t += 3;
            }
        }
        while t < n {
            self.tile::<K, P, 1>(side, t, cols.clone(), done);
            t += 1;
        }
    }

    #[inline(always)]
    fn tile<K: Packed, const P: usize, const T: usize>(
        &mut self,
        side: usize,
        t: usize,
        cols: Range<usize>,
        done: Option<usize>,
    ) {
        let Rectangle { product, tokens, scratch, .. } = &mut self.work;
        let sums = scratch.sums[t..].first_chunk_mut().expect("a tile lies inside the tokens");
        let token = tokens.start + t;
        let panels = &scratch.panels;
        self.s.enter(TileTask::<K, P, T> {
            product,
            panels,
            side,
            token,
            cols,
            sums,
            done,
            kind: PhantomData,
        });
    }
}

#[cfg(test)]
mod tests;
