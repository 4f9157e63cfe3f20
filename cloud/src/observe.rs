//! What operators see of requests: metrics for Prometheus and traces for a collector.
//!
//! Never: holds a prompt, an answer, or a value that a client chose as a label.

pub mod metrics;
pub mod trace;

pub(crate) mod report;
