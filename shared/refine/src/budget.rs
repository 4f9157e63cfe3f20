//! Fills the budget: from one value per sentence to the set of sentences that are kept.

use std::collections::HashSet;

use baton_protocol::SentenceMap;

use crate::content::Content;

/// Largest gap, in tokens, that is closed if the budget allows it.
const GAP_TOKENS_MAX: usize = 8;

/// Options of [`fill`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct FillRules {
    /// Keep, together with a sentence, the title lines above it, and count their tokens. Such lines are not
    /// chosen on their own.
    pub titles: bool,
    /// Close small gaps at the end.
    pub gaps: bool,
    /// Smallest value of a chosen unit, as a share of the largest value; 0 for no limit.
    pub least_value: f64,
}

/// Returns the largest number of content tokens whose share is at most `ratio`.
///
/// Shares are compared in `f32`, the type of `ratio`: 7 of 10 tokens count as 0.7, which no float represents
/// exactly.
pub(crate) fn token_budget(ratio: f32, content_tokens: usize) -> usize {
    let fits = |tokens: usize| (tokens as f64 / content_tokens as f64) as f32 <= ratio;
    let floor = (f64::from(ratio) * content_tokens as f64).floor() as usize;
    if fits(floor + 1) { floor + 1 } else { floor }
}

/// Chooses units by descending value (ties: the earlier first), as many as fit into `budget` tokens; a
/// unit that does not fit is skipped, and so are units below [`FillRules::least_value`]. `forced` units
/// come before all others, from the last to the first. At least one unit with a token is kept, so the
/// budget is exceeded only if every such unit is larger than it.
///
/// `values` has one entry per unit of `map`; the content must have at least one token.
pub(crate) fn fill(
    map: &SentenceMap,
    content: &Content,
    values: &[f64],
    budget: usize,
    forced: &[usize],
    rules: FillRules,
) -> Vec<bool> {
    let mut order = candidates(map, content, rules);
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    let mut kept = vec![false; map.len()];
    let mut left = budget;
    for &unit in forced.iter().rev() {
        take(&mut kept, &mut left, content, &[unit]);
    }
    let least = order.first().map_or(0.0, |&best| rules.least_value * values[best]);
    for &unit in order.iter().take_while(|&&unit| rules.least_value == 0.0 || values[unit] >= least) {
        if kept[unit] {
            continue;
        }
        let mut wanted = vec![unit];
        if rules.titles {
            wanted.extend(map.titles_of(unit));
        }
        take(&mut kept, &mut left, content, &wanted);
    }
    if !order.iter().any(|&unit| kept[unit]) {
        let fitting = order.iter().copied().find(|&unit| content.cost(unit) <= budget);
        if let Some(unit) = fitting.or(order.first().copied()) {
            kept[unit] = true;
            left = left.saturating_sub(content.cost(unit));
        }
    }
    if rules.gaps {
        close_gaps(map, content, &mut kept, left);
    }
    kept
}

/// Returns the units that can be chosen on their own: those with a token. With `rules.titles`, a title line
/// above other units is left out, because it is kept only together with one of these. A title line above
/// nothing may not be a title, so it stays. If only title lines have tokens, all of them can be chosen.
fn candidates(map: &SentenceMap, content: &Content, rules: FillRules) -> Vec<usize> {
    let with_tokens = (0..map.len()).filter(|&unit| content.cost(unit) > 0);
    let governing: HashSet<usize> = match rules.titles {
        true => map.units().iter().filter_map(|unit| unit.governed_by).collect(),
        false => HashSet::new(),
    };
    let chosen: Vec<usize> = with_tokens.clone().filter(|unit| !governing.contains(unit)).collect();
    if chosen.is_empty() { with_tokens.collect() } else { chosen }
}

/// Keeps the wanted units if all of them that are not yet kept fit together.
fn take(kept: &mut [bool], left: &mut usize, content: &Content, wanted: &[usize]) {
    let cost: usize = wanted.iter().filter(|&&unit| !kept[unit]).map(|&unit| content.cost(unit)).sum();
    if cost <= *left {
        *left -= cost;
        for &unit in wanted {
            kept[unit] = true;
        }
    }
}

/// Closes gaps between kept units of a segment, in order, if they have at most 8 tokens and fit into the
/// budget.
fn close_gaps(map: &SentenceMap, content: &Content, kept: &mut [bool], mut left: usize) {
    let mut last: Option<usize> = None;
    for unit in 0..kept.len() {
        if !kept[unit] {
            continue;
        }
        if let Some(before) = last.filter(|&before| map.unit(before).segment == map.unit(unit).segment) {
            let gap = before + 1..unit;
            let cost: usize = gap.clone().map(|between| content.cost(between)).sum();
            if cost <= GAP_TOKENS_MAX && cost <= left {
                left -= cost;
                kept[gap].fill(true);
            }
        }
        last = Some(unit);
    }
}

#[cfg(test)]
mod tests;
