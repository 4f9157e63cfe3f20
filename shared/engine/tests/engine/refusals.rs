//! Requests that the engine and the model refuse, each with its error.

use std::sync::LazyLock;

use baton_engine::gguf::Gguf;
use baton_engine::model::ModelError;
use baton_engine::sampling::check_logits;
use baton_engine::{
    Capture, Engine, EngineError, EngineOptions, HeadId, KvError, MeanOver, Model, SlidingWindow, StepError,
    StepSeq, Wanted,
};
use baton_kernels_cpu::Format;
use baton_synthetic::{ExtraValue, SyntheticExperts, SyntheticModel};
use proptest::prelude::*;

use crate::{engine, family, open, tiny};

#[track_caller]
fn check_model(change: impl FnOnce(&mut SyntheticModel), want: &str) {
    let mut synthetic = tiny("llama", Format::F32);
    change(&mut synthetic);
    check_bytes(synthetic.to_gguf().unwrap(), want);
}

/// Checks that the chain of causes contains the text.
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
    check_model(extra("rope.scaling.type", ExtraValue::Text("ntk")), "`llama.rope.scaling.type` = ntk");
    check_model(
        extra("attn_logit_softcapping", ExtraValue::F32(50.0)),
        "`llama.attn_logit_softcapping` = 50",
    );
    check_model(extra("final_logit_softcapping", ExtraValue::F32(30.0)), "= 30 is not supported");
    check_model(
        |model| {
            model.extra.push(("rope.scaling.type", ExtraValue::Text("linear")));
            model.extra.push(("rope.scaling.factor", ExtraValue::F32(0.0)));
        },
        "`llama.rope.scaling.factor` is 0, must be finite and > 0",
    );
    check_model(
        extra("rope.scaling.factor", ExtraValue::F32(-2.0)),
        "`llama.rope.scaling.factor` is -2, must be",
    );
    check_model(
        extra("rope.scale_linear", ExtraValue::F32(f32::NAN)),
        "`llama.rope.scale_linear` is NaN, must be",
    );
    check_model(|model| model.rope_divisors = Some(vec![1.0; 7]), "has dimensions [7], must be [8]");
    check_model(|model| model.rope_divisors = Some(vec![0.0; 8]), "`rope_freqs.weight` holds 0 at 0");
    check_model(|model| model.rope_divisors = Some(vec![f32::NAN; 8]), "holds NaN at 0");
}

#[test]
fn a_vocabulary_and_a_table_of_other_lengths_are_refused() {
    let model = tiny("llama", Format::F32);
    let gguf = Gguf::from_bytes(model.to_gguf().unwrap()).unwrap();
    for len in [model.vocab_len as usize - 1, model.vocab_len as usize + 1] {
        let m = gguf.metadata();
        let (mut tokens, mut types) = (
            m.str_array("tokenizer.ggml.tokens").unwrap(),
            m.i32_array("tokenizer.ggml.token_type").unwrap(),
        );
        tokens.resize(len, "one more");
        types.resize(len, 1);
        let mut writer = model.writer().unwrap();
        writer.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.token_type", types);
        let want = format!("tokenizer has {len} tokens, the embedding table has 288 rows: must be as many");
        check_bytes(writer.to_bytes().unwrap(), &want);
    }
}

#[test]
fn families_refuse_what_they_do_not_have() {
    let of = |name, change: fn(&mut SyntheticModel), want| {
        check_model(
            |model| {
                *model = family(name, Format::F32);
                change(model);
            },
            want,
        );
    };
    let experts = Some(SyntheticExperts { count: 4, used: 2, d_ff: 32, shared_d_ff: 32 });
    check_model(
        |model| *model = SyntheticModel { experts, ..tiny("qwen3", Format::F32) },
        "`qwen3.expert_count` = 4 is not supported",
    );
    of("gemma", |model| model.family = "gemma3n", "architecture `gemma3n` is not supported");
    of("gemma", |model| model.tied = false, "tensor `output.weight` is not part of a gemma model");
    let scale = |name, key| {
        let want = format!("`{name}.{key}` = 0.5 is not supported");
        check_model(
            |model| {
                *model = family(name, Format::F32);
                model.extra.push((key, ExtraValue::F32(0.5)));
            },
            &want,
        );
    };
    scale("qwen3", "attention.temperature_scale");
    scale("llama", "residual_scale");
    scale("qwen3", "logit_scale");
    scale("gemma3", "attn_logit_softcapping");
    scale("qwen3moe", "expert_weights_scale");
    of(
        "mistral3",
        |model| model.extra.retain(|(key, _)| *key != "rope.scaling.original_context_length"),
        "mistral3.rope.scaling.original_context_length",
    );
    let number = |name, key, value, want| {
        check_model(
            |model| {
                *model = family(name, Format::F32);
                model.extra.push((key, ExtraValue::F32(value)));
            },
            want,
        );
    };
    number("gemma2", "attn_logit_softcapping", 0.0, "attn_logit_softcapping` is 0, must be finite and > 0");
    number("granite", "logit_scale", 0.0, "`granite.logit_scale` is 0, must be finite and > 0");
    number("granite", "embedding_scale", f32::NAN, "`granite.embedding_scale` is NaN, must be");
    number("mistral3", "attention.temperature_scale", -1.0, "temperature_scale` is -1, must be finite");
    // Files of one family that state another.
    for (name, becomes, want) in
        [("qwen3", b"qwen2", "attn_q.bias"), ("qwen2", b"qwen3", "attn_q_norm.weight")]
    {
        let mut bytes = family(name, Format::F32).to_gguf().unwrap();
        let from = name.as_bytes();
        while let Some(at) = bytes.windows(5).position(|window| window == from) {
            bytes[at..at + 5].copy_from_slice(becomes);
        }
        check_bytes(bytes, want);
    }
}

#[test]
fn experts_out_of_range_are_refused() {
    let with = |name, count, used, key, value, want| {
        check_model(
            |model| {
                let experts = Some(SyntheticExperts { count, used, d_ff: 32, shared_d_ff: 32 });
                *model = SyntheticModel { experts, ..tiny(name, Format::F32) };
                model.extra.push((key, ExtraValue::U32(value)));
            },
            want,
        );
    };
    with(
        "qwen3moe",
        4,
        2,
        "expert_used_count",
        5,
        "`qwen3moe.expert_used_count` is 5, must be at most the 4 experts",
    );
    with("qwen3moe", 4, 2, "expert_used_count", 0, "`qwen3moe.expert_used_count` is 0, must be 1 to");
    with("qwen3moe", 4, 2, "expert_count", 0, "`qwen3moe.expert_count` is 0, must be 1 to");
    with("llama", 4, 2, "expert_count", 0, "tensor");
    with("llama", 4, 2, "expert_count", 5, "has dimensions [64, 4], must be [64, 5]");
    with("qwen2moe", 4, 2, "expert_feed_forward_length", 33, "must be [64, 33, 4]");
    with("qwen2moe", 4, 2, "expert_shared_feed_forward_length", 31, "must be [64, 31]");
    with("qwen3moe", 4, 2, "expert_gating_func", 2, "`qwen3moe.expert_gating_func` = 2 is not supported");
    with("qwen3moe", 4, 2, "leading_dense_block_count", 1, "= 1 is not supported");
    with("qwen3moe", 4, 2, "expert_group_count", 2, "= 2 is not supported");
}

#[test]
fn recurrent_layers_out_of_range_are_refused() {
    let with = |name, key, value, want| {
        check_model(
            |model| {
                *model = family(name, Format::F32);
                model.extra.push((key, ExtraValue::U32(value)));
            },
            want,
        );
    };
    with("lfm2", "shortconv.l_cache", 65, "`lfm2.shortconv.l_cache` is 65, must be 2 to 64");
    with("lfm2", "shortconv.l_cache", 4, "has dimensions [3, 64], must be [4, 64]");
    with("lfm2", "attention.head_count_kv", 3, "`lfm2.attention.head_count_kv` is");
    with("qwen3next", "ssm.conv_kernel", 1, "`qwen3next.ssm.conv_kernel` is 1, must be 2 to 64");
    with("qwen3next", "ssm.state_size", 2000, "`qwen3next.ssm.state_size` is 2000, must be 1 to 1024");
    with("qwen35", "ssm.group_count", 3, "must be a divisor of the 4 value heads");
    with("qwen35", "ssm.group_count", 4, "has dimensions [64, 256], must be [64, 384]");
    with("qwen35", "ssm.inner_size", 5, "`qwen35.ssm.inner_size` is 5, must be 4 value heads of 32");
    with("qwen35", "full_attention_interval", 9, "is 9, must be at most the 3 layers");
    with("qwen35", "full_attention_interval", 0, "is 0, must be 1 to");
    with("qwen35", "full_attention_interval", 3, "attn_q");
    with(
        "qwen35moe",
        "nextn_predict_layers",
        3,
        "`qwen35moe.nextn_predict_layers` is 3, must be below the 3",
    );
    let mut writer = family("qwen35", Format::F32).writer().unwrap();
    writer.set("qwen35.rope.dimension_sections", vec![4u32, 2, 2, 0]);
    check_bytes(
        writer.to_bytes().unwrap(),
        "`qwen35.rope.dimension_sections` = [4, 2, 2, 0] is not supported",
    );
    for counts in [vec![0u32, 3], vec![0, 0, 0], vec![0, 3, 2]] {
        let mut writer = family("lfm2", Format::F32).writer().unwrap();
        writer.set("lfm2.attention.head_count_kv", counts);
        check_bytes(writer.to_bytes().unwrap(), "must be 0 or one other number for each of 3 layers");
    }
}

#[test]
fn rotations_and_windows_out_of_range_are_refused() {
    let extra = |key, value| move |model: &mut SyntheticModel| model.extra.push((key, value));
    let yarn = |key, value| {
        move |model: &mut SyntheticModel| {
            model.extra.push(("rope.scaling.type", ExtraValue::Text("yarn")));
            model.extra.push(("rope.scaling.factor", ExtraValue::F32(4.0)));
            model.extra.push((key, ExtraValue::F32(value)));
        }
    };
    check_model(extra("rope.scaling.type", ExtraValue::Text("yarn")), "llama.rope.scaling.factor");
    check_model(
        yarn("rope.scaling.factor", -1.0),
        "`llama.rope.scaling.factor` is -1, must be finite and > 0",
    );
    check_model(yarn("rope.scaling.yarn_beta_fast", 1.0), "yarn_beta_fast` is 1, must be > 1");
    check_model(yarn("rope.freq_base", 1.0), "`llama.rope.freq_base` is 1, must be > 1");
    check_model(yarn("rope.scaling.yarn_log_multiplier", 0.1), "= 0.1 is not supported");
    check_model(extra("rope.scaling.attn_factor", ExtraValue::F32(0.0)), "attn_factor` is 0, must be finite");
    check_model(extra("attention.scale", ExtraValue::F32(-1.0)), "attention.scale` is -1, must be finite");
    check_model(
        |model| model.rope_factors = Some([vec![1.0; 8], vec![1.0; 7]]),
        "`rope_factors_short.weight` has dimensions [7], must be [8]",
    );
    check_model(
        |model| model.rope_factors = Some([vec![-1.0; 8], vec![1.0; 8]]),
        "`rope_factors_long.weight` holds -1 at 0",
    );
    check_model(
        |model| {
            model.rope_divisors = Some(vec![1.0; 8]);
            model.rope_factors = Some([vec![1.0; 8], vec![1.0; 8]]);
        },
        "tensor `rope_factors_long.weight` is not part of a llama model",
    );
    check_model(
        |model| {
            *model = tiny("gemma3", Format::F32);
            model.extra.push(("attention.sliding_window", ExtraValue::U32(40)));
            model.extra.push(("attention.sliding_window_pattern", ExtraValue::U32(0)));
        },
        "`gemma3.attention.sliding_window_pattern` is 0, must be 1 to",
    );
}

#[test]
fn further_factors_of_yarn_are_refused_unless_they_change_nothing() {
    const EXT: &str = "rope.scaling.yarn_ext_factor";
    const ATTN: &str = "rope.scaling.yarn_attn_factor";
    let yarn = |key, value| {
        let mut model = tiny("llama", Format::F32);
        model.extra.push(("rope.scaling.type", ExtraValue::Text("yarn")));
        model.extra.push(("rope.scaling.factor", ExtraValue::F32(4.0)));
        model.extra.push((key, ExtraValue::F32(value)));
        model
    };
    for (key, value) in [(EXT, 0.0), (EXT, 0.5), (ATTN, 0.0), (ATTN, 1.25)] {
        let want = format!("`llama.{key}` = {value} is not supported");
        check_model(|model| *model = yarn(key, value), &want);
    }
    for (key, value) in [(EXT, -1.0), (EXT, 1.0), (ATTN, 1.0)] {
        open(&yarn(key, value));
    }
}

#[test]
fn weights_that_are_too_large_give_no_numbers() {
    let mut bytes = tiny("llama", Format::F32).to_gguf().unwrap();
    let gguf = Gguf::from_bytes(bytes.clone()).unwrap();
    let row = gguf.tensor("blk.0.ffn_down.weight").unwrap().data[..64].to_vec();
    let at = bytes.windows(row.len()).position(|window| window == row).expect("the file holds the row");
    // Its products are finite; their squares are not.
    bytes[at..at + 4].copy_from_slice(&7e36f32.to_le_bytes());
    let model = Model::from_gguf(Gguf::from_bytes(bytes).unwrap()).unwrap();
    let mut engine = engine(&model, 1, EngineOptions::default());
    let seq = engine.create();
    let step = StepSeq { seq, ids: &[1, 2, 3], logits: Wanted::Last, capture: None };
    let logits = engine.step(&[step], &mut ()).unwrap().remove(0).logits;
    assert_eq!(logits.len(), model.config().vocab_len);
    assert!(check_logits(&logits).is_err());
}

/// Returns the bytes of a valid model with one run of bytes replaced by another of the same length.
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
        let capture = Capture { window, heads: vec![HeadId { layer, head }], over: MeanOver::Queries };
        let err = refused(&[StepSeq { capture: Some(&capture), ..step(seq, &[1, 2]) }]);
        assert!(matches!(err, StepError::Capture(_)), "{err}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]
    /// Metadata and directory are in the first 8 KiB of the file.
    #[test]
    fn any_change_of_the_header_gives_a_model_that_runs_or_an_error(
        changes in prop::collection::vec((0..8192usize, any::<u8>()), 1..4),
        which in 0..13usize,
    ) {
        static FILES: LazyLock<[Vec<u8>; 13]> = LazyLock::new(|| {
            [
                "llama",
                "qwen2",
                "qwen2moe",
                "gemma2",
                "gemma3",
                "gemma4-shared",
                "gemma4-experts",
                "phi3",
                "granitemoe",
                "mistral3",
                "gpt-oss",
                "lfm2",
                "qwen35",
            ]
            .map(|name| family(name, Format::F32).to_gguf().unwrap())
        });
        let mut bytes = FILES[which].clone();
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
