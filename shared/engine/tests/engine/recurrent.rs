//! Models with recurrent layers: whatever was forked, cut, found again or cancelled before, logits are those
//! of a fresh sequence, bit for bit.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use baton_engine::engine::EngineError;
use baton_engine::gguf::Gguf;
use baton_engine::{
    Adapter, AdapterError, Capture, Engine, EngineOptions, EvictError, GpuLayers, HeadId, Kept, KvError,
    MeanOver, Model, SeqId, StepControl, StepError, StepSeq, Wanted,
};
use baton_kernels_cpu::Format;
use baton_synthetic::{ExtraValue, SyntheticAdapter, SyntheticModel};
use proptest::prelude::*;

use crate::{all_logits, assert_same_bits, engine, family, open, prompt};

const FAMILIES: [&str; 5] = ["lfm2", "lfm2moe", "qwen3next", "qwen35", "qwen35moe"];

fn recurrent(name: &'static str, format: Format) -> SyntheticModel {
    family(name, format)
}

/// Returns every logit of `ids`, computed in one step by an engine that has seen nothing else.
fn fresh(model: &Arc<Model>, ids: &[u32]) -> Vec<f32> {
    let mut engine = engine(model, 1, EngineOptions::default());
    let seq = engine.create();
    all_logits(&mut engine, seq, ids)
}

/// Appends `ids[engine.len(seq)..]` and checks their logits against those of a fresh sequence.
#[track_caller]
fn check_rest(engine: &mut Engine, seq: SeqId, ids: &[u32], want: &[f32], what: &str) {
    let from = engine.len(seq).unwrap();
    assert_eq!(engine.ids(seq).unwrap(), &ids[..from], "{what}");
    let vocab_len = engine.model().config().vocab_len;
    let have = all_logits(engine, seq, &ids[from..]);
    assert_same_bits(&have, &want[from * vocab_len..], what);
}

#[test]
fn forks_and_cuts_at_every_length_change_no_bit() {
    for name in FAMILIES {
        let model = open(&recurrent(name, Format::F32));
        let ids = prompt(1, 140);
        let want = fresh(&model, &ids);
        let mut engine = engine(&model, 2, EngineOptions::default());
        let parent = engine.create();
        for chunk in ids[..130].chunks(47) {
            all_logits(&mut engine, parent, chunk);
        }
        for n in (0..130).rev().step_by(3) {
            let child = engine.fork(parent, n).unwrap();
            check_rest(&mut engine, child, &ids[..134], &want[..134 * want.len() / 140], "a fork");
            engine.release(child);
            if n % 2 == 0 {
                engine.truncate(parent, n).unwrap();
            }
        }
        check_rest(&mut engine, parent, &ids, &want, "what was cut again and again");
    }
}

#[test]
fn a_step_that_is_cut_back_again_and_again_goes_on_with_the_same_bits() {
    let model = open(&recurrent("qwen3next", Format::Q8_0));
    let ids = prompt(3, 90);
    let want = fresh(&model, &ids);
    let vocab_len = model.config().vocab_len;
    let mut engine = engine(&model, 2, EngineOptions::default());
    let seq = engine.create();
    let mut at = 0;
    while at < 84 {
        // As speculation does: some tokens are proposed, and fewer are accepted.
        let mut proposed = ids[at..at + 1 + at % 6].to_vec();
        proposed[at % 6] ^= 1;
        let accepted = at % 6;
        let have = all_logits(&mut engine, seq, &proposed);
        assert_same_bits(
            &have[..accepted * vocab_len],
            &want[at * vocab_len..(at + accepted) * vocab_len],
            "proposed",
        );
        engine.truncate(seq, at + accepted).unwrap();
        at += accepted;
        let have = all_logits(&mut engine, seq, &ids[at..=at]);
        assert_same_bits(&have, &want[at * vocab_len..(at + 1) * vocab_len], "after a cut");
        at += 1;
    }
}

#[test]
fn known_prefixes_end_at_checkpoints() {
    for name in FAMILIES {
        let model = open(&recurrent(name, Format::F32));
        let ids = prompt(2, 300);
        let want = fresh(&model, &ids);
        let mut engine = engine(&model, 2, EngineOptions { kv_tokens: 800, ..EngineOptions::default() });
        let first = engine.create();
        for chunk in ids[..290].chunks(100) {
            all_logits(&mut engine, first, chunk);
        }
        assert_eq!(engine.held_prefix(Default::default(), None, &ids), 288, "{name}: the newest is kept");
        engine.release(first);
        assert_eq!(engine.held_prefix(Default::default(), None, &ids), 0);
        let again = engine.create();
        assert_eq!(engine.reuse_prefix(again, &ids), 288, "{name}");
        check_rest(&mut engine, again, &ids, &want, "after a known prefix");
        // A prompt that differs within a block: the checkpoint before it, or an earlier one.
        let other = [&ids[..200], &prompt(7, 60)].concat();
        let want = fresh(&model, &other);
        let second = engine.create();
        let gained = engine.reuse_prefix(second, &other);
        assert!(gained.is_multiple_of(32) && (128..=192).contains(&gained), "{name}: {gained} tokens");
        assert_eq!(engine.reuse_prefix(second, &other[gained..]), 0, "nothing more is known");
        check_rest(&mut engine, second, &other, &want, "after a part of a known prefix");
    }
}

/// Cancels at a layer.
struct StopAt(usize);

impl StepControl for StopAt {
    fn after_layer(&mut self, done: usize, _total: usize) -> ControlFlow<()> {
        if done >= self.0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[test]
fn a_cancelled_step_leaves_states_as_they_were() {
    for name in FAMILIES {
        let model = open(&recurrent(name, Format::F32));
        let ids = prompt(4, 250);
        let want = fresh(&model, &ids);
        let mut engine = engine(&model, 2, EngineOptions::default());
        let seq = engine.create();
        all_logits(&mut engine, seq, &ids[..180]);
        // 0 cancels while the sequence catches up.
        for (layer, cut) in [(1, 180), (2, 170), (3, 161), (0, 150), (1, 100), (0, 95)] {
            engine.truncate(seq, cut).unwrap();
            let step = StepSeq { seq, ids: &ids[..60], logits: Wanted::Last, capture: None };
            let err = engine.step(&[step], &mut StopAt(layer)).unwrap_err();
            assert!(matches!(err, StepError::Cancelled { .. }), "{err}");
            assert_eq!(engine.len(seq).unwrap(), cut);
            let fork = engine.fork(seq, cut).unwrap();
            check_rest(&mut engine, fork, &ids, &want, "after a cancelled step");
        }
    }
}

/// One operation on a handful of sequences.
#[derive(Debug, Clone)]
enum Op {
    Create,
    /// Steps of some sequences: which, how many tokens of which text, and whether it is cancelled.
    Step(Vec<(usize, usize, u32)>, bool),
    Fork(usize, usize),
    Cut(usize, usize),
    Release(usize),
    /// A sequence with a prompt like the tokens of another.
    Reuse(usize, u32),
}

fn op() -> impl Strategy<Value = Op> {
    let batch = prop::collection::vec((0..6usize, 1..90usize, 0..2u32), 1..4);
    prop_oneof![
        1 => Just(Op::Create),
        6 => (batch, prop::bool::weighted(0.2)).prop_map(|(batch, cancel)| Op::Step(batch, cancel)),
        2 => (0..6usize, 0..=100usize).prop_map(|(at, percent)| Op::Fork(at, percent)),
        2 => (0..6usize, 0..=100usize).prop_map(|(at, percent)| Op::Cut(at, percent)),
        1 => (0..6usize).prop_map(Op::Release),
        2 => (0..6usize, 0..2u32).prop_map(|(at, text)| Op::Reuse(at, text)),
    ]
}

/// An engine, what its sequences should hold, and the logits of fresh sequences.
struct World {
    model: Arc<Model>,
    engine: Engine,
    seqs: Vec<(SeqId, Vec<u32>)>,
    known: HashMap<Vec<u32>, Vec<f32>>,
}

/// The longest sequence.
const TOKENS_MAX: usize = 260;

impl World {
    fn apply(&mut self, op: Op) {
        let count = self.seqs.len();
        match op {
            Op::Create => self.seqs.push((self.engine.create(), Vec::new())),
            _ if count == 0 => {}
            Op::Step(batch, cancel) => self.step(batch, cancel),
            Op::Fork(at, percent) => {
                let (seq, ids) = &self.seqs[at % count];
                let n = ids.len() * percent / 100;
                let child = self.engine.fork(*seq, n).unwrap();
                self.seqs.push((child, ids[..n].to_vec()));
            }
            Op::Cut(at, percent) => {
                let (seq, ids) = &mut self.seqs[at % count];
                ids.truncate(ids.len() * percent / 100);
                self.engine.truncate(*seq, ids.len()).unwrap();
            }
            Op::Release(at) => self.engine.release(self.seqs.swap_remove(at % count).0),
            Op::Reuse(at, text) => {
                let like = [&self.seqs[at % count].1[..], &prompt(text, 5)].concat();
                let seq = self.engine.create();
                let gained = self.engine.reuse_prefix(seq, &like);
                self.seqs.push((seq, like[..gained].to_vec()));
            }
        }
    }

    fn step(&mut self, batch: Vec<(usize, usize, u32)>, cancel: bool) {
        let mut wants: Vec<(usize, Vec<u32>)> = Vec::new();
        for (at, n, text) in batch {
            let at = at % self.seqs.len();
            let len = self.seqs[at].1.len();
            let n = n.min(TOKENS_MAX - len);
            if n > 0 && wants.iter().all(|(other, _)| *other != at) {
                wants.push((at, prompt(text, TOKENS_MAX)[len..len + n].to_vec()));
            }
        }
        let entries: Vec<_> = (wants.iter())
            .map(|(at, ids)| StepSeq { seq: self.seqs[*at].0, ids, logits: Wanted::All, capture: None })
            .collect();
        let mut control = StopAt(if cancel { 2 } else { usize::MAX });
        match self.engine.step(&entries, &mut control) {
            Ok(outputs) => {
                let vocab_len = self.model.config().vocab_len;
                for ((at, ids), output) in wants.into_iter().zip(outputs) {
                    let whole = &mut self.seqs[at].1;
                    let from = whole.len();
                    whole.extend(ids);
                    let want = self.known.entry(whole.clone()).or_insert_with(|| fresh(&self.model, whole));
                    assert_same_bits(&output.logits, &want[from * vocab_len..], "a step");
                }
            }
            Err(StepError::Cancelled { .. }) => assert!(cancel),
            Err(StepError::Kv(KvError::KvFull { .. })) => {}
            Err(err) => panic!("{err}"),
        }
        for (seq, ids) in &self.seqs {
            assert_eq!(self.engine.ids(*seq).unwrap(), ids);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_history_changes_a_bit(
        ops in prop::collection::vec(op(), 1..24),
        name in prop::sample::select(FAMILIES.to_vec()),
        kv_tokens in prop::sample::select(vec![320usize, 700, 4000]),
    ) {
        let model = open(&recurrent(name, Format::F32));
        let options = EngineOptions { kv_tokens, ..EngineOptions::default() };
        let engine = engine(&model, 2, options);
        let mut world = World { model, engine, seqs: Vec::new(), known: HashMap::new() };
        world.apply(Op::Create);
        ops.into_iter().for_each(|op| world.apply(op));
    }
}

#[test]
fn layers_that_guess_further_tokens_are_left_out() {
    let three = recurrent("qwen35", Format::F32);
    let four = SyntheticModel {
        n_layers: 4,
        extra: vec![("nextn_predict_layers", ExtraValue::U32(1))],
        ..three.clone()
    };
    let ids = prompt(5, 40);
    assert_same_bits(&fresh(&open(&four), &ids), &fresh(&open(&three), &ids), "without the last layer");
}

#[test]
fn what_recurrent_layers_cannot_do_is_refused_by_name() {
    for name in FAMILIES {
        let model = open(&recurrent(name, Format::F32));
        let mut engine = engine(&model, 1, EngineOptions::default());
        let seq = engine.create();
        all_logits(&mut engine, seq, &[1, 2, 3]);
        let capture =
            Capture { window: 0..1, heads: vec![HeadId { layer: 0, head: 0 }], over: MeanOver::Queries };
        let step = StepSeq { seq, ids: &[1], logits: Wanted::None, capture: Some(&capture) };
        let err = engine.step(&[step], &mut ()).unwrap_err().to_string();
        assert_eq!(err, format!("layer 0 of a {name} model is recurrent and has no attention scores"));
        let kept = Kept::new(&vec![vec![0]; 9]).unwrap();
        let err = engine.evict(seq, &kept).unwrap_err();
        assert!(matches!(err, EvictError::Recurrent { family } if family == name), "{err}");
        let plain = StepSeq { seq, ids: &[1], logits: Wanted::None, capture: None };
        let err = engine.open_step(&[plain]).unwrap_err();
        assert!(matches!(err, StepError::RecurrentInPieces { family } if family == name), "{err}");
        for layers in [vec![], vec![1], vec![0, 2]] {
            let err = engine.reset(Some(layers.clone()), GpuLayers::Fit).unwrap_err();
            assert!(matches!(err, EngineError::Recurrent { family } if family == name), "{err}");
            let options = EngineOptions { layers: Some(layers), ..EngineOptions::default() };
            let err = Engine::new(Arc::clone(&model), options).unwrap_err();
            assert!(matches!(err, EngineError::Recurrent { .. }), "{err}");
        }
        assert_eq!(engine.len(seq).unwrap(), 3);
        engine.reset(None, GpuLayers::Fit).unwrap();
        assert_same_bits(&all_logits(&mut engine, seq, &[1, 2]), &fresh(&model, &[1, 2]), "after a reset");
    }
    let model = open(&recurrent("lfm2", Format::F32));
    let adapter = SyntheticAdapter::of_seed(1).to_gguf(model.config()).unwrap();
    let err = Adapter::from_gguf(Gguf::from_bytes(adapter).unwrap(), &model).unwrap_err();
    assert!(matches!(err, AdapterError::Recurrent { family: "lfm2" }), "{err}");
}
