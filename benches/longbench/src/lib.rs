//! LongBench's scores, number for number: what its own `metrics.py` and `eval.py` answer, quirks included.
//!
//! Pure: a prediction and the accepted answers in, a score in 0..=1 out; it reads no data set and runs no model.
//! Always holds: each score equals the official one to 1e-9 on the recorded cases of `data/`, which
//! `data/record.py` made by running the official program (commit 2e00731, `rouge` 1.0.1, `jieba` 0.42.1, `fuzzywuzzy`
//! 0.18.0 without `python-Levenshtein`, as its requirements install it, on CPython 3.11).
//!
//! Source: Bai 2023, "LongBench", and the behaviour of the packages named above; nothing of them is copied. Quirks that
//! change figures and are kept: ROUGE counts distinct words and splits sentences at every full stop, also within numbers;
//! a sentence whose common subsequence is longer than Python's recursion limit makes the whole score 0; class names are
//! removed from a list while it is walked; articles are dropped from English answers only; similarity of code leaves
//! characters out that are frequent in a line of 200 or more.

mod chinese;
mod dataset;
mod matching;
mod metric;
mod normalize;
mod rouge;

pub use chinese::words as chinese_words;
pub use dataset::{DATASETS, DataSet, dataset, percent};
pub use metric::{Metric, ScoreError, UnknownMetric};
