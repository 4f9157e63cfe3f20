//! What operators see of requests: metrics for Prometheus, traces for a collector, and the last requests.
//!
//! Never: holds a prompt, an answer, or a value that a client chose as a label.

pub mod metrics;
pub mod requests;
pub mod trace;

pub(crate) mod report;
