//! The inference engine: model files, tokenizers, chat templates, and the forward pass with a paged KV cache.
//!
//! Synchronous: owns its threads and opens no socket; async programs talk to it through channels. It reads a
//! clock only to measure how long it waits for weights. What always holds: a token's logits do not depend on
//! batch, chunking, threads or weight source.

pub mod adapter;
mod backend;
pub mod config;
pub mod detokenize;
pub mod engine;
pub mod eviction;
pub mod family;
mod forward;
pub mod gguf;
mod kv;
pub mod model;
mod offload;
pub mod pace_emulation;
pub mod platform;
pub mod prompt;
pub mod rope;
mod routing;
pub mod rows;
pub mod sampling;
pub mod scores;
pub mod sequences;
pub mod stop;
pub mod template;
pub mod token_set;
pub mod tokenizer;
mod turns;
pub mod weights;

pub use adapter::{Adapter, AdapterError};
pub use config::{ModelConfig, SlidingWindow};
pub use detokenize::Detokenizer;
pub use engine::{
    AdapterId, Engine, EngineError, EngineOptions, GpuLayers, GpuLoss, GpuUse, SeqOutput, StepControl,
    StepError, StepSeq, StepSize, Wanted,
};
pub use eviction::{EvictError, Kept};
pub use kv::{BLOCK_TOKENS, KvError, PrefixScope, PrefixStats, SeqId};
pub use model::{Model, ModelError};
pub use offload::{KvHome, MoveRates, Offload, OffloadStats, Pipeline};
pub use prompt::{Prompt, PromptSegment, SegmentTokens};
pub use rows::{KvRows, KvWidth, RowsError};
pub use sampling::{Sampler, SamplingParams};
pub use scores::{AttentionScores, Capture, HeadId, MeanOver};
pub use sequences::{SequenceError, Sequences};
pub use stop::StopStrings;
pub use template::{ChatTemplate, Message, ToolChat};
pub use token_set::TokenSet;
pub use tokenizer::{TokenId, Tokenizer};
pub use weights::{Residency, ResidencyStats, STREAM_BYTES};
