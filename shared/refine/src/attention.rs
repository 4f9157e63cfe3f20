//! The attention part of the default ranking: how much the question's last tokens attend to each sentence.

use baton_protocol::SentenceMap;

use crate::calibration::Calibration;
use crate::content::Content;
use crate::refine::{RefineError, Scores};

/// Attention sinks: the first positions of a prompt draw attention whatever they contain.
pub(crate) const SINK_TOKENS: usize = 4;
/// Minimum number of top tokens that make up a sentence's value.
const TOP_TOKENS_MIN: usize = 4;
/// A shorter sentence counts as if it had this many tokens.
const LENGTH_MIN: usize = 8;
/// Share of the better neighbour's value that is added to a sentence's value.
const NEIGHBOUR_SHARE: f64 = 0.25;

/// Returns one value per unit of the map.
///
/// `m[h, j]` is the weight of head `h` on token `j` (mean over the window), 0 for sinks and tokens without a
/// letter or digit. For calibrated heads, `u = m / (sum of m over the content)`; else `u = m`. `x_j` is the
/// weighted sum of `u` over the heads. A sentence's own value is the sum of `x_j` over its top `max(4, half)`
/// tokens, divided by `max(length, 8)`. A quarter of the own value of its better neighbour in the paragraph
/// is added.
pub(crate) fn values(
    map: &SentenceMap,
    content: &Content,
    scores: &Scores<'_>,
    calibration: Option<&Calibration>,
) -> Result<Vec<f64>, RefineError> {
    let weighted = weights(scores, calibration)?;
    let mut x = vec![0.0; content.tokens.len()];
    for (row, weight) in weighted {
        let masses: Vec<f64> =
            masses(content, &scores.mean[row * scores.keys..(row + 1) * scores.keys]).collect();
        let total: f64 = masses.iter().sum();
        let scale = match calibration {
            Some(_) if total > 0.0 => weight / total,
            Some(_) => 0.0,
            None => weight,
        };
        for (x, mass) in x.iter_mut().zip(&masses) {
            *x += scale * mass;
        }
    }
    let own: Vec<f64> = content.units.iter().map(|tokens| sentence_value(&x[tokens.clone()])).collect();
    Ok((0..map.len()).map(|unit| own[unit] + NEIGHBOUR_SHARE * better_neighbour(map, &own, unit)).collect())
}

/// Returns a head's weight on each content token, 0 for sinks and tokens without a letter or digit.
/// `row: [keys]`.
pub(crate) fn masses(content: &Content, row: &[f32]) -> impl Iterator<Item = f64> {
    content.tokens.iter().map(|token| match token.wordy && token.position >= SINK_TOKENS {
        true => f64::from(row[token.position]),
        false => 0.0,
    })
}

/// Returns rows of the scores with their weights, which add up to 1.
fn weights(scores: &Scores<'_>, calibration: Option<&Calibration>) -> Result<Vec<(usize, f64)>, RefineError> {
    let Some(calibration) = calibration else {
        let share = 1.0 / scores.heads.len() as f64;
        return Ok((0..scores.heads.len()).map(|row| (row, share)).collect());
    };
    let rows = calibration.heads().iter().map(|head| {
        let row = scores.heads.iter().position(|&have| have == (head.layer, head.head));
        row.map(|row| (row, head.weight))
            .ok_or(RefineError::MissingHead { layer: head.layer, head: head.head })
    });
    rows.collect()
}

fn sentence_value(x: &[f64]) -> f64 {
    let mut sorted = x.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let top = x.len().div_ceil(2).max(TOP_TOKENS_MIN);
    sorted.iter().take(top).sum::<f64>() / x.len().max(LENGTH_MIN) as f64
}

fn better_neighbour(map: &SentenceMap, own: &[f64], unit: usize) -> f64 {
    let paragraph = map.unit(unit).paragraph;
    let neighbours = [unit.checked_sub(1), Some(unit + 1)];
    neighbours
        .into_iter()
        .flatten()
        .filter(|&other| other < map.len() && map.unit(other).paragraph == paragraph)
        .map(|other| own[other])
        .fold(0.0, f64::max)
}
