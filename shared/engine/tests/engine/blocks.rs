//! Blocks of keys and values that leave an engine and enter another: no bit of a logit changes.

use std::sync::Arc;

use baton_engine::engine::{BlockError, KvFormat};
use baton_engine::{BLOCK_TOKENS, EngineOptions, GpuLayers, GpuUse, Kept, KvError, Model, SlidingWindow};
use baton_kernels_cpu::Format;
use baton_kernels_gpu::Device;
use baton_kernels_gpu::cases::HostDevice;

use crate::{FAMILIES, all_logits, assert_same_bits, engine, family, open, prompt, tiny};

/// Tokens of a prompt: three whole blocks and a part.
const PROMPT: usize = 3 * BLOCK_TOKENS + 11;

fn on_gpu(layers: GpuLayers) -> EngineOptions {
    let device: Arc<dyn Device> = Arc::new(HostDevice::new(None));
    EngineOptions { gpu: Some(GpuUse { device, layers, on_loss: |_| {} }), ..EngineOptions::default() }
}

/// Carries the whole blocks of a prompt from one engine to another, and compares what both compute then.
#[track_caller]
fn check(model: &Arc<Model>, options: impl Fn() -> EngineOptions, what: &str) {
    let ids = prompt(5, PROMPT);
    let whole = PROMPT / BLOCK_TOKENS;
    let mut first = engine(model, 1, options());
    let seq = first.create();
    let want = all_logits(&mut first, seq, &ids);
    let blocks: Vec<_> = (0..whole).map(|index| first.block(seq, index).unwrap()).collect();
    assert!(blocks.iter().all(|block| block.len() == first.block_bytes()), "{what}");

    let mut second = engine(model, 2, options());
    assert_eq!(second.block_kind().unwrap(), first.block_kind().unwrap(), "{what}");
    // In two parts, behind a sequence that has the first blocks of the pool.
    let other = second.create();
    all_logits(&mut second, other, &prompt(6, 40));
    let known = second.create();
    for range in [0..1, 1..whole] {
        let tokens = range.start * BLOCK_TOKENS..range.end * BLOCK_TOKENS;
        second.append_blocks(known, &ids[tokens], &blocks[range]).unwrap();
    }
    let rest = &ids[whole * BLOCK_TOKENS..];
    let computed = want.len() - rest.len() * model.config().vocab_len;
    assert_same_bits(&all_logits(&mut second, known, rest), &want[computed..], what);
    assert_eq!(second.ids(known).unwrap(), ids, "{what}");
    // What came so is found as if it had been computed, and leaves the same.
    let third = second.create();
    assert_eq!(second.reuse_prefix(third, &ids), PROMPT - 1 - (PROMPT - 1) % BLOCK_TOKENS, "{what}");
    for (index, block) in blocks.iter().enumerate() {
        assert!(second.block(third, index).unwrap() == *block, "{what}: block {index}");
    }
}

#[test]
fn every_family_goes_on_behind_blocks_that_it_did_not_compute() {
    let mut refused = 0;
    for name in FAMILIES {
        let model = open(&family(name, Format::Q8_0));
        if model.config().recurrent.is_some() {
            let engine = engine(&model, 1, EngineOptions::default());
            let reason = engine.block_kind().unwrap_err().to_string();
            assert!(reason.contains("recurrent layers"), "{name}: {reason}");
            refused += 1;
            continue;
        }
        check(&model, EngineOptions::default, name);
    }
    assert_eq!(refused, 5);
}

#[test]
fn every_format_and_every_place_of_keys_and_values_keeps_its_bits() {
    let model = open(&tiny("llama", Format::F32));
    for kv_format in KvFormat::ALL {
        check(&model, || EngineOptions { kv_format, ..EngineOptions::default() }, &kv_format.to_string());
    }
    check(&model, || on_gpu(GpuLayers::Fit), "all layers on a GPU");
    check(&model, || on_gpu(GpuLayers::Only(vec![1])), "one layer on a GPU");
}

#[test]
fn engines_that_compute_in_another_way_are_another_kind() {
    let model = open(&tiny("llama", Format::F32));
    let window = Some(SlidingWindow { tokens: 40, sinks: 0 });
    let mut kinds: Vec<String> = [
        EngineOptions::default(),
        EngineOptions { kv_format: KvFormat::Q8, ..EngineOptions::default() },
        EngineOptions { window, ..EngineOptions::default() },
        on_gpu(GpuLayers::Fit),
        on_gpu(GpuLayers::Only(vec![1])),
    ]
    .map(|options| engine(&model, 1, options).block_kind().unwrap())
    .into();
    let all = kinds.len();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds.len(), all, "{kinds:?}");
    // Threads change no bit.
    let kind = |threads| engine(&model, threads, EngineOptions::default()).block_kind().unwrap();
    assert_eq!(kind(1), kind(3));
}

#[test]
fn what_is_no_whole_block_is_refused_and_nothing_has_happened() {
    let model = open(&tiny("llama", Format::F32));
    let (ids, options) = (prompt(5, PROMPT), || EngineOptions { kv_tokens: 160, ..EngineOptions::default() });
    let mut engine = engine(&model, 1, options());
    let seq = engine.create();
    all_logits(&mut engine, seq, &ids);
    let block = engine.block(seq, 0).unwrap();
    for index in [3, 4, 1000] {
        let err = engine.block(seq, index).unwrap_err();
        assert!(matches!(err, BlockError::NoBlock { .. }), "{index}: {err}");
    }
    let mut append =
        |seq, ids: &[u32], blocks: &[Vec<u8>]| engine.append_blocks(seq, ids, blocks).unwrap_err();
    let one = std::slice::from_ref(&block);
    assert!(matches!(append(seq, &ids[..32], one), BlockError::Unaligned { tokens: PROMPT }));
    engine.truncate(seq, 32).unwrap();
    let mut append = |ids: &[u32], blocks: &[Vec<u8>]| engine.append_blocks(seq, ids, blocks).unwrap_err();
    assert!(matches!(append(&ids[..31], one), BlockError::Bytes { tokens: 31, .. }));
    assert!(matches!(append(&ids[..32], &[block[1..].to_vec()]), BlockError::Bytes { .. }));
    let many = vec![block.clone(); 5];
    let too_many = prompt(7, 160);
    assert!(matches!(append(&too_many, &many), BlockError::Kv(KvError::KvFull { .. })));
    assert_eq!(engine.len(seq).unwrap(), 32);
    // A sequence without some of its keys and values.
    let heads = model.config().n_layers * model.config().n_kv_heads;
    let thin = engine.evict(seq, &Kept::new(&vec![(0..20).collect::<Vec<_>>(); heads]).unwrap()).unwrap();
    assert!(matches!(engine.block(thin, 0).unwrap_err(), BlockError::NoBlock { index: 0 }));
    let err = engine.append_blocks(thin, &ids[..32], one).unwrap_err();
    assert!(matches!(err, BlockError::Unaligned { .. }), "{err}");
}
