//! The engine compared with its definition in f64, for every family and option.

use baton_engine::{Capture, EngineOptions, HeadId, MeanOver, SlidingWindow, StepSeq, Wanted};
use baton_kernels_cpu::Format;
use baton_synthetic::{ExtraValue, SyntheticExperts, SyntheticModel};

use crate::{FAMILIES, all_logits, engine, exact, family, one, open, prompt, tiny};

pub(crate) mod definition;

use definition::{Rows, reference};

/// Returns `|have - want| / |want|` over all numbers.
pub(crate) fn relative_error(have: &[f32], want: &Rows) -> f64 {
    let want: Vec<f64> = want.iter().flatten().copied().collect();
    assert_eq!(have.len(), want.len());
    let gap: f64 = have.iter().zip(&want).map(|(have, want)| (f64::from(*have) - want).powi(2)).sum();
    (gap / want.iter().map(|want| want * want).sum::<f64>()).sqrt()
}

#[track_caller]
fn check(model: &SyntheticModel, options: EngineOptions, limit: f64) {
    let ids = prompt(3, 150);
    let want = reference(model, &ids, options.window);
    let opened = open(model);
    let mut engine = engine(&opened, 2, options);
    let seq = engine.create();
    let heads: Vec<HeadId> = [(0, 1), (2, 5), (2, 0), (1, 3)]
        .into_iter()
        .map(|(layer, head)| HeadId { layer, head })
        .filter(|id| id.layer < model.n_layers as usize && id.head < model.n_heads as usize)
        .filter(|id| opened.config().has_attention(id.layer))
        .collect();
    let capture = Capture { window: 25..45, heads: heads.clone(), over: MeanOver::Queries };
    let mut have = all_logits(&mut engine, seq, &ids[..100]);
    let last = one(&mut engine, seq, &ids[100..], Some(&capture));
    have.extend(last.logits);
    let error = relative_error(&have, &want.logits);
    assert!(error <= limit, "relative error {error:.2e}, limit {limit:.0e}");
    let scores = last.scores.expect("asked for");
    assert_eq!((scores.heads.as_slice(), scores.keys), (heads.as_slice(), ids.len()));
    for (id, mean) in heads.iter().zip(scores.mean.chunks(scores.keys)) {
        let full = &want.weights[id.layer][id.head];
        let total: f64 = mean.iter().map(|m| f64::from(*m)).sum();
        let all: f64 = full[125..145].iter().flatten().sum::<f64>() / 20.0;
        assert!((total - all).abs() < 1e-4, "{id:?}: weights sum to {total}");
        for key in 0..ids.len() {
            let want = full[125..145].iter().map(|row| row[key]).sum::<f64>() / 20.0;
            let have = f64::from(mean[key]);
            assert!(
                (have - want).abs() <= 3.0 * limit * (want + 0.02),
                "{id:?} key {key}: {have} for {want}"
            );
        }
    }
}

/// Each query of a window has its own mean over heads of several layers, in a chunk and by itself.
#[test]
fn each_query_has_its_own_mean_over_the_heads() {
    for name in FAMILIES {
        let model = family(name, Format::F32);
        let (ids, opened) = (prompt(3, 60), open(&model));
        let want = reference(&model, &ids, None);
        let layers = (0..opened.config().n_layers).filter(|layer| opened.config().has_attention(*layer));
        let heads: Vec<HeadId> =
            layers.flat_map(|layer| [0, 1 + layer % 2].map(|head| HeadId { layer, head })).collect();
        let mut engine = engine(&opened, 2, exact());
        let seq = engine.create();
        let mut rows: Vec<Vec<f32>> = Vec::new();
        for tokens in [0..40, 40..59, 59..60] {
            let first = tokens.len().saturating_sub(19);
            let capture =
                Capture { window: first..tokens.len(), heads: heads.clone(), over: MeanOver::Heads };
            let scores = one(&mut engine, seq, &ids[tokens.clone()], Some(&capture)).scores.unwrap();
            assert_eq!((scores.keys, scores.mean.len()), (tokens.end, (tokens.len() - first) * tokens.end));
            rows.extend(scores.mean.chunks_exact(scores.keys).map(<[f32]>::to_vec));
        }
        for (query, row) in (21..).zip(&rows) {
            for (key, have) in row.iter().enumerate() {
                let weights = heads.iter().map(|id| want.weights[id.layer][id.head][query][key]);
                let want = weights.sum::<f64>() / heads.len() as f64;
                let near = (f64::from(*have) - want).abs() <= 3e-5 * (want + 0.02);
                assert!(near, "{name} query {query} key {key}: {have} for {want}");
            }
        }
        assert_eq!(rows.len(), 39);
    }
}

const SLACK_F32: f64 = 1e-5;

#[test]
fn every_family_equals_its_definition() {
    for name in FAMILIES {
        check(&family(name, Format::F32), exact(), SLACK_F32);
        let tied = name.starts_with("gemma") && name != "gemma3";
        check(&SyntheticModel { tied, seed: 8, ..family(name, Format::F16) }, exact(), SLACK_F32);
        check(&family(name, Format::Bf16), exact(), SLACK_F32);
    }
}

#[test]
fn quantized_weights_differ_by_the_rounding_of_activations() {
    for format in Format::ALL {
        match format.block_len() {
            1 => {}
            32 => check(&tiny("llama", format), exact(), 6e-2),
            _ => check(&SyntheticModel::small("qwen2", format, 5), exact(), 6e-2),
        }
    }
}

#[test]
fn sliding_windows_see_sinks_and_the_newest_tokens() {
    for (tokens, sinks) in [(1, 0), (40, 0), (33, 4), (64, 40), (200, 3)] {
        let window = Some(SlidingWindow { tokens, sinks });
        check(&tiny("llama", Format::F32), EngineOptions { window, ..exact() }, SLACK_F32);
    }
}

#[test]
fn rotary_scalings_follow_their_definitions() {
    let number = |key, value| (key, ExtraValue::F32(value));
    let kind = |kind| ("rope.scaling.type", ExtraValue::Text(kind));
    let linear = vec![kind("linear"), number("rope.scaling.factor", 4.0)];
    let llama3 = vec![
        kind("llama3"),
        number("rope.scaling.factor", 8.0),
        ("rope.scaling.original_context_length", ExtraValue::U32(200)),
    ];
    let yarn = vec![
        kind("yarn"),
        number("rope.scaling.factor", 4.0),
        ("rope.scaling.original_context_length", ExtraValue::U32(100)),
    ];
    let sharper = vec![kind("none"), number("rope.scaling.attn_factor", 1.2)];
    for extra in [linear, llama3, yarn, sharper] {
        for name in ["llama", "qwen2"] {
            let model = SyntheticModel { extra: extra.clone(), ..tiny(name, Format::F32) };
            check(&model, exact(), SLACK_F32);
        }
    }
    let divisors = Some((0..8).map(|i| 1.0 + i as f32).collect());
    let model = SyntheticModel { rope_divisors: divisors, ..tiny("llama", Format::F32) };
    check(&model, exact(), SLACK_F32);
}

#[test]
fn a_stretched_context_has_divisors_of_its_own() {
    let factors = || Some([0, 3].map(|more| (0..6).map(|i| 1.0 + (i + more) as f32).collect()));
    for original in [100, 400] {
        let extra = vec![
            ("rope.dimension_count", ExtraValue::U32(12)),
            ("rope.scaling.original_context_length", ExtraValue::U32(original)),
            ("rope.scaling.attn_factor", ExtraValue::F32(1.1)),
        ];
        let model = SyntheticModel { extra, rope_factors: factors(), ..tiny("phi3", Format::F32) };
        check(&model, exact(), SLACK_F32);
    }
}

#[test]
fn windows_and_rotations_of_local_layers_are_their_own() {
    let extra = |window, pattern| {
        vec![
            ("attention.sliding_window", ExtraValue::U32(window)),
            ("attention.sliding_window_pattern", ExtraValue::U32(pattern)),
            ("rope.freq_base", ExtraValue::F32(1e6)),
            ("rope.scaling.type", ExtraValue::Text("linear")),
            ("rope.scaling.factor", ExtraValue::F32(8.0)),
        ]
    };
    // The second has no local layer; the third has no window, so no local layer either.
    for (window, pattern) in [(40, 2), (40, 1), (0, 3)] {
        let extra = if window == 0 { Vec::new() } else { extra(window, pattern) };
        let model = SyntheticModel { extra, ..tiny("gemma3", Format::F32) };
        check(&model, exact(), SLACK_F32);
    }
    let window = Some(SlidingWindow { tokens: 33, sinks: 2 });
    let model = SyntheticModel { extra: extra(40, 2), ..tiny("gemma3", Format::F32) };
    check(&model, EngineOptions { window, ..exact() }, SLACK_F32);
    let extra = vec![("attention.sliding_window", ExtraValue::U32(50))];
    check(&SyntheticModel { extra, ..tiny("phi3", Format::F32) }, exact(), SLACK_F32);
}

#[test]
fn query_key_products_are_scaled_as_the_model_says() {
    let extra = vec![("attention.scale", ExtraValue::F32(0.125))];
    check(&SyntheticModel { extra, ..tiny("llama", Format::F32) }, exact(), SLACK_F32);
    let large = SyntheticModel {
        n_layers: 62,
        d_model: 32,
        n_heads: 4,
        n_kv_heads: 2,
        ..tiny("gemma3", Format::F32)
    };
    check(&large, exact(), 1e-4);
}

#[test]
fn any_number_of_experts_may_be_used() {
    for (count, used) in [(1, 1), (3, 3), (7, 1)] {
        let experts = Some(SyntheticExperts { count, used, d_ff: 32, shared_d_ff: 64 });
        for name in ["llama", "qwen2moe"] {
            check(&SyntheticModel { experts, ..tiny(name, Format::F32) }, exact(), SLACK_F32);
        }
    }
}

/// The last layer skips rows that nobody needs; the results for other rows do not change.
#[test]
fn scores_and_logits_do_not_depend_on_what_else_is_wanted() {
    let ids = prompt(5, 90);
    for name in FAMILIES {
        let model = open(&family(name, Format::F32));
        let layers = (0..3).filter(|layer| model.config().has_attention(*layer));
        let heads: Vec<HeadId> = layers.map(|layer| HeadId { layer, head: 4 }).collect();
        let captures =
            [12..30, 80..90].map(|window| Capture { window, heads: heads.clone(), over: MeanOver::Queries });
        for capture in &captures {
            let mut engine = engine(&model, 2, exact());
            let seq = engine.create();
            let want = one(&mut engine, seq, &ids, Some(capture));
            for wanted in [Wanted::None, Wanted::Last] {
                // In a batch with a sequence of which everything is wanted.
                let seqs = [engine.create(), engine.create()];
                let batch = [
                    StepSeq { seq: seqs[0], ids: &ids, logits: wanted, capture: Some(capture) },
                    StepSeq { seq: seqs[1], ids: &ids[..7], logits: Wanted::All, capture: None },
                ];
                let have = engine.step(&batch, &mut ()).unwrap();
                assert_eq!(have[0].scores, want.scores, "{name} {wanted:?}");
                let from =
                    if wanted == Wanted::None { want.logits.len() } else { 89 * want.logits.len() / 90 };
                assert_eq!(have[0].logits, want.logits[from..], "{name} {wanted:?}");
                assert_eq!(have[1].logits, want.logits[..7 * want.logits.len() / 90], "{name}");
            }
            // Tokens whose logits are not wanted are in the cache like any others.
            let quiet = engine.create();
            for (ids, logits) in [(&ids[..50], Wanted::None), (&ids[50..], Wanted::All)] {
                let step = StepSeq { seq: quiet, ids, logits, capture: None };
                let have = engine.step(&[step], &mut ()).unwrap();
                if logits == Wanted::All {
                    assert_eq!(have[0].logits, want.logits[50 * want.logits.len() / 90..], "{name}");
                }
            }
        }
    }
}
