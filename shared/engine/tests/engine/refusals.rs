//! What the engine and the model refuse, each with its error.

use std::sync::LazyLock;

use baton_engine::gguf::Gguf;
use baton_engine::model::ModelError;
use baton_engine::synthetic::{ExtraValue, SyntheticModel};
use baton_engine::{
    Capture, Engine, EngineError, EngineOptions, HeadId, KvError, Model, SlidingWindow, StepError, StepSeq,
    Wanted,
};
use baton_kernels_cpu::Format;
use proptest::prelude::*;

use crate::{engine, open, tiny};

#[track_caller]
fn check_model(change: impl FnOnce(&mut SyntheticModel), want: &str) {
    let mut synthetic = tiny("llama", Format::F32);
    change(&mut synthetic);
    check_bytes(synthetic.to_gguf().unwrap(), want);
}

/// The whole chain of causes holds the text.
#[track_caller]
fn check_bytes(bytes: Vec<u8>, want: &str) {
    let opened = Gguf::from_bytes(bytes).map_err(ModelError::from).and_then(Model::from_gguf);
    let err = opened.expect_err(want);
    let mut chain = err.to_string();
    let mut source = std::error::Error::source(&err);
    while let Some(err) = source {
        chain = format!("{chain}: {err}");
        source = err.source();
    }
    assert!(chain.contains(want), "`{chain}` does not say `{want}`");
}

#[test]
fn models_that_cannot_be_run_are_refused() {
    let extra = |key, value| move |model: &mut SyntheticModel| model.extra.push((key, value));
    check_model(|model| model.family = "mamba", "architecture `mamba` is not supported");
    check_model(|model| model.n_kv_heads = 4, "must be a divisor of the 6 query heads");
    check_model(|model| model.d_head = 15, "must be even");
    check_model(|model| model.n_layers = 0, "`llama.block_count` is 0, must be 1 to");
    check_model(extra("rope.scaling.type", ExtraValue::Text("yarn")), "`llama.rope.scaling.type` = yarn");
    check_model(extra("expert_count", ExtraValue::U32(8)), "`llama.expert_count` = 8 is not supported");
    check_model(
        |model| {
            model.extra.push(("rope.scaling.type", ExtraValue::Text("linear")));
            model.extra.push(("rope.scaling.factor", ExtraValue::F32(0.0)));
        },
        "`llama.rope.scaling.factor` is 0, must be finite and > 0",
    );
    check_model(|model| model.rope_divisors = Some(vec![1.0; 7]), "has dimensions [7], must be [8]");
    check_model(|model| model.rope_divisors = Some(vec![0.0; 8]), "`rope_freqs.weight` holds 0 at 0");
    check_model(|model| model.rope_divisors = Some(vec![f32::NAN; 8]), "holds NaN at 0");
}

/// The bytes of a good model with one stretch replaced by another of the same length.
fn patched(from: &[u8], to: &[u8]) -> Vec<u8> {
    patched_of("llama", from, to)
}

fn patched_of(family: &'static str, from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut bytes = tiny(family, Format::F32).to_gguf().unwrap();
    let at =
        bytes.windows(from.len()).position(|window| window == from).expect("the model holds the stretch");
    bytes[at..at + to.len()].copy_from_slice(to);
    bytes
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    check_bytes(patched(b"blk.2.ffn_up.weight", b"blk.2.ffn_xx.weight"), "`blk.2.ffn_up.weight`");
    check_bytes(patched(b"blk.2.ffn_up.weight", b"blk.1.ffn_up.weighs"), "`blk.2.ffn_up.weight`");
    check_bytes(patched(b"llama.block_count\x04\0\0\0\x03", b"llama.block_count\x04\0\0\0\x02"), "blk.2.");
    check_bytes(patched(b"llama.block_count\x04\0\0\0\x03", b"llama.block_count\x04\0\0\0\x04"), "blk.3.");
    check_bytes(patched_of("qwen2", b"blk.0.attn_k.bias", b"blk.0.attn_k.sias"), "`blk.0.attn_k.bias`");
    let wide = b"llama.feed_forward_length\x04\0\0\0\x60";
    check_bytes(patched(wide, b"llama.feed_forward_length\x04\0\0\0\x61"), "must be [64, 97]");
}

#[test]
fn options_out_of_range_are_refused() {
    let model = open(&tiny("llama", Format::F32));
    let make = |options| Engine::new(model.clone(), options).unwrap_err();
    let none = make(EngineOptions { kv_tokens: 0, ..EngineOptions::default() });
    assert!(matches!(none, EngineError::KvTokens { tokens: 0, .. }), "{none}");
    let huge = make(EngineOptions { kv_tokens: usize::MAX, ..EngineOptions::default() });
    assert!(matches!(huge, EngineError::KvTokens { .. }), "{huge}");
    let window = Some(SlidingWindow { tokens: 0, sinks: 4 });
    let blind = make(EngineOptions { window, ..EngineOptions::default() });
    assert!(matches!(blind, EngineError::EmptyWindow), "{blind}");
}

#[test]
fn steps_that_make_no_sense_are_refused_and_change_nothing() {
    let model = open(&tiny("llama", Format::F32));
    let mut engine = engine(&model, 1, EngineOptions::default());
    let (seq, gone) = (engine.create(), engine.create());
    engine.release(gone);
    let step = |seq, ids| StepSeq { seq, ids, logits: Wanted::Last, capture: None };
    let mut refused = |batch: &[StepSeq<'_>]| {
        let err = engine.step(batch, &mut ()).unwrap_err();
        assert_eq!(engine.len(seq).unwrap(), 0);
        err
    };
    let err = refused(&[step(seq, &[1]), step(gone, &[1])]);
    assert!(matches!(err, StepError::Kv(KvError::UnknownSequence(id)) if id == gone), "{err}");
    let err = refused(&[step(seq, &[1]), step(seq, &[2])]);
    assert!(matches!(err, StepError::DuplicateSequence(id) if id == seq), "{err}");
    assert!(matches!(refused(&[step(seq, &[])]), StepError::NoTokens(_)));
    assert!(matches!(refused(&[step(seq, &[288])]), StepError::NoSuchToken { id: 288, vocab_len: 288 }));
    let err = refused(&[step(seq, &[1; 401])]);
    assert!(matches!(err, StepError::ContextFull { tokens: 401, context_len: 400 }), "{err}");
    for (window, layer, head) in [(0..0, 0, 0), (0..3, 0, 0), (0..1, 3, 0), (0..1, 0, 6)] {
        let capture = Capture { window, heads: vec![HeadId { layer, head }] };
        let err = refused(&[StepSeq { capture: Some(&capture), ..step(seq, &[1, 2]) }]);
        assert!(matches!(err, StepError::Capture(_)), "{err}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]
    /// Metadata and directory lie in the first 8 KiB of the file.
    #[test]
    fn any_change_of_the_header_gives_a_model_that_runs_or_an_error(
        changes in prop::collection::vec((0..8192usize, any::<u8>()), 1..4),
        qwen in any::<bool>(),
    ) {
        static FILES: LazyLock<[Vec<u8>; 2]> =
            LazyLock::new(|| ["llama", "qwen2"].map(|family| tiny(family, Format::F32).to_gguf().unwrap()));
        let mut bytes = FILES[usize::from(qwen)].clone();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        if let Ok(model) = Gguf::from_bytes(bytes).map_err(ModelError::from).and_then(Model::from_gguf) {
            let mut engine = engine(&model, 1, EngineOptions::default());
            let seq = engine.create();
            let step = StepSeq { seq, ids: &[1, 2, 3], logits: Wanted::Last, capture: None };
            if let Ok(outputs) = engine.step(&[step], &mut ()) {
                prop_assert_eq!(outputs[0].logits.len(), model.config().vocab_len);
            }
        }
    }
}
