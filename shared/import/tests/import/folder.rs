//! Small, random model folders in the form that Hugging Face's libraries write.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_engine::Model;
use baton_import::{AdapterDir, ImportError, ImportOptions, Quantization, Summary, import};
use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Tokens of the test's vocabulary: bytes, two merged tokens, two control tokens; the rest of the table is
/// free.
pub(crate) const VOCAB: usize = 272;
pub(crate) const LAYERS: usize = 2;

/// A model folder before it is written.
pub(crate) struct Folder {
    pub dir: TempDir,
    pub config: Value,
    /// By Hugging Face's names, in its layout.
    pub tensors: HashMap<String, Tensor>,
    pub tokenizer: Value,
    pub settings: Value,
}

/// Random numbers, different for each tensor, of a size that keeps the logits spread out.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as f32 / (1u64 << 30) as f32) - 1.0
    }

    fn tensor(&mut self, shape: &[usize], mean: f32, spread: f32) -> Tensor {
        let n = shape.iter().product();
        let values: Vec<f32> = (0..n).map(|_| mean + spread * self.unit()).collect();
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    fn matrix(&mut self, rows: usize, cols: usize) -> Tensor {
        self.tensor(&[rows, cols], 0.0, 2.4 / (cols as f32).sqrt())
    }
}

/// Returns GPT-2's printable character for a byte.
pub(crate) fn byte_char(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    char::from_u32(256 + (0..byte).filter(|earlier| !printable(*earlier)).count() as u32).unwrap()
}

/// Returns a byte-level `tokenizer.json` with the pre-tokenizer of GPT-2.
pub(crate) fn byte_level_json() -> Value {
    let mut vocab: serde_json::Map<String, Value> =
        (0..=255u8).map(|byte| (byte_char(byte).to_string(), byte.into())).collect();
    vocab.insert("he".to_owned(), 256.into());
    vocab.insert("Ġw".to_owned(), 257.into());
    let control = |id: u32, text: &str| {
        json!({"id": id, "content": text, "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [control(258, "<|bos|>"), control(259, "<|end|>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [["h", "e"], ["Ġ", "w"]]},
    })
}

impl Folder {
    /// Returns a model of `class`: width 64, 4 query and 2 key heads of width 16, 2 layers.
    pub(crate) fn new(class: &str) -> Folder {
        Folder::sized(class, 64, 96, 16)
    }

    /// Returns a model of `class` in which every row is a multiple of 256.
    pub(crate) fn wide(class: &str) -> Folder {
        Folder::sized(class, 256, 512, 64)
    }

    /// Returns a model of `class`, given its width, feed-forward width and head width.
    fn sized(class: &str, e: usize, f: usize, d: usize) -> Folder {
        let config = json!({
            "architectures": [class], "hidden_size": e, "intermediate_size": f, "num_hidden_layers": LAYERS,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": d, "vocab_size": VOCAB,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "bos_token_id": 258,
            "eos_token_id": 259, "torch_dtype": "float32",
        });
        let settings = json!({"bos_token": "<|bos|>", "eos_token": {"content": "<|end|>"},
            "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"});
        let mut folder = Folder {
            dir: tempfile::tempdir().unwrap(),
            config,
            tensors: HashMap::new(),
            tokenizer: byte_level_json(),
            settings,
        };
        folder.fill(class, e, f, d);
        folder
    }

    fn fill(&mut self, class: &str, e: usize, f: usize, d: usize) {
        let (q, kv) = (4 * d, 2 * d);
        let mut random = Random(class.len() as u64);
        let norm = |random: &mut Random, n: usize| {
            // Gemma's norms are saved without the 1 that the model adds.
            random.tensor(&[n], if class.starts_with("Gemma") { 0.0 } else { 1.0 }, 0.2)
        };
        let mut put = |name: String, tensor: Tensor| drop(self.tensors.insert(name, tensor));
        put("model.embed_tokens.weight".into(), random.tensor(&[VOCAB, e], 0.0, 1.0));
        put("model.norm.weight".into(), norm(&mut random, e));
        if !class.starts_with("Gemma") {
            put("lm_head.weight".into(), random.matrix(VOCAB, e));
        }
        for layer in 0..LAYERS {
            let name = |rest: &str| format!("model.layers.{layer}.{rest}");
            for rest in ["input_layernorm.weight", "post_attention_layernorm.weight"] {
                put(name(rest), norm(&mut random, e));
            }
            for (rest, rows, cols) in [("q", q, e), ("k", kv, e), ("v", kv, e), ("o", e, q)] {
                put(name(&format!("self_attn.{rest}_proj.weight")), random.matrix(rows, cols));
            }
            if class.starts_with("Qwen2") {
                for (rest, rows) in [("q", q), ("k", kv), ("v", kv)] {
                    put(name(&format!("self_attn.{rest}_proj.bias")), random.tensor(&[rows], 0.0, 0.5));
                }
            }
            for (rest, rows, cols) in [("gate", f, e), ("up", f, e), ("down", e, f)] {
                put(name(&format!("mlp.{rest}_proj.weight")), random.matrix(rows, cols));
            }
        }
    }

    /// Adds a random tensor, or replaces one.
    pub(crate) fn random(&mut self, name: &str, shape: &[usize], mean: f32, spread: f32) {
        let seed = name.bytes().fold(7, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
        self.tensors.insert(name.to_owned(), Random(seed).tensor(shape, mean, spread));
    }

    /// Rounds every weight to `dtype` and saves it in that type.
    pub(crate) fn stored_as(&mut self, dtype: DType) {
        for tensor in self.tensors.values_mut() {
            *tensor = tensor.to_dtype(dtype).unwrap();
        }
    }

    /// Writes the folder with its weights in one file.
    pub(crate) fn write(&self) {
        candle_core::safetensors::save(&self.tensors, self.path("model.safetensors")).unwrap();
        self.write_rest();
    }

    /// Writes the folder with its weights in two files and an index.
    pub(crate) fn write_sharded(&self) {
        let mut names: Vec<_> = self.tensors.keys().cloned().collect();
        names.sort();
        let mut weight_map = serde_json::Map::new();
        for (idx, part) in names.chunks(names.len().div_ceil(2)).enumerate() {
            let file = format!("model-0000{}-of-00002.safetensors", idx + 1);
            let tensors: HashMap<_, _> =
                part.iter().map(|name| (name.clone(), self.tensors[name].clone())).collect();
            candle_core::safetensors::save(&tensors, self.path(&file)).unwrap();
            weight_map.extend(part.iter().map(|name| (name.clone(), file.clone().into())));
        }
        self.write_json("model.safetensors.index.json", &json!({"metadata": {}, "weight_map": weight_map}));
        self.write_rest();
    }

    fn write_rest(&self) {
        self.write_json("config.json", &self.config);
        self.write_json("tokenizer.json", &self.tokenizer);
        self.write_json("tokenizer_config.json", &self.settings);
    }

    pub(crate) fn write_json(&self, name: &str, value: &Value) {
        std::fs::write(self.path(name), value.to_string()).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Imports the written folder.
    pub(crate) fn import(&self, quantization: Quantization) -> Result<Summary, ImportError> {
        self.import_with(quantization, &[])
    }

    pub(crate) fn import_with(
        &self,
        quantization: Quantization,
        adapters: &[(&Path, f32)],
    ) -> Result<Summary, ImportError> {
        let adapters =
            adapters.iter().map(|&(dir, weight)| AdapterDir { dir: dir.to_owned(), weight }).collect();
        let options = ImportOptions {
            dir: self.dir.path().to_owned(),
            out: self.path("out.gguf"),
            replace: true,
            quantization,
            adapters,
        };
        import(&options, &mut |_| ControlFlow::Continue(()))
    }

    /// Opens the imported model.
    pub(crate) fn model(&self) -> Arc<Model> {
        Model::open(&self.path("out.gguf")).unwrap()
    }

    /// Writes and imports the folder; returns the error.
    #[track_caller]
    pub(crate) fn refused(&self) -> String {
        self.write();
        let err = self.import(Quantization::F32).unwrap_err();
        let left: Vec<_> =
            std::fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let made = left.iter().filter(|name| name.to_string_lossy().contains("gguf"));
        assert_eq!(made.count(), 0, "an import that fails leaves nothing: {left:?}");
        err.to_string().replace(&self.dir.path().display().to_string(), "DIR")
    }
}
