//! Plans the home cluster: which device computes how many layers of a model, in how many rounds and in which
//! order, and how long a token then takes.
//!
//! Pure arithmetic over a description: measures nothing, reads no clock and no file. What always holds: the
//! same description gives the same plan; a plan is found if one exists; no description (zero, infinite, NaN)
//! panics.
//!
//! | module | holds |
//! |---|---|
//! [`cluster`] | input of a plan: model, devices, network, workload; their checks |
//! [`cost`] | what a share of the layers costs a device, and how long a token takes under a plan |
//! | [`plan`] | a plan: order, layers, rounds and the windows that follow |
//! [`network`] | hops, relayed if two devices do not see each other, and the shortest ring |
//! [`mod@search`] | the exact search over that cost |
//! | [`halda`] | Halda (prima.cpp, Algorithm 1), solved by HiGHS |
//! | [`baselines`] | MemSched, PerfSched, Fill-Fastest-GPUs-First |
//! [`explain`] | what bounds a token, and what leaving out or adding a device would change |
//! | [`draw`] | each round's windows, for a terminal and as SVG |
//!
//! Symbols are those of prima.cpp: `M` devices, `L` layers, `k` rounds, `w` windows, `n` GPU layers. `b` are
//! the bytes of a layer, `b_i` and `b_o` those of the input and output tensors. `V` is the vocabulary, `n_kv`
//! the tokens in the KV cache, TPOT the time of a token. Sizes are in bytes, times in seconds, rates per
//! second.

pub mod baselines;
pub mod cluster;
pub mod cost;
pub mod draw;
pub mod explain;
pub mod halda;
pub mod network;
pub mod plan;
pub mod search;

#[cfg(test)]
mod sample;

pub use cluster::{
    Cluster, ClusterError, Device, Disk, Edge, Gpu, GpuKind, ModelShape, Network, Os, Processor, Workload,
};
pub use cost::{Costs, DeviceTime, Prediction};
pub use plan::{Plan, PlanError, Share, Window};
pub use search::{SearchOptions, search};
