//! Which GPU a program computes on: the user's choice, the devices that are there, and how fast they are.
//!
//! There are two sets of kernels: `kernels/cuda` for NVIDIA's driver and `kernels/wgpu` for Vulkan, Metal and
//! Direct3D 12. A build without one of the features `cuda` and `wgpu` has no device of that set.
//!
//! What always holds:
//! - Without the user's word, a program never computes on a device that is itself a program on the CPU.
//! - Without it, a program computes on a GPU that shares the CPU's memory only if that was measured to be
//!   faster.
//! - If the user names a device, the program computes on that one or fails.

mod choice;
mod devices;
mod engine;
mod measure;
mod sets;
mod size;

pub use baton_kernels_gpu::{Device, Facts, GpuError, HEADROOM_BYTES, Interface};
pub use choice::{ChoiceError, GpuChoice};
pub use devices::{OpenError, OpenedGpu, RefusedGpu, label, list, open};
pub use engine::GpuPart;
pub use measure::{CopyRates, MeasureError, ProductRates, Rates, TIME, measure};
pub use size::{SizeError, VramLimit, bytes_of};
