//! Scores an answer against the right ones, from 0 to 1.
//!
//! Pure. SQuAD's normalization and F1 follow its official script (Rajpurkar 2016). For Chinese, characters
//! are used instead of words, as in CMRC. RULER's scores are those of its paper (Hsieh 2024, appendix A).

use std::collections::HashMap;

use baton_protocol::is_cjk;

/// How an answer is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// A comparison with the right answers.
    Text(TextMetric),
    /// The metric of LongBench for this data set.
    LongBench(&'static baton_longbench::DataSet),
    /// 1 if no detector finds a fault, else 0.
    Sound,
}

impl Metric {
    /// Returns its name in reports and curves.
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
    /// 1 if the answer, without white space around it, is one of the right ones.
    Exact,
    /// Share of the right answers that occur in the answer, ignoring case.
    ContainsAll,
    /// Largest F1 over the right answers, on tokens after SQuAD's normalization.
    SquadF1,
}

impl TextMetric {
    /// Returns the score of an answer, 0 to 1; 0 if there is no right answer.
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

/// Returns the words of a text after SQuAD's normalization: lower case, no punctuation, no articles. CJK
/// characters are single words.
pub fn squad_tokens(text: &str) -> Vec<String> {
    let mut spaced = String::with_capacity(text.len());
    for c in text.chars() {
        if is_cjk(c) && c.is_alphanumeric() {
            spaced.extend([' ', c, ' ']);
        } else if c.is_alphanumeric() || c.is_whitespace() {
            spaced.extend(c.to_lowercase());
        } else if !c.is_ascii_punctuation() {
            // The official script removes only ASCII punctuation; other marks separate words.
            spaced.push(' ');
        }
    }
    let article = |word: &&str| !matches!(*word, "a" | "an" | "the");
    spaced.split_whitespace().filter(article).map(str::to_owned).collect()
}

/// Returns whether two answers are equal after SQuAD's normalization.
pub fn squad_exact(answer: &str, right: &str) -> bool {
    squad_tokens(answer) == squad_tokens(right)
}

/// Returns F1 of the tokens of two answers, as multisets.
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
