//! A ring of a device without a GPU and one with.

use std::sync::Arc;

use baton_e2e::pair::demo_model;
use baton_engine::{GpuLayers, GpuUse, PrefixScope, SeqId, Sequences, StepSeq, Wanted};
use baton_ring::sim::home::{Home, TestMachine, first, plan};

use crate::{assert_near, best, cpu, device, engine, fails, prompt, written};

fn step(seq: SeqId, ids: &[u32], logits: Wanted) -> StepSeq<'_> {
    StepSeq { seq, ids, logits, capture: None }
}

#[test]
fn a_ring_of_a_cpu_and_a_gpu_writes_what_one_engine_writes() {
    let Some(device) = device() else { return };
    let model = demo_model("demo-device.gguf").expect("the demo model is in the checkout");
    let (layers, vocab) = (model.config().n_layers, model.config().vocab_len);
    let ids = prompt(6, 60, vocab);
    let (want, text) = written(&mut engine(&model, cpu(1024)), &ids, 10);
    let mut home = Home::new(0, &model);
    let gpu = Some(GpuUse { device: Arc::clone(&device), layers: GpuLayers::Fit, on_loss: fails });
    let file = model.path().expect("a model in a file").to_owned();
    home.add_on(1, vec![file], Arc::new(TestMachine { gpu, ..TestMachine::default() }));
    let mut shares = plan(1, &[("head", 1), ("w1", layers - 1)]);
    shares.shares[1].gpu_layers = layers - 1;
    let before = device.used_bytes();
    let mut head = home.head(first(shares));
    let seq = head.create_in(PrefixScope::default(), None).expect("a sequence");
    let have = head.step(&[step(seq, &ids, Wanted::All)], &mut ()).expect("a step").remove(0).logits;
    assert!(device.used_bytes() > before, "the worker's layers are on the GPU");
    assert_near(&have, &want, "a prompt");
    let (mut last, mut own) = (have[have.len() - vocab..].to_vec(), Vec::new());
    for at in 0..10 {
        own.push(best(&last));
        let next = head.step(&[step(seq, &own[at..], Wanted::Last)], &mut ()).expect("a step");
        last.clone_from(&next[0].logits);
    }
    assert_eq!(own, text);
}
