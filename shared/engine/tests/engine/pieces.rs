//! A step in pieces over several engines gives the same bits as one engine's step.

use std::ops::Range;
use std::sync::Arc;

use baton_engine::engine::{EngineError, Hidden, OpenStep};
use baton_engine::{
    Engine, EngineOptions, EvictError, GpuLayers, Kept, KvError, Model, SeqId, StepError, StepSeq, Wanted,
};
use baton_kernels_cpu::Format;
use baton_synthetic::SyntheticAdapter;
use proptest::prelude::*;

use crate::{adapters, all_logits, assert_same_bits, engine, family, open, prompt, tiny};

/// One engine per device, and the device of each layer.
struct Split {
    engines: Vec<Engine>,
    owner: Vec<usize>,
}

fn entry(seq: SeqId, ids: &[u32]) -> StepSeq<'_> {
    StepSeq { seq, ids, logits: Wanted::All, capture: None }
}

impl Split {
    /// Creates the engines: `owner[layer]` computes the layer; the first engine embeds and computes logits.
    fn new(model: &Arc<Model>, owner: &[usize]) -> Self {
        let of = |device: usize| (0..owner.len()).filter(|layer| owner[*layer] == device).collect();
        let made = |device| {
            let options = EngineOptions { layers: Some(of(device)), ..EngineOptions::default() };
            engine(model, 1 + device % 2, options)
        };
        let devices = owner.iter().max().unwrap() + 1;
        Self { engines: (0..devices).map(made).collect(), owner: owner.to_vec() }
    }

    fn each<T>(&mut self, f: impl FnMut(&mut Engine) -> T) -> T {
        let all: Vec<T> = self.engines.iter_mut().map(f).collect();
        all.into_iter().next().unwrap()
    }

    fn chunk(&mut self, steps: &[OpenStep], rows: &Range<usize>) -> Hidden {
        let mut hidden = self.engines[0].embed(&steps[0], rows.clone()).unwrap();
        for (layer, &device) in self.owner.iter().enumerate() {
            let (engine, layers) = (&mut self.engines[device], layer..layer + 1);
            hidden = engine.run_layers(&steps[device], rows.clone(), hidden, layers, &mut ()).unwrap();
        }
        hidden
    }

    /// Runs the step in chunks of `chunk` rows; returns the logits of every sequence.
    fn step(&mut self, batch: &[StepSeq<'_>], chunk: usize) -> Vec<Vec<f32>> {
        let open = |engine: &mut Engine| engine.open_step(batch).unwrap();
        let steps: Vec<OpenStep> = self.engines.iter_mut().map(open).collect();
        let total = steps[0].rows();
        let mut logits = vec![Vec::new(); batch.len()];
        for start in (0..total).step_by(chunk) {
            let rows = start..total.min(start + chunk);
            let hidden = self.chunk(&steps, &rows);
            let outputs = self.engines[0].logits(&steps[0], rows, hidden).unwrap();
            logits.iter_mut().zip(outputs).for_each(|(all, output)| all.extend(output.logits));
        }
        for (engine, step) in self.engines.iter_mut().zip(steps) {
            engine.commit_step(step);
        }
        logits
    }
}

fn wanted() -> impl Strategy<Value = Wanted> {
    prop::sample::select(vec![Wanted::None, Wanted::Last, Wanted::All])
}

/// For each step: tokens of the two sequences, which logits are wanted, and rows of a chunk.
fn script() -> impl Strategy<Value = Vec<([usize; 2], [Wanted; 2], usize)>> {
    prop::collection::vec(([0..50usize, 0..4usize], [wanted(), wanted()], 1..40usize), 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn pieces_change_no_bit(
        script in script(),
        owner in prop::collection::vec(0..3usize, 3),
        name in prop::sample::select(vec!["llama", "mixtral", "gemma2", "gemma3", "gemma4", "granite", "mistral3", "phi3", "gpt-oss", "deepseek2"]),
    ) {
        let model = open(&family(name, Format::Q8_0));
        let mut whole = engine(&model, 2, EngineOptions::default());
        let mut split = Split::new(&model, &owner);
        let seqs = [(); 2].map(|()| (whole.create(), split.each(Engine::create)));
        let prompts = [prompt(4, 200), prompt(5, 40)];
        for (moves, wanted, chunk) in script {
            let mut batches = [Vec::new(), Vec::new()];
            for at in 0..2 {
                let from = whole.len(seqs[at].0).unwrap();
                let ids = &prompts[at][from..prompts[at].len().min(from + moves[at])];
                if !ids.is_empty() {
                    batches[0].push(StepSeq { logits: wanted[at], ..entry(seqs[at].0, ids) });
                    batches[1].push(StepSeq { logits: wanted[at], ..entry(seqs[at].1, ids) });
                }
            }
            let want = whole.step(&batches[0], &mut ()).unwrap();
            for (have, want) in split.step(&batches[1], chunk).iter().zip(&want) {
                assert_same_bits(have, &want.logits, "in pieces");
            }
        }
    }
}

#[test]
fn forks_cuts_and_known_prefixes_agree_on_every_engine() {
    let model = open(&tiny("qwen2", Format::Q8_0));
    let mut whole = engine(&model, 2, EngineOptions::default());
    let mut split = Split::new(&model, &[0, 1, 0]);
    let ids = prompt(3, 130);
    let (one, other) = (whole.create(), split.each(Engine::create));
    let want = all_logits(&mut whole, one, &ids[..100]);
    assert_same_bits(&split.step(&[entry(other, &ids[..100])], 64)[0], &want, "a prompt");
    whole.truncate(one, 70).unwrap();
    split.each(|engine| engine.truncate(other, 70).unwrap());
    let child = whole.fork(one, 40).unwrap();
    let split_child = split.each(|engine| engine.fork(other, 40).unwrap());
    let want = all_logits(&mut whole, child, &ids[90..]);
    assert_same_bits(&split.step(&[entry(split_child, &ids[90..])], 7)[0], &want, "a fork");
    let (again, split_again) = (whole.create(), split.each(Engine::create));
    let known = whole.reuse_prefix(again, &ids);
    assert!(known >= 64, "{known} tokens are known");
    assert_eq!(split.each(|engine| engine.reuse_prefix(split_again, &ids)), known);
    let want = all_logits(&mut whole, again, &ids[known..]);
    assert_same_bits(&split.step(&[entry(split_again, &ids[known..])], 33)[0], &want, "a known prefix");
}

#[test]
fn adapters_go_in_pieces_too() {
    let model = open(&tiny("llama", Format::F32));
    let adapter = adapters::adapter(&model, &SyntheticAdapter::of_seed(1));
    let seqs = |engine: &mut Engine| {
        let id = engine.add_adapter(Arc::clone(&adapter)).unwrap();
        [engine.create_with(Some(id)).unwrap(), engine.create()]
    };
    let mut whole = engine(&model, 1, EngineOptions::default());
    let mut split = Split::new(&model, &[1, 0, 1]);
    let ids = prompt(7, 60);
    let batch = seqs(&mut whole).map(|seq| entry(seq, &ids));
    let want = whole.step(&batch, &mut ()).unwrap();
    let own = split.each(seqs);
    for (have, want) in split.step(&own.map(|seq| entry(seq, &ids)), 50).iter().zip(&want) {
        assert_same_bits(have, &want.logits, "an adapted sequence beside a plain one");
    }
}

#[test]
fn an_open_step_can_be_cancelled_and_forbids_all_else() {
    let model = open(&tiny("llama", Format::F32));
    let mut engine = engine(&model, 1, EngineOptions::default());
    let (seq, ids) = (engine.create(), prompt(1, 50));
    let first = all_logits(&mut engine, seq, &ids[..20]);
    let batch = [entry(seq, &ids[20..])];
    let step = engine.open_step(&batch).unwrap();
    assert!(matches!(engine.open_step(&batch), Err(StepError::Kv(KvError::StepOpen(_)))));
    assert!(matches!(engine.step(&batch, &mut ()), Err(StepError::Kv(KvError::StepOpen(_)))));
    assert_eq!(engine.truncate(seq, 3), Err(KvError::StepOpen(seq)));
    engine.cancel_step(step);
    assert_eq!(engine.len(seq).unwrap(), 20);
    engine.truncate(seq, 0).unwrap();
    assert_same_bits(&all_logits(&mut engine, seq, &ids[..20]), &first, "after a cancelled step");
    let step = engine.open_step(&batch).unwrap();
    engine.release(seq);
    let hidden = engine.embed(&step, 0..30).unwrap();
    assert!(matches!(engine.run_layers(&step, 0..30, hidden, 0..1, &mut ()), Err(StepError::Kv(_))));
    engine.commit_step(step);
    assert!(engine.len(seq).is_err());
}

fn hidden(rows: usize, width: usize) -> Hidden {
    Hidden { rows, width, values: vec![0.0; rows * width] }
}

#[test]
fn layers_that_the_model_lacks_or_this_engine_are_refused() {
    let model = open(&tiny("llama", Format::F32));
    let options =
        |layers: &[usize]| EngineOptions { layers: Some(layers.to_vec()), ..EngineOptions::default() };
    for layers in [&[3][..], &[1, 0], &[1, 1]] {
        let refused = Engine::new(Arc::clone(&model), options(layers));
        assert!(matches!(refused, Err(EngineError::Layers { n_layers: 3, .. })));
    }
    let mut engine = engine(&model, 1, options(&[1]));
    let (seq, ids) = (engine.create(), prompt(1, 8));
    assert!(matches!(engine.step(&[entry(seq, &ids)], &mut ()), Err(StepError::NotHeld { layer: 0 })));
    let kept = Kept::new(&[vec![0]]).unwrap();
    assert!(matches!(engine.evict(seq, &kept), Err(EvictError::SomeLayers { held: 1, n_layers: 3 })));
    let step = engine.open_step(&[entry(seq, &ids)]).unwrap();
    let refused = engine.run_layers(&step, 0..8, hidden(8, 64), 1..3, &mut ());
    assert!(matches!(refused, Err(StepError::NotHeld { layer: 2 })));
}

#[test]
fn rows_and_hidden_states_that_do_not_fit_a_step_are_refused() {
    let model = open(&tiny("llama", Format::F32));
    let mut engine = engine(&model, 1, EngineOptions::default());
    let (seq, ids) = (engine.create(), prompt(1, 8));
    let step = engine.open_step(&[StepSeq { logits: Wanted::Last, ..entry(seq, &ids) }]).unwrap();
    let mut run = |rows, hidden| engine.run_layers(&step, rows, hidden, 0..1, &mut ());
    assert!(matches!(run(0..9, hidden(9, 64)), Err(StepError::Rows { total: 8, .. })));
    assert!(matches!(run(0..8, hidden(7, 64)), Err(StepError::Hidden { want: (8, 64), .. })));
    assert!(matches!(run(0..8, hidden(8, 63)), Err(StepError::Hidden { .. })));
    let short = Hidden { rows: 8, width: 64, values: vec![0.0; 7] };
    assert!(matches!(run(0..8, short), Err(StepError::Hidden { .. })));
    assert_eq!(run(0..8, hidden(8, 64)).unwrap().rows, 8);
    let logits = engine.logits(&step, 0..8, hidden(2, 64));
    assert!(matches!(logits, Err(StepError::Hidden { want: (1, 64), .. })));
}

#[test]
fn an_engine_begins_anew_with_other_layers_and_the_same_sequences() {
    let model = open(&tiny("llama", Format::F32));
    let mut engine = engine(&model, 1, EngineOptions::default());
    let (seq, ids) = (engine.create(), prompt(1, 70));
    let want = all_logits(&mut engine, seq, &ids);
    let step = engine.open_step(&[entry(seq, &ids[..4])]).unwrap();
    engine.reset(Some(vec![0, 2]), GpuLayers::Fit).unwrap();
    assert_eq!((engine.len(seq).unwrap(), engine.reuse_prefix(seq, &ids)), (0, 0));
    let hidden = engine.embed(&step, 0..4).unwrap();
    assert!(matches!(engine.run_layers(&step, 0..4, hidden, 0..1, &mut ()), Err(StepError::Kv(_))));
    let refused = engine.step(&[entry(seq, &ids)], &mut ());
    assert!(matches!(refused, Err(StepError::NotHeld { layer: 1 })));
    assert!(matches!(
        engine.reset(Some(vec![3]), GpuLayers::Fit),
        Err(EngineError::Layers { n_layers: 3, .. })
    ));
    engine.reset(None, GpuLayers::Fit).unwrap();
    assert_same_bits(&all_logits(&mut engine, seq, &ids), &want, "with all layers again");
}
