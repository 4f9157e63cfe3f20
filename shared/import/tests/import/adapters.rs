//! LoRA adapters are added to the weights before quantization, or written to a file with the same effect at
//! run time.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use baton_engine::{Adapter, Engine, StepSeq, Wanted};
use baton_import::{
    ADAPTER_FORMAT, AdapterDir, AdapterOptions, AdapterSummary, ImportError, Quantization, import_adapter,
};
use baton_kernels_cpu::Format;
use candle_core::{DType, Tensor};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::folder::{Folder, LAYERS};
use crate::logits::{distance, engine_logits, exact, ids};
use crate::reference::{self, Traits};

const RANK: usize = 3;
/// Matrices that the adapters of these tests change: one whose rows are reordered, one without, and the head.
const CHANGED: [&str; 3] = ["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj", "lm_head"];

fn config() -> Value {
    json!({"peft_type": "LORA", "r": RANK, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj", "lm_head"],
        "use_rslora": false, "fan_in_fan_out": false, "bias": "none", "modules_to_save": null})
}

/// Returns an adapter for the folder's model; different seeds give different adapters.
fn adapter(folder: &Folder, seed: &str, config: &Value) -> (TempDir, HashMap<String, Tensor>) {
    adapter_of(folder, seed, config, &CHANGED)
}

fn adapter_of(
    folder: &Folder,
    seed: &str,
    config: &Value,
    modules: &[&str],
) -> (TempDir, HashMap<String, Tensor>) {
    let mut halves = HashMap::new();
    let mut random = Folder::new("LlamaForCausalLM");
    for module in modules {
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

/// Adds `scale B A` to the folder's weights.
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

/// Checks the error for an adapter that `change` has modified.
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

/// The matrices of a layer that an adapter file may change.
const LINEAR: [&str; 7] = [
    "model.layers.0.self_attn.q_proj",
    "model.layers.1.self_attn.k_proj",
    "model.layers.0.self_attn.v_proj",
    "model.layers.1.self_attn.o_proj",
    "model.layers.0.mlp.gate_proj",
    "model.layers.1.mlp.up_proj",
    "model.layers.0.mlp.down_proj",
];
const FUSED: [&str; 4] = [
    "model.layers.0.self_attn.qkv_proj",
    "model.layers.1.self_attn.o_proj",
    "model.layers.0.mlp.gate_up_proj",
    "model.layers.1.mlp.down_proj",
];

fn written(folder: &Folder, dir: &Path, weight: f32, format: Format) -> Result<AdapterSummary, ImportError> {
    let options = AdapterOptions {
        adapter: AdapterDir { dir: dir.to_owned(), weight },
        model: folder.path("out.gguf"),
        format,
        out: folder.path("adapter.gguf"),
        replace: true,
    };
    import_adapter(&options, &|| false)
}

/// Returns the logits of the model in `out.gguf` with the adapter beside it.
fn adapted_logits(folder: &Folder) -> Vec<f32> {
    let model = folder.model();
    let adapter = Adapter::open(&folder.path("adapter.gguf"), &model).unwrap();
    let mut engine = Engine::new(Arc::clone(&model), exact()).unwrap();
    let adapter = engine.add_adapter(adapter).unwrap();
    let seq = engine.create_with(Some(adapter)).unwrap();
    let step = StepSeq { seq, ids: &ids(), logits: Wanted::All, capture: None };
    engine.step(&[step], &mut ()).unwrap().remove(0).logits
}

/// Checks that the adapter file beside the model gives the logits of the model with the adapter merged.
/// `limit` is for the largest difference, in standard deviations of the logits.
#[track_caller]
fn equals_merged(class: &str, config: &Value, weight: f32, quantization: Quantization, limit: f32) {
    let mut folder = Folder::new(class);
    if class.starts_with("Phi3") {
        let apart = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"];
        folder.tensors.retain(|name, _| !apart.iter().any(|part| name.contains(part)));
        for layer in 0..LAYERS {
            folder.random(&format!("model.layers.{layer}.self_attn.qkv_proj.weight"), &[128, 64], 0.0, 0.3);
            folder.random(&format!("model.layers.{layer}.mlp.gate_up_proj.weight"), &[192, 64], 0.0, 0.3);
        }
    }
    folder.write();
    let modules = if class.starts_with("Phi3") { &FUSED[..] } else { &LINEAR };
    let (dir, _) = adapter_of(&folder, "one", config, modules);
    folder.import_with(quantization, &[(dir.path(), weight)]).unwrap();
    let want = engine_logits(&folder.model());
    folder.import(quantization).unwrap();
    let plain = engine_logits(&folder.model());
    // Q8_0 rounds each number to one of 255 steps of its block's largest.
    for (format, limit) in [(Format::F32, limit), (Format::F16, limit + 1e-2), (Format::Q8_0, limit + 1e-1)] {
        let summary = written(&folder, dir.path(), weight, format).unwrap();
        assert_eq!((summary.matrices, summary.rank_max, summary.alpha), (modules.len(), RANK, 6.0));
        let far = distance(&adapted_logits(&folder), &want);
        assert!(far < limit, "{class} {quantization} {format:?}: {far} standard deviations, at most {limit}");
    }
    assert!(distance(&plain, &want) > 0.2, "the adapter matters");
}

#[test]
fn an_adapter_beside_its_model_equals_one_merged_into_it() {
    for class in ["LlamaForCausalLM", "Qwen2ForCausalLM", "Phi3ForCausalLM"] {
        equals_merged(class, &config(), 1.0, Quantization::F32, 1e-4);
        // The merged weights were rounded to 11 bits; the adapter's were not.
        equals_merged(class, &config(), 1.0, Quantization::F16, 2e-2);
    }
    equals_merged("LlamaForCausalLM", &config(), -0.5, Quantization::F32, 1e-4);
    let mut stabilized = config();
    stabilized["use_rslora"] = true.into();
    stabilized["alpha_pattern"] = json!({"mlp.down_proj": 3});
    equals_merged("LlamaForCausalLM", &stabilized, 1.0, Quantization::F32, 1e-4);
}

#[test]
fn what_a_file_beside_the_model_cannot_change_is_refused() {
    let folder = Folder::new("LlamaForCausalLM");
    folder.write();
    folder.import(Quantization::F32).unwrap();
    let (dir, _) = adapter(&folder, "one", &config());
    let err = written(&folder, dir.path(), 1.0, ADAPTER_FORMAT).unwrap_err();
    let want =
        "adapter tensor `base_model.model.lm_head.lora_A.weight`: the model has no linear layer of this name";
    assert_eq!(err.to_string(), want);
    assert!(!folder.path("adapter.gguf").exists());
    let (dir, _) = adapter_of(&folder, "one", &config(), &LINEAR);
    let missing = AdapterOptions {
        adapter: AdapterDir { dir: dir.path().to_owned(), weight: 1.0 },
        model: folder.path("none.gguf"),
        format: ADAPTER_FORMAT,
        out: folder.path("adapter.gguf"),
        replace: false,
    };
    assert!(matches!(import_adapter(&missing, &|| false), Err(ImportError::BaseModel { .. })));
    let options = AdapterOptions { model: folder.path("out.gguf"), ..missing };
    let files = || std::fs::read_dir(folder.path("")).unwrap().count();
    let before = files();
    assert!(matches!(import_adapter(&options, &|| true), Err(ImportError::Cancelled)));
    assert_eq!(files(), before, "nothing is left of an import that was stopped");
    let folder_as_out = AdapterOptions { out: folder.path(""), replace: true, ..options.clone() };
    assert!(matches!(import_adapter(&folder_as_out, &|| false), Err(ImportError::Write { .. })));
    import_adapter(&options, &|| false).unwrap();
    assert!(
        matches!(import_adapter(&options, &|| false), Err(ImportError::OutExists { .. })),
        "never over another file"
    );
}
