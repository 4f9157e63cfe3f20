//! The home ring: the devices of a home that run one model together.
//!
//! - What a plan must know: about a model file ([`shape`]), about this device ([`profile`], [`memory`],
//!   [`disk`]), and about the links between devices ([`edges`]). Plans themselves are in `baton-plan`.
//! - Members: who belongs to a ring ([`identity`], [`state`], [`peers`]), and who may speak before that is
//!   known (`callers`). How strangers become peers ([`pairing`]), how peers find each other ([`discovery`],
//!   [`rejoin`]), why they do not ([`doctor`]), and their encrypted channel ([`channel`]).
//! - The ring at work: messages ([`frame`]) and links ([`link`]), a running plan ([`layout`]) and whether it
//!   still fits ([`drift`]). The device that has the text ([`head`]), the devices that compute for it
//!   ([`worker`]), parts of model files ([`weights`]), and figures ([`stats`]).

mod callers;
pub mod channel;
pub mod discovery;
pub mod disk;
pub mod doctor;
pub mod drift;
pub mod edges;
pub mod explained;
pub mod frame;
pub mod head;
pub mod identity;
pub mod layout;
pub mod link;
pub mod memory;
pub mod pairing;
pub mod peers;
pub mod planning;
pub mod profile;
pub mod rejoin;
pub mod shape;
pub mod state;
pub mod stats;
pub mod weights;
pub mod worker;

#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex of the ring. If a thread panicked while it held the lock, the value is used as that thread
/// left it.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
