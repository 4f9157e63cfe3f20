//! Quality curves: the quality of answers over the share r of the content that is kept. `baton-eval` writes
//! them to a file, and `baton-cloud scenes fit-xi` reads that file.
//!
//! Pure: it converts text to checked values and back. It knows neither how answers are scored nor what a
//! scene is. What always holds:
//!
//! - There is at least one curve. In each curve r rises strictly and lies in 0.01..=1.
//! - Every score is a share in 0..=1 (exact match, F1, ROUGE-L), never a percentage.
//! - A curve's points and its full-prompt reference are means over the **same** questions, so that a loss is
//!   a mean of paired differences.
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
//! - A curve is identified by `suite`, `subset`, `metric`, `mode`, `arm`, `assist_tokens` and `corrector`.
//! - `subset` is a part of the suite, such as a kind of question or a length; `all` for the whole suite.
//!   `mode` is the ranking: a [`crate::Mode`], or the name of a baseline. `arm` is the way of answering
//!   (`relay`, `mask_only`, ...).
//! - `assist_tokens` is L, or null for the optimizer's choice. `corrector` is null if cloud and device are
//!   not compared.
//! - `reference` is the same arm, models and questions on the full prompt (r = 1).
//! - `low` and `high` are the ends of the 95 % bootstrap interval. A `loss` is the mean of the **paired**
//!   differences `reference - point`, question by question. A negative loss is a gain.
//! - Other fields are ignored, so that an evaluation may add its own.

use serde::{Deserialize, Serialize};

/// The required value of `format`.
const FORMAT: &str = "baton-quality-curves";
/// The version that this program reads and writes.
const VERSION: u32 = 1;
/// The smallest r of a point, which is the smallest that a request may have.
const RATIO_MIN: f64 = 0.01;
/// Tolerance between a loss and the difference of the two means.
const LOSS_TOLERANCE: f64 = 1e-6;

/// All curves of one evaluation. The module documentation describes the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QualityCurves {
    format: String,
    version: u32,
    /// The program that made the file, with its version.
    pub made_by: String,
    /// Seed of all random choices.
    pub seed: u64,
    /// The cloud's model, which made the masks and the first tokens.
    pub cloud_model: ModelMark,
    /// The device's model, which continued the answers from the refined prompt.
    pub device_model: ModelMark,
    /// The curves.
    pub curves: Vec<QualityCurve>,
}

/// The identity of a model file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelMark {
    /// Its name, for display.
    pub name: String,
    /// SHA-256 of the file, 64 lower-case hex digits.
    pub sha256: String,
}

/// Quality over r for one suite and one way of answering.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QualityCurve {
    /// The suite, e.g. `facts`.
    pub suite: String,
    /// The part of the suite, e.g. `two-hop/2048`; `all` for the whole suite.
    pub subset: String,
    /// The metric, e.g. `exact_match`.
    pub metric: String,
    /// The ranking of sentences: a mode of the refiner, or the name of a baseline.
    pub mode: String,
    /// The way of answering, e.g. `relay`.
    pub arm: String,
    /// L; `None` for the optimizer's choice.
    pub assist_tokens: Option<u32>,
    /// The side that wins if cloud and device disagree; `None` if they are not compared.
    pub corrector: Option<String>,
    /// The score on the full prompt, for the same arm and questions.
    pub reference: MeanScore,
    /// The points, by rising r.
    pub points: Vec<CurvePoint>,
}

/// A mean over questions, with its 95 % bootstrap interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeanScore {
    /// Number of questions.
    pub n: u32,
    /// The mean score, 0..=1.
    pub score: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// One point of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// The share of the refinable content that may be kept, 0.01..=1.
    pub r: f64,
    /// The mean score at this r.
    #[serde(flatten)]
    pub mean: MeanScore,
    /// The loss against the full prompt.
    pub loss: PairedLoss,
}

/// The mean of the paired differences `reference - point`, with its 95 % bootstrap interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PairedLoss {
    /// The mean; negative if the refined prompt is better.
    pub mean: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// The value of a loss that must stay within the tolerance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LossBy {
    /// The upper end of the interval, so that the loss is within the tolerance with the interval's
    /// confidence.
    #[default]
    Upper,
    /// The mean only.
    Mean,
}

impl PairedLoss {
    /// Returns the value selected by `by`.
    #[must_use]
    pub fn by(&self, by: LossBy) -> f64 {
        match by {
            LossBy::Upper => self.high,
            LossBy::Mean => self.mean,
        }
    }
}

/// Why a file of curves is not valid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CurveError {
    /// The text is not the JSON of quality curves.
    #[error("read quality curves: {message}")]
    Json {
        /// The parser's message.
        message: String,
    },
    /// The file has another format or version.
    #[error(
        "quality curves have format `{format}` version {version}, this program reads `{FORMAT}` version {VERSION}"
    )]
    Format {
        /// The `format` of the file.
        format: String,
        /// The `version` of the file.
        version: u32,
    },
    /// A model has no valid SHA-256 digest.
    #[error(
        "quality curves name `{sha256}` as sha256 of the {which} model, must be 64 lower-case hex digits"
    )]
    Digest {
        /// `cloud` or `device`.
        which: &'static str,
        /// The given digest.
        sha256: String,
    },
    /// There are no curves, or a curve has no points.
    #[error("quality curves have no {what}, must have at least 1")]
    None {
        /// `curves` or `points`.
        what: &'static str,
    },
    /// A number is outside its range.
    #[error("curve {curve} has `{field}` {value}, must be {want}")]
    Number {
        /// Index of the curve, from 0.
        curve: usize,
        /// Name of the field.
        field: &'static str,
        /// The given value.
        value: f64,
        /// The allowed values.
        want: &'static str,
    },
    /// A point has another number of questions than its reference.
    #[error("curve {curve} has {n} questions at r {r}, its reference has {reference}")]
    NotPaired {
        /// Index of the curve, from 0.
        curve: usize,
        /// The point's r.
        r: f64,
        /// Its number of questions.
        n: u32,
        /// The reference's number of questions.
        reference: u32,
    },
}

impl QualityCurves {
    /// Makes the curves of one evaluation.
    ///
    /// # Errors
    /// [`CurveError`] if they break a rule of the module documentation.
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
    /// [`CurveError`] if the text is not such a file, or breaks a rule of the module documentation.
    pub fn from_json(json: &str) -> Result<Self, CurveError> {
        let read: Self =
            serde_json::from_str(json).map_err(|e| CurveError::Json { message: e.to_string() })?;
        read.check()?;
        Ok(read)
    }

    /// Returns the file's text, which ends with a line break.
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
    /// Returns the point with the smallest r such that it and every larger measured r have a loss of at most
    /// `tolerance` (a share, like scores). `None` if the largest r already loses more. Nothing is
    /// interpolated between the points.
    #[must_use]
    pub fn smallest_ratio(&self, tolerance: f64, by: LossBy) -> Option<&CurvePoint> {
        self.points.iter().rev().take_while(|point| point.loss.by(by) <= tolerance).last()
    }

    /// Returns the point with the smallest loss; among equal ones, that with the smallest r.
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
            // Not written with `>`, which a NaN would pass.
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
