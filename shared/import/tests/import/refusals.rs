//! Folders that are wrong or unsupported are refused with an error that names the fault, and leave nothing
//! behind.

use baton_import::{Quantization, supported};
use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};

use crate::folder::Folder;

/// Checks the error for a folder that `change` has modified.
#[track_caller]
fn check(class: &str, change: impl FnOnce(&mut Folder), want: &str) {
    let mut folder = Folder::new(class);
    change(&mut folder);
    assert_eq!(folder.refused(), want);
}

/// Checks the error for a value in `config.json`.
#[track_caller]
fn config(class: &str, key: &str, value: Value, want: &str) {
    let text = format!("`{key}` in `DIR/config.json` is {value}, want {want}");
    check(class, |folder| folder.config[key] = value, &text);
}

const LLAMA: &str = "LlamaForCausalLM";

#[test]
fn classes() {
    let mut folder = Folder::new(LLAMA);
    folder.config["architectures"] = json!(["BertModel"]);
    let want = format!("architecture `BertModel` is not supported; these are: {}", supported().join(", "));
    assert_eq!(folder.refused(), want);
    config(LLAMA, "architectures", json!([]), "a list of class names");
}

#[test]
fn settings() {
    config(LLAMA, "hidden_act", json!("gelu"), "silu");
    config(LLAMA, "num_hidden_layers", json!(0), "a whole number of 1 to 2147483647");
    config(LLAMA, "num_attention_heads", json!("4"), "a whole number of 1 to 2147483647");
    config(LLAMA, "num_key_value_heads", json!(3), "a divisor of the 4 attention heads");
    config(LLAMA, "head_dim", json!(15), "even");
    config(LLAMA, "quantization_config", json!({"bits": 4}), "none: weights in F32, F16 or BF16");
    config(LLAMA, "final_logit_softcapping", json!(30.0), "0");
    check(
        LLAMA,
        |f| drop(f.config.as_object_mut().unwrap().remove("rms_norm_eps")),
        "`DIR/config.json` lacks `rms_norm_eps`",
    );
    let scaling = |value: Value| move |folder: &mut Folder| folder.config["rope_scaling"] = value;
    check(
        LLAMA,
        scaling(json!({"rope_type": "dynamic", "factor": 2.0})),
        "`rope_type` in `DIR/config.json` is \"dynamic\", want a scaling that the engine has for llama",
    );
    check(
        "Qwen2ForCausalLM",
        scaling(json!({"type": "yarn", "factor": 2.0, "attention_factor": 1.5})),
        "`attention_factor` in `DIR/config.json` is 1.5, want absent: the factor that follows from the stretching",
    );
    check(
        "Qwen2ForCausalLM",
        |folder| {
            folder.config["use_sliding_window"] = true.into();
            folder.config["sliding_window"] = 64.into();
            folder.config["max_window_layers"] = 1.into();
        },
        "`max_window_layers` in `DIR/config.json` is 1, want 0: a window in every layer",
    );
}

#[test]
fn factors_of_long_contexts() {
    let absent = "absent: the factor that follows from the stretching";
    for key in ["attention_factor", "short_mscale", "long_mscale"] {
        check(
            "Phi3ForCausalLM",
            |folder| {
                folder.config["original_max_position_embeddings"] = 128.into();
                folder.config["rope_scaling"] =
                    json!({"type": "longrope", "long_factor": vec![2.0; 8], "short_factor": vec![1.0; 8]});
                folder.config["rope_scaling"][key] = 1.5.into();
            },
            &format!("`{key}` in `DIR/config.json` is 1.5, want {absent}"),
        );
    }
}

#[test]
fn orders_of_layers() {
    let config = |key, value, want| config("Gemma3ForCausalLM", key, value, want);
    config("sliding_window_pattern", json!(2), "6");
    config("_sliding_window_pattern", json!(2), "6");
    let want = "full_attention for each 6th layer, sliding_attention for the others";
    for kinds in [
        json!(["sliding_attention", "full_attention"]),
        json!(["full_attention", "sliding_attention"]),
        json!(["sliding_attention"]),
        json!([0, 0]),
        json!("sliding_attention"),
    ] {
        config("layer_types", kinds, want);
    }
}

#[test]
fn experts_whose_weights_are_not_normalized() {
    let experts = |folder: &mut Folder| {
        folder.config["num_experts"] = 4.into();
        folder.config["num_experts_per_tok"] = 2.into();
        folder.config["moe_intermediate_size"] = 32.into();
    };
    // Unless the file says otherwise, the class does not normalize.
    check("Qwen3MoeForCausalLM", experts, "`norm_topk_prob` in `DIR/config.json` is absent, want true");
    check(
        "Qwen3MoeForCausalLM",
        |folder| {
            experts(folder);
            folder.config["norm_topk_prob"] = false.into();
        },
        "`norm_topk_prob` in `DIR/config.json` is false, want true",
    );
}

#[test]
fn tensors() {
    let missing = |name: &str| format!("tensor `{name}` is missing");
    let without = |name: &'static str| move |folder: &mut Folder| drop(folder.tensors.remove(name));
    for name in ["model.norm.weight", "model.layers.1.mlp.up_proj.weight", "lm_head.weight"] {
        check(LLAMA, without(name), &missing(name));
    }
    check(
        LLAMA,
        |folder| folder.random("model.layers.0.self_attn.q_norm.weight", &[16], 1.0, 0.1),
        "tensor `model.layers.0.self_attn.q_norm.weight` is not part of a llama model",
    );
    check(
        LLAMA,
        |folder| folder.random("model.layers.0.mlp.up_proj.weight", &[64, 96], 0.0, 0.1),
        "tensor `model.layers.0.mlp.up_proj.weight` has shape [64, 96], must be [96, 64]",
    );
    let integers = Tensor::zeros((96, 64), DType::U8, &Device::Cpu).unwrap();
    check(
        LLAMA,
        |folder| drop(folder.tensors.insert("model.layers.0.mlp.up_proj.weight".into(), integers)),
        "tensor `model.layers.0.mlp.up_proj.weight` has type U8; F32, F16 and BF16 are supported",
    );
    check(
        LLAMA,
        |folder| folder.random("model.layers.1.mlp.up_proj.weight", &[96, 64], f32::NAN, 0.1),
        "tensor `blk.1.ffn_up.weight` holds NaN, which F32 cannot",
    );
}

#[test]
fn numbers_that_a_format_cannot_hold() {
    let mut folder = Folder::new(LLAMA);
    folder.random("model.layers.1.mlp.up_proj.weight", &[96, 64], 70_000.0, 0.0);
    folder.write();
    let err = folder.import(Quantization::F16).unwrap_err().to_string();
    assert_eq!(err, "tensor `blk.1.ffn_up.weight` holds 70000, which F16 cannot");
    folder.random("model.layers.1.mlp.up_proj.weight", &[96, 64], 3e38, 0.0);
    folder.write();
    let err = folder.import(Quantization::Q8_0).unwrap_err().to_string();
    assert!(
        err.starts_with("tensor `blk.1.ffn_up.weight` holds 3") && err.ends_with("which Q8_0 cannot"),
        "{err}"
    );
}

#[test]
fn files() {
    let folder = Folder::new(LLAMA);
    let refused = || {
        let err = folder.import(Quantization::F32).unwrap_err().to_string();
        err.replace(&folder.dir.path().display().to_string(), "DIR")
    };
    assert_eq!(refused(), "`DIR/config.json` is missing");
    folder.write_json("config.json", &folder.config);
    assert_eq!(refused(), "`DIR` has neither `model.safetensors` nor `model.safetensors.index.json`");
    let weights = |bytes: &[u8]| std::fs::write(folder.path("model.safetensors"), bytes).unwrap();
    let bad = |what: &str| format!("`DIR/model.safetensors` is no safetensors file: {what}");
    weights(b"1234567");
    assert_eq!(refused(), bad("it has 7 bytes"));
    weights(&100u64.to_le_bytes());
    assert_eq!(refused(), bad("its header has 100 bytes, at most 0 fit"));
    let with_header =
        |json: &str| weights(&[&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), b"1234"].concat());
    with_header("[]");
    assert_eq!(refused(), "`DIR/model.safetensors` holds no json object");
    with_header(r#"{"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}"#);
    assert_eq!(refused(), bad("the entry of tensor `t` is malformed"));
    with_header(r#"{"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}"#);
    assert_eq!(refused(), bad("tensor `t` ends at 8, the data at 4"));
    std::fs::remove_file(folder.path("model.safetensors")).unwrap();
    folder.write_json(
        "model.safetensors.index.json",
        &json!({"weight_map": {"t": "../elsewhere.safetensors"}}),
    );
    let text = "`t` in `DIR/model.safetensors.index.json` is \"../elsewhere.safetensors\"";
    assert_eq!(refused(), format!("{text}, want the name of a file in the same folder"));
}

#[test]
fn tokenizers() {
    let pre = |pre: Value| {
        let mut folder = Folder::new(LLAMA);
        folder.tokenizer["pre_tokenizer"] = pre;
        folder.refused()
    };
    let split = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "[aeiou]+"}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]});
    let found = pre(split);
    assert!(
        found.contains("[aeiou]+") && found.contains("is none of gpt-2, starcoder, llama-bpe"),
        "{found}"
    );
    let found = pre(json!({"type": "BertPreTokenizer"}));
    let want =
        r#"tokenizer in `DIR/tokenizer.json` is not supported: pre-tokenizer {"type":"BertPreTokenizer"}"#;
    assert_eq!(found, want);

    let refused = |change: fn(&mut Folder)| {
        let mut folder = Folder::new(LLAMA);
        change(&mut folder);
        folder.refused()
    };
    let found = refused(|folder| folder.tokenizer["normalizer"] = json!({"type": "Lowercase"}));
    assert_eq!(
        found,
        r#"tokenizer in `DIR/tokenizer.json` is not supported: normalizer {"type":"Lowercase"}"#
    );
    let found = refused(|folder| {
        folder.tokenizer["model"] = json!({"type": "WordPiece", "vocab": {"a": 0}});
        folder.tokenizer["decoder"] = Value::Null;
        folder.tokenizer["pre_tokenizer"] = Value::Null;
    });
    assert!(
        found.ends_with("it is neither byte-level BPE nor SentencePiece BPE with byte tokens"),
        "{found}"
    );
    let found = refused(|folder| folder.tokenizer["model"]["vocab"]["too far"] = 999.into());
    assert!(found.ends_with("token 999 is `too far`, the embedding table has 272 rows"), "{found}");
}
