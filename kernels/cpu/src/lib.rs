//! Quantized formats and the hot loops of a transformer on a CPU.
//!
//! This crate does everything that touches every weight or every cached key once per token. It knows blocks,
//! rows and matrices. It never knows models, files, sequences or clocks, and does no I/O. Its loops run on
//! the threads of the [`Pool`] that the caller gives.
//!
//! What always holds:
//! - **One value, one order.** An output element depends only on its own weight row and activation row, or on
//!   its own query and the visible keys. It is reduced in one fixed order, so batch size, thread count and
//!   dispatch level do not change a bit of it. [`mod@matmul`] and [`attention`] state these orders.
//! - **Scalar code is the definition.** [`Dispatch::Scalar`] is written plainly. The vector levels do the
//!   same IEEE operations (fused multiply-add if the definition says `mul_add`), so they are equal bit for
//!   bit.
//! - Lengths are checked before a loop starts. Wrong data from outside gives a [`KernelError`]; a caller's
//!   own mistake panics with the limit and the value.
//!
//! `unsafe` is confined to three uses: calls of code for a CPU level that was detected, disjoint writes of
//! one output, and handing a borrowed task to the pool's threads.

pub mod activations;
pub mod attention;
mod blocks;
pub mod dispatch;
mod error;
mod exp;
pub mod f16;
pub mod format;
pub mod grids;
pub mod matmul;
pub mod pool;
pub mod quantize;
pub mod recurrent;
pub mod routing;
pub mod rows;
mod simd;

pub use activations::Activations;
pub use attention::{
    KvBlock, KvFormat, KvMemory, KvStore, PART, PartState, Queries, RowLayout, Visible, attend_part,
    attend_rows, join_parts, score_rows,
};
pub use blocks::dequantize_row;
pub use dispatch::Dispatch;
pub use error::KernelError;
pub use exp::exp;
pub use format::{Format, Matrix};
pub use matmul::{RowsInto, matmul, matmul_rows};
pub use pool::Pool;
pub use quantize::quantize_row;
pub use recurrent::{
    DeltaToken, causal_conv, delta_step, gate_by_sigmoid, l2_norm_heads, mul_assign, sigmoid, silu, softplus,
};
pub use routing::{ExpertGroups, FACTOR_SUM_MIN, Gating, Routing, route};
pub use rows::{
    RopeStyle, add_assign, add_scaled, dot_f32, geglu, rms_norm, rms_norm_heads, rope, scale, soft_cap,
    softmax, swiglu, swiglu_clamped,
};
