//! The prompt refiner: from attention scores (or none) to the sentences that are kept, and from these to the text.
//!
//! Pure: no I/O, no clock, no randomness but a seed passed in. It never runs a model; the caller supplies what
//! [`needs`] asks for.
//! Always holds: same input, same mask; the kept tokens are at most the ratio's share of the content, unless not even
//! one sentence fits, of which the best is kept then; segments that are not refinable stay as they are.
//!
//! | mode | ranks by | needs | title lines, small gaps |
//! |---|---|---|---|
//! | `attention` | the question's attention on a sentence and on its better neighbour, its words, bridges | attention | yes |
//! | `paper` | votes of all heads over the sentence's length | attention | no |
//! | `tokens` | share of the tokens with most votes | attention | no |
//! | `gemfilter` | share of the tokens that one layer sees from the last token | attention | no |
//! | `chunk` | share of chosen chunks of ten tokens | attention | no |
//! | `bm25` | the question's words | nothing | yes |
//! | `streaming` | place: the start, then the end | nothing | no |
//! | `perplexity` | mean surprise of a language model | log-probabilities | no |
//! | `random` | a seed | nothing | no |
//! | `none` | keeps everything | nothing | |
//!
//! Every mode gives whole sentences, because that is what a mask names and what a device with another tokenizer can
//! rebuild; `tokens`, `gemfilter` and `chunk` also say which tokens they chose, for evaluation ([`rebuild_tokens`]).
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
mod perplexity;
mod probe;
mod rebuild;
mod refine;
mod streaming;
mod token_choice;
mod words;

pub use calibration::{Calibration, CalibrationError, WeightedHead};
pub use capture::{AttentionShape, CapturePlan, Needs, needs};
pub use content::ContentTokens;
pub use curve::{
    CurveError, CurvePoint, LossBy, MeanScore, ModelMark, PairedLoss, QualityCurve, QualityCurves,
};
pub use mode::{Mode, UnknownMode};
pub use perplexity::LogProbs;
pub use probe::{HeadGains, Probe};
pub use rebuild::{rebuild, rebuild_tokens};
pub use refine::{Evidence, RefineError, RefineInput, Refined, Scores, refine};
