//! The home ring: the devices of a home that run one model together.
//!
//! What a plan must know of a model file ([`shape`]) and of this device ([`profile`], [`memory`], [`disk`]); plans
//! themselves are `baton-plan`'s. Then the ring itself: what devices say to each other ([`frame`]) and over what
//! ([`link`]), a plan as it is run ([`layout`]), the device that has the text ([`head`]) and those that compute for it
//! ([`worker`]), parts of model files where they are needed ([`weights`]), and what it all took ([`stats`]).

pub mod disk;
pub mod frame;
pub mod head;
pub mod layout;
pub mod link;
pub mod memory;
pub mod profile;
pub mod shape;
pub mod stats;
pub mod weights;
pub mod worker;

#[cfg(test)]
mod tests;
