//! Files that are not an adapter of a model, each with its error; any bytes without a panic.

use std::sync::{Arc, LazyLock};

use baton_engine::adapter::{ALPHA_KEY, TYPE_KEY};
use baton_engine::gguf::{Gguf, GgufWriter, MetaValue};
use baton_engine::{Adapter, AdapterError, Model};
use baton_kernels_cpu::Format;
use baton_kernels_cpu::f16::f32_to_f16;
use baton_synthetic::SyntheticAdapter;
use proptest::prelude::*;

use crate::{family, open, tiny};

/// The contents of a malformed file: keys, and tensors with name, dimensions, format and a number.
struct File {
    keys: Vec<(&'static str, MetaValue)>,
    tensors: Vec<(&'static str, [u64; 2], Format, f32)>,
}

const A: &str = "blk.1.attn_q.weight.lora_a";
const B: &str = "blk.1.attn_q.weight.lora_b";

impl File {
    /// Returns a change of rank 2 of a matrix of 96 rows and 64 columns.
    fn new() -> File {
        File {
            keys: vec![
                ("general.type", "adapter".into()),
                (TYPE_KEY, "lora".into()),
                ("general.architecture", "llama".into()),
                (ALPHA_KEY, 4f32.into()),
            ],
            tensors: vec![(A, [64, 2], Format::F32, 0.1), (B, [2, 96], Format::F16, 0.1)],
        }
    }

    fn set(&mut self, key: &'static str, value: Option<MetaValue>) {
        self.keys.retain(|(known, _)| *known != key);
        self.keys.extend(value.map(|value| (key, value)));
    }

    fn bytes(&self) -> Vec<u8> {
        let mut writer = GgufWriter::new();
        for (key, value) in &self.keys {
            writer.set(key, value.clone());
        }
        for (name, dims, format, value) in &self.tensors {
            let count = dims.iter().product::<u64>() as usize;
            let bytes = match format {
                Format::F16 => f32_to_f16(*value).to_le_bytes().repeat(count),
                Format::F32 => value.to_le_bytes().repeat(count),
                other => vec![0; count / other.block_len() * other.block_bytes()],
            };
            writer.tensor(name, dims, *format, bytes).unwrap();
        }
        writer.to_bytes().unwrap()
    }

    fn open(&self) -> Result<(), AdapterError> {
        let model = open(&tiny("llama", Format::F32));
        Adapter::from_gguf(Gguf::from_bytes(self.bytes()).unwrap(), &model).map(drop)
    }
}

#[track_caller]
fn refused(change: impl FnOnce(&mut File), want: &str) {
    let mut file = File::new();
    change(&mut file);
    let err = file.open().expect_err(want);
    let source = std::error::Error::source(&err).map(|err| format!(": {err}")).unwrap_or_default();
    let text = format!("{err}{source}");
    assert!(text.contains(want), "`{text}` does not say `{want}`");
}

#[test]
fn each_fault_has_its_error() {
    File::new().open().unwrap();
    let set = |key, value: MetaValue| move |file: &mut File| file.set(key, Some(value));
    refused(|f| f.set("general.type", None), "`general.type` is ``, must be `adapter`");
    refused(set("general.type", "model".into()), "`general.type` is `model`, must be `adapter`");
    refused(set(TYPE_KEY, "control".into()), "`adapter.type` is `control`, must be `lora`");
    refused(set("general.architecture", "qwen2".into()), "is `qwen2`, must be `llama`");
    refused(set("general.architecture", 3u32.into()), "metadata key `general.architecture` is");
    refused(|f| f.set(ALPHA_KEY, None), "metadata key `adapter.lora.alpha` is missing");
    refused(set(ALPHA_KEY, f32::NAN.into()), "`adapter.lora.alpha` is NaN, must be finite");
    refused(
        set("adapter.alora.invocation_tokens", vec![1u32].into()),
        "adapters with `adapter.alora.invocation_tokens` are not supported",
    );
    refused(|f| f.tensors.clear(), "adapter has 0 tensors, of which 0 are `lora_a`");
    refused(|f| f.tensors.truncate(1), "tensor `blk.1.attn_q.weight.lora_b` is missing");
    refused(|f| f.tensors = f.tensors.split_off(1), "adapter has 1 tensors, of which 0 are `lora_a`");
    refused(
        |f| f.tensors.push(("blk.0.ffn_up.weight.lora_b", [2, 96], Format::F32, 0.0)),
        "adapter has 3 tensors, of which 1 are `lora_a`",
    );
    for name in [
        "output.weight.lora_a",
        "token_embd.weight.lora_a",
        "blk.0.attn_norm.weight",
        "blk.0.attn_qkv.weight.lora_a",
        "blk.+0.attn_q.weight.lora_a",
        "blk.00.attn_q.weight.lora_a",
        "blk.0.attn_q.lora_a",
    ] {
        let extra = |f: &mut File| f.tensors.push((name, [64, 2], Format::F32, 0.0));
        refused(extra, &format!("tensor `{name}` is no `blk.N.NAME.weight.lora_a`"));
    }
    refused(
        |f| f.tensors.push(("blk.3.attn_q.weight.lora_a", [64, 2], Format::F32, 0.0)),
        "tensor `blk.3.attn_q.weight.lora_a`: the model has 3 layers",
    );
    refused(|f| f.tensors[0].1 = [65, 2], "has dimensions [65, 2], must be [64, rank]");
    refused(|f| f.tensors[0].1 = [64, 65], "has rank 65, at most 64 makes sense");
    refused(|f| f.tensors[1].1 = [3, 96], "has dimensions [3, 96], must be [2, 96]");
    refused(|f| f.tensors[1].1 = [2, 95], "has dimensions [2, 95], must be [2, 96]");
    refused(|f| f.tensors[0].2 = Format::Q4_0, "has type Q4_0, must be F32, F16 or Q8_0");
    refused(|f| f.tensors[0].3 = f32::INFINITY, "tensor `blk.1.attn_q.weight.lora_a` holds inf at 0");
    refused(|f| f.tensors[1].3 = f32::NAN, "tensor `blk.1.attn_q.weight.lora_b` holds NaN at 0");
}

#[test]
fn a_number_far_inside_is_found_and_named() {
    let mut bytes = File::new().bytes();
    // The last number of the file is the last of B.
    let end = bytes.len() - bytes.iter().rev().take_while(|byte| **byte == 0).count().min(32);
    bytes[end - 2..end].copy_from_slice(&0x7c00u16.to_le_bytes());
    let model = open(&tiny("llama", Format::F32));
    let err = Adapter::from_gguf(Gguf::from_bytes(bytes).unwrap(), &model).unwrap_err();
    assert!(matches!(err, AdapterError::Value { at: 191, .. }), "{err}");
}

#[test]
fn a_scale_that_is_no_number_is_found_and_named() {
    let mut file = File::new();
    file.tensors[0].2 = Format::Q8_0;
    file.open().unwrap();
    let mut bytes = file.bytes();
    // The tensors before the last one, F16, and the alignment between them.
    let last = 2 * 96 * 2;
    let start = bytes.len() - last - 2 * 64 / 32 * 34;
    let start = start / 32 * 32;
    bytes[start + 34..start + 36].copy_from_slice(&0x7e00u16.to_le_bytes());
    let model = open(&tiny("llama", Format::F32));
    let err = Adapter::from_gguf(Gguf::from_bytes(bytes).unwrap(), &model).unwrap_err();
    assert!(matches!(err, AdapterError::Value { at: 32, .. }), "{err}");
}

#[test]
fn mixtures_of_experts_have_no_adapters() {
    let dense = open(&tiny("llama", Format::F32));
    let bytes = SyntheticAdapter::of_seed(1).to_gguf(dense.config()).unwrap();
    let mixture = open(&family("mixtral", Format::F32));
    let err = Adapter::from_gguf(Gguf::from_bytes(bytes).unwrap(), &mixture).unwrap_err();
    assert!(matches!(err, AdapterError::Experts { family: "llama" }), "{err}");
}

static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(|| File::new().bytes());
static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| open(&tiny("llama", Format::F32)));

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_bytes_give_an_adapter_or_an_error(
        cut in 0..4000usize,
        changes in prop::collection::vec((0..600usize, any::<u8>()), 0..4),
    ) {
        let mut bytes = WHOLE.clone();
        bytes.truncate(bytes.len().saturating_sub(cut.saturating_sub(3000)));
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        if let Ok(gguf) = Gguf::from_bytes(bytes) {
            // Both results are fine; a panic is not.
            drop(Adapter::from_gguf(gguf, &MODEL));
        }
    }
}
