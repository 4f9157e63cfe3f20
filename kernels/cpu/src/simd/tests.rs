//! Each lane operation of each level against its plain meaning.

use super::*;
use crate::rows;

/// Runs one check of lane operations at every vector level of this CPU; at least the call must return.
struct Check;

fn values(seed: f32) -> [f32; 16] {
    std::array::from_fn(|i| (i as f32 * 1.7 + seed).sin() * 40.0)
}

fn taken<S: Simd>(s: S, v: S::F) -> [f32; 16] {
    let mut out = [0.0; 16];
    s.store(v, &mut out);
    out
}

#[track_caller]
fn lanes<S: Simd>(s: S, have: S::F, want: impl Fn(usize) -> f32) {
    let have = taken(s, have).map(f32::to_bits);
    assert_eq!(have, std::array::from_fn(|i| want(i).to_bits()));
}

impl Kernel for Check {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        floats(s);
        integers(s);
        exponentials(s);
        transposes(s);
    }
}

fn floats<S: Simd>(s: S) {
    let (a, b, c) = (values(0.1), values(0.7), values(1.9));
    let (va, vb, vc) = (s.load(&a), s.load(&b), s.load(&c));
    lanes(s, s.splat(3.5), |_| 3.5);
    lanes(s, s.add(va, vb), |i| a[i] + b[i]);
    lanes(s, s.sub(va, vb), |i| a[i] - b[i]);
    lanes(s, s.mul(va, vb), |i| a[i] * b[i]);
    lanes(s, s.fma(va, vb, vc), |i| a[i].mul_add(b[i], c[i]));
    lanes(s, s.larger(va, vb), |i| rows::larger(a[i], b[i]));
    lanes(s, s.keep(0xa5c3, va, vb), |i| if 0xa5c3 >> i & 1 == 1 { a[i] } else { b[i] });
    lanes(s, s.where_less(va, vb, vc, va), |i| if a[i] < b[i] { c[i] } else { a[i] });
    assert_eq!(s.tree_sum(va).to_bits(), rows::tree_sum(a).to_bits());
    assert_eq!(s.tree_largest(va), a.iter().copied().fold(f32::MIN, f32::max));
    let mut line = [0; 64];
    for (bytes, v) in line.as_chunks_mut::<4>().0.iter_mut().zip(a) {
        *bytes = v.to_ne_bytes();
    }
    lanes(s, s.load_line(&Line(line)), |i| a[i]);
}

fn integers<S: Simd>(s: S) {
    // Extremes included: -128 may stand in a file, though no quantizer writes it.
    let signed: [u8; 64] = std::array::from_fn(|i| [0x80, 0x7f, 0, 0xff, (i * 37) as u8][i % 5]);
    let small: [u8; 64] = std::array::from_fn(|i| [63, 0, (i % 64) as u8][i % 3]);
    for x in [[127i8; 4], [-127; 4], [127, -127, 3, -90], [0, 1, -1, 77]] {
        let packed = i32::from_le_bytes(x.map(|v| v as u8));
        let dot = |row: usize, weight: &dyn Fn(usize) -> i32| -> f32 {
            (0..4).map(|j| weight(4 * row + j) * i32::from(x[j])).sum::<i32>() as f32
        };
        let acc = s.dot_small(s.splat_int(-7), s.weights(&Line(small)), packed);
        lanes(s, s.to_float(acc), |i| dot(i, &|at| i32::from(small[at])) - 7.0);
        let raised = if S::RAISES_SIGNED { signed.map(|b| b ^ 0x80) } else { signed };
        let bias = if S::RAISES_SIGNED { -128 * x.iter().map(|&v| i32::from(v)).sum::<i32>() } else { 0 };
        let acc = s.dot_signed(s.splat_int(bias), s.weights(&Line(raised)), packed);
        lanes(s, s.to_float(acc), |i| dot(i, &|at| i32::from(signed[at] as i8)));
    }
}

fn exponentials<S: Simd>(s: S) {
    for step in 0..2_000 {
        let x: [f32; 16] = std::array::from_fn(|i| (step * 16 + i) as f32 * 0.006 - 92.0);
        lanes(s, s.exp(s.load(&x)), |i| crate::exp(x[i]));
    }
    let mut ends = [0.0; 16];
    ends[..4].copy_from_slice(&[f32::NEG_INFINITY, f32::INFINITY, -0.0, f32::MAX]);
    lanes(s, s.exp(s.load(&ends)), |i| crate::exp(ends[i]));
}

fn transposes<S: Simd>(s: S) {
    let rows: [[u8; 64]; 16] = std::array::from_fn(|i| std::array::from_fn(|j| (i * 64 + j * 7) as u8));
    let mut to = [Line([0; 64]); 16];
    s.transpose(rows.map(|row| s.units(&row)), &mut to);
    for (i, row) in rows.iter().enumerate() {
        for (j, to) in to.iter().enumerate() {
            assert_eq!(to.0[4 * i..4 * i + 4], row[4 * j..4 * j + 4], "row {i}, unit {j}");
        }
    }
    bytes(s, &rows);
}

/// The 64 bytes of sixteen units, by a transpose there and back.
fn taken_bytes<S: Simd>(s: S, v: S::I) -> [u8; 64] {
    let mut to = [Line([0; 64]); 16];
    s.transpose([v; 16], &mut to);
    std::array::from_fn(|i| to[i / 4].0[i % 4])
}

fn bytes<S: Simd>(s: S, rows: &[[u8; 64]; 16]) {
    let (low, high) = (rows[3].first_chunk().unwrap(), rows[9].first_chunk().unwrap());
    let joined = taken_bytes(s, s.joined(low, high));
    assert_eq!((&joined[..32], &joined[32..]), (&low[..], &high[..]));
    let nibbles = taken_bytes(s, s.nibbles(low));
    for i in 0..32 {
        assert_eq!((nibbles[i], nibbles[32 + i]), (low[i] & 15, low[i] >> 4));
    }
    let raise = if S::RAISES_SIGNED { 0x80 } else { 0 };
    assert_eq!(taken_bytes(s, s.raised(s.units(&rows[5]))), rows[5].map(|b| b ^ raise));
    let v = values(0.4);
    assert_eq!(taken_bytes(s, s.bits(s.load(&v))).as_chunks::<4>().0, v.map(f32::to_ne_bytes));
    for first in (0..0x7c00u16).step_by(16).chain((0x8000..0xfc00).step_by(16)) {
        let halves: [u16; 16] = std::array::from_fn(|i| first + i as u16);
        lanes(s, s.widen(&halves), |i| crate::f16::f16_to_f32(halves[i]));
    }
}

#[test]
fn operations_have_their_plain_meaning() {
    for level in Dispatch::ALL {
        let ran = run(level, Check).is_ok();
        assert_eq!(ran, level != Dispatch::Scalar && level.is_available(), "{level:?}");
    }
}
