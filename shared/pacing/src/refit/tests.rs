//! Compares fitted costs with the true costs behind noisy measurements.

use super::*;

/// Returns seeded noise in -1..1.
fn noise(seed: &mut u64) -> f64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
}

fn samples(k: f64, q: f64, relative: f64) -> Vec<PrefillSample> {
    let mut seed = 7;
    (0..60)
        .map(|index| {
            let (held, tokens) = (f64::from(index % 6) * 512.0, 64.0 + f64::from(index % 10) * 100.0);
            let ms = k * tokens + q * ((held + tokens).powi(2) - held.powi(2));
            PrefillSample { held, tokens, ms: ms * (1.0 + relative * noise(&mut seed)) }
        })
        .collect()
}

#[track_caller]
fn near(got: f64, want: f64, share: f64) {
    assert!((got - want).abs() <= share * want.abs().max(1e-12), "{got}, want {want}");
}

#[test]
fn exact_measurements_give_the_coefficients_back() {
    for (k, q) in [(2.5, 0.0), (2.5, 1e-4), (0.3, 5e-4)] {
        let fit = fit_prefill(&samples(k, q, 0.0)).unwrap();
        near(fit.ms_per_token, k, 1e-9);
        assert!((fit.ms_per_token2 - q).abs() < 1e-12, "{fit:?}");
        assert_eq!((fit.used, fit.left_out), (60, 0));
    }
}

#[test]
fn outliers_do_not_move_the_line() {
    let mut wild = samples(2.5, 1e-4, 0.05);
    for index in (0..wild.len()).step_by(4) {
        // A quarter of the passes stalled for seconds, or the clock jumped.
        wild[index].ms = if index % 8 == 0 { wild[index].ms + 30_000.0 } else { 0.01 };
    }
    let fit = fit_prefill(&wild).unwrap();
    near(fit.ms_per_token, 2.5, 0.03);
    near(fit.ms_per_token2, 1e-4, 0.1);
    assert_eq!(fit.left_out, 15);
    // Plain least squares over the same points is far off, which shows that outliers must be removed.
    let points: Vec<Point> =
        wild.iter().map(|s| Point { x: 2.0 * s.held + s.tokens, y: s.ms / s.tokens }).collect();
    assert!(least_squares(&points).unwrap().intercept > 5.0);
}

#[test]
fn noise_is_no_attention() {
    let fit = fit_prefill(&samples(2.5, 0.0, 0.3)).unwrap();
    assert_eq!(fit.ms_per_token2, 0.0, "{fit:?}");
    near(fit.ms_per_token, 2.5, 0.1);
}

#[test]
fn coefficients_are_never_negative() {
    let at = |tokens, ms| PrefillSample { held: 0.0, tokens, ms };
    // Long passes are cheaper per token, so no quadratic term is found and the median cost is used.
    let falling = [at(100.0, 300.0), at(200.0, 560.0), at(400.0, 1_040.0), at(800.0, 1_920.0)];
    let fit = fit_prefill(&falling).unwrap();
    assert_eq!(fit.ms_per_token2, 0.0);
    assert!((2.4..=3.0).contains(&fit.ms_per_token), "{fit:?}");
    // Only the quadratic term: a linear fit would give a negative cost per token.
    let steep = [at(100.0, 5.0), at(200.0, 30.0), at(400.0, 140.0), at(800.0, 600.0)];
    let fit = fit_prefill(&steep).unwrap();
    assert!(fit.ms_per_token == 0.0 && fit.ms_per_token2 > 0.0, "{fit:?}");
}

#[test]
fn few_or_equal_lengths_give_the_median() {
    let at = |tokens, ms| PrefillSample { held: 0.0, tokens, ms };
    let fit = fit_prefill(&[at(100.0, 300.0), at(110.0, 220.0), at(120.0, 600.0)]).unwrap();
    assert_eq!((fit.ms_per_token, fit.ms_per_token2, fit.used), (3.0, 0.0, 3));
    assert_eq!(fit_prefill(&vec![at(96.0, 96.0); 50]).unwrap().ms_per_token, 1.0);
}

#[test]
fn unusable_samples_are_passed_over() {
    let odd = [f64::NAN, f64::INFINITY, -1.0, 0.0];
    let mut wild = samples(2.5, 1e-4, 0.0);
    for value in odd {
        wild.push(PrefillSample { held: 0.0, tokens: value, ms: 5.0 });
        wild.push(PrefillSample { held: 0.0, tokens: 10.0, ms: value });
        wild.push(PrefillSample { held: -1.0, tokens: 10.0, ms: value });
    }
    let fit = fit_prefill(&wild).unwrap();
    near(fit.ms_per_token, 2.5, 1e-6);
    assert_eq!(fit_prefill(&wild[60..]), None);
    assert_eq!(fit_prefill(&[]), None);
}

#[test]
fn order_does_not_matter() {
    let mut wild = samples(1.0, 2e-4, 0.3);
    let fit = fit_prefill(&wild);
    wild.reverse();
    wild.rotate_left(17);
    assert_eq!(fit_prefill(&wild), fit);
}

#[test]
fn medians() {
    assert_eq!(median([3.0, 1.0, f64::NAN, 2.0]), Some(2.0));
    assert_eq!(median([4.0, 1.0]), Some(2.5));
    assert_eq!(median([f64::INFINITY]), None);
}

#[test]
fn a_class_costs_what_its_middle_device_costs() {
    let report =
        |k, q, decode_ms| DeviceReport { prefill_ms_per_token: k, prefill_ms_per_token2: q, decode_ms };
    assert_eq!(class_median(&[]), None);
    let one = class_median(&[report(2.4, 1e-4, 41.0)]).unwrap();
    near(one.prefill_ms_per_token, 2.4, 1e-9);
    near(one.prefill_ms_per_token2, 1e-4, 1e-9);
    // The median at either length; a device that reports wrong costs has no effect.
    let class = [
        report(2.0, 2e-4, 40.0),
        report(2.4, 1e-4, 41.0),
        report(2.8, 1e-5, 90.0),
        report(0.0, 0.0, 0.0),
        report(9e3, 9.0, 6e4),
    ];
    let middle = class_median(&class).unwrap();
    assert_eq!(middle.decode_ms, 41.0);
    for tokens in [512.0, 8_192.0] {
        let cost = middle.prefill_ms_per_token + middle.prefill_ms_per_token2 * tokens;
        let mut all: Vec<f64> =
            class.iter().map(|r| r.prefill_ms_per_token + r.prefill_ms_per_token2 * tokens).collect();
        all.sort_by(f64::total_cmp);
        near(cost, all[2], 1e-9);
    }
}

#[test]
fn a_line_with_an_intercept_is_found_behind_noise_and_outliers() {
    let mut seed = 3;
    let mut samples: Vec<(f64, f64)> = (1..40)
        .map(|n| f64::from(n) * 200.0)
        .map(|x| (x, (60.0 + 0.1 * x) * (1.0 + 0.01 * noise(&mut seed))))
        .collect();
    for index in (0..samples.len()).step_by(6) {
        samples[index].1 *= 5.0;
    }
    let line = fit_line(&samples).unwrap();
    near(line.slope, 0.1, 0.03);
    near(line.intercept, 60.0, 0.1);
    // Lengths that hardly differ, and too few of them, show no line.
    assert_eq!(fit_line(&[(100.0, 1.0), (101.0, 2.0), (102.0, 3.0), (103.0, 4.0)]), None);
    assert_eq!(fit_line(&samples[..3]), None);
    assert_eq!(fit_line(&[(f64::NAN, 1.0), (1.0, f64::INFINITY)]), None);
    // Neither coefficient is negative.
    let falling: Vec<(f64, f64)> = (1..9).map(|n| (f64::from(n), 10.0 - f64::from(n))).collect();
    assert_eq!(fit_line(&falling).map(|line| line.slope), Some(0.0));
    let steep: Vec<(f64, f64)> = (1..9).map(|n| (f64::from(n), 3.0 * f64::from(n) - 2.0)).collect();
    assert_eq!(fit_line(&steep).map(|line| line.intercept), Some(0.0));
}
