//! The first fault of a device, shared with the callbacks of the driver.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use baton_kernels_gpu::GpuError;

/// Locks a mutex whose data is valid even if a thread panicked with it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first fault, once there is one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fault(Arc<OnceLock<GpuError>>);

impl Fault {
    /// Keeps a fault, if it is the first.
    pub(crate) fn keep(&self, fault: GpuError) {
        // A second fault is a consequence of the first.
        let _ = self.0.set(fault);
    }

    /// Returns the fault.
    pub(crate) fn get(&self) -> Option<GpuError> {
        self.0.get().cloned()
    }

    /// Whether there is a fault.
    pub(crate) fn is_set(&self) -> bool {
        self.0.get().is_some()
    }
}
