//! The byte forms of activation rows in the order in which a tile unit reads them.
//!
//! Rows are taken in groups, as many as one tile (or pair of tiles) multiplies. Within a group the blocks
//! follow each other, and the rows of the group lie side by side in each. The last group is padded with rows
//! of zeros; their products are not written.

use super::{QuantizedRows, SumWords};
use crate::blocks::{K_LEN, SHORT_LEN};
use crate::pool::Pool;
use crate::simd::Line;

/// Rows of a group in the short form. Twelve rows times two panels are the sums that fit the registers.
pub(crate) const SHORT_TILE: usize = 12;
/// Rows of a group in the long form: two tiles.
pub(crate) const LONG_TILE: usize = 32;

/// With scales from here on, no sum of products of short blocks underflows: stored scales and minima are
/// multiples of 2^-24 and these of 2^-123.
const SCALE_MIN: f32 = f32::from_bits((127 - 100) << 23);

/// Rows in groups of [`SHORT_TILE`] or [`LONG_TILE`]; `g` counts groups and `b` their blocks.
#[derive(Debug)]
pub(crate) struct TileRows {
    /// Signed bytes. Short: `[g, b, row, 32]`. Long: `[g, b, part, row, 64]`, four parts a block.
    pub q: Vec<Line>,
    /// `[g, b, row]`: the scale of each block.
    pub scale: Vec<f32>,
    /// Whether every scale is 0, NaN or at least [`SCALE_MIN`].
    pub is_plain: bool,
    /// `[g, b, row]`: the sum of the bytes of each block; short form only.
    pub sum: Vec<f32>,
    /// `[g, b, row]`, long form only.
    pub words: Vec<SumWords>,
}

/// One group while it is filled.
struct Group<'a> {
    first: usize,
    q: &'a mut [Line],
    scale: &'a mut [f32],
    sum: &'a mut [f32],
    words: &'a mut [SumWords],
}

impl TileRows {
    /// Returns the rows of the short form in groups.
    pub(super) fn short(pool: Option<&Pool>, rows: &QuantizedRows, cols: usize) -> Self {
        let blocks = cols / SHORT_LEN;
        Self::new(pool, rows.q.len() / cols, blocks, SHORT_LEN, |group| {
            let first = group.first * blocks;
            let (q, scale, bias) =
                (&rows.q.as_chunks::<SHORT_LEN>().0[first..], &rows.scale[first..], &rows.bias[first..]);
            for t in 0..SHORT_TILE.min(scale.len() / blocks) {
                for b in 0..blocks {
                    let (from, to) = (t * blocks + b, b * SHORT_TILE + t);
                    group.q[to / 2].0.as_chunks_mut::<SHORT_LEN>().0[to % 2] = q[from];
                    group.scale[to] = scale[from];
                    group.sum[to] = -(bias[from] >> 7) as f32;
                }
            }
        })
    }

    /// Returns the rows of the long form in groups.
    pub(super) fn long(pool: Option<&Pool>, rows: &QuantizedRows, cols: usize) -> Self {
        let blocks = cols / K_LEN;
        Self::new(pool, rows.q.len() / cols, blocks, K_LEN, |group| {
            let first = group.first * blocks;
            let (q, scale, words) =
                (&rows.q.as_chunks::<K_LEN>().0[first..], &rows.scale[first..], &rows.words[first..]);
            for t in 0..LONG_TILE.min(scale.len() / blocks) {
                for b in 0..blocks {
                    let (from, to) = (t * blocks + b, b * LONG_TILE + t);
                    for (part, bytes) in q[from].as_chunks::<64>().0.iter().enumerate() {
                        group.q[(b * 4 + part) * LONG_TILE + t].0 = *bytes;
                    }
                    group.scale[to] = scale[from];
                    group.words[to] = words[from];
                }
            }
        })
    }

    /// Makes room for the groups and fills each with `fill`.
    fn new(
        pool: Option<&Pool>,
        rows: usize,
        blocks: usize,
        block_len: usize,
        fill: impl Fn(Group<'_>) + Sync,
    ) -> Self {
        let is_short = block_len == SHORT_LEN;
        let each = if is_short { SHORT_TILE } else { LONG_TILE };
        let own = each * blocks;
        let total = rows.div_ceil(each) * own;
        let (sums, words) = if is_short { (total, 0) } else { (0, total) };
        let mut to = Self {
            is_plain: false,
            q: vec![Line([0; 64]); total * block_len / 64],
            scale: vec![0.0; total],
            sum: vec![0.0; sums],
            words: vec![SumWords::default(); words],
        };
        let mut sums = to.sum.chunks_mut(own);
        let mut words = to.words.chunks_mut(own);
        let groups = to.q.chunks_mut(own * block_len / 64).zip(to.scale.chunks_mut(own)).enumerate();
        let groups = groups.map(|(g, (q, scale))| Group {
            first: g * each,
            q,
            scale,
            sum: sums.next().unwrap_or_default(),
            words: words.next().unwrap_or_default(),
        });
        match pool {
            Some(pool) => pool.for_each(groups, fill),
            None => groups.for_each(fill),
        }
        to.is_plain = !to.scale.iter().any(|&scale| scale > 0.0 && scale < SCALE_MIN);
        to
    }
}
