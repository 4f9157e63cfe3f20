//! Quality curves: how good answers are over the share r of the content that is kept. The one file that the
//! evaluation program writes and `baton-cloud scenes fit-xi` reads.
//!
//! Pure: text in, checked values out, and back. It knows neither how answers are scored nor what a scene is.
//! Always holds, whoever made the file: at least one curve; in each curve r rises strictly and lies in 0.01..=1; every
//! score is a share in 0..=1 (exact match, F1, ROUGE-L: never percent); a curve's points and its full-prompt reference
//! are means over the **same** questions, so that a loss is a mean of paired differences.
//!
//! # The file
//!
//! ```json
//! {"format": "baton-quality-curves", "version": 1,
//!  "made_by": "baton-eval 0.1.0", "seed": 7,
//!  "cloud_model":  {"name": "demo-cloud",  "sha256": "<64 hex digits of the model file>"},
//!  "device_model": {"name": "demo-device", "sha256": "<64 hex digits>"},
//!  "curves": [
//!   {"suite": "facts", "subset": "two-hop/2048", "metric": "exact_match",
//!    "mode": "attention", "arm": "relay", "assist_tokens": 16, "corrector": "cloud",
//!    "reference": {"n": 400, "score": 0.98, "low": 0.965, "high": 0.9925},
//!    "points": [
//!     {"r": 0.25, "n": 400, "score": 0.975, "low": 0.958, "high": 0.988,
//!      "loss": {"mean": 0.005, "low": -0.0025, "high": 0.0125}}]}]}
//! ```
//!
//! - `suite`, `subset` (what of the suite: a kind of question, a length; `all` for everything), `metric`, `mode` (the
//!   refiner's, as [`crate::Mode`] is written) and `arm` (`relay`, `mask_only`, ...) are names; together with
//!   `assist_tokens` (L; null: the optimizer's choice) and `corrector` (null: none) they name a curve.
//! - `reference`: the same arm, models and questions on the full prompt (r = 1).
//! - `low`, `high`: ends of the 95 % bootstrap interval; those of `loss` are of the **paired** differences
//!   `reference - point`, question by question. A negative loss is a gain.
//! - Fields that are not named here are ignored, so that the evaluation may write more beside them.

use serde::{Deserialize, Serialize};

/// What `format` must say.
const FORMAT: &str = "baton-quality-curves";
/// The version that this build reads and writes.
const VERSION: u32 = 1;
/// The least r that a point may have: the wire's.
const RATIO_MIN: f64 = 0.01;
/// How far a loss may be from the difference of the means it belongs to.
const LOSS_TOLERANCE: f64 = 1e-6;

/// All curves of one evaluation: see the module's text for the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QualityCurves {
    format: String,
    version: u32,
    /// The program that made it, with its version.
    pub made_by: String,
    /// Seed of everything random in it.
    pub seed: u64,
    /// The model that made masks and first tokens.
    pub cloud_model: ModelMark,
    /// The model that wrote the answers from the refined prompt.
    pub device_model: ModelMark,
    /// The curves.
    pub curves: Vec<QualityCurve>,
}

/// Which model file it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelMark {
    /// Its name, for people.
    pub name: String,
    /// SHA-256 of the file, 64 lower-case hex digits.
    pub sha256: String,
}

/// Quality over r of one suite in one way of answering.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QualityCurve {
    /// The suite, e.g. `facts`.
    pub suite: String,
    /// What of it, e.g. `two-hop/2048`; `all` for everything.
    pub subset: String,
    /// What is scored, e.g. `exact_match`.
    pub metric: String,
    /// The refiner's mode.
    pub mode: String,
    /// Who answers, e.g. `relay`.
    pub arm: String,
    /// L; none: the optimizer's choice.
    pub assist_tokens: Option<u32>,
    /// Who is right where cloud and device disagree; none: nobody compares.
    pub corrector: Option<String>,
    /// The full prompt, same arm and questions.
    pub reference: MeanScore,
    /// By rising r.
    pub points: Vec<CurvePoint>,
}

/// A mean over questions, with its 95 % bootstrap interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeanScore {
    /// Questions.
    pub n: u32,
    /// The mean, 0..=1.
    pub score: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// One r of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// The share of the refinable content that was allowed, 0.01..=1.
    pub r: f64,
    /// Its mean.
    #[serde(flatten)]
    pub mean: MeanScore,
    /// What it loses against the full prompt.
    pub loss: PairedLoss,
}

/// Mean of the paired differences `reference - point`, with its 95 % bootstrap interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PairedLoss {
    /// The mean; negative where the refined prompt is better.
    pub mean: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Which figure of a loss must stay within the tolerance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LossBy {
    /// The upper end of its interval: the loss is within the tolerance as far as the questions can show it.
    #[default]
    Upper,
    /// The mean alone.
    Mean,
}

impl PairedLoss {
    /// The figure that counts.
    #[must_use]
    pub fn by(&self, by: LossBy) -> f64 {
        match by {
            LossBy::Upper => self.high,
            LossBy::Mean => self.mean,
        }
    }
}

/// Why a file of curves was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CurveError {
    /// Not the JSON of quality curves.
    #[error("read quality curves: {message}")]
    Json {
        /// What the parser says.
        message: String,
    },
    /// Another kind of file, or another version of it.
    #[error(
        "quality curves have format `{format}` version {version}, this program reads `{FORMAT}` version {VERSION}"
    )]
    Format {
        /// What it says.
        format: String,
        /// Its version.
        version: u32,
    },
    /// A model without the digest of its file.
    #[error(
        "quality curves name `{sha256}` as sha256 of the {which} model, must be 64 lower-case hex digits"
    )]
    Digest {
        /// `cloud` or `device`.
        which: &'static str,
        /// What it says.
        sha256: String,
    },
    /// Nothing to read.
    #[error("quality curves have no {what}, must have at least 1")]
    None {
        /// Curves, or points of one of them.
        what: &'static str,
    },
    /// A number out of its range.
    #[error("curve {curve} has `{field}` {value}, must be {want}")]
    Number {
        /// Which curve, from 0.
        curve: usize,
        /// Which field.
        field: &'static str,
        /// What it says.
        value: f64,
        /// What is allowed.
        want: &'static str,
    },
    /// A point over other questions than its reference.
    #[error("curve {curve} has {n} questions at r {r}, its reference has {reference}")]
    NotPaired {
        /// Which curve, from 0.
        curve: usize,
        /// The point.
        r: f64,
        /// Its questions.
        n: u32,
        /// Those of the reference.
        reference: u32,
    },
}

impl QualityCurves {
    /// Curves of one evaluation.
    ///
    /// # Errors
    /// [`CurveError`] if they break what always holds.
    pub fn new(
        made_by: impl Into<String>,
        seed: u64,
        cloud_model: ModelMark,
        device_model: ModelMark,
        curves: Vec<QualityCurve>,
    ) -> Result<Self, CurveError> {
        let (format, version) = (FORMAT.to_owned(), VERSION);
        let made = Self { format, version, made_by: made_by.into(), seed, cloud_model, device_model, curves };
        made.check()?;
        Ok(made)
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// [`CurveError`] if it is not one, or breaks what always holds.
    pub fn from_json(json: &str) -> Result<Self, CurveError> {
        let read: Self =
            serde_json::from_str(json).map_err(|e| CurveError::Json { message: e.to_string() })?;
        read.check()?;
        Ok(read)
    }

    /// The file's text, ended by a line break.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("names and finite numbers are JSON");
        text.push('\n');
        text
    }

    fn check(&self) -> Result<(), CurveError> {
        if self.format != FORMAT || self.version != VERSION {
            return Err(CurveError::Format { format: self.format.clone(), version: self.version });
        }
        for (which, mark) in [("cloud", &self.cloud_model), ("device", &self.device_model)] {
            let hex = mark.sha256.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            if mark.sha256.len() != 64 || !hex {
                return Err(CurveError::Digest { which, sha256: mark.sha256.chars().take(80).collect() });
            }
        }
        if self.curves.is_empty() {
            return Err(CurveError::None { what: "curves" });
        }
        self.curves.iter().enumerate().try_for_each(|(index, curve)| curve.check(index))
    }
}

impl QualityCurve {
    /// The smallest measured r from which on, at every measured r, the loss is at most `tolerance` (a share, as
    /// scores are); none where not even the largest measured r is that good. Nothing is read between the points.
    #[must_use]
    pub fn smallest_ratio(&self, tolerance: f64, by: LossBy) -> Option<&CurvePoint> {
        self.points.iter().rev().take_while(|point| point.loss.by(by) <= tolerance).last()
    }

    /// The point that loses least; the smallest r of equal ones.
    #[must_use]
    pub fn best_point(&self, by: LossBy) -> &CurvePoint {
        let least = |a: &&CurvePoint, b: &&CurvePoint| a.loss.by(by).total_cmp(&b.loss.by(by));
        self.points.iter().min_by(least).expect("a checked curve has a point")
    }

    fn check(&self, curve: usize) -> Result<(), CurveError> {
        let number = |field, value, want| Err(CurveError::Number { curve, field, value, want });
        self.reference.check(curve)?;
        if self.points.is_empty() {
            return Err(CurveError::None { what: "points" });
        }
        let mut last = 0.0;
        for CurvePoint { r, mean, loss } in &self.points {
            if !(RATIO_MIN..=1.0).contains(r) {
                return number("r", *r, "0.01 to 1");
            }
            if *r <= last {
                return number("r", *r, "larger than that of the point before");
            }
            last = *r;
            mean.check(curve)?;
            if mean.n != self.reference.n {
                return Err(CurveError::NotPaired { curve, r: *r, n: mean.n, reference: self.reference.n });
            }
            let difference = self.reference.score - mean.score;
            // Not `>`: a NaN must not pass.
            if (loss.mean - difference).abs().partial_cmp(&LOSS_TOLERANCE) != Some(std::cmp::Ordering::Less) {
                return number("loss.mean", loss.mean, "the reference's score less the point's");
            }
            for (field, value) in [("loss.low", loss.low), ("loss.high", loss.high)] {
                if !(-1.0..=1.0).contains(&value) {
                    return number(field, value, "-1 to 1");
                }
            }
            if loss.low > loss.high {
                return number("loss.low", loss.low, "at most `loss.high`");
            }
        }
        Ok(())
    }
}

impl MeanScore {
    fn check(&self, curve: usize) -> Result<(), CurveError> {
        let number = |field, value, want| Err(CurveError::Number { curve, field, value, want });
        if self.n == 0 {
            return number("n", 0.0, "at least 1");
        }
        for (field, value) in [("score", self.score), ("low", self.low), ("high", self.high)] {
            if !(0.0..=1.0).contains(&value) {
                return number(field, value, "0 to 1 (a share, not percent)");
            }
        }
        if self.low > self.high { number("low", self.low, "at most `high`") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
