//! Which curves of an evaluation speak of a scene, and in which order they are shown.
//!
//! An evaluation holds curves of many modes, lengths L, correctors, metrics and subsets; only those that were answered as
//! the scene is answered say anything about it. Pure. Always: curves of one L and one corrector, the metric with the most
//! questions first; in it the curve over all questions, then those that lose most at the chosen r: they decide xi.

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
    /// What is scored.
    pub metric: String,
    /// Questions.
    pub questions: u32,
    /// L that it was measured with; null: the optimizer's choice.
    pub assist_tokens: Option<u32>,
    /// Who was right where cloud and device disagreed; null: nobody compared.
    pub corrector: Option<String>,
    /// The full prompt's score.
    pub reference: f64,
    /// Scores by rising r, the full prompt's at r = 1 last.
    pub points: Vec<QualityPoint>,
}

/// A score at one r, with the ends of its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct QualityPoint {
    /// The share of the content that was kept.
    pub r: f64,
    /// The mean.
    pub score: f64,
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// The curves that speak of a scene which answers by this plan.
pub(super) fn scores(curves: &QualityCurves, settings: &SceneSettings, plan: &Plan) -> Vec<QualityView> {
    let mode = settings.mode.to_string();
    let corrector = settings.corrector.as_str();
    let mut chosen: Vec<&QualityCurve> = curves.curves.iter().filter(|curve| curve.mode == mode).collect();
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
            // In millionths: losses are compared, and shares have no more digits that count.
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

/// How far L is from that of the plan, as the logarithm of their ratio; one that the optimizer chose is as near as can be.
fn apart(measured: Option<u32>, planned: u32) -> f64 {
    measured.map_or(0.0, |measured| (f64::from(measured.max(1)) / f64::from(planned.max(1))).ln().abs())
}

/// What is lost at the measured r that is nearest.
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
