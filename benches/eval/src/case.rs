//! One question with what is needed to ask it and to judge the answer.

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
    /// Length that the text was made for, in tokens; 0 where texts come as they are.
    pub length: usize,
    /// Cases about one text are not independent of each other: intervals resample clusters.
    pub cluster: u64,
    /// System text before everything; empty for none.
    pub system: String,
    /// What stands before the text, never refined; empty for nothing.
    pub lead: String,
    /// The text that may be refined.
    pub content: String,
    /// What follows the text, never refined.
    pub question: String,
    /// Right answers; which of them are wanted is the metric's affair.
    pub answers: Vec<String>,
    /// Sentences that must be read to answer, as byte ranges of `content`; none where that is not known.
    pub gold: Vec<Range<usize>>,
    /// How the answer is judged.
    pub metric: Metric,
    /// Names that a classification chooses from; empty elsewhere.
    pub classes: Vec<String>,
    /// Most tokens of the answer.
    pub max_tokens: usize,
}

impl Case {
    /// The prompt, in the layout that a device sends it in.
    pub fn segments(&self) -> Vec<Segment> {
        let system = (!self.system.is_empty()).then(|| Segment::fixed(Role::System, self.system.as_str()));
        let lead = (!self.lead.is_empty()).then(|| Segment::fixed(Role::User, self.lead.as_str()));
        let rest = [
            Segment::refinable(Role::User, self.content.as_str()),
            Segment::fixed(Role::User, self.question.as_str()),
        ];
        system.into_iter().chain(lead).chain(rest).collect()
    }

    /// Score of an answer, 0 to 1, and what is wrong with it.
    ///
    /// # Errors
    /// [`ScoreError`] where the data set's own answer cannot be scored against.
    pub fn judge(&self, answer: &str) -> Result<(f64, Faults), ScoreError> {
        let faults = Faults::of(answer, &self.question, &self.content);
        let score = match self.metric {
            Metric::Sound => f64::from(u8::from(!faults.any())),
            Metric::LongBench(set) => set.score(answer, &self.answers, &self.classes)?,
            Metric::Text(text) => text.score(answer, &self.answers),
        };
        Ok((score, faults))
    }

    /// Units of the map that gold sentences reach into, ascending.
    pub fn gold_units(&self, map: &SentenceMap) -> Vec<usize> {
        let touches = |unit: &baton_protocol::Unit| {
            self.gold.iter().any(|gold| gold.start < unit.bytes.end && unit.bytes.start < gold.end)
        };
        (0..map.len()).filter(|&index| touches(map.unit(index))).collect()
    }

    /// Share of the gold sentences that are kept; `None` where none are known.
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
