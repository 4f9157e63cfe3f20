//! Models and adapters with random weights: valid GGUF files of any shape, with the same bytes for the same
//! seed.
//!
//! Used in tests and in speed measurements, in which the content of an answer does not matter. Only tests and
//! benches depend on it. The vocabulary is byte-level, with the control tokens of the demo models' chat
//! template; [`scored_gguf`] has another one. A test replaces the steps of an engine by [`Stepped`].

use std::io::Write;

use baton_engine::gguf::{GgufWriteError, GgufWriter};
use baton_kernels_cpu::KernelError;

mod adapter;
mod layered;
mod layers;
mod quant;
mod recurrent;
mod scored;
mod scripted;
mod shapes;
mod stepped;
mod weights;

pub use adapter::SyntheticAdapter;
pub use layered::SyntheticLayers;
pub use quant::Quant;
pub use scored::{WORD_SPANS, WORD_TAKEOVERS, WordTakeover, scored_gguf, scored_vocabulary};
pub use scripted::{Script, scripted_gguf};
pub use shapes::SHAPES;
pub use stepped::Stepped;
use weights::{Sink, Weights};

/// The shape and seed of a model with random weights.
#[derive(Debug, Clone, PartialEq)]
pub struct SyntheticModel {
    /// `general.architecture`: the name of an entry of [`baton_engine::family::FAMILIES`].
    pub family: &'static str,
    /// Formats of the matrices; norms and biases are F32.
    pub quant: Quant,
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
    /// Tokens of the vocabulary; at least [`VOCAB_MIN`].
    pub vocab_len: u32,
    /// Maximum number of tokens in one sequence.
    pub context_len: u32,
    /// Whether the embedding table is also the projection to logits.
    pub tied: bool,
    /// Further metadata, e.g. of rotary scaling: the key without the architecture prefix, and the value.
    pub extra: Vec<(&'static str, ExtraValue)>,
    /// Divisors of the rotary frequencies, `[d_head / 2]`, written as `rope_freqs.weight`.
    pub rope_divisors: Option<Vec<f32>>,
    /// Divisors for long and for short contexts, `[rotated dimensions / 2]` each, written as
    /// `rope_factors_long.weight` and `rope_factors_short.weight`.
    pub rope_factors: Option<[Vec<f32>; 2]>,
    /// The experts of the feed-forward layers; `None` for dense layers.
    pub experts: Option<SyntheticExperts>,
    /// Latent attention, for families that have it. The key heads and the widths of heads follow from it.
    pub latent: Option<SyntheticLatent>,
    /// First layers that are dense although the model has experts; only for families whose files say so.
    pub dense_layers: u32,
    /// Whether the model has every bias that its family may have, besides those that it must have.
    pub biased: bool,
    /// The recurrent layers, in families that have them.
    pub recurrent: SyntheticRecurrent,
    /// The layers, in families whose files list what each has.
    pub layers: SyntheticLayers,
    /// Makes answers that do not end by themselves, for measuring streams. Tokens after the control tokens
    /// are words, and the end token's row in the projection to logits is zero.
    pub endless: bool,
    /// Bytes of the last token, which consists of blanks and which no merge produces; 0 for no such token.
    /// For tests of the limit on a prompt's text, which grows with the longest token.
    pub long_token_bytes: u32,
    /// Seed of every weight.
    pub seed: u64,
}

/// The experts of a [`SyntheticModel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyntheticExperts {
    /// Experts per layer.
    pub count: u32,
    /// Experts per token.
    pub used: u32,
    /// Width of one expert; written only if the family's experts have a width of their own.
    pub d_ff: u32,
    /// Width of the shared expert; written only if the family has a shared expert. Some families need a
    /// multiple of `d_ff`.
    pub shared_d_ff: u32,
}

/// The latent attention of a [`SyntheticModel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyntheticLatent {
    /// Width of the short vector of queries; 0 if there is none.
    pub q_rank: u32,
    /// Width of the short vector of keys and values.
    pub kv_rank: u32,
    /// Dimensions of a key head that are not rotated.
    pub d_plain: u32,
    /// Dimensions of a key that are rotated.
    pub d_turned: u32,
    /// Dimensions of a value head.
    pub d_value: u32,
    /// Whether the file is made for a cache of short vectors, as newer files are.
    pub absorbed: bool,
}

/// The recurrent layers of a [`SyntheticModel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyntheticRecurrent {
    /// Of so many consecutive layers, all but the last are recurrent.
    pub interval: u32,
    /// Tokens that a convolution sees.
    pub taps: u32,
    /// Width of a delta net's heads.
    pub d_head: u32,
    /// Its heads of queries and keys.
    pub key_heads: u32,
    /// Its heads of values.
    pub value_heads: u32,
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
    /// Yes or no.
    Bool(bool),
}

/// Why a synthetic model cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SyntheticError {
    /// The format of a tensor cannot hold its rows.
    #[error("quantize `{name}`")]
    Quantize {
        /// The tensor.
        name: String,
        /// The kernels' error.
        #[source]
        err: KernelError,
    },
    /// The GGUF writer failed.
    #[error("write model")]
    Write(#[from] GgufWriteError),
    /// The vocabulary is smaller than the byte tokens and control tokens.
    #[error("vocabulary of {vocab_len} tokens, must be at least {VOCAB_MIN}")]
    VocabTooSmall {
        /// The requested number of tokens.
        vocab_len: u32,
    },
}

const CONTROL: [&str; 5] = ["<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"];

/// The id of `<|end|>`, which follows the bytes, one merged token and `<|bos|>`.
const END_TOKEN: u32 = 258;

/// The smallest vocabulary: the bytes, one merged token, and the control tokens.
pub const VOCAB_MIN: u32 = 256 + 1 + CONTROL.len() as u32;

const TEMPLATE: &str = "<|bos|>{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>\
    {% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

impl SyntheticModel {
    /// Returns a model that is small enough for a unit test and large enough for every format. It has 2
    /// layers, 4 query heads, 2 key heads, and widths that are multiples of 256.
    pub fn small(family: &'static str, quant: impl Into<Quant>, seed: u64) -> Self {
        Self {
            family,
            quant: quant.into(),
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
            rope_factors: None,
            experts: None,
            latent: None,
            dense_layers: 0,
            biased: false,
            recurrent: SyntheticRecurrent { interval: 2, taps: 3, d_head: 32, key_heads: 2, value_heads: 4 },
            layers: SyntheticLayers {
                interval: 2,
                d_head: 32,
                n_kv_heads: 1,
                values_of_keys: true,
                shared: 0,
                input_width: 0,
            },
            endless: false,
            long_token_bytes: 0,
            seed,
        }
    }

    /// Returns the model as the bytes of a GGUF file.
    ///
    /// # Errors
    /// [`SyntheticError`] if widths do not fit the format or the vocabulary is too small.
    pub fn to_gguf(&self) -> Result<Vec<u8>, SyntheticError> {
        Ok(self.writer()?.to_bytes()?)
    }

    /// Returns the model before it is written, for tests that change its metadata.
    ///
    /// # Errors
    /// As [`Self::to_gguf`].
    pub fn writer(&self) -> Result<GgufWriter<'static>, SyntheticError> {
        let mut writer = self.head()?;
        self.tensors(&mut Weights::new(self, Sink::Lend(&mut writer)))?;
        Ok(writer)
    }

    /// Writes the model as a GGUF file, with the same bytes as [`Self::to_gguf`]. It holds a few rows in
    /// memory, never a whole tensor. `progress` is called with the bytes of tensor data written so far and in
    /// total.
    ///
    /// # Errors
    /// As [`Self::to_gguf`], and if writing to `out` fails.
    pub fn write_to(
        &self,
        out: impl Write,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<(), SyntheticError> {
        let mut writer = self.head()?;
        let mut total_bytes = 0;
        self.tensors(&mut Weights::new(
            self,
            Sink::Declare { writer: &mut writer, total_bytes: &mut total_bytes },
        ))?;
        let mut stream = writer.begin(out)?;
        let mut written_bytes = 0;
        let mut put = |piece: &[u8]| {
            written_bytes += piece.len() as u64;
            progress(written_bytes, total_bytes);
            Ok(stream.put(piece)?)
        };
        self.tensors(&mut Weights::new(self, Sink::Put(&mut put)))?;
        stream.finish()?;
        Ok(())
    }

    /// Returns the model's metadata and vocabulary without any tensor, for tests that add some of the
    /// tensors.
    ///
    /// # Errors
    /// [`SyntheticError::VocabTooSmall`] if the vocabulary is too small.
    pub fn head(&self) -> Result<GgufWriter<'static>, SyntheticError> {
        if self.vocab_len < VOCAB_MIN {
            return Err(SyntheticError::VocabTooSmall { vocab_len: self.vocab_len });
        }
        let mut writer = GgufWriter::new();
        self.shape(&mut writer);
        self.vocabulary(&mut writer);
        Ok(writer)
    }

    fn shape(&self, writer: &mut GgufWriter<'_>) {
        let key = |name: &str| format!("{}.{name}", self.family);
        writer.set("general.architecture", self.family);
        writer.set(
            "general.name",
            format!("synthetic {} {} seed {}", self.display_name(), self.quant.name(), self.seed),
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
        self.expert_keys(writer);
        self.family_keys(writer);
        self.recurrent_keys(writer);
        self.layered_keys(writer);
        writer.set(&key("attention.layer_norm_rms_epsilon"), 1e-5f32);
        writer.set(&key("rope.freq_base"), 10_000f32);
        for (name, value) in &self.extra {
            match value {
                ExtraValue::U32(value) => writer.set(&key(name), *value),
                ExtraValue::F32(value) => writer.set(&key(name), *value),
                ExtraValue::Text(value) => writer.set(&key(name), *value),
                ExtraValue::Bool(value) => writer.set(&key(name), *value),
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
        for filler in tokens.len()..self.vocab_len as usize {
            tokens.push(if self.endless { word(filler) } else { format!("[unused{filler}]") });
        }
        types.resize(tokens.len(), if self.endless { NORMAL } else { UNUSED });
        if self.long_token_bytes > 0 {
            let last = tokens.len() - 1;
            tokens[last] = byte_char(b' ').to_string().repeat(self.long_token_bytes as usize);
            types[last] = NORMAL;
        }
        writer.set("tokenizer.ggml.model", "gpt2");
        writer.set("tokenizer.ggml.pre", "gpt-2");
        writer.set("tokenizer.ggml.tokens", tokens);
        writer.set("tokenizer.ggml.token_type", types);
        writer.set("tokenizer.ggml.merges", vec!["h e"]);
        writer.set("tokenizer.ggml.bos_token_id", 257u32);
        writer.set("tokenizer.ggml.eos_token_id", END_TOKEN);
        writer.set("tokenizer.ggml.add_bos_token", false);
        writer.set("tokenizer.chat_template", TEMPLATE);
    }

    fn tensors(&self, weights: &mut Weights<'_>) -> Result<(), SyntheticError> {
        let (e, v) = (self.d_model, self.vocab_len);
        // Deviations are chosen so that logits differ between tokens and attention is neither flat nor
        // one-hot. A tied table has smaller values, so that a token's own logit does not exceed all others by
        // far.
        let embedded = if self.tied { 4.0 / f64::from(e).sqrt() } else { 1.0 };
        weights.matrix("token_embd.weight", v, e, embedded / self.embedding_scale())?;
        weights.vector(self.output_norm(), e, 1.0, 0.2)?;
        if !self.tied {
            weights.matrix("output.weight", v, e, 1.0 / f64::from(e).sqrt())?;
        }
        if let Some(divisors) = self.divisors() {
            weights.values("rope_freqs.weight", &divisors)?;
        }
        if let Some([long, short]) = &self.rope_factors {
            weights.values("rope_factors_long.weight", long)?;
            weights.values("rope_factors_short.weight", short)?;
        }
        self.inputs_of_layers(weights)?;
        for layer in 0..self.n_layers {
            self.layer(weights, layer)?;
        }
        Ok(())
    }
}

/// Returns a different word for every number, with a leading blank.
fn word(number: usize) -> String {
    let mut text = String::from(byte_char(b' '));
    let mut rest = number;
    while rest > 0 {
        text.push(char::from(b'a' + (rest % 26) as u8));
        rest /= 26;
    }
    text
}

/// Returns the printable character that GPT-2's byte-level vocabulary uses for a byte.
fn byte_char(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|earlier| !printable(*earlier)).count() as u32;
    char::from_u32(256 + rank).expect("256 to 323 are characters")
}

#[cfg(test)]
mod tests;
