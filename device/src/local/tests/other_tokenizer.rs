//! Tests that a SentencePiece device takes over from a cloud with another tokenizer: no letter is lost or
//! doubled.

use super::watched::watched;
use super::*;
use baton_engine::gguf::GgufWriter;
use std::collections::HashMap;

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;

/// The vocabulary's pieces; earlier ones are merged first.
const PIECES: &str = "▁ ▁T ▁Th ▁The ▁s ▁sh ▁shi ▁ship ▁i ▁is ▁n ▁né ▁island ▁née x y yz";

/// Makes a model of random weights with a SentencePiece tokenizer that puts a space before the text.
fn scored_model() -> Arc<Model> {
    let mut tokens: Vec<(String, f32, i32)> =
        vec![("<unk>".into(), 0.0, UNKNOWN), ("<s>".into(), 0.0, CONTROL), ("</s>".into(), 0.0, CONTROL)];
    tokens.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), 0.0, BYTE)));
    tokens.extend(PIECES.split(' ').zip(1..).map(|(piece, rank)| (piece.to_owned(), -(rank as f32), NORMAL)));
    let tiny =
        SyntheticModel { vocab_len: tokens.len() as u32, ..SyntheticModel::small("llama", Format::F32, 1) };
    let weights = Gguf::from_bytes(tiny.to_gguf().unwrap()).unwrap();
    let mut file = GgufWriter::new();
    file.set("general.architecture", "llama").set("general.name", "a scored tokenizer");
    for (key, value) in [
        ("block_count", tiny.n_layers),
        ("attention.head_count", tiny.n_heads),
        ("attention.head_count_kv", tiny.n_kv_heads),
        ("embedding_length", tiny.d_model),
        ("attention.key_length", tiny.d_head),
        ("attention.value_length", tiny.d_head),
        ("rope.dimension_count", tiny.d_head),
        ("feed_forward_length", tiny.d_ff),
        ("vocab_size", tiny.vocab_len),
        ("context_length", tiny.context_len),
    ] {
        file.set(&format!("llama.{key}"), value);
    }
    file.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32).set("llama.rope.freq_base", 10_000f32);
    file.set("tokenizer.ggml.model", "llama");
    file.set("tokenizer.ggml.bos_token_id", 1u32).set("tokenizer.ggml.eos_token_id", 2u32);
    file.set("tokenizer.ggml.tokens", tokens.iter().map(|token| token.0.clone()).collect::<Vec<_>>());
    file.set("tokenizer.ggml.scores", tokens.iter().map(|token| token.1).collect::<Vec<_>>());
    file.set("tokenizer.ggml.token_type", tokens.iter().map(|token| token.2).collect::<Vec<_>>());
    for tensor in weights.tensors() {
        let data = weights.bytes_at(tensor.place());
        file.tensor(tensor.name(), tensor.dims(), Format::F32, data).unwrap();
    }
    Model::from_gguf(Gguf::from_bytes(file.to_bytes().unwrap()).unwrap()).unwrap()
}

/// Returns the token of this text; `▁` stands for a space.
fn id(model: &Model, piece: &str) -> TokenId {
    let text = piece.replace('▁', " ");
    let found = |id: &TokenId| model.tokenizer().token_bytes(*id) == text.as_bytes();
    (259..model.tokenizer().vocab_len() as TokenId).find(found).unwrap()
}

/// Returns the accepted text and the text shown after it, if the model writes the second piece of each pair
/// in `writes` after the first.
fn shown(model: &Arc<Model>, accepted: &str, keep: Keep, writes: &[(&str, &str)]) -> String {
    let mut next: HashMap<TokenId, TokenId> =
        writes.iter().map(|&(last, next)| (id(model, last), id(model, next))).collect();
    let last = writes.last().expect("it writes something").1;
    next.insert(id(model, last), model.tokenizer().eos().unwrap());
    let vocab_len = model.tokenizer().vocab_len();
    let engine = watched(model.clone(), move |step, output| {
        let rows = output.logits.len() / vocab_len;
        let ids = &step.ids[step.ids.len() - rows..];
        for (id, row) in ids.iter().zip(output.logits.chunks_exact_mut(vocab_len)) {
            if let Some(&next) = next.get(id) {
                row[next as usize] = 1e6;
            }
        }
    });
    let mut engine = Driven::new(engine, LocalOptions::new(1024));
    engine.command(EngineCommand::Open { prompt: P, spec: spec("Item 3.", 8, false), scope: Scope::Whole });
    run(&mut engine);
    let accepted = accepted.to_owned();
    engine.command(EngineCommand::Verify { prompt: P, accepted: Accepted::Text(accepted.clone()) });
    run(&mut engine);
    let mut reports = engine.command(EngineCommand::Decode { prompt: P, keep, index: 3 });
    reports.extend(run(&mut engine));
    let kept = if let Keep::Bytes(bytes) = keep { &accepted[..bytes] } else { &accepted[..] };
    let mut text = kept.to_owned();
    for report in reports {
        match report {
            EngineReport::Token { text: Some(more), .. } | EngineReport::Ended { text: more, .. } => {
                text.push_str(&more);
            }
            other => panic!("{other:?}"),
        }
    }
    text
}

#[test]
fn a_takeover_within_a_word_neither_doubles_nor_loses_a_letter() {
    let model = scored_model();
    let spans = |text: &str| model.tokenizer().encode_answer(text).1;
    assert_eq!(
        spans("The ship is"),
        [0..3, 3..8, 8..11],
        "the first token has a space that the text has not"
    );
    assert_eq!(spans("The ship né"), [0..3, 3..8, 8..12]);
    assert_eq!(spans("xy"), [0..0, 0..1, 1..2]);
    for (accepted, keep, writes, want) in [
        ("The ship is", Keep::All, &[("▁ship", "▁island")][..], "The ship island"),
        ("The ship is", Keep::All, &[("▁ship", "▁is"), ("▁is", "yz")], "The ship isyz"),
        ("The ship né", Keep::All, &[("▁ship", "▁née")], "The ship née"),
        ("xy", Keep::All, &[("▁", "x"), ("x", "yz")], "xyz"),
        ("The ship is", Keep::Bytes(8), &[("▁ship", "▁née")], "The ship née"),
        ("The ship is", Keep::Bytes(3), &[("▁The", "▁island")], "The island"),
    ] {
        assert_eq!(shown(&model, accepted, keep, writes), want, "{accepted} {keep:?}");
    }
}
