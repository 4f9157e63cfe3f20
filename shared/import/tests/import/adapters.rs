//! LoRA adapters are added to the weights before they are quantized.

use std::collections::HashMap;

use baton_import::Quantization;
use candle_core::{DType, Tensor};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::folder::Folder;
use crate::logits::{distance, engine_logits, ids};
use crate::reference::{self, Traits};

const RANK: usize = 3;
/// Matrices that the adapters of these tests change: one whose rows change places, one that stays, the head.
const CHANGED: [&str; 3] = ["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj", "lm_head"];

fn config() -> Value {
    json!({"peft_type": "LORA", "r": RANK, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj", "lm_head"],
        "use_rslora": false, "fan_in_fan_out": false, "bias": "none", "modules_to_save": null})
}

/// An adapter of the folder's model; `seed` keeps two apart.
fn adapter(folder: &Folder, seed: &str, config: &Value) -> (TempDir, HashMap<String, Tensor>) {
    let mut halves = HashMap::new();
    let mut random = Folder::new("LlamaForCausalLM");
    for module in CHANGED {
        let (rows, cols) = folder.tensors[&format!("{module}.weight")].dims2().unwrap();
        for (half, shape) in [("A", [RANK, cols]), ("B", [rows, RANK])] {
            let name = format!("base_model.model.{module}.lora_{half}.weight");
            random.random(&format!("{seed}{name}"), &shape, 0.0, 0.2);
            halves.insert(name.clone(), random.tensors[&format!("{seed}{name}")].clone());
        }
    }
    (write(&halves, config), halves)
}

fn write(halves: &HashMap<String, Tensor>, config: &Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    candle_core::safetensors::save(halves, dir.path().join("adapter_model.safetensors")).unwrap();
    std::fs::write(dir.path().join("adapter_config.json"), config.to_string()).unwrap();
    dir
}

/// The folder with `scale B A` added to its weights.
fn merge(folder: &mut Folder, halves: &HashMap<String, Tensor>, scale: impl Fn(&str) -> f64) {
    for module in CHANGED {
        let half = |half: &str| &halves[&format!("base_model.model.{module}.lora_{half}.weight")];
        let change = (half("B").matmul(half("A")).unwrap() * scale(module)).unwrap();
        let name = format!("{module}.weight");
        let merged = (folder.tensors[&name].to_dtype(DType::F32).unwrap() + change).unwrap();
        folder.tensors.insert(name, merged);
    }
}

#[track_caller]
fn check(config: &Value, weight: f32, scale: impl Fn(&str) -> f64) {
    let mut folder = Folder::new("LlamaForCausalLM");
    folder.write();
    let (dir, halves) = adapter(&folder, "one", config);
    let plain = reference::logits(&folder, Traits::default(), &ids(), &[]);
    let summary = folder.import_with(Quantization::F32, &[(dir.path(), weight)]).unwrap();
    assert_eq!(summary.adapted, [CHANGED.len()]);
    merge(&mut folder, &halves, scale);
    let want = reference::logits(&folder, Traits::default(), &ids(), &[]);
    let far = distance(&engine_logits(&folder.model()), &want);
    assert!(far < 0.02, "{far}");
    assert!(distance(&plain, &want) > 0.2, "the adapter matters");
}

#[test]
fn plain_weighted_and_stabilized() {
    check(&config(), 1.0, |_| 2.0);
    check(&config(), -0.5, |_| -1.0);
    let mut stabilized = config();
    stabilized["use_rslora"] = true.into();
    check(&stabilized, 1.0, |_| 6.0 / (RANK as f64).sqrt());
    let mut own = config();
    own["alpha_pattern"] = json!({"mlp.down_proj": 3});
    check(&own, 1.0, |module| if module.ends_with("down_proj") { 1.0 } else { 2.0 });
}

#[test]
fn two_adapters_add_up() {
    let mut folder = Folder::new("LlamaForCausalLM");
    folder.write();
    let (one, one_halves) = adapter(&folder, "one", &config());
    let (two, two_halves) = adapter(&folder, "two", &config());
    let summary = folder.import_with(Quantization::F32, &[(one.path(), 1.0), (two.path(), 0.25)]).unwrap();
    assert_eq!(summary.adapted, [CHANGED.len(); 2]);
    merge(&mut folder, &one_halves, |_| 2.0);
    merge(&mut folder, &two_halves, |_| 0.5);
    let want = reference::logits(&folder, Traits::default(), &ids(), &[]);
    let far = distance(&engine_logits(&folder.model()), &want);
    assert!(far < 0.02, "{far}");
}

/// What is refused of an adapter that `change` went over.
#[track_caller]
fn refused(change: impl FnOnce(&mut Value, &mut HashMap<String, Tensor>), want: &str) {
    let folder = Folder::new("LlamaForCausalLM");
    folder.write();
    let (_, mut halves) = adapter(&folder, "one", &config());
    let mut config = config();
    change(&mut config, &mut halves);
    let dir = write(&halves, &config);
    let err = folder.import_with(Quantization::F32, &[(dir.path(), 1.0)]).unwrap_err();
    let text = err.to_string().replace(&dir.path().display().to_string(), "DIR");
    assert_eq!(text, want);
    assert!(!folder.path("out.gguf").exists());
}

#[test]
fn what_is_no_plain_adapter_is_refused() {
    let in_config = |key: &str, found: &str, want: &str| {
        format!("`{key}` in `DIR/adapter_config.json` is {found}, want {want}")
    };
    refused(|c, _| c["peft_type"] = "IA3".into(), &in_config("peft_type", "\"IA3\"", "LORA"));
    refused(|c, _| c["use_dora"] = true.into(), &in_config("use_dora", "true", "false"));
    refused(|c, _| c["bias"] = "all".into(), &in_config("bias", "\"all\"", "none"));
    refused(
        |c, _| c["modules_to_save"] = json!(["lm_head"]),
        &in_config("modules_to_save", "[\"lm_head\"]", "empty"),
    );
    let name = |rest: &str| format!("base_model.model.model.layers.0.self_attn.q_proj.{rest}");
    let with = |name: String, shape: [usize; 2]| {
        move |_: &mut Value, halves: &mut HashMap<String, Tensor>| {
            halves.insert(name, Tensor::zeros(&shape[..], DType::F32, &candle_core::Device::Cpu).unwrap());
        }
    };
    refused(
        with(name("lora_A.weight"), [RANK, 65]),
        &format!("adapter tensor `{}`: has shape [3, 65], must be [r, 64]", name("lora_A.weight")),
    );
    refused(
        with(name("lora_B.weight"), [64, 4]),
        &format!("adapter tensor `{}`: has shape [64, 4], must be [64, 3]", name("lora_B.weight")),
    );
    refused(
        with(name("lora_magnitude_vector"), [64, 1]),
        &format!(
            "adapter tensor `{}`: want `…lora_A.weight` or `…lora_B.weight` of a linear layer",
            name("lora_magnitude_vector")
        ),
    );
    refused(
        with("base_model.model.model.layers.9.mlp.up_proj.lora_A.weight".into(), [RANK, 64]),
        "adapter tensor `base_model.model.model.layers.9.mlp.up_proj.lora_A.weight`: \
         the model has no linear layer of this name",
    );
    refused(
        |_, halves| drop(halves.remove(&name("lora_B.weight"))),
        &format!("adapter tensor `{}`: is missing, its `lora_A` is there", name("lora_B.weight")),
    );
}
