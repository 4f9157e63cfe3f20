//! LoRA adapters at run time: compared with merged weights, several in one batch, and in the prefix cache.

mod refusals;

use std::sync::Arc;

use baton_engine::adapter::targets;
use baton_engine::gguf::Gguf;
use baton_engine::{
    Adapter, AdapterError, Engine, EngineOptions, KvError, Model, PrefixScope, SeqId, StepSeq, Wanted,
};
use baton_kernels_cpu::{Format, dequantize_row};
use baton_synthetic::SyntheticAdapter;
use proptest::prelude::*;

use crate::{all_logits, assert_same_bits, engine, exact, open, prompt, ragged, tiny};

/// Families of dense layers, including fused projections and norms after the halves.
const DENSE: [&str; 9] = ["llama", "granite", "glm4", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3"];

pub(super) fn adapter(model: &Arc<Model>, synthetic: &SyntheticAdapter) -> Arc<Adapter> {
    let bytes = synthetic.to_gguf(model.config()).unwrap();
    Adapter::from_gguf(Gguf::from_bytes(bytes).unwrap(), model).unwrap()
}

/// Returns all numbers of a tensor, in f64.
fn values(gguf: &Gguf, name: &str) -> Vec<f64> {
    let view = gguf.tensor(name).unwrap();
    let mut values = vec![0f32; view.dims.iter().product::<u64>() as usize];
    dequantize_row(view.format, view.data, &mut values).unwrap();
    values.into_iter().map(f64::from).collect()
}

/// Returns the model with `alpha / r B A` added to its F32 weights, in f64.
fn merged(base: &[u8], lora: &[u8], synthetic: &SyntheticAdapter) -> Arc<Model> {
    let (model, lora) = (Gguf::from_bytes(base.to_vec()).unwrap(), Gguf::from_bytes(lora.to_vec()).unwrap());
    let config = Model::from_gguf(Gguf::from_bytes(base.to_vec()).unwrap()).unwrap().config().clone();
    let rank = synthetic.rank as usize;
    let file = model.parts().next().unwrap();
    let mut out = file.to_vec();
    for layer in 0..config.n_layers {
        for target in targets(&config) {
            let name = format!("blk.{layer}.{}.weight", target.name);
            let (a, b) = (values(&lora, &format!("{name}.lora_a")), values(&lora, &format!("{name}.lora_b")));
            let mut weights = values(&model, &name);
            for row in 0..target.rows {
                for col in 0..target.cols {
                    let product: f64 = (0..rank).map(|r| b[row * rank + r] * a[r * target.cols + col]).sum();
                    weights[row * target.cols + col] += f64::from(synthetic.alpha) / rank as f64 * product;
                }
            }
            let place = model.tensor(&name).unwrap().data.as_ptr() as usize - file.as_ptr() as usize;
            for (at, value) in weights.iter().enumerate() {
                out[place + 4 * at..place + 4 * at + 4].copy_from_slice(&(*value as f32).to_le_bytes());
            }
        }
    }
    Model::from_gguf(Gguf::from_bytes(out).unwrap()).unwrap()
}

/// Returns `|have - want| / |want|` over all numbers.
fn relative_error(have: &[f32], want: &[f32]) -> f64 {
    assert_eq!(have.len(), want.len());
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let gap = squares(&mut have.iter().zip(want).map(|(have, want)| f64::from(have - want)));
    (gap / squares(&mut want.iter().map(|want| f64::from(*want)))).sqrt()
}

fn adapted_seq(engine: &mut Engine, adapter: &Arc<Adapter>) -> SeqId {
    let id = engine.add_adapter(Arc::clone(adapter)).unwrap();
    engine.create_with(Some(id)).unwrap()
}

#[test]
fn every_dense_family_equals_merged_weights() {
    let ids = prompt(9, 70);
    // Products with Q8_0 round their inputs too. Of the tiny matrices, some cannot have a higher rank.
    let forms = [(Format::F32, 5, 1e-5), (Format::F16, 5, 1e-5), (Format::Q8_0, 32, 2e-2)];
    for (name, (format, rank, most)) in DENSE.into_iter().flat_map(|name| forms.map(|form| (name, form))) {
        let synthetic = SyntheticAdapter { rank, alpha: 8.0, format, ..SyntheticAdapter::of_seed(3) };
        let base = tiny(name, Format::F32).to_gguf().unwrap();
        let model = Model::from_gguf(Gguf::from_bytes(base.clone()).unwrap()).unwrap();
        let lora = synthetic.to_gguf(model.config()).unwrap();
        let adapter = Adapter::from_gguf(Gguf::from_bytes(lora.clone()).unwrap(), &model).unwrap();
        assert_eq!(adapter.matrices(), 3 * targets(model.config()).len(), "{name}");
        assert_eq!((adapter.rank_max(), adapter.name()), (rank as usize, "synthetic adapter seed 3"));
        let mut own = engine(&model, 2, exact());
        let seq = adapted_seq(&mut own, &adapter);
        let have = all_logits(&mut own, seq, &ids);
        let plain = own.create();
        let without = all_logits(&mut own, plain, &ids);
        let merged = merged(&base, &lora, &synthetic);
        let mut other = engine(&merged, 2, exact());
        let seq = other.create();
        let want = all_logits(&mut other, seq, &ids);
        let error = relative_error(&have, &want);
        assert!(error < most, "{name} {format:?}: relative error {error:.2e}");
        let change = relative_error(&without, &want);
        assert!(change > 0.05, "{name}: the adapter changes next to nothing: {change:.2e}");
    }
}

#[test]
fn an_alpha_of_nothing_leaves_the_product_as_it_is() {
    let model = open(&tiny("llama", Format::F32));
    let ids = prompt(2, 20);
    let logits = |alpha| {
        let synthetic = SyntheticAdapter { alpha, ..SyntheticAdapter::of_seed(1) };
        let mut engine = engine(&model, 1, EngineOptions::default());
        let seq = adapted_seq(&mut engine, &adapter(&model, &synthetic));
        all_logits(&mut engine, seq, &ids)
    };
    assert_same_bits(&logits(0.0), &logits(4.0), "alpha 0 is the rank, as in llama.cpp");
}

/// Runs one sequence alone, with every logit in one pass.
fn alone(model: &Arc<Model>, adapter: Option<&Arc<Adapter>>, ids: &[u32]) -> Vec<f32> {
    let mut engine = engine(model, 1, EngineOptions::default());
    let id = adapter.map(|adapter| engine.add_adapter(Arc::clone(adapter)).unwrap());
    let seq = engine.create_with(id).unwrap();
    all_logits(&mut engine, seq, ids)
}

/// For each step, how many tokens every sequence advances (0: not in the batch).
fn script() -> impl Strategy<Value = Vec<[usize; 4]>> {
    prop::collection::vec([0..40usize, 0..3usize, 0..70usize, 0..9usize], 1..10)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn different_adapters_in_one_step_change_no_bit(
        script in script(),
        threads in 1..4usize,
        format in prop::sample::select(vec![Format::F32, Format::Q8_0]),
        name in prop::sample::select(vec!["llama", "gemma3", "phi3"]),
    ) {
        let model = open(&tiny(name, format));
        let adapters = [1, 2].map(|seed| adapter(&model, &SyntheticAdapter::of_seed(seed)));
        let of = [None, Some(&adapters[0]), Some(&adapters[1]), Some(&adapters[0])];
        let prompts = [prompt(4, 100), prompt(5, 20), prompt(4, 100), prompt(6, 30)];
        let vocab_len = model.config().vocab_len;
        let mut engine = engine(&model, threads, EngineOptions::default());
        let seqs = of.map(|adapter| {
            let id = adapter.map(|adapter| engine.add_adapter(Arc::clone(adapter)).unwrap());
            engine.create_with(id).unwrap()
        });
        let have = ragged(&mut engine, seqs, &prompts, &script);
        for at in (0..4).filter(|&at| !have[at].is_empty()) {
            let done = have[at].len() / vocab_len;
            let want = alone(&model, of[at], &prompts[at][..done]);
            assert_same_bits(&have[at], &want, "a sequence among others");
        }
    }
}

#[test]
fn rows_left_out_of_the_last_layer_change_no_bit() {
    let model = open(&tiny("llama", Format::F32));
    let adapters = [1, 2].map(|seed| adapter(&model, &SyntheticAdapter::of_seed(seed)));
    let ids = prompt(7, 40);
    let v = model.config().vocab_len;
    let mut engine = engine(&model, 2, EngineOptions::default());
    let plain = engine.create();
    let seqs = [adapted_seq(&mut engine, &adapters[0]), plain, adapted_seq(&mut engine, &adapters[1])];
    let wanted = [Wanted::None, Wanted::Last, Wanted::Last];
    let batch = [0, 1, 2].map(|at| StepSeq { seq: seqs[at], ids: &ids, logits: wanted[at], capture: None });
    let outputs = engine.step(&batch, &mut ()).unwrap();
    assert_same_bits(&outputs[1].logits, &alone(&model, None, &ids)[39 * v..], "without an adapter");
    assert_same_bits(
        &outputs[2].logits,
        &alone(&model, Some(&adapters[1]), &ids)[39 * v..],
        "the second adapter",
    );
}

#[test]
fn prefixes_of_different_adapters_never_meet() {
    let model = open(&tiny("qwen2", Format::F32));
    let adapters = [1, 2].map(|seed| adapter(&model, &SyntheticAdapter::of_seed(seed)));
    let ids = prompt(8, 100);
    let mut engine = engine(&model, 2, EngineOptions::default());
    let [one, two] = adapters.clone().map(|adapter| engine.add_adapter(adapter).unwrap());
    let first = engine.create_with(Some(one)).unwrap();
    all_logits(&mut engine, first, &ids);
    let scope = PrefixScope::default();
    let held = [None, Some(one), Some(two)].map(|adapter| engine.held_prefix(scope, adapter, &ids));
    assert_eq!(held, [0, 96, 0]);
    let want = alone(&model, Some(&adapters[0]), &ids);
    let v = model.config().vocab_len;
    for (adapter, known) in [(None, 0), (Some(two), 0), (Some(one), 96)] {
        let seq = engine.create_with(adapter).unwrap();
        assert_eq!(engine.reuse_prefix(seq, &ids), known, "{adapter:?}");
        engine.release(seq);
    }
    let fork = engine.fork(first, 50).unwrap();
    let own = all_logits(&mut engine, fork, &ids[50..]);
    assert_same_bits(&own, &want[50 * v..], "a fork keeps its parent's adapter");
    engine.release(first);
    engine.release(fork);
    let again = engine.create_with(Some(one)).unwrap();
    assert_eq!(engine.reuse_prefix(again, &ids), 96, "kept for the same adapter");
    let plain = engine.create();
    let own = all_logits(&mut engine, plain, &ids);
    assert_same_bits(&own, &alone(&model, None, &ids), "no prefix of an adapter");
}

#[test]
fn an_engine_knows_its_own_adapters_only() {
    let (model, other) = (open(&tiny("llama", Format::F32)), open(&tiny("llama", Format::F32)));
    let adapters = [1, 2].map(|seed| adapter(&model, &SyntheticAdapter::of_seed(seed)));
    let mut own = engine(&model, 1, EngineOptions::default());
    let ids = adapters.clone().map(|adapter| own.add_adapter(adapter).unwrap());
    assert_eq!(own.add_adapter(Arc::clone(&adapters[1])).unwrap(), ids[1], "the same one once more");
    let mut foreign = engine(&other, 1, EngineOptions::default());
    let err = foreign.add_adapter(Arc::clone(&adapters[0])).unwrap_err();
    assert!(matches!(&err, AdapterError::OtherModel { name } if name == "synthetic adapter seed 1"), "{err}");
    assert_eq!(foreign.create_with(Some(ids[1])), Err(KvError::UnknownAdapter(1)));
    assert_eq!(foreign.held_prefix(PrefixScope::default(), Some(ids[1]), &[1; 64]), 0);
}
