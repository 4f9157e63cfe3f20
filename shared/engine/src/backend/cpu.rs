//! The CPU backend: rows in main memory, arithmetic by the kernels, on the kernels' thread pool.

use std::ops::Range;

use baton_kernels_cpu::{
    Activations, KvBlock, Matrix, PART, Pool, Queries, RopeStyle, RowLayout, RowsInto, Visible, add_assign,
    add_scaled, attend_part, attend_rows, gate_by_sigmoid, geglu, join_parts, matmul_rows, rms_norm,
    rms_norm_heads, rope, route, scale, score_rows, sigmoid, soft_cap, swiglu, swiglu_clamped,
};

use super::cpu_kv::CpuKv;
use super::{Attending, AttentionShape, Backend, DeltaInput, Recurrence, ScoreTarget, SeqSpan};
use crate::eviction::Kept;
use crate::kv::pool::BlockId;
use crate::kv::states::StateMoves;
use crate::kv::{BLOCK_TOKENS, BlockCopy};
use crate::rope::RopeTable;
use crate::routing::{ExpertRows, Router, by_expert};
use crate::tokenizer::TokenId;
use crate::weights::{Weight, WeightError};

/// The threads that compute.
#[derive(Debug)]
pub(crate) struct CpuBackend {
    pool: Pool,
}

impl CpuBackend {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// Returns the threads that compute.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }
}

/// Activations, `[t, width]`.
#[derive(Debug)]
pub(crate) struct CpuRows {
    pub(super) data: Vec<f32>,
    pub(super) width: usize,
}

/// Work on fewer numbers than this is not worth waking another thread.
const PARALLEL_LEN_MIN: usize = 1 << 15;

/// Rows that a thread takes at a time.
const ROWS_EACH: usize = 16;

/// Query tokens that share one pass over the keys.
const TILE_TOKENS: usize = 32;

/// If there are fewer tiles for each thread than this, the keys of a tile are divided among threads too.
const TILES_EACH_MIN: usize = 4;

/// Computes products as one job, then, in order, those with the rows that are still being read.
fn multiply(
    pool: &Pool,
    products: &mut [(&Activations<'_>, Weight<'_>, &mut CpuRows)],
) -> Result<(), WeightError> {
    let mut at_hand = Vec::with_capacity(products.len());
    for (x, weight, out) in products.iter_mut() {
        let w = weight.at_hand()?;
        at_hand.push(RowsInto { x, w, first: 0, rows: weight.rows(), out: &mut out.data });
    }
    matmul_rows(pool, at_hand);
    for (x, weight, out) in products {
        let rows = weight.rows();
        weight.wait(|first, w| {
            matmul_rows(pool, vec![RowsInto { x, w, first, rows, out: &mut out.data }]);
        })?;
    }
    Ok(())
}

impl CpuRows {
    fn activations(&self) -> Activations<'_> {
        Activations::new(&self.data, self.width)
    }

    /// Calls `f(row, numbers)` for every row.
    pub(super) fn for_each(&mut self, pool: &Pool, f: impl Fn(usize, &mut [f32]) + Sync) {
        let width = self.width;
        let chunk = |(at, rows): (usize, &mut [f32])| {
            for (row, numbers) in (at * ROWS_EACH..).zip(rows.chunks_exact_mut(width)) {
                f(row, numbers);
            }
        };
        if self.data.len() >= PARALLEL_LEN_MIN {
            pool.for_each(self.data.chunks_mut(ROWS_EACH * width).enumerate(), chunk);
        } else {
            for (row, numbers) in self.data.chunks_exact_mut(width).enumerate() {
                f(row, numbers);
            }
        }
    }

    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.width..(row + 1) * self.width]
    }
}

/// The queries of one group of heads at consecutive positions of one sequence.
struct Tile<'a> {
    span: &'a SeqSpan,
    rows: Range<usize>,
    kv_head: usize,
}

/// The attention output of a tile.
struct Mixed {
    /// `[tokens, group, d]`.
    out: Vec<f32>,
    /// `[tokens, group]`.
    lse: Vec<f32>,
}

fn tiles<'a>(spans: &'a [SeqSpan], shape: &AttentionShape<'_>) -> Vec<Tile<'a>> {
    let mut tiles = Vec::new();
    for span in spans {
        for start in span.rows.clone().step_by(TILE_TOKENS) {
            let rows = start..span.rows.end.min(start + TILE_TOKENS);
            for kv_head in 0..shape.n_kv_heads {
                tiles.push(Tile { span, rows: rows.clone(), kv_head });
            }
        }
    }
    tiles
}

impl Tile<'_> {
    fn position(&self) -> usize {
        self.span.start + self.rows.start - self.span.rows.start
    }

    /// The keys that its last query sees, if no window hides any.
    fn keys(&self) -> Range<usize> {
        0..self.position() + self.rows.len()
    }

    /// Returns the parts of the keys of which a query may see any.
    fn parts(&self, shape: &AttentionShape<'_>) -> impl Iterator<Item = Range<usize>> {
        let (end, position) = (self.keys().end, self.position());
        let parts = (0..end).step_by(PART).map(move |first| first..end.min(first + PART));
        parts.filter(move |part| {
            part.clone().step_by(BLOCK_TOKENS).any(|block| shape.sees_block(position, block))
        })
    }

    /// Returns the queries of the tile. Queries and outputs share one layout, so they are copied to it.
    fn gathered<'a>(&self, shape: &AttentionShape<'a>, q: &CpuRows) -> Gathered<'a> {
        let (tokens, heads, d) = (self.rows.len(), shape.group(), shape.d_head);
        let width = heads * d;
        let first = self.kv_head * width;
        let mut own = Vec::with_capacity(tokens * width);
        for row in self.rows.clone() {
            own.extend_from_slice(&q.row(row)[first..first + width]);
        }
        Gathered {
            q: own,
            rows: RowLayout { tokens, heads, d, stride: width },
            visible: visible(shape, self.position()),
            scale: shape.scale,
            cap: shape.cap,
            sinks: shape.sinks_of(self.kv_head * heads..(self.kv_head + 1) * heads),
        }
    }

    /// Returns the blocks of `keys` that a query may see.
    fn blocks<'a>(
        &self,
        kv: &'a CpuKv,
        layer: usize,
        shape: &AttentionShape<'_>,
        keys: Range<usize>,
    ) -> Vec<KvBlock<'a>> {
        let position = self.position();
        let sees = |first| shape.sees_block(position, first);
        kv.head_blocks(layer, self.kv_head, &self.span.blocks, keys, sees)
    }
}

/// The queries of a tile.
struct Gathered<'a> {
    q: Vec<f32>,
    rows: RowLayout,
    visible: Visible,
    scale: f32,
    cap: Option<f32>,
    sinks: &'a [f32],
}

impl Gathered<'_> {
    fn queries(&self) -> Queries<'_> {
        let Self { q, rows, visible, scale, cap, sinks } = self;
        Queries { q, rows: *rows, visible: *visible, scale: *scale, cap: *cap, sinks }
    }

    fn mixed(&self, fill: impl FnOnce(&Queries<'_>, &mut [f32], &mut [f32])) -> Mixed {
        let (tokens, heads) = (self.rows.tokens, self.rows.heads);
        let mut mixed = Mixed { out: vec![0.0; self.q.len()], lse: vec![0.0; tokens * heads] };
        fill(&self.queries(), &mut mixed.out, &mut mixed.lse);
        mixed
    }
}

fn visible(shape: &AttentionShape<'_>, position: usize) -> Visible {
    match shape.window {
        Some(window) => Visible { position, sinks: window.sinks, window: window.tokens },
        None => Visible::causal(position),
    }
}

/// Adds the softmax weights of the queries in `rows` of heads that share keys to `sum`, for these keys. They
/// begin with a block.
fn add_scores(
    queries: &Attending<'_, CpuBackend>,
    rows: Range<usize>,
    heads: Range<usize>,
    keys: Range<usize>,
    sum: &mut [f32],
) {
    let Attending { kv, layer, shape, q, lse, span } = queries;
    let blocks = kv.head_blocks(*layer, heads.start / shape.group(), &span.blocks, keys, |_| true);
    let lse: Vec<f32> = rows.clone().flat_map(|row| &lse.row(row)[heads.clone()]).copied().collect();
    let of_heads = Queries {
        q: &q.data[rows.start * q.width + heads.start * shape.d_head..],
        rows: RowLayout { tokens: rows.len(), heads: heads.len(), d: shape.d_head, stride: q.width },
        visible: visible(shape, queries.position(rows.start)),
        scale: shape.scale,
        cap: shape.cap,
        sinks: shape.sinks_of(heads),
    };
    score_rows(&of_heads, &blocks, &lse, sum);
}

impl Backend for CpuBackend {
    type Rows = CpuRows;
    type Routes = Vec<ExpertRows>;
    type Kv = CpuKv;

    fn rows(&self, t: usize, width: usize) -> CpuRows {
        CpuRows { data: vec![0.0; t * width], width }
    }

    fn zeros(&self, t: usize, width: usize) -> CpuRows {
        self.rows(t, width)
    }

    fn prepare(&self, kv: &mut CpuKv, copies: &[BlockCopy], spans: &[SeqSpan]) {
        for copy in copies {
            kv.copy(*copy);
        }
        for span in spans {
            for block in &span.blocks {
                kv.ensure(*block);
            }
        }
    }

    fn prepare_states(&self, kv: &mut CpuKv, moves: &[StateMoves]) {
        kv.states.prepare(moves);
    }

    fn keep(&self, kv: &mut CpuKv, kept: &Kept, from: &[BlockId], to: &[BlockId]) {
        kv.keep(kept, from, to);
    }

    fn embed(&self, table: &Matrix<'_>, ids: &[TokenId], out: &mut CpuRows) {
        out.for_each(&self.pool, |row, numbers| {
            table
                .dequantize_row(ids[row] as usize, numbers)
                .expect("the table was checked at open, the ids before the step");
        });
    }

    fn gather(&self, x: &CpuRows, rows: &[usize]) -> CpuRows {
        let data = rows.iter().flat_map(|row| x.row(*row)).copied().collect();
        CpuRows { data, width: x.width }
    }

    fn take(&self, x: &CpuRows, group: usize, part: Range<usize>) -> CpuRows {
        let width = x.width / group * part.len();
        let data = x.data.chunks_exact(group).flat_map(|group| &group[part.clone()]).copied().collect();
        CpuRows { data, width }
    }

    fn put(&self, x: &mut CpuRows, group: usize, part: Range<usize>, y: &CpuRows) {
        let groups = x.data.chunks_exact_mut(group).zip(y.data.chunks_exact(part.len()));
        groups.for_each(|(group, own)| group[part.clone()].copy_from_slice(own));
    }

    fn rms_norm(&self, x: &CpuRows, weight: &[f32], eps: f32, out: &mut CpuRows) {
        out.for_each(&self.pool, |row, numbers| rms_norm(x.row(row), weight, eps, numbers));
    }

    fn norm_heads(&self, x: &mut CpuRows, weight: &[f32], eps: f32) {
        if !weight.is_empty() {
            x.for_each(&self.pool, |_, numbers| rms_norm_heads(numbers, weight, eps));
        }
    }

    fn scale(&self, x: &mut CpuRows, factor: f32) {
        if factor != 1.0 {
            x.for_each(&self.pool, |_, numbers| scale(numbers, factor));
        }
    }

    fn scale_rows(&self, x: &mut CpuRows, factors: &[f32]) {
        x.for_each(&self.pool, |row, numbers| scale(numbers, factors[row]));
    }

    fn soft_cap(&self, x: &mut CpuRows, cap: f32) {
        x.for_each(&self.pool, |_, numbers| soft_cap(numbers, cap));
    }

    fn project(&self, x: &CpuRows, into: &mut [(Weight<'_>, &mut CpuRows)]) -> Result<(), WeightError> {
        let x = x.activations();
        let mut products: Vec<_> = into.iter_mut().map(|(weight, out)| (&x, *weight, &mut **out)).collect();
        multiply(&self.pool, &mut products)
    }

    fn project_each(&self, products: &mut [(&CpuRows, Weight<'_>, &mut CpuRows)]) -> Result<(), WeightError> {
        let inputs: Vec<_> = products.iter().map(|(x, _, _)| x.activations()).collect();
        let mut products: Vec<_> =
            products.iter_mut().zip(&inputs).map(|((_, weight, out), x)| (x, *weight, &mut **out)).collect();
        multiply(&self.pool, &mut products)
    }

    fn add_bias(&self, x: &mut CpuRows, bias: &[f32]) {
        if !bias.is_empty() {
            x.for_each(&self.pool, |_, numbers| add_assign(numbers, bias));
        }
    }

    fn add(&self, x: &mut CpuRows, y: &CpuRows) {
        x.for_each(&self.pool, |row, numbers| add_assign(numbers, y.row(row)));
    }

    fn swiglu(&self, gate: &mut CpuRows, up: &CpuRows) {
        gate.for_each(&self.pool, |row, numbers| swiglu(numbers, up.row(row)));
    }

    fn geglu(&self, gate: &mut CpuRows, up: &CpuRows) {
        gate.for_each(&self.pool, |row, numbers| geglu(numbers, up.row(row)));
    }

    fn swiglu_clamped(&self, gate: &mut CpuRows, up: &CpuRows) {
        gate.for_each(&self.pool, |row, numbers| swiglu_clamped(numbers, up.row(row)));
    }

    fn add_scaled(&self, x: &mut CpuRows, rows: &[usize], factors: &[f32], y: &CpuRows) {
        let width = x.width;
        for (i, (row, factor)) in rows.iter().zip(factors).enumerate() {
            add_scaled(&mut x.data[row * width..(row + 1) * width], y.row(i), *factor);
        }
    }

    fn add_gated(&self, x: &mut CpuRows, gate: CpuRows, y: &CpuRows) {
        let rows = x.data.chunks_exact_mut(x.width).zip(y.data.chunks_exact(y.width));
        rows.zip(&gate.data).for_each(|((x, y), gate)| add_scaled(x, y, sigmoid(*gate)));
    }

    fn route(&self, mut logits: CpuRows, router: &Router<'_>) -> Vec<ExpertRows> {
        let Router { experts, choice_bias, expert_factors } = *router;
        let routing = experts.routing();
        let rows = logits.data.chunks_exact_mut(experts.count);
        by_expert(experts.count, rows.map(|row| route(row, &routing, choice_bias, expert_factors)))
    }

    fn by_expert(&self, routes: Vec<ExpertRows>) -> Result<Vec<ExpertRows>, WeightError> {
        Ok(routes)
    }

    fn rope(&self, x: &mut CpuRows, d_head: usize, table: &RopeTable, style: RopeStyle) {
        x.for_each(&self.pool, |row, numbers| {
            let (cos, sin) = table.row(row);
            rope(numbers, d_head, 2 * cos.len(), cos, sin, style);
        });
    }

    fn split(&self, x: &CpuRows, width: usize, first: &mut CpuRows, second: &mut CpuRows) {
        for (out, at) in [(first, 0), (second, width)] {
            out.for_each(&self.pool, |row, numbers| {
                for (to, from) in numbers.chunks_exact_mut(width).zip(x.row(row).chunks_exact(2 * width)) {
                    to.copy_from_slice(&from[at..at + width]);
                }
            });
        }
    }

    fn gate_by_sigmoid(&self, x: &mut CpuRows, gate: &CpuRows) {
        x.for_each(&self.pool, |row, numbers| gate_by_sigmoid(numbers, gate.row(row)));
    }

    fn short_conv(&self, kv: &mut CpuKv, of: &Recurrence<'_>, bcx: &CpuRows, out: &mut CpuRows) {
        kv.states.short_conv(&self.pool, of, bcx, out);
    }

    fn delta_net(
        &self,
        kv: &mut CpuKv,
        of: &Recurrence<'_>,
        input: &DeltaInput<'_, CpuRows>,
        out: &mut CpuRows,
    ) {
        kv.states.delta_net(&self.pool, of, input, out);
    }

    fn append(&self, kv: &mut CpuKv, layer: usize, k: &CpuRows, v: &CpuRows, spans: &[SeqSpan]) {
        for span in spans {
            kv.append(&self.pool, layer, &k.data, &v.data, span);
        }
    }

    fn attend(
        &self,
        kv: &CpuKv,
        layer: usize,
        shape: &AttentionShape<'_>,
        q: &CpuRows,
        spans: &[SeqSpan],
        out: &mut CpuRows,
        lse: &mut CpuRows,
    ) {
        let tiles = tiles(spans, shape);
        let whole = |tile: &Tile<'_>| {
            let blocks = tile.blocks(kv, layer, shape, tile.keys());
            tile.gathered(shape, q).mixed(|queries, out, lse| attend_rows(queries, &blocks, out, lse))
        };
        // With few tiles, as in decoding, the parts of their keys are divided among the threads too. The bits
        // are the same.
        let is_long = spans.iter().any(|span| span.start + span.rows.len() > PART);
        let mixed = if is_long && tiles.len() < TILES_EACH_MIN * self.pool.threads() {
            let tasks: Vec<(&Tile<'_>, Range<usize>)> =
                tiles.iter().flat_map(|tile| tile.parts(shape).map(move |part| (tile, part))).collect();
            let states = self.pool.map(tasks.len(), |i| {
                let (tile, part) = &tasks[i];
                attend_part(&tile.gathered(shape, q).queries(), &tile.blocks(kv, layer, shape, part.clone()))
            });
            let mut rest = states.as_slice();
            let mut joined = |tile: &Tile<'_>| {
                let (own, after) = rest.split_at(tile.parts(shape).count());
                rest = after;
                tile.gathered(shape, q).mixed(|queries, out, lse| join_parts(queries, own, out, lse))
            };
            tiles.iter().map(&mut joined).collect()
        } else {
            self.pool.map(tiles.len(), |i| whole(&tiles[i]))
        };
        let (heads, d) = (shape.group(), shape.d_head);
        for (tile, mixed) in tiles.iter().zip(mixed) {
            let sources = mixed.out.chunks_exact(heads * d).zip(mixed.lse.chunks_exact(heads));
            for (row, (own_out, own_lse)) in tile.rows.clone().zip(sources) {
                let at = row * out.width + tile.kv_head * heads * d;
                out.data[at..at + heads * d].copy_from_slice(own_out);
                let at = row * lse.width + tile.kv_head * heads;
                lse.data[at..at + heads].copy_from_slice(own_lse);
            }
        }
    }

    fn score(
        &self,
        queries: &Attending<'_, Self>,
        rows: Range<usize>,
        targets: &mut [ScoreTarget<'_>],
    ) -> Result<(), WeightError> {
        let keys = 0..queries.keys();
        self.pool.for_each(targets, |target| {
            add_scores(queries, rows.clone(), target.head..target.head + 1, keys.clone(), target.sum)
        });
        Ok(())
    }

    /// Threads share the keys, so that all heads' weights of a key are added by one of them.
    fn score_heads(
        &self,
        queries: &Attending<'_, Self>,
        row: usize,
        heads: &[usize],
        sum: &mut [f32],
    ) -> Result<(), WeightError> {
        let each = sum.len().div_ceil(self.pool.threads()).next_multiple_of(BLOCK_TOKENS);
        self.pool.for_each(sum.chunks_mut(each).enumerate(), |(part, sum)| {
            let keys = part * each..part * each + sum.len();
            // Heads side by side that share keys read them once.
            let group = queries.shape.group();
            for heads in heads.chunk_by(|a, b| *b == a + 1 && a / group == b / group) {
                add_scores(queries, row..row + 1, heads[0]..heads[0] + heads.len(), keys.clone(), sum);
            }
        });
        Ok(())
    }

    fn write(&self, values: Vec<f32>, width: usize) -> CpuRows {
        CpuRows { data: values, width }
    }

    fn read(&self, x: CpuRows) -> Result<Vec<f32>, WeightError> {
        Ok(x.data)
    }

    /// Has nothing to wait for.
    fn settle(&self, _x: &CpuRows) -> Result<(), WeightError> {
        Ok(())
    }
}
