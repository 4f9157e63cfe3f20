//! LongBench's scores, equal to those of its own `metrics.py` and `eval.py`, including their quirks.
//!
//! Pure: it takes a prediction and the accepted answers, and returns a score in 0..=1. It reads no data set
//! and runs no model. Always holds: each score equals the official one to 1e-9 on the recorded cases of
//! `data/`. `data/record.py` made them by running the official program (commit 2e00731) on CPython 3.11. Its
//! packages were `rouge` 1.0.1, `jieba` 0.42.1, and `fuzzywuzzy` 0.18.0 without `python-Levenshtein`, as its
//! requirements install it.
//!
//! Source: Bai 2023, "LongBench", and the behaviour of the packages named above; no code of them is copied.
//! These quirks change scores, so they are reproduced:
//!
//! - ROUGE counts distinct words and splits sentences at every full stop, even within numbers.
//! - If a common subsequence of two sentences is longer than Python's recursion limit allows, the whole score
//!   is 0.
//! - Class names are removed from a list during an iteration over it.
//! - Articles are removed from English answers only.
//! - The similarity of code ignores frequent characters in a line of 200 characters or more.

mod chinese;
mod dataset;
mod matching;
mod metric;
mod normalize;
mod rouge;

pub use chinese::words as chinese_words;
pub use dataset::{DATASETS, DataSet, dataset, percent};
pub use metric::{Metric, ScoreError, UnknownMetric};
