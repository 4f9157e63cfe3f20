//! What words add to attention in the default ranking: matches with the question, and bridges.
//!
//! Attention of a question finds what its words stand for, but the lookup of a second fact begins only while a model
//! answers, and a question that names things finds them by their names best. So a sentence's attention is joined by its
//! BM25 value, and by a bridge: words of the sentences that lead so far, which are neither the question's nor those of
//! their own titles, but of another part's title or of several sentences, point to where the next fact stands.
//!
//! Pure. Each of the three parts is divided by its largest value, so that none outweighs the others by its unit.

use std::collections::{BTreeMap, HashSet};

use baton_protocol::{Segment, SentenceMap};

use crate::bm25::{TermIndex, distinct_terms};

/// Weight of the question's words beside attention's 1. This and the next were chosen from six pairs by recall on 24
/// generated documents of each length (seeds from 4,000,000); `./x bench quality` measures on others.
const WORDS_SHARE: f64 = 1.5;
/// Weight of bridges.
const BRIDGE_SHARE: f64 = 0.4;
/// Sentences that bridges begin at.
const LEADERS: usize = 3;
/// A word of more than this share of the units bridges nothing.
const BRIDGE_UNITS_SHARE_MAX: f64 = 0.1;
/// A word of fewer units is a value rather than a name, unless it stands in a title.
const BRIDGE_UNITS_MIN: usize = 3;

/// One value a unit: attention's, with what words add.
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

/// Divided by the largest, times `share`; zeros where none is positive.
fn scaled(values: &[f64], share: f64) -> Vec<f64> {
    let most = values.iter().copied().fold(0.0, f64::max);
    let factor = if most > 0.0 { share / most } else { 0.0 };
    values.iter().map(|value| factor * value).collect()
}

fn add(values: &mut [f64], more: &[f64]) {
    for (value, more) in values.iter_mut().zip(more) {
        *value += more;
    }
}

/// Words that lead on from the best sentences, each weighted by the best sentence it stands in.
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
        // The names of the part that it stands in lead nowhere else.
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
