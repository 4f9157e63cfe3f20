//! A SentencePiece vocabulary that puts a space before the text, and takeovers within a word of such a text.

use std::ops::Range;

use baton_engine::gguf::GgufWriter;
use baton_kernels_cpu::Format;

use crate::weights::{Sink, Weights};
use crate::{SyntheticError, SyntheticModel};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;

/// The vocabulary's pieces; earlier ones are merged first.
const PIECES: &str = "▁ ▁T ▁Th ▁The ▁s ▁sh ▁shi ▁ship ▁i ▁is ▁n ▁né ▁island ▁née x y yz";

/// Writes the vocabulary: three special tokens, the bytes and the pieces. Returns the number of its tokens.
pub fn scored_vocabulary(writer: &mut GgufWriter<'_>) -> u32 {
    let mut tokens: Vec<(String, f32, i32)> =
        vec![("<unk>".into(), 0.0, UNKNOWN), ("<s>".into(), 0.0, CONTROL), ("</s>".into(), 0.0, CONTROL)];
    tokens.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), 0.0, BYTE)));
    tokens.extend(PIECES.split(' ').zip(1..).map(|(piece, rank)| (piece.to_owned(), -(rank as f32), NORMAL)));
    writer.set("tokenizer.ggml.model", "llama");
    writer.set("tokenizer.ggml.bos_token_id", 1u32).set("tokenizer.ggml.eos_token_id", 2u32);
    writer.set("tokenizer.ggml.tokens", tokens.iter().map(|token| token.0.clone()).collect::<Vec<_>>());
    writer.set("tokenizer.ggml.scores", tokens.iter().map(|token| token.1).collect::<Vec<_>>());
    writer.set("tokenizer.ggml.token_type", tokens.iter().map(|token| token.2).collect::<Vec<_>>());
    tokens.len() as u32
}

/// Returns a small model with that vocabulary as the bytes of a GGUF file.
///
/// # Errors
/// As [`SyntheticModel::to_gguf`].
pub fn scored_gguf(seed: u64) -> Result<Vec<u8>, SyntheticError> {
    let mut writer = GgufWriter::new();
    let vocab_len = scored_vocabulary(&mut writer);
    let model = SyntheticModel { vocab_len, ..SyntheticModel::small("llama", Format::F32, seed) };
    model.shape(&mut writer);
    model.tensors(&mut Weights::new(&model, Sink::Lend(&mut writer)))?;
    Ok(writer.to_bytes()?)
}

/// Texts, and the bytes of each token that an answer with the [`scored_vocabulary`] has for them. The space
/// that a first token begins with is not in the text.
pub const WORD_SPANS: [(&str, &[Range<usize>]); 3] = [
    ("The ship is", &[0..3, 3..8, 8..11]),
    ("The ship né", &[0..3, 3..8, 8..12]),
    ("xy", &[0..0, 0..1, 1..2]),
];

/// A model with the [`scored_vocabulary`] goes on with a text of other tokens: no letter may be lost or
/// doubled.
#[derive(Debug, Clone, Copy)]
pub struct WordTakeover {
    /// The text that it takes over.
    pub accepted: &'static str,
    /// How many bytes of it are kept; `None` for all.
    pub kept_bytes: Option<usize>,
    /// The model writes the second piece of each pair after the first, and an end after the last pair. `▁`
    /// stands for a space.
    pub writes: &'static [(&'static str, &'static str)],
    /// The whole text that must be shown.
    pub text: &'static str,
}

const fn takeover(
    accepted: &'static str,
    kept_bytes: Option<usize>,
    writes: &'static [(&'static str, &'static str)],
    text: &'static str,
) -> WordTakeover {
    WordTakeover { accepted, kept_bytes, writes, text }
}

/// Takeovers whose text ends within a word that the model would write on.
pub const WORD_TAKEOVERS: [WordTakeover; 6] = [
    takeover("The ship is", None, &[("▁ship", "▁island")], "The ship island"),
    takeover("The ship is", None, &[("▁ship", "▁is"), ("▁is", "yz")], "The ship isyz"),
    takeover("The ship né", None, &[("▁ship", "▁née")], "The ship née"),
    takeover("xy", None, &[("▁", "x"), ("x", "yz")], "xyz"),
    takeover("The ship is", Some(8), &[("▁ship", "▁née")], "The ship née"),
    takeover("The ship is", Some(3), &[("▁The", "▁island")], "The island"),
];
