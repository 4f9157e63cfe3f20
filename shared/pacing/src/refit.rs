//! Fits coefficients to measurements: medians, and a straight line that is robust against outliers.
//!
//! Pure: it takes samples and returns coefficients with the number of samples used; the caller keeps the
//! samples. What always holds: coefficients are finite and not negative, whatever the samples are. The order
//! of the samples does not matter.

/// Minimum number of samples for a line.
const LINE_SAMPLES_MIN: usize = 4;
/// Lengths must differ by at least this factor for a slope to be fitted.
const LENGTH_SPREAD_MIN: f64 = 1.5;
/// A sample is an outlier if its distance from the line is more than this many times the median distance. For
/// normal errors, 1.4826 median distances are one standard deviation, so the limit is three standard
/// deviations.
const OUTLIER_DISTANCES: f64 = 3.0 * 1.4826;
/// Distances below this share of the value are clock noise, never outliers.
const DISTANCE_SHARE_MIN: f64 = 0.02;
/// A slope counts as zero if it is fewer standard errors than this above zero. Extrapolated to a long prompt,
/// it would only be noise.
const SLOPE_ERRORS_MIN: f64 = 3.0;
/// Maximum number of times that the line is fitted again without outliers.
const ROUNDS: usize = 4;
/// Maximum number of samples whose pairwise slopes are computed, to limit the time.
const PAIRED_SAMPLES_MAX: usize = 128;

/// Returns the median of the finite values (the mean of the middle two if their number is even), or `None` if
/// there is no finite value.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len() % 2 == 1 { upper } else { f64::midpoint(sorted[middle - 1], upper) })
}

/// One measured prefill.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillSample {
    /// Tokens in the KV cache before the prefill.
    pub held: f64,
    /// Tokens prefilled.
    pub tokens: f64,
    /// Duration in milliseconds.
    pub ms: f64,
}

/// The coefficients `k` and `q` of `ms = k n + q ((h + n)^2 - h^2)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillFit {
    /// `k`: milliseconds per token.
    pub ms_per_token: f64,
    /// `q`: milliseconds per token squared.
    pub ms_per_token2: f64,
    /// Samples used for the fit.
    pub used: usize,
    /// Samples left out as outliers.
    pub left_out: usize,
}

/// Fits a device's (or a cloud's) prefill cost.
///
/// Each sample is a point: the cost of a token, `ms / n = k + q (2 h + n)`, over `2 h + n`. A line with the
/// median of the pairwise slopes finds the outliers (Theil 1950, Sen 1968); least squares over the other
/// samples gives `k` and `q`. If lengths hardly differ, or `q` is within its error of 0, then `q` is 0 and
/// `k` is the median cost of a token. If `k` would be negative, it is 0 and `q` is the median of
/// `ms / n / (2 h + n)`. Returns `None` if no sample is usable.
#[must_use]
pub fn fit_prefill(samples: &[PrefillSample]) -> Option<PrefillFit> {
    let point = |sample: &PrefillSample| {
        let usable = sample.tokens > 0.0 && sample.held >= 0.0 && sample.ms > 0.0;
        let point = Point { x: 2.0 * sample.held + sample.tokens, y: sample.ms / sample.tokens };
        (usable && point.x.is_finite() && point.y.is_finite()).then_some(point)
    };
    let mut points: Vec<Point> = samples.iter().filter_map(point).collect();
    // Sorted by length, so that neither sums nor the choice of pairs depend on the order of the samples.
    points.sort_unstable_by(|a, b| a.x.total_cmp(&b.x).then(a.y.total_cmp(&b.y)));
    let total = points.len();
    let level = median(points.iter().map(|point| point.y))?;
    let fit = |line: Line, used: usize| PrefillFit {
        ms_per_token: line.intercept,
        ms_per_token2: line.slope,
        used,
        left_out: total - used,
    };
    let (shortest, longest) = (points.first()?.x, points.last()?.x);
    if total < LINE_SAMPLES_MIN || longest < LENGTH_SPREAD_MIN * shortest {
        return Some(fit(Line { intercept: level, slope: 0.0 }, total));
    }
    let (line, kept) = robust_line(&points, level);
    let used = kept.len();
    if line.slope < SLOPE_ERRORS_MIN * slope_error(&kept, line) || line.slope <= 0.0 {
        let level = median(kept.iter().map(|point| point.y)).unwrap_or(level);
        return Some(fit(Line { intercept: level, slope: 0.0 }, used));
    }
    if line.intercept < 0.0 {
        let slope = median(kept.iter().map(|point| point.y / point.x)).unwrap_or(0.0);
        return Some(fit(Line { intercept: 0.0, slope }, used));
    }
    Some(fit(line, used))
}

/// A straight line, `y = intercept + slope x`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LineFit {
    /// Value at 0, not negative.
    pub intercept: f64,
    /// Change of the value for each unit, not negative.
    pub slope: f64,
}

/// Fits a rising line to pairs `(x, y)`, in the same way as [`fit_prefill`]. If the slope is within its error
/// of 0, it is 0. If the intercept would be negative, it is 0. Returns `None` if the `x` hardly differ, or
/// fewer than four pairs are usable.
#[must_use]
pub fn fit_line(samples: &[(f64, f64)]) -> Option<LineFit> {
    let usable = samples.iter().filter(|(x, y)| *x >= 0.0 && *y >= 0.0 && x.is_finite() && y.is_finite());
    let mut points: Vec<Point> = usable.map(|&(x, y)| Point { x, y }).collect();
    points.sort_unstable_by(|a, b| a.x.total_cmp(&b.x).then(a.y.total_cmp(&b.y)));
    let (shortest, longest) = (points.first()?.x, points.last()?.x);
    if points.len() < LINE_SAMPLES_MIN || longest < LENGTH_SPREAD_MIN * shortest.max(f64::MIN_POSITIVE) {
        return None;
    }
    let level = median(points.iter().map(|point| point.y))?;
    let (line, kept) = robust_line(&points, level);
    if line.slope <= 0.0 || line.slope < SLOPE_ERRORS_MIN * slope_error(&kept, line) {
        let level = median(kept.iter().map(|point| point.y)).unwrap_or(level);
        return Some(LineFit { intercept: level, slope: 0.0 });
    }
    if line.intercept < 0.0 {
        let ratios = kept.iter().filter(|point| point.x > 0.0).map(|point| point.y / point.x);
        return Some(LineFit { intercept: 0.0, slope: median(ratios).unwrap_or(0.0) });
    }
    Some(LineFit { intercept: line.intercept, slope: line.slope })
}

/// Returns a line without outliers, and the points that it was fitted to.
fn robust_line(points: &[Point], level: f64) -> (Line, Vec<Point>) {
    let mut line = median_slope(points, level);
    let mut kept = points.to_vec();
    for _ in 0..ROUNDS {
        let inside = without_outliers(points, line);
        if inside.len() < LINE_SAMPLES_MIN {
            break;
        }
        let same = inside == kept;
        kept = inside;
        line = least_squares(&kept).unwrap_or(line);
        if same {
            break;
        }
    }
    (line, kept)
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    x: f64,
    y: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Line {
    intercept: f64,
    slope: f64,
}

impl Line {
    fn at(self, x: f64) -> f64 {
        self.intercept + self.slope * x
    }
}

/// Fits a line with the median of the pairwise slopes and the median intercept.
fn median_slope(points: &[Point], level: f64) -> Line {
    let every = points.len().div_ceil(PAIRED_SAMPLES_MAX);
    let some: Vec<Point> = points.iter().copied().step_by(every).collect();
    let pairs = some.iter().enumerate().flat_map(|(index, a)| some[index + 1..].iter().map(move |b| (a, b)));
    // Slopes between equal lengths are not finite, and the median ignores them.
    let slope = median(pairs.map(|(a, b)| (b.y - a.y) / (b.x - a.x))).unwrap_or(0.0);
    let intercept = median(points.iter().map(|point| point.y - slope * point.x)).unwrap_or(level);
    Line { intercept, slope }
}

fn without_outliers(points: &[Point], line: Line) -> Vec<Point> {
    let distance = |point: &Point| (point.y - line.at(point.x)).abs();
    let usual = median(points.iter().map(distance)).unwrap_or(0.0);
    let inside = |point: &&Point| {
        distance(point) <= (OUTLIER_DISTANCES * usual).max(DISTANCE_SHARE_MIN * point.y.abs())
    };
    points.iter().filter(inside).copied().collect()
}

/// Fits a line by least squares; `None` if all lengths are equal.
fn least_squares(points: &[Point]) -> Option<Line> {
    let n = points.len() as f64;
    let (mean_x, mean_y) =
        (points.iter().map(|p| p.x).sum::<f64>() / n, points.iter().map(|p| p.y).sum::<f64>() / n);
    let spread: f64 = points.iter().map(|p| (p.x - mean_x).powi(2)).sum();
    let together: f64 = points.iter().map(|p| (p.x - mean_x) * (p.y - mean_y)).sum();
    let slope = together / spread;
    slope.is_finite().then_some(Line { intercept: mean_y - slope * mean_x, slope })
}

/// Returns the standard error of a fitted slope.
fn slope_error(points: &[Point], line: Line) -> f64 {
    let n = points.len() as f64;
    let mean_x = points.iter().map(|p| p.x).sum::<f64>() / n;
    let spread: f64 = points.iter().map(|p| (p.x - mean_x).powi(2)).sum();
    let missed: f64 = points.iter().map(|p| (p.y - line.at(p.x)).powi(2)).sum();
    (missed / ((n - 2.0) * spread)).sqrt()
}

/// The costs that one device reports about itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceReport {
    /// `k_d`.
    pub prefill_ms_per_token: f64,
    /// `q_d`.
    pub prefill_ms_per_token2: f64,
    /// `TPOT_d`.
    pub decode_ms: f64,
}

/// The two lengths at which devices of a class are compared.
const COMPARED_AT: (f64, f64) = (512.0, 8_192.0);

/// Returns the typical costs of the devices of one class, or `None` if there are no reports.
///
/// `k_d` and `q_d` of one device are correlated, so their separate medians may fit no real device. Instead,
/// it takes the median cost of a token at two lengths; the line through both gives the coefficients.
#[must_use]
pub fn class_median(reports: &[DeviceReport]) -> Option<DeviceReport> {
    let at = |tokens: f64| {
        median(
            reports.iter().map(|report| report.prefill_ms_per_token + report.prefill_ms_per_token2 * tokens),
        )
    };
    let (near, far) = (at(COMPARED_AT.0)?, at(COMPARED_AT.1)?);
    let slope = ((far - near) / (COMPARED_AT.1 - COMPARED_AT.0)).max(0.0);
    Some(DeviceReport {
        prefill_ms_per_token: (near - slope * COMPARED_AT.0).max(0.0),
        prefill_ms_per_token2: slope,
        decode_ms: median(reports.iter().map(|report| report.decode_ms))?,
    })
}

#[cfg(test)]
mod tests;
