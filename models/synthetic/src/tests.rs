//! Checks files with random weights: tensors and formats match the shapes, and both ways of writing give the
//! same bytes.

use std::sync::Arc;

use baton_engine::gguf::Gguf;
use baton_engine::{Engine, EngineOptions, Model, StepSeq, Wanted};

use super::*;

fn shaped(name: &str, quant: &str) -> SyntheticModel {
    SyntheticModel::shaped(name, Quant::find(quant).unwrap(), None, 1).unwrap()
}

/// Returns name, dimensions and type of every tensor in the model's file.
fn tensors(model: &SyntheticModel) -> Vec<(String, Vec<u64>, u32)> {
    let mut list = Vec::new();
    model.tensors(&mut Weights::new(model, Sink::List(&mut list))).unwrap();
    list
}

/// Checks how many tensors of each stored type the file has.
#[track_caller]
fn check_types(name: &str, quant: &str, want: &[(u32, usize)]) {
    let mut counts = std::collections::BTreeMap::new();
    for (_, _, ggml_type) in tensors(&shaped(name, quant)) {
        *counts.entry(ggml_type).or_insert(0) += 1;
    }
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), want, "{name} {quant}");
}

#[test]
fn formats_are_those_of_llama_quantize() {
    // 16 layers: 8 of them have value and down projections in Q6_K, and so has the tied table.
    check_types("llama-1b", "Q4_K_M", &[(0, 34), (12, 96), (14, 17)]);
    check_types("qwen-0.5b", "Q8_0", &[(0, 121), (8, 169)]);
    check_types("llama-8b", "q4_k_m", &[(0, 66), (12, 193), (14, 33)]);
}

#[test]
fn weights_add_up_to_the_published_counts() {
    for (name, billions) in [
        ("llama-1b", 1.236),
        ("llama-3b", 3.213),
        ("llama-8b", 8.030),
        ("llama-30b", 32.529),
        ("qwen-0.5b", 0.494),
        ("qwen-1.5b", 1.544),
        ("qwen-7b", 7.616),
    ] {
        let count: u64 =
            tensors(&shaped(name, "F16")).iter().map(|(_, dims, _)| dims.iter().product::<u64>()).sum();
        let have = count as f64 / 1e9;
        assert!((have - billions).abs() < 0.001, "{name}: {have} billion weights");
    }
    assert!(SyntheticModel::shaped("llama-2b", Quant::Q4KM, None, 1).is_none());
    assert_eq!(Quant::find("Q4_X"), None);
}

#[test]
fn rotary_divisors_are_those_of_llama_3() {
    let divisors = shaped("llama-1b", "F16").rope_divisors.unwrap();
    assert_eq!(divisors.len(), 32);
    assert!(divisors[..15].iter().all(|divisor| *divisor == 1.0), "{divisors:?}");
    assert!(divisors[18..].iter().all(|divisor| (divisor - 32.0).abs() < 1e-5), "{divisors:?}");
    assert!(divisors[15..18].windows(2).all(|pair| pair[0] < pair[1]), "{divisors:?}");
}

/// Returns a model whose embedding table is large enough to be drawn from the pool.
fn pooled(quant: Quant) -> SyntheticModel {
    SyntheticModel {
        vocab_len: 9000,
        d_model: 512,
        endless: true,
        ..SyntheticModel::small("llama", quant, 3)
    }
}

#[test]
fn pooled_matrices_are_alive_and_end_tokens_are_not() {
    let bytes = pooled(Quant::Q4KM).to_gguf().unwrap();
    assert_eq!(bytes, pooled(Quant::Q4KM).to_gguf().unwrap(), "the same seed gives the same bytes");
    let model = Model::from_gguf(Gguf::from_bytes(bytes).unwrap()).unwrap();
    let mut engine = Engine::new(Arc::clone(&model), EngineOptions::default()).unwrap();
    let seq = engine.create();
    let batch = [StepSeq { seq, ids: &[5, 6, 7], logits: Wanted::Last, capture: None }];
    let logits = engine.step(&batch, &mut ()).unwrap().remove(0).logits;
    assert_eq!(logits[END_TOKEN as usize], 0.0);
    let mean = logits.iter().sum::<f32>() / logits.len() as f32;
    let variance = logits.iter().map(|logit| (logit - mean).powi(2)).sum::<f32>() / logits.len() as f32;
    assert!(mean.abs() < 0.5 && (4.0..64.0).contains(&variance), "mean {mean}, variance {variance}");
    let mut sorted: Vec<u32> = logits.iter().map(|logit| logit.to_bits()).collect();
    sorted.sort_unstable();
    sorted.dedup();
    assert!(sorted.len() > 8900, "only {} logits differ: rows repeat", sorted.len());
}

#[test]
fn words_are_distinct() {
    let words: std::collections::HashSet<String> = (VOCAB_MIN as usize..160_000).map(word).collect();
    assert_eq!(words.len(), 160_000 - VOCAB_MIN as usize);
}

#[test]
fn streamed_and_whole_files_are_equal() {
    let model = pooled(Quant::Q4KM);
    let (mut streamed, mut last) = (Vec::new(), (0, 1));
    model.write_to(&mut streamed, |written, total| last = (written, total)).unwrap();
    assert!(streamed == model.to_gguf().unwrap(), "streamed and whole files differ");
    assert_eq!(last.0, last.1, "progress ends at the total");
    let head = streamed.len() as u64 - last.1;
    assert!(head < 1 << 20, "{head} bytes are not tensor data");
}
