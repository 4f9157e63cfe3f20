//! Compares the filling of the budget with an independent implementation.

use proptest::prelude::*;

use super::*;
use crate::content::ContentTokens;
use baton_protocol::{Role, Segment};

/// Makes content of one segment: one unit per line, one token per letter; lines that begin with `#` are
/// titles.
fn content(lines: &[&str]) -> (SentenceMap, Content) {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let segments = [Segment::refinable(Role::User, text.clone())];
    let map = SentenceMap::new(&segments);
    assert_eq!(map.len(), lines.len());
    let spans: Vec<_> =
        text.char_indices().filter(|(_, c)| c.is_ascii_alphabetic()).map(|(at, _)| at..at + 1).collect();
    let parts = [ContentTokens { segment: 0, first: 0, spans: &spans }];
    let content = Content::new(&segments, &map, &parts, spans.len()).unwrap();
    (map, content)
}

#[track_caller]
fn check(lines: &[&str], values: &[f64], budget: usize, rules: FillRules, want: &[usize]) {
    let (map, content) = content(lines);
    let kept = fill(&map, &content, values, budget, &[], rules);
    let got: Vec<usize> = (0..kept.len()).filter(|&i| kept[i]).collect();
    assert_eq!(got, want);
}

const PLAIN: FillRules = FillRules { titles: false, gaps: false, least_value: 0.0 };
const TITLES: FillRules = FillRules { titles: true, gaps: false, least_value: 0.0 };
const GAPS: FillRules = FillRules { titles: false, gaps: true, least_value: 0.0 };
const LIST: &[&str] = &["- aaaa", "- bbbb", "- cc", "- dddddddddd", "- e"];

#[test]
fn the_best_that_fit_are_taken_and_the_rest_skipped() {
    check(LIST, &[1.0, 2.0, 3.0, 4.0, 5.0], 16, PLAIN, &[2, 3, 4]);
    check(LIST, &[1.0, 2.0, 3.0, 4.0, 5.0], 9, PLAIN, &[1, 2, 4]);
    check(LIST, &[0.0; 5], 8, PLAIN, &[0, 1]);
    check(LIST, &[0.0; 5], 0, PLAIN, &[0]);
    check(LIST, &[0.0, 0.0, 0.0, 9.0, 0.0], 1, PLAIN, &[4]);
    check(&LIST[..4], &[0.0, 0.0, 0.0, 9.0], 1, PLAIN, &[3]);
}

#[test]
fn sentences_far_below_the_best_one_are_left_out() {
    let least = |least_value: f64| FillRules { least_value, ..PLAIN };
    check(LIST, &[1.0, 2.0, 3.0, 4.0, 5.0], 100, least(0.5), &[2, 3, 4]);
    check(LIST, &[1.0, 2.0, 3.0, 4.0, 5.0], 100, least(0.6), &[2, 3, 4]);
    check(LIST, &[1.0, 2.0, 3.0, 4.0, 5.0], 100, least(1.0), &[4]);
    check(LIST, &[0.0; 5], 100, least(0.5), &[0, 1, 2, 3, 4]);
    check(LIST, &[0.0, 0.0, 0.0, 9.0, 0.0], 1, least(0.5), &[4]);
}

#[test]
fn a_sentence_brings_its_titles_and_pays_for_them_once() {
    let lines = &["# Ab", "## Cde", "- aaaa", "- bbbb", "## Fg", "- hhhh"];
    check(lines, &[0.0, 0.0, 3.0, 2.0, 0.0, 1.0], 9, TITLES, &[0, 1, 2]);
    check(lines, &[0.0, 0.0, 3.0, 2.0, 0.0, 1.0], 13, TITLES, &[0, 1, 2, 3]);
    check(lines, &[0.0, 9.0, 3.0, 2.0, 8.0, 1.0], 15, TITLES, &[0, 1, 2, 3]);
    check(lines, &[0.0, 0.0, 3.0, 0.0, 0.0, 2.0], 15, TITLES, &[0, 1, 2, 4, 5]);
    check(lines, &[0.0, 0.0, 3.0, 2.0, 0.0, 1.0], 9, PLAIN, &[2, 3]);
}

#[test]
fn where_no_sentence_fits_with_its_titles_one_is_kept_without() {
    check(&["## Abcdefgh", "- aaaa", "- bb"], &[0.0, 1.0, 2.0], 4, TITLES, &[2]);
    check(&["## Abcdefgh", "- aaaa", "- bb"], &[0.0, 1.0, 2.0], 1, TITLES, &[2]);
}

#[test]
fn gaps_are_closed_in_order_while_the_budget_lasts() {
    let lines = &["- aaaa", "- bb", "- cccc", "- ddd", "- eeee", "- fffffffff", "- gggg"];
    let values = [9.0, 0.0, 9.0, 0.0, 9.0, 0.0, 9.0];
    check(lines, &values, 17, PLAIN, &[0, 2, 4, 6]);
    check(lines, &values, 18, GAPS, &[0, 1, 2, 4, 6]);
    check(lines, &[9.0, 0.1, 9.0, 0.2, 9.0, 0.0, 9.0], 19, GAPS, &[0, 2, 3, 4, 6]);
    check(lines, &values, 30, GAPS, &[0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn forced_units_come_first_from_the_end() {
    let (map, content) = content(LIST);
    let kept =
        |budget, forced: &[usize]| fill(&map, &content, &[9.0, 8.0, 7.0, 6.0, 5.0], budget, forced, PLAIN);
    assert_eq!(kept(11, &[3, 4]), [false, false, false, true, true]);
    assert_eq!(kept(5, &[3, 4]), [true, false, false, false, true]);
}

#[test]
fn the_budget_is_the_largest_whose_share_is_at_most_the_ratio() {
    for (ratio, tokens, want) in [
        (0.25, 100, 25),
        (0.25, 99, 24),
        (0.1, 10, 1),
        (0.7, 10, 7),
        (0.3, 1000, 300),
        (0.01, 99, 0),
        (1.0, 7, 7),
    ] {
        assert_eq!(token_budget(ratio, tokens), want, "{ratio} of {tokens}");
    }
}

/// Implements the rules literally, with sets and without running totals.
fn fill_by_definition(map: &SentenceMap, content: &Content, values: &[f64], budget: usize) -> Vec<bool> {
    use std::collections::BTreeSet;
    let size = |set: &BTreeSet<usize>| set.iter().map(|&unit| content.cost(unit)).sum::<usize>();
    let mut kept = BTreeSet::new();
    let governs = |title: usize| map.units().iter().any(|unit| unit.governed_by == Some(title));
    let mut all: Vec<usize> = (0..map.len()).filter(|&u| content.cost(u) > 0 && !governs(u)).collect();
    if all.is_empty() {
        all = (0..map.len()).filter(|&u| content.cost(u) > 0).collect();
    }
    let mut rest = all.clone();
    while !rest.is_empty() {
        let best = rest.iter().copied().reduce(|a, b| if values[b] > values[a] { b } else { a }).unwrap();
        rest.retain(|&unit| unit != best);
        let mut more = kept.clone();
        more.insert(best);
        let mut unit = best;
        while let Some(title) = map.unit(unit).governed_by {
            more.insert(title);
            unit = title;
        }
        if size(&more) <= budget {
            kept = more;
        }
    }
    if kept.is_empty() {
        let best =
            |units: Vec<usize>| units.into_iter().reduce(|a, b| if values[b] > values[a] { b } else { a });
        let fitting = best(all.iter().copied().filter(|&u| content.cost(u) <= budget).collect());
        kept.extend(fitting.or(best(all)));
    }
    let ends: Vec<usize> = kept.iter().copied().collect();
    for pair in ends.windows(2) {
        let gap: BTreeSet<usize> = (pair[0] + 1..pair[1]).collect();
        if size(&gap) <= 8 && size(&kept) + size(&gap) <= budget {
            kept.extend(gap);
        }
    }
    (0..map.len()).map(|unit| kept.contains(&unit)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn filling_follows_the_definition(
        lines in prop::collection::vec(("(# |## |### |- |- |- )", 1usize..14, 0u8..6), 1..14),
        budget in 0usize..60,
    ) {
        let texts: Vec<String> = lines.iter().map(|(mark, len, _)| format!("{mark}{}", "a".repeat(*len))).collect();
        let values: Vec<f64> = lines.iter().map(|&(_, _, value)| f64::from(value)).collect();
        let (map, content) = content(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        let rules = FillRules { titles: true, gaps: true, least_value: 0.0 };
        let got = fill(&map, &content, &values, budget, &[], rules);
        prop_assert_eq!(&got, &fill_by_definition(&map, &content, &values, budget));
        let used: usize = (0..map.len()).filter(|&unit| got[unit]).map(|unit| content.cost(unit)).sum();
        prop_assert!(used <= budget || got.iter().filter(|&&kept| kept).count() == 1);
    }

    #[test]
    fn no_larger_share_fits(ratio in 0.0001f32..=1.0, tokens in 1usize..100_000) {
        let budget = token_budget(ratio, tokens);
        let share = |tokens_kept: usize| (tokens_kept as f64 / tokens as f64) as f32;
        prop_assert!(share(budget) <= ratio && budget <= tokens);
        prop_assert!(budget == tokens || share(budget + 1) > ratio);
    }
}
