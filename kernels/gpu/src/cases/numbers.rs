//! Cases of the kernels between products: norms, functions of numbers, copies, rotations.

use baton_kernels_cpu::{
    RopeStyle, add_assign, gate_by_sigmoid, geglu, rms_norm, rope, scale, sigmoid, soft_cap, swiglu,
    swiglu_clamped,
};

use super::altered::Altered;
use super::probe::{BLANK, Probe};
use crate::kernel::{Kernel, MapOp, ZipOp};
use crate::ops::{self, Groups};

/// The largest error of functions with a division, a root or an exponential, relative to the largest
/// magnitude of the vector.
pub(super) const FUNCTION_ERROR: f32 = 2e-6;

/// Runs cases on the device, and with the workgroups of flat grids in three rows.
pub(super) fn on_both(probe: &mut Probe<'_>, run: impl Fn(&mut Probe<'_>)) {
    run(probe);
    let altered = Altered::new(probe.device, probe.device.facts().binding_bytes);
    run(&mut probe.on(&altered));
}

/// Returns vectors for a norm. If there are more than two, the squares of one overflow, another has a fault,
/// another is zero.
pub(super) fn vectors(probe: &mut Probe<'_>, n: usize, width: usize) -> Vec<f32> {
    let mut x = probe.numbers(n * width, 3.0);
    if n > 2 {
        x[..width].fill(1e20);
        x[width] = f32::NAN;
        x[2 * width..3 * width].fill(0.0);
    }
    x
}

/// All cases of the norms.
pub(super) fn check_norms(probe: &mut Probe<'_>, in_place: bool) {
    on_both(probe, |probe| {
        for (i, width) in [1, 2, 15, 16, 17, 31, 33, 64, 100, 256, 257, 1000, 4099].into_iter().enumerate() {
            let (n, eps) = ([1, 2, 5, 3][i % 4], [1e-5, 1e-6][i % 2]);
            probe.shape(format!("{n} vectors of {width}"));
            let x = vectors(probe, n, width);
            let weight = probe.numbers(width, 1.5);
            let mut want = vec![0.0; n * width];
            for (x, want) in x.chunks(width).zip(want.chunks_mut(width)) {
                rms_norm(x, &weight, eps, want);
            }
            let (to, out, weight) = (probe.place(&x), probe.blank(n * width), probe.place(&weight));
            if in_place {
                ops::rms_norm_in_place(probe.device, &to, (&weight, width), eps, n);
            } else {
                ops::rms_norm(probe.device, &to, (&weight, width), eps, n, &out);
                probe.holds("x", &to, &x);
            }
            let got = probe.read(if in_place { &to } else { &out }, n * width);
            probe.near("out", &got, &want, (width, FUNCTION_ERROR));
        }
    });
}

/// All cases of the most probable token.
pub(super) fn check_best(probe: &mut Probe<'_>) {
    let faults = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    on_both(probe, |probe| {
        for width in [1, 2, 31, 32, 33, 127, 128, 129, 255, 256, 257, 511, 513, 1000, 4099] {
            probe.shape(format!("7 rows of {width}"));
            let mut x = probe.numbers(7 * width, 3.0);
            // Few different numbers, so that the greatest is there several times; zeros of both signs; all
            // negative; the least of all; faults, of which the last row has nothing else.
            x[width..2 * width].iter_mut().for_each(|x| *x = x.round());
            x[2 * width..3 * width].iter_mut().for_each(|x| *x = if *x > 0.0 { 0.0 } else { -0.0 });
            x[3 * width..4 * width].iter_mut().for_each(|x| *x = -x.abs() - 1.0);
            x[4 * width..5 * width].fill(f32::MIN);
            for i in 0..1 + width / 100 {
                let at = probe.random.below(width);
                x[5 * width + at] = faults[i % 4];
            }
            (0..width).for_each(|i| x[6 * width + i] = faults[(i + width) % 4]);
            let want: Vec<f32> = x.chunks(width).flat_map(best_of).map(f32::from_bits).collect();
            let (from, out) = (probe.place(&x), probe.blank(want.len()));
            ops::best(probe.device, &from, (7, width), &out);
            let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
            let got = probe.read(&out, want.len());
            let differs = bits(&got).iter().zip(bits(&want)).position(|(got, want)| *got != want);
            if let Some(i) = differs {
                probe.fail("out", i, got[i], want[i], "");
            }
        }
    });
}

/// The words of a row by definition.
fn best_of(row: &[f32]) -> [u32; 3] {
    let greatest = row.iter().copied().filter(|x| x.is_finite()).fold(f32::NEG_INFINITY, f32::max);
    let best = row.iter().position(|x| x.is_finite() && *x == greatest).unwrap_or(0);
    match row.iter().position(|x| !x.is_finite()) {
        Some(fault) => [best as u32, fault as u32, row[fault].to_bits()],
        None => [best as u32, u32::MAX, 0],
    }
}

/// Lengths around the edges of a workgroup, and one of several workgroups.
fn lengths(probe: &Probe<'_>) -> Vec<usize> {
    let numbers = probe.device.tiles().numbers;
    let mut all = Probe::edges(numbers);
    all.push(7 * numbers as usize + 1);
    all
}

/// All cases of a function of each number.
pub(super) fn check_map(probe: &mut Probe<'_>, op: MapOp) {
    on_both(probe, |probe| {
        for n in lengths(probe) {
            for a in [30.0, 0.37, 1.0] {
                probe.shape(format!("{n} numbers, a = {a}"));
                let mut x = probe.numbers(n, 3.0 * a);
                if n > 8 {
                    x[1..6].copy_from_slice(&[-0.0, 0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
                }
                let mut want = x.clone();
                match op {
                    MapOp::Scale => scale(&mut want, a),
                    MapOp::SoftCap => soft_cap(&mut want, a),
                    MapOp::Sigmoid => want.iter_mut().for_each(|x| *x = sigmoid(*x)),
                }
                let x = probe.place(&x);
                ops::map(probe.device, op, &x, n, a);
                match op {
                    MapOp::Scale => probe.holds("x", &x, &want),
                    MapOp::SoftCap | MapOp::Sigmoid => {
                        probe.near("x", &probe.read(&x, n), &want, (n, FUNCTION_ERROR))
                    }
                }
            }
        }
    });
}

/// All cases of a function of pairs of numbers.
pub(super) fn check_zip(probe: &mut Probe<'_>, op: ZipOp) {
    let define = match op {
        ZipOp::Add => add_assign,
        ZipOp::Swiglu => swiglu,
        ZipOp::Geglu => geglu,
        ZipOp::SwigluClamped => swiglu_clamped,
        ZipOp::GateBySigmoid => gate_by_sigmoid,
    };
    on_both(probe, |probe| {
        for n in lengths(probe) {
            // The larger numbers are beyond the range of the exponential.
            for largest in [4.0, 120.0] {
                probe.shape(format!("{n} numbers up to {largest}"));
                let (mut x, y) = (probe.numbers(n, largest), probe.numbers(n, 9.0));
                if n > 8 {
                    x[1..4].copy_from_slice(&[-0.0, 0.0, f32::NAN]);
                }
                let mut want = x.clone();
                define(&mut want, &y);
                let (to, from) = (probe.place(&x), probe.place(&y));
                ops::zip(probe.device, op, &to, &from, n);
                probe.holds("y", &from, &y);
                if op == ZipOp::Add {
                    probe.holds("x", &to, &want);
                } else {
                    probe.near("x", &probe.read(&to, n), &want, (n, FUNCTION_ERROR));
                }
            }
        }
    });
}

/// Rows and widths with lengths around the edges of a workgroup.
fn rows_of(probe: &Probe<'_>) -> Vec<(usize, usize)> {
    let numbers = probe.device.tiles().numbers as usize;
    vec![(1, 1), (1, numbers + 1), (3, 7), (5, numbers / 2 + 1), (numbers + 1, 1), (17, 33), (2, 256)]
}

/// All cases of a bias, or of a factor for each row.
pub(super) fn check_rows(probe: &mut Probe<'_>, bias: bool) {
    on_both(probe, |probe| {
        for (t, width) in rows_of(probe) {
            probe.shape(format!("{t} rows of {width}"));
            let mut want = probe.numbers(t * width, 2.0);
            let y = probe.numbers(if bias { width } else { t }, 2.0);
            let (x, from) = (probe.place(&want), probe.place(&y));
            for (row, factor) in want.chunks_mut(width).zip(y.iter().cycle()) {
                if bias {
                    add_assign(row, &y);
                } else {
                    scale(row, *factor);
                }
            }
            let launch = if bias { ops::add_bias } else { ops::scale_rows };
            launch(probe.device, &x, &from, (t, width));
            probe.holds("x", &x, &want);
        }
    });
}

/// All cases of copies of parts of groups.
pub(super) fn check_copy(probe: &mut Probe<'_>) {
    let groups = |each, at| Groups { each, at };
    on_both(probe, |probe| {
        for (count, len, from, to) in [
            (1, 1, groups(1, 0), groups(1, 0)),
            (5, 7, groups(20, 3), groups(11, 2)),
            (3, 64, groups(64, 0), groups(192, 128)),
            (9, 33, groups(100, 67), groups(33, 0)),
            (4, 300, groups(301, 1), groups(300, 0)),
            (2, 5, groups(0, 2), groups(8, 1)),
        ] {
            probe.shape(format!("{count} groups, {len} numbers from {from:?} to {to:?}"));
            let x = probe.numbers(count * from.each + from.at + len, 1.0);
            let mut want = vec![BLANK; count * to.each];
            for g in 0..count {
                want[g * to.each + to.at..][..len].copy_from_slice(&x[g * from.each + from.at..][..len]);
            }
            let (x, out) = (probe.place(&x), probe.blank(want.len()));
            ops::copy(probe.device, (&x, from), (&out, to), count, len);
            probe.holds("out", &out, &want);
        }
    });
}

/// All cases of chosen rows.
pub(super) fn check_gather(probe: &mut Probe<'_>) {
    on_both(probe, |probe| {
        for (n, width) in rows_of(probe) {
            probe.shape(format!("{n} rows of {width}"));
            let x = probe.numbers((n + 3) * width, 1.0);
            let rows: Vec<u32> = (0..n).map(|_| probe.random.below(n + 3) as u32).collect();
            let want: Vec<f32> =
                rows.iter().flat_map(|row| &x[*row as usize * width..][..width]).copied().collect();
            let (x, out, rows) = (probe.place(&x), probe.blank(n * width), ops::table(probe.device, &rows));
            ops::gather(probe.device, &x, &rows, (n, width), &out);
            probe.holds("out", &out, &want);
        }
    });
}

/// All cases of rows that are added to other rows.
pub(super) fn check_add_scaled(probe: &mut Probe<'_>) {
    on_both(probe, |probe| {
        for (n, width) in rows_of(probe) {
            probe.shape(format!("{n} rows of {width}"));
            let mut want = probe.numbers((n + 3) * width, 1.0);
            let (y, factors) = (probe.numbers(n * width, 1.0), probe.numbers(n, 2.0));
            let mut rows = probe.random.permutation(n + 3);
            rows.truncate(n);
            let x = probe.place(&want);
            for ((row, y), factor) in rows.iter().zip(y.chunks(width)).zip(&factors) {
                baton_kernels_cpu::add_scaled(&mut want[row * width..][..width], y, *factor);
            }
            let (y, factors) = (probe.place(&y), probe.place(&factors));
            let rows: Vec<u32> = rows.iter().map(|row| *row as u32).collect();
            let rows = ops::table(probe.device, &rows);
            ops::add_scaled(probe.device, &x, &y, (&rows, &factors), (n, width));
            probe.holds("x", &x, &want);
        }
    });
}

/// All cases of rotations.
pub(super) fn check_rope(probe: &mut Probe<'_>, style: RopeStyle) {
    on_both(probe, |probe| {
        for (t, heads, d, half) in
            [(1, 1, 2, 1), (1, 3, 8, 4), (3, 2, 80, 20), (5, 3, 64, 32), (2, 5, 128, 64), (7, 1, 96, 1)]
        {
            probe.shape(format!("{t} rows of {heads} heads of {d}, {half} pairs"));
            let mut want = probe.numbers(t * heads * d, 3.0);
            let (cos, sin) = (probe.numbers(t * half, 1.0), probe.numbers(t * half, 1.0));
            let x = probe.place(&want);
            for (i, row) in want.chunks_mut(heads * d).enumerate() {
                let of = |table: &[f32]| table[i * half..(i + 1) * half].to_vec();
                rope(row, d, 2 * half, &of(&cos), &of(&sin), style);
            }
            let (cos, sin) = (probe.place(&cos), probe.place(&sin));
            ops::rope(probe.device, style, &x, (&cos, &sin), (t, heads, d, half));
            probe.holds("x", &x, &want);
        }
    });
}

/// Runs all cases of a kernel of this module.
///
/// # Panics
/// If it is another kernel, or a result is not the expected one.
pub(super) fn check(probe: &mut Probe<'_>) {
    match probe.kernel {
        Kernel::RmsNorm => check_norms(probe, false),
        Kernel::RmsNormInPlace => check_norms(probe, true),
        Kernel::Best => check_best(probe),
        Kernel::Map(op) => check_map(probe, op),
        Kernel::Zip(op) => check_zip(probe, op),
        Kernel::AddBias => check_rows(probe, true),
        Kernel::ScaleRows => check_rows(probe, false),
        Kernel::Copy => check_copy(probe),
        Kernel::Gather => check_gather(probe),
        Kernel::AddScaled => check_add_scaled(probe),
        Kernel::Rope(style) => check_rope(probe, style),
        kernel => unreachable!("{} has cases of its own", kernel.name()),
    }
}
