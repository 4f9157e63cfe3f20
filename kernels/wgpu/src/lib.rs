//! GPU kernels in WGSL, run through wgpu: on Vulkan, Metal and Direct3D 12.
//!
//! This crate implements `baton_kernels_gpu::Device` and every kernel of its table. It never knows models or
//! sequences. The same source serves every GPU; nothing is compiled before its first use.
//!
//! What always holds:
//! - **The order is that of the definition.** A sum runs in the order of `kernels/cpu`; a fused multiply-add
//!   is written as `fma`, and a product that is rounded first passes through `rounded`. So results are equal
//!   bit for bit on GPUs that round as IEEE says and fuse `fma`. Division, square root and logarithm are
//!   those of the GPU.
//! - **Recorded first, submitted later.** Launches are recorded and submitted together: when something is
//!   read, and every few hundred launches.
//! - **A fault is kept, never thrown**, also if the driver loses the device in the middle of a wait.
//!
//! `unsafe` is confined to two uses: compiling the crate's own shaders without added bounds checks, and
//! asking the Vulkan driver for the size of its memory.

mod adapters;
mod bindings;
mod device;
mod fault;
mod memory;
mod now;
mod pages;
mod pipelines;
mod probe;
mod record;
mod shaders;

pub use adapters::{OpenError, devices, open};
pub use device::WgpuDevice;
