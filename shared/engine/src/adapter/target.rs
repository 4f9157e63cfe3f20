//! The matrices of a model that an adapter may change, and the projections they are.

use std::ops::Range;

use crate::config::ModelConfig;

/// The linear projections of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Projection {
    Query,
    Key,
    Value,
    Output,
    Gate,
    Up,
    Down,
}

/// Number of projections of a layer.
pub(super) const PROJECTIONS: usize = 7;

/// A matrix of every layer that an adapter may change: `[rows, cols]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its name in the file, between `blk.N.` and `.weight`.
    pub name: &'static str,
    /// Rows: the width of the output.
    pub rows: usize,
    /// Columns: the width of the input.
    pub cols: usize,
    /// The projections in the matrix, each with its rows: one, or several if the family fuses them.
    pub(super) parts: Vec<(Projection, Range<usize>)>,
}

impl Target {
    fn one(name: &'static str, rows: usize, cols: usize, projection: Projection) -> Target {
        Target { name, rows, cols, parts: vec![(projection, 0..rows)] }
    }

    fn fused(name: &'static str, cols: usize, parts: &[(Projection, usize)]) -> Target {
        let mut rows = 0;
        let mut next = |width: usize| {
            rows += width;
            rows - width..rows
        };
        let parts = parts.iter().map(|(projection, width)| (*projection, next(*width))).collect();
        Target { name, rows, cols, parts }
    }
}

/// Returns the matrices of a layer that an adapter of this model may change. They are those of dense layers,
/// for any model.
pub fn targets(config: &ModelConfig) -> Vec<Target> {
    use Projection::{Down, Gate, Key, Output, Query, Up, Value};
    let (e, f, q, kv) = (config.d_model, config.d_ff, config.d_q(), config.d_kv());
    let mut targets = if config.family.fused_qkv {
        vec![Target::fused("attn_qkv", e, &[(Query, q), (Key, kv), (Value, kv)])]
    } else {
        vec![
            Target::one("attn_q", q, e, Query),
            Target::one("attn_k", kv, e, Key),
            Target::one("attn_v", kv, e, Value),
        ]
    };
    if config.family.fused_gate {
        targets.push(Target::fused("ffn_up", e, &[(Gate, f), (Up, f)]));
    } else {
        targets.push(Target::one("ffn_gate", f, e, Gate));
        targets.push(Target::one("ffn_up", f, e, Up));
    }
    targets.push(Target::one("attn_output", e, q, Output));
    targets.push(Target::one("ffn_down", e, f, Down));
    targets
}
