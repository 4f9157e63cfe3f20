//! The kernels of [`super::HostDevice`] that join others.

use baton_kernels_cpu::{Format, Pool, RopeStyle};

use super::super::words::{float, floats, put, put_floats};
use super::TILES;
use super::launches::{
    Args, activations, append_word, definition, norms, products as product, put_rounded, rotate,
};
use crate::kernel::JoinedAs;

/// Products with few activation rows, and what becomes of them.
pub(super) fn products(pool: &Pool, args: &Args<'_>, format: Format, tokens_max: usize, how: JoinedAs) {
    let n = match how {
        JoinedAs::Apart => args.numbers() - 2,
        JoinedAs::Added => 1,
        JoinedAs::Gated(_) => 2,
    };
    let sizes = if how == JoinedAs::Apart { n } else { 1 };
    let (cols, t) = (args.number(sizes), args.number(sizes + 1).min(tokens_max));
    let x = activations(args, n, t * cols, format.block_len());
    let of = |matrix: usize, rows: usize| product(pool, &args.ro(matrix), format, (rows, cols), &x);
    let tile = TILES.matvec_rows as usize;
    match how {
        JoinedAs::Apart => {
            let mut groups = args.flat();
            for matrix in 0..n {
                let all = args.number(matrix);
                let rows = all.min(groups * tile);
                groups -= groups.min(all.div_ceil(tile));
                let mut out = args.rw(n + 3 + matrix);
                for (i, row) in of(matrix, rows).chunks(rows.max(1)).enumerate() {
                    put_floats(&mut out, i * all, row);
                }
            }
        }
        JoinedAs::Added => {
            let all = args.number(0);
            let rows = all.min(args.flat() * tile);
            let mut out = args.rw(n + 3);
            for (i, row) in of(0, rows).chunks(rows.max(1)).enumerate() {
                for (r, y) in row.iter().enumerate() {
                    let sum = float(&out, i * all + r) + y;
                    put(&mut out, i * all + r, sum.to_bits());
                }
            }
        }
        JoinedAs::Gated(op) => {
            let all = args.number(0);
            let rows = all.min(args.flat() * tile / 2);
            let (mut gate, up) = (of(0, rows), of(1, rows));
            definition(op)(&mut gate, &up);
            let mut out = args.rw(n + 3);
            for (i, row) in gate.chunks(rows.max(1)).enumerate() {
                put_floats(&mut out, i * all, row);
            }
        }
    }
}

/// A norm, and the rounding of its output.
pub(super) fn norm_rounded(args: &Args<'_>, block: usize) {
    norms(args, true);
    let n = args.number(0).min(args.flat());
    let x = floats(&args.ro(2), 0..n * args.number(1));
    put_rounded(args, 3, &x, block);
}

/// Rotated queries, and rotated keys with their values in their slots.
pub(super) fn rope_append(args: &Args<'_>, style: RopeStyle) {
    let [t, q_heads, heads, d, half] = [1, 2, 3, 4, 5].map(|n| args.number(n));
    let (mut q, k, v, places) = (args.rw(0), args.ro(1), args.ro(2), args.ro(5));
    let (cos, sin) = (args.ro(3), args.ro(4));
    let (mut keys, mut values) = (args.rw(6), args.rw(7));
    let (covered, turned) = (args.covered(), t * q_heads * half);
    (0..covered.min(turned)).for_each(|i| rotate(&mut q, (&cos, &sin), i, (q_heads, d, half), style));
    let mut rotated = k.to_vec();
    (0..t * heads * half).for_each(|i| rotate(&mut rotated, (&cos, &sin), i, (heads, d, half), style));
    for i in 0..covered.saturating_sub(turned) {
        append_word((&mut keys, &mut values), (&rotated, &v, &places), i, (heads, d));
    }
}
