//! The prompt refiner: from attention scores (or none) to the sentences that are kept, and from these to the text.
//!
//! Pure: no I/O, no clock, no randomness but a seed passed in. It never runs a model; the caller captures the scores
//! that [`capture_plan`] asks for.
//! Always holds: same input, same mask; the kept tokens are at most the ratio's share of the content, unless not even
//! one sentence fits, of which the best is kept then; segments that are not refinable stay as they are.
//!
//! Source: P/D-Device, sections 2.2.3 and 3.2, which fix a window of the last queries against all keys, pooling, top
//! values per head and whole sentences; the rest (heads, one ranking, title lines, budget edges) is defined here.

mod attention;
mod bm25;
mod budget;
mod calibration;
mod capture;
mod content;
mod curve;
mod mode;
mod paper;
mod rebuild;
mod refine;

pub use calibration::{Calibration, CalibrationError, WeightedHead};
pub use capture::{CapturePlan, capture_plan};
pub use content::ContentTokens;
pub use curve::{
    CurveError, CurvePoint, LossBy, MeanScore, ModelMark, PairedLoss, QualityCurve, QualityCurves,
};
pub use mode::{Mode, UnknownMode};
pub use rebuild::rebuild;
pub use refine::{RefineError, RefineInput, Refined, Scores, refine};
