//! The GPU kernels in CUDA C++, and the device that runs them through NVIDIA's driver.
//!
//! The text of the kernels ([`source`]) is compiled by NVRTC for the device at hand, a kernel at its first
//! use, and kept on disk. Nothing of CUDA is needed to build this crate or to start a program that has it:
//! libraries are opened when they are asked for ([`devices`], [`open`]).
//!
//! What always holds:
//! - **The bits of the scalar definition**, but of attention. No text lets a compiler join a product with a
//!   sum; division and roots are rounded as IEEE says. Attention adds up in the order and the precision of
//!   the tensor cores. What it gives for a query never depends on other queries, chunks or parts.
//! - **One stream of commands.** They take effect in the order of the calls. On recent devices a kernel takes
//!   its place before the one before it has ended, and then waits for it. Only [`CudaDevice`]'s `read`,
//!   full staging pages and new memory wait for the device.
//! - **One stream of loads.** A load runs beside the commands. Events order the two streams: a load is behind
//!   the mark that it is given, and commands that wait for its own mark are behind it.
//! - **One stream of saves**, each behind the mark that it is given. A save returns when its bytes are there.
//! - **Errors stay.** The first one is kept; after it, commands do nothing.

mod cache;
mod compile;
mod device;
mod error;
mod limits;
mod loads;
mod pool;
mod saves;
pub mod source;
mod staging;

pub use compile::{compile, has_compiler};
pub use device::{CudaDevice, devices, open};
pub use error::OpenError;
