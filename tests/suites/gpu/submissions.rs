//! How often the host hands commands to the device.

use std::sync::Arc;

use baton_e2e::pair::demo_model;
use baton_engine::{GpuLayers, Model, StepSeq, Wanted};
use baton_gpu::{Device, Interface};
use baton_kernels_cpu::Format;
use baton_kernels_wgpu::WgpuDevice;

use crate::{device, engine, logits, on, prompt, synthetic};

/// Checks that each token of a model is one submission, once the first one has brought the weights.
#[track_caller]
fn check(model: &Arc<Model>, what: &str) {
    let Some(shared) = device() else { return };
    let facts = shared.facts();
    if facts.interface == Interface::Cuda {
        return println!("skipped: gpu: CUDA's commands are not submitted together");
    }
    let own: Arc<WgpuDevice> =
        baton_kernels_wgpu::open(facts.interface, facts.index, None).expect("opened once before");
    let ids = prompt(7, 80, model.config().vocab_len);
    let device = Arc::clone(&own) as Arc<dyn Device>;
    let mut engine = engine(model, on(&device, GpuLayers::Fit, 512));
    let seq = engine.create();
    // The first token brings the weights of its kernels.
    for part in [&ids[..70], &ids[70..71]] {
        logits(&mut engine, seq, part);
    }
    for (id, wanted) in ids[71..].iter().zip([Wanted::Last, Wanted::Best].into_iter().cycle()) {
        let before = own.submissions();
        let step = StepSeq { seq, ids: &[*id], logits: wanted, capture: None };
        let output = engine.step(&[step], &mut ()).expect("a step").remove(0);
        let submissions = own.submissions() - before;
        assert_eq!((submissions, output.best.is_some()), (1, wanted == Wanted::Best), "{what}");
    }
}

#[test]
fn a_token_is_one_submission() {
    check(&demo_model("demo-device.gguf").expect("the demo model is in the checkout"), "dense");
}

#[test]
fn a_token_of_a_mixture_is_one_submission() {
    for (family, format) in
        [("qwen3moe", Format::Q8_0), ("qwen2moe", Format::Q4K), ("gpt-oss", Format::Mxfp4)]
    {
        check(&synthetic(family, format, true), family);
    }
}
