//! BM25 of sentences against the question: the ranking that needs no model, and the baseline to beat.
//!
//! Terms are lower-case runs of letters and digits; in text written without spaces, characters and pairs of them.
//! Source: Robertson and Zaragoza 2009, with the logarithm that is never negative (as Lucene has it).

use std::collections::{HashMap, HashSet};

use baton_protocol::{Segment, SentenceMap, is_cjk};

const K1: f64 = 1.2;
const B: f64 = 0.75;

/// The terms of every unit of a map, counted.
pub(crate) struct TermIndex {
    /// Of each unit: terms in all, and how often each stands there.
    units: Vec<(usize, HashMap<String, u32>)>,
    /// Of each term, the units that have it.
    with: HashMap<String, u32>,
    mean_len: f64,
}

impl TermIndex {
    /// Of the units' texts. Cost: linear in the text.
    pub(crate) fn new(segments: &[Segment], map: &SentenceMap) -> Self {
        let mut with: HashMap<String, u32> = HashMap::new();
        let units: Vec<(usize, HashMap<String, u32>)> = map
            .units()
            .iter()
            .map(|unit| {
                let terms = terms(&segments[unit.segment].text[unit.bytes.clone()]);
                let len = terms.len();
                let mut counts: HashMap<String, u32> = HashMap::new();
                for term in terms {
                    *counts.entry(term).or_default() += 1;
                }
                for term in counts.keys() {
                    *with.entry(term.clone()).or_default() += 1;
                }
                (len, counts)
            })
            .collect();
        let lengths: usize = units.iter().map(|(len, _)| len).sum();
        let mean_len = lengths as f64 / units.len().max(1) as f64;
        Self { units, with, mean_len }
    }

    /// Units that have the term.
    pub(crate) fn units_with(&self, term: &str) -> usize {
        self.with.get(term).map_or(0, |&count| count as usize)
    }

    /// The distinct terms of one unit, in order of the alphabet.
    pub(crate) fn terms_of(&self, unit: usize) -> Vec<&str> {
        let mut terms: Vec<&str> = self.units[unit].1.keys().map(String::as_str).collect();
        terms.sort_unstable();
        terms
    }

    /// One value a unit for a query of distinct terms with their weights.
    pub(crate) fn values(&self, query: &[(&str, f64)]) -> Vec<f64> {
        let n_units = self.units.len() as f64;
        let weights: Vec<f64> = query
            .iter()
            .map(|(term, weight)| {
                let with = self.units_with(term) as f64;
                weight * (1.0 + (n_units - with + 0.5) / (with + 0.5)).ln()
            })
            .collect();
        let score = |(len, counts): &(usize, HashMap<String, u32>)| -> f64 {
            let norm = K1 * (1.0 - B + B * *len as f64 / self.mean_len.max(f64::MIN_POSITIVE));
            let parts = query.iter().zip(&weights).map(|((term, _), weight)| {
                let tf = f64::from(counts.get(*term).copied().unwrap_or(0));
                weight * tf * (K1 + 1.0) / (tf + norm)
            });
            parts.sum()
        };
        self.units.iter().map(score).collect()
    }
}

/// One value a unit of the map.
pub(crate) fn values(segments: &[Segment], map: &SentenceMap, question: &str) -> Vec<f64> {
    let query = distinct_terms(question);
    let query: Vec<(&str, f64)> = query.iter().map(|term| (term.as_str(), 1.0)).collect();
    TermIndex::new(segments, map).values(&query)
}

/// The terms of a text, each once, in order.
pub(crate) fn distinct_terms(text: &str) -> Vec<String> {
    let mut terms = terms(text);
    let mut seen = HashSet::new();
    terms.retain(|term| seen.insert(term.clone()));
    terms
}

/// The terms of a text, in order.
fn terms(text: &str) -> Vec<String> {
    let mut terms = Vec::new();
    let mut word = String::new();
    let mut before: Option<char> = None;
    for c in text.chars() {
        let letter = c.is_alphanumeric();
        if letter && is_cjk(c) {
            flush(&mut word, &mut terms);
            if let Some(before) = before {
                terms.push([before, c].iter().collect());
            }
            terms.push(c.to_string());
            before = Some(c);
            continue;
        }
        before = None;
        if letter {
            word.extend(c.to_lowercase());
        } else {
            flush(&mut word, &mut terms);
        }
    }
    flush(&mut word, &mut terms);
    terms
}

fn flush(word: &mut String, terms: &mut Vec<String>) {
    if !word.is_empty() {
        terms.push(std::mem::take(word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_protocol::Role;

    #[test]
    fn terms_are_words_characters_and_their_pairs() {
        assert_eq!(terms("The X-ray's 3 PARTS."), ["the", "x", "ray", "s", "3", "parts"]);
        assert_eq!(terms("黑豹队，NFL冠军"), ["黑", "黑豹", "豹", "豹队", "队", "nfl", "冠", "冠军", "军"]);
    }

    #[test]
    fn values_follow_the_formula() {
        let segments = [Segment::refinable(Role::User, "The cat sat. The dog ran far away. A bird.")];
        let map = SentenceMap::new(&segments);
        let got = values(&segments, &map, "Where did the dog, the dog run?");
        // Query terms found: the (in 2 of 3 sentences), dog (in 1). Lengths 3, 5, 2; mean 10/3.
        let idf = |with: f64| (1.0 + (3.0 - with + 0.5) / (with + 0.5)).ln();
        let part = |idf: f64, len: f64| idf * 2.2 / (1.0 + 1.2 * (0.25 + 0.75 * len / (10.0 / 3.0)));
        let want = [part(idf(2.0), 3.0), part(idf(2.0), 5.0) + part(idf(1.0), 5.0), 0.0];
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() < 1e-12, "{got} {want}");
        }
    }

    #[test]
    fn no_question_and_no_words_are_values_of_zero() {
        let segments = [Segment::refinable(Role::User, "... !!! ???")];
        let map = SentenceMap::new(&segments);
        assert!(values(&segments, &map, "").iter().all(|&v| v == 0.0));
        assert!(values(&segments, &map, "what").iter().all(|&v| v == 0.0));
    }
}
