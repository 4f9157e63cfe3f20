//! What a device has of the things that decide how many workgroups are on it at a time.

use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute;
use cudarc::driver::{CudaContext, DriverError};

/// Bytes of shared memory that a product with few activation rows takes beside what the launch asks for, with
/// those that the driver takes for itself.
const OWN_BYTES: u32 = 13 << 10;

/// The most workgroups of a product that registers leave room for on a multiprocessor.
const GROUPS_MAX: u32 = 4;

/// The least compute capability that copies to shared memory beside the arithmetic.
const COPIES: (u32, u32) = (8, 0);

/// Limits of a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    multiprocessors: u32,
    /// Bytes of shared memory of a workgroup that asks for them, and of a multiprocessor.
    shared: [u32; 2],
}

impl Limits {
    /// Asks the driver.
    pub(crate) fn of(context: &Arc<CudaContext>, capability: (u32, u32)) -> Result<Self, DriverError> {
        let ask = |what| context.attribute(what).map(|n| u32::try_from(n).unwrap_or(0));
        let group = ask(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let all = ask(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?;
        let shared = if capability >= COPIES { [group, all] } else { [0, 0] };
        Ok(Self {
            multiprocessors: ask(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared,
        })
    }

    /// Returns the bytes of dynamic shared memory that a product may ask for; 0 if it must not.
    pub(crate) fn dynamic_bytes(&self) -> u32 {
        self.shared[0].saturating_sub(OWN_BYTES)
    }

    /// Returns how many workgroups with so many bytes of dynamic shared memory run at a time.
    pub(crate) fn groups(&self, bytes: u32) -> u32 {
        if bytes > self.dynamic_bytes() {
            return 0;
        }
        self.multiprocessors * (self.shared[1] / (bytes + OWN_BYTES)).clamp(1, GROUPS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workgroups_share_a_multiprocessors_memory() {
        let limits = Limits { multiprocessors: 10, shared: [100 << 10, 200 << 10] };
        assert_eq!(limits.groups(87 << 10), 20);
        assert_eq!(limits.groups((87 << 10) + 1), 0);
        assert_eq!(limits.groups(1 << 10), 40);
        let older = Limits { multiprocessors: 10, shared: [0, 0] };
        assert_eq!(older.groups(1), 0);
    }
}
