//! Experiments: several settings of one scene side by side, compared by what their devices see.
//!
//! | module | holds |
//! |---|---|
//! | [`plan`] | what an operator writes: arms, goal, guard rails; and the state of an experiment |
//! | [`assign`] | which arm a device gets, by a hash |
//! | [`metric`] | what is measured |
//! | [`sums`] | bounded sums of an arm, which replicas add up |
//! | [`sequential`] | intervals that hold however often somebody looks |
//! | [`text`] | arms and guard rails as people type them |
//! | [`token`] | signed names of answers, for feedback |
//! | [`report`] | arms compared with the control, sample-ratio check, guard rails |
//!
//! Pure: no I/O, no clock. Never: keeps a device's name, a request or a text. Always: the unit of the
//! analysis is the unit that was randomized. That is a device, or one request if it names no device.

pub mod assign;
pub mod metric;
pub mod plan;
pub mod report;
pub mod sequential;
pub mod sums;
pub mod text;
pub mod token;
