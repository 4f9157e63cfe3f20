//! A device that is lost in the middle of an answer: the answer goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use baton_e2e::pair::demo_model;
use baton_engine::{EngineOptions, GpuLayers, GpuLoss, GpuUse};
use baton_gpu::{Device, GpuError, Interface};
use baton_kernels_wgpu::WgpuDevice;

use crate::{best, cpu, device, engine, logits, prompt, written};

static LOST: AtomicUsize = AtomicUsize::new(0);

fn count(loss: &GpuLoss) {
    assert!(matches!(loss, GpuLoss::Failed(GpuError::Lost(_))), "{loss}");
    LOST.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn an_answer_goes_on_without_the_device() {
    let Some(shared) = device() else { return };
    let facts = shared.facts();
    if facts.interface == Interface::Cuda {
        return println!("skipped: gpu: a CUDA device cannot be lost on purpose");
    }
    let own: Arc<WgpuDevice> =
        baton_kernels_wgpu::open(facts.interface, facts.index, None).expect("opened once before");
    let model = demo_model("demo-device.gguf").expect("the demo model is in the checkout");
    let ids = prompt(7, 80, model.config().vocab_len);
    let (_, want) = written(&mut engine(&model, cpu(512)), &ids, 16);
    let gpu = GpuUse { device: Arc::clone(&own) as Arc<dyn Device>, layers: GpuLayers::Fit, on_loss: count };
    let mut engine =
        engine(&model, EngineOptions { kv_tokens: 512, gpu: Some(gpu), ..EngineOptions::default() });
    let seq = engine.create();
    let all = logits(&mut engine, seq, &ids);
    let mut last = all[all.len() - model.config().vocab_len..].to_vec();
    let mut text = Vec::new();
    for at in 0..16 {
        if at == 6 {
            own.destroy();
        }
        text.push(best(&last));
        last = logits(&mut engine, seq, &text[at..]);
    }
    assert_eq!(text, want);
    assert_eq!((LOST.load(Ordering::Relaxed), engine.gpu_layers().len()), (1, 0));
    assert_eq!(engine.len(seq).expect("a sequence"), ids.len() + 16);
}
