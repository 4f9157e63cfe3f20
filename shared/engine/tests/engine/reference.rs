//! The engine against a plain re-derivation in f64: full matrices, one token list, no cache, no kernels but
//! the decoding of blocks.

use std::f64::consts::TAU;

use baton_engine::gguf::Gguf;
use baton_engine::synthetic::{ExtraValue, SyntheticModel};
use baton_engine::{Capture, EngineOptions, HeadId, SlidingWindow};
use baton_kernels_cpu::{Format, dequantize_row};

use crate::{all_logits, engine, one, open, prompt, tiny};

type Rows = Vec<Vec<f64>>;

/// What the re-derivation gives: logits, and softmax weights by `[layer][head][query][key]`.
struct Reference {
    logits: Rows,
    weights: Vec<Vec<Rows>>,
}

struct File<'a> {
    gguf: &'a Gguf,
}

impl File<'_> {
    fn tensor(&self, name: &str) -> Option<Rows> {
        let view = self.gguf.find_tensor(name).unwrap()?;
        let cols = view.dims[0] as usize;
        let rows = view.dims.get(1).map_or(1, |rows| *rows as usize);
        let mut values = vec![0f32; rows * cols];
        dequantize_row(view.format, view.data, &mut values).unwrap();
        Some(values.chunks(cols).map(|row| row.iter().map(|v| f64::from(*v)).collect()).collect())
    }

    fn row(&self, name: &str) -> Vec<f64> {
        self.tensor(name).unwrap().remove(0)
    }
}

fn norm(x: &Rows, weight: &[f64]) -> Rows {
    let one = |row: &Vec<f64>| {
        let mean_square = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
        row.iter().zip(weight).map(|(v, w)| v / (mean_square + 1e-5).sqrt() * w).collect()
    };
    x.iter().map(one).collect()
}

fn product(x: &Rows, w: &Rows, bias: Option<&Rows>) -> Rows {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let one = |row: &Vec<f64>| {
        let bias = |at: usize| bias.map_or(0.0, |bias| bias[0][at]);
        w.iter().enumerate().map(|(at, w)| dot(row, w) + bias(at)).collect()
    };
    x.iter().map(one).collect()
}

/// Radians per position of pair `pair` of `pairs`, by the definitions of the scalings.
fn frequency(model: &SyntheticModel, pair: usize, pairs: usize) -> f64 {
    let extra = |key: &str| {
        model.extra.iter().find(|(name, _)| *name == key).map(|(_, value)| match value {
            ExtraValue::U32(value) => f64::from(*value),
            ExtraValue::F32(value) => f64::from(*value),
            ExtraValue::Text(_) => f64::NAN,
        })
    };
    let divisor = model.rope_divisors.as_ref().map_or(1.0, |divisors| f64::from(divisors[pair]));
    let base = 10_000f64.powf(-(pair as f64) / pairs as f64) / divisor;
    let Some(factor) = extra("rope.scaling.factor") else { return base };
    let Some(original) = extra("rope.scaling.original_context_length") else { return base / factor };
    let wavelength = TAU / base;
    if wavelength < original / 4.0 {
        base
    } else if wavelength > original {
        base / factor
    } else {
        let smooth = (original / wavelength - 1.0) / 3.0;
        (1.0 - smooth) * base / factor + smooth * base
    }
}

fn rotate(x: &mut Rows, model: &SyntheticModel) {
    let d = model.d_head as usize;
    for (position, row) in x.iter_mut().enumerate() {
        for head in row.chunks_mut(d) {
            for pair in 0..d / 2 {
                let (a, b) =
                    if model.family == "qwen2" { (pair, pair + d / 2) } else { (2 * pair, 2 * pair + 1) };
                let angle = position as f64 * frequency(model, pair, d / 2);
                let (x, y) = (head[a], head[b]);
                head[a] = x * angle.cos() - y * angle.sin();
                head[b] = x * angle.sin() + y * angle.cos();
            }
        }
    }
}

/// Softmax weights of one head, `[query][key]`.
fn head_weights(
    q: &Rows,
    k: &Rows,
    q_at: usize,
    k_at: usize,
    d: usize,
    window: Option<SlidingWindow>,
) -> Rows {
    let sees = |query: usize, key: usize| {
        key <= query && window.is_none_or(|w| key < w.sinks || query - key < w.tokens)
    };
    let one = |(query, row): (usize, &Vec<f64>)| {
        let exps: Vec<f64> = k
            .iter()
            .enumerate()
            .map(|(key, k)| {
                let dot: f64 = (0..d).map(|i| row[q_at + i] * k[k_at + i]).sum();
                if sees(query, key) { (dot / (d as f64).sqrt()).exp() } else { 0.0 }
            })
            .collect();
        let sum: f64 = exps.iter().sum();
        exps.into_iter().map(|e| e / sum).collect()
    };
    q.iter().enumerate().map(one).collect()
}

fn add(x: &mut Rows, y: &Rows) {
    for (x, y) in x.iter_mut().flatten().zip(y.iter().flatten()) {
        *x += y;
    }
}

fn reference(model: &SyntheticModel, ids: &[u32], window: Option<SlidingWindow>) -> Reference {
    let gguf = Gguf::from_bytes(model.to_gguf().unwrap()).unwrap();
    let file = File { gguf: &gguf };
    let table = file.tensor("token_embd.weight").unwrap();
    let mut x: Rows = ids.iter().map(|id| table[*id as usize].clone()).collect();
    let (d, heads) = (model.d_head as usize, model.n_heads as usize);
    let group = heads / model.n_kv_heads as usize;
    let mut weights = Vec::new();
    for layer in 0..model.n_layers {
        let name = |tensor: &str| format!("blk.{layer}.{tensor}");
        let normed = norm(&x, &file.row(&name("attn_norm.weight")));
        let project = |which: &str| {
            let weight = file.tensor(&name(&format!("attn_{which}.weight"))).unwrap();
            product(&normed, &weight, file.tensor(&name(&format!("attn_{which}.bias"))).as_ref())
        };
        let (mut q, mut k, v) = (project("q"), project("k"), project("v"));
        rotate(&mut q, model);
        rotate(&mut k, model);
        let layer_weights: Vec<Rows> =
            (0..heads).map(|head| head_weights(&q, &k, head * d, head / group * d, d, window)).collect();
        let mixed: Rows = (0..ids.len())
            .map(|query| {
                let at = |i: usize| (i / d, i / d / group * d + i % d);
                (0..heads * d)
                    .map(|i| {
                        (0..=query).map(|key| layer_weights[at(i).0][query][key] * v[key][at(i).1]).sum()
                    })
                    .collect()
            })
            .collect();
        weights.push(layer_weights);
        add(&mut x, &product(&mixed, &file.tensor(&name("attn_output.weight")).unwrap(), None));
        let normed = norm(&x, &file.row(&name("ffn_norm.weight")));
        let half = |which: &str| product(&normed, &file.tensor(&name(which)).unwrap(), None);
        let (mut gate, up) = (half("ffn_gate.weight"), half("ffn_up.weight"));
        for (gate, up) in gate.iter_mut().flatten().zip(up.iter().flatten()) {
            *gate = *gate / (1.0 + (-*gate).exp()) * up;
        }
        add(&mut x, &product(&gate, &file.tensor(&name("ffn_down.weight")).unwrap(), None));
    }
    let normed = norm(&x, &file.row("output_norm.weight"));
    let head = file.tensor("output.weight").unwrap_or(table);
    Reference { logits: product(&normed, &head, None), weights }
}

/// `|have - want| / |want|` over all numbers.
fn relative_error(have: &[f32], want: &Rows) -> f64 {
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
        .collect();
    let capture = Capture { window: 25..45, heads: heads.clone() };
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
        assert!((total - 1.0).abs() < 1e-4, "{id:?}: weights sum to {total}");
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

const SLACK_F32: f64 = 1e-5;

#[test]
fn both_families_equal_the_definition() {
    for family in ["llama", "qwen2"] {
        check(&tiny(family, Format::F32), EngineOptions::default(), SLACK_F32);
        check(
            &SyntheticModel { tied: false, ..tiny(family, Format::F16) },
            EngineOptions::default(),
            SLACK_F32,
        );
        check(&tiny(family, Format::Bf16), EngineOptions::default(), SLACK_F32);
    }
}

#[test]
fn quantized_weights_differ_by_the_rounding_of_activations() {
    for format in Format::ALL {
        match format.block_len() {
            1 => {}
            32 => check(&tiny("llama", format), EngineOptions::default(), 6e-2),
            _ => check(&SyntheticModel::small("qwen2", format, 5), EngineOptions::default(), 6e-2),
        }
    }
}

#[test]
fn sliding_windows_see_sinks_and_the_newest_tokens() {
    for (tokens, sinks) in [(1, 0), (40, 0), (33, 4), (64, 40), (200, 3)] {
        let window = Some(SlidingWindow { tokens, sinks });
        check(&tiny("llama", Format::F32), EngineOptions { window, ..EngineOptions::default() }, SLACK_F32);
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
    for extra in [linear, llama3] {
        let model = SyntheticModel { extra, ..tiny("llama", Format::F32) };
        check(&model, EngineOptions::default(), SLACK_F32);
    }
    let divisors = Some((0..8).map(|i| 1.0 + i as f32).collect());
    let model = SyntheticModel { rope_divisors: divisors, ..tiny("llama", Format::F32) };
    check(&model, EngineOptions::default(), SLACK_F32);
}
