//! baton-engine.

pub mod gguf;
