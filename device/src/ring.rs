//! The home ring: the devices of a home that run one model together.
//!
//! So far: what a plan must know of a model file ([`shape`]) and of this device ([`profile`], [`memory`], [`disk`]).
//! Plans themselves are `baton-plan`'s.

pub mod disk;
pub mod memory;
pub mod profile;
pub mod shape;
