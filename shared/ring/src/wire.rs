//! Frames between devices, links that carry them, and the encrypted channel below.
//!
//! Nothing here knows a model or a plan: the code that uses a frame checks it.

pub(crate) mod callers;
pub mod channel;
pub mod frame;
pub mod link;
#[cfg(any(test, feature = "sim"))]
pub mod memory;
pub mod tcp;
