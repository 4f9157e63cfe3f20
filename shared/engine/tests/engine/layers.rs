//! Models whose layers differ: what their files must say, and what the engine does not do with them.

use baton_engine::engine::EngineError;
use baton_engine::gguf::{Gguf, MetaValue};
use baton_engine::model::ModelError;
use baton_engine::{
    Adapter, AdapterError, Engine, EngineOptions, EvictError, GpuLayers, Kept, Model, StepError,
};
use baton_engine::{StepSeq, Wanted};
use baton_kernels_cpu::Format;
use baton_synthetic::{SyntheticAdapter, SyntheticModel};

use crate::{all_logits, engine, family, open, prompt};

/// Checks that the file is refused with this value of a key, and that the chain of causes contains the text.
#[track_caller]
fn refused(name: &'static str, key: &str, value: impl Into<MetaValue>, want: &str) {
    let mut writer = family(name, Format::F32).writer().unwrap();
    writer.set(key, value);
    let gguf = Gguf::from_bytes(writer.to_bytes().unwrap()).unwrap();
    let err = Model::from_gguf(gguf).expect_err(want);
    let mut chain = err.to_string();
    let mut source = std::error::Error::source(&err);
    while let Some(cause) = source {
        chain.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    assert!(matches!(err, ModelError::Config(_) | ModelError::Tensors(_)), "{chain}");
    assert!(chain.contains(want), "{chain} lacks {want}");
}

#[test]
fn what_layers_have_must_fit_together() {
    let one = |key: &str, value: MetaValue, want: &str| refused("gemma4", key, value, want);
    let pattern = "gemma4.attention.sliding_window_pattern";
    one(pattern, vec![true, false].into(), "pattern` is 2, must be 3 entries");
    one(pattern, 3u32.into(), "array of bools");
    one(pattern, vec![true, false, false].into(), "one for all layers that are not");
    let kv_heads = "gemma4.attention.head_count_kv";
    one(kv_heads, vec![6u32, 3].into(), "must be 3 entries");
    one(kv_heads, vec![6u32, 3, 3].into(), "is 6 and 3, must be one for all local layers");
    one(kv_heads, vec![4u32, 4, 3].into(), "is 4, must be a divisor of the 6 query heads");
    one("gemma4.attention.key_length_swa", 47u32.into(), "is 47, must be even");
    one("gemma4.attention.value_length_swa", 32u32.into(), "the width of a key");
    one("gemma4.rope.dimension_count_swa", 50u32.into(), "even and at most 48");
    one("gemma4.attention.scale", 0.5f32.into(), "attention.scale` = 0.5 is not supported");
    one("gemma4.attention.sliding_window", 0u32.into(), "sliding_window` is 0, must be 1 to");
    one("tokenizer.ggml.suppress_tokens", vec![288i32].into(), "is 288, must be below the 288 tokens");
    one("gemma4.embedding_length_per_layer_input", 8u32.into(), "per_layer_token_embd.weight");
    refused("gemma4-experts", "gemma4.expert_count", 4u32, "must be [64, 4]");
}

#[test]
fn what_layers_share_must_be_there() {
    let one = |key: &str, value: MetaValue, want: &str| refused("gemma4-shared", key, value, want);
    for count in [2u32, 4, 6, 7, 9] {
        one("gemma4.attention.shared_kv_layers", count.into(), "attention.shared_kv_layers` is");
    }
    one("gemma4.feed_forward_length", vec![96u32; 6].into(), "6, must be 7 entries");
    one("gemma4.feed_forward_length", 96u32.into(), "must be [64, 96]");
    let input = "gemma4.embedding_length_per_layer_input";
    one(input, 0u32.into(), "is not part of a gemma4 model");
    one(input, (1u32 << 27).into(), "embedding_length_per_layer_input` is");
}

#[test]
fn tied_layers_are_computed_by_one_engine_in_whole_steps() {
    let model = open(&family("gemma4-shared", Format::F32));
    for layers in [vec![], vec![0, 1], vec![1, 2, 3, 4, 5, 6]] {
        let options = EngineOptions { layers: Some(layers), ..EngineOptions::default() };
        let err = Engine::new(model.clone(), options).unwrap_err();
        assert!(matches!(err, EngineError::TiedLayers { family: "gemma4" }), "{err}");
    }
    let mut engine = engine(&model, 1, EngineOptions::default());
    let seq = engine.create();
    let before = all_logits(&mut engine, seq, &[1, 2, 3]);
    let plain = StepSeq { seq, ids: &[1], logits: Wanted::None, capture: None };
    let err = engine.open_step(&[plain]).unwrap_err();
    assert!(matches!(err, StepError::TiedInPieces { family: "gemma4" }), "{err}");
    let heads = engine.kv_widths().unwrap().iter().map(|width| width.heads).sum();
    let err = engine.evict(seq, &Kept::new(&vec![vec![0]; heads]).unwrap()).unwrap_err();
    assert!(matches!(err, EvictError::SlidingWindow { head: 0, first: 0, last: 0 }), "{err}");
    engine.reset(None, GpuLayers::Fit).unwrap();
    assert_eq!(all_logits(&mut engine, seq, &[1, 2, 3]), before, "after a reset");
    let adapter = SyntheticAdapter::of_seed(1).to_gguf(model.config()).unwrap();
    let err = Adapter::from_gguf(Gguf::from_bytes(adapter).unwrap(), &model).unwrap_err();
    assert!(matches!(err, AdapterError::Layers { family: "gemma4" }), "{err}");
}

#[test]
fn suppressed_tokens_are_never_the_best() {
    let synthetic = family("gemma4", Format::F32);
    let run = |suppressed: Vec<i32>| {
        let mut writer = synthetic.writer().unwrap();
        writer.set("tokenizer.ggml.suppress_tokens", suppressed);
        let model = Model::from_gguf(Gguf::from_bytes(writer.to_bytes().unwrap()).unwrap()).unwrap();
        let mut engine = engine(&model, 1, EngineOptions::default());
        let seq = engine.create();
        all_logits(&mut engine, seq, &prompt(1, 5))
    };
    let (all, some) = (run(Vec::new()), run(vec![7, 287]));
    for (at, (all, some)) in all.iter().zip(&some).enumerate() {
        let suppressed = [7, 287].contains(&(at % 288));
        assert_eq!(*some, if suppressed { -1e30 } else { *all }, "logit {at}");
    }
}

#[test]
fn the_bytes_of_a_token_are_those_of_every_layer_with_keys() {
    let format = baton_engine::engine::KvFormat::F16;
    let bytes = |name| open(&family(name, Format::F32)).config().kv_token_bytes(format);
    let of = |heads: usize, width: usize| heads * format.token_bytes(width);
    assert_eq!(bytes("llama"), 3 * of(3, 16));
    assert_eq!(bytes("gemma4"), 2 * of(6, 48) + of(3, 16));
    assert_eq!(bytes("gemma4-shared"), 2 * of(2, 32) + 2 * of(3, 16));
}

/// A layer may have the tensors of keys that it does not use.
#[test]
fn unused_keys_of_a_layer_are_ignored() {
    let synthetic: SyntheticModel = family("gemma4-shared", Format::F32);
    let logits = |bytes| {
        let model = Model::from_gguf(Gguf::from_bytes(bytes).unwrap()).unwrap();
        let mut engine = engine(&model, 1, EngineOptions::default());
        let seq = engine.create();
        all_logits(&mut engine, seq, &prompt(2, 40))
    };
    let mut writer = synthetic.writer().unwrap();
    for (name, dims) in [("attn_k", vec![64, 48]), ("attn_v", vec![64, 48]), ("attn_k_norm", vec![16])] {
        let bytes = vec![0u8; dims.iter().product::<u64>() as usize * 4];
        writer.tensor(&format!("blk.5.{name}.weight"), &dims, Format::F32, bytes).unwrap();
    }
    assert_eq!(logits(writer.to_bytes().unwrap()), logits(synthetic.to_gguf().unwrap()));
}
