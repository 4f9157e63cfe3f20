//! The inference engine: model files, tokenizers, chat templates, and the forward pass over a paged KV cache.
//!
//! Synchronous: owns its compute threads, reads no clock, opens no socket; async programs talk to it through
//! channels. What always holds: a token's logits do not depend on batch, chunking, threads or weight source.

mod backend;
pub mod config;
pub mod engine;
pub mod family;
mod forward;
pub mod gguf;
mod kv;
pub mod model;
pub mod pace_emulation;
pub mod rope;
pub mod scores;
pub mod synthetic;
pub mod tokenizer {
    #![allow(missing_docs, reason = "placeholder until tokenizer.rs lands: then `pub mod tokenizer;`")]
    pub type TokenId = u32;
}
pub mod weights;

pub use config::{ModelConfig, SlidingWindow};
pub use engine::{Engine, EngineError, EngineOptions, SeqOutput, StepControl, StepError, StepSeq, Wanted};
pub use kv::{BLOCK_TOKENS, KvError, SeqId};
pub use model::{Model, ModelError};
pub use scores::{AttentionScores, Capture, HeadId};
