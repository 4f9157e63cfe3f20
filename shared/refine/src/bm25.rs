//! Ranks sentences by BM25 against the question. It needs no model, and is the baseline that other rankings
//! must beat.
//!
//! Terms are lower-case runs of letters and digits; in CJK text, single characters and pairs of adjacent
//! ones. Source: Robertson and Zaragoza 2009, with the logarithm that is never negative, as in Lucene.

use std::collections::{HashMap, HashSet};

use baton_protocol::{Segment, SentenceMap, is_cjk};

const K1: f64 = 1.2;
const B: f64 = 0.75;

/// The terms of every unit of a map, and for every term the units that contain it.
pub(crate) struct TermIndex {
    units: Vec<Unit>,
    /// For each term, the units that contain it, in order.
    postings: HashMap<String, Vec<Posting>>,
}

struct Unit {
    /// Its distinct terms, sorted.
    terms: Vec<String>,
    /// The length-dependent summand in the denominator of BM25.
    norm: f64,
}

struct Posting {
    unit: usize,
    /// Number of occurrences of the term in the unit.
    count: u32,
}

impl TermIndex {
    /// Indexes the units' texts. Cost: linear in the text, and a sort of each unit's terms.
    pub(crate) fn new(segments: &[Segment], map: &SentenceMap) -> Self {
        Self::of_texts(map.units().iter().map(|unit| &segments[unit.segment].text[unit.bytes.clone()]))
    }

    /// Indexes texts; each is a unit.
    pub(crate) fn of_texts<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        let mut postings: HashMap<String, Vec<Posting>> = HashMap::new();
        let (mut lengths, mut distinct) = (Vec::new(), Vec::new());
        for (at, text) in texts.enumerate() {
            let mut terms = terms(text);
            lengths.push(terms.len());
            terms.sort_unstable();
            for same in terms.chunk_by(|a, b| a == b) {
                let posting = Posting { unit: at, count: same.len() as u32 };
                postings.entry(same[0].clone()).or_default().push(posting);
            }
            terms.dedup();
            distinct.push(terms);
        }
        let mean_len = lengths.iter().sum::<usize>() as f64 / lengths.len().max(1) as f64;
        let norm = |len: usize| K1 * (1.0 - B + B * len as f64 / mean_len.max(f64::MIN_POSITIVE));
        let units =
            distinct.into_iter().zip(lengths).map(|(terms, len)| Unit { terms, norm: norm(len) }).collect();
        Self { units, postings }
    }

    /// Returns the number of units that contain the term.
    pub(crate) fn units_with(&self, term: &str) -> usize {
        self.postings.get(term).map_or(0, Vec::len)
    }

    /// Returns the distinct terms of one unit, sorted.
    pub(crate) fn terms_of(&self, unit: usize) -> Vec<&str> {
        self.units[unit].terms.iter().map(String::as_str).collect()
    }

    /// Returns one value per unit for a query of distinct terms with their weights. Cost: linear in the
    /// units, the query, and the postings of its terms.
    pub(crate) fn values(&self, query: &[(&str, f64)]) -> Vec<f64> {
        self.counted_values(query).0
    }

    /// Returns the values, and the number of postings that were read.
    fn counted_values(&self, query: &[(&str, f64)]) -> (Vec<f64>, usize) {
        let n_units = self.units.len() as f64;
        let (mut values, mut read) = (vec![0.0; self.units.len()], 0);
        // Each unit's value is a sum in the query's order, so that its bits do not depend on other text.
        for (term, weight) in query {
            let Some(postings) = self.postings.get(*term) else { continue };
            let with = postings.len() as f64;
            let weight = weight * (1.0 + (n_units - with + 0.5) / (with + 0.5)).ln();
            for posting in postings {
                let tf = f64::from(posting.count);
                values[posting.unit] += weight * tf * (K1 + 1.0) / (tf + self.units[posting.unit].norm);
            }
            read += postings.len();
        }
        (values, read)
    }
}

/// Returns the BM25 value of each unit of the map against a question.
pub fn values(segments: &[Segment], map: &SentenceMap, question: &str) -> Vec<f64> {
    let query = distinct_terms(question);
    let query: Vec<(&str, f64)> = query.iter().map(|term| (term.as_str(), 1.0)).collect();
    TermIndex::new(segments, map).values(&query)
}

/// Returns the terms of a text in order of their first occurrence, each once.
pub(crate) fn distinct_terms(text: &str) -> Vec<String> {
    let mut terms = terms(text);
    let mut seen = HashSet::new();
    terms.retain(|term| seen.insert(term.clone()));
    terms
}

/// Returns the terms of a text, in order.
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
    use proptest::prelude::*;

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
    /// Applies the formula to every unit and every term of the query, in this order.
    fn naive(segments: &[Segment], map: &SentenceMap, query: &[(&str, f64)]) -> Vec<f64> {
        let units: Vec<Vec<String>> = (0..map.len())
            .map(|unit| terms(&segments[map.unit(unit).segment].text[map.unit(unit).bytes.clone()]))
            .collect();
        let mean_len = units.iter().map(Vec::len).sum::<usize>() as f64 / units.len().max(1) as f64;
        let value = |unit: &Vec<String>| {
            let norm = K1 * (1.0 - B + B * unit.len() as f64 / mean_len.max(f64::MIN_POSITIVE));
            let mut value = 0.0;
            for (term, weight) in query {
                let with = units.iter().filter(|unit| unit.iter().any(|other| other == term)).count() as f64;
                let weight = weight * (1.0 + (units.len() as f64 - with + 0.5) / (with + 0.5)).ln();
                let tf = unit.iter().filter(|other| other == term).count() as f64;
                value += weight * tf * (K1 + 1.0) / (tf + norm);
            }
            value
        };
        units.iter().map(value).collect()
    }

    proptest! {
        #[test]
        fn values_are_the_formula_bit_for_bit(
            text in "([a-d黑豹]{0,2}[ .\n]){0,60}",
            question in "([a-f黑豹]{1,2} ){0,12}",
            step in 0.1..2.0_f64,
        ) {
            let segments = [Segment::refinable(Role::User, text.as_str())];
            let map = SentenceMap::new(&segments);
            let asked = distinct_terms(&question);
            let weighted = |(at, term): (usize, &String)| (term.clone(), step * (at + 1) as f64);
            let query: Vec<(String, f64)> = asked.iter().enumerate().map(weighted).collect();
            let query: Vec<(&str, f64)> = query.iter().map(|(term, weight)| (term.as_str(), *weight)).collect();
            let got = TermIndex::new(&segments, &map).values(&query);
            let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<u64>>();
            prop_assert_eq!(bits(&got), bits(&naive(&segments, &map, &query)));
        }
    }

    #[test]
    fn only_places_where_a_word_of_the_question_stands_cost() {
        let text: String = (0..500).map(|at| format!("Word{at} stands here. ")).collect();
        let segments = [Segment::refinable(Role::User, text)];
        let map = SentenceMap::new(&segments);
        let index = TermIndex::new(&segments, &map);
        // 1000 words: every second word is in exactly one sentence, the others are in none.
        let question: String = (0..1000).map(|at| format!("word{} ", at / 2 + 1000 * (at % 2))).collect();
        let asked = distinct_terms(&question);
        let query: Vec<(&str, f64)> = asked.iter().map(|term| (term.as_str(), 1.0)).collect();
        assert_eq!((map.len(), query.len()), (500, 1000));
        let (values, read) = index.counted_values(&query);
        assert_eq!(read, 500, "not 500 sentences times 1000 words");
        assert!(values.iter().all(|&value| value > 0.0));
    }
}
