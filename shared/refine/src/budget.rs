//! Filling the budget: from one value a sentence to the set that is kept.

use std::collections::HashSet;

use baton_protocol::SentenceMap;

use crate::content::Content;

/// Largest gap, in tokens, that is closed where the budget lasts.
const GAP_TOKENS_MAX: usize = 8;

/// What the filling does beyond taking the best.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FillRules {
    /// Charge with a sentence the title lines that govern it; such lines are not chosen for themselves.
    pub titles: bool,
    /// Close small gaps in the end.
    pub gaps: bool,
}

/// Largest number of content tokens whose share is at most `ratio`.
///
/// Shares are compared in `f32`, as they are stated: 7 of 10 tokens are the ratio 0.7, which no float is exactly.
pub(crate) fn token_budget(ratio: f32, content_tokens: usize) -> usize {
    let fits = |tokens: usize| (tokens as f64 / content_tokens as f64) as f32 <= ratio;
    let floor = (f64::from(ratio) * content_tokens as f64).floor() as usize;
    if fits(floor + 1) { floor + 1 } else { floor }
}

/// Chooses units by descending value (ties: the earlier first), as many as fit into `budget` tokens; what does not
/// fit is skipped. `forced` units come first, the last of them first. At least one unit with a token is kept, so the
/// budget is exceeded only where every such unit is larger than it.
///
/// `values` has one entry a unit of `map`; the content must have a token.
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
    for &unit in &order {
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

/// Units that can be chosen for themselves: those with a token. With title lines charged, a line that governs
/// something comes only with that, for alone it says nothing; one that governs nothing may not be a title at all.
fn candidates(map: &SentenceMap, content: &Content, rules: FillRules) -> Vec<usize> {
    let with_tokens = (0..map.len()).filter(|&unit| content.cost(unit) > 0);
    let governing: HashSet<usize> = match rules.titles {
        true => map.units().iter().filter_map(|unit| unit.governed_by).collect(),
        false => HashSet::new(),
    };
    let chosen: Vec<usize> = with_tokens.clone().filter(|unit| !governing.contains(unit)).collect();
    if chosen.is_empty() { with_tokens.collect() } else { chosen }
}

/// Keeps the wanted units if those of them that are not kept yet fit together.
fn take(kept: &mut [bool], left: &mut usize, content: &Content, wanted: &[usize]) {
    let cost: usize = wanted.iter().filter(|&&unit| !kept[unit]).map(|&unit| content.cost(unit)).sum();
    if cost <= *left {
        *left -= cost;
        for &unit in wanted {
            kept[unit] = true;
        }
    }
}

/// Keeps what lies between two kept units of a segment where it is at most 8 tokens, in order, while the budget lasts.
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
