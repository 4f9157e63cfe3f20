//! LongBench's data sets: which metric scores each, and how its `eval.py` comes from answers to one figure.

use crate::metric::{Metric, ScoreError};

/// One data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataSet {
    /// Its name: that of its `jsonl` file.
    pub name: &'static str,
    /// How its answers are scored.
    pub metric: Metric,
    /// Only the first line of an answer counts (leading line breaks aside).
    pub first_line_only: bool,
}

const fn set(name: &'static str, metric: Metric) -> DataSet {
    DataSet { name, metric, first_line_only: false }
}

const fn first_line(name: &'static str, metric: Metric) -> DataSet {
    DataSet { name, metric, first_line_only: true }
}

/// All 21 data sets.
pub const DATASETS: [DataSet; 21] = [
    set("narrativeqa", Metric::QaF1),
    set("qasper", Metric::QaF1),
    set("multifieldqa_en", Metric::QaF1),
    set("multifieldqa_zh", Metric::QaF1Zh),
    set("hotpotqa", Metric::QaF1),
    set("2wikimqa", Metric::QaF1),
    set("musique", Metric::QaF1),
    set("dureader", Metric::RougeZh),
    set("gov_report", Metric::Rouge),
    set("qmsum", Metric::Rouge),
    set("multi_news", Metric::Rouge),
    set("vcsum", Metric::RougeZh),
    first_line("trec", Metric::Classification),
    first_line("triviaqa", Metric::QaF1),
    first_line("samsum", Metric::Rouge),
    first_line("lsht", Metric::Classification),
    set("passage_retrieval_en", Metric::Retrieval),
    set("passage_count", Metric::Count),
    set("passage_retrieval_zh", Metric::RetrievalZh),
    set("lcc", Metric::CodeSim),
    set("repobench-p", Metric::CodeSim),
];

/// The data set of this name; LongBench-E's files have `_e` behind it and are scored alike.
#[must_use]
pub fn dataset(name: &str) -> Option<&'static DataSet> {
    let find = |name: &str| DATASETS.iter().find(|set| set.name == name);
    find(name).or_else(|| find(name.strip_suffix("_e")?))
}

impl DataSet {
    /// The best score of `prediction` against any of the right answers, 0..=1; 0 where there is none.
    ///
    /// # Errors
    /// As [`Metric::score`].
    pub fn score(&self, prediction: &str, answers: &[String], classes: &[String]) -> Result<f64, ScoreError> {
        let prediction = if self.first_line_only {
            let text = prediction.trim_start_matches('\n');
            text.split_once('\n').map_or(text, |(line, _)| line)
        } else {
            prediction
        };
        answers
            .iter()
            .try_fold(0.0, |best: f64, truth| Ok(best.max(self.metric.score(prediction, truth, classes)?)))
    }
}

/// The figure that LongBench prints for a data set: the mean of `scores` in percent, with two decimals; none for none.
#[must_use]
pub fn percent(scores: &[f64]) -> Option<f64> {
    // Summed first and scaled then, as `eval.py` does; formatting rounds the exact value, as Python's `round` does.
    let mean = 100.0 * scores.iter().sum::<f64>() / scores.len() as f64;
    (!scores.is_empty()).then(|| format!("{mean:.2}").parse().expect("a formatted number is one"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_some_sets_take_the_first_line() {
        let answers = ["Paris".to_owned(), "the city".to_owned()];
        let score = |name: &str| dataset(name).unwrap().score("\n\nParis\nor London", &answers, &[]).unwrap();
        assert_eq!(score("triviaqa"), 1.0);
        assert_eq!(score("triviaqa_e"), 1.0);
        assert_eq!(score("hotpotqa"), 0.5);
        assert_eq!(dataset("bookqa"), None);
    }

    #[test]
    fn the_mean_has_two_decimals() {
        assert_eq!(percent(&[1.0, 0.0, 0.0]), Some(33.33));
        // 0.125 % exactly: to the even digit.
        assert_eq!(percent(&[0.00125]), Some(0.12));
        assert_eq!(percent(&[]), None);
    }
}
