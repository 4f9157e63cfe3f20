//! The prompt refiner: chooses the sentences of a prompt to keep, by attention scores or words, and rebuilds
//! the text.
//!
//! Pure: no I/O, no clock, no randomness. It never runs a model: the caller captures the attention that
//! [`capture_plan`] asks for. Always holds: the same input gives the same mask. The kept tokens are at most
//! the ratio's share of the content; if no sentence fits, the best one is kept. Segments that are not
//! refinable do not change.
//!
//! | mode | ranks by | needs |
//! |---|---|---|
//! | `attention` | the question's attention on a sentence and its neighbours; words | attention |
//! | `bm25` | BM25 against the question | nothing |
//! | `none` | keeps everything | nothing |
//!
//! A mode keeps whole sentences, because a mask names sentences and a device with another tokenizer can
//! rebuild them. The title lines above a kept sentence are kept too, and small gaps between kept sentences
//! are closed.
//!
//! The baselines that the default is compared with are in the package `baton-baselines`. They rank sentences
//! by their own values over [`Content`], and fill the same budget with [`Content::keep_best`].
//!
//! Source: P/D-Device, sections 2.2.3 and 3.2. They define the window of the last queries, pooling, top
//! values per head and whole sentences. The rest (heads, one ranking, title lines, limits of the budget) is
//! defined here.

mod attention;
mod bm25;
mod budget;
mod calibration;
mod capture;
mod content;
mod curve;
mod evidence;
mod mode;
mod probe;
mod rebuild;
mod refine;
mod words;

pub use bm25::values as bm25_values;
pub use calibration::{Calibration, CalibrationError, WeightedHead};
pub use capture::{AttentionShape, CapturePlan, capture_plan, citing};
pub use content::{Content, ContentTokens, Token};
pub use curve::{
    CurveError, CurvePoint, LossBy, MeanScore, ModelMark, PairedLoss, QualityCurve, QualityCurves,
};
pub use evidence::{Attended, Changes, Citation, Cited, Source, Sources, cited};
pub use mode::{Mode, UnknownMode};
pub use probe::{HeadGains, Probe};
pub use rebuild::{Piece, pieces, rebuild, source_byte};
pub use refine::{RefineError, RefineInput, Refined, Scores, refine};
