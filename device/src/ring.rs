//! The home ring: the devices of a home that run one model together.
//!
//! What a plan must know of a model file ([`shape`]), of this device ([`profile`], [`memory`], [`disk`]) and of the ways
//! between devices ([`edges`]); plans themselves are `baton-plan`'s. Who belongs to a ring ([`identity`], [`state`],
//! [`peers`]), who is listened to before that is known (`callers`), how strangers become peers ([`pairing`]), how peers find each other ([`discovery`]), why they do not
//! ([`doctor`]), how they come back ([`lookout`]), and what they speak over ([`channel`]). Then the ring at work: what
//! devices say to each other ([`frame`]) and over what ([`link`]), a plan as it is run ([`layout`]) and whether it still
//! fits ([`drift`]), the device that has the text ([`head`]) and those that compute for it ([`worker`]), parts of model
//! files where they are needed ([`weights`]), and what it all took ([`stats`]).

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
pub mod lookout;
pub mod memory;
pub mod pairing;
pub mod peers;
pub mod planning;
pub mod profile;
pub mod shape;
pub mod state;
pub mod stats;
pub mod weights;
pub mod worker;

#[cfg(test)]
mod tests;
