//! The first fault of a device, and what becomes of memory after one that leaves the device whole.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::device::GpuError;

/// The first fault of a device, once there is one. A fault that leaves the device whole can be forgotten.
///
/// Commands that were called meanwhile did nothing, so memory of that time holds anything. Each buffer notes
/// the [`Self::generation`] in which it was allocated; [`Self::check`] tells old ones apart.
#[derive(Debug, Default)]
pub struct FirstFault {
    is_set: AtomicBool,
    kept: Mutex<Option<GpuError>>,
    generation: AtomicU64,
}

impl FirstFault {
    fn lock(&self) -> MutexGuard<'_, Option<GpuError>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a fault, if it is the first: a second one follows from the first.
    pub fn keep(&self, fault: GpuError) {
        let mut kept = self.lock();
        kept.get_or_insert(fault);
        self.is_set.store(true, Ordering::Release);
    }

    /// Returns the fault.
    pub fn get(&self) -> Option<GpuError> {
        if self.is_set() { self.lock().clone() } else { None }
    }

    /// Whether there is a fault.
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Returns how often a fault was forgotten.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Checks that memory of a generation holds what was written to it.
    ///
    /// # Errors
    /// The fault, or [`GpuError::Lost`] for memory from before a fault that was forgotten.
    pub fn check(&self, generation: u64) -> Result<(), GpuError> {
        match self.get() {
            Some(fault) => Err(fault),
            None if generation == self.generation() => Ok(()),
            None => Err(GpuError::Lost("its memory was full, and what it kept was given up".to_owned())),
        }
    }

    /// Forgets a fault that [leaves the device whole](GpuError::is_full). Returns whether there is none now.
    pub fn forget(&self) -> bool {
        let mut kept = self.lock();
        if kept.as_ref().is_some_and(GpuError::is_full) {
            *kept = None;
            self.generation.fetch_add(1, Ordering::AcqRel);
            self.is_set.store(false, Ordering::Release);
        }
        kept.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(wanted: u64) -> GpuError {
        GpuError::OutOfMemory { wanted, used: 7, budget: None }
    }

    #[test]
    fn the_first_fault_is_kept_and_one_of_room_can_be_forgotten() {
        let fault = FirstFault::default();
        assert!(!fault.is_set() && fault.forget() && fault.generation() == 0);
        fault.keep(full(1));
        fault.keep(full(2));
        assert_eq!((fault.get(), fault.check(0)), (Some(full(1)), Err(full(1))));
        assert!(fault.forget());
        assert_eq!((fault.get(), fault.check(1)), (None, Ok(())));
        assert!(matches!(fault.check(0), Err(GpuError::Lost(_))), "memory from before the fault");
        fault.keep(GpuError::Lost("unplugged".to_owned()));
        assert!(!fault.forget() && fault.is_set());
        assert_eq!(fault.generation(), 1);
    }
}
