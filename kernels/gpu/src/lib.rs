//! What every GPU kernel set has in common: the device's interface, the table of kernels, and their launches.
//!
//! There are two sets of kernels, `kernels/wgpu` (WGSL) and `kernels/cuda` (CUDA C++). Each implements
//! [`Device`] and every [`Kernel`] of [`Kernel::all`]. `kernels/cuda` has those of [`Kernel::joined`] too.
//! The engine calls the functions of [`ops`] and knows neither set.
//!
//! What always holds:
//! - **The scalar definition of `kernels/cpu` is the definition here too.** A kernel adds in the same order.
//!   It multiplies and adds in one step if the definition says `mul_add`. Activations are rounded to bytes in
//!   the same blocks. So an output element does not depend on batch, chunk or tile. Results differ from
//!   those of the CPU only as far as a GPU's division and square root do.
//! - **Commands take effect in the order of the calls**, also [`Device::write`] and [`Device::upload`].
//! - **A device keeps its first fault** ([`Device::fault`]): out of memory, a lost device, a kernel that does
//!   not compile. After it, commands do nothing and reads fail. Whoever computes asks once per step. A fault
//!   that leaves the device whole can be forgotten ([`Device::recover`]), with all that memory held.

#[cfg(feature = "cases")]
pub mod cases;
mod device;
mod fault;
mod kernel;
mod matrix;
pub mod ops;
mod packed;
mod stack;

pub use device::{
    Buffer, Device, Facts, GpuError, HEADROOM_BYTES, Interface, Launch, Mark, PART_ALIGNMENT, Tiles,
};
pub use fault::FirstFault;
pub use kernel::{ATTEND_VECTORS, AttendWidth, JoinedAs, Kernel, MapOp, TOKENS_EACH, ZipOp};
pub use matrix::{DeviceMatrix, Piece, Quantized, last_word, pieces};
pub use packed::PackedKv;
pub use stack::{DeviceStack, stack_buffers};
