//! The operations of recurrent layers, one token at a time: causal convolutions over tokens, and the gated
//! delta rule.
//!
//! Each function works on the rows of one token, or on one head's state. It allocates nothing and starts no
//! threads. What always holds: an output depends only on its own token's row and on what came before it, in
//! the one order that each function states. So chunks of any length give the same bits.

use crate::dispatch::versions::versions;
use crate::exp::exp;
use crate::rows::dot_body;

/// Columns of a state that are summed in registers.
const COLUMNS: usize = 32;

versions! {
    /// Sets `out[c] = Σ_i taps[i, c] window[i][c]`, from the oldest row of the window on, with fused
    /// multiply-adds: a convolution over tokens, each channel by itself.
    ///
    /// Shapes: `window` has one row for each tap, oldest first, `taps: [taps, channels]`, `out: [channels]`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn causal_conv / causal_conv_at(window: &[&[f32]], taps: &[f32], out: &mut [f32]) {
        assert_eq!(taps.len(), window.len() * out.len(), "length of the taps of a convolution");
        out.fill(0.0);
        if out.is_empty() {
            return;
        }
        for (row, taps) in window.iter().zip(taps.chunks_exact(out.len())) {
            assert_eq!(row.len(), out.len(), "lengths of the rows of a convolution");
            for (out, (x, tap)) in out.iter_mut().zip(row.iter().zip(taps)) {
                *out = x.mul_add(*tap, *out);
            }
        }
    }
}

versions! {
    /// Sets `x = x / (1 + e^-x)`.
    pub fn silu / silu_at(x: &mut [f32]) {
        for x in x {
            *x /= 1.0 + exp(-*x);
        }
    }
}

versions! {
    /// Multiplies `x *= y`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn mul_assign / mul_assign_at(x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len(), "lengths of the two rows of a product");
        for (x, y) in x.iter_mut().zip(y) {
            *x *= y;
        }
    }
}

versions! {
    /// Multiplies `x *= 1 / (1 + e^-gate)`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn gate_by_sigmoid / gate_by_sigmoid_at(x: &mut [f32], gate: &[f32]) {
        assert_eq!(x.len(), gate.len(), "lengths of a row and its gate");
        for (x, gate) in x.iter_mut().zip(gate) {
            *x *= 1.0 / (1.0 + exp(-gate));
        }
    }
}

versions! {
    /// Gives each head of `d` values of one row the Euclidean length `factor`, in place:
    /// `x *= factor / max(sqrt(Σ x²), eps)`.
    ///
    /// If the sum of a head's squares overflows, every value of that head is NaN.
    ///
    /// # Panics
    /// If `x` does not hold whole heads.
    pub fn l2_norm_heads / l2_norm_heads_at(x: &mut [f32], d: usize, eps: f32, factor: f32) {
        assert!(d > 0 && x.len().is_multiple_of(d), "{} values are not heads of {d}", x.len());
        for head in x.chunks_exact_mut(d) {
            let square = dot_body(head, head);
            let inverse = if square.is_finite() { factor / square.sqrt().max(eps) } else { f32::NAN };
            for x in head {
                *x *= inverse;
            }
        }
    }
}

/// Returns `1 / (1 + e^-x)`.
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Returns `ln(1 + e^x)`. The platform's logarithm differs between machines; this one gives the same bits
/// everywhere. With `y = e^-|x|` and `z = y / (2 + y)`, which is at most 1/3, it is
/// `max(x, 0) + 2 (z + z³/3 + z⁵/5 + ...)` in f64. NaN gives NaN.
pub fn softplus(x: f32) -> f32 {
    /// The first power that is left out is below 2^-41.
    const TERMS: u32 = 12;
    let y = f64::from(exp(-x.abs()));
    let z = y / (2.0 + y);
    let square = z * z;
    let mut sum = 0.0;
    for term in (0..TERMS).rev() {
        sum = sum * square + 1.0 / f64::from(2 * term + 1);
    }
    (f64::from(x.max(0.0)) + 2.0 * z * sum) as f32
}

/// What one token brings to one head of a delta net.
#[derive(Debug, Clone, Copy)]
pub struct DeltaToken<'a> {
    /// Query, `[d]`, scaled.
    pub q: &'a [f32],
    /// Key, `[d]`, of length 1.
    pub k: &'a [f32],
    /// Value, `[d_v]`.
    pub v: &'a [f32],
    /// The factor by which the state fades.
    pub decay: f32,
    /// How much of the difference between the value and what the state holds for the key is written.
    pub beta: f32,
}

/// Returns `Σ_i k[i] state[i, at + j]` and the same with `q`, for the columns `j`.
#[inline(always)]
fn products<const W: usize>(
    state: &[f32],
    (width, at): (usize, usize),
    k: &[f32],
    q: &[f32],
) -> ([f32; W], [f32; W]) {
    let (mut by_key, mut by_query) = ([0.0; W], [0.0; W]);
    for (row, (k, q)) in state.chunks_exact(width).zip(k.iter().zip(q)) {
        for (j, s) in row[at..at + W].iter().enumerate() {
            by_key[j] = k.mul_add(*s, by_key[j]);
            by_query[j] = q.mul_add(*s, by_query[j]);
        }
    }
    (by_key, by_query)
}

versions! {
    /// Takes one token into the state of one head, `[d, d_v]`, and reads the state by the query:
    ///
    /// `delta = beta (v - decay Sᵀk)`, `out = decay Sᵀq + (k·q) delta`, `S = decay S + k deltaᵀ`.
    ///
    /// `out` is the product of the query and the new state. Sums run over the rows of the state in order,
    /// with fused multiply-adds; `k·q` is [`crate::dot_f32`]. `delta` is scratch memory, `[d_v]`. Source:
    /// Yang, Kautz and Hatamizadeh 2025, Gated Delta Networks, equation 10.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn delta_step / delta_step_at(
        state: &mut [f32], token: &DeltaToken<'_>, delta: &mut [f32], out: &mut [f32],
    ) {
        let DeltaToken { q, k, v, decay, beta } = *token;
        let width = v.len();
        assert!(width > 0 && q.len() == k.len(), "lengths of a query and a key");
        assert_eq!(state.len(), k.len() * width, "length of a head's state");
        assert_eq!((out.len(), delta.len()), (width, width), "lengths of a head's output and scratch memory");
        let whole = width - width % COLUMNS;
        for at in (0..whole).step_by(COLUMNS) {
            let (by_key, by_query) = products::<COLUMNS>(state, (width, at), k, q);
            delta[at..at + COLUMNS].copy_from_slice(&by_key);
            out[at..at + COLUMNS].copy_from_slice(&by_query);
        }
        for at in whole..width {
            ([delta[at]], [out[at]]) = products::<1>(state, (width, at), k, q);
        }
        let both = dot_body(k, q);
        for ((delta, out), v) in delta.iter_mut().zip(out.iter_mut()).zip(v) {
            *delta = (v - decay * *delta) * beta;
            *out = decay.mul_add(*out, *delta * both);
        }
        for (row, k) in state.chunks_exact_mut(width).zip(k) {
            for (s, delta) in row.iter_mut().zip(delta.iter()) {
                *s = decay.mul_add(*s, k * delta);
            }
        }
    }
}

#[cfg(test)]
mod tests;
