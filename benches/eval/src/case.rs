//! One test case: a question about a text, and the data to judge the answer.

use std::ops::Range;

use baton_longbench::ScoreError;
use baton_protocol::{Role, Segment, SentenceMap};

use crate::detect::Faults;
use crate::metric::Metric;

/// One question about one text.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// Unique among all cases of a results file, and the same in every run: `facts/short/2048/17/3`.
    pub id: String,
    /// The suite's name.
    pub suite: &'static str,
    /// What is asked within the suite, e.g. `two_hop`.
    pub group: String,
    /// Target length of a generated text in tokens; 0 for other texts.
    pub length: usize,
    /// Id of the text. Cases about one text are not independent, so the bootstrap resamples whole clusters.
    pub cluster: u64,
    /// System text; empty for none.
    pub system: String,
    /// Text before the content, never refined; empty for none.
    pub lead: String,
    /// The text that may be refined.
    pub content: String,
    /// Text after the content, never refined.
    pub question: String,
    /// Right answers. The metric decides whether one or all of them must be given.
    pub answers: Vec<String>,
    /// Sentences that contain the answer, as byte ranges of `content`; empty if they are not known.
    pub gold: Vec<Range<usize>>,
    /// How the answer is judged.
    pub metric: Metric,
    /// Class names of a classification; empty for other tasks.
    pub classes: Vec<String>,
    /// Maximum number of tokens in the answer.
    pub max_tokens: usize,
}

impl Case {
    /// Returns the prompt in the layout that a device sends.
    pub fn segments(&self) -> Vec<Segment> {
        let system = (!self.system.is_empty()).then(|| Segment::fixed(Role::System, self.system.as_str()));
        let lead = (!self.lead.is_empty()).then(|| Segment::fixed(Role::User, self.lead.as_str()));
        let rest = [
            Segment::refinable(Role::User, self.content.as_str()),
            Segment::fixed(Role::User, self.question.as_str()),
        ];
        system.into_iter().chain(lead).chain(rest).collect()
    }

    /// Returns the score of an answer, 0 to 1, and its faults.
    ///
    /// # Errors
    /// [`ScoreError`] if the right answer of the data set cannot be used for scoring.
    pub fn judge(&self, answer: &str) -> Result<(f64, Faults), ScoreError> {
        let faults = Faults::of(answer, &self.question, &self.content);
        let score = match self.metric {
            Metric::Sound => f64::from(u8::from(!faults.any())),
            Metric::LongBench(set) => set.score(answer, &self.answers, &self.classes)?,
            Metric::Text(text) => text.score(answer, &self.answers),
        };
        Ok((score, faults))
    }

    /// Returns the units of the map that overlap gold sentences, in ascending order.
    pub fn gold_units(&self, map: &SentenceMap) -> Vec<usize> {
        let touches = |unit: &baton_protocol::Unit| {
            self.gold.iter().any(|gold| gold.start < unit.bytes.end && unit.bytes.start < gold.end)
        };
        (0..map.len()).filter(|&index| touches(map.unit(index))).collect()
    }

    /// Returns the share of the gold sentences that are kept, or `None` if none are known.
    pub fn recall(&self, map: &SentenceMap, kept: &[bool]) -> Option<f64> {
        let units = self.gold_units(map);
        let found = units.iter().filter(|&&unit| kept[unit]).count();
        (!units.is_empty()).then(|| found as f64 / units.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::TextMetric;

    #[test]
    fn recall_counts_the_gold_sentences_that_are_kept() {
        let case = Case {
            id: "t".into(),
            suite: "facts",
            group: "short".into(),
            length: 0,
            cluster: 0,
            system: "S.".into(),
            lead: String::new(),
            content: "One is. Two is. Three is. Four is.".into(),
            question: "Q?".into(),
            answers: vec![],
            gold: vec![8..15, 26..34],
            metric: Metric::Text(TextMetric::Exact),
            classes: vec![],
            max_tokens: 1,
        };
        let segments = case.segments();
        let map = SentenceMap::new(&segments);
        assert_eq!((segments.len(), map.len()), (3, 4));
        assert_eq!(case.gold_units(&map), [1, 3]);
        assert_eq!(case.recall(&map, &[true, true, false, false]), Some(0.5));
        assert_eq!(case.recall(&map, &[false, true, false, true]), Some(1.0));
        let unknown = Case { gold: vec![], ..case };
        assert_eq!(unknown.recall(&map, &[true; 4]), None);
    }
}
