//! A token's logits have the same bits for any batch, chunks and threads, and however its prefix came into
//! the cache.

use std::sync::Arc;

use baton_engine::engine::KvFormat;
use baton_engine::{Engine, EngineOptions, Model, SeqId, SlidingWindow, StepSeq, Wanted};
use baton_kernels_cpu::Format;
use baton_synthetic::SyntheticModel;
use proptest::prelude::*;

use crate::{all_logits, assert_same_bits, engine, family, open, prompt, ragged, tiny};

/// Runs a prompt in the simplest way: token by token, alone, on one thread.
fn plain(model: &Arc<Model>, options: &EngineOptions, ids: &[u32]) -> Vec<f32> {
    let mut engine = engine(model, 1, options.clone());
    let seq = engine.create();
    ids.iter().flat_map(|id| all_logits(&mut engine, seq, &[*id])).collect()
}

fn chunked(engine: &mut Engine, seq: SeqId, ids: &[u32], chunk: usize) -> Vec<f32> {
    ids.chunks(chunk).flat_map(|ids| all_logits(engine, seq, ids)).collect()
}

fn check_chunks_and_threads(synthetic: &SyntheticModel, options: &EngineOptions) {
    let model = open(synthetic);
    let ids = prompt(1, 140);
    let want = plain(&model, options, &ids);
    for (threads, chunk) in [(1, 140), (2, 33), (3, 64), (4, 140)] {
        let mut engine = engine(&model, threads, options.clone());
        let seq = engine.create();
        let what = format!("{} {threads} threads, chunks of {chunk}", synthetic.family);
        assert_same_bits(&chunked(&mut engine, seq, &ids, chunk), &want, &what);
    }
}

#[test]
fn chunks_and_threads_change_no_bit() {
    let old = ["mixtral", "qwen2moe", "qwen3", "qwen3moe", "gemma", "gemma3", "phi3"];
    let new = [
        "llama-biased",
        "mistral3",
        "smollm3",
        "granitemoe",
        "glm4",
        "gemma2",
        "gemma4",
        "gemma4-shared",
        "gemma4-experts",
        "gpt-oss",
        "deepseek2",
        "deepseek2-joined",
        "lfm2",
        "lfm2moe",
        "qwen3next",
        "qwen35",
    ];
    for name in old.into_iter().chain(new) {
        for format in [Format::F32, Format::Q8_0] {
            check_chunks_and_threads(&family(name, format), &EngineOptions::default());
        }
    }
    for family in ["llama", "qwen2"] {
        for format in Format::ALL {
            let model = match format.block_len() {
                256 => SyntheticModel::small(family, format, 2),
                _ => tiny(family, format),
            };
            check_chunks_and_threads(&model, &EngineOptions::default());
        }
    }
}

#[test]
fn windows_and_formats_of_the_cache_change_no_bit_either() {
    for (window, kv_format) in [
        (Some(SlidingWindow { tokens: 40, sinks: 4 }), KvFormat::F32),
        (Some(SlidingWindow { tokens: 7, sinks: 0 }), KvFormat::F16),
        (None, KvFormat::F16),
        (Some(SlidingWindow { tokens: 40, sinks: 4 }), KvFormat::Q8),
        (None, KvFormat::Q8),
        (Some(SlidingWindow { tokens: 40, sinks: 4 }), KvFormat::Q4),
        (None, KvFormat::Q4),
    ] {
        let options = EngineOptions { window, kv_format, ..EngineOptions::default() };
        check_chunks_and_threads(&tiny("qwen2", Format::Q8_0), &options);
    }
}

/// Checks logits after a fork, a cut and a known prefix.
pub(crate) fn check_ways_of_a_prefix(model: &Arc<Model>, threads: usize, options: EngineOptions) {
    let (first, second) = (prompt(1, 120), [&prompt(1, 120)[..75], &prompt(2, 40)].concat());
    let vocab_len = model.config().vocab_len;
    let (want_first, want_second) = (plain(model, &options, &first), plain(model, &options, &second));
    let mut engine = engine(model, threads, options);
    let parent = engine.create();
    all_logits(&mut engine, parent, &first[..90]);
    let child = engine.fork(parent, 75).unwrap();
    let own = all_logits(&mut engine, child, &second[75..]);
    assert_same_bits(&own, &want_second[75 * vocab_len..], "fork inside a block");
    let own = all_logits(&mut engine, parent, &first[90..]);
    assert_same_bits(&own, &want_first[90 * vocab_len..], "parent after its fork has written");
    engine.truncate(parent, 75).unwrap();
    let own = all_logits(&mut engine, parent, &second[75..]);
    assert_same_bits(&own, &want_second[75 * vocab_len..], "cut, then another end");
    engine.release(parent);
    engine.release(child);
    let again = engine.create();
    let known = engine.reuse_prefix(again, &second);
    assert_eq!(known, 96, "whole blocks of a prompt of 115 tokens");
    let own = all_logits(&mut engine, again, &second[known..]);
    assert_same_bits(&own, &want_second[known * vocab_len..], "prefix from the index");
}

#[test]
fn the_way_a_prefix_came_into_the_cache_changes_no_bit() {
    check_ways_of_a_prefix(&open(&tiny("llama", Format::Q8_0)), 2, EngineOptions::default());
}

/// A script of steps: for each step, how many tokens every sequence advances (0: not in the batch).
fn script() -> impl Strategy<Value = Vec<[usize; 3]>> {
    prop::collection::vec([0..40usize, 0..3usize, 0..90usize], 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn batches_change_no_bit(
        script in script(),
        threads in 1..4usize,
        name in prop::sample::select(vec!["llama", "qwen2", "mixtral", "qwen2moe", "gemma3", "gemma4", "gemma4-shared", "phi3", "lfm2", "qwen35moe"]),
    ) {
        let model = open(&family(name, Format::Q8_0));
        let options = EngineOptions::default();
        let prompts = [prompt(4, 130), prompt(5, 20), prompt(6, 130)];
        let vocab_len = model.config().vocab_len;
        let mut engine = engine(&model, threads, options.clone());
        let seqs = [engine.create(), engine.create(), engine.create()];
        let have = ragged(&mut engine, seqs, &prompts, &script);
        for at in 0..3 {
            let done = have[at].len() / vocab_len;
            let want = plain(&model, &options, &prompts[at][..done]);
            assert_same_bits(&have[at], &want, "a sequence in ragged batches");
        }
    }
}

#[test]
fn repacked_weights_change_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    let ids: Vec<u32> = (0..40).map(|i| i * 5 % 250).collect();
    for (name, format) in [("llama", Format::Q4K), ("qwen2", Format::Q8_0), ("llama", Format::F16)] {
        let path = folder.path().join("m.gguf");
        let bytes = SyntheticModel::small(name, format, 3).to_gguf().unwrap();
        std::fs::write(&path, &bytes).unwrap();
        let half = bytes.len() as u64 / 2;
        let logits = |budget: u64| {
            let model = Model::open_repacked(&path, budget).unwrap();
            let mut engine = Engine::new(model, EngineOptions::default()).unwrap();
            let seq = engine.create();
            let step = StepSeq { seq, ids: &ids, logits: Wanted::All, capture: None };
            let out = engine.step(&[step], &mut ()).unwrap();
            out[0].logits.iter().map(|v| v.to_bits()).collect::<Vec<u32>>()
        };
        let mapped = logits(0);
        assert_eq!(logits(half), mapped, "{name} {format:?}, half of it repacked");
        assert_eq!(logits(u64::MAX), mapped, "{name} {format:?}, all of it repacked");
    }
}
