//! `baton-eval`: measures the quality of answers by arm. Arms are the cloud alone, a device alone, the relay
//! at any r, L, mode and corrector, and KV eviction on the device.
//!
//! It shows how much of the prompt can be left out without a loss of quality, on generated documents and on a
//! user's own data, with any GGUF models. It runs the real engine, the real refiner and the device's real
//! local engine, with the same calls as the relay. It measures quality and never speed: there is no network
//! and no clock. The cloud reads each prompt once for all modes and all r.
//!
//! What always holds: decoding is greedy. Equal models, cases and arms give equal results for any number of
//! workers. With a results file, every result is on disk as soon as its case is done, so that an interrupted
//! run can continue.

pub mod arm;
pub mod case;
pub mod cloud;
pub mod curves;
pub mod detect;
pub mod device;
pub mod evict;
pub mod html;
pub mod metric;
pub mod predict;
pub mod progress;
pub mod run;
pub mod stats;
pub mod store;
pub mod suite;
pub mod summary;
pub mod writer;
