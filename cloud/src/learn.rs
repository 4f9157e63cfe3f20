//! What the service learns about costs and traffic, and the r and L that follow from it.
//!
//! [`cost`] holds the medians of this cloud's own passes, [`telemetry`] and [`coefficients`] those of
//! devices and networks by class. [`planning`] chooses r and L of one request by them, and [`forecast`]
//! says in words and figures what it would choose. [`traffic`] sums requests by minute. Never: asks the
//! database or the engine.

pub mod coefficients;
pub mod cost;
pub mod forecast;
pub mod planning;
pub mod telemetry;
pub mod traffic;
