//! A model that plays scripts: its template writes a cue as the last token of the prompt, and the model
//! answers with the pieces that belong to the cue.
//!
//! For tests of what stands around a model: the shipped programs run it like any other. Every weight but
//! those that lead from one piece to the next is zero, so the answer depends on the last token alone.

use std::borrow::Cow;
use std::collections::BTreeSet;

use baton_engine::gguf::GgufWriter;
use baton_kernels_cpu::Format;

use crate::{CONTROL, SyntheticError, SyntheticModel, byte_char};

/// The logit of the next piece; all others are 0.
const LOGIT: f32 = 40.0;
const NORMAL: i32 = 1;
const CONTROL_TYPE: i32 = 3;
/// Tokens of the bytes.
const BYTES: usize = 256;
/// The place of `<|end|>` among the control tokens.
const END: usize = 1;
/// Widths are multiples of it.
const WIDTH: usize = 64;

/// What the model writes after a cue. The last piece is followed by the end of the answer, or by the first
/// piece again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// The cue: a control token, such as `<|cue-hi|>`.
    pub cue: String,
    /// The tokens of the answer. No two scripts have a piece in common: each leads to one other.
    pub pieces: Vec<String>,
    /// Whether the pieces begin again after the last one, without an end.
    pub is_endless: bool,
}

impl Script {
    /// Makes a script that ends.
    pub fn new(cue: &str, pieces: &[&str]) -> Script {
        let pieces = pieces.iter().map(|&piece| piece.to_owned()).collect();
        Script { cue: cue.to_owned(), pieces, is_endless: false }
    }
}

/// Returns a model of these scripts as the bytes of a GGUF file. `template` writes the cues; its control
/// tokens are those of [`SyntheticModel`] and the cues.
///
/// # Errors
/// As [`SyntheticModel::to_gguf`].
///
/// # Panics
/// If two pieces are equal, or one of them is a single byte.
pub fn scripted_gguf(
    scripts: &[Script],
    template: &str,
    context_len: u32,
) -> Result<Vec<u8>, SyntheticError> {
    let mut tokens: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
    tokens.extend(CONTROL.map(str::to_owned));
    tokens.extend(scripts.iter().map(|script| script.cue.clone()));
    let mut types = vec![NORMAL; BYTES];
    types.resize(tokens.len(), CONTROL_TYPE);
    let mut next: Vec<(usize, usize)> = Vec::new();
    for (at, script) in scripts.iter().enumerate() {
        let mut from = BYTES + CONTROL.len() + at;
        let first = tokens.len();
        for piece in &script.pieces {
            next.push((from, tokens.len()));
            from = tokens.len();
            tokens.push(piece.bytes().map(byte_char).collect());
        }
        next.push((from, if script.is_endless { first } else { BYTES + END }));
    }
    types.resize(tokens.len(), NORMAL);
    assert_eq!(tokens.iter().collect::<BTreeSet<_>>().len(), tokens.len(), "a piece occurs twice");
    let width = tokens.len().next_multiple_of(WIDTH);
    let model = SyntheticModel {
        n_layers: 1,
        n_heads: 1,
        n_kv_heads: 1,
        d_model: width as u32,
        d_head: 32,
        d_ff: WIDTH as u32,
        vocab_len: tokens.len() as u32,
        context_len,
        tied: false,
        ..SyntheticModel::small("llama", Format::F32, 0)
    };
    let mut writer = GgufWriter::new();
    model.shape(&mut writer);
    writer.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", "gpt-2");
    writer.set("tokenizer.ggml.merges", Vec::<String>::new());
    writer.set("tokenizer.ggml.bos_token_id", BYTES as u32);
    writer.set("tokenizer.ggml.eos_token_id", (BYTES + END) as u32);
    writer.set("tokenizer.ggml.add_bos_token", false);
    writer.set("tokenizer.chat_template", template);
    let vocab_len = tokens.len();
    writer.set("tokenizer.ggml.tokens", tokens);
    writer.set("tokenizer.ggml.token_type", types);
    tensors(&mut writer, width, vocab_len, &next)?;
    Ok(writer.to_bytes()?)
}

/// Adds the tensors. A token's embedding has a value in its own place alone, and the row of the token that
/// follows has one in the same place.
fn tensors(
    writer: &mut GgufWriter<'static>,
    width: usize,
    vocab_len: usize,
    next: &[(usize, usize)],
) -> Result<(), SyntheticError> {
    let mut put = |name: &str, dims: &[usize], values: Vec<f32>| {
        let dims: Vec<u64> = dims.iter().map(|&dim| dim as u64).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        writer.tensor(name, &dims, Format::F32, Cow::Owned(bytes)).map(drop)
    };
    let mut embedded = vec![0.0; vocab_len * width];
    (0..vocab_len).for_each(|id| embedded[id * width + id] = 1.0);
    let mut projected = vec![0.0; vocab_len * width];
    // The last norm scales the only value of a position to the root of the width.
    next.iter().for_each(|&(from, to)| projected[to * width + from] = LOGIT / (width as f32).sqrt());
    put("token_embd.weight", &[width, vocab_len], embedded)?;
    put("output_norm.weight", &[width], vec![1.0; width])?;
    put("output.weight", &[width, vocab_len], projected)?;
    for (name, rows, cols) in [
        ("attn_q", 32, width),
        ("attn_k", 32, width),
        ("attn_v", 32, width),
        ("attn_output", width, 32),
        ("ffn_gate", WIDTH, width),
        ("ffn_up", WIDTH, width),
        ("ffn_down", width, WIDTH),
    ] {
        put(&format!("blk.0.{name}.weight"), &[cols, rows], vec![0.0; rows * cols])?;
    }
    for name in ["attn_norm", "ffn_norm"] {
        put(&format!("blk.0.{name}.weight"), &[width], vec![1.0; width])?;
    }
    Ok(())
}
