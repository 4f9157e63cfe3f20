//! The row operations against plain arithmetic in `f64`, and their levels against one another.

use super::*;
use crate::dispatch::Dispatch;

/// A deterministic row of values in -2..2.
pub(crate) fn row(seed: u32, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 22) as f32 - 2.0
        })
        .collect()
}

pub(crate) fn levels() -> impl Iterator<Item = Dispatch> {
    Dispatch::ALL.into_iter().filter(|level| level.is_available())
}

#[track_caller]
pub(crate) fn close(have: f32, want: f64, tolerance: f64) {
    let scale = want.abs().max(1.0);
    assert!((f64::from(have) - want).abs() <= tolerance * scale, "{have} is not {want}");
}

pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn every_tail_and_level_gives_one_dot() {
    for len in 0..80 {
        let (a, b) = (row(1, len), row(2, len));
        let want: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        let scalar = dot_f32_at(Dispatch::Scalar, &a, &b);
        close(scalar, want, 1e-5);
        for level in levels() {
            assert_eq!(dot_f32_at(level, &a, &b).to_bits(), scalar.to_bits(), "{level:?}, length {len}");
        }
    }
}

#[test]
fn every_tail_and_level_gives_one_norm() {
    for len in 1..70 {
        let (x, weight) = (row(3, len), row(4, len));
        let square: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / len as f64;
        let mut scalar = vec![0.0; len];
        rms_norm_at(Dispatch::Scalar, &x, &weight, 1e-5, &mut scalar);
        for i in 0..len {
            close(scalar[i], f64::from(x[i]) / (square + 1e-5).sqrt() * f64::from(weight[i]), 1e-5);
        }
        for level in levels() {
            let mut out = vec![0.0; len];
            rms_norm_at(level, &x, &weight, 1e-5, &mut out);
            assert_eq!(bits(&out), bits(&scalar), "{level:?}, length {len}");
        }
    }
}

#[test]
fn every_tail_and_level_gives_one_clamped_swiglu_and_soft_cap() {
    for len in 0..70 {
        // Values of -20..20: both limits are passed.
        let wide = |seed| row(seed, len).iter().map(|v| v * 10.0).collect::<Vec<f32>>();
        let (gate, up) = (wide(15), wide(16));
        let (mut gated, mut capped) = (gate.clone(), gate.clone());
        swiglu_clamped_at(Dispatch::Scalar, &mut gated, &up);
        soft_cap_at(Dispatch::Scalar, &mut capped, 6.0);
        for i in 0..len {
            let (x, y) = (f64::from(gate[i]).min(7.0), f64::from(up[i]).clamp(-7.0, 7.0));
            close(gated[i], x / (1.0 + (-1.702 * x).exp()) * (y + 1.0), 1e-5);
            close(capped[i], 6.0 * (f64::from(gate[i]) / 6.0).tanh(), 2e-6);
        }
        for level in levels() {
            let (mut a, mut b) = (gate.clone(), gate.clone());
            swiglu_clamped_at(level, &mut a, &up);
            soft_cap_at(level, &mut b, 6.0);
            assert_eq!(bits(&a), bits(&gated), "{level:?}, length {len}");
            assert_eq!(bits(&b), bits(&capped), "{level:?}, length {len}");
        }
    }
    let mut faults = [f32::NAN, 1.0];
    swiglu_clamped(&mut faults, &[1.0, f32::NAN]);
    assert!(faults.iter().all(|v| v.is_nan()), "a fault must not be clamped away");
}

#[test]
fn every_tail_and_level_gives_one_swiglu_and_softmax() {
    for len in 0..70 {
        let (gate, up) = (row(5, len), row(6, len));
        let (mut gated, mut weights) = (gate.clone(), gate.clone());
        swiglu_at(Dispatch::Scalar, &mut gated, &up);
        softmax_at(Dispatch::Scalar, &mut weights);
        let sum: f64 = gate.iter().map(|v| f64::from(*v).exp()).sum();
        for i in 0..len {
            let g = f64::from(gate[i]);
            close(gated[i], g / (1.0 + (-g).exp()) * f64::from(up[i]), 1e-6);
            close(weights[i], g.exp() / sum, 1e-6);
        }
        for level in levels() {
            let (mut a, mut b) = (gate.clone(), gate.clone());
            swiglu_at(level, &mut a, &up);
            softmax_at(level, &mut b);
            assert_eq!(bits(&a), bits(&gated), "{level:?}, length {len}");
            assert_eq!(bits(&b), bits(&weights), "{level:?}, length {len}");
            let mut sum = gate.clone();
            add_assign_at(level, &mut sum, &up);
            assert!((0..len).all(|i| sum[i] == gate[i] + up[i]));
        }
    }
}

#[test]
fn every_tail_and_level_gives_one_geglu() {
    for len in 0..70 {
        let (gate, up) = (row(7, len), row(8, len));
        let mut scalar = gate.clone();
        geglu_at(Dispatch::Scalar, &mut scalar, &up);
        for i in 0..len {
            let g = f64::from(gate[i]);
            let u = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3));
            close(scalar[i], 0.5 * g * (1.0 + u.tanh()) * f64::from(up[i]), 1e-6);
        }
        for level in levels() {
            let mut have = gate.clone();
            geglu_at(level, &mut have, &up);
            assert_eq!(bits(&have), bits(&scalar), "{level:?}, length {len}");
        }
    }
}

#[test]
fn every_tail_and_level_gives_one_norm_of_heads() {
    for d in 1..40 {
        let (x, weight) = (row(9, 3 * d), row(10, d));
        let mut scalar = x.clone();
        rms_norm_heads_at(Dispatch::Scalar, &mut scalar, &weight, 1e-6);
        for (head, have) in x.chunks(d).zip(scalar.chunks(d)) {
            let mut alone = vec![0.0; d];
            rms_norm(head, &weight, 1e-6, &mut alone);
            assert_eq!(bits(have), bits(&alone), "a head is normed like a row of its own, width {d}");
        }
        for level in levels() {
            let mut have = x.clone();
            rms_norm_heads_at(level, &mut have, &weight, 1e-6);
            assert_eq!(bits(&have), bits(&scalar), "{level:?}, width {d}");
        }
    }
}

#[test]
fn a_norm_whose_squares_overflow_is_nan() {
    for len in [2, 16, 21, 64] {
        let (mut huge, large) = (vec![1.0; len], vec![1e18; len]);
        huge[len / 2] = 7e36;
        let weight = vec![1.0; len];
        for level in levels() {
            let normed = |x: &[f32]| {
                let mut out = vec![0.0; len];
                rms_norm_at(level, x, &weight, 1e-5, &mut out);
                out
            };
            let near_one = |x: &[f32]| x.iter().all(|v| (v - 1.0).abs() < 1e-5);
            assert!(normed(&huge).iter().all(|v| v.is_nan()), "{level:?}, length {len}");
            assert!(near_one(&normed(&large)), "{level:?}, length {len}");
            let mut heads = [huge.clone(), large.clone(), huge.clone()].concat();
            rms_norm_heads_at(level, &mut heads, &weight, 1e-5);
            assert!(heads[..len].iter().all(|v| v.is_nan()), "{level:?}, width {len}");
            assert!(near_one(&heads[len..2 * len]), "{level:?}, width {len}");
            assert!(heads[2 * len..].iter().all(|v| v.is_nan()), "{level:?}, width {len}");
        }
    }
}

#[test]
fn every_tail_and_level_scales_and_adds_alike() {
    for len in 0..70 {
        let (x, y) = (row(11, len), row(12, len));
        for level in levels() {
            let (mut scaled, mut sum) = (x.clone(), x.clone());
            scale_at(level, &mut scaled, 0.3);
            add_scaled_at(level, &mut sum, &y, 0.3);
            assert!((0..len).all(|i| scaled[i] == x[i] * 0.3 && sum[i] == x[i] + 0.3 * y[i]), "{level:?}");
        }
    }
}

#[test]
fn extreme_gates_are_finite() {
    for gated in [swiglu, geglu] {
        let mut gate = [1e30f32, -1e30, 88.0, -88.0, 0.0];
        gated(&mut gate, &[1.0; 5]);
        assert_eq!(gate[..2], [1e30, -0.0]);
        assert!(gate.iter().all(|v| v.is_finite()));
    }
}

#[test]
fn rotation_keeps_lengths_and_pairs() {
    let angle = [0.3f32, 1.1];
    let (cos, sin) = (angle.map(f32::cos), angle.map(f32::sin));
    let x = [1.0f32, 2.0, 3.0, 4.0, 9.0, 1.0, 0.0, 0.0, 1.0, 9.0];
    let mut adjacent = x;
    rope(&mut adjacent, 5, 4, &cos, &sin, RopeStyle::Adjacent);
    let mut halves = x;
    rope(&mut halves, 5, 4, &cos, &sin, RopeStyle::Halves);
    for head in 0..2 {
        let at = |i: usize| 5 * head + i;
        for p in 0..2 {
            let (a, b) = (x[at(2 * p)], x[at(2 * p + 1)]);
            assert_eq!(adjacent[at(2 * p)], a * cos[p] - b * sin[p]);
            assert_eq!(adjacent[at(2 * p + 1)], a * sin[p] + b * cos[p]);
            let (a, b) = (x[at(p)], x[at(p + 2)]);
            assert_eq!(halves[at(p)], a * cos[p] - b * sin[p]);
            assert_eq!(halves[at(p + 2)], a * sin[p] + b * cos[p]);
        }
        assert_eq!(adjacent[at(4)], 9.0);
        assert_eq!(halves[at(4)], 9.0);
    }
}
