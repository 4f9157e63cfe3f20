//! What attention on the GPU needs of a pass: its items and bounds, and the scores that are captured.

use std::ops::Range;

use baton_kernels_gpu::ATTEND_VECTORS;
use baton_kernels_gpu::ops::{self, AttentionItem, ScoreArgs};

use super::gpu::{GpuBackend, GpuRows};
use super::{Attending, AttentionShape, SeqSpan};

impl GpuBackend {
    /// Returns the sums, over the queries in `rows`, of each head's softmax weights, `[1, keys]`.
    pub(super) fn scores(
        &self,
        queries: &Attending<'_, Self>,
        rows: Range<usize>,
        heads: &[usize],
    ) -> Vec<GpuRows> {
        let Attending { kv, layer, shape, q, lse, span } = *queries;
        let (window, first_keys) = visible(shape);
        let blocks = self.shared_table(span.blocks.iter().map(|block| block.0).collect());
        let sums: Vec<GpuRows> = heads.iter().map(|_| self.alloc(1, queries.keys())).collect();
        let kv = kv.layer(layer, std::slice::from_ref(span), true);
        for (&head, sum) in heads.iter().zip(&sums) {
            let args = ScoreArgs {
                q: &q.data,
                q_width: q.width,
                kv: &kv,
                blocks: &blocks,
                lse: &lse.data,
                lse_width: lse.width,
                row: rows.start,
                rows: rows.len(),
                position: queries.position(rows.start),
                head,
                kv_head: head / shape.group(),
                scale: shape.scale,
                cap: shape.cap,
                window,
                first_keys,
            };
            ops::score(self.dev(), &args, queries.keys(), &sum.data);
        }
        sums
    }
}

/// Returns the window and the first keys that are always seen.
pub(super) fn visible(shape: &AttentionShape<'_>) -> (u32, u32) {
    let bounded = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    shape.window.map_or((u32::MAX, 0), |window| (bounded(window.tokens), bounded(window.sinks)))
}

/// Returns the items of attention, and the block ids that they index.
pub(super) fn items(spans: &[SeqSpan], group: usize) -> (Vec<AttentionItem>, Vec<u32>) {
    let heads_each = group.min(ATTEND_VECTORS);
    let rows_each = ATTEND_VECTORS / heads_each;
    let (mut items, mut table) = (Vec::new(), Vec::new());
    for span in spans {
        let table_at = table.len();
        table.extend(span.blocks.iter().map(|block| block.0));
        for first in span.rows.clone().step_by(rows_each) {
            let rows = rows_each.min(span.rows.end - first);
            let position = span.start + first - span.rows.start;
            for head in (0..group).step_by(heads_each) {
                let heads = heads_each.min(group - head);
                items.push(AttentionItem { row: first, rows, position, table_at, head, heads });
            }
        }
    }
    (items, table)
}
