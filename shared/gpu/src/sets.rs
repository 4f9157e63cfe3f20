//! The sets of kernels that this build has.

use std::sync::Arc;

use baton_kernels_gpu::{Device, Facts, Interface};

use crate::devices::Reason;

const HAS_CUDA: bool = cfg!(feature = "cuda");
const HAS_WGPU: bool = cfg!(feature = "wgpu");

/// Whether this build has a set for an interface.
pub(crate) const fn has(interface: Interface) -> bool {
    match interface {
        Interface::Cuda => HAS_CUDA,
        _ => HAS_WGPU,
    }
}

/// Returns the devices of every set, in the sets' own order.
pub(crate) fn devices() -> Vec<Facts> {
    let sets: &[Vec<Facts>] = &[
        #[cfg(feature = "cuda")]
        baton_kernels_cuda::devices(),
        #[cfg(feature = "wgpu")]
        baton_kernels_wgpu::devices(),
    ];
    sets.concat()
}

/// Opens a device that [`devices`] has returned.
pub(crate) fn open(facts: &Facts, limit: Option<u64>) -> Result<Arc<dyn Device>, Reason> {
    match facts.interface {
        #[cfg(feature = "cuda")]
        Interface::Cuda => Ok(Arc::new(baton_kernels_cuda::open(facts.index, limit)?)),
        #[cfg(feature = "wgpu")]
        Interface::Vulkan | Interface::Metal | Interface::Dx12 => {
            Ok(baton_kernels_wgpu::open(facts.interface, facts.index, limit)?)
        }
        interface => {
            // A build without any set has no use for it.
            let _ = limit;
            Err(format!("this program was built without {interface}").into())
        }
    }
}
