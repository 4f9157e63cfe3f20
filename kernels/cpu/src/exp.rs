//! The exponential function of every kernel: one polynomial, one sequence of IEEE operations.
//!
//! The platform's `expf` differs between machines and cannot be vectorized; this function gives the same bits
//! everywhere. The largest error on [-87, 88] is below 1.5 units in the last place (tested). Arguments below
//! -87 give 0, above 88 infinity; NaN gives NaN.

/// Below this the result is 0.
pub(crate) const LOW: f32 = -87.0;
/// Above this the result is infinite.
pub(crate) const HIGH: f32 = 88.0;
/// Adding 1.5 x 2^23 rounds to the nearest integer, ties to even, and leaves it in the low bits.
pub(crate) const ROUND: f32 = 12_582_912.0;
pub(crate) const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts. The first has few bits, so that its product with the integer is exact.
pub(crate) const LN2_HIGH: f32 = 0.693_359_4;
pub(crate) const LN2_LOW: f32 = -2.121_944_4e-4;
/// Coefficients of e^r on |r| <= ln(2)/2, highest power first: the Taylor series. Its remainder of order
/// eight is below 2^-27 there.
pub(crate) const POLY: [f32; 8] =
    [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];

/// Returns `e^x`; the module's documentation gives its error and range.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let shifted = x.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let mut p = POLY[0];
    for c in &POLY[1..] {
        p = p.mul_add(r, *c);
    }
    // The integer is in the low bits of `shifted`; as an exponent it needs the bias of 127.
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    let value = p * power;
    if x < LOW {
        0.0
    } else if x > HIGH {
        f32::INFINITY
    } else {
        value
    }
}

/// Returns `cap tanh(x / cap)`, where `tanh y = 1 - 2 / (1 + e^2y)`. For |x| far below `cap` it is nearly
/// `x`; it is never beyond ±`cap`. The error is below 5e-7 `cap` (tested); NaN gives NaN.
#[inline(always)]
pub(crate) fn soft_cap(x: f32, cap: f32) -> f32 {
    let y = x / cap;
    cap * (1.0 - 2.0 / (1.0 + exp(y + y)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_below_one_and_a_half_ulp() {
        let mut worst = 0.0f64;
        let mut x = LOW;
        while x < HIGH {
            let want = f64::from(x).exp();
            let have = exp(x);
            let ulp = f64::from(f32::from_bits((want as f32).to_bits() + 1)) - f64::from(want as f32);
            worst = worst.max((f64::from(have) - want).abs() / ulp);
            x += 0.000_37;
        }
        assert!(worst < 1.5, "worst error {worst} ulp");
    }

    #[test]
    fn a_soft_cap_is_a_hyperbolic_tangent() {
        for cap in [0.5f32, 30.0, 50.0] {
            let mut x = -20.0 * cap;
            while x < 20.0 * cap {
                let want = f64::from(cap) * (f64::from(x) / f64::from(cap)).tanh();
                let error = (f64::from(soft_cap(x, cap)) - want).abs();
                assert!(error < 5e-7 * f64::from(cap), "{x} capped at {cap}: error {error}");
                x += 0.003_7 * cap;
            }
        }
        assert_eq!(soft_cap(0.0, 30.0), 0.0);
        assert_eq!(soft_cap(f32::INFINITY, 30.0), 30.0);
        assert_eq!(soft_cap(f32::NEG_INFINITY, 30.0), -30.0);
        assert!(soft_cap(f32::NAN, 30.0).is_nan());
    }

    #[test]
    fn ends_of_the_range() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-87.001), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(88.001), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }
}
