//! A ring of home devices that computes one model.
//!
//! - [`core`] decides and is pure: no clock, thread, lock, channel, file or socket. [`planning`] makes plans,
//!   and is pure too.
//! - [`wire`]: frames, links, and the encrypted channel that carries them.
//! - [`home`]: who belongs to a ring, how strangers become peers, how peers find each other, and why they do
//!   not.
//! - [`weights`]: pieces of model files on the disk.
//! - [`host`]: what runs a device of the ring: clocks, threads, links and the engine.

pub mod core;
pub mod home;
pub mod host;
pub mod planning;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod weights;
pub mod wire;

#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex of the ring. If a thread panicked while it held the lock, the value is used as that thread
/// left it.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
