//! The kernels of a mixture, of [`super::HostDevice`].

use baton_kernels_cpu::{ExpertGroups, Format, Gating, Pool, Routing};

use super::super::words::{float, floats, index, put, put_floats};
use super::TILES;
use super::launches::{Args, activations, products as product};

/// Returns how experts are chosen, from the numbers of [`crate::Kernel::Route`].
fn routing(args: &Args<'_>) -> Routing {
    let gating = match args.number(3) {
        0 => Gating::Softmax,
        1 => Gating::Sigmoid,
        2 => Gating::ChosenSoftmax,
        other => panic!("gating {other}"),
    };
    let groups = ExpertGroups { count: args.number(4), used: args.number(5) };
    Routing {
        used: args.number(2),
        gating,
        normalized: args.number(6) != 0,
        scale: args.float(7),
        groups: (groups.count > 0).then_some(groups),
    }
}

pub(super) fn route(args: &Args<'_>) {
    let (n, count) = (args.number(0).min(args.flat()), args.number(1));
    let routing = routing(args);
    let optional = |buffer: usize, has: usize| {
        if args.number(has) == 0 { Vec::new() } else { floats(&args.ro(buffer), 0..count) }
    };
    let (bias, own) = (optional(1, 8), optional(2, 9));
    let (x, mut routes) = (args.ro(0), args.rw(4));
    for row in 0..n {
        let mut numbers = floats(&x, row * count..(row + 1) * count);
        let chosen = baton_kernels_cpu::route(&mut numbers, &routing, &bias, &own);
        for (slot, (id, factor)) in chosen.into_iter().enumerate() {
            let at = 2 * (row * routing.used + slot);
            put(&mut routes, at, id as u32);
            put(&mut routes, at + 1, factor.to_bits());
        }
    }
}

pub(super) fn products(pool: &Pool, args: &Args<'_>, format: Format) {
    let [rows_all, cols, pairs, used, each, at, first, held, stride] =
        [0, 1, 2, 3, 4, 5, 6, 7, 8].map(|i| args.number(i));
    let rows = rows_all.min(args.flat() * TILES.matvec_rows as usize);
    let pairs_all = pairs.div_ceil(used) * used;
    let t = pairs_all / used;
    let x = match format.block_len() {
        1 => floats(&args.ro(2), 0..t * cols),
        block => activations(args, 2, t * cols, block),
    };
    let out_at = if format.block_len() == 1 { 3 } else { 5 };
    let (w, routes, mut out) = (args.ro(0), args.ro(1), args.rw(out_at));
    for pair in 0..pairs.min(args.groups(2)) {
        let Some(own) = (index(&routes, 2 * pair) * each + at).checked_sub(first).filter(|own| *own < held)
        else {
            continue;
        };
        let x = &x[pair / used * cols..][..cols];
        let y = product(pool, &w[4 * stride * own..], format, (rows, cols), x);
        put_floats(&mut out, pair * rows_all, &y);
    }
}

pub(super) fn add_bias(args: &Args<'_>) {
    let (mut x, bias, routes, width) = (args.rw(0), args.ro(1), args.ro(2), args.number(1));
    for i in 0..args.covered() {
        let sum = float(&x, i) + float(&bias, index(&routes, 2 * (i / width)) * width + i % width);
        put(&mut x, i, sum.to_bits());
    }
}

pub(super) fn add(args: &Args<'_>) {
    let (mut x, y, routes) = (args.rw(0), args.ro(1), args.ro(2));
    let (width, used) = (args.number(1), args.number(2));
    for i in 0..args.covered() {
        let pairs = i / width * used..(i / width + 1) * used;
        let sum = pairs.fold(float(&x, i), |sum, pair| {
            let product = float(&routes, 2 * pair + 1) * float(&y, pair * width + i % width);
            sum + product
        });
        put(&mut x, i, sum.to_bits());
    }
}
