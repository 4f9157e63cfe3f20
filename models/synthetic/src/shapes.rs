//! Shapes of published models, for measurements on files with random weights.

use std::f64::consts::TAU;

use crate::{ExtraValue, Quant, SyntheticExperts, SyntheticModel};

/// A published model's shape, or one like it.
struct Shape {
    name: &'static str,
    family: &'static str,
    n_layers: u32,
    n_heads: u32,
    n_kv_heads: u32,
    d_model: u32,
    d_head: u32,
    d_ff: u32,
    vocab_len: u32,
    tied: bool,
    context_len: u32,
    rope_base: f32,
    /// The factor by which Llama 3.1 and 3.2 lower the low rotary frequencies; `None` for other models.
    rope_stretch: Option<f64>,
    norm_eps: f32,
    /// Experts of a layer, and experts per token; each has the width `d_ff`.
    experts: Option<(u32, u32)>,
}

const LLAMA_3_2_1B: Shape = Shape {
    name: "llama-1b",
    family: "llama",
    n_layers: 16,
    n_heads: 32,
    n_kv_heads: 8,
    d_model: 2048,
    d_head: 64,
    d_ff: 8192,
    vocab_len: 128_256,
    tied: true,
    context_len: 131_072,
    rope_base: 500_000.0,
    rope_stretch: Some(32.0),
    norm_eps: 1e-5,
    experts: None,
};

const LLAMA_3_2_3B: Shape =
    Shape { name: "llama-3b", n_layers: 28, n_heads: 24, d_model: 3072, d_head: 128, ..LLAMA_3_2_1B };

const LLAMA_3_1_8B: Shape = Shape {
    name: "llama-8b",
    n_layers: 32,
    d_model: 4096,
    d_head: 128,
    d_ff: 14_336,
    tied: false,
    rope_stretch: Some(8.0),
    ..LLAMA_3_2_1B
};

/// The original LLaMA of this size: 32.5 billion weights, one key head per query head.
const LLAMA_30B: Shape = Shape {
    name: "llama-30b",
    n_layers: 60,
    n_heads: 52,
    n_kv_heads: 52,
    d_model: 6656,
    d_head: 128,
    d_ff: 17_920,
    vocab_len: 32_000,
    tied: false,
    context_len: 2048,
    rope_base: 10_000.0,
    rope_stretch: None,
    norm_eps: 1e-6,
    ..LLAMA_3_2_1B
};

/// Mixtral 8x7B with half of each width and a quarter of the layers: 2.9 billion weights.
const MIXTRAL_3B: Shape = Shape {
    name: "mixtral-3b",
    n_layers: 8,
    n_heads: 16,
    n_kv_heads: 4,
    d_head: 128,
    d_ff: 7168,
    vocab_len: 32_000,
    tied: false,
    context_len: 32_768,
    rope_base: 1_000_000.0,
    rope_stretch: None,
    experts: Some((8, 2)),
    ..LLAMA_3_2_1B
};

const QWEN_2_5_0_5B: Shape = Shape {
    name: "qwen-0.5b",
    family: "qwen2",
    n_layers: 24,
    n_heads: 14,
    n_kv_heads: 2,
    d_model: 896,
    d_head: 64,
    d_ff: 4864,
    vocab_len: 151_936,
    tied: true,
    context_len: 32_768,
    rope_base: 1_000_000.0,
    rope_stretch: None,
    norm_eps: 1e-6,
    experts: None,
};

const QWEN_2_5_1_5B: Shape = Shape {
    name: "qwen-1.5b",
    n_layers: 28,
    n_heads: 12,
    d_model: 1536,
    d_head: 128,
    d_ff: 8960,
    ..QWEN_2_5_0_5B
};

const QWEN_2_5_7B: Shape = Shape {
    name: "qwen-7b",
    n_layers: 28,
    n_heads: 28,
    n_kv_heads: 4,
    d_model: 3584,
    d_head: 128,
    d_ff: 18_944,
    vocab_len: 152_064,
    tied: false,
    ..QWEN_2_5_0_5B
};

const ALL: [&Shape; 8] = [
    &LLAMA_3_2_1B,
    &LLAMA_3_2_3B,
    &LLAMA_3_1_8B,
    &LLAMA_30B,
    &MIXTRAL_3B,
    &QWEN_2_5_0_5B,
    &QWEN_2_5_1_5B,
    &QWEN_2_5_7B,
];

/// The names that [`SyntheticModel::shaped`] accepts. They are of Llama 3.2 1B and 3B, Llama 3.1 8B, the
/// original LLaMA 30B (32.5 billion weights) and Qwen2.5 0.5B, 1.5B and 7B. One is of a smaller Mixtral with
/// 2.9 billion weights.
pub const SHAPES: [&str; 8] = {
    let mut names = [""; 8];
    let mut at = 0;
    while at < names.len() {
        names[at] = ALL[at].name;
        at += 1;
    }
    names
};

impl SyntheticModel {
    /// Returns a model of the shape `name`, or `None` if `name` is not in [`SHAPES`]. Its context
    /// has `context_len` tokens, by default as many as published. Its answers do not end by themselves.
    pub fn shaped(name: &str, quant: Quant, context_len: Option<u32>, seed: u64) -> Option<Self> {
        let shape = ALL.into_iter().find(|shape| shape.name == name)?;
        let extra = vec![
            ("rope.freq_base", ExtraValue::F32(shape.rope_base)),
            ("attention.layer_norm_rms_epsilon", ExtraValue::F32(shape.norm_eps)),
        ];
        Some(Self {
            family: shape.family,
            quant,
            n_layers: shape.n_layers,
            n_heads: shape.n_heads,
            n_kv_heads: shape.n_kv_heads,
            d_model: shape.d_model,
            d_head: shape.d_head,
            d_ff: shape.d_ff,
            vocab_len: shape.vocab_len,
            context_len: context_len.unwrap_or(shape.context_len),
            tied: shape.tied,
            extra,
            rope_divisors: shape.rope_stretch.map(|stretch| divisors(shape, stretch)),
            rope_factors: None,
            experts: shape.experts.map(|(count, used)| SyntheticExperts {
                count,
                used,
                d_ff: shape.d_ff,
                shared_d_ff: 0,
            }),
            latent: None,
            dense_layers: 0,
            biased: false,
            endless: true,
            seed,
            ..Self::small(shape.family, quant, seed)
        })
    }
}

/// Returns the divisors of the rotary frequencies, `[d / 2]`, as llama.cpp's converter writes them for Llama
/// 3.1 and 3.2. They are 1 for wavelengths below 8192 / 4 tokens, `stretch` above 8192, and interpolated
/// between.
fn divisors(shape: &Shape, stretch: f64) -> Vec<f32> {
    const ORIGINAL_CONTEXT: f64 = 8192.0;
    const HIGH_FREQ_FACTOR: f64 = 4.0;
    let pairs = shape.d_head / 2;
    let divisor = |pair: u32| {
        let wavelength = TAU * f64::from(shape.rope_base).powf(f64::from(pair) / f64::from(pairs));
        let blend = (ORIGINAL_CONTEXT / wavelength - 1.0) / (HIGH_FREQ_FACTOR - 1.0);
        let blend = blend.clamp(0.0, 1.0);
        1.0 / ((1.0 - blend) / stretch + blend)
    };
    (0..pairs).map(|pair| divisor(pair) as f32).collect()
}
