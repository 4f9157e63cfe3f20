//! BM25 of sentences against the question: the ranking that needs no model, and the baseline to beat.
//!
//! Terms are lower-case runs of letters and digits; in text written without spaces, characters and pairs of them.
//! Source: Robertson and Zaragoza 2009, with the logarithm that is never negative (as Lucene has it).

use std::collections::{HashMap, HashSet};

use baton_protocol::{Segment, SentenceMap, is_cjk};

const K1: f64 = 1.2;
const B: f64 = 0.75;

/// One value a unit of the map.
pub(crate) fn values(segments: &[Segment], map: &SentenceMap, question: &str) -> Vec<f64> {
    let mut query: Vec<String> = terms(question);
    let mut seen = HashSet::new();
    query.retain(|term| seen.insert(term.clone()));
    let units: Vec<Vec<String>> =
        map.units().iter().map(|unit| terms(&segments[unit.segment].text[unit.bytes.clone()])).collect();
    let lengths: usize = units.iter().map(Vec::len).sum();
    let mean_len = lengths as f64 / units.len().max(1) as f64;
    let counts: Vec<HashMap<&str, u32>> = units
        .iter()
        .map(|terms| {
            let mut counts = HashMap::new();
            for term in terms.iter().filter(|term| seen.contains(*term)) {
                *counts.entry(term.as_str()).or_default() += 1;
            }
            counts
        })
        .collect();
    let idf: Vec<f64> = query
        .iter()
        .map(|term| {
            let with = counts.iter().filter(|counts| counts.contains_key(term.as_str())).count() as f64;
            (1.0 + (units.len() as f64 - with + 0.5) / (with + 0.5)).ln()
        })
        .collect();
    let score = |(terms, counts): (&Vec<String>, &HashMap<&str, u32>)| -> f64 {
        let norm = K1 * (1.0 - B + B * terms.len() as f64 / mean_len.max(f64::MIN_POSITIVE));
        let parts = query.iter().zip(&idf).map(|(term, idf)| {
            let tf = f64::from(counts.get(term.as_str()).copied().unwrap_or(0));
            idf * tf * (K1 + 1.0) / (tf + norm)
        });
        parts.sum()
    };
    units.iter().zip(&counts).map(score).collect()
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
