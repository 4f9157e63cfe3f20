//! Tests of curve files that are accepted and that are rejected.

use super::*;

fn mark(digit: char) -> ModelMark {
    ModelMark { name: "m".to_owned(), sha256: digit.to_string().repeat(64) }
}

/// Makes a curve from points (r, mean loss, upper end of the loss); the reference is 0.9.
fn curve(points: &[(f64, f64, f64)]) -> QualityCurve {
    let point = |&(r, mean, high): &(f64, f64, f64)| CurvePoint {
        r,
        mean: MeanScore { n: 50, score: 0.9 - mean, low: 0.1, high: 1.0 },
        loss: PairedLoss { mean, low: -0.1, high },
    };
    QualityCurve {
        suite: "facts".to_owned(),
        subset: "all".to_owned(),
        metric: "exact_match".to_owned(),
        mode: "attention".to_owned(),
        arm: "relay".to_owned(),
        assist_tokens: None,
        corrector: Some("cloud".to_owned()),
        reference: MeanScore { n: 50, score: 0.9, low: 0.8, high: 1.0 },
        points: points.iter().map(point).collect(),
    }
}

fn curves(change: impl FnOnce(&mut QualityCurve)) -> Result<QualityCurves, CurveError> {
    let mut one = curve(&[(0.1, 0.05, 0.08), (0.25, 0.01, 0.03), (0.5, 0.0, 0.01)]);
    change(&mut one);
    QualityCurves::new("test 1", 7, mark('a'), mark('0'), vec![one])
}

#[test]
fn what_is_written_is_read_back() {
    let made = curves(|_| ()).unwrap();
    let text = made.to_json();
    assert_eq!(QualityCurves::from_json(&text).unwrap(), made);
    // The fields of a mean are beside r, as in the module documentation; unknown fields are ignored.
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["curves"][0]["points"][0]["n"], 50);
    assert_eq!(value["curves"][0]["points"][0]["loss"]["high"], 0.08);
    value["curves"][0]["points"][0]["kept_tokens"] = 12.into();
    assert_eq!(QualityCurves::from_json(&value.to_string()).unwrap(), made);
}

#[test]
fn the_example_of_the_text_is_read() {
    let text = include_str!("../curve.rs");
    let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("//!")).collect();
    let begin = lines.iter().position(|line| line.trim() == "```json").unwrap();
    let end = begin + 1 + lines[begin + 1..].iter().position(|line| line.trim() == "```").unwrap();
    let digest = "0".repeat(64);
    let json = lines[begin + 1..end].concat();
    let json = json.replace("<64 hex digits of the model file>", &digest).replace("<64 hex digits>", &digest);
    let read = QualityCurves::from_json(&json).unwrap();
    assert_eq!(read.curves[0].smallest_ratio(0.02, LossBy::Upper).map(|point| point.r), Some(0.25));
}

#[track_caller]
fn fit(points: &[(f64, f64, f64)], tolerance: f64, by: LossBy, want: Option<f64>) {
    let one = curve(points);
    one.check(0).unwrap();
    assert_eq!(one.smallest_ratio(tolerance, by).map(|point| point.r), want, "{points:?} {tolerance} {by:?}");
}

#[test]
fn the_smallest_ratio_from_which_on_the_loss_stays_small() {
    let points = [(0.1, 0.05, 0.08), (0.25, 0.01, 0.03), (0.5, 0.0, 0.01)];
    fit(&points, 0.1, LossBy::Upper, Some(0.1));
    fit(&points, 0.03, LossBy::Upper, Some(0.25));
    fit(&points, 0.02, LossBy::Upper, Some(0.5));
    fit(&points, 0.02, LossBy::Mean, Some(0.25));
    fit(&points, 0.005, LossBy::Upper, None);
    // A small r with a small loss is not taken if a larger r has a large loss.
    fit(&[(0.1, 0.0, 0.01), (0.25, 0.05, 0.07), (0.5, 0.0, 0.01)], 0.02, LossBy::Upper, Some(0.5));
    // The refined prompt is better than the full one: a negative loss.
    fit(&[(0.1, -0.05, -0.01)], 0.0, LossBy::Upper, Some(0.1));
    assert_eq!(curve(&points).best_point(LossBy::Mean).r, 0.5);
}

#[track_caller]
fn refused(change: impl FnOnce(&mut QualityCurve), want: &str) {
    assert_eq!(curves(change).unwrap_err().to_string(), want);
}

#[test]
fn what_breaks_a_rule_is_named() {
    refused(|c| c.points[0].r = 0.0, "curve 0 has `r` 0, must be 0.01 to 1");
    refused(|c| c.points[0].r = f64::NAN, "curve 0 has `r` NaN, must be 0.01 to 1");
    refused(|c| c.points[1].r = 0.1, "curve 0 has `r` 0.1, must be larger than that of the point before");
    refused(|c| c.points[1].mean.n = 49, "curve 0 has 49 questions at r 0.25, its reference has 50");
    refused(|c| c.reference.score = 90.0, "curve 0 has `score` 90, must be 0 to 1 (a share, not percent)");
    refused(
        |c| c.points[0].loss.mean = f64::NAN,
        "curve 0 has `loss.mean` NaN, must be the reference's score less the point's",
    );
    refused(
        |c| c.points[0].mean.score = 0.5,
        "curve 0 has `loss.mean` 0.05, must be the reference's score less the point's",
    );
    refused(|c| c.points[0].loss.high = f64::INFINITY, "curve 0 has `loss.high` inf, must be -1 to 1");
    refused(|c| c.points[0].loss.low = 0.5, "curve 0 has `loss.low` 0.5, must be at most `loss.high`");
    refused(|c| c.points.clear(), "quality curves have no points, must have at least 1");
    let none = QualityCurves::new("test 1", 7, mark('a'), mark('0'), Vec::new()).unwrap_err();
    assert_eq!(none.to_string(), "quality curves have no curves, must have at least 1");
    let hash = QualityCurves::new("test 1", 7, mark('A'), mark('0'), vec![curve(&[(0.5, 0.0, 0.0)])]);
    assert!(matches!(hash, Err(CurveError::Digest { which: "cloud", .. })));
    let other = curves(|_| ()).unwrap().to_json().replace("\"version\": 1", "\"version\": 2");
    assert!(matches!(QualityCurves::from_json(&other), Err(CurveError::Format { version: 2, .. })));
    assert!(matches!(QualityCurves::from_json("{"), Err(CurveError::Json { .. })));
}
