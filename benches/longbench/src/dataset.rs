//! LongBench's data sets: their metrics, and the summary score of its `eval.py`.

use crate::metric::{Metric, ScoreError};

/// One data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataSet {
    /// Its name, which is that of its `jsonl` file.
    pub name: &'static str,
    /// The metric of its answers.
    pub metric: Metric,
    /// Whether only the first line of an answer counts, after leading line breaks.
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

/// Returns the data set of this name. The files of LongBench-E have the suffix `_e` and the same metrics.
#[must_use]
pub fn dataset(name: &str) -> Option<&'static DataSet> {
    let find = |name: &str| DATASETS.iter().find(|set| set.name == name);
    find(name).or_else(|| find(name.strip_suffix("_e")?))
}

impl DataSet {
    /// Returns the best score of `prediction` over the right answers, 0..=1; 0 if there is no right answer.
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

/// Returns the score that LongBench prints for a data set: the mean of `scores` in percent, with two
/// decimals; `None` if there are no scores.
#[must_use]
pub fn percent(scores: &[f64]) -> Option<f64> {
    // Summed before scaling, as in `eval.py`. Formatting rounds the exact value, like Python's `round`.
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
        // Exactly 0.125 %, rounded to the even digit.
        assert_eq!(percent(&[0.00125]), Some(0.12));
        assert_eq!(percent(&[]), None);
    }
}
