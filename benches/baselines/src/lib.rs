//! Baseline rankings of sentences, which the refiner's default is compared with: votes, token choices,
//! position, perplexity and chance. Only benches and tests depend on this package: a cloud service knows the
//! modes of `baton-refine` alone.
//!
//! A [`Ranking`] is a mode of the refiner or a [`Baseline`]. [`needs`] returns the evidence that it needs;
//! [`choose()`] returns the sentences that it keeps.
//!
//! Pure: no I/O, no clock; the only randomness comes from a seed that the caller passes. Always holds: the
//! same input gives the same choice. A baseline has the same token budget as a mode and keeps whole
//! sentences, so that a mask could name them. No baseline adds title lines or closes gaps.
//!
//! | baseline | ranks by | needs |
//! |---|---|---|
//! | `paper` | votes of all heads divided by the sentence's length | attention |
//! | `tokens` | share of its tokens that are among those with the most votes | attention |
//! | `gemfilter` | share of its tokens that one layer attends to most from the last token | attention |
//! | `chunk` | share of its tokens in the chosen chunks of ten tokens | attention |
//! | `streaming` | position: the start, then the end | nothing |
//! | `perplexity` | mean negative log-probability under a language model | log-probabilities |
//! | `random` | a seed | nothing |
//!
//! `tokens`, `gemfilter` and `chunk` also return the tokens they chose. [`rebuild_tokens`] gives the text of
//! these tokens.

mod capture;
mod choose;
mod paper;
mod perplexity;
mod ranking;
mod rebuild;
mod streaming;
mod token_choice;

#[cfg(test)]
mod tests;

pub use capture::{Needs, needs};
pub use choose::{ChoiceError, Chosen, Evidence, Input, choose};
pub use perplexity::LogProbs;
pub use ranking::{Baseline, Ranking, UnknownRanking};
pub use rebuild::rebuild_tokens;
