//! Devices of a home: who belongs to a ring, and how they meet.
//!
//! Keys and names ([`identity`]), pinned peers ([`peers`]) and measured ways ([`ways`]) are stored in one
//! folder ([`state`]). Strangers become peers by [`pairing`]; peers find each other by [`discovery`] and come
//! back by [`rejoin`]; [`doctor`] says why they do not.

pub mod discovery;
pub mod doctor;
pub mod identity;
pub mod pairing;
pub mod peers;
pub mod rejoin;
pub mod state;
pub mod ways;
