//! The engine gives the same logits on the imported file as the class gives on the folder.

use std::num::NonZeroUsize;
use std::sync::Arc;

use baton_engine::engine::KvFormat;
use baton_engine::{Engine, EngineOptions, Model, StepSeq, Wanted};
use baton_import::Quantization;
use candle_core::DType;
use serde_json::json;

use crate::folder::{Folder, LAYERS};
use crate::reference::{self, Traits};

/// Returns token ids with near and far repeats.
pub(crate) fn ids() -> Vec<u32> {
    (0..40u32).map(|i| (i * 37 + i * i % 11) % 256).collect()
}

/// Returns options with a KV cache of floats: the references round nothing.
pub(crate) fn exact() -> EngineOptions {
    EngineOptions { threads: NonZeroUsize::new(2), kv_format: KvFormat::F32, ..EngineOptions::default() }
}

pub(crate) fn engine_logits(model: &Arc<Model>) -> Vec<f32> {
    let mut engine = Engine::new(Arc::clone(model), exact()).unwrap();
    let seq = engine.create();
    let ids = ids();
    let batch = [StepSeq { seq, ids: &ids, logits: Wanted::All, capture: None }];
    engine.step(&batch, &mut ()).unwrap().remove(0).logits
}

/// Returns the largest difference, in standard deviations of the logits.
pub(crate) fn distance(have: &[f32], want: &[f32]) -> f32 {
    assert_eq!(have.len(), want.len());
    let mean = want.iter().sum::<f32>() / want.len() as f32;
    let deviation = (want.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / want.len() as f32).sqrt();
    assert!(deviation > 0.1, "the reference is lively: {deviation}");
    let largest = have.iter().zip(want).map(|(have, want)| (have - want).abs()).fold(0.0, f32::max);
    largest / deviation
}

/// Imports the folder as it is and compares the logits. `limit` is in standard deviations.
#[track_caller]
pub(crate) fn check(folder: &Folder, traits: Traits, quantization: Quantization, limit: f32) {
    folder.write();
    folder.import(quantization).unwrap();
    let far = distance(&engine_logits(&folder.model()), &reference::logits(folder, traits, &ids(), &[]));
    assert!(far < limit, "{quantization}: {far} standard deviations, at most {limit}");
}

/// The engine keeps keys and values as f16; the reference does not.
pub(crate) const EXACT: f32 = 0.02;

#[test]
fn llama_as_it_is_and_quantized() {
    let folder = Folder::new("LlamaForCausalLM");
    check(&folder, Traits::default(), Quantization::F32, EXACT);
    check(&folder, Traits::default(), Quantization::F16, EXACT);
    check(&folder, Traits::default(), Quantization::Q8_0, 0.2);
}

#[test]
fn rows_left_as_halves_would_be_far_off() {
    let mut folder = Folder::new("LlamaForCausalLM");
    folder.write();
    folder.import(Quantization::F32).unwrap();
    // The reference with reordered rows of one query matrix: the effect of a missing or doubled permutation.
    let name = "model.layers.0.self_attn.q_proj.weight";
    let halves = folder.tensors[name].reshape((4, 2, 8, 64)).unwrap().transpose(1, 2).unwrap();
    folder.tensors.insert(name.to_owned(), halves.reshape((64, 64)).unwrap());
    let far = distance(
        &engine_logits(&folder.model()),
        &reference::logits(&folder, Traits::default(), &ids(), &[]),
    );
    assert!(far > 0.5, "{far}");
}

#[test]
fn weights_of_16_bits_and_in_several_files() {
    for dtype in [DType::F16, DType::BF16] {
        let mut folder = Folder::new("MistralForCausalLM");
        folder.stored_as(dtype);
        folder.write_sharded();
        folder.import(Quantization::F32).unwrap();
        let want = reference::logits(&folder, Traits::default(), &ids(), &[]);
        let far = distance(&engine_logits(&folder.model()), &want);
        assert!(far < EXACT, "{dtype:?}: {far}");
    }
}

#[test]
fn llama_with_stretched_positions() {
    let mut folder = Folder::new("LlamaForCausalLM");
    folder.config["rope_scaling"] = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
    folder.write();
    folder.import(Quantization::F32).unwrap();
    // By the definition: wavelengths below 16 stay, those above 64 are divided by 8, and those between are
    // blended.
    let divisors: Vec<f32> = (0..8)
        .map(|pair| {
            let wavelength = std::f64::consts::TAU * 10_000f64.powf(f64::from(pair) / 8.0);
            let smooth = ((64.0 / wavelength - 1.0) / 3.0).clamp(0.0, 1.0);
            (1.0 / ((1.0 - smooth) / 8.0 + smooth)) as f32
        })
        .collect();
    assert!(divisors[0] == 1.0 && divisors[7] == 8.0 && divisors.iter().any(|d| *d > 1.0 && *d < 8.0));
    let want = reference::logits(&folder, Traits::default(), &ids(), &divisors);
    let far = distance(&engine_logits(&folder.model()), &want);
    assert!(far < EXACT, "{far}");
    let unscaled = reference::logits(&folder, Traits::default(), &ids(), &[]);
    assert!(distance(&unscaled, &want) > 0.1, "the scaling matters at these positions");
}

#[test]
fn llama_with_one_table_for_both_ends() {
    let mut folder = Folder::new("LlamaForCausalLM");
    folder.config["tie_word_embeddings"] = true.into();
    // Some programs save it anyway.
    let table = folder.tensors["model.embed_tokens.weight"].clone();
    folder.tensors.insert("lm_head.weight".to_owned(), table);
    check(&folder, Traits::default(), Quantization::F32, EXACT);
}

#[test]
fn qwen2_with_its_biases() {
    check(&Folder::new("Qwen2ForCausalLM"), Traits::default(), Quantization::F32, EXACT);
}

#[test]
fn a_mix_of_formats() {
    let folder = Folder::wide("LlamaForCausalLM");
    folder.write();
    let summary = folder.import(Quantization::Q4_K_M).unwrap();
    // The second of 2 layers is in the last eighth, so its values and down projection have more bits; the
    // head has too.
    let formats: Vec<_> = summary.formats.iter().map(|(name, n)| (*name, *n)).collect();
    assert_eq!(formats, [("F32", 1 + 2 * LAYERS), ("Q4_K", 1 + 7 * LAYERS - 2), ("Q6_K", 1 + 2)]);
    assert_eq!(summary.n_tensors, 3 + 9 * LAYERS);
}

/// Returns the root mean square of the differences, in standard deviations of the logits.
fn spread(have: &[f32], want: &[f32]) -> f32 {
    let sum = |values: &mut dyn Iterator<Item = f32>| values.map(|x| x * x).sum::<f32>();
    let mean = want.iter().sum::<f32>() / want.len() as f32;
    let differences = sum(&mut have.iter().zip(want).map(|(have, want)| have - want));
    (differences / sum(&mut want.iter().map(|want| want - mean))).sqrt()
}

#[test]
fn every_quantization_costs_what_its_bits_do() {
    let folder = Folder::wide("LlamaForCausalLM");
    folder.write();
    let want = reference::logits(&folder, Traits::default(), &ids(), &[]);
    let mut last = (String::new(), u64::MAX);
    for quantization in Quantization::all() {
        let summary = folder.import(quantization).unwrap();
        // In addition to the weights' rounding, activations are rounded to 8 bits, which alone makes about
        // 0.03.
        let limit = match quantization.to_string().as_bytes() {
            [b'F', ..] | [b'B', ..] => 0.01,
            [b'Q', b'8', ..] => 0.05,
            [b'Q', b'6', ..] => 0.1,
            [b'Q', b'5', ..] => 0.25,
            [b'Q', b'4', ..] => 0.45,
            [b'Q', b'3', ..] => 0.8,
            _ => 1.2,
        };
        let far = spread(&engine_logits(&folder.model()), &want);
        assert!(far < limit, "{quantization}: {far} standard deviations, at most {limit}");
        let fewer = summary.file_bytes <= last.1;
        assert!(
            fewer || quantization.to_string().ends_with("_1"),
            "{quantization} is no smaller than {}",
            last.0
        );
        last = (quantization.to_string(), summary.file_bytes);
    }
}

#[test]
fn rows_that_blocks_do_not_fit() {
    let folder = Folder::new("LlamaForCausalLM");
    folder.write();
    let summary = folder.import(Quantization::Q4_K_M).unwrap();
    // Rows of 64 and 96 are not blocks of 256, so Q4_K becomes Q5_0 and Q6_K becomes Q8_0.
    let formats: Vec<_> = summary.formats.iter().map(|(name, n)| (*name, *n)).collect();
    assert_eq!(formats, [("F32", 1 + 2 * LAYERS), ("Q5_0", 1 + 7 * LAYERS - 2), ("Q8_0", 1 + 2)]);
    let want = reference::logits(&folder, Traits::default(), &ids(), &[]);
    let far = spread(&engine_logits(&folder.model()), &want);
    assert!(far < 0.2, "{far}");
}
