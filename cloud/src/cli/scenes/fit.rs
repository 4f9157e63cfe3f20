//! `scenes fit-xi`: sets xi to the smallest r that an evaluation allows, as a new version of the scene.
//!
//! Never: interpolates between measured points; accepts an r if a larger one lost more than the tolerance.
//! Always: every chosen curve must allow the r, so that a kind of question that loses more is not hidden by
//! an average.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use baton_engine::Model;
use baton_protocol::Bounded as _;
use baton_refine::{CurvePoint, LossBy, QualityCurve, QualityCurves};
use clap::Args;
use serde_json::{Value, json};

use super::value;
use crate::access::Actor;
use crate::config::numbers;
use crate::scene::{Scene, SceneSettings};
use crate::store::{Expected, Store, StoreError};

/// `scenes fit-xi`.
#[derive(Debug, Clone, Args)]
pub struct FitXi {
    /// The scene's id
    pub id: String,
    /// File of quality curves that `baton-eval` wrote
    #[arg(value_name = "FILE")]
    pub evaluation: PathBuf,
    /// Only curves of this suite
    #[arg(long)]
    pub suite: Option<String>,
    /// Only curves of this part of a suite
    #[arg(long)]
    pub subset: Option<String>,
    /// Only curves of this metric
    #[arg(long)]
    pub metric: Option<String>,
    /// Curves of this arm of the evaluation
    #[arg(long, default_value = "relay")]
    pub arm: String,
    /// Curves of this refiner mode; the default is the scene's
    #[arg(long)]
    pub mode: Option<String>,
    /// The loss that is tolerated, as a share of the score; the default is the scene's
    #[arg(long, value_name = "SHARE", value_parser = numbers::number::<f32>, allow_negative_numbers = true)]
    pub tolerance: Option<f32>,
    /// Compare the mean loss with the tolerance, instead of the upper end of its 95 % interval
    #[arg(long)]
    pub mean: bool,
    /// If no measured r is good enough, forbid refinement (xi = 1)
    #[arg(long)]
    pub forbid: bool,
    /// Fail if the evaluation is of another cloud model than this file
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// Fail if this is not the current version
    #[arg(long, value_name = "VERSION", value_parser = numbers::whole::<u32>, allow_negative_numbers = true)]
    pub if_version: Option<u32>,
}

/// The r that one curve allows.
#[derive(Debug, Clone, PartialEq)]
struct Allowed {
    curve: QualityCurve,
    /// The smallest r that stays within the tolerance, if there is one.
    point: Option<CurvePoint>,
}

/// A scene with a fitted xi.
#[derive(Debug)]
pub(super) struct Fitted {
    scene: Scene,
    before: SceneSettings,
    changed: bool,
    by: LossBy,
    allowed: Vec<Allowed>,
}

/// Fits xi, and adds a version if anything changes.
pub(super) async fn fit(store: &Store, args: &FitXi) -> anyhow::Result<Fitted> {
    let path = args.evaluation.display();
    let text =
        std::fs::read_to_string(&args.evaluation).with_context(|| format!("read evaluation `{path}`"))?;
    let curves = QualityCurves::from_json(&text).with_context(|| format!("read evaluation `{path}`"))?;
    if let Some(model) = &args.model {
        check_model(model, &curves)?;
    }
    let scene = store.scene(&args.id).await?;
    let tolerance = args.tolerance.unwrap_or(scene.settings.tolerance);
    let by = if args.mean { LossBy::Mean } else { LossBy::Upper };
    let allowed = chosen(args, &scene.settings, &curves)?
        .into_iter()
        .map(|curve| Allowed {
            point: curve.smallest_ratio(tolerance.shown(), by).copied(),
            curve: curve.clone(),
        })
        .collect::<Vec<_>>();
    let xi = match least_ratio(&allowed) {
        Ok(xi) => xi,
        Err(_) if args.forbid => 1.0,
        Err(worst) => bail!(no_ratio(worst, tolerance, by)),
    };
    let before = scene.settings.clone();
    let settings = SceneSettings {
        xi,
        tolerance,
        // A fixed r must not be below xi.
        ratio: before.ratio.map(|ratio| ratio.max(xi)),
        ..before.clone()
    };
    let changed = settings != before;
    let scene = if changed {
        // Expects the version that was read, so that a change that somebody made meanwhile is not
        // overwritten.
        let expected = args.if_version.unwrap_or(scene.version);
        let note = format!("xi fitted to `{path}`");
        store.set_scene(&args.id, &settings, &note, Expected::Version(expected), &Actor::cli()).await?
    } else {
        if let Some(expected) = args.if_version.filter(|&expected| expected != scene.version) {
            let (expected, current) = (expected.into(), scene.version.into());
            return Err(StoreError::Conflict { what: "scene", id: scene.id, expected, current }.into());
        }
        scene
    };
    Ok(Fitted { scene, before, changed, by, allowed })
}

fn check_model(model: &Path, curves: &QualityCurves) -> anyhow::Result<()> {
    let opened = Model::open(model).with_context(|| format!("open model `{}`", model.display()))?;
    let (have, want) = (opened.file_sha256(), curves.cloud_model.sha256.as_str());
    if have != want {
        bail!(
            "the evaluation is of cloud model `{}` ({want}), `{}` is {have}",
            curves.cloud_model.name,
            model.display()
        );
    }
    Ok(())
}

/// Returns the curves that the options select.
fn chosen<'c>(
    args: &FitXi,
    settings: &SceneSettings,
    curves: &'c QualityCurves,
) -> anyhow::Result<Vec<&'c QualityCurve>> {
    let mode = args.mode.as_ref().unwrap_or(&settings.mode);
    let is = |wanted: &Option<String>, have: &str| wanted.as_ref().is_none_or(|wanted| wanted == have);
    let wanted = |curve: &&QualityCurve| {
        curve.mode == *mode
            && curve.arm == args.arm
            && is(&args.suite, &curve.suite)
            && is(&args.subset, &curve.subset)
            && is(&args.metric, &curve.metric)
    };
    let found: Vec<&QualityCurve> = curves.curves.iter().filter(wanted).collect();
    if found.is_empty() {
        let mut there: Vec<String> =
            curves.curves.iter().map(|c| format!("{}/{} {} {}", c.suite, c.subset, c.mode, c.arm)).collect();
        there.dedup();
        bail!("no curve of mode `{mode}` and arm `{}` was chosen; there are: {}", args.arm, there.join(", "));
    }
    Ok(found)
}

/// Returns the largest of the curves' smallest r, or a curve that allows none.
fn least_ratio(allowed: &[Allowed]) -> Result<f32, &Allowed> {
    allowed.iter().try_fold(0.0_f32, |xi, one| match &one.point {
        Some(point) => Ok(xi.max(point.r as f32)),
        None => Err(one),
    })
}

fn no_ratio(worst: &Allowed, tolerance: f32, by: LossBy) -> String {
    let QualityCurve { suite, subset, .. } = &worst.curve;
    let best = worst.curve.best_point(by);
    let largest = worst.curve.points[worst.curve.points.len() - 1];
    format!(
        "no measured r keeps the loss on `{suite}/{subset}` within {tolerance}: it is {:.4} at r {} and {:.4} at best, at r {}; \
         pass --forbid to set xi to 1",
        largest.loss.by(by),
        largest.r,
        best.loss.by(by),
        best.r
    )
}

impl Fitted {
    pub(super) fn value(&self) -> Value {
        let curves = self.allowed.iter().map(|Allowed { curve, point }| {
            json!({
                "suite": curve.suite, "subset": curve.subset, "metric": curve.metric, "questions": curve.reference.n,
                "full_prompt": curve.reference.score, "ratio": point.map(|point| point.r),
                "score": point.map(|point| point.mean.score), "loss": point.map(|point| point.loss),
            })
        });
        let curves: Vec<Value> = curves.collect();
        json!({
            "scene": value(&self.scene),
            "changed": self.changed,
            "xi_before": self.before.xi,
            "compared": if self.by == LossBy::Mean { "mean" } else { "upper" },
            "curves": curves,
        })
    }

    pub(super) fn text(&self) -> String {
        let settings = &self.scene.settings;
        let mut out = format!(
            "{:<32} {:<16} {:>9} {:>7} {:>7} {:>7} {:>8} {:>8}\n",
            "curve", "metric", "questions", "full", "r", "score", "loss", "upper"
        );
        for Allowed { curve, point } in &self.allowed {
            let name = format!("{}/{}", curve.suite, curve.subset);
            let shown = |figure: Option<f64>| figure.map_or("-".to_owned(), |figure| format!("{figure:.4}"));
            writeln!(
                out,
                "{name:<32} {:<16} {:>9} {:>7.4} {:>7} {:>7} {:>8} {:>8}",
                curve.metric,
                curve.reference.n,
                curve.reference.score,
                point.map_or("none".to_owned(), |point| point.r.to_string()),
                shown(point.map(|point| point.mean.score)),
                shown(point.map(|point| point.loss.mean)),
                shown(point.map(|point| point.loss.high)),
            )
            .expect("writing to a String cannot fail");
        }
        let what = if self.by == LossBy::Mean { "mean loss" } else { "upper end of the loss" };
        let version = if self.changed {
            format!("version {} of `{}` has", self.scene.version, self.scene.id)
        } else {
            format!("nothing changes: version {} of `{}` already has", self.scene.version, self.scene.id)
        };
        let Scene { id, .. } = &self.scene;
        out.push_str(&format!(
            "{version} xi {} (it was {}): the smallest r whose {what} stays within {}\n",
            settings.xi, self.before.xi, settings.tolerance
        ));
        if let Some(ratio) = settings.ratio.filter(|&ratio| ratio > settings.xi) {
            out.push_str(&format!(
                "r stays fixed at {ratio}; `scenes set {id} --ratio auto` leaves it to the optimizer, down to xi\n"
            ));
        }
        out
    }
}
