//! The operations of recurrent layers against plain arithmetic in `f64`, and their levels against one
//! another.

use super::*;
use crate::dispatch::Dispatch;
use crate::rows::tests::{bits, close, levels, row};

/// Checks that every level gives what the scalar one gives, and returns that.
#[track_caller]
fn one_result(len: usize, f: impl Fn(Dispatch, &mut [f32])) -> Vec<f32> {
    let mut want = vec![0.5; len];
    f(Dispatch::Scalar, &mut want);
    for level in levels() {
        let mut have = vec![0.5; len];
        f(level, &mut have);
        assert_eq!(bits(&have), bits(&want), "{level:?}, length {len}");
    }
    want
}

#[test]
fn a_convolution_sums_its_window() {
    for (taps, channels) in [(1, 5), (3, 1), (3, 40), (4, 67), (7, 0)] {
        let rows: Vec<Vec<f32>> = (0..taps).map(|i| row(i as u32, channels)).collect();
        let window: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        let weights = row(9, taps * channels);
        let have = one_result(channels, |level, out| causal_conv_at(level, &window, &weights, out));
        for c in 0..channels {
            let want = (0..taps).map(|i| f64::from(rows[i][c]) * f64::from(weights[i * channels + c])).sum();
            close(have[c], want, 1e-6);
        }
    }
}

#[test]
fn gates_follow_their_definitions() {
    for len in [0, 1, 15, 33, 70] {
        let (x, y) = (row(3, len), row(4, len));
        let copy = |out: &mut [f32]| out.copy_from_slice(&x);
        let silus = one_result(len, |level, out| {
            copy(out);
            silu_at(level, out);
        });
        let products = one_result(len, |level, out| {
            copy(out);
            mul_assign_at(level, out, &y);
        });
        let gated = one_result(len, |level, out| {
            copy(out);
            gate_by_sigmoid_at(level, out, &y);
        });
        for i in 0..len {
            let (x, y) = (f64::from(x[i]), f64::from(y[i]));
            close(silus[i], x / (1.0 + (-x).exp()), 1e-6);
            close(products[i], x * y, 1e-6);
            close(gated[i], x / (1.0 + (-y).exp()), 1e-6);
            close(sigmoid(y as f32), 1.0 / (1.0 + (-y).exp()), 1e-6);
        }
    }
}

#[test]
fn heads_get_the_length_asked_for() {
    for (heads, d) in [(1, 1), (3, 7), (2, 48)] {
        let x = row(5, heads * d);
        let have = one_result(heads * d, |level, out| {
            out.copy_from_slice(&x);
            l2_norm_heads_at(level, out, d, 1e-6, 0.25);
        });
        for (head, x) in have.chunks(d).zip(x.chunks(d)) {
            let length = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
            for (have, x) in head.iter().zip(x) {
                close(*have, 0.25 * f64::from(*x) / length, 1e-6);
            }
        }
    }
    let mut zeros = [0.0; 4];
    l2_norm_heads(&mut zeros, 4, 1e-6, 1.0);
    assert_eq!(zeros, [0.0; 4]);
    let mut large = [3e38; 2];
    l2_norm_heads(&mut large, 2, 1e-6, 1.0);
    assert!(large.iter().all(|x| x.is_nan()));
}

#[test]
fn softplus_is_near_its_definition() {
    let mut x = -90.0f32;
    while x < 90.0 {
        let exact = f64::from(x);
        let want = exact.max(0.0) + (-exact.abs()).exp().ln_1p();
        let error = (f64::from(softplus(x)) - want).abs();
        assert!(error <= 3e-7 * want.max(1e-30), "softplus({x}): {} for {want}", softplus(x));
        // Below e^-87 the exponential of the kernels is 0.
        x = if x < -87.1 { -87.0 } else { x + 0.003_7 };
    }
    assert_eq!(softplus(-200.0), 0.0);
    assert_eq!(softplus(f32::INFINITY), f32::INFINITY);
    assert!(softplus(f32::NAN).is_nan());
}

#[test]
fn a_delta_step_follows_its_definition_at_every_width_and_level() {
    for (d, width) in [(1, 1), (4, 3), (16, 16), (5, 40), (32, 64), (24, 97)] {
        let (q, k, v) = (row(1, d), row(2, d), row(3, width));
        let start = row(4, d * width);
        let token = DeltaToken { q: &q, k: &k, v: &v, decay: 0.75, beta: 0.4 };
        let have = one_result((d + 1) * width, |level, both| {
            let (state, out) = both.split_at_mut(d * width);
            state.copy_from_slice(&start);
            delta_step_at(level, state, &token, &mut vec![9.0; width], out);
        });
        let s = |i: usize, j: usize| 0.75 * f64::from(start[i * width + j]);
        for j in 0..width {
            let held: f64 = (0..d).map(|i| s(i, j) * f64::from(k[i])).sum();
            let delta = 0.4 * (f64::from(v[j]) - held);
            let new = |i: usize| s(i, j) + f64::from(k[i]) * delta;
            for i in 0..d {
                close(have[i * width + j], new(i), 2e-5);
            }
            close(have[d * width + j], (0..d).map(|i| new(i) * f64::from(q[i])).sum(), 2e-4);
        }
    }
}
