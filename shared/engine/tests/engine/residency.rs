//! Partly resident weights: the same bits for any budget, the fewest bytes read, and errors that change
//! nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_engine::engine::StepError;
use baton_engine::gguf::Gguf;
use baton_engine::weights::{
    MappedWeights, Residency, ResidencyError, StreamedWeights, WeightError, vocab_len,
};
use baton_engine::{
    Engine, EngineOptions, GpuLayers, Model, ModelConfig, ResidencyStats, STREAM_BYTES, StepSeq, Wanted,
};
use baton_kernels_cpu::Format;
use baton_synthetic::{Quant, SyntheticModel};
use proptest::prelude::*;

use crate::{all_logits, assert_same_bits, engine, family, prompt, tiny};

fn write(folder: &Path, synthetic: &SyntheticModel) -> PathBuf {
    let path = folder.join(format!("{}.gguf", synthetic.family));
    std::fs::write(&path, synthetic.to_gguf().unwrap()).unwrap();
    path
}

fn within(path: &Path, residency: &Residency) -> Arc<Model> {
    Model::open_within(path, residency).unwrap()
}

fn stats(model: &Model) -> ResidencyStats {
    model.streamed().unwrap().stats()
}

/// Runs a prompt whose first chunk wants no logits (its last layer ends early), then token by token.
fn walk(model: &Arc<Model>) -> Vec<f32> {
    let ids = prompt(3, 44);
    let mut engine = engine(model, 2, EngineOptions::default());
    let seq = engine.create();
    engine.step(&[StepSeq { seq, ids: &ids[..37], logits: Wanted::None, capture: None }], &mut ()).unwrap();
    let mut logits = all_logits(&mut engine, seq, &ids[37..40]);
    for id in &ids[40..] {
        logits.extend(all_logits(&mut engine, seq, &[*id]));
    }
    logits
}

#[test]
fn budgets_change_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    let small = |name, quant: Quant| SyntheticModel::small(name, quant, 5);
    let q4km = SyntheticModel { n_layers: 8, tied: false, ..small("llama", Quant::Q4KM) };
    let mut models = vec![q4km, small("qwen2", Format::F16.into()), tiny("llama", Format::Q8_0)];
    let old = ["mixtral", "qwen2moe", "qwen3moe", "gemma3", "phi3"];
    let names = old.into_iter().chain(["granitemoe", "glm4", "gpt-oss", "deepseek2", "deepseek2-joined"]);
    let names = names.chain(["gemma4", "gemma4-shared", "gemma4-experts"]);
    models.extend(names.map(|name| family(name, Format::Q8_0)));
    for synthetic in &models {
        let path = write(folder.path(), synthetic);
        let want = walk(&Model::open(&path).unwrap());
        let all = stats(&within(&path, &Residency::default())).weight_bytes;
        for budget_bytes in [0, all / 10, all / 2, all - 1, all] {
            let usual = Residency { budget_bytes, read_bytes: 4 << 10, ..Residency::default() };
            let ways = [
                usual.clone(),
                Residency { prefetch_bytes: budget_bytes / 3, ..usual.clone() },
                Residency { reads_ahead: false, read_bytes: 64 << 10, ..usual.clone() },
                Residency { buffers: 1, threads: 1, ..usual.clone() },
                Residency { buffers: 2, threads: 5, ..usual },
            ];
            for residency in ways {
                let model = within(&path, &residency);
                let what = format!("{} within {budget_bytes} of {all} bytes", synthetic.family);
                assert_same_bits(&walk(&model), &want, &what);
                let stats = stats(&model);
                assert!(stats.resident_bytes + stats.prefetch_bytes <= budget_bytes, "{what}: {stats:?}");
                assert_eq!(stats.passes, 6, "{what}");
                assert!(budget_bytes != all || stats.reads == 0, "{what}: {stats:?}");
                assert!(budget_bytes != 0 || stats.reads > 0, "{what}: {stats:?}");
            }
        }
    }
}

#[test]
fn a_token_reads_what_does_not_fit_and_no_more() {
    const BLOCK: u64 = 4096;
    let folder = tempfile::tempdir().unwrap();
    let synthetic =
        SyntheticModel { n_layers: 12, tied: false, ..SyntheticModel::small("llama", Format::Q8_0, 5) };
    let path = write(folder.path(), &synthetic);
    let all = stats(&within(&path, &Residency::default())).weight_bytes;
    for (percent, prefetch_bytes) in [(0, 0), (30, 0), (70, 0), (95, 0), (70, all / 5), (40, all * 2 / 5)] {
        let budget_bytes = all * percent / 100;
        let residency =
            Residency { budget_bytes, prefetch_bytes, read_bytes: 64 << 10, ..Residency::default() };
        let model = within(&path, &residency);
        let mut engine = engine(&model, 2, EngineOptions::default());
        let seq = engine.create();
        let mut step = |id: u32| drop(all_logits(&mut engine, seq, &[id]));
        (0..4).for_each(&mut step);
        let before = stats(&model);
        (0..20).for_each(&mut step);
        let after = stats(&model);
        let (reads, bytes) = (after.reads - before.reads, after.bytes_read - before.bytes_read);
        assert_eq!(after.reads_in_vain, 0, "{percent} %");
        // Rows are cut at multiples of 32.
        let least = all - (budget_bytes - prefetch_bytes);
        assert!(after.streamed_bytes <= least + 32 * 544, "{percent} %: {after:?}");
        assert!(after.streamed_bytes + after.resident_bytes == all, "{after:?}");
        // Every buffer may have been full at the start of counting and empty at the end, or the reverse. How
        // far reading is ahead of computing depends on the load of this machine.
        let ahead = 20 * ((64 << 10) + 2 * BLOCK) + prefetch_bytes;
        let most = 20 * after.streamed_bytes + reads * 2 * BLOCK + ahead;
        assert!(bytes <= most, "{percent} %: {bytes} bytes, {most} at most");
        let fewest = (20 * after.streamed_bytes).saturating_sub(ahead);
        assert!(bytes >= fewest, "{percent} %: {bytes} bytes, {fewest} at least");
    }
}

#[test]
fn the_chosen_experts_that_do_not_stay_are_counted_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &family("mixtral", Format::Q8_0));
    let residency = Residency { budget_bytes: 0, read_bytes: 64 << 10, ..Residency::default() };
    for (budget_bytes, missing) in [(0, true), (u64::MAX, false)] {
        let model = within(&path, &Residency { budget_bytes, ..residency.clone() });
        let config = model.config();
        let experts = config.experts.as_ref().unwrap();
        let one = (3 * experts.d_ff * config.d_model / 32 * 34) as u64;
        let mut engine = engine(&model, 1, EngineOptions::default());
        let seq = engine.create();
        (0..5).for_each(|id| drop(all_logits(&mut engine, seq, &[id])));
        let needed = if missing { 5 * (config.n_layers * experts.used) as u64 * one } else { 0 };
        let stats = stats(&model);
        assert_eq!(stats.expert_bytes, needed, "{budget_bytes}");
        assert!(stats.bytes_read >= needed + 5 * stats.streamed_bytes, "{stats:?}");
    }
}

#[test]
fn experts_that_are_used_stay_within_the_budget_and_are_not_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &family("mixtral", Format::Q8_0));
    let answer = |model: &Arc<Model>| {
        let mut engine = engine(model, 1, EngineOptions::default());
        let seq = engine.create();
        let prompt = all_logits(&mut engine, seq, &prompt(7, 12));
        (0..30).flat_map(|id| all_logits(&mut engine, seq, &[id % 3])).chain(prompt).collect::<Vec<_>>()
    };
    let want = answer(&Model::open(&path).unwrap());
    let all = stats(&within(&path, &Residency::default()));
    let no_experts = stats(&within(&path, &Residency { budget_bytes: 0, ..Residency::default() }));
    let (always, experts) = (no_experts.streamed_bytes, all.weight_bytes - no_experts.streamed_bytes);
    let mut before = u64::MAX;
    for percent in [0, 25, 50, 75] {
        let budget_bytes = always + experts * percent / 100;
        let residency = Residency { budget_bytes, read_bytes: 4 << 10, ..Residency::default() };
        let model = within(&path, &residency);
        assert_same_bits(&answer(&model), &want, "experts that are used stay");
        let stats = stats(&model);
        assert_eq!(stats.streamed_bytes, 0, "{percent} %: {stats:?}");
        assert!(stats.resident_bytes <= budget_bytes, "{percent} %: {stats:?}");
        let needed = stats.expert_bytes + stats.kept_expert_bytes;
        let kept = stats.kept_expert_bytes as f64 / needed as f64;
        assert!(kept >= 0.9 * percent as f64 / 100.0, "{percent} %: {kept}");
        assert!(stats.expert_bytes < before, "{percent} %: {stats:?}");
        assert!(stats.held_expert_bytes <= stats.kept_bytes, "{percent} %: {stats:?}");
        assert_eq!(stats.held_expert_bytes > 0, percent > 0, "{percent} %: {stats:?}");
        before = stats.expert_bytes;
        // Each read may have a block more at each end.
        let most = stats.expert_bytes + stats.reads * 2 * 4096;
        assert!(stats.bytes_read <= most, "{percent} %: {stats:?}");
    }
}

#[test]
fn a_walk_in_another_order_than_announced_changes_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &SyntheticModel { n_layers: 5, ..tiny("llama", Format::Q8_0) });
    let want = walk(&Model::open(&path).unwrap());
    let residency = Residency {
        budget_bytes: 20_000,
        layers: Some(vec![3, 1, 4, 0, 2]),
        read_bytes: 4 << 10,
        ..Residency::default()
    };
    assert_same_bits(&walk(&within(&path, &residency)), &want, "layers announced as 3, 1, 4, 0, 2");
}

#[test]
fn devices_that_stream_only_their_own_layers_give_the_same_bits_together() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &SyntheticModel { n_layers: 4, ..tiny("llama", Format::Q8_0) });
    let ids = prompt(2, 20);
    let whole = Model::open(&path).unwrap();
    let mut reference = engine(&whole, 1, EngineOptions::default());
    let own = reference.create();
    let want = all_logits(&mut reference, own, &ids);
    // The head computes layers 0 and 3, the other device those between.
    let device = |layers: &[usize], ends| {
        let layers = Some(layers.to_vec());
        let residency = Residency {
            budget_bytes: 10_000,
            layers: layers.clone(),
            ends,
            read_bytes: 4 << 10,
            ..Residency::default()
        };
        let mut engine =
            engine(&within(&path, &residency), 1, EngineOptions { layers, ..EngineOptions::default() });
        let seq = engine.create();
        (engine, seq)
    };
    let (mut devices, mut have) = ([device(&[0, 3], true), device(&[1, 2], false)], Vec::new());
    for ids in ids.chunks(3) {
        let steps = devices.each_mut().map(|(engine, seq)| {
            engine.open_step(&[StepSeq { seq: *seq, ids, logits: Wanted::All, capture: None }]).unwrap()
        });
        let rows = 0..ids.len();
        let mut hidden = devices[0].0.embed(&steps[0], rows.clone()).unwrap();
        for (at, layers) in [(0, 0..1), (1, 1..3), (0, 3..4)] {
            hidden = devices[at].0.run_layers(&steps[at], rows.clone(), hidden, layers, &mut ()).unwrap();
        }
        have.extend(devices[0].0.logits(&steps[0], rows, hidden).unwrap().remove(0).logits);
        for ((engine, _), step) in devices.iter_mut().zip(steps) {
            engine.commit_step(step);
        }
    }
    assert_same_bits(&have, &want, "two devices");
    let [head, other] = devices.map(|(engine, _)| stats(engine.model()));
    assert!(head.reads_in_vain == 0 && other.reads_in_vain == 0, "{head:?} {other:?}");
    assert!(head.weight_bytes > other.weight_bytes && other.passes == 7, "{head:?} {other:?}");
}

#[test]
fn other_layers_take_the_place_of_those_that_are_not_needed_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &SyntheticModel { n_layers: 4, ..tiny("llama", Format::Q8_0) });
    let want = walk(&Model::open(&path).unwrap());
    let none = Some(Vec::new());
    let all = stats(&within(&path, &Residency::default())).weight_bytes;
    for budget_bytes in [0, all / 2, all] {
        let residency =
            Residency { budget_bytes, layers: none.clone(), read_bytes: 4 << 10, ..Residency::default() };
        let model = within(&path, &residency);
        let weights = model.streamed().unwrap();
        assert!(weights.layers().is_empty());
        let check = |layers: &[usize]| {
            weights.set_layers(layers.to_vec()).unwrap();
            let stats = weights.stats();
            assert_eq!(weights.layers(), layers);
            assert_eq!(stats.resident_bytes + stats.streamed_bytes, stats.weight_bytes);
            assert!(stats.resident_bytes <= budget_bytes);
            stats.weight_bytes
        };
        let some = check(&[1, 2]);
        let mut engine =
            engine(&model, 1, EngineOptions { layers: none.clone(), ..EngineOptions::default() });
        engine.reset(Some(vec![0, 3]), GpuLayers::Fit).unwrap();
        let seq = engine.create();
        let elsewhere = StepSeq { seq, ids: &[1], logits: Wanted::Last, capture: None };
        let step = engine.open_step(&[elsewhere]).unwrap();
        let hidden = engine.embed(&step, 0..1).unwrap();
        let err = engine.run_layers(&step, 0..1, hidden, 0..1, &mut ()).unwrap_err();
        assert!(matches!(err, StepError::Weights(WeightError::LayerElsewhere { layer: 0 })), "{err}");
        assert_eq!(check(&[0, 3]), some, "layers of one size");
        assert_eq!(check(&[0, 1, 2, 3]), all);
        assert_same_bits(&walk(&model), &want, "all layers after others");
        let before = weights.stats();
        for (wrong, twice) in [(vec![0, 4], false), (vec![1, 1], true)] {
            let err = weights.set_layers(wrong).unwrap_err();
            assert_eq!(matches!(err, ResidencyError::LayerTwice { layer: 1 }), twice, "{err}");
        }
        assert_eq!(
            (weights.layers(), weights.stats().resident_bytes),
            (vec![0, 1, 2, 3], before.resident_bytes)
        );
    }
}

#[test]
fn engines_that_share_a_model_do_not_disturb_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &family("qwen2moe", Format::Q8_0));
    let want = walk(&Model::open(&path).unwrap());
    let residency = Residency { budget_bytes: 30_000, read_bytes: 4 << 10, ..Residency::default() };
    let model = within(&path, &residency);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert_same_bits(&walk(&model), &want, "one of three engines"));
        }
    });
}

#[test]
fn a_changed_budget_takes_effect_with_the_next_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &tiny("llama", Format::Q8_0));
    let plain = Model::open(&path).unwrap();
    let ids = prompt(3, 24);
    let mut reference = engine(&plain, 1, EngineOptions::default());
    let own = reference.create();
    let want = all_logits(&mut reference, own, &ids);
    let model = within(&path, &Residency { read_bytes: 4 << 10, ..Residency::default() });
    let all = stats(&model).weight_bytes;
    let mut engine = engine(&model, 2, EngineOptions::default());
    let seq = engine.create();
    let mut have = Vec::new();
    for (at, id) in ids.iter().enumerate() {
        let budget = all * [4, 1, 0, 3, 2][at % 5] / 4;
        let before = stats(&model).budget_bytes;
        model.streamed().unwrap().set_budget(budget);
        assert_eq!(stats(&model).budget_bytes, before, "nothing changes between tokens");
        have.extend(all_logits(&mut engine, seq, &[*id]));
        let stats = stats(&model);
        assert_eq!(stats.budget_bytes, budget);
        assert_eq!(stats.resident_bytes + stats.streamed_bytes, all);
        assert!(stats.resident_bytes <= budget);
    }
    assert_same_bits(&have, &want, "budgets from all to nothing");
}

#[test]
fn layers_of_other_devices_are_refused_and_nothing_has_happened() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &tiny("llama", Format::Q8_0));
    let check = |residency: Residency, want: &dyn Fn(&WeightError) -> bool| {
        let model = within(&path, &residency);
        let mut engine = engine(&model, 1, EngineOptions::default());
        let seq = engine.create();
        let step = [StepSeq { seq, ids: &[1, 2], logits: Wanted::Last, capture: None }];
        let err = engine.step(&step, &mut ()).unwrap_err();
        assert!(matches!(&err, StepError::Weights(err) if want(err)), "{err:?}");
        assert_eq!(engine.len(seq).unwrap(), 0);
    };
    let some = Residency { layers: Some(vec![0, 2]), ..Residency::default() };
    check(some, &|err| matches!(err, WeightError::LayerElsewhere { layer: 1 }));
    let no_ends = Residency { ends: false, ..Residency::default() };
    check(no_ends, &|err| matches!(err, WeightError::EndsElsewhere));
    let refused = |residency: Residency| {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let config = ModelConfig::from_gguf(&gguf, vocab_len(&gguf).unwrap()).unwrap();
        StreamedWeights::new(MappedWeights::new(gguf, &config).unwrap(), &residency).unwrap_err().to_string()
    };
    let layers =
        |layers: &[usize]| refused(Residency { layers: Some(layers.to_vec()), ..Residency::default() });
    assert_eq!(layers(&[1, 3]), "layer 3 of 3");
    assert_eq!(layers(&[1, 0, 1]), "layer 1 is listed twice");
    let reads = refused(Residency { read_bytes: 100, ..Residency::default() });
    assert_eq!(reads, "reads of 100 bytes, must be 4096 to 67108864");
    let buffers = |buffers| refused(Residency { buffers, ..Residency::default() });
    assert_eq!(buffers(0), "0 buffers to read into, must be 1 to 1024");
    assert_eq!(buffers(1025), "1025 buffers to read into, must be 1 to 1024");
    let threads = |threads| refused(Residency { threads, ..Residency::default() });
    assert_eq!(threads(0), "0 reading threads, must be 1 to 16");
    assert_eq!(threads(17), "17 reading threads, must be 1 to 16");
}

#[test]
fn reads_of_another_size_take_no_more_memory() {
    let usual = Residency::default();
    assert_eq!(usual.clone().with_reads_of(usual.read_bytes), usual);
    for (bytes, buffers) in [(256 << 10, 158), (1 << 20, 41), (4 << 20, 10), (8_000_000, 5)] {
        let other = usual.clone().with_reads_of(bytes);
        assert_eq!((other.read_bytes, other.buffers), (bytes, buffers));
        assert!((other.read_bytes * other.buffers) as u64 <= STREAM_BYTES);
    }
    let bounds = [0, usize::MAX].map(|bytes| usual.clone().with_reads_of(bytes));
    assert_eq!(
        bounds.map(|residency| (residency.read_bytes, residency.buffers)),
        [(4096, 1024), (64 << 20, 1)]
    );
}

#[test]
fn reads_of_a_pass_are_the_bytes_that_do_not_stay() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &tiny("llama", Format::Q8_0));
    let all = stats(&within(&path, &Residency::default())).weight_bytes;
    for budget_bytes in [0, all / 2, all] {
        let residency = Residency { budget_bytes, read_bytes: 4 << 10, ..Residency::default() };
        let model = within(&path, &residency);
        let reads = model.streamed().unwrap().reads();
        assert!(reads.iter().all(|(part, bytes)| *part == 0 && bytes.len() <= 4 << 10), "{reads:?}");
        let bytes: u64 = reads.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        assert_eq!(bytes, stats(&model).streamed_bytes);
    }
}

#[test]
fn a_model_in_memory_cannot_be_streamed() {
    let bytes = tiny("llama", Format::Q8_0).to_gguf().unwrap();
    let gguf = Arc::new(Gguf::from_bytes(bytes).unwrap());
    let config = ModelConfig::from_gguf(&gguf, vocab_len(&gguf).unwrap()).unwrap();
    let mapped = MappedWeights::new(gguf, &config).unwrap();
    let err = StreamedWeights::new(mapped, &Residency::default()).unwrap_err();
    assert!(matches!(err, ResidencyError::NotAFile), "{err}");
}

#[test]
fn a_file_that_was_cut_short_is_an_error_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &SyntheticModel { tied: false, ..tiny("llama", Format::Q8_0) });
    let model = within(&path, &Residency { budget_bytes: 0, ..Residency::default() });
    let mut engine = engine(&model, 1, EngineOptions::default());
    let seq = engine.create();
    all_logits(&mut engine, seq, &[1, 2, 3]);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    // The beginning of the file, with the embedding table, is still there.
    let gguf = Gguf::open(&path).unwrap();
    let end = gguf.tensor("token_embd.weight").unwrap().place.range().end;
    drop(gguf);
    file.set_len(end as u64).unwrap();
    let step = [StepSeq { seq, ids: &[4], logits: Wanted::Last, capture: None }];
    // Data that was read ahead may still serve the first layers of a token.
    let err = (0..2).find_map(|_| engine.step(&step, &mut ()).err()).expect("most weights are gone");
    let StepError::Weights(WeightError::Read { path: named, .. }) = &err else { panic!("{err:?}") };
    assert_eq!(named, &path);
    assert!(engine.len(seq).unwrap() <= 4);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_budget_and_any_order_give_the_same_bits(
        percent in 0..101_u64,
        order in Just(vec![0_usize, 1, 2]).prop_shuffle(),
        read_bytes in 4096..40_000_usize,
        name in prop::sample::select(vec!["llama", "mixtral", "gemma3"]),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = write(folder.path(), &family(name, Format::Q8_0));
        let want = walk(&Model::open(&path).unwrap());
        let all = stats(&within(&path, &Residency::default())).weight_bytes;
        let budget_bytes = all * percent / 100;
        let residency = Residency { budget_bytes, layers: Some(order), read_bytes, ..Residency::default() };
        assert_same_bits(&walk(&within(&path, &residency)), &want, name);
    }
}

#[test]
fn repacked_and_streamed_weights_agree() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &SyntheticModel::small("llama", Format::Q4K, 3));
    let logits = |model: Arc<Model>| {
        let mut engine = Engine::new(model, EngineOptions::default()).unwrap();
        let seq = engine.create();
        all_logits(&mut engine, seq, &prompt(1, 70))
    };
    let repacked = logits(Model::open_repacked(&path, u64::MAX).unwrap());
    let streamed = logits(within(&path, &Residency { budget_bytes: 100_000, ..Residency::default() }));
    assert_same_bits(&streamed, &repacked, "streamed against repacked");
}
