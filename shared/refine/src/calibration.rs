//! Calibrated heads: the attention heads of one model that attend to the sentences that answer a question.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

/// Maximum number of heads in a calibration.
const HEADS_MAX: usize = 4096;
/// Tolerance of the sum of the weights around 1.
const SUM_TOLERANCE: f64 = 1e-3;

/// The weighted heads of one model, found offline by needle probes (see [`crate::HeadGains`]).
///
/// Always holds: there is at least one head, no head occurs twice, no weight is negative, and the sum of the
/// weights is 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    model_sha256: String,
    heads: Vec<WeightedHead>,
}

/// One head and its share of the ranking.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WeightedHead {
    /// Layer, from 0.
    pub layer: usize,
    /// Query head of that layer, from 0.
    pub head: usize,
    /// Its share of the ranking.
    pub weight: f64,
}

/// Why a calibration is not valid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CalibrationError {
    /// The text is not the JSON of a calibration.
    #[error("read calibration: {message}")]
    Json {
        /// The parser's message.
        message: String,
    },
    /// There is no head, or there are too many.
    #[error("calibration has {len} heads, must be 1 to {}", HEADS_MAX)]
    Heads {
        /// Number of heads.
        len: usize,
    },
    /// A head occurs twice.
    #[error("calibration names layer {layer} head {head} twice")]
    Twice {
        /// Its layer.
        layer: usize,
        /// Its number in the layer.
        head: usize,
    },
    /// A weight is not a number from 0 to 1.
    #[error("calibration has weight {weight} for layer {layer} head {head}, must be 0 to 1")]
    Weight {
        /// The head's layer.
        layer: usize,
        /// Its number in the layer.
        head: usize,
        /// The weight.
        weight: f64,
    },
    /// The weights do not add up to 1.
    #[error("calibration's weights add up to {sum}, must be 1")]
    Sum {
        /// Their sum.
        sum: f64,
    },
    /// The model does not have a head.
    #[error(
        "calibration names layer {layer} head {head}, the model has {n_layers} layers of {n_heads} heads"
    )]
    NoSuchHead {
        /// The head's layer.
        layer: usize,
        /// Its number in the layer.
        head: usize,
        /// Number of layers of the model.
        n_layers: usize,
        /// Number of query heads per layer.
        n_heads: usize,
    },
}

#[derive(Serialize, Deserialize)]
struct CalibrationJson {
    model_sha256: String,
    heads: Vec<WeightedHead>,
}

impl Calibration {
    /// Reads `{"model_sha256":"…","heads":[{"layer":l,"head":h,"weight":w},…]}`; further fields are ignored.
    ///
    /// # Errors
    /// [`CalibrationError`] if the text has another form, or the invariant does not hold.
    pub fn from_json(json: &str) -> Result<Self, CalibrationError> {
        let parsed: CalibrationJson =
            serde_json::from_str(json).map_err(|e| CalibrationError::Json { message: e.to_string() })?;
        Self::new(parsed.model_sha256, parsed.heads)
    }

    /// Writes the JSON that [`Self::from_json`] reads, with one line per head.
    pub fn to_json(&self) -> String {
        let json = CalibrationJson { model_sha256: self.model_sha256.clone(), heads: self.heads.clone() };
        let text = serde_json::to_string(&json).expect("strings and finite numbers are JSON");
        text.replace("[{", "[\n{").replace("},{", "},\n{").replace("}]", "}\n]") + "\n"
    }

    /// Makes a calibration of these heads.
    ///
    /// # Errors
    /// [`CalibrationError`] if the invariant does not hold.
    pub fn new(model_sha256: String, heads: Vec<WeightedHead>) -> Result<Self, CalibrationError> {
        if heads.is_empty() || heads.len() > HEADS_MAX {
            return Err(CalibrationError::Heads { len: heads.len() });
        }
        let mut seen = HashSet::new();
        for &WeightedHead { layer, head, weight } in &heads {
            if !seen.insert((layer, head)) {
                return Err(CalibrationError::Twice { layer, head });
            }
            if !(0.0..=1.0 + SUM_TOLERANCE).contains(&weight) {
                return Err(CalibrationError::Weight { layer, head, weight });
            }
        }
        let sum: f64 = heads.iter().map(|head| head.weight).sum();
        if (sum - 1.0).abs() > SUM_TOLERANCE {
            return Err(CalibrationError::Sum { sum });
        }
        Ok(Self { model_sha256, heads })
    }

    /// Returns the SHA-256 of the model file that the heads belong to.
    pub fn model_sha256(&self) -> &str {
        &self.model_sha256
    }

    /// Returns the heads in the order of the file.
    pub fn heads(&self) -> &[WeightedHead] {
        &self.heads
    }

    /// Checks that a model of these dimensions has all the heads. Call it once, when the model is loaded.
    ///
    /// # Errors
    /// [`CalibrationError::NoSuchHead`] for the first head that the model does not have.
    pub fn check_model(&self, n_layers: usize, n_heads: usize) -> Result<(), CalibrationError> {
        match self.heads.iter().find(|h| h.layer >= n_layers || h.head >= n_heads) {
            Some(&WeightedHead { layer, head, .. }) => {
                Err(CalibrationError::NoSuchHead { layer, head, n_layers, n_heads })
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_calibration_reads() {
        let json = r#"{"model_sha256":"ab","heads":[{"layer":1,"head":2,"weight":0.25},{"layer":3,"head":0,"weight":0.75}],
            "probes":64,"seed":1}"#;
        let calibration = Calibration::from_json(json).unwrap();
        assert_eq!(calibration.model_sha256(), "ab");
        assert_eq!(calibration.heads()[1], WeightedHead { layer: 3, head: 0, weight: 0.75 });
        assert!(calibration.check_model(4, 4).is_ok());
        assert!(matches!(
            calibration.check_model(3, 4),
            Err(CalibrationError::NoSuchHead { layer: 3, head: 0, n_layers: 3, n_heads: 4 })
        ));
        assert!(calibration.check_model(4, 2).is_err());
        let written = calibration.to_json();
        assert_eq!(Calibration::from_json(&written), Ok(calibration));
        assert_eq!(written.lines().count(), 4);
    }

    #[test]
    fn what_breaks_the_rules_is_refused() {
        #[track_caller]
        fn check(heads: &[(usize, usize, f64)], want: &str) {
            let heads =
                heads.iter().map(|&(layer, head, weight)| WeightedHead { layer, head, weight }).collect();
            let error = Calibration::new(String::new(), heads).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
        check(&[], "0 heads");
        check(&[(0, 0, 0.5), (0, 0, 0.5)], "twice");
        check(&[(0, 0, -0.5), (0, 1, 1.5)], "weight -0.5");
        check(&[(0, 0, f64::NAN)], "weight NaN");
        check(&[(0, 0, 0.5)], "add up to 0.5");
        assert!(Calibration::from_json("{}").unwrap_err().to_string().contains("model_sha256"));
        assert!(Calibration::from_json(r#"{"model_sha256":"","heads":[{"layer":-1}]}"#).is_err());
    }
}
