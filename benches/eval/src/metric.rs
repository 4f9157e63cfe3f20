//! Judging an answer: from what was written and what is right to a score from 0 to 1.
//!
//! Pure. SQuAD's normalization and F1 follow its official script (Rajpurkar 2016); for Chinese, characters take the
//! place of words, as in CMRC. RULER's scores are those of its paper (Hsieh 2024, appendix A).

use std::collections::HashMap;

use baton_protocol::is_cjk;

/// How an answer is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Against the right answers.
    Text(TextMetric),
    /// As LongBench judges this data set.
    LongBench(&'static baton_longbench::DataSet),
    /// 1 where no detector finds anything wrong.
    Sound,
}

impl Metric {
    /// Its name in reports and curves.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text(TextMetric::Exact) => "exact_match",
            Self::Text(TextMetric::ContainsAll) => "contains",
            Self::Text(TextMetric::SquadF1) => "squad_f1",
            Self::LongBench(set) => set.metric.as_str(),
            Self::Sound => "sound",
        }
    }
}

/// How an answer is compared with the right ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextMetric {
    /// 1 where the answer, without white space around it, is one of the right ones.
    Exact,
    /// Share of the right answers that stand in the answer, ignoring case.
    ContainsAll,
    /// F1 over the tokens of the best right answer, after SQuAD's normalization.
    SquadF1,
}

impl TextMetric {
    /// The score of an answer, 0 to 1; 0 where there is no right answer.
    pub fn score(self, answer: &str, right: &[String]) -> f64 {
        match self {
            Self::Exact => f64::from(u8::from(right.iter().any(|right| right.trim() == answer.trim()))),
            Self::ContainsAll => contained(answer, right),
            Self::SquadF1 => right.iter().map(|right| squad_f1(answer, right)).fold(0.0, f64::max),
        }
    }
}

fn contained(answer: &str, right: &[String]) -> f64 {
    let answer = answer.to_lowercase();
    let found = right.iter().filter(|right| answer.contains(&right.to_lowercase())).count();
    if right.is_empty() { 0.0 } else { found as f64 / right.len() as f64 }
}

/// Words of a text after SQuAD's normalization: lower case, no punctuation, no articles; CJK characters singly.
pub fn squad_tokens(text: &str) -> Vec<String> {
    let mut spaced = String::with_capacity(text.len());
    for c in text.chars() {
        if is_cjk(c) && c.is_alphanumeric() {
            spaced.extend([' ', c, ' ']);
        } else if c.is_alphanumeric() || c.is_whitespace() {
            spaced.extend(c.to_lowercase());
        } else if !c.is_ascii_punctuation() {
            // The official script drops ASCII punctuation only; wide punctuation parts words.
            spaced.push(' ');
        }
    }
    let article = |word: &&str| !matches!(*word, "a" | "an" | "the");
    spaced.split_whitespace().filter(article).map(str::to_owned).collect()
}

/// Whether two answers are the same after SQuAD's normalization.
pub fn squad_exact(answer: &str, right: &str) -> bool {
    squad_tokens(answer) == squad_tokens(right)
}

/// F1 of the tokens of two answers, as multisets.
pub fn squad_f1(answer: &str, right: &str) -> f64 {
    let (answer, right) = (squad_tokens(answer), squad_tokens(right));
    if answer.is_empty() || right.is_empty() {
        return f64::from(u8::from(answer == right));
    }
    let mut left: HashMap<&str, usize> = HashMap::new();
    for token in &right {
        *left.entry(token).or_default() += 1;
    }
    let mut same = 0usize;
    for token in &answer {
        if let Some(count) = left.get_mut(token.as_str()).filter(|count| **count > 0) {
            *count -= 1;
            same += 1;
        }
    }
    2.0 * same as f64 / (answer.len() + right.len()) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(metric: TextMetric, answer: &str, right: &[&str], want: f64) {
        let right: Vec<String> = right.iter().map(|&right| right.to_owned()).collect();
        let got = metric.score(answer, &right);
        assert!((got - want).abs() < 1e-12, "{metric:?} `{answer}`: {got}, want {want}");
    }

    #[test]
    fn answers_are_judged() {
        check(TextMetric::Exact, " The toys. ", &["The toys."], 1.0);
        check(TextMetric::Exact, "the toys.", &["The toys.", "x"], 0.0);
        check(TextMetric::Exact, "", &[], 0.0);
        check(TextMetric::ContainsAll, "it is 7 and NINE", &["7", "nine"], 1.0);
        check(TextMetric::ContainsAll, "it is 7", &["7", "nine"], 0.5);
        check(TextMetric::SquadF1, "The Denver Broncos!", &["Denver Broncos", "Carolina"], 1.0);
        check(TextMetric::SquadF1, "Denver won", &["the Denver Broncos"], 0.5);
        check(TextMetric::SquadF1, "", &["x"], 0.0);
        check(TextMetric::SquadF1, "黑豹队", &["黑豹"], 0.8);
        check(TextMetric::SquadF1, "a a b", &["a b b"], 2.0 / 3.0);
        assert!(squad_exact("The  X-ray", "xray") && !squad_exact("x ray", "xray"));
    }
}
