//! Tests the import job on the demo model, written as a Hugging Face folder. What is published serves; a gate
//! or a stop publishes nothing and leaves nothing.

use std::fs;
use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use baton_cloud::import::{Gate, ImportJob, JobControl, JobError, Manifest, Miss, Step, run};
use baton_engine::gguf::Gguf;
use baton_engine::{Adapter, Model};
use baton_kernels_cpu::dequantize_row;
use baton_refine::Calibration;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::program::program;

const HEAD: usize = 64;

/// A tensor: its name, rows first, and its numbers.
type Tensor = (String, Vec<usize>, Vec<f32>);

/// Writes tensors in the safetensors format, as F32.
fn write_safetensors(path: &Path, tensors: &[Tensor]) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape, numbers) in tensors {
        let begin = data.len();
        data.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        header.insert(
            name.clone(),
            json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()] }),
        );
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    fs::write(path, file).unwrap();
}

/// Returns a tensor of the demo model under the library's name and in its layout.
fn tensor(demo: &Gguf, from: &str, to: String) -> Tensor {
    let view = demo.tensor(from).unwrap();
    let mut numbers = vec![0.0; view.dims.iter().product::<u64>() as usize];
    dequantize_row(view.format, view.data, &mut numbers).unwrap();
    let shape: Vec<usize> = view.dims.iter().rev().map(|dim| *dim as usize).collect();
    if from.contains("attn_q") || from.contains("attn_k") {
        // The library rotates a head's halves, the file neighbouring rows.
        let row = |at: usize| {
            let (head, at) = (at / HEAD * HEAD, at % HEAD);
            head + 2 * (at % (HEAD / 2)) + at / (HEAD / 2)
        };
        let cols = shape[1];
        let reordered = (0..shape[0]).flat_map(|at| numbers[row(at) * cols..(row(at) + 1) * cols].to_vec());
        return (to, shape.clone(), reordered.collect());
    }
    (to, shape, numbers)
}

/// Writes the demo model as a folder of Hugging Face's library.
fn demo_folder(dir: &Path) {
    let demo = Gguf::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo-cloud.gguf")).unwrap();
    let mut tensors = vec![
        tensor(&demo, "token_embd.weight", "model.embed_tokens.weight".into()),
        tensor(&demo, "output_norm.weight", "model.norm.weight".into()),
    ];
    let names = [
        ("attn_norm", "input_layernorm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ];
    for layer in 0..6 {
        for (from, to) in names {
            let from = format!("blk.{layer}.{from}.weight");
            tensors.push(tensor(&demo, &from, format!("model.layers.{layer}.{to}.weight")));
        }
    }
    write_safetensors(&dir.join("model.safetensors"), &tensors);
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 384, "head_dim": HEAD,
        "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1280,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "bos_token_id": 0,
        "eos_token_id": 1, "tie_word_embeddings": true, "torch_dtype": "float32",
    });
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let metadata = demo.metadata();
    let tokens = metadata.str_array("tokenizer.ggml.tokens").unwrap();
    let control = |(id, text): (usize, &&str)| {
        json!({ "id": id, "content": text, "special": true, "normalized": false, "single_word": false,
            "lstrip": false, "rstrip": false })
    };
    let added: Vec<Value> = tokens.iter().take(5).enumerate().map(control).collect();
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().skip(5).map(|(id, text)| ((*text).to_owned(), id.into())).collect();
    let level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "added_tokens": added,
        "pre_tokenizer": level, "post_processor": level, "decoder": level,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": metadata.str_array("tokenizer.ggml.merges").unwrap() },
    });
    fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let settings = json!({ "bos_token": tokens[0], "eos_token": tokens[1],
        "chat_template": metadata.str("tokenizer.chat_template").unwrap() });
    fs::write(dir.join("tokenizer_config.json"), settings.to_string()).unwrap();
    fs::write(dir.join("README.md"), "---\nlicense: apache-2.0\n---\n# The demo model\n").unwrap();
}

/// Writes a LoRA adapter of the PEFT library for the demo model.
fn adapter_folder(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    let config = json!({ "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"],
        "bias": "none", "task_type": "CAUSAL_LM" });
    fs::write(dir.join("adapter_config.json"), config.to_string()).unwrap();
    let name = |half: &str| format!("base_model.model.model.layers.0.self_attn.q_proj.lora_{half}.weight");
    let numbers = |count: usize| (0..count).map(|at| (at % 7) as f32 * 0.01 - 0.03).collect::<Vec<f32>>();
    write_safetensors(
        &dir.join("adapter_model.safetensors"),
        &[(name("A"), vec![2, 256], numbers(512)), (name("B"), vec![256, 2], numbers(512))],
    );
}

/// A folder to import, and an empty one for what is published.
struct World {
    home: TempDir,
}

impl World {
    fn new() -> World {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("demo")).unwrap();
        demo_folder(&home.path().join("demo"));
        adapter_folder(&home.path().join("law"));
        World { home }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn job(&self) -> ImportJob {
        ImportJob {
            dir: self.path("demo"),
            name: "demo".into(),
            into: self.path("models"),
            replace: false,
            quantization: "Q8_0".parse().unwrap(),
            merged: Vec::new(),
            adapters: vec![("law".into(), self.path("law"))],
            licence: None,
            finds_heads: true,
            probes: NonZeroUsize::new(8).unwrap(),
            words: 300,
            threads: NonZeroUsize::new(1),
            gate: Gate::default(),
        }
    }

    /// Returns the names of what is in the folder of published models, but the lock.
    fn published(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("models")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != ".demo.lock").collect()
    }
}

/// Records the steps, and stops at one of them if told to.
#[derive(Default)]
struct Followed {
    steps: Vec<Step>,
    stop_at: Option<Step>,
}

impl JobControl for Followed {
    fn progress(&mut self, step: Step, done: u64, of: u64) {
        assert!(done <= of, "{step:?}: {done} of {of}");
        if self.steps.last() != Some(&step) {
            self.steps.push(step);
        }
    }

    fn stopped(&self) -> bool {
        self.stop_at.is_some_and(|step| self.steps.contains(&step))
    }
}

fn sha256(path: &Path) -> String {
    hex::encode(Sha256::digest(fs::read(path).unwrap()))
}

#[test]
fn what_is_published_is_whole_measured_and_usable() {
    let world = World::new();
    let mut followed = Followed::default();
    let manifest = run(&world.job(), &mut followed).unwrap();
    assert_eq!(followed.steps, Step::ALL);
    assert_eq!(world.published(), ["demo"]);
    let folder = world.path("models/demo");
    let written: Manifest =
        serde_json::from_str(&fs::read_to_string(folder.join("manifest.json")).unwrap()).unwrap();
    assert_eq!(written, manifest);
    let names: Vec<&str> = manifest.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["demo.gguf", "law.lora.gguf", "demo.heads.json"]);
    let mut found: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(found, ["demo.gguf", "demo.heads.json", "law.lora.gguf", "manifest.json"]);
    for file in &manifest.files {
        let path = folder.join(&file.name);
        assert_eq!(file.sha256, sha256(&path), "{}", file.name);
        assert_eq!(file.bytes, fs::metadata(&path).unwrap().len());
    }
    assert_eq!((manifest.family.as_str(), manifest.quantization.as_str()), ("llama", "Q8_0"));
    assert_eq!(manifest.licence.as_deref(), Some("apache-2.0"));
    assert!(manifest.gate.agreement > 0.95 && manifest.gate.positions > 1000, "{:?}", manifest.gate);
    assert!(manifest.gate.recall.is_some_and(|recall| recall > 0.75), "{:?}", manifest.gate);
    let model = Model::open(&folder.join("demo.gguf")).unwrap();
    assert_eq!(manifest.tokenizer_sha256, model.tokenizer().digest_hex());
    let heads = fs::read_to_string(folder.join("demo.heads.json")).unwrap();
    assert_eq!(Calibration::from_json(&heads).unwrap().model_sha256(), model.file_sha256());
    assert_eq!(Adapter::open(&folder.join("law.lora.gguf"), &model).unwrap().matrices(), 1);
}

#[test]
fn a_gate_that_is_missed_publishes_nothing_and_says_which() {
    let world = World::new();
    let gate = Gate { agreement_min: 1.01, ..Gate::default() };
    let job = ImportJob { gate, finds_heads: false, adapters: Vec::new(), ..world.job() };
    let err = run(&job, &mut Followed::default()).unwrap_err();
    assert!(
        matches!(&err, JobError::Gate { misses } if matches!(misses[..], [Miss::Agreement { .. }])),
        "{err}"
    );
    assert!(err.to_string().contains("next-token agreement"), "{err}");
    assert_eq!(world.published(), Vec::<String>::new());
    run(&ImportJob { gate: Gate::default(), ..job.clone() }, &mut Followed::default()).unwrap();
    let before = sha256(&world.path("models/demo/demo.gguf"));
    assert!(run(&ImportJob { replace: true, ..job.clone() }, &mut Followed::default()).is_err());
    assert_eq!(sha256(&world.path("models/demo/demo.gguf")), before, "the published one stays");
    let again = run(&ImportJob { gate: Gate::default(), ..job }, &mut Followed::default()).unwrap_err();
    assert!(again.to_string().contains("--replace"), "{again}");
}

#[test]
fn a_stop_at_any_step_leaves_nothing() {
    let world = World::new();
    for step in Step::ALL {
        let mut followed = Followed { stop_at: Some(step), ..Followed::default() };
        let err = run(&world.job(), &mut followed).unwrap_err();
        assert!(matches!(err, JobError::Stopped), "{step:?}: {err}");
        assert_eq!(world.published(), Vec::<String>::new(), "{step:?}");
    }
}

#[test]
fn what_cannot_be_converted_is_named() {
    let world = World::new();
    fs::remove_file(world.path("demo/tokenizer.json")).unwrap();
    let err = run(&world.job(), &mut Followed::default()).unwrap_err();
    assert!(matches!(&err, JobError::Convert { step: Step::Convert, .. }), "{err}");
    assert_eq!(world.published(), Vec::<String>::new());
}

#[test]
fn the_program_imports_and_prints_lines_of_json() {
    let world = World::new();
    let import = |more: &[&str]| -> Command {
        let mut command = program();
        command.args(["models", "import", "--json", "--no-heads", "--quant", "Q8_0", "--threads", "1"]);
        command.arg("--into").arg(world.path("models")).arg(world.path("demo")).args(more);
        command
    };
    let refused = import(&["--perplexity-ratio-max", "0.5"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("the gate is not reached: perplexity ratio"), "{said}");
    assert_eq!(world.published(), Vec::<String>::new());
    let done = import(&[]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let lines: Vec<Value> = String::from_utf8(done.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!((&lines[0]["step"], &lines[0]["steps"]), (&json!("convert"), &json!(Step::ALL.len())));
    let last = &lines.last().unwrap()["published"];
    assert_eq!((&last["name"], &last["gate"]["recall"]), (&json!("demo"), &Value::Null));
    assert_eq!(world.published(), ["demo"]);
}

#[test]
fn the_program_publishes_for_devices_too() {
    let world = World::new();
    let text = |name: &str| world.path(name).display().to_string();
    let (registry, key) = (text("registry"), text("registry.key"));
    let run = |line: &[&str]| {
        let out = program().args(line).output().unwrap();
        (out.status.success(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let (_, public, _) = run(&["registry", "key", &key]);
    let (demo, models, law) = (text("demo"), text("models"), format!("law={}", text("law")));
    let import =
        ["models", "import", &demo, "--into", &models, "--quant", "Q8_0", "--no-heads", "--threads", "1"];
    let adapter = ["--adapter", law.as_str()];
    let (done, _, said) = run(&[&import[..], &["--registry", &registry]].concat());
    assert!(!done && said.contains("--as") && said.contains("--key"), "{said}");
    let publish = ["--registry", &registry, "--as", "demo-q8@3", "--key", &key];
    let (done, _, said) = run(&[&import[..], &adapter, &publish].concat());
    assert!(done, "{said}");
    let (_, listed, said) =
        run(&["registry", "list", "--json", "--from", &registry, "--trust", public.trim()]);
    let listed: Value = serde_json::from_str(&listed).expect(&said);
    assert_eq!((&listed[0]["model"], &listed[0]["licence"]), (&json!("demo-q8@3"), &json!("apache-2.0")));
    assert_eq!((&listed[1]["model"], &listed[1]["base"]), (&json!("law@3"), &json!("demo-q8@3")));
    let digest = format!("sha256:{}", sha256(&world.path("models/demo/demo.gguf")));
    assert_eq!(listed[0]["files"][0]["digest"], digest, "devices get the bytes that were measured");
}

#[test]
fn an_interrupt_ends_the_program_and_leaves_nothing() {
    let world = World::new();
    let mut command = program();
    command.args(["models", "import", "--json", "--quant", "Q8_0", "--probes", "100000", "--threads", "1"]);
    command.arg("--into").arg(world.path("models")).arg(world.path("demo"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("calibrate"))).unwrap().unwrap();
    let told = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(told.success());
    let said: Vec<String> = lines.map_while(Result::ok).collect();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(said.iter().all(|line| !line.contains("published")), "{said:?}");
    assert_eq!(world.published(), Vec::<String>::new());
}
