//! Selects the curves of an evaluation that apply to a scene, and sorts them.
//!
//! An evaluation has curves of many modes, lengths L, correctors, metrics and subsets. Only those that were
//! answered as the scene is answered apply to it. Pure. Always: the curves have one L and one corrector. The
//! metric with the most questions comes first. In it the curve over all questions comes first, then those
//! that lose most at the chosen r, because they decide xi.

use std::cmp::Reverse;

use baton_pacing::Plan;
use baton_refine::{QualityCurve, QualityCurves};
use serde::Serialize;
use utoipa::ToSchema;

use crate::scene::SceneSettings;

/// Scores over r of one evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct QualityView {
    /// Suite and subset.
    pub name: String,
    /// The metric.
    pub metric: String,
    /// The number of questions.
    pub questions: u32,
    /// L that it was measured with; null if the optimizer chose it.
    pub assist_tokens: Option<u32>,
    /// Whose tokens were used if cloud and device disagreed; null if they were not compared.
    pub corrector: Option<String>,
    /// The score of the full prompt.
    pub reference: f64,
    /// Scores by rising r; the last one is that of the full prompt at r = 1.
    pub points: Vec<QualityPoint>,
}

/// A score at one r, with the ends of its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct QualityPoint {
    /// The share of the content that was kept.
    pub r: f64,
    /// The mean score.
    pub score: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
}

/// Returns the curves that apply to a scene which is answered by this plan.
pub(super) fn scores(curves: &QualityCurves, settings: &SceneSettings, plan: &Plan) -> Vec<QualityView> {
    let corrector = settings.corrector.as_str();
    let mut chosen: Vec<&QualityCurve> =
        curves.curves.iter().filter(|curve| curve.mode == settings.mode).collect();
    keep_if_any(&mut chosen, |curve| curve.arm == "relay");
    keep_if_any(&mut chosen, |curve| curve.corrector.as_deref() == Some(corrector));
    let apart = |curve: &QualityCurve| apart(curve.assist_tokens, plan.assist_tokens);
    if let Some(nearest) = chosen.iter().map(|curve| apart(curve)).min_by(f64::total_cmp) {
        chosen.retain(|curve| apart(curve) <= nearest);
    }
    let most = |metric: &str| {
        chosen.iter().filter(|curve| curve.metric == metric).map(|curve| curve.reference.n).max()
    };
    let mut keyed: Vec<_> = chosen
        .iter()
        .map(|&curve| {
            // Losses are compared in millionths, which is more precise than they are measured.
            let loss = (loss_at(curve, plan.ratio) * 1e6).round() as i64;
            ((Reverse(most(&curve.metric)), &curve.metric, curve.subset != "all", Reverse(loss)), curve)
        })
        .collect();
    keyed.sort_by_key(|(key, _)| *key);
    keyed.into_iter().map(|(_, curve)| view(curve)).collect()
}

fn keep_if_any(curves: &mut Vec<&QualityCurve>, wanted: impl Fn(&QualityCurve) -> bool) {
    if curves.iter().any(|curve| wanted(curve)) {
        curves.retain(|curve| wanted(curve));
    }
}

/// Returns how far a measured L is from the plan's, as the logarithm of their ratio. 0 if the optimizer chose
/// it.
fn apart(measured: Option<u32>, planned: u32) -> f64 {
    measured.map_or(0.0, |measured| (f64::from(measured.max(1)) / f64::from(planned.max(1))).ln().abs())
}

/// Returns the loss at the measured r that is nearest.
fn loss_at(curve: &QualityCurve, ratio: f64) -> f64 {
    let nearest = curve.points.iter().min_by(|a, b| (a.r - ratio).abs().total_cmp(&(b.r - ratio).abs()));
    nearest.map_or(0.0, |point| curve.reference.score - point.mean.score)
}

fn view(curve: &QualityCurve) -> QualityView {
    let measured = curve.points.iter().map(|point| (point.r, point.mean));
    let whole = curve.points.last().is_none_or(|last| last.r < 1.0).then_some((1.0, curve.reference));
    let points = measured.chain(whole).map(|(r, mean)| QualityPoint {
        r,
        score: mean.score,
        low: mean.low,
        high: mean.high,
    });
    QualityView {
        name: format!("{}/{}", curve.suite, curve.subset),
        metric: curve.metric.clone(),
        questions: curve.reference.n,
        assist_tokens: curve.assist_tokens,
        corrector: curve.corrector.clone(),
        reference: curve.reference.score,
        points: points.collect(),
    }
}
