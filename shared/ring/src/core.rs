//! The pure cores of the ring: they decide, and the host carries out what they say.
//!
//! What always holds below this folder: no clock, thread, lock, channel, atomic, file, socket or log, and
//! no map whose order depends on chance. Time comes in with every event, as the time since the host began;
//! it never goes back. So a run depends on its events alone, and the simulation can repeat it.

pub mod arrivals;
pub mod echo;
pub mod form;
pub mod head;
pub mod health;
pub mod ids;
pub mod layout;
pub mod ledger;
pub mod links;
pub mod note;
pub mod planted;
pub mod pump;
pub mod recover;
pub mod roster;
pub mod rows;
pub mod states;
pub mod stats;
pub mod ways;
pub mod worker;

pub use ids::{DeviceId, Digest, DiskId, Epoch, LinkId, Node, SeqNo, StepNo, WorkId};
pub use links::{Give, Gone, LinkEffect, LinkEvent, Purpose};
pub use note::Note;
pub use planted::{Bug, Planted};
pub use states::States;
