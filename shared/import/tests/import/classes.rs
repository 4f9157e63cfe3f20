//! Every model class besides Llama's and Qwen2's gives its own logits after the import.

use baton_import::Quantization;
use serde_json::json;

use crate::folder::{Folder, LAYERS};
use crate::logits::{EXACT, check};
use crate::reference::Traits;

const EXPERTS: usize = 4;

/// Adds one tensor to each layer.
fn each_layer(folder: &mut Folder, rest: &str, shape: &[usize], mean: f32, spread: f32) {
    for layer in 0..LAYERS {
        folder.random(&format!("model.layers.{layer}.{rest}"), shape, mean, spread);
    }
}

fn without(folder: &mut Folder, rest: &[&str]) {
    folder.tensors.retain(|name, _| !rest.iter().any(|rest| name.contains(rest)));
}

fn head_norms(folder: &mut Folder, mean: f32) {
    each_layer(folder, "self_attn.q_norm.weight", &[16], mean, 0.3);
    each_layer(folder, "self_attn.k_norm.weight", &[16], mean, 0.3);
}

/// Replaces the dense layer by experts of width 32 with these names.
fn experts(folder: &mut Folder, router: &str, experts: &str, [gate, up, down]: [&str; 3]) {
    without(folder, &[".mlp."]);
    each_layer(folder, router, &[EXPERTS, 64], 0.0, 0.5);
    for expert in 0..EXPERTS {
        each_layer(folder, &format!("{experts}.{expert}.{gate}.weight"), &[32, 64], 0.0, 0.3);
        each_layer(folder, &format!("{experts}.{expert}.{up}.weight"), &[32, 64], 0.0, 0.3);
        each_layer(folder, &format!("{experts}.{expert}.{down}.weight"), &[64, 32], 0.0, 0.4);
    }
    folder.config["num_experts_per_tok"] = 2.into();
}

const QWEN_NAMES: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

#[test]
fn qwen3() {
    let mut folder = Folder::new("Qwen3ForCausalLM");
    head_norms(&mut folder, 1.0);
    let traits = Traits { head_norms: true, ..Traits::default() };
    check(&folder, traits, Quantization::F32, EXACT);
    check(&folder, traits, Quantization::Q8_0, 0.2);
}

#[test]
fn gemma() {
    let mut folder = Folder::new("GemmaForCausalLM");
    folder.config["hidden_activation"] = "gelu_pytorch_tanh".into();
    check(&folder, Traits { gemma: true, ..Traits::default() }, Quantization::F32, EXACT);
}

#[test]
fn gemma3() {
    let mut folder = Folder::new("Gemma3ForCausalLM");
    folder.config["hidden_activation"] = "gelu_pytorch_tanh".into();
    folder.config["sliding_window"] = 100.into();
    folder.config["query_pre_attn_scalar"] = 16.into();
    folder.config["rope_local_base_freq"] = 10_000.0.into();
    folder.config["_sliding_window_pattern"] = 6.into();
    folder.config["layer_types"] = json!(vec!["sliding_attention"; LAYERS]);
    head_norms(&mut folder, 0.0);
    each_layer(&mut folder, "pre_feedforward_layernorm.weight", &[64], 0.0, 0.2);
    each_layer(&mut folder, "post_feedforward_layernorm.weight", &[64], 0.0, 0.2);
    let traits = Traits { gemma: true, head_norms: true, post_norms: true, ..Traits::default() };
    check(&folder, traits, Quantization::F32, EXACT);
}

#[test]
fn phi3() {
    let mut folder = Folder::new("Phi3ForCausalLM");
    without(&mut folder, &["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]);
    each_layer(&mut folder, "self_attn.qkv_proj.weight", &[128, 64], 0.0, 0.3);
    each_layer(&mut folder, "mlp.gate_up_proj.weight", &[192, 64], 0.0, 0.3);
    let traits = Traits { fused: true, ..Traits::default() };
    check(&folder, traits, Quantization::F32, EXACT);
}

#[test]
fn phi3_with_factors_for_long_texts() {
    let mut folder = Folder::new("Phi3ForCausalLM");
    without(&mut folder, &["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]);
    each_layer(&mut folder, "self_attn.qkv_proj.weight", &[128, 64], 0.0, 0.3);
    each_layer(&mut folder, "mlp.gate_up_proj.weight", &[192, 64], 0.0, 0.3);
    folder.config["original_max_position_embeddings"] = 128.into();
    folder.config["rope_scaling"] =
        json!({"type": "longrope", "long_factor": vec![2.0; 8], "short_factor": vec![1.0; 8]});
    folder.write();
    folder.import(Quantization::F32).unwrap();
    let gguf = baton_engine::gguf::Gguf::open(folder.path("out.gguf")).unwrap();
    let m = gguf.metadata();
    // sqrt(1 + ln(512 / 128) / ln(128))
    assert!((m.f32("phi3.rope.scaling.attn_factor").unwrap() - 1.133_893_5).abs() < 1e-6);
    assert_eq!(m.u32("phi3.rope.scaling.original_context_length").unwrap(), 128);
    assert_eq!(gguf.tensor("rope_factors_long.weight").unwrap().data, [2f32.to_le_bytes(); 8].concat());
    assert_eq!(gguf.tensor("rope_factors_short.weight").unwrap().data, [1f32.to_le_bytes(); 8].concat());
    folder.config["rope_scaling"]["long_factor"] = json!(vec![2.0; 7]);
    folder.write();
    let err = folder.import(Quantization::F32).unwrap_err().to_string();
    assert!(err.ends_with("want 8 numbers above 0"), "{err}");
}

#[test]
fn mixtral() {
    let mut folder = Folder::new("MixtralForCausalLM");
    experts(&mut folder, "block_sparse_moe.gate.weight", "block_sparse_moe.experts", ["w1", "w3", "w2"]);
    folder.config["num_local_experts"] = EXPERTS.into();
    folder.config["intermediate_size"] = 32.into();
    let traits = Traits { experts: Some((2, true)), ..Traits::default() };
    check(&folder, traits, Quantization::F32, EXACT);
}

#[test]
fn qwen2_moe() {
    let mut folder = Folder::new("Qwen2MoeForCausalLM");
    experts(&mut folder, "mlp.gate.weight", "mlp.experts", QWEN_NAMES);
    each_layer(&mut folder, "mlp.shared_expert.gate_proj.weight", &[48, 64], 0.0, 0.3);
    each_layer(&mut folder, "mlp.shared_expert.up_proj.weight", &[48, 64], 0.0, 0.3);
    each_layer(&mut folder, "mlp.shared_expert.down_proj.weight", &[64, 48], 0.0, 0.3);
    each_layer(&mut folder, "mlp.shared_expert_gate.weight", &[1, 64], 0.0, 0.3);
    folder.config["num_experts"] = EXPERTS.into();
    folder.config["moe_intermediate_size"] = 32.into();
    folder.config["shared_expert_intermediate_size"] = 48.into();
    let traits = Traits { experts: Some((2, false)), ..Traits::default() };
    check(&folder, traits, Quantization::F32, EXACT);
    folder.config["norm_topk_prob"] = true.into();
    folder.write();
    let err = folder.import(Quantization::F32).unwrap_err().to_string();
    assert!(err.ends_with("is true, want false"), "{err}");
}

#[test]
fn qwen3_moe() {
    let mut folder = Folder::new("Qwen3MoeForCausalLM");
    experts(&mut folder, "mlp.gate.weight", "mlp.experts", QWEN_NAMES);
    head_norms(&mut folder, 1.0);
    folder.config["num_experts"] = EXPERTS.into();
    folder.config["moe_intermediate_size"] = 32.into();
    folder.config["norm_topk_prob"] = true.into();
    let traits = Traits { experts: Some((2, true)), head_norms: true, ..Traits::default() };
    check(&folder, traits, Quantization::F32, EXACT);
    folder.config["mlp_only_layers"] = json!([0]);
    folder.write();
    let err = folder.import(Quantization::F32).unwrap_err().to_string();
    assert!(err.ends_with("want empty: experts in every layer"), "{err}");
}
