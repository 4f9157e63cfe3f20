//! The first fault of a device, shared with the callbacks of the driver.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_kernels_gpu::FirstFault;

/// Locks a mutex whose data is valid even if a thread panicked with it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first fault, once there is one. Copies are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fault(Arc<FirstFault>);

impl Deref for Fault {
    type Target = FirstFault;

    fn deref(&self) -> &FirstFault {
        &self.0
    }
}
