//! Keys and values that leave an engine as rows and enter another: what follows has the bits of the evicted
//! sequence there.

use std::sync::Arc;

use baton_engine::engine::KvFormat;
use baton_engine::rows::kv_identity;
use baton_engine::{
    Engine, EngineOptions, Kept, KvError, KvRows, Model, PrefixScope, RowsError, SeqId, SlidingWindow,
};
use baton_kernels_cpu::Format;

use crate::{FAMILIES, all_logits, assert_same_bits, engine, family, open, prompt, tiny};

/// Tokens whose keys and values are known.
const PROMPT: usize = 100;

fn options(kv_format: KvFormat) -> EngineOptions {
    EngineOptions { kv_format, ..EngineOptions::default() }
}

/// Positions that are kept: runs of different lengths, as sentences are.
fn chosen() -> Vec<usize> {
    (0..9).chain(20..33).chain(40..41).chain(63..65).chain(90..PROMPT).collect()
}

/// Carries rows out of a sequence.
fn exported(from: &Engine, seq: SeqId, positions: &[usize], format: KvFormat) -> KvRows {
    let layers = from.kv_widths().unwrap().len();
    let mut rows = KvRows::new(format, positions.len(), layers);
    for layer in 0..layers {
        for some in positions.chunks(7) {
            let mut bytes = Vec::new();
            from.export_rows(seq, layer, some, format, &mut bytes).unwrap();
            rows.push(layer, &bytes);
        }
    }
    rows
}

/// Compares what follows imported rows with what follows the evicted sequence that they came from.
#[track_caller]
fn check(model: &Arc<Model>, kv_format: KvFormat, format: KvFormat, what: &str) {
    let (ids, mut positions) = (prompt(5, 150), chosen());
    let mut first = engine(model, 1, options(kv_format));
    let seq = first.create();
    all_logits(&mut first, seq, &ids[..PROMPT]);
    if let Some(window) = model.config().largest_window() {
        let few = exported(&first, seq, &positions[..30], format);
        let refused = first.import_rows(PrefixScope::default(), None, &ids[..PROMPT], &few);
        assert!(matches!(refused, Err(RowsError::Window { kept: 30, seen: 39 })), "{what}: {refused:?}");
        positions = window.with_seen(&positions, PROMPT);
    }
    let heads = first.kv_widths().unwrap().iter().map(|width| width.heads).sum();
    let all = vec![positions.clone(); heads];
    let thin = first.evict(seq, &Kept::new(&all).unwrap()).unwrap();
    let rows = exported(&first, seq, &positions, format);
    let want = all_logits(&mut first, thin, &ids[PROMPT..]);

    let mut second = engine(model, 2, options(kv_format));
    let other = second.create();
    all_logits(&mut second, other, &prompt(6, 40));
    let moved = second.import_rows(PrefixScope::default(), None, &ids[..PROMPT], &rows).unwrap();
    assert_eq!(second.len(moved).unwrap(), PROMPT, "{what}");
    // One token first, as a prompt's last one, then chunks.
    let mut have = Vec::new();
    for part in [&ids[PROMPT..=PROMPT], &ids[PROMPT + 1..PROMPT + 20], &ids[PROMPT + 20..]] {
        have.extend(all_logits(&mut second, moved, part));
    }
    assert_same_bits(&have, &want, what);
    // Others never find its blocks.
    second.release(other);
    let again = second.create();
    assert_eq!(second.reuse_prefix(again, &ids), 0, "{what}");
}

#[test]
fn moved_rows_give_the_bits_of_the_evicted_sequence() {
    let model = open(&tiny("llama", Format::Q8_0));
    check(&model, KvFormat::F32, KvFormat::F32, "f32");
    check(&model, KvFormat::F16, KvFormat::F16, "f16");
    check(&model, KvFormat::F16, KvFormat::F32, "f16 as f32");
}

#[test]
fn every_family_moves_its_rows_or_says_why_not() {
    let mut refused = Vec::new();
    for name in FAMILIES {
        let model = open(&family(name, Format::Q8_0));
        match engine(&model, 1, EngineOptions::default()).kv_widths() {
            Ok(_) => check(&model, KvFormat::F16, KvFormat::F16, name),
            Err(RowsError::Kind { .. }) => refused.push(name),
            Err(err) => panic!("{name}: {err}"),
        }
    }
    assert_eq!(
        refused,
        ["lfm2", "lfm2moe", "qwen3next", "qwen35", "qwen35moe"],
        "those with recurrent layers"
    );
}

#[test]
fn rounded_rows_are_near_what_was_computed() {
    let model = open(&tiny("llama", Format::F32));
    let ids = prompt(5, 150);
    let mut errors = Vec::new();
    for format in KvFormat::ALL {
        let mut first = engine(&model, 1, options(KvFormat::F32));
        let seq = first.create();
        all_logits(&mut first, seq, &ids[..PROMPT]);
        let all: Vec<usize> = (0..PROMPT).collect();
        let rows = exported(&first, seq, &all, format);
        let moved = first.import_rows(PrefixScope::default(), None, &ids[..PROMPT], &rows).unwrap();
        let have = all_logits(&mut first, moved, &ids[PROMPT..]);
        let want = all_logits(&mut first, seq, &ids[PROMPT..]);
        let error: f32 = have.iter().zip(&want).map(|(have, want)| (have - want).powi(2)).sum();
        errors.push(error / want.iter().map(|want| want.powi(2)).sum::<f32>());
    }
    assert_eq!(errors[0], 0.0, "{errors:?}");
    assert!(errors.is_sorted() && errors[1] < 1e-6 && errors[2] < 1e-3 && errors[3] < 0.1, "{errors:?}");
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_has_happened() {
    let model = open(&tiny("llama", Format::F32));
    let (ids, positions) = (prompt(5, 150), chosen());
    let mut one = engine(&model, 1, EngineOptions { kv_tokens: 160, ..EngineOptions::default() });
    let seq = one.create();
    all_logits(&mut one, seq, &ids[..PROMPT]);
    let rows = exported(&one, seq, &positions, KvFormat::F16);
    let widths = one.kv_widths().unwrap();
    let free = one.free_tokens();
    let mut refused =
        |ids: &[u32], rows: &KvRows| one.import_rows(PrefixScope::default(), None, ids, rows).unwrap_err();
    // 35 tokens need two blocks, and one is free.
    let full = RowsError::Kv(KvError::KvFull { needed: 64, free: 32 });
    assert_eq!(refused(&ids[..PROMPT], &rows), full);
    let kept = positions.len();
    assert_eq!(refused(&ids[..kept - 1], &rows), RowsError::Tokens { kept, tokens: kept - 1 });
    let strange = vec![u32::MAX; PROMPT];
    assert!(matches!(refused(&strange, &rows), RowsError::Tokens { .. }));
    let none = KvRows::new(KvFormat::F16, 0, widths.len());
    assert_eq!(refused(&ids, &none), RowsError::Tokens { kept: 0, tokens: ids.len() });
    let few = KvRows::new(KvFormat::F16, kept, widths.len() - 1);
    assert!(matches!(refused(&ids, &few), RowsError::Layer { .. }));
    let mut short = rows.clone();
    short.push(1, &[0]);
    assert!(matches!(refused(&ids, &short), RowsError::Bytes { layer: 1, .. }));
    let mut faulty = KvRows::new(KvFormat::F16, kept, widths.len());
    for layer in 0..widths.len() {
        let mut bytes = rows.layer(layer).to_vec();
        if layer == 2 {
            bytes[10..12].copy_from_slice(&0x7e00u16.to_le_bytes());
        }
        faulty.push(layer, &bytes);
    }
    assert_eq!(refused(&ids, &faulty), RowsError::Value { layer: 2 });
    assert_eq!(one.free_tokens(), free);
    let mut out = Vec::new();
    let past = one.export_rows(seq, 0, &[PROMPT], KvFormat::F16, &mut out).unwrap_err();
    assert_eq!(past, RowsError::Position { position: PROMPT, cached: PROMPT });
    let unknown = one.export_rows(seq, 9, &[0], KvFormat::F16, &mut out).unwrap_err();
    assert!(matches!(unknown, RowsError::Layer { layer: 9, .. }));
    let window = Some(SlidingWindow { tokens: 64, sinks: 4 });
    let windowed = engine(&model, 1, EngineOptions { window, ..EngineOptions::default() });
    assert!(matches!(windowed.kv_widths(), Err(RowsError::Kind { .. })));
}

#[test]
fn models_have_names_of_their_own() {
    let model = |format| open(&tiny("llama", format));
    let name = kv_identity(&model(Format::F32));
    assert_eq!(name, kv_identity(&model(Format::F32)));
    assert_ne!(name, kv_identity(&model(Format::Q8_0)));
    assert_eq!(name.len(), 64);
}
