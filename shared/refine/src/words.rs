//! The word part of the default ranking: matches with the question, and bridge words.
//!
//! Attention alone has two weaknesses. Names in a question are found best by exact matches, so the BM25 value
//! of a sentence is added. And a model looks up the second fact of a two-hop question only while it answers,
//! so bridge words are added.
//!
//! A bridge word is a word of the best sentences so far. It is in neither the question nor the titles above
//! its own sentence, but in another title or in several sentences. It points to the sentence with the next
//! fact, like the bridge entity of a two-hop question.
//!
//! Pure. Each of the three parts is divided by its largest value, so that their scales do not matter.

use std::collections::{BTreeMap, HashSet};

use baton_protocol::{Segment, SentenceMap};

use crate::bm25::{TermIndex, distinct_terms};

/// Weight of the question's words; that of attention is 1. This weight and the next were chosen from six
/// pairs by recall on 24 generated documents of each length (seeds from 4,000,000). `./x bench quality`
/// measures on other documents.
const WORDS_SHARE: f64 = 1.5;
/// Weight of bridge words.
const BRIDGE_SHARE: f64 = 0.4;
/// Number of best sentences whose words can be bridge words.
const LEADERS: usize = 3;
/// A word in more than this share of the units is too common to be a bridge word.
const BRIDGE_UNITS_SHARE_MAX: f64 = 0.1;
/// A word in fewer units than this is rather a value than a name, unless it is in a title.
const BRIDGE_UNITS_MIN: usize = 3;

/// Returns one value per unit: the sum of attention, the question's words and bridge words.
pub(crate) fn joined(segments: &[Segment], map: &SentenceMap, question: &str, attention: &[f64]) -> Vec<f64> {
    let index = TermIndex::new(segments, map);
    let asked = distinct_terms(question);
    let query: Vec<(&str, f64)> = asked.iter().map(|term| (term.as_str(), 1.0)).collect();
    let mut joined = scaled(attention, 1.0);
    add(&mut joined, &scaled(&index.values(&query), WORDS_SHARE));
    let bridges = bridges(map, &index, &asked, &joined);
    let query: Vec<(&str, f64)> = bridges.into_iter().collect();
    let by_bridges = index.values(&query);
    add(&mut joined, &scaled(&by_bridges, BRIDGE_SHARE));
    joined
}

/// Divides the values by the largest and multiplies them by `share`; all zeros if no value is positive.
pub(crate) fn scaled(values: &[f64], share: f64) -> Vec<f64> {
    let most = values.iter().copied().fold(0.0, f64::max);
    let factor = if most > 0.0 { share / most } else { 0.0 };
    values.iter().map(|value| factor * value).collect()
}

pub(crate) fn add(values: &mut [f64], more: &[f64]) {
    for (value, more) in values.iter_mut().zip(more) {
        *value += more;
    }
}

/// Returns the bridge words, each with the value of the best sentence that contains it, relative to the
/// largest.
fn bridges<'a>(
    map: &SentenceMap,
    index: &'a TermIndex,
    asked: &[String],
    values: &[f64],
) -> BTreeMap<&'a str, f64> {
    let asked: HashSet<&str> = asked.iter().map(String::as_str).collect();
    let in_title: HashSet<&str> =
        (0..map.len()).filter(|&unit| map.unit(unit).title).flat_map(|unit| index.terms_of(unit)).collect();
    let units_max = (BRIDGE_UNITS_SHARE_MAX * map.len() as f64) as usize;
    let leads_on = |term: &str| {
        let units = index.units_with(term);
        let named = in_title.contains(term) || (BRIDGE_UNITS_MIN..=units_max).contains(&units);
        units > 1 && named && !asked.contains(term)
    };
    let mut order: Vec<usize> = (0..map.len()).filter(|&unit| !map.unit(unit).title).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    let most = order.first().map_or(0.0, |&unit| values[unit]);
    let mut bridges: BTreeMap<&str, f64> = BTreeMap::new();
    for &unit in order.iter().take(LEADERS).filter(|&&unit| values[unit] > 0.0) {
        // Words of the titles above this sentence do not lead to another part.
        let own: HashSet<&str> = map.titles_of(unit).flat_map(|title| index.terms_of(title)).collect();
        let terms = index.terms_of(unit).into_iter().filter(|term| leads_on(term) && !own.contains(term));
        for term in terms {
            let weight = bridges.entry(term).or_default();
            *weight = f64::max(*weight, values[unit] / most);
        }
    }
    bridges
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_protocol::Role;

    const TEXT: &str = "# Book\n\n## Dor\nMany visit Dor for rings. The partner of Dor is Vel with bells.\n\n\
        ## Vel\nThe toys of Vel are drums. Poets praise Vel near drums.\n\n\
        ## Fen\nThe toys of Fen are kites. Sailors watch Fen like maps.\n\n\
        ## Alb\nThe toys of Alb are rings. Guests remember Alb after pens.";

    fn ranked(text: &str, question: &str, attention: impl Fn(&str) -> f64) -> Vec<String> {
        let segments = [Segment::refinable(Role::User, text)];
        let map = SentenceMap::new(&segments);
        let text_of = |unit: usize| &segments[0].text[map.unit(unit).bytes.clone()];
        let attention: Vec<f64> = (0..map.len()).map(|unit| attention(text_of(unit))).collect();
        let values = joined(&segments, &map, question, &attention);
        let mut order: Vec<usize> = (0..map.len()).filter(|&unit| !map.unit(unit).title).collect();
        order.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
        order.into_iter().map(|unit| text_of(unit).trim().to_owned()).collect()
    }

    #[test]
    fn a_bridge_leads_to_the_second_fact() {
        let first = |text: &str| f64::from(u8::from(text.contains("partner")));
        let order = ranked(TEXT, "What are the toys of the partner of Dor?", first);
        assert_eq!(order[0], "The partner of Dor is Vel with bells.");
        assert_eq!(order[1], "The toys of Vel are drums.");
    }

    #[test]
    fn attention_decides_where_no_word_matches() {
        let order = ranked(TEXT, "Who sails?", |text| f64::from(u8::from(text.contains("Sailors"))));
        assert_eq!(order[0], "Sailors watch Fen like maps.");
    }

    #[test]
    fn without_attention_words_decide() {
        let order = ranked(TEXT, "What are the toys of Alb?", |_| 0.0);
        assert_eq!(order[0], "The toys of Alb are rings.");
        assert!(joined(&[], &SentenceMap::new(&[]), "q", &[]).is_empty());
    }

    #[test]
    fn the_order_of_attention_alone_stays() {
        let by_length = |text: &str| text.len() as f64 * 1e-9;
        let order = ranked("A b c d. E f. G h i.", "", by_length);
        assert_eq!(order, ["A b c d.", "G h i.", "E f."]);
    }
}
