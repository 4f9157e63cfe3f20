//! Models of random weights: real GGUF files of any shape, the same bytes for the same seed.
//!
//! For tests and measurements of arithmetic, where what a model says does not matter. Never used to answer
//! anybody. The vocabulary is byte-level with the control tokens of the demo models' chat layout.

use std::borrow::Cow;

use baton_kernels_cpu::{Format, KernelError, quantize_row};

use crate::gguf::{GgufWriteError, GgufWriter};

/// The shape and seed of a model of random weights.
#[derive(Debug, Clone, PartialEq)]
pub struct SyntheticModel {
    /// `general.architecture`: the name of a row of [`crate::family::FAMILIES`].
    pub family: &'static str,
    /// Format of every matrix; norms and biases are F32.
    pub format: Format,
    /// Transformer layers.
    pub n_layers: u32,
    /// Query heads.
    pub n_heads: u32,
    /// Key and value heads.
    pub n_kv_heads: u32,
    /// Width of the residual stream.
    pub d_model: u32,
    /// Width of one head.
    pub d_head: u32,
    /// Width of the feed-forward layer.
    pub d_ff: u32,
    /// Tokens; at least [`VOCAB_MIN`].
    pub vocab_len: u32,
    /// Most tokens of one sequence.
    pub context_len: u32,
    /// Whether the embedding table is also the projection to logits.
    pub tied: bool,
    /// Further metadata, e.g. of rotary scaling: the key without its architecture, and the value.
    pub extra: Vec<(&'static str, ExtraValue)>,
    /// Divisors of the rotary frequencies, `[d_head / 2]`, written as `rope_freqs.weight`.
    pub rope_divisors: Option<Vec<f32>>,
    /// Decides every weight.
    pub seed: u64,
}

/// A metadata value of [`SyntheticModel::extra`].
#[derive(Debug, Clone, PartialEq)]
pub enum ExtraValue {
    /// An unsigned number.
    U32(u32),
    /// A float.
    F32(f32),
    /// A text.
    Text(&'static str),
}

/// Why a synthetic model cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SyntheticError {
    /// A row that its format cannot hold.
    #[error("quantize `{name}`")]
    Quantize {
        /// The tensor.
        name: String,
        /// What the kernels say.
        #[source]
        err: KernelError,
    },
    /// The writer refuses.
    #[error("write model")]
    Write(#[from] GgufWriteError),
    /// Fewer tokens than the bytes and control tokens.
    #[error("vocabulary of {vocab_len} tokens, must be at least {VOCAB_MIN}")]
    VocabTooSmall {
        /// The tokens asked for.
        vocab_len: u32,
    },
}

const CONTROL: [&str; 5] = ["<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"];

/// The bytes, one merged token, and the control tokens.
pub const VOCAB_MIN: u32 = 256 + 1 + CONTROL.len() as u32;

const TEMPLATE: &str = "<|bos|>{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>\
    {% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

impl SyntheticModel {
    /// A model small enough for a unit test, and large enough for every format: 2 layers, 4 heads over 2 key
    /// heads, widths that are multiples of 256.
    pub fn small(family: &'static str, format: Format, seed: u64) -> Self {
        Self {
            family,
            format,
            n_layers: 2,
            n_heads: 4,
            n_kv_heads: 2,
            d_model: 256,
            d_head: 64,
            d_ff: 512,
            vocab_len: 288,
            context_len: 1024,
            tied: true,
            extra: Vec::new(),
            rope_divisors: None,
            seed,
        }
    }

    /// The model as the bytes of a GGUF file.
    ///
    /// # Errors
    /// [`SyntheticError`] where widths do not fit the format or the vocabulary is too small.
    pub fn to_gguf(&self) -> Result<Vec<u8>, SyntheticError> {
        Ok(self.writer()?.to_bytes()?)
    }

    /// The model before it is written, for tests that write it otherwise.
    pub(crate) fn writer(&self) -> Result<GgufWriter<'static>, SyntheticError> {
        if self.vocab_len < VOCAB_MIN {
            return Err(SyntheticError::VocabTooSmall { vocab_len: self.vocab_len });
        }
        let mut writer = GgufWriter::new();
        self.shape(&mut writer);
        self.vocabulary(&mut writer);
        let mut weights = Weights { writer, random: SplitMix64(self.seed), format: self.format };
        self.tensors(&mut weights)?;
        Ok(weights.writer)
    }

    fn shape(&self, writer: &mut GgufWriter<'_>) {
        let key = |name: &str| format!("{}.{name}", self.family);
        writer.set("general.architecture", self.family);
        writer.set(
            "general.name",
            format!("synthetic {} {} seed {}", self.family, self.format.name(), self.seed),
        );
        for (name, value) in [
            ("block_count", self.n_layers),
            ("attention.head_count", self.n_heads),
            ("attention.head_count_kv", self.n_kv_heads),
            ("embedding_length", self.d_model),
            ("attention.key_length", self.d_head),
            ("attention.value_length", self.d_head),
            ("rope.dimension_count", self.d_head),
            ("feed_forward_length", self.d_ff),
            ("vocab_size", self.vocab_len),
            ("context_length", self.context_len),
        ] {
            writer.set(&key(name), value);
        }
        writer.set(&key("attention.layer_norm_rms_epsilon"), 1e-5f32);
        writer.set(&key("rope.freq_base"), 10_000f32);
        for (name, value) in &self.extra {
            match value {
                ExtraValue::U32(value) => writer.set(&key(name), *value),
                ExtraValue::F32(value) => writer.set(&key(name), *value),
                ExtraValue::Text(value) => writer.set(&key(name), *value),
            };
        }
    }

    fn vocabulary(&self, writer: &mut GgufWriter<'_>) {
        const NORMAL: i32 = 1;
        const CONTROL_TYPE: i32 = 3;
        const UNUSED: i32 = 5;
        let mut tokens: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
        tokens.push("he".to_owned());
        let mut types = vec![NORMAL; tokens.len()];
        tokens.extend(CONTROL.map(str::to_owned));
        types.resize(tokens.len(), CONTROL_TYPE);
        for unused in tokens.len()..self.vocab_len as usize {
            tokens.push(format!("[unused{unused}]"));
        }
        types.resize(tokens.len(), UNUSED);
        writer.set("tokenizer.ggml.model", "gpt2");
        writer.set("tokenizer.ggml.pre", "gpt-2");
        writer.set("tokenizer.ggml.tokens", tokens);
        writer.set("tokenizer.ggml.token_type", types);
        writer.set("tokenizer.ggml.merges", vec!["h e"]);
        writer.set("tokenizer.ggml.bos_token_id", 257u32);
        writer.set("tokenizer.ggml.eos_token_id", 258u32);
        writer.set("tokenizer.ggml.add_bos_token", false);
        writer.set("tokenizer.chat_template", TEMPLATE);
    }

    fn tensors(&self, weights: &mut Weights<'_>) -> Result<(), SyntheticError> {
        let (e, f, v) = (self.d_model, self.d_ff, self.vocab_len);
        let (q, kv) = (self.n_heads * self.d_head, self.n_kv_heads * self.d_head);
        // Such that the logits of neighbouring tokens differ and attention is neither flat nor one-hot.
        // A tied table is smaller, so that a token's own logit does not dwarf the others.
        weights.matrix("token_embd.weight", v, e, if self.tied { 0.25 } else { 1.0 })?;
        weights.vector("output_norm.weight", e, 1.0, 0.2)?;
        if !self.tied {
            weights.matrix("output.weight", v, e, 1.0 / f64::from(e).sqrt())?;
        }
        if let Some(divisors) = &self.rope_divisors {
            weights.values("rope_freqs.weight", divisors)?;
        }
        for layer in 0..self.n_layers {
            let name = |tensor: &str| format!("blk.{layer}.{tensor}");
            let std = |cols: u32| 1.4 / f64::from(cols).sqrt();
            weights.vector(&name("attn_norm.weight"), e, 1.0, 0.2)?;
            weights.matrix(&name("attn_q.weight"), q, e, std(e))?;
            weights.matrix(&name("attn_k.weight"), kv, e, std(e))?;
            weights.matrix(&name("attn_v.weight"), kv, e, std(e))?;
            weights.matrix(&name("attn_output.weight"), e, q, std(q))?;
            if self.family == "qwen2" {
                weights.vector(&name("attn_q.bias"), q, 0.0, 0.5)?;
                weights.vector(&name("attn_k.bias"), kv, 0.0, 0.5)?;
                weights.vector(&name("attn_v.bias"), kv, 0.0, 0.5)?;
            }
            weights.vector(&name("ffn_norm.weight"), e, 1.0, 0.2)?;
            weights.matrix(&name("ffn_gate.weight"), f, e, std(e))?;
            weights.matrix(&name("ffn_up.weight"), f, e, std(e))?;
            weights.matrix(&name("ffn_down.weight"), e, f, std(f))?;
        }
        Ok(())
    }
}

/// Draws tensors and writes them.
struct Weights<'a> {
    writer: GgufWriter<'a>,
    random: SplitMix64,
    format: Format,
}

impl Weights<'_> {
    fn matrix(&mut self, name: &str, rows: u32, cols: u32, std: f64) -> Result<(), SyntheticError> {
        let mut bytes = Vec::new();
        for _ in 0..rows {
            let row: Vec<f32> = (0..cols).map(|_| (std * self.random.unit()) as f32).collect();
            quantize_row(self.format, &row, &mut bytes)
                .map_err(|err| SyntheticError::Quantize { name: name.to_owned(), err })?;
        }
        self.writer.tensor(name, &[u64::from(cols), u64::from(rows)], self.format, Cow::Owned(bytes))?;
        Ok(())
    }

    fn vector(&mut self, name: &str, len: u32, mean: f64, std: f64) -> Result<(), SyntheticError> {
        let values: Vec<f32> = (0..len).map(|_| (mean + std * self.random.unit()) as f32).collect();
        self.values(name, &values)
    }

    fn values(&mut self, name: &str, values: &[f32]) -> Result<(), SyntheticError> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.writer.tensor(name, &[values.len() as u64], Format::F32, Cow::Owned(bytes))?;
        Ok(())
    }
}

/// A small generator with a fixed definition. Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom
/// number generators".
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Mean 0 and variance 1: the sum of twelve uniform numbers less six.
    fn unit(&mut self) -> f64 {
        (0..12).map(|_| (self.next() >> 11) as f64 / (1u64 << 53) as f64).sum::<f64>() - 6.0
    }
}

/// GPT-2's printable stand-in for a byte.
fn byte_char(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|earlier| !printable(*earlier)).count() as u32;
    char::from_u32(256 + rank).expect("256 to 323 are characters")
}
