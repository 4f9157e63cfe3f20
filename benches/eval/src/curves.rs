//! Curves of quality over r, from which a scene's xi is fitted.
//!
//! A curve needs its reference: the same device, L and corrector over the full prompt (mode `none` at r = 1).
//! A case counts only if every point and the reference have a result for it, so that each loss is a mean of
//! paired differences.

use std::collections::{BTreeMap, BTreeSet};

use baton_baselines::Ranking;
use baton_protocol::Corrector;
use baton_refine::{CurvePoint, MeanScore, Mode, PairedLoss, QualityCurve};

use crate::arm::Arm;
use crate::stats::{Estimate, Sample, estimate};
use crate::store::Row;

/// Identifies a curve within a subset.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    mode: String,
    assist_tokens: usize,
    corrector: &'static str,
}

/// Cluster and score by case.
type Scores<'a> = BTreeMap<&'a str, (u64, f64)>;

/// Returns all curves of a device: by suite, subset (`all` and `GROUP/LENGTH`), ranking, L and corrector.
pub fn curves(rows: &[&Row], device: &str) -> Vec<QualityCurve> {
    let mut subsets: BTreeMap<(String, String, String), Vec<&Row>> = BTreeMap::new();
    for &row in rows.iter().filter(|row| row.score.is_some()) {
        let own = match row.length {
            0 => row.group.clone(),
            length => format!("{}/{length}", row.group),
        };
        for subset in [own, "all".to_owned()] {
            subsets.entry((row.suite.clone(), subset, row.metric.clone())).or_default().push(row);
        }
    }
    let all = subsets.into_iter().flat_map(|(name, rows)| of_subset(&name, &rows, device));
    all.collect()
}

fn of_subset(
    (suite, subset, metric): &(String, String, String),
    rows: &[&Row],
    device: &str,
) -> Vec<QualityCurve> {
    // r is stored as bits, which have the same order as positive floats.
    let mut lines: BTreeMap<Line, BTreeMap<u32, Scores<'_>>> = BTreeMap::new();
    let mut references: BTreeMap<(usize, &'static str), Scores<'_>> = BTreeMap::new();
    for row in rows {
        let (Ok(Arm::Relay { device: on, ranking, ratio, assist_tokens, corrector }), Some(score)) =
            (row.arm.parse(), row.score)
        else {
            continue;
        };
        if on != device {
            continue;
        }
        let corrector = match corrector {
            Corrector::Cloud => "cloud",
            Corrector::Device => "device",
        };
        let scores = match ranking {
            Ranking::Mode(Mode::None) => references.entry((assist_tokens, corrector)).or_default(),
            ranking => {
                let line = Line { mode: ranking.to_string(), assist_tokens, corrector };
                lines.entry(line).or_default().entry(ratio.to_bits()).or_default()
            }
        };
        scores.insert(row.case.as_str(), (row.cluster, score));
    }
    let curve = |(line, points): (Line, BTreeMap<u32, Scores<'_>>)| {
        let reference = references.get(&(line.assist_tokens, line.corrector))?;
        let (reference, points) = paired(reference, &points)?;
        Some(QualityCurve {
            suite: suite.clone(),
            subset: subset.clone(),
            metric: metric.clone(),
            mode: line.mode,
            arm: "relay".to_owned(),
            assist_tokens: u32::try_from(line.assist_tokens).ok(),
            corrector: Some(line.corrector.to_owned()),
            reference,
            points,
        })
    };
    lines.into_iter().filter_map(curve).collect()
}

/// Computes the reference and the points over the cases that all of them have, or returns `None` if there are
/// none.
fn paired(
    reference: &Scores<'_>,
    points: &BTreeMap<u32, Scores<'_>>,
) -> Option<(MeanScore, Vec<CurvePoint>)> {
    let cases: BTreeSet<&str> = reference
        .keys()
        .copied()
        .filter(|case| points.values().all(|scores| scores.contains_key(case)))
        .collect();
    let over = |value: &dyn Fn(&str) -> f64| -> Option<Estimate> {
        let samples: Vec<Sample> =
            cases.iter().map(|case| Sample { cluster: reference[case].0, value: value(case) }).collect();
        estimate(&samples)
    };
    let mean = |e: Estimate| MeanScore { n: e.n as u32, score: e.mean, low: e.low, high: e.high };
    let whole = over(&|case| reference[case].1)?;
    let mut curve = Vec::with_capacity(points.len());
    for (bits, scores) in points {
        let score = over(&|case| scores[case].1)?;
        let loss = over(&|case| reference[case].1 - scores[case].1)?;
        // Printed and parsed again, so that the result is 0.1 and not the f32 nearest to it.
        let r: f64 = f32::from_bits(*bits).to_string().parse().ok()?;
        let loss = PairedLoss { mean: loss.mean, low: loss.low, high: loss.high };
        curve.push(CurvePoint { r, mean: mean(score), loss });
    }
    Some((mean(whole), curve))
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_refine::{ModelMark, QualityCurves};

    fn row(case: usize, arm: &str, score: f64) -> Row {
        Row {
            case: format!("facts/short/512/{case}"),
            arm: arm.into(),
            suite: "facts".into(),
            group: "short".into(),
            metric: "exact_match".into(),
            length: 512,
            cluster: case as u64,
            score: Some(score),
            ..Row::default()
        }
    }

    #[test]
    fn curves_are_paired_and_the_file_takes_them() {
        let mut rows = Vec::new();
        for case in 0..8 {
            rows.push(row(case, "relay:d:none@1:4:cloud", 1.0));
            rows.push(row(case, "relay:d:attention@0.1:4:cloud", f64::from(u8::from(case >= 2))));
            rows.push(row(case, "relay:other:attention@0.1:4:cloud", 0.0));
            rows.push(row(case, "relay:d:attention@0.1:8:cloud", 0.0));
            if case != 7 {
                rows.push(row(case, "relay:d:attention@0.25:4:cloud", 1.0));
            }
        }
        let rows: Vec<&Row> = rows.iter().collect();
        let curves = curves(&rows, "d");
        assert_eq!(curves.len(), 2, "L = 8 has no reference; a subset, and all");
        let curve = &curves[0];
        assert_eq!((curve.subset.as_str(), curve.assist_tokens), ("all", Some(4)));
        assert_eq!(curves[1].subset, "short/512");
        assert_eq!(curve.reference.n, 7, "case 7 lacks a point");
        let rs: Vec<f64> = curve.points.iter().map(|point| point.r).collect();
        assert_eq!(rs, [0.1, 0.25]);
        assert!((curve.points[0].loss.mean - 2.0 / 7.0).abs() < 1e-12);
        let mark = || ModelMark { name: "m".into(), sha256: "0".repeat(64) };
        let file = QualityCurves::new("test", 1, mark(), mark(), curves).unwrap();
        assert_eq!(QualityCurves::from_json(&file.to_json()).unwrap(), file);
    }
}
