//! The nine metrics, by the names of LongBench's `metrics.py`.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::LazyLock;

use regex::Regex;

use crate::chinese::words;
use crate::matching::ratio_percent;
use crate::normalize::{chinese_word, english_words};
use crate::rouge::{DEPTH_MAX, rouge_l};

/// The metric of one answer. All scores are in 0..=1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Metric {
    /// F1 of English words, without articles and punctuation.
    QaF1,
    /// F1 of Chinese words.
    QaF1Zh,
    /// ROUGE-L.
    Rouge,
    /// ROUGE-L of Chinese words.
    RougeZh,
    /// 1 divided by the number of named classes if the right class is among them, else 0.
    Classification,
    /// Share of the numbers in the answer that are the number of the right paragraph.
    Retrieval,
    /// The same for Chinese.
    RetrievalZh,
    /// Share of the numbers in the answer that are the right number.
    Count,
    /// Similarity of the first line of code.
    CodeSim,
}

/// All metrics with their names.
const NAMES: [(Metric, &str); 9] = [
    (Metric::QaF1, "qa_f1_score"),
    (Metric::QaF1Zh, "qa_f1_zh_score"),
    (Metric::Rouge, "rouge_score"),
    (Metric::RougeZh, "rouge_zh_score"),
    (Metric::Classification, "classification_score"),
    (Metric::Retrieval, "retrieval_score"),
    (Metric::RetrievalZh, "retrieval_zh_score"),
    (Metric::Count, "count_score"),
    (Metric::CodeSim, "code_sim_score"),
];

/// The name is not that of a metric.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("metric `{0}` is not one of LongBench's")]
pub struct UnknownMetric(pub String);

/// A right answer that cannot be used for scoring.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScoreError {
    /// The right answer of a retrieval task names no paragraph.
    #[error("the right answer `{truth}` does not name a paragraph as `{form}`")]
    NoParagraph {
        /// The right answer, at most 64 characters of it.
        truth: String,
        /// The expected form of the name.
        form: &'static str,
    },
}

impl FromStr for Metric {
    type Err = UnknownMetric;

    fn from_str(name: &str) -> Result<Metric, UnknownMetric> {
        let found = NAMES.iter().find(|(_, known)| *known == name);
        found.map(|&(metric, _)| metric).ok_or_else(|| UnknownMetric(name.chars().take(64).collect()))
    }
}

impl Metric {
    /// Returns its name in LongBench's `metrics.py`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        let found = NAMES.iter().find(|&&(metric, _)| metric == self);
        found.expect("every metric is in the table").1
    }

    /// Returns the score of `prediction` against one right answer. `classes`: the class names of a
    /// classification.
    ///
    /// # Errors
    /// [`ScoreError::NoParagraph`] if the right answer of a retrieval task names no paragraph.
    pub fn score(self, prediction: &str, truth: &str, classes: &[String]) -> Result<f64, ScoreError> {
        Ok(match self {
            Metric::QaF1 => f1(&english_words(prediction), &english_words(truth)),
            Metric::QaF1Zh => f1(&chinese_words_normalized(prediction), &chinese_words_normalized(truth)),
            Metric::Rouge => rouge_l(prediction, truth, DEPTH_MAX),
            // One call deeper, so one call less is left.
            Metric::RougeZh => rouge_l(&words(prediction).join(" "), &words(truth).join(" "), DEPTH_MAX - 1),
            Metric::Classification => classification(prediction, truth, classes),
            Metric::Retrieval => numbers_equal(prediction, paragraph(truth, &PARAGRAPH, "Paragraph N")?),
            Metric::RetrievalZh => numbers_equal(prediction, paragraph(truth, &PARAGRAPH_ZH, "段落N")?),
            Metric::Count => numbers_equal(prediction, truth),
            Metric::CodeSim => ratio_percent(first_line_of_code(prediction), truth) / 100.0,
        })
    }
}

static NUMBER: LazyLock<Regex> = LazyLock::new(|| pattern(r"\d+"));
static PARAGRAPH: LazyLock<Regex> = LazyLock::new(|| pattern(r"Paragraph (\d+)"));
static PARAGRAPH_ZH: LazyLock<Regex> = LazyLock::new(|| pattern(r"段落(\d+)"));

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("the patterns are constants")
}

fn chinese_words_normalized(text: &str) -> Vec<String> {
    words(text).into_iter().map(chinese_word).filter(|word| !word.is_empty()).collect()
}

/// Returns F1 of two multisets of words.
fn f1(prediction: &[String], truth: &[String]) -> f64 {
    let mut left: HashMap<&str, usize> = HashMap::new();
    for word in truth {
        *left.entry(word).or_default() += 1;
    }
    let mut common = 0.0;
    for word in prediction {
        if let Some(count) = left.get_mut(word.as_str()).filter(|count| **count > 0) {
            *count -= 1;
            common += 1.0;
        }
    }
    if common == 0.0 {
        return 0.0;
    }
    let precision = common / prediction.len() as f64;
    let recall = common / truth.len() as f64;
    (2.0 * precision * recall) / (precision + recall)
}

fn classification(prediction: &str, truth: &str, classes: &[String]) -> f64 {
    let mut named: Vec<&str> =
        classes.iter().map(String::as_str).filter(|&class| prediction.contains(class)).collect();
    // Names are removed during the iteration, as in LongBench: the name after a removed one is skipped.
    let mut at = 0;
    while at < named.len() {
        let name = named[at];
        if truth.contains(name) && name != truth {
            let first = named.iter().position(|&other| other == name).expect("it stands at `at` or before");
            named.remove(first);
        }
        at += 1;
    }
    if named.contains(&truth) { 1.0 / named.len() as f64 } else { 0.0 }
}

fn paragraph<'t>(truth: &'t str, named: &Regex, form: &'static str) -> Result<&'t str, ScoreError> {
    let found = named.captures(truth).and_then(|groups| groups.get(1));
    found
        .map(|number| number.as_str())
        .ok_or_else(|| ScoreError::NoParagraph { truth: truth.chars().take(64).collect(), form })
}

/// Returns the share of the numbers in `prediction` that are written exactly like `truth`.
fn numbers_equal(prediction: &str, truth: &str) -> f64 {
    let numbers: Vec<&str> = NUMBER.find_iter(prediction).map(|found| found.as_str()).collect();
    if numbers.is_empty() {
        return 0.0;
    }
    numbers.iter().filter(|&&number| number == truth).count() as f64 / numbers.len() as f64
}

/// Returns the first line that is neither a comment nor a code fence; empty if there is none.
fn first_line_of_code(prediction: &str) -> &str {
    let mut lines = prediction.trim_start_matches('\n').split('\n');
    lines.find(|line| !line.contains('`') && !line.contains('#') && !line.contains("//")).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for (metric, name) in NAMES {
            assert_eq!((name.parse(), metric.as_str()), (Ok(metric), name));
        }
        assert_eq!(
            "bleu".parse::<Metric>().unwrap_err().to_string(),
            "metric `bleu` is not one of LongBench's"
        );
    }

    #[test]
    fn a_right_answer_without_a_paragraph_is_an_error() {
        let err = Metric::Retrieval.score("3", "段落3", &[]).unwrap_err();
        assert_eq!(err.to_string(), "the right answer `段落3` does not name a paragraph as `Paragraph N`");
    }

    #[test]
    fn the_name_after_a_removed_one_is_passed_over() {
        let classes: Vec<String> = ["Number", "Number of", "Number of something"].map(str::to_owned).into();
        let score =
            Metric::Classification.score("Number of something", "Number of something", &classes).unwrap();
        assert_eq!(score, 0.5);
    }
}
