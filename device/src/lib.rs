//! The device agent: asks the cloud for the beginning of an answer and finishes the answer on this device.
//!
//! Decisions are made in cores without I/O ([`relay`], [`privacy`], [`segments`], [`local`]). [`agent`]
//! drives them with a clock, a socket ([`client`]) and the engine's thread ([`worker`]). [`api`] serves the
//! OpenAI chat API on loopback.
//!
//! What always holds: text leaves the device only if the redactor built it; shown text only grows; an answer
//! ends exactly once.

pub mod agent;
pub mod api;
pub mod cli;
pub mod client;
pub mod context;
pub mod conversations;
pub mod documents;
pub mod fleet;
pub mod launch;
pub mod local;
pub mod machine;
pub mod models;
pub mod prefix;
pub mod privacy;
pub mod receipt;
pub mod relay;
pub mod scene;
pub mod secrets;
pub mod segments;
pub mod settings;
pub mod worker;
