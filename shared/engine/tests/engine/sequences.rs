//! Sequences: lengths, outputs, cancellation and a full cache.

use std::ops::ControlFlow;

use baton_engine::{EngineOptions, KvError, StepControl, StepError, StepSeq, Wanted};
use baton_kernels_cpu::Format;

use crate::{all_logits, assert_same_bits, engine, open, prompt, tiny};

/// Cancels after a layer and records the progress.
struct StopAfter {
    layer: usize,
    heard: Vec<(usize, usize)>,
}

impl StepControl for StopAfter {
    fn after_layer(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        self.heard.push((done, total));
        if done == self.layer { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[test]
fn a_cancelled_step_leaves_every_sequence_as_it_was() {
    let model = open(&tiny("llama", Format::F32));
    let mut engine = engine(&model, 2, EngineOptions::default());
    let ids = prompt(1, 100);
    let (a, b) = (engine.create(), engine.create());
    all_logits(&mut engine, a, &ids[..50]);
    let fork = engine.fork(a, 45).unwrap();
    let free = engine.free_tokens();
    for layer in 1..=3 {
        let mut control = StopAfter { layer, heard: Vec::new() };
        let batch =
            [a, b, fork].map(|seq| StepSeq { seq, ids: &ids[50..], logits: Wanted::Last, capture: None });
        let err = engine.step(&batch, &mut control).unwrap_err();
        assert!(matches!(err, StepError::Cancelled { done, total: 3 } if done == layer), "{err}");
        assert_eq!(control.heard, (1..=layer).map(|done| (done, 3)).collect::<Vec<_>>());
        assert_eq!([a, b, fork].map(|seq| engine.len(seq).unwrap()), [50, 0, 45]);
    }
    // Only a fork's copy of its last block may stay allocated.
    assert!(free - engine.free_tokens() <= 32);
    let have = all_logits(&mut engine, a, &ids[50..]);
    let fresh = engine.create();
    let want = all_logits(&mut engine, fresh, &ids);
    assert_same_bits(&have, &want[50 * model.config().vocab_len..], "after cancelled steps");
}

#[test]
fn logits_come_where_they_are_wanted() {
    let model = open(&tiny("qwen2", Format::F32));
    let mut engine = engine(&model, 1, EngineOptions::default());
    let ids = prompt(2, 40);
    let seqs = [engine.create(), engine.create(), engine.create()];
    let wanted = [Wanted::None, Wanted::Last, Wanted::All];
    let batch = [0, 1, 2].map(|at| StepSeq { seq: seqs[at], ids: &ids, logits: wanted[at], capture: None });
    let outputs = engine.step(&batch, &mut ()).unwrap();
    let v = model.config().vocab_len;
    assert_eq!(outputs.iter().map(|output| output.logits.len()).collect::<Vec<_>>(), [0, v, 40 * v]);
    assert_same_bits(&outputs[1].logits, &outputs[2].logits[39 * v..], "the last row");
    assert_eq!(engine.ids(seqs[0]).unwrap(), ids);
    assert_eq!(engine.step(&[], &mut ()).unwrap(), []);
}

#[test]
fn a_full_cache_is_a_typed_error_before_anything_changes() {
    let model = open(&tiny("llama", Format::F32));
    let mut engine = engine(&model, 1, EngineOptions { kv_tokens: 70, ..EngineOptions::default() });
    assert_eq!(engine.free_tokens(), 96);
    let ids = prompt(3, 97);
    let (a, b) = (engine.create(), engine.create());
    all_logits(&mut engine, a, &ids[..40]);
    let batch = [(a, &ids[..20]), (b, &ids[..33])].map(|(seq, ids)| StepSeq {
        seq,
        ids,
        logits: Wanted::None,
        capture: None,
    });
    let err = engine.step(&batch, &mut ()).unwrap_err();
    assert!(matches!(err, StepError::Kv(KvError::KvFull { needed: 64, free: 32 })), "{err}");
    assert_eq!((engine.len(a).unwrap(), engine.len(b).unwrap(), engine.free_tokens()), (40, 0, 32));
    engine.release(a);
    all_logits(&mut engine, b, &ids[..96]);
    assert_eq!(engine.free_tokens(), 0);
    engine.release(b);
    assert_eq!(engine.free_tokens(), 96);
}
