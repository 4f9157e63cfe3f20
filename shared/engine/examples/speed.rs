//! Prints how fast the engine prefills and decodes on this machine, with a GGUF file or with random weights
//! in the size of the demo's cloud model.
//!
//! `cargo run --release -p baton-engine --example speed -- [FILE.gguf] [THREADS]`

use std::error::Error;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use baton_engine::gguf::Gguf;
use baton_engine::{Capture, Engine, EngineOptions, HeadId, MeanOver, Model, StepSeq, Wanted};
use baton_kernels_cpu::Format;
use baton_synthetic::SyntheticModel;

const PROMPT_TOKENS: usize = 2048;
const DECODED_TOKENS: usize = 64;
const CHUNK_TOKENS: usize = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let file = args.iter().find(|arg| arg.ends_with(".gguf"));
    let threads = args.iter().find_map(|arg| arg.parse::<NonZeroUsize>().ok());
    let model = match file {
        Some(file) => Model::open(Path::new(file))?,
        None => Model::from_gguf(Gguf::from_bytes(demo_sized().to_gguf()?)?)?,
    };
    println!("{}: {:?}", model.name(), model.config());
    let options = EngineOptions { threads, kv_tokens: 8 * 4096, ..EngineOptions::default() };
    let mut engine = Engine::new(Arc::clone(&model), options)?;
    for _ in 0..3 {
        measure(&mut engine, &model)?;
    }
    Ok(())
}

fn demo_sized() -> SyntheticModel {
    SyntheticModel {
        n_layers: 6,
        n_heads: 4,
        n_kv_heads: 2,
        d_model: 128,
        d_head: 32,
        d_ff: 384,
        vocab_len: 768,
        context_len: 4096,
        ..SyntheticModel::small("llama", Format::Q8_0, 1)
    }
}

fn measure(engine: &mut Engine, model: &Model) -> Result<(), Box<dyn Error>> {
    let vocab_len = model.config().vocab_len as u32;
    // Shorter than the context, and never seen before, so nothing is cached.
    let tokens = PROMPT_TOKENS.min(model.config().context_len - DECODED_TOKENS);
    let ids: Vec<u32> = (0..tokens as u32).map(|i| i.wrapping_mul(2_654_435_761) % vocab_len).collect();
    let seq = engine.create();
    let heads: Vec<HeadId> = (0..model.config().n_layers).map(|layer| HeadId { layer, head: 0 }).collect();
    let begun = Instant::now();
    for chunk in ids.chunks(CHUNK_TOKENS) {
        let window = chunk.len().saturating_sub(16)..chunk.len();
        let capture =
            (chunk.len() >= 16).then(|| Capture { window, heads: heads.clone(), over: MeanOver::Queries });
        engine
            .step(&[StepSeq { seq, ids: chunk, logits: Wanted::Last, capture: capture.as_ref() }], &mut ())?;
    }
    let prefill_s = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    for id in 0..DECODED_TOKENS as u32 {
        engine
            .step(&[StepSeq { seq, ids: &[id % vocab_len], logits: Wanted::Last, capture: None }], &mut ())?;
    }
    let decode_s = begun.elapsed().as_secs_f64();
    println!(
        "prefill of {tokens}: {:.0} ms, {:.0} tokens/s; decode after them: {:.3} ms a token",
        prefill_s * 1e3,
        tokens as f64 / prefill_s,
        decode_s * 1e3 / DECODED_TOKENS as f64,
    );
    engine.release(seq);
    Ok(())
}
