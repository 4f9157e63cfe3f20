//! The model registry: which models exist by version, which device should have which, and what a device does
//! to get there.
//!
//! Pure: no I/O, no clock, no async. Both programs use it, so that they agree on every rule.
//!
//! - [`manifest`], [`envelope`]: what a version is, signed. Bytes are named by their SHA-256 ([`digest`]).
//! - [`layout`]: where the bytes lie: an OCI image layout, in a folder, on a web server or in an OCI
//!   registry.
//! - [`rollout`]: which pair of base and adapter a device should have, and which ones are allowed.
//! - [`holding`]: what a device does next: ask, fetch, switch, remove.
//! - [`sync`]: what they say to each other.
//!
//! What always holds: a device switches to a pair only when it has every byte of it, as signed. It keeps the
//! pair before, and goes back if the new one does not load. It asks the cloud with a pair only while it was
//! told that the pair is allowed, and the cloud allows it for at least as long.

pub mod digest;
pub mod envelope;
pub mod holding;
pub mod layout;
pub mod manifest;
pub mod rollout;
pub mod sync;
