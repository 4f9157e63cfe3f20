//! The small operations between matrix products: norms, activations, rotary positions, softmax, dot product.
//!
//! Each function works on whole rows, in place or into a given output. It allocates nothing and starts no
//! threads. Sums run in sixteen lanes (value `i` in lane `i % 16`) that [`tree_sum`] adds, so their order is
//! fixed.

use crate::dispatch::versions::versions;
use crate::exp::{exp, soft_cap as capped};

/// Lanes of the sums of this module.
const LANES: usize = 16;

/// The factor `2 sqrt(2 / pi)` of the tanh form of GELU.
const GELU_SLOPE: f32 = 1.595_769;
/// The factor of the cube in GELU.
const GELU_CUBE: f32 = 0.044_715;

/// Which elements of a head a rotation pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RopeStyle {
    /// `(0, 1), (2, 3), ...`: llama models as GGUF stores them ("norm").
    Adjacent,
    /// `(0, r/2), (1, r/2 + 1), ...`: GPT-NeoX and qwen2.
    Halves,
}

/// Adds sixteen lanes: first lanes eight apart, then four, two and one.
#[inline(always)]
pub(crate) fn tree_sum(lanes: [f32; 16]) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|i| lanes[i] + lanes[i + 8]);
    let four: [f32; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// Returns the larger of two; the second if they are equal or either is NaN, as the vector instructions do.
#[inline(always)]
pub(crate) fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Returns `Σ a[i] b[i]` over sixteen lanes of fused multiply-adds, the last lanes padded with zeros.
#[inline(always)]
pub(crate) fn dot_body(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let ((a, a_tail), (b, b_tail)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane = a.mul_add(*b, *lane);
        }
    }
    for (lane, (a, b)) in lanes.iter_mut().zip(a_tail.iter().zip(b_tail)) {
        *lane = a.mul_add(*b, *lane);
    }
    tree_sum(lanes)
}

versions! {
    /// Returns the dot product of two rows of one length, in sixteen lanes.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn dot_f32 / dot_f32_at(a: &[f32], b: &[f32]) -> f32 {
        assert_eq!(a.len(), b.len(), "lengths of the two rows of a dot product");
        dot_body(a, b)
    }
}

/// Returns the factor of an RMS norm, `1 / sqrt(mean(x²) + eps)`.
///
/// Returns NaN if the mean overflows an `f32`. Its root would be infinite and the row would become zeros,
/// which no later step could tell from a valid row.
#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    let square = dot_body(x, x) / x.len() as f32 + eps;
    if square.is_finite() { 1.0 / square.sqrt() } else { f32::NAN }
}

versions! {
    /// Sets `out = x / sqrt(mean(x²) + eps) * weight`, one row. Source: Zhang and Sennrich 2019, RMSNorm.
    ///
    /// If the sum of the squares overflows, every value of `out` is NaN.
    ///
    /// # Panics
    /// If `x`, `weight` and `out` differ in length.
    pub fn rms_norm / rms_norm_at(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        assert_eq!(x.len(), weight.len(), "lengths of a row and its norm's weight");
        assert_eq!(x.len(), out.len(), "lengths of a row and its norm");
        let inverse = inverse_rms(x, eps);
        for (out, (x, weight)) in out.iter_mut().zip(x.iter().zip(weight)) {
            *out = x * inverse * weight;
        }
    }
}

versions! {
    /// Adds `x += y`, for residuals and biases.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add_assign / add_assign_at(x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len(), "lengths of the two rows of a sum");
        for (x, y) in x.iter_mut().zip(y) {
            *x += y;
        }
    }
}

versions! {
    /// Sets `gate = gate / (1 + e^-gate) * up`. Source: Shazeer 2020, SwiGLU.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn swiglu / swiglu_at(gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "lengths of gate and up");
        for (gate, up) in gate.iter_mut().zip(up) {
            *gate = *gate / (1.0 + exp(-*gate)) * up;
        }
    }
}

versions! {
    /// Sets `gate = gelu(gate) * up` with the tanh form of GELU: `gelu(x) = x / (1 + e^-2u)` with
    /// `u = sqrt(2 / pi) (x + 0.044715 x^3)`, which equals `x (1 + tanh u) / 2`. Source: Hendrycks and Gimpel
    /// 2016, GELU; Shazeer 2020, GEGLU.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn geglu / geglu_at(gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "lengths of gate and up");
        for (gate, up) in gate.iter_mut().zip(up) {
            let x = *gate;
            let twice_u = GELU_SLOPE * x * (1.0 + GELU_CUBE * x * x);
            *gate = x / (1.0 + exp(-twice_u)) * up;
        }
    }
}

/// The slope of the sigmoid in [`swiglu_clamped`].
const CLAMPED_SLOPE: f32 = 1.702;
/// The limit of both halves in [`swiglu_clamped`].
const CLAMPED_LIMIT: f32 = 7.0;

versions! {
    /// Sets `gate = x / (1 + e^-1.702x) * (y + 1)`, where `x` is `gate` but at most 7, and `y` is `up` but at
    /// least -7 and at most 7. Source: OpenAI 2025, the reference code of gpt-oss (`swiglu`).
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn swiglu_clamped / swiglu_clamped_at(gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "lengths of gate and up");
        for (gate, up) in gate.iter_mut().zip(up) {
            let x = if *gate > CLAMPED_LIMIT { CLAMPED_LIMIT } else { *gate };
            let y = if *up > CLAMPED_LIMIT { CLAMPED_LIMIT } else { *up };
            let y = if y < -CLAMPED_LIMIT { -CLAMPED_LIMIT } else { y };
            *gate = x / (1.0 + exp(-CLAMPED_SLOPE * x)) * (y + 1.0);
        }
    }
}

versions! {
    /// Sets `x = cap tanh(x / cap)`, so that no number is beyond ±`cap`. Source: Gemma Team 2024, Gemma 2,
    /// section 2.
    pub fn soft_cap / soft_cap_at(x: &mut [f32], cap: f32) {
        for x in x {
            *x = capped(*x, cap);
        }
    }
}

versions! {
    /// Applies an RMS norm to each head of one row, in place. `weight` is as long as a head; a row may be a
    /// single head. Source: Henry et al. 2020, query-key normalization; Zhang and Sennrich 2019, RMSNorm.
    ///
    /// If the sum of a head's squares overflows, every value of that head is NaN.
    ///
    /// # Panics
    /// If `x` does not hold whole heads.
    pub fn rms_norm_heads / rms_norm_heads_at(x: &mut [f32], weight: &[f32], eps: f32) {
        let d = weight.len();
        assert!(d > 0 && x.len().is_multiple_of(d), "{} values are not heads of {d}", x.len());
        for head in x.chunks_exact_mut(d) {
            let inverse = inverse_rms(head, eps);
            for (x, weight) in head.iter_mut().zip(weight) {
                *x = *x * inverse * weight;
            }
        }
    }
}

versions! {
    /// Multiplies `x *= factor`.
    pub fn scale / scale_at(x: &mut [f32], factor: f32) {
        for x in x {
            *x *= factor;
        }
    }
}

versions! {
    /// Adds `x += factor * y`, with the product rounded before the sum. Used to add experts of a mixture to
    /// their row.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add_scaled / add_scaled_at(x: &mut [f32], y: &[f32], factor: f32) {
        assert_eq!(x.len(), y.len(), "lengths of the two rows of a sum");
        for (x, y) in x.iter_mut().zip(y) {
            *x += factor * y;
        }
    }
}

versions! {
    /// Turns scores into weights that sum to 1; an empty row stays empty.
    pub fn softmax / softmax_at(x: &mut [f32]) {
        let top = x.iter().fold(f32::NEG_INFINITY, |top, &v| larger(v, top));
        let mut lanes = [0.0; LANES];
        for chunk in x.chunks_mut(LANES) {
            for (lane, v) in lanes.iter_mut().zip(chunk) {
                *v = exp(*v - top);
                *lane += *v;
            }
        }
        let sum = tree_sum(lanes);
        for v in x {
            *v /= sum;
        }
    }
}

/// Rotates the heads of one token by its position.
///
/// Shapes: `x: [h, d]`; `cos, sin: [rot_dims / 2]` of that position. Elements from `rot_dims` on do not
/// change.
/// Source: Su et al. 2021, RoFormer, section 3.2.2.
///
/// # Panics
/// If `x` does not hold whole heads, `rot_dims` is odd or above `d`, or the tables are not `rot_dims / 2`
/// long.
pub fn rope(x: &mut [f32], d: usize, rot_dims: usize, cos: &[f32], sin: &[f32], style: RopeStyle) {
    let half = rot_dims / 2;
    assert!(d > 0 && x.len().is_multiple_of(d), "{} values are not heads of {d}", x.len());
    assert!(rot_dims <= d && rot_dims.is_multiple_of(2), "{rot_dims} rotated dimensions of {d}");
    assert_eq!(cos.len(), half, "length of the cosines");
    assert_eq!(sin.len(), half, "length of the sines");
    for head in x.chunks_exact_mut(d) {
        match style {
            RopeStyle::Adjacent => rotate_adjacent(&mut head[..rot_dims], cos, sin),
            RopeStyle::Halves => rotate_halves(&mut head[..rot_dims], cos, sin),
        }
    }
}

fn rotate_adjacent(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    for ([a, b], (cos, sin)) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos.iter().zip(sin)) {
        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
    }
}

fn rotate_halves(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (low, high) = head.split_at_mut(cos.len());
    for ((a, b), (cos, sin)) in low.iter_mut().zip(high).zip(cos.iter().zip(sin)) {
        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
    }
}

#[cfg(test)]
pub(crate) mod tests;
