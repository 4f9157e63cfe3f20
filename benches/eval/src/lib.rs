//! `baton-eval`: how good answers are, by arm: cloud alone, device alone, the relay at any r, L, mode and corrector, and
//! KV eviction on the device.
//!
//! What it is for: the figures behind "a quarter of the prompt answers better than all of it", on generated documents
//! and on a user's own data, with any GGUF models. It runs the real engine, the real refiner and the device's real
//! local engine, in the calls that the relay makes; there is no network and no time in the figures: it measures
//! quality and never speed. One pass over the prompt in the cloud serves every mode and every r.
//!
//! What always holds: decoding is greedy; equal models, cases and arms give equal results, whatever the number of
//! workers; every result is on disk before the next case begins, so that an interrupted run goes on where it ended.

pub mod arm;
pub mod case;
pub mod cloud;
pub mod curves;
pub mod detect;
pub mod device;
pub mod evict;
pub mod html;
pub mod metric;
pub mod progress;
pub mod run;
pub mod stats;
pub mod store;
pub mod suite;
pub mod summary;
pub mod writer;
